"""Lists as the time axis: from a row with lists to a table of steps, and everything that does not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pqindex.errors import (
    ColumnTypeError,
    NotConstantError,
    NullValueError,
    RaggedListError,
    SourceError,
    UsageError,
)
from pqindex.torch.fields import parse_fields, resolve_fields
from pqindex.torch.steps import axes_of_fields, one_row, steps_of, steps_schema

ROWS = pa.table(
    {
        "label": ["a", "a", "a"],
        "v": pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
        "w": pa.array([[[1, 2], [3, 4]], [], [[5, 6]]], pa.large_list(pa.list_(pa.float32(), 2))),
    }
)


def test_the_lists_of_a_sequence_become_a_row_a_step():
    steps = steps_of(ROWS, 17)
    assert steps.table.to_pydict() == {"v": [1, 2, 3], "w": [[1, 2], [3, 4], [5, 6]]}
    assert steps.row_stops.tolist() == [2, 2, 3]
    assert steps.table.schema.equals(steps_schema(ROWS.schema))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[9, 9], [1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
        pa.array([[9, 9], [1], [2, 3, 4]], pa.list_(pa.int8())),
        pa.array([[9, 9], [1, 2, 3], [4]], pa.large_list(pa.int8())),
    ],
    ids=lambda array: str(array.type)[:20],
)
def test_lists_of_every_kind_in_slices_and_chunks(array):
    for column in (pa.chunked_array([array[1:]]), pa.chunked_array([array[1:2], array[2:]])):
        assert steps_of(pa.table({"v": column}), 17).table.column("v").to_pylist() == [1, 2, 3, 4]


def test_lists_of_other_lengths_in_a_row_are_an_error_that_names_both_columns():
    table = pa.table({"a": [[1, 2], [3]], "b": [[1, 2], [3, 4]]})
    with pytest.raises(
        RaggedListError, match=r"column 'b' and column 'a', sequence 17, row 1; expected 1 values, found 2"
    ) as error:
        steps_of(table, 17)
    assert (error.value.columns, error.value.row, error.value.seq_id) == (("a", "b"), 1, 17)
    assert (error.value.expected, error.value.found) == (1, 2)


def test_equal_totals_do_not_hide_other_lengths():
    with pytest.raises(RaggedListError, match="row 0"):
        steps_of(pa.table({"a": [[1, 2], [3]], "b": [[1], [2, 3]]}), 17)


@pytest.mark.parametrize("data_type", [pa.list_(pa.int64()), pa.list_(pa.int64(), 1)])
def test_a_null_list_is_an_error_since_nothing_says_its_length(data_type):
    table = pa.table({"a": pa.array([[1], None], data_type)})
    with pytest.raises(
        NullValueError, match=r"a list is null: column 'a', sequence 's', row 1.*how many steps"
    ) as error:
        steps_of(table, "s")
    assert (error.value.column, error.value.row) == ("a", 1)


def test_an_error_about_a_step_gets_the_row_of_the_step():
    steps = steps_of(ROWS, 17)
    rows = [steps.with_row(SourceError("x", hint="h", step=step)).facts["row"] for step in range(3)]
    assert rows == [0, 0, 2]
    assert steps.with_row(SourceError("x", hint="h", step=0)).hint == "h"
    other = SourceError("x", column="label")
    assert steps.with_row(other) is other


# -- fields ---------------------------------------------------------------------------------------------------


def axes(fields):
    return axes_of_fields(parse_fields(fields), ROWS.schema)


def test_a_field_has_a_value_for_each_step_or_one_for_the_sequence():
    assert axes({"x": ["v", "w"], "y": "label", "z": "v"}) == {"x": "step", "y": "sequence", "z": "step"}


@pytest.mark.parametrize("columns", [["v", "label"], ["label"], ["label", "v"]])
def test_columns_without_lists_are_fields_of_their_own(columns):
    with pytest.raises(
        ColumnTypeError, match=r"column 'label' of field 'x' is string and holds no lists.*by its name"
    ) as error:
        axes({"x": columns, "y": "v"})
    assert (error.value.field, error.value.column) == ("x", "label")


def test_without_a_list_there_is_no_time():
    with pytest.raises(UsageError, match="lists='time', and no field has a column of lists: 'y'"):
        axes({"y": "label"})


def test_types_are_those_of_the_values():
    table = pa.table({"words": [["a"]], "v": pa.array([[1]], pa.list_(pa.int32())), "bad": [[{"a": 1}]]})
    options = {"dtype": None, "nulls": "error", "non_finite": "error", "lossy": False, "lists": "time"}
    words, v = resolve_fields(parse_fields({"words": "words", "v": "v"}), table.schema, **options)
    assert (words.dtype, words.axis, str(v.dtype), v.axis) == (None, "step", "torch.int32", "step")
    with pytest.raises(ColumnTypeError, match="no tensor can be made of column 'bad'"):
        resolve_fields(parse_fields({"x": ["v", "bad"]}), table.schema, **options)


# -- one value a sequence -------------------------------------------------------------------------------------


def label_field(table):
    options = {"dtype": None, "nulls": "error", "non_finite": "keep", "lossy": False, "lists": "time"}
    (field, _) = resolve_fields(parse_fields({"y": "y", "v": "v"}), table.schema, **options)
    return field


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "a"]),
        pa.array(["a", "a"]).dictionary_encode(),
        pa.array([1.5, 1.5]),
        pa.array([None, None], pa.string()),
        pa.array([float("nan")] * 2),
    ],
    ids=str,
)
def test_one_value_in_all_rows_is_the_sequence_s(values):
    table = pa.table({"y": values, "v": [[1], [2]]})
    assert one_row(table, label_field(table), 17).num_rows == 1


@pytest.mark.parametrize(
    "values", [pa.array(["a", "b"]), pa.array([1.5, None]), pa.array([True, False])], ids=str
)
def test_several_values_in_one_sequence_are_an_error_that_names_the_column(values):
    table = pa.table({"y": values, "v": [[1], [2]]})
    with pytest.raises(
        NotConstantError, match="several values in one sequence: field 'y', column 'y', sequence 17; found"
    ) as error:
        one_row(table, label_field(table), 17)
    assert error.value.found == tuple(values.to_pylist())
    assert error.value.reason == "not-constant"
