"""The demo: what it says is what happens when one types it, and the model is good enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.cli import main
from pqindex.demo.steps import DATA, TEST, TRAIN, WANTED_ACCURACY, Demo
from pqindex.errors import ConflictError, MissingDependencyError

pytest.importorskip("torch")

PACKAGED = Path(str(files("pqindex.demo") / DATA))


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict:
    """The report of one run, and the folder it left."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    process = subprocess.run(
        [sys.executable, "-m", "pqindex.cli", "demo", "--json", "--dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return {**json.loads(process.stdout), "folder": folder}


def test_model_is_right_on_the_held_out_and_a_second_run_gives_the_same_batches(done) -> None:
    assert done["ok"] is True
    assert done["held_out_accuracy"] > WANTED_ACCURACY
    assert done["same_batches"] is True


def test_steps_say_what_came_of_them(done) -> None:
    outcomes = [step["outcome"] for step in done["steps"]]
    assert outcomes[1] == {"n_sequences": 640, "n_rows": 9961, "n_files": 4}
    assert [row["speaker"] for row in outcomes[2]] == list("123456789")
    assert sum(row["utterances"] for row in outcomes[2]) == 640
    assert [outcomes[3]["n_sequences"], outcomes[4]["n_sequences"]] == [270, 370]


def test_typing_what_it_prints_does_the_same(done, tmp_path) -> None:
    shim = tmp_path / "bin" / "pqindex"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pqindex.cli "$@"\n')
    shim.chmod(0o755)
    here = tmp_path / "typed"
    steps = done["steps"]
    shell = "\n".join(step["sh"] for step in steps if "sh" in step).replace(str(done["folder"]), str(here))
    subprocess.run(
        ["sh", "-euc", shell],
        env={**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )
    for name in (TRAIN, TEST):
        assert (here / name).read_bytes() == (done["folder"] / name).read_bytes()
    typed = subprocess.run(
        [sys.executable, "-c", "\n".join(step["python"] for step in steps if "python" in step)],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert typed.stderr == ""
    assert typed.stdout == f"held-out accuracy: {done['held_out_accuracy']}\nsame batches: True\n"


def test_text_shows_the_commands(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(
        Demo, "_train", lambda self: setattr(self, "accuracy", 0.95) or {"held_out_accuracy": 0.95}
    )
    monkeypatch.setattr(Demo, "_run_again", lambda self: setattr(self, "same_batches", True) or {})
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert f"$ pqindex build {DATA} --order t\n" in out
    assert f'$ pqindex pin {DATA}.pqindex "SELECT seq_id, ' in out
    assert "    plan = BatchPlan(pinned" in out
    assert "speaker  utterances  shortest  longest" in out


@pytest.mark.parametrize(("accuracy", "same"), [(0.9, True), (0.95, False), (None, None)])
def test_demo_that_does_not_hold_ends_with_one(monkeypatch, capsys, accuracy, same) -> None:
    def steps(self: Demo) -> list:
        self.accuracy, self.same_batches = accuracy, same
        return []

    monkeypatch.setattr(Demo, "steps", steps)
    assert main(["demo", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_folder_that_holds_something_is_refused(tmp_path, capsys) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ConflictError, match="--dir"):
        Demo(str(tmp_path))
    assert main(["demo", "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: the demo needs an empty folder: ")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_missing_torch_is_said_before_anything_is_done(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "pqindex\[torch\]"'):
        Demo(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_packaged_data_has_one_utterance_a_row_group_and_its_notice() -> None:
    ids = []
    for path in sorted(PACKAGED.glob("*.parquet")):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            ids.append(group["seq_id"][0].as_py())
            assert set(group["seq_id"].to_pylist()) == {ids[-1]}
            assert group["t"].to_pylist() == list(range(group.num_rows))
            assert len(set(group["label"].to_pylist())) == 1
    assert ids == list(range(640))
    notice = (PACKAGED / "NOTICE").read_text()
    assert "CC BY 4.0" in notice
    assert "10.24432/C5NS47" in notice


def test_packaged_data_is_what_it_was_made_from(shared) -> None:
    sources = sorted((shared / "data" / "sequences" / DATA / "one_per_row_group").glob("*.parquet"))
    made = pa.concat_tables(pq.read_table(path) for path in sorted(PACKAGED.glob("*.parquet")))
    source = pa.concat_tables(pq.read_table(path) for path in sources)
    assert made.equals(source.select(made.column_names).cast(made.schema))
