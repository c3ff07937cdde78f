"""Text of SQL: other dialects in, one canonical form, statements without their semicolons."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import LockedDatabase, canonical_text, check_query, run_selection
from pqindex.sql.dialect import statement_text, to_duckdb

RELATIONS = {"index": pa.schema([("seq_id", pa.int64()), ("file", pa.string()), ("row_count", pa.int64())])}


@pytest.mark.parametrize(
    "sql",
    [
        "select Seq_Id, COUNT(*) as N from INDEX where ROW_COUNT >= 64 group by seq_id",
        "SELECT seq_id,\n  count(*) AS N\nFROM index\nWHERE row_count>=64 GROUP BY seq_id;",
        "/* a */ SELECT seq_id, count ( * ) AS N -- b\nFROM index WHERE row_count >= 64 GROUP BY seq_id ;",
    ],
)
def test_blanks_case_and_comments_do_not_matter(sql: str) -> None:
    query = check_query(sql, relations=RELATIONS)
    assert query.canonical == "SELECT seq_id, COUNT(*) AS N FROM index WHERE row_count >= 64 GROUP BY seq_id"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT 'a'", "SELECT 'A'"),
        ("SELECT seq_id AS a FROM index", "SELECT seq_id AS A FROM index"),
        ("SELECT seq_id FROM index WHERE row_count > 1", "SELECT seq_id FROM index WHERE row_count > 2"),
        ("SELECT seq_id FROM index ORDER BY 1", "SELECT seq_id FROM index ORDER BY 1 DESC"),
    ],
)
def test_what_matters_is_kept(one: str, other: str) -> None:
    assert canonical_text(one) != canonical_text(other)


def test_text_that_sqlglot_does_not_know_is_canonical_by_its_tokens() -> None:
    text = "SELECT ***  FROM -- no\n Index WHERE 'It' = \"It\""
    assert canonical_text(text) == "select *** from index where 'It' = \"It\""


def test_statement_text_loses_semicolons_only_outside_of_strings() -> None:
    assert statement_text(" ; SELECT ';ä' AS \"b;\" ; -- c;\n;") == "   SELECT ';ä' AS \"b;\""
    assert statement_text("SELECT 1") == "SELECT 1"


@pytest.mark.parametrize(
    ("dialect", "sql", "expected"),
    [
        ("postgres", "SELECT seq_id FROM index WHERE file ~ 'a'", "REGEXP_MATCHES"),
        ("postgres", "SELECT seq_id::text FROM index", "CAST(seq_id AS TEXT)"),
        ("spark", "SELECT seq_id FROM index WHERE file RLIKE 'a'", "REGEXP_MATCHES"),
        ("bigquery", "SELECT `seq_id`, SAFE_CAST(file AS INT64) AS n FROM index", "TRY_CAST(file AS BIGINT)"),
        ("snowflake", "SELECT seq_id, IFF(row_count > 1, 'a', 'b') AS k FROM index", "CASE WHEN"),
        ("tsql", "SELECT TOP 3 seq_id FROM [index] ORDER BY seq_id", "LIMIT 3"),
    ],
)
def test_other_dialects_come_in(dialect: str, sql: str, expected: str) -> None:
    query = check_query(sql, relations=RELATIONS, dialect=dialect)
    assert (query.text, query.dialect) == (sql, dialect)
    assert expected in query.sql
    assert query.relations == ("index",)


@pytest.mark.parametrize(
    ("dialect", "sql", "words"),
    [
        ("postgress", "SELECT 1", "no dialect 'postgress'. Hint: did you mean 'postgres'?"),
        ("postgres", "SELECT 1; SELECT 2", "one statement is allowed, found 2"),
        ("postgres", "SELECT FROM WHERE", "the query cannot be read as postgres"),
        ("postgres", "COPY index TO '/tmp/x'", "only SELECT is allowed, found COPY"),
        ("postgres", "SELECT * FROM pg_read_file('/etc/passwd')", "'pg_read_file' is not allowed in FROM"),
        ("spark", "SELECT * FROM parquet.`x.parquet`", "a relation has no schema or catalog before its name"),
        ("mysql", "DROP TABLE t", "only SELECT is allowed, found DROP"),
    ],
)
def test_other_dialects_pass_the_same_guard(dialect: str, sql: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        check_query(sql, relations=RELATIONS, dialect=dialect)
    assert words in str(caught.value)


def test_duckdb_text_is_not_touched() -> None:
    assert to_duckdb("SELECT  1", "DuckDB") == "SELECT  1"


@pytest.mark.parametrize(
    ("dialect", "before", "after"),
    [
        ("mysql", "(", ")"),  # DuckDB 1 follows any number of these
        *[
            (dialect, *words)
            for dialect in ("duckdb", "mysql")
            for words in (("[", "]"), ("abs(", ")"), ("NOT ", ""), ("1 + ", ""))
        ],
    ],
)
def test_a_query_that_is_nested_too_deeply_is_refused_in_words(dialect: str, before: str, after: str) -> None:
    with pytest.raises(QueryError, match=r"the query is nested too deeply. Hint: split it with WITH"):
        check_query(f"SELECT {before * 3000}1{after * 3000}", relations=RELATIONS, dialect=dialect)


@pytest.mark.parametrize("depth", [50, 200, 300, 400, 700, 900, 3000])
@pytest.mark.parametrize(("before", "after"), [("(", ")"), ("abs(", ")"), ("1 + ", "")])
def test_a_query_at_any_depth_runs_or_is_refused_and_has_a_canonical_text(
    depth: int, before: str, after: str
) -> None:
    index = pa.table({"seq_id": [1], "seq_no": [0]})
    sql = f"SELECT seq_id, {before * depth}1{after * depth} AS x FROM index ORDER BY x LIMIT 1"
    with LockedDatabase({"index": index}) as database:
        try:
            query = check_query(sql, relations=database.schemas)
            canonical, n_rows = query.canonical, run_selection(database, query).num_rows
        except QueryError as error:
            said = error.message
        else:
            said = ""
    assert said == "the query is nested too deeply" or ("seq_id" in canonical and n_rows == 1)
