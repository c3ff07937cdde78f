"""Any file that pyarrow writes: its footer, bounds and reads are what pyarrow says. Any other bytes are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import io
import subprocess
import sys
import tracemalloc
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from pqindex.errors import PqindexError
from pqindex.footer import (
    ChunkPlaces,
    FileMetadata,
    SchemaRecord,
    bounds,
    lanes,
    metadata,
    parse_footer,
    parse_schema,
    read_group,
    read_tail,
)
from pqindex.footer.columnar import read_groups_columnar
from pqindex.footer.groups import read_groups
from pqindex.footer.thrift import encode_integer

# -- tables ---------------------------------------------------------------------------------------------------

UTC = dt.UTC
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8) | st.text(min_size=300, max_size=310),
    pa.binary(): st.binary(max_size=8),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("ns"): st.datetimes(min_value=dt.datetime(1700, 1, 1), max_value=dt.datetime(2200, 1, 1)),  # noqa: DTZ001
    pa.time64("us"): st.times(),
    pa.duration("ms"): st.integers(-(2**40), 2**40),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3, allow_nan=False).map(
        lambda d: d.quantize(decimal.Decimal("0.001"))
    ),
    pa.null(): st.none(),
}
FLAT = st.sampled_from(list(VALUES))
TYPES = st.recursive(
    FLAT
    | FLAT.filter(lambda kind: kind != pa.null())
    .map(lambda kind: pa.dictionary(pa.int32(), kind))
    .filter(lambda kind: pa.types.is_string(kind.value_type)),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        FLAT.map(lambda kind: pa.list_(kind, 2)),
        st.tuples(inner, inner).map(lambda kinds: pa.struct([("a", kinds[0]), ("b.c", kinds[1])])),
        st.tuples(st.just(pa.string()), inner).map(lambda kinds: pa.map_(*kinds)),
    ),
    max_leaves=4,
)
NAMES = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=5)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_dictionary(kind):
        return st.none() | values_of(kind.value_type)
    if pa.types.is_map(kind):
        return st.none() | st.lists(st.tuples(st.text(max_size=3), values_of(kind.item_type)), max_size=2)
    if pa.types.is_fixed_size_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), min_size=2, max_size=2)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: values_of(f.type) for f in kind})
    return st.none() | VALUES[kind]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    n_rows = draw(st.integers(0, 12))
    kinds = draw(st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=4))
    columns = [
        pa.array(draw(st.lists(values_of(kind), min_size=n_rows, max_size=n_rows)), kind) for _, kind in kinds
    ]
    table = pa.Table.from_arrays(columns, names=[name for name, _ in kinds])
    options = draw(
        st.fixed_dictionaries(
            {
                "row_group_size": st.integers(1, 12),
                "write_statistics": st.booleans(),
                "compression": st.sampled_from(["none", "zstd", "snappy"]),
                "use_dictionary": st.booleans(),
                "store_schema": st.booleans(),
                "write_page_index": st.booleans(),
                "data_page_version": st.sampled_from(["1.0", "2.0"]),
                "version": st.sampled_from(["2.4", "2.6"]),
            }
        )
    )
    buffer = io.BytesIO()
    try:
        pq.write_table(table, buffer, **options)
    except pa.ArrowException:  # nanoseconds in version 1.0, a dictionary without values, and the like
        reject()
    return buffer.getvalue()


def parse(data: bytes) -> FileMetadata:
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    return parse_footer(data[offset : offset + length], file="a", file_size=len(data))


@given(files())
@settings(max_examples=100)
def test_every_fact_is_pyarrows_L5(data: bytes) -> None:
    meta = parse(data)
    theirs = pq.ParquetFile(io.BytesIO(data))
    assert (meta.n_rows, meta.n_row_groups) == (theirs.metadata.num_rows, theirs.metadata.num_row_groups)
    assert SchemaRecord.from_metadata(meta).to_arrow() == theirs.schema_arrow
    assert [leaf.path[-1] for leaf in meta.leaves] == [column.name for column in theirs.schema]
    for i, leaf in enumerate(meta.leaves):
        assert leaf.max_definition_level == theirs.schema.column(i).max_definition_level
        assert leaf.max_repetition_level == theirs.schema.column(i).max_repetition_level
    for g in range(meta.n_row_groups):
        group = theirs.metadata.row_group(g)
        assert meta.group_n_rows[g] == group.num_rows
        for c in range(len(meta.leaves)):
            column = group.column(c)
            assert meta.chunks.data_page_offset[g, c] == column.data_page_offset
            assert meta.chunks.total_compressed_size[g, c] == column.total_compressed_size
            assert meta.chunks.num_values[g, c] == column.num_values
            assert meta.chunks.null_count[g, c] == (
                column.statistics.null_count if column.is_stats_set else -1
            )


@given(files(), st.data())
@settings(max_examples=100)
def test_every_read_is_pyarrows_L4(data: bytes, draw: st.DataObject) -> None:
    meta = parse(data)
    record = SchemaRecord.from_metadata(meta)
    fields = draw.draw(st.sets(st.integers(0, len(meta.field_names) - 1), min_size=1))
    projection = record.project(sorted(fields))
    theirs = pq.ParquetFile(io.BytesIO(data))
    for g in range(meta.n_row_groups):
        got = read_group(
            projection,
            ChunkPlaces.from_metadata(meta, g, projection.leaf_indices),
            lambda ranges: [data[offset : offset + length] for offset, length in ranges],
            n_rows=int(meta.group_n_rows[g]),
            file_size=len(data),
            file="a",
            row_group=g,
        )
        expected = theirs.read_row_group(g).select(sorted(fields))
        assert got.schema == expected.schema == projection.arrow_schema
        assert str(got.to_pylist()) == str(expected.to_pylist())  # NaN is not equal to itself


@given(files())
@settings(max_examples=100)
def test_bounds_leave_nothing_out_and_exact_ones_are_values(data: bytes) -> None:
    meta = parse(data)
    theirs = pq.ParquetFile(io.BytesIO(data))
    for i, leaf in enumerate(meta.leaves):
        if len(leaf.path) > 1:
            continue
        got = bounds(meta, i)
        for g in range(meta.n_row_groups):
            values = theirs.read_row_group(g).column(leaf.field).combine_chunks()
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            assert got.min.type == values.type
            assert got.null_count[g].as_py() in (None, values.null_count)
            known = values.drop_null()
            if pa.types.is_floating(known.type):
                known = known.filter(pc.invert(pc.is_nan(known)))
            for side, fits in ((got.min[g : g + 1], pc.less_equal), (got.max[g : g + 1], pc.greater_equal)):
                if side[0].is_valid and len(known):
                    side_of_each = pa.concat_arrays([side] * len(known))
                    assert pc.all(fits(side_of_each, known)).as_py()
                    assert not got.exact[g] or pc.any(pc.equal(side_of_each, known)).as_py()
            if got.exact[g]:
                assert len(known) > 0


# -- other bytes ----------------------------------------------------------------------------------------------


@cache
def sample() -> bytes:
    table = pa.table(
        {
            "id": np.repeat(np.arange(20), 5),
            "s": pa.array([{"a": [i, None], "b": f"é{i}"} for i in range(100)]),
            "d": pa.array([f"c{i % 3}" for i in range(100)]).dictionary_encode(),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=5, write_page_index=True)
    return buffer.getvalue()


MUTATIONS = st.lists(
    st.tuples(
        st.integers(0, 2**20),
        st.sampled_from(["set", "delete", "insert", "copy"]),
        st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=6,
)


def mutated(footer: bytes, mutations: list[tuple[int, str, bytes]]) -> bytes:
    out = bytearray(footer)
    for number, what, raw in mutations:
        place = number % len(out)
        if what == "set":
            out[place : place + len(raw)] = raw
        elif what == "delete":
            del out[place : place + len(raw)]
        elif what == "insert":
            out[place:place] = raw
        else:
            source = number * 31 % len(out)
            out[place : place + 8] = out[source : source + 8]
        out = out or bytearray(b"\0")
    return bytes(out)


@given(MUTATIONS)
@settings(max_examples=400)
def test_a_mutated_footer_is_read_or_refused_and_takes_no_more_memory_case_37_41(
    mutations: list[tuple[int, str, bytes]],
) -> None:
    data = sample()
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    good = data[offset : offset + length]
    footer = mutated(good, mutations)
    peak = _peak_bytes(good, len(data))
    tracemalloc.start()
    try:
        parse_footer(footer, file="a", file_size=len(data) + len(footer) - len(good))
    except PqindexError:
        pass
    finally:
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used <= 2 * peak


@cache
def _peak_bytes(footer: bytes, size: int) -> int:
    tracemalloc.start()
    parse_footer(footer, file="a", file_size=size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@given(MUTATIONS, st.sampled_from([1, 4, lanes.MIN_LANES]))
@settings(max_examples=300)
def test_all_chunks_at_once_is_the_same_or_no_answer(
    mutations: list[tuple[int, str, bytes]], min_lanes: int
) -> None:
    """Whatever the bytes, the columnar parser gives what the other one gives, or leaves it to that one."""
    position, paths = _groups_of_sample()
    data = sample()
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    good = data[offset : offset + length]
    footer = good[:position] + mutated(good[position:], mutations)
    with mock.patch.object(lanes, "MIN_LANES", min_lanes):
        fast = read_groups_columnar(footer, position, paths, file="a")
    if fast is not None:
        slow = read_groups(footer, position, paths, file="a")
        assert np.array_equal(fast[0], slow[0])
        assert np.array_equal(fast[1], slow[1])
        assert fast[2] == slow[2]


@given(files(), st.sampled_from([1, lanes.MIN_LANES]))
@settings(max_examples=60)
def test_all_chunks_at_once_reads_what_pyarrow_writes(data: bytes, min_lanes: int) -> None:
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    with (
        mock.patch.object(lanes, "MIN_LANES", min_lanes),
        mock.patch.object(metadata, "MIN_COLUMNAR_CHUNKS", 1),
    ):
        fast = parse_footer(data[offset : offset + length], file="a", file_size=len(data))
    slow = parse(data)
    for field in dataclasses.fields(fast.chunks):
        assert np.array_equal(getattr(fast.chunks, field.name), getattr(slow.chunks, field.name))


@cache
def _groups_of_sample() -> tuple[int, tuple[bytes, ...]]:
    """Where the row groups of the sample's footer begin, and the paths of its columns."""
    data = sample()
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    footer = data[offset : offset + length]
    meta = parse(data)
    start = footer.index(encode_integer(100), footer.index(meta.schema_bytes) + len(meta.schema_bytes))
    paths = parse_schema(meta.schema_bytes, None, file="a").encoded_paths
    position = start + len(encode_integer(100)) + 1
    assert read_groups(footer, position, paths, file="a")[0].tolist() == [
        meta.group_n_rows.tolist(),
        meta.group_byte_size.tolist(),
    ]
    return position, paths


@given(st.binary(max_size=200))
@example(b"\x19\xfc\xff\xff\xff\xff\x0f")
@settings(max_examples=300)
def test_bytes_that_are_no_footer_are_refused(junk: bytes) -> None:
    try:
        parse_footer(junk, file="a", file_size=10**6)
    except PqindexError:
        return
    raise AssertionError("random bytes were taken for a footer")


CHILD = """
import random, sys
from pqindex.errors import PqindexError
from pqindex.footer import ChunkPlaces, SchemaRecord, bounds, parse_footer, read_group, read_tail

data = open(sys.argv[1], "rb").read()
offset, length = read_tail(data[-8:], file_size=len(data), file="a")
rng = random.Random(int(sys.argv[2]))
n_read = 0
for _ in range(int(sys.argv[3])):
    footer = bytearray(data[offset : offset + length])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        place = rng.randrange(len(footer))
        if rng.random() < 0.8:
            footer[place] = rng.randrange(256)
        else:
            del footer[place : place + rng.randrange(1, 4)]
    try:
        meta = parse_footer(bytes(footer), file="a", file_size=offset + len(footer) + 8)
        record = SchemaRecord.from_metadata(meta)
        for i in range(len(meta.leaves)):
            found = bounds(meta, i)
            found.min.validate(full=True), found.max.validate(full=True)
        projection = record.project(range(len(meta.field_names)))
        group = rng.randrange(meta.n_row_groups)
        read_group(
            projection, ChunkPlaces.from_metadata(meta, group, projection.leaf_indices),
            lambda ranges: [data[o : o + n] for o, n in ranges],
            n_rows=int(meta.group_n_rows[group]), file_size=offset, file="a", row_group=group,
        )
        n_read += 1
    except PqindexError:
        pass
print(n_read)
"""


def test_whatever_a_mutated_footer_says_pyarrow_does_not_kill_the_process(tmp_path: Any) -> None:
    """In a child process, since this is where pyarrow sees a hostile schema and hostile places."""
    path = tmp_path / "a.parquet"
    path.write_bytes(sample())
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), "7", "1500"], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert int(child.stdout) > 100
