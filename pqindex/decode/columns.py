"""Which columns and chunks may be decoded directly, from the footer's facts alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from pqindex.footer.schema import BOOLEAN, DOUBLE, FIXED_LEN_BYTE_ARRAY, FLOAT, INT32, INT64

if TYPE_CHECKING:
    from pqindex.footer.schema import Leaf

UNCOMPRESSED: Final = 0
SNAPPY: Final = 1
ZSTD: Final = 6
LZ4_RAW: Final = 7
DIRECT_CODECS: Final = (UNCOMPRESSED, SNAPPY, ZSTD, LZ4_RAW)

PLAIN: Final = 0
PLAIN_DICTIONARY: Final = 2
RLE: Final = 3
BIT_PACKED: Final = 4
RLE_DICTIONARY: Final = 8
BYTE_STREAM_SPLIT: Final = 9
DIRECT_ENCODINGS: Final = sum(
    1 << encoding
    for encoding in (PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT)
)
"""Bit set by encoding number. BIT_PACKED is that of levels, which writers list for columns that have none."""

_STORED: Final = {
    BOOLEAN: np.dtype(np.bool_),
    INT32: np.dtype("<i4"),
    INT64: np.dtype("<i8"),
    FLOAT: np.dtype("<f4"),
    DOUBLE: np.dtype("<f8"),
    FIXED_LEN_BYTE_ARRAY: np.dtype("<f2"),
}
_INTEGER_BITS: Final = {INT32: (8, 16, 32), INT64: (64,)}
_TIMES: Final = {
    INT32: (("date", None), ("time", "ms")),
    INT64: (
        ("time", "us"),
        ("time", "ns"),
        ("timestamp", "ms"),
        ("timestamp", "us"),
        ("timestamp", "ns"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectColumn:
    """A column that may be decoded directly.

    Attributes
    ----------
    name : str
        For messages.
    stored : numpy.dtype
        Of a value in a page. Booleans are bits there.
    dtype : numpy.dtype
        Of a value by its logical type, as Arrow has it: an unsigned 8-bit integer is stored as 32 bits. Dates, times
        and timestamps are the integers that they are stored as.
    is_optional : bool
        Whether pages have definition levels.
    """

    name: str
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    is_optional: bool


def direct_column(leaf: Leaf, arrow_type: pa.DataType) -> DirectColumn | None:
    """Return how a leaf is decoded directly, or None where PyArrow must do it.

    Parameters
    ----------
    leaf : Leaf
    arrow_type : pa.DataType
        What PyArrow makes of the column. Where that is not the type that the leaf itself says (a writer's Arrow schema
        may ask for seconds of stored milliseconds), the numbers would differ, and the answer is None.

    Returns
    -------
    DirectColumn or None
        None too for lists, members of structs, texts, decimals and 96-bit timestamps.
    """
    if len(leaf.path) != 1 or leaf.max_repetition_level:
        return None
    dtype = _logical_dtype(leaf)
    if dtype is None or not _is_kept(leaf, dtype, arrow_type):
        return None
    return DirectColumn(
        name=leaf.path[0],
        stored=_STORED[leaf.physical_type],
        dtype=dtype,
        is_optional=leaf.max_definition_level == 1,
    )


def _logical_dtype(leaf: Leaf) -> np.dtype[Any] | None:
    """Return the dtype of the values by their logical type, or None where they are no numbers of ours."""
    physical, logical = leaf.physical_type, leaf.logical
    if physical == FIXED_LEN_BYTE_ARRAY:
        is_half = leaf.type_length == 2 and logical is not None and logical.name == "float16"
        return _STORED[physical] if is_half else None
    stored = _STORED.get(physical)
    if logical is None or stored is None:
        return stored
    if logical.name == "integer" and logical.bit_width in _INTEGER_BITS.get(physical, ()):
        return np.dtype(f"<{'i' if logical.signed else 'u'}{logical.bit_width // 8}")
    return stored if (logical.name, logical.unit) in _TIMES.get(physical, ()) else None


def _is_kept(leaf: Leaf, dtype: np.dtype[Any], arrow_type: pa.DataType) -> bool:
    """Return whether Arrow's values are the stored numbers, as they are."""
    if pt.is_boolean(arrow_type) or pt.is_integer(arrow_type) or pt.is_floating(arrow_type):
        return bool(np.dtype(arrow_type.to_pandas_dtype()) == dtype)
    if pt.is_duration(arrow_type):
        return leaf.logical is None and dtype == _STORED[INT64]
    if leaf.logical is None:
        return False
    if pt.is_date32(arrow_type):
        return leaf.logical.name == "date"
    if pt.is_time(arrow_type):
        return leaf.logical.name == "time" and bool(leaf.logical.unit == arrow_type.unit)
    if pt.is_timestamp(arrow_type):
        return leaf.logical.name == "timestamp" and bool(leaf.logical.unit == arrow_type.unit)
    return False


def is_number(leaf: Leaf) -> bool:
    """Return whether a leaf is a column of flat numbers, as Parquet has them."""
    return len(leaf.path) == 1 and not leaf.max_repetition_level and _logical_dtype(leaf) is not None


REASONS: Final = ("", "type", "codec", "encoding", "nulls", "runs", "indices", "page")
"""Why a chunk of numbers is left to PyArrow, in a word, by number: 0 where it may not be."""

TYPE, CODEC, ENCODING, NULLS, RUNS, INDICES, PAGE = range(1, len(REASONS))

_REASON_OF_REFUSAL: Final = {
    "a codec is not known here": CODEC,
    "an encoding is not known here": ENCODING,
    "a page has nulls": NULLS,
    "a page has many indices": INDICES,
    "a page has many runs": RUNS,
    "a packed run is cut short": RUNS,
    "a run is empty": RUNS,
    "a run is longer than its page": RUNS,
    "bytes follow the runs": RUNS,
}


def reason_of_refusal(reason: str) -> int:
    """Return the number in `REASONS` of the sentence of a `Refusal`."""
    return _REASON_OF_REFUSAL.get(reason, PAGE)


def not_direct(
    codec: npt.NDArray[Any], encodings: npt.NDArray[Any], null_count: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.int8]:
    """Return why chunks of a direct column cannot be decoded directly, by their footer's facts; 0 where they may be.

    May be: a page can still be of a kind that is refused, since runs, level encodings and most nulls stand in the
    pages.

    Parameters
    ----------
    codec, encodings : ndarray of int, any shape
        As in `footer.Chunks`, and in the table of chunks of an index.
    null_count : ndarray of int, the same shape, optional
        As in `footer.Chunks`.

    Returns
    -------
    ndarray of int8, the same shape
        Numbers of `REASONS`.
    """
    found = np.zeros(np.shape(codec), np.int8)
    if null_count is None and found.size and _is_constant(codec) and _is_constant(encodings):
        codec, encodings = (
            codec.flat[:1],
            encodings.flat[:1],
        )  # as in most data sets, of a million chunks and more
        found[...] = not_direct(codec, encodings, np.zeros(1))
        return found
    if null_count is not None:
        found[null_count > 0] = NULLS
    found[(encodings & ~np.int64(DIRECT_ENCODINGS)) != 0] = ENCODING
    found[~np.isin(codec, DIRECT_CODECS)] = CODEC
    return found


def _is_constant(values: npt.NDArray[Any]) -> bool:
    return bool(values.min() == values.max())
