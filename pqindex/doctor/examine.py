"""From a selection of sequences to the report on their layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.doctor.advice import advise
from pqindex.doctor.epoch import predict_epoch
from pqindex.doctor.facts import ChunkFacts
from pqindex.doctor.pieces import GroupCosts, Pieces, group_costs, pieces_of
from pqindex.doctor.report import (
    Amplification,
    Epoch,
    Footers,
    Largest,
    LayoutReport,
    Placement,
    Spread,
)
from pqindex.doctor.spans import Int64Array
from pqindex.doctor.storing import storing_of
from pqindex.errors import PqindexError, UsageError
from pqindex.places import Places, SourceFiles
from pqindex.reader import GROUP_CACHE_BYTES, checked_count
from pqindex.readplan import ChunkSource, ReadPlan, resolve

MS_PER_MEGABYTE = 7.5
"""What `pq.ParquetFile(path)` takes for a megabyte of footer: docs/doctor.md."""

PARSED_FACTOR = 8
"""How many bytes of memory a parsed footer takes for each of its own: docs/doctor.md."""

MOST_LEFT_OUT = 16
"""So many columns that cannot be read are looked for, one after the other."""

MOST_SHUFFLES = 16
SHUFFLED_PIECES = 1 << 16
"""A shuffled epoch is the mean of some shuffles, of so many pieces together."""

Float64Array = npt.NDArray[np.float64]


def examine(
    places: Places,
    files: SourceFiles,
    known: ChunkSource | None,
    facts: Callable[[ReadPlan], ChunkFacts],
    *,
    columns: Sequence[str] | None,
    target: str,
    group_cache_bytes: int = GROUP_CACHE_BYTES,
) -> LayoutReport:
    """Return what the layout of some sequences costs.

    Cost: the tables of the index, or the footers where `known` is None; memory in proportion to the chunks of the plan.
    No value of the source is read.

    Parameters
    ----------
    places, files : Places, SourceFiles
        The sequences.
    known : ChunkSource or None
        What an index knows of the files.
    facts : callable
        From a read plan to what else is known of its chunks.
    columns : sequence of str or None
        The projection; None for all columns, of which those that cannot be read are left out and named.
    target : str
        How remedies call the index or manifest.
    group_cache_bytes : int
        As in `Reader`.

    Raises
    ------
    UsageError
        If an argument makes no sense.
    ColumnMissingError, ColumnTypeError, BadFileError, UnsupportedFileError
        If a column that was named cannot be read.
    """
    if isinstance(columns, str):
        raise UsageError(f"columns: expected a list of names, found the text {columns!r}")
    checked_count("group_cache_bytes", group_cache_bytes, at_least=0)
    plan, left_out = _readable(places, files, known, columns)
    groups = group_costs(plan, files.size_bytes)
    pieces = pieces_of(plan, groups)
    own_facts = facts(plan)
    storing = storing_of(plan, own_facts)
    sums = _sums(plan, groups, pieces, storing.decoded_bytes, group_cache_bytes)
    placement = _placement(plan, pieces, own_facts)
    footers = _footers(files)
    amplification = _amplification(sums, pieces)
    largest = _largest(plan, sums, storing.decoded_bytes, storing.is_estimate, group_cache_bytes)
    epochs = _epochs(plan, groups, pieces, storing.decoded_bytes, group_cache_bytes, sums)
    n_groups = len(plan.group_file)
    report = LayoutReport(
        target=target,
        columns=storing.columns,
        left_out=left_out,
        placement=placement,
        rows_per_sequence=Spread.of(plan.row_counts),
        sequences_per_row_group=Spread.of(np.bincount(pieces.group, minlength=n_groups)),
        row_groups_per_file=Spread.of(np.bincount(plan.group_file)[np.unique(plan.group_file)]),
        row_group_bytes=Spread.of(groups.stored_bytes),
        sequence_bytes=Spread.of(np.rint(sums.own).astype(np.int64)),
        amplification=amplification,
        footers=footers,
        pages=storing.pages,
        storage=storing.storage,
        epochs=epochs,
        largest=largest,
        advice=(),
    )
    return advise(report)


def _readable(
    places: Places, files: SourceFiles, known: ChunkSource | None, columns: Sequence[str] | None
) -> tuple[ReadPlan, dict[str, str]]:
    """Return the plan of the columns that can be read, and the others with the reason."""
    left_out: dict[str, str] = {}
    wanted = columns
    staleness = "error" if known is None else "ignore"
    while True:
        try:
            plan = resolve(places, files, wanted, selection_digest="", known=known, staleness=staleness)
        except PqindexError as error:
            name = error.facts.get("column")
            if columns is not None or known is None or name is None or len(left_out) == MOST_LEFT_OUT:
                raise
            names = list(dict.fromkeys(n for record in known.schemas for n in record.field_names))
            fields = [n for n in names if n == name or name.startswith(f"{n}.")]
            left_out |= dict.fromkeys(fields, error.message)
            wanted = [n for n in names if n not in left_out]
            if not fields or not wanted:
                raise
        else:
            return plan, left_out


class _Sums(NamedTuple):
    """Of each sequence, shape (n,): what it has, what reading it alone costs, and what without pages."""

    own: Float64Array
    decoded: Float64Array
    cost: Float64Array
    whole_cost: Float64Array


def _sums(
    plan: ReadPlan, groups: GroupCosts, pieces: Pieces, decoded: Float64Array, cache_bytes: int
) -> _Sums:
    n = len(plan.row_counts)
    part = pieces.n_rows / np.maximum(plan.group_n_rows, 1)[pieces.group]
    whole = groups.cost.n_bytes[pieces.group]
    stored = groups.stored_bytes[pieces.group]
    by_pages = (pieces.page_bytes >= 0) & ((pieces.page_bytes <= stored) | (stored > cache_bytes))

    def summed(values: npt.NDArray[Any]) -> Float64Array:
        return np.asarray(np.bincount(pieces.sequence, values, n), np.float64)

    return _Sums(
        own=summed(part * stored),
        decoded=summed(part * decoded[pieces.group]),
        cost=summed(np.where(by_pages, pieces.page_cost.n_bytes, whole)),
        whole_cost=summed(whole),
    )


def _placement(plan: ReadPlan, pieces: Pieces, facts: ChunkFacts) -> Placement:
    n, n_files = len(plan.row_counts), len(plan.paths)
    counts = np.bincount(pieces.sequence, minlength=n)
    n_shared = np.bincount(pieces.group, ~pieces.is_whole, len(plan.group_file))
    file_of_piece = plan.group_file[pieces.group]
    is_next = pieces.sequence[1:] == pieces.sequence[:-1]
    moves = is_next & (file_of_piece[1:] != file_of_piece[:-1])
    n_own_files = np.ones(n, np.int64)
    np.add.at(n_own_files, pieces.sequence[1:][moves], 1)
    return Placement(
        n_files=len(np.unique(plan.group_file)),
        n_row_groups=len(plan.group_file),
        n_sequences=n,
        n_rows=int(plan.row_counts.sum()),
        n_whole=int(((counts == 1) & (np.bincount(pieces.sequence, pieces.is_whole, n) == 1)).sum()),
        n_shared_row_groups=int((n_shared > 0).sum()),
        n_straddling=int((counts > 1).sum()),
        n_fragmented=_n_fragmented(plan, facts),
        n_in_several_files=int((n_own_files > 1).sum()),
        n_in_most_files=int((n_own_files * 2 > n_files).sum()) if n_files > 1 else 0,
        n_in_every_file=int((n_own_files == n_files).sum()) if n_files > 1 else 0,
        reads_per_sequence=len(pieces.group) / n if n else 0.0,
    )


def _n_fragmented(plan: ReadPlan, facts: ChunkFacts) -> int:
    """Return how many sequences have a segment that does not begin where the one before stopped."""
    if len(plan.group_of_segment) == len(plan.row_counts):
        return 0
    offset = facts.row_offset()[plan.group_of_segment]
    files = plan.group_file[plan.group_of_segment]
    sequence = np.repeat(np.arange(len(plan.row_counts)), np.diff(plan.segment_stops))
    same = sequence[1:] == sequence[:-1]
    starts, stops = offset + plan.row_start, offset + plan.row_stop
    touches = (files[1:] == files[:-1]) & (starts[1:] == stops[:-1])
    return len(np.unique(sequence[1:][same & ~touches]))


def _amplification(sums: _Sums, pieces: Pieces) -> Amplification:
    has = sums.own > 0
    own, cost, whole = sums.own[has], sums.cost[has], sums.whole_cost[has]
    by_pages = pieces.page_bytes >= 0
    paid = int(pieces.page_bytes[by_pages].sum())
    return Amplification(
        read=_ratio(cost, own),
        whole_groups=_ratio(whole, own),
        dictionary_share=int(pieces.dictionary_bytes.sum()) / paid if paid else 0.0,
    )


def _ratio(cost: Float64Array, own: Float64Array) -> Spread:
    """Return the spread of cost / own, with the ratio of their sums as the mean."""
    spread = Spread.of(cost / own)
    mean = float(cost.sum() / own.sum()) if len(own) else 1.0
    return Spread(
        min=spread.min,
        quarter=spread.quarter,
        median=spread.median,
        three_quarters=spread.three_quarters,
        p99=spread.p99,
        max=spread.max,
        mean=mean,
    )


def _footers(files: SourceFiles) -> Footers:
    n_bytes, file_bytes = int(files.footer_length.sum()), int(files.size_bytes.sum())
    largest = int(files.footer_length.max(initial=0))
    return Footers(
        n_bytes=n_bytes,
        largest_bytes=largest,
        file_bytes=file_bytes,
        share=n_bytes / file_bytes if file_bytes else 0.0,
        open_ms=largest / 1e6 * MS_PER_MEGABYTE,
        parsed_bytes=n_bytes * PARSED_FACTOR,
    )


def _largest(
    plan: ReadPlan, sums: _Sums, decoded: Float64Array, is_estimate: bool, cache_bytes: int
) -> Largest:
    if not len(plan.row_counts):
        return Largest(
            sequence="",
            sequence_rows=0,
            sequence_bytes=0,
            row_group_rows=0,
            row_group_bytes=0,
            is_estimate=False,
            is_kept=True,
        )
    at, group = int(plan.row_counts.argmax()), int(decoded.argmax())
    return Largest(
        sequence=_key_text(plan.seq_ids[at]),
        sequence_rows=int(plan.row_counts[at]),
        sequence_bytes=round(float(sums.decoded[at])),
        row_group_rows=int(plan.group_n_rows[group]),
        row_group_bytes=round(float(decoded[group])),
        is_estimate=is_estimate,
        is_kept=float(decoded[group]) <= cache_bytes,
    )


def _key_text(key: pa.Scalar) -> str:
    """Return a key as text; not through Python's own values, which hold neither every date nor nanoseconds."""
    if (
        pa.types.is_binary(key.type)
        or pa.types.is_large_binary(key.type)
        or pa.types.is_fixed_size_binary(key.type)
    ):
        return str(key.as_py().hex())
    return str(key.cast(pa.string()).as_py())


def _epochs(
    plan: ReadPlan,
    groups: GroupCosts,
    pieces: Pieces,
    decoded: Float64Array,
    cache_bytes: int,
    sums: _Sums,
) -> tuple[Epoch, ...]:
    own = float(sums.own.sum())

    def epoch(order: str, rank: Int64Array) -> Epoch:
        return predict_epoch(
            pieces,
            groups,
            order=order,
            rank=rank,
            group_file=plan.group_file,
            decoded_bytes=decoded,
            cache_bytes=cache_bytes,
            own_bytes=own,
        )

    n = len(plan.row_counts)
    random = np.random.default_rng(0)
    times = min(MOST_SHUFFLES, max(1, SHUFFLED_PIECES // max(1, len(pieces.group))))
    if not (~pieces.is_whole).any():
        times = 1
    shuffled = [epoch("shuffled", random.permutation(n)) for _ in range(times)]
    return _mean_epoch(shuffled), epoch("file", _file_rank(plan))


def _mean_epoch(epochs: Sequence[Epoch]) -> Epoch:
    """Return the mean of some epochs, in whole numbers."""
    n = len(epochs)
    return Epoch(
        order=epochs[0].order,
        requests=round(sum(epoch.requests for epoch in epochs) / n),
        n_bytes=round(sum(epoch.n_bytes for epoch in epochs) / n),
        amplification=sum(epoch.amplification for epoch in epochs) / n,
        whole_reads=round(sum(epoch.whole_reads for epoch in epochs) / n),
        page_reads=round(sum(epoch.page_reads for epoch in epochs) / n),
        kept_hits=round(sum(epoch.kept_hits for epoch in epochs) / n),
    )


def _file_rank(plan: ReadPlan) -> Int64Array:
    """Return the position of each sequence in the order of the files."""
    n = len(plan.row_counts)
    first = plan.segment_stops[:-1]
    group, row = plan.group_of_segment[first], plan.row_start[first]
    is_in_order = (group[1:] > group[:-1]) | ((group[1:] == group[:-1]) & (row[1:] >= row[:-1]))
    if is_in_order.all():
        return np.arange(n)
    order = np.lexsort((row, group))
    rank = np.empty(n, np.int64)
    rank[order] = np.arange(n)
    return rank
