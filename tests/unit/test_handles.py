"""The files that a process has open of a read plan: how many, counted, checked when they are opened."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import storage
from pqindex.errors import SourceChangedError, SourceError
from pqindex.handles import Counters, Handles
from pqindex.readplan import ReadPlan

NAMES = ("opens", "ranges", "bytes")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(5):
        pq.write_table(pa.table({"seq_id": [i]}), folder / f"{i}.parquet")
    return folder


@pytest.fixture
def plan(source: Path) -> ReadPlan:
    return pqindex.build(source).select().read_plan()


def handles(plan: ReadPlan, max_open_files: int = 3) -> tuple[Handles, Counters]:
    counters = Counters(NAMES)
    return Handles(plan, max_open_files, counters), counters


# -- counters -------------------------------------------------------------------------------------------------


def test_counts_add_up_and_what_was_handed_out_stays() -> None:
    counters = Counters(NAMES)
    before = counters.values
    counters.count(opens=1, bytes=20)
    counters.count(bytes=3)
    assert counters.values == {"opens": 1, "ranges": 0, "bytes": 23}
    assert before == dict.fromkeys(NAMES, 0)


def test_a_name_that_nobody_knows_is_not_counted() -> None:
    with pytest.raises(KeyError):
        Counters(NAMES).count(footers=1)


def test_no_count_is_lost_between_threads() -> None:
    counters = Counters(NAMES)

    def work() -> None:
        for _ in range(5000):
            counters.count(opens=1, bytes=2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.values == {"opens": 40_000, "ranges": 0, "bytes": 80_000}


# -- open files -----------------------------------------------------------------------------------------------


def test_a_file_is_opened_once_and_the_one_used_longest_ago_is_closed(plan: ReadPlan) -> None:
    own, counters = handles(plan, 3)
    files = [own.file(i) for i in (0, 1, 2)]
    assert own.file(0) is files[0]
    own.file(3)
    assert (len(own), own.hits, counters.values["opens"]) == (3, 1, 4)
    assert own.file(0) is files[0], "it was used after 1"
    assert own.file(1) is not files[1]
    assert counters.values["opens"] == 5
    assert files[1].read(0, 4) == b"PAR1", "who still holds a file can read it"


def test_paths_are_those_of_the_plan(plan: ReadPlan) -> None:
    own, _ = handles(plan)
    assert [own.path(i) for i in (4, 0, 4)] == ["4.parquet", "0.parquet", "4.parquet"]
    assert own.file(4).path == storage.join(plan.root, "4.parquet")


def test_what_is_read_is_counted(plan: ReadPlan) -> None:
    own, counters = handles(plan)
    file = own.file(2)
    read_ranges = own.range_reader(file)
    assert read_ranges([(0, 4), (file.facts.size_bytes - 4, 4)]) == [b"PAR1", b"PAR1"]
    assert read_ranges([]) == []
    assert counters.values == {"opens": 1, "ranges": 2, "bytes": 8}


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_a_descriptor_left_the_other_files_are_closed_A8(
    plan: ReadPlan, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A limit on descriptors is of the process, and would hit the test's own files: the call fails instead."""
    own, counters = handles(plan)
    for i in range(2):
        own.file(i)
    original = os.open
    left = [0]

    def scarce(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".parquet") and not left[0]:
            left[0] += 1
            raise OSError(code, os.strerror(code), path)
        return original(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", scarce)
    assert own.file(2).read(0, 4) == b"PAR1"
    assert (len(own), counters.values["opens"]) == (1, 3)
    own, _ = handles(plan)
    left[0] = 0
    with pytest.raises(SourceError, match=r"cannot be opened: .*0\.parquet") as caught:
        own.file(0)  # there is nothing to close
    assert caught.value.errno == code


def test_other_errors_of_the_store_close_nothing(plan: ReadPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = handles(plan)
    own.file(0)

    def broken(path: Any, *_rest: Any, **_more: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(SourceError, match=r"1\.parquet"):
        own.file(1)
    assert len(own) == 1


# -- the file is the one of the plan --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["size", "mtime", "inode"])
def test_a_file_that_was_written_to_is_refused_when_it_is_opened(
    source: Path, plan: ReadPlan, what: str
) -> None:
    own, _ = handles(plan)
    path = source / "3.parquet"
    stat = path.stat()
    if what == "size":
        with path.open("ab") as file:
            file.write(b"x")
    elif what == "mtime":
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    else:
        data = path.read_bytes()
        (source / "other").write_bytes(data)
        os.utime(source / "other", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        (source / "other").rename(path)
    with pytest.raises(
        SourceChangedError, match=r"changed since the dataset or reader was made: 3\.parquet; expected size"
    ) as caught:
        own.file(3)
    error = caught.value
    assert (error.file, error.change, error.hint) == (
        "3.parquet",
        "replaced",
        "make the dataset again, so that the file is checked against the index",
    )
    assert error.found != error.expected
    assert len(own) == 0
    assert own.file(2).read(0, 4) == b"PAR1"


@pytest.mark.parametrize("staleness", ["warn", "ignore"])
def test_who_does_not_mind_may_read_it(source: Path, staleness: str) -> None:
    plan = pqindex.build(source).select().read_plan(staleness=staleness)
    path = source / "3.parquet"
    os.utime(path, ns=(0, 0))
    own, _ = handles(plan)
    assert own.file(3).read(0, 4) == b"PAR1"
