"""The guard: which queries may run, and which of them give the same answer tomorrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pqindex.errors import QueryError
from pqindex.sql.dialect import canonical_text, refuse_match_operators, statement_text, to_duckdb
from pqindex.sql.functions import (
    FUNCTIONS,
    REFUSED_PREFIXES,
    SESSION_VALUES,
    TABLE_FUNCTIONS,
    TYPES,
    VOLATILE_FUNCTIONS,
    VOLATILE_VALUES,
)
from pqindex.sql.hints import did_you_mean
from pqindex.sql.tree import (
    EXPRESSION_SHAPES,
    EXPRESSION_TYPES,
    MODIFIER_SHAPES,
    QUERY_SHAPES,
    TABLE_SHAPES,
    Holds,
    Node,
    is_blank,
    is_plain,
    is_value,
    parse_query,
    where_in,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQuery:
    """One SELECT that the guard let pass.

    Attributes
    ----------
    text : str
        The query as it was given.
    dialect : str
        The dialect that it was given in.
    sql : str
        DuckDB's text of it, without semicolons: what runs. Places in `document` are places in it.
    document : dict
        DuckDB's tree of `sql`. Never changed in place.
    relations : tuple of str
        The relations that it names, sorted.
    parameters : tuple of str
        The names of its parameters: ``"1"``, ``"2"`` for ``?`` and ``$1``, or ``"name"`` for ``$name``.
    volatile : tuple of str
        What in it gives another answer tomorrow: functions such as ``random`` and ``now``, and sampling.
    unordered_limit : bool
        Whether a LIMIT, OFFSET or DISTINCT ON stands without an ORDER BY beside it, at any depth.
    ordered : bool
        Whether the outermost query has an ORDER BY.
    """

    text: str
    dialect: str
    sql: str
    document: Node = field(repr=False, compare=False)
    relations: tuple[str, ...]
    parameters: tuple[str, ...]
    volatile: tuple[str, ...]
    unordered_limit: bool
    ordered: bool

    @property
    def canonical(self) -> str:
        """The query in one form for all blanks, comments and letter cases; see `canonical_text`."""
        return canonical_text(self.sql)

    @property
    def n_parameters(self) -> int:
        """How many parameters it has."""
        return len(self.parameters)


def check_query(sql: str, *, relations: Mapping[str, pa.Schema], dialect: str = "duckdb") -> CheckedQuery:
    """Return one SELECT over `relations`, or refuse what is anything else.

    DuckDB's own tree is walked, and every node, relation, function and type in it has to be on a list of what is
    allowed. Costs about a millisecond. Nothing is run, so a column that does not exist is found when it is.

    Parameters
    ----------
    sql : str
        The text.
    relations : mapping of str to pyarrow.Schema
        The relations that it may name, by name. Only the names are used, unless one is missed.
    dialect : str
        A dialect that sqlglot knows; other than DuckDB's, the text is translated first.

    Returns
    -------
    CheckedQuery

    Raises
    ------
    QueryError
        If it does not parse, is not exactly one SELECT, or names what is not allowed.
    """
    if not isinstance(sql, str):
        raise QueryError(f"a query is text; found {type(sql).__name__}")
    if "\0" in sql or not _is_encodable(sql):
        raise QueryError("the query holds a zero byte or half a character")
    translated = to_duckdb(sql, dialect)
    document = parse_query(translated)
    statement = document["statements"][0]
    walk = _Walk(translated, relations)
    try:
        walk.statement(statement)
        outer = outermost(statement["node"])
        numbered = sorted(statement["named_param_map"], key=lambda entry: int(entry["value"]))
    except QueryError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise QueryError(
            "this version of DuckDB writes the query's tree in a way that the guard does not know",
            hint="use DuckDB 1.4 or 2.0",
            found=repr(error),
        ) from error
    walk.judge_values()
    refuse_match_operators(translated, n_bitwise_not=walk.n_bitwise_not)
    return CheckedQuery(
        text=sql,
        dialect=dialect,
        sql=statement_text(translated),
        document=document,
        relations=tuple(sorted(walk.relations)),
        parameters=tuple(str(entry["key"]) for entry in numbered),
        volatile=tuple(walk.volatile),
        unordered_limit=walk.unordered_limit,
        ordered=any(modifier["type"] == "ORDER_MODIFIER" for modifier in outer["modifiers"]),
    )


def refuse_for_pin(query: CheckedQuery) -> None:
    """Refuse a query whose answer may be another one tomorrow.

    Raises
    ------
    QueryError
        If it names a volatile function, samples, or cuts rows off without an order. The message has the remedy.
    """
    if query.volatile:
        raise QueryError(
            f"a pinned query has to give the same answer tomorrow, and {', '.join(query.volatile)} does not",
            hint="hash(seq_id) % 100 < 10 draws the same tenth every time; pass a date as a parameter: params=[...] / "
            "--param",
            volatile=query.volatile,
        )
    if query.unordered_limit:
        raise QueryError(
            "a pinned query has to give the same answer tomorrow, and LIMIT, OFFSET or DISTINCT ON without ORDER BY "
            "takes any rows",
            hint="put ORDER BY seq_no beside it",
        )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def outermost(node: Node) -> Node:
    """Return the query whose ORDER BY and LIMIT are the whole statement's, below the CTEs of DuckDB 1."""
    while node["type"] == "CTE_NODE":
        node = node["child"]
    return node


_SINGLE = frozenset({Holds.NODE, Holds.TABLE, Holds.EXPRESSION, Holds.MODIFIER, Holds.STATEMENT})
_LISTS = {
    Holds.NODES: Holds.NODE,
    Holds.EXPRESSIONS: Holds.EXPRESSION,
    Holds.MODIFIERS: Holds.MODIFIER,
}
_PARTS = {  # lists of items, by the parts of an item that are expressions
    Holds.ORDERS: ("expression",),
    Holds.CASES: ("when_expr", "then_expr"),
    Holds.ARGUMENTS: ("expression",),
    Holds.REPLACEMENTS: ("value",),
}


_LEAVES = {Holds.PLAIN: is_plain, Holds.DATA: is_value}
_CONSTANT_FIELDS = {*EXPRESSION_SHAPES["CONSTANT"], "type"}


class _Walk:
    """One walk over a tree, top down, with its findings."""

    def __init__(self, sql: str, relations: Mapping[str, pa.Schema]) -> None:
        self._sql = sql
        self._schemas = relations
        self._by_lower = {name.lower(): name for name in relations}
        self._pending: list[tuple[Holds, Any, frozenset[str]]] = []
        self._values: list[tuple[str, Node]] = []
        self._aliases: set[str] = set()
        self.relations: set[str] = set()
        self.volatile: dict[str, None] = {}
        self.n_bitwise_not = 0
        self.unordered_limit = False

    def statement(self, statement: Node) -> None:
        """Walk everything below a statement."""
        self._push(Holds.STATEMENT, statement, frozenset())
        visits = {
            Holds.STATEMENT: self._statement,
            Holds.NODE: self._node,
            Holds.TABLE: self._table,
            Holds.EXPRESSION: self._expression,
            Holds.MODIFIER: self._modifier,
        }
        while self._pending:
            holds, value, ctes = self._pending.pop()
            behind = len(self._pending)
            visits[holds](value, ctes)
            # Reversed, so that the walk goes in the order of the text and the first fault is the one told.
            self._pending[behind:] = reversed(self._pending[behind:])

    # -- fields ------------------------------------------------------------------------------------------------

    def _push(self, holds: Holds, value: Any, ctes: frozenset[str]) -> None:
        if value is not None:
            self._pending.append((holds, value, ctes))

    def _fields(self, node: Node, shape: Mapping[str, Holds], what: str, ctes: frozenset[str]) -> None:
        """Push what the fields of a node hold, and refuse a field that is unknown and not blank."""
        for name, value in node.items():
            if name == "type":
                continue
            holds = shape.get(name)
            if holds is None or holds is Holds.NOTHING:
                if not is_blank(value):
                    raise self._unknown(f"{what}.{name}", node)
            else:
                self._field(holds, value, ctes, f"{what}.{name}", node)

    def _field(self, holds: Holds, value: Any, ctes: frozenset[str], what: str, node: Node) -> None:
        if holds in _SINGLE:
            self._push(holds, value, ctes)
        elif holds in _LISTS:
            for item in value or ():
                self._push(_LISTS[holds], item, ctes)
        elif holds in _PARTS:
            for item in value or ():
                self._item(item, _PARTS[holds], what, ctes)
        elif holds is Holds.ROWS:
            for row in value or ():
                self._field(Holds.EXPRESSIONS, row, ctes, what, node)
        elif holds in _LEAVES:
            if not _LEAVES[holds](value):
                raise self._unknown(what, node)
        elif holds is Holds.PIVOTS:
            self._pivots(value or (), ctes)
        elif holds is Holds.SAMPLE and value is not None:
            self.volatile["TABLESAMPLE"] = None
        elif holds is Holds.TYPE:
            self._type(value, node)

    def _item(self, item: Node, expressions: tuple[str, ...], what: str, ctes: frozenset[str]) -> None:
        """Push the expressions of an item of a list; its other fields are words."""
        for name, value in item.items():
            if name in expressions:
                self._push(Holds.EXPRESSION, value, ctes)
            elif not is_plain(value):
                raise self._unknown(f"{what}.{name}", item)

    def _pivots(self, pivots: Iterable[Node], ctes: frozenset[str]) -> None:
        for pivot in pivots:
            shape = {
                "pivot_expressions": Holds.EXPRESSIONS,
                "unpivot_names": Holds.PLAIN,
                "entries": Holds.NOTHING,
                "pivot_enum": Holds.NOTHING,
            }
            if pivot.get("pivot_enum"):
                raise QueryError(
                    "PIVOT ... IN an enum is refused", hint="PIVOT t ON label IN ('a', 'b') USING sum(x)"
                )
            self._fields({**pivot, "entries": None}, shape, "PIVOT", ctes)
            for entry in pivot.get("entries", ()):
                entry_shape = {"values": Holds.DATA, "star_expr": Holds.EXPRESSION, "alias": Holds.PLAIN}
                self._fields(entry, entry_shape, "PIVOT", ctes)

    # -- nodes -------------------------------------------------------------------------------------------------

    def _statement(self, statement: Node, ctes: frozenset[str]) -> None:
        shape = {"node": Holds.NODE, "named_param_map": Holds.PLAIN}
        self._fields(statement, shape, "statement", ctes)

    def _node(self, node: Node, ctes: frozenset[str]) -> None:
        kind = node["type"]
        shape = QUERY_SHAPES.get(kind)
        if shape is None:
            if kind.endswith("_QUERY_NODE"):
                verb = kind.removesuffix("_QUERY_NODE")
                raise QueryError(
                    f"only SELECT is allowed, found {verb} inside the query",
                    hint="a query reads the index and never changes anything",
                    found=verb,
                )
            raise self._unknown(kind, node)
        fields = dict(node)
        inside = self._ctes(fields.pop("cte_map"), ctes)
        if kind == "RECURSIVE_CTE_NODE":
            self._push(Holds.NODE, fields.pop("left"), inside)
        if kind in {"RECURSIVE_CTE_NODE", "CTE_NODE"}:
            inside |= {node["cte_name"].lower()}
        self._fields(fields, shape, kind, inside)
        self._limits(node["modifiers"])

    def _ctes(self, cte_map: Node, ctes: frozenset[str]) -> frozenset[str]:
        """Push the definitions of WITH, each seeing those before it, and return the names seen behind them."""
        shape = {
            "aliases": Holds.PLAIN,
            "materialized": Holds.PLAIN,
            "key_targets": Holds.EXPRESSIONS,
            "payload_aggregates": Holds.EXPRESSIONS,
            "query": Holds.STATEMENT,
            "query_node": Holds.NODE,
        }
        for entry in cte_map["map"]:
            self._fields(entry["value"], shape, "WITH", ctes)
            self._aliases.update(name.lower() for name in entry["value"].get("aliases", ()))
            ctes = ctes | {entry["key"].lower()}
        return ctes

    def _limits(self, modifiers: list[Node]) -> None:
        kinds = {modifier["type"] for modifier in modifiers}
        cuts = bool(kinds & {"LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"}) or any(
            modifier.get("distinct_on_targets") for modifier in modifiers
        )
        if cuts and "ORDER_MODIFIER" not in kinds:
            self.unordered_limit = True

    def _modifier(self, modifier: Node, ctes: frozenset[str]) -> None:
        shape = MODIFIER_SHAPES.get(modifier["type"])
        if shape is None:
            raise self._unknown(modifier["type"], modifier)
        self._fields(modifier, shape, modifier["type"], ctes)

    def _table(self, table: Node, ctes: frozenset[str]) -> None:
        kind = table["type"]
        shape = TABLE_SHAPES.get(kind)
        if shape is None:
            if kind == "SHOW_REF":
                raise QueryError(
                    "DESCRIBE, SHOW and SUMMARIZE are refused",
                    hint=f"FROM index LIMIT 5 shows the columns; the relations are {', '.join(self._schemas)}",
                )
            raise self._unknown(kind, table)
        self._aliases.update(name.lower() for name in table.get("column_name_alias") or ())
        if kind == "BASE_TABLE":
            self._base_table(table, ctes)
        if kind == "TABLE_FUNCTION":
            name = str(table["function"].get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                raise self._refused_function(name, table, "in FROM")
        self._fields(table, shape, kind, ctes)

    def _base_table(self, table: Node, ctes: frozenset[str]) -> None:
        name = table["table_name"]
        qualifiers = [part for part in (table["catalog_name"], table["schema_name"]) if part]
        if table.get("at_clause") is not None:
            raise QueryError(
                f"AT is refused behind {name!r}",
                hint="open the index at another snapshot: open(path, snapshot=3) / --snapshot 3",
            )
        if not qualifiers and name.lower() in ctes:
            return
        known = self._by_lower.get(name.lower())
        if known is not None and not qualifiers:
            self.relations.add(known)
            return
        full = ".".join([*qualifiers, name])
        where = where_in(self._sql, table.get("query_location"))
        if qualifiers:
            raise QueryError(
                f"a relation has no schema or catalog before its name, found {full!r}{where}",
                hint=f"there are: {', '.join(self._schemas)}",
                relation=full,
            )
        if any(mark in name for mark in "/\\.*"):
            raise QueryError(
                f"a query never reads files, found {name!r}{where}",
                hint=f"attach it under a name: attach={{'name': {name!r}}} / --attach name={name}",
                relation=name,
            )
        raise QueryError(
            f"no relation {name!r}{where}",
            hint=did_you_mean(name, self._schemas, f"there are: {', '.join(self._schemas)}"),
            relation=name,
        )

    # -- expressions -------------------------------------------------------------------------------------------

    def _expression(self, node: Node, ctes: frozenset[str]) -> None:
        kind = node.get("class")
        shape = EXPRESSION_SHAPES.get(kind) if isinstance(kind, str) else None
        if kind is None or shape is None or not EXPRESSION_TYPES[kind].fullmatch(node["type"]):
            raise self._unknown(f"{kind}.{node.get('type')}", node)
        if node.get("alias"):
            self._aliases.add(node["alias"].lower())
        if kind in {"FUNCTION", "WINDOW"}:
            self._function(node)
        elif kind == "COLUMN_REF":
            name = node["column_names"][0].lower()
            if len(node["column_names"]) == 1 and name in VOLATILE_VALUES | SESSION_VALUES:
                self._values.append((name, node))
        elif kind == "TYPE":
            self._type_name(node["type_name"], node)
        elif kind == "CONSTANT" and node.keys() <= _CONSTANT_FIELDS and all(map(is_value, node.values())):
            return  # nothing below it; queries list constants by the thousand
        self._fields(node, shape, kind, ctes)

    def _function(self, node: Node) -> None:
        name = node["function_name"].lower()
        if name not in FUNCTIONS:
            raise self._refused_function(name, node, "")
        arguments = node.get("arguments") or node.get("children") or ()
        self.n_bitwise_not += name == "~" and len(arguments) == 1
        # DuckDB 2 writes x.age() with the schema x.
        on_a_value = node["schema"].lower() not in {"", "main", "pg_catalog", "system"}
        if name in VOLATILE_FUNCTIONS or (name == "age" and len(arguments) + on_a_value < 2):
            self.volatile[name] = None

    def judge_values(self) -> None:
        """Judge names like `current_date`, which are functions unless a column has the name."""
        if not self._values:
            return
        columns = {name.lower() for relation in self.relations for name in self._schemas[relation].names}
        for name, node in self._values:
            if name in columns or name in self._aliases:
                continue
            if name in SESSION_VALUES:
                raise self._refused_function(name, node, "")
            self.volatile[name] = None

    def _type(self, logical: Node, node: Node) -> None:
        """Check a type as DuckDB 1 writes it: an id, and details that may hold types."""
        pending = [logical]
        while pending:
            part = pending.pop()
            info = part.get("type_info") or {}
            # DuckDB 1.4 writes a type that it does not know as USER, 1.5 as UNBOUND.
            name = {"USER": info.get("user_type_name"), "UNBOUND": info.get("name")}.get(part["id"])
            self._type_name(str(name or part["id"]), node)
            if info.get("catalog") or info.get("schema"):
                raise self._unknown("CAST.schema", node)
            if "child_type" in info:
                pending.append(info["child_type"])
            pending.extend(child["second"] for child in info.get("child_types", ()))

    def _type_name(self, name: str, node: Node) -> None:
        if name.lower() not in TYPES:
            where = where_in(self._sql, node.get("query_location"))
            raise QueryError(
                f"no type {name!r}{where}",
                hint=did_you_mean(
                    name.lower(), TYPES, "BIGINT, DOUBLE, VARCHAR, BLOB, DATE, TIMESTAMP, BOOLEAN, ..."
                ),
                type=name,
            )

    # -- refusals ----------------------------------------------------------------------------------------------

    def _refused_function(self, name: str, node: Node, place: str) -> QueryError:
        where = where_in(self._sql, node.get("query_location"))
        helps = next((hint for prefix, hint in REFUSED_PREFIXES if name.startswith(prefix)), None)
        if place and helps is None:
            helps = (
                f"in FROM there may be relations, subqueries, VALUES and {', '.join(sorted(TABLE_FUNCTIONS))}"
            )
        if helps is None and name in SESSION_VALUES:
            helps = f"if a column is meant, put its relation before it: index.{name}"
        if helps is None:
            helps = did_you_mean(
                name,
                FUNCTIONS,
                "functions of their arguments alone are allowed: math, text, dates, lists, structs, aggregates",
            )
        return QueryError(
            f"the function {name!r} is not allowed{f' {place}' if place else ''}{where}",
            hint=helps,
            function=name,
        )

    def _unknown(self, what: str, node: Node) -> QueryError:
        where = where_in(self._sql, node.get("query_location"))
        return QueryError(
            f"the query uses {what}, which is not on the list of what is allowed{where}",
            hint="write it with plain SELECT, JOIN, WHERE, GROUP BY, ORDER BY, window functions and subqueries",
            found=what,
        )
