"""Page places and reads of some rows: equal to full reads, or not given."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqindex.errors import PqindexError, SourceChangedError
from pqindex.footer import (
    ChunkPlaces,
    FileMetadata,
    Projection,
    RowRange,
    SchemaRecord,
    decode_blocks,
    fetch,
    find_pages,
    join_parts,
    parse_footer,
    plan_row_range,
    read_tail,
    row_range_blocks,
)
from pqindex.footer.paging import parse_offset_index, walk_pages

KINDS: dict[str, Any] = {
    "float": (pa.float32(), lambda i: i / 3),
    "int": (pa.int64(), lambda i: i % 5),
    "text": (pa.string(), lambda i: None if i % 9 == 4 else "x" * (i % 7)),
    "bool": (pa.bool_(), lambda i: i % 3 == 0),
    "list": (pa.list_(pa.float64()), lambda i: [float(i)] * (i % 4)),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
        lambda i: {"a": i % 100, "b": ["q"] * (i % 3)},
    ),
    "fixed": (pa.list_(pa.int32(), 2), lambda i: [i, -i]),
}


def read_row_range(
    record: SchemaRecord,
    projection: Projection,
    places: ChunkPlaces,
    wanted: RowRange,
    read_ranges: Callable[[list[tuple[int, int]]], list[bytes]],
) -> pa.Table:
    blocks = row_range_blocks(record, places, wanted, file="f", row_group=0)
    fetched = fetch(blocks, read_ranges, file_size=1 << 40)
    tables = [table for one in fetched for table in decode_blocks([one])]
    return join_parts(projection, wanted, tables, row_start=wanted.row_start, row_stop=wanted.row_stop)


def written(n: int, kinds: list[str], **options: Any) -> tuple[bytes, FileMetadata, SchemaRecord]:
    columns = {name: pa.array([KINDS[name][1](i) for i in range(n)], KINDS[name][0]) for name in kinds}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    data = sink.getvalue()
    offset, length = read_tail(data[-8:], file_size=len(data), file="f")
    meta = parse_footer(data[offset : offset + length], file="f", file_size=len(data))
    return data, meta, SchemaRecord.from_metadata(meta)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 300))
    return {
        "n": n,
        "kinds": draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True)),
        "row_group_size": draw(st.integers(max(1, n // 3), n)),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip", "brotli"])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([1, 64, 1000, 1 << 20])),
        "write_batch_size": draw(st.sampled_from([1, 16, 1024])),
        "write_page_index": draw(st.booleans()),
        "write_page_checksum": draw(st.booleans()),
    }


@given(case=cases(), where=st.tuples(st.floats(0, 1), st.floats(0, 1)), pick=st.integers(0, 3))
def test_rows_through_pages_equal_rows_of_the_whole_group(
    case: dict[str, Any], where: tuple[float, float], pick: int
) -> None:
    options = dict(case)
    data, meta, record = written(options.pop("n"), options.pop("kinds"), **options)
    try:
        full = pq.ParquetFile(io.BytesIO(data)).read_row_group(0)
    except pa.ArrowInvalid:
        return  # lists in pages of one row: PyArrow cannot read back what it wrote
    if full.num_rows != int(meta.group_n_rows[0]):
        return  # the same fault, without an error: no row comes back
    n_rows = int(meta.group_n_rows[0])
    row_start = min(n_rows - 1, int(where[0] * n_rows))
    row_stop = row_start + 1 + int(where[1] * (n_rows - row_start - 1))
    fields = [i for i in range(len(record.field_names)) if i != pick] or [0]
    projection = record.project(fields)
    places = ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices)
    pages = find_pages(meta, 0, lambda offset, length: data[offset : offset + length])
    wanted = plan_row_range(
        projection,
        places,
        [pages[leaf] for leaf in projection.leaf_indices.tolist()],
        n_rows=n_rows,
        row_start=row_start,
        row_stop=row_stop,
    )
    touched: list[tuple[int, int]] = []

    def read_ranges(ranges: list[tuple[int, int]]) -> list[bytes]:
        touched.extend(ranges)
        return [data[offset : offset + length] for offset, length in ranges]

    found = read_row_range(record, projection, places, wanted, read_ranges)
    assert found.equals(full.select(fields).slice(row_start, row_stop - row_start))
    assert sum(length for _, length in touched) <= wanted.n_bytes <= int(places.length.sum())


def test_offset_index_and_walk_say_the_same() -> None:
    data, meta, _ = written(
        500, ["float", "text", "int"], data_page_size=100, write_batch_size=10, write_page_index=True
    )
    for leaf in range(3):
        start = int(meta.chunks.start[0, leaf])
        place = {
            "n_rows": 500,
            "start": start,
            "stop": start + int(meta.chunks.total_compressed_size[0, leaf]),
            "file": "f",
        }
        offset, length = (
            int(getattr(meta.chunks, f"offset_index_{name}")[0, leaf]) for name in ("offset", "length")
        )
        indexed = parse_offset_index(data[offset : offset + length], **place)
        walked = walk_pages(lambda o, n: data[o : o + n], is_flat=True, **place)
        assert indexed is not None
        assert walked is not None
        for name in ("offset", "length", "first_row"):
            assert np.array_equal(getattr(indexed, name), getattr(walked, name))
        assert len(indexed) > 3


def test_lists_in_pages_of_version_1_have_no_places_without_an_offset_index() -> None:
    data, meta, _ = written(500, ["list", "float"], data_page_size=100, write_batch_size=10)
    pages = find_pages(meta, 0, lambda offset, length: data[offset : offset + length])
    assert pages[0] is None
    assert pages[1] is not None


@given(seed=st.integers(0, 10_000))
def test_damaged_headers_and_indexes_give_nothing_or_an_error_of_ours(seed: int) -> None:
    data, meta, record = written(
        200, ["float", "text"], data_page_size=64, write_batch_size=8, write_page_index=bool(seed % 2)
    )
    random = np.random.default_rng(seed)
    damaged = bytearray(data)
    for position in random.integers(4, len(data) - 8, 8):
        damaged[position] = random.integers(0, 256)
    source = bytes(damaged)
    pages = find_pages(meta, 0, lambda offset, length: source[offset : offset + length])
    projection = record.project([0, 1])
    places = ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices)
    wanted = plan_row_range(projection, places, pages, n_rows=200, row_start=50, row_stop=60)
    try:
        table = read_row_range(
            record,
            projection,
            places,
            wanted,
            lambda ranges: [source[offset : offset + length] for offset, length in ranges],
        )
    except PqindexError:
        return
    assert table.num_rows == 10


def test_a_file_that_is_too_short_is_said() -> None:
    data, meta, record = written(200, ["float"], data_page_size=64, write_batch_size=8)
    projection = record.project([0])
    places = ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices)
    pages = find_pages(meta, 0, lambda offset, length: data[offset : offset + length])
    wanted = plan_row_range(projection, places, pages, n_rows=200, row_start=50, row_stop=60)
    with pytest.raises(SourceChangedError, match=r"f, row group 0"):
        read_row_range(record, projection, places, wanted, lambda ranges: [b""] * len(ranges))
