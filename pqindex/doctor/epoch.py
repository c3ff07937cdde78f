"""What an epoch asks of the files: the decisions of the reader, without its bytes.

Which pieces are read by their pages, which row groups are read whole and kept, and which are there already hangs on
the order. Where all that is kept fits, this is arithmetic. Where it does not, the two bounded memories of the reader
are played through; of very many pieces, on a sample of the row groups with memories as much smaller, or of the
sequences where the row groups are few (after "Efficient MRC construction with SHARDS", Waldspurger et al., FAST 2015).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pqindex.doctor.pieces import GroupCosts, Pieces
from pqindex.doctor.report import Epoch
from pqindex.doctor.spans import Int64Array
from pqindex.reader import MAX_REMEMBERED_GROUPS

PAGES: Final = 1
WHOLE: Final = 2
KEPT: Final = 3
MOST_PLAYED: Final = 1 << 16
"""So many pieces are played through at most: some hundredths of a second."""

MANY_GROUPS: Final = 1 << 10
MANY_KEPT: Final = 16
"""Row groups are sampled where there are many, and the smaller memory still keeps many; else sequences are."""

Actions = npt.NDArray[np.uint8]


def predict_epoch(
    pieces: Pieces,
    groups: GroupCosts,
    *,
    order: str,
    rank: Int64Array,
    group_file: npt.NDArray[Any],
    decoded_bytes: npt.NDArray[Any],
    cache_bytes: int,
    own_bytes: float,
) -> Epoch:
    """Return what one epoch costs, each sequence read alone, in one process that has read nothing yet.

    Parameters
    ----------
    pieces, groups
        See `pieces_of` and `group_costs`.
    order : str
        Its name.
    rank : ndarray of int64, shape (n,)
        When each sequence is read.
    group_file : ndarray, shape (n_groups,)
        File of each row group.
    decoded_bytes : ndarray, shape (n_groups,)
        Size of each row group when it is decoded.
    cache_bytes : int
        How many bytes of decoded row groups are kept.
    own_bytes : float
        Bytes of the sequences themselves.
    """
    actions = np.full(len(pieces.group), WHOLE, np.uint8)
    shared = np.flatnonzero(~pieces.is_whole)
    if len(shared):
        # Neighbours in the files follow each other, unless sequences are scattered over many row groups.
        is_local = order == "file" and len(pieces.group) < 2 * len(rank)
        own = shared[np.argsort(rank[pieces.sequence[shared]], kind="stable")]
        actions[own] = _decide(pieces, groups, own, decoded_bytes, cache_bytes, is_local=is_local)
    is_whole, is_paged = actions == WHOLE, actions == PAGES
    n_bytes = groups.cost.n_bytes[pieces.group] * is_whole + pieces.page_cost.n_bytes * is_paged
    n_ranges = groups.cost.n_ranges[pieces.group] * is_whole + pieces.page_cost.n_ranges * is_paged
    total = int(n_bytes.sum())
    return Epoch(
        order=order,
        requests=int(n_ranges.sum()) - _joined(pieces, groups, actions, group_file),
        n_bytes=total,
        amplification=total / own_bytes if own_bytes else 1.0,
        whole_reads=int(is_whole.sum()),
        page_reads=int(is_paged.sum()),
        kept_hits=int((actions == KEPT).sum()),
    )


def _joined(pieces: Pieces, groups: GroupCosts, actions: Actions, group_file: npt.NDArray[Any]) -> int:
    """Return how many ranges of a sequence's row groups touch those of the row group before, and are one."""
    before, after = slice(None, -1), slice(1, None)
    same = pieces.sequence[after] == pieces.sequence[before]
    if not same.any():
        return 0
    is_whole, is_read = actions == WHOLE, actions != KEPT
    first = np.where(is_whole, groups.cost.first[pieces.group], pieces.page_cost.first)
    reach = np.where(is_whole, groups.cost.reach[pieces.group], pieces.page_cost.reach)
    files = group_file[pieces.group]
    same &= (files[after] == files[before]) & is_read[after] & is_read[before]
    return int((same & (first[after] <= reach[before]) & (reach[after] > first[after])).sum())


# -- what the reader would do -------------------------------------------------------------------------------------


class _Reads(NamedTuple):
    """Pieces of shared row groups, in the order in which they are read, and the row groups.

    `costs` are those of their pages, -1 where there are none; `stored` and `decoded` are bytes by row group.
    """

    sequence: Int64Array
    group: Int64Array
    costs: Int64Array
    stored: Int64Array
    decoded: npt.NDArray[np.float64]

    def some(self, at: npt.NDArray[Any]) -> _Reads:
        """Return some of the pieces."""
        return _Reads(self.sequence[at], self.group[at], self.costs[at], self.stored, self.decoded)


def _decide(
    pieces: Pieces,
    groups: GroupCosts,
    own: Int64Array,
    decoded_bytes: npt.NDArray[Any],
    cache_bytes: int,
    *,
    is_local: bool,
) -> Actions:
    """Return what the reader does for pieces of shared row groups, in the order in which they are read."""
    is_used = np.zeros(len(groups.stored_bytes), np.bool_)
    is_used[pieces.group[own]] = True
    used = np.flatnonzero(is_used)
    group = (np.cumsum(is_used) - 1)[pieces.group[own]]
    reads = _Reads(
        pieces.sequence[own],
        group,
        pieces.page_bytes[own],
        groups.stored_bytes[used],
        np.asarray(decoded_bytes, np.float64)[used],
    )
    fits = len(used) <= MAX_REMEMBERED_GROUPS and float(reads.decoded.sum()) <= cache_bytes
    if fits or (is_local and len(own) > MOST_PLAYED):
        return _decide_kept(reads, cache_bytes)
    if len(own) <= MOST_PLAYED:
        return _play(reads, cache_bytes, cache_bytes, MAX_REMEMBERED_GROUPS)
    share = MOST_PLAYED / len(own)
    random = np.random.default_rng(0)
    if len(used) > MANY_GROUPS and cache_bytes * share > MANY_KEPT * float(reads.decoded.max()):
        some = np.flatnonzero((random.random(len(used)) < share)[group])
        remembered = max(1, round(MAX_REMEMBERED_GROUPS * share))
        sample = _play(reads.some(some), cache_bytes, int(cache_bytes * share), remembered)
    else:
        some = np.flatnonzero((random.random(int(reads.sequence.max()) + 1) < share)[reads.sequence])
        thin = reads.some(some)
        costs = np.where(thin.costs < 0, -1, thin.costs / share).astype(np.int64)
        sample = _play(thin._replace(costs=costs), cache_bytes, cache_bytes, MAX_REMEMBERED_GROUPS)
    actions = np.empty(len(own), np.uint8)
    for is_paged in (True, False):  # what has no pages is never read by them
        to_fill = np.flatnonzero((reads.costs >= 0) == is_paged)
        like = sample[(reads.costs[some] >= 0) == is_paged]
        drawn = like if len(like) else np.full(1, WHOLE, np.uint8)
        actions[to_fill] = random.permutation(np.resize(drawn, len(to_fill)))
    return actions


def _decide_kept(reads: _Reads, cache_bytes: int) -> Actions:
    """Decide where nothing that is kept is ever forgotten: arithmetic on the sums of each row group."""
    group, costs, stored = reads.group, reads.costs, reads.stored
    is_kept, is_worth_keeping = reads.decoded <= cache_bytes, stored <= cache_bytes
    order = np.argsort(group, kind="stable")
    own, cost = group[order], costs[order]
    begins = np.flatnonzero(np.diff(own, prepend=-1))
    counts = np.diff(np.append(begins, len(own)))
    sums = np.cumsum(np.maximum(cost, 0))
    spent = sums - np.repeat(sums[begins] - np.maximum(cost[begins], 0), counts)
    is_paged = (cost >= 0) & ((spent <= stored[own]) | ~is_worth_keeping[own])
    n_before = np.cumsum(~is_paged)
    others = n_before - np.repeat(n_before[begins] - ~is_paged[begins], counts)
    actions = np.where(is_paged, PAGES, np.where((others == 1) | ~is_kept[own], WHOLE, KEPT))
    found = np.empty(len(order), np.uint8)
    found[order] = actions
    return found


def _play(reads: _Reads, cache_bytes: int, capacity: int, most_remembered: int) -> Actions:
    """Play the reader's two memories through: what was spent on each row group, and decoded row groups.

    `cache_bytes` is what the reader compares with, `capacity` how many bytes are kept.
    """
    spent: OrderedDict[int, int] = OrderedDict()
    kept: OrderedDict[int, float] = OrderedDict()
    n_kept = 0.0
    stored, decoded = reads.stored.tolist(), reads.decoded.tolist()
    actions = bytearray()
    to_keep: list[int] = []  # by the sequence at hand, whose row groups are all looked for before one is put
    before = -1
    for sequence, number, cost in zip(
        reads.sequence.tolist(), reads.group.tolist(), reads.costs.tolist(), strict=True
    ):
        if sequence != before and to_keep:
            for one in to_keep:
                kept[one] = decoded[one]
                n_kept += decoded[one]
                while n_kept > capacity:
                    n_kept -= kept.popitem(last=False)[1]
            to_keep.clear()
        before = sequence
        if number in kept:
            kept.move_to_end(number)
            actions.append(KEPT)
            continue
        if cost >= 0:
            paid = spent.get(number, 0) + cost
            if number in spent:
                spent.move_to_end(number)
            if paid <= stored[number] or stored[number] > cache_bytes:
                spent[number] = paid
                if len(spent) > most_remembered:
                    spent.popitem(last=False)
                actions.append(PAGES)
                continue
        actions.append(WHOLE)
        if decoded[number] <= cache_bytes:
            to_keep.append(number)
    return np.frombuffer(bytes(actions), np.uint8)
