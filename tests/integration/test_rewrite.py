"""Rewrites of real data, and of processes that are killed or run out of room."""

from __future__ import annotations

import csv
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.errors import ConflictError

KILLS = int(os.environ.get("PQINDEX_TEST_KILLS", "6"))
CHILD = Path(__file__).parent / "rewrite_killed.py"
FILE_SIZE = 6000
NOT_CHANNELS = {"seq_id", "t", "label", "length", "diet"}


# -- real data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack_rows", [None, 3000])
@pytest.mark.parametrize("data_set", ["basic_motions", "chick_weights", "japanese_vowels", "plaid"])
def test_a_copy_has_the_checksums_made_outside_of_pqindex_A15(
    shared: Path, tmp_path: Path, data_set: str, pack_rows: int | None
) -> None:
    folder = shared / "data/sequences" / data_set
    index = pqindex.build(
        folder / "many_per_row_group",
        order="t",
        index=tmp_path / "x.pqindex",
        join=data_set == "japanese_vowels",
    )
    made = index.rewrite(tmp_path / "out", pack_rows=pack_rows, file_size=100_000)
    assert read_all(made) == oracle(folder)
    one_each = made.info()["totals"]["n_row_groups"] == made.n_sequences
    assert one_each == (pack_rows is None)


def oracle(folder: Path) -> dict[str, tuple[int, str]]:
    with (folder / "oracle.csv").open(newline="") as file:
        return {row["seq_id"]: (int(row["length"]), row["sha256_16"]) for row in csv.DictReader(file)}


def read_all(index: pqindex.Index) -> dict[str, tuple[int, str]]:
    """Length, and first digits of the sha256 over the channels as float32, of each sequence."""
    selection = index.select()
    found = {}
    with pqindex.Reader(selection) as reader:
        names = [name for name in reader.schema.names if name not in NOT_CHANNELS]
        for i in range(len(reader)):
            values = np.ascontiguousarray([reader[i].column(name).to_numpy() for name in names], np.float32)
            sha256 = hashlib.sha256(values.tobytes()).hexdigest()[:16]
            seq_id = selection.seq_ids[i].as_py()
            found[seq_id.hex() if isinstance(seq_id, bytes) else str(seq_id)] = (values.shape[1], sha256)
    return found


# -- killed ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> pqindex.Index:
    """Twelve sequences of noise in two files, which become four files."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "data").mkdir()
    noise = np.random.default_rng(3)
    for number in range(2):
        ids = np.repeat(np.arange(6) + 6 * number, 4 * (np.arange(6) + 1))
        table = pa.table(
            {"seq_id": ids, "t": np.arange(len(ids)), "x": [noise.bytes(100) for _ in range(len(ids))]}
        )
        pq.write_table(table, folder / "data" / f"{number}.parquet", row_group_size=16)
    return pqindex.build(folder / "data", order="t")


@pytest.fixture(scope="module")
def whole(index: pqindex.Index) -> dict[str, str]:
    """The digests of the files of a run that nobody disturbed."""
    out = Path(index.root).parent / "whole"
    index.rewrite(out, file_size=FILE_SIZE)
    return digests(out)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def run_child(index: pqindex.Index, out: Path, kind: str, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHILD), index.path, str(out), kind, str(at)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["disk", "any"])
def test_kill_9_at_any_moment_leaves_nothing_that_looks_whole_T26_case_106(
    index: pqindex.Index, whole: dict[str, str], tmp_path: Path, kind: str
) -> None:
    counted = run_child(index, tmp_path / "counted", kind, 0)
    assert counted.returncode == 0, counted.stderr
    n_steps = int(counted.stdout)
    n_kills = (KILLS + 1) // 2
    edges = np.linspace(1, n_steps, n_kills + 1).astype(int)
    draw = random.Random(n_kills)
    kept: list[int] = []
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        folder = tmp_path / str(number)
        folder.mkdir()
        at = draw.randint(low, high)
        child = run_child(index, folder / "out", kind, at)
        assert child.returncode == -signal.SIGKILL, (at, child.stderr)
        if (folder / "out").exists():  # the data come last: the index is there, and all is whole
            assert digests(folder / "out") == whole
            assert pqindex.open(folder / "out.pqindex").verify().ok
        try:
            kept.append(index.rewrite(folder / "out", file_size=FILE_SIZE).rewritten.n_kept_files)
        except ConflictError:  # all was done, and the notes of the work were removed already
            kept.append(len(whole))
        assert digests(folder / "out") == whole, at
        assert pqindex.open(folder / "out.pqindex").verify().ok
        assert sorted(os.listdir(folder)) == ["out", "out.pqindex"], at
    assert kept == sorted(kept), "who was killed later had more that could be kept"
    assert kept[-1] > 0


# -- no room --------------------------------------------------------------------------------------------------


def test_a_file_that_may_not_grow_ends_in_one_line_and_is_gone_on_with_case_106(tmp_path: Path) -> None:
    """The limit of the system on the size of a file stands for a full disk."""
    (tmp_path / "data").mkdir()
    noise = np.random.default_rng(4)
    ids = [0] * 20 + [1] * 400
    pq.write_table(
        pa.table({"seq_id": ids, "x": [noise.bytes(1000) for _ in ids]}), tmp_path / "data" / "a.parquet"
    )
    index = pqindex.build(tmp_path / "data")
    limit = 200_000

    def run(**limited: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-m", "pqindex.cli", "rewrite", index.path),
                *("-o", "out", "--file-size", "10kB", "--json"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            **limited,
        )

    stopped = run(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert (stopped.returncode, stopped.stdout) == (2, "")
    assert len(stopped.stderr.splitlines()) == 1
    assert "File too large; complete and kept in " in stopped.stderr
    assert "1 file, 1 of 2 sequences" in stopped.stderr
    assert "run the same command again to go on" in stopped.stderr
    assert not (tmp_path / "out").exists()
    done = run()
    assert done.returncode == 0, done.stderr
    assert '"n_kept_files": 1' in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["data", "data.pqindex", "out", "out.pqindex"]


def test_ctrl_c_ends_with_130_and_one_line_case_106(index: pqindex.Index, tmp_path: Path) -> None:
    """The signal comes when the second file is begun."""
    script = (
        "import os, signal, sys\n"
        "from pqindex import rewrite\n"
        "from pqindex.cli import main\n"
        "real = rewrite._Run._write_file\n"
        "def write_file(self, *arguments):\n"
        "    if self._done: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(self, *arguments)\n"
        "rewrite._Run._write_file = write_file\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, "rewrite", index.path, "-o", "out", "--file-size", str(FILE_SIZE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stdout) == (130, "")
    assert child.stderr == ("interrupted: run the same command again to go on after the last complete file\n")
    assert os.listdir(tmp_path) == [".tmp-work-out"]
    made = index.rewrite(tmp_path / "out", file_size=FILE_SIZE)
    assert made.rewritten is not None
    assert made.rewritten.n_kept_files == 1
    shutil.rmtree(tmp_path / "out")
