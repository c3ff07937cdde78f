"""Reads without a footer: equal to pyarrow's own, and a clear error where there is nothing to read."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.errors import BadFileError, SourceChangedError, UnsupportedFileError, UsageError
from pqindex.footer import (
    ChunkPlaces,
    FileMetadata,
    Projection,
    SchemaRecord,
    coalesce,
    parse_footer,
    read_group,
    read_tail,
)
from pqindex.footer.writers import CHUNK_PADDING


class Source:
    """A file in memory that remembers what was read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[tuple[int, int]] = []

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        self.ranges += ranges
        return [self.data[offset : offset + length] for offset, length in ranges]


def written(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def parsed(data: bytes) -> FileMetadata:
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    return parse_footer(data[offset : offset + length], file="a", file_size=len(data))


def read(
    data: bytes, fields: list[int], group: int = 0, *, places: ChunkPlaces | None = None, **changes: Any
) -> tuple[pa.Table, Source]:
    meta = parsed(data)
    projection = SchemaRecord.from_metadata(meta).project(fields)
    source = Source(data)
    options: dict[str, Any] = {
        "n_rows": int(meta.group_n_rows[group]),
        "file_size": len(data),
        "file": "dir/a.parquet",
        "row_group": group,
    }
    table = read_group(
        projection,
        places or ChunkPlaces.from_metadata(meta, group, projection.leaf_indices),
        source.read,
        **(options | changes),
    )
    return table, source


N = 1000
TABLE = pa.table(
    {
        "id": np.repeat(np.arange(4), N // 4),
        "x": np.arange(N, dtype=np.float32),
        "name": pa.array([None if i % 7 == 0 else f"n{i % 50}" for i in range(N)]),
        "cat": pa.array([f"c{i % 3}" for i in range(N)]).dictionary_encode(),
        "list": pa.array([[i, None][: i % 3] for i in range(N)], pa.list_(pa.int16())),
        "fixed": pa.array([[1.0, 2.0]] * N, pa.list_(pa.float32(), 2)),
        "s": pa.array([{"a": i, "b": {"c": str(i)}} for i in range(N)]),
        "m": pa.array([[("k", i)] * (i % 2) for i in range(N)], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"data_page_size": 100}]
)
def test_a_read_is_what_pyarrow_reads_L4_A6(compression: str, options: dict[str, Any]) -> None:
    data = written(TABLE, compression=compression, row_group_size=N // 4, **options)
    file = pq.ParquetFile(io.BytesIO(data))
    for group in range(4):
        for fields in ([0], [1], [3], [4, 6], [7, 2, 5], list(range(8))):
            got, _ = read(data, fields, group)
            expected = file.read_row_group(group).select(sorted(fields))
            assert got.equals(expected)
            assert got.schema.equals(expected.schema)


def test_only_the_bytes_of_the_columns_are_read_and_neighbours_together_A9_case_69() -> None:
    data = written(TABLE, row_group_size=N // 4)
    meta = parsed(data)
    starts, lengths = meta.chunks.start[1].tolist(), meta.chunks.total_compressed_size[1].tolist()
    _, source = read(data, [1, 2, 3], 1)
    assert source.ranges == [(starts[1], sum(lengths[1:4]))]
    _, source = read(data, [0, 2], 1)
    assert source.ranges == [(starts[0], lengths[0]), (starts[2], lengths[2])]
    got, source = read(data, [0, 2], 1, max_gap=lengths[1])
    assert source.ranges == [(starts[0], sum(lengths[:3]))]
    assert got.equals(read(data, [0, 2], 1)[0])


def test_a_group_without_rows_is_not_read_L8() -> None:
    schema = TABLE.select([0, 3]).schema
    data = written(schema.empty_table())
    projection = SchemaRecord.from_metadata(parsed(data)).project([1])
    none = np.zeros(0, np.int64)
    table = read_group(
        projection,
        ChunkPlaces(start=none, length=none, num_values=none, codec=none),
        Source(b"").read,
        n_rows=0,
        file_size=0,
        file="a",
        row_group=0,
    )
    assert (table.num_rows, table.schema) == (0, pa.schema([schema.field(1)]))


def test_no_column_at_all_still_has_rows() -> None:
    data = written(TABLE, row_group_size=N // 4)
    table, source = read(data, [], 2)
    assert (table.num_rows, table.num_columns, source.ranges) == (N // 4, 0, [])


def test_memoryviews_will_do() -> None:
    data = written(TABLE.select(["x"]))
    meta = parsed(data)
    projection = SchemaRecord.from_metadata(meta).project([0])
    table = read_group(
        projection,
        ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices),
        lambda ranges: [memoryview(data)[offset : offset + length] for offset, length in ranges],
        n_rows=N,
        file_size=len(data),
        file="a",
        row_group=0,
    )
    assert table.equals(TABLE.select(["x"]))


def test_the_chunks_of_old_parquet_mr_are_padded_PARQUET_816() -> None:
    """Such a writer left the dictionary page's header out of the chunk's size: pyarrow reads 100 bytes more."""
    data = written(TABLE.select(["id", "x"]), use_dictionary=False)
    meta = parsed(data)
    old = SchemaRecord.from_metadata(replace(meta, created_by="parquet-mr version 1.2.8"))
    source = Source(data)
    projection = old.project([0, 1])
    places = ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices)
    cut = places._replace(length=places.length - 15)
    options: dict[str, Any] = {"n_rows": N, "file_size": len(data), "file": "a", "row_group": 0}
    assert read_group(projection, cut, source.read, **options).equals(TABLE.select(["id", "x"]))
    [(offset, length)] = source.ranges
    assert offset + length == cut.start[1] + cut.length[1] + CHUNK_PADDING
    assert projection.padding == CHUNK_PADDING
    with pytest.raises(BadFileError, match=r"pages are corrupt: a, row group 0"):
        read_group(SchemaRecord.from_metadata(meta).project([0, 1]), cut, source.read, **options)


def test_padding_ends_with_the_file() -> None:
    data = written(TABLE.select(["x"]))
    meta = parsed(data)
    projection = SchemaRecord.from_metadata(replace(meta, created_by="parquet-mr")).project([0])
    places = ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices)
    stop = int(places.start[0] + places.length[0])
    for size in (stop, stop + 1, len(data)):
        source = Source(data[:size])
        table = read_group(projection, places, source.read, n_rows=N, file_size=size, file="a", row_group=0)
        assert table.num_rows == N
        assert sum(source.ranges[0]) <= size


# -- what cannot be read --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> bytes:
    return written(TABLE.select(["id", "name"]), row_group_size=N // 2)


def places(data: bytes, **changes: int) -> ChunkPlaces:
    """The places of row group 1, with one number of the second column changed."""
    found = ChunkPlaces.from_metadata(parsed(data), 1, np.arange(2))
    for name, value in changes.items():
        array = getattr(found, name).copy()
        array[1] = value
        found = found._replace(**{name: array})
    return found


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"start": -1},
            UnsupportedFileError,
            r"column is encrypted: dir/a.parquet, row group 1, column 'name'",
        ),
        (
            {"codec": -1},
            UnsupportedFileError,
            r"unknown codec: .*row group 1, column 'name'; expected 0 to 7, found -1",
        ),
        ({"codec": 8}, UnsupportedFileError, r"unknown codec.*found 8"),
        (
            {"start": 3},
            BadFileError,
            r"makes no sense.*column 'name'; expected a start of 4 or more and a length, found 3 and",
        ),
        ({"length": -1}, BadFileError, "makes no sense"),
        ({"num_values": -1}, BadFileError, "do not fit its row group.*expected 500, found -1"),
        ({"num_values": 2**60}, BadFileError, "do not fit its row group"),
        ({"length": 10**9}, SourceChangedError, r"shorter than when it was indexed: .*column 'name'"),
        ({"length": 2**62}, SourceChangedError, "shorter than when it was indexed"),
        ({"start": 2**62}, SourceChangedError, "shorter than when it was indexed"),
        ({"length": 20}, BadFileError, r"pages are corrupt: dir/a\.parquet, row group 1: "),
        ({"start": 5}, BadFileError, "pages are corrupt"),
        ({"codec": 0}, BadFileError, "pages are corrupt"),
    ],
)
def test_what_cannot_be_read_is_named_L12_case_38_39(
    data: bytes, changes: dict[str, int], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        read(data, [0, 1], 1, places=places(data, **changes))
    assert caught.value.file == "dir/a.parquet"
    assert caught.value.row_group == 1


def test_an_encrypted_column_does_not_stop_the_others_case_38(data: bytes) -> None:
    meta = parsed(data)
    projection = SchemaRecord.from_metadata(meta).project([0])
    table, _ = read(data, [0], 1, places=ChunkPlaces.from_metadata(meta, 1, projection.leaf_indices))
    assert table.equals(TABLE.select(["id"]).slice(N // 2))


def test_lzo_is_not_supported(data: bytes) -> None:
    with pytest.raises((UnsupportedFileError, BadFileError), match=r"dir/a\.parquet, row group 1"):
        read(data, [0, 1], 1, places=places(data, codec=3))


@pytest.mark.parametrize(("n_rows", "num_values"), [(499, 500), (501, 500), (500, 250), (500, 501)])
def test_values_that_do_not_fit_the_rows_are_refused(data: bytes, n_rows: int, num_values: int) -> None:
    """Given fewer rows than there are, pyarrow returns those and says nothing."""
    message = rf"do not fit its row group: .*row group 1, column '\w+'; expected {n_rows}, found \d+"
    with pytest.raises(BadFileError, match=message):
        read(data, [0, 1], 1, n_rows=n_rows, places=places(data, num_values=num_values))


def test_pages_with_fewer_rows_than_said_are_refused() -> None:
    table = TABLE.select(["list"])
    data = written(table)
    with pytest.raises(
        BadFileError, match=r"another number of rows: dir/a\.parquet, row group 0; expected 1001"
    ):
        read(data, [0], n_rows=N + 1)


def test_a_file_that_ends_early_is_refused(data: bytes) -> None:
    def short(ranges: list[tuple[int, int]]) -> list[bytes]:
        return [data[offset : offset + length - 1] for offset, length in ranges]

    meta = parsed(data)
    projection = SchemaRecord.from_metadata(meta).project([1])
    with pytest.raises(
        SourceChangedError, match=r"shorter than when it was indexed: a, row group 0; expected \d+ bytes"
    ):
        read_group(
            projection,
            ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices),
            short,
            n_rows=N // 2,
            file_size=len(data),
            file="a",
            row_group=0,
        )


def test_places_of_another_projection_are_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="expected 1 leaves, found 2"):
        read(data, [0], 1, places=places(data))


def test_errors_of_the_reader_pass_as_they_are(data: bytes) -> None:
    def broken(_ranges: list[tuple[int, int]]) -> list[bytes]:
        raise OSError("the disk is gone")

    meta = parsed(data)
    projection = SchemaRecord.from_metadata(meta).project([1])
    with pytest.raises(OSError, match="the disk is gone"):
        read_group(
            projection,
            ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices),
            broken,
            n_rows=N // 2,
            file_size=len(data),
            file="a",
            row_group=0,
        )


def test_a_page_checksum_is_verified() -> None:
    data = written(TABLE.select(["x"]), write_page_checksum=True, compression="none", use_dictionary=False)
    stop = int(parsed(data).chunks.start[0, 0] + parsed(data).chunks.total_compressed_size[0, 0])
    torn = bytearray(data)
    torn[stop - 1] ^= 1
    with pytest.raises(BadFileError, match="CRC checksum"):
        read(bytes(torn), [0])


def test_a_projection_is_usable_by_many_threads_case_64() -> None:
    from concurrent.futures import ThreadPoolExecutor

    data = written(TABLE, row_group_size=N // 4)
    meta = parsed(data)
    projection: Projection = SchemaRecord.from_metadata(meta).project(range(8))
    source = Source(data)

    def one(i: int) -> pa.Table:
        return read_group(
            projection,
            ChunkPlaces.from_metadata(meta, i % 4, projection.leaf_indices),
            source.read,
            n_rows=N // 4,
            file_size=len(data),
            file="a",
            row_group=i % 4,
        )

    expected = [one(i) for i in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for i, table in enumerate(pool.map(one, range(200))):
            assert table.equals(expected[i % 4])


# -- ranges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "lengths", "max_gap", "ranges", "positions"),
    [
        ([], [], 0, [], []),
        ([10], [5], 0, [(10, 5)], [0]),
        ([10, 15], [5, 5], 0, [(10, 10)], [0, 5]),
        ([15, 10], [5, 5], 0, [(10, 10)], [5, 0]),
        ([10, 16], [5, 5], 0, [(10, 5), (16, 5)], [0, 5]),
        ([10, 16], [5, 5], 1, [(10, 11)], [0, 6]),
        ([10, 12], [5, 5], 0, [(10, 7)], [0, 2]),
        ([10, 12], [50, 5], 0, [(10, 50)], [0, 2]),
        ([10, 10], [5, 5], 0, [(10, 5)], [0, 0]),
        ([30, 10, 20], [1, 0, 2], 0, [(20, 2), (30, 1)], [2, 0, 0]),
    ],
)
def test_ranges_are_joined(
    starts: list[int], lengths: list[int], max_gap: int, ranges: list[tuple[int, int]], positions: list[int]
) -> None:
    assert coalesce(starts, lengths, max_gap=max_gap) == (ranges, positions)
