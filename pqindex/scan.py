"""What one batch of source files holds: footers as columns, and the runs of the key column.

The work is a map over batches of paths, with plain data in and out, so that processes of one machine do it today and
a cluster may do it later. Nothing here knows of parts, snapshots or other batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pqindex import storage
from pqindex.arrowtypes import (
    concat,
    is_bounds_type,
    is_key_type,
    plain_array,
    plain_type,
    type_name,
    unify_types,
)
from pqindex.digest import sha256_hex
from pqindex.errors import (
    BadFileError,
    ColumnTypeError,
    SourceChangedError,
    SourceError,
    UnsupportedFileError,
)
from pqindex.footer import (
    TAIL_BYTES,
    Bounds,
    FileMetadata,
    PagePlaces,
    SchemaRecord,
    bounds,
    bounds_of_files,
    find_pages,
    parse_footer,
    read_tail,
)
from pqindex.format import CHUNK_FACTS, CHUNKS, FILES, PAGES, stats_type
from pqindex.keyruns import (
    FileRuns,
    FlatColumn,
    Place,
    find_row_runs,
    find_runs,
    find_whole_runs,
    key_column,
    order_column,
    proved_by_bounds,
    without_keys,
)
from pqindex.partitions import Comparison, PartitionValues, compare, hive_partition, typed
from pqindex.units import KEY

TOGETHER_BYTES = 1 << 24
"""Footers of so many bytes are looked at together: a file alone costs nearly as much as a hundred."""

ROWS_OF_WEIGHT_ONE = 1 << 16
"""What a row group weighs where its keys are read; see `ScanOptions.max_weight`."""

DEFAULT_STATS_COLUMNS = 64
"""Files with at most so many flat columns give statistics of all of them; wider files only of named columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """What a scan looks for.

    Attributes
    ----------
    key, order : str or None
        Column names; `key` is None for another unit than ``"key"``.
    unit : str
        What one sequence is.
    check_order : bool
        Whether the order column is read and proved to increase.
    trust_statistics : bool
        Whether exact bounds that are equal prove a row group to hold one key.
    statistics : tuple of str or None
        Columns to keep bounds of; None is the default rule.
    pages : str
        Which row groups' page places are kept: ``"auto"`` (those that are not one run), ``"never"``, ``"always"``.
    partition_types : dict of str to str
        Types of partition values.
    partitions : dict of str to tuple or None
        The partition values of each file; None where its path says them.
    max_weight : int or None
        Of a file, read the keys of row groups up to so much weight, and leave the others to `scan_rest`; one row group
        weighs 1, and 1 more for each 65,536 rows. None reads all.
    """

    key: str | None
    order: str | None = None
    unit: str = KEY
    check_order: bool = False
    trust_statistics: bool = True
    statistics: tuple[str, ...] | None = None
    pages: str = "auto"
    partition_types: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, PartitionValues] | None = None
    max_weight: int | None = None

    def of(self, paths: Sequence[str]) -> ScanOptions:
        """Return the options with the partition values of these files only, as another process needs them."""
        if self.partitions is None:
            return self
        return replace(self, partitions={path: self.partitions[path] for path in paths})

    def partition(self, path: str) -> PartitionValues:
        """Return the partition values of a file."""
        return hive_partition(path) if self.partitions is None else self.partitions[path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file that could not be indexed."""

    path: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Row groups of a file that were left out, since there were many to read: ``[first, stop)``.

    Attributes
    ----------
    path : str
    file_id : int
        Inside the batch that left them out.
    facts : FileFacts
        Of the file that was scanned.
    first, stop : int
    """

    path: str
    file_id: int
    facts: storage.FileFacts
    first: int
    stop: int


@dataclass(slots=True, kw_only=True)
class ScanBatch:
    """What the files of one batch hold; `file_id` counts inside the batch.

    Attributes
    ----------
    files, row_groups, chunks, pages : pa.Table
        Rows of the tables of the format, `row_groups` with the key's type of this batch.
    runs : pa.Table
        One row a run of equal keys inside a row group: file_id, row_group, row_start, row_stop, seq_id, order_min,
        order_max, order_proved.
    group_stats : pa.Table
        One row a row group, a struct column a statistics column.
    schemas : list of SchemaRecord
    twins : set of str
        Lower-case names that several columns of one file have, letter case aside; no statistics are kept of them.
    null_runs, order_faults : list of Place
        Rows without a key; places where the order column does not increase.
    skipped : list of Skipped
    notes : list of str
    n_key_reads : int
        Row groups whose key column was read, since bounds do not prove one key.
    comparisons : list of Comparison
        Of partition values with columns of the same name.
    rest : list of Rest
        Row groups of these files whose runs and pages are not in the batch.
    """

    files: pa.Table
    row_groups: pa.Table
    chunks: pa.Table
    pages: pa.Table
    runs: pa.Table
    group_stats: pa.Table
    schemas: list[SchemaRecord]
    twins: set[str] = field(default_factory=set)
    null_runs: list[Place] = field(default_factory=list)
    n_null_rows: int = 0
    order_faults: list[Place] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    n_key_reads: int = 0
    comparisons: list[Comparison] = field(default_factory=list)
    rest: list[Rest] = field(default_factory=list)

    @property
    def n_files(self) -> int:
        """Number of files that were looked at, the skipped ones too."""
        return int(self.files.num_rows) + len(self.skipped)


def read_footer(file: storage.SourceFile, name: str) -> tuple[bytes, int]:
    """Return a source file's footer and its offset.

    Raises
    ------
    BadFileError, UnsupportedFileError
        If the tail of the file is not that of plain Parquet.
    """
    size = file.facts.size_bytes
    tail = file.read(max(0, size - TAIL_BYTES), min(size, TAIL_BYTES))
    offset, length = read_tail(tail, file_size=size, file=name)
    return file.read(offset, length), offset


def scan_files(
    root: str,
    paths: Sequence[str],
    options: ScanOptions,
    *,
    on_bad_file: Callable[[str, SourceError], Skipped] | None = None,
) -> ScanBatch:
    """Read the footers of some files, and the key column where a footer does not prove the keys.

    Cost: one open, two small reads and one parse a file; the key column's bytes for each row group that bounds do
    not prove. Memory: footers of 16 MB or one that is larger, and the keys of one row group, at a time.

    Parameters
    ----------
    root, paths
        Where the files are.
    options
        What to look for.
    on_bad_file
        Called for a file that is not readable Parquet; what it returns is recorded. Default: the error is raised.
    """
    scanned: list[_FileScan] = []
    skipped: list[Skipped] = []
    schemas: dict[SchemaRecord, int] = {}

    def record_bad(path: str, error: SourceError) -> None:
        if on_bad_file is None:
            raise error
        skipped.append(on_bad_file(path, error))

    for footers in _read_footers(root, paths, record_bad):
        for footer, found in zip(footers, _bounds_of_leaves(footers, options), strict=True):
            try:
                with _Reopened(storage.join(root, footer.path), footer.facts) as file:
                    scanned.append(_scan_file(file, footer, found, options, schemas))
            except (BadFileError, UnsupportedFileError) as error:
                record_bad(footer.path, error)
    in_order = {path: i for i, path in enumerate(paths)}
    skipped.sort(key=lambda s: in_order[s.path])
    return _batch(scanned, options, list(schemas), skipped, [])


def scan_rest(root: str, rest: Rest, options: ScanOptions) -> ScanBatch:
    """Read the keys of row groups that `scan_files` left out; a batch with their runs and pages, and nothing else.

    Cost: one parse of the footer a process, and the key column's bytes.

    Raises
    ------
    SourceChangedError
        If the file is not the one that was scanned.
    SourceError
        As `scan_files` does.
    """
    with storage.SourceFile(storage.join(root, rest.path)) as file:
        if file.facts != rest.facts:
            raise SourceChangedError(
                f"file was changed while it was indexed: {rest.path}",
                hint="run the command again when nobody writes to it",
                file=rest.path,
            )
        whole = replace(options, max_weight=None)
        footer, found = _parsed_again(root, rest.path, rest.facts, options.key)
        groups = range(rest.first, rest.stop)
        scan = _scan_file(file, footer, found, whole, {}, groups)
    batch = _batch([scan], whole, [footer.record], [], [])
    tables = {
        name: getattr(batch, name).slice(0, 0) for name in ("files", "row_groups", "chunks", "group_stats")
    }
    return replace(batch, schemas=[], twins=set(), comparisons=[], **tables)


@lru_cache(maxsize=1)
def _parsed_again(
    root: str, path: str, _facts: storage.FileFacts, key: str | None
) -> tuple[_Footer, dict[int, Bounds]]:
    """Return the footer of a file and the bounds of its key; a process reads a large file from one end to the other."""
    (footers,) = _read_footers(root, [path], _raise_bad)
    options = ScanOptions(key=key, statistics=())
    return footers[0], _bounds_of_leaves(footers, options)[0]


def _raise_bad(_path: str, error: SourceError) -> None:
    raise error


# -- footers of several files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Footer:
    path: str
    facts: storage.FileFacts
    meta: FileMetadata
    record: SchemaRecord
    sha256: bytes


def _read_footers(
    root: str, paths: Sequence[str], on_bad_file: Callable[[str, SourceError], None]
) -> Iterator[list[_Footer]]:
    """Yield the footers of files, as many at once as have `TOGETHER_BYTES`; no file is open in between."""
    footers: list[_Footer] = []
    n_bytes = 0
    for path in paths:
        try:
            with storage.SourceFile(storage.join(root, path)) as file:
                raw, _ = read_footer(file, path)
                facts = file.facts
            meta = parse_footer(raw, file=path, file_size=facts.size_bytes)
            record = SchemaRecord.from_metadata(meta)
        except (BadFileError, UnsupportedFileError) as error:
            on_bad_file(path, error)
            continue
        sha256 = bytes.fromhex(sha256_hex(raw))
        footers.append(_Footer(path=path, facts=facts, meta=meta, record=record, sha256=sha256))
        n_bytes += len(raw)
        if n_bytes >= TOGETHER_BYTES:
            yield footers
            footers, n_bytes = [], 0
    if footers:
        yield footers


def _bounds_of_leaves(footers: Sequence[_Footer], options: ScanOptions) -> list[dict[int, Bounds]]:
    """Return the bounds of the key and of the statistics columns of each file, by leaf; files of one schema at once."""
    alike: dict[SchemaRecord, list[int]] = {}
    for i, footer in enumerate(footers):
        alike.setdefault(footer.record, []).append(i)
    found: list[dict[int, Bounds]] = [{} for _ in footers]
    for record, numbers in alike.items():
        leaves = list(
            dict.fromkeys([*_key_leaves(record, options.key), *_stats_leaves_of(record, options).values()])
        )
        together = bounds_of_files([footers[i].meta for i in numbers], leaves)
        for i, own in zip(numbers, together, strict=True):
            found[i] = dict(zip(leaves, own, strict=True))
    return found


def _key_leaves(record: SchemaRecord, key: str | None) -> list[int]:
    """Return the leaf of the key column, none where it is missing, nested or there twice."""
    leaves = [i for i, leaf in enumerate(record.leaves) if leaf.path[0] == key]
    return leaves if len(leaves) == 1 and record.field_names.count(key) == 1 else []


class _Reopened(storage.SourceFile):
    """A file whose footer was read, opened again when more of it is read, after the check that it is the same."""

    __slots__ = ()

    def __init__(self, path: str, facts: storage.FileFacts) -> None:
        self._fd = -1
        self.path = path
        self.facts = facts

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if self._fd < 0:
            facts = self.facts
            super().__init__(self.path)
            if self.facts != facts:
                raise BadFileError(
                    f"file was changed while it was indexed: {self.path}",
                    hint="run the command again when nobody writes to it",
                    file=self.path,
                )
        return super().read(offset, length)


# -- one file -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileScan:
    path: str
    facts: storage.FileFacts
    meta: FileMetadata
    footer_sha256: bytes
    schema_no: int
    key_bounds: Bounds
    runs: FileRuns
    stats: dict[str, Bounds]
    pages: list[tuple[int, int, PagePlaces]]
    partition: PartitionValues
    comparisons: list[Comparison]
    left_out: list[range]


def _scan_file(
    file: storage.SourceFile,
    footer: _Footer,
    found: Mapping[int, Bounds],
    options: ScanOptions,
    schemas: dict[SchemaRecord, int],
    groups: range | None = None,
) -> _FileScan:
    """Scan a file, or some row groups of it; by default as many as its options have read at once."""
    path, meta, record = footer.path, footer.meta, footer.record
    left_out: list[range] = []
    if groups is None:
        groups, *left_out = _ranges(meta, record, found, options)
    partition = options.partition(path)
    order = None if options.order is None else order_column(record, options.order, path)
    key_bounds, runs = _keys_and_runs(file, path, meta, record, order, options, found, groups)
    return _FileScan(
        path=path,
        facts=footer.facts,
        meta=meta,
        footer_sha256=footer.sha256,
        schema_no=schemas.setdefault(record, len(schemas)),
        key_bounds=key_bounds,
        runs=runs,
        stats={n: found[leaf] for n, leaf in _stats_leaves_of(record, options).items() if leaf in found},
        pages=_page_places(file, meta, runs, options.pages, groups),
        partition=partition,
        comparisons=_comparisons(path, meta, record, partition),
        left_out=left_out,
    )


def _ranges(
    meta: FileMetadata, record: SchemaRecord, found: Mapping[int, Bounds], options: ScanOptions
) -> list[range]:
    """Cut the row groups of a file into ranges, each of which is read at once; one range where little is read."""
    n = meta.n_row_groups
    if options.max_weight is None or n == 0:
        return [range(n)]
    reads = meta.group_n_rows > 0
    if not options.check_order:
        leaves = [i for i in _key_leaves(record, options.key) if is_key_type(plain_type(found[i].min.type))]
        proved = [proved_by_bounds(meta, leaf, found[leaf]) & options.trust_statistics for leaf in leaves]
        reads = reads & ~proved[0] if proved else np.zeros(n, bool)
    weights = np.where(reads, 1 + meta.group_n_rows // ROWS_OF_WEIGHT_ONE, 0)
    part = (np.cumsum(weights) - weights) // options.max_weight
    edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), n]
    return [range(first, stop) for first, stop in pairwise(edges)]


def _keys_and_runs(
    file: storage.SourceFile,
    path: str,
    meta: FileMetadata,
    record: SchemaRecord,
    order: FlatColumn | None,
    options: ScanOptions,
    found: Mapping[int, Bounds],
    groups: range,
) -> tuple[Bounds, FileRuns]:
    """Return the key's bounds and the runs of a file, by whatever says what a sequence is."""
    n = meta.n_row_groups
    if options.unit == "row":
        runs = find_row_runs(file, meta, record, order, check_order=options.check_order, groups=groups)
        return _unknown_bounds(n), runs
    if options.key is None:
        no_ids = pa.nulls(n, pa.string())
        runs = find_whole_runs(
            file, meta, record, order, seq_ids=no_ids, check_order=options.check_order, groups=groups
        )
        return _unknown_bounds(n), runs
    partition = dict(options.partition(path))
    if options.key in partition and options.key not in record.field_names:
        wanted = options.partition_types.get(options.key)
        value = typed(pa.array([partition[options.key]], pa.string()), options.key, wanted, [path])
        if not is_key_type(value.type):
            raise ColumnTypeError(
                f"partition {options.key!r} cannot name sequences as {wanted}",
                hint=f"leave it text, or give it another type with --partition-type {options.key}=TYPE",
                column=options.key,
                file=path,
                found=wanted,
            )
        keys = value.take(pa.array(np.zeros(n, np.int32)))
        runs = find_whole_runs(
            file, meta, record, order, seq_ids=keys, check_order=options.check_order, groups=groups
        )
        if value.null_count:
            return _unknown_bounds(n, keys.type), without_keys(runs, path)
        return Bounds(
            min=keys, max=keys, null_count=pa.array(np.zeros(n, np.int64)), exact=np.ones(n, bool)
        ), runs
    key = key_column(record, options.key, path, folders=list(partition))
    key_bounds = found[key.leaf]
    runs = find_runs(
        file,
        meta,
        record,
        key,
        order,
        key_bounds=key_bounds,
        check_order=options.check_order,
        trust_statistics=options.trust_statistics,
        groups=groups,
    )
    return key_bounds, runs


def _unknown_bounds(n: int, data_type: pa.DataType | None = None) -> Bounds:
    values = pa.nulls(n, pa.string() if data_type is None else data_type)
    return Bounds(min=values, max=values, null_count=pa.nulls(n, pa.int64()), exact=np.zeros(n, bool))


def _comparisons(
    path: str, meta: FileMetadata, record: SchemaRecord, partition: PartitionValues
) -> list[Comparison]:
    """Compare the partition values of a file with its columns of the same names."""
    both = {name: value for name, value in partition if record.field_names.count(name) == 1}
    found = []
    for i, leaf in enumerate(record.leaves):
        name = leaf.path[0]
        if name in both and len(leaf.path) == 1 and leaf.max_repetition_level == 0:
            found.append(compare(name, path, both[name], bounds(meta, i), meta.group_n_rows))
    return found


def _page_places(
    file: storage.SourceFile, meta: FileMetadata, runs: FileRuns, which: str, groups: range
) -> list[tuple[int, int, PagePlaces]]:
    """Return (row group, leaf, places) of the chunks that have several pages, in the row groups that are wanted.

    In ``"auto"`` those are the row groups of which somebody will want a part: they are not one run.
    """
    if which == "never":
        return []
    whole = np.zeros(meta.n_row_groups, bool)
    if which == "auto":
        is_whole = (runs.row_start == 0) & (runs.row_stop == meta.group_n_rows[runs.row_group])
        whole[runs.row_group[is_whole]] = True
    found = []
    for group in groups:
        if whole[group] or not meta.group_n_rows[group]:
            continue
        for leaf, places in enumerate(find_pages(meta, group, file.read)):
            if places is not None and len(places) > 1:
                found.append((group, leaf, places))
    return found


def _twins(record: SchemaRecord) -> set[str]:
    """Return the lower-case names that several top-level columns share."""
    counts = Counter(name.lower() for name in record.field_names)
    return {name for name, n in counts.items() if n > 1}


def _stats_leaves_of(record: SchemaRecord, options: ScanOptions) -> dict[str, int]:
    """Return the leaf of each column that statistics are kept of."""
    others = frozenset(name for name in (options.key, options.order) if name is not None)
    return _stats_leaves(record, options.statistics, others)


@lru_cache(maxsize=64)
def _stats_leaves(
    record: SchemaRecord, statistics: tuple[str, ...] | None, others: frozenset[str]
) -> dict[str, int]:
    """Return the leaf of each column that statistics are kept of; by default all but `others`."""
    flat = {}
    twins = _twins(record)
    for i, leaf in enumerate(record.leaves):
        if len(leaf.path) == 1 and leaf.max_repetition_level == 0 and leaf.path[0].lower() not in twins:
            flat[leaf.path[0]] = i
    arrow = record.to_arrow()
    if statistics is not None:
        names: Iterable[str] = statistics
    elif len(flat) <= DEFAULT_STATS_COLUMNS:
        names = [name for name in flat if name not in others]
    else:
        names = ()
    return {
        name: flat[name]
        for name in dict.fromkeys(names)
        if name in flat
        and name
        and is_bounds_type(plain_type(arrow.field(record.leaves[flat[name]].field).type))
    }


# -- the rows of the batch ------------------------------------------------------------------------------------


def _batch(
    scanned: list[_FileScan],
    options: ScanOptions,
    schemas: list[SchemaRecord],
    skipped: list[Skipped],
    notes: list[str],
) -> ScanBatch:
    key_type = one_type(((scan.runs.seq_id.type, scan.path) for scan in scanned), column=options.key or "")
    order_type = one_type(
        ((scan.runs.order_min.type, scan.path) for scan in scanned), column=options.order or ""
    )
    return ScanBatch(
        files=_files_table(scanned),
        row_groups=_row_groups_table(scanned, key_type),
        chunks=_chunks_table(scanned),
        pages=_pages_table(scanned),
        runs=_runs_table(scanned, key_type, order_type),
        group_stats=_group_stats_table(scanned, notes),
        schemas=schemas,
        twins={name for schema in schemas for name in _twins(schema)},
        null_runs=[place for scan in scanned for place in scan.runs.null_runs],
        n_null_rows=sum(scan.runs.n_null_rows for scan in scanned),
        order_faults=[place for scan in scanned for place in scan.runs.order_faults],
        skipped=skipped,
        notes=notes,
        n_key_reads=sum(scan.runs.n_key_reads for scan in scanned),
        comparisons=[comparison for scan in scanned for comparison in scan.comparisons],
        rest=[
            Rest(path=scan.path, file_id=i, facts=scan.facts, first=groups.start, stop=groups.stop)
            for i, scan in enumerate(scanned)
            for groups in scan.left_out
        ],
    )


def one_type(found: Iterable[tuple[pa.DataType, str]], *, column: str) -> pa.DataType:
    """Return the type that holds a column's values of all files.

    Raises
    ------
    ColumnTypeError
        If there is none; it names a file of each type.
    """
    result = pa.null()
    example = ""
    for data_type, path in found:
        wider = unify_types([result, data_type])
        if wider is None:
            raise ColumnTypeError(
                f"column {column!r} has types that no one type holds: {type_name(result)} in {example}, "
                f"{type_name(data_type)} in {path}",
                hint="index the files apart, or write the column with one type",
                column=column,
                file=path,
                expected=type_name(result),
                found=type_name(data_type),
            )
        if wider != result:
            result, example = wider, path
    return result


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def _files_table(scanned: list[_FileScan]) -> pa.Table:
    columns = {
        "file_id": range(len(scanned)),
        "path": [scan.path for scan in scanned],
        "size_bytes": [scan.facts.size_bytes for scan in scanned],
        "mtime_ns": [scan.facts.mtime_ns for scan in scanned],
        "etag": [None] * len(scanned),
        "footer_offset": [scan.meta.footer_offset for scan in scanned],
        "footer_length": [len(scan.meta.footer) for scan in scanned],
        "footer_sha256": [scan.footer_sha256 for scan in scanned],
        "n_rows": [scan.meta.n_rows for scan in scanned],
        "n_row_groups": [len(scan.meta.group_n_rows) for scan in scanned],
        "schema_no": [scan.schema_no for scan in scanned],
        "created_by": [scan.meta.created_by for scan in scanned],
        "partition": [list(scan.partition) for scan in scanned],
    }
    return pa.table([pa.array(columns[f.name], f.type) for f in FILES], schema=FILES)


def _group_ids(scanned: list[_FileScan]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    counts = [len(scan.meta.group_n_rows) for scan in scanned]
    file_ids: npt.NDArray[np.int32] = np.repeat(np.arange(len(scanned), dtype=np.int32), counts)
    return file_ids, _joined([np.arange(n, dtype=np.int32) for n in counts], np.int32)


def _row_groups_table(scanned: list[_FileScan], key_type: pa.DataType) -> pa.Table:
    file_ids, row_groups = _group_ids(scanned)
    n_rows = _joined([scan.meta.group_n_rows for scan in scanned], np.int64)
    offsets = [np.cumsum(scan.meta.group_n_rows) - scan.meta.group_n_rows for scan in scanned]
    sizes = [scan.meta.chunks.total_compressed_size.clip(0).sum(axis=1) for scan in scanned]
    return pa.table(
        {
            "file_id": file_ids,
            "row_group": row_groups,
            "n_rows": n_rows,
            "row_offset": _joined(offsets, np.int64),
            "total_byte_size": _joined([scan.meta.group_byte_size for scan in scanned], np.int64),
            "total_compressed_size": _joined(sizes, np.int64),
            "key_min": concat([plain_array(scan.key_bounds.min) for scan in scanned], key_type),
            "key_max": concat([plain_array(scan.key_bounds.max) for scan in scanned], key_type),
            "key_null_count": concat([scan.key_bounds.null_count for scan in scanned], pa.int64()),
            "key_exact": np.concatenate([scan.key_bounds.exact for scan in scanned] or [np.zeros(0, bool)]),
        }
    )


def _chunks_table(scanned: list[_FileScan]) -> pa.Table:
    file_ids, row_groups = _group_ids(scanned)
    widths = [np.full(len(s.meta.group_n_rows), len(s.meta.leaves), np.int32) for s in scanned]
    offsets = np.concatenate([[0], np.cumsum(_joined(widths, np.int32))]).astype(np.int32)
    columns: list[pa.Array] = [pa.array(file_ids), pa.array(row_groups)]
    for name, data_type in CHUNK_FACTS.items():
        flat = [getattr(scan.meta.chunks, name).ravel() for scan in scanned]
        values = pa.array(np.concatenate(flat) if flat else np.zeros(0), data_type)
        columns.append(pa.ListArray.from_arrays(pa.array(offsets), values, type=CHUNKS.field(name).type))
    return pa.table(columns, schema=CHUNKS)


def _pages_table(scanned: list[_FileScan]) -> pa.Table:
    rows = [(file_id, *row) for file_id, scan in enumerate(scanned) for row in scan.pages]
    stops = pa.array(np.concatenate([[0], np.cumsum([len(places) for *_, places in rows])]), pa.int32())

    def lists(name: str) -> pa.Array:
        data_type = PAGES.field(name).type
        values = _joined([getattr(places, name) for *_, places in rows], np.int64)
        return pa.ListArray.from_arrays(stops, pa.array(values, data_type.value_type), type=data_type)

    ids = [pa.array([row[i] for row in rows], pa.int32()) for i in range(3)]
    return pa.table([*ids, *(lists(name) for name in ("offset", "length", "first_row"))], schema=PAGES)


def _runs_table(scanned: list[_FileScan], key_type: pa.DataType, order_type: pa.DataType) -> pa.Table:
    counts = [len(scan.runs.row_group) for scan in scanned]
    return pa.table(
        {
            "file_id": np.repeat(np.arange(len(scanned), dtype=np.int32), counts),
            "row_group": _joined([scan.runs.row_group for scan in scanned], np.int32),
            "row_start": _joined([scan.runs.row_start for scan in scanned], np.int64),
            "row_stop": _joined([scan.runs.row_stop for scan in scanned], np.int64),
            "seq_id": concat([scan.runs.seq_id for scan in scanned], key_type),
            "order_min": concat([scan.runs.order_min for scan in scanned], order_type),
            "order_max": concat([scan.runs.order_max for scan in scanned], order_type),
            "order_proved": np.repeat(np.array([scan.runs.order_proved for scan in scanned], bool), counts),
        }
    )


def _group_stats_table(scanned: list[_FileScan], notes: list[str]) -> pa.Table:
    """Return the bounds of the statistics columns, a struct a column; null where a file lacks the column."""
    names = dict.fromkeys(name for scan in scanned for name in scan.stats)
    columns: dict[str, pa.Array] = {}
    for name in names:
        found = [(plain_type(scan.stats[name].min.type), scan.path) for scan in scanned if name in scan.stats]
        try:
            data_type = one_type(found, column=name)
        except ColumnTypeError as error:
            notes.append(f"no statistics: {error.message}")
            continue
        columns[name] = _stats_struct(scanned, name, data_type)
    n_groups = sum(len(scan.meta.group_n_rows) for scan in scanned)
    return pa.table(columns) if columns else pa.table({"": pa.nulls(n_groups)}).select([])


def _stats_struct(scanned: list[_FileScan], name: str, data_type: pa.DataType) -> pa.Array:
    """Return one column's statistics over all row groups: min and max where they are exact, and the null count."""
    struct = stats_type({name: data_type}).field(0).type
    found = [scan.stats.get(name) for scan in scanned]
    n_groups = [scan.meta.n_row_groups for scan in scanned]
    sized = list(zip(found, n_groups, strict=True))
    inexact = pa.array(np.concatenate([np.ones(n, bool) if f is None else ~f.exact for f, n in sized]))
    missing = pa.array(np.repeat([f is None for f in found], n_groups))
    values = []
    for side in ("min", "max"):
        parts = [pa.nulls(n, data_type) if f is None else plain_array(getattr(f, side)) for f, n in sized]
        values.append(pc.if_else(inexact, pa.scalar(None, data_type), concat(parts, data_type)))
    values.append(concat([pa.nulls(n) if f is None else f.null_count for f, n in sized], pa.int64()))
    return pa.StructArray.from_arrays(values, fields=list(struct), mask=missing)
