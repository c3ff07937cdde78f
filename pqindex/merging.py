"""Tables of several parts as one: rows under each other, each column of the one type that holds all its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.arrowtypes import type_name, unify_types
from pqindex.errors import DocumentInvalidError

STATS = "stats"


def union(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, in the order of the tables.

    A column that a table lacks is null there. Of the structs in the column `stats`, those whose types no type
    holds, and those that differ only in letter case, are left out, as a build of all files leaves them out.

    Raises
    ------
    DocumentInvalidError
        If another column has types that no type holds.
    """
    if all(table.schema.equals(tables[0].schema) for table in tables[1:]):
        return pa.concat_tables(tables)
    fields = []
    for name in dict.fromkeys(name for table in tables for name in table.column_names):
        found = [table.schema.field(name) for table in tables if name in table.column_names]
        types = [field.type for field in found]
        data_type = _stats_union(types) if name == STATS else unify_types(types)
        if data_type is None:
            raise DocumentInvalidError(
                f"column {name!r} has types in the parts of the index that no one type holds: "
                f"{', '.join(dict.fromkeys(type_name(t) for t in types))}",
                hint="build the index again",
                problems=(name,),
            )
        if name != STATS or data_type.num_fields:
            nullable = len(found) < len(tables) or any(field.nullable for field in found)
            fields.append(pa.field(name, data_type, nullable=nullable))
    schema = pa.schema(fields)
    return pa.concat_tables([_fitted(table, schema) for table in tables])


def with_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the table with some of its columns as other types; names that it has not are passed over."""
    fields = [field.with_type(types.get(field.name, field.type)) for field in table.schema]
    schema = pa.schema(fields)
    return table if schema.equals(table.schema) else _fitted(table, schema)


def _stats_union(types: Iterable[pa.DataType]) -> pa.DataType:
    found: dict[str, list[pa.DataType]] = {}
    for data_type in types:
        for field in data_type:
            found.setdefault(field.name, []).append(field.type)
    lower = Counter(name.lower() for name in found)
    merged = {name: _statistics_type(some) for name, some in found.items() if lower[name.lower()] == 1}
    return pa.struct([pa.field(name, t) for name, t in merged.items() if t is not None])


def _statistics_type(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the struct with the members of all structs, None where a member has no type that holds all."""
    members: dict[str, list[pa.DataType]] = {}
    for data_type in types:
        for field in data_type:
            members.setdefault(field.name, []).append(field.type)
    merged = {name: unify_types(some) for name, some in members.items()}
    if any(t is None for t in merged.values()):
        return None
    return pa.struct([pa.field(name, t) for name, t in merged.items()])


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of the schema, and their types."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        chunks = [_fitted_array(chunk, field.type) for chunk in column.chunks]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, schema=schema)


def _fitted_array(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the values as another type; the fields of a struct by name."""
    if array.type == data_type:
        return array
    if not pa.types.is_struct(data_type):
        return array.cast(data_type)
    there = {field.name: i for i, field in enumerate(array.type)}
    children = [
        _fitted_array(array.field(there[field.name]), field.type)
        if field.name in there
        else pa.nulls(len(array), field.type)
        for field in data_type
    ]
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=array.is_null())


def order_of(file_id: pa.ChunkedArray) -> npt.NDArray[np.int64] | None:
    """Return the order that puts the rows of several parts into that of their files; None where they are in it.

    Rows of one file come from one part, where they are in their order already. Shape (n,), int64.
    """
    values = file_id.to_numpy()
    if not len(values) or bool(np.all(values[1:] >= values[:-1])):
        return None
    return np.argsort(values, kind="stable")
