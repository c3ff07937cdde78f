"""Names that are not there: which, where, and what there is."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import LockedDatabase, check_query
from pqindex.sql.hints import column_paths, did_you_mean, near_names

INDEX = pa.table(
    {
        "seq_id": [1, 2],
        "seq_no": [0, 1],
        "row_count": [3, 4],
        "stats": [{"price": {"min": 1.0, "max": 2.0}, "x": {"min": 0.0, "max": 1.0}}] * 2,
    }
)


@pytest.fixture
def database() -> Iterator[LockedDatabase]:
    with LockedDatabase({"index": INDEX, "labels": pa.table({"seq_id": [1], "label": ["a"]})}) as database:
        yield database


def message(database: LockedDatabase, sql: str) -> str:
    with pytest.raises(QueryError) as caught:
        database.execute(check_query(sql, relations=database.schemas))
    return str(caught.value)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT seqid FROM index", "no column 'seqid': line 1, column 8. Hint: did you mean 'seq_id'?"),
        ("SELECT row_cnt FROM index", "did you mean 'row_count'?"),
        (
            "SELECT i.seqid FROM index i",
            "no column 'seqid' in 'i': line 1, column 8. Hint: did you mean 'seq_id'?",
        ),
        ("SELECT lable FROM index JOIN labels USING (seq_id)", "did you mean 'label'?"),
        ("SELECT seq_id FROM index ORDER BY zzz", "index has seq_id, seq_no, row_count, stats"),
        ("SELECT * EXCLUDE (rowcount) FROM index", "no column 'rowcount'. Hint: did you mean 'row_count'?"),
        (
            "SELECT seq_id FROM index JOIN labels USING (seqid)",
            "no column 'seqid'. Hint: did you mean 'seq_id'?",
        ),
        (
            "SELECT stats.prise.min FROM index",
            "asked for as stats.prise: line 1, column 8. Hint: did you mean 'stats.price'",
        ),
        (
            "SELECT i.stats.price.mim FROM index i",
            "stats.price.mim: line 1, column 8. Hint: did you mean 'stats.price.min'",
        ),
        ("SELECT price.max FROM index", "did you mean 'stats.price'"),
        (
            "SELECT seq_id\nFROM index\nWHERE seqid > 3",
            "no column 'seqid': line 3, column 7. Hint: did you mean 'seq_id'?",
        ),
    ],
)
def test_a_missing_column_is_named_with_the_near_ones(database: LockedDatabase, sql: str, words: str) -> None:
    assert words in message(database, sql)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            "SELECT row_count FROM index GROUP BY seq_id",
            'the query fails: column "row_count" must appear in the GROUP BY',
        ),
        ("SELECT seq_id FROM index i, labels l", 'Ambiguous reference to column name "seq_id"'),
        (
            "SELECT seq_id FROM index WHERE seq_id = 'x'",
            "the query fails: Could not convert string 'x' to INT64",
        ),
        ("SELECT 9223372036854775807 + row_count FROM index", "the query fails: Overflow"),
    ],
)
def test_other_failures_are_one_sentence(database: LockedDatabase, sql: str, words: str) -> None:
    said = message(database, sql)
    assert words in said
    assert "\n" not in said


def test_facts(database: LockedDatabase) -> None:
    with pytest.raises(QueryError) as caught:
        database.execute(check_query("SELECT seqid FROM index", relations=database.schemas))
    assert caught.value.column == "seqid"
    assert caught.value.near == ["seq_id"]


def test_paths_of_columns_reach_into_structs() -> None:
    assert column_paths(INDEX.schema) == [
        "seq_id",
        "seq_no",
        "row_count",
        "stats",
        "stats.price",
        "stats.price.min",
        "stats.price.max",
        "stats.x",
        "stats.x.min",
        "stats.x.max",
    ]


def test_many_columns_are_shortened() -> None:
    wide = pa.table({f"c{number}": [1] for number in range(100)})
    with LockedDatabase({"index": wide}) as database:
        assert "c39 and 60 more" in message(database, "SELECT zzz FROM index")


def test_near_names_look_at_letters_not_case() -> None:
    assert near_names("SEQID", ["seq_id", "file"]) == ["seq_id"]
    assert near_names("max", ["stats.price.max", "file"]) == ["stats.price.max"]
    assert did_you_mean("qqq", ["seq_id"], "there is seq_id") == "there is seq_id"
    assert did_you_mean("seqid", ["seq_id"], "there is") == "did you mean 'seq_id'? there is"


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT stats.c7.max FROM index",
        "SELECT i.stats.c7.max FROM index AS i",
        "SELECT seq_id FROM index WHERE stats.c7 > 1",
    ],
)
def test_an_index_without_statistics_says_so(sql: str, empty: bool) -> None:
    index = pa.table({"seq_id": [1], "order_min": [0], "order_max": [9]})
    if empty:
        index = index.append_column("stats", pa.array([{}], pa.struct([])))
    with LockedDatabase({"index": index}) as database:
        said = message(database, sql)
    assert (
        "no statistics are kept in this index: build it with --statistics COLUMN / statistics=[...]" in said
    )
    assert "the bounds of the order column are order_min and order_max" in said


def test_an_index_with_other_statistics_says_which(database: LockedDatabase) -> None:
    said = message(database, "SELECT stats.step.max FROM index")
    assert "statistics are kept of price, x only: build it with --statistics COLUMN" in said
    assert "order_min" not in said
    assert "statistics" not in message(database, "SELECT stats.price.mim FROM index")
