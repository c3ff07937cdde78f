"""Statistics: what is believed, and what is unknown instead."""
# ruff: noqa: DTZ001  # timestamps without a zone are a type of their own

from __future__ import annotations

import datetime as dt
import decimal
import io
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.footer import (
    Bounds,
    FileMetadata,
    SchemaRecord,
    bounds,
    bounds_of,
    bounds_of_files,
    leaf_types,
    parse_footer,
    read_tail,
)

UNKNOWN = None


def metadata(table: pa.Table, **options: Any) -> FileMetadata:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    data = buffer.getvalue()
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    return parse_footer(data[offset : offset + length], file="a", file_size=len(data))


def column(values: Any, kind: pa.DataType, n_groups: int = 1, **options: Any) -> FileMetadata:
    table = pa.table({"c": pa.array(values, kind)})
    return metadata(table, row_group_size=max(len(values) // n_groups, 1), **options)


def with_bounds(
    kind: pa.DataType,
    pairs: list[tuple[bytes | None, bytes | None]],
    *,
    deprecated: bool = False,
    created_by: str = "some writer version 1.0.0",
    order_defined: bool = True,
    **facts: Any,
) -> FileMetadata:
    """A file of one column whose row groups have the given raw (min, max); `facts` replace arrays of the chunks."""
    meta = column([None] * len(pairs), kind, n_groups=len(pairs))
    footer = b"".join(raw or b"" for pair in pairs for raw in pair) or b"\0"
    starts = np.zeros((len(pairs), 2), np.int32)
    lengths = np.full((len(pairs), 2), -1, np.int32)
    position = 0
    for i, pair in enumerate(pairs):
        for side, raw in enumerate(pair):
            if raw is not None:
                starts[i, side], lengths[i, side] = position, len(raw)
                position += len(raw)
    none = np.full((len(pairs), 1), -1, np.int32)
    chunks = {f"{side}{kind_}_length": none for side in ("min", "max") for kind_ in ("", "_value")}
    for side, name in enumerate(("min", "max")):
        field = name if deprecated else f"{name}_value"
        chunks |= {
            f"{field}_start": starts[:, side : side + 1],
            f"{field}_length": lengths[:, side : side + 1],
        }
    chunks |= {
        "min_exact": np.full((len(pairs), 1), -1, np.int8),
        "max_exact": np.full((len(pairs), 1), -1, np.int8),
        "null_count": np.full((len(pairs), 1), 0),
        "num_values": np.full((len(pairs), 1), 10),
    }
    chunks |= {name: np.array(value).reshape(len(pairs), 1) for name, value in facts.items()}
    return replace(
        meta,
        footer=footer,
        created_by=created_by,
        leaves=tuple(replace(leaf, order_defined=order_defined) for leaf in meta.leaves),
        chunks=replace(meta.chunks, **chunks),
    )


def found(meta: FileMetadata, leaf: int = 0) -> list[tuple[Any, Any]]:
    got = bounds(meta, leaf)
    return list(zip(got.min.to_pylist(), got.max.to_pylist(), strict=True))


# -- every type, as pyarrow writes it -------------------------------------------------------------------------

D = decimal.Decimal
EPOCH = dt.datetime(1970, 1, 1)

TYPED_VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.int16(), [-32768, 32767]),
    (pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint16(), [0, 65535]),
    (pa.uint32(), [0, 4294967295]),
    (pa.uint64(), [1, 2**63 + 5]),
    (pa.float16(), [-1.5, 2.5]),
    (pa.float32(), [-1.5, 2.5]),
    (pa.float64(), [-1.5e300, 2.5]),
    (pa.string(), ["é", "a"]),
    (pa.string(), ["", "🙂"]),
    (pa.large_string(), ["b", "a"]),
    (pa.binary(), [b"\xff", b"\x00", b""]),
    (pa.binary(3), [b"\xff\x00\x00", b"abc"]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.date64(), [dt.date(1969, 12, 31), dt.date(2020, 2, 29)]),
    (pa.time32("ms"), [dt.time(1), dt.time(23, 59)]),
    (pa.time64("us"), [dt.time(1), dt.time(23, 59)]),
    (pa.time64("ns"), [dt.time(1), dt.time(23, 59)]),
    (pa.timestamp("s"), [EPOCH, dt.datetime(2020, 1, 1)]),
    (pa.timestamp("ms"), [dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1)]),
    (pa.timestamp("us", "Europe/Berlin"), [EPOCH, dt.datetime(1600, 1, 1)]),
    (pa.timestamp("ns", "UTC"), [EPOCH, dt.datetime(2020, 1, 1)]),
    (pa.duration("us"), [dt.timedelta(-5), dt.timedelta(7)]),
    (pa.decimal128(7, 3), [D("-1.234"), D("9999.999")]),
    (pa.decimal128(15, 2), [D("-1.23"), D("9999.99")]),
    (pa.decimal128(38, 5), [D("-12345678901234567890.12345"), D("1.00000")]),
    (pa.decimal256(60, 5), [D("-1.23456"), D("123456789012345678901234567890123456789012345.00000")]),
]


@pytest.mark.parametrize(("kind", "values"), TYPED_VALUES, ids=[str(kind) for kind, _ in TYPED_VALUES])
@pytest.mark.parametrize("integer_decimals", [False, True])
def test_bounds_are_the_least_and_greatest_value_T30_case_12(
    kind: pa.DataType, values: list[Any], integer_decimals: bool
) -> None:
    meta = column([*values, None], kind, store_decimal_as_integer=integer_decimals)
    typed = pa.array(values, kind)
    order = sorted(range(len(values)), key=lambda i: typed[i].as_py())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        order = sorted(range(len(values)), key=lambda i: values[i].encode())
    got = bounds(meta, 0)
    expected = pq.read_table(io.BytesIO(_file_of(kind, values))).schema.field(0).type
    assert got.min.type == got.max.type == expected
    assert got.min[0].as_py() == typed[order[0]].cast(expected).as_py()
    assert got.max[0].as_py() == typed[order[-1]].cast(expected).as_py()
    assert got.null_count.to_pylist() == [1]
    assert got.exact.tolist() == [True]
    got.min.validate(full=True)
    got.max.validate(full=True)


def _file_of(kind: pa.DataType, values: list[Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"c": pa.array(values, kind)}), buffer)
    return buffer.getvalue()


def test_one_value_a_row_group_and_a_null_where_nothing_is_known() -> None:
    meta = column([3, 1, None, None, 5, None], pa.int64(), n_groups=3)
    got = bounds(meta, 0)
    assert found(meta) == [(1, 3), (UNKNOWN, UNKNOWN), (5, 5)]
    assert got.null_count.to_pylist() == [0, 2, 1]
    assert got.exact.tolist() == [True, False, True]


def test_no_statistics_and_no_row_group_case_26() -> None:
    meta = column([1, 2], pa.int64(), write_statistics=False)
    got = bounds(meta, 0)
    assert (found(meta), got.null_count.to_pylist(), got.exact.tolist()) == (
        [(UNKNOWN, UNKNOWN)],
        [None],
        [False],
    )
    empty = column([], pa.string())
    assert len(bounds(empty, 0).min) == empty.n_row_groups


def test_a_dictionary_column_has_the_type_of_its_values_T30() -> None:
    table = pa.table({"c": pa.array(["b", "a", None]).dictionary_encode()})
    got = bounds(metadata(table), 0)
    assert got.min.type == pa.string()
    assert (got.min[0].as_py(), got.max[0].as_py(), got.null_count[0].as_py()) == ("a", "b", 1)


def test_leaves_of_nested_columns_T29() -> None:
    table = pa.table(
        {
            "s": pa.array([{"a": 5, "b": "x"}, None], pa.struct({"a": pa.int16(), "b": pa.string()})),
            "l": pa.array([[1.0, 2.0], []], pa.list_(pa.float32())),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
        }
    )
    meta = metadata(table)
    types = leaf_types(SchemaRecord.from_metadata(meta))
    assert types == (pa.int16(), pa.string(), pa.float32(), pa.string(), pa.int8())
    assert [found(meta, i) for i in range(5)] == [
        [(5, 5)],
        [("x", "x")],
        [(1.0, 2.0)],
        [("k", "k")],
        [(1, 1)],
    ]
    # Writers disagree on whether an empty list is a null of its elements.
    assert [bounds(meta, i).null_count[0].as_py() for i in range(5)] == [1, 1, None, None, None]


def test_types_without_an_order_are_unknown() -> None:
    meta = metadata(pa.table({"n": pa.nulls(2)}))
    assert bounds(meta, 0).min.type == pa.null()
    buffer_meta = metadata(
        pa.table({"t": pa.array([EPOCH], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True
    )
    assert found(buffer_meta) == [(UNKNOWN, UNKNOWN)]


# -- trust ----------------------------------------------------------------------------------------------------


def int64(value: int) -> bytes:
    return struct.pack("<q", value)


def f64(value: float) -> bytes:
    return struct.pack("<d", value)


def test_without_a_defined_order_new_bounds_are_unknown() -> None:
    pair = (int64(1), int64(2))
    assert found(with_bounds(pa.int64(), [pair], order_defined=False)) == [(UNKNOWN, UNKNOWN)]
    assert found(with_bounds(pa.int64(), [pair], order_defined=True)) == [(1, 2)]


@pytest.mark.parametrize(
    ("kind", "raw", "believed"),
    [
        (pa.int64(), int64(5), True),
        (pa.int32(), struct.pack("<i", 5), True),
        (pa.float64(), f64(1.0), True),
        (pa.bool_(), b"\1", True),
        (pa.date32(), struct.pack("<i", 5), True),
        (pa.timestamp("us"), int64(5), True),
        (pa.int8(), struct.pack("<i", 5), True),
        (pa.uint64(), int64(5), False),
        (pa.uint8(), struct.pack("<i", 5), False),
        (pa.string(), b"a", False),
        (pa.binary(), b"a", False),
        (pa.binary(2), b"ab", False),
        (pa.decimal128(38, 2), b"\0" * 16, False),
    ],
)
def test_deprecated_bounds_count_only_for_signed_numbers_case_27(
    kind: pa.DataType, raw: bytes, believed: bool
) -> None:
    """C21: writers compared bytes as signed, so that the minimum of text and decimals may be wrong."""
    for order_defined in (False, True):
        got = bounds(with_bounds(kind, [(raw, raw)], deprecated=True, order_defined=order_defined), 0)
        assert (got.min[0].is_valid, bool(got.exact[0])) == (believed, believed)


def test_a_minimum_above_the_maximum_is_unknown_case_27() -> None:
    assert found(with_bounds(pa.int64(), [(int64(2), int64(1)), (int64(1), int64(2))])) == [
        (None, None),
        (1, 2),
    ]
    assert found(with_bounds(pa.string(), [(b"b", b"a")])) == [(None, None)]
    assert found(with_bounds(pa.binary(2), [(b"\xff\0", b"\0\0")])) == [(None, None)]
    assert found(with_bounds(pa.float64(), [(f64(2.0), f64(1.0))])) == [(None, None)]
    # As unsigned, -1 is the greatest.
    assert found(with_bounds(pa.uint64(), [(int64(1), int64(-1))])) == [(1, 2**64 - 1)]
    assert found(with_bounds(pa.uint64(), [(int64(-1), int64(1))])) == [(None, None)]


def test_nan_is_unknown_for_both_bounds_case_23() -> None:
    nan = f64(math.nan)
    pairs = [(nan, f64(1.0)), (f64(1.0), nan), (nan, nan), (f64(-math.inf), f64(math.inf))]
    assert found(with_bounds(pa.float64(), pairs)) == [(None, None)] * 3 + [(-math.inf, math.inf)]
    half = struct.pack("<e", math.nan)
    assert found(with_bounds(pa.float16(), [(half, half)])) == [(None, None)]


@pytest.mark.parametrize(("kind", "code"), [(pa.float16(), "<e"), (pa.float32(), "<f"), (pa.float64(), "<d")])
def test_a_zero_bound_takes_the_safe_sign(kind: pa.DataType, code: str) -> None:
    for low, high in ((0.0, 0.0), (-0.0, -0.0), (0.0, -0.0), (-0.0, 0.0)):
        [(least, greatest)] = found(with_bounds(kind, [(struct.pack(code, low), struct.pack(code, high))]))
        assert math.copysign(1, least) == -1
        assert math.copysign(1, greatest) == 1
        assert least == greatest == 0


def test_text_that_is_not_utf8_is_unknown_case_29() -> None:
    pairs = [(b"\xff\xfe", b"z"), (b"a", b"\xc3"), ("é".encode(), "ü".encode())]
    assert found(with_bounds(pa.string(), pairs)) == [(None, "z"), ("a", None), ("é", "ü")]


def test_one_bound_alone_is_kept_and_not_exact() -> None:
    meta = with_bounds(pa.int64(), [(int64(1), None), (None, int64(2))])
    assert found(meta) == [(1, None), (None, 2)]
    assert bounds(meta, 0).exact.tolist() == [False, False]


@pytest.mark.parametrize("raw", [b"", b"\1", b"\0" * 7, b"\0" * 9])
def test_a_value_of_the_wrong_length_is_unknown(raw: bytes) -> None:
    assert found(with_bounds(pa.int64(), [(raw, raw)])) == [(None, None)]
    assert found(with_bounds(pa.binary(4), [(raw, raw)])) == [(None, None)]
    assert found(with_bounds(pa.decimal128(38, 1), [(raw, raw)])) == [(None, None)]


def test_a_number_outside_its_type_is_unknown() -> None:
    too_big = struct.pack("<i", 300)
    assert found(with_bounds(pa.uint8(), [(too_big, too_big)])) == [(None, None)]
    assert found(with_bounds(pa.int8(), [(too_big, too_big)])) == [(None, None)]
    assert found(with_bounds(pa.bool_(), [(b"\2", b"\2")])) == [(None, None)]
    digits = (10**20).to_bytes(16, "big")
    assert found(with_bounds(pa.decimal128(19, 0), [(digits, digits)])) == [(None, None)]


def test_a_width_that_is_only_a_number_allocates_nothing_case_37() -> None:
    meta = with_bounds(pa.binary(4), [(b"abcd", b"abcd")] * 3)
    wide = replace(meta, leaves=tuple(replace(leaf, type_length=2**31 - 1) for leaf in meta.leaves))
    got = bounds(wide, 0)
    assert (got.min.type, got.min.null_count, got.exact.tolist()) == (pa.null(), 3, [False] * 3)


def test_a_null_count_that_cannot_be_is_unknown_case_25() -> None:
    meta = with_bounds(
        pa.int64(), [(int64(1), int64(2))] * 4, null_count=[-1, 11, 10, 3], num_values=[10, 10, 10, 10]
    )
    got = bounds(meta, 0)
    assert got.null_count.to_pylist() == [None, None, 10, 3]
    # Where all is null there is nothing to bound.
    assert found(meta) == [(1, 2), (1, 2), (None, None), (1, 2)]


# -- exactness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("created_by", "value", "exact"),
    [
        ("parquet-rs version 55.0.0", b"a" * 56, True),
        ("parquet-rs version 55.0.0", b"a" * 57, False),
        ("DuckDB version v1.4.4", b"a" * 256, False),
        ("parquet-cpp-arrow version 26.0.1", b"a" * 4000, True),
    ],
)
def test_long_text_is_exact_only_from_writers_that_never_cut_case_22(
    created_by: str, value: bytes, exact: bool
) -> None:
    meta = with_bounds(pa.string(), [(value, value)], created_by=created_by)
    assert bounds(meta, 0).exact.tolist() == [exact]
    assert found(meta) == [(value.decode(), value.decode())]


def test_the_flags_of_the_footer_decide_where_there_are_any() -> None:
    long, short = b"a" * 100, b"a"
    pairs = [(long, long), (long, long), (short, short), (short, short)]
    meta = with_bounds(pa.string(), pairs, min_exact=[1, 1, 0, 1], max_exact=[1, 0, 1, 1])
    assert bounds(meta, 0).exact.tolist() == [True, False, False, True]
    numbers = with_bounds(pa.int64(), [(int64(1), int64(2))] * 2, min_exact=[0, -1], max_exact=[1, -1])
    assert bounds(numbers, 0).exact.tolist() == [False, True]


def test_pyarrow_leaves_out_what_is_too_long_case_100() -> None:
    meta = column(["a" * 4096, "a" * 5000], pa.string(), n_groups=2)
    assert found(meta) == [("a" * 4096, "a" * 4096), (None, None)]
    assert bounds(meta, 0).exact.tolist() == [True, False]


# -- writers --------------------------------------------------------------------------------------------------


def test_null_counts_of_a_writer_that_is_wrong_are_unknown_case_25() -> None:
    for created_by, expected in (("DuckDB", None), ("DuckDB version v1.1.1", 0)):
        got = bounds(with_bounds(pa.int64(), [(int64(1), int64(1))], created_by=created_by), 0)
        assert got.null_count[0].as_py() == expected
        assert got.min[0].as_py() == 1


def dictionary_file(created_by: str, *, store_schema: bool) -> Bounds:
    table = pa.table({"c": pa.array(["a", "b"]).dictionary_encode()})
    return bounds(replace(metadata(table, store_schema=store_schema), created_by=created_by), 0)


@pytest.mark.parametrize("store_schema", [True, False])
def test_dictionaries_of_old_arrow_are_unknown(store_schema: bool) -> None:
    old = dictionary_file("parquet-cpp-arrow version 4.0.1", store_schema=store_schema)
    assert (old.min[0].as_py(), old.null_count[0].as_py(), bool(old.exact[0])) == (None, None, False)
    new = dictionary_file("parquet-cpp-arrow version 6.0.0", store_schema=store_schema)
    assert (new.min[0].as_py(), new.null_count[0].as_py(), bool(new.exact[0])) == ("a", 0, True)


def test_a_dictionary_with_nulls_is_not_exact_in_any_arrow() -> None:
    """pyarrow 26 takes rows behind the row group into its bounds when the group has a null."""
    table = pa.table({"c": pa.array(["0", None, "", "a"]).dictionary_encode()})
    got = bounds(metadata(table, row_group_size=2), 0)
    assert got.min[0].as_py() in {"", "0"}
    assert (got.max[0].as_py(), got.null_count[0].as_py()) == ("0", 1)
    assert got.exact.tolist() == [False, True]
    assert (got.min[1].as_py(), got.max[1].as_py()) == ("", "a")


def test_plain_text_of_old_arrow_is_believed() -> None:
    meta = replace(column(["a", "b"], pa.string()), created_by="parquet-cpp-arrow version 4.0.1")
    assert found(meta) == [("a", "b")]


def test_dictionaries_of_polars_are_not_exact() -> None:
    got = dictionary_file("Polars (python) version 2.1.0", store_schema=True)
    assert (got.min[0].as_py(), bool(got.exact[0])) == ("a", False)


def test_other_faults_touch_only_their_columns() -> None:
    stamp = with_bounds(pa.timestamp("ms"), [(int64(1), int64(2))], created_by="Parquet.Net version 4.25.0")
    assert found(stamp) == [(None, None)]
    number = with_bounds(pa.int64(), [(int64(1), int64(2))], created_by="Parquet.Net version 4.25.0")
    assert found(number) == [(1, 2)]
    raw = (5).to_bytes(16, "big")
    for created_by in ("Polars (python) version 2.1.0", "ClickHouse v25.1", "hyparquet"):
        assert found(with_bounds(pa.decimal128(38, 0), [(raw, raw)], created_by=created_by)) == [(None, None)]
    assert found(with_bounds(pa.decimal128(38, 0), [(raw, raw)])) == [(D(5), D(5))]


def test_null_counts_of_polars_before_2_1_are_believed_only_when_zero() -> None:
    pairs = [(int64(1), int64(2))] * 2
    old = with_bounds(pa.int64(), pairs, created_by="Polars (python) version 2.0.0", null_count=[0, 4])
    assert bounds(old, 0).null_count.to_pylist() == [0, None]
    new = with_bounds(pa.int64(), pairs, created_by="Polars (python) version 2.1.0", null_count=[0, 4])
    assert bounds(new, 0).null_count.to_pylist() == [0, 4]


# -- several files at once ------------------------------------------------------------------------------------


def same_bounds(one: Bounds, other: Bounds) -> bool:
    return (
        one.min.equals(other.min)
        and one.max.equals(other.max)
        and one.null_count.equals(other.null_count)
        and one.exact.tolist() == other.exact.tolist()
    )


def test_bounds_of_files_are_those_of_each_file() -> None:
    files = [
        metadata(
            pa.table(
                {
                    "i": pa.array([i, None, 3 + i, 4], pa.int32()),
                    "s": [f"é{i}", "b", None, "dd"],
                    "f": pa.array([math.nan, 1.5 * i, -0.0, 0.0], pa.float32()),
                    "b": [True, False, None, True],
                    "d": pa.array([None if i == 2 else decimal.Decimal(i)] * 4, pa.decimal128(5, 2)),
                }
            ),
            row_group_size=1 + i,
        )
        for i in range(4)
    ]
    together = bounds_of_files(files, [4, 0, 1, 2, 3])
    for file, found in zip(files, together, strict=True):
        assert all(map(same_bounds, found, bounds_of(file, [4, 0, 1, 2, 3])))
    assert bounds_of_files([], [0]) == []


def test_a_file_that_lies_makes_only_its_own_bounds_unknown() -> None:
    """One decimal of too many digits: what the other files say does not hang on which files are looked at with it."""
    kind = pa.decimal128(3, 0)
    good = with_bounds(kind, [(b"\0\x05", b"\0\x07")])
    lying = with_bounds(kind, [(b"\x7f\xff", b"\x7f\xff")])
    together = bounds_of_files([good, lying, good], [0])
    assert [found[0].min.to_pylist() for found in together] == [
        [decimal.Decimal(5)],
        [None],
        [decimal.Decimal(5)],
    ]
