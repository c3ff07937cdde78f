"""One field of one sequence: what every Arrow type becomes, and nulls, non-finite values and casts."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch

from pqindex.errors import ColumnTypeError, LossyCastError, NonFiniteError, NullValueError, RaggedListError
from pqindex.torch.fields import parse_fields, resolve_fields
from pqindex.torch.tensors import read_field

NAN = float("nan")
INF = float("inf")


def read(table, columns, *, dtype=torch.float32, nulls="error", non_finite="error", lossy=False):
    """Return the values and the mask of one field named x."""
    table = table if isinstance(table, pa.Table) else pa.table(table)
    policies = {"dtype": dtype, "nulls": nulls, "non_finite": non_finite, "lossy": lossy}
    (field,) = resolve_fields(parse_fields({"x": columns}), table.schema, **policies)
    return read_field(field, table, 17)


def at(row, column="c") -> str:
    return f"field 'x', column '{column}', sequence 17, row {row}"


# -- shapes ---------------------------------------------------------------------------------------------------

COLUMNS = {
    "a": pa.array([1.0, 2.0, 3.0]),
    "b": pa.array([10, 20, 30], pa.int32()),
    "v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32())),
    "w": pa.array([[7, 8], [9, 0], [1, 2]], pa.list_(pa.float64(), 2)),
}


def test_L2_columns_stand_side_by_side_in_the_order_asked_for():
    tensor, mask = read(COLUMNS, ["b", "a"])
    assert mask is None
    assert tensor.dtype == torch.float32
    assert tensor.tolist() == [[10, 1], [20, 2], [30, 3]]
    assert tensor.is_contiguous()


def test_a_name_gives_one_value_a_row_and_a_list_of_one_name_a_column():
    assert read(COLUMNS, "a")[0].shape == (3,)
    assert read(COLUMNS, ["a"])[0].shape == (3, 1)
    assert read(COLUMNS, ("a",))[0].shape == (3, 1)


def test_T29_list_columns_give_their_values_along_the_last_axis():
    assert read(COLUMNS, "v")[0].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert read(COLUMNS, ["v"])[0].shape == (3, 2)
    assert read(COLUMNS, ["a", "v", "w"])[0].tolist() == [[1, 1, 2, 7, 8], [2, 3, 4, 9, 0], [3, 5, 6, 1, 2]]


def test_a_sequence_without_rows_gives_an_empty_tensor():
    empty = pa.table(COLUMNS).slice(0, 0)
    assert read(empty, ["a", "b"])[0].shape == (0, 2)
    assert read(empty, "w")[0].shape == (0, 2)


def test_case_96_a_slice_that_does_not_start_at_0():
    table = pa.table(COLUMNS).slice(1, 1)
    assert read(table, ["a", "v", "w"])[0].tolist() == [[2, 3, 4, 9, 0]]


def test_rows_in_several_chunks():
    table = pa.concat_tables([pa.table(COLUMNS).slice(2), pa.table(COLUMNS).slice(0, 1)])
    assert read(table, ["a", "v"])[0].tolist() == [[3, 5, 6], [1, 1, 2]]


# -- types ----------------------------------------------------------------------------------------------------

BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)

OWN = [
    (pa.array([True, False]), torch.bool, [True, False]),
    *[
        (pa.array([0, 127], getattr(pa, name)()), getattr(torch, name), [0, 127])
        for name in ("int8", "int16", "int32", "int64", "uint8")
    ],
    (pa.array([65535], pa.uint16()), torch.int32, [65535]),
    (pa.array([2**32 - 1], pa.uint32()), torch.int64, [2**32 - 1]),
    (pa.array([2**63 - 1], pa.uint64()), torch.int64, [2**63 - 1]),
    (pa.array([1.5, -2], pa.float16()), torch.float16, [1.5, -2]),
    (pa.array([0.5, 2], pa.float32()), torch.float32, [0.5, 2]),
    (pa.array([0.1, 1e300], pa.float64()), torch.float64, [0.1, 1e300]),
    (pa.array([-1, 2932896], pa.date32()), torch.int64, [-1, 2932896]),
    (pa.array([86_400_000], pa.date64()), torch.int64, [86_400_000]),
    (pa.array([BEFORE_1970], pa.timestamp("s", "UTC")), torch.int64, [-1]),
    (pa.array([-(2**63) + 1, 2**63 - 1], pa.timestamp("ns")), torch.int64, [-(2**63) + 1, 2**63 - 1]),
    (pa.array([-62135596800_000000], pa.timestamp("us", "Europe/Oslo")), torch.int64, [-62135596800_000000]),
    (pa.array([dt.time(0, 0, 1)], pa.time32("ms")), torch.int64, [1000]),
    (pa.array([dt.time(0, 0, 1)], pa.time64("ns")), torch.int64, [10**9]),
    (pa.array([dt.timedelta(seconds=-1)], pa.duration("us")), torch.int64, [-1_000_000]),
    (pa.array([5, 7, 5], pa.int16()).dictionary_encode(), torch.int16, [5, 7, 5]),
    (pa.array([[1, 2]], pa.list_(pa.uint8())), torch.uint8, [[1, 2]]),
    (pa.array([[1, 2]], pa.list_(pa.float16(), 2)), torch.float16, [[1, 2]]),
    (pa.array(["a", ""]), None, ["a", ""]),
    (pa.array(["a"], pa.large_string()), None, ["a"]),
    (pa.array(["a"], pa.string_view()), None, ["a"]),
    (pa.array(["a", "b", "a"]).dictionary_encode(), None, ["a", "b", "a"]),
    (pa.array([b"\x00"], pa.binary()), None, [b"\x00"]),
    (pa.array([b"ab"], pa.binary(2)), None, [b"ab"]),
]


@pytest.mark.parametrize(("array", "dtype", "expected"), OWN, ids=[str(a.type) for a, _, _ in OWN])
def test_case_94_T30_what_each_type_becomes_in_its_own_dtype(array, dtype, expected):
    result, _ = read({"c": array}, "c", dtype=None)
    if dtype is None:
        assert result == expected
    else:
        assert result.dtype == dtype
        assert result.tolist() == expected


@pytest.mark.parametrize(("array", "dtype", "expected"), OWN, ids=[str(a.type) for a, _, _ in OWN])
def test_case_94_nulls_in_each_type_are_refused_or_masked_and_never_made_up(array, dtype, expected):
    column = pa.concat_arrays([array, pa.nulls(1, array.type)])
    row = len(array)
    with pytest.raises(NullValueError, match=at(row)):
        read({"c": column}, "c", dtype=None)
    fill = (b"?" if isinstance(expected[0], bytes) else "?") if dtype is None else 1
    result, mask = read({"c": column}, "c", dtype=None, nulls=("fill", fill))
    assert mask.dtype == torch.bool
    if dtype is None:
        assert result == [*expected, fill]
        assert mask.tolist() == [True] * row + [False]
    else:
        assert result[:row].tolist() == expected
        assert (result[row] == 1).all()
        assert mask[:row].all()
        assert not mask[row].any()
        assert mask.shape == result.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_number_can_be_cast_to_floats(dtype):
    for array, own, _ in OWN:
        if own is not None:
            assert read({"c": array.slice(0, 0)}, "c", dtype=dtype)[0].dtype == dtype
    assert read(COLUMNS, ["a", "b"], dtype=dtype)[0].tolist() == [[1, 10], [2, 20], [3, 30]]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ],
)
def test_whole_numbers_can_be_cast_to_integers(dtype):
    tensor, _ = read(COLUMNS, ["a", "b", "v"], dtype=dtype)
    assert tensor.dtype == dtype
    assert tensor.tolist() == [[1, 10, 1, 2], [2, 20, 3, 4], [3, 30, 5, 6]]


def test_case_12_unsigned_values_above_the_signed_range_are_refused_unless_the_dtype_holds_them():
    column = pa.array([1, 2**63 + 5], pa.uint64())
    with pytest.raises(
        LossyCastError, match=f"torch.int64 would change a value: {at(1)}; found 9223372036854775813"
    ):
        read({"c": column}, "c", dtype=None)
    tensor, _ = read({"c": column}, "c", dtype=torch.uint64)
    assert tensor.dtype == torch.uint64
    assert tensor.numpy().tolist() == [1, 2**63 + 5]


def test_decimals_need_a_dtype():
    column = pa.array([Decimal("1.10"), Decimal("-2.00")], pa.decimal128(10, 2))
    with pytest.raises(
        ColumnTypeError, match=r"column 'c' of field 'x' is decimal128\(10, 2\).*no dtype of its own"
    ):
        read({"c": column}, "c", dtype=None)
    assert read({"c": column}, "c", dtype=torch.float64)[0].tolist() == [1.1, -2.0]
    with pytest.raises(LossyCastError, match=f"{at(0)}; found 1.10"):
        read({"c": column}, "c", dtype=torch.int64)
    assert read({"c": column}, "c", dtype=torch.int64, lossy=True)[0].tolist() == [1, -2]


def test_decimals_that_are_integers_stay_exact():
    column = pa.array([Decimal(2**24), Decimal(2**24 + 1)], pa.decimal128(38, 0))
    with pytest.raises(LossyCastError, match=f"{at(1)}; found 16777217"):
        read({"c": column}, "c")
    assert read({"c": column}, "c", dtype=torch.int64)[0].tolist() == [2**24, 2**24 + 1]
    assert read({"c": column}, "c", lossy=True)[0].tolist() == [2**24, 2**24]
    huge = pa.array([Decimal(1), Decimal(2**70)], pa.decimal128(38, 0))
    with pytest.raises(LossyCastError, match=at(1)):
        read({"c": huge}, "c", dtype=torch.float64)


def test_decimals_to_bool():
    assert read({"c": pa.array([Decimal(1), Decimal(0)])}, "c", dtype=torch.bool)[0].tolist() == [True, False]
    with pytest.raises(LossyCastError):
        read({"c": pa.array([Decimal(2)])}, "c", dtype=torch.bool)


@pytest.mark.parametrize("array", [pa.array(["a"]), pa.array(["a"]).dictionary_encode(), pa.array([b"a"])])
def test_T30_text_in_a_field_of_numbers_is_refused_without_the_data(array):
    table = pa.table({"c": array, "n": [1]})
    for columns, dtype in [(["c"], None), (["n", "c"], torch.float32), ("c", {"x": torch.int64})]:
        with pytest.raises(ColumnTypeError, match=r"column 'c' of field 'x' is .*, which is no number"):
            read(table, columns, dtype=dtype)
    assert read(table, "c", dtype=torch.float32)[0] == array.to_pylist()  # a dtype for all is for numbers


def test_case_1_a_column_of_type_null():
    table = {"c": pa.nulls(2)}
    with pytest.raises(ColumnTypeError, match="is null in every row"):
        read(table, "c")
    with pytest.raises(ColumnTypeError, match="no dtype of its own"):
        read(table, "c", dtype=None, nulls="keep")
    tensor, mask = read(table, "c", nulls=("fill", 3))
    assert (tensor.tolist(), mask.tolist()) == ([3, 3], [False, False])
    assert torch.isnan(read(table, "c", nulls="keep")[0]).all()


# -- nulls ----------------------------------------------------------------------------------------------------

NULLS = {"a": pa.array([1.0, None, 3.0]), "b": pa.array([None, 20, 30], pa.int64())}


def test_L11_nulls_are_an_error_that_names_field_column_sequence_and_row():
    with pytest.raises(NullValueError, match=f"a value is null: {at(1, 'a')}.*Hint: nulls=") as error:
        read(NULLS, ["a"])
    facts = error.value
    assert (facts.field, facts.column, facts.seq_id, facts.row) == ("x", "a", 17, 1)


def test_nulls_kept_are_nan():
    tensor, mask = read(NULLS, ["a", "b"], nulls="keep")
    assert mask is None
    assert torch.isnan(tensor).tolist() == [[False, True], [True, False], [False, False]]
    assert tensor.nan_to_num(-1).tolist() == [[1, -1], [-1, 20], [3, 30]]


def test_nulls_filled_come_with_a_mask():
    tensor, mask = read(NULLS, ["a", "b"], nulls=("fill", -5))
    assert tensor.tolist() == [[1, -5], [-5, 20], [3, 30]]
    assert mask.tolist() == [[True, False], [False, True], [True, True]]


def test_a_mask_is_there_also_where_nothing_was_filled():
    tensor, mask = read({"a": [1.0, 2.0]}, "a", nulls=("fill", 0))
    assert tensor.tolist() == [1, 2]
    assert mask.tolist() == [True, True]


def test_kept_nulls_do_not_hide_a_nan_of_the_file():
    with pytest.raises(NonFiniteError, match=f"{at(2)}; found nan"):
        read({"c": pa.array([None, 1.0, NAN])}, "c", nulls="keep")


def test_nulls_may_be_filled_with_nan():
    tensor, mask = read(NULLS, "a", nulls=("fill", NAN))
    assert torch.isnan(tensor).tolist() == [False, True, False]
    assert mask.tolist() == [True, False, True]


def test_nulls_in_lists():
    column = pa.array([[1, None], None, [5, 6]], pa.list_(pa.float32(), 2))
    with pytest.raises(NullValueError, match=at(0)):
        read({"c": column}, "c")
    with pytest.raises(NullValueError, match=at(0)):
        read({"c": column[1:]}, "c")
    tensor, mask = read({"a": [1, 2, 3], "c": column}, ["a", "c"], nulls=("fill", 0))
    assert tensor.tolist() == [[1, 1, 0], [2, 0, 0], [3, 5, 6]]
    assert mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]


def test_null_lists_only_say_nothing_of_their_length():
    with pytest.raises(NullValueError, match=at(0)):
        read({"c": pa.array([None, None], pa.list_(pa.float32()))}, "c", nulls=("fill", 0))
    empty = {"c": pa.array([[], None], pa.list_(pa.float32()))}
    with pytest.raises(NullValueError, match=at(1)):
        read(empty, "c")
    assert read(empty, "c", nulls=("fill", 0))[0].shape == (2, 0)
    fixed = pa.array([None, None], pa.list_(pa.float32(), 3))
    assert read({"c": fixed}, "c", nulls=("fill", 0))[0].tolist() == [[0] * 3] * 2


def test_nulls_in_text():
    table = {"c": pa.array(["a", None])}
    with pytest.raises(NullValueError, match=at(1)):
        read(table, "c")
    assert read(table, "c", nulls="keep") == (["a", None], None)


# -- values that are not finite -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_L11_values_that_are_not_finite_are_an_error(value):
    with pytest.raises(
        NonFiniteError, match=f"not a finite torch.float32: {at(1, 'b')}; found {value}"
    ) as error:
        read({"a": [1.0, 2.0], "b": [1.0, value]}, ["a", "b"])
    assert (error.value.field, error.value.column, error.value.seq_id, error.value.row) == ("x", "b", 17, 1)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("n_rows", [1, 7, 1000, 8192, 8193, 20_000])
def test_L11_one_value_is_found_among_the_largest_wherever_it_lies(value, dtype, n_rows):
    largest = torch.finfo(dtype).max
    for row in {0, n_rows // 2, n_rows - 1}:
        values = np.full(n_rows, largest)
        assert torch.isfinite(read({"c": pa.array(values)}, "c", dtype=dtype)[0]).all()
        values[row] = value
        with pytest.raises(NonFiniteError, match=at(row)):
            read({"c": pa.array(values)}, "c", dtype=dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1e39, torch.float32), (1e39, torch.bfloat16), (70_000.0, torch.float16), (-1e39, torch.float32)],
)
def test_L11_finite_values_that_the_dtype_cannot_hold_are_an_error(value, dtype):
    with pytest.raises(NonFiniteError, match=re.escape(f"not a finite {dtype}: {at(0)}; found {value}")):
        read({"c": pa.array([value])}, "c", dtype=dtype)
    assert read({"c": pa.array([value])}, "c", dtype=torch.float64)[0].tolist() == [value]


def test_values_that_are_not_finite_in_a_list_column():
    table = {"a": [1.0, 1.0], "c": [[1.0, 2.0], [3.0, INF]], "d": [1.0, 1.0]}
    with pytest.raises(NonFiniteError, match=at(1)):
        read(table, ["a", "c", "d"])


def test_values_that_are_not_finite_may_be_kept():
    tensor, mask = read({"c": [NAN, INF, 1.0]}, "c", non_finite="keep")
    assert mask is None
    assert str(tensor.tolist()) == "[nan, inf, 1.0]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_that_are_not_finite_may_be_filled_with_a_mask(dtype):
    tensor, mask = read({"c": [NAN, -INF, 1.0]}, "c", dtype=dtype, non_finite=("fill", 0.5))
    assert tensor.dtype == dtype
    assert tensor.tolist() == [0.5, 0.5, 1]
    assert mask.tolist() == [False, False, True]


def test_one_mask_for_nulls_and_values_that_are_not_finite():
    tensor, mask = read({"c": pa.array([None, NAN, 1.0])}, "c", nulls=("fill", 7), non_finite=("fill", 8))
    assert tensor.tolist() == [7, 8, 1]
    assert mask.tolist() == [False, False, True]


def test_values_that_are_not_finite_have_no_place_among_integers():
    for policy in ("error", "keep"):
        with pytest.raises(NonFiniteError, match=f"not a finite torch.int64: {at(1)}; found nan"):
            read({"c": [1.0, NAN]}, "c", dtype=torch.int64, non_finite=policy)
    tensor, mask = read({"c": [1.0, INF]}, "c", dtype=torch.int64, non_finite=("fill", -1))
    assert (tensor.tolist(), mask.tolist()) == ([1, -1], [True, False])


# -- casts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "dtype", "row"),
    [
        (pa.array([1, 2**24 + 1]), torch.float32, 1),
        (pa.array([257], pa.int16()), torch.bfloat16, 0),
        (pa.array([2049]), torch.float16, 0),
        (pa.array([2**53 + 1]), torch.float64, 0),
        (pa.array([0, 300]), torch.uint8, 1),
        (pa.array([-1]), torch.uint64, 0),
        (pa.array([0.5]), torch.int32, 0),
        (pa.array([1e10]), torch.int32, 0),
        (pa.array([0, 1, 2]), torch.bool, 2),
        (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")), torch.float32, 0),
        (pa.array([[1, 2], [3, 2**24 + 1]], pa.list_(pa.int64())), torch.float32, 1),
    ],
)
def test_casts_that_change_a_value_are_refused_unless_asked_for(array, dtype, row):
    with pytest.raises(
        LossyCastError, match=f"a cast to {dtype} would change a value: {at(row)}; found .*Hint"
    ) as error:
        read({"c": array}, "c", dtype=dtype)
    assert (error.value.field, error.value.column, error.value.seq_id, error.value.row) == ("x", "c", 17, row)
    assert read({"c": array}, "c", dtype=dtype, lossy=True)[0].dtype == dtype


def test_timestamps_far_from_now_are_named_by_their_number():
    with pytest.raises(LossyCastError, match="found 9223372036854775807"):
        read({"c": pa.array([2**63 - 1], pa.timestamp("s"))}, "c")


def test_floats_may_round_to_narrower_floats():
    assert read({"c": [0.1]}, "c")[0].tolist() == [np.float32(0.1)]


def test_null_places_never_fail_a_cast():
    assert read({"c": pa.array([None, 1])}, "c", nulls=("fill", 0))[0].tolist() == [0, 1]


# -- memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["a", ["a"], ["v"], "w"])
def test_L18_case_93_a_tensor_changed_in_place_changes_no_later_read(columns, recwarn):
    table = pa.table(
        {
            name: column.cast(pa.list_(pa.float32())) if name in "vw" else column
            for name, column in COLUMNS.items()
        }
    )
    before = read(table, columns, dtype=None if columns == ["v"] else torch.float64)[0]
    kept = before.clone()
    before += 100
    after = read(table, columns, dtype=None if columns == ["v"] else torch.float64)[0]
    assert torch.equal(after, kept)
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [pa.float32(), pa.int64(), pa.uint8()])
def test_L18_columns_of_one_type_are_laid_side_by_side_in_memory_of_their_own(dtype):
    table = pa.table(
        {name: pa.array(range(start, start + 4), dtype) for name, start in (("a", 0), ("b", 4), ("c", 8))}
    )
    part = table.slice(1, 2)  # as the reader hands out a part of a row group that it keeps
    tensor, _ = read(part, ["c", "a"], dtype=None)
    assert tensor.tolist() == [[9, 1], [10, 2]]
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    tensor += 1
    assert table.column("a").to_pylist() == [0, 1, 2, 3]
    assert read(part, ["c", "a"], dtype=None)[0].tolist() == [[9, 1], [10, 2]]


def test_L18_one_column_is_copied_too():
    table = pa.table({"a": pa.array([1, 2], pa.float32())})
    for columns in ("a", ["a"]):
        read(table, columns)[0].add_(1)
    assert table.column("a").to_pylist() == [1, 2]


def test_columns_of_one_type_with_nulls():
    table = {"a": pa.array([1, None], pa.float32()), "b": pa.array([3, 4], pa.float32())}
    tensor, mask = read(table, ["b", "a"], nulls=("fill", 9))
    assert (tensor.tolist(), mask.tolist()) == ([[3, 1], [4, 9]], [[True, True], [True, False]])


def test_L18_the_tensor_owns_memory_that_was_allocated_once():
    tensor, _ = read(COLUMNS, ["a", "b"])
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    array = tensor.numpy()
    array[0, 0] = 5
    assert tensor[0, 0] == 5


# -- wrong use ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "row", "lengths"),
    [([[1, 2], [3]], 1, (2, 1)), ([[1], [], [2]], 1, (1, 0)), ([[], [1]], 1, (0, 1))],
)
def test_case_96_lists_of_other_lengths_are_refused(rows, row, lengths):
    with pytest.raises(
        RaggedListError, match=f"{at(row)}; expected {lengths[0]} values, found {lengths[1]}"
    ) as error:
        read({"c": pa.array(rows, pa.list_(pa.float32()))}, "c")
    assert (error.value.column, error.value.row) == ("c", row)


# -- size -----------------------------------------------------------------------------------------------------
