"""How Arrow types are named, made plain, and brought together."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pqindex.arrowtypes import is_key_type, is_order_type, plain_array, plain_type, type_name, unify_types


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        (pa.int32(), "int32"),
        (pa.float16(), "float16"),
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.binary(16), "fixed_size_binary[16]"),
        (pa.timestamp("us"), "timestamp[us]"),
        (pa.timestamp("us", "UTC"), "timestamp[us,UTC]"),
        (pa.time32("ms"), "time32[ms]"),
        (pa.duration("ns"), "duration[ns]"),
        (pa.decimal128(10, 2), "decimal128(10,2)"),
        (pa.list_(pa.float32()), "list<float32>"),
        (pa.large_list(pa.float32()), "list<float32>"),
        (pa.list_(pa.float32(), 6), "list[6]<float32>"),
        (pa.map_(pa.string(), pa.int64()), "map<string,int64>"),
        (pa.struct([("x", pa.int32()), ("y", pa.string())]), "struct<x:int32,y:string>"),
    ],
)
def test_names_are_those_of_the_specification(data_type: pa.DataType, name: str) -> None:
    assert type_name(data_type) == name


@pytest.mark.parametrize(
    ("types", "result"),
    [
        ([pa.int32(), pa.int64()], pa.int64()),
        ([pa.uint8(), pa.uint32()], pa.uint32()),
        ([pa.uint32(), pa.int8()], pa.int64()),
        ([pa.uint64(), pa.int64()], None),
        ([pa.float32(), pa.float64()], pa.float64()),
        ([pa.int32(), pa.float32()], pa.float64()),
        ([pa.int64(), pa.float64()], None),
        ([pa.null(), pa.string()], pa.string()),
        ([pa.string(), pa.int64()], None),
        ([pa.dictionary(pa.int8(), pa.string()), pa.string()], pa.string()),
        ([pa.large_string(), pa.string()], pa.string()),
        ([pa.timestamp("ms"), pa.timestamp("ns")], pa.timestamp("ns")),
        ([pa.timestamp("ms", "UTC"), pa.timestamp("ms")], None),
        ([pa.list_(pa.float32()), pa.list_(pa.float64())], pa.list_(pa.float64())),
        ([pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3)], pa.list_(pa.float32())),
        ([pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())])], pa.struct([("a", pa.int16())])),
        ([pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])], None),
        ([pa.bool_(), pa.int8()], None),
    ],
)
def test_types_widen_without_loss_or_not_at_all_case_5(
    types: list[pa.DataType], result: pa.DataType | None
) -> None:
    assert unify_types(types) == result
    assert unify_types(types[::-1]) == result


def test_the_order_of_files_does_not_change_the_type_case_1() -> None:
    types = [pa.null(), pa.string(), pa.null()]
    assert unify_types(types) == unify_types(types[::-1]) == pa.string()


def test_keys_and_orders() -> None:
    keys = [pa.uint64(), pa.string(), pa.binary(), pa.binary(16), pa.date32(), pa.timestamp("ns", "UTC")]
    assert all(is_key_type(t) for t in keys)
    assert not any(is_key_type(t) for t in [pa.float32(), pa.bool_(), pa.list_(pa.int8()), pa.null()])
    assert all(is_order_type(t) for t in [pa.int8(), pa.float64(), pa.timestamp("s"), pa.decimal128(5, 1)])
    assert not any(is_order_type(t) for t in [pa.string(), pa.bool_(), pa.binary()])


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_plain_arrays_T30(kind: pa.DataType) -> None:
    assert plain_type(kind) == pa.string()
    assert plain_array(pa.array(["a", None, "a"]).cast(kind)).to_pylist() == ["a", None, "a"]
    assert plain_array(pa.chunked_array([], kind)).to_pylist() == []
