"""Where batches end: arithmetic on `stops`, with no clock, rank or random number in it.

A list of batches over the places 0, 1, 2, ... of an order is written as its `stops`: batch b holds the places
``[stops[b - 1], stops[b])``, and the first one starts where the list starts. Everything that makes batches
smaller adds stops; nothing moves one. So the order in which sequences are delivered is the same for every
list of stops.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np
import numpy.typing as npt

from pqindex.errors import PlanError

Int64Array = npt.NDArray[np.int64]

TAILS: Final = ("error", "drop", "pad", "short")


def fixed_size_stops(n_sequences: int, batch_size: int) -> Int64Array:
    """Return the stops of batches of `batch_size` sequences; the last batch holds what is left.

    Returns
    -------
    ndarray, shape (ceil(n_sequences / batch_size),), int64
    """
    n_batches = -(-n_sequences // batch_size)
    stops = np.arange(1, n_batches + 1, dtype=np.int64) * batch_size
    stops[-1:] = n_sequences
    return stops


def round_up_stops(stops: Int64Array, multiple: int) -> Int64Array:
    """Return the stops with cuts added until their count is a multiple of `multiple`.

    Each cut halves the batch with most sequences at that moment, the last of equals.

    Raises
    ------
    PlanError
        If there are fewer sequences than batches would be needed.
    """
    n_cuts = -len(stops) % multiple
    if n_cuts == 0:
        return stops
    n_sequences, needed = int(stops[-1]), len(stops) + n_cuts
    if n_sequences < needed:
        raise PlanError(
            f"rank_multiple={multiple} cannot be kept: {len(stops)} batches round up to {needed}, "
            f"and there are only {n_sequences} sequences",
            hint="give a smaller rank_multiple or a larger batch_size, or leave it at 1 and choose a tail",
            n_sequences=n_sequences,
            n_batches=len(stops),
            rank_multiple=multiple,
        )
    return _with_cuts(stops, 0, n_cuts)


def equal_step_stops(stops: Int64Array, *, start: int, world_size: int, tail: str) -> Int64Array:
    """Return the stops that `world_size` ranks share in steps, from `start` on.

    Step s of W ranks delivers batches ``s W .. s W + W - 1``, one to each rank, so the count must be a
    multiple of W. The ``(-count) mod W`` cuts that are missing halve the largest batches of the shortest tail
    that has sequences enough; batches before that tail are the same for every W. This is possible if and only
    if there are at least ``W ceil(count / W)`` sequences. If not, `tail` decides.

    Parameters
    ----------
    stops : ndarray, shape (count,), int64
        Stops of the batches still to come.
    start : int
        Place where the first of them starts.
    world_size : int
        Number of ranks, W.
    tail : {"error", "drop", "pad", "short"}
        `drop` leaves out the last ``count mod W`` batches. `pad` makes every batch one sequence and goes on
        past the last place; the caller takes such places modulo the number of sequences. `short` leaves the
        list as it is, so that the last step has no batch for some ranks.

    Raises
    ------
    PlanError
        If steps cannot be made equal and `tail` is "error".
    """
    count = len(stops)
    n_cuts = -count % world_size
    if n_cuts == 0:
        return stops
    n_left, needed = int(stops[-1]) - start, count + n_cuts
    if n_left >= needed:
        return _with_cuts_in_tail(stops, start, n_cuts)
    if tail == "drop":
        return stops[: count - count % world_size]
    if tail == "pad":
        return np.arange(start + 1, start + needed + 1, dtype=np.int64)
    if tail == "short":
        return stops
    raise PlanError(
        f"{world_size} ranks cannot take equal numbers of steps: {count} batches need {n_cuts} more for "
        f"{needed // world_size} steps of {world_size}, which takes {needed} sequences, "
        f"and there are {n_left}",
        hint='use fewer ranks, or say what happens to the tail: tail="drop" leaves out the last batches, '
        '"pad" repeats sequences from the start of the order, "short" lets some ranks take a step less '
        "(evaluation)",
        n_sequences=n_left,
        n_batches=count,
        world_size=world_size,
    )


def _with_cuts_in_tail(stops: Int64Array, start: int, n_cuts: int) -> Int64Array:
    """Return the stops with cuts in the shortest tail whose batches can be cut that often."""
    spare = np.cumsum(_sizes(stops, start)[::-1] - 1)  # cuts that the last 1, 2, 3, ... batches can take
    first = len(stops) - 1 - int(np.searchsorted(spare, n_cuts))
    tail_start = int(stops[first - 1]) if first else start
    return np.concatenate([stops[:first], _with_cuts(stops[first:], tail_start, n_cuts)])


def _with_cuts(stops: Int64Array, start: int, n_cuts: int) -> Int64Array:
    """Return the stops with `n_cuts` more, each halving the largest batch of the moment, the last of equals.

    Of an odd batch the first half is the larger. The caller has made sure that there are sequences enough.
    """
    sizes = _sizes(stops, start)
    starts = stops - sizes
    # no more than n_cuts batches are ever cut, and those are the largest, later ones first
    largest = np.lexsort((starts, sizes))[::-1][:n_cuts]
    heap = [(-int(sizes[b]), -int(starts[b])) for b in largest]
    heapq.heapify(heap)
    cuts = np.empty(n_cuts, np.int64)
    for i in range(n_cuts):
        size, first = (-x for x in heapq.heappop(heap))
        half = (size + 1) // 2
        cuts[i] = first + half
        heapq.heappush(heap, (-half, -first))
        heapq.heappush(heap, (half - size, -first - half))
    return np.sort(np.concatenate([stops, cuts]))


def _sizes(stops: Int64Array, start: int) -> Int64Array:
    return np.diff(stops, prepend=np.int64(start))
