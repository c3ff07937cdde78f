"""The locked database: relations in, answers out, time and memory and parameters in bounds."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds
import pytest

from pqindex.errors import ProcessBoundaryError, QueryError
from pqindex.sql import LockedDatabase, check_query
from pqindex.sql import connection as connection_module
from pqindex.sql.engine import STOP_WITHIN_S, Connection, Parameters

INDEX = pa.table({"seq_id": [7, 5, 9], "seq_no": [0, 1, 2], "row_count": [3, 1, 2]})
LONG = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range + b.range = -1"


@pytest.fixture
def database() -> Iterator[LockedDatabase]:
    with LockedDatabase({"index": INDEX}) as database:
        yield database


def execute(database: LockedDatabase, sql: str, params: Parameters = None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = database.execute(
        check_query(sql, relations=database.schemas), params
    ).to_pylist()
    return rows


def test_index_needs_no_quotes_and_no_case(database: LockedDatabase) -> None:
    assert execute(database, "SELECT seq_id FROM index WHERE row_count >= 2") == [
        {"seq_id": 7},
        {"seq_id": 9},
    ]
    assert execute(database, "SELECT INDEX.seq_id FROM Index LIMIT 1") == [{"seq_id": 7}]


def test_rows_keep_their_order() -> None:
    numbers = np.random.default_rng(0).permutation(300_000)
    with LockedDatabase({"index": pa.table({"seq_id": numbers})}) as database:
        table = database.execute(check_query("FROM index", relations=database.schemas))
    assert table.column("seq_id").to_numpy().tolist() == numbers.tolist()


# -- relations ------------------------------------------------------------------------------------------------


def test_sources_of_every_kind() -> None:
    batch = pa.record_batch({"a": [1]})
    calls = []

    def made() -> pa.Table:
        calls.append(1)
        return pa.table({"a": [4]})

    sources = {"t": pa.table({"a": [1]}), "d": pds.dataset(pa.table({"a": [2]})), "b": batch, "c": made}
    with LockedDatabase(sources) as database:
        assert calls == []
        union = "SELECT sum(a) AS n FROM (FROM t UNION ALL FROM d UNION ALL FROM b)"
        assert execute(database, union) == [{"n": 4}]
        assert calls == []
        assert execute(database, "FROM c") == execute(database, "FROM c") == [{"a": 4}]
        assert calls == [1]
        assert list(database.schemas) == ["t", "d", "b", "c"]
        assert database.schemas["d"].names == ["a"]


def test_a_relation_of_another_kind_is_refused() -> None:
    with LockedDatabase({"t": lambda: [1, 2]}) as database, pytest.raises(QueryError, match="'t' is a list"):
        execute(database, "FROM t")


def test_names_are_one_letter_case_aside() -> None:
    with pytest.raises(QueryError, match="two relations are called 'INDEX'"):
        LockedDatabase({"index": INDEX, "INDEX": INDEX})


def test_a_relation_that_is_not_there(database: LockedDatabase) -> None:
    query = check_query("FROM labels", relations={"labels": INDEX.schema})
    with pytest.raises(QueryError, match="no relation 'labels'"):
        database.execute(query)


@pytest.mark.parametrize("as_dataset", [False, True])
def test_large_relations_are_scanned_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, as_dataset: bool
) -> None:
    monkeypatch.setattr(connection_module, "COPY_BELOW_ROWS", 0)
    table = pa.table({"seq_id": [3, 1, 2], "file": ["a", None, "b"]})
    with LockedDatabase({"index": pds.dataset(table) if as_dataset else table}) as database:
        assert execute(database, "SELECT seq_id FROM index WHERE seq_id > 1") == [
            {"seq_id": 3},
            {"seq_id": 2},
        ]
        assert execute(database, "SELECT seq_id FROM index WHERE file IS NULL") == [{"seq_id": 1}]
        assert database._engines.get(None)._copied == set()


@pytest.mark.parametrize("copy_below", [0, 1_000_000])
def test_case_23_nan_compares_the_same_copied_and_scanned(
    monkeypatch: pytest.MonkeyPatch, copy_below: int
) -> None:
    monkeypatch.setattr(connection_module, "COPY_BELOW_ROWS", copy_below)
    values = [1.0, float("nan"), None, 3.0, float("inf")]
    table = pa.table({"n": [0, 1, 2, 3, 4], "x": values, "s": [{"m": value} for value in values]})
    with LockedDatabase({"t": table}) as database:

        def numbers(condition: str) -> list[object]:
            return [row["n"] for row in execute(database, f"SELECT n FROM t WHERE {condition} ORDER BY n")]

        assert numbers("x > 2") == numbers("s.m > 2") == [1, 3, 4]
        assert numbers("x <> 3") == [0, 1, 4]
        assert numbers("NOT (x < 10)") == [1, 4]
        assert numbers("x IS DISTINCT FROM 3") == [0, 1, 2, 4]
        assert numbers("isnan(x)") == [1]


def test_case_10_large_integers_compare_exactly() -> None:
    table = pa.table({"seq_id": pa.array([2**53 + 1, None])})
    with LockedDatabase({"t": table}) as database:
        assert execute(database, "SELECT count(*) AS n FROM t WHERE seq_id = 9007199254740993") == [{"n": 1}]
        assert execute(database, "SELECT count(*) AS n FROM t WHERE seq_id = 9007199254740992") == [{"n": 0}]


def test_case_5_numbers_and_text_never_compare() -> None:
    words = "Cannot compare values of type VARCHAR and type INTEGER"
    with LockedDatabase({"t": pa.table({"a": ["1"]})}) as database, pytest.raises(QueryError, match=words):
        execute(database, "SELECT a FROM t WHERE a > 0")


def test_more_relations_share_what_is_loaded(database: LockedDatabase) -> None:
    one = database.with_relations({"labels": pa.table({"seq_id": [5], "label": ["a"]})})
    two = database.with_relations({"labels": pa.table({"seq_id": [9], "label": ["b"]})})
    join = "SELECT label FROM index JOIN labels USING (seq_id)"
    assert execute(one, join) == [{"label": "a"}]
    assert execute(two, join) == [{"label": "b"}]
    assert execute(one, join) == [{"label": "a"}]
    assert "labels" not in database.schemas
    with pytest.raises(QueryError, match="no relation 'labels'"):
        execute(database, join)
    one.close()
    two.close()
    assert set(database._engines.get(None)._loaded) == {"index"}
    assert execute(database, "SELECT count(*) AS n FROM index") == [{"n": 3}]


def test_a_name_that_is_taken_cannot_be_added(database: LockedDatabase) -> None:
    with pytest.raises(QueryError, match="the name 'Index' is taken"):
        database.with_relations({"Index": INDEX})


# -- parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "params", "expected"),
    [
        ("SELECT ?::INTEGER + ? AS v", [1, 2], 3),
        ("SELECT $2 - $1 AS v", (1, 3), 2),
        ("SELECT $b - $a AS v", {"a": 1, "b": 3}, 2),
        ("SELECT ? AS v", {"1": 3}, 3),
        ("SELECT ? AS v", [None], None),
        ("SELECT ?::VARCHAR AS v", ["'; DROP TABLE index; --"], "'; DROP TABLE index; --"),
        ("SELECT ? AS v", [[1, 2]], [1, 2]),
        ("SELECT ? AS v", [np.int64(2**62)], 2**62),
        ("SELECT ? AS v", [np.array([1, 2])], [1, 2]),
        ("SELECT ? AS v", [pa.scalar("x")], "x"),
        ("SELECT 1 AS v", [], 1),
        ("SELECT 1 AS v", {}, 1),
    ],
)
def test_parameters(database: LockedDatabase, sql: str, params: Parameters, expected: object) -> None:
    assert execute(database, sql, params) == [{"v": expected}]


@pytest.mark.parametrize(
    ("sql", "params", "words"),
    [
        ("SELECT ?", None, "the parameters of the query are $1, given are 0 values"),
        ("SELECT ?", [1, 2], "the parameters of the query are $1, given are 2 values"),
        ("SELECT 1", [1], "the parameters of the query are none, given are 1 values"),
        ("SELECT $2", [1], "the parameters of the query are $2, given are 1 values"),
        ("SELECT $a", [1], "the parameters of the query are $a, given are 1 values"),
        ("SELECT $a, $b", {"a": 1}, "the parameters of the query are $a, $b, given are $a"),
        ("SELECT $a", {"a": 1, "c": 2}, "given are $a, $c"),
        ("SELECT $a, ?", [1], "not both"),
        ("SELECT ?", "x", "the parameters are one text"),
        ("SELECT ?", [object()], "the query fails"),
    ],
)
def test_parameters_that_do_not_fit(
    database: LockedDatabase, sql: str, params: Parameters, words: str
) -> None:
    with pytest.raises(QueryError) as caught:
        execute(database, sql, params)
    assert words in str(caught.value)


# -- bounds ---------------------------------------------------------------------------------------------------


def test_time_is_bounded() -> None:
    with LockedDatabase({"index": INDEX}, timeout_s=0.2) as database:
        start_s = time.monotonic()
        with pytest.raises(QueryError, match=r"the query took longer than 0\.2 s") as caught:
            execute(database, LONG)
        assert time.monotonic() - start_s < 10
        assert caught.value.timeout_s == 0.2
        assert execute(database, "SELECT count(*) AS n FROM index") == [{"n": 3}]


def test_a_statement_that_does_not_stop_costs_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with LockedDatabase({"index": INDEX}, timeout_s=0.1) as database:
        execute(database, "FROM index")
        first = database._engines.get(None)
        monkeypatch.setattr("pqindex.sql.engine.STOP_WITHIN_S", 0.1)
        monkeypatch.setattr(Connection, "fetch", lambda *_: time.sleep(0.5))
        with pytest.raises(QueryError, match="longer than"):
            execute(database, "FROM index")
        monkeypatch.undo()
        assert execute(database, "SELECT count(*) AS n FROM index") == [{"n": 3}]
        assert database._engines.get(None) is not first
    assert STOP_WITHIN_S > 0.1


def test_memory_is_bounded() -> None:
    words = r"needs more memory than it may use.*ask for less, or filter earlier"
    with (
        LockedDatabase({"index": INDEX}, memory_limit="50MB") as database,
        pytest.raises(QueryError, match=words),
    ):
        execute(database, "SELECT list(a.range) FROM range(100000000) a")


def test_a_relation_that_does_not_fit_into_memory_is_named() -> None:
    wide = pa.table({f"c{number}": np.random.default_rng(0).random(200_000) for number in range(40)})
    words = "the relation 'wide' does not fit into memory"
    with (
        LockedDatabase({"wide": wide}, memory_limit="30MB") as database,
        pytest.raises(QueryError, match=words),
    ):
        execute(database, "SELECT count(*) FROM wide")


def test_a_memory_limit_that_makes_no_sense() -> None:
    words = "memory_limit is written as '4GB'"
    with (
        LockedDatabase({"index": INDEX}, memory_limit="plenty") as database,
        pytest.raises(QueryError, match=words),
    ):
        execute(database, "FROM index")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_stops_a_query(database: LockedDatabase) -> None:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        execute(database, LONG)
    timer.join()
    assert execute(database, "SELECT count(*) AS n FROM index") == [{"n": 3}]


def test_division_by_zero_is_null_in_every_version(database: LockedDatabase) -> None:
    assert execute(database, "SELECT 1 // 0 AS a, 1 % 0 AS b") == [{"a": None, "b": None}]


# -- threads and processes ------------------------------------------------------------------------------------


def test_case_64_eight_threads_get_the_same_answers(database: LockedDatabase) -> None:
    found: list[object] = []

    def work(number: int) -> None:
        sql = "SELECT seq_id + ? AS v FROM index ORDER BY v"
        found.extend(execute(database, sql, [number]) for _ in range(10))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for number in range(8):
        assert found.count([{"v": 5 + number}, {"v": 7 + number}, {"v": 9 + number}]) == 10


def test_a_database_is_not_pickled(database: LockedDatabase) -> None:
    with pytest.raises(ProcessBoundaryError, match="cannot be sent to another process"):
        pickle.dumps(database)


def test_a_closed_database_says_so(database: LockedDatabase) -> None:
    database.close()
    database.close()
    with pytest.raises(QueryError, match="the database is closed"):
        execute(database, "SELECT 1")
