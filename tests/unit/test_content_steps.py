"""The steps of the order column: least, greatest, gaps, inside segments and over their borders."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pqindex.content import steps as module
from pqindex.content.steps import Steps, has_steps, step_columns, steps_of


def columns(values: pa.Array, starts: list[int], stops: list[int]) -> list[tuple[Any, ...]]:
    found = step_columns(steps_of(values, np.array(starts)), np.array(stops))
    return list(zip(*(found[name].to_pylist() for name in found), strict=True))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5], (None, None, None)),
        ([5, 7], (2, 2, 0)),
        ([0, 1, 2, 5, 6], (1, 3, 1)),
        ([0, 10, 20, 30, 45, 55], (10, 15, 0)),  # one and a half medians is no gap yet
        ([0, 10, 20, 30, 46, 56], (10, 16, 1)),
        ([0, 1, 1001, 2001, 3001], (1, 1000, 0)),
        ([0, 1, 2, 102, 202], (1, 100, 2)),  # of an even number the lower median
        ([-(2**63), 0, 2**63 - 1], (2**63 - 1, 2**63, 0)),
        ([-(2**63), -(2**63) + 1, 2**63 - 1], (1, 2**64 - 2, 1)),
    ],
)
def test_steps_and_gaps_of_one_sequence_T22(values: list[int], expected: tuple[Any, ...]) -> None:
    assert columns(pa.array(values, pa.int64()), [0], [0, 1]) == [expected]
    for cut in range(1, len(values)):  # the same, in two segments
        assert columns(pa.array(values, pa.int64()), [0, cut], [0, 2]) == [expected]


def test_many_sequences_at_once() -> None:
    values = pa.array([0, 1, 2, 7, 0, 5, 10, 3], pa.uint64())
    assert columns(values, [0, 4, 7], [0, 1, 2, 3]) == [(1, 5, 1), (5, 5, 0), (None, None, None)]


@pytest.mark.parametrize(
    ("values", "step"),
    [
        (pa.array([-86_400_000, 0], pa.timestamp("ms")), 86_400_000),
        (pa.array([dt.date(2020, 2, 28), dt.date(2020, 3, 1)], pa.date32()), 2),
        (pa.array([dt.time(0, 0, 1), dt.time(0, 0, 3)], pa.time32("s")), 2),
        (pa.array([2**63, 2**64 - 1], pa.uint64()), 2**63 - 1),
        (pa.array([-128, 127], pa.int8()), 255),
    ],
)
def test_steps_are_in_the_columns_own_unit(values: pa.Array, step: int) -> None:
    assert has_steps(values.type)
    assert columns(values, [0], [0, 1]) == [(step, step, 0)]


def test_too_many_different_steps_have_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DISTINCT_STEPS", 4)
    values = pa.array(np.cumsum([0, 1, 2, 3, 4, 5, 6]))  # six different steps
    for starts, stops in (([0], [0, 1]), ([0, 3], [0, 2]), ([0, 1], [0, 2])):
        assert columns(values, starts, stops) == [(1, 6, None)]
    assert columns(values, [0, 5], [0, 1, 2]) == [(1, 4, 1), (6, 6, 0)]


def test_parts_are_joined_segment_by_segment() -> None:
    values = pa.array([0, 1, 3, 10, 12])
    whole = steps_of(values, np.array([0, 2, 3]))
    parts = [steps_of(values.slice(0, 2), np.array([0])), steps_of(values.slice(2), np.array([0, 1]))]
    joined = Steps.joined(parts)
    assert joined.n_segments == whole.n_segments == 3
    for name in ("segment", "step", "count", "has_many", "first", "last"):
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()


def test_floats_and_decimals_have_no_steps() -> None:
    assert not any(map(has_steps, (pa.float64(), pa.decimal128(5, 2))))
