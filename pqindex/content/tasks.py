"""Where the segments of an index lie in its files, and the tasks of a content pass over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.content.wanted import Wanted
from pqindex.content.work import ROWS_AT_ONCE, FileGroups, SequencesTask, Task
from pqindex.footer import SchemaRecord
from pqindex.sidecar import SegmentArrays, segment_arrays

TASK_BYTES: Final = 64 << 20
TASK_GROUPS: Final = 512
"""A task has row groups of so many bytes, or so many of them."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where all segments lie, in the order of sequences, and in the order of the files.

    Attributes
    ----------
    segments : SegmentArrays
    order : ndarray, shape (n_segments,), int64
        The segments in the order of the files.
    group : ndarray, shape (n_segments,), int64
        The row number of its row group in `row_groups`, of each segment in the order of the files.
    group_file, group_number, group_bytes : ndarray, shape (n_groups,)
        Of each row of `row_groups`.
    """

    segments: SegmentArrays
    order: Int64Array
    group: Int64Array
    group_file: npt.NDArray[np.int32]
    group_number: npt.NDArray[np.int32]
    group_bytes: Int64Array

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table]) -> Layout:
        """Return the layout of the tables `files`, `row_groups`, `sequences` and `segments`."""
        segments = segment_arrays(tables["sequences"], tables.get("segments"))
        counts = tables["files"].column("n_row_groups").to_numpy().astype(np.int64)
        base = np.cumsum(counts) - counts
        order = np.lexsort((segments.row_start, segments.row_group, segments.file_id)).astype(np.int64)
        group = base[segments.file_id] + segments.row_group if len(order) else np.zeros(0, np.int64)
        groups = tables["row_groups"]
        return cls(
            segments=segments,
            order=order,
            group=group[order],
            group_file=groups.column("file_id").to_numpy(),
            group_number=groups.column("row_group").to_numpy(),
            group_bytes=groups.column("total_compressed_size").to_numpy(),
        )

    @property
    def owner(self) -> Int64Array:
        """The sequence of each segment, in the order of sequences."""
        return np.repeat(np.arange(len(self.segments.stops) - 1), np.diff(self.segments.stops))

    def groups(self, *, all_of_them: bool) -> Int64Array:
        """Return the row numbers of all row groups, or of those with segments, ascending."""
        return np.arange(len(self.group_file)) if all_of_them else np.unique(self.group)

    def batches(self, groups: Int64Array) -> Iterator[Int64Array]:
        """Yield the row groups of each task."""
        if not len(groups):
            return
        # Cut where the next multiple of a task's bytes, or of its number of row groups, is reached.
        by_bytes = (np.cumsum(self.group_bytes[groups]) - self.group_bytes[groups]) // TASK_BYTES
        by_number = np.arange(len(groups)) // TASK_GROUPS
        cuts = np.flatnonzero((np.diff(by_bytes) > 0) | (np.diff(by_number) > 0)) + 1
        yield from np.split(groups, cuts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files, and what is wanted of them."""

    root: str
    files: pa.Table
    schemas: Sequence[SchemaRecord]
    wanted: Wanted
    may_skip: bool

    def task(self, layout: Layout, groups: Int64Array) -> Task:
        """Return the task of some row groups, with all segments in them."""
        first = np.searchsorted(layout.group, groups, side="left")
        last = np.searchsorted(layout.group, groups, side="right")
        # A task's row groups are neighbours, or have only such without segments between them.
        segments = layout.order[int(first[0]) : int(last[-1])]
        return self._task(layout, groups, last - first, segments)

    def sequences_tasks(self, layout: Layout) -> list[SequencesTask]:
        """Return the tasks of the sequences of several segments, a bounded number of rows each."""
        stops = layout.segments.stops
        several = np.flatnonzero(np.diff(stops) > 1)
        if not len(several):
            return []
        lengths = layout.segments.row_stop - layout.segments.row_start
        n_rows = np.add.reduceat(lengths, stops[:-1])[several]
        cuts = np.flatnonzero(np.diff((np.cumsum(n_rows) - n_rows) // ROWS_AT_ONCE) > 0) + 1
        owner = layout.owner
        place = np.empty(len(layout.order), np.int64)  # of each segment, in the order of the files
        place[layout.order] = np.arange(len(layout.order))
        tasks = []
        for some in np.split(several, cuts):
            chosen = np.zeros(len(stops) - 1, bool)
            chosen[some] = True
            at = np.sort(place[chosen[owner]])
            segments = layout.order[at]
            groups, counts = np.unique(layout.group[at], return_counts=True)
            tasks.append(
                SequencesTask(
                    groups=self._task(layout, groups, counts, segments),
                    owner=owner[segments],
                    rank=segments,
                )
            )
        return tasks

    def _task(self, layout: Layout, groups: Int64Array, counts: Int64Array, segments: Int64Array) -> Task:
        own = layout.segments
        stops = np.append(0, np.cumsum(counts)).astype(np.int64)
        is_whole = np.diff(own.stops)[layout.owner[segments]] == 1
        cuts = np.flatnonzero(np.diff(layout.group_file[groups])) + 1
        files = []
        for some in np.split(np.arange(len(groups)), cuts):
            a, b = int(stops[some[0]]), int(stops[some[-1] + 1])
            files.append(
                FileGroups(
                    **self._file(int(layout.group_file[groups[some[0]]])),
                    row_groups=layout.group_number[groups[some]].astype(np.int64),
                    stops=stops[some[0] : some[-1] + 2] - a,
                    row_start=own.row_start[segments[a:b]],
                    row_stop=own.row_stop[segments[a:b]],
                    is_whole=is_whole[a:b],
                )
            )
        return Task(root=self.root, files=tuple(files), wanted=self.wanted, may_skip=self.may_skip)

    def _file(self, number: int) -> dict[str, Any]:
        names = ("path", "size_bytes", "footer_offset", "footer_length", "footer_sha256")
        facts: dict[str, Any] = {name: self.files.column(name)[number].as_py() for name in names}
        return facts | {"record": self.schemas[self.files.column("schema_no")[number].as_py()]}
