"""What reading each sequence alone costs: its pieces, the row groups and pages that hold them, as arrays.

The same arithmetic as `footer.plan_row_range` and the reader's, for all sequences at once and without their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pqindex.doctor.spans import Int64Array, SpanCost, span_cost
from pqindex.readplan import ReadPlan

CELLS = 1 << 20
"""So many spans are looked at at a time."""

MOST_CELLS = 1 << 21
"""Pages of so many chunks are looked for; of more pieces than that, one in some."""


class GroupCosts(NamedTuple):
    """What reading each row group of a plan whole costs; arrays of shape (n_groups,).

    Attributes
    ----------
    stored_bytes : ndarray of int64
        The chunks, as the footer says.
    cost : SpanCost
        With the bytes that old writers' chunks need on top.
    has_pages : ndarray of bool
        Whether some page places are known, and may be used.
    """

    stored_bytes: Int64Array
    cost: SpanCost
    has_pages: npt.NDArray[np.bool_]


class Pieces(NamedTuple):
    """The rows of one sequence in one row group, by sequence and then by row group; arrays of shape (n_pieces,).

    Attributes
    ----------
    sequence, group : ndarray of int64
        Positions in the plan.
    n_rows : ndarray of int64
    is_whole : ndarray of bool
        Whether it is a whole row group.
    page_bytes : ndarray of int64
        Bytes of the pages that hold it, as the reader adds them up; -1 where the row group is read whole.
    dictionary_bytes : ndarray of int64
        Those of dictionary pages among them.
    page_cost : SpanCost
        What reading those pages asks of the file.
    """

    sequence: Int64Array
    group: Int64Array
    n_rows: Int64Array
    is_whole: npt.NDArray[np.bool_]
    page_bytes: Int64Array
    dictionary_bytes: Int64Array
    page_cost: SpanCost


def blocks_of(
    plan: ReadPlan, groups: npt.NDArray[Any], *, spans_per_leaf: int = 1
) -> Iterator[tuple[int, npt.NDArray[Any], Int64Array]]:
    """Return some of `groups` at a time, of one schema each, with the numbers of their chunks.

    Yields the number of the schema, positions in `groups`, and an array of shape (n, leaves), int64.
    """
    schema_of_group = plan.schema_of_file[plan.group_file]
    schemas = schema_of_group[groups]
    for number in np.flatnonzero(np.bincount(schemas)).tolist():
        width = len(plan.leaves_of(number))
        rows = np.flatnonzero(schemas == number)
        size = max(1, CELLS // max(1, width * spans_per_leaf))
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            starts = plan.chunk_stops[groups[some]].astype(np.int64)
            yield number, some, starts[:, None] + np.arange(width)


def group_costs(plan: ReadPlan, file_sizes: Int64Array) -> GroupCosts:
    """Return what reading each row group of a plan whole costs."""
    n_groups = len(plan.group_file)
    stored = np.zeros(n_groups, np.int64)
    has_pages = np.zeros(n_groups, np.bool_)
    cost = SpanCost(*(np.zeros(n_groups, np.int64) for _ in SpanCost._fields))
    for number, some, chunks in blocks_of(plan, np.arange(n_groups)):
        padding = plan.schemas[number].padding
        starts, lengths = plan.chunks["start"][chunks].astype(np.int64), plan.chunks["length"][chunks]
        stored[some] = lengths.sum(axis=1, dtype=np.int64)
        if len(plan.page_stops) and not padding:
            n_pages = plan.page_stops[chunks + 1] - plan.page_stops[chunks]
            has_pages[some] = n_pages.any(axis=1)
        if padding:
            sizes = file_sizes[plan.group_file[some]]
            lengths = np.minimum(lengths.astype(np.int64) + padding, sizes[:, None] - starts)
        has_rows = plan.group_n_rows[some] > 0
        _put(cost, some, span_cost(starts, lengths * has_rows[:, None]))
    return GroupCosts(stored, cost, has_pages)


def _put(target: SpanCost, at: npt.NDArray[Any], values: SpanCost) -> None:
    for own, found in zip(target, values, strict=True):
        own[at] = found


# -- pieces -----------------------------------------------------------------------------------------------------


def pieces_of(plan: ReadPlan, groups: GroupCosts) -> Pieces:
    """Return the pieces of all sequences of a plan, and what their pages cost.

    Cost: two searches a column and piece, where page places are known, for `MOST_CELLS` of them at most: of more
    pieces, one in some is looked at, and those behind it are taken to be like it. No Python loop over sequences.
    """
    counts = np.diff(plan.segment_stops)
    sequence = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    group = plan.group_of_segment.astype(np.int64)
    row_start, row_stop = plan.row_start.astype(np.int64), plan.row_stop.astype(np.int64)
    has_rows = row_stop > row_start
    if not has_rows.all():
        sequence, group, row_start, row_stop = (
            values[has_rows] for values in (sequence, group, row_start, row_stop)
        )
    if len(sequence) > len(counts):
        order = np.lexsort((row_start, group, sequence))
        sequence, group, row_start, row_stop = (
            values[order] for values in (sequence, group, row_start, row_stop)
        )
    begins = _changes(sequence, group)
    piece = np.cumsum(begins) - 1
    n_pieces = int(begins.sum())
    n_rows = np.bincount(piece, row_stop - row_start, n_pieces).astype(np.int64)
    own_group = group[begins]
    n_segments = np.bincount(piece, minlength=n_pieces)
    is_whole = (n_segments == 1) & (n_rows == plan.group_n_rows[own_group])

    paged = np.flatnonzero(groups.has_pages[own_group] & ~is_whole)
    costs = _PageCosts(
        np.full(n_pieces, -1, np.int64),
        np.zeros(n_pieces, np.int64),
        SpanCost(*(np.zeros(n_pieces, np.int64) for _ in SpanCost._fields)),
    )
    if len(paged):
        width = max(len(plan.leaves_of(number)) for number in range(len(plan.schemas)))
        step = -(-len(paged) * width // MOST_CELLS)
        looked_at = paged[::step]
        is_looked_at = np.zeros(n_pieces, np.bool_)
        is_looked_at[looked_at] = True
        some = is_looked_at[piece]
        found = _page_costs(plan, piece[some], group[some], row_start[some], row_stop[some], n_pieces)
        like = np.repeat(looked_at, step)[: len(paged)]  # those between two are like the first of them
        costs.n_bytes[paged] = found.n_bytes[like]
        costs.n_dictionary_bytes[paged] = found.n_dictionary_bytes[like]
        for target, values in zip(costs.cost, found.cost, strict=True):
            target[paged] = values[like]
    return Pieces(
        sequence[begins], own_group, n_rows, is_whole, costs.n_bytes, costs.n_dictionary_bytes, costs.cost
    )


def _page_costs(
    plan: ReadPlan,
    piece: Int64Array,
    group: Int64Array,
    row_start: Int64Array,
    row_stop: Int64Array,
    n_pieces: int,
) -> _PageCosts:
    """Return what reading pieces by their pages costs, from their segments; arrays of shape (n_pieces,).

    Segments of a piece that begin within a page that is read already are read with the one before, as the reader does.
    """
    ranges = _Ranges(plan)
    begins_range = begins_piece = _changes(piece)
    if not begins_piece.all():
        covered = ranges.covered_stops(group, row_start, row_stop)
        begins_range = begins_piece.copy()
        begins_range[1:] |= row_start[1:] >= covered[:-1]
    last = np.append(np.flatnonzero(begins_range)[1:], len(piece)) - 1
    at = piece[begins_range]
    is_first = _changes(at)
    asked = (group[begins_range], row_start[begins_range], row_stop[last], is_first)
    found = ranges.costs(*asked)

    def summed(values: Int64Array) -> Int64Array:
        return np.bincount(at, values, n_pieces).astype(np.int64)

    first, reach = np.zeros(n_pieces, np.int64), np.zeros(n_pieces, np.int64)
    first[at[is_first]] = found.cost.first[is_first]
    np.maximum.at(reach, at, found.cost.reach)
    n_ranges = summed(found.cost.n_ranges)
    is_one_of_several = np.bincount(at, minlength=n_pieces)[at] > 1
    if is_one_of_several.any():
        several = np.flatnonzero(is_one_of_several)
        together = _n_ranges_together(ranges, at[several], tuple(values[several] for values in asked))
        n_ranges[at[several]] = together[at[several]]
    cost = SpanCost(summed(found.cost.n_bytes), n_ranges, first, reach)
    return _PageCosts(summed(found.n_bytes), summed(found.n_dictionary_bytes), cost)


def _n_ranges_together(ranges: _Ranges, piece: Int64Array, asked: tuple[Any, ...]) -> Int64Array:
    """Return how many byte ranges the row ranges of each piece are together, indexed by piece.

    Spans of one piece do not overlap, but the pages of one range may begin where those of another end.
    """
    blocks = [
        (np.repeat(piece[some], starts.shape[1]), starts.ravel(), lengths.ravel())
        for some, starts, lengths, _ in ranges.spans(*asked)
    ]
    own, start, length = (np.concatenate(values) for values in zip(*blocks, strict=True))
    has = length > 0
    own, start, length = own[has], start[has], length[has]
    order = np.lexsort((start, own))
    own, start, length = own[order], start[order], length[order]
    is_new = _changes(own)
    is_new[1:] |= start[1:] > (start + length)[:-1]
    return np.bincount(own, is_new, int(piece.max()) + 1).astype(np.int64)


def _changes(*values: Int64Array) -> npt.NDArray[np.bool_]:
    """Return where rows differ from the row before; the first one does."""
    found = np.ones(len(values[0]), np.bool_)
    if len(found):
        found[1:] = False
        for own in values:
            found[1:] |= own[1:] != own[:-1]
    return found


class _PageCosts(NamedTuple):
    """Of some ranges of rows, or pieces, read through pages."""

    n_bytes: Int64Array
    n_dictionary_bytes: Int64Array
    cost: SpanCost


class _Ranges:
    """Finds the pages of many ranges of rows at once."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._first_row = plan.pages["first_row"]
        self._offset = plan.pages["offset"]
        self._stop = plan.pages["offset"] + plan.pages["length"]
        stops = plan.page_stops.astype(np.int64)
        self._page_stops = stops
        self._most = int(self._first_row.max(initial=0)) + 2
        # One ascending list of keys for the pages of all chunks, so that one search serves them all.
        chunk_of_page = np.repeat(np.arange(len(stops) - 1), np.diff(stops))
        self._keys = chunk_of_page * self._most + self._first_row

    def covered_stops(self, group: Int64Array, row_start: Int64Array, row_stop: Int64Array) -> Int64Array:
        """Return the row behind the last one that some page of each range holds; shape (n,), int64."""
        found = np.zeros(len(group), np.int64)
        for _number, some, chunks in blocks_of(self._plan, group, spans_per_leaf=4):
            n_rows = self._plan.group_n_rows[group[some]].astype(np.int64)
            _, stop, has = self._pages(chunks, row_start[some], row_stop[some])
            found[some] = self._covered_stop(chunks, stop, has, n_rows).max(axis=1)
        return found

    def costs(
        self,
        group: Int64Array,
        row_start: Int64Array,
        row_stop: Int64Array,
        with_dictionary: npt.NDArray[np.bool_],
    ) -> _PageCosts:
        """Return what ranges cost; where `with_dictionary` is false, dictionary pages were read already."""
        n = len(group)
        n_bytes, n_dictionary = np.zeros(n, np.int64), np.zeros(n, np.int64)
        cost = SpanCost(*(np.zeros(n, np.int64) for _ in SpanCost._fields))
        for some, starts, lengths, dictionary in self.spans(group, row_start, row_stop, with_dictionary):
            n_dictionary[some] = dictionary
            n_bytes[some] = lengths.sum(axis=1)
            _put(cost, some, span_cost(starts, lengths))
        return _PageCosts(n_bytes, n_dictionary, cost)

    def spans(
        self,
        group: Int64Array,
        row_start: Int64Array,
        row_stop: Int64Array,
        with_dictionary: npt.NDArray[np.bool_],
    ) -> Iterator[tuple[npt.NDArray[Any], Int64Array, Int64Array, Int64Array]]:
        """Give the spans of some ranges at a time: which ranges, starts, lengths, and bytes of dictionary pages.

        Two spans a leaf, the dictionary page and the data pages; arrays of shape (n, 2 * leaves).
        """
        plan = self._plan
        for number, some, chunks in blocks_of(plan, group, spans_per_leaf=4):
            start = plan.chunks["start"][chunks].astype(np.int64)
            length = plan.chunks["length"][chunks].astype(np.int64)
            first, stop, has = self._pages(chunks, row_start[some], row_stop[some])
            first_page = np.where(has, self._page_stops[chunks], 0)
            dictionary = np.where(has, self._offset[first_page] - start, 0)
            data_start = np.where(has, self._offset[first], start)
            data_length = np.where(has, self._stop[stop - 1] - data_start, length)
            self._take_whole(
                number,
                group[some],
                chunks,
                (first, stop, has),
                (start, length),
                (dictionary, data_start, data_length),
            )
            dictionary *= with_dictionary[some, None]
            starts = np.stack([start, data_start], axis=2).reshape(len(some), -1)
            lengths = np.stack([dictionary, data_length], axis=2).reshape(len(some), -1)
            yield some, starts, lengths, dictionary.sum(axis=1)

    def _pages(
        self, chunks: Int64Array, row_start: Int64Array, row_stop: Int64Array
    ) -> tuple[Int64Array, Int64Array, npt.NDArray[np.bool_]]:
        """Return the first page of each chunk that holds rows, the page behind the last, and whether it has pages."""
        has = self._page_stops[chunks + 1] > self._page_stops[chunks]
        base = chunks * self._most
        most = self._most - 1
        first, stop = np.empty_like(chunks), np.empty_like(chunks)
        for leaf in range(chunks.shape[1]):  # ascending, which a search likes
            keys = base[:, leaf]
            first[:, leaf] = np.searchsorted(self._keys, keys + np.minimum(row_start, most), side="right") - 1
            stop[:, leaf] = np.searchsorted(self._keys, keys + np.minimum(row_stop, most), side="left")
        return np.where(has, first, 0), np.where(has, stop, 1), has

    def _covered_stop(
        self, chunks: Int64Array, stop: Int64Array, has: npt.NDArray[np.bool_], n_rows: Int64Array
    ) -> Int64Array:
        within = has & (stop < self._page_stops[chunks + 1])
        rows = self._first_row[np.where(within, stop, 0)]
        found: Int64Array = np.where(within, rows, n_rows[:, None])
        return found

    def _take_whole(
        self,
        number: int,
        group: Int64Array,
        chunks: Int64Array,
        pages: tuple[Int64Array, Int64Array, npt.NDArray[np.bool_]],
        whole: tuple[Int64Array, Int64Array],
        spans: tuple[Int64Array, Int64Array, Int64Array],
    ) -> None:
        """Take fields whole whose leaves do not agree on the rows, in the arrays `spans`."""
        leaves = self._plan.schemas[number].leaves
        fields = np.array([leaves[leaf].field for leaf in self._plan.leaves_of(number).tolist()])
        names, counts = np.unique(fields, return_counts=True)
        nested = names[counts > 1].tolist()
        if not nested:
            return
        first, stop, has = pages
        n_rows = self._plan.group_n_rows[group].astype(np.int64)
        begins = np.where(has, self._first_row[first], 0)
        ends = self._covered_stop(chunks, stop, has, n_rows)
        dictionary, data_start, data_length = spans
        for name in nested:
            own = np.flatnonzero(fields == name)
            differs = (begins[:, own] != begins[:, own[:1]]) | (ends[:, own] != ends[:, own[:1]])
            rows = np.flatnonzero(differs.any(axis=1))
            at = np.ix_(rows, own)
            dictionary[at], data_start[at], data_length[at] = 0, whole[0][at], whole[1][at]
