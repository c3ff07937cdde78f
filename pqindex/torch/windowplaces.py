"""Where windows lie, as arithmetic: window number -> (sequence, first row), by prefix sums of counts.

Nothing here reads data or knows of fields. What is held is one prefix sum for each `BLOCK` sequences, so ten
million sequences take 5 MB, however many windows they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from pqindex.errors import UsageError
from pqindex.torch.arguments import integer, one_of
from pqindex.torch.permutation import MAX_N, permutation_key

Int64Array = npt.NDArray[np.int64]
Partial = Literal["drop", "keep", "pad"]
DrawBy = Literal["windows", "sequences"]

PARTIALS: Final = ("drop", "keep", "pad")
DRAWS_BY: Final = ("windows", "sequences")
BLOCK: Final = 16  # sequences a prefix sum: a look-up counts the windows of one block anew
_CHUNK: Final = BLOCK * 65_536  # sequences counted at a time when the sums are made
_MAX_ROWS: Final = 1 << 48
_DRAWS: Final = int.from_bytes(b"windows", "big")  # keeps draws apart from the orders of the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGrid:
    """Which windows a sequence has.

    A window that starts at row s is rows ``[s, s + length)``; its context is ``[s - context, s)`` and its
    horizon ``[s + length, s + length + horizon)``. Starts are `stride` rows apart.

    With ``partial="drop"`` a window is there if window, context and horizon lie inside the sequence; the
    first starts at row `context`. With "keep" and "pad" the first starts at row 0 and they go on until the
    last row is reached: a window is there if its first row is, and if the window before it has not ended with
    or after the sequence's last row already. So each window has a row of the sequence, and none is only the
    end of the one before.

    Attributes
    ----------
    length, stride : int
        At least 1.
    context, horizon : int
        At least 0.
    partial : {"drop", "keep", "pad"}
    """

    length: int
    stride: int
    context: int = 0
    horizon: int = 0
    partial: Partial = "drop"

    @classmethod
    def of(cls, *, length: int, stride: int, context: int, horizon: int, partial: Partial) -> WindowGrid:
        """Return the grid that arguments ask for; raise UsageError if they make no sense."""
        one_of("partial", partial, PARTIALS)
        grid = cls(
            length=integer("length", length, least=1, below=_MAX_ROWS),
            stride=integer("stride", stride, least=1, below=_MAX_ROWS),
            context=integer("context", context, below=_MAX_ROWS),
            horizon=integer("horizon", horizon, below=_MAX_ROWS),
            partial=partial,
        )
        if partial == "keep" and (context or horizon):
            raise UsageError(
                f'partial="keep" with context={context} and horizon={horizon}: a window that is cut at the '
                "end of its sequence has no horizon",
                hint='use partial="pad", which says by masks what is there, or "drop"',
            )
        return grid

    @property
    def n_rows_needed(self) -> int:
        """Rows that a sequence must have to have a window."""
        return self.context + self.length + self.horizon if self.partial == "drop" else 1

    @property
    def first_start(self) -> int:
        """Row where the first window of each sequence starts."""
        return self.context if self.partial == "drop" else 0

    def counts(self, row_counts: Int64Array) -> Int64Array:
        """Return the number of windows of sequences of some lengths: the shape given, int64."""
        if self.partial == "drop":
            spare = row_counts - (self.context + self.length + self.horizon)
            return np.maximum(spare // self.stride + 1, 0)
        starts = -(-row_counts // self.stride)
        until_last_row = -(-np.maximum(row_counts - self.length, 0) // self.stride) + 1
        counts: Int64Array = np.minimum(starts, until_last_row)
        return counts

    def row_starts(self, numbers: Int64Array) -> Int64Array:
        """Return the first rows of the windows of some numbers inside their sequences: shape (m,), int64."""
        return self.first_start + numbers * self.stride


class PrefixSums:
    """Prefix sums of a count that can be computed from a length: item -> (sequence, number inside it).

    Memory is 8 bytes for each `BLOCK` sequences; a look-up is O(log n). Immutable, and safe for threads.

    Parameters
    ----------
    lengths : ndarray, shape (n,), int64
        Kept as it is, so a memory-mapped one stays so.
    count : callable
        From lengths, of any shape, to counts of at least 0; a length of 0 has the count 0.

    Raises
    ------
    UsageError
        If there are 2**62 items or more.
    """

    def __init__(self, lengths: Int64Array, count: Callable[[Int64Array], Int64Array]) -> None:
        self._lengths = lengths
        self._count = count
        n = len(lengths)
        sums = np.zeros(-(-n // BLOCK), np.int64)
        most = 0.0
        for start in range(0, n, _CHUNK):
            counts = count(np.asarray(lengths[start : start + _CHUNK]))
            most += float(counts.sum(dtype=np.float64))
            first = start // BLOCK
            blocks = np.add.reduceat(counts, np.arange(0, len(counts), BLOCK))
            sums[first : first + len(blocks)] = blocks
        if most >= MAX_N:
            raise UsageError(f"there are about {most:.3g} windows; expected fewer than 2**62", n_windows=most)
        self._stops = np.cumsum(sums)
        self.total: Final = int(self._stops[-1]) if n else 0

    def locate(self, items: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sequence of each item and the item's number inside it: two of shape (m,), int64.

        Items must lie in [0, total).
        """
        blocks = np.searchsorted(self._stops, items, side="right")
        rest = items - np.where(blocks > 0, self._stops[blocks - 1], 0)
        members = blocks[:, None] * BLOCK + np.arange(BLOCK)
        inside = members < len(self._lengths)
        lengths = np.where(inside, self._lengths[np.where(inside, members, 0)], 0)
        counts = np.where(inside, self._count(lengths), 0)
        stops = np.cumsum(counts, axis=1)
        at = (stops <= rest[:, None]).sum(axis=1)
        picked = np.arange(len(items))
        numbers = rest - (stops[picked, at] - counts[picked, at])
        return blocks * BLOCK + at, numbers


class RandomWindows:
    """Windows drawn with replacement: window i of an epoch is a pure function of (seed, epoch, i).

    Parameters
    ----------
    grid : WindowGrid
    row_counts : ndarray, shape (n,), int64
        Rows of the sequences.
    by : {"windows", "sequences"}
        Whether each window is as likely as every other, or each sequence that has one.
    seed : int
        In [0, 2**64).
    """

    def __init__(self, grid: WindowGrid, row_counts: Int64Array, *, by: DrawBy, seed: int) -> None:
        one_of("draw_by", by, DRAWS_BY)
        self._grid = grid
        self._row_counts = row_counts
        self._by = by
        self._key = permutation_key(_DRAWS, seed)
        self._sums = PrefixSums(row_counts, grid.counts if by == "windows" else self._has_window)

    @property
    def total(self) -> int:
        """How many windows, or sequences, each draw has to choose from."""
        return self._sums.total

    def locate(self, items: Int64Array, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return the sequence and the number of the window of some items: two of shape (m,), int64."""
        epoch_key = permutation_key(self._key, epoch)
        words = [permutation_key(epoch_key, int(item)) for item in items]
        drawn = np.array([_below(word, self.total) for word in words], np.int64)
        sequences, numbers = self._sums.locate(drawn)
        if self._by == "windows":
            return sequences, numbers
        counts = self._grid.counts(np.asarray(self._row_counts[sequences]))
        again = [permutation_key(word, 1) for word in words]
        numbers = np.array([_below(word, int(n)) for word, n in zip(again, counts, strict=True)], np.int64)
        return sequences, numbers

    def _has_window(self, row_counts: Int64Array) -> Int64Array:
        return (row_counts >= self._grid.n_rows_needed).astype(np.int64)


def _below(word: int, n: int) -> int:
    """Return a number in [0, n) from 64 random bits; no number is likelier than another by 2**-64 n."""
    return word * n >> 64
