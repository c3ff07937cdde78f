"""Aggregate expressions over the rows of sequences: checked by the guard, and run many sequences at a time.

An expression sees the columns of the source files and nothing else. It runs on one thread over the rows of each
sequence in their order, so that float sums, `first`, `list` and their like come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.errors import QueryError
from pqindex.sql.connection import LockedDatabase
from pqindex.sql.engine import quote
from pqindex.sql.guard import CheckedQuery, check_query
from pqindex.sql.hints import did_you_mean
from pqindex.sql.plain import plain_answer
from pqindex.sql.tree import Node, columns_in, is_blank, nodes_in

ROWS_RELATION: Final = "sequence"
"""What an expression may call the rows of a sequence."""

GROUP_COLUMN: Final = "__pqindex_sequence"
"""The column of the rows that says which sequence each is of, int64."""

_REFUSED: Final[Mapping[str, str]] = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its number",
}
_PLACE: Final = re.compile(r": line \d+, column \d+")  # in a text that nobody wrote
_EXAMPLE: Final = "an aggregate is one expression, such as avg(price), or max(t) - min(t)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One checked aggregate.

    Attributes
    ----------
    name : str
    expression : str
        As it was given.
    columns : tuple of str
        The columns that it reads, as the files write them.
    """

    name: str
    expression: str
    columns: tuple[str, ...]


def check_aggregates(aggregates: Sequence[tuple[str, str]], schema: pa.Schema) -> list[Aggregate]:
    """Return aggregate expressions that the guard lets pass, with the columns that each reads.

    Parameters
    ----------
    aggregates : sequence of (name, expression)
    schema : pyarrow.Schema
        The columns that they may name.

    Raises
    ------
    QueryError
        If one does not parse, is not one expression over the rows, names what is not there or not allowed, gives
        another answer tomorrow, or is no aggregate.
    """
    with AggregateDatabase() as database:
        return [_check_aggregate(name, expression, schema, database) for name, expression in aggregates]


def _check_aggregate(name: str, expression: str, schema: pa.Schema, database: AggregateDatabase) -> Aggregate:
    try:
        query = _checked(expression, schema)
        columns = _columns_of(query.document, schema)
        # All others too, so that the hint of a name that is not there may name them.
        told = [f for f in schema if f.name in columns or _is_alone(f.name, schema)]
        found = database.n_values(query, pa.schema(told).empty_table())
    except QueryError as error:
        raise _of_aggregate(name, error) from error
    if found != 1:
        raise QueryError(
            f"aggregate {name!r}: {expression!r} gives a value a row, not one a sequence",
            hint=_EXAMPLE,
            aggregate=name,
        )
    return Aggregate(name=name, expression=expression, columns=columns)


def _of_aggregate(name: str, error: QueryError) -> QueryError:
    facts = {key: value for key, value in error.facts.items() if key != "aggregate"}
    message = _PLACE.sub("", error.message).replace("the query", "the expression")
    hint = error.hint
    if "GROUP BY" in message:
        hint = f"put the column into an aggregate function: {_EXAMPLE}"
    return QueryError(f"aggregate {name!r}: {message}", hint=hint, aggregate=name, **facts)


def _checked(expression: str, schema: pa.Schema) -> CheckedQuery:
    """Return the query that has the expression alone behind SELECT."""
    relations = {ROWS_RELATION: schema}
    if not expression.strip():
        raise QueryError("the expression is empty", hint=_EXAMPLE)
    # Once in parentheses, since that is how it will run; once bare, since `a, b` in parentheses is a row.
    query = check_query(f"SELECT (\n{expression}\n) FROM {ROWS_RELATION}", relations=relations)  # noqa: S608 - checked
    _check_shape(query)
    _check_shape(check_query(f"SELECT\n{expression}\nFROM {ROWS_RELATION}", relations=relations))
    if query.volatile:
        raise QueryError(
            f"an aggregate has to give the same answer tomorrow, and {', '.join(query.volatile)} does not",
            hint="leave it out",
        )
    return query


def _check_shape(query: CheckedQuery) -> None:
    (statement,) = query.document["statements"]
    node = statement["node"]
    is_bare = node["type"] == "SELECT_NODE" and all(
        is_blank(value)
        for key, value in node.items()
        if key not in {"type", "select_list", "from_table", "aggregate_handling"}
    )
    table = node.get("from_table") or {}
    is_bare = (
        is_bare and table.get("type") == "BASE_TABLE" and not table.get("alias") and not table.get("sample")
    )
    if not is_bare or len(node["select_list"]) != 1:
        raise QueryError("one expression is allowed, and nothing behind it", hint=_EXAMPLE)
    (expression,) = node["select_list"]
    for part in nodes_in(expression):
        refused = _REFUSED.get(str(part.get("class")))
        if refused is not None:
            raise QueryError(f"{refused} is not allowed in an aggregate", hint=_EXAMPLE)


def _columns_of(document: Node, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of the files that an expression may mean, letter case aside."""
    by_lower: dict[str, list[str]] = {}
    for name in schema.names:
        by_lower.setdefault(name.lower(), []).append(name)
    found: dict[str, None] = {}
    for parts, _ in columns_in(document):
        lower = [part.lower() for part in parts]
        if lower[0] not in by_lower and lower[0] == ROWS_RELATION:
            if len(lower) == 1:
                raise QueryError(
                    f"{ROWS_RELATION!r} is all columns at once, which an aggregate may not name",
                    hint=did_you_mean(ROWS_RELATION, schema.names, _EXAMPLE),
                )
            lower = lower[1:]
        if (
            lower[0] == "rowid" and "rowid" not in by_lower
        ):  # DuckDB's own, which hangs on how rows are batched
            raise QueryError("no column 'rowid'", hint=did_you_mean("rowid", schema.names, _EXAMPLE))
        found.update(dict.fromkeys(by_lower.get(lower[0], ())))
    return tuple(name for name in dict.fromkeys(schema.names) if name in found)


def _is_alone(name: str, schema: pa.Schema) -> bool:
    return [other.lower() for other in schema.names].count(name.lower()) == 1


class AggregateDatabase:
    """Runs aggregates over the rows of many sequences at once. One a process; not thread-safe."""

    def __init__(self) -> None:
        self._database = LockedDatabase({}, threads=1, timeout_s=None)

    def n_values(self, query: CheckedQuery, rows: pa.Table) -> int:
        """Return how many values a checked expression gives over some rows: one, where it is an aggregate."""
        with self._database.with_relations({ROWS_RELATION: rows}) as database:
            answer = database.run_unchecked(query.sql, relations=(ROWS_RELATION,), n_threads=1, query=query)
            plain_answer(answer.table, answer.types)
            return int(answer.table.num_rows)

    def run(self, aggregates: Sequence[tuple[str, str]], rows: pa.Table) -> pa.Table:
        """Return the values of the aggregates, a row a sequence, ascending by `GROUP_COLUMN`.

        Parameters
        ----------
        aggregates : sequence of (name, expression)
            Checked ones.
        rows : pyarrow.Table
            The rows of some sequences, each in its order, and `GROUP_COLUMN`.

        Raises
        ------
        QueryError
            If an expression fails, or gives integers beyond 64 bits.
        """
        sequences = np.unique(rows.column(GROUP_COLUMN).to_numpy())
        with self._database.with_relations({ROWS_RELATION: rows}) as database:
            try:
                return _run(database, aggregates, sequences)
            except QueryError:
                for aggregate in aggregates:  # which of them is it?
                    try:
                        _run(database, [aggregate], sequences)
                    except QueryError as error:
                        raise _of_aggregate(aggregate[0], error) from error
                raise

    def close(self) -> None:
        """Free the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(
    database: LockedDatabase, aggregates: Sequence[tuple[str, str]], sequences: npt.NDArray[np.int64]
) -> pa.Table:
    columns = ", ".join(f"(\n{expression}\n) AS {quote(name)}" for name, expression in aggregates)
    sql = f"SELECT {GROUP_COLUMN}, {columns} FROM {ROWS_RELATION} GROUP BY {GROUP_COLUMN} ORDER BY {GROUP_COLUMN}"  # noqa: S608 - checked
    answer = database.run_unchecked(sql, relations=(ROWS_RELATION,), n_threads=1)
    values = plain_answer(answer.table, answer.types)
    if not np.array_equal(values.column(GROUP_COLUMN).to_numpy(), sequences):
        raise QueryError("the expression does not give one value a sequence", hint=_EXAMPLE)
    return values
