"""What DuckDB's errors say, in words that help: which name, where, and what there is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.types as pt

from pqindex.errors import QueryError
from pqindex.sql.tree import Node, columns_in, first_line, is_too_deep, too_deep, where_in

MOST_NAMES = 40
STATISTICS = "stats"

_COLUMN = re.compile(
    r'Referenced column "(?P<column>.+?)" (?:was )?not found'
    r'|Table "(?P<table>.+?)" does not have a column named "(?P<of_table>.+?)"'
    r'|[Cc]olumn "(?P<listed>.+?)" in (?:EXCLUDE|REPLACE|RENAME) list not found'
    r'|Column "(?P<joined>.+?)" does not exist on (?:left|right) side of join'
)
_MEMBER = re.compile(r'Could not find key "(?P<member>.+?)" in struct')
_NO_STRUCT = re.compile(
    r"""Cannot extract field ['"](?P<member>.+?)['"] from expression ['"](?P<column>.+?)['"]"""
)
_TABLE = re.compile(r'Referenced table "(?P<table>.+?)" not found')


def did_you_mean(name: str, candidates: Iterable[str], also: str) -> str:
    """Return a hint: ``did you mean 'a' or 'b'?`` where names are near `name`, and what else helps."""
    near = near_names(name, candidates)
    return f"did you mean {' or '.join(repr(other) for other in near)}? {also}" if near else also


def near_names(name: str, candidates: Iterable[str], n: int = 3) -> list[str]:
    """Return the names most like `name`, best first, letter case aside."""
    by_lower: dict[str, str] = {}
    for candidate in candidates:
        by_lower.setdefault(candidate.lower(), candidate)
    near = difflib.get_close_matches(name.lower(), by_lower, n=n, cutoff=0.7)
    if not near:
        near = [other for other in by_lower if name.lower() in other.split(".")][:n]
    return [by_lower[other] for other in near]


def column_paths(schema: pa.Schema) -> list[str]:
    """Return the columns of a relation, and the members of its structs as dotted paths."""
    return [path for field in schema for path in _paths(field, "")]


def _paths(field: pa.Field, prefix: str) -> Iterator[str]:
    path = f"{prefix}{field.name}"
    yield path
    if pt.is_struct(field.type):
        for member in field.type:
            yield from _paths(member, f"{path}.")


def query_error(
    error: duckdb.Error, *, schemas: Mapping[str, pa.Schema], sql: str = "", document: Node | None = None
) -> QueryError:
    """Return an error of DuckDB as one that names what is missing, where, and what there is.

    Parameters
    ----------
    error : duckdb.Error
        What DuckDB raised while it bound or ran a query.
    schemas : mapping of str to pyarrow.Schema
        The relations that the query sees.
    sql : str
        The query's text, to name the place.
    document : dict, optional
        The query's tree, to find the place, and the whole path of a missing struct member.
    """
    text = str(error)
    columns = list(columns_in(document))
    column = _COLUMN.search(text)
    if column is not None:
        name = next(value for key, value in column.groupdict().items() if value and key != "table")
        place = next((at for parts, at in columns if parts[-1].lower() == name.lower()), None)
        return _no_column(name, column.groupdict().get("table"), where_in(sql, place), schemas)
    member = _MEMBER.search(text)
    if member is not None:
        return _no_member(member["member"], sql, columns, schemas)
    no_struct = _NO_STRUCT.search(text)
    if no_struct is not None and _about_statistics(no_struct["column"].split(".")[-1], schemas):
        path = f"{STATISTICS}.{no_struct['member']}"
        return QueryError(f"no column {path!r}", hint=_hint(path, (), schemas), column=path, near=[])
    missing = _TABLE.search(text)
    if missing is not None:
        name = missing["table"]
        place = next((at for parts, at in columns if name.lower().startswith(parts[0].lower())), None)
        return QueryError(
            f"no table or struct {name!r} in the query{where_in(sql, place)}",
            hint=_hint(name, [*schemas, *_all_paths(schemas)], schemas),
            name=name,
        )
    return too_deep() if is_too_deep(error) else QueryError(f"the query fails: {first_line(error)}")


def _no_column(name: str, table: str | None, where: str, schemas: Mapping[str, pa.Schema]) -> QueryError:
    paths = _all_paths(schemas)
    return QueryError(
        f"no column {name!r}{f' in {table!r}' if table else ''}{where}",
        hint=_hint(name, paths, schemas),
        column=name,
        near=near_names(name, paths),
    )


def _no_member(
    name: str, sql: str, columns: Iterable[tuple[Sequence[str], int | None]], schemas: Mapping[str, pa.Schema]
) -> QueryError:
    paths = _all_paths(schemas)
    known = {path.lower() for path in paths}
    members = [path for path in paths if "." in path]
    asked, place = name, None
    for parts, at in columns:
        path = _struct_path(parts, known)
        if path is not None and path.split(".")[-1].lower() == name.lower():
            asked, place = path, at
            break
    return QueryError(
        f"no member {name!r} in a struct{f', asked for as {asked}' if asked != name else ''}"
        f"{where_in(sql, place)}",
        hint=_hint(asked, members, schemas),
        column=asked,
        near=near_names(asked, members),
    )


def _struct_path(parts: Sequence[str], known: set[str]) -> str | None:
    """Return the dotted path up to the first member that no struct has, without the relation's name."""
    for start in range(len(parts)):
        if parts[start].lower() in known:
            for stop in range(start + 1, len(parts) + 1):
                path = ".".join(parts[start:stop])
                if path.lower() not in known:
                    return path
    return None


def _all_paths(schemas: Mapping[str, pa.Schema]) -> list[str]:
    return list(dict.fromkeys(path for schema in schemas.values() for path in column_paths(schema)))


def _hint(name: str, candidates: Iterable[str], schemas: Mapping[str, pa.Schema]) -> str:
    """Return what is near, what is known of statistics if they are meant, and what there is."""
    statistics = _about_statistics(name, schemas)
    there_is = _what_there_is(schemas)
    return did_you_mean(name, candidates, f"{statistics}; {there_is}" if statistics else there_is)


def _about_statistics(path: str, schemas: Mapping[str, pa.Schema]) -> str:
    """Return which statistics an index keeps, for a path below its struct ``stats`` that is not there."""
    index = next((schema for name, schema in schemas.items() if name.lower() == "index"), None)
    parts = path.lower().split(".")
    if index is None or parts[0] != STATISTICS:
        return ""
    kept = index.field(STATISTICS).type if STATISTICS in index.names else pa.struct([])
    names = [member.name for member in kept] if pt.is_struct(kept) else []
    if len(parts) > 2 and parts[1] in {name.lower() for name in names}:
        return ""
    shown = f"{', '.join(names[:MOST_NAMES])}{', ...' if len(names) > MOST_NAMES else ''}"
    told = f"statistics are kept of {shown} only" if names else "no statistics are kept in this index"
    told += ": build it with --statistics COLUMN / statistics=[...] to name what to keep"
    if "order_min" in index.names and "order_max" in index.names:
        told += "; the bounds of the order column are order_min and order_max"
    return told


def _what_there_is(schemas: Mapping[str, pa.Schema]) -> str:
    """Return the columns of each relation, shortened where they are many."""
    told = []
    for name, schema in schemas.items():
        names = schema.names
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        told.append(f"{name} has {', '.join(names[:MOST_NAMES])}{more}")
    return "; ".join(told) if told else "no relation is named in FROM"
