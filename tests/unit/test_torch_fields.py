"""What a field is: arguments, dtypes and policies, and everything that is refused without the data."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

from pqindex.errors import ColumnTypeError, UsageError
from pqindex.torch.fields import parse_fields, resolve_fields

NAN = float("nan")
COLUMNS = {
    "a": pa.array([1.0, 2.0, 3.0]),
    "b": pa.array([10, 20, 30], pa.int32()),
    "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32())),
    "w": pa.array([[7, 8], [9, 0], [1, 2]], pa.list_(pa.float64(), 2)),
}


def resolve(table, fields, *, dtype=torch.float32, nulls="error", non_finite="error"):
    parsed = parse_fields(fields)
    return resolve_fields(parsed, table.schema, dtype=dtype, nulls=nulls, non_finite=non_finite, lossy=False)


def test_columns_of_different_dtypes_need_one_to_be_given():
    with pytest.raises(ColumnTypeError, match="no one dtype of their own: 'a' double, 'b' int32"):
        resolve(pa.table(COLUMNS), {"x": ["a", "b"]}, dtype=None)


def test_dtypes_by_field():
    table = pa.table(COLUMNS)
    fields = resolve(table, {"x": "a", "y": "b", "z": "b"}, dtype={"y": torch.int64, "z": None})
    assert [field.dtype for field in fields] == [torch.float32, torch.int64, torch.int32]


@pytest.mark.parametrize(
    ("data_type", "said"),
    [
        (pa.struct([("a", pa.int64())]), "struct"),
        (pa.list_(pa.list_(pa.int8())), "list"),
        (pa.list_(pa.string()), "str"),
    ],
)
def test_types_that_cannot_be_tensors_are_refused_without_the_data(data_type, said):
    table = pa.table({"c": pa.array([], data_type)})
    with pytest.raises(
        ColumnTypeError, match=f"no tensor can be made of column 'c' of field 'x': its type is .*{said}"
    ):
        resolve(table, {"x": ["c"]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "names no field"),
        (None, "names no field"),
        (["a"], "names no field"),
        ({"x": []}, "field 'x' names no columns"),
        ({"x": ["a", 3]}, "field 'x' names no columns"),
        ({"x": None}, "field 'x' names no columns"),
        ({"x": {"a"}}, "field 'x' names no columns"),
        ({"": "a"}, "a field has the name ''"),
        ({3: "a"}, "a field has the name 3"),
        ({"x": ["a", "b", "a"]}, "field 'x' names column 'a' twice"),
    ],
)
def test_L13_fields_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        parse_fields(fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "dtype='float32' of field 'x' is not known"),
        ({"dtype": np.float32}, "of field 'x' is not known"),
        ({"dtype": torch.complex64}, "dtype=torch.complex64 of field 'x' is not known"),
        ({"dtype": {"y": torch.int8}}, "dtype names 'y', which is not a field; the fields are 'x'"),
        ({"nulls": "fill"}, "nulls='fill' is not known"),
        ({"nulls": 0.0}, "nulls=0.0 is not known: expected 'error', 'keep' or"),
        ({"nulls": {"xx": "keep"}}, "nulls names 'xx', .* Hint: did you mean 'x'"),
        ({"non_finite": ("fill",)}, "non_finite="),
        ({"nulls": "keep", "dtype": torch.int64}, "has dtype torch.int64, which has no NaN to keep nulls as"),
        (
            {"nulls": ("fill", 0.5), "dtype": torch.int64},
            "nulls of field 'x' fills with 0.5, which is no torch.int64",
        ),
        ({"nulls": ("fill", 300), "dtype": torch.uint8}, "fills with 300"),
        ({"nulls": ("fill", "a")}, "fills with 'a', which is no torch.float32"),
        ({"nulls": ("fill", 1e39)}, r"fills with 1e\+39"),
        ({"nulls": ("fill", 2), "dtype": torch.bool}, "fills with 2"),
        ({"non_finite": ("fill", NAN), "dtype": torch.int64}, "non_finite of field 'x' fills with nan"),
    ],
)
def test_dtypes_and_policies_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        resolve(pa.table(COLUMNS), {"x": "a"}, **options)


def test_a_number_cannot_be_filled_into_text():
    with pytest.raises(UsageError, match=r"fills with 0.0, which is no text"):
        resolve(pa.table({"c": ["a"]}), {"x": "c"}, nulls=("fill", 0.0))


def test_policies_by_field():
    table = pa.table({"c": ["a"], "n": [1.0]})
    fields = resolve(table, {"x": "c", "y": ["n"]}, nulls={"x": ("fill", "")}, non_finite={"y": ("fill", 0)})
    assert [(field.nulls.action, field.non_finite.action) for field in fields] == [
        ("fill", "error"),
        ("error", "fill"),
    ]


def test_L29_bytes_of_a_row():
    table = pa.table(COLUMNS)
    (x, y, z) = resolve(
        table,
        {"x": ["a", "w"], "y": "v", "z": "b"},
        dtype={"z": torch.int64, "x": torch.bfloat16},
        nulls={"z": ("fill", 0)},
    )
    assert (x.width, y.width, z.width) == (3, None, 1)
    assert (x.row_nbytes(3), y.row_nbytes(2), z.row_nbytes(1)) == (6, 8, 9)


def test_fields_pickle_small():
    table = pa.table({f"f{i}": [1.0] for i in range(30)})
    fields = resolve(table, {"x": table.column_names})
    assert pickle.loads(pickle.dumps(fields)) == fields
    assert len(pickle.dumps(fields)) < 4_000
