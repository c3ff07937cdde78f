"""The order of an epoch: which sequence stands at each place of it, and where its batches end.

An order is a pure function of the lengths, the policy, the seed and the epoch. Ranks and workers do not enter into it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pqindex.errors import PlanError
from pqindex.torch.permutation import BlockPermutation, Permutation, permutation_key, splitmix64
from pqindex.torch.stops import Int64Array, fixed_size_stops, round_up_stops

Shuffle = Literal["none", "full", "block"]

SHUFFLES: Final = ("none", "full", "block")
FIRST_SEQUENCES: Final = 10
_KEPT_PERMUTATIONS: Final = 4096
_PIECE: Final = 1 << 20
# Words that set the keys of one order apart from each other.
_BATCHES, _GROUPS, _BLOCKS = range(1, 4)


class EpochOrder(NamedTuple):
    """One epoch: the stops of its batches, and from places of its order to positions in the selection."""

    stops: Int64Array
    positions: Callable[[Int64Array], Int64Array]


class Order(Protocol):
    """The orders of all epochs; the number of batches and their sizes are the same in each."""

    def epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of one epoch."""
        ...


class FixedSizeOrder:
    """Batches of so many sequences, cut from the selection's order or a permutation of it."""

    def __init__(
        self, n_sequences: int, batch_size: int, *, shuffle: Shuffle, block_size: int, rank_multiple: int
    ) -> None:
        self._n = n_sequences
        self._shuffle = shuffle
        self._block_size = block_size
        self._stops = round_up_stops(fixed_size_stops(n_sequences, batch_size), rank_multiple)
        self._stops.flags.writeable = False

    def epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of one epoch; nothing of its length is made."""
        if self._shuffle == "none":
            return EpochOrder(self._stops, lambda places: places)
        key = permutation_key(seed, epoch)
        if self._shuffle == "block":
            return EpochOrder(self._stops, BlockPermutation(self._n, key, self._block_size))
        return EpochOrder(self._stops, Permutation(self._n, key))


class TokenBudgetOrder:
    """Batches whose padded cost, the longest sequence times their number, is at most a budget.

    Sequences of like length are put together: buckets grow geometrically, a bucket's batches have as many sequences
    as its longest allows, and a bucket is cut evenly. A shuffle permutes the sequences inside each bucket and then the
    batches; with "block" both happen inside blocks of neighbours, and the blocks are permuted. Without a shuffle,
    each bucket keeps the selection's order, and batches come in the order of their first sequences.

    Memory: 4 bytes a sequence, and some 40 a batch.

    Parameters
    ----------
    lengths : ndarray, shape (n,), int64
    max_tokens : int
    ratio : float
        Each bucket's longest length is at most so many times its shortest.
    shuffle, block_size, rank_multiple
        As in `BatchPlan`.

    Raises
    ------
    PlanError
        If a sequence is longer than the budget, or there are too few sequences for `rank_multiple`.
    """

    def __init__(
        self,
        lengths: Int64Array,
        max_tokens: int,
        *,
        ratio: float,
        shuffle: Shuffle,
        block_size: int,
        rank_multiple: int,
    ) -> None:
        _refuse_too_long(lengths, max_tokens)
        self._shuffle = shuffle
        n = len(lengths)
        edges = bucket_edges(max(int(lengths.max()), 1), ratio)
        group = _buckets(lengths, edges)
        n_buckets = len(edges)
        if shuffle == "block":
            blocks = np.arange(n, dtype=np.int64) // block_size
            wide = blocks * n_buckets + group
            order = np.argsort(wide, kind="stable")
            ordered = wide[order]
        else:
            order = np.argsort(group, kind="stable")
            ordered = group[order]
        self._sequences = order.astype(np.int32 if n < 1 << 31 else np.int64)
        del order, group  # each takes as much as all that is kept
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self._group_starts = starts.astype(np.int64)
        self._group_sizes = np.diff(np.append(starts, n))
        longest = np.maximum(np.maximum.reduceat(lengths[self._sequences], starts), 1)
        stops = _even_stops(self._group_starts, self._group_sizes, max_tokens // longest)
        stops = round_up_stops(stops, rank_multiple)
        self._starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
        self._sizes = stops - self._starts
        self._group_of_batch = np.searchsorted(self._group_starts, self._starts, side="right") - 1
        self._block_of_batch = np.zeros(0, np.int64)
        if shuffle == "block":
            self._block_of_batch = ordered[self._starts] // n_buckets

    def epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of one epoch, in O(batches)."""
        order = self._batches(seed, epoch)
        sizes = self._sizes[order]
        stops = np.cumsum(sizes)
        stops.flags.writeable = False
        first = self._starts[order] - (stops - sizes)  # what leads from a place to its index in `_sequences`
        permutations: dict[int, Permutation] = {}

        def positions(places: Int64Array) -> Int64Array:
            batch = np.searchsorted(stops, places, side="right")
            index = places + first[batch]
            if self._shuffle != "none":
                self._permute(index, self._group_of_batch[order[batch]], (seed, epoch), permutations)
            return np.asarray(self._sequences[index], np.int64)

        return EpochOrder(stops, positions)

    def _batches(self, seed: int, epoch: int) -> Int64Array:
        """Return the batches in the order of an epoch."""
        if self._shuffle == "none":
            return _argsort(self._sequences[self._starts])
        keys = splitmix64(permutation_key(seed, epoch, _BATCHES), len(self._starts))
        if self._shuffle == "full":
            return _argsort(keys)
        n_blocks = int(self._block_of_batch.max()) + 1
        ranks = splitmix64(permutation_key(seed, epoch, _BLOCKS), n_blocks)
        by_block = (keys, self._block_of_batch, ranks[self._block_of_batch])
        return np.asarray(np.lexsort(by_block), np.int64)

    def _permute(
        self,
        index: Int64Array,
        groups: Int64Array,
        words: tuple[int, int],
        permutations: dict[int, Permutation],
    ) -> None:
        """Permute indices inside their groups, in place; small permutations are kept for the epoch."""
        by_group = np.argsort(groups, kind="stable")
        ordered = groups[by_group]
        borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for start, stop in pairwise([0, *borders.tolist(), len(ordered)]):
            if start == stop:
                continue
            group = int(ordered[start])
            permutation = permutations.get(group)
            if permutation is None:
                if len(permutations) >= _KEPT_PERMUTATIONS:
                    permutations.clear()
                key = permutation_key(*words, _GROUPS, group)
                permutation = permutations[group] = Permutation(int(self._group_sizes[group]), key)
            own = by_group[start:stop]
            begin = int(self._group_starts[group])
            index[own] = begin + permutation(index[own] - begin)


def _argsort(values: npt.NDArray[Any]) -> Int64Array:
    return np.asarray(np.argsort(values, kind="stable"), np.int64)


def bucket_edges(longest: int, ratio: float) -> Int64Array:
    """Return the shortest length of each bucket, from 1 on: each at least 1 more and at most `ratio` times the last.

    Products and floors only, so that they are the same on every machine.
    """
    edges = [1]
    while edges[-1] <= longest:
        edges.append(max(edges[-1] + 1, int(edges[-1] * ratio)))
    return np.array(edges[:-1], np.int64)


def _buckets(lengths: Int64Array, edges: Int64Array) -> npt.NDArray[np.int16]:
    """Return the bucket of each length, a piece at a time: what is in between takes eight bytes a sequence."""
    buckets = np.empty(len(lengths), np.int16)
    for start in range(0, len(lengths), _PIECE):
        piece = slice(start, start + _PIECE)
        buckets[piece] = np.searchsorted(edges, np.maximum(lengths[piece], 1), side="right") - 1
    return buckets


def _even_stops(starts: Int64Array, sizes: Int64Array, capacities: Int64Array) -> Int64Array:
    """Return the stops of all groups, each cut into as few batches of at most its capacity as it takes."""
    counts = -(-sizes // capacities)
    batch_in_group = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    stops: Int64Array = np.repeat(starts, counts) + (batch_in_group + 1) * np.repeat(
        sizes, counts
    ) // np.repeat(counts, counts)
    return stops


def _refuse_too_long(lengths: npt.NDArray[np.int64], max_tokens: int) -> None:
    too_long = np.flatnonzero(lengths > max_tokens)
    if too_long.size:
        first = ", ".join(f"position {i} ({lengths[i]})" for i in too_long[:FIRST_SEQUENCES].tolist())
        more = f", and {too_long.size - FIRST_SEQUENCES} more" if too_long.size > FIRST_SEQUENCES else ""
        raise PlanError(
            f"{too_long.size} of {len(lengths)} sequences are longer than max_tokens={max_tokens}: {first}{more}",
            hint=f"select with WHERE row_count <= {max_tokens}, cut them into windows, or raise max_tokens",
            max_tokens=max_tokens,
            n_sequences=int(too_long.size),
            positions=tuple(too_long[:FIRST_SEQUENCES].tolist()),
        )
