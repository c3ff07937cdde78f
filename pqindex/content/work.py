"""The content of some row groups: what one process finds out, with plain data in and out.

A task is some row groups of some files, with the segments that lie in them. Nothing here knows of sequences but that
some segments are whole ones; `adding` makes the tasks and puts together what comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pqindex import storage
from pqindex.arrowtypes import plain_array, type_name
from pqindex.content.groups import GroupDigest, GroupReader, open_metadata
from pqindex.content.steps import Steps, steps_of
from pqindex.content.values import Partials, partials_of
from pqindex.content.wanted import Wanted
from pqindex.errors import BadFileError, UnsupportedFileError
from pqindex.footer import FileMetadata, SchemaRecord, bounds
from pqindex.places import expand_ranges
from pqindex.scan import Skipped

ROWS_AT_ONCE: Final = 1 << 18
BYTES_AT_ONCE: Final = 128 << 20
"""Rows, or bytes of them, that DuckDB gets at once; a sequence that has more goes in whole."""

GROUP_COLUMN: Final = "__pqindex_sequence"
"""As in `pqindex.sql`, which is not imported where no aggregate is asked for."""

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroups:
    """Some row groups of one file, ascending, and the segments in them.

    Attributes
    ----------
    path, size_bytes, footer_offset, footer_length, footer_sha256
        The file as it was indexed.
    record : SchemaRecord
    row_groups : ndarray, shape (n_groups,), int64
    stops : ndarray, shape (n_groups + 1,), int64
        Segments of group i are ``[stops[i], stops[i + 1])``.
    row_start, row_stop : ndarray, shape (n_segments,), int64
    is_whole : ndarray, shape (n_segments,), bool
        The segment is a whole sequence.
    """

    path: str
    size_bytes: int
    footer_offset: int
    footer_length: int
    footer_sha256: bytes
    record: SchemaRecord
    row_groups: Int64Array
    stops: Int64Array
    row_start: Int64Array
    row_stop: Int64Array
    is_whole: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one call looks at.

    Attributes
    ----------
    root : str
    files : tuple of FileGroups
    wanted : Wanted
    may_skip : bool
        Whether a file that cannot be read is told of, and not raised.
    """

    root: str
    files: tuple[FileGroups, ...]
    wanted: Wanted
    may_skip: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotConstant:
    """Two rows of one segment that differ in an attribute.

    Attributes
    ----------
    column : str
    segment : int
        Position among the segments of the task.
    row : int
        Of the row group; the one before has `before`.
    before, after : str
        How the values read.
    """

    column: str
    segment: int
    row: int
    before: str
    after: str


@dataclass(slots=True, kw_only=True)
class Found:
    """What a task found; arrays over its row groups or segments, in their order.

    Attributes
    ----------
    n_groups, n_segments : int
    digests : list of bytes or None
        A row group each; none where digests were not wanted.
    statistics : dict of str to Partials
    attributes : dict of str to pyarrow.Array
        The value of each segment.
    faults : list of NotConstant
        The first of each segment and column.
    steps : Steps or None
    aggregates : list of pyarrow.Table
        Of the segments that are whole sequences: `GROUP_COLUMN`, the segment's position, and the values.
    skipped : list of Skipped
        Files that could not be read; where there are any, nothing else here is of use.
    """

    n_groups: int
    n_segments: int = 0
    digests: list[bytes | None] = field(default_factory=list)
    statistics: dict[str, Partials] = field(default_factory=dict)
    attributes: dict[str, pa.Array] = field(default_factory=dict)
    faults: list[NotConstant] = field(default_factory=list)
    steps: Steps | None = None
    aggregates: list[pa.Table] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def look_at_groups(task: Task) -> Found:
    """Return what is wanted of the row groups of a task.

    Cost: a footer a file, and the bytes of the wanted columns, or of all of them where digests are wanted, once.
    Memory: some columns of one row group, and `ROWS_AT_ONCE` rows of the columns that aggregates read.

    Raises
    ------
    BadFileError, UnsupportedFileError
        If a file cannot be read, and the task may not skip it.
    SourceChangedError
        If a file is not the one that was indexed.
    QueryError
        If an aggregate fails.
    """
    found = Found(n_groups=sum(len(groups.row_groups) for groups in task.files))
    collector = _Collector(task.wanted)
    try:
        for groups in task.files:
            try:
                with storage.SourceFile(storage.join(task.root, groups.path)) as file:
                    collector.add_file(file, groups)
            except (BadFileError, UnsupportedFileError) as error:
                if not task.may_skip:
                    raise
                found.skipped.append(Skipped(path=groups.path, reason=error.reason, message=str(error)))
        if not found.skipped:
            collector.give(found)
    finally:
        collector.close()
    return found


class _Collector:
    """What was found so far, in all files of a task."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._n_segments = 0
        self._digests: list[bytes | None] = []
        self._statistics: dict[str, list[Partials]] = {name: [] for name in wanted.statistics}
        self._attributes: dict[str, list[pa.Array]] = {name: [] for name in wanted.attributes}
        self._faults: list[NotConstant] = []
        self._steps: list[Steps] = []
        self._rows = _Rows(wanted)

    def add_file(self, file: storage.SourceFile, groups: FileGroups) -> None:
        """Look at the row groups of one file."""
        meta = open_metadata(
            file,
            groups.path,
            size_bytes=groups.size_bytes,
            offset=groups.footer_offset,
            length=groups.footer_length,
            sha256=groups.footer_sha256,
        )
        reader = GroupReader(file, meta, groups.record)
        proved = self._proved_attributes(meta, groups.record)
        for i, group in enumerate(groups.row_groups.tolist()):
            segments = slice(int(groups.stops[i]), int(groups.stops[i + 1]))
            view = _GroupView(
                meta=meta,
                record=groups.record,
                group=group,
                row_start=groups.row_start[segments],
                row_stop=groups.row_stop[segments],
                is_whole=groups.is_whole[segments],
            )
            self._add_group(reader, view, {name: values[group] for name, values in proved.items()})

    def give(self, found: Found) -> None:
        """Hand over all of it."""
        found.n_segments = self._n_segments
        found.digests = self._digests
        found.faults = self._faults
        found.statistics = {name: Partials.joined(parts) for name, parts in self._statistics.items() if parts}
        found.attributes = {
            name: pa.concat_arrays(parts) for name, parts in self._attributes.items() if parts
        }
        found.steps = Steps.joined(self._steps) if self._steps else None
        found.aggregates = self._rows.finish()

    def close(self) -> None:
        """Free the database of the aggregates."""
        self._rows.close()

    def _proved_attributes(self, meta: FileMetadata, record: SchemaRecord) -> dict[str, pa.Array]:
        """Return the value of each attribute in each row group; null where the bounds do not prove one.

        Bounds pass over NaN, so that they prove nothing of floats.
        """
        if not self._wanted.trust_statistics:
            return {}
        proved = {}
        for name, data_type in self._wanted.attributes.items():
            number = _field_of(record, name)
            if number is None or pt.is_floating(data_type):
                continue
            leaf = record.parsed.field_leaves[number][0]
            found = bounds(meta, leaf)
            if pt.is_null(found.min.type):
                continue
            same = pc.fill_null(pc.equal(found.min, found.max), False).to_numpy(zero_copy_only=False)
            full = pc.fill_null(pc.equal(found.null_count, 0), False).to_numpy(zero_copy_only=False)
            counted = meta.chunks.num_values[:, leaf] == meta.group_n_rows
            unproved = ~(same & full & counted & found.exact)
            values = _typed(plain_array(found.min), data_type, meta.file, name)
            proved[name] = pc.if_else(pa.array(unproved), pa.scalar(None, data_type), values)
        return proved

    def _add_group(self, reader: GroupReader, view: _GroupView, proved: Mapping[str, pa.Scalar]) -> None:
        wanted = self._wanted
        n_segments = len(view.row_start)
        digest = GroupDigest.of(view.meta, view.group) if wanted.digests else None
        statistics = {name: number for name in wanted.statistics for number in view.field(name)}
        statistics = {n: number for n, number in statistics.items() if reader.is_readable(view.group, number)}
        attributes = {
            name: number
            for name in wanted.attributes
            if name not in proved or not proved[name].is_valid
            for number in view.field(name)
        }
        order = view.field(wanted.order[0]) if wanted.order else []
        rows = {name: number for name in wanted.rows.names for number in view.field(name)}
        if not view.is_whole.any():
            rows = {}
        fields = {*statistics.values(), *attributes.values(), *order, *rows.values()} if n_segments else set()
        partials: dict[str, Partials] = {}
        values: dict[str, pa.Array] = {}
        columns: dict[str, pa.Array] = {}
        for number, column in reader.columns(view.group, sorted(fields), digest):
            name = view.record.field_names[number]
            array = plain_array(column)
            if name in statistics:
                partials[name] = partials_of(view.rows(array, wanted.statistics[name], name), view.starts)
            if name in attributes:
                values[name] = self._constant(view, view.rows(array, wanted.attributes[name], name), name)
            if wanted.order is not None and name == wanted.order[0]:
                self._steps.append(steps_of(view.rows(array, wanted.order[1], name), view.starts))
            if name in rows:
                columns[name] = view.rows(array, wanted.rows.field(name).type, name, whole=True)
        self._digests.append(None if digest is None else digest.value())
        if not n_segments:
            return
        for name, data_type in wanted.statistics.items():
            self._statistics[name].append(partials.get(name) or Partials.absent(view.lengths, data_type))
        for name, data_type in wanted.attributes.items():
            if name not in values:
                # Proved by bounds, or of a file that has no such column.
                is_proved = name in proved and proved[name].is_valid
                values[name] = (
                    pa.repeat(proved[name], n_segments) if is_proved else pa.nulls(n_segments, data_type)
                )
            self._attributes[name].append(values[name])
        if wanted.aggregates and view.is_whole.any():
            at = self._n_segments + np.flatnonzero(view.is_whole)
            self._rows.add(np.repeat(at, view.lengths[view.is_whole]), columns)
        self._n_segments += n_segments

    def _constant(self, view: _GroupView, values: pa.Array, name: str) -> pa.Array:
        """Return the value of each segment, and note those that have several."""
        first = values.take(pa.array(view.starts))
        if pt.is_string(first.type):
            try:
                first.validate(full=True)
            except pa.ArrowInvalid as error:
                raise BadFileError(
                    f"attribute {name!r} holds invalid text: {view.meta.file}, row group {view.group}: {error}",
                    hint="write the column as binary, or leave the attribute out",
                    file=view.meta.file,
                    row_group=view.group,
                    column=name,
                ) from error
        differs = changes(values)
        differs[view.starts] = False
        at = np.flatnonzero(differs)
        if len(at):
            segments = np.searchsorted(view.starts, at, side="right") - 1
            which, firsts = np.unique(segments, return_index=True)
            for segment, row in zip(which.tolist(), at[firsts].tolist(), strict=True):
                self._faults.append(
                    NotConstant(
                        column=name,
                        segment=self._n_segments + segment,
                        row=int(view.row_start[segment] + row - view.starts[segment]),
                        before=repr(values[row - 1].as_py()),
                        after=repr(values[row].as_py()),
                    )
                )
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupView:
    """One row group and its segments."""

    meta: FileMetadata
    record: SchemaRecord
    group: int
    row_start: Int64Array
    row_stop: Int64Array
    is_whole: BoolArray

    @property
    def lengths(self) -> Int64Array:
        return self.row_stop - self.row_start

    @property
    def starts(self) -> Int64Array:
        """Where each segment begins among the rows of all of them."""
        lengths = self.lengths
        return np.cumsum(lengths) - lengths

    def field(self, name: str) -> list[int]:
        """Return the number of a column, in a list that is empty where there is none."""
        number = _field_of(self.record, name)
        return [] if number is None else [number]

    def rows(self, values: pa.Array, data_type: pa.DataType, name: str, *, whole: bool = False) -> pa.Array:
        """Return the values in the rows of the segments, one segment behind the other, in one type."""
        some = self.is_whole if whole else np.ones(len(self.row_start), bool)
        starts, stops = self.row_start[some], self.row_stop[some]
        if int((stops - starts).sum()) < len(values):
            rows = pa.array(expand_ranges(starts, stops))
            is_run = len(starts) and int(stops[-1] - starts[0]) == len(rows)
            values = values.slice(int(starts[0]), len(rows)) if is_run else values.take(rows)
        return _typed(values, data_type, self.meta.file, name, self.group)


def _field_of(record: SchemaRecord, name: str) -> int | None:
    try:
        return record.field_names.index(name)
    except ValueError:
        return None


def _typed(
    values: pa.Array, data_type: pa.DataType, file: str, name: str, group: int | None = None
) -> pa.Array:
    if values.type == data_type:
        return values
    try:
        return pc.cast(values, data_type)
    except pa.ArrowException as error:
        raise BadFileError(
            f"column {name!r} does not fit into {type_name(data_type)}: {file}, row group {group}: {error}",
            hint="write the column with one type in all files, or leave it out",
            file=file,
            row_group=group,
            column=name,
            expected=type_name(data_type),
            found=type_name(values.type),
        ) from error


def changes(values: pa.Array) -> BoolArray:
    """Return which values differ from the one before; two nulls are alike, and so are two NaN. Shape (n,)."""
    differs = np.zeros(len(values), bool)
    if len(values) < 2 or pt.is_null(values.type):
        return differs
    if pt.is_float16(values.type):  # which Arrow does not compare
        values = values.cast(pa.float32())
    unequal = pc.fill_null(pc.not_equal(values[1:], values[:-1]), False).to_numpy(zero_copy_only=False)
    differs[1:] = unequal
    if pt.is_floating(values.type):
        is_nan = pc.fill_null(pc.is_nan(values), False).to_numpy(zero_copy_only=False)
        differs[1:] &= ~(is_nan[1:] & is_nan[:-1])
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        differs[1:] |= is_null[1:] != is_null[:-1]
    return differs


# -- aggregates -----------------------------------------------------------------------------------------------


class _Rows:
    """Rows of whole sequences that wait for DuckDB, and what it said of those before."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._waiting: list[pa.Table] = []
        self._n_waiting = self._n_bytes = 0
        self._found: list[pa.Table] = []
        self._database: Any = None

    def add(self, owner: Int64Array, columns: Mapping[str, pa.Array]) -> None:
        """Add the rows of some sequences: whose each is, and the columns that the file has."""
        arrays = [pa.array(owner, pa.int64())]
        arrays += [
            columns[f.name] if f.name in columns else pa.nulls(len(owner), f.type) for f in self._wanted.rows
        ]
        names = [GROUP_COLUMN, *self._wanted.rows.names]
        self._waiting.append(pa.Table.from_arrays(arrays, names=names))
        self._n_waiting += len(owner)
        self._n_bytes += self._waiting[-1].nbytes
        if self._n_waiting >= ROWS_AT_ONCE or self._n_bytes >= BYTES_AT_ONCE:
            self._run()

    def finish(self) -> list[pa.Table]:
        """Return the values of all sequences that were added."""
        self._run()
        return self._found

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _run(self) -> None:
        if not self._waiting:
            return
        if self._database is None:
            from pqindex.sql import AggregateDatabase  # duckdb

            self._database = AggregateDatabase()
        self._found.append(self._database.run(self._wanted.aggregates, pa.concat_tables(self._waiting)))
        self._waiting, self._n_waiting, self._n_bytes = [], 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesTask:
    """Sequences of several segments, for their aggregates.

    Attributes
    ----------
    groups : Task
        The row groups and segments, in the order of the files.
    owner, rank : ndarray, shape (n_segments,), int64
        The sequence of each segment, and its place among the segments of all of them.
    """

    groups: Task
    owner: Int64Array
    rank: Int64Array


def look_at_sequences(task: SequencesTask) -> Found:
    """Return the aggregates of sequences of several segments; each row group is read once.

    Memory: the rows of the sequences, in the columns that the aggregates read. Raises as `look_at_groups`.
    """
    wanted = task.groups.wanted
    found = Found(n_groups=sum(len(groups.row_groups) for groups in task.groups.files))
    pieces: list[pa.Table] = []
    for groups in task.groups.files:
        try:
            with storage.SourceFile(storage.join(task.groups.root, groups.path)) as file:
                pieces.extend(_pieces(file, groups, wanted))
        except (BadFileError, UnsupportedFileError) as error:
            if not task.groups.may_skip:
                raise
            found.skipped.append(Skipped(path=groups.path, reason=error.reason, message=str(error)))
    if found.skipped:
        return found
    rows = _Rows(wanted)
    try:
        order = np.argsort(task.rank)
        lengths = np.array([len(piece) for piece in pieces], np.int64)[order]
        table = pa.concat_tables([pieces[i] for i in order.tolist()])
        columns = {name: table.column(name).combine_chunks() for name in wanted.rows.names}
        rows.add(np.repeat(task.owner[order], lengths), columns)
        found.aggregates = rows.finish()
    finally:
        rows.close()
    return found


def _pieces(file: storage.SourceFile, groups: FileGroups, wanted: Wanted) -> Iterator[pa.Table]:
    """Yield the rows of each segment of a file."""
    meta = open_metadata(
        file,
        groups.path,
        size_bytes=groups.size_bytes,
        offset=groups.footer_offset,
        length=groups.footer_length,
        sha256=groups.footer_sha256,
    )
    reader = GroupReader(file, meta, groups.record)
    numbers = {
        number: name for name in wanted.rows.names if (number := _field_of(groups.record, name)) is not None
    }
    for i, group in enumerate(groups.row_groups.tolist()):
        n_rows = int(meta.group_n_rows[group])
        columns = {
            numbers[number]: _typed(
                plain_array(column),
                wanted.rows.field(numbers[number]).type,
                meta.file,
                numbers[number],
                group,
            )
            for number, column in reader.columns(group, sorted(numbers))
        }
        arrays = [columns[f.name] if f.name in columns else pa.nulls(n_rows, f.type) for f in wanted.rows]
        # A column of nothing keeps the number of rows where the aggregates read no column.
        table = pa.Table.from_arrays([pa.nulls(n_rows), *arrays], names=["", *wanted.rows.names])
        for segment in range(int(groups.stops[i]), int(groups.stops[i + 1])):
            start, stop = int(groups.row_start[segment]), int(groups.row_stop[segment])
            # A copy, since a slice would keep the whole row group alive.
            yield table.take(pa.array(np.arange(start, stop))) if stop - start < n_rows else table
