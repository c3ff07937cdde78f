"""Arrow tables in and out of DuckDB: what it can hold goes in unchanged, and plain types come out.

Out: text is string, bytes are binary, enums are their texts, sums are int64 or an error, lists name their values
as Arrow does, and what has no plain form (BIT, INTERVAL, TIMETZ, UNION, ...) is refused by name, never rounded or cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pqindex.errors import QueryError
from pqindex.sql.engine import DUCKDB_MAJOR, quote

_NO_PLAIN_FORM = frozenset(
    {
        "bit",
        "bignum",
        "varint",
        "interval",
        "time with time zone",
        "uhugeint",
        "union",
        "variant",
        "geometry",
        "any",
        "lambda",
    }
)
_SINGLE = {"list", "array"}
_KNOWN_EXTENSIONS = {"arrow.uuid", "arrow.bool8"}


# -- out of DuckDB --------------------------------------------------------------------------------------------


def plain_answer(table: pa.Table, types: Sequence[Any]) -> pa.Table:
    """Return DuckDB's answer in plain Arrow types.

    Parameters
    ----------
    table : pyarrow.Table
    types : sequence
        DuckDB's type of each column: Arrow has one type for HUGEINT and DECIMAL(38, 0), which differ here.

    Raises
    ------
    QueryError
        If an integer does not fit into 64 bits, or a type has no plain form.
    """
    columns, fields = [], []
    for field, column, duckdb_type in zip(table.schema, table.columns, types, strict=True):
        target = _plain_type(field.type, duckdb_type, field.name)
        columns.append(column if target == field.type else _converted(column, target, field.name))
        fields.append(pa.field(field.name, target))
    return pa.table(columns, schema=pa.schema(fields)) if fields else table


def _plain_type(arrow: pa.DataType, duckdb_type: Any, name: str) -> pa.DataType:
    kind = str(duckdb_type.id).lower()
    is_empty_struct = pt.is_struct(arrow) and arrow.num_fields == 0
    if kind in _NO_PLAIN_FORM or is_empty_struct or isinstance(arrow, pa.BaseExtensionType):
        column = quote(name)
        raise QueryError(
            f"the column {name!r} has the type {duckdb_type}, which has no plain form",
            hint=f"cast it: CAST({column} AS VARCHAR)"
            f"{f', or epoch({column}) for seconds' if kind == 'interval' else ', or BIGINT for a number'}",
            column=name,
            found=str(duckdb_type),
        )
    if kind == "hugeint":
        return pa.int64()
    if pt.is_null(arrow):
        return pa.int32()  # what DuckDB 1 says of NULL
    if pt.is_dictionary(arrow):
        return _without_views(arrow.value_type)
    if kind in _SINGLE:
        inner = _plain_type(arrow.value_type, dict(duckdb_type.children)["child"], name)
        return pa.list_(inner, arrow.list_size) if pt.is_fixed_size_list(arrow) else pa.list_(inner)
    if kind == "struct":
        members = [member for _, member in duckdb_type.children]
        return pa.struct(
            [  # DuckDB 1 gives the parts of ROW(...) no names
                pa.field(part.name or f"element{place}", _plain_type(part.type, member, name))
                for place, (part, member) in enumerate(zip(arrow, members, strict=True), 1)
            ]
        )
    if kind == "map":
        key, value = (member for _, member in duckdb_type.children)
        return pa.map_(_plain_type(arrow.key_type, key, name), _plain_type(arrow.item_type, value, name))
    return _without_views(arrow)


def _without_views(arrow: pa.DataType) -> pa.DataType:
    if pt.is_large_string(arrow) or pt.is_string_view(arrow):
        return pa.string()
    if pt.is_large_binary(arrow) or pt.is_binary_view(arrow):
        return pa.binary()
    return arrow


def _converted(column: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([convert(chunk, target) for chunk in column.chunks], target)
    except pa.ArrowInvalid as error:
        raise QueryError(
            f"overflow: the column {name!r} has integers beyond 64 bits",
            hint=f"CAST({name} AS DOUBLE) where a rounded number is enough, or CAST({name} AS DECIMAL(38, 0))",
            column=name,
        ) from error


# -- into DuckDB ----------------------------------------------------------------------------------------------


def is_loadable(schema: pa.Schema) -> bool:
    """Return whether DuckDB takes columns of these names and types as they are."""
    return bool(_loadable_schema(schema) == pa.schema([pa.field(f.name, f.type) for f in schema]))


def loadable_table(name: str, table: pa.Table) -> pa.Table:
    """Return a table that DuckDB takes without loss.

    Encodings (dictionaries, extensions, run ends, views) come off, half floats and narrow decimals widen, and a
    column or member without a name becomes ``unnamed``.

    Raises
    ------
    QueryError
        If two columns, or two members of one struct, differ only in letter case, as `refuse_twins` says; or a column
        holds what DuckDB cannot hold: decimals of more than 38 digits, durations below a microsecond, and in DuckDB 1
        times and zoned timestamps below a microsecond.
    """
    refuse_twins(f"the relation {name!r}", table.schema)
    target = _loadable_schema(table.schema)
    columns = []
    for field, column in zip(target, table.columns, strict=True):
        try:
            columns.append(
                pa.chunked_array([convert(chunk, field.type) for chunk in column.chunks], field.type)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise QueryError(
                f"the column {field.name!r} of {name!r} has the type {column.type}, which DuckDB cannot hold exactly",
                hint="cast the column before, or leave it out",
                relation=name,
                column=field.name,
            ) from error
    return pa.table(columns, schema=target)


def refuse_twins(what: str, schema: pa.Schema) -> None:
    """Refuse columns, or members of one struct at any depth, whose names differ at most in letter case.

    DuckDB takes them for one, so an answer could hold the values of the other.

    Raises
    ------
    QueryError
        If there are such names; it has the full path of each.
    """
    twins = _twins([(field.name, field.type) for field in schema], "")
    if twins:
        kind = "members of a struct" if "." in twins[0] and twins[0] not in schema.names else "columns"
        raise QueryError(
            f"{what} has {kind} that SQL does not tell apart: {', '.join(map(repr, twins))}",
            hint="SQL takes names that differ only in letter case for one: rename one, or leave it out",
            columns=twins,
        )


def _twins(members: Sequence[tuple[str, pa.DataType]], prefix: str) -> list[str]:
    """Return the paths of the first members found whose names differ at most in letter case."""
    counts = Counter(name.lower() for name, _ in members)
    twins = [f"{prefix}{name}" for name, _ in members if counts[name.lower()] > 1]
    if twins:
        return twins
    found = (_twins(_members(arrow), f"{prefix}{name}.") for name, arrow in members)
    return next(filter(None, found), [])


def _members(arrow: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the members of a type: of a struct by name, of all else that holds types by what Arrow calls them."""
    if isinstance(arrow, pa.BaseExtensionType):
        return _members(arrow.storage_type)
    if pt.is_dictionary(arrow) or pt.is_run_end_encoded(arrow):
        return _members(arrow.value_type)
    if is_list(arrow) or pt.is_fixed_size_list(arrow):
        return _members(arrow.value_type)
    if pt.is_map(arrow):
        return [("key", arrow.key_type), ("value", arrow.item_type)]
    return [(part.name, part.type) for part in arrow] if pt.is_struct(arrow) else []


def has_floats(types: Iterable[pa.DataType]) -> bool:
    """Return whether a float is among the types, at any depth."""
    return any(
        pt.is_floating(arrow)
        or has_floats(arrow.field(number).type for number in range(arrow.num_fields))
        or (pt.is_dictionary(arrow) and pt.is_floating(arrow.value_type))
        for arrow in types
    )


def _loadable_schema(schema: pa.Schema) -> pa.Schema:
    names = distinct_names(schema.names)
    return pa.schema([pa.field(n, _loadable_type(f.type)) for n, f in zip(names, schema, strict=True)])


def _loadable_type(arrow: pa.DataType) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        return arrow if arrow.extension_name in _KNOWN_EXTENSIONS else _loadable_type(arrow.storage_type)
    if pt.is_dictionary(arrow) or pt.is_run_end_encoded(arrow):
        return _loadable_type(arrow.value_type)
    if pt.is_float16(arrow):
        return pa.float32()
    if pt.is_decimal256(arrow):
        return pa.decimal128(min(arrow.precision, 38), arrow.scale)
    if pt.is_duration(arrow) and arrow.unit == "ns":
        return pa.duration("us")
    if DUCKDB_MAJOR < 2 and pt.is_time64(arrow):
        return pa.time64("us")
    if DUCKDB_MAJOR < 2 and pt.is_timestamp(arrow) and arrow.tz is not None and arrow.unit == "ns":
        return pa.timestamp("us", arrow.tz)
    if pt.is_struct(arrow):
        names = distinct_names([part.name for part in arrow])
        parts = [pa.field(n, _loadable_type(p.type)) for n, p in zip(names, arrow, strict=True)]
        return pa.struct(parts) if parts else pa.int32()  # of nulls: DuckDB 2 takes any member out of NULL
    if pt.is_map(arrow):
        return pa.map_(_loadable_type(arrow.key_type), _loadable_type(arrow.item_type))
    if pt.is_fixed_size_list(arrow):
        return pa.list_(_loadable_type(arrow.value_type), arrow.list_size)
    if is_list(arrow):
        return pa.list_(_loadable_type(arrow.value_type))
    return arrow


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names so that no two are equal but for letter case, and none is empty."""
    taken = {name.lower() for name in names}
    seen: set[str] = set()
    result = []
    for name in names:
        base = fresh = name or "unnamed"
        number = 0
        while fresh.lower() in seen or (number and fresh.lower() in taken):
            number += 1
            fresh = f"{base}_{number}"
        seen.add(fresh.lower())
        result.append(fresh)
    return result


# -- one array from type to type ------------------------------------------------------------------------------


def is_list(arrow: pa.DataType) -> bool:
    """Return whether a type is a list of variable length."""
    return bool(
        pt.is_list(arrow) or pt.is_large_list(arrow) or pt.is_list_view(arrow) or pt.is_large_list_view(arrow)
    )


def convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array in another type of the same shape: members by position, values cast without loss.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a value does not fit.
    """
    if array.type == target:
        return array
    if isinstance(array, pa.ExtensionArray):
        return convert(array.storage, target)
    if pt.is_dictionary(array.type):
        return convert(array.dictionary_decode(), target)
    if pt.is_run_end_encoded(array.type):
        return convert(pc.run_end_decode(array), target)
    if pt.is_null(target) or (pt.is_struct(array.type) and not pt.is_struct(target)):
        return pa.nulls(len(array), target)
    if pt.is_struct(array.type) and pt.is_struct(target):
        return _convert_struct(array, target)
    if pt.is_map(array.type) and pt.is_map(target):
        return _convert_map(array, target)
    if pt.is_fixed_size_list(array.type) and pt.is_fixed_size_list(target):
        size = target.list_size
        values = convert(array.values.slice(array.offset * size, len(array) * size), target.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=target, mask=_mask(array))
    if is_list(array.type) and pt.is_list(target):
        return _convert_list(array, target)
    return pc.cast(array, target)


def _convert_struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    parts = [convert(array.field(number), part.type) for number, part in enumerate(target)]
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=_mask(array))


def _convert_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    # Flattened, the values of a view are in the order of its lists, and no others are among them.
    values = convert(array.flatten(), target.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=_mask(array))


def _convert_map(array: pa.Array, target: pa.DataType) -> pa.Array:
    offsets = array.offsets.to_numpy()
    first, n_entries = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = convert(array.keys.slice(first, n_entries), target.key_type)
    items = convert(array.items.slice(first, n_entries), target.item_type)
    mask = np.append(_nulls(array), [False]) if array.null_count else None
    return pa.MapArray.from_arrays(pa.array(offsets - first, pa.int32(), mask=mask), keys, items, type=target)


def _nulls(array: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _mask(array: pa.Array) -> pa.Array | None:
    return pa.array(_nulls(array)) if array.null_count else None
