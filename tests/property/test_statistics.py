"""Statistics equal those of exact arithmetic, for values of every size and kind in arrays of every cut."""

from __future__ import annotations

import math
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqindex import statistics
from pqindex.statistics import ColumnStatistics

VALUES = st.one_of(
    st.none(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]),
    st.floats(-1e100, 1e100),
    st.integers(-3, 3),
)


def of(parts: list[list[float | None]]) -> ColumnStatistics:
    running = statistics._Running("x")
    for part in parts:
        running.add(pa.chunked_array([pa.array(part, pa.float64())]))
    return running.result()


@given(st.lists(st.lists(VALUES, max_size=12), max_size=12), st.sampled_from([4, 16, 1 << 16]))
def test_statistics_equal_exact_arithmetic(parts: list[list[float | None]], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "BLOCK", block)
        found = of(parts)
        joined = of([[value for part in parts for value in part]])
    assert found == joined
    values = [value for part in parts for value in part]
    finite = [Fraction(value) for value in values if value is not None and math.isfinite(value)]
    assert found.null_count == values.count(None)
    assert found.nan_count == sum(value is not None and math.isnan(value) for value in values)
    assert found.count + found.null_count + found.nan_count + found.infinite_count == len(values)
    if not finite:
        assert found.mean is None
        return
    assert (found.min, found.max) == (min(finite), max(finite))
    scale = float(max(abs(value) for value in finite))
    mean = sum(finite) / len(finite)
    variance = sum((value - mean) ** 2 for value in finite) / len(finite)
    assert found.mean == pytest.approx(float(mean), abs=1e-13 * scale)
    assert found.std == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-13 * scale)
