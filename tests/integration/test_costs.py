"""What building and reading cost, counted in bytes and row groups, never in seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import storage


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """Every (file, offset, length) that is read of source files."""
    reads: list[tuple[str, int, int]] = []
    original = storage.SourceFile.read

    def counted(self: storage.SourceFile, offset: int, length: int) -> bytes:
        reads.append((os.path.basename(self.path), offset, length))
        return original(self, offset, length)

    monkeypatch.setattr(storage.SourceFile, "read", counted)
    return reads


def write(path: Path, groups: list[list[int]]) -> None:
    """A file with the sequences' lengths, a list a row group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("seq_id", pa.int64()), ("t", pa.int64()), ("x", pa.float64())])
    seq_id = 1000 * int(path.stem)
    with pq.ParquetWriter(path, schema) as writer:
        for group in groups:
            ids = np.repeat(np.arange(seq_id, seq_id + len(group)), group)
            steps = np.concatenate([np.arange(n) for n in group]) if group else np.zeros(0, np.int64)
            writer.write_table(
                pa.table([ids, steps, steps / 7], schema=schema), row_group_size=max(1, len(ids))
            )
            seq_id += len(group)


def test_a_build_reads_footers_only_where_bounds_prove_the_keys_A2_L5(
    tmp_path: Path, touched: list[tuple[str, int, int]]
) -> None:
    for number in range(3):
        write(tmp_path / f"data/{number}.parquet", [[5], [7], [], [3]])
    index = pqindex.build(tmp_path / "data", workers=1)
    footers = {}
    for path in (tmp_path / "data").iterdir():
        size = path.stat().st_size
        length = int.from_bytes(path.read_bytes()[-8:-4], "little")
        footers[path.name] = {(path.name, size - 8, 8), (path.name, size - 8 - length, length)}
    assert set(touched) == set().union(*footers.values())
    assert index.n_sequences == 9


def test_only_the_key_column_of_unproved_groups_is_read(
    tmp_path: Path, touched: list[tuple[str, int, int]]
) -> None:
    write(tmp_path / "data/1.parquet", [[5], [3, 4], [6]])
    index = pqindex.build(tmp_path / "data", workers=1, pages="never")
    chunk = pq.read_metadata(tmp_path / "data/1.parquet").row_group(1).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    pages = [read for read in touched if read[1] < chunk.data_page_offset + 10_000][2:]
    assert pages == [("1.parquet", start, chunk.total_compressed_size)]
    assert "the key column of 1 of 3 row groups was read" in " ".join(index.report["notes"])


def test_rows_and_offsets_of_each_group_are_pyarrows_A3_A4_T4(tmp_path: Path) -> None:
    layouts = {"1": [[5], [], [2, 2], [9]], "2": [[1]], "3": [[4, 4, 4], [2]]}
    for name, groups in layouts.items():
        write(tmp_path / f"data/{name}.parquet", groups)
    index = pqindex.build(tmp_path / "data", order="t")
    found = index.sql(
        "SELECT file, row_group, n_rows, row_offset FROM row_groups ORDER BY file, row_group"
    ).to_pylist()
    expected = []
    for name in layouts:
        metadata = pq.read_metadata(tmp_path / f"data/{name}.parquet")
        offset = 0
        for group in range(metadata.num_row_groups):
            n_rows = metadata.row_group(group).num_rows
            expected.append(
                {"file": f"{name}.parquet", "row_group": group, "n_rows": n_rows, "row_offset": offset}
            )
            offset += n_rows
    assert found == expected
    counts = index.sql("SELECT sum(row_count) AS rows, count(*) AS sequences FROM index").to_pylist()
    assert counts == [{"rows": 33, "sequences": 9}]


def test_groups_are_read_one_at_a_time_and_nothing_collects_the_data_L3_L19_L24_A6(tmp_path: Path) -> None:
    write(tmp_path / "data/1.parquet", [[1000] for _ in range(50)])
    index = pqindex.build(tmp_path / "data", order="t")
    with pqindex.Reader(index.select(), columns=["x"]) as reader:
        before = pa.total_allocated_bytes()
        peak = 0
        for i in range(len(reader)):
            table = reader[i]
            peak = max(peak, pa.total_allocated_bytes() - before)
            del table
        assert peak < 10 * 1000 * 8, "no more than a few row groups of 8 kB at a time"
        assert pa.total_allocated_bytes() - before < 8192
        assert reader.stats()["group_cache_bytes"] == 0


def test_decoded_groups_are_kept_up_to_a_bound_in_bytes_L19_case_56_59(tmp_path: Path) -> None:
    write(tmp_path / "data/1.parquet", [[100, 100] for _ in range(50)])
    index = pqindex.build(tmp_path / "data", order="t")
    with pqindex.Reader(index.select(), columns=["x"], group_cache_bytes=10_000) as reader:
        for _ in range(2):
            for i in range(len(reader)):
                reader[i]
                assert reader.stats()["group_cache_bytes"] <= 10_000
        assert reader.stats()["groups"] == 100


def test_an_index_grows_with_sequences_and_not_with_rows_A16(tmp_path: Path) -> None:
    write(tmp_path / "short/1.parquet", [[10] for _ in range(20)])
    write(tmp_path / "long/1.parquet", [[10_000] for _ in range(20)])
    short, long = (pqindex.build(tmp_path / name, order="t") for name in ("short", "long"))
    assert abs(long.info()["index_bytes"] - short.info()["index_bytes"]) < 1000


def test_splits_by_a_hash_of_the_group_leak_nothing_L32_T21(tmp_path: Path) -> None:
    write(tmp_path / "data/1.parquet", [[3] for _ in range(200)])
    index = pqindex.build(tmp_path / "data", order="t")
    subjects = pa.table({"seq_id": index.select().seq_ids, "subject": [f"s{i % 23}" for i in range(200)]})
    sql = "SELECT seq_id, subject FROM index JOIN subjects USING (seq_id) WHERE hash(subject) % 10 {} 8"
    train, test = (index.select(sql.format(op), attach={"subjects": subjects}) for op in ("<", ">="))
    assert len(train) + len(test) == 200
    assert len(test) > 0
    assert not set(train.extra.column("subject").to_pylist()) & set(test.extra.column("subject").to_pylist())


def shared_groups(path: Path, rows: int, n_sequences: int, **options: Any) -> None:
    """One row group of `n_sequences` sequences of `rows` rows of ten random columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    n = rows * n_sequences
    columns = {"seq_id": np.repeat(np.arange(n_sequences), rows), "t": np.arange(n) % rows}
    columns |= {f"f{i}": random.standard_normal(n, dtype=np.float32) for i in range(10)}
    pq.write_table(pa.table(columns), path, row_group_size=n, use_dictionary=["seq_id"], **options)


def test_one_of_many_sequences_in_an_enormous_group_costs_its_pages_L30_case_58(tmp_path: Path) -> None:
    shared_groups(tmp_path / "1.parquet", 500, 200, data_page_size=4096, write_batch_size=512)
    index = pqindex.build(tmp_path / "1.parquet", order="t")
    group_bytes = index.sql("SELECT total_compressed_size FROM row_groups").column(0)[0].as_py()
    columns = [f"f{i}" for i in range(10)]
    expected = pq.read_table(tmp_path / "1.parquet", columns=columns)
    for source in (index.select(), index.select().pin(tmp_path / "m.manifest.parquet")):
        with pqindex.Reader(source, columns=columns) as reader:
            for i in (0, 57, 199):
                assert reader[i].equals(expected.slice(500 * i, 500))
            stats = reader.stats()
            assert (stats["page_reads"], stats["groups"]) == (3, 0)
            assert stats["bytes"] < 3 * group_bytes / 50


def test_neighbours_are_read_once_their_group_is_cheaper(tmp_path: Path) -> None:
    shared_groups(tmp_path / "1.parquet", 500, 200, data_page_size=4096, write_batch_size=512)
    index = pqindex.build(tmp_path / "1.parquet", order="t")
    with pqindex.Reader(index.select(), columns=["f0", "f1"]) as reader:
        group_bytes = sum(int(n) for n in reader._plan.chunks["length"])
        for i in range(200):
            reader[i]
        stats = reader.stats()
        assert stats["groups"] == 1
        assert stats["bytes"] <= 2 * group_bytes
        assert stats["fallback_group_is_cheaper"] == 1
    with pqindex.Reader(index.select(), columns=["f0", "f1"], group_cache_bytes=1000) as reader:
        for i in range(200):
            reader[i]
        assert reader.stats()["groups"] == 0, "a group that would not be kept is never read whole"


def test_without_page_places_the_group_is_read_and_it_is_counted(tmp_path: Path) -> None:
    shared_groups(tmp_path / "1.parquet", 50, 20)
    index = pqindex.build(tmp_path / "1.parquet", order="t", pages="never")
    with pqindex.Reader(index.select(), columns=["f0"]) as reader:
        reader[3], reader[4]
        assert reader.stats()["fallback_no_pages"] == 1
        assert reader.stats()["group_cache_hits"] == 1
