"""One reader under many threads, for very many reads, and in a forked child."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex

N_FILES, N_GROUPS, N_ROWS = 12, 20, 3
N = N_FILES * (N_GROUPS + 5)

# forking is what is tested: Python warns about it where the parent has threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> pqindex.Selection:
    """Files of twenty sequences with a row group each, and of five that share one; `x` says which row it is."""
    folder = tmp_path_factory.mktemp("threads") / "data"
    folder.mkdir()
    schema = pa.schema([("seq_id", pa.int32()), ("x", pa.int32())])
    first = 0
    for number in range(N_FILES):
        with pq.ParquetWriter(folder / f"{number:02}.parquet", schema) as writer:
            for n_sequences in [1] * N_GROUPS + [5]:
                ids = np.repeat(np.arange(first, first + n_sequences, dtype=np.int32), N_ROWS)
                x = ids * 10 + np.tile(np.arange(N_ROWS, dtype=np.int32), n_sequences)
                writer.write_table(pa.table([ids, x], schema=schema))
                first += n_sequences
    return pqindex.build(folder).select("SELECT seq_id FROM index ORDER BY seq_id")


def is_right(table: pa.Table, seq_id: int) -> bool:
    return bool(table.column("x").to_pylist() == [10 * seq_id + i for i in range(N_ROWS)])


def run(work: Callable[[int], None], n_threads: int) -> None:
    """Run `work` in threads, and fail where one of them does."""
    problems: list[BaseException] = []

    def safe(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=safe, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.slow
def test_eight_threads_read_ten_thousand_sequences_each_T7_case_64(selection: pqindex.Selection) -> None:
    """Fewer files may be open than there are, so that files are closed under the threads all the time."""
    n_reads = 10_000
    n_right = [0] * 8
    with pqindex.Reader(selection, columns=["x"], max_open_files=4, group_cache_bytes=200) as reader:

        def work(number: int) -> None:
            for i in np.random.default_rng(number).integers(0, N, n_reads).tolist():
                n_right[number] += is_right(reader[i], i)

        run(work, 8)
        stats = reader.stats()
    assert n_right == [n_reads] * 8
    assert stats["reads"] == 8 * n_reads
    assert stats["opens"] > N_FILES
    assert stats["open_files"] == 4


def test_threads_that_read_batches_through_a_reader_with_threads(selection: pqindex.Selection) -> None:
    n_right = [0] * 6
    with pqindex.Reader(selection, columns=["x"], max_open_files=4, threads=2) as reader:

        def work(number: int) -> None:
            random = np.random.default_rng(number)
            for _ in range(150):
                positions = random.integers(0, N, 16).tolist()
                tables = reader.read(positions)
                n_right[number] += sum(map(is_right, tables, positions))

        run(work, 6)
        assert reader.stats()["reads"] == 6 * 150 * 16
    assert n_right == [150 * 16] * 6


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc/self/statm here")
def test_a_hundred_thousand_reads_take_no_memory(selection: pqindex.Selection) -> None:
    with pqindex.Reader(selection, columns=["x"], max_open_files=4) as reader:

        def read(n_reads: int) -> None:
            positions = np.random.default_rng(n_reads).integers(0, N, n_reads)
            for at in range(0, n_reads, 1000):
                some = positions[at : at + 1000].tolist()
                for i in some[:900]:  # most one by one, and some together
                    assert reader[i].num_rows == N_ROWS
                assert len(reader.read(some[900:])) == 100

        read(10_000)
        gc.collect()
        before = resident_bytes()
        read(100_000)
        gc.collect()
        grown = resident_bytes() - before
        assert reader.stats()["reads"] == 110_000
    assert grown < 10 << 20, f"{grown} bytes more are resident"


def in_child(work: Callable[[], bool]) -> bool:
    """Return what `work` says in a forked child; False where the child dies."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_reads_right_whose_parent_has_read_with_threads_A11_A12(
    selection: pqindex.Selection, threads: int
) -> None:
    """The parent's pool of threads is not in the child, which must start its own."""
    positions = list(range(0, N, 3))
    with pqindex.Reader(selection, columns=["x"], max_open_files=4, threads=threads) as reader:

        def read_all() -> bool:
            return all(map(is_right, reader.read(positions), positions)) and is_right(reader[-1], N - 1)

        def child() -> bool:
            fresh = reader.stats()
            is_fresh = (fresh["opens"], fresh["reads"], fresh["open_files"]) == (0, 0, 0)
            return is_fresh and read_all() and in_child(read_all) and read_all()

        assert read_all()
        opens = reader.stats()["opens"]
        assert in_child(child)
        assert in_child(child)
        assert reader.stats()["opens"] == opens, "the child's reads are not the parent's"
        assert read_all()
