"""Schemas: leaves and their levels, logical types, and trees that do not add up."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.errors import BadFileError
from pqindex.footer import LogicalType, parse_footer, parse_schema, read_tail
from pqindex.footer.schema import FIXED_LEN_BYTE_ARRAY, INT32, INT64, MAX_SCHEMA_DEPTH
from pqindex.footer.thrift import (
    BINARY,
    I32,
    LIST,
    STRUCT,
    encode_binary,
    encode_integer,
    encode_list_header,
    encode_struct,
)


def element(name: bytes | None, **numbers: int) -> bytes:
    """One SchemaElement; fields by their names in the Parquet format."""
    ids = {
        "type": 1,
        "type_length": 2,
        "repetition_type": 3,
        "num_children": 5,
        "converted_type": 6,
        "scale": 7,
        "precision": 8,
    }
    fields = [(ids[field], I32, encode_integer(value)) for field, value in numbers.items()]
    if name is not None:
        fields.append((4, BINARY, encode_binary(name)))
    return encode_struct(*sorted(fields))


def schema(*elements: bytes) -> bytes:
    return encode_list_header(len(elements), STRUCT) + b"".join(elements)


def orders(*members: int) -> bytes:
    """A list of ColumnOrder, each the union's member of this number."""
    return encode_list_header(len(members), STRUCT) + b"".join(
        encode_struct((member, STRUCT, b"\0")) for member in members
    )


def written(table: pa.Table, **options: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def leaves_of(table: pa.Table, **options: object) -> dict[str, LogicalType | None]:
    data = written(table, **options)
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    meta = parse_footer(data[offset : offset + length], file="a", file_size=len(data))
    return {".".join(leaf.path): leaf.logical for leaf in meta.leaves}


def test_levels_paths_and_fields_of_a_nested_schema_T29() -> None:
    table = pa.table(
        {
            "flat": pa.array([1], pa.int32()),
            "s": pa.array([{"a": 1, "b": [1]}], pa.struct({"a": pa.int64(), "b": pa.list_(pa.int64())})),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            "": pa.array([1]),
        }
    )
    data = written(table)
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    meta = parse_footer(data[offset : offset + length], file="a", file_size=len(data))
    assert meta.field_names == ("flat", "s", "m", "")
    got = [
        (leaf.path, leaf.field, leaf.max_definition_level, leaf.max_repetition_level) for leaf in meta.leaves
    ]
    assert got == [
        (("flat",), 0, 1, 0),
        (("s", "a"), 1, 2, 0),
        (("s", "b", "list", "element"), 1, 4, 1),
        (("m", "key_value", "key"), 2, 2, 1),
        (("m", "key_value", "value"), 2, 3, 1),
        (("",), 3, 1, 0),
    ]
    assert all(leaf.order_defined for leaf in meta.leaves)


def test_levels_agree_with_pyarrow() -> None:
    table = pa.table({"l": pa.array([[[1]]], pa.list_(pa.list_(pa.int8()))), "f": pa.array([1.0])})
    data = written(table)
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    meta = parse_footer(data[offset : offset + length], file="a", file_size=len(data))
    theirs = pq.ParquetFile(io.BytesIO(data)).schema
    for i, leaf in enumerate(meta.leaves):
        assert leaf.max_definition_level == theirs.column(i).max_definition_level
        assert leaf.max_repetition_level == theirs.column(i).max_repetition_level


def test_logical_types_of_pyarrow() -> None:
    types = {
        "u8": pa.uint8(),
        "i64": pa.int64(),
        "s": pa.string(),
        "b": pa.binary(),
        "dec": pa.decimal128(7, 3),
        "date": pa.date32(),
        "t": pa.time64("us"),
        "ts": pa.timestamp("ns", "UTC"),
        "local": pa.timestamp("ms"),
        "half": pa.float16(),
        "n": pa.null(),
    }
    got = leaves_of(pa.table({name: pa.nulls(1, kind) for name, kind in types.items()}))
    assert got == {
        "u8": LogicalType(name="integer", bit_width=8, signed=False),
        "i64": None,
        "s": LogicalType(name="string"),
        "b": None,
        "dec": LogicalType(name="decimal", precision=7, scale=3),
        "date": LogicalType(name="date"),
        "t": LogicalType(name="time", unit="us", utc=False),
        "ts": LogicalType(name="timestamp", unit="ns", utc=True),
        "local": LogicalType(name="timestamp", unit="ms", utc=False),
        "half": LogicalType(name="float16"),
        "n": LogicalType(name="null"),
    }


@pytest.mark.parametrize(
    ("converted", "expected"),
    [
        (0, LogicalType(name="string")),
        (6, LogicalType(name="date")),
        (10, LogicalType(name="timestamp", unit="us", utc=True)),
        (11, LogicalType(name="integer", bit_width=8, signed=False)),
        (14, LogicalType(name="integer", bit_width=64, signed=False)),
        (18, LogicalType(name="integer", bit_width=64, signed=True)),
        (21, LogicalType(name="interval")),
        (99, None),
    ],
)
def test_a_converted_type_stands_in_for_the_logical_type(
    converted: int, expected: LogicalType | None
) -> None:
    parsed = parse_schema(
        schema(
            element(b"r", num_children=1),
            element(b"a", type=INT64, repetition_type=0, converted_type=converted),
        ),
        None,
        file="a",
    )
    assert parsed.leaves[0].logical == expected


def test_a_converted_decimal_has_scale_zero_when_it_gives_none() -> None:
    parsed = parse_schema(
        schema(element(b"r", num_children=1), element(b"a", type=INT32, converted_type=5, precision=9)),
        None,
        file="a",
    )
    assert parsed.leaves[0].logical == LogicalType(name="decimal", precision=9, scale=0)


def test_only_the_order_of_the_type_is_a_defined_order() -> None:
    elements = schema(element(b"r", num_children=2), element(b"a", type=INT32), element(b"b", type=INT32))
    assert [leaf.order_defined for leaf in parse_schema(elements, None, file="a").leaves] == [False, False]
    assert [leaf.order_defined for leaf in parse_schema(elements, orders(1, 2), file="a").leaves] == [
        True,
        False,
    ]


def test_a_schema_without_columns_is_read() -> None:
    assert parse_schema(schema(element(b"r", num_children=0)), None, file="a").leaves == ()
    assert parse_schema(schema(element(b"r")), None, file="a").field_names == ()


def test_a_group_without_children_is_a_field_without_leaves() -> None:
    parsed = parse_schema(
        schema(element(b"r", num_children=2), element(b"g", num_children=0), element(b"a", type=INT32)),
        None,
        file="a",
    )
    assert parsed.field_names == ("g", "a")
    assert parsed.field_leaves == ((0, 0), (0, 1))


ROOT = element(b"r", num_children=1)
INT = element(b"a", type=INT32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (schema(), "there is no schema"),
        (encode_list_header(1, I32) + b"\0", "there is no schema"),
        (schema(element(b"r", num_children=2), INT), "ends early.*expected 1 more elements"),
        (schema(ROOT, INT, INT), "loose elements"),
        (schema(element(b"r", num_children=-1)), "negative number of children"),
        (schema(element(b"r", num_children=2**31 - 1), INT), "ends early"),
        (schema(ROOT, element(b"g", num_children=-7)), "negative number of children"),
        (schema(ROOT, element(None, type=INT32)), "no name"),
        (schema(ROOT, element(b"\xff\xfe", type=INT32)), "not text"),
        (schema(ROOT, element(b"a", type=8)), "column 'a' has an unknown physical type"),
        (schema(ROOT, element(b"a", type=-1)), "unknown physical type"),
        (schema(ROOT, element(b"a", type=INT32, repetition_type=3)), "unknown repetition"),
        (schema(ROOT, element(b"a", type=FIXED_LEN_BYTE_ARRAY)), "no fixed length"),
        (schema(ROOT, element(b"a", type=FIXED_LEN_BYTE_ARRAY, type_length=-3)), "no fixed length"),
        (schema(ROOT, INT) + b"x", "bytes follow"),
        (schema(ROOT, INT)[:-1], "ends inside a value"),
    ],
)
def test_a_tree_that_does_not_add_up_is_refused_case_41(data: bytes, message: str) -> None:
    with pytest.raises(BadFileError, match=message) as caught:
        parse_schema(data, None, file="bad.parquet")
    assert "bad.parquet" in str(caught.value)
    assert caught.value.file == "bad.parquet"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (orders(), "do not match.*expected 1 structs, found 0"),
        (orders(1, 1), "do not match"),
        (encode_list_header(1, LIST) + b"\0", "do not match"),
        (orders(1) + b"\0", "bytes follow the column orders"),
    ],
)
def test_column_orders_that_do_not_fit_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadFileError, match=message):
        parse_schema(schema(ROOT, INT), data, file="a")


def chain(depth: int) -> bytes:
    groups = [element(b"g", num_children=1)] * (depth - 1)
    return schema(ROOT, *groups, INT)


def test_depth_is_bounded_so_that_paths_are_not_quadratic() -> None:
    assert len(parse_schema(chain(MAX_SCHEMA_DEPTH), None, file="a").leaves[0].path) == MAX_SCHEMA_DEPTH
    with pytest.raises(BadFileError, match="too deep"):
        parse_schema(chain(MAX_SCHEMA_DEPTH + 1), None, file="a")
