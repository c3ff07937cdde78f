"""Rules about Arrow types: canonical names, plain forms, keys, and how types of several files become one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_SIMPLE_NAMES = {
    pa.null(): "null",
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date32",
    pa.date64(): "date64",
}
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_UNITS = ("s", "ms", "us", "ns")


def type_name(data_type: pa.DataType) -> str:
    """Return the canonical name of an Arrow type, as the specification writes it (rule T1).

    The names are ours, so that they never change with a library's way of printing.
    """
    if data_type in _SIMPLE_NAMES:
        return _SIMPLE_NAMES[data_type]
    if pt.is_fixed_size_binary(data_type):
        return f"fixed_size_binary[{data_type.byte_width}]"
    if pt.is_timestamp(data_type):
        return (
            f"timestamp[{data_type.unit}]"
            if data_type.tz is None
            else f"timestamp[{data_type.unit},{data_type.tz}]"
        )
    if pt.is_time(data_type):
        return f"time{data_type.bit_width}[{data_type.unit}]"
    if pt.is_duration(data_type):
        return f"duration[{data_type.unit}]"
    if pt.is_decimal(data_type):
        return f"decimal{data_type.bit_width}({data_type.precision},{data_type.scale})"
    if pt.is_map(data_type):
        return f"map<{type_name(data_type.key_type)},{type_name(data_type.item_type)}>"
    if pt.is_fixed_size_list(data_type):
        return f"list[{data_type.list_size}]<{type_name(data_type.value_type)}>"
    if is_list(data_type):
        return f"list<{type_name(data_type.value_type)}>"
    if pt.is_struct(data_type):
        return f"struct<{','.join(f'{f.name}:{type_name(f.type)}' for f in data_type)}>"
    plain = plain_type(data_type)
    return str(data_type) if plain == data_type else type_name(plain)


def is_list(data_type: pa.DataType) -> bool:
    """Return whether the type is a list of any variable-length kind."""
    return bool(
        pt.is_list(data_type)
        or pt.is_large_list(data_type)
        or pt.is_list_view(data_type)
        or pt.is_large_list_view(data_type)
    )


@lru_cache(maxsize=4096)
def plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type without encodings: dictionaries, views, large offsets and extensions taken off."""
    if isinstance(data_type, pa.BaseExtensionType):
        return plain_type(data_type.storage_type)
    if pt.is_dictionary(data_type) or pt.is_run_end_encoded(data_type):
        return plain_type(data_type.value_type)
    if pt.is_large_string(data_type) or pt.is_string_view(data_type):
        return pa.string()
    if pt.is_large_binary(data_type) or pt.is_binary_view(data_type):
        return pa.binary()
    return data_type


def plain_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as one array of the plain type."""
    if isinstance(array, pa.ChunkedArray):
        chunks = [plain_array(chunk) for chunk in array.chunks]
        return pa.concat_arrays(chunks) if chunks else pa.nulls(0, plain_type(array.type))
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    target = plain_type(array.type)
    return array if array.type == target else pc.cast(array, target)


def concat(arrays: Iterable[pa.Array], data_type: pa.DataType) -> pa.Array:
    """Return the arrays as one of this type; they are cast where they have another."""
    cast = [array if array.type == data_type else pc.cast(array, data_type) for array in arrays]
    return pa.concat_arrays(cast) if cast else pa.nulls(0, data_type)


def is_key_type(data_type: pa.DataType) -> bool:
    """Return whether a column of this (plain) type can name sequences.

    Integers, strings, binaries, dates and timestamps can; floats never, since equal-looking floats differ.
    """
    return bool(
        pt.is_integer(data_type)
        or pt.is_string(data_type)
        or pt.is_binary(data_type)
        or pt.is_fixed_size_binary(data_type)
        or pt.is_date(data_type)
        or pt.is_timestamp(data_type)
    )


def is_order_type(data_type: pa.DataType) -> bool:
    """Return whether a column of this (plain) type can order rows: numbers and times, never strings."""
    return bool(
        pt.is_integer(data_type)
        or pt.is_floating(data_type)
        or pt.is_decimal(data_type)
        or pt.is_temporal(data_type)
    )


def is_bounds_type(data_type: pa.DataType) -> bool:
    """Return whether footer bounds of this (plain) type are kept as statistics of a sequence."""
    return bool(
        data_type in _SIMPLE_NAMES and not pt.is_null(data_type) and not pt.is_float16(data_type)
    ) or bool(pt.is_timestamp(data_type) or pt.is_time(data_type) or pt.is_decimal(data_type))


def unify_types(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the one type that holds all values of all `types` exactly, or None where there is none.

    Equal types stay. Null-typed columns take the other type. Integers and floats widen inside their family,
    unsigned into a signed type that is wider, small integers into float64. Time units widen to the finer one,
    with equal zones only. Lists and structs widen by their parts. Numbers and strings never meet.
    """
    result: pa.DataType | None = None
    for data_type in types:
        if result is None:
            result = data_type
        elif result != data_type:
            result = _wider(result, data_type)
            if result is None:
                return None
    return result


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if a == b or pt.is_null(b):
        return a
    if pt.is_null(a):
        return b
    for rule in (_wider_number, _wider_time, _wider_list, _wider_struct):
        wider = rule(a, b)
        if wider is not None:
            return wider
    plain_a, plain_b = plain_type(a), plain_type(b)
    return None if (plain_a, plain_b) == (a, b) else _wider(plain_a, plain_b)


def _wider_number(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if a in family and b in family:
            return family[max(family.index(a), family.index(b))]
    if pt.is_integer(a) and pt.is_integer(b):
        unsigned, signed = (a, b) if a in _UNSIGNED else (b, a)
        wider = max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)
        return _SIGNED[wider] if wider < len(_SIGNED) else None
    integer, real = (a, b) if pt.is_integer(a) else (b, a)
    return pa.float64() if pt.is_integer(integer) and real in _FLOATS and integer.bit_width <= 32 else None


def _wider_time(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if pt.is_timestamp(a) and pt.is_timestamp(b) and a.tz == b.tz:
        return pa.timestamp(max(a.unit, b.unit, key=_UNITS.index), a.tz)
    if pt.is_duration(a) and pt.is_duration(b):
        return pa.duration(max(a.unit, b.unit, key=_UNITS.index))
    return None


def _wider_list(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if not all(is_list(t) or pt.is_fixed_size_list(t) for t in (a, b)):
        return None
    inner = _wider(a.value_type, b.value_type)
    if inner is None:
        return None
    both_fixed = pt.is_fixed_size_list(a) and pt.is_fixed_size_list(b) and a.list_size == b.list_size
    return pa.list_(inner, a.list_size) if both_fixed else pa.list_(inner)


def _wider_struct(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if not (pt.is_struct(a) and pt.is_struct(b)) or [f.name for f in a] != [f.name for f in b]:
        return None
    types = [_wider(x.type, y.type) for x, y in zip(a, b, strict=True)]
    if any(t is None for t in types):
        return None
    return pa.struct([pa.field(f.name, t) for f, t in zip(a, types, strict=True)])
