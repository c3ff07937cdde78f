"""Statistics of the columns of a selection: counts, mean, standard deviation and bounds, the same on every machine.

They are what a normalisation needs, so the last bit counts: a model goes on tomorrow with the numbers of today. numpy's
own sums add in an order that hangs on the processor. Here values are added elementwise, half onto half, in blocks of
a fixed size, and blocks are put together one after the other by the pairwise update of Chan, Golub and LeVeque
("Updating formulae and a pairwise algorithm for computing sample variances", 1979). Each step is one IEEE 754 operation
on float64, rounded to nearest; rule M5 of the specification writes them down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.columns import column_form, column_values, is_lists, item_type, list_items
from pqindex.errors import ColumnTypeError, NonFiniteError, UsageError
from pqindex.places import Places
from pqindex.reader import Reader, Source

BLOCK: Final = 1 << 16
"""Values that are added up together."""

_ROWS_AT_ONCE: Final = 1 << 16
_SEQUENCES_AT_ONCE: Final = 256

Progress = Callable[[int, int, str], None]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """What is known of the values of a column in the sequences of a selection.

    Values of a list count each; times and dates are numbers in their own unit; true is 1.

    Attributes
    ----------
    count : int
        Finite values. The other numbers below are of these alone.
    null_count : int
        Nulls; a list that is null counts once.
    nan_count, infinite_count : int
    mean, std, min, max : float or None
        None where there is no finite value. `std` is the deviation of the population: the sum of the squared distances
        from the mean is divided by n and not by n - 1. Of a column with one value it is exactly 0, and the mean is that
        value.
    """

    count: int
    null_count: int
    nan_count: int
    infinite_count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the statistics."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ColumnStatistics:
        """Return the statistics of a checked JSON object."""
        counts = {name: value[name] for name in ("count", "null_count", "nan_count", "infinite_count")}
        # JSON has no difference between 1 and 1.0
        mean, std, low, high = (
            None if value[name] is None else float(value[name]) for name in ("mean", "std", "min", "max")
        )
        return cls(**counts, mean=mean, std=std, min=low, max=high)


def column_statistics(
    source: Source, places: Places, columns: Sequence[str], *, progress: Progress | None = None
) -> dict[str, ColumnStatistics]:
    """Return the statistics of some columns over all rows of a selection, by column.

    Reads every sequence once, in the order of the files whatever the selection's order, so that the same sequences give
    the same numbers in any order. Memory is bounded by the longest sequence.

    Parameters
    ----------
    source : Selection or Manifest
    places : Places
        Of its sequences.
    columns : sequence of str
    progress : callable, optional
        Called with (sequences done, sequences in all, "statistics").

    Raises
    ------
    UsageError
        If no column is named, or one twice.
    ColumnMissingError
        If a column is not there.
    ColumnTypeError
        If a column holds no numbers.
    NonFiniteError
        If finite values are too large to be squared and added up as float64.
    """
    if isinstance(columns, str) or not columns or not all(isinstance(name, str) for name in columns):
        raise UsageError(
            f"columns={columns!r} names no columns",
            hint='give a list of names, as ["f0", "f1"]',
            columns=columns,
        )
    with Reader(source, columns=list(columns)) as reader:
        for field in reader.schema:
            _check_type(field)
        running = [_Running(name) for name in columns]
        order = _file_order(places)
        done = 0
        for positions in _batches(order, places.row_counts):
            for table in reader.read(positions):
                for column, values in zip(table.columns, running, strict=True):
                    values.add(column)
            done += len(positions)
            if progress is not None:
                progress(done, len(order), "statistics")
        return {values.name: values.result() for values in running}


def _check_type(field: pa.Field) -> None:
    inner = field.type
    while is_lists(inner):
        inner = item_type(inner)
    form = column_form(inner)
    if form is None or form.kind == "text":
        raise ColumnTypeError(
            f"column {field.name!r} has no mean: its type is {field.type}",
            hint="statistics are of columns of numbers, times, or lists of them",
            column=field.name,
            found=str(field.type),
        )


def _file_order(places: Places) -> npt.NDArray[np.int64]:
    """Return the positions of the sequences in the order of their first rows: file, row group, row."""
    first = places.segment_stops[:-1]
    keys = (places.row_start[first], places.row_group[first], places.file_no[first])
    return np.lexsort(keys).astype(np.int64, copy=False)


def _batches(order: npt.NDArray[np.int64], row_counts: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield positions to read together: a bounded number of sequences, and of rows where no sequence has more."""
    batch: list[int] = []
    n_rows = 0
    for position in order.tolist():
        batch.append(position)
        n_rows += int(row_counts[position])
        if n_rows >= _ROWS_AT_ONCE or len(batch) == _SEQUENCES_AT_ONCE:
            yield batch
            batch, n_rows = [], 0
    if batch:
        yield batch


class _Running:
    """The statistics of one column so far, and the values that do not fill a block yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._n = 0
        self._mean = 0.0
        self._squares = 0.0
        self._counts = {"null_count": 0, "nan_count": 0, "infinite_count": 0}
        self._min = math.inf
        self._max = -math.inf
        self._waiting: list[Float64Array] = []
        self._n_waiting = 0

    def add(self, column: pa.ChunkedArray) -> None:
        """Add the rows of a sequence."""
        while is_lists(column.type):
            column, lengths = list_items(column)
            self._counts["null_count"] += int((lengths < 0).sum())
        part = column_values(column)
        values = part.values[:, 0]
        if part.absent is not None:
            present = ~part.absent[:, 0]
            self._counts["null_count"] += int(len(values) - present.sum())
            values = values[present]
        values = values.astype(np.float64)
        finite = np.isfinite(values)
        if not finite.all():
            n_nan = int(np.isnan(values).sum())
            self._counts["nan_count"] += n_nan
            self._counts["infinite_count"] += int(len(values) - finite.sum()) - n_nan
            values = values[finite]
        if not len(values):
            return
        self._min = min(self._min, float(values.min()))
        self._max = max(self._max, float(values.max()))
        self._waiting.append(values)
        self._n_waiting += len(values)
        if self._n_waiting >= BLOCK:
            self._take_blocks()

    def result(self) -> ColumnStatistics:
        """Return the statistics of all that was added."""
        self._take_blocks(last=True)
        n = self._n
        if not n:
            return ColumnStatistics(count=0, **self._counts, mean=None, std=None, min=None, max=None)
        mean, std = self._mean, math.sqrt(self._squares / n) if math.isfinite(self._squares) else math.inf
        if self._min == self._max:  # exactly, which the quotients above need not be
            mean, std = self._min, 0.0
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise NonFiniteError(
                f"the values of column {self.name!r} are too large for statistics in float64: from {self._min} "
                f"to {self._max}",
                hint="leave the column out, or the sequences that hold such values",
                column=self.name,
                found=(self._min, self._max),
            )
        # adding 0.0 makes -0.0 a plain 0, which is how JSON keeps it
        low, high = self._min + 0.0, self._max + 0.0
        return ColumnStatistics(count=n, **self._counts, mean=mean + 0.0, std=std, min=low, max=high)

    def _take_blocks(self, *, last: bool = False) -> None:
        if not self._waiting:
            return
        values = np.concatenate(self._waiting)
        stop = len(values) if last else len(values) - len(values) % BLOCK
        for start in range(0, stop, BLOCK):
            self._take(values[start : min(start + BLOCK, stop)])
        self._waiting = [values[stop:]] if stop < len(values) else []
        self._n_waiting = len(values) - stop

    def _take(self, values: Float64Array) -> None:
        """Put one block to what is there already."""
        n = len(values)
        with np.errstate(over="ignore", invalid="ignore"):  # `result` refuses what comes of it
            mean = halving_sum(values) / n
            distances = values - mean
            squares = halving_sum(distances * distances)
        if not self._n:
            self._n, self._mean, self._squares = n, mean, squares
            return
        total = self._n + n
        delta = mean - self._mean
        self._mean += delta * (n / total)
        self._squares += squares
        self._squares += delta * delta * (self._n * n / total)
        self._n = total


def halving_sum(values: Float64Array) -> float:
    """Return the sum of at most `BLOCK` values, added half onto half: element i and i + h, for h = BLOCK / 2 down to 1.

    Elementwise additions of float64 have one result on every machine. Places beyond the values count as 0.
    """
    parts = np.zeros(BLOCK, np.float64)
    parts[: len(values)] = values
    half = BLOCK // 2
    while half:
        parts = parts[:half] + parts[half:]
        half //= 2
    return float(parts[0])
