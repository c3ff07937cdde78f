"""One Arrow column as numbers: every layout that Arrow may hand out, and lists by their offsets."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pqindex.columns import (
    UNKNOWN_WIDTH,
    NotExactError,
    RaggedRowError,
    column_form,
    column_texts,
    column_values,
)


def values(array, **options) -> list:
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    return column_values(chunked, **options).values.tolist()


def absent(array) -> list | None:
    found = column_values(pa.chunked_array([array])).absent
    return None if found is None else found.tolist()


def test_slices_of_every_type_start_where_they_start():
    for array, expected in [
        (pa.array([9, 1, 2, 9], pa.int16()), [[1], [2]]),
        (pa.array([True, False, True, True]), [[False], [True]]),
        (pa.array([9, 1.5, None, 9], pa.float16()), [[1.5], [0.0]]),
        (pa.array([9, None, 2, 9], pa.uint64()), [[0], [2]]),
        (pa.array([9, 1, None, 9], pa.date32()), [[1], [0]]),
        (pa.array([9, 1, None, 9], pa.timestamp("ns", "Asia/Tokyo")), [[1], [0]]),
        (pa.array([9, 1, None, 9], pa.time32("ms")), [[1], [0]]),
        (pa.array([9, 1, None, 9], pa.duration("us")), [[1], [0]]),
        (pa.array([Decimal(9), Decimal("1.25"), None, Decimal(9)], pa.decimal128(5, 2)), [[1.25], [0.0]]),
        (pa.array([9, 1, None, 9], pa.int64()).dictionary_encode(), [[1], [0]]),
        (pa.array([[9, 9], [1, 2], None, [9, 9]], pa.list_(pa.int8(), 2)), [[1, 2], [0, 0]]),
        (pa.array([[9, 9], [1, 2], None, [9, 9]], pa.list_(pa.int8())), [[1, 2], [0, 0]]),
        (pa.array([[9], [1], [None], [9]], pa.large_list(pa.float64())), [[1.0], [0.0]]),
    ]:
        part = array[1:3]
        assert values(part) == expected, array.type
        assert (absent(part) is not None) == ("None" in str(array[1:3].to_pylist())), array.type


def test_integers_with_nulls_never_pass_through_floats():
    array = pa.array([2**53 + 1, None, 2**63 - 1])
    assert values(array) == [[2**53 + 1], [0], [2**63 - 1]]
    assert absent(array) == [[False], [True], [False]]


def test_chunks_are_joined_also_with_dictionaries_of_their_own():
    parts = [pa.array([1.0, 2.0]).dictionary_encode(), pa.array([3.0]).dictionary_encode()]
    assert values(pa.chunked_array(parts)) == [[1.0], [2.0], [3.0]]
    lists = pa.chunked_array([pa.array([[1, 2]]), pa.array([[0, 0], [3, 4]])[1:]])
    assert values(lists) == [[1, 2], [3, 4]]
    assert values(pa.chunked_array([], pa.int64())) == []


def test_values_without_nulls_are_arrow_s_own_memory():
    array = pa.array(np.arange(4.0))
    part = column_values(pa.chunked_array([array]))
    assert np.shares_memory(part.values, array.to_numpy())
    assert not part.values.flags.writeable


def test_case_96_null_rows_of_lists_are_never_shifted():
    rows = [None, [1.0, 2.0], None, [None, 4.0], None]
    for data_type in (pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)):
        array = pa.array(rows, data_type)
        assert values(array) == [[0, 0], [1, 2], [0, 0], [0, 4], [0, 0]]
        expected = [[True, True], [False, False], [True, True], [True, False], [True, True]]
        assert absent(array) == expected


def test_what_lies_under_a_null_row_does_not_matter():
    hidden = pa.FixedSizeListArray.from_arrays(
        pa.array([np.nan, np.inf, 3.0, 4.0]), 2, mask=pa.array([True, False])
    )
    assert values(hidden) == [[0, 0], [3, 4]]
    offsets = pa.array([0, 3, 5], pa.int32())
    hidden = pa.ListArray.from_arrays(offsets, pa.array([7, 7, 7, 3, 4]), mask=pa.array([True, False]))
    assert values(hidden) == [[0, 0], [3, 4]]


@pytest.mark.parametrize(
    ("rows", "error"),
    [([[1, 2], [3], [4, 5]], (1, 2, 1)), ([[1], []], (1, 1, 0)), ([None, [1], [2], [3, 4]], (3, 1, 2))],
)
def test_case_96_rows_of_other_lengths_are_found(rows, error):
    with pytest.raises(RaggedRowError) as caught:
        values(pa.array(rows, pa.list_(pa.int64())))
    assert (caught.value.row, caught.value.expected, caught.value.found) == error


def test_decimals_come_as_exact_integers_where_integers_are_asked_for():
    exact = pa.array([Decimal("9007199254740993.00")], pa.decimal128(20, 2))
    assert values(exact, integers=np.dtype(np.int64)) == [[9007199254740993]]
    for data_type in (pa.decimal128(5, 1), pa.decimal256(50, 1)):
        with pytest.raises(NotExactError):
            values(pa.array([Decimal("0.5")], data_type), integers=np.dtype(np.int64))
    with pytest.raises(NotExactError):
        values(pa.array([Decimal(256)], pa.decimal128(5, 0)), integers=np.dtype(np.uint8))


@pytest.mark.skipif(not hasattr(pa, "decimal32"), reason="this pyarrow has no narrow decimals")
def test_narrow_decimals():
    for data_type in (pa.decimal32(5, 2), pa.decimal64(12, 2)):
        assert values(pa.array([Decimal("1.50"), None], data_type)) == [[1.5], [0.0]]
        assert values(pa.array([Decimal("2.00")], data_type), integers=np.dtype(np.int32)) == [[2]]


@pytest.mark.parametrize(
    "data_type",
    [
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.list_(pa.int64())),
        pa.list_(pa.string()),
        pa.list_(pa.null()),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int64())]),
    ],
)
def test_types_that_no_tensor_can_be_made_of(data_type):
    assert column_form(data_type) is None


def test_what_a_type_says_of_its_width():
    assert column_form(pa.float32()).n_values == 1
    assert column_form(pa.list_(pa.float32(), 6)).n_values == 6
    assert column_form(pa.list_(pa.float32())).n_values == UNKNOWN_WIDTH
    assert column_form(pa.list_(pa.dictionary(pa.int8(), pa.int64()), 2)).dtype == np.int64


def test_extension_types_are_their_storage():
    data_type = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1, 2, 3, 4]], pa.list_(pa.float32(), 4))
    assert column_form(data_type).width == 4
    assert values(pa.ExtensionArray.from_storage(data_type, storage)) == [[1, 2, 3, 4]]


def test_run_ends_are_decoded():
    array = pc.run_end_encode(pa.array([5, 5, 7]))
    assert column_form(array.type).dtype == np.int64
    assert values(array) == [[5], [5], [7]]


def test_texts_keep_their_nulls():
    assert column_texts(pa.chunked_array([pa.array(["a", None, ""])])) == ["a", None, ""]
    assert column_texts(pa.chunked_array([pa.array(["a", "a"]).dictionary_encode()])) == ["a", "a"]
