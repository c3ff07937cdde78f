"""Tables that a user attaches by name: files, Arrow, pandas and polars, as plain Arrow tables."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as pds
import pyarrow.ipc
import pyarrow.parquet as pq
import pyarrow.types as pt

from pqindex.errors import NotFoundError, QueryError
from pqindex.sql.plain import convert, is_list, refuse_twins
from pqindex.sql.tree import parse_query

RESERVED_NAMES = ("index", "files", "row_groups", "segments", "snapshots")
"""The relations of an index: no table can be attached under these."""

_SUFFIXES = (".parquet", ".csv", ".arrow", ".feather")
_LEADING_ZERO = r"^[+-]?0[0-9]"


def attached_tables(
    attach: Mapping[str, object], *, reserved: Collection[str] = RESERVED_NAMES
) -> dict[str, pa.Table]:
    """Return the tables that `attach` names, read whole, rows in their order.

    Parameters
    ----------
    attach : mapping of str to object
        By name: a path to a ``.parquet``, ``.csv``, ``.arrow`` or ``.feather`` file; a pyarrow Table, RecordBatch,
        RecordBatchReader or Dataset; a pandas or polars DataFrame, or whatever else has ``__arrow_c_stream__``.
    reserved : collection of str
        Names that are taken.

    Returns
    -------
    dict of str to pyarrow.Table
        In plain types: no dictionaries, no views, no large offsets, no metadata. In CSV, a column of numbers of
        which one is written with zeros before it (``007``) stays text, so that ids keep their zeros.

    Raises
    ------
    QueryError
        If a name is not a plain identifier or is taken, an object is of another kind, or a file is unreadable.
    NotFoundError
        If a file is not there.
    """
    tables: dict[str, pa.Table] = {}
    for name, source in attach.items():
        validated = parse_relation_name(name, taken=[*reserved, *tables])
        tables[validated] = plain_table(_table(validated, source), f"the attached table {validated!r}")
    return tables


def parse_relation_name(name: object, *, taken: Collection[str] = ()) -> str:
    """Return a name that a query can write without quotes.

    Raises
    ------
    QueryError
        If it is not such a name, or is taken, letter case aside.
    """
    if (
        not isinstance(name, str)
        or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
        or not _is_unquoted(name)
    ):
        raise QueryError(
            f"the name {name!r} cannot be written in a query without quotes",
            hint="use letters, digits and _, no SQL keyword: labels, split_2024",
            name=name,
        )
    if name.lower() in {other.lower() for other in taken}:
        raise QueryError(
            f"the name {name!r} is taken",
            hint=f"attach it under another name than {', '.join(taken)}",
            name=name,
        )
    return name


def _is_unquoted(name: str) -> bool:
    try:
        document = parse_query(f"FROM {name}")
    except QueryError:
        return False
    table: Any = document["statements"][0]["node"]["from_table"]
    return bool(table["type"] == "BASE_TABLE" and table["table_name"].lower() == name.lower())


def _table(name: str, source: object) -> pa.Table:
    if isinstance(source, str | os.PathLike):
        return _read(name, Path(os.fspath(source)))
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.RecordBatchReader):
        return source.read_all()
    try:
        if isinstance(source, pds.Dataset):
            return source.to_table()
        if hasattr(source, "__arrow_c_stream__"):
            return _without_row_numbers(pa.table(source))
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise QueryError(
            f"the attached table {name!r} cannot be read: {_sentence(error)}", name=name
        ) from error
    raise QueryError(
        f"cannot attach a {type(source).__name__} as {name!r}",
        hint="give a path (.parquet, .csv, .arrow, .feather), a pyarrow Table or Dataset, or a DataFrame of pandas or "
        "polars",
        name=name,
        found=type(source).__name__,
    )


def _without_row_numbers(table: pa.Table) -> pa.Table:
    """Return a table without the row labels that pandas sends along when they have no name."""
    labels = [name for name in table.column_names if re.fullmatch("__index_level_[0-9]+__", name)]
    return table.drop_columns(labels) if labels and b"pandas" in (table.schema.metadata or {}) else table


# -- files ----------------------------------------------------------------------------------------------------


def _read(name: str, path: Path) -> pa.Table:
    suffix = path.suffix.lower()
    if not path.exists():
        raise NotFoundError(f"the file attached as {name!r} is not there: {path}", name=name, path=str(path))
    if not path.is_file() or suffix not in _SUFFIXES:
        raise QueryError(
            f"cannot attach {str(path)!r} as {name!r}: expected a file ending in {', '.join(_SUFFIXES)}",
            hint="read it first, and attach the table",
            name=name,
            path=str(path),
        )
    try:
        if suffix == ".parquet":
            return pq.ParquetFile(path).read()
        return _read_csv(path) if suffix == ".csv" else _read_arrow(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise QueryError(
            f"the file attached as {name!r} is not readable {suffix[1:]}: {path}: {_sentence(error)}",
            name=name,
            path=str(path),
        ) from error


def _read_arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            source.seek(0)
            return pa.ipc.open_file(source).read_all()
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _read_csv(path: Path) -> pa.Table:
    table = pa.csv.read_csv(path)
    if len(set(table.column_names)) < len(table.column_names):
        raise ValueError("two columns have one name")
    numbers = [
        field.name for field in table.schema if pt.is_integer(field.type) or pt.is_floating(field.type)
    ]
    if not numbers:
        return table
    options = pa.csv.ConvertOptions(
        include_columns=numbers, column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=True
    )
    texts = pa.csv.read_csv(path, convert_options=options)
    for column in numbers:
        text = texts.column(column)
        if pc.any(pc.match_substring_regex(text, _LEADING_ZERO)).as_py():
            table = table.set_column(table.column_names.index(column), column, text)
    return table


def _sentence(error: BaseException) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0].rstrip(".")


# -- plain types ----------------------------------------------------------------------------------------------


def plain_table(table: pa.Table, what: str = "the attached table") -> pa.Table:
    """Return a table in plain types, without metadata.

    Raises
    ------
    QueryError
        If two columns, or two members of a struct, have one name, letter case aside.
    """
    refuse_twins(what, table.schema)
    fields = [pa.field(field.name, plain_type(field.type)) for field in table.schema]
    columns = [
        pa.chunked_array([convert(chunk, field.type) for chunk in column.chunks], field.type)
        for field, column in zip(fields, table.columns, strict=True)
    ]
    return pa.table(columns, schema=pa.schema(fields))


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries, views, large offsets, run ends and extensions, at any depth."""
    if isinstance(arrow, pa.BaseExtensionType):
        return plain_type(arrow.storage_type)
    if pt.is_dictionary(arrow) or pt.is_run_end_encoded(arrow):
        return plain_type(arrow.value_type)
    if pt.is_large_string(arrow) or pt.is_string_view(arrow):
        return pa.string()
    if pt.is_large_binary(arrow) or pt.is_binary_view(arrow):
        return pa.binary()
    if pt.is_struct(arrow):
        return pa.struct([pa.field(part.name, plain_type(part.type)) for part in arrow])
    if pt.is_map(arrow):
        return pa.map_(plain_type(arrow.key_type), plain_type(arrow.item_type))
    if pt.is_fixed_size_list(arrow):
        return pa.list_(plain_type(arrow.value_type), arrow.list_size)
    return pa.list_(plain_type(arrow.value_type)) if is_list(arrow) else arrow
