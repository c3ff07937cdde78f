"""From a source to a committed snapshot: a map over batches of files, one assembly, one commit."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pqindex import storage
from pqindex.assemble import assemble
from pqindex.documents import BuildOptions, Snapshot
from pqindex.errors import (
    FIRST_PLACES,
    BadFileError,
    ColumnMissingError,
    ConflictError,
    SourceError,
    UnsupportedFileError,
    UsageError,
)
from pqindex.footer import SchemaRecord
from pqindex.scan import DEFAULT_STATS_COLUMNS, ScanBatch, ScanOptions, Skipped, one_type
from pqindex.sidecar import (
    Sidecar,
    commit,
    content_digest,
    open_sidecar,
    segment_arrays,
    snapshot_numbers,
    write_part,
)
from pqindex.workers import n_cores, scanned

MAX_BATCH_FILES = 256

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
    listing = storage.list_source(source, files)
    path = os.path.abspath(index) if index is not None else default_index_path(source, listing.root)
    parent = _newest(path)
    if parent is not None:
        _check_same_source(parent.snapshot, listing, path)

    batches = _scan(listing, options, workers, progress)
    scan = _merge(batches, options)
    _check_statistics(options, scan)
    _raise_bad_files(scan.skipped, options, n_files=len(listing.paths))
    if progress is not None:
        progress(len(listing.paths), len(listing.paths), "assemble")
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
    if progress is not None:
        progress(len(listing.paths), len(listing.paths), "write")
    snapshot = Snapshot(
        number=1 if parent is None else parent.snapshot.number + 1,
        parent=None if parent is None else parent.snapshot.number,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        writer=f"pqindex {version('pqindex')}",
        root=os.path.relpath(listing.root, path).replace(os.sep, "/"),
        kind=listing.kind,
        options=options,
        schemas=tuple(scan.schemas),
        parts=(write_part(path, tables),),
        skipped=tuple({"path": s.path, "reason": s.reason, "message": s.message} for s in scan.skipped),
        notes=tuple(_notes(scan, sequences, listing, options)),
        totals={
            "n_files": scan.files.num_rows,
            "n_row_groups": scan.row_groups.num_rows,
            "n_rows": int(pc.sum(scan.files.column("n_rows")).as_py() or 0),
            "n_sequences": sequences.num_rows,
            "n_segments": int(pc.sum(sequences.column("n_segments")).as_py() or 0),
            "n_skipped_rows": scan.n_null_rows,
        },
        content_digest=content_digest(options, scan.files, sequences, segment_arrays(sequences, segments)),
    )
    if parent is not None and _says_the_same(parent.snapshot, snapshot):
        return parent
    return commit(path, snapshot)


def _validate_options(options: BuildOptions) -> None:
    choices = {
        "unit": ("key",),
        "check": ("footer", "keys"),
        "layout": ("any", "one-per-row-group"),
        "on_bad_file": ("error", "skip"),
        "pages": ("auto", "never", "always"),
    }
    for name, allowed in choices.items():
        found = getattr(options, name)
        if found not in allowed:
            raise UsageError(f"{name}: expected one of {', '.join(allowed)}, found {found!r}")
    if options.join and options.order is None:
        raise UsageError(
            "rows from several places can only be joined in the order of a column",
            hint="name it with --order / order=",
        )
    if options.order == options.key:
        raise UsageError(f"the key and the order are the same column: {options.key!r}")


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
    names = ("root", "kind", "options", "schemas", "parts", "skipped", "notes", "content_digest")
    return all(getattr(old, name) == getattr(new, name) for name in names)


# -- the map over batches of files ----------------------------------------------------------------------------


def _scan_options(options: BuildOptions) -> ScanOptions:
    return ScanOptions(
        key=options.key,
        order=options.order,
        check_order=options.order is not None and (options.check == "keys" or options.join),
        trust_statistics=options.trust_statistics,
        statistics=options.statistics,
        pages=options.pages,
    )


def _scan(
    listing: storage.Listing, options: BuildOptions, workers: int | None, progress: Progress | None
) -> list[ScanBatch]:
    """Scan all files, in the order of the listing."""
    if workers is not None and not _is_count(workers):
        raise UsageError(f"workers: expected an integer >= 1, found {workers!r}")
    n_files = len(listing.paths)
    n_processes = n_cores() if workers is None else workers
    size = max(1, min(MAX_BATCH_FILES, -(-n_files // (n_processes * 8))))
    batches = [listing.paths[i : i + size] for i in range(0, n_files, size)]
    results: list[ScanBatch] = []
    done = 0
    for result in scanned(listing.root, batches, _scan_options(options), n_processes, probe=workers is None):
        results.append(result)
        done += result.n_files
        if progress is not None:
            progress(done, n_files, "scan")
    return results


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _merge(batches: list[ScanBatch], options: BuildOptions) -> ScanBatch:
    """Return the batches as one, files and schemas counted through, each column of one type."""
    key_type = one_type(
        ((b.runs.schema.field("seq_id").type, _first(b)) for b in batches), column=options.key
    )
    order_type = one_type(
        ((b.runs.schema.field("order_min").type, _first(b)) for b in batches), column=options.order or ""
    )
    schemas: dict[SchemaRecord, int] = {}
    merged: dict[str, list[pa.Table]] = {
        name: [] for name in ("files", "row_groups", "chunks", "pages", "runs")
    }
    n_files = 0
    for batch in batches:
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
    runs = pa.concat_tables(
        _cast(_cast(table, ("seq_id",), key_type), ("order_min", "order_max"), order_type)
        for table in merged["runs"]
    )
    notes = list(dict.fromkeys(note for batch in batches for note in batch.notes))
    return ScanBatch(
        files=pa.concat_tables(merged["files"]),
        row_groups=pa.concat_tables(_cast(t, ("key_min", "key_max"), key_type) for t in merged["row_groups"]),
        chunks=pa.concat_tables(merged["chunks"]),
        pages=pa.concat_tables(merged["pages"]),
        runs=runs,
        group_stats=_merge_stats(batches, notes),
        schemas=list(schemas),
        null_runs=[place for batch in batches for place in batch.null_runs],
        n_null_rows=sum(batch.n_null_rows for batch in batches),
        order_faults=[place for batch in batches for place in batch.order_faults],
        skipped=[skipped for batch in batches for skipped in batch.skipped],
        notes=notes,
        n_key_reads=sum(batch.n_key_reads for batch in batches),
    )


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


def _raise_bad_files(skipped: Sequence[Skipped], options: BuildOptions, *, n_files: int) -> None:
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


def _notes(
    scan: ScanBatch, sequences: pa.Table, listing: storage.Listing, options: BuildOptions
) -> list[str]:
    """Return what the build has to say about the source, for people."""
    notes = list(scan.notes)
    if options.order is not None and options.check == "footer":
        notes.append(f"that {options.order!r} increases inside row groups was not proved (check: footer)")
    if scan.n_null_rows:
        notes.append(f"{scan.n_null_rows} rows without a key were passed over")
    if scan.n_key_reads:
        notes.append(
            f"the key column of {scan.n_key_reads} of {scan.row_groups.num_rows} row groups was read, since their "
            f"bounds do not prove one key"
        )
    notes += _statistics_notes(scan, sequences)
    several = int(pc.sum(pc.greater(sequences.column("n_segments"), 1)).as_py() or 0)
    if several:
        segments = int(pc.sum(sequences.column("n_segments")).as_py())
        notes.append(
            f"{several} of {sequences.num_rows} sequences lie in more than one row group "
            f"({segments / max(1, sequences.num_rows):.1f} segments a sequence): each costs a read for each"
        )
    notes.extend(
        f"{count} name{'s' * (count > 1)} passed over: {reason}" for reason, count in listing.skipped.items()
    )
    return notes


def _statistics_notes(scan: ScanBatch, sequences: pa.Table) -> list[str]:
    """Return why a query may find no statistics, which no error tells it."""
    if "stats" not in sequences.column_names:
        wide = any(len(schema.field_names) > DEFAULT_STATS_COLUMNS for schema in scan.schemas)
        return ["no statistics are kept of so many columns: name some with --statistics"] if wide else []
    n_null = sequences.column("stats").null_count
    if not n_null:
        return []
    note = (
        f"`stats` is null for {n_null} of {sequences.num_rows} sequences, since a footer's bounds are those of a row "
        "group and these are not one whole row group: a filter on `stats` leaves them out"
    )
    return [note]
