"""The reader: what it gives, what it costs, and what it refuses."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import storage
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    SelectionIndexError,
    SourceChangedError,
    UsageError,
)
from pqindex.readplan import PqindexStalenessWarning


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PQINDEX_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Six files of four row groups: one sequence a group, but for the last group of a file, which has three."""
    folder = tmp_path / "data"
    folder.mkdir()
    schema = pa.schema([("seq_id", pa.int64()), ("t", pa.int32()), ("x", pa.float32()), ("s", pa.string())])
    seq_id = 0
    for number in range(6):
        with pq.ParquetWriter(folder / f"{number}.parquet", schema) as writer:
            for group in range(4):
                ids = []
                for _ in range(3 if group == 3 else 1):
                    ids += [seq_id] * (5 + seq_id % 4)
                    seq_id += 1
                steps = np.arange(len(ids), dtype=np.int32)
                x = np.array(ids, np.float32) * 100 + steps
                writer.write_table(pa.table([ids, steps, x, [f"s{i}" for i in ids]], schema=schema))
    return folder


@pytest.fixture
def index(source: Path) -> pqindex.Index:
    return pqindex.build(source, order="t")


def values(table: pa.Table) -> list[float]:
    return list(table.column("x").to_pylist())


def expected(seq_id: int, index: pqindex.Index) -> list[float]:
    row = index.sql("SELECT row_start, row_count FROM index WHERE seq_id = ?", params=[seq_id]).to_pylist()[0]
    return [seq_id * 100.0 + row["row_start"] + i for i in range(row["row_count"])]


def test_positions_are_the_selections_own_case_15(index: pqindex.Index) -> None:
    selection = index.select("SELECT seq_id FROM index WHERE seq_id >= 30 ORDER BY seq_id DESC")
    with pqindex.Reader(selection, columns=["x", "seq_id"]) as reader:
        assert len(reader) == len(selection) == 6
        assert reader.seq_ids.to_pylist() == [35, 34, 33, 32, 31, 30]
        for i, seq_id in enumerate(reader.seq_ids.to_pylist()):
            assert reader[i].column_names == ["x", "seq_id"]
            assert set(reader[i].column("seq_id").to_pylist()) == {seq_id}
            assert values(reader[i]) == expected(seq_id, index)
        assert values(reader[-1]) == expected(30, index)
        assert [values(t) for t in reader.read([2, -1, 2])] == [expected(i, index) for i in (33, 30, 33)]
        assert reader.read([]) == []
        for wrong in (6, -7):
            with pytest.raises(SelectionIndexError, match="outside the selection of 6"):
                reader[wrong]


def test_only_the_wanted_bytes_are_read_L4_A6_A9(
    index: pqindex.Index, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = index.select("SELECT seq_id FROM index ORDER BY hash(seq_id)")
    touched: list[tuple[str, int, int]] = []
    original = storage.SourceFile.read

    def counted(self: storage.SourceFile, offset: int, length: int) -> bytes:
        touched.append((os.path.basename(self.path), offset, length))
        return original(self, offset, length)

    reader = pqindex.Reader(selection, columns=["x"])
    monkeypatch.setattr(storage.SourceFile, "read", counted)
    for i in range(len(reader)):
        reader[i]
    wanted = set()
    for path in source.glob("*.parquet"):
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(2)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            wanted.add((path.name, start, chunk.total_compressed_size))
    assert set(touched) == wanted
    assert len(touched) == 24, "row groups that several sequences share are decoded once"
    stats = reader.stats()
    assert (stats["reads"], stats["groups"], stats["footer_reads"], stats["group_cache_hits"]) == (
        36,
        24,
        0,
        12,
    )
    assert stats["bytes"] == sum(length for _, _, length in touched)


def test_at_most_so_many_files_are_open_A7_A8_case_101(index: pqindex.Index) -> None:
    selection = index.select()

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = descriptors()
    with pqindex.Reader(selection, columns=["x"], max_open_files=2) as reader:
        for _ in range(2):
            for i in range(len(reader)):
                reader[i]
                assert reader.stats()["open_files"] <= 2
                assert descriptors() <= before + 3
        assert reader.stats()["opens"] == 12
    assert descriptors() <= before + 1


@pytest.mark.parametrize("wrong", [0, -1, None, 1.5, True])
def test_max_open_files_is_checked_A7(index: pqindex.Index, wrong: Any) -> None:
    with pytest.raises(UsageError, match="max_open_files"):
        pqindex.Reader(index.select(), max_open_files=wrong)


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        (["y"], ColumnMissingError, "no source file of the selection has a column 'y'"),
        (["xx"], ColumnMissingError, "did you mean 'x'"),
        (["x", "x"], UsageError, "named twice: 'x'"),
        ([], UsageError, "at least one"),
        ("x", UsageError, "list of names"),
    ],
)
def test_columns_are_checked_at_construction_L13(
    index: pqindex.Index, columns: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        pqindex.Reader(index.select(), columns=columns)


def test_columns_that_some_files_lack_or_have_with_another_type_case_3_5_6(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    strict = pa.schema(
        [pa.field("seq_id", pa.int64(), nullable=False), pa.field("grip", pa.float32(), nullable=False)]
    )
    pq.write_table(pa.table({"seq_id": [1]}), folder / "a.parquet")
    pq.write_table(pa.table([[2], pa.array([0.5], pa.float32())], schema=strict), folder / "b.parquet")
    pq.write_table(pa.table({"seq_id": [3], "grip": [0.25]}), folder / "c.parquet")
    pq.write_table(pa.table({"seq_id": [4], "grip": ["closed"]}), folder / "d.parquet")
    index = pqindex.build(folder)
    with pqindex.Reader(
        index.select("SELECT seq_id FROM index WHERE seq_id < 4"), columns=["grip"]
    ) as reader:
        assert reader.schema == pa.schema([("grip", pa.float64())])
        assert [reader[i].to_pydict() for i in range(3)] == [
            {"grip": [None]},
            {"grip": [0.5]},
            {"grip": [0.25]},
        ]
        assert all(reader[i].schema == reader.schema for i in range(3))
    with pytest.raises(ColumnTypeError, match=r"float32 in b.parquet, string in d.parquet"):
        pqindex.Reader(index.select(), columns=["grip"])


@pytest.mark.parametrize("fresh", [True, False])
def test_a_reader_pickles_small_and_works_elsewhere_A11_case_63(
    index: pqindex.Index, tmp_path: Path, fresh: bool
) -> None:
    selection = index.select("SELECT seq_id, row_count * 2 AS twice FROM index ORDER BY seq_id DESC")
    source: Any = selection if fresh else selection.pin(tmp_path / "m.manifest.parquet")
    reader = pqindex.Reader(source, columns=["x"])
    reader[3]
    data = pickle.dumps(reader)
    assert len(data) < 8192
    copy = pickle.loads(data)
    assert (copy.digest, copy.schema, len(copy)) == (reader.digest, reader.schema, len(reader))
    assert copy.extra.equals(reader.extra)
    assert [copy[i] for i in range(36)] == [reader[i] for i in range(36)]
    assert copy.stats()["opens"] == 6


def test_a_plan_that_is_gone_is_resolved_again_from_the_manifest(
    index: pqindex.Index, tmp_path: Path
) -> None:
    manifest = index.select().pin(tmp_path / "m.manifest.parquet")
    data = pickle.dumps(pqindex.Reader(manifest, columns=["x"]))
    other = pickle.dumps(pqindex.Reader(index.select(), columns=["x"]))
    for path in (tmp_path / "cache/plans").iterdir():
        path.unlink()
    assert values(pickle.loads(data)[3]) == expected(3, index)
    with pytest.raises(pqindex.NotFoundError, match="pin the selection"):
        pickle.loads(other)


def test_threads_share_a_reader_T7_case_64(index: pqindex.Index) -> None:
    selection = index.select()
    reader = pqindex.Reader(selection, columns=["x", "s"], max_open_files=2)
    single = [reader[i] for i in range(len(reader))]
    wrong: list[int] = []

    def work(seed: int) -> None:
        positions = np.random.default_rng(seed).integers(0, len(single), 200).tolist()
        wrong.extend(i for i in positions if not reader[i].equals(single[i]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_opens_its_own_files_A11_A12(index: pqindex.Index) -> None:
    reader = pqindex.Reader(index.select(), columns=["x"])
    before = [values(reader[i]) for i in range(len(reader))]
    pid = os.fork()
    if pid == 0:
        try:
            good = reader.stats()["opens"] == 0 and [values(reader[i]) for i in range(len(reader))] == before
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert values(reader[0]) == before[0]


def test_slices_are_of_their_own_rows_and_never_shared_case_93(index: pqindex.Index) -> None:
    reader = pqindex.Reader(index.select("SELECT seq_id FROM index WHERE seq_id IN (3, 4, 5)"), columns=["x"])
    array = reader[1].column("x").chunk(0).to_numpy().copy()
    array[:] = -1
    assert values(reader[1]) == expected(4, index)


# -- the file is still the one that was indexed ---------------------------------------------------------------


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pq.read_table(path))
    pq.write_table(table, path)


def test_a_changed_file_is_named_before_the_first_read_T13_case_35(
    index: pqindex.Index, source: Path
) -> None:
    rewrite(source / "2.parquet", lambda t: t.slice(1))
    with pytest.raises(SourceChangedError, match=r"2.parquet") as caught:
        pqindex.Reader(index.select(), columns=["x"])
    assert (caught.value.file, caught.value.change) == ("2.parquet", "replaced")
    some = index.select("SELECT seq_id FROM index WHERE file <> '2.parquet'")
    assert len(pqindex.Reader(some, columns=["x"])) == 30
    with pytest.warns(PqindexStalenessWarning, match="2.parquet"):
        pqindex.Reader(index.select(), columns=["x"], staleness="warn")
    pqindex.Reader(index.select(), columns=["x"], staleness="ignore")
    with pytest.raises(UsageError, match="staleness"):
        pqindex.Reader(index.select(), columns=["x"], staleness="hope")


@pytest.mark.parametrize("staleness", ["warn", "ignore"])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_who_does_not_mind_stale_files_can_go_on(
    index: pqindex.Index, source: Path, tmp_path: Path, staleness: str, pinned: bool, indexed: bool
) -> None:
    chosen: Any = index.select()
    if pinned:
        chosen = chosen.pin(tmp_path / "m.manifest.parquet")
        if not indexed:
            shutil.rmtree(index.path)
    with pqindex.Reader(chosen, columns=["x"], staleness=staleness) as reader:
        assert values(reader[0]) == [0.0, 1.0, 2.0, 3.0, 4.0]
    with (source / "0.parquet").open("ab") as file:
        file.write(b"more")
    if pinned and not indexed:
        with pytest.raises(pqindex.BadFileError, match=r"0.parquet"):
            pqindex.Reader(chosen, columns=["x"], staleness=staleness)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reader = pqindex.Reader(chosen, columns=["x"], staleness=staleness)
    assert [w.category for w in caught] == [PqindexStalenessWarning] * (staleness == "warn")
    assert values(reader[0]) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_who_has_few_descriptors_reads_all_the_same_A8_case_101(index: pqindex.Index) -> None:
    code = (
        "import resource, sys, pqindex\n"
        "r = pqindex.Reader(pqindex.open(sys.argv[1]).select(), columns=['x'])\n"
        "import os; n = len(os.listdir('/proc/self/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (n + 2, n + 2))\n"
        "print(sum(r[i].num_rows for _ in range(2) for i in range(len(r))))\n"
    )
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no list of descriptors here")
    done = subprocess.run(
        [sys.executable, "-c", code, index.path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * sum(index.select().row_counts.tolist())


def test_same_size_and_time_put_back_is_seen_by_the_footer(index: pqindex.Index, source: Path) -> None:
    path = source / "1.parquet"
    stat = path.stat()
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    at = len(data) - 8 - length + data[-8 - length :].index(b"parquet-cpp-arrow")
    data[at : at + 7] = b"PARQUET"
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(SourceChangedError, match="same size, and another footer"):
        pqindex.Reader(index.select(), columns=["x"])


def test_torn_replaced_and_removed_are_told_apart(index: pqindex.Index, source: Path) -> None:
    (source / "0.parquet").write_bytes((source / "0.parquet").read_bytes()[:-100])
    (source / "1.parquet").unlink()
    rewrite(source / "2.parquet", lambda t: pa.concat_tables([t, t]))
    problems = {p.file: p.change for p in index.verify().problems}
    assert problems == {"0.parquet": "truncated", "1.parquet": "removed", "2.parquet": "replaced"}
    with pytest.raises(SourceChangedError, match="3 of 6 source files") as caught:
        pqindex.Reader(index.select(), columns=["x"])
    assert caught.value.files == ("0.parquet", "1.parquet", "2.parquet")


def test_a_file_that_changes_after_construction_is_refused_at_its_first_read(
    index: pqindex.Index, source: Path
) -> None:
    reader = pqindex.Reader(index.select("SELECT seq_id FROM index ORDER BY seq_id"), columns=["x"])
    reader[0]
    data = (source / "5.parquet").read_bytes()
    (source / "5.parquet").unlink()
    (source / "5.parquet").write_bytes(data)
    with pytest.raises(SourceChangedError, match=r"since the dataset or reader was made: 5.parquet"):
        reader[-1]
    assert values(reader[1]) == expected(1, index)


def test_corrupt_pages_are_named_with_file_and_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"seq_id": [1] * 50 + [2] * 50, "x": np.arange(100, dtype=np.float64)})
    pq.write_table(
        table, path, row_group_size=50, write_page_checksum=True, compression="none", use_dictionary=False
    )
    index = pqindex.build(path)
    chunk = pq.read_metadata(path).row_group(1).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 255
    path.write_bytes(data)
    with pqindex.Reader(index.select(), columns=["x"]) as reader:
        assert reader[0].num_rows == 50
        with pytest.raises(pqindex.BadFileError, match=r"a.parquet, row group 1"):
            reader[1]
    manifest = index.select().pin(tmp_path / "m.manifest.parquet")
    assert manifest.verify().ok
    report = manifest.verify(deep=True)
    assert [(p.file, p.reason) for p in report.problems] == [("a.parquet", "bad-file")]
