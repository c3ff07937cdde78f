"""From a source to a committed snapshot: a map over batches of files, one assembly, one commit."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pqindex import storage
from pqindex.assemble import assemble
from pqindex.content import add_content, validate_content_options
from pqindex.documents import BuildOptions, Part, Snapshot
from pqindex.errors import (
    FIRST_PLACES,
    BadFileError,
    ColumnMissingError,
    ConflictError,
    SourceChangedError,
    SourceError,
    UnsupportedFileError,
    UsageError,
)
from pqindex.footer import SchemaRecord
from pqindex.keyruns import Place
from pqindex.lakes import list_files
from pqindex.merging import order_of
from pqindex.partitions import (
    INDEX_COLUMNS,
    check_types_are_used,
    comparison_notes,
    partition_columns,
    validate_types,
)
from pqindex.scan import DEFAULT_STATS_COLUMNS, ScanBatch, ScanOptions, Skipped, one_type
from pqindex.sidecar import (
    Sidecar,
    commit,
    content_digest,
    open_sidecar,
    snapshot_numbers,
    write_part,
    writing,
)
from pqindex.units import KEY, UNITS
from pqindex.workers import n_cores, scanned, scanned_rests

MAX_BATCH_FILES = 256
RANGE_WEIGHT = 512
"""Row groups of one file whose keys are read at once, with more for large ones; see `scan.ScanOptions.max_weight`."""

MANY_PARTS = 16
"""An index with more parts than this is told of `compact`."""

Progress = Callable[[int, int, str], None]
"""Called with (files done, files in all, name of the phase)."""


def default_index_path(source: storage.PathLike | Sequence[storage.PathLike], root: str) -> str:
    """Return where the index of a source lies by default: beside it, with the suffix ``.pqindex``."""
    path = root
    if isinstance(source, str | os.PathLike) and os.path.isfile(source):
        path = os.path.splitext(os.path.abspath(source))[0]
    if path == os.path.dirname(path):
        raise UsageError(
            "the root folder has no place beside it for an index", hint="name one with -o / index="
        )
    return path + storage.INDEX_SUFFIX


def build_index(
    source: storage.PathLike | Sequence[storage.PathLike],
    options: BuildOptions,
    *,
    index: storage.PathLike | None = None,
    files: Sequence[storage.PathLike] | None = None,
    table_format: str | None = None,
    table_version: int | None = None,
    ignore_lake: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sidecar:
    """Index a source and commit a snapshot; the newest one is handed back where nothing changed.

    Cost: one footer a file, and the key column of each row group whose bounds do not prove its key. Memory: the
    rows of the index. A build that is stopped leaves the index as it was.

    Parameters
    ----------
    source
        Folder, file, glob pattern, or list of files.
    options
        What a sequence is, and what is checked.
    index
        Where the index lies; beside the source by default.
    files
        Exactly these files below the folder `source`.
    table_format, table_version, ignore_lake
        What of a table to take; see `lakes.list_files`.
    workers
        Number of processes; by default this one alone, joined by one a core where the source is large.
    progress
        Told how far the build is.

    Raises
    ------
    SourceError
        If the data is not what was asked for; each kind has its class.
    NotFoundError
        If the source is not there.
    ConflictError
        If another writer committed at the same time, or the place of the index holds something else.
    """
    _validate_options(options)
    listing = list_files(
        source, files, table_format=table_format, table_version=table_version, ignore_lake=ignore_lake
    )
    named = listing.root if listing.table is not None else source
    path = os.path.abspath(index) if index is not None else default_index_path(named, listing.root)
    parent = _newest(path)
    if parent is not None:
        _check_same_source(parent.snapshot, listing, path)

    scan = scan_source(listing, listing.paths, options, workers=workers, progress=progress)
    _check_statistics(options, scan)
    check_types_are_used(scan.files, options.partition_types)
    found = tables_of(listing, scan, options, workers=workers, progress=progress)
    if progress is not None:
        progress(len(listing.paths), len(listing.paths), "write")
    with writing(path):
        part, written = write_part(path, found.tables, found.notes)
        draft = new_snapshot(path, listing, options, found, parts=(part,), parent=parent)
        snapshot = summed_up(Sidecar(path, draft, {part.name: written}), listing)
        if parent is not None and _says_the_same(parent.snapshot, snapshot):
            return parent
        return commit(path, snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTables:
    """What was found in some files of a source, ready to be written as a part.

    Attributes
    ----------
    tables : dict of str to pyarrow.Table
        The tables of the part, none where no file is left.
    schemas : tuple of SchemaRecord
        What `files.schema_no` counts.
    skipped : tuple of Skipped
        Files that cannot be read.
    notes : tuple of str
        What there is to say of the files, for people.
    """

    tables: Mapping[str, pa.Table]
    schemas: tuple[SchemaRecord, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


def tables_of(
    listing: storage.Listing,
    scan: ScanBatch,
    options: BuildOptions,
    *,
    before: Sequence[SchemaRecord] = (),
    kept: Sequence[int] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> FoundTables:
    """Return the tables of the part that holds what was scanned, with what only the values tell.

    Files that turn out to be damaged when their pages are read are left out as if they were not there, where
    ``on_bad_file="skip"``: the others are then scanned once more.

    Parameters
    ----------
    listing, scan, options
        The source, and what was scanned of it. The scan's files are numbered anew, in place.
    before
        The schemas that the index has already, from which the numbers of schemas go on.
    kept
        Numbers of those that files have which are not scanned.
    workers, progress
        See `build_index`.

    Raises
    ------
    SourceError
        As `build_index` does.
    """
    n_files = len(listing.paths)
    damaged: tuple[Skipped, ...] = ()
    while True:
        skipped = sorted([*scan.skipped, *damaged], key=lambda one: one.path.encode())
        raise_bad_files(skipped, options, n_files=n_files)
        if progress is not None:
            progress(scan.files.num_rows, scan.files.num_rows, "assemble")
        schemas = _number_schemas(before, scan)
        if not scan.files.num_rows:
            return FoundTables(tables={}, schemas=schemas, skipped=tuple(skipped), notes=())
        content = add_content(
            _tables(scan, options),
            schemas,
            options,
            root=listing.root,
            types_of=list(dict.fromkeys([*(before[i] for i in kept), *scan.schemas])),
            n_processes=n_cores() if workers is None else workers,
            probe=workers is None,
            progress=progress,
        )
        if not content.skipped:
            break
        damaged += content.skipped
        raise_bad_files([*scan.skipped, *damaged], options, n_files=n_files)
        bad = {one.path for one in damaged}
        left = [path for path in scan.files.column("path").to_pylist() if path not in bad]
        scan = scan_source(listing, left, options, workers=workers, progress=progress)
    _check_unchanged(listing.root, scan.files)
    return FoundTables(
        tables=content.tables,
        schemas=schemas,
        skipped=tuple(skipped),
        notes=(*_scan_notes(scan, options), *content.notes),
    )


def _tables(scan: ScanBatch, options: BuildOptions) -> dict[str, pa.Table]:
    sequences, segments = assemble(scan, options)
    tables = {
        "files": scan.files,
        "row_groups": scan.row_groups.append_column(
            "data_sha256", pa.nulls(scan.row_groups.num_rows, pa.binary(32))
        ),
        "sequences": sequences,
        "chunks": scan.chunks,
    }
    if segments.num_rows:
        tables["segments"] = segments
    if scan.pages.num_rows:
        tables["pages"] = scan.pages
    return tables


def _number_schemas(before: Sequence[SchemaRecord], scan: ScanBatch) -> tuple[SchemaRecord, ...]:
    """Make the schema numbers of a scan go on from those that there are, and return all schemas."""
    numbers = {schema: i for i, schema in enumerate(before)}
    mapped = [numbers.setdefault(schema, len(numbers)) for schema in scan.schemas]
    if before and mapped:
        at = scan.files.column_names.index("schema_no")
        numbered = pa.array(mapped, pa.int32()).take(scan.files.column("schema_no").combine_chunks())
        scan.files = scan.files.set_column(at, scan.files.field(at), numbered)
    return tuple(numbers)


def new_snapshot(
    path: str,
    listing: storage.Listing,
    options: BuildOptions,
    found: FoundTables,
    *,
    parts: Sequence[Part],
    parent: Sidecar | None,
) -> Snapshot:
    """Return a draft of the snapshot that follows `parent`, of parts that are written already."""
    return Snapshot(
        number=1 if parent is None else parent.snapshot.number + 1,
        parent=None if parent is None else parent.snapshot.number,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        writer=f"pqindex {version('pqindex')}",
        root=os.path.relpath(listing.root, path).replace(os.sep, "/"),
        kind=listing.kind,
        ignore_lake=listing.ignore_lake,
        table=listing.table,
        passed_over=listing.skipped,
        options=options,
        schemas=found.schemas,
        parts=tuple(parts),
        skipped=tuple({"path": s.path, "reason": s.reason, "message": s.message} for s in found.skipped),
        notes=(),
        totals={},
        content_digest="",
    )


def summed_up(draft: Sidecar, listing: storage.Listing) -> Snapshot:
    """Return the snapshot of a draft with its notes, its totals and its content digest."""
    files, sequences = draft.files, draft.sequences
    n_rows = _sum(files, "n_rows")
    return replace(
        draft.snapshot,
        notes=tuple(_notes(draft, listing)),
        totals={
            "n_files": files.num_rows,
            "n_row_groups": _sum(files, "n_row_groups"),
            "n_rows": n_rows,
            "n_sequences": sequences.num_rows,
            "n_segments": _sum(sequences, "n_segments"),
            "n_skipped_rows": n_rows - _sum(sequences, "row_count"),
        },
        content_digest=content_digest(
            draft.snapshot.options, files, sequences, draft.segments, draft.row_groups
        ),
    )


def _sum(table: pa.Table, column: str) -> int:
    return int(pc.sum(table.column(column)).as_py() or 0)


def _check_unchanged(root: str, files: pa.Table) -> None:
    """Refuse to commit what was read of files that were written to in the meantime.

    Raises
    ------
    SourceChangedError
        If the size or time of a file is another one by now, or the file is gone.
    """
    columns = (files.column(name).to_pylist() for name in ("path", "size_bytes", "mtime_ns"))
    changed = [
        path
        for path, size_bytes, mtime_ns in zip(*columns, strict=True)
        if not storage.is_still(storage.join(root, path), size_bytes, mtime_ns)
    ]
    if changed:
        more = f" and {len(changed) - FIRST_PLACES} more" if len(changed) > FIRST_PLACES else ""
        raise SourceChangedError(
            f"{len(changed)} of {files.num_rows} files were changed while they were indexed: "
            f"{', '.join(changed[:FIRST_PLACES])}{more}",
            hint="run the command again when nobody writes to them, or leave them out with --files",
            file=changed[0],
            files=tuple(changed),
        )


def _validate_options(options: BuildOptions) -> None:
    choices = {
        "unit": UNITS,
        "check": ("footer", "keys", "full"),
        "layout": ("any", "one-per-row-group"),
        "on_bad_file": ("error", "skip"),
        "pages": ("auto", "never", "always"),
    }
    for name, allowed in choices.items():
        found = getattr(options, name)
        if found not in allowed:
            raise UsageError(f"{name}: expected one of {', '.join(allowed)}, found {found!r}")
    validate_types(options.partition_types)
    _validate_unit(options)
    if options.join and options.order is None:
        raise UsageError(
            "rows from several places can only be joined in the order of a column",
            hint="name it with --order / order=",
        )
    if options.order is not None and options.order == options.key:
        raise UsageError(f"the key and the order are the same column: {options.key!r}")
    validate_content_options(options)


def _validate_unit(options: BuildOptions) -> None:
    """Refuse what only sequences that a column names have."""
    if options.unit == KEY:
        if options.key is None:
            raise UsageError("unit 'key' needs the name of a column", hint="name it with --key / key=")
        return
    given = {
        "--key": options.key is not None,
        "--join": options.join,
        "--skip-null-keys": options.skip_null_keys,
        "--layout one-per-row-group": options.layout != "any",
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{name} is about sequences that a column names, and with --unit {options.unit} each "
                f"{options.unit.replace('_', ' ')} is one",
                hint=f"leave out {name} or --unit",
            )


def _newest(path: str) -> Sidecar | None:
    """Return the newest snapshot at `path`, None where an index may be made there."""
    if snapshot_numbers(path):
        return open_sidecar(path)
    others = [
        name
        for name in storage.names_in(path)
        if name != "parts" and not name.startswith(storage.TEMPORARY_PREFIX)
    ]
    if others or (storage.size_of(path) is not None and not os.path.isdir(path)):
        raise ConflictError(
            f"the place of the index holds something else: {path} ({', '.join(others[:5]) or 'a file'})",
            hint="name another place with -o / index=",
            path=path,
        )
    return None


def _check_same_source(parent: Snapshot, listing: storage.Listing, path: str) -> None:
    """Refuse to put the index of some files in the place of the index of a folder, or the other way round."""
    if parent.kind != listing.kind:
        raise ConflictError(
            f"the index that is there is of another source: {path}; it was made of a {parent.kind}, and this is a "
            f"{listing.kind}",
            hint="name another place with -o / index=, or remove the index",
            path=path,
            expected=parent.kind,
            found=listing.kind,
        )


def _says_the_same(old: Snapshot, new: Snapshot) -> bool:
    names = (
        "root",
        "kind",
        "ignore_lake",
        "table",
        "passed_over",
        "options",
        "schemas",
        "parts",
        "skipped",
        "notes",
        "content_digest",
    )
    return all(getattr(old, name) == getattr(new, name) for name in names)


# -- the map over batches of files ----------------------------------------------------------------------------


def _scan_options(options: BuildOptions, listing: storage.Listing) -> ScanOptions:
    return ScanOptions(
        key=options.key,
        unit=options.unit,
        order=options.order,
        check_order=options.order is not None and (options.check != "footer" or options.join),
        trust_statistics=options.trust_statistics and options.check != "full",
        statistics=options.statistics,
        pages=options.pages,
        partition_types=options.partition_types,
        partitions=listing.partitions,
    )


def scan_source(
    listing: storage.Listing,
    paths: Sequence[str],
    options: BuildOptions,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ScanBatch:
    """Scan some files of a listing, in their order, and return what they hold as one batch."""
    if workers is not None and not is_count(workers):
        raise UsageError(f"workers: expected an integer >= 1, found {workers!r}")
    n_files = len(paths)
    n_processes = n_cores() if workers is None else workers
    size = max(1, min(MAX_BATCH_FILES, -(-n_files // (n_processes * 8))))
    batches = [paths[i : i + size] for i in range(0, n_files, size)] or [[]]
    asked = replace(_scan_options(options, listing), max_weight=RANGE_WEIGHT if n_processes > 1 else None)
    results: list[ScanBatch] = []
    done = 0
    for result in scanned(listing.root, batches, asked, n_processes, probe=workers is None):
        results.append(result)
        done += result.n_files
        if progress is not None:
            progress(done, n_files, "scan")
    places = [(number, rest) for number, result in enumerate(results) for rest in result.rest]
    rests = [rest for _, rest in places]
    bad: dict[str, Skipped] = {}
    found = []
    later = scanned_rests(listing.root, rests, asked, n_processes, probe=workers is None)
    for done, ((number, rest), result) in enumerate(zip(places, later, strict=True), 1):
        found.append((number, rest.file_id, result))
        bad |= {one.path: one for one in result.skipped}
        if progress is not None:
            progress(done, len(rests), "row groups")
    if bad:
        left = [path for path in paths if path not in bad]
        scan = scan_source(listing, left, options, workers=workers, progress=progress)
        scan.skipped = sorted([*scan.skipped, *bad.values()], key=lambda one: one.path.encode())
        return scan
    return _merge(results, options, found)


def is_count(value: object) -> bool:
    """Return whether the value is an integer of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _merge(
    batches: list[ScanBatch], options: BuildOptions, rests: Sequence[tuple[int, int, ScanBatch]] = ()
) -> ScanBatch:
    """Return the batches as one, files and schemas counted through, each column of one type.

    Each of `rests` is what was left out of a batch: the batch's number, the number of the file in it, and the rows.
    """
    key_type = one_type(
        ((b.runs.schema.field("seq_id").type, _first(b)) for b in batches), column=options.key or ""
    )
    order_type = one_type(
        ((b.runs.schema.field("order_min").type, _first(b)) for b in batches), column=options.order or ""
    )
    schemas: dict[SchemaRecord, int] = {}
    merged: dict[str, list[pa.Table]] = {
        name: [] for name in ("files", "row_groups", "chunks", "pages", "runs")
    }
    n_files = 0
    bases = []
    for batch in batches:
        bases.append(n_files)
        numbers = [schemas.setdefault(schema, len(schemas)) for schema in batch.schemas]
        files = batch.files
        if numbers:
            at = files.column_names.index("schema_no")
            numbered = pa.array(numbers, pa.int32()).take(files.column("schema_no").combine_chunks())
            files = files.set_column(at, files.field(at), numbered)
        tables = {"files": files, **{name: getattr(batch, name) for name in merged if name != "files"}}
        for name, table in tables.items():
            moved = pc.add(table.column("file_id"), pa.scalar(n_files, pa.int32()))
            merged[name].append(table.set_column(0, table.field(0), moved))
        n_files += batch.files.num_rows
    for number, file_id, rest in rests:
        for name in ("runs", "pages"):
            table = getattr(rest, name)
            ids = pa.array(np.full(table.num_rows, bases[number] + file_id, np.int32))
            merged[name].append(table.set_column(0, table.field(0), ids))
    runs = pa.concat_tables(
        _cast(_cast(table, ("seq_id",), key_type), ("order_min", "order_max"), order_type)
        for table in merged["runs"]
    )
    notes = list(dict.fromkeys(note for batch in batches for note in batch.notes))
    everything = [*batches, *(rest for *_, rest in rests)]
    return ScanBatch(
        files=pa.concat_tables(merged["files"]),
        row_groups=pa.concat_tables(_cast(t, ("key_min", "key_max"), key_type) for t in merged["row_groups"]),
        chunks=pa.concat_tables(merged["chunks"]),
        pages=_in_order(pa.concat_tables(merged["pages"])),
        runs=_in_order(runs),
        group_stats=_merge_stats(batches, notes),
        schemas=list(schemas),
        null_runs=_in_order_of_places(place for batch in everything for place in batch.null_runs),
        n_null_rows=sum(batch.n_null_rows for batch in everything),
        order_faults=_in_order_of_places(place for batch in everything for place in batch.order_faults),
        skipped=[skipped for batch in batches for skipped in batch.skipped],
        notes=notes,
        n_key_reads=sum(batch.n_key_reads for batch in everything),
        comparisons=[comparison for batch in batches for comparison in batch.comparisons],
    )


def _in_order(table: pa.Table) -> pa.Table:
    """Return the rows in the order of their files; those of a file are in their order, whichever batch had them."""
    order = order_of(table.column("file_id"))
    return table if order is None else table.take(pa.array(order))


def _in_order_of_places(places: Iterable[Place]) -> list[Place]:
    return sorted(places, key=lambda place: (place.file.encode(), place.row_group, place.row_start))


def _first(batch: ScanBatch) -> str:
    return str(batch.files.column("path")[0]) if batch.files.num_rows else ""


def _cast(table: pa.Table, names: Sequence[str], data_type: pa.DataType) -> pa.Table:
    for name in names:
        at = table.column_names.index(name)
        table = table.set_column(at, pa.field(name, data_type), table.column(at).cast(data_type))
    return table


def _merge_stats(batches: list[ScanBatch], notes: list[str]) -> pa.Table:
    """Return the statistics of all row groups; a column whose types do not fit together is left out and noted."""
    names = dict.fromkeys(name for batch in batches for name in batch.group_stats.column_names)
    lower = Counter(name.lower() for name in names)
    twins = {name for batch in batches for name in batch.twins} | {name for name, n in lower.items() if n > 1}
    notes.extend(
        f"no statistics: columns {name!r} differ only in letter case, which SQL does not tell apart in `stats`"
        for name in sorted(twins)
    )
    columns = {}
    for name in names:
        with_it = [b for b in batches if name in b.group_stats.column_names]
        fields = [b.group_stats.schema.field(name).type for b in with_it]
        if name.lower() in twins:
            continue
        try:
            data_type = one_type(
                ((f.field("min").type, _first(b)) for f, b in zip(fields, with_it, strict=True)), column=name
            )
        except SourceError as error:
            notes.append(f"no statistics: {error.message}")
            continue
        struct = pa.struct([("min", data_type), ("max", data_type), ("null_count", pa.int64())])
        columns[name] = pa.chunked_array(
            [
                chunk.cast(struct)
                for batch in batches
                for chunk in (
                    batch.group_stats.column(name).chunks
                    if name in batch.group_stats.column_names
                    else [pa.nulls(batch.row_groups.num_rows, struct)]
                )
            ],
            struct,
        )
    return pa.table(columns)


def raise_bad_files(skipped: Sequence[Skipped], options: BuildOptions, *, n_files: int) -> None:
    """Raise one error that names the files that could not be indexed, unless they may be passed over."""
    if not skipped or (options.on_bad_file == "skip" and len(skipped) < n_files):
        return
    kind = (
        UnsupportedFileError
        if all(s.reason == UnsupportedFileError.reason for s in skipped)
        else BadFileError
    )
    facts: dict[str, Any] = {"file": skipped[0].path, "files": tuple(s.path for s in skipped)}
    if n_files == 1:
        raise kind(skipped[0].message, **facts)
    more = f"; and {len(skipped) - FIRST_PLACES} more" if len(skipped) > FIRST_PLACES else ""
    raise kind(
        f"{len(skipped)} of {n_files} files cannot be indexed: "
        + "; ".join(s.message for s in skipped[:FIRST_PLACES])
        + more,
        hint="restore the files, or pass over them with --on-bad-file skip",
        **facts,
    )


def _check_statistics(options: BuildOptions, scan: ScanBatch) -> None:
    """Refuse a statistics column that no file has."""
    names = {name for schema in scan.schemas for name in schema.field_names}
    missing = [name for name in options.statistics or () if name not in names]
    if missing and scan.schemas:
        near = difflib.get_close_matches(missing[0], names, n=3, cutoff=0.5)
        raise ColumnMissingError(
            f"statistics column {missing[0]!r} is in no file",
            hint=f"did you mean {' or '.join(map(repr, near))}?" if near else "leave it out",
            column=missing[0],
        )


# -- what the build has to say ---------------------------------------------------------------------------------


def _scan_notes(scan: ScanBatch, options: BuildOptions) -> list[str]:
    """Return what a scan has to say about its files, for people."""
    notes = [*scan.notes, *comparison_notes(scan.comparisons)]
    if scan.n_key_reads and options.check != "full":
        notes.append(
            f"the key column of {scan.n_key_reads} of {scan.row_groups.num_rows} row groups was read, since their "
            f"bounds do not prove one key"
        )
    return notes


def _notes(sidecar: Sidecar, listing: storage.Listing) -> list[str]:
    """Return what there is to say about a source as a whole, for people."""
    options, sequences = sidecar.snapshot.options, sidecar.sequences
    notes = list(_partition_notes(sidecar))
    empty = int(pc.sum(pc.equal(sidecar.row_groups.column("n_rows"), 0)).as_py() or 0)
    if options.unit != KEY and empty:
        notes.append(f"{empty} row groups without rows are no sequences")
    if options.order is not None and options.check == "footer":
        notes.append(f"that {options.order!r} increases inside row groups was not proved (check: footer)")
    n_null_rows = _sum(sidecar.files, "n_rows") - _sum(sequences, "row_count")
    if n_null_rows:
        notes.append(f"{n_null_rows} rows without a key were passed over")
    notes += _statistics_notes(sidecar)
    several = int(pc.sum(pc.greater(sequences.column("n_segments"), 1)).as_py() or 0)
    if several:
        segments = _sum(sequences, "n_segments")
        notes.append(
            f"{several} of {sequences.num_rows} sequences lie in more than one row group "
            f"({segments / max(1, sequences.num_rows):.1f} segments a sequence): each costs a read for each"
        )
    notes.extend(
        f"{count} name{'s' * (count > 1)} passed over: {reason}" for reason, count in listing.skipped.items()
    )
    if len(sidecar.snapshot.parts) > MANY_PARTS:
        notes.append(
            f"the index has {len(sidecar.snapshot.parts)} parts: pqindex compact makes one of them, which opens faster"
        )
    return notes


def _partition_notes(sidecar: Sidecar) -> tuple[str, ...]:
    """Return which partition values are no columns of `index`.

    Raises
    ------
    ColumnTypeError
        If a value does not parse as the type that was asked for.
    """
    columns = partition_columns(
        sidecar.files,
        sidecar.snapshot.options.partition_types,
        own={*sidecar.sequences.column_names, *INDEX_COLUMNS},
        in_files={name for schema in sidecar.records for name in schema.field_names},
    )
    return columns.notes


def _statistics_notes(sidecar: Sidecar) -> list[str]:
    """Return why a query may find no statistics, which no error tells it."""
    sequences = sidecar.sequences
    if "stats" not in sequences.column_names:
        wide = any(len(schema.field_names) > DEFAULT_STATS_COLUMNS for schema in sidecar.records)
        return ["no statistics are kept of so many columns: name some with --statistics"] if wide else []
    n_null = sequences.column("stats").null_count
    if not n_null:
        return []
    note = (
        f"`stats` is null for {n_null} of {sequences.num_rows} sequences, since a footer's bounds are those of a row "
        "group and these are not one whole row group: a filter on `stats` leaves them out"
    )
    return [note]
