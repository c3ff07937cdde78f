"""The guard: what passes, what is refused and in which words, and what a pin may not hold."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import CheckedQuery, check_query, refuse_for_pin
from pqindex.sql.functions import (
    FUNCTIONS,
    FUNCTIONS_BY_KIND,
    REFUSED_PREFIXES,
    SESSION_VALUES,
    VOLATILE_FUNCTIONS,
)

BOUNDS = pa.struct([("min", pa.float64()), ("max", pa.float64())])
RELATIONS = {
    "index": pa.schema(
        [
            ("seq_id", pa.int64()),
            ("seq_no", pa.int64()),
            ("file", pa.string()),
            ("row_start", pa.int64()),
            ("row_count", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("stats", pa.struct([("price", BOUNDS), ("x", BOUNDS)])),
        ]
    ),
    "files": pa.schema([("file", pa.string()), ("size_bytes", pa.int64())]),
    "labels": pa.schema([("seq_id", pa.int64()), ("label", pa.string()), ("y", pa.float64())]),
}


def check(sql: str, dialect: str = "duckdb") -> CheckedQuery:
    return check_query(sql, relations=RELATIONS, dialect=dialect)


ACCEPTED = [
    "SELECT seq_id FROM index WHERE row_count >= 64",
    'SELECT "seq_id" FROM "Index" AS i WHERE i.row_count >= 64;',
    "FROM index SELECT seq_id",
    "FROM index",
    "TABLE index",
    "SELECT * EXCLUDE (file) REPLACE (row_count + 1 AS row_count) RENAME (row_start AS first) FROM index",
    "SELECT seq_id, COLUMNS('row.*') FROM index",
    "SELECT seq_id, label FROM index JOIN labels USING (seq_id)",
    "SELECT i.seq_id FROM index i LEFT JOIN labels l ON i.seq_id = l.seq_id AND l.y > 2 WHERE l.label IS NULL",
    "SELECT seq_id FROM index SEMI JOIN labels USING (seq_id)",
    "SELECT seq_id FROM index ANTI JOIN labels USING (seq_id)",
    "SELECT seq_id FROM index, LATERAL (SELECT y FROM labels l WHERE l.seq_id = index.seq_id)",
    "SELECT i.seq_id FROM index i ASOF JOIN labels l ON i.seq_id >= l.seq_id",
    "SELECT label, sum(y) FILTER (WHERE y > 0), avg(DISTINCT y) FROM labels GROUP BY label HAVING count(*) > 1",
    "SELECT label, sum(y) FROM labels GROUP BY ALL ORDER BY ALL",
    "SELECT label, sum(y), grouping(label) FROM labels GROUP BY GROUPING SETS ((label), ())",
    "SELECT string_agg(label, ',' ORDER BY y DESC) FROM labels",
    "SELECT seq_id, row_number() OVER (PARTITION BY file ORDER BY row_start) AS rn FROM index QUALIFY rn = 1",
    "SELECT seq_id, sum(row_count) OVER (ORDER BY seq_no ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM index",
    "SELECT seq_id, lag(row_count, 2, 0) OVER w FROM index WINDOW w AS (ORDER BY seq_no)",
    "SELECT seq_id, list_transform(tags, lambda t: upper(t)) FROM index",
    "SELECT list_filter(tags, lambda t, i: i > 1), [upper(t) for t in tags if t <> 'a'], tags[1], tags[1:2] FROM index",
    "SELECT seq_id FROM index WHERE stats.x.min > 0 AND (stats).price.max < 3 AND stats['x'].max IS NOT NULL",
    "SELECT seq_id FROM index WHERE list_contains(tags, 'a') AND len(tags) > 2",
    "SELECT seq_id FROM index WHERE hash(seq_id) % 100 < 10",
    "SELECT md5(file), sha256(file) FROM index",
    "SELECT CASE WHEN row_count > 3 THEN 'long' ELSE 'short' END, CASE row_count WHEN 1 THEN 2 END FROM index",
    "WITH long AS (SELECT * FROM index WHERE row_count > 9) SELECT seq_id FROM long",
    "WITH a AS (SELECT seq_id FROM index), b(k) AS MATERIALIZED (FROM a) SELECT k AS seq_id FROM b",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t",
    "WITH index AS (SELECT 1 AS seq_id) SELECT * FROM index",
    "SELECT seq_id FROM index WHERE EXISTS (SELECT 1 FROM labels WHERE labels.seq_id = index.seq_id)",
    "SELECT seq_id FROM index WHERE seq_id NOT IN (SELECT seq_id FROM labels) AND seq_id IN (1, 2)",
    "SELECT seq_id FROM index WHERE row_count > (SELECT avg(row_count) FROM index)",
    "SELECT seq_id FROM index UNION ALL SELECT seq_id FROM labels",
    "(SELECT seq_id FROM index ORDER BY 1 LIMIT 2) EXCEPT SELECT seq_id FROM labels INTERSECT SELECT 1",
    "SELECT DISTINCT ON (file) seq_id FROM index ORDER BY file, row_count DESC NULLS LAST",
    "SELECT seq_id FROM index ORDER BY file COLLATE NOCASE LIMIT 10 OFFSET 5",
    "SELECT seq_id FROM index LIMIT 10%",
    "SELECT seq_id FROM index WHERE row_count > ? AND file = ?",
    "SELECT seq_id FROM index WHERE row_count > $n AND file = $name",
    "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS t(seq_id, label)",
    "SELECT * FROM range(10) AS r(i), generate_series(1, 2), unnest([1, 2]) AS u(k)",
    "SELECT CAST(seq_id AS VARCHAR), TRY_CAST(file AS INTEGER), '1'::DECIMAL(10, 2)[], '1'::VARCHAR(3) FROM index",
    "SELECT x::STRUCT(a INT, b MAP(TEXT, INT)) FROM (SELECT NULL AS x)",
    "SELECT DATE '2020-01-01' + INTERVAL 3 DAY, extract(year FROM TIMESTAMP '2020-01-01')",
    "SELECT date_trunc('month', DATE '2020-02-02'), date_diff('day', DATE '2020-01-01', DATE '2020-02-02')",
    "SELECT strftime(DATE '2020-01-01', '%Y'), TIMESTAMPTZ '2020-01-01' AT TIME ZONE 'Europe/Berlin'",
    "SELECT file LIKE 'a%', file ILIKE 'A%', file SIMILAR TO 'a', file GLOB 'a*', file NOT LIKE 'b' ESCAPE '$' FROM index",
    "SELECT regexp_extract(file, 'part-([0-9]+)', 1), regexp_matches(file, 'x'), split_part(file, '/', 1) FROM index",
    "SELECT 1 + 2 - 3 * 4 / 5 // 6 % 7 ** 2, -1, ~1, 1 & 2 | 3, 1 << 2, 'a' || 'b', @(-1), 3!",
    "SELECT coalesce(1, 2), nullif(1, 2), ifnull(1, 2), if(true, 1, 2), greatest(1, 2), try(1 // 0)",
    "SELECT '{\"a\": 1}'::JSON -> 'a', '{\"a\": 1}' ->> '$.a', json_extract(file, '$.a') FROM index",
    "SELECT {'a': 1, 'b': [1, 2]}.b, struct_pack(k := 2), map {'k': 1}['k'], row(1, 2)",
    "SELECT * FROM labels PIVOT (sum(y) FOR label IN ('a', 'b') GROUP BY seq_id)",
    "PIVOT labels ON label IN ('a', 'b') USING sum(y) GROUP BY seq_id",
    "SELECT * FROM labels UNPIVOT (v FOR n IN (y, seq_id))",
    "SELECT quantile_cont(y, 0.5), arg_max(label, y), max_by(label, y, 3), histogram(label) FROM labels",
    "SELECT user FROM (SELECT label AS user FROM labels)",
    "/* ; DROP TABLE index; */ SELECT seq_id -- ; COPY index TO 'x'\nFROM index;;",
    "SELECT '; DROP TABLE index; --' AS harmless",
]


@pytest.mark.parametrize("sql", ACCEPTED)
def test_accepts(sql: str) -> None:
    query = check(sql)
    assert query.text == sql
    assert not query.volatile
    assert not query.sql.endswith(";")


REFUSED = [
    # files
    ("SELECT * FROM 'x.parquet'", "a query never reads files, found 'x.parquet': line 1, column 15"),
    ('SELECT * FROM "data/x.csv"', "attach={'name': 'data/x.csv'} / --attach name=data/x.csv"),
    ("SELECT * FROM index JOIN 's3://b/x.parquet' USING (seq_id)", "a query never reads files"),
    ("SELECT * FROM read_parquet('x.parquet')", "the function 'read_parquet' is not allowed in FROM"),
    (
        "SELECT * FROM read_csv('x', header = true)",
        "attach={'labels': 'labels.parquet'} / --attach labels=labels.parquet",
    ),
    (
        "SELECT read_text('x')",
        "'read_text' is not allowed: line 1, column 8. Hint: no function reads or writes",
    ),
    ("SELECT (SELECT content FROM read_text('/etc/passwd'))", "'read_text' is not allowed"),
    ("WITH t AS (SELECT * FROM glob('*')) SELECT seq_id FROM index", "'glob' is not allowed in FROM"),
    (
        "SELECT seq_id FROM index WHERE seq_id IN (FROM parquet_metadata('x'))",
        "'parquet_metadata' is not allowed",
    ),
    ("SELECT * FROM sniff_csv('x')", "'sniff_csv' is not allowed"),
    (
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "in FROM there may be relations, subqueries, VALUES and generate_series",
    ),
    ("SELECT * FROM query('SELECT 1')", "text is never run as SQL"),
    ("SELECT * FROM query_table('index')", "'query_table' is not allowed in FROM"),
    ("FROM json_execute_serialized_sql('{}')", "'json_execute_serialized_sql' is not allowed in FROM"),
    ("SELECT * FROM repeat('x', 3)", "'repeat' is not allowed in FROM"),
    ("SELECT * FROM histogram(index, file)", "'histogram' is not allowed in FROM"),
    # other names
    ("SELECT * FROM indx", "no relation 'indx': line 1, column 15. Hint: did you mean 'index'? there are: "),
    ("SELECT * FROM lables", "did you mean 'labels'?"),
    ("SELECT * FROM main.index", "a relation has no schema or catalog before its name, found 'main.index'"),
    ("SELECT * FROM memory.main.index", "found 'memory.main.index'"),
    ("SELECT * FROM information_schema.tables", "found 'information_schema.tables'"),
    ("SELECT * FROM duckdb_tables", "no relation 'duckdb_tables'"),
    ("SELECT * FROM sqlite_master", "there are: index, files, labels"),
    ("SELECT * FROM index AT (VERSION => 3)", "open(path, snapshot=3) / --snapshot 3"),
    ("WITH t AS (FROM u), u AS (SELECT 1) FROM t", "no relation 'u'"),
    ("WITH t AS (FROM t) FROM t", "no relation 't'"),
    ("SELECT * FROM (WITH u AS (SELECT 1) FROM u), u", "no relation 'u'"),
    # functions
    ("SELECT getenv('HOME')", "the function 'getenv' is not allowed: line 1, column 8"),
    ("SELECT seq_id FROM index ORDER BY getenv('HOME')", "nothing of the machine"),
    ("SELECT seq_id FROM index LIMIT getenv('N')", "'getenv' is not allowed"),
    ("SELECT list_transform(tags, lambda t: getenv(t)) FROM index", "'getenv' is not allowed"),
    ("SELECT current_setting('threads')", "'current_setting' is not allowed"),
    ("SELECT nextval('s')", "row_number() OVER"),
    ("SELECT getvariable('x')", "params=[...] / --param VALUE"),
    ("SELECT setseed(0.5)", "hash(seq_id) % 100 < 10"),
    ("SELECT write_log('x')", "'write_log' is not allowed"),
    ("SELECT pg_sleep(9)", "'pg_sleep' is not allowed"),
    ("SELECT version()", "functions of their arguments alone are allowed"),
    ("SELECT error('x')", "'error' is not allowed"),
    ("SELECT json_serialize_sql('SELECT 1')", "'json_serialize_sql' is not allowed"),
    ("SELECT json_deserialize_sql('{}')", "'json_deserialize_sql' is not allowed"),
    ("SELECT upperr(file) FROM index", "did you mean 'upper'"),
    ("SELECT sum(y) OVER (ORDER BY current_setting('x')) FROM labels", "'current_setting' is not allowed"),
    ("SELECT count(*) FILTER (WHERE txid_current() > 1) FROM labels", "'txid_current' is not allowed"),
    ("SELECT current_user", "put its relation before it: index.current_user"),
    ("SELECT session_user, user", "'session_user' is not allowed"),
    ("SELECT main.getenv('HOME')", "'getenv' is not allowed"),
    ("SELECT file !~ 'a' FROM index", "the operator !~ is refused"),
    ("SELECT seq_id FROM index WHERE file ~ 'a'", "regexp_full_match(x, 'pattern') or regexp_matches"),
    ("SELECT ~row_count FROM index WHERE file::VARCHAR ~ 'a'", "the operator ~ is refused"),
    ("SELECT CAST(1 AS mytype)", "no type 'mytype'"),
    ("SELECT CAST(1 AS STRUCT(a other))", "no type 'other'"),
    # statements
    ("COPY index TO 'x.csv'", "only SELECT is allowed, found COPY"),
    ("COPY (SELECT 1) TO 'x.parquet'", "found COPY"),
    ("ATTACH 'x.db'", "found ATTACH"),
    (
        "INSTALL httpfs",
        "only SELECT is allowed, found INSTALL. Hint: a query reads the index; build and pin are",
    ),
    ("FORCE INSTALL httpfs", "found INSTALL"),
    ("LOAD 'x.duckdb_extension'", "found LOAD"),
    ("SET threads = 1", "only SELECT is allowed, found"),
    ("PRAGMA database_list", "only SELECT is allowed"),
    ("CREATE TABLE t AS SELECT 1", "found CREATE"),
    ("CREATE SECRET s (TYPE s3)", "found CREATE"),
    ("INSERT INTO index VALUES (1)", "found INSERT"),
    ("UPDATE index SET seq_id = 1", "found UPDATE"),
    ("DELETE FROM index", "found DELETE"),
    ("DROP TABLE index", "found DROP"),
    ("EXPORT DATABASE 'x'", "found EXPORT"),
    ("CALL enable_logging()", "found CALL"),
    ("EXPLAIN SELECT 1", "found EXPLAIN"),
    ("BEGIN", "found TRANSACTION"),
    ("VACUUM", "found VACUUM"),
    ("UPDATE EXTENSIONS", "only SELECT is allowed"),
    ("PREPARE p AS SELECT 1", "found PREPARE"),
    ("DESCRIBE index", "DESCRIBE, SHOW and SUMMARIZE are refused"),
    ("SELECT * FROM (SUMMARIZE index)", "DESCRIBE, SHOW and SUMMARIZE are refused"),
    ("SHOW TABLES", "DESCRIBE, SHOW and SUMMARIZE are refused"),
    ("PIVOT labels ON label USING sum(y)", "a PIVOT has to name its columns here"),
    ("SELECT 1; SELECT 2", "one statement is allowed, found 2: SELECT, SELECT"),
    ("SELECT 1; DROP TABLE index", "found 2: SELECT, DROP"),
    ("SELECT 1 /* */ ; -- x\n COPY index TO 'x'", "found 2: SELECT, COPY"),
    ("/* SELECT 1 */ DROP TABLE index", "found DROP"),
    ("", "the query is empty"),
    ("-- only a comment", "the query is empty"),
    ("SELEC seq_id FROM index", "the query does not parse: syntax error"),
    ("SELECT seq_id\nFROM index WHERE (", "the query does not parse"),
    ("SELECT seq_id INTO x FROM index", "the query does not parse"),
    ("SELECT 1\0", "zero byte"),
    ("SELECT '\ud800'", "half a character"),
    ("SELECT " + "[" * 3000 + "]" * 3000, "the query is nested too deeply"),
    ("SELECT " + "abs(" * 900 + "1" + ")" * 900, "the query is nested too deeply"),
]


@pytest.mark.parametrize(("sql", "words"), REFUSED, ids=[sql[:60] for sql, _ in REFUSED])
def test_refuses_in_words_that_help(sql: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        check(sql)
    assert words in str(caught.value)


def test_refuses_a_cte_that_writes() -> None:
    with pytest.raises(QueryError, match=r"SELECT|CTE"):
        check("WITH t AS (INSERT INTO labels VALUES (1) RETURNING *) SELECT * FROM t")


def test_refuses_what_is_not_text() -> None:
    with pytest.raises(QueryError, match="a query is text; found int"):
        check_query(3, relations=RELATIONS)  # type: ignore[arg-type]


def test_the_first_fault_in_the_text_is_told() -> None:
    with pytest.raises(QueryError, match="'getenv'"):
        check("SELECT getenv('A'), current_setting('B') FROM nowhere")


def test_facts_are_attributes() -> None:
    with pytest.raises(QueryError) as caught:
        check("SELECT * FROM read_csv('x')")
    assert caught.value.function == "read_csv"
    with pytest.raises(QueryError) as caught:
        check("SELECT * FROM nowhere")
    assert caught.value.relation == "nowhere"
    assert caught.value.reason == "query"


# -- what a checked query says --------------------------------------------------------------------------------


def test_relations_are_those_that_are_named() -> None:
    sql = "WITH labels AS (FROM index) SELECT * FROM labels WHERE EXISTS (FROM FILES)"
    assert check(sql).relations == ("files", "index")
    assert check("SELECT 1").relations == ()


def test_parameters_come_in_their_order() -> None:
    assert check("SELECT ? + ?").parameters == ("1", "2")
    assert check("SELECT $2 + $1").parameters == ("1", "2")
    assert check("SELECT $b + $a + $b LIMIT $c").parameters == ("b", "a", "c")
    assert check("SELECT $b + $a + $b").n_parameters == 2
    assert check("SELECT 1").n_parameters == 0


@pytest.mark.parametrize(
    ("sql", "ordered", "unordered_limit"),
    [
        ("SELECT seq_id FROM index", False, False),
        ("SELECT seq_id FROM index ORDER BY 1", True, False),
        ("SELECT seq_id FROM index ORDER BY 1 LIMIT 3", True, False),
        ("SELECT seq_id FROM index LIMIT 3", False, True),
        ("SELECT seq_id FROM index OFFSET 3", False, True),
        ("SELECT seq_id FROM index LIMIT 10%", False, True),
        ("SELECT seq_id FROM index FETCH FIRST 3 ROWS ONLY", False, True),
        ("SELECT seq_id FROM (FROM index LIMIT 3) ORDER BY 1", True, True),
        ("SELECT seq_id FROM (FROM index ORDER BY 1 LIMIT 3)", False, False),
        ("WITH t AS (FROM index LIMIT 3) SELECT seq_id FROM t ORDER BY 1", True, True),
        ("WITH t AS MATERIALIZED (FROM index) SELECT seq_id FROM t ORDER BY 1 LIMIT 2", True, False),
        ("SELECT (SELECT y FROM labels LIMIT 1) FROM index ORDER BY 1", True, True),
        ("SELECT seq_id FROM index WHERE seq_id IN (SELECT seq_id FROM labels LIMIT 1)", False, True),
        ("(SELECT seq_id FROM index LIMIT 2) UNION ALL (SELECT 1) ORDER BY 1", True, True),
        ("SELECT seq_id FROM index UNION ALL SELECT 1 ORDER BY 1", True, False),
        ("SELECT DISTINCT ON (file) seq_id FROM index", False, True),
        ("SELECT DISTINCT ON (file) seq_id FROM index ORDER BY seq_no", True, False),
        ("SELECT DISTINCT seq_id FROM index", False, False),
    ],
)
def test_order_and_limits(sql: str, ordered: bool, unordered_limit: bool) -> None:
    query = check(sql)
    assert (query.ordered, query.unordered_limit) == (ordered, unordered_limit)
    if unordered_limit:
        with pytest.raises(QueryError, match="put ORDER BY seq_no beside it"):
            refuse_for_pin(query)
    else:
        refuse_for_pin(query)


@pytest.mark.parametrize(
    ("sql", "volatile"),
    [
        ("SELECT seq_id FROM index WHERE random() < 0.1", ("random",)),
        ("SELECT seq_id FROM index ORDER BY random()", ("random",)),
        ("SELECT seq_id, now(), today() FROM index", ("now", "today")),
        ("SELECT uuid(), gen_random_uuid()", ("uuid", "gen_random_uuid")),
        (
            "SELECT current_date, current_timestamp, localtime",
            ("current_date", "current_timestamp", "localtime"),
        ),
        (
            "SELECT seq_id FROM index WHERE DATE '2020-01-01' > current_date - INTERVAL 1 YEAR",
            ("current_date",),
        ),
        ("SELECT age(DATE '2020-01-01')", ("age",)),
        ("SELECT age(DATE '2020-01-01', DATE '2019-01-01')", ()),
        ("SELECT seq_id FROM index TABLESAMPLE 10%", ("TABLESAMPLE",)),
        ("SELECT seq_id FROM index USING SAMPLE 10", ("TABLESAMPLE",)),
        ("SELECT seq_id FROM index TABLESAMPLE reservoir(10) REPEATABLE (3)", ("TABLESAMPLE",)),
        ("WITH t AS (SELECT random() AS r) SELECT r FROM t", ("random",)),
        ("SELECT reservoir_quantile(y, 0.5) FROM labels", ("reservoir_quantile",)),
        ("SELECT current_date FROM (SELECT DATE '2020-01-01' AS current_date)", ()),
        ("SELECT seq_id FROM index WHERE hash(seq_id) % 100 < 10", ()),
    ],
)
def test_volatile_queries_run_but_are_not_pinned(sql: str, volatile: tuple[str, ...]) -> None:
    query = check(sql)
    assert query.volatile == volatile
    if volatile:
        with pytest.raises(QueryError, match=r"hash\(seq_id\) % 100 < 10") as caught:
            refuse_for_pin(query)
        assert all(name in str(caught.value) for name in volatile)
        assert caught.value.volatile == volatile
    else:
        refuse_for_pin(query)


def test_a_column_named_like_a_session_value_is_a_column() -> None:
    relations = {"index": pa.schema([("user", pa.string()), ("current_date", pa.date32())])}
    assert check_query("SELECT user, current_date FROM index", relations=relations).volatile == ()
    assert check("SELECT i.user FROM index i").volatile == ()


def test_a_checked_query_is_frozen() -> None:
    query = check("SELECT 1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        query.sql = "DROP TABLE index"  # type: ignore[misc]


# -- the lists ------------------------------------------------------------------------------------------------


def test_no_function_has_two_kinds_and_all_are_lower_case() -> None:
    names = [name for kind in FUNCTIONS_BY_KIND.values() for name in kind]
    assert len(names) == len(set(names)) > 400
    assert all(name == name.lower() for name in FUNCTIONS)
    assert not FUNCTIONS & SESSION_VALUES


def test_nothing_that_reaches_out_is_on_the_list() -> None:
    words = (
        "read_",
        "write",
        "scan",
        "glob",
        "copy",
        "setting",
        "getenv",
        "secret",
        "execute",
        "sleep",
        "log_",
        "nextval",
    )
    assert [name for name in FUNCTIONS if any(word in name for word in words)] == []
    assert [name for name in FUNCTIONS for prefix, _ in REFUSED_PREFIXES if name.startswith(prefix)] == []


def test_volatile_functions_that_duckdb_knows_are_flagged() -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() "
            "WHERE stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY') AND len(parameters) = 0"
        ).fetchall()
    reading_a_clock_or_dice = {name.lower() for (name,) in rows} & FUNCTIONS
    assert reading_a_clock_or_dice <= VOLATILE_FUNCTIONS | {"current_date"}
