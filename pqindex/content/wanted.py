"""What a content pass looks for: columns with their types, checked before anything is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from pqindex.arrowtypes import is_list, plain_type, type_name
from pqindex.content.steps import has_steps
from pqindex.documents import BuildOptions
from pqindex.errors import ColumnMissingError, ColumnTypeError, UsageError
from pqindex.footer import SchemaRecord
from pqindex.format import MAY_HAVE, sequences_schema
from pqindex.scan import one_type

INDEX_COLUMNS: Final = frozenset(
    {"seq_no", "file", "partition", *sequences_schema(pa.int64(), pa.int64(), {}).names, *MAY_HAVE}
)
"""The columns of the relation `index` whose names no attribute and no aggregate may have, letter case aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is looked for in the values of the source.

    Attributes
    ----------
    digests : bool
        The digest of each row group's bytes.
    statistics, attributes : dict of str to pyarrow.DataType
        Columns, with the type that the values of all files fit in.
    order : (str, pyarrow.DataType) or None
        The order column, where its steps are looked at.
    aggregates : tuple of (str, str)
        Names and expressions.
    rows : pyarrow.Schema
        The columns that the aggregates read.
    trust_statistics : bool
        Whether exact and equal bounds prove that an attribute is constant in a row group.
    """

    digests: bool
    statistics: Mapping[str, pa.DataType]
    attributes: Mapping[str, pa.DataType]
    order: tuple[str, pa.DataType] | None
    aggregates: tuple[tuple[str, str], ...]
    rows: pa.Schema
    trust_statistics: bool


def validate_content_options(options: BuildOptions) -> None:
    """Refuse attributes and aggregates whose names cannot be columns of the relation `index`.

    Raises
    ------
    UsageError
        If a name is empty, taken, or there twice, letter case aside.
    """
    taken: dict[str, str] = dict.fromkeys(INDEX_COLUMNS, "a column of every index")
    named = [(name, "attribute") for name in options.attributes]
    named += [(name, "aggregate") for name, _ in options.aggregates]
    for name, role in named:
        if not name:
            raise UsageError(f"an {role} needs a name")
        if name.lower() in taken:
            hint = "name the aggregate otherwise" if role == "aggregate" else "leave it out"
            if role == "attribute" and name.lower() in INDEX_COLUMNS:
                hint = f'give it another name: aggregates={{"my_{name}": "any_value({name})"}} / --aggregate'
            raise UsageError(
                f"the name {name!r} of an {role} is taken: it is {taken[name.lower()]}", hint=hint, name=name
            )
        taken[name.lower()] = f"an {role} already"


def needs_content(options: BuildOptions) -> bool:
    """Return whether the options ask for anything that only the values tell."""
    return options.check == "full" or bool(options.attributes or options.aggregates)


def resolve_wanted(
    sequences: pa.Schema, schemas: Sequence[SchemaRecord], options: BuildOptions
) -> tuple[Wanted, list[str]]:
    """Return what the options ask for, and notes for people.

    Parameters
    ----------
    sequences : pyarrow.Schema
        Of the table `sequences`: it says which columns have statistics, and the order column's type.
    schemas : sequence of SchemaRecord
        Of the files, those of other parts of the index too: names and types hold for all of them.
    options : BuildOptions

    Raises
    ------
    ColumnMissingError, ColumnTypeError, QueryError
        If an attribute or an aggregate names a column that is not there, or is of a type that it cannot have.
    """
    full = options.check == "full"
    statistics: dict[str, pa.DataType] = {}
    if full and "stats" in sequences.names:
        statistics = {f.name: f.type.field("min").type for f in sequences.field("stats").type}
    order_type = sequences.field("order_min").type
    has_order = full and options.order is not None and has_steps(order_type)
    attributes = {name: _attribute_type(name, schemas) for name in options.attributes}
    missing = {name: sum(name not in schema.field_names for schema in schemas) for name in attributes}
    notes = [
        f"attribute {name!r} is null in the files that have no such column ({n} of {len(schemas)} schemas)"
        for name, n in missing.items()
        if n
    ]
    rows = pa.schema([])
    if options.aggregates:
        from pqindex.sql import check_aggregates  # duckdb, which a build without aggregates does not need

        schema = _all_columns(schemas)
        checked = check_aggregates(options.aggregates, schema)
        read = {column for aggregate in checked for column in aggregate.columns}
        rows = pa.schema([f for f in schema if f.name in read])
    return (
        Wanted(
            digests=full,
            statistics=statistics,
            attributes=attributes,
            order=(options.order or "", order_type) if has_order else None,
            aggregates=options.aggregates,
            rows=rows,
            trust_statistics=options.trust_statistics and not full,
        ),
        notes,
    )


def _attribute_type(name: str, schemas: Sequence[SchemaRecord]) -> pa.DataType:
    names = list(dict.fromkeys(other for schema in schemas for other in schema.field_names))
    if name not in names:
        near = [other for other in names if other.lower() == name.lower()]
        near += [n for n in difflib.get_close_matches(name, names, n=3, cutoff=0.5) if n not in near]
        there = ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the files have {there}"
        raise ColumnMissingError(f"attribute {name!r} is in no file", hint=hint, column=name)
    data_type = one_type(_types_of(name, schemas), column=name)
    if pt.is_nested(data_type) or is_list(data_type):
        raise ColumnTypeError(
            f"attribute {name!r} cannot be used; expected a column without nesting, found {type_name(data_type)}",
            hint=f'name an aggregate of it: aggregates={{"my_{name}": "any_value({name})"}} / --aggregate',
            column=name,
            expected="a column without nesting",
            found=type_name(data_type),
        )
    return data_type


def _types_of(name: str, schemas: Sequence[SchemaRecord]) -> Iterable[tuple[pa.DataType, str]]:
    for number, schema in enumerate(schemas):
        at = [i for i, other in enumerate(schema.field_names) if other == name]
        if len(at) > 1:
            raise ColumnMissingError(
                f"column {name!r} is there {len(at)} times",
                hint="write the files with each column named once",
                column=name,
            )
        if at:
            yield plain_type(schema.to_arrow().field(at[0]).type), f"schema {number}"


def _all_columns(schemas: Sequence[SchemaRecord]) -> pa.Schema:
    """Return every column whose values of all files fit in one type, each once."""
    fields = []
    for name in dict.fromkeys(other for schema in schemas for other in schema.field_names):
        try:
            fields.append(pa.field(name, one_type(_types_of(name, schemas), column=name)))
        except (ColumnMissingError, ColumnTypeError):
            continue  # an expression that names it hears that it is not there
    return pa.schema(fields)
