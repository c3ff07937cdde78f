"""Writers that die, find the disk full, or meet: the last snapshot stays whole, and what they left is cleaned up (T26)."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.errors import ConflictError, NotFoundError, PqindexError, WriteError
from pqindex.sidecar import writing

N_RANDOM_KILLS = int(os.environ.get("PQINDEX_TEST_KILLS", "1"))
"""Kills at random moments of each writing action, besides one before each step on the file system."""

STRIDE = 1 if N_RANDOM_KILLS >= 50 else 9
"""Of the steps of an action, each is tried with many kills, and a few of them with few."""

STEPS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
FAILED = 3


def write(path: Path, keys: range, n_rows: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [key for key in keys for _ in range(n_rows)]
    table = pa.table({"seq_id": ids, "t": list(range(len(ids))), "x": [float(i) for i in ids]})
    pq.write_table(table, path, row_group_size=n_rows * 2)


def build(source: str, index: str) -> None:
    pqindex.build(source, order="t", index=index)


def refresh(source: str, index: str) -> None:
    pqindex.open(index, root=source, staleness="ignore").refresh()


def compact(_source: str, index: str) -> None:
    pqindex.open(index, staleness="ignore").compact()


def prune(_source: str, index: str) -> None:
    pqindex.open(index, staleness="ignore").prune()


ACTIONS: dict[str, Callable[[str, str], None]] = {f.__name__: f for f in (build, refresh, compact, prune)}


# -- in the child ---------------------------------------------------------------------------------------------


def run(action: str, source: str, index: str, die_at: int | None, max_bytes: int | None) -> None:
    """Do one action; die before step `die_at` on files of the index, or let no file grow beyond `max_bytes`."""
    if max_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    if die_at is not None:
        count = 0

        def watch(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            if event in STEPS and any(isinstance(arg, str) and arg.startswith(index) for arg in args):
                count += 1
                if count == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
    try:
        ACTIONS[action](source, index)
    except PqindexError:
        os._exit(FAILED)  # which flushes nothing: the limit holds for what pytest captures too


# -- in the test ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean() -> ForkServerContext:
    """Processes that have imported everything and done nothing, forked from a server of their own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pqindex.api", "pyarrow.parquet", __name__])
    return context


@pytest.fixture
def states(tmp_path: Path) -> Callable[[str], tuple[str, str]]:
    """For an action, a source and an index at which it has something to do; each time from the same templates."""
    source = tmp_path / "data"
    for i in range(4):
        write(source / f"f{i}.parquet", range(10 * i, 10 * i + 5))
    first = pqindex.build(source, order="t", index=tmp_path / "template-1")
    shutil.copytree(first.path, tmp_path / "template-build")
    write(source / "f1.parquet", range(10, 18))
    (source / "f2.parquet").unlink()
    write(source / "new.parquet", range(90, 93))
    shutil.copytree(first.path, tmp_path / "template-refresh")
    first.refresh()
    shutil.copytree(first.path, tmp_path / "template-compact")
    first.compact()
    shutil.copytree(first.path, tmp_path / "template-prune")

    def make(action: str) -> tuple[str, str]:
        index = tmp_path / "index"
        shutil.rmtree(index, ignore_errors=True)
        shutil.copytree(tmp_path / f"template-{action}", index)
        return str(source), str(index)

    return make


def outcome(context: ForkServerContext, *args: Any, kill_after_s: float | None = None) -> int | None:
    process = context.Process(target=run, args=args)
    process.start()
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        process.kill()
    process.join()
    return process.exitcode


def check_whole(action: str, source: str, index: str, before: str) -> None:
    """The newest snapshot is that of before or that of after; the action, done again, ends and leaves nothing over."""
    opened = pqindex.open(index, staleness="ignore")
    assert opened.content_digest in {before, after_digest(source, index, action)}
    assert opened._sidecar.verify() == []
    ACTIONS[action](source, index)
    assert pqindex.open(index, staleness="ignore").content_digest == after_digest(source, index, action)
    with writing(index):  # the action may have found nothing to write any more
        assert leftovers(index) == []


_digests: dict[str, str] = {}


def after_digest(source: str, index: str, action: str) -> str:
    """The content digest that the index has after the action."""
    if action not in _digests:
        fresh = Path(index).parent / f"fresh-{action}"
        _digests[action] = pqindex.build(source, order="t", index=fresh).content_digest
        shutil.rmtree(fresh)
    return _digests[action]


def leftovers(index: str) -> list[str]:
    """Names in the index folder that no snapshot has."""
    numbers = [s["snapshot"] for s in pqindex.open(index, staleness="ignore").snapshots()]
    sidecars = [pqindex.open(index, n, staleness="ignore")._sidecar for n in numbers]
    known = {
        os.path.join(index, part.path(t)) for s in sidecars for part in s.snapshot.parts for t in part.tables
    }
    known |= {sidecar.name for sidecar in sidecars}
    found = [os.path.join(folder, name) for folder, _, names in os.walk(index) for name in names]
    return sorted(set(found) - known)


@pytest.mark.parametrize("action", ["build", "refresh", "compact", "prune"])
def test_killed_before_any_step_case_106(
    action: str, clean: ForkServerContext, states: Callable[[str], tuple[str, str]]
) -> None:
    """Steps that create, name, open or remove a file of the index are, one after the other, the first that is not done."""
    for step in range(1 + len(action) % STRIDE, 200, STRIDE):
        source, index = states(action)
        before = pqindex.open(index, staleness="ignore").content_digest
        code = outcome(clean, action, source, index, step, None)
        if code == 0:
            assert step > 5
            return
        assert code == -signal.SIGKILL
        check_whole(action, source, index, before)
    pytest.fail("the action never ended")


@pytest.mark.parametrize("action", ["build", "refresh", "compact", "prune"])
def test_killed_at_random_moments_case_106(
    action: str, clean: ForkServerContext, states: Callable[[str], tuple[str, str]]
) -> None:
    source, index = states(action)
    began = time.monotonic()
    assert outcome(clean, action, source, index, None, None) == 0
    whole_s = time.monotonic() - began
    for _ in range(N_RANDOM_KILLS):
        source, index = states(action)
        before = pqindex.open(index, staleness="ignore").content_digest
        outcome(clean, action, source, index, None, None, kill_after_s=random.uniform(0, whole_s))
        check_whole(action, source, index, before)


def test_a_first_build_that_is_killed_leaves_no_index(
    clean: ForkServerContext, states: Callable[[str], tuple[str, str]]
) -> None:
    """A folder that looks like an index is one, whole; and the next build makes it."""
    source, index = states("build")
    for step in range(1, 200, STRIDE):
        shutil.rmtree(index, ignore_errors=True)
        code = outcome(clean, "build", source, index, step, None)
        if code == 0:
            return
        try:
            assert pqindex.open(index, staleness="ignore")._sidecar.verify() == []
        except NotFoundError:
            build(source, index)
        with writing(index):
            assert leftovers(index) == []
        assert pqindex.open(index, root=source).verify().ok
    pytest.fail("the build never ended")


@pytest.mark.parametrize("action", ["build", "refresh", "compact"])
def test_a_full_disk_leaves_the_last_snapshot(
    action: str, clean: ForkServerContext, states: Callable[[str], tuple[str, str]]
) -> None:
    """Files that cannot grow beyond a limit stand for the full disk; the error is one of ours."""
    for max_bytes in (0, 1000, 3000, 6000):
        source, index = states(action)
        before = pqindex.open(index, staleness="ignore").content_digest
        code = outcome(clean, action, source, index, None, max_bytes)
        assert code in {0, FAILED}
        if code == FAILED:
            assert pqindex.open(index, staleness="ignore").content_digest == before
            assert not [name for name in os.listdir(index) if name.startswith(".tmp-")]
        check_whole(action, source, index, before)


def test_two_writers_one_wins_case_107(tmp_path: Path) -> None:
    """The loser is told so, and its retry goes on from the winner's snapshot."""
    source = tmp_path / "data"
    write(source / "a.parquet", range(3))
    index = pqindex.build(source, order="t")
    write(source / "b.parquet", range(10, 13))
    late = pqindex.open(index.path)
    sidecar = late._sidecar
    index.refresh()

    def stale_open(path: str, number: int | None = None) -> Any:
        return sidecar

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pqindex.api.open_sidecar", stale_open)
        with pytest.raises(ConflictError, match=r"another writer committed snapshot 2 .* first"):
            late.refresh()
    write(source / "c.parquet", range(20, 23))
    assert late.refresh().snapshot == 3
    assert late.content_digest == pqindex.build(source, order="t", index=tmp_path / "fresh").content_digest
    refresh(str(source), index.path)
    assert leftovers(index.path) == []


def test_many_writers_and_readers_at_once_case_107(clean: ForkServerContext, tmp_path: Path) -> None:
    """Four processes refresh while files come; whoever reads in between sees a whole snapshot."""
    source = tmp_path / "data"
    write(source / "a.parquet", range(3))
    index = pqindex.build(source, order="t")
    processes = []
    for turn in range(2):
        write(source / f"b{turn}.parquet", range(10 * turn + 10, 10 * turn + 13))
        processes += [
            clean.Process(target=run, args=("refresh", str(source), index.path, None, None)) for _ in range(2)
        ]
        for process in processes[-2:]:
            process.start()
        while any(process.is_alive() for process in processes[-2:]):
            opened = pqindex.open(index.path, staleness="ignore")
            assert opened._sidecar.verify() == []
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} <= {0, FAILED}
    refresh(str(source), index.path)
    opened = pqindex.open(index.path)
    assert opened.content_digest == pqindex.build(source, order="t", index=tmp_path / "fresh").content_digest
    numbers = [s["snapshot"] for s in opened.snapshots()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_nothing_is_cleaned_while_another_writes(tmp_path: Path) -> None:
    """What a living writer has not committed yet is no leftover."""
    source = tmp_path / "data"
    write(source / "a.parquet", range(3))
    index = pqindex.build(source, order="t")
    unfinished = Path(index.path) / ".tmp-1-aa"
    part = Path(index.path) / "parts" / ("ab" * 8 + "-files.parquet")
    with writing(index.path):
        unfinished.mkdir()
        part.touch()
        write(source / "b.parquet", range(10, 13))
        pqindex.open(index.path).refresh()
        assert unfinished.exists()
        assert part.exists()
        with pytest.raises(ConflictError, match="another writer is at work"):
            index.prune()
    write(source / "c.parquet", range(20, 23))
    index.refresh()
    assert not unfinished.exists()
    assert not part.exists()


def test_an_unwritable_index_is_said(tmp_path: Path) -> None:
    source = tmp_path / "data"
    write(source / "a.parquet", range(3))
    index = pqindex.build(source, order="t")
    write(source / "b.parquet", range(10, 13))
    (Path(index.path) / "parts").rename(Path(index.path) / "elsewhere")
    (Path(index.path) / "parts").write_text("a file in the way")
    with pytest.raises(PqindexError, match=re.escape(index.path)) as caught:
        index.refresh()
    assert not isinstance(caught.value, WriteError) or caught.value.hint


@pytest.fixture(autouse=True)
def _no_digests() -> None:
    _digests.clear()
