"""`pqindex rewrite`: what it prints, what it passes on, and the code it ends with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.cli import main

N = 6


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with ``data`` of six sequences of 1 to 6 rows, its index and a manifest of three."""
    (tmp_path / "data").mkdir()
    ids = np.repeat(np.arange(N), np.arange(1, N + 1))
    table = pa.table(
        {"seq_id": ids, "step": np.arange(len(ids)), "price": ids + 0.5, "name": ids.astype(str)}
    )
    pq.write_table(table, tmp_path / "data" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    index = pqindex.build("data", order="step")
    index.select("SELECT seq_id FROM index WHERE row_count > 3").pin("m.manifest.parquet")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run the command line; give its exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_it_says_what_it_made_and_what_to_do_next(here, run) -> None:
    code, out, err = run("rewrite", "data.pqindex", "-o", "fast")
    assert (code, err) == (0, "")
    said = dict(line.rsplit("  ", 1) for line in out.splitlines()[:-1])
    said = {name.strip(): value.strip() for name, value in said.items()}
    assert said["path"] == str(here / "fast")
    assert said["index"] == str(here / "fast.pqindex")
    assert (said["n sequences"], said["n rows"], said["n files"], said["checked"]) == ("6", "21", "1", "yes")
    assert "n kept files" not in said
    assert out.splitlines()[-1] == f"next: pqindex info {here}/fast.pqindex"
    assert len(pqindex.open("fast.pqindex")) == N


def test_as_json(here, run) -> None:
    code, out, err = run("rewrite", "data.pqindex", "-o", "fast", "--json", "--no-check")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts.pop("elapsed_s") > 0
    assert facts.pop("bytes_before") < facts.pop("bytes_after")
    assert facts == {
        "path": str(here / "fast"),
        "index": str(here / "fast.pqindex"),
        "n_sequences": 6,
        "n_rows": 21,
        "n_files": 1,
        "n_kept_files": 0,
        "checked": False,
    }


def test_a_manifest_in_its_order(here, run) -> None:
    code, out, _ = run("rewrite", "m.manifest.parquet", "-o", "few", "--json")
    assert (code, json.loads(out)["n_sequences"]) == (0, 3)


def test_sql_with_parameters_and_options_are_passed_on(here, run) -> None:
    code, _, err = run(
        *("rewrite", "data.pqindex", "-o", "some", "--param", 2, "--column", "price", "--column", "name"),
        *("--sql", "SELECT seq_id FROM index WHERE row_count > ? ORDER BY seq_id DESC"),
        *("--pack-rows", 100, "--codec", "zstd", "--dictionary", "never", "--file-size", "1KiB"),
    )
    assert (code, err) == (0, "")
    meta = pq.read_metadata("some/part-00000.parquet")
    chunk = meta.row_group(0).column(3)
    assert (chunk.path_in_schema, chunk.compression, chunk.has_dictionary_page) == ("name", "ZSTD", False)
    assert meta.schema.names == ["seq_id", "step", "price", "name"]
    assert meta.num_row_groups == 1
    assert pq.read_table("some/part-00000.parquet").column("seq_id").unique().to_pylist() == [5, 4, 3, 2]


def test_the_snapshot_and_the_order_can_be_named(here, run) -> None:
    table = pq.read_table("data/a.parquet")
    pq.write_table(table.set_column(0, "seq_id", pa.array([9] * 21)), "data/b.parquet")
    pqindex.build("data", order="step")
    code, out, _ = run("rewrite", "data.pqindex", "-o", "old", "--snapshot", 1, "--order", "step", "--json")
    assert (code, json.loads(out)["n_sequences"]) == (0, N)


def test_an_earlier_run_with_other_options_is_given_up_in_a_note(here, run, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pqindex.rewrite._publish", interrupt)
        code, out, err = run("rewrite", "data.pqindex", "-o", "fast")
    assert (code, out) == (130, "")
    assert err == "interrupted: run the same command again to go on after the last complete file\n"
    code, _, err = run("rewrite", "data.pqindex", "-o", "fast", "--codec", "none")
    assert code == 0
    assert err == (
        f"an earlier rewrite to {here}/fast was of other data or with other options: it starts anew\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.pqindex", "-o", "x"], "neither an index nor a manifest is there"),
        (["data.pqindex"], "Missing option '-o'"),
        (["data.pqindex", "-o", "data/x"], "the folder to write lies in the source"),
        (["data.pqindex", "-o", "."], "holds the source"),
        (["data.pqindex", "-o", "x", "--file-size", "big"], "'big' is no size; expected a number of bytes, as 256MB"),
        (["data.pqindex", "-o", "x", "--file-size", "0.1"], "'0.1' is no size"),
        (["data.pqindex", "-o", "x", "--codec", "gzip"], "'gzip' is not one of"),
        (["data.pqindex", "-o", "x", "--pack-rows", "0"], "0 is not in the range"),
        (["data.pqindex", "-o", "x", "--column", "nope"], "no source file of the selection has a column 'nope'"),
        (["data.pqindex", "-o", "x", "--sql", "SELECT 1"], "seq_id"),
        (["m.manifest.parquet", "-o", "x", "--sql", "SELECT seq_id FROM index"], "need an index"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_code_2(here, run, words, message) -> None:
    code, out, err = run("rewrite", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1", 1), ("1000B", 1000), ("256MB", 256 * 10**6), ("256 mb", 256 * 10**6), ("1.5GiB", 3 << 29), ("2k", 2000),
        ("3TB", 3 * 10**12), ("1Ki", 1024),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(text, n_bytes) -> None:
    from pqindex.cli.options import Size

    assert Size().convert(text, None, None) == n_bytes
