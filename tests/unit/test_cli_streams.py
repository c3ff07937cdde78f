"""The command in a process of its own: exit codes, pipes that close, terminals, signals (cases 106 and 110)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex

COMMAND = [sys.executable, "-m", "pqindex.cli"]
MANY = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with ``data``, 20,000 sequences of one row, and its index."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "data").mkdir()
    pq.write_table(pa.table({"seq_id": range(MANY)}), folder / "data" / "a.parquet")
    pqindex.build(folder / "data")
    return folder


def run(folder: Path, *words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=120, **options
    )


def test_data_goes_to_standard_output_and_nothing_else_does(folder) -> None:
    done = run(folder, "query", "data.pqindex", "SELECT count(*) AS n FROM index", "--json")
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, [{"n": MANY}], "")
    assert "\x1b" not in run(folder, "build", "data").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "absent"], "absent"),
        (["build", "data", "--key", "nix"], "nix"),
        (["query", "data.pqindex", "SELEC 1"], "SELEC"),
        (["info", "data"], "data"),
        (["nix"], "nix"),
    ],
)
def test_errors_go_to_standard_error_in_one_line(folder, words, message) -> None:
    done = run(folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_reader_that_has_enough_closes_the_pipe(folder, form) -> None:
    words = [*COMMAND, "query", "data.pqindex", "SELECT seq_id, file FROM index", "--format", form]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(timeout=120), errors) == (0, b"")


def test_pipe_that_was_closed_before_keeps_the_exit_code(folder, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"seq_id": [1]}), tmp_path / "data" / "a.parquet")
    pqindex.build(tmp_path / "data")
    (tmp_path / "data" / "a.parquet").unlink()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "verify", "data.pqindex"], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_no_standard_output_at_all(folder) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "query", "data.pqindex", "SELECT 1 AS a"],
        cwd=folder,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_an_error(folder) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "info", "data.pqindex"], cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"error: No space left on device\n")


def test_output_is_utf8_whatever_the_locale(folder, tmp_path) -> None:
    environment = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(
        folder,
        "query",
        "data.pqindex",
        "SELECT 'Zo' || chr(235) AS name",
        "--json",
        env=environment,
        encoding="utf-8",
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"name": "Zoë"}])


SLOW_BUILD = """
import sys, time
import pqindex, pqindex.cli
real = pqindex.build
def build(*args, progress=None, **options):
    for done in range(4):
        if progress is not None:
            progress(done, 4, "scan")
        print("started", file=sys.stderr, flush=True)
        time.sleep({pause})
    return real(*args, progress=progress, **options)
pqindex.build = build
sys.exit(pqindex.cli.main(sys.argv[1:]))
"""


def test_terminal_sees_a_progress_bar_and_a_pipe_does_not(folder, tmp_path) -> None:
    words = [
        sys.executable,
        "-c",
        SLOW_BUILD.format(pause=0.4),
        "build",
        "data",
        "-o",
        str(tmp_path / "i.pqindex"),
    ]
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": "xterm"}
    )
    os.close(follower)
    out, _ = process.communicate(timeout=120)
    shown = b""
    try:
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:  # how Linux says that a terminal has no other end
        pass
    os.close(leader)
    assert process.returncode == 0
    assert b"scan" in shown
    assert b"/4" in shown
    assert b"\x1b" not in out
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    assert done.stderr == b"started\n" * 4


@pytest.mark.parametrize("sent", [signal.SIGINT])
def test_interrupt_ends_quietly_with_130(folder, tmp_path, sent) -> None:
    words = [
        sys.executable,
        "-c",
        SLOW_BUILD.format(pause=30),
        "build",
        "data",
        "-o",
        str(tmp_path / "i.pqindex"),
    ]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"started\n"
        time.sleep(0.1)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_verbs_load_neither_torch_nor_duckdb_for_help(folder) -> None:
    code = (
        "import sys\nfrom pqindex.cli import main\nmain(['build', '--help'])\n"
        "print([m for m in ('torch', 'duckdb', 'sqlglot') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "[]\n"
