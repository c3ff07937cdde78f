"""The locked DuckDB and the guard before it: the only place that knows duckdb and sqlglot.

A query goes text -> `check_query` -> `CheckedQuery` -> `LockedDatabase.execute` or `run_selection`. The guard lets
through one SELECT over named relations and functions of their arguments alone; the database below it can reach no
file even if the guard were wrong.
"""

from __future__ import annotations

from pqindex.sql.aggregates import GROUP_COLUMN, Aggregate, AggregateDatabase, check_aggregates
from pqindex.sql.attach import RESERVED_NAMES, attached_tables, parse_relation_name
from pqindex.sql.connection import COPY_BELOW_ROWS, LockedDatabase
from pqindex.sql.dialect import canonical_text
from pqindex.sql.functions import FUNCTIONS_BY_KIND, VOLATILE_FUNCTIONS
from pqindex.sql.guard import CheckedQuery, check_query, refuse_for_pin
from pqindex.sql.selection import RANK_COLUMN, run_selection

__all__ = [
    "COPY_BELOW_ROWS",
    "FUNCTIONS_BY_KIND",
    "GROUP_COLUMN",
    "RANK_COLUMN",
    "RESERVED_NAMES",
    "VOLATILE_FUNCTIONS",
    "Aggregate",
    "AggregateDatabase",
    "CheckedQuery",
    "LockedDatabase",
    "attached_tables",
    "canonical_text",
    "check_aggregates",
    "check_query",
    "parse_relation_name",
    "refuse_for_pin",
    "run_selection",
]
