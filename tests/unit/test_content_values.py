"""Statistics of runs of values: partial ones, put together, against the same computed one value at a time."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pqindex.content.values import (
    MAX_BOUND_BYTES,
    Partials,
    block_sums,
    chained,
    grouped_bounds,
    is_number,
    moments,
    partials_of,
    statistics_of,
)
from pqindex.statistics import halving_sum

DAY = dt.date(1969, 12, 31)


@pytest.mark.parametrize(
    ("data_type", "values", "low", "high"),
    [
        (pa.int8(), [[3, None, -4], [None], [7]], [-4, None, 7], [3, None, 7]),
        (pa.uint64(), [[2**63, 1], [2**64 - 1]], [1, 2**64 - 1], [2**63, 2**64 - 1]),
        (pa.int64(), [[-(2**63), 2**63 - 1, None]], [-(2**63)], [2**63 - 1]),
        (pa.float32(), [[math.nan, 1.5], [math.nan], [-math.inf, math.inf]], [1.5, None, -math.inf], [1.5, None, math.inf]),
        (pa.bool_(), [[True, None], [False, True], [None]], [True, False, None], [True, True, None]),
        (pa.string(), [["b", "", None], ["é", "z"], [None]], ["", "z", None], ["b", "é", None]),
        (pa.binary(), [[b"\xff", b"\x00"]], [b"\x00"], [b"\xff"]),
        (pa.binary(2), [[b"ab", b"aa"], [None]], [b"aa", None], [b"ab", None]),
        (pa.date32(), [[DAY, None], [None]], [DAY, None], [DAY, None]),
        (pa.time64("us"), [[dt.time(1), dt.time(0, 0, 1)]], [dt.time(0, 0, 1)], [dt.time(1)]),
        (pa.timestamp("us", "UTC"), [[dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]], [dt.datetime(1969, 1, 1, tzinfo=dt.UTC)], [dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]),
        (pa.decimal128(5, 2), [[decimal.Decimal("1.50"), decimal.Decimal("-2.25")], [None]], [decimal.Decimal("-2.25"), None], [decimal.Decimal("1.50"), None]),
        (pa.null(), [[None], [None, None]], [None, None], [None, None]),
    ],
)  # fmt: skip
def test_bounds_are_exact_in_the_columns_own_type(data_type: Any, values: Any, low: Any, high: Any) -> None:
    starts = np.cumsum([0, *map(len, values)])[:-1]
    array = pa.array([v for part in values for v in part], data_type)
    found = grouped_bounds(array, starts)
    assert [side.type for side in found] == [data_type, data_type]
    assert [side.to_pylist() for side in found] == [low, high]


def test_zeros_have_no_sign() -> None:
    for values in ([-0.0], [0.0, -0.0], [-0.0, 0.0]):
        low, high = grouped_bounds(pa.array(values), np.array([0]))
        assert math.copysign(1, low[0].as_py()) == math.copysign(1, high[0].as_py()) == 1


def test_texts_that_are_too_long_or_no_texts_are_no_bounds() -> None:
    long = "x" * (MAX_BOUND_BYTES + 1)
    low, high = grouped_bounds(pa.array(["a", long, "b"]), np.array([0, 2]))
    assert (low.to_pylist(), high.to_pylist()) == (["a", "b"], [None, "b"])
    bad = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    low, high = grouped_bounds(bad, np.array([0, 1]))
    assert (low.to_pylist(), high.to_pylist()) == ([None, "ok"], [None, "ok"])


def test_block_sums_are_those_of_the_whole_block() -> None:
    """Filling up to the next power of two gives the sum of a block that is filled up to its end."""
    random = np.random.default_rng(1)
    counts = np.array([1, 2, 3, 5, 8, 1000, 65_536, 40_000, 7])
    values = random.normal(size=counts.sum()) * 10.0 ** random.integers(-12, 12, counts.sum())
    starts = np.cumsum(counts) - counts
    expected = [halving_sum(values[a : a + n]) for a, n in zip(starts, counts, strict=True)]
    assert block_sums(values, starts, counts).tolist() == expected


def test_moments_of_long_segments_are_put_together_block_by_block() -> None:
    values = (np.arange(200_000) ** 2 % 997) ** 3 / 9.0
    mean, squares = moments(values, np.array([0, 150_000]), np.array([150_000, 50_000]))
    # Rule M5's own test value.
    assert mean[0] == 27919577.50001185
    assert math.sqrt(squares[0] / 150_000) == 31588633.645711735


def test_groups_are_chained_in_order_and_empty_ones_say_nothing() -> None:
    counts = np.array([0, 2, 0, 1, 0, 0, 3])
    means, squares = (
        np.array([9.0, 1.0, 9.0, 4.0, 9.0, 9.0, 2.0]),
        np.array([9.0, 2.0, 9.0, 0.0, 9.0, 9.0, 0.5]),
    )
    n, mean, total = chained(counts, means, squares, np.array([0, 4, 6, 7]))
    assert n.tolist() == [3, 0, 3]
    assert (mean[0], total[0]) == (1.0 + 3.0 * (1 / 3), 2.0 + 9.0 * (2 / 3))
    assert (mean[2], total[2]) == (2.0, 0.5)


def test_a_column_that_is_missing_counts_as_nulls_only_beside_one_that_is_there() -> None:
    there = partials_of(pa.array([1, None, 3], pa.int64()), np.array([0, 2]))
    gone = Partials.absent(np.array([4, 5]), pa.int64())
    both = Partials.joined([there, gone])
    stats, finite = statistics_of(
        both, np.array([0, 3, 4])
    )  # of two segments there and one gone; of one gone
    assert stats.to_pylist() == [
        {"min": 1, "max": 3, "null_count": 5, "nan_count": 0, "inf_count": 0, "mean": 2.0, "std": 1.0},
        None,
    ]
    assert finite.tolist() == [True, True]  # no floats


def test_nan_and_infinities_are_counted_and_left_out_of_the_mean_case_23() -> None:
    values = pa.array([3.0, math.nan, 3.0, math.inf, None, -math.inf, 1.0, math.nan])
    stats, finite = statistics_of(partials_of(values, np.array([0, 3, 6])), np.array([0, 1, 2, 3]))
    assert stats.to_pylist() == [
        {"min": 3.0, "max": 3.0, "null_count": 0, "nan_count": 1, "inf_count": 0, "mean": 3.0, "std": 0.0},
        {"min": -math.inf, "max": math.inf, "null_count": 1, "nan_count": 0, "inf_count": 2, "mean": None, "std": None},
        {"min": 1.0, "max": 1.0, "null_count": 0, "nan_count": 1, "inf_count": 0, "mean": 1.0, "std": 0.0},
    ]  # fmt: skip
    assert finite.tolist() == [False, False, False]


def test_a_mean_that_float64_cannot_hold_is_null() -> None:
    values = pa.array([1e308, 1.5e308, 1.0, 1.7e308, 1.7e308])
    stats, finite = statistics_of(partials_of(values, np.array([0, 2, 3])), np.array([0, 1, 2, 3]))
    assert [entry["mean"] for entry in stats.to_pylist()] == [None, 1.0, 1.7e308]
    assert [entry["std"] for entry in stats.to_pylist()] == [None, 0.0, 0.0]
    assert finite.all()


def test_which_types_have_a_mean() -> None:
    numbers = (
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.bool_(),
        pa.decimal128(5, 2),
        pa.date32(),
        pa.timestamp("ns"),
    )
    assert all(map(is_number, numbers))
    assert not any(map(is_number, (pa.string(), pa.binary(), pa.null(), pa.list_(pa.int8()), pa.struct([]))))
