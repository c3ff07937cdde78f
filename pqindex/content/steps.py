"""The steps of the order column inside sequences: the least, the greatest, and where it jumps.

A step is the difference of two order values that follow each other, as an unsigned 64-bit integer in the column's own
unit. The median step, and so what a gap is, is known for a whole sequence alone; the steps of a segment are therefore
kept as counts of the different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from pqindex.columns import column_values

MAX_DISTINCT_STEPS: Final = 1 << 16
"""A sequence with more different steps has no step to speak of, and no gaps are counted."""

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Different steps of some segments, and how often each is there, segment by segment and ascending.

    Attributes
    ----------
    n_segments : int
    segment, count : ndarray, shape (n_steps,), int64
    step : ndarray, shape (n_steps,), uint64
    has_many : ndarray, shape (n_segments,), bool
        The segment has more than `MAX_DISTINCT_STEPS`; of those the least and the greatest are kept.
    first, last : ndarray, shape (n_segments,), uint64
        The order values at its ends, modulo 2**64.
    """

    n_segments: int
    segment: Int64Array
    step: UInt64Array
    count: Int64Array
    has_many: npt.NDArray[np.bool_]
    first: UInt64Array
    last: UInt64Array

    @classmethod
    def joined(cls, parts: Sequence[Steps]) -> Steps:
        """Return the steps of all segments, one part behind the other."""
        bases = np.cumsum([0, *(part.n_segments for part in parts)])
        columns: dict[str, Any] = {
            f.name: np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(cls)
            if f.name not in {"n_segments", "segment"}
        }
        segment = np.concatenate([part.segment + base for part, base in zip(parts, bases, strict=False)])
        return cls(n_segments=int(bases[-1]), segment=segment, **columns)


def has_steps(data_type: pa.DataType) -> bool:
    """Return whether an order column of this type has steps: integers and times."""
    return bool(pt.is_integer(data_type) or pt.is_temporal(data_type))


def steps_of(values: pa.Array, starts: Int64Array) -> Steps:
    """Return the steps of the segments of an order column, which follow each other without a gap; none is empty."""
    numbers = column_values(pa.chunked_array([values])).values[:, 0]
    if numbers.dtype.kind == "i":
        numbers = numbers.astype(np.int64)
    bits: UInt64Array = numbers.astype(np.uint64) if numbers.dtype.kind == "u" else numbers.view(np.uint64)
    n_segments = len(starts)
    lengths = np.diff(np.append(starts, len(bits)))
    inside = np.ones(len(bits), bool)
    inside[starts] = False
    at = np.flatnonzero(inside)
    # Modulo 2**64, so that no difference of two integers overflows.
    segment, step, count = _counts(np.repeat(np.arange(n_segments), lengths)[at], bits[at] - bits[at - 1])
    has_many = np.bincount(segment, minlength=n_segments) > MAX_DISTINCT_STEPS
    if has_many.any():
        ends = np.ones(len(segment), bool)
        ends[1:-1] = (segment[1:-1] != segment[:-2]) | (segment[1:-1] != segment[2:])
        kept = ends | ~has_many[segment]
        segment, step, count = segment[kept], step[kept], count[kept]
    return Steps(
        n_segments=n_segments,
        segment=segment,
        step=step,
        count=count,
        has_many=has_many,
        first=bits[starts],
        last=bits[starts + lengths - 1],
    )


def _counts(
    owner: Int64Array, step: UInt64Array, count: Int64Array | None = None
) -> tuple[Int64Array, UInt64Array, Int64Array]:
    """Return the different steps of each owner, ascending, and how often each is there."""
    if count is None and len(step):
        # Most steps are like the one before: count runs first, then sort what is left.
        new = np.ones(len(step), bool)
        new[1:] = (step[1:] != step[:-1]) | (owner[1:] != owner[:-1])
        at = np.flatnonzero(new)
        count = np.diff(np.append(at, len(step)))
        owner, step = owner[at], step[at]
    if count is None or not len(step):
        return owner, step, np.zeros(0, np.int64)
    order = np.lexsort((step, owner))
    owner, step, count = owner[order], step[order], count[order]
    new = np.ones(len(step), bool)
    new[1:] = (step[1:] != step[:-1]) | (owner[1:] != owner[:-1])
    at = np.flatnonzero(new)
    return owner[at], step[at], np.add.reduceat(count, at)


def step_columns(steps: Steps, stops: Int64Array) -> dict[str, pa.Array]:
    """Return `order_step_min`, `order_step_max` and `order_gaps` of sequences (rule Q6).

    Parameters
    ----------
    steps : Steps
        Of the segments of all sequences, one sequence behind the other.
    stops : ndarray, shape (n_sequences + 1,), int64
        Segments of sequence i are ``[stops[i], stops[i + 1])``; none is empty.
    """
    n = len(stops) - 1
    sequence = np.repeat(np.arange(n), np.diff(stops))
    later = np.flatnonzero(np.append(False, sequence[1:] == sequence[:-1])) if n else np.zeros(0, np.int64)
    owner = np.concatenate([sequence[steps.segment], sequence[later]])
    step = np.concatenate([steps.step, steps.first[later] - steps.last[later - 1]])
    count = np.concatenate([steps.count, np.ones(len(later), np.int64)])
    owner, step, count = _counts(owner, step, count)
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])) if len(owner) else np.zeros(0, np.int64)
    some = owner[starts]  # the sequences that have steps
    ends = np.append(starts[1:], len(owner)) - 1 if len(starts) else starts
    low, high = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    gaps = np.zeros(n, np.int64)
    low[some], high[some] = step[starts], step[ends]
    unknown = np.ones(n, bool)
    unknown[some] = False
    if len(some):
        n_steps = np.add.reduceat(count, starts)
        reached = np.cumsum(count)
        before = reached[starts] - count[starts]
        # The lower median: the step at place (n - 1) // 2 of all of them in ascending order.
        median = step[np.searchsorted(reached, before + (n_steps - 1) // 2, side="right")]
        of_step = np.repeat(median, np.diff(np.append(starts, len(owner))))
        # More than one and a half medians, in integers: twice the median could overflow.
        is_gap = (step > of_step) & (step - of_step > of_step // np.uint64(2))
        gaps[some] = np.add.reduceat(np.where(is_gap, count, 0), starts)
    many = np.zeros(n, bool)
    many[sequence[steps.has_many]] = True
    many |= np.bincount(owner, minlength=n) > MAX_DISTINCT_STEPS
    return {
        "order_step_min": pa.array(low, mask=unknown),
        "order_step_max": pa.array(high, mask=unknown),
        "order_gaps": pa.array(gaps, mask=unknown | many),
    }
