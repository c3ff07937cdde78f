"""Batches of sequences and rows of sequences: what they give, what is read for them, and what they refuse."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import reader as reader_module
from pqindex import storage
from pqindex.errors import BadFileError, SelectionIndexError, SourceChangedError, UnsupportedFileError
from pqindex.footer import blocks as blocks_module

DATA = Path(__file__).resolve().parent.parent / "data"

WIDE = pa.schema([("seq_id", pa.int64()), ("t", pa.int32()), ("x", pa.float32()), ("s", pa.string())])
OTHER = pa.schema([("x", pa.float64()), ("seq_id", pa.int64()), ("t", pa.int32())])

Read = tuple[str, int, int]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PQINDEX_CACHE_DIR", str(tmp_path / "cache"))


def rows_of(seq_id: int, n_rows: int) -> dict[str, Any]:
    return {
        "seq_id": [seq_id] * n_rows,
        "t": range(n_rows),
        "x": [seq_id * 100.0 + i for i in range(n_rows)],
        "s": [f"s{seq_id}-{i}" for i in range(n_rows)],
    }


def write(
    path: Path, lengths: dict[int, int], groups: Sequence[int], schema: pa.Schema = WIDE, **options: Any
) -> None:
    """Write sequences one behind the other, and cut them into row groups of so many rows."""
    table = pa.concat_tables([pa.table(rows_of(seq_id, n)) for seq_id, n in lengths.items()])
    table = table.select(schema.names).cast(schema)
    at = 0
    with pq.ParquetWriter(path, schema, **options) as writer:
        for n_rows in groups:
            writer.write_table(table.slice(at, n_rows))
            at += n_rows
    assert at == table.num_rows


SMALL_PAGES = {"data_page_size": 32, "write_batch_size": 4, "use_dictionary": ["s"]}
LENGTHS = {
    "a.parquet": {0: 10, 1: 11, 2: 12, 3: 13},  # a sequence a row group
    "b.parquet": {4: 20, 5: 21, 6: 22, 7: 23, 8: 24},  # one row group
    "c.parquet": {9: 5, 10: 40, 11: 15},  # of which 10 lies in four row groups
    "d.parquet": {12: 8, 13: 9, 14: 30},  # without a text, and with wider numbers
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "a.parquet", LENGTHS["a.parquet"], [10, 11, 12, 13])
    write(folder / "b.parquet", LENGTHS["b.parquet"], [110], **SMALL_PAGES)
    write(folder / "c.parquet", LENGTHS["c.parquet"], [12, 10, 10, 28], **SMALL_PAGES)
    write(folder / "d.parquet", LENGTHS["d.parquet"], [17, 30], OTHER)
    return folder


@pytest.fixture
def index(source: Path) -> pqindex.Index:
    return pqindex.build(source, order="t")


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Every (file, offset, length) that is read of source files, once the test empties the list."""
    reads: list[Read] = []
    original = storage.SourceFile.read

    def counted(self: storage.SourceFile, offset: int, length: int) -> bytes:
        reads.append((os.path.basename(self.path), offset, length))
        return original(self, offset, length)

    monkeypatch.setattr(storage.SourceFile, "read", counted)
    return reads


def expected(seq_id: int, columns: Sequence[str] = ("x", "s")) -> dict[str, list[Any]]:
    (file, n_rows) = next((file, own[seq_id]) for file, own in LENGTHS.items() if seq_id in own)
    rows = rows_of(seq_id, n_rows)
    if file == "d.parquet":
        rows["s"] = [None] * n_rows
    return {name: list(rows[name]) for name in columns}


def ids_of(selection: pqindex.Selection) -> list[int]:
    return list(selection.seq_ids.to_pylist())


ALL = "SELECT seq_id FROM index ORDER BY hash(seq_id)"


# -- what a batch gives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("pages", ["never", "auto", "always"])
def test_a_batch_is_its_sequences_in_the_asked_order(source: Path, pages: str, threads: int) -> None:
    selection = pqindex.build(source, order="t", pages=pages).select(ALL)
    ids = ids_of(selection)
    random = np.random.default_rng(1)
    with pqindex.Reader(selection, columns=["x", "s"], threads=threads, max_open_files=2) as reader:
        for _ in range(40):
            positions = random.integers(-len(ids), len(ids), random.integers(1, 2 * len(ids))).tolist()
            tables = reader.read(positions)
            assert [t.to_pydict() for t in tables] == [expected(ids[i]) for i in positions]
            assert all(t.schema.equals(reader.schema) for t in tables)


def test_one_position_many_times_none_and_any_integers(index: pqindex.Index) -> None:
    reader = pqindex.Reader(index.select("SELECT seq_id FROM index ORDER BY seq_id"), columns=["x", "s"])
    assert [t.to_pydict() for t in reader.read([10] * 5)] == [expected(10)] * 5
    assert reader.read([]) == reader.read(iter(())) == reader.read_rows([]) == []
    positions = (np.int64(3), np.int32(-1), True, np.uint8(14))
    assert [t.to_pydict() for t in reader.read(iter(positions))] == [expected(i) for i in (3, 14, 1, 14)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("pages", ["never", "auto", "always"])
def test_rows_of_sequences_are_slices_of_them(source: Path, pages: str, threads: int) -> None:
    selection = pqindex.build(source, order="t", pages=pages).select(ALL)
    ids, counts = ids_of(selection), selection.row_counts.tolist()
    random = np.random.default_rng(2)
    with pqindex.Reader(selection, columns=["s", "x"], threads=threads, group_cache_bytes=1500) as reader:
        for _ in range(60):
            requests = []
            for i in random.integers(0, len(ids), random.integers(1, 12)).tolist():
                first, stop = sorted(random.integers(0, counts[i] + 1, 2).tolist())
                requests.append((i, first, stop))
            for (i, first, stop), table in zip(requests, reader.read_rows(requests), strict=True):
                whole = expected(ids[i], ["s", "x"])
                assert table.to_pydict() == {name: values[first:stop] for name, values in whole.items()}
                assert table.schema.equals(reader.schema)
        stats = reader.stats()
        assert (stats["page_reads"] > 0) == (pages != "never")


def test_rows_over_the_borders_of_segments(index: pqindex.Index) -> None:
    reader = pqindex.Reader(index.select("SELECT seq_id FROM index WHERE seq_id = 10"), columns=["x"])
    assert [(s.row_group, s.row_start, s.row_stop) for s in reader.segments(0)] == [
        (0, 5, 12),
        (1, 0, 10),
        (2, 0, 10),
        (3, 0, 13),
    ]
    whole = expected(10, ["x"])["x"]
    for first in range(41):
        tables = reader.read_rows([(0, first, stop) for stop in range(first, 41)])
        assert [t.column("x").to_pylist() for t in tables] == [whole[first:stop] for stop in range(first, 41)]


def test_whole_and_part_of_one_group_in_one_batch(index: pqindex.Index, touched: list[Read]) -> None:
    """The sequence is its row group, and the rows asked beside it lie in it: the group is read, once."""
    reader = pqindex.Reader(index.select("SELECT seq_id FROM index WHERE seq_id = 14"), columns=["x"])
    touched.clear()
    tables = reader.read_rows([(0, 5, 8), (0, 0, 30), (0, 29, 30)])
    x = expected(14, ["x"])["x"]
    assert [t.column("x").to_pylist() for t in tables] == [x[5:8], x, x[29:]]
    assert len(touched) == 1
    assert reader.stats()["groups"] == 1


def test_columns_that_no_row_group_of_the_batch_has_are_null_and_cost_nothing(
    index: pqindex.Index, touched: list[Read]
) -> None:
    selection = index.select("SELECT seq_id FROM index WHERE seq_id IN (0, 12, 14) ORDER BY seq_id")
    with pqindex.Reader(selection, columns=["s"]) as reader:
        touched.clear()
        tables = reader.read_rows([(2, 1, 4), (1, 0, 8), (0, 0, 2)])
        assert [t.column("s").to_pylist() for t in tables] == [[None] * 3, [None] * 8, ["s0-0", "s0-1"]]
        assert reader[2].column("s").null_count == 30
        assert {file for file, _, _ in touched} == {"a.parquet"}


@pytest.mark.parametrize(
    ("position", "row_start", "row_stop", "message"),
    [
        (0, -1, 3, r"rows \[-1, 3\) lie outside sequence 0 of 10 rows"),
        (0, 0, 11, r"rows \[0, 11\) lie outside sequence 0 of 10 rows"),
        (-1, 4, 3, r"rows \[4, 3\) lie outside sequence 14 of 30 rows"),
        (15, 0, 0, "position 15 lies outside the selection of 15 sequences"),
        (-16, 0, 0, "position -16 lies outside the selection of 15 sequences"),
    ],
)
def test_rows_and_positions_outside_are_refused_before_anything_is_read(
    index: pqindex.Index, touched: list[Read], position: int, row_start: int, row_stop: int, message: str
) -> None:
    reader = pqindex.Reader(index.select("SELECT seq_id FROM index ORDER BY seq_id"), columns=["x"])
    touched.clear()
    with pytest.raises(SelectionIndexError, match=message):
        reader.read_rows([(1, 0, 5), (position, row_start, row_stop)])
    assert touched == []
    assert reader.stats()["reads"] == 0


# -- what a batch reads ---------------------------------------------------------------------------------------


def covered(reads: Sequence[Read]) -> list[Read]:
    """The bytes that were read, as ranges that do not touch; fails where a byte was read twice."""
    joined: list[Read] = []
    for file, offset, length in sorted(reads):
        last = joined[-1] if joined else ("", 0, 0)
        if last[0] == file:
            assert offset >= last[1] + last[2], f"bytes at {offset} of {file} were read twice"
            if offset == last[1] + last[2]:
                joined[-1] = (file, last[1], last[2] + length)
                continue
        joined.append((file, offset, length))
    return joined


@pytest.mark.parametrize("pages", ["never", "auto", "always"])
def test_each_byte_of_a_batch_is_read_once_in_the_order_of_the_files(
    source: Path, touched: list[Read], pages: str
) -> None:
    selection = pqindex.build(source, order="t", pages=pages).select(ALL)
    ids, counts = ids_of(selection), selection.row_counts.tolist()
    random = np.random.default_rng(3)
    for _ in range(20):
        requests = []
        for i in random.integers(0, len(ids), 20).tolist():
            first, stop = sorted(random.integers(0, counts[i] + 1, 2).tolist())
            requests.append((i, first, stop))
        with pqindex.Reader(selection, columns=["x", "s"]) as reader:
            touched.clear()
            reader.read_rows(requests)
            assert touched == sorted(touched)
            assert all(length > 0 for _, _, length in touched), "nothing is no read"
            covered(touched)
            stats = reader.stats()
            assert (stats["ranges"], stats["bytes"]) == (len(touched), sum(n for _, _, n in touched))


def test_a_batch_of_neighbours_opens_one_buffer_and_reads_one_range_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    schema = pa.schema([WIDE.field("seq_id"), WIDE.field("x")])
    for k in range(3):
        write(folder / f"{k}.parquet", {8 * k + i: 6 for i in range(8)}, [6] * 8, schema)
    selection = pqindex.build(folder).select("SELECT seq_id FROM index ORDER BY seq_id")
    with pqindex.Reader(selection) as reader:
        tables = reader.read(range(24))
        assert [t.column("seq_id")[0].as_py() for t in tables] == list(range(24))
        stats = reader.stats()
        assert (stats["reads"], stats["groups"], stats["ranges"], stats["decodes"]) == (24, 24, 3, 1)


def test_files_of_two_schemas_are_two_buffers(index: pqindex.Index) -> None:
    selection = index.select("SELECT seq_id FROM index WHERE seq_id IN (0, 1, 2, 14) ORDER BY seq_id DESC")
    with pqindex.Reader(selection, columns=["x"]) as reader:
        assert [t.column("x").to_pylist() for t in reader.read(range(4))] == [
            expected(i, ["x"])["x"] for i in (14, 2, 1, 0)
        ]
        assert reader.stats()["decodes"] == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_larger_than_memory_should_hold_goes_in_turns(
    index: pqindex.Index, touched: list[Read], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    selection = index.select(ALL)
    ids = ids_of(selection)
    one_turn = pqindex.Reader(selection, columns=["x", "s"], threads=threads)
    one_turn.read(range(len(ids)))
    n_runs = []
    original = pqindex.Reader._run

    def counted(self: pqindex.Reader, process: Any, jobs: Any, *rest: Any) -> None:
        n_runs.append(len(jobs))
        original(self, process, jobs, *rest)

    monkeypatch.setattr(pqindex.Reader, "_run", counted)
    monkeypatch.setattr(reader_module, "MAX_FETCH_BYTES", 400)
    monkeypatch.setattr(blocks_module, "MAX_DECODE_BYTES", 300)
    with pqindex.Reader(selection, columns=["x", "s"], threads=threads) as reader:
        touched.clear()
        tables = reader.read(range(len(ids)))
        assert [t.to_pydict() for t in tables] == [expected(i) for i in ids]
        assert touched == sorted(touched)
        covered(touched)
        assert sum(n_runs) == 11, "row groups"
        assert len(n_runs) > 4
        assert reader.stats()["decodes"] > one_turn.stats()["decodes"]
        assert reader.stats()["bytes"] == one_turn.stats()["bytes"]


def test_a_few_rows_of_a_long_sequence_cost_their_pages(tmp_path: Path, touched: list[Read]) -> None:
    """The sequence is a row group of its own, whose pages are known because they were asked for."""
    path = tmp_path / "long.parquet"
    write(
        path,
        {7: 4000},
        [4000],
        compression="none",
        data_page_size=256,
        write_batch_size=64,
        use_dictionary=False,
    )
    index = pqindex.build(path, order="t", pages="always")
    chunks = {c.path_in_schema: c for c in map(pq.read_metadata(path).row_group(0).column, range(4))}
    with pqindex.Reader(index.select(), columns=["x", "t"]) as reader:
        touched.clear()
        (table,) = reader.read_rows([(0, 1000, 1064)])
        assert table.column("x").to_pylist() == [700.0 + i for i in range(1000, 1064)]
        assert table.column("t").to_pylist() == list(range(1000, 1064))
        t, x = chunks["t"], chunks["x"]
        assert len(touched) == 2
        for (_, offset, length), chunk in zip(touched, (t, x), strict=True):
            start = chunk.data_page_offset
            assert start < offset
            assert offset + length < start + chunk.total_compressed_size
            assert length <= 2 * (64 * 4 + 64), "two pages of 64 values, with their headers"
        windows = [(0, start, start + 50) for start in (3000, 10, 2000)]
        found = [t.column("t")[0].as_py() for t in reader.read_rows(windows)]
        assert found == [3000, 10, 2000]
        assert reader.stats()["groups"] == 0
        assert reader.stats()["page_reads"] == 4
    with pqindex.Reader(index.select(), columns=["x"]) as reader:
        assert reader[0].num_rows == 4000
        assert reader.stats()["page_reads"] == 0, "all rows are no part"


def test_windows_that_share_pages_read_them_once(tmp_path: Path, touched: list[Read]) -> None:
    path = tmp_path / "long.parquet"
    write(path, {7: 4000}, [4000], data_page_size=256, write_batch_size=64, use_dictionary=False)
    with pqindex.Reader(pqindex.build(path, pages="always").select(), columns=["x"]) as reader:
        touched.clear()
        windows = [(0, start, start + 100) for start in range(500, 0, -50)]
        tables = reader.read_rows(windows)
        assert [t.column("x").to_pylist() for t in tables] == [
            [700.0 + i for i in range(start, stop)] for _, start, stop in windows
        ]
        assert len(touched) == 1
        assert reader.stats()["page_reads"] == 1


# -- what cannot be read --------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Two files of four row groups, a sequence of 50 rows each, uncompressed and with checksums."""
    folder = tmp_path / "plain"
    folder.mkdir()
    schema = WIDE.remove(3)
    for k in range(2):
        write(
            folder / f"{k}.parquet",
            {4 * k + i: 50 for i in range(4)},
            [50] * 4,
            schema,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
    return folder


def spoil(path: Path, row_group: int, column: int) -> None:
    """Change a byte of the values of a chunk, and nothing that a footer or a clock would tell."""
    chunk = pq.read_metadata(path).row_group(row_group).column(column)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("threads", [1, 2])
def test_corrupt_pages_in_a_batch_are_named_and_the_others_can_be_read(plain: Path, threads: int) -> None:
    index = pqindex.build(plain)
    spoil(plain / "1.parquet", 2, 2)
    selection = index.select("SELECT seq_id FROM index ORDER BY seq_id DESC")
    with pqindex.Reader(selection, columns=["x"], threads=threads) as reader:
        with pytest.raises(BadFileError, match=r"pages are corrupt: 1\.parquet, row group 2: ") as caught:
            reader.read(range(8))
        assert (caught.value.file, caught.value.row_group) == ("1.parquet", 2)
        others = [i for i in range(8) if i != 1]
        assert [t.column("x")[0].as_py() for t in reader.read(others)] == [100.0 * (7 - i) for i in others]


def lying(reader: pqindex.Reader, group: int, n_rows: int) -> None:
    """Let the plan say that a row group has so many rows, as the footer of a faulty writer would."""
    plan = reader._plan
    n_rows_of = plan.group_n_rows.copy()
    n_rows_of[group] = n_rows
    row_counts, row_stop = plan.row_counts.copy(), plan.row_stop.copy()
    row_counts[group] = row_stop[group] = n_rows
    chunks = {name: values.copy() for name, values in plan.chunks.items()}
    chunks["num_values"][plan.chunk_stops[group] : plan.chunk_stops[group + 1]] = n_rows
    reader._set_plan(
        dataclasses.replace(
            plan, group_n_rows=n_rows_of, row_counts=row_counts, row_stop=row_stop, chunks=chunks
        )
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_group_with_more_rows_than_said_does_not_shift_its_neighbours(
    plain: Path, threads: int
) -> None:
    selection = pqindex.build(plain).select("SELECT seq_id FROM index ORDER BY seq_id")
    with pqindex.Reader(selection, columns=["x"], threads=threads) as reader:
        lying(reader, 3, 45)
        for i, table in enumerate(reader.read(range(8))):
            n_rows = 45 if i == 3 else 50
            assert table.column("x").to_pylist() == [100.0 * i + k for k in range(n_rows)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_group_with_fewer_rows_than_said_is_refused_by_name(plain: Path, threads: int) -> None:
    selection = pqindex.build(plain).select("SELECT seq_id FROM index ORDER BY seq_id")
    with pqindex.Reader(selection, columns=["x"], threads=threads) as reader:
        lying(reader, 5, 60)
        with pytest.raises(BadFileError, match=r"1\.parquet, row group 1") as caught:
            reader.read(range(8))
        assert (caught.value.file, caught.value.row_group) == ("1.parquet", 1)
        others = [0, 1, 2, 3, 4, 6, 7]
        assert [t.column("x")[0].as_py() for t in reader.read(others)] == [100.0 * i for i in others]


def test_pages_that_lie_elsewhere_than_said_are_refused_by_name(tmp_path: Path) -> None:
    """Page places are of the index; rows that are not in their pages must not come back as others."""
    path = tmp_path / "b.parquet"
    write(path, LENGTHS["b.parquet"], [110], WIDE.remove(3), **(SMALL_PAGES | {"use_dictionary": False}))
    selection = pqindex.build(path, order="t").select("SELECT seq_id FROM index ORDER BY seq_id")
    with pqindex.Reader(selection, columns=["x"]) as reader:
        assert reader[1].column("x").to_pylist() == expected(5, ["x"])["x"]
        pages = {name: values.copy() for name, values in reader._plan.pages.items()}
        pages["first_row"][1:] += 2  # each page is said to hold rows that are in the page before it
        reader._set_plan(dataclasses.replace(reader._plan, pages=pages))
        with pytest.raises(BadFileError, match=r"another number of rows: b\.parquet, row group 0") as caught:
            reader[0]
        assert (caught.value.expected, caught.value.found) != (None, None)


def test_a_file_that_grows_short_after_it_was_opened_is_named(plain: Path) -> None:
    selection = pqindex.build(plain).select("SELECT seq_id FROM index ORDER BY seq_id")
    with pqindex.Reader(selection, columns=["x"]) as reader:
        reader.read([0, 4])
        os.truncate(plain / "1.parquet", 1000)
        with pytest.raises(SourceChangedError, match=r"source file is truncated: .*1\.parquet; expected"):
            reader.read(range(8))


def test_an_encrypted_column_is_refused_at_construction_case_38(tmp_path: Path) -> None:
    index = pqindex.build(
        DATA / "parquet-testing" / "encrypted_columns.parquet",
        key="flba_field",
        index=tmp_path / "x.pqindex",
    )
    message = r"column is encrypted: encrypted_columns\.parquet, row group 0, column 'double_field'"
    with pytest.raises(UnsupportedFileError, match=message) as caught:
        pqindex.Reader(index.select(), columns=["boolean_field", "double_field"])
    assert caught.value.hint == "leave the column out"
    with pqindex.Reader(index.select(), columns=["boolean_field"]) as reader:
        assert sum(table.num_rows for table in reader.read(range(len(reader)))) == 50


def with_chunks(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    """Let the indexes of this test say other facts of the chunk of `x` in row group 2 of each file."""
    original = pqindex.Index._chunk_source

    def changed(self: pqindex.Index, files: Any) -> Any:
        known = original(self, files)

        def facts(file_no: Any, row_group: Any, leaves: Any) -> Any:
            found = {name: values.copy() for name, values in known.facts(file_no, row_group, leaves).items()}
            at = np.flatnonzero(row_group == 2) * len(leaves[0]) + leaves[0].tolist().index(2)
            for name, value in changes.items():
                found[name][at] = value
            return found

        return dataclasses.replace(known, facts=facts)

    monkeypatch.setattr(pqindex.Index, "_chunk_source", changed)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"start": -1}, UnsupportedFileError, "column is encrypted: {}"),
        ({"codec": 99}, UnsupportedFileError, "column has an unknown codec: {}; expected 0 to 7, found 99"),
        ({"start": 2}, BadFileError, "place of a chunk makes no sense: {}; expected a start of 4 or more"),
        ({"num_values": 49}, BadFileError, "values of a chunk do not fit its row group: {}; expected 50, found 49"),
        ({"length": 10**6}, SourceChangedError, "source file is shorter than when it was indexed: {}; expected"),
    ],
)  # fmt: skip
def test_places_that_cannot_be_read_are_refused_at_construction(
    plain: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, int],
    error: type[Exception],
    message: str,
) -> None:
    index = pqindex.build(plain)
    pqindex.Reader(index.select(), columns=["t", "x"])
    with_chunks(monkeypatch, **changes)
    pqindex.Reader(index.select("SELECT seq_id FROM index WHERE row_group <> 2"), columns=["x"])
    pattern = message.format(r"0\.parquet, row group 2, column 'x'")
    with pytest.raises(error, match=pattern) as caught:
        pqindex.Reader(index.select(), columns=["t", "x"])
    found: Any = caught.value
    assert (found.file, found.row_group, found.column) == ("0.parquet", 2, "x")
