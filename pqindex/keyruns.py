"""The runs of equal keys inside the row groups of one file: proved by exact bounds, or read and cut, vectorised.

Where no column names the sequences, whole row groups or single rows are the runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pqindex import storage
from pqindex.arrowtypes import concat, is_key_type, is_order_type, plain_array, plain_type, type_name
from pqindex.errors import BadFileError, ColumnMissingError, ColumnTypeError, PqindexError
from pqindex.footer import Bounds, ChunkPlaces, FileMetadata, Projection, SchemaRecord, bounds, read_group

MAX_ORDER_FAULTS = 100
"""Places of one row group that are recorded; the error shows the first ten of all."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A run of rows where something is wrong, and what."""

    file: str
    row_group: int
    row_start: int
    row_stop: int
    found: str

    def __str__(self) -> str:
        return f"{self.file}#{self.row_group}[{self.row_start}:{self.row_stop}] {self.found}"


# -- the columns ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatColumn:
    """A top-level column without nesting.

    Attributes
    ----------
    name : str
    field, leaf : int
        Its position among the top-level fields and among the leaves of the file's schema.
    arrow_type : pa.DataType
        Its plain type.
    """

    name: str
    field: int
    leaf: int
    arrow_type: pa.DataType


def key_column(record: SchemaRecord, name: str, path: str, *, folders: Sequence[str]) -> FlatColumn:
    """Return the key column of a file; raises ColumnMissingError or ColumnTypeError.

    Parameters
    ----------
    record, path
        The file's schema and name.
    name
        The key's name.
    folders
        Names that the path gives values to, for the hint.
    """
    return _flat_column(
        record, name, path, "key", is_key_type, "an integer, string, binary, date or timestamp", folders
    )


def order_column(record: SchemaRecord, name: str, path: str) -> FlatColumn:
    """Return the order column of a file; raises ColumnMissingError or ColumnTypeError."""
    return _flat_column(record, name, path, "order", is_order_type, "a number or a time", ())


def _flat_column(
    record: SchemaRecord,
    name: str,
    path: str,
    role: str,
    fits: Callable[[pa.DataType], bool],
    expected: str,
    folders: Sequence[str],
) -> FlatColumn:
    numbers = [i for i, field_name in enumerate(record.field_names) if field_name == name]
    if len(numbers) != 1:
        hint = "write the file with each column named once"
        if not numbers:
            hint = _near_names(record.field_names, name, role)
        if name in folders:
            hint = f"{name!r} is a folder name, not a column of the file; {hint}"
        raise ColumnMissingError(
            f"{role} column {name!r} is {f'there {len(numbers)} times' if numbers else 'missing'}: {path}",
            hint=hint,
            file=path,
            column=name,
        )
    leaves = [i for i, leaf in enumerate(record.leaves) if leaf.field == numbers[0]]
    arrow_type = plain_type(record.to_arrow().field(numbers[0]).type)
    is_flat = len(leaves) == 1 and record.leaves[leaves[0]].max_repetition_level == 0
    if not is_flat or not fits(arrow_type):
        raise ColumnTypeError(
            f"{role} column {name!r} cannot be used: {path}; expected {expected} column, found {type_name(arrow_type)}",
            hint=f"name another column with --{role}",
            file=path,
            column=name,
            expected=expected,
            found=type_name(arrow_type),
        )
    return FlatColumn(name=name, field=numbers[0], leaf=leaves[0], arrow_type=arrow_type)


def _near_names(names: Sequence[str], name: str, role: str) -> str:
    near = [n for n in names if n.lower() == name.lower()]
    near += [n for n in difflib.get_close_matches(name, names, n=3, cutoff=0.5) if n not in near]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}? Name it with --{role}"
    there = ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"name the {role} column with --{role}; the file has {there}"


# -- the runs -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class FileRuns:
    """The runs of one file, in the order of its rows, and what was found on the way.

    Attributes
    ----------
    row_group : ndarray, shape (n_runs,), int32
    row_start, row_stop : ndarray, shape (n_runs,), int64
    seq_id, order_min, order_max : pa.Array, length n_runs
    order_proved : bool
        Whether the order column was read and increases inside each run, but for `order_faults`.
    null_runs, n_null_rows
        Rows without a key, which are in no run.
    order_faults : list of Place
    n_key_reads : int
        Row groups whose key column was read, since bounds do not prove one key.
    """

    row_group: npt.NDArray[np.int32]
    row_start: Int64Array
    row_stop: Int64Array
    seq_id: pa.Array
    order_min: pa.Array
    order_max: pa.Array
    order_proved: bool
    null_runs: list[Place] = field(default_factory=list)
    n_null_rows: int = 0
    order_faults: list[Place] = field(default_factory=list)
    n_key_reads: int = 0


def find_runs(
    file: storage.SourceFile,
    meta: FileMetadata,
    record: SchemaRecord,
    key: FlatColumn,
    order: FlatColumn | None,
    *,
    key_bounds: Bounds,
    check_order: bool,
    trust_statistics: bool,
    groups: range | None = None,
) -> FileRuns:
    """Return all runs of equal keys of a file.

    Parameters
    ----------
    file, meta, record
        The file, its footer and its schema.
    key, order
        The columns.
    key_bounds
        The key's footer bounds.
    check_order
        Read the order column and check that it strictly increases inside each run; else its bounds are taken from
        the footer where they are exact.
    trust_statistics
        Take exact and equal bounds as proof that a row group has one key.
    groups
        Look at these row groups only; at all of them by default.
    """
    groups = range(meta.n_row_groups) if groups is None else groups
    proved = proved_by_bounds(meta, key.leaf, key_bounds) & trust_statistics & _inside(meta, groups)
    collector = _Collector(file, meta, record, key, order if check_order else None)
    order_bounds = bounds(meta, order.leaf) if order is not None and not check_order else None
    spans = _spans(proved)
    group = groups.start
    while group < groups.stop:
        stop = spans.get(group, group + 1)
        if proved[group]:
            collector.add_proved(group, stop, key_bounds.min, order_bounds)
        elif meta.group_n_rows[group]:
            collector.add_read(group)
        group = stop
    return collector.result(key.arrow_type, pa.null() if order is None else order.arrow_type)


def find_whole_runs(
    file: storage.SourceFile,
    meta: FileMetadata,
    record: SchemaRecord,
    order: FlatColumn | None,
    *,
    seq_ids: pa.Array,
    check_order: bool,
    groups: range | None = None,
) -> FileRuns:
    """Return each row group that has rows as one run, where no column has to be read to know its key.

    Parameters
    ----------
    file, meta, record, order, check_order, groups
        As for `find_runs`.
    seq_ids : pa.Array, length (row groups)
        The key of each row group.
    """
    collector = _Collector(file, meta, record, None, order if check_order else None)
    order_bounds = bounds(meta, order.leaf) if order is not None and not check_order else None
    for first, stop in _spans((meta.group_n_rows > 0) & _inside(meta, groups)).items():
        collector.add_proved(first, stop, seq_ids, order_bounds)
    return collector.result(seq_ids.type, pa.null() if order is None else order.arrow_type)


def find_row_runs(
    file: storage.SourceFile,
    meta: FileMetadata,
    record: SchemaRecord,
    order: FlatColumn | None,
    *,
    check_order: bool,
    groups: range | None = None,
) -> FileRuns:
    """Return each row as one run, without a key; parameters as for `find_runs`."""
    collector = _Collector(file, meta, record, None, order if check_order else None)
    for group in np.flatnonzero((meta.group_n_rows > 0) & _inside(meta, groups)).tolist():
        collector.add_rows(group)
    return collector.result(pa.string(), pa.null() if order is None else order.arrow_type)


def without_keys(runs: FileRuns, path: str) -> FileRuns:
    """Return the runs of a file whose rows have no key: none, and where they would be."""
    places = zip(runs.row_group.tolist(), runs.row_start.tolist(), runs.row_stop.tolist(), strict=True)
    return FileRuns(
        row_group=runs.row_group[:0],
        row_start=runs.row_start[:0],
        row_stop=runs.row_stop[:0],
        seq_id=runs.seq_id[:0],
        order_min=runs.order_min[:0],
        order_max=runs.order_max[:0],
        order_proved=runs.order_proved,
        null_runs=[
            Place(file=path, row_group=g, row_start=a, row_stop=b, found="null") for g, a, b in places
        ],
        n_null_rows=int((runs.row_stop - runs.row_start).sum()),
    )


def _spans(marked: npt.NDArray[np.bool_]) -> dict[int, int]:
    """Return where each run of marked row groups starts and stops."""
    edges = np.flatnonzero(np.diff(marked.astype(np.int8), prepend=0, append=0))
    return {int(first): int(stop) for first, stop in zip(edges[::2], edges[1::2], strict=True)}


def _inside(meta: FileMetadata, groups: range | None) -> npt.NDArray[np.bool_]:
    inside = np.ones(meta.n_row_groups, bool)
    if groups is not None:
        inside[: groups.start] = inside[groups.stop :] = False
    return inside


def proved_by_bounds(meta: FileMetadata, leaf: int, found: Bounds) -> npt.NDArray[np.bool_]:
    """Return for each row group whether exact bounds of the key's leaf prove that all its rows have one key."""
    equal = pc.fill_null(pc.equal(found.min, found.max), False).to_numpy(zero_copy_only=False)
    no_nulls = pc.fill_null(pc.equal(found.null_count, 0), False).to_numpy(zero_copy_only=False)
    whole = meta.chunks.num_values[:, leaf] == meta.group_n_rows
    return np.asarray(equal & no_nulls & found.exact & whole & (meta.group_n_rows > 0), bool)


class _Collector:
    """Reads the key and order column of single row groups, and collects the runs of the file."""

    def __init__(
        self,
        file: storage.SourceFile,
        meta: FileMetadata,
        record: SchemaRecord,
        key: FlatColumn | None,
        order: FlatColumn | None,
    ) -> None:
        self._file = file
        self._meta = meta
        self._record = record
        self._key = key
        self._order = order
        self._projections: dict[tuple[int, ...], Projection] = {}
        self._groups: list[npt.NDArray[np.int32]] = []
        self._starts: list[Int64Array] = []
        self._stops: list[Int64Array] = []
        self._keys: list[pa.Array] = []
        self._lows: list[pa.Array] = []
        self._highs: list[pa.Array] = []
        self._null_runs: list[Place] = []
        self._n_null_rows = 0
        self._order_faults: list[Place] = []
        self._n_key_reads = 0

    def add_proved(self, first: int, stop: int, keys: pa.Array, order_bounds: Bounds | None) -> None:
        """Add the row groups [first, stop), each known to have one key, at once."""
        n = stop - first
        n_rows = self._meta.group_n_rows[first:stop]
        self._add(np.arange(first, stop, dtype=np.int32), np.zeros(n, np.int64), n_rows, keys[first:stop])
        if self._order is not None:
            for group in range(first, stop):
                (values,) = self._read(group, [self._order])
                self._add_order(group, values, np.zeros(1, np.int64), np.array([len(values)], np.int64))
        elif order_bounds is not None:
            inexact = pa.array(~order_bounds.exact[first:stop])
            self._check_bounds_have_room(first, stop, order_bounds)
            for target, values in ((self._lows, order_bounds.min), (self._highs, order_bounds.max)):
                target.append(pc.if_else(inexact, pa.scalar(None, values.type), values[first:stop]))
        else:
            self._lows.append(pa.nulls(n))
            self._highs.append(pa.nulls(n))

    def add_rows(self, group: int) -> None:
        """Add every row of a row group as a run of its own."""
        n = int(self._meta.group_n_rows[group])
        starts = np.arange(n, dtype=np.int64)
        self._add(np.full(n, group, np.int32), starts, starts + 1, pa.nulls(n, pa.string()))
        if self._order is not None:
            (values,) = self._read(group, [self._order])
            self._add_order(group, values, starts, starts + 1)
        else:
            self._lows.append(pa.nulls(n))
            self._highs.append(pa.nulls(n))

    def add_read(self, group: int) -> None:
        """Add the runs of a row group whose key column has to be read; rows without a key are recorded apart."""
        assert self._key is not None  # noqa: S101  # only `find_runs` comes here, with a column
        columns = [self._key] if self._order is None else [self._key, self._order]
        keys, *order = self._read(group, columns)
        self._n_key_reads += 1
        starts, stops = run_bounds(keys)
        values = keys.take(pa.array(starts))
        self._check_text(group, values, self._key.name)
        if values.null_count:
            is_null = values.is_null().to_numpy(zero_copy_only=False)
            self._n_null_rows += int((stops - starts)[is_null].sum())
            self._null_runs.extend(
                self._place(group, int(a), int(b), "null")
                for a, b in zip(starts[is_null], stops[is_null], strict=True)
            )
            starts, stops, values = starts[~is_null], stops[~is_null], values.drop_null()
        self._add(np.full(len(starts), group, np.int32), starts, stops, values)
        if order:
            self._add_order(group, order[0], starts, stops)
        else:
            self._lows.append(pa.nulls(len(starts)))
            self._highs.append(pa.nulls(len(starts)))

    def result(self, key_type: pa.DataType, order_type: pa.DataType) -> FileRuns:
        """Return what was collected."""
        none32, none64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return FileRuns(
            row_group=np.concatenate([none32, *self._groups]),
            row_start=np.concatenate([none64, *self._starts]),
            row_stop=np.concatenate([none64, *self._stops]),
            seq_id=concat(self._keys, key_type),
            order_min=concat(self._lows, order_type),
            order_max=concat(self._highs, order_type),
            order_proved=self._order is not None,
            null_runs=self._null_runs,
            n_null_rows=self._n_null_rows,
            order_faults=self._order_faults,
            n_key_reads=self._n_key_reads,
        )

    def _add(
        self, groups: npt.NDArray[np.int32], starts: Int64Array, stops: Int64Array, keys: pa.Array
    ) -> None:
        self._groups.append(groups)
        self._starts.append(starts)
        self._stops.append(stops)
        self._keys.append(plain_array(keys))

    def _add_order(self, group: int, values: pa.Array, starts: Int64Array, stops: Int64Array) -> None:
        """Add the first and last order value of each run, and record where the column does not increase."""
        self._lows.append(values.take(pa.array(starts)))
        self._highs.append(values.take(pa.array(stops - 1)))
        faults = order_faults(values, starts, stops)[:MAX_ORDER_FAULTS]
        for row, is_first in zip(faults.tolist(), np.isin(faults, starts).tolist(), strict=True):
            found = repr(values[row].as_py())
            if not is_first:
                found += f" after {values[row - 1].as_py()!r}"
            self._order_faults.append(self._place(group, row, row + 1, found))

    def _check_bounds_have_room(self, first: int, stop: int, order_bounds: Bounds) -> None:
        """Record the row groups whose integer bounds have no room for as many increasing values as there are rows."""
        if not pa.types.is_integer(order_bounds.min.type):
            return
        n_rows = self._meta.group_n_rows[first:stop]
        low, high = (
            pc.fill_null(side[first:stop], 0)
            .to_numpy(zero_copy_only=False)
            .astype(np.int64, copy=False)
            .view(np.uint64)
            for side in (order_bounds.min, order_bounds.max)
        )
        # Modulo 2**64, so that no difference of two integers overflows.
        steps = high - low
        narrow = (
            order_bounds.exact[first:stop] & (n_rows > 0) & (steps < (n_rows - 1).clip(0).astype(np.uint64))
        )
        for i in np.flatnonzero(narrow)[:MAX_ORDER_FAULTS].tolist():
            group = first + i
            found = f"only {order_bounds.min[group].as_py()} to {order_bounds.max[group].as_py()}"
            self._order_faults.append(self._place(group, 0, int(n_rows[i]), found))

    def _check_text(self, group: int, values: pa.Array, key: str) -> None:
        """Refuse keys that say they are text and are not UTF-8, which no table of an index may hold."""
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadFileError(
                f"key column {key!r} holds invalid text: {self._meta.file}, row group {group}: {error}",
                hint="write the column as binary, or name another key with --key",
                file=self._meta.file,
                row_group=group,
                column=key,
            ) from error

    def _place(self, group: int, start: int, stop: int, found: str) -> Place:
        return Place(file=self._meta.file, row_group=group, row_start=start, row_stop=stop, found=found)

    def _read(self, group: int, columns: Sequence[FlatColumn]) -> list[pa.Array]:
        """Return some columns of a row group, each as one array of its plain type; an error names the column."""
        try:
            return self._read_together(group, columns)
        except BadFileError as error:
            if len(columns) == 1:
                raise in_column(error, self._meta.file, group, columns[0].name) from error
            for column in columns:  # which of them is it?
                self._read(group, [column])
            raise

    def _read_together(self, group: int, columns: Sequence[FlatColumn]) -> list[pa.Array]:
        fields = tuple(sorted({column.field for column in columns}))
        projection = self._projections.get(fields)
        if projection is None:
            projection = self._projections[fields] = self._record.project(fields)
        table = read_group(
            projection,
            ChunkPlaces.from_metadata(self._meta, group, projection.leaf_indices),
            self._file.read_ranges,
            n_rows=int(self._meta.group_n_rows[group]),
            file_size=self._file.facts.size_bytes,
            file=self._meta.file,
            row_group=group,
        )
        return [plain_array(table.column(fields.index(column.field))) for column in columns]


def in_column(error: PqindexError, file: str, row_group: int, name: str) -> PqindexError:
    """Return an error about a row group as one that names the column; one that does so already is returned as it is."""
    if "column" in error.facts:
        return error
    where = f"{file}, row group {row_group}"
    message = error.message.replace(where, f"{where}, column {name!r}", 1)
    return type(error)(message, hint=error.hint, **{**error.facts, "column": name})


def run_bounds(keys: pa.Array) -> tuple[Int64Array, Int64Array]:
    """Return the half-open bounds of the runs of equal values, nulls equal to each other.

    Shapes (n_runs,), int64. No Python loop over rows.

    >>> run_bounds(pa.array([7, 7, None, None, 9]))
    (array([0, 2, 4]), array([2, 4, 5]))
    """
    n = len(keys)
    if n == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    differs = pc.fill_null(pc.not_equal(keys[1:], keys[:-1]), False).to_numpy(zero_copy_only=False)
    if keys.null_count:
        is_null = keys.is_null().to_numpy(zero_copy_only=False)
        differs = differs | (is_null[1:] != is_null[:-1])
    inner = np.flatnonzero(differs).astype(np.int64) + 1
    return np.append(np.int64(0), inner), np.append(inner, np.int64(n))


def order_faults(values: pa.Array, starts: Int64Array, stops: Int64Array) -> Int64Array:
    """Return the rows inside the runs that are null, NaN, or not greater than the row before in their run."""
    n = len(values)
    good = np.ones(n, bool)
    good[1:] = pc.fill_null(pc.greater(values[1:], values[:-1]), False).to_numpy(zero_copy_only=False)
    good[starts] = True
    good &= values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        good &= ~pc.fill_null(pc.is_nan(values), True).to_numpy(zero_copy_only=False)
    # Runs do not overlap, so that no row starts or stops two of them.
    steps = np.zeros(n + 1, np.int8)
    steps[starts] += 1
    steps[stops] -= 1
    in_a_run = np.cumsum(steps[:n]).astype(bool)
    return np.flatnonzero(in_a_run & ~good)
