"""Tables of several parts as one: types widen, what is missing is null, and rows keep their order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pqindex.errors import DocumentInvalidError
from pqindex.merging import order_of, union


def stats(n: int, **columns: pa.DataType) -> pa.Array:
    """Return a struct of `min` for each column, all 1."""
    structs = {
        name: pa.StructArray.from_arrays([pa.array([1] * n).cast(t)], names=["min"])
        for name, t in columns.items()
    }
    return pa.StructArray.from_arrays(list(structs.values()), names=list(structs))


def test_equal_schemas_stay() -> None:
    table = pa.table({"a": pa.array([1], pa.int8())})
    assert union([table, table]).equals(pa.table({"a": pa.array([1, 1], pa.int8())}))


def test_types_widen_and_missing_columns_are_null() -> None:
    one = pa.table({"a": pa.array([1], pa.int8()), "b": ["x"]})
    two = pa.table({"a": pa.array([300], pa.int32())})
    found = union([one, two])
    assert found.schema.field("a").type == pa.int32()
    assert found.to_pydict() == {"a": [1, 300], "b": ["x", None]}
    assert union([two, one]).to_pydict() == {"a": [300, 1], "b": [None, "x"]}


def test_a_column_of_nulls_takes_the_other_type() -> None:
    found = union([pa.table({"a": pa.nulls(2)}), pa.table({"a": [1.5]})])
    assert found.to_pydict() == {"a": [None, None, 1.5]}


def test_columns_that_no_type_holds_are_an_error() -> None:
    with pytest.raises(DocumentInvalidError, match=r"column 'a' has types .* string, int64"):
        union([pa.table({"a": ["x"]}), pa.table({"a": [1]})])


def test_statistics_that_no_type_holds_are_left_out() -> None:
    one = pa.table({"stats": stats(1, x=pa.int8(), y=pa.string(), z=pa.int8())})
    two = pa.table({"stats": stats(2, x=pa.int64(), y=pa.float32(), w=pa.int8())})
    found = union([one, two])
    assert [f.name for f in found.schema.field("stats").type] == ["x", "z", "w"]
    assert found.column("stats").to_pylist() == [
        {"x": {"min": 1}, "z": {"min": 1}, "w": None},
        {"x": {"min": 1}, "z": None, "w": {"min": 1}},
        {"x": {"min": 1}, "z": None, "w": {"min": 1}},
    ]


def test_statistics_whose_names_differ_in_case_are_left_out_T28() -> None:
    one = pa.table({"n": [1], "stats": stats(1, x=pa.int8())})
    two = pa.table({"n": [2], "stats": stats(1, X=pa.int8())})
    assert union([one, two]).column_names == ["n"]


def test_a_null_struct_stays_null() -> None:
    none = pa.nulls(1, pa.struct([("x", pa.struct([("min", pa.int8())]))]))
    found = union([pa.table({"stats": none}), pa.table({"stats": stats(1, x=pa.int64())})])
    assert found.column("stats").to_pylist() == [None, {"x": {"min": 1}}]


def test_the_order_is_that_of_files_and_within_a_file_of_its_part() -> None:
    assert order_of(pa.chunked_array([[0, 0], [1, 2]])) is None
    assert order_of(pa.chunked_array([pa.array([], pa.int32())])) is None
    order = order_of(pa.chunked_array([[0, 3, 3], [1, 1, 2]]))
    assert order is not None
    assert order.tolist() == [0, 3, 4, 5, 1, 2]
