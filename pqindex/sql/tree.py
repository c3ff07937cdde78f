"""DuckDB's own syntax tree of a query: from text, back to text, and what each kind of node may hold.

The tree is the JSON of DuckDB's ``json_serialize_sql``. Its shape differs a little between versions, so the table
of shapes below is the union of what versions 1.4 to 2.0 write. A node, class or field that is not in the table is
refused: a field only where its value could hold something (see `is_blank`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any, TypeAlias

import duckdb

from pqindex.errors import QueryError
from pqindex.sql.engine import parser

Node: TypeAlias = dict[str, Any]


class Holds(Enum):
    """What a field of a node holds."""

    NODE = auto()  # a query: SELECT, set operation, CTE
    NODES = auto()
    STATEMENT = auto()  # {"node": query, "named_param_map": ...}
    TABLE = auto()  # what stands in FROM
    EXPRESSION = auto()
    EXPRESSIONS = auto()
    ROWS = auto()  # lists of expressions
    MODIFIERS = auto()  # ORDER BY, LIMIT, DISTINCT
    MODIFIER = auto()
    ORDERS = auto()
    CTES = auto()
    CASES = auto()
    ARGUMENTS = auto()
    REPLACEMENTS = auto()
    PIVOTS = auto()
    SAMPLE = auto()
    TYPE = auto()
    PLAIN = auto()  # words and numbers
    DATA = auto()  # a constant: its parts are values, never nodes
    NOTHING = auto()  # known, and only allowed while it is blank


_QUERY = {"modifiers": Holds.MODIFIERS, "cte_map": Holds.CTES}
_PLACE = dict.fromkeys(("query_location", "query_location_length"), Holds.PLAIN)
_TABLE = _PLACE | {"alias": Holds.PLAIN, "sample": Holds.SAMPLE}
_EXPRESSION = _PLACE | {"class": Holds.PLAIN, "alias": Holds.PLAIN}
_CALL = {
    "function_name": Holds.PLAIN,
    "schema": Holds.PLAIN,
    "catalog": Holds.PLAIN,
    "qualified_name": Holds.PLAIN,
    "children": Holds.EXPRESSIONS,
    "arguments": Holds.ARGUMENTS,
    "distinct": Holds.PLAIN,
    "is_legacy_function_call": Holds.PLAIN,
}

QUERY_SHAPES: Mapping[str, Mapping[str, Holds]] = {
    "SELECT_NODE": _QUERY
    | {
        "select_list": Holds.EXPRESSIONS,
        "from_table": Holds.TABLE,
        "where_clause": Holds.EXPRESSION,
        "group_expressions": Holds.EXPRESSIONS,
        "group_sets": Holds.PLAIN,
        "aggregate_handling": Holds.PLAIN,
        "having": Holds.EXPRESSION,
        "sample": Holds.SAMPLE,
        "qualify": Holds.EXPRESSION,
    },
    "SET_OPERATION_NODE": _QUERY
    | {
        "setop_type": Holds.PLAIN,
        "setop_all": Holds.PLAIN,
        "left": Holds.NODE,
        "right": Holds.NODE,
        "children": Holds.NODES,
    },
    "RECURSIVE_CTE_NODE": _QUERY
    | {
        "cte_name": Holds.PLAIN,
        "union_all": Holds.PLAIN,
        "left": Holds.NODE,
        "right": Holds.NODE,
        "aliases": Holds.PLAIN,
        "key_targets": Holds.EXPRESSIONS,
    },
    "CTE_NODE": _QUERY  # only 1.x: WITH ... AS MATERIALIZED
    | {
        "cte_name": Holds.PLAIN,
        "query": Holds.NODE,
        "child": Holds.NODE,
        "aliases": Holds.PLAIN,
        "materialized": Holds.PLAIN,
    },
}
"""The kinds of queries, by the fields that they may have."""

TABLE_SHAPES: Mapping[str, Mapping[str, Holds]] = {
    "BASE_TABLE": _TABLE
    | {
        "schema_name": Holds.PLAIN,
        "catalog_name": Holds.PLAIN,
        "table_name": Holds.PLAIN,
        "qualified_name": Holds.PLAIN,
        "column_name_alias": Holds.PLAIN,
        "at_clause": Holds.NOTHING,
    },
    "SUBQUERY": _TABLE | {"subquery": Holds.STATEMENT, "column_name_alias": Holds.PLAIN},
    "JOIN": _TABLE
    | {
        "left": Holds.TABLE,
        "right": Holds.TABLE,
        "condition": Holds.EXPRESSION,
        "join_type": Holds.PLAIN,
        "ref_type": Holds.PLAIN,
        "using_columns": Holds.PLAIN,
        "delim_flipped": Holds.PLAIN,
        "duplicate_eliminated_columns": Holds.EXPRESSIONS,
        "is_implicit": Holds.PLAIN,
        "ranking_expression": Holds.EXPRESSION,
        "nearest_count": Holds.PLAIN,
        "nearest_order_type": Holds.PLAIN,
        "nearest_approx": Holds.PLAIN,
    },
    "TABLE_FUNCTION": _TABLE
    | {"function": Holds.EXPRESSION, "column_name_alias": Holds.PLAIN, "with_ordinality": Holds.PLAIN},
    "EXPRESSION_LIST": _TABLE
    | {"values": Holds.ROWS, "expected_names": Holds.PLAIN, "expected_types": Holds.NOTHING},
    "EMPTY": _TABLE,
    "PIVOT": _TABLE
    | {
        "source": Holds.TABLE,
        "aggregates": Holds.EXPRESSIONS,
        "unpivot_names": Holds.PLAIN,
        "pivots": Holds.PIVOTS,
        "groups": Holds.PLAIN,
        "column_name_alias": Holds.PLAIN,
        "include_nulls": Holds.PLAIN,
    },
}
"""What may stand in FROM, by the fields that it may have."""

MODIFIER_SHAPES: Mapping[str, Mapping[str, Holds]] = {
    "ORDER_MODIFIER": {"orders": Holds.ORDERS},
    "LIMIT_MODIFIER": {"limit": Holds.EXPRESSION, "offset": Holds.EXPRESSION, "limit_type": Holds.PLAIN},
    "LIMIT_PERCENT_MODIFIER": {"limit": Holds.EXPRESSION, "offset": Holds.EXPRESSION},
    "DISTINCT_MODIFIER": {"distinct_on_targets": Holds.EXPRESSIONS},
}
"""What may follow a query, by the fields that it may have."""

EXPRESSION_SHAPES: Mapping[str, Mapping[str, Holds]] = {
    "BETWEEN": _EXPRESSION | dict.fromkeys(("input", "lower", "upper"), Holds.EXPRESSION),
    "CASE": _EXPRESSION | {"case_checks": Holds.CASES, "else_expr": Holds.EXPRESSION},
    "CAST": _EXPRESSION
    | {
        "child": Holds.EXPRESSION,
        "cast_type": Holds.TYPE,
        "type_expr": Holds.EXPRESSION,
        "try_cast": Holds.PLAIN,
    },
    "COLLATE": _EXPRESSION | {"child": Holds.EXPRESSION, "collation": Holds.PLAIN},
    "COLUMN_REF": _EXPRESSION | {"column_names": Holds.PLAIN},
    "COMPARISON": _EXPRESSION | {"left": Holds.EXPRESSION, "right": Holds.EXPRESSION},
    "CONJUNCTION": _EXPRESSION | {"children": Holds.EXPRESSIONS},
    "CONSTANT": _EXPRESSION | {"value": Holds.DATA, "literal": Holds.DATA},
    "FUNCTION": _EXPRESSION
    | _CALL
    | {
        "filter": Holds.EXPRESSION,
        "order_bys": Holds.MODIFIER,
        "is_operator": Holds.PLAIN,
        "export_state": Holds.NOTHING,
    },
    "LAMBDA": _EXPRESSION | {"lhs": Holds.EXPRESSION, "expr": Holds.EXPRESSION, "syntax_type": Holds.PLAIN},
    "OPERATOR": _EXPRESSION | {"children": Holds.EXPRESSIONS},
    "PARAMETER": _EXPRESSION | {"identifier": Holds.PLAIN},
    "POSITIONAL_REFERENCE": _EXPRESSION | {"index": Holds.PLAIN},
    "STAR": _EXPRESSION
    | {
        "relation_name": Holds.PLAIN,
        "exclude_list": Holds.PLAIN,
        "qualified_exclude_list": Holds.PLAIN,
        "replace_list": Holds.REPLACEMENTS,
        "rename_list": Holds.PLAIN,
        "columns": Holds.PLAIN,
        "unpacked": Holds.PLAIN,
        "expr": Holds.EXPRESSION,
    },
    "SUBQUERY": _EXPRESSION
    | {
        "subquery": Holds.STATEMENT,
        "subquery_type": Holds.PLAIN,
        "child": Holds.EXPRESSION,
        "comparison_type": Holds.PLAIN,
    },
    "TYPE": _EXPRESSION
    | {
        "catalog": Holds.NOTHING,
        "schema": Holds.NOTHING,
        "type_name": Holds.PLAIN,
        "qualified_name": Holds.PLAIN,
        "children": Holds.EXPRESSIONS,
    },
    "WINDOW": _EXPRESSION
    | _CALL
    | {
        "partitions": Holds.EXPRESSIONS,
        "orders": Holds.ORDERS,
        "arg_orders": Holds.ORDERS,
        "start": Holds.PLAIN,
        "end": Holds.PLAIN,
        "start_expr": Holds.EXPRESSION,
        "end_expr": Holds.EXPRESSION,
        "offset_expr": Holds.EXPRESSION,
        "default_expr": Holds.EXPRESSION,
        "filter_expr": Holds.EXPRESSION,
        "ignore_nulls": Holds.PLAIN,
        "has_ignore_nulls": Holds.PLAIN,
        "exclude_clause": Holds.PLAIN,
    },
}
"""The classes of expressions, by the fields that they may have."""

EXPRESSION_TYPES: Mapping[str, re.Pattern[str]] = {
    "BETWEEN": re.compile("COMPARE_(NOT_)?BETWEEN"),
    "CASE": re.compile("CASE_EXPR"),
    "CAST": re.compile("OPERATOR_CAST"),
    "COLLATE": re.compile("COLLATE"),
    "COLUMN_REF": re.compile("COLUMN_REF"),
    "COMPARISON": re.compile("COMPARE_[A-Z_]+"),
    "CONJUNCTION": re.compile("CONJUNCTION_(AND|OR)"),
    "CONSTANT": re.compile("VALUE_CONSTANT"),
    "FUNCTION": re.compile("FUNCTION"),
    "LAMBDA": re.compile("LAMBDA"),
    "OPERATOR": re.compile(
        "OPERATOR_(NOT|IS_NULL|IS_NOT_NULL|COALESCE|NULLIF|TRY|UNPACK)|COMPARE_(NOT_)?IN|GROUPING_FUNCTION"
        "|ARRAY_(EXTRACT|SLICE|CONSTRUCTOR)|STRUCT_EXTRACT"
    ),
    "PARAMETER": re.compile("VALUE_PARAMETER"),
    "POSITIONAL_REFERENCE": re.compile("POSITIONAL_REFERENCE"),
    "STAR": re.compile("STAR"),
    "SUBQUERY": re.compile("SUBQUERY"),
    "TYPE": re.compile("TYPE"),
    "WINDOW": re.compile("WINDOW_[A-Z_]+"),
}
"""The types within each class of expressions."""


def is_blank(value: object) -> bool:
    """Return whether an unknown field says nothing: empty, a number, a truth value, or a word like a constant.

    None of these can name a table, a file or a function, so a version that adds such a field stays usable.
    """
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return re.fullmatch("[A-Z][A-Z_]*|", value) is not None
    if isinstance(value, list):
        return not value
    if isinstance(value, dict):
        return all(is_blank(part) for part in value.values())
    return False


def is_plain(value: object) -> bool:
    """Return whether a value is made of words and numbers only, at any depth, without a node."""
    if isinstance(value, dict):
        return not {"class", "type", "node", "expression"} & set(value) and all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list) else True


def is_value(value: object) -> bool:
    """Return whether a constant is made of values and types only, at any depth, without a node."""
    if isinstance(value, dict):
        return not {"class", "node", "expression"} & value.keys() and all(map(is_value, value.values()))
    return all(map(is_value, value)) if isinstance(value, list) else True


# -- from text to tree and back -------------------------------------------------------------------------------


def parse_query(sql: str) -> Node:
    """Return the document of one query, as ``json_serialize_sql`` gives it: ``{"statements": [...], ...}``.

    Raises
    ------
    QueryError
        If the text does not parse, holds no statement or several, or is not a SELECT.
    """
    try:
        document: Node = json.loads(parser().call("json_serialize_sql", sql))
    except RecursionError:
        raise too_deep() from None
    except duckdb.Error as error:
        raise _unparsed(error) from error
    names = _statement_kinds(sql)
    if names in (["MULTI"], ["CREATE", "SELECT"]) and re.search(r"\bPIVOT\b", sql, re.IGNORECASE):
        raise QueryError(
            "a PIVOT has to name its columns here, so that the answer's columns hang on the query alone",
            hint="PIVOT t ON label IN ('a', 'b') USING sum(x)",
        )
    if len(names) > 1:
        raise QueryError(
            f"one statement is allowed, found {len(names)}: {', '.join(names[:10])}",
            hint="run them one by one",
            statements=names,
        )
    if document["error"]:
        raise _refusal(document, names, sql)
    if not document["statements"]:
        raise QueryError("the query is empty", hint="SELECT seq_id FROM index")
    if len(document["statements"]) > 1:  # never seen, as DuckDB counts above: the tree has the last word
        raise QueryError("one statement is allowed", hint="run them one by one")
    return document


def too_deep() -> QueryError:
    """Return the error for a query that neither DuckDB nor Python can follow to its bottom."""
    return QueryError("the query is nested too deeply", hint="split it with WITH ... AS (...)")


def is_too_deep(error: duckdb.Error | str) -> bool:
    """Return whether DuckDB gave up since a query is nested too deeply."""
    return "expression depth limit" in str(error)


def _unparsed(error: duckdb.Error) -> QueryError:
    return too_deep() if is_too_deep(error) else QueryError(f"the query does not parse: {first_line(error)}")


def _statement_kinds(sql: str) -> list[str]:
    try:
        return parser().statement_kinds(sql)
    except duckdb.Error:
        return []


def _refusal(document: Node, names: list[str], sql: str) -> QueryError:
    message = str(document.get("error_message", "")).split("\n", maxsplit=1)[0]
    kind = names[0] if names else ""
    if kind == "LOAD":  # DuckDB has one kind for both
        kind = "INSTALL" if re.match(r"\s*(FORCE\s+)?INSTALL\b", sql, re.IGNORECASE) else kind
    if kind and kind != "SELECT":
        return QueryError(
            f"only SELECT is allowed, found {kind}",
            hint="a query reads the index; build and pin are how things are written",
            found=kind,
        )
    if is_too_deep(message):
        return too_deep()
    if message.startswith("Mixing named and positional parameters"):
        return QueryError("the query mixes numbered and named parameters", hint="use ? or $name, not both")
    if document.get("error_type") == "not implemented":
        return QueryError(
            f"only SELECT is allowed: {message}", hint="a query reads the index and never changes anything"
        )
    place = document.get("position")
    where = where_in(sql, int(place)) if place is not None and str(place).isdigit() else ""
    return QueryError(f"the query does not parse: {message}{where}")


def print_query(document: Node) -> str:
    """Return the text of a query, checked: the text parses to the same tree again.

    Raises
    ------
    QueryError
        If DuckDB writes a text that means something else, or none.
    """
    try:
        printable = _printable(document)
        text = parser().call("json_deserialize_sql", json.dumps(printable))
        again: Node = json.loads(parser().call("json_serialize_sql", text))
        before, after = (
            [s["node"] for s in document.get("statements", ())] for document in (printable, again)
        )
        is_same = not again["error"] and _comparable(before) == _comparable(after)
    except RecursionError:
        raise too_deep() from None
    except duckdb.Error as error:
        if is_too_deep(error):
            raise too_deep() from error
        raise QueryError(f"the query cannot be rewritten: {first_line(error)}") from error
    if not is_same:
        raise QueryError("the query cannot be rewritten: DuckDB prints it as something else")
    return text


_UNPRINTED = ("query_location", "query_location_length", "is_operator", "syntax_type")


def _printable(value: Any) -> Any:
    """Return a tree whose constants survive printing: 1.x prints 1e10 as a decimal and true as a cast."""
    if isinstance(value, list):
        return [_printable(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.get("class") == "CONSTANT" and isinstance(value.get("value"), dict):
        constant = value["value"]
        kind = constant["type"]["id"]
        if not constant["is_null"] and kind in {"DOUBLE", "FLOAT", "BOOLEAN"}:
            text = str(constant["value"]) if kind != "BOOLEAN" else "ft"[constant["value"]]
            return _cast_of_text(value, text, kind)
    return {key: _printable(part) for key, part in value.items()}


def _cast_of_text(constant: Node, text: str, kind: str) -> Node:
    varchar = {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": text}
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": constant["alias"],
        "query_location": constant.get("query_location", 0),
        "child": {
            "class": "CONSTANT",
            "type": "VALUE_CONSTANT",
            "alias": "",
            "query_location": constant.get("query_location", 0),
            "value": varchar,
        },
        "cast_type": {"id": kind, "type_info": None},
        "try_cast": False,
    }


def _comparable(value: Any) -> Any:
    """Return a tree without what a text does not hold: places, and how an operator or a list was written."""
    if isinstance(value, list):
        return [_comparable(part) for part in value]
    if not isinstance(value, dict):
        return value
    node = {key: _comparable(part) for key, part in value.items() if key not in _UNPRINTED}
    if node.get("class") == "TYPE":
        node["type_name"] = str(node["type_name"]).upper()
        node.pop("qualified_name", None)
    if set(node) == {"name", "expression"} and node["name"]:  # a named argument may come back with an alias
        node["expression"]["alias"] = ""
    if "group_sets" in node:
        node = _with_sorted_groups(node)
    return _as_values(node)


def _with_sorted_groups(node: Node) -> Node:
    """Return a SELECT whose grouping sets hold their expressions, not numbers that depend on how they are written."""
    groups = [json.dumps(expression, sort_keys=True) for expression in node["group_expressions"]]
    sets = [sorted(groups[number] for number in numbers) for numbers in node["group_sets"]]
    return node | {"group_expressions": sorted(groups), "group_sets": sets}


def _as_values(node: Node) -> Node:
    """Return a list of values for ``(SELECT * FROM (VALUES ...))``, which is how DuckDB prints such a list."""
    if node.get("type") != "SUBQUERY" or "class" in node or node.get("column_name_alias"):
        return node
    inner = node["subquery"]["node"]
    table = inner.get("from_table")
    if (
        inner.get("type") != "SELECT_NODE"
        or not isinstance(table, dict)
        or table["type"] != "EXPRESSION_LIST"
    ):
        return node
    stars = [item.get("type") for item in inner["select_list"]] == ["STAR"]
    bare = all(
        is_blank(inner.get(key)) for key in ("modifiers", "where_clause", "having", "qualify", "sample")
    )
    return table | {"alias": node["alias"]} if stars and bare and not inner["group_expressions"] else node


# -- words about a tree ---------------------------------------------------------------------------------------


def first_line(error: BaseException) -> str:
    """Return what an error of DuckDB says, in one line and without the name of its kind."""
    line = str(error).split("\n", maxsplit=1)[0].strip()
    return re.sub(r"^(TransactionContext|[A-Z][A-Za-z ]*) Error: ", "", line).rstrip(".!")


def where_in(sql: str, place: int | None) -> str:
    """Return ``: line 1, column 8`` for a byte offset, and nothing where there is none."""
    encoded = sql.encode()
    if place is None or not 0 <= place <= len(encoded):
        return ""
    before = encoded[:place].decode(errors="ignore")
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    return f": line {line}, column {column}"


def columns_in(value: Any) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield the parts of every column that a tree names, such as ``("stats", "price", "max")``, and its place."""
    for node in nodes_in(value):
        if node.get("class") == "COLUMN_REF":
            yield tuple(node["column_names"]), node.get("query_location")


def nodes_in(value: Any) -> Iterator[Node]:
    """Yield every object in a tree, in the order of the text, however deep it is."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending.extend(reversed(part.values()))
        elif isinstance(part, list):
            pending.extend(reversed(part))
