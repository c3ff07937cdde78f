"""A selection: the answer of a query as an ordered list of sequences, the same every time.

The query runs on one thread over rows in the canonical order, so that sums of floats, ``first``, ``any_value`` and
their like come out the same. Its ORDER BY is taken off its end and put around it, where the canonical rank of each
sequence can break ties; LIMIT and OFFSET follow it, so that they cut in that order too. What ORDER BY names besides
the answer's columns is carried out of the query in hidden columns, as DuckDB does it itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pqindex.errors import FIRST_PLACES, QueryError
from pqindex.sql.connection import LockedDatabase, checked_parameters
from pqindex.sql.engine import Parameters, quote
from pqindex.sql.guard import CheckedQuery, outermost
from pqindex.sql.hints import did_you_mean
from pqindex.sql.plain import plain_answer
from pqindex.sql.tree import Node, columns_in, nodes_in, parse_query, print_query

RANK_COLUMN = "__seq_no"
"""The last column of a selection: the canonical rank of each sequence, int64."""

DUPLICATES = ("error", "keep")


def run_selection(
    database: LockedDatabase,
    query: CheckedQuery,
    params: Parameters = None,
    *,
    id_column: str = "seq_id",
    rank_relation: str = "index",
    rank_column: str = "seq_no",
    duplicates: str = "error",
) -> pa.Table:
    """Return the sequences that a query chooses, in its order.

    The order is the query's ORDER BY, ties broken by the canonical rank; without ORDER BY it is the canonical
    order. Without ORDER BY, LIMIT takes the first in the canonical order. Costs one run of the query on one thread,
    and a join with the relation that has the ranks.

    Parameters
    ----------
    database : LockedDatabase
    query : CheckedQuery
    params : sequence, mapping or None
    id_column : str
        The column of the answer that names sequences, and of `rank_relation`. Letter case does not matter, as in
        SQL; the answer has it as it is written here.
    rank_relation, rank_column : str
        Where the canonical ranks are: integers from 0, distinct.
    duplicates : {"error", "keep"}
        What becomes of a sequence that the answer has twice. Kept ones are ordered by all their columns at last.

    Returns
    -------
    pyarrow.Table
        The columns of the query, and `RANK_COLUMN`. No rows are an answer too.

    Raises
    ------
    QueryError
        If the answer has no `id_column`, one of another type, null or unknown ids, a sequence twice, or two columns
        of one name; if the ORDER BY or LIMIT cannot be taken off; or as in `LockedDatabase.execute`.
    """
    if duplicates not in DUPLICATES:
        raise QueryError(f"duplicates={duplicates!r} is not one of {', '.join(DUPLICATES)}")
    values = checked_parameters(query.parameters, params)
    relations = (*query.relations, rank_relation)
    shape = _described(database, query, values)
    ranks = _described_relation(database, rank_relation)
    ids = _check_shape(shape, ranks, id_column=id_column, rank_relation=rank_relation)
    wrapping = _Wrapping(
        shape,
        ids,
        relation=rank_relation,
        id_column=id_column,
        rank_column=rank_column,
        total=duplicates == "keep",
    )
    text = wrapping.text(query)
    answer = database.run_unchecked(text, values, relations=relations, n_threads=1, query=query)
    table = plain_answer(answer.table, answer.types)
    names = [id_column if number == ids else name for number, name in enumerate(table.column_names)]
    table = table.rename_columns(names)
    _check_rows(table, id_column=id_column, rank_relation=rank_relation, duplicates=duplicates)
    return table if wrapping.is_ordered else _in_canonical_order(table)


# -- what the answer looks like -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Names and DuckDB's types of the columns of an answer."""

    names: tuple[str, ...]
    types: tuple[str, ...]


def _described(database: LockedDatabase, query: CheckedQuery, values: Parameters) -> _Shape:
    return _describe(database, f"DESCRIBE ({query.sql}\n)", values, query.relations, query)


def _described_relation(database: LockedDatabase, name: str) -> _Shape:
    return _describe(database, f"DESCRIBE (FROM {quote(name)})", None, (name,), None)


def _describe(
    database: LockedDatabase,
    sql: str,
    values: Parameters,
    relations: Sequence[str],
    query: CheckedQuery | None,
) -> _Shape:
    table = database.run_unchecked(sql, values, relations=relations, n_threads=1, query=query).table
    return _Shape(names=tuple(table.column(0).to_pylist()), types=tuple(table.column(1).to_pylist()))


def _check_shape(shape: _Shape, ranks: _Shape, *, id_column: str, rank_relation: str) -> int:
    """Return the number of the id column, after the checks that need no rows."""
    lower = [name.lower() for name in shape.names]
    twice = sorted({name for name in shape.names if lower.count(name.lower()) > 1})
    if twice:
        raise QueryError(
            f"the answer has two columns of one name: {', '.join(twice)}",
            hint="JOIN ... USING (seq_id) keeps one seq_id; otherwise name one with AS, or leave it out with EXCLUDE",
            columns=twice,
        )
    if RANK_COLUMN in lower:
        raise QueryError(f"the column name {RANK_COLUMN!r} is taken", hint="name it otherwise with AS")
    if id_column.lower() not in lower:
        raise QueryError(
            f"the answer has no column {id_column!r}, so it chooses no sequences; it has {', '.join(shape.names)}",
            hint=did_you_mean(
                id_column,
                shape.names,
                f"put {id_column} behind SELECT; to look without choosing, use sql() or `pqindex query`",
            ),
            expected=id_column,
            found=shape.names,
        )
    number = lower.index(id_column.lower())
    expected = ranks.types[[name.lower() for name in ranks.names].index(id_column.lower())]
    if shape.types[number] != expected:
        raise QueryError(
            f"the column {id_column!r} of the answer is {shape.types[number]}, that of {rank_relation!r} is {expected}",
            hint=f"take it from {rank_relation}: {rank_relation}.{id_column}; "
            f"or CAST({id_column} AS {expected}) AS {id_column}",
            expected=expected,
            found=shape.types[number],
        )
    return number


def _check_rows(table: pa.Table, *, id_column: str, rank_relation: str, duplicates: str) -> None:
    """Check the rows: every id is there, in the index, and once."""
    ids, ranks = table.column(id_column), table.column(RANK_COLUMN)
    if ids.null_count:
        raise QueryError(
            f"{ids.null_count} of {len(ids)} rows of the answer have no {id_column}",
            hint=f"an outer join leaves it null: use JOIN, or WHERE {id_column} IS NOT NULL",
            n_null=ids.null_count,
        )
    if ranks.null_count:
        unknown = ids.filter(pc.is_null(ranks))
        raise QueryError(
            f"{len(unknown)} of {len(ids)} rows of the answer name sequences that are not in {rank_relation!r}: "
            f"{_first(unknown)}",
            hint=f"JOIN {rank_relation} USING ({id_column}) keeps those that are",
            sequences=_values(unknown),
        )
    if duplicates == "keep":
        return
    numbers = ranks.to_numpy()
    counts = np.bincount(numbers)
    if counts.size and counts.max() > 1:
        repeated = np.unique(numbers[counts[numbers] > 1], return_index=True)[1]
        repeated = np.sort(np.flatnonzero(counts[numbers] > 1)[repeated])
        twice = ids.take(pa.array(repeated))
        raise QueryError(
            f"{len(twice)} sequences are in the answer more than once: {_first(twice)}",
            hint="a join with several matches does that: use SELECT DISTINCT or GROUP BY, or aggregate the "
            "joined table before",
            sequences=_values(twice),
            n_sequences=len(twice),
        )


def _first(ids: pa.ChunkedArray) -> str:
    more = f" and {len(ids) - FIRST_PLACES} more" if len(ids) > FIRST_PLACES else ""
    return ", ".join(value if _is_told_as_text(ids.type) else repr(value) for value in _values(ids)) + more


def _values(ids: pa.ChunkedArray) -> list[Any]:
    """Return the first ids for a message; times and decimals as text, which holds every value."""
    first = ids[:FIRST_PLACES]
    if not _is_told_as_text(ids.type):
        return list(first.to_pylist())
    texts = first.cast(pa.string()).to_pylist()
    return [text.replace(" ", "T") for text in texts] if pt.is_timestamp(ids.type) else list(texts)


def _is_told_as_text(kind: pa.DataType) -> bool:
    return bool(pt.is_temporal(kind) or pt.is_decimal(kind))


def _in_canonical_order(table: pa.Table) -> pa.Table:
    """Return the rows by rank: most often they already are, since they are scanned in that order."""
    numbers = table.column(RANK_COLUMN).to_numpy()
    if (numbers[1:] > numbers[:-1]).all():
        return table
    return table.take(pa.array(np.argsort(numbers, kind="stable")))


# -- the query, with its order around it ----------------------------------------------------------------------


class _Wrapping:
    """The text of a query whose ORDER BY and LIMIT stand outside, with the rank as the last key.

    It reads ``FROM (the query) AS q(c0, ..., k0, ...) LEFT JOIN index AS r ON q.c0 = r.seq_id SELECT q.c0 AS name,
    ..., r.seq_no ORDER BY q.k0, ..., r.seq_no LIMIT ...``: the columns go by position, so names do not matter.
    Where the query takes its ids straight from the index (see `_rank_beside_id`), the rank is carried out of it
    beside them, and no join is needed.

    Attributes
    ----------
    is_ordered : bool
        Whether the answer comes in the order wanted; if not, it is wanted in canonical order.
    """

    def __init__(
        self, shape: _Shape, ids: int, *, relation: str, id_column: str, rank_column: str, total: bool
    ) -> None:
        self._shape = shape
        self._columns = [f"c{number}" for number in range(len(shape.names))]
        self._ids = ids
        self._relation = relation
        self._id_column = id_column
        self._rank_column = rank_column
        self._total = total
        self.is_ordered = True

    def text(self, query: CheckedQuery) -> str:
        """Return the text.

        Raises
        ------
        QueryError
            If its ORDER BY or LIMIT cannot be taken off.
        """
        statement = query.document["statements"][0]
        root = _with_own_outermost(statement["node"])
        node = outermost(root)
        order, limits, hidden = self._take_off(node)
        rank = _rank_beside_id(
            statement["node"],
            relation=self._relation,
            id_column=self._id_column,
            rank_column=self._rank_column,
        )
        self.is_ordered = bool(order or limits or self._total)
        if (
            rank is None and not order and not limits
        ):  # nothing to take off or carry: the text stands as it is
            return self._around(f"{query.sql}\n", 0, joins=True)
        if rank is not None:
            hidden = [*hidden, rank]
        if hidden:
            node["select_list"] = [*node["select_list"], *hidden]
        wrapping = parse_query(self._around("SELECT 1", len(hidden), joins=rank is None))
        outer = wrapping["statements"][0]
        outer["named_param_map"] = statement["named_param_map"]
        table = outer["node"]["from_table"]
        (table if rank is not None else table["left"])["subquery"]["node"] = root
        modifiers = outer["node"]["modifiers"]
        if self.is_ordered:
            modifiers[0]["orders"] = order + modifiers[0]["orders"]
            modifiers.extend(limits)
        try:
            return print_query(wrapping)
        except QueryError as error:
            if self.is_ordered:
                raise QueryError(
                    error.message, hint="leave ORDER BY and LIMIT out, and order the answer afterwards"
                ) from error
            return self._around(f"{query.sql}\n", 0, joins=True)

    def _around(self, query: str, n_hidden: int, *, joins: bool) -> str:
        """Return the text around a query with `n_hidden` more columns, the last of them the rank unless it `joins`."""
        hidden = [f"k{number}" for number in range(n_hidden)]
        rank = f"r.{quote(self._rank_column)}" if joins else f"q.{hidden[-1]}"
        columns = [
            f"q.{column} AS {quote(name)}"
            for column, name in zip(self._columns, self._shape.names, strict=True)
        ]
        columns.append(f"CAST({rank} AS BIGINT) AS {quote(RANK_COLUMN)}")
        text = f"FROM ({query}) AS q({', '.join([*self._columns, *hidden])})"
        if joins:
            text += (
                f" LEFT JOIN {quote(self._relation)} AS r ON (q.c{self._ids} = r.{quote(self._id_column)})"
            )
        text += f" SELECT {', '.join(columns)}"
        if self.is_ordered:
            text += (
                f" ORDER BY {', '.join([rank, *(f'q.{column}' for column in self._columns if self._total)])}"
            )
        return text

    # -- ORDER BY and LIMIT -------------------------------------------------------------------------------------

    def _take_off(self, node: Node) -> tuple[list[Node], list[Node], list[Node]]:
        """Take ORDER BY and LIMIT off a query: its fields are set anew, what they hold is not changed.

        Returns
        -------
        tuple
            The keys of the order in terms of ``q``, the LIMIT, and the columns that the query has to carry out for it.
        """
        modifiers = {modifier["type"]: modifier for modifier in node["modifiers"]}
        limits = [modifier for kind, modifier in modifiers.items() if kind.startswith("LIMIT")]
        for limit in limits:
            _check_limit(limit)
        orders = modifiers.get("ORDER_MODIFIER", {"orders": []})["orders"]
        keys, hidden = self._keys(node, orders)
        distinct = modifiers.get("DISTINCT_MODIFIER")
        kept = [] if distinct is None else [distinct]
        if distinct is not None and orders and (hidden or distinct["distinct_on_targets"]):
            # The order says which row of each group stays, so it has to stay as well.
            kept.append(modifiers["ORDER_MODIFIER"])
            if not distinct["distinct_on_targets"]:
                numbers = [_number(place + 1) for place in range(len(self._columns))]
                kept[0] = distinct | {"distinct_on_targets": numbers}
        node["modifiers"] = kept
        return keys, limits, hidden

    def _keys(self, node: Node, orders: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the keys in terms of ``q``, and the expressions that the query has to carry out for them."""
        if len(orders) == 1 and _is_all(orders[0]["expression"]):
            return [orders[0] | {"expression": _column(name)} for name in self._columns], []
        keys: list[Node] = []
        hidden: list[Node] = []
        for order in orders:
            expression = order["expression"]
            collations = []
            while expression["class"] == "COLLATE":
                collations.append(expression)
                expression = expression["child"]
            key = self._output_column(node, expression, bare=not collations)
            if key is None:
                hidden.append(_carried(node, expression))
                key = _column(f"k{len(hidden) - 1}")
            for collation in reversed(collations):
                key = collation | {"child": key, "alias": ""}
            keys.append(order | {"expression": key})
        return keys, hidden

    def _output_column(self, node: Node, expression: Node, *, bare: bool) -> Node | None:
        """Return the column of the answer that a key of ORDER BY names, by number or name, or None."""
        if bare and expression["class"] == "POSITIONAL_REFERENCE":
            return _column(self._columns[int(expression["index"]) - 1])
        position = _integer(expression) if bare else None
        if position is not None:
            return _column(self._columns[position - 1])
        if expression["class"] != "COLUMN_REF" or len(expression["column_names"]) != 1:
            return None
        name = expression["column_names"][0].lower()
        if node["type"] == "SELECT_NODE":
            aliases = {item["alias"].lower() for item in node["select_list"] if item.get("alias")}
            if not bare or name not in aliases:
                return None
        lower = [column.lower() for column in self._shape.names]
        return _column(self._columns[lower.index(name)]) if name in lower else None


def _carried(node: Node, expression: Node) -> Node:
    """Return an expression of ORDER BY as a column of the query, or refuse it by name."""
    if node["type"] != "SELECT_NODE":
        raise QueryError(
            "ORDER BY behind UNION, EXCEPT or INTERSECT takes names and numbers of the answer's columns here",
            hint="SELECT * FROM (... UNION ALL ...) ORDER BY expression",
        )
    classes = set(_classes(expression))
    if classes & {"STAR", "POSITIONAL_REFERENCE"}:
        what = "COLUMNS(...) or *" if "STAR" in classes else "#n in an expression"
        raise QueryError(
            f"ORDER BY with {what} is refused here", hint="name the columns, or use ORDER BY ALL"
        )
    if expression["class"] == "PARAMETER":
        raise QueryError("a parameter alone is no order", hint="ORDER BY a column or an expression")
    return expression | {"alias": ""}


def _check_limit(limit: Node) -> None:
    expressions = [limit.get("limit"), limit.get("offset")]
    if "SUBQUERY" in set(_classes(expressions)) or any(columns_in(expressions)):
        raise QueryError(
            "LIMIT and OFFSET with a subquery are refused here",
            hint="pass the number as a parameter: LIMIT ? with params=[...] / --param",
        )


# -- the rank beside the id -----------------------------------------------------------------------------------


def _rank_beside_id(root: Node, *, relation: str, id_column: str, rank_column: str) -> Node | None:
    """Return the rank's column where a query takes its ids, unchanged, from the relation that has the ranks.

    That is so for ``SELECT seq_id ... FROM index``, and where `index` is joined in a way that neither hides its
    rows' ids nor makes them null. Any doubt is None: then the ranks are found by a join.
    """
    if root["type"] != "SELECT_NODE" or root["group_expressions"] or root["group_sets"] or root["having"]:
        return None
    if root["aggregate_handling"] != "STANDARD_HANDLING" or any(
        entry["key"].lower() == relation.lower() for entry in root["cte_map"]["map"]
    ):
        return None
    table = _leaf(root["from_table"], relation)
    if table is None or table.get("column_name_alias"):
        return None
    alias = table["alias"] or table["table_name"]
    is_alone = table is root["from_table"]
    if not any(_is_id(item, alias, id_column) for item in root["select_list"]) and not (
        is_alone and _only_star_has(root["select_list"], id_column)
    ):
        return None
    return _column(rank_column, alias)


def _leaf(table: Node, relation: str) -> Node | None:
    """Return the one place in FROM where a relation stands with all its rows' ids, or None."""
    if table["type"] == "BASE_TABLE":
        return table if table["table_name"].lower() == relation.lower() else None
    if table["type"] != "JOIN" or table["ref_type"] not in {"REGULAR", "CROSS", "NATURAL", "ASOF"}:
        return None
    left, right = _leaf(table["left"], relation), _leaf(table["right"], relation)
    if left is not None and right is not None:
        return None
    if table["join_type"] == "INNER":
        return left or right
    return left if table["join_type"] in {"LEFT", "SEMI", "ANTI"} else None


def _is_id(item: Node, alias: str, id_column: str) -> bool:
    """Return whether an item of SELECT is the id as the relation has it, under its own name."""
    if item["class"] != "COLUMN_REF":
        return False
    parts = [part.lower() for part in item["column_names"]]
    named = (item.get("alias") or parts[-1]).lower() == id_column.lower()
    return named and parts in ([id_column.lower()], [alias.lower(), id_column.lower()])


def _only_star_has(items: Sequence[Node], id_column: str) -> bool:
    """Return whether a bare ``*`` is what brings the id: no other item can have its name."""
    stars = [item for item in items if item["class"] == "STAR"]
    others = [item for item in items if item["class"] != "STAR"]
    bare = all(_is_all(star) or _is_bare(star) for star in stars)
    return bool(stars) and bare and all(_can_not_be(item, id_column) for item in others)


def _is_bare(star: Node) -> bool:
    return not any(star.get(name) for name in ("expr", "replace_list", "rename_list", "columns"))


def _can_not_be(item: Node, id_column: str) -> bool:
    """Return whether an item has one column, of a name other than the id's."""
    name = str(
        item.get("alias") or (item["column_names"][-1] if item["class"] == "COLUMN_REF" else id_column)
    )
    return name.lower() != id_column.lower() and "STAR" not in _classes(item)


def _with_own_outermost(node: Node) -> Node:
    """Return a query whose outermost node is a copy, so that its fields can be set anew."""
    return node | ({"child": _with_own_outermost(node["child"])} if node["type"] == "CTE_NODE" else {})


# -- pieces of trees ------------------------------------------------------------------------------------------


def _column(name: str, table: str = "q") -> Node:
    return {
        "class": "COLUMN_REF",
        "type": "COLUMN_REF",
        "alias": "",
        "query_location": 0,
        "column_names": [table, name],
    }


def _number(value: int) -> Node:
    """Return a number as either version of DuckDB writes it."""
    document: Any = parse_query(f"SELECT {value}")
    number: Node = document["statements"][0]["node"]["select_list"][0]
    return number


def _integer(expression: Node) -> int | None:
    """Return the number that a constant is, None for anything else."""
    if expression["class"] != "CONSTANT":
        return None
    literal = expression.get("literal")
    if literal is not None:
        return int(literal["text"]) if literal["kind"] == "INTEGER" else None
    value = expression["value"]
    return value["value"] if isinstance(value.get("value"), int) and "INT" in value["type"]["id"] else None


def _is_all(expression: Node) -> bool:
    """Return whether a key is ORDER BY ALL."""
    return expression["class"] == "STAR" and not any(
        expression.get(name)
        for name in ("relation_name", "expr", "exclude_list", "replace_list", "rename_list")
    )


def _classes(value: Any) -> list[str]:
    """Return the classes of all expressions in a tree."""
    return [node["class"] for node in nodes_in(value) if isinstance(node.get("class"), str)]
