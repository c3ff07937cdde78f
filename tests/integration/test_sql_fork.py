"""Processes: a forked child is told at once, and can make a database of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from pqindex.errors import ProcessBoundaryError
from pqindex.sql import LockedDatabase, check_query

INDEX = pa.table({"seq_id": [5, 3, 4], "seq_no": [0, 1, 2]})
SQL = "SELECT seq_id FROM index ORDER BY seq_id"

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# What a parent does before it forks: all connections there are (two engines and the parser).
PARENT = """
import gc, os, signal, sys, time
import pyarrow as pa
from pqindex.errors import ProcessBoundaryError
from pqindex.sql import LockedDatabase, check_query, run_selection

INDEX = pa.table({"seq_id": [5, 3, 4], "seq_no": [0, 1, 2]})
database = LockedDatabase({"index": INDEX})
query = check_query("SELECT seq_id FROM index ORDER BY seq_id", relations=database.schemas)
database.execute(query)
run_selection(database, query)


def child():
{child}


pid = os.fork()
if pid == 0:
    child()
    os._exit(0)
last = time.monotonic() + 30
while time.monotonic() < last:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    time.sleep(0.02)
else:
    os.kill(pid, signal.SIGKILL)
    sys.exit("the child hangs")
assert status == 0, status
assert database.execute(query).column(0).to_pylist() == [3, 4, 5]
print("fine")
"""


def run_child(child: str) -> None:
    code = PARENT.replace("{child}", textwrap.indent(textwrap.dedent(child), "    "))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


@needs_fork
def test_case_62_a_child_is_told_at_once() -> None:
    run_child(
        """
        for use in (
            lambda: database.execute(query),
            lambda: run_selection(database, query),
            lambda: database.with_relations({}),
        ):
            try:
                use()
            except ProcessBoundaryError as error:
                assert str(os.getpid()) in str(error)
            else:
                os._exit(1)
        """
    )


@needs_fork
def test_case_62_a_child_makes_its_own() -> None:
    run_child(
        """
        with LockedDatabase({"index": INDEX}) as own:
            checked = check_query("SELECT seq_id FROM index WHERE seq_id > 3", relations=own.schemas)
            assert run_selection(own, checked).column(0).to_pylist() == [5, 4]
            assert own.execute(checked).num_rows == 2
        """
    )


@needs_fork
def test_a_child_may_forget_what_it_inherited() -> None:
    """DuckDB 2 crashes where a forked child frees a connection, at the latest when Python ends."""
    run_child(
        """
        global database
        database.close()
        del database
        gc.collect()
        sys.exit(0)
        """
    )


WORKER = """
import multiprocessing
import sys

import pyarrow as pa

from pqindex.sql import LockedDatabase, check_query, run_selection

INDEX = pa.table({"seq_id": [5, 4, 3], "seq_no": [0, 1, 2]})
SQL = "SELECT seq_id FROM index ORDER BY seq_id"


def answer():
    with LockedDatabase({"index": INDEX}) as database:
        query = check_query(SQL, relations=database.schemas)
        return run_selection(database, query).column("seq_id").to_pylist()


def work(queue):
    queue.put(answer())


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    mine = answer()
    queue = context.Queue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    print(queue.get(timeout=60) == mine == [3, 4, 5])
    worker.join(60)
    sys.exit(worker.exitcode)
"""


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_case_63_workers_of_every_kind(kind: str, tmp_path: Path) -> None:
    if kind not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {kind} here")
    script = tmp_path / "script.py"
    script.write_text(WORKER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), kind], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_a_use_after_the_pid_changed_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with LockedDatabase({"index": INDEX}) as database:
        query = check_query(SQL, relations=database.schemas)
        pid = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)
            with pytest.raises(
                ProcessBoundaryError, match=f"a database of process {pid} was used in process"
            ):
                database.execute(query)
            database.close()
        assert database.execute(query).num_rows == 3
