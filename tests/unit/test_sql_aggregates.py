"""Aggregate expressions: what passes the guard, what is said of what does not, and that batches do not matter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pqindex.errors import QueryError
from pqindex.sql import GROUP_COLUMN, AggregateDatabase, check_aggregates

SCHEMA = pa.schema(
    [
        ("seq_id", pa.int64()),
        ("price", pa.float64()),
        ("x", pa.int64()),
        ("s", pa.struct([("a", pa.int64())])),
        ("label", pa.string()),
        ("Twin", pa.int64()),
        ("twin", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("avg(price)", ("price",)),
        ("AVG(Price)", ("price",)),
        ("count(*)", ()),
        ("sum(x) FILTER (x > 1)", ("x",)),
        ("list_transform(list(x), lambda v: v + 1)", ("x",)),
        ("max(sequence.x) - min(x)", ("x",)),
        ("sum(s.a)", ("s",)),
        ("list(x ORDER BY price)", ("price", "x")),
        ("string_agg(label, ';')", ("label",)),
        ("sum(x) -- of all", ("x",)),
        ("any_value(label) IS NULL", ("label",)),
    ],
)
def test_an_aggregate_is_one_expression_with_its_columns(expression: str, columns: tuple[str, ...]) -> None:
    (aggregate,) = check_aggregates([("m", expression)], SCHEMA)
    assert aggregate.columns == columns


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "the expression is empty"),
        ("x", "gives a value a row"),
        ("1", "gives a value a row"),
        ("unnest(list(x))", "gives a value a row"),
        ("x + avg(x)", "put the column into an aggregate function"),
        ("avg(x), avg(x)", "one expression is allowed"),
        ("avg(x) AS y", "does not parse"),
        ("1), (2", "one expression is allowed"),
        ("avg(x);", "does not parse"),
        ("avg(x); SELECT 1", "does not parse"),
        ("1) FROM t --", "does not parse"),
        ("avg(x) FROM sequence UNION SELECT 1", "does not parse"),
        ("avg(x)) FROM sequence UNION (SELECT 1", "does not parse"),
        ("avg(x) FROM sequence WHERE x > 1", "does not parse"),
        ("list(sequence)", "all columns at once"),
        ("COLUMNS(*)", "not allowed in an aggregate"),
        ("(SELECT 1)", "a subquery is not allowed"),
        ("sum(x) OVER ()", "a window function is not allowed"),
        ("sum(?)", "a parameter is not allowed"),
        ("sum(prize)", "no column 'prize'. Hint: did you mean 'price'?"),
        ("avg(label)", "No function matches"),
        ("avgg(x)", "did you mean 'avg'"),
        ("sum(x) * random()", "random does not"),
        ("max(current_date)", "current_date does not"),
        ("count(read_parquet('a'))", "no function reads or writes files"),
        ("first(getenv('HOME'))", "'getenv' is not allowed"),
        ("sum(twin)", "SQL does not tell apart"),
        ("sum(" * 5000, "aggregate 'm'"),
    ],
)
def test_what_is_no_aggregate_is_refused_in_words(expression: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        check_aggregates([("m", expression)], SCHEMA)
    assert message in str(caught.value)
    assert str(caught.value).startswith("aggregate 'm': ")
    assert "the query" not in str(caught.value)


def rows(lengths: list[int], seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    n = sum(lengths)
    return pa.table(
        {
            GROUP_COLUMN: np.repeat(np.arange(len(lengths)), lengths),
            "price": random.normal(size=n) * 10.0 ** random.integers(-9, 9, n),
            "x": random.integers(-5, 5, n),
        }
    )


def test_a_batch_gives_what_each_sequence_gives_alone() -> None:
    """Float sums hang on the order of additions: no other sequence may change it."""
    lengths = [1, 5000, 3, 2049, 700] + [7] * 3000
    table = rows(lengths)
    aggregates = [
        ("mean", "avg(price)"),
        ("total", "sum(price)"),
        ("first", "first(price)"),
        ("list", "list(x)"),
        ("q", "quantile_cont(price, 0.3)"),
        ("top", "arg_max(price, x)"),
    ]
    starts = np.cumsum([0, *lengths])
    with AggregateDatabase() as database:
        together = database.run(aggregates, table).to_pylist()
        for number in (0, 1, 2, 3, 4, 5, 1500, len(lengths) - 1):
            part = table.slice(int(starts[number]), lengths[number])
            assert database.run(aggregates, part).to_pylist() == [together[number]]
    assert together[1]["list"] == table.column("x").slice(1, 5000).to_pylist()


def test_integer_sums_are_exact_or_an_error_case_88() -> None:
    table = pa.table({GROUP_COLUMN: pa.array([0, 0, 1, 1]), "x": [2**62, 2**62 - 1, 2**53, 1]})
    with AggregateDatabase() as database:
        found = database.run([("total", "sum(x)")], table).column("total")
        assert (found.type, found.to_pylist()) == (pa.int64(), [2**63 - 1, 2**53 + 1])
        table = pa.table({GROUP_COLUMN: pa.array([0, 0]), "x": [2**62, 2**62]})
        with pytest.raises(QueryError, match=r"aggregate 'total': overflow.*beyond 64 bits"):
            database.run([("n", "count(*)"), ("total", "sum(x)")], table)


def test_the_aggregate_that_fails_is_named() -> None:
    table = pa.table({GROUP_COLUMN: pa.array([0, 1]), "label": ["1", "x"]})
    with AggregateDatabase() as database:
        with pytest.raises(QueryError, match=r"aggregate 'bad': .*Could not convert string 'x'"):
            database.run([("n", "count(*)"), ("bad", "sum(CAST(label AS BIGINT))")], table)
        with pytest.raises(
            QueryError, match=r"aggregate 'odd': the expression does not give one value a sequence"
        ):
            database.run([("odd", "unnest(CASE WHEN count(*) > 0 THEN [1, 2] ELSE [1] END)")], table)
