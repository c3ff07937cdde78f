"""From a selection to Arrow tables: one sequence is one read through the LRU of open files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex import storage
from pqindex.errors import SelectionIndexError, SourceChangedError, SourceError, UsageError
from pqindex.footer import (
    ChunkPlaces,
    PagePlaces,
    Projection,
    RowRange,
    plan_row_range,
    read_group,
    read_row_range,
)
from pqindex.lru import LRU
from pqindex.planfile import open_plan, share
from pqindex.readplan import ReadPlan

GROUP_CACHE_BYTES = 64 << 20
"""Decoded row groups that hold several sequences are kept up to this size in each process."""


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


MAX_REMEMBERED_GROUPS = 4096
"""Of so many row groups a process remembers how many bytes of their pages it has read."""

COUNTERS = (
    "reads",
    "groups",
    "page_reads",
    "ranges",
    "bytes",
    "opens",
    "fallback_no_pages",
    "fallback_old_writer",
    "fallback_group_is_cheaper",
)


class _Counters:
    """What was read so far, by name; thread-safe."""

    def __init__(self) -> None:
        self.values = dict.fromkeys(COUNTERS, 0)
        self._lock = threading.Lock()

    def count(self, name: str, n: int = 1) -> None:
        """Add to one counter."""
        with self._lock:
            self.values[name] += n


class _Process:
    """What belongs to one process: open files, decoded groups, projections, counters."""

    def __init__(self, max_open_files: int, group_cache_bytes: int) -> None:
        self.pid = os.getpid()
        self.files: LRU[int, storage.SourceFile] = LRU(max_items=max_open_files)
        self.groups: LRU[int, pa.Table] = LRU(max_bytes=group_cache_bytes, size_of=lambda table: table.nbytes)
        self.projections: dict[int, Projection] = {}
        self.conform: dict[int, bool] = {}
        self.spent: LRU[int, int] = LRU(max_items=MAX_REMEMBERED_GROUPS)
        self.counters = _Counters()


class Reader:
    """Random access to the sequences of a selection or manifest, as Arrow tables.

    Every read costs the bytes of the projected column chunks of the row groups that hold the sequence; no footer is
    read after construction. Row groups that hold several sequences are kept decoded, bounded in bytes, so that
    neighbours are cheap.

    Thread-safe. Picklable to a few kilobytes: another process maps the same read plan and opens its own files, and
    so does a forked child.

    Parameters
    ----------
    source : Selection or Manifest
    columns : sequence of str or None
        Top-level columns to read, each named once; None for all.
    max_open_files : int
        How many source files are kept open in each process.
    staleness : {"error", "warn", "ignore"}
        What to do where a source file is not the one that was indexed.
    group_cache_bytes : int
        How many bytes of decoded row groups each process keeps.

    Raises
    ------
    SourceChangedError
        If a source file was changed, replaced, truncated or removed.
    ColumnMissingError, ColumnTypeError
        If a column cannot be read.
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
    ) -> None:
        checked_count("max_open_files", max_open_files, at_least=1)
        if isinstance(columns, str):
            raise UsageError(f"columns: expected a list of names, found the text {columns!r}")
        checked_count("group_cache_bytes", group_cache_bytes, at_least=0)
        self._max_open_files = max_open_files
        self._group_cache_bytes = group_cache_bytes
        self._plan = source.read_plan(columns, staleness=staleness)
        self._process = _Process(max_open_files, group_cache_bytes)

    # -- what is read -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._plan.seq_ids)

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

    # -- reading ------------------------------------------------------------------------------------------

    def __getitem__(self, position: int) -> pa.Table:
        """Return the rows of one sequence; negative positions count from the end."""
        number = self._position(position)
        process = self._own_process()
        process.counters.count("reads")
        segments = range(int(self._plan.segment_stops[number]), int(self._plan.segment_stops[number + 1]))
        tables = [self._segment(process, segment) for segment in segments]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def read(self, positions: Sequence[int]) -> list[pa.Table]:
        """Return the rows of several sequences in the asked order; files are read in the order of their bytes."""
        numbers = np.array([self._position(position) for position in positions], np.int64)
        tables: list[pa.Table | None] = [None] * len(numbers)
        if not len(numbers):
            return []
        first_groups = self._plan.group_of_segment[self._plan.segment_stops[numbers]]
        for at in np.argsort(first_groups, kind="stable"):
            tables[at] = self[int(numbers[at])]
        return [table for table in tables if table is not None]

    def segments(self, position: int) -> list[Segment]:
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

        ``reads``: sequences. ``groups``: row groups decoded whole. ``page_reads``: parts of row groups read through
        their pages. ``ranges`` and ``bytes``: asked of the files. ``opens`` and ``open_files``; ``footer_reads``,
        always 0. ``handle_hits``, ``group_cache_hits``, ``group_cache_bytes``. ``fallback_...``: why a part of a row
        group was not read through pages (none are known; an old writer's chunks; the whole group is cheaper by now).
        """
        process = self._own_process()
        return {
            **process.counters.values,
            "footer_reads": 0,
            "open_files": len(process.files),
            "handle_hits": process.files.hits,
            "group_cache_hits": process.groups.hits,
            "group_cache_bytes": process.groups.n_bytes,
        }

    def close(self) -> None:
        """Close the open files and forget decoded row groups; a later read opens them again."""
        self._process = _Process(self._max_open_files, self._group_cache_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- one segment --------------------------------------------------------------------------------------

    def _position(self, position: int) -> int:
        n = len(self)
        number = position + n if position < 0 else position
        if not 0 <= number < n:
            raise SelectionIndexError(
                f"position {position} lies outside the selection of {n} sequences",
                position=position,
                expected=n,
            )
        return int(number)

    def _own_process(self) -> _Process:
        """Return what belongs to this process; a forked child never uses its parent's."""
        if self._process.pid != os.getpid():
            self._process = _Process(self._max_open_files, self._group_cache_bytes)
        return self._process

    def _segment(self, process: _Process, segment: int) -> pa.Table:
        plan = self._plan
        group = int(plan.group_of_segment[segment])
        start, stop = int(plan.row_start[segment]), int(plan.row_stop[segment])
        is_whole = stop - start == int(plan.group_n_rows[group])
        if is_whole:
            return self._read_group(process, group)
        table = process.groups.get(group)
        if table is None:
            wanted = self._cheaper_row_range(process, group, start, stop)
            if wanted is not None:
                return self._read_rows(process, group, wanted)
            table = process.groups.put(group, self._read_group(process, group))
        return table.slice(start, stop - start)

    def _cheaper_row_range(self, process: _Process, group: int, start: int, stop: int) -> RowRange | None:
        """Return the pages to read for some rows of a row group, or None where the whole group is the better read.

        The whole group is read, and kept, once the pages that were read of it would have paid for it: who asks for
        a few sequences of a group pays for their pages, who asks for its neighbours pays for the group once more at
        most (the rule of renting skis).
        """
        plan = self._plan
        chunks = slice(int(plan.chunk_stops[group]), int(plan.chunk_stops[group + 1]))
        page_stops = plan.page_stops[chunks.start : chunks.stop + 1].tolist()
        if page_stops[0] == page_stops[-1]:
            process.counters.count("fallback_no_pages")
            return None
        places = self._places(chunks)
        projection = self._projection(process, int(plan.schema_of_file[plan.group_file[group]]))
        if projection.padding:
            process.counters.count("fallback_old_writer")
            return None
        wanted = plan_row_range(
            projection,
            places,
            [self._pages(a, b) for a, b in pairwise(page_stops)],
            n_rows=int(plan.group_n_rows[group]),
            row_start=start,
            row_stop=stop,
        )
        group_bytes = int(places.length.sum())
        spent = process.spent.get(group) or 0
        if spent + wanted.n_bytes > group_bytes and group_bytes <= self._group_cache_bytes:
            process.counters.count("fallback_group_is_cheaper")
            return None
        process.spent.set(group, spent + wanted.n_bytes)
        return wanted

    def _places(self, chunks: slice) -> ChunkPlaces:
        return ChunkPlaces(**{name: values[chunks] for name, values in self._plan.chunks.items()})

    def _pages(self, first: int, stop: int) -> PagePlaces | None:
        if first == stop:
            return None
        return PagePlaces(**{name: values[first:stop] for name, values in self._plan.pages.items()})

    def _read_rows(self, process: _Process, group: int, wanted: RowRange) -> pa.Table:
        """Return some rows of a row group through the pages that hold them."""
        plan = self._plan
        file_no = int(plan.group_file[group])
        schema_no = int(plan.schema_of_file[file_no])
        table = read_row_range(
            plan.schemas[schema_no],
            self._projection(process, schema_no),
            self._places(slice(int(plan.chunk_stops[group]), int(plan.chunk_stops[group + 1]))),
            wanted,
            self._range_reader(process, file_no),
            file=plan.paths[file_no].as_py(),
            row_group=int(plan.group_row_group[group]),
        )
        process.counters.count("page_reads")
        return self._conform(process, schema_no, table, table.num_rows)

    def _read_group(self, process: _Process, group: int) -> pa.Table:
        """Return a row group's projected columns, in the asked order and with the types of the schema."""
        plan = self._plan
        file_no = int(plan.group_file[group])
        schema_no = int(plan.schema_of_file[file_no])
        chunks = slice(int(plan.chunk_stops[group]), int(plan.chunk_stops[group + 1]))
        projection = self._projection(process, schema_no)
        if chunks.start == chunks.stop:
            return self._conform(process, schema_no, None, int(plan.group_n_rows[group]))
        table = read_group(
            projection,
            self._places(chunks),
            self._range_reader(process, file_no),
            n_rows=int(plan.group_n_rows[group]),
            file_size=self._file(process, file_no).facts.size_bytes,
            file=plan.paths[file_no].as_py(),
            row_group=int(plan.group_row_group[group]),
        )
        process.counters.count("groups")
        return self._conform(process, schema_no, table, table.num_rows)

    def _projection(self, process: _Process, schema_no: int) -> Projection:
        projection = process.projections.get(schema_no)
        if projection is None:
            projection = self._plan.schemas[schema_no].project(self._plan.fields_of(schema_no))
            process.projections[schema_no] = projection
        return projection

    def _conform(self, process: _Process, schema_no: int, table: pa.Table | None, n_rows: int) -> pa.Table:
        """Return what was read of a file in the asked order, with the types that all files fit in."""
        schema = self._plan.schema
        if table is not None:
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

    def _range_reader(
        self, process: _Process, file_no: int
    ) -> Callable[[list[tuple[int, int]]], list[bytes]]:
        file = self._file(process, file_no)
        counters = process.counters

        def read_ranges(ranges: list[tuple[int, int]]) -> list[bytes]:
            counters.count("ranges", len(ranges))
            counters.count("bytes", sum(length for _, length in ranges))
            return file.read_ranges(ranges)

        return read_ranges

    def _file(self, process: _Process, file_no: int) -> storage.SourceFile:
        """Return a source file, open; where the process has no descriptor left, the others are closed first."""
        file = process.files.get(file_no)
        if file is None:
            try:
                file = self._open(process, file_no)
            except SourceError as error:
                if error.facts.get("errno") not in (errno.EMFILE, errno.ENFILE) or not len(process.files):
                    raise
                process.files.clear()
                file = self._open(process, file_no)
            file = process.files.put(file_no, file)
        return file

    def _open(self, process: _Process, file_no: int) -> storage.SourceFile:
        """Open a source file, after the check that nobody wrote to it since the plan was resolved."""
        plan = self._plan
        path = plan.paths[file_no].as_py()
        file = storage.SourceFile(storage.join(plan.root, path))
        process.counters.count("opens")
        facts = file.facts
        found = (facts.size_bytes, facts.mtime_ns, facts.ctime_ns, facts.inode)
        expected = tuple(plan.footprints[file_no].tolist())
        if found != expected and plan.staleness == "error":
            file.close()
            raise SourceChangedError(
                f"source file was changed since the dataset or reader was made: {path}; expected size, mtime, ctime "
                f"and inode {expected}, found {found}",
                hint="make the dataset again, so that the file is checked against the index",
                file=path,
                expected=expected,
                found=found,
                change="replaced",
            )
        return file

    # -- to other processes -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": share(self._plan),
            "origin": self._plan.origin,
            "max_open_files": self._max_open_files,
            "group_cache_bytes": self._group_cache_bytes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._max_open_files = state["max_open_files"]
        self._group_cache_bytes = state["group_cache_bytes"]
        self._plan = open_plan(state["path"], state["origin"])
        self._process = _Process(self._max_open_files, self._group_cache_bytes)


def checked_count(name: str, value: object, *, at_least: int) -> None:
    """Raise UsageError unless an argument is an integer of at least so much; booleans are not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise UsageError(f"{name}: expected an integer >= {at_least}, found {value!r}")
