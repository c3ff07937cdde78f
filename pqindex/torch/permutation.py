"""The keyed permutation behind every shuffle: position in the epoch -> position in the selection.

The same (n, seed, epoch) gives the same order on every machine and with every version of numpy, because the
random bits are made here from 64-bit integer arithmetic alone. The fixed values in the tests are a promise.

Random bits come from SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014), whose finaliser is Stafford's variant 13 of the MurmurHash3 mix. Small permutations sort by
such bits. Large ones are a Feistel network over a rectangle of at least n cells with cycle walking (Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002): any place of the order is computed by itself,
so nothing of length n is held.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pqindex.errors import SelectionIndexError, UsageError

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

CHUNK = 65_536  # positions evaluated at a time: the working set stays in the cache
SMALL = 65_536  # below this many, an order is sorted once and kept (at most 512 KB)
ROUNDS = 8  # of the Feistel network; each half is changed by every other round
MAX_N = 1 << 62

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def permutation_key(*words: int) -> int:
    """Return the 64-bit key of an order: that of one epoch for (seed, epoch), of a part of it for more words.

    Parameters
    ----------
    *words : int
        In [0, 2**64).
    """
    key = 0
    for word in words:
        key = _mix((key + _GAMMA + word) & _MASK)
    return key


class Permutation:
    """A random order of [0, n), chosen by a key.

    Calling it is pure. Memory is O(1) for n >= 65,536 and 8 n bytes below. 10^7 positions take about a
    second. Threads may share it: the order of a small one is sorted at most once a thread, with equal
    results.

    Parameters
    ----------
    n : int
        How many items are ordered.
    key : int
        64 bits, as from `permutation_key`.

    Examples
    --------
    >>> Permutation(5, key=7)(np.arange(5))
    array([1, 0, 4, 3, 2])
    """

    def __init__(self, n: int, key: int) -> None:
        if not 0 <= n <= MAX_N:
            raise UsageError(f"a permutation of {n} items cannot be made; expected 0 to 2**62", n=n)
        self.n = n
        self.key = key & _MASK
        self._order: Int64Array | None = None
        self._network = FeistelNetwork(n, self.key) if n >= SMALL else None

    def __call__(self, positions: npt.ArrayLike) -> Int64Array:
        """Return the item at each of some positions of the order.

        Parameters
        ----------
        positions : array_like of int, shape (m,)
            Positions in [0, n), in any order, repeated or not.

        Returns
        -------
        ndarray, shape (m,), int64
            Items in [0, n).

        Raises
        ------
        SelectionIndexError
            If a position lies outside [0, n).
        """
        asked = _inside(positions, self.n)
        if self._network is not None:
            return self._network(asked)
        if self._order is None:
            self._order = _sorted_order(self.n, self.key)
        return self._order[asked]


class BlockPermutation:
    """A random order of [0, n) that keeps neighbours near: blocks in random order, each in a random order of its own.

    Block b holds the items ``[b * block_size, (b + 1) * block_size)``, the last one what is left. Memory is that of
    a permutation of the blocks and of those blocks that are asked for at once. Pure, and threads may share it.

    Parameters
    ----------
    n : int
        How many items are ordered.
    key : int
        64 bits, as from `permutation_key`.
    block_size : int
        Items a block, at least 1.
    """

    def __init__(self, n: int, key: int, block_size: int) -> None:
        self.n = n
        self.block_size = block_size
        self._key = key & _MASK
        self._n_blocks = max(-(-n // block_size), 1)
        self._last_size = n - (self._n_blocks - 1) * block_size
        self._blocks = Permutation(self._n_blocks, permutation_key(self._key, 0))
        self._last_at = self._place_of_last()

    def _place_of_last(self) -> int:
        """Return at which place of the order of blocks the last, shorter one comes."""
        for start in range(0, self._n_blocks, CHUNK):
            places = np.arange(start, min(start + CHUNK, self._n_blocks))
            found = np.flatnonzero(self._blocks(places) == self._n_blocks - 1)
            if found.size:
                return start + int(found[0])
        return 0  # there is one block, or none

    def __call__(self, positions: npt.ArrayLike) -> Int64Array:
        """Return the item at each of some positions of the order; see `Permutation`."""
        asked = _inside(positions, self.n)
        missing = self.block_size - self._last_size  # places behind the last block are that much nearer
        behind = asked >= self._last_at * self.block_size + self._last_size
        shifted = asked + np.where(behind, missing, 0)
        places, inside = np.divmod(shifted, self.block_size)
        blocks = self._blocks(places)
        items = np.empty_like(asked)
        for block in np.unique(blocks).tolist():
            own = blocks == block
            size = self._last_size if block == self._n_blocks - 1 else self.block_size
            order = Permutation(size, permutation_key(self._key, 1, block))
            items[own] = block * self.block_size + order(inside[own])
        return items


class FeistelNetwork:
    """A bijection of [0, n) computed place by place, for n of any size.

    A position is written as (left, right) in a rectangle of ``rows x columns >= n`` cells, about square. Each
    round adds, modulo the half's own size, a mix of one half and a round key to the other half, which can be
    undone, so the rectangle is permuted. A result outside [0, n) goes through again until it lies inside;
    fewer than one in sqrt(n) do. Uniform only for large n: `Permutation` uses it from 65,536 up.

    Parameters
    ----------
    n : int
        How many items are ordered.
    key : int
        64 bits.
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        rows = math.isqrt(max(n - 1, 0)) + 1
        self._rows = np.uint64(rows)
        self._columns = np.uint64(max(-(-n // rows), 1))
        self._round_keys = splitmix64(key, ROUNDS)

    def __call__(self, positions: Int64Array) -> Int64Array:
        """Return the item at each position, which must lie in [0, n): shape (m,), int64."""
        items = np.empty(positions.shape, np.int64)
        for start in range(0, len(positions), CHUNK):
            chunk = slice(start, start + CHUNK)
            items[chunk] = self._walk(positions[chunk].astype(np.uint64)).view(np.int64)
        return items

    def _walk(self, cells: UInt64Array) -> UInt64Array:
        cells = self._permute_cells(cells)
        outside = np.flatnonzero(cells >= np.uint64(self.n))
        while outside.size:
            cells[outside] = self._permute_cells(cells[outside])
            outside = outside[cells[outside] >= np.uint64(self.n)]
        return cells

    def _permute_cells(self, cells: UInt64Array) -> UInt64Array:
        left = cells // self._columns
        right = cells - left * self._columns
        added, scratch = np.empty_like(cells), np.empty_like(cells)
        for i, round_key in enumerate(self._round_keys):
            half, other, size = (left, right, self._rows) if i % 2 == 0 else (right, left, self._columns)
            np.add(other, round_key, out=added)
            _mix64_in_place(added, scratch)
            added >>= np.uint64(32)
            added *= size  # below 2**32, so the product keeps to 64 bits
            added >>= np.uint64(32)
            half += added
            np.subtract(half, size, out=scratch)
            np.minimum(half, scratch, out=half)  # below its size, the difference wraps around and is greater
        left *= self._columns
        left += right
        return left


def _inside(positions: npt.ArrayLike, n: int) -> Int64Array:
    """Return positions as an array; raise SelectionIndexError if one lies outside [0, n)."""
    asked = np.asarray(positions, dtype=np.int64)
    if asked.size and (int(asked.min()) < 0 or int(asked.max()) >= n):
        raise SelectionIndexError(
            f"a position lies outside the permutation: expected 0 to {n - 1}, "
            f"found {int(asked.min())} to {int(asked.max())}",
            n=n,
        )
    return asked


def _sorted_order(n: int, key: int) -> Int64Array:
    """Return [0, n) sorted by the outputs of SplitMix64; equal outputs, if there were any, by index."""
    return np.argsort(splitmix64(key, n), kind="stable").astype(np.int64, copy=False)


def splitmix64(seed: int, n: int) -> UInt64Array:
    """Return the first n outputs of SplitMix64 started at a seed: shape (n,), uint64."""
    words = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(seed & _MASK)
    _mix64_in_place(words, np.empty_like(words))
    return words


def _mix64_in_place(words: UInt64Array, scratch: UInt64Array) -> None:
    """Apply SplitMix64's finaliser to each word, in two buffers: fresh memory costs more than the sums."""
    np.right_shift(words, np.uint64(30), out=scratch)
    words ^= scratch
    words *= np.uint64(_MIX_1)
    np.right_shift(words, np.uint64(27), out=scratch)
    words ^= scratch
    words *= np.uint64(_MIX_2)
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * _MIX_1 & _MASK
    word = (word ^ (word >> 27)) * _MIX_2 & _MASK
    return word ^ (word >> 31)
