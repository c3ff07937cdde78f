"""Direct decode equals PyArrow bit for bit, or refuses."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pqindex.decode import DirectColumn, DirectDecoder, DirectRead, direct_column
from pqindex.footer import FileMetadata, find_pages, parse_footer, read_tail

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    **{str(t): t for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): t for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{str(t): t for t in (pa.float16(), pa.float32(), pa.float64())},
    **{
        str(t): t for t in (pa.date32(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("us"))
    },
    **{str(t): t for t in (pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns"))},
}
SHAPES = ("random", "few", "runs", "constant", "sorted")
# Why a page of a file that is whole may be left to PyArrow.
REASONS = {
    "a page has nulls",
    "a page has many runs",
    "a page has many indices",
    "an encoding is not known here",
}


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """The values of an array without nulls as numpy has them, times as integers."""
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array.to_numpy(zero_copy_only=False)


def random_array(rng: np.random.Generator, kind: pa.DataType, n: int, shape: str) -> pa.Array:
    """Any bits at all (NaNs with payloads among them), in the shape that makes one encoding or another."""
    width = 1 if pa.types.is_boolean(kind) else kind.bit_width // 8
    n_distinct = {"random": max(n, 1), "few": 5, "runs": 5, "constant": 1, "sorted": max(n // 4, 1)}[shape]
    pool = rng.integers(0, 256, (n_distinct, width), np.uint8)
    if pa.types.is_boolean(kind):
        pool &= 1
    picks = rng.integers(0, n_distinct, n)
    if shape == "runs":
        picks = np.repeat(picks, rng.integers(1, 40, n))[:n] if n else picks
    elif shape == "sorted":
        picks.sort()
    values = np.ascontiguousarray(pool[picks])
    if pa.types.is_boolean(kind):
        return pa.array(values[:, 0].astype(np.bool_))
    if kind == pa.time32("ms") or pa.types.is_date32(kind):
        return pa.array(values.view(np.int32)[:, 0], pa.int32()).view(kind)
    return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(values.tobytes())])


def parsed(data: bytes) -> FileMetadata:
    offset, length = read_tail(data[-8:], file_size=len(data), file="f")
    return parse_footer(data[offset : offset + length], file="f", file_size=len(data))


def chunk_read(
    data: bytes, meta: FileMetadata, group: int, outs: list[npt.NDArray[Any]], view: bool = False
) -> DirectRead:
    """All chunks of a row group, in one buffer."""
    starts = meta.chunks.start[group].tolist()
    lengths = meta.chunks.total_compressed_size[group].tolist()
    buffer = memoryview(data) if view else data
    return DirectRead(
        file="f",
        row_group=group,
        codecs=meta.chunks.codec[group].tolist(),
        spans=[(buffer, start, start + length) for start, length in zip(starts, lengths, strict=True)],
        n_rows=[int(meta.group_n_rows[group])] * len(starts),
        outs=outs,
    )


def direct_columns(data: bytes, meta: FileMetadata) -> list[DirectColumn]:
    schema = pq.read_schema(io.BytesIO(data))
    columns = [direct_column(leaf, schema.field(leaf.field).type) for leaf in meta.leaves]
    assert all(column is not None for column in columns)
    return [column for column in columns if column is not None]


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n = draw(st.one_of(st.integers(1, 40), st.integers(1, 3000)))
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
    nullable = [draw(st.booleans()) for _ in kinds]
    fields, arrays = [], []
    for i, (name, may_null) in enumerate(zip(kinds, nullable, strict=True)):
        array = random_array(rng, TYPES[name], n, draw(st.sampled_from(SHAPES)))
        if may_null and draw(st.integers(0, 9)) == 0:
            array = pa.concat_arrays([array[: n // 2], pa.nulls(n - n // 2, TYPES[name])])
        fields.append(pa.field(f"{name}_{i}", TYPES[name], may_null))
        arrays.append(array)
    encoding = draw(st.sampled_from(["dictionary", "PLAIN", "BYTE_STREAM_SPLIT"]))
    options: dict[str, Any] = {"use_dictionary": encoding == "dictionary"}
    if encoding != "dictionary":
        options["column_encoding"] = {
            field.name: "PLAIN" if pa.types.is_boolean(field.type) else encoding for field in fields
        }
    options |= {
        "row_group_size": max(1, n // draw(st.integers(1, 3))),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "lz4"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([1, 500, 1 << 20])),
        "dictionary_pagesize_limit": draw(st.sampled_from([100, 1 << 20])),
        "write_batch_size": draw(st.sampled_from([7, 64, 1024])),
        "write_page_checksum": draw(st.booleans()),
        "write_statistics": draw(st.booleans()),
        "write_page_index": draw(st.booleans()),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=pa.schema(fields)), sink, **options)
    return sink.getvalue(), options


def expected_groups(data: bytes) -> list[list[pa.Array]]:
    file = pq.ParquetFile(io.BytesIO(data))
    return [
        [column.combine_chunks() for column in file.read_row_group(g).columns]
        for g in range(file.metadata.num_row_groups)
    ]


@settings(max_examples=300)
@given(written=files(), as_one_call=st.booleans(), view=st.booleans())
def test_chunks_equal_pyarrow_bit_for_bit_or_are_refused(
    written: tuple[bytes, dict[str, Any]], as_one_call: bool, view: bool
) -> None:
    data, options = written
    meta = parsed(data)
    columns = direct_columns(data, meta)
    decoder = DirectDecoder(columns, [1] * len(columns))
    reads = [
        chunk_read(data, meta, g, [np.empty((int(n), 1), column.dtype) for column in columns], view)
        for g, n in enumerate(meta.group_n_rows)
    ]
    if as_one_call:
        refused = {(r.read, r.column): r.reason for r in decoder.decode(reads)}
    else:
        refused = {(g, r.column): r.reason for g, read in enumerate(reads) for r in decoder.decode([read])}
    for g, arrays in enumerate(expected_groups(data)):
        for c, array in enumerate(arrays):
            reason = refused.get((g, c))
            if reason != "a page has many indices":  # which is seen before the nulls of later pages
                assert (reason == "a page has nulls") == (array.null_count > 0), (reason, array)
            if reason is None:
                assert reads[g].outs[c].tobytes() == numbers_of(array).tobytes(), (columns[c], options)
            else:
                assert reason in REASONS
                assert (
                    options["use_dictionary"] or reason != "a page has many runs" or array.type == pa.bool_()
                )
            event(reason or "direct")


@settings(max_examples=100)
@given(written=files(), seed=st.integers(0, 1 << 32))
def test_any_rows_of_any_pages_equal_pyarrow(written: tuple[bytes, dict[str, Any]], seed: int) -> None:
    data, _ = written
    meta = parsed(data)
    columns = direct_columns(data, meta)
    rng = np.random.default_rng(seed)
    group = int(rng.integers(len(meta.group_n_rows)))
    n_rows = int(meta.group_n_rows[group])
    arrays = expected_groups(data)[group]
    pages = find_pages(meta, group, lambda offset, length: data[offset : offset + length])
    starts = meta.chunks.start[group].tolist()
    for c, places in enumerate(pages):
        assert places is not None
        first = int(rng.integers(len(places)))
        stop = int(rng.integers(first, len(places))) + 1
        row_of_page = [*places.first_row.tolist(), n_rows]
        a, b = row_of_page[first], row_of_page[stop]
        start = int(rng.integers(a, b))
        rows = int(rng.integers(start, b)) + 1 - start
        dictionary = data[starts[c] : int(places.offset[0])]
        buffer = (
            dictionary
            + data[int(places.offset[first]) : int(places.offset[stop - 1] + places.length[stop - 1])]
        )
        out = np.empty((rows, 1), columns[c].dtype)
        read = DirectRead(
            file="f",
            row_group=group,
            codecs=[int(meta.chunks.codec[group, c])],
            spans=[(buffer, 0, len(buffer))],
            n_rows=[b - a],
            outs=[out],
            row_starts=[start - a],
        )
        if not DirectDecoder([columns[c]], [1]).decode([read]):
            assert out.tobytes() == numbers_of(arrays[c].slice(start, rows)).tobytes()
        else:
            assert arrays[c].null_count or options_of_runs(written)


def options_of_runs(written: tuple[bytes, dict[str, Any]]) -> bool:
    return bool(written[1]["use_dictionary"]) or written[1]["data_page_version"] == "2.0"


@given(written=files(), targets=st.sampled_from(["<f4", "<f8"]))
def test_fields_of_several_columns_are_cast_as_numpy_casts(
    written: tuple[bytes, dict[str, Any]], targets: str
) -> None:
    data, _ = written
    meta = parsed(data)
    columns = direct_columns(data, meta)
    n_rows = int(meta.group_n_rows[0])
    # Rows of a wider matrix: the out is neither contiguous nor at its beginning.
    room = np.zeros((n_rows, len(columns) + 2), targets)
    out = room[:, 1:-1]
    refused = {
        r.column for r in DirectDecoder(columns, [len(columns)]).decode([chunk_read(data, meta, 0, [out])])
    }
    for c, array in enumerate(expected_groups(data)[0]):
        if c not in refused:
            with np.errstate(all="ignore"):
                expected = numbers_of(array).astype(targets)
            assert np.array_equal(out[:, c], expected, equal_nan=True)
    assert not room[:, 0].any()
    assert not room[:, -1].any()
