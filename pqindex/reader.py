"""From a selection to Arrow tables: one sequence is one read through the LRU of open files."""

from __future__ import annotations

import operator
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any, Protocol, Self, SupportsIndex, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.errors import SelectionIndexError, UsageError
from pqindex.footer import (
    Block,
    ChunkPlaces,
    Fetched,
    PagePlaces,
    Projection,
    RowRange,
    batches,
    decode_blocks,
    fetch,
    join_parts,
    plan_row_range,
    row_range_blocks,
    whole_group,
)
from pqindex.handles import Counters, Handles
from pqindex.lru import LRU
from pqindex.pieces import Job, Piece, RawPart, RawRows, Round
from pqindex.planfile import open_plan, share
from pqindex.readplan import PLACE_FACTS, ReadPlan

GROUP_CACHE_BYTES = 64 << 20
"""Decoded row groups that hold several sequences are kept up to this size in each process."""

MAX_FETCH_BYTES = 64 << 20
"""A read of many sequences has so many bytes of files in memory at a time, or one row group."""

MAX_REMEMBERED_GROUPS = 4096
"""Of so many row groups a process remembers how many bytes of their pages it has read."""

COUNTERS = (
    "reads",
    "groups",
    "page_reads",
    "decodes",
    "ranges",
    "bytes",
    "opens",
    "fallback_no_pages",
    "fallback_old_writer",
    "fallback_group_is_cheaper",
    "direct_groups",
    "direct_ranges",
    "direct_columns",
    "fallback_not_direct",
    "not_direct_type",
    "not_direct_codec",
    "not_direct_encoding",
    "not_direct_nulls",
    "not_direct_runs",
    "not_direct_indices",
    "not_direct_page",
)

RowRequest = tuple[SupportsIndex, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive rows of one sequence inside one row group: half-open ``[row_start, row_stop)``."""

    file: str
    row_group: int
    row_start: int
    row_stop: int


class Source(Protocol):
    """What can be read: a selection or a manifest."""

    def read_plan(self, columns: Sequence[str] | None, *, staleness: str) -> ReadPlan:
        """Resolve the sequences and the columns to byte places."""
        ...


@runtime_checkable
class Refreshable(Protocol):
    """What can be asked again of a newer snapshot: a selection."""

    def refreshed(self) -> Source:
        """Return the selection as of today."""
        ...


def _refreshed(source: Source) -> Source:
    """Return the selection as of today."""
    if not isinstance(source, Refreshable):
        raise UsageError(
            f"a {type(source).__name__} cannot be refreshed",
            hint="give what index.select(...) returned",
            found=type(source).__name__,
        )
    return source.refreshed()


class _Process:
    """What belongs to one process: open files, decoded groups, projections, counters, threads."""

    def __init__(self, plan: ReadPlan, max_open_files: int, group_cache_bytes: int, threads: int) -> None:
        self.pid = os.getpid()
        self.counters = Counters(COUNTERS)
        self.handles = Handles(plan, max_open_files, self.counters)
        self.groups: LRU[int, pa.Table] = LRU(max_bytes=group_cache_bytes, size_of=lambda table: table.nbytes)
        self.projections: dict[int, Projection] = {}
        self.conform: dict[int, bool] = {}
        self.spent: LRU[int, int] = LRU(max_items=MAX_REMEMBERED_GROUPS)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def map(self, function: Any, values: Sequence[Any]) -> Iterator[Any]:
        """Apply a function to each value, in threads if there are any."""
        if self._threads == 1 or len(values) < 2:
            return map(function, values)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pqindex-read")
        return self._pool.map(function, values)

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)


class Reader:
    """Random access to the sequences of a selection or manifest, as Arrow tables.

    Every read costs the bytes of the projected column chunks, or of their pages, that hold the rows; no footer is
    read after construction. Row groups that hold several sequences are kept decoded once their pages have cost as
    much, bounded in bytes, so that neighbours are cheap.

    Thread-safe. Picklable to a few kilobytes: another process maps the same read plan and opens its own files, and
    so does a forked child.

    Parameters
    ----------
    source : Selection or Manifest
    columns : sequence of str or None
        Top-level columns to read, each named once; None for all.
    max_open_files : int
        How many source files are kept open in each process.
    staleness : {"error", "warn", "refresh", "ignore"}
        What to do where a source file is not the one that was indexed. ``"refresh"`` is for a selection: its index
        is refreshed first and asked again, and the answer of today is read. Files that are changed later are an error.
    group_cache_bytes : int
        How many bytes of decoded row groups each process keeps.
    threads : int
        How many threads a read of several sequences uses, to fetch and to decode. Worth it where the store is slow
        or nothing else runs on the other cores.

    Raises
    ------
    SourceChangedError
        If a source file was changed, replaced, truncated or removed.
    ColumnMissingError, ColumnTypeError
        If a column cannot be read.
    BadFileError, UnsupportedFileError
        If a chunk has a place that makes no sense, is encrypted, or has an unknown codec.
    UsageError
        If an argument makes no sense.
    """

    def __init__(
        self,
        source: Source,
        columns: Sequence[str] | None = None,
        *,
        max_open_files: int = 128,
        staleness: str = "error",
        group_cache_bytes: int = GROUP_CACHE_BYTES,
        threads: int = 1,
    ) -> None:
        if isinstance(columns, str):
            raise UsageError(f"columns: expected a list of names, found the text {columns!r}")
        self._options = {
            "max_open_files": checked_count("max_open_files", max_open_files, at_least=1),
            "group_cache_bytes": checked_count("group_cache_bytes", group_cache_bytes, at_least=0),
            "threads": checked_count("threads", threads, at_least=1),
        }
        if staleness == "refresh":
            source, staleness = _refreshed(source), "error"
        self._set_plan(source.read_plan(columns, staleness=staleness))

    # -- what is read -------------------------------------------------------------------------------------

    def _set_plan(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._chunks = tuple(plan.chunks[name] for name in PLACE_FACTS)
        self._process = _Process(plan, **self._options)

    def __len__(self) -> int:
        return len(self._plan.row_counts)

    @property
    def schema(self) -> pa.Schema:
        """Schema of every table: the asked columns in the asked order."""
        return self._plan.schema

    @property
    def seq_ids(self) -> pa.Array:
        """Key of each sequence, length n."""
        return self._plan.seq_ids

    @property
    def row_counts(self) -> npt.NDArray[np.int64]:
        """Rows of each sequence, shape (n,), int64."""
        return self._plan.row_counts

    @property
    def extra(self) -> pa.Table:
        """The query's other columns, n rows."""
        return self._plan.extra

    @property
    def digest(self) -> str:
        """Digest of the selection."""
        return self._plan.selection_digest

    @property
    def plan_digest(self) -> str:
        """Digest of what is read on this machine: the selection, the columns, and the files as they were seen."""
        return self._plan.digest

    # -- reading ------------------------------------------------------------------------------------------

    def __getitem__(self, position: SupportsIndex) -> pa.Table:
        """Return the rows of one sequence; negative positions count from the end."""
        number = self._position(position)
        group = self._whole_group(number)
        if group is not None:
            return self._read_whole(self._own_process(), group)
        return self.read_rows([(number, 0, int(self._plan.row_counts[number]))])[0]

    def read(self, positions: Iterable[SupportsIndex]) -> list[pa.Table]:
        """Return the rows of several sequences in the asked order.

        Each byte is read once, in the order of the files, and what has one schema is decoded from one buffer. A
        table of a row group that several sequences share is a view of the rows of all of them.
        """
        counts = self._plan.row_counts
        numbers = [self._position(position) for position in positions]
        return self.read_rows([(number, 0, int(counts[number])) for number in numbers])

    def read_rows(self, requests: Iterable[RowRequest]) -> list[pa.Table]:
        """Return some rows of each of several sequences in the asked order.

        Of a row group whose page places are known, only the pages that hold the rows are read, until reading all of
        it and keeping it would have been cheaper.

        Parameters
        ----------
        requests : iterable of (position, row_start, row_stop)
            Half-open rows, counted from the start of the sequence.

        Raises
        ------
        SelectionIndexError
            If a position lies outside the selection, or rows outside their sequence.
        """
        process = self._own_process()
        pieces: list[Piece] = []
        counts: list[int] = []
        for number, (position, row_start, row_stop) in enumerate(requests):
            own = self._pieces(self._position(position), row_start, row_stop, number)
            counts.append(len(own))
            pieces += own
        process.counters.count(reads=len(counts))
        tables = iter(self._read_pieces(process, pieces))
        return [self._joined([next(tables) for _ in range(count)]) for count in counts]

    def segments(self, position: SupportsIndex) -> list[Segment]:
        """Return where the rows of one sequence lie, in the order of its rows."""
        plan = self._plan
        number = self._position(position)
        found = []
        for segment in range(int(plan.segment_stops[number]), int(plan.segment_stops[number + 1])):
            group = int(plan.group_of_segment[segment])
            found.append(
                Segment(
                    file=plan.paths[int(plan.group_file[group])].as_py(),
                    row_group=int(plan.group_row_group[group]),
                    row_start=int(plan.row_start[segment]),
                    row_stop=int(plan.row_stop[segment]),
                )
            )
        return found

    def stats(self) -> dict[str, int]:
        """Return what this process has read so far, by name.

        ``reads``: sequences. ``groups``: row groups decoded whole. ``page_reads``: ranges of rows read through their
        pages. ``decodes``: buffers given to PyArrow. ``ranges`` and ``bytes``: asked of the files. ``opens`` and
        ``open_files``; ``footer_reads``, always 0. ``handle_hits``, ``group_cache_hits``, ``group_cache_bytes``.
        ``fallback_...``: why a part of a row group was not read through pages (none are known; an old writer's
        chunks; the whole group is cheaper by now). ``direct_groups``, ``direct_ranges``: row groups and ranges of
        pages that were fetched for direct decoding. ``direct_columns``: chunks of numbers that were decoded so, or
        some of their pages; ``fallback_not_direct``: those that PyArrow decoded instead, and ``not_direct_...`` why.
        """
        process = self._own_process()
        return {
            **process.counters.values,
            "footer_reads": 0,
            "open_files": len(process.handles),
            "handle_hits": process.handles.hits,
            "group_cache_hits": process.groups.hits,
            "group_cache_bytes": process.groups.n_bytes,
        }

    def close(self) -> None:
        """Close the open files and forget decoded row groups; a later read opens them again."""
        self._process.close()
        self._process = _Process(self._plan, **self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def fetch_rows(self, requests: Sequence[RowRequest]) -> Iterator[Round]:
        """Fetch what `read_rows` would, some row groups at a time, and leave the decoding to the caller.

        The same bytes are read, each once. Row groups that are to be kept decoded, and what is kept
        already, come as tables; so do old writers' chunks, whose ends only PyArrow finds.
        """
        process = self._own_process()
        whole = self._whole_jobs(process, requests)
        if whole is not None:
            yield from self._fetch_whole(process, whole)
            return
        pieces: list[Piece] = []
        for number, (position, row_start, row_stop) in enumerate(requests):
            pieces += self._pieces(self._position(position), row_start, row_stop, number)
        process.counters.count(reads=len(requests))
        tables: list[pa.Table | None] = [None] * len(pieces)
        for jobs in self._rounds(process, pieces, tables):
            undecoded = [job for job in jobs if self._is_left_raw(job, pieces)]
            if len(undecoded) < len(jobs):
                others = [job for job in jobs if not self._is_left_raw(job, pieces)]
                self._run(process, others, pieces, tables)
            fetched = iter(self._fetch_jobs(process, undecoded))
            raw = [one for job in undecoded for one in self._raw(process, job, fetched, pieces)]
            n_ranges = sum([len(job.ranges) for job in undecoded])
            process.counters.count(
                page_reads=n_ranges, direct_ranges=n_ranges, direct_groups=len(raw) - n_ranges
            )
            found = [i for i, table in enumerate(tables) if table is not None]
            yield Round(raw, [(pieces[i], tables[i]) for i in found])
            for i in found:
                tables[i] = None

    def _whole_jobs(self, process: _Process, requests: Sequence[RowRequest]) -> list[Job] | None:
        """Return a job for each request, where all are different row groups and nothing is to be cut or joined.

        As most are. Their pieces are the numbers of the requests. None where one of them is another case.
        """
        counts = self._plan.row_counts
        found: dict[int, int] = {}
        for number, (position, row_start, row_stop) in enumerate(requests):
            at = self._position(position)
            group = self._whole_group(at) if row_start == 0 and row_stop == counts[at] else None
            if group is None or group in found:
                return None
            found[group] = number
        jobs = []
        for group in sorted(found):
            block = self._whole_block(process, group)
            if block is None or block.padding:
                return None
            jobs.append(Job(group, [found[group]], [block], []))
        return jobs

    def _fetch_whole(self, process: _Process, jobs: Sequence[Job]) -> Iterator[Round]:
        """Fetch row groups that are one sequence each."""
        start = 0
        while start < len(jobs):
            stop, n_bytes = start, 0
            while stop < len(jobs) and n_bytes <= MAX_FETCH_BYTES:
                n_bytes += jobs[stop].blocks[0].n_bytes
                stop += 1
            own = jobs[start:stop]
            raw = [
                self._raw_group(job.group, one, [Piece(job.group, 0, one.block.n_rows, job.pieces[0], 0)])
                for job, one in zip(own, self._fetch_jobs(process, own), strict=True)
            ]
            process.counters.count(reads=len(own), direct_groups=len(own))
            yield Round(raw, [])
            start = stop

    def decode_each(self, fetched: Sequence[Fetched]) -> list[pa.Table]:
        """Return the rows of each block as PyArrow decodes them, those of one projection from one buffer."""
        process = self._own_process()
        together = batches(fetched, at_least=self._options["threads"])
        decoded: list[pa.Table | None] = [None] * len(fetched)
        results = process.map(decode_blocks, [[fetched[i] for i in batch] for batch in together])
        for batch, own in zip(together, results, strict=True):
            for number, table in zip(batch, own, strict=True):
                decoded[number] = table
        process.counters.count(decodes=len(together))
        return [table for table in decoded if table is not None]

    def count(self, **counts: int) -> None:
        """Add to what `stats` returns, for who decodes what was fetched."""
        self._own_process().counters.count(**counts)

    # -- which rows ---------------------------------------------------------------------------------------

    def _position(self, position: SupportsIndex) -> int:
        n = len(self)
        number = operator.index(position)
        if number < 0:
            number += n
        if not 0 <= number < n:
            raise SelectionIndexError(
                f"position {position} lies outside the selection of {n} sequences",
                position=position,
                expected=n,
            )
        return number

    def _own_process(self) -> _Process:
        """Return what belongs to this process; a forked child never uses its parent's."""
        if self._process.pid != os.getpid():
            self._process = _Process(self._plan, **self._options)
        return self._process

    def _whole_group(self, number: int) -> int | None:
        """Return the row group that a sequence is, or None where it is part of one or of several."""
        plan = self._plan
        first, stop = plan.segment_stops[number : number + 2].tolist()
        if stop - first != 1:
            return None
        group = int(plan.group_of_segment[first])
        is_whole = plan.row_stop[first] - plan.row_start[first] == plan.group_n_rows[group]
        return group if is_whole else None

    def _pieces(self, number: int, row_start: int, row_stop: int, request: int) -> list[Piece]:
        """Return the parts of row groups that hold some rows of a sequence, in their order."""
        plan = self._plan
        n_rows = int(plan.row_counts[number])
        if not 0 <= row_start <= row_stop <= n_rows:
            raise SelectionIndexError(
                f"rows [{row_start}, {row_stop}) lie outside sequence {number} of {n_rows} rows",
                position=number,
                expected=n_rows,
                found=(row_start, row_stop),
            )
        pieces = []
        before = 0
        for segment in range(int(plan.segment_stops[number]), int(plan.segment_stops[number + 1])):
            start, stop = int(plan.row_start[segment]), int(plan.row_stop[segment])
            first, last = max(row_start - before, 0), min(row_stop - before, stop - start)
            if first < last:
                group, at = int(plan.group_of_segment[segment]), before + first - row_start
                pieces.append(Piece(group, start + first, start + last, request, at))
            before += stop - start
        return pieces

    def _joined(self, tables: list[pa.Table]) -> pa.Table:
        if len(tables) == 1:
            return tables[0]
        return pa.concat_tables(tables) if tables else self._plan.schema.empty_table()

    # -- reading pieces -----------------------------------------------------------------------------------

    def _read_whole(self, process: _Process, group: int) -> pa.Table:
        """Return all rows of a row group, which are one sequence."""
        block = self._whole_block(process, group)
        if block is None:
            process.counters.count(reads=1)
            return self._conform(process, group, None, int(self._plan.group_n_rows[group]))
        (fetched,) = self._fetch(process, int(self._plan.group_file[group]), [block])
        process.counters.count(reads=1, groups=1, decodes=1)
        (table,) = decode_blocks([fetched])
        return self._conform(process, group, table, table.num_rows)

    def _read_pieces(self, process: _Process, pieces: Sequence[Piece]) -> list[pa.Table]:
        """Return the rows of each piece; see `read`."""
        tables: list[pa.Table | None] = [None] * len(pieces)
        for jobs in self._rounds(process, pieces, tables):
            self._run(process, jobs, pieces, tables)
        return [table for table in tables if table is not None]

    def _rounds(
        self, process: _Process, pieces: Sequence[Piece], tables: list[pa.Table | None]
    ) -> Iterator[list[Job]]:
        """Return what to read for some pieces, as many bytes at a time as may be in memory.

        What is there already is put into `tables`.
        """
        by_group: dict[int, list[int]] = {}
        for number, piece in enumerate(pieces):
            by_group.setdefault(piece.group, []).append(number)
        jobs: list[Job] = []
        n_bytes = 0
        for group in sorted(by_group):  # groups are numbered in the order of files and row groups
            job = self._job(process, group, by_group[group], pieces, tables)
            if job is None:
                continue
            jobs.append(job)
            n_bytes += sum([block.n_bytes for block in job.blocks])
            if n_bytes > MAX_FETCH_BYTES:
                yield jobs
                jobs, n_bytes = [], 0
        yield jobs

    def _job(
        self,
        process: _Process,
        group: int,
        numbers: list[int],
        pieces: Sequence[Piece],
        tables: list[pa.Table | None],
    ) -> Job | None:
        """Return what to read of a row group for some pieces, or None where they are there already."""
        plan = self._plan
        n_rows = int(plan.group_n_rows[group])
        is_shared = any(pieces[i].row_stop - pieces[i].row_start < n_rows for i in numbers)
        table = process.groups.get(group) if is_shared else None
        if table is not None:
            for number in numbers:
                tables[number] = _rows(table, pieces[number])
            return None
        ranges = self._page_ranges(process, group, [pieces[i] for i in numbers]) if is_shared else []
        if ranges:
            file_no = int(plan.group_file[group])
            record = plan.schemas[int(plan.schema_of_file[file_no])]
            file, row_group = process.handles.path(file_no), int(plan.group_row_group[group])
            places = self._places(group)
            blocks = [
                block
                for wanted in ranges
                for block in row_range_blocks(record, places, wanted, file=file, row_group=row_group)
            ]
            return Job(group, numbers, blocks, ranges)
        block = self._whole_block(process, group)
        return Job(group, numbers, [] if block is None else [block], [])

    def _run(
        self,
        process: _Process,
        jobs: Sequence[Job],
        pieces: Sequence[Piece],
        tables: list[pa.Table | None],
    ) -> None:
        """Fetch and decode what some jobs want, and put the rows of their pieces into `tables`."""
        if not jobs:
            return
        decoded = self.decode_each(self._fetch_jobs(process, jobs))
        process.counters.count(
            groups=sum(1 for job in jobs if not job.ranges and job.blocks),
            page_reads=sum(len(job.ranges) for job in jobs),
        )
        rest = iter(decoded)
        for job in jobs:
            self._finish(process, job, [next(rest) for _ in job.blocks], pieces, tables)

    def _fetch_jobs(self, process: _Process, jobs: Sequence[Job]) -> list[Fetched]:
        """Return the bytes of all blocks of some jobs, file by file."""
        files = self._plan.group_file
        by_file = [
            (file_no, [block for job in own for block in job.blocks])
            for file_no, own in groupby(jobs, key=lambda job: int(files[job.group]))
        ]
        by_file = [(file_no, blocks) for file_no, blocks in by_file if blocks]
        found = process.map(lambda one: self._fetch(process, *one), by_file)
        return [one for many in found for one in many]

    def _is_left_raw(self, job: Job, pieces: Sequence[Piece]) -> bool:
        """Return whether the bytes of a job are of use as they are: no table of them is to be kept."""
        if job.ranges or not job.blocks:
            return bool(job.ranges)
        n_rows = job.blocks[0].n_rows
        whole = all(pieces[i].row_stop - pieces[i].row_start == n_rows for i in job.pieces)
        return whole and not job.blocks[0].padding

    def _raw(
        self, process: _Process, job: Job, fetched: Iterator[Fetched], pieces: Sequence[Piece]
    ) -> list[RawRows]:
        """Return what was fetched for a job, for each of its page ranges."""
        own = [pieces[i] for i in job.pieces]
        if not job.ranges:
            return [self._raw_group(job.group, next(fetched), own)]
        block = job.blocks[0]
        place = block.file, block.row_group, self._projection(process, job.group)
        left = self._left(job.group)
        by_range: list[list[Piece]] = [[] for _ in job.ranges]
        starts = [wanted.row_start for wanted in job.ranges]
        for piece in own:
            by_range[bisect_right(starts, piece.row_start) - 1].append(piece)
        return [
            RawRows(
                *place,
                [RawPart(next(fetched), part.leaves, part.row_start) for part in wanted.parts],
                left,
                pieces_of_range,
                (wanted.row_start, wanted.row_stop),
            )
            for wanted, pieces_of_range in zip(job.ranges, by_range, strict=True)
        ]

    def _raw_group(self, group: int, fetched: Fetched, pieces: list[Piece]) -> RawRows:
        block = fetched.block
        return RawRows(
            block.file,
            block.row_group,
            block.projection,
            [RawPart(fetched, range(len(block.codec)), 0)],
            self._left(group),
            pieces,
            (0, block.n_rows),
        )

    def _left(self, group: int) -> tuple[int, ...]:
        plan = self._plan
        if not len(plan.left):
            return ()
        left = tuple(plan.left[plan.chunk_stops[group] : plan.chunk_stops[group + 1]].tolist())
        return left if any(left) else ()

    def _finish(
        self,
        process: _Process,
        job: Job,
        decoded: list[pa.Table],
        pieces: Sequence[Piece],
        tables: list[pa.Table | None],
    ) -> None:
        """Give each piece of a job its rows."""
        n_rows = int(self._plan.group_n_rows[job.group])
        if not job.ranges:
            table = self._conform(process, job.group, decoded[0] if decoded else None, n_rows)
            if any(pieces[i].row_stop - pieces[i].row_start < n_rows for i in job.pieces):
                table = process.groups.put(job.group, table)
            for number in job.pieces:
                tables[number] = _rows(table, pieces[number])
            return
        projection = self._projection(process, job.group)
        at = 0
        of_range = {}
        for wanted in job.ranges:
            of_range[wanted.row_start] = (wanted, decoded[at : at + len(wanted.parts)])
            at += len(wanted.parts)
        starts = sorted(of_range)
        for number in job.pieces:
            piece = pieces[number]
            wanted, parts = of_range[max(start for start in starts if start <= piece.row_start)]
            table = join_parts(projection, wanted, parts, row_start=piece.row_start, row_stop=piece.row_stop)
            tables[number] = self._conform(process, job.group, table, table.num_rows)

    # -- pages or the whole group -------------------------------------------------------------------------

    def _page_ranges(self, process: _Process, group: int, pieces: Sequence[Piece]) -> list[RowRange]:
        """Return the pages to read for some rows of a row group, none where the whole group is the better read.

        The whole group is read, and kept, once the pages that were read of it would have paid for it: who asks for
        a few sequences of a group pays for their pages, who asks for its neighbours pays for the group once more at
        most (the rule of renting skis).
        """
        plan = self._plan
        chunks = slice(int(plan.chunk_stops[group]), int(plan.chunk_stops[group + 1]))
        page_stops = plan.page_stops[chunks.start : chunks.stop + 1].tolist()
        if not page_stops or page_stops[0] == page_stops[-1]:
            process.counters.count(fallback_no_pages=1)
            return []
        projection = self._projection(process, group)
        if projection.padding:
            process.counters.count(fallback_old_writer=1)
            return []
        places = self._places(group)
        plan_range = partial(
            plan_row_range,
            projection,
            places,
            [self._pages(a, b) for a, b in pairwise(page_stops)],
            n_rows=int(plan.group_n_rows[group]),
        )
        ranges: list[RowRange] = []
        for piece in sorted(pieces):
            if ranges and piece.row_start < ranges[-1].covered_stop:  # its first page is read already
                last = ranges.pop()
                row_start, row_stop = last.row_start, max(last.row_stop, piece.row_stop)
            else:
                row_start, row_stop = piece.row_start, piece.row_stop
            ranges.append(plan_range(row_start=row_start, row_stop=row_stop))
        n_bytes = ranges[0].n_dictionary_bytes + sum(r.n_bytes - r.n_dictionary_bytes for r in ranges)
        group_bytes = int(places.length.sum())
        spent = (process.spent.get(group) or 0) + n_bytes
        if spent > group_bytes and group_bytes <= self._options["group_cache_bytes"]:
            process.counters.count(fallback_group_is_cheaper=1)
            return []
        process.spent.set(group, spent)
        return ranges

    def _places(self, group: int) -> ChunkPlaces:
        chunks = slice(int(self._plan.chunk_stops[group]), int(self._plan.chunk_stops[group + 1]))
        start, length, num_values, codec = self._chunks
        return ChunkPlaces(start[chunks], length[chunks], num_values[chunks], codec[chunks])

    def _pages(self, first: int, stop: int) -> PagePlaces | None:
        if first == stop:
            return None
        return PagePlaces(**{name: values[first:stop] for name, values in self._plan.pages.items()})

    def _whole_block(self, process: _Process, group: int) -> Block | None:
        """Return the block of a whole row group, or None where its file has none of the columns, or it no rows."""
        plan = self._plan
        n_rows = int(plan.group_n_rows[group])
        if plan.chunk_stops[group] == plan.chunk_stops[group + 1] or not n_rows:
            return None
        return whole_group(
            self._projection(process, group),
            self._places(group),
            n_rows=n_rows,
            file=process.handles.path(int(plan.group_file[group])),
            row_group=int(plan.group_row_group[group]),
        )

    def _fetch(self, process: _Process, file_no: int, blocks: Sequence[Block]) -> list[Fetched]:
        file = process.handles.file(file_no)
        return fetch(blocks, process.handles.range_reader(file), file_size=file.facts.size_bytes)

    def _projection(self, process: _Process, group: int) -> Projection:
        schema_no = int(self._plan.schema_of_file[self._plan.group_file[group]])
        projection = process.projections.get(schema_no)
        if projection is None:
            projection = self._plan.schemas[schema_no].project(self._plan.fields_of(schema_no))
            process.projections[schema_no] = projection
        return projection

    def _conform(self, process: _Process, group: int, table: pa.Table | None, n_rows: int) -> pa.Table:
        """Return what was read of a file in the asked order, with the types that all files fit in."""
        schema = self._plan.schema
        if table is not None:
            schema_no = int(self._plan.schema_of_file[self._plan.group_file[group]])
            is_conform = process.conform.get(schema_no)
            if is_conform is None:
                is_conform = process.conform[schema_no] = bool(table.schema.equals(schema))
            if is_conform:
                return table
        names = [] if table is None else table.column_names
        columns = [
            pa.nulls(n_rows, f.type)
            if table is None or f.name not in names
            else table.column(f.name).cast(f.type)
            for f in schema
        ]
        return pa.table(columns, schema=schema)

    # -- to other processes -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {"path": share(self._plan), "origin": self._plan.origin, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["options"]
        self._set_plan(open_plan(state["path"], state["origin"]))


def _rows(table: pa.Table, piece: Piece) -> pa.Table:
    """Return the rows of a piece from the table of its whole row group."""
    n_rows = piece.row_stop - piece.row_start
    return table if n_rows == table.num_rows else table.slice(piece.row_start, n_rows)


def checked_count(name: str, value: object, *, at_least: int) -> int:
    """Return an argument that is an integer of at least so much; booleans are not.

    Raises
    ------
    UsageError
        If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise UsageError(f"{name}: expected an integer >= {at_least}, found {value!r}")
    return value
