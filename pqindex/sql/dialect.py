"""SQL as text: other dialects in, a canonical form out, and where a statement begins and ends."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, SqlglotError

from pqindex.errors import QueryError
from pqindex.sql.hints import did_you_mean
from pqindex.sql.tree import too_deep

_MATCH_OPERATORS = frozenset({"~", "!~", "~*", "!~*"})


def to_duckdb(sql: str, dialect: str) -> str:
    """Return one statement of another dialect as DuckDB's text.

    Raises
    ------
    QueryError
        If the dialect is unknown, the text does not parse in it, holds several statements, or has no counterpart.
    """
    dialect = dialect.lower()
    if dialect == "duckdb":
        return sql
    if dialect not in Dialect.classes or not dialect:
        known = sorted(name for name in Dialect.classes if name)
        raise QueryError(
            f"no dialect {dialect!r}",
            hint=did_you_mean(dialect, known, f"one of: {', '.join(known)}"),
            dialect=dialect,
        )
    try:
        trees = [tree for tree in sqlglot.parse(sql, read=dialect) if tree is not None]
        if len(trees) != 1:
            raise QueryError(f"one statement is allowed, found {len(trees)}", hint="run them one by one")
        return trees[0].sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)
    except RecursionError:
        raise too_deep() from None
    except SqlglotError as error:
        message = str(error).split("\n", maxsplit=1)[0].rstrip(".")
        raise QueryError(
            f"the query cannot be read as {dialect}: {message}",
            hint="write it in DuckDB's dialect",
            dialect=dialect,
        ) from error


@functools.lru_cache(maxsize=256)
def canonical_text(sql: str) -> str:
    """Return one text for all ways of writing a query that differ in blanks, comments and letter case only.

    It is for people and for comparing under one version of sqlglot; it is never run, and no digest hangs on it.
    Text that sqlglot does not understand comes back as its tokens with single blanks between.
    """
    try:
        tree = sqlglot.parse_one(sql, read="duckdb", error_level=ErrorLevel.RAISE)
        return " ".join(_token_texts(sql)) if isinstance(tree, exp.Command) else _canonical(tree)
    except (SqlglotError, RecursionError):
        return " ".join(_token_texts(sql))


def _canonical(tree: exp.Expr) -> str:
    for node in tree.find_all(exp.Column, exp.Table, exp.TableAlias, exp.Dot):
        for identifier in node.find_all(exp.Identifier):
            if isinstance(identifier.parent, exp.Column | exp.Table | exp.TableAlias | exp.Dot):
                identifier.set("this", identifier.name.lower())
    return tree.sql(dialect="duckdb", comments=False)


def _token_texts(sql: str) -> Iterator[str]:
    for kind, text in _tokens(sql):
        yield text if kind in {"string_const", "identifier"} and text[:1] in {"'", '"', "$"} else text.lower()


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each token, without comments and the blanks around it."""
    encoded = sql.encode()
    starts = duckdb.tokenize(sql)
    stops = [place for place, _ in starts[1:]] + [len(encoded)]
    for (start, kind), stop in zip(starts, stops, strict=True):
        if kind.name != "comment":
            text = encoded[start:stop].decode(errors="replace")
            yield kind.name, _without_trailing_comments(text).strip()


def _without_trailing_comments(text: str) -> str:
    """Return a token's text without the comments behind it, which only newer versions give as tokens."""
    if text[:1] in {"'", '"', "$"}:
        return text
    for mark in ("--", "/*"):
        text = text.split(mark, maxsplit=1)[0]
    return text


def statement_text(sql: str) -> str:
    """Return the text of the only statement, without semicolons behind it and with blanks for those before it.

    So every place in it stays where it was.
    """
    encoded = sql.encode()
    starts = duckdb.tokenize(sql)
    first = next((place for place, _ in starts if encoded[place : place + 1] != b";"), len(encoded))
    semicolons = [place for place, _ in starts if place > first and encoded[place : place + 1] == b";"]
    stop = semicolons[0] if semicolons else len(encoded)
    before = encoded[:first].replace(b";", b" ")
    return (before + encoded[first:stop]).decode().rstrip()


def refuse_match_operators(sql: str, *, n_bitwise_not: int) -> None:
    """Refuse ``~`` between two values, which is a whole match in DuckDB 1 and a partial one in DuckDB 2.

    Parameters
    ----------
    sql : str
    n_bitwise_not : int
        How many ``~`` before one value the tree has: those are no match.

    Raises
    ------
    QueryError
        If the text has such an operator.
    """
    if "~" not in sql:
        return
    found = [text for kind, text in _tokens(sql) if kind == "operator" and text in _MATCH_OPERATORS]
    if len(found) > n_bitwise_not or any(text != "~" for text in found):
        operator = next((text for text in found if text != "~"), "~")
        raise QueryError(
            f"the operator {operator} is refused: it matches the whole text in DuckDB 1 and a part of it in DuckDB 2",
            hint="regexp_full_match(x, 'pattern') or regexp_matches(x, 'pattern')",
            operator=operator,
        )
