"""A selection: which sequences, in which order, and what is not a selection."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import RANK_COLUMN, LockedDatabase, check_query, run_selection
from pqindex.sql import selection as selection_module
from pqindex.sql.engine import Parameters

N = 30
IDS = np.random.default_rng(1).permutation(100)[:N]
INDEX = pa.table(
    {
        "seq_id": IDS,
        "seq_no": np.arange(N),
        "row_count": np.random.default_rng(2).integers(0, 4, N),
        "file": [["b", "B", "a", "A"][number % 4] for number in range(N)],
        "x": pa.array([None if number % 5 == 0 else (number % 7) / 3 for number in range(N)]),
        "stats": pa.array([{"price": {"min": float(number % 3), "max": None}} for number in range(N)]),
    }
)
LABELS = pa.table({"seq_id": IDS[::2], "label": [f"l{number % 3}" for number in range(N // 2)]})


@pytest.fixture(scope="module")
def database() -> Iterator[LockedDatabase]:
    with LockedDatabase({"index": INDEX, "labels": LABELS}) as database:
        yield database


def select(
    database: LockedDatabase, sql: str, params: Parameters = None, *, duplicates: str = "error"
) -> pa.Table:
    query = check_query(sql, relations=database.schemas)
    return run_selection(database, query, params, duplicates=duplicates)


# -- order ----------------------------------------------------------------------------------------------------

TOTAL_ORDERS: list[tuple[str, Parameters]] = [
    ("SELECT seq_id, row_count FROM index ORDER BY 2, 1 DESC", None),
    ("SELECT seq_id, row_count FROM index ORDER BY 2 DESC, seq_id LIMIT 7 OFFSET 3", None),
    ("SELECT seq_id FROM index ORDER BY ALL DESC", None),
    ("SELECT seq_id, row_count FROM index ORDER BY ALL", None),
    ("SELECT seq_id FROM index ORDER BY *", None),
    ("SELECT seq_id, x FROM index ORDER BY x NULLS FIRST, seq_id", None),
    ("SELECT seq_id, x FROM index ORDER BY x DESC NULLS LAST, seq_id LIMIT 50%", None),
    ("SELECT seq_id, x FROM index ORDER BY x DESC, seq_id LIMIT 20 PERCENT OFFSET 2", None),
    ("SELECT seq_id, -row_count AS row_count FROM index ORDER BY row_count, seq_id", None),
    ("SELECT seq_id, -row_count AS row_count FROM index ORDER BY row_count + 0, seq_id", None),
    ("SELECT seq_id, -row_count AS row_count FROM index ORDER BY index.row_count, seq_id", None),
    ("SELECT seq_id, -row_count AS rc FROM index ORDER BY RC, seq_id", None),
    ("SELECT seq_id, -row_count AS rc FROM index ORDER BY rc + 0, seq_id", None),
    ("SELECT seq_id FROM index ORDER BY #1", None),
    ("SELECT seq_id, file FROM index ORDER BY file COLLATE NOCASE, seq_id", None),
    ("SELECT seq_id, file AS f FROM index ORDER BY f COLLATE NOCASE, seq_id", None),
    ("SELECT seq_id, file COLLATE NOCASE AS f FROM index ORDER BY f, seq_id", None),
    ("SELECT seq_id, file COLLATE NOCASE AS f FROM index ORDER BY 2 DESC, seq_id", None),
    ("SELECT seq_id FROM index ORDER BY file COLLATE NOCASE.NOACCENT, seq_id", None),
    ("SELECT seq_id FROM index ORDER BY lower(file) DESC, seq_id", None),
    ("SELECT seq_id FROM index ORDER BY stats.price.min, seq_id DESC", None),
    ("SELECT seq_id FROM index ORDER BY row_count % ?, seq_id LIMIT ?", [2, 5]),
    (
        "SELECT seq_id FROM index WHERE row_count > $a ORDER BY row_count % $b, seq_id LIMIT $c OFFSET $d",
        {"a": 0, "b": 2, "c": 5, "d": 1},
    ),
    ("SELECT seq_id FROM index ORDER BY row_number() OVER (ORDER BY file, seq_id)", None),
    (
        "SELECT seq_id FROM index ORDER BY (SELECT max(label) FROM labels l WHERE l.seq_id = index.seq_id), seq_id",
        None,
    ),
    (
        "SELECT seq_id, count(*) AS n FROM index JOIN labels USING (seq_id) GROUP BY 1 ORDER BY n, max(label), seq_id",
        None,
    ),
    ("SELECT seq_id, count(*) AS n FROM index GROUP BY ALL ORDER BY sum(row_count) DESC, seq_id", None),
    ("SELECT seq_id, label FROM index JOIN labels USING (seq_id) ORDER BY label, seq_id", None),
    ("SELECT i.seq_id, label FROM labels l JOIN index i ON i.seq_id = l.seq_id ORDER BY label, 1", None),
    (
        "SELECT seq_id, label FROM index LEFT JOIN labels USING (seq_id) ORDER BY label NULLS FIRST, seq_id",
        None,
    ),
    ("SELECT seq_id FROM labels SEMI JOIN index USING (seq_id) ORDER BY label, seq_id", None),
    ("SELECT seq_id FROM index ANTI JOIN labels USING (seq_id) ORDER BY file, seq_id", None),
    ("SELECT seq_id FROM index UNION SELECT seq_id FROM labels ORDER BY seq_id DESC LIMIT 4", None),
    ("SELECT seq_id, row_count AS k FROM index EXCEPT SELECT seq_id, 1 FROM labels ORDER BY k, 1", None),
    ("(SELECT seq_id FROM index ORDER BY 1 LIMIT 5) UNION ALL (SELECT 1 LIMIT 0) ORDER BY seq_id", None),
    ("SELECT DISTINCT seq_id, file FROM index ORDER BY file, 1", None),
    ("SELECT DISTINCT seq_id FROM index ORDER BY row_count, seq_id", None),
    ("SELECT DISTINCT seq_id FROM index ORDER BY row_count + 1 DESC, seq_id LIMIT 3", None),
    ("SELECT DISTINCT ON (file) seq_id, file FROM index ORDER BY row_count, seq_id", None),
    ("SELECT DISTINCT ON (file) seq_id FROM index ORDER BY file, row_count DESC, seq_id", None),
    ("SELECT DISTINCT ON (2) seq_id, file FROM index ORDER BY x, seq_id LIMIT 2", None),
    ("SELECT DISTINCT * EXCLUDE (stats) FROM index ORDER BY stats.price.min, seq_id", None),
    ("WITH t AS (FROM index WHERE row_count > 1) SELECT seq_id FROM t ORDER BY file, seq_id LIMIT 4", None),
    ("WITH t AS MATERIALIZED (FROM index) SELECT seq_id FROM t ORDER BY file, seq_id LIMIT 4", None),
    (
        "WITH index AS (SELECT seq_id, row_count FROM index) SELECT seq_id FROM index ORDER BY row_count, 1",
        None,
    ),
    ("WITH r(q, n) AS (SELECT seq_id, row_count FROM index) SELECT q AS seq_id FROM r ORDER BY n, q", None),
    ("FROM index SELECT seq_id ORDER BY row_count, seq_id LIMIT 3", None),
    ("FROM index ORDER BY row_count, seq_id", None),
    ("SELECT *, row_count + 1 AS k FROM index ORDER BY k DESC, seq_id", None),
    ("SELECT seq_id, COLUMNS('row.*') FROM index ORDER BY row_count, seq_id", None),
    ("SELECT seq_id, COLUMNS('row.*') AS 'x_\\0' FROM index ORDER BY x_row_count, seq_id", None),
    (
        "SELECT seq_id, row_number() OVER (PARTITION BY file ORDER BY seq_id) AS n FROM index QUALIFY n < 3 ORDER BY n, 1",
        None,
    ),
    ("SELECT seq_id, unnest([1]) AS u FROM index ORDER BY u, row_count, seq_id", None),
    ("SELECT seq_id FROM index ORDER BY seq_id LIMIT 1 + 2", None),
    ("SELECT seq_id FROM index WHERE row_count IN (1, 2) ORDER BY x * 1e10, seq_id", None),
    ("SELECT seq_id, x > 1e0 AS b FROM index ORDER BY (x > 1) IS TRUE, seq_id", None),
    (
        "SELECT i.seq_id FROM index i JOIN (VALUES (0, 'z'), (1, 'y')) AS t(k, w) ON row_count = k ORDER BY w, 1",
        None,
    ),
    ("SELECT seq_id FROM index ORDER BY CASE WHEN row_count > 1 THEN 0 ELSE 1 END, seq_id", None),
    (
        "SELECT seq_id FROM index ORDER BY list_sum(list_transform([row_count], lambda v: v * 2)), seq_id",
        None,
    ),
    ("SELECT seq_id, row_count AS q, file AS c0, file AS k0 FROM index ORDER BY q + 1, k0, seq_id", None),
    ('SELECT seq_id, row_count AS "a ""b" FROM index ORDER BY "a ""b", seq_id', None),
    ("SELECT seq_id FROM index ORDER BY row_count DESC, seq_id ASC LIMIT ALL OFFSET 2", None),
    ("SELECT seq_id FROM index WHERE seq_id = -1 ORDER BY row_count", None),
    ("SELECT seq_id, file FROM index ORDER BY row_count, seq_id -- LIMIT 3; a comment", None),
]


@pytest.mark.parametrize(("sql", "params"), TOTAL_ORDERS, ids=[sql for sql, _ in TOTAL_ORDERS])
def test_an_order_without_ties_is_what_duckdb_says(
    database: LockedDatabase, sql: str, params: Parameters
) -> None:
    query = check_query(sql, relations=database.schemas)
    answer = run_selection(database, query, params)
    assert answer.column_names[-1] == RANK_COLUMN
    expected = database.execute(query, params)
    assert answer.drop_columns([RANK_COLUMN]).equals(expected)
    assert INDEX.column("seq_id").take(answer.column(RANK_COLUMN)).equals(answer.column("seq_id"))


@pytest.mark.parametrize(("sql", "params"), TOTAL_ORDERS, ids=[sql for sql, _ in TOTAL_ORDERS])
def test_ranks_beside_ids_are_the_ranks_of_a_join(
    database: LockedDatabase, monkeypatch: pytest.MonkeyPatch, sql: str, params: Parameters
) -> None:
    answer = select(database, sql, params)
    monkeypatch.setattr(selection_module, "_rank_beside_id", lambda *_, **__: None)
    assert select(database, sql, params).equals(answer)


def test_case_72_ties_are_broken_by_the_canonical_order(database: LockedDatabase) -> None:
    answer = select(database, "SELECT seq_id, row_count FROM index ORDER BY row_count DESC")
    keys = list(
        zip(
            (-answer.column("row_count").to_numpy()).tolist(),
            answer.column(RANK_COLUMN).to_pylist(),
            strict=True,
        )
    )
    assert keys == sorted(keys)


def test_a_limit_cuts_in_the_order_with_ties_broken(database: LockedDatabase) -> None:
    whole = select(database, "SELECT seq_id FROM index ORDER BY row_count")
    for limit in (1, 3, 11):
        cut = select(database, "SELECT seq_id FROM index ORDER BY row_count LIMIT ? OFFSET 2", [limit])
        assert cut.equals(whole.slice(2, limit))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT seq_id FROM index WHERE row_count > 0",
        "SELECT seq_id, label FROM labels JOIN index USING (seq_id)",
        "SELECT seq_id, label FROM labels",
        "SELECT seq_id, count(*) AS n FROM index GROUP BY seq_id",
        "SELECT seq_id FROM index UNION SELECT seq_id FROM labels",
        "SELECT DISTINCT seq_id FROM index",
        "SELECT seq_id FROM (FROM index ORDER BY file)",
    ],
)
def test_case_71_without_an_order_it_is_the_canonical_order(database: LockedDatabase, sql: str) -> None:
    ranks = select(database, sql).column(RANK_COLUMN).to_pylist()
    assert ranks
    assert ranks == sorted(ranks)


def test_a_limit_without_an_order_takes_the_first_in_the_canonical_order(database: LockedDatabase) -> None:
    assert select(database, "SELECT seq_id FROM labels LIMIT 3").column(RANK_COLUMN).to_pylist() == [0, 2, 4]
    assert select(database, "SELECT seq_id FROM index OFFSET 27").column(RANK_COLUMN).to_pylist() == [
        27,
        28,
        29,
    ]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT seq_id FROM index UNION SELECT 1 ORDER BY seq_id + 1", "ORDER BY"),
        (
            "SELECT seq_id FROM index ORDER BY COLUMNS('seq.*')",
            "ORDER BY with COLUMNS(...) or * is refused here",
        ),
        ("SELECT seq_id FROM index ORDER BY #1 + 1", "ORDER BY with #n in an expression is refused here"),
        ("SELECT seq_id FROM index ORDER BY 1 LIMIT (SELECT 3)", "pass the number as a parameter: LIMIT ?"),
        ("SELECT seq_id FROM index ORDER BY 3", "ORDER term out of range"),
        ("SELECT seq_id FROM index ORDER BY 'a'", "ORDER BY non-integer literal has no effect"),
        ("SELECT seq_id FROM index ORDER BY zzz", "no column 'zzz': line 1, column 35"),
        ("SELECT seq_id FROM index ORDER BY sqid", "did you mean 'seq_id'?"),
    ],
)
def test_orders_that_are_refused_by_name(database: LockedDatabase, sql: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        select(database, sql)
    assert words in str(caught.value)


def test_a_parameter_alone_is_no_order(database: LockedDatabase) -> None:
    with pytest.raises(QueryError, match=r"ORDER BY|order"):
        select(database, "SELECT seq_id FROM index ORDER BY ?", [1])


def test_a_checked_query_can_be_run_again(database: LockedDatabase) -> None:
    for sql in (
        "WITH t AS MATERIALIZED (FROM index) SELECT DISTINCT seq_id FROM t ORDER BY row_count LIMIT 9",
        "SELECT seq_id FROM index ORDER BY file COLLATE NOCASE",
        "SELECT seq_id FROM index",
    ):
        query = check_query(sql, relations=database.schemas)
        before = copy.deepcopy(query.document)
        first = run_selection(database, query)
        assert query.document == before
        assert run_selection(database, query).equals(first)


# -- what comes out -------------------------------------------------------------------------------------------


def test_the_columns_of_the_query_travel_along(database: LockedDatabase) -> None:
    answer = select(
        database,
        'SELECT label AS "La Bel", SEQ_ID, sum(row_count) AS n FROM index JOIN labels USING (seq_id) GROUP BY 1, 2',
    )
    assert answer.column_names == ["La Bel", "seq_id", "n", RANK_COLUMN]
    assert answer.schema.types == [pa.string(), pa.int64(), pa.int64(), pa.int64()]


def test_no_rows_are_an_answer_with_a_schema(database: LockedDatabase) -> None:
    for sql in (
        "SELECT seq_id, label FROM index JOIN labels USING (seq_id) WHERE false",
        "SELECT seq_id, label FROM index JOIN labels USING (seq_id) ORDER BY label LIMIT 0",
        "SELECT seq_id, any_value(label) AS label FROM index JOIN labels USING (seq_id) WHERE false GROUP BY 1",
    ):
        answer = select(database, sql)
        assert answer.num_rows == 0
        assert answer.schema == pa.schema(
            [("seq_id", pa.int64()), ("label", pa.string()), (RANK_COLUMN, pa.int64())]
        )


def test_the_id_is_named_as_asked_for(database: LockedDatabase) -> None:
    assert select(database, "SELECT seq_id AS SEQ_ID FROM index").column_names == ["seq_id", RANK_COLUMN]


@pytest.mark.parametrize(
    ("ids", "hint"),
    [
        (pa.array(["b", "a", "ü", ""]), "VARCHAR"),
        (pa.array([b"\x01", b"\xff", b"", b"a"]), "BLOB"),
        (pa.array([2**63 + 5, 1, 0, 7], pa.uint64()), "UBIGINT"),
        (pa.array([3, 1, 2, 0], pa.date32()), "DATE"),
        (pa.array([3, 1, 2, 0], pa.timestamp("ns")), "TIMESTAMP_NS"),
        (pa.array(["b", "a", "c", "d"]).dictionary_encode(), "VARCHAR"),
        (pa.array([2**53 + 1, 2**53, -1, 0]), "BIGINT"),
    ],
)
def test_ids_of_every_kind(ids: pa.Array, hint: str) -> None:
    index = pa.table({"seq_id": ids, "seq_no": [0, 1, 2, 3], "n": [1, 1, 0, 0]})
    with LockedDatabase({"index": index}) as database:
        answer = select(database, "SELECT seq_id FROM index ORDER BY n")
        assert answer.column(RANK_COLUMN).to_pylist() == [2, 3, 0, 1]
        grouped = select(database, "SELECT seq_id, count(*) AS n FROM index GROUP BY seq_id")
        assert grouped.column(RANK_COLUMN).to_pylist() == [0, 1, 2, 3]
        with pytest.raises(QueryError, match=f"that of 'index' is {hint}"):
            select(database, "SELECT [1] AS seq_id FROM index")


def test_other_names_for_ids_ranks_and_relation() -> None:
    with LockedDatabase(
        {"episodes": pa.table({"ep": ["b", "a"], "rank": pa.array([0, 1], pa.int32())})}
    ) as database:
        query = check_query("SELECT ep FROM episodes ORDER BY ep", relations=database.schemas)
        answer = run_selection(database, query, id_column="ep", rank_relation="episodes", rank_column="rank")
    assert answer.to_pydict() == {"ep": ["a", "b"], RANK_COLUMN: [1, 0]}
    assert answer.schema.field(RANK_COLUMN).type == pa.int64()


def test_T3_float_sums_are_the_same_every_time() -> None:
    generator = np.random.default_rng(3)
    n_rows, n_ids = 400_000, 50
    rows = pa.table(
        {
            "seq_id": generator.integers(0, n_ids, n_rows),
            "v": generator.random(n_rows).astype(np.float32) * 1e6,
            "w": generator.random(n_rows),
        }
    )
    index = pa.table({"seq_id": np.arange(n_ids)[::-1], "seq_no": np.arange(n_ids)})
    sql = (
        "SELECT seq_id, sum(v) AS s, avg(w) AS a, first(v) AS f, any_value(w) AS y, arg_max(w, 1) AS m, list(v) AS l "
        "FROM index JOIN rows USING (seq_id) GROUP BY seq_id"
    )
    answers = []
    for threads in (1, 2, 8):
        with LockedDatabase({"index": index, "rows": rows}, threads=threads) as database:
            answers += [select(database, sql) for _ in range(2)]
    assert all(answer.equals(answers[0]) for answer in answers)


# -- what is no selection -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            "SELECT row_count FROM index",
            "the answer has no column 'seq_id', so it chooses no sequences; it has row_count",
        ),
        (
            "SELECT seq_id AS seqid FROM index",
            "it has seqid. Hint: did you mean 'seqid'? put seq_id behind SELECT",
        ),
        ("SELECT count(*) AS n FROM index", "to look without choosing, use sql() or `pqindex query`"),
        ("SELECT seq_id::VARCHAR AS seq_id FROM index", "is VARCHAR, that of 'index' is BIGINT"),
        ("SELECT seq_id::INTEGER AS seq_id FROM index", "CAST(seq_id AS BIGINT) AS seq_id"),
        ("SELECT seq_id, seq_id FROM index", "the answer has two columns of one name: seq_id"),
        ("SELECT seq_id, 1 AS x, 2 AS X FROM index", "the answer has two columns of one name: X, x"),
        (
            "SELECT i.seq_id, l.seq_id FROM index i JOIN labels l USING (seq_id)",
            "JOIN ... USING (seq_id) keeps one seq_id",
        ),
        ("SELECT seq_id, 1 AS __SEQ_NO FROM index", "the column name '__seq_no' is taken"),
        (
            "SELECT l.seq_id FROM index i LEFT JOIN labels l USING (seq_id)",
            "15 of 30 rows of the answer have no seq_id",
        ),
        ("SELECT NULL::BIGINT AS seq_id FROM index ORDER BY file", "WHERE seq_id IS NOT NULL"),
        ("SELECT 1000 AS seq_id FROM index", "is INTEGER, that of 'index' is BIGINT"),
        (
            "SELECT 1000::BIGINT AS seq_id",
            "1 of 1 rows of the answer name sequences that are not in 'index': 1000",
        ),
        ("SELECT seq_id FROM index, range(3)", "30 sequences are in the answer more than once"),
        (
            "SELECT seq_id FROM index UNION ALL SELECT seq_id FROM labels",
            "15 sequences are in the answer more than once",
        ),
    ],
)
def test_case_92_what_is_no_selection_is_refused(database: LockedDatabase, sql: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        select(database, sql)
    assert words in str(caught.value)


def test_the_first_ten_are_listed(database: LockedDatabase) -> None:
    with pytest.raises(QueryError) as caught:
        select(database, "SELECT seq_id FROM index, range(3) ORDER BY seq_id")
    first = sorted(IDS.tolist())[:10]
    assert f"{', '.join(map(str, first))} and 20 more" in str(caught.value)
    assert caught.value.sequences == first
    assert caught.value.n_sequences == 30


def test_duplicates_are_kept_on_request_in_a_total_order(database: LockedDatabase) -> None:
    sql = "SELECT seq_id, k FROM index, (VALUES (2), (1), (2)) AS t(k) WHERE row_count = 1"
    answer = select(database, sql, duplicates="keep")
    keys = list(zip(answer.column(RANK_COLUMN).to_pylist(), answer.column("k").to_pylist(), strict=True))
    assert keys == sorted(keys)
    assert len(keys) == 3 * len(set(keys)) / 2
    with pytest.raises(QueryError, match="duplicates='drop' is not one of error, keep"):
        select(database, sql, duplicates="drop")


def test_a_null_or_unknown_id_is_found_beside_an_order(database: LockedDatabase) -> None:
    with pytest.raises(QueryError, match="15 of 30 rows of the answer have no seq_id"):
        select(
            database,
            "SELECT l.seq_id FROM index i LEFT JOIN labels l USING (seq_id) ORDER BY i.file LIMIT 40",
        )


def test_no_hint_names_what_does_not_exist(database: LockedDatabase) -> None:
    with pytest.raises(
        QueryError, match="use SELECT DISTINCT or GROUP BY, or aggregate the joined"
    ) as caught:
        select(database, "SELECT seq_id FROM index, range(3)")
    assert "duplicates" not in str(caught.value)


def test_case_88_a_column_that_no_table_of_ours_holds_is_named(database: LockedDatabase) -> None:
    with pytest.raises(QueryError, match=r"the column 'age' has the type INTERVAL.*cast it") as caught:
        select(database, "SELECT seq_id, INTERVAL 1 DAY AS age FROM index")
    assert caught.value.column == "age"


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_ids_that_are_times_are_told_as_iso_text(unit: str) -> None:
    ids = pa.array([1_600_000_000, 1_700_000_000], pa.timestamp("s")).cast(pa.timestamp(unit))
    with (
        LockedDatabase({"index": pa.table({"seq_id": ids, "seq_no": [0, 1]})}) as database,
        pytest.raises(QueryError, match=r"more than once: 2020-09-13T12:26:40[.0]*, 2023-") as caught,
    ):
        select(database, "SELECT seq_id FROM index, range(2) ORDER BY seq_id")
    assert caught.value.sequences[0].startswith("2020-09-13T12:26:40")
