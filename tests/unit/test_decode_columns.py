"""Which columns and chunks may be decoded directly."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex.decode
from pqindex.decode import (
    DIRECT_ENCODINGS,
    REASONS,
    DirectColumn,
    direct_column,
    not_direct,
    reason_of_refusal,
)
from pqindex.footer import Leaf, LogicalType, SchemaRecord, parse_footer, read_tail


def leaves_of(schema: pa.Schema, **options: object) -> tuple[tuple[Leaf, ...], pa.Schema]:
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink, **options)
    data = sink.getvalue()
    offset, length = read_tail(data[-8:], file_size=len(data), file="f")
    meta = parse_footer(data[offset : offset + length], file="f", file_size=len(data))
    return meta.leaves, SchemaRecord.from_metadata(meta).to_arrow()


def column_of(kind: pa.DataType, *, nullable: bool = True) -> DirectColumn | None:
    leaves, arrow = leaves_of(pa.schema([pa.field("a", kind, nullable)]))
    return direct_column(leaves[0], arrow.field(0).type)


@pytest.mark.parametrize(
    ("kind", "stored", "dtype"),
    [
        (pa.bool_(), "?", "?"),
        (pa.int8(), "<i4", "i1"),
        (pa.uint16(), "<i4", "<u2"),
        (pa.int32(), "<i4", "<i4"),
        (pa.uint32(), "<i4", "<u4"),
        (pa.int64(), "<i8", "<i8"),
        (pa.uint64(), "<i8", "<u8"),
        (pa.float16(), "<f2", "<f2"),
        (pa.float32(), "<f4", "<f4"),
        (pa.float64(), "<f8", "<f8"),
        (pa.date32(), "<i4", "<i4"),
        (pa.time32("ms"), "<i4", "<i4"),
        (pa.time64("ns"), "<i8", "<i8"),
        (pa.timestamp("us", "Europe/Rome"), "<i8", "<i8"),
        (pa.duration("ns"), "<i8", "<i8"),
    ],
)
def test_numbers_are_direct(kind: pa.DataType, stored: str, dtype: str) -> None:
    for nullable in (False, True):
        expected = DirectColumn(
            name="a", stored=np.dtype(stored), dtype=np.dtype(dtype), is_optional=nullable
        )
        assert column_of(kind, nullable=nullable) == expected
        assert pickle.loads(pickle.dumps(expected)) == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.binary(4),
        pa.binary(2),
        pa.decimal128(5, 2),
        pa.list_(pa.float32()),
        pa.list_(pa.float32(), 2),
        pa.struct([("b", pa.float32())]),
    ],
)
def test_other_types_are_not(kind: pa.DataType) -> None:
    assert column_of(kind) is None


@pytest.mark.parametrize("kind", [pa.date64(), pa.timestamp("s"), pa.time32("s"), pa.float32(), pa.string()])
def test_a_type_that_is_not_that_of_the_stored_numbers_is_not(kind: pa.DataType) -> None:
    # Days are stored, or milliseconds.
    stored = pa.int64() if pa.types.is_floating(kind) else kind
    leaves, _ = leaves_of(pa.schema([("a", stored)]))
    assert direct_column(leaves[0], kind) is None


def test_96_bit_timestamps_and_numbers_with_another_meaning_are_not() -> None:
    leaves, arrow = leaves_of(pa.schema([("a", pa.timestamp("ns"))]), use_deprecated_int96_timestamps=True)
    assert direct_column(leaves[0], arrow.field(0).type) is None
    leaf, number = leaves_of(pa.schema([("a", pa.int64())]))[0][0], pa.int64()
    assert direct_column(leaf, number) is not None
    assert direct_column(leaf, pa.timestamp("us")) is None
    for logical in (
        LogicalType(name="decimal", precision=5, scale=2),
        LogicalType(name="integer", bit_width=32, signed=True),
        LogicalType(name="time", unit="ms"),
    ):
        changed = {name: getattr(leaf, name) for name in Leaf.__slots__} | {"logical": logical}
        assert direct_column(Leaf(**changed), number) is None


def test_chunks_are_chosen_by_codec_encodings_and_nulls() -> None:
    codecs = np.arange(-1, 8, dtype=np.int8)
    plain = np.full(9, DIRECT_ENCODINGS, np.int32)
    assert names(not_direct(codecs, plain)) == ["codec", "", "", *["codec"] * 4, "", ""]
    # DELTA_BINARY_PACKED, and the bit of encodings that Parquet does not have
    others = np.array([[1 << 5, 1], [1 << 0 | 1 << 30, 1 << 8 | 1 << 3]], np.int32)
    none = np.zeros((2, 2), np.int8)
    assert names(not_direct(none, others)) == [["encoding", ""], ["encoding", ""]]
    for one, expected in ((1, ""), (1 << 5, "encoding")):
        assert names(not_direct(none, np.full((2, 2), one))) == [[expected] * 2] * 2
    null_counts = np.array([[1, 1], [-1, 0]])
    assert names(not_direct(none, others, null_counts)) == [["encoding", "nulls"], ["encoding", ""]]
    assert not_direct(none, others, null_counts).dtype == np.int8


def names(numbers: Any) -> Any:
    return np.array(REASONS)[numbers].tolist()


def test_each_refusal_has_a_reason_to_be_counted_as() -> None:
    source = "".join(path.read_text() for path in Path(pqindex.decode.__file__).parent.glob("*.py"))
    said = set(re.findall(r'NotDirectError\("([^"]+)"', source))
    assert {REASONS[reason_of_refusal(reason)] for reason in said} == {
        "codec",
        "encoding",
        "nulls",
        "runs",
        "indices",
        "page",
    }
    assert {reason for reason in said if "run" in reason and "runs of" not in reason} == {
        reason for reason in said if REASONS[reason_of_refusal(reason)] == "runs"
    }
