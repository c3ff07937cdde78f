"""One Arrow column as numbers: what a tensor can be made of, and its values without a Python object a row.

Nothing here knows of fields or policies. Values come back as views of Arrow's memory where that is possible,
so they are read-only: the caller copies them into memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pqindex.arrowtypes import is_list, plain_type

BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

Int64Array = npt.NDArray[np.int64]

Kind = Literal["bool", "integer", "float", "decimal", "text", "null"]

UNKNOWN_WIDTH = -1

_NUMBERS = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


class NotExactError(ValueError):
    """A decimal column holds a value that the integers asked for cannot hold."""


class RaggedRowError(ValueError):
    """A list column has a row of another length than its first.

    Attributes
    ----------
    row, expected, found : int
    """

    def __init__(self, row: int, expected: int, found: int) -> None:
        super().__init__(row, expected, found)
        self.row = row
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnForm:
    """What the values of a column are, once encodings and lists are taken off.

    Attributes
    ----------
    kind : str
        "bool", "integer" (times and dates too), "float", "decimal", "text" (binary too) or "null".
    dtype : numpy.dtype or None
        Of the values as `column_values` gives them; None for text.
    width : int or None
        None: one value a row. k: lists of k values. `UNKNOWN_WIDTH`: lists whose rows only the data tell.
    scale : int
        Digits after the point of a decimal, else 0.
    is_plain : bool
        Arrow's own memory holds the values of `dtype`, one a row: no list, no encoding, no unit.
    """

    kind: Kind
    dtype: np.dtype[Any] | None
    width: int | None = None
    scale: int = 0
    is_plain: bool = False

    @property
    def n_values(self) -> int:
        """Values a row, or `UNKNOWN_WIDTH`."""
        return 1 if self.width is None else self.width


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of one column.

    Attributes
    ----------
    values : ndarray, shape (n_rows, k)
        Possibly read-only, possibly Arrow's own memory; zeros where absent. One value a row has k = 1.
    absent : ndarray, shape (n_rows, k), bool, or None
        Where the file has null; None where it has none.
    """

    values: Array
    absent: BoolArray | None


def column_form(data_type: pa.DataType) -> ColumnForm | None:
    """Return what the values of a column of this type are, or None if no tensor can be made of them."""
    plain = plain_type(data_type)
    if is_list(plain) or pt.is_fixed_size_list(plain):
        inner = column_form(plain.value_type)
        if inner is None or inner.width is not None or inner.kind in {"text", "null"}:
            return None
        width = plain.list_size if pt.is_fixed_size_list(plain) else UNKNOWN_WIDTH
        return ColumnForm(kind=inner.kind, dtype=inner.dtype, width=width, scale=inner.scale)
    if pt.is_boolean(plain):
        return ColumnForm(kind="bool", dtype=np.dtype(np.bool_))
    if plain in _NUMBERS:
        return ColumnForm(
            kind="float" if pt.is_floating(plain) else "integer",
            dtype=np.dtype(_NUMBERS[plain]),
            is_plain=plain == data_type and not pt.is_float16(plain),
        )
    if pt.is_decimal(plain):
        return ColumnForm(kind="decimal", dtype=np.dtype(np.float64), scale=plain.scale)
    if pt.is_date(plain) or pt.is_time(plain) or pt.is_timestamp(plain) or pt.is_duration(plain):
        return ColumnForm(kind="integer", dtype=np.dtype(np.int64))
    if pt.is_string(plain) or pt.is_binary(plain) or pt.is_fixed_size_binary(plain):
        return ColumnForm(kind="text", dtype=None)
    if pt.is_null(plain):
        return ColumnForm(kind="null", dtype=np.dtype(np.bool_))
    return None


def column_values(column: pa.ChunkedArray, *, integers: np.dtype[Any] | None = None) -> ColumnValues:
    """Return the values of a column of numbers.

    Parameters
    ----------
    column : pa.ChunkedArray
        Of a type that `column_form` takes, other than text.
    integers : numpy.dtype, optional
        Give decimals as integers of this dtype, exactly; by default they come as float64.

    Raises
    ------
    RaggedRowError
        If the rows of a list column differ in length.
    NotExactError
        If a decimal does not fit the integers.
    """
    array = column.chunk(0) if column.num_chunks == 1 else _one_chunk(column)
    array = _decoded(array)
    if is_list(array.type) or pt.is_fixed_size_list(array.type):
        return _list_values(array, integers)
    values, absent = _flat_values(array, integers)
    return ColumnValues(values[:, None], None if absent is None else absent[:, None])


def list_items(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Int64Array]:
    """Return the values of a column of lists, one list behind the other, and how many each row has.

    Parameters
    ----------
    column : pa.ChunkedArray
        Of a type that `is_lists` takes.

    Returns
    -------
    items : pa.ChunkedArray, length sum of the lengths
    lengths : ndarray, shape (n_rows,), int64
        -1 where the list itself is null; such a row has no items.
    """
    array = _decoded(column.chunk(0) if column.num_chunks == 1 else _one_chunk(column))
    if pt.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, np.int64)
        if array.null_count:
            lengths[_nulls(array)] = -1
    else:
        lengths = array.value_lengths().fill_null(-1).to_numpy().astype(np.int64, copy=False)
    return pa.chunked_array([array.flatten()]), lengths


def is_lists(data_type: pa.DataType) -> bool:
    """Return whether a column of this type holds lists of any kind, under its encodings."""
    plain = plain_type(data_type)
    return bool(is_list(plain) or pt.is_fixed_size_list(plain))


def item_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the items of a type of lists."""
    return plain_type(data_type).value_type


def column_texts(column: pa.ChunkedArray) -> list[Any]:
    """Return the strings or bytes of a text column, None where null: one Python object a row."""
    texts: list[Any] = column.to_pylist()
    return texts


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if pt.is_dictionary(column.type):  # each chunk may have a dictionary of its own
        column = column.cast(column.type.value_type)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _decoded(array: pa.Array) -> pa.Array:
    """Return the array without extension types and dictionaries."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pt.is_dictionary(array.type):
        return array.dictionary_decode()
    if pt.is_run_end_encoded(array.type):
        return pc.call_function("run_end_decode", [array])
    return array


def _flat_values(array: pa.Array, integers: np.dtype[Any] | None) -> tuple[Array, BoolArray | None]:
    absent = _nulls(array)
    if pt.is_null(array.type):
        return np.zeros(len(array), np.bool_), np.ones(len(array), np.bool_)
    if pt.is_boolean(array.type):
        values = (array if absent is None else array.fill_null(False)).to_numpy(zero_copy_only=False)
        return values, absent
    if pt.is_decimal(array.type):
        array = _decimals_as(array, pa.from_numpy_dtype(integers) if integers is not None else pa.float64())
    elif not (
        pt.is_integer(array.type) or pt.is_floating(array.type)
    ):  # dates and times are integers in their unit
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    half = pt.is_float16(array.type)
    if half:
        array = array.view(pa.uint16())
    if absent is not None:
        array = array.fill_null(0)
    values = array.to_numpy()
    return values.view(np.float16) if half else values, absent


def _decimals_as(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type.bit_width < 128:  # Arrow's casts of decimal32 to numbers fail
        array = array.cast(pa.decimal128(38, array.type.scale))
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise NotExactError(str(error)) from error


def _list_values(array: pa.Array, integers: np.dtype[Any] | None) -> ColumnValues:
    absent_rows = _nulls(array)
    n_rows = len(array)
    if pt.is_fixed_size_list(array.type):
        width = array.type.list_size
        # `flatten` leaves out the places of null rows, so take them by position
        items = array.values.slice(array.offset * width, n_rows * width)
        values, absent = _flat_values(_decoded(items), integers)
    else:
        width = _common_length(array, absent_rows)
        values, absent = _flat_values(_decoded(array.flatten()), integers)
        if absent_rows is not None:  # a null row takes no place in a list column: make one
            present = np.repeat(~absent_rows, width)
            values = _scattered(values, present)
            absent = None if absent is None else _scattered(absent, present)
    values = values.reshape(n_rows, width)
    if absent is not None:
        absent = absent.reshape(n_rows, width)
    if absent_rows is not None:
        values = np.where(absent_rows[:, None], values.dtype.type(0), values)
        whole_rows = np.repeat(absent_rows[:, None], width, axis=1)
        absent = whole_rows if absent is None else absent | whole_rows
    return ColumnValues(values, absent)


def _common_length(array: pa.Array, absent_rows: BoolArray | None) -> int:
    lengths = array.value_lengths().fill_null(-1).to_numpy()
    rows = np.arange(len(lengths)) if absent_rows is None else np.flatnonzero(~absent_rows)
    if not rows.size:
        return 0
    width = int(lengths[rows[0]])
    others = rows[lengths[rows] != width]
    if others.size:
        raise RaggedRowError(int(others[0]), width, int(lengths[others[0]]))
    return width


def _scattered(values: Array, present: BoolArray) -> Array:
    placed = np.zeros(len(present), values.dtype)
    placed[present] = values
    return placed


def _nulls(array: pa.Array) -> BoolArray | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
