"""Statistics of runs of values: partial ones of each segment of a column, and how those of a sequence are put together.

All of it is arrays over segments, none of it loops over rows. Sums are added half onto half in blocks, as in the
statistics of a selection (rule M5), and blocks and segments are put together one after the other by the update of Chan,
Golub and LeVeque. So a sequence has the same numbers on every machine and for every number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pqindex.columns import column_form, column_values

BLOCK: Final = 1 << 16
"""Values that are added up together."""

MAX_BOUND_BYTES: Final = 4096
"""A text or binary bound that is longer is not kept: texts of documents would make an index as large as the data."""

_CELLS_AT_ONCE: Final = 1 << 20

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """What is known of one column in each of some segments; arrays of shape (n_segments,).

    Attributes
    ----------
    present : ndarray of bool
        Whether the file has the column, and can be read there; where not, all its values count as nulls.
    null_count, nan_count, inf_count, count : ndarray of int64
        `count` is of the finite values.
    min, max : pyarrow.Array
        Of all values but nulls and NaN, in the column's own type; null where there are none.
    mean, squares, low, high : ndarray of float64
        Of the finite values as float64: their mean, the sum of the squared distances from it, and their bounds.
    """

    present: BoolArray
    null_count: Int64Array
    nan_count: Int64Array
    inf_count: Int64Array
    count: Int64Array
    min: pa.Array
    max: pa.Array
    mean: Float64Array
    squares: Float64Array
    low: Float64Array
    high: Float64Array

    @classmethod
    def absent(cls, lengths: Int64Array, data_type: pa.DataType) -> Partials:
        """Return the partials of segments of so many rows that do not have the column."""
        n = len(lengths)
        none, zeros = np.zeros(n, np.int64), np.zeros(n, np.float64)
        return cls(
            present=np.zeros(n, bool),
            null_count=lengths.astype(np.int64),
            nan_count=none,
            inf_count=none,
            count=none,
            min=pa.nulls(n, data_type),
            max=pa.nulls(n, data_type),
            mean=zeros,
            squares=zeros,
            low=zeros,
            high=zeros,
        )

    @classmethod
    def joined(cls, parts: Sequence[Partials]) -> Partials:
        """Return the partials of all segments, one part behind the other."""
        columns: dict[str, Any] = {}
        for f in fields(cls):
            values = [getattr(part, f.name) for part in parts]
            is_arrow = isinstance(values[0], pa.Array)
            columns[f.name] = pa.concat_arrays(values) if is_arrow else np.concatenate(values)
        return cls(**columns)

    def take(self, positions: Int64Array) -> Partials:
        """Return the partials of some segments."""
        columns: dict[str, Any] = {}
        for f in fields(self):
            values = getattr(self, f.name)
            columns[f.name] = (
                values.take(pa.array(positions)) if isinstance(values, pa.Array) else values[positions]
            )
        return Partials(**columns)


def is_number(data_type: pa.DataType) -> bool:
    """Return whether values of this (plain, flat) type have a mean: numbers, truth values, times and dates."""
    form = column_form(data_type)
    return form is not None and form.width is None and form.kind in {"bool", "integer", "float", "decimal"}


# -- the segments of one column -------------------------------------------------------------------------------


def partials_of(values: pa.Array, starts: Int64Array) -> Partials:
    """Return the partials of the segments of some values, which follow each other without a gap.

    Parameters
    ----------
    values : pyarrow.Array
        Of a plain type without nesting.
    starts : ndarray, shape (n_segments,), int64
        Where each segment begins; the first at 0. None is empty.
    """
    n, n_segments = len(values), len(starts)
    lengths = np.diff(np.append(starts, n))
    low, high = grouped_bounds(values, starts)
    is_null = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    null_count = np.zeros(n_segments, np.int64) if is_null is None else _counted(is_null, starts)
    numbers = _numbers(values, starts) if is_number(values.type) else {}
    return replace(
        Partials.absent(lengths, values.type),
        present=np.ones(n_segments, bool),
        null_count=null_count,
        min=low,
        max=high,
        **numbers,
    )


def _numbers(values: pa.Array, starts: Int64Array) -> dict[str, Any]:
    """Return counts, means and squares of the finite values of each segment."""
    part = column_values(pa.chunked_array([values]))
    numbers = part.values[:, 0]
    valid = np.ones(len(numbers), bool) if part.absent is None else ~part.absent[:, 0]
    nan_count = inf_count = np.zeros(len(starts), np.int64)
    if numbers.dtype.kind == "f":
        is_finite = np.isfinite(numbers)
        if not is_finite.all():
            is_nan = np.isnan(numbers) & valid
            nan_count = _counted(is_nan, starts)
            inf_count = _counted(~is_finite & ~is_nan & valid, starts)
            valid &= is_finite
    counts = _counted(valid, starts)
    # Places without a finite value are left out, so that the values of a segment lie side by side.
    kept = numbers.astype(np.float64) if valid.all() else numbers[valid].astype(np.float64)
    stops = np.cumsum(counts)
    filled = counts > 0
    low, high = np.zeros(len(starts)), np.zeros(len(starts))
    mean, squares = np.zeros(len(starts)), np.zeros(len(starts))
    if filled.any():
        some = (stops - counts)[filled]
        low[filled] = np.minimum.reduceat(kept, some)
        high[filled] = np.maximum.reduceat(kept, some)
        mean[filled], squares[filled] = moments(kept, some, counts[filled])
    return {
        "nan_count": nan_count,
        "inf_count": inf_count,
        "count": counts,
        "mean": mean,
        "squares": squares,
        "low": low,
        "high": high,
    }


def _counted(flags: BoolArray, starts: Int64Array) -> Int64Array:
    return np.add.reduceat(flags, starts, dtype=np.int64) if len(starts) else np.zeros(0, np.int64)


def moments(
    values: Float64Array, starts: Int64Array, counts: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """Return the mean of each segment, and the sum of the squared distances from it.

    Parameters
    ----------
    values : ndarray of float64
        Finite.
    starts, counts : ndarray of int64, shape (n_segments,)
        No segment is empty.
    """
    n_blocks = -(-counts // BLOCK)
    segment = np.repeat(np.arange(len(counts)), n_blocks)
    rank = np.arange(len(segment)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
    block_starts = starts[segment] + rank * BLOCK
    block_counts = np.minimum(counts[segment] - rank * BLOCK, BLOCK)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float64 has no mean
        means = block_sums(values, block_starts, block_counts) / block_counts
        distances = values - np.repeat(means, block_counts)
        squares = block_sums(distances * distances, block_starts, block_counts)
    _, mean, total = chained(block_counts, means, squares, np.append(0, np.cumsum(n_blocks)))
    return mean, total


def block_sums(values: Float64Array, starts: Int64Array, counts: Int64Array) -> Float64Array:
    """Return the sum of each block of at most `BLOCK` values, added half onto half.

    A block is filled up with zeros to the next power of two. That gives the sum of a block filled up to `BLOCK`, since
    all that is left out is the addition of zeros.
    """
    sums = np.zeros(len(starts), np.float64)
    widths = np.left_shift(1, np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64))
    for width in np.unique(widths).tolist():
        chosen = np.flatnonzero(widths == width)
        columns = np.arange(width)
        for at in range(0, len(chosen), max(1, _CELLS_AT_ONCE // width)):
            some = chosen[at : at + max(1, _CELLS_AT_ONCE // width)]
            places = starts[some][:, None] + columns
            parts = values[np.minimum(places, len(values) - 1)]
            parts[columns >= counts[some][:, None]] = 0.0
            half = width // 2
            while half:
                parts = parts[:, :half] + parts[:, half:]
                half //= 2
            sums[some] = parts[:, 0]
    return sums


def chained(
    counts: Int64Array, means: Float64Array, squares: Float64Array, stops: Int64Array
) -> tuple[Int64Array, Float64Array, Float64Array]:
    """Put groups of (count, mean, squares) together, those of each group from the first to the last (rule Q5).

    Parameters
    ----------
    counts, means, squares : ndarray, shape (n,)
        Entries of count 0 say nothing.
    stops : ndarray, shape (n_groups + 1,), int64
        Entries of group i are ``[stops[i], stops[i + 1])``; none is empty.
    """
    first = stops[:-1]
    n, mean, total = counts[first].copy(), means[first].copy(), squares[first].copy()
    sizes = np.diff(stops)
    group = np.flatnonzero(sizes > 1)
    for rank in range(1, int(sizes.max(initial=0))):
        group = group[sizes[group] > rank]
        at = first[group] + rank
        filled = counts[at] > 0
        some, at = group[filled], at[filled]
        with np.errstate(over="ignore", invalid="ignore"):
            before, added = n[some], counts[at]
            both = before + added
            delta = means[at] - mean[some]
            is_first = before == 0
            moved = mean[some] + delta * (added / both)
            spread = total[some] + squares[at]
            spread = spread + delta * delta * (before * added / both)
        n[some] = both
        mean[some] = np.where(is_first, means[at], moved)
        total[some] = np.where(is_first, squares[at], spread)
    return n, mean, total


# -- bounds ---------------------------------------------------------------------------------------------------


def grouped_bounds(values: pa.Array, starts: Int64Array) -> tuple[pa.Array, pa.Array]:
    """Return the least and the greatest value of each segment; null where all its values are null or NaN.

    Segments follow each other without a gap, and none is empty. Zeros come without a sign.
    """
    data_type = values.type
    if not len(starts) or pt.is_null(data_type):
        return pa.nulls(len(starts), data_type), pa.nulls(len(starts), data_type)
    if pt.is_decimal(data_type) or not is_number(data_type):
        return _bounds_by_arrow(values, starts)
    part = column_values(pa.chunked_array([values]))
    numbers = part.values[:, 0]
    unknown = np.zeros(len(numbers), bool) if part.absent is None else part.absent[:, 0].copy()
    if numbers.dtype.kind == "f":
        unknown |= np.isnan(numbers)
        least, most = numbers.dtype.type(-np.inf), numbers.dtype.type(np.inf)
    elif numbers.dtype.kind == "b":
        least, most = np.False_, np.True_
    else:
        least, most = np.iinfo(numbers.dtype).min, np.iinfo(numbers.dtype).max
    none = _counted(~unknown, starts) == 0
    sides = []
    for reduce, filler in ((np.minimum, most), (np.maximum, least)):
        kept = np.where(unknown, filler, numbers) if unknown.any() else numbers
        bound = reduce.reduceat(kept, starts)
        if bound.dtype.kind == "f":
            bound = bound + bound.dtype.type(0)  # -0.0 becomes 0.0
        sides.append(_as_type(bound, none, data_type))
    return sides[0], sides[1]


def _as_type(numbers: npt.NDArray[Any], none: BoolArray, data_type: pa.DataType) -> pa.Array:
    if pt.is_temporal(data_type):
        width = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.array(numbers, width, mask=none).view(data_type)
    return pa.array(numbers, data_type, mask=none)


def _bounds_by_arrow(values: pa.Array, starts: Int64Array) -> tuple[pa.Array, pa.Array]:
    """Return the bounds of texts, bytes and decimals."""
    lengths = np.diff(np.append(starts, len(values)))
    table = pa.table({"segment": np.repeat(np.arange(len(starts)), lengths), "value": values})
    found = table.group_by("segment", use_threads=False).aggregate([("value", "min"), ("value", "max")])
    low, high = (found.column(f"value_{side}").combine_chunks().cast(values.type) for side in ("min", "max"))
    if pt.is_decimal(values.type):
        return low, high
    return _kept_text(low), _kept_text(high)


def _kept_text(bounds: pa.Array) -> pa.Array:
    """Return bounds without those that are too long, or say that they are text and are not UTF-8."""
    size = pc.fill_null(pc.binary_length(bounds), 0)
    drop = pc.greater(size, MAX_BOUND_BYTES).to_numpy(zero_copy_only=False)
    if pt.is_string(bounds.type):
        try:
            bounds.validate(full=True)
        except pa.ArrowInvalid:
            raw = bounds.cast(pa.binary())
            drop = drop | np.array([not _is_utf8(value.as_py()) for value in raw], bool)
    return pc.if_else(pa.array(drop), pa.scalar(None, bounds.type), bounds) if drop.any() else bounds


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


# -- sequences ------------------------------------------------------------------------------------------------


def statistics_of(partials: Partials, stops: Int64Array) -> tuple[pa.StructArray, BoolArray]:
    """Return the statistics of sequences as the format has them, and which sequences have finite values alone.

    Parameters
    ----------
    partials : Partials
        Of the segments of all sequences, one sequence behind the other.
    stops : ndarray, shape (n_sequences + 1,), int64
        Segments of sequence i are ``[stops[i], stops[i + 1])``; none is empty.
    """
    first = stops[:-1]
    data_type = partials.min.type
    present = np.logical_or.reduceat(partials.present, first) if len(first) else np.zeros(0, bool)
    everywhere = np.logical_and.reduceat(partials.present, first) if len(first) else np.zeros(0, bool)
    if np.all(np.diff(stops) == 1):
        low, high = partials.min.take(pa.array(first)), partials.max.take(pa.array(first))
    else:
        low, high = grouped_bounds(partials.min, first)[0], grouped_bounds(partials.max, first)[1]

    def total(name: str) -> Int64Array:
        values: Int64Array = getattr(partials, name)
        return np.add.reduceat(values, first) if len(first) else values

    arrays: dict[str, pa.Array] = {"min": low, "max": high, "null_count": pa.array(total("null_count"))}
    finite = everywhere
    if is_number(data_type):
        nan_count, inf_count = total("nan_count"), total("inf_count")
        finite = everywhere & (nan_count == 0) & (inf_count == 0)
        mean, std = _mean_and_std(partials, stops)
        arrays |= {
            "nan_count": pa.array(nan_count),
            "inf_count": pa.array(inf_count),
            "mean": mean,
            "std": std,
        }
    struct = pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays), mask=pa.array(~present))
    return struct, finite if pt.is_floating(data_type) else np.ones(len(first), bool)


def _mean_and_std(partials: Partials, stops: Int64Array) -> tuple[pa.Array, pa.Array]:
    """Return mean and deviation of the finite values; null where there are none, or they are too large for float64."""
    counts, mean, squares = chained(partials.count, partials.mean, partials.squares, stops)
    first = stops[:-1]
    filled = partials.count > 0
    low = np.where(filled, partials.low, np.inf)
    high = np.where(filled, partials.high, -np.inf)
    if len(first):
        low, high = np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
    with np.errstate(over="ignore", invalid="ignore"):
        std = np.sqrt(squares / np.maximum(counts, 1))
    same = low == high
    mean, std = np.where(same, low, mean) + 0.0, np.where(same, 0.0, std)
    unknown = (counts == 0) | ~np.isfinite(mean) | ~np.isfinite(std)
    return pa.array(mean, mask=unknown), pa.array(std, mask=unknown)
