"""DuckDB's tree: text to tree and back without a change of meaning, and unknown shapes refused."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import check_query
from pqindex.sql import guard as guard_module
from pqindex.sql.tree import first_line, is_blank, is_plain, is_value, parse_query, print_query, where_in

RELATIONS = {"index": pa.schema([("seq_id", pa.int64())])}

CONSTANT_WITH_A_NODE = {
    "class": "CONSTANT",
    "type": "VALUE_CONSTANT",
    "alias": "",
    "value": {"type": {"id": "LIST"}, "value": [{"class": "FUNCTION", "function_name": "getenv"}]},
}

PRINTED = [
    "SELECT seq_id, stats.x.min AS m FROM index WHERE NOT (a AND b) OR c = d IS NULL ORDER BY 2 DESC LIMIT 3",
    "SELECT 1e10, 1.5e-7, 0.1, 1e400, 12345678901234567890.5, 170141183460469231731687303715884105727, true, NULL",
    "SELECT x IS TRUE, x IS NOT FALSE, x IS UNKNOWN, x IS DISTINCT FROM 1",
    "SELECT 'it''s', E'\\n', $$a'b$$, '\\xAA'::BLOB, 'ü' AS \"ä \"\" b\"",
    "SELECT a FROM t JOIN (u JOIN v USING (k)) USING (j) LEFT JOIN w ON t.x = w.y",
    "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS t(x, y)",
    "SELECT list_transform(l, lambda x: x + 1), [x + 1 for x in [1, 2] if x > 1], {'a b': 1, 'C': [1, NULL]}",
    'SELECT a::DECIMAL(10, 2)::VARCHAR, a::INT[3][], a::STRUCT(x INT, "y z" VARCHAR[]), a::MAP(INT, TEXT), a::JSON',
    "SELECT label, sum(y) FROM t GROUP BY CUBE (label), ROLLUP (a), GROUPING SETS ((b), ())",
    "SELECT sum(x) OVER (PARTITION BY a ORDER BY c DESC NULLS FIRST ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "SELECT count(*) FILTER (x > 1), string_agg(x, ',' ORDER BY y DESC NULLS LAST), sum(DISTINCT x) FROM t",
    "SELECT 'a' LIKE 'b', 'a' NOT ILIKE 'b' ESCAPE '$', 'a' SIMILAR TO 'b', a BETWEEN 1 AND 2, a NOT IN (1, 2)",
    "WITH t(a) AS MATERIALIZED (SELECT 1) SELECT * FROM t UNION BY NAME SELECT 2 EXCEPT ALL SELECT 3",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t",
    "SELECT a = ANY (SELECT 1), EXISTS (SELECT 1), (SELECT 1), a > ALL (SELECT 2)",
    "SELECT $a + $b, INTERVAL (x) DAY, DATE '2020-01-01' - INTERVAL '1' MONTH, ts AT TIME ZONE 'UTC'",
    "SELECT COLUMNS('a.*') + 1, * EXCLUDE (b) REPLACE (c + 1 AS c) FROM t",
    "SELECT * FROM t PIVOT (sum(y) FOR l IN ('a' AS b, 'c') GROUP BY s)",
    "SELECT a FROM t WHERE hash(a) % 100 < 10 ORDER BY a COLLATE NOCASE LIMIT 10% OFFSET 3",
    "SELECT DISTINCT ON (a, 2) a, b FROM t ORDER BY ALL DESC",
]


@pytest.mark.parametrize("sql", PRINTED)
def test_a_query_can_be_printed_and_what_is_printed_too(sql: str) -> None:
    assert print_query(parse_query(print_query(parse_query(sql))))


def test_a_tree_that_does_not_print_as_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = parse_query("SELECT 1 AS a")
    other = print_query(parse_query("SELECT 2 AS a"))
    from pqindex.sql import tree

    real = tree.parser()

    class Liar:
        def call(self, function: str, argument: str) -> str:
            return other if function == "json_deserialize_sql" else real.call(function, argument)

    monkeypatch.setattr(tree, "parser", Liar)
    with pytest.raises(QueryError, match="DuckDB prints it as something else"):
        print_query(document)


# -- a later DuckDB -------------------------------------------------------------------------------------------


def with_change(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let the guard see the tree of a DuckDB that writes it otherwise."""

    def changed(sql: str) -> dict[str, Any]:
        document = copy.deepcopy(parse_query(sql))
        change(document["statements"][0]["node"])
        return document

    monkeypatch.setattr(guard_module, "parse_query", changed)


@pytest.mark.parametrize("value", [None, "", [], {}, 0, 7, False, True, "DEFAULT_HANDLING", {"a": []}])
def test_a_new_field_that_holds_nothing_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    with_change(monkeypatch, lambda node: node.update(novelty=value))
    check_query("SELECT seq_id FROM index", relations=RELATIONS)


@pytest.mark.parametrize(
    "value", ["x.parquet", [1], {"type": "BASE_TABLE", "table_name": "x"}, [{"class": "FUNCTION"}]]
)
def test_a_new_field_that_could_hold_something_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    with_change(monkeypatch, lambda node: node.update(novelty=value))
    with pytest.raises(QueryError, match=r"SELECT_NODE\.novelty, which is not on the list"):
        check_query("SELECT seq_id FROM index", relations=RELATIONS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda node: node.update(type="FETCH_NODE"), "FETCH_NODE"),
        (lambda node: node["from_table"].update(type="REMOTE_TABLE"), "REMOTE_TABLE"),
        (lambda node: node["select_list"][0].update({"class": "SECRET"}), "SECRET.COLUMN_REF"),
        (lambda node: node["select_list"][0].update(type="FILE_REF"), "COLUMN_REF.FILE_REF"),
        (lambda node: node["modifiers"].append({"type": "INTO_MODIFIER"}), "INTO_MODIFIER"),
        (lambda node: node["from_table"].update(alias={"type": "BASE_TABLE"}), "BASE_TABLE.alias"),
        (
            lambda node: node.update(select_list=[CONSTANT_WITH_A_NODE]),
            "CONSTANT.value, which is not on the list",
        ),
        (lambda node: node.pop("modifiers"), "in a way that the guard does not know"),
        (lambda node: node["from_table"].pop("table_name"), "in a way that the guard does not know"),
    ],
)
def test_a_kind_that_is_unknown_is_refused(monkeypatch: pytest.MonkeyPatch, change: Any, words: str) -> None:
    with_change(monkeypatch, change)
    with pytest.raises(QueryError) as caught:
        check_query("SELECT seq_id FROM index", relations=RELATIONS)
    assert words in str(caught.value)


def test_blank_plain_and_value() -> None:
    assert is_value({"type": {"id": "INTEGER", "type_info": None}, "is_null": False, "value": 3})
    assert not is_value({"value": [{"class": "FUNCTION"}]})
    assert is_blank({"a": {"b": []}})
    assert not is_blank("lower")
    assert is_plain([{"catalog": "", "column": "a"}, ["b", 1]])
    assert not is_plain([{"class": "FUNCTION"}])


# -- words ----------------------------------------------------------------------------------------------------


def test_places_count_letters_not_bytes() -> None:
    sql = "SELECT 'ä',\n  nope"
    assert where_in(sql, len("SELECT 'ä',\n  ".encode())) == ": line 2, column 3"
    assert where_in(sql, None) == ""
    assert where_in(sql, 10**9) == ""


def test_first_line_is_what_was_said() -> None:
    assert first_line(Exception("Binder Error: no such thing!\n\nLINE 1: ...")) == "no such thing"
    assert first_line(Exception("plain")) == "plain"
