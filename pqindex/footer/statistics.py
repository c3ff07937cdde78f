"""What the statistics in a footer say, and whether to believe them. The one place that reads them.

Rules, with the reason of each:

- `min_value` and `max_value` count only where `column_orders` says that they follow the order of the type: without it,
  nobody knows in which order they were found.
- The deprecated `min` and `max` count only for signed numbers, dates, times and booleans. Writers compared bytes as
  signed and unsigned integers as signed, so that those of strings, decimals and unsigned numbers are wrong.
- INT96 and intervals have no order; neither have types that this module does not know.
- NaN, a minimum above the maximum, text that is not UTF-8 or a value of the wrong length mean unknown, for both bounds.
- A zero bound of floats takes the sign that is safe: -0.0 below, 0.0 above.
- A null count above the number of values, or below zero, means unknown. So do bounds where every value is null.
- A null count of a column inside lists means unknown: writers disagree on whether empty lists count.
- Some writers are known to be wrong: `writers.STATISTICS_FAULTS`.

A bound is *exact* when some value is equal to it. Long strings are cut by many writers, some without saying so.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pqindex.footer.chunks import Chunks
from pqindex.footer.schema import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED_LEN_BYTE_ARRAY,
    FLOAT,
    INT32,
    INT64,
    Leaf,
    LogicalType,
)
from pqindex.footer.synthetic import SchemaRecord
from pqindex.footer.writers import MAX_UNCUT_BYTES, NEVER_CUTS, statistics_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pqindex.footer.chunks import Int64s
    from pqindex.footer.metadata import FileMetadata

# These logical types have the bytewise unsigned order of their bytes.
_BYTEWISE: Final = frozenset({"string", "enum", "json", "bson", "uuid"})
_MAX_FIXED_BYTES: Final = 1 << 28
_NUMBER_DTYPES: Final = {INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounds:
    """What the statistics of one column say of each row group.

    Attributes
    ----------
    min, max : pyarrow.Array, length (row groups)
        In the column's Arrow type (the values' type of a dictionary, the storage of an extension); null is unknown.
        Of type null for fixed-size values so wide that an array of them would take more than 256 MB.
    null_count : pyarrow.Array of int64, length (row groups)
        Null is unknown.
    exact : ndarray of bool, shape (row groups,)
        Both bounds are known, and are values of the column.
    """

    min: pa.Array
    max: pa.Array
    null_count: pa.Array
    exact: npt.NDArray[np.bool_]

    def rows(self, start: int, stop: int) -> Bounds:
        """Return the bounds of the row groups [start, stop)."""
        part = slice(start, stop)
        return Bounds(
            min=self.min[part], max=self.max[part], null_count=self.null_count[part], exact=self.exact[part]
        )


def leaf_types(record: SchemaRecord) -> tuple[pa.DataType, ...]:
    """Return the Arrow type of every leaf: the values' type of a dictionary, the storage type of an extension.

    Raises
    ------
    UnsupportedFileError
        If pyarrow cannot make Arrow types of the schema.
    """
    return tuple(kind.data_type for kind in _leaf_kinds(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeafKind:
    data_type: pa.DataType
    is_dictionary: bool


@lru_cache(maxsize=64)
def _leaf_kinds(record: SchemaRecord) -> tuple[_LeafKind, ...]:
    found: list[_LeafKind] = []
    unknown = _LeafKind(data_type=pa.null(), is_dictionary=False)
    for field, (start, stop) in zip(record.to_arrow(), record.parsed.field_leaves, strict=True):
        kinds = list(_walk(field.type))
        # A type with other leaves than the file's has no leaf types that we could name.
        found += kinds if len(kinds) == stop - start else [unknown] * (stop - start)
    return tuple(found)


def _walk(data_type: pa.DataType, *, is_dictionary: bool = False) -> Iterator[_LeafKind]:
    if isinstance(data_type, pa.BaseExtensionType):
        yield from _walk(data_type.storage_type, is_dictionary=is_dictionary)
    elif pt.is_dictionary(data_type):
        yield from _walk(data_type.value_type, is_dictionary=True)
    elif pt.is_map(data_type):
        yield from _walk(data_type.key_type)
        yield from _walk(data_type.item_type)
    elif pt.is_nested(data_type):
        for i in range(data_type.num_fields):
            yield from _walk(data_type.field(i).type)
    else:
        yield _LeafKind(data_type=data_type, is_dictionary=is_dictionary)


def bounds(metadata: FileMetadata, leaf_index: int) -> Bounds:
    """Return what is known of a column's least and greatest value and its nulls, a value a row group.

    Vectorised: cost in proportion to the row groups, and to the bytes of text. Thread-safe.

    Parameters
    ----------
    metadata : FileMetadata
    leaf_index : int
        Which leaf of the file.

    Raises
    ------
    UnsupportedFileError
        If pyarrow cannot make Arrow types of the schema.
    """
    return bounds_of(metadata, [leaf_index])[0]


def bounds_of(metadata: FileMetadata, leaf_indices: Sequence[int]) -> list[Bounds]:
    """Return the bounds of several columns; those of columns of one type are decoded together.

    As `bounds`, which costs nearly as much for one column of few row groups as this for a hundred.
    """
    return _bounds_of(metadata, leaf_indices, alone=True)


def bounds_of_files(files: Sequence[FileMetadata], leaf_indices: Sequence[int]) -> list[list[Bounds]]:
    """Return the bounds of several columns of each file; all files have one schema record.

    As `bounds_of` for each, which costs nearly as much for one small file as this for a hundred.
    """
    if len(files) > 1:
        with contextlib.suppress(_ApartError):
            together = _bounds_of(_joined(files), leaf_indices, alone=False)
            stops = np.cumsum([file.n_row_groups for file in files]).tolist()
            return [
                [found.rows(stop - file.n_row_groups, stop) for found in together]
                for file, stop in zip(files, stops, strict=True)
            ]
    return [bounds_of(file, leaf_indices) for file in files]


class _ApartError(Exception):
    """Bounds of one file make those of others unknown, so that each has to be looked at alone."""


def _joined(files: Sequence[FileMetadata]) -> FileMetadata:
    """Return files of one schema as one, as far as `bounds_of` looks."""
    bases = np.cumsum([0, *(len(file.footer) for file in files[:-1])])
    columns = {}
    for field in fields(Chunks):
        values = [getattr(file.chunks, field.name) for file in files]
        if field.name.endswith(("min_start", "max_start", "_value_start")):
            values = [value + np.int32(base) for value, base in zip(values, bases, strict=True)]
        columns[field.name] = np.concatenate(values)
    return replace(
        files[0],
        footer=b"".join(file.footer for file in files),
        group_n_rows=np.concatenate([file.group_n_rows for file in files]),
        chunks=Chunks(**columns),
    )


def _bounds_of(metadata: FileMetadata, leaf_indices: Sequence[int], *, alone: bool) -> list[Bounds]:
    kinds = _leaf_kinds(SchemaRecord.from_metadata(metadata))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for index in leaf_indices:
        leaf = metadata.leaves[index]
        look = (
            leaf.physical_type,
            leaf.type_length,
            leaf.logical,
            leaf.order_defined,
            leaf.max_repetition_level > 0,
        )
        alike.setdefault((*look, kinds[index]), []).append(index)
    found: dict[int, Bounds] = {}
    n_groups = metadata.n_row_groups
    for same in alike.values():
        leaf, kind = metadata.leaves[same[0]], kinds[same[0]]
        together = _bounds_of_alike(metadata, np.array(same), leaf, kind, alone=alone)
        for number, index in enumerate(same):
            found[index] = together.rows(number * n_groups, (number + 1) * n_groups)
    return [found[index] for index in leaf_indices]


def _bounds_of_alike(
    metadata: FileMetadata, leaves: Int64s, leaf: Leaf, kind: _LeafKind, *, alone: bool
) -> Bounds:
    """Return the bounds of columns like `leaf`, one column's row groups behind another's.

    Raises
    ------
    _ApartError
        If one value makes all of them unknown, and they are not `alone` those of one file.
    """
    faults = _faults(metadata, leaf, kind)
    null_count, is_all_null = _null_counts(metadata, leaves, leaf, faults)
    if leaf.type_length * len(null_count) > _MAX_FIXED_BYTES:
        # Such an array would take the width for every null in it, and the width is only a number in the file.
        _refuse_together(alone)
        return _unknown(pa.null(), null_count)
    native = None if "bounds" in faults else _native_type(leaf)
    if native is None or pt.is_null(kind.data_type):
        return _unknown(kind.data_type, null_count)
    sides = []
    for name in ("min", "max"):
        start, length = _spans(metadata, leaves, name, leaf)
        values = _decode(metadata.footer, start, np.where(is_all_null, -1, length), leaf, native)
        if values is None:  # more digits than the type has: a writer that is not to be believed
            _refuse_together(alone)
            values = pa.nulls(len(start), native)
        sides.append(values)
    low, high = _drop_senseless(*sides)
    low, high = _safe_zeros(low, negative=True), _safe_zeros(high, negative=False)
    try:
        low, high = low.cast(kind.data_type), high.cast(kind.data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        _refuse_together(alone)
        return _unknown(kind.data_type, null_count)
    exact = np.asarray(pc.and_(low.is_valid(), high.is_valid())) & ("exact" not in faults)
    if "exact_with_nulls" in faults:
        exact &= np.asarray(pc.fill_null(pc.equal(null_count, 0), fill_value=False))
    for name in ("min", "max"):
        exact &= _is_exact(metadata, leaves, name, leaf)
    return Bounds(min=low, max=high, null_count=null_count, exact=exact)


def _refuse_together(alone: bool) -> None:
    if not alone:
        raise _ApartError


def _column(values: npt.NDArray[Any], leaves: Int64s) -> npt.NDArray[Any]:
    """Return the values of some leaves out of an array of shape (row groups, leaves), a leaf behind another."""
    return values[:, leaves].T.ravel()


def _faults(metadata: FileMetadata, leaf: Leaf, kind: _LeafKind) -> frozenset[str]:
    """Return what the writer of the file is known to have got wrong in such a column."""
    name = "" if leaf.logical is None else leaf.logical.name
    touched = {"all"}
    if name in {"decimal", "timestamp"}:
        touched.add(name)
    if kind.is_dictionary or (metadata.arrow_schema is None and leaf.physical_type == BYTE_ARRAY):
        touched.add("dictionary")
    return frozenset().union(
        *(fault.faults for fault in statistics_faults(metadata.created_by) if fault.columns in touched)
    )


def _unknown(data_type: pa.DataType, null_count: pa.Array) -> Bounds:
    n_groups = len(null_count)
    return Bounds(
        min=pa.nulls(n_groups, data_type),
        max=pa.nulls(n_groups, data_type),
        null_count=null_count,
        exact=np.zeros(n_groups, np.bool_),
    )


def _null_counts(
    metadata: FileMetadata, leaves: Int64s, leaf: Leaf, faults: frozenset[str]
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the null counts, and whether all values of a row group are null."""
    counts = _column(metadata.chunks.null_count, leaves)
    n_values = _column(metadata.chunks.num_values, leaves)
    unknown = (counts < 0) | (counts > n_values)
    if "nonzero_null_count" in faults:
        unknown |= counts > 0
    if "null_count" in faults or leaf.max_repetition_level > 0:
        unknown[:] = True
    return pa.array(counts, mask=unknown), ~unknown & (counts == n_values)


def _native_type(leaf: Leaf) -> pa.DataType | None:
    """Return the Arrow type that Parquet's own types say, None where there is no order to trust."""
    logical, physical = leaf.logical, leaf.physical_type
    if logical is None:
        return {
            BOOLEAN: pa.bool_(),
            INT32: pa.int32(),
            INT64: pa.int64(),
            FLOAT: pa.float32(),
            DOUBLE: pa.float64(),
            BYTE_ARRAY: pa.binary(),
            FIXED_LEN_BYTE_ARRAY: pa.binary(leaf.type_length),
        }.get(physical)
    if physical == BYTE_ARRAY and logical.name in _BYTEWISE:
        return pa.string() if logical.name in {"string", "json", "enum"} else pa.binary()
    if physical == FIXED_LEN_BYTE_ARRAY:
        if logical.name == "float16" and leaf.type_length == 2:
            return pa.float16()
        if logical.name in _BYTEWISE:
            return pa.binary(leaf.type_length)
    if logical.name == "decimal" and physical in (INT32, INT64, FIXED_LEN_BYTE_ARRAY):
        return _decimal(logical, leaf.type_length)
    if physical in (INT32, INT64):
        return _integer_type(logical, physical)
    return None


def _decimal(logical: LogicalType, n_bytes: int) -> pa.DataType | None:
    precision, scale = logical.precision or 0, logical.scale or 0
    kind = pa.decimal128 if precision <= 38 and n_bytes <= 16 else pa.decimal256
    try:
        return kind(precision, scale) if n_bytes <= 32 else None
    except ValueError:
        return None


def _integer_type(logical: LogicalType, physical: int) -> pa.DataType | None:
    name, unit = logical.name, logical.unit
    if name == "integer" and logical.signed is not None:
        widths = {INT32: (8, 16, 32), INT64: (64,)}[physical]
        if logical.bit_width in widths:
            return pa.type_for_alias(f"{'' if logical.signed else 'u'}int{logical.bit_width}")
    if name == "date" and physical == INT32:
        return pa.date32()
    if name == "time" and unit is not None and (physical == INT32) == (unit == "ms"):
        return pa.time32(unit) if unit == "ms" else pa.time64(unit)
    if name == "timestamp" and unit is not None and physical == INT64:
        return pa.timestamp(unit, "UTC" if logical.utc else None)
    return None


def _is_signed(leaf: Leaf) -> bool:
    """Return whether writers compared the values rightly when they wrote the deprecated bounds."""
    if leaf.physical_type not in (BOOLEAN, INT32, INT64, FLOAT, DOUBLE):
        return False
    return (
        leaf.logical is None
        or leaf.logical.name in {"date", "time", "timestamp"}
        or bool(leaf.logical.signed)
    )


def _spans(metadata: FileMetadata, leaves: Int64s, name: str, leaf: Leaf) -> tuple[Int64s, Int64s]:
    """Return where the bytes of a bound are, length -1 for none to trust."""
    chunks = metadata.chunks
    n = metadata.n_row_groups * len(leaves)
    start, length = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    if _is_signed(leaf):
        start = _column(getattr(chunks, f"{name}_start"), leaves).astype(np.int64)
        length = _column(getattr(chunks, f"{name}_length"), leaves).astype(np.int64)
    if leaf.order_defined:
        new_length = _column(getattr(chunks, f"{name}_value_length"), leaves)
        is_new = new_length >= 0
        start = np.where(is_new, _column(getattr(chunks, f"{name}_value_start"), leaves), start)
        length = np.where(is_new, new_length, length)
    return start, length


def _is_exact(metadata: FileMetadata, leaves: Int64s, name: str, leaf: Leaf) -> npt.NDArray[np.bool_]:
    """Return whether a bound, if it is known, is a value of the column."""
    flag = _column(getattr(metadata.chunks, f"{name}_exact"), leaves)
    if leaf.physical_type != BYTE_ARRAY or NEVER_CUTS.match(metadata.created_by or ""):
        return np.asarray(flag != 0)
    length = _column(getattr(metadata.chunks, f"{name}_value_length"), leaves)
    return np.asarray((flag == 1) | ((flag < 0) & (length <= MAX_UNCUT_BYTES)))


# -- bytes to values ------------------------------------------------------------------------------------------


def _decode(footer: bytes, start: Int64s, length: Int64s, leaf: Leaf, native: pa.DataType) -> pa.Array | None:
    """Return the values of the bounds, null where there is none or its bytes make no value; None for senseless ones."""
    if leaf.physical_type == BYTE_ARRAY:
        return _decode_text(footer, start, length, native)
    dtype = _NUMBER_DTYPES.get(leaf.physical_type)
    width = (
        leaf.type_length
        if leaf.physical_type == FIXED_LEN_BYTE_ARRAY
        else 1
        if dtype is None
        else int(dtype[2])
    )
    valid = length == width
    places = np.where(valid, start, 0)[:, None] + np.arange(width)
    # A null's bytes are never looked at; they only have to be there.
    raw = np.frombuffer(footer, np.uint8)[np.minimum(places, len(footer) - 1)]
    if dtype is not None:
        return _number(raw.view(dtype).reshape(len(start)), valid, native)
    if leaf.physical_type == BOOLEAN:
        return pa.array(raw[:, 0] == 1, mask=~valid | (raw[:, 0] > 1))
    if pt.is_float16(native):
        return pa.array(raw.view("<f2").reshape(len(start)), mask=~valid)
    if pt.is_decimal(native):
        return _decimals(_sign_extended(raw[:, ::-1], native.byte_width), valid, native)
    return pa.Array.from_buffers(native, len(start), [_validity(valid), pa.py_buffer(raw.tobytes())])


def _number(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], native: pa.DataType) -> pa.Array | None:
    if pt.is_decimal(native):
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
        return _decimals(_sign_extended(raw, native.byte_width), valid, native)
    if pt.is_integer(native):
        dtype = native.to_pandas_dtype()
        # The same bits, read as the logical type says; a narrow type keeps them all or the value is no value of it.
        as_type = values.astype(dtype)
        return pa.array(as_type, mask=~valid | (as_type.astype(values.dtype) != values))
    if pt.is_floating(native):
        return pa.array(values, mask=~valid)
    return pa.array(values, mask=~valid).view(native)


def _sign_extended(raw: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.uint8]:
    """Return little-endian integers of `width` bytes from narrower ones, shape (n, width)."""
    wide = np.empty((len(raw), width), np.uint8)
    wide[:, : raw.shape[1]] = raw
    if raw.shape[1]:
        wide[:, raw.shape[1] :] = np.where(raw[:, -1:] >= 0x80, 0xFF, 0)
    else:
        wide[:] = 0
    return wide


def _decimals(
    raw: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_], native: pa.DataType
) -> pa.Array | None:
    values = pa.Array.from_buffers(native, len(raw), [_validity(valid), pa.py_buffer(raw.tobytes())])
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return values


def _decode_text(footer: bytes, start: Int64s, length: Int64s, native: pa.DataType) -> pa.Array:
    valid = length >= 0
    lengths = np.where(valid, length, 0)
    offsets = np.zeros(len(start) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], lengths)
    data = np.frombuffer(footer, np.uint8)[places]
    if pt.is_string(native):
        valid = valid & _is_utf8(data, offsets)
    buffers = [_validity(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(native, len(start), buffers)


def _is_utf8(data: npt.NDArray[np.uint8], offsets: Int64s) -> npt.NDArray[np.bool_]:
    n_values = len(offsets) - 1
    if not (data >= 0x80).any():
        return np.ones(n_values, np.bool_)

    def decodes(raw: bytes) -> bool:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return False
        return True

    # Few bounds are not ASCII, and fewer are not text.
    places = offsets.tolist()
    return np.array([decodes(data[places[i] : places[i + 1]].tobytes()) for i in range(n_values)], np.bool_)


def _validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


# -- rules on values ------------------------------------------------------------------------------------------


def _drop_senseless(low: pa.Array, high: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the bounds without those that are NaN or of which the lower is above the upper."""
    if pt.is_floating(low.type):
        lows, highs = (np.asarray(side.cast(pa.float64()).fill_null(0.0)) for side in (low, high))
        senseless = np.isnan(lows) | np.isnan(highs)
        both = np.asarray(low.is_valid()) & np.asarray(high.is_valid())
        senseless |= both & (lows > highs)
    else:
        senseless = np.asarray(pc.fill_null(pc.greater(low, high), fill_value=False))
    if not senseless.any():
        return low, high
    null = pa.scalar(None, low.type)
    mask = pa.array(senseless)
    return pc.if_else(mask, null, low), pc.if_else(mask, null, high)


def _safe_zeros(values: pa.Array, *, negative: bool) -> pa.Array:
    """Return float bounds with the sign of zero that excludes no zero."""
    if not pt.is_floating(values.type):
        return values
    dtype = values.type.to_pandas_dtype()
    numbers = np.array(values.fill_null(pa.scalar(dtype(1), values.type)), dtype)
    numbers[numbers == 0] = dtype(-0.0) if negative else dtype(0.0)
    return pa.array(numbers, values.type, mask=~np.asarray(values.is_valid()))
