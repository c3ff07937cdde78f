"""An index that follows its source: what was changed, and a snapshot of it at the price of what was changed.

A refresh compares every listed file with what the newest snapshot recorded of it, scans those that are new or changed,
and commits a snapshot of the old parts without the files that are gone, and one new part. Its content digest and its
answers are those of a fresh build.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pqindex import storage
from pqindex.arrowtypes import type_name
from pqindex.build import Progress, new_snapshot, scan_source, summed_up, tables_of
from pqindex.content import needs_content
from pqindex.digest import sha256_hex
from pqindex.documents import Part
from pqindex.errors import EmptySourceError, NotFoundError, PqindexError, UsageError
from pqindex.footer import TAIL_BYTES, SchemaRecord, tail_of
from pqindex.lakes import list_files, list_files_again
from pqindex.listing import in_byte_order
from pqindex.scan import ScanBatch, one_type
from pqindex.sidecar import Sidecar, commit, write_part, writing

COMPARE = ("stat", "footer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How a source differs from a snapshot of its index; paths are relative to the root, in the order of their bytes.

    Attributes
    ----------
    new, changed, gone : tuple of str
        Files that the snapshot has not; that have another size, time of change or footer; that are there no more.
    retried : tuple of str
        Files that could not be read when the snapshot was made, and are tried again.
    shared : tuple of str
        Files that are as they were, and are scanned again: since sequences lie in them and in one of the others, or,
        in an index whose values were looked at, since the columns of the source or their types are others by now.
    n_unchanged : int
        Number of files that are as they were, `shared` among them.
    """

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    n_unchanged: int = 0

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)

    @property
    def to_scan(self) -> tuple[str, ...]:
        """The files that a refresh reads, in the order of their bytes."""
        return in_byte_order({*self.new, *self.changed, *self.retried, *self.shared})

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as JSON-able values."""
        value = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in value.items()}


def list_again(
    sidecar: Sidecar, root: str, files: Sequence[storage.PathLike] | None = None
) -> storage.Listing:
    """List the source of a snapshot as it was listed when the snapshot was made.

    Parameters
    ----------
    sidecar
        The snapshot.
    root
        Root folder of the source.
    files
        The files of today, where the source is a list of files; by default those of the snapshot that are there.

    Raises
    ------
    NotFoundError, EmptySourceError
        If the root is not there, or nothing is left below it.
    UsageError
        If `files` is given and the source is not a list of files.
    """
    snapshot = sidecar.snapshot
    if not os.path.isdir(root):
        raise NotFoundError(
            f"root of the source files is not there: {root}",
            hint="name the folder that the paths are relative to with --root / root=",
            path=root,
        )
    if files is None:
        known = [*sidecar.files.column("path").to_pylist(), *(entry["path"] for entry in snapshot.skipped)]
        return list_files_again(
            root,
            snapshot.kind,
            [path for path in known if os.path.isfile(storage.join(root, path))],
            table_format=None if snapshot.table is None else snapshot.table["format"],
            ignore_lake=snapshot.ignore_lake,
        )
    if snapshot.kind != "list":
        raise UsageError(
            f"the source of the index is a {snapshot.kind}, not a list of files",
            hint="leave the list out: the source is listed again",
        )
    return list_files(root, files)


def find_changes(sidecar: Sidecar, listing: storage.Listing, *, compare: str = "stat") -> Changes:
    """Return how the files of a listing differ from those of a snapshot.

    Cost: one stat a file; with ``compare="footer"`` also the footer of each file that looks unchanged.

    Parameters
    ----------
    sidecar
        The snapshot.
    listing
        The files of today.
    compare
        ``"stat"`` takes a file for unchanged that has the size and the time of its last change that were recorded;
        ``"footer"`` compares the bytes of the footers as well.
    """
    if compare not in COMPARE:
        raise UsageError(f"compare: expected one of {', '.join(COMPARE)}, found {compare!r}")
    names = ("path", "size_bytes", "mtime_ns", "footer_offset", "footer_length", "footer_sha256")
    known = {
        path: facts
        for path, *facts in zip(*(sidecar.files.column(n).to_pylist() for n in names), strict=True)
    }
    bad = {entry["path"] for entry in sidecar.snapshot.skipped}
    new: list[str] = []
    changed: list[str] = []
    retried: list[str] = []
    for path in listing.paths:
        if path not in known:
            (retried if path in bad else new).append(path)
            continue
        size_bytes, mtime_ns, *footer = known[path]
        here = storage.join(listing.root, path)
        same = storage.is_still(here, size_bytes, mtime_ns)
        if not same or (compare == "footer" and not _has_footer(here, *footer)):
            changed.append(path)
    gone = sorted(set(known) - set(listing.paths), key=str.encode)
    return Changes(
        new=tuple(new),
        changed=tuple(changed),
        gone=tuple(gone),
        retried=tuple(retried),
        n_unchanged=len(known) - len(changed) - len(gone),
    )


def _has_footer(path: str, offset: int, length: int, sha256: bytes) -> bool:
    try:
        with storage.SourceFile(path) as file:
            data = file.read(offset, length + TAIL_BYTES)
        return sha256_hex(data[:length]) == sha256.hex() and data[length:] == tail_of(length)
    except PqindexError:
        return False


def refresh_index(
    sidecar: Sidecar,
    root: str,
    *,
    files: Sequence[storage.PathLike] | None = None,
    compare: str = "stat",
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Sidecar, Changes]:
    """Bring an index up to date with its source, and return its newest snapshot and what was changed.

    Cost: one stat a file, and a scan of the files that are new or changed; of the others nothing is read. Where
    nothing was changed, nothing is written.

    Parameters
    ----------
    sidecar
        The newest snapshot.
    root
        Root folder of the source.
    files, compare
        See `list_again` and `find_changes`.
    workers, progress
        See `build.build_index`.

    Raises
    ------
    SourceError
        As a build of the whole source does.
    ConflictError
        If another writer committed at the same time.
    """
    snapshot = sidecar.snapshot
    listing = list_again(sidecar, root, files)
    changes = find_changes(sidecar, listing, compare=compare)
    here = os.path.relpath(listing.root, sidecar.path).replace(os.sep, "/")
    same_place = listing.table == snapshot.table and here == snapshot.root
    if not changes and not changes.retried and same_place:
        return sidecar, changes
    if not listing.paths:
        raise EmptySourceError(f"no file of the index is left below {root}", path=root)
    options = snapshot.options
    scan = scan_source(listing, changes.to_scan, options, workers=workers, progress=progress)
    shared = _sharing(sidecar, changes, scan)
    if shared:
        changes = replace(changes, shared=shared)
        scan = scan_source(listing, changes.to_scan, options, workers=workers, progress=progress)
    out_of_date = {*changes.changed, *changes.gone, *changes.shared}
    stays = ~_is_in(sidecar.files.column("path"), out_of_date)
    if needs_content(options) and stays.any() and not _has_same_columns(sidecar, stays, scan):
        changes = replace(changes, shared=_others(sidecar, changes))
        scan = scan_source(listing, changes.to_scan, options, workers=workers, progress=progress)
        out_of_date |= set(changes.shared)
        stays = np.zeros(len(stays), bool)
    _check_types(sidecar, scan)
    found = tables_of(
        listing,
        scan,
        options,
        before=snapshot.schemas,
        kept=pc.unique(sidecar.files.column("schema_no").filter(pa.array(stays))).to_pylist(),
        workers=workers,
        progress=progress,
    )
    if progress is not None:
        progress(len(changes.to_scan), len(changes.to_scan), "write")
    parts = _without(sidecar, out_of_date)
    with writing(sidecar.path):
        written = {}
        if found.tables:
            part, written[part.name] = write_part(sidecar.path, found.tables, found.notes)
            parts.append(part)
        if not parts:
            raise EmptySourceError(f"no file of the index can be read below {root}", path=root)
        draft = new_snapshot(sidecar.path, listing, options, found, parts=parts, parent=sidecar)
        summed = summed_up(Sidecar(sidecar.path, draft, written), listing)
        if not changes and summed.skipped == snapshot.skipped and same_place:
            return sidecar, changes
        return commit(sidecar.path, summed), changes


def _sharing(sidecar: Sidecar, changes: Changes, scan: ScanBatch) -> tuple[str, ...]:
    """Return the unchanged files that have to be scanned again, since a part holds whole sequences only.

    Those are the files of sequences that lie in a changed file too, or have a key that was found in one, and the
    files of all other sequences in these.
    """
    sequences, segments = sidecar.sequences, sidecar.segments
    paths = sidecar.files.column("path")
    before = _is_in(paths, (*changes.changed, *changes.gone))
    read_again = before
    key_type = one_type(
        [
            (sequences.schema.field("seq_id").type, "the index"),
            (scan.runs.schema.field("seq_id").type, "a new file"),
        ],
        column=sidecar.snapshot.options.key or "",
    )
    found = pc.is_in(
        sequences.column("seq_id").cast(key_type),
        value_set=scan.runs.column("seq_id").cast(key_type).combine_chunks(),
    )
    counts = np.diff(segments.stops)
    of_segment = np.repeat(np.arange(len(counts)), counts)
    touched = found.to_numpy().astype(bool)
    while True:
        touched[of_segment[read_again[segments.file_id]]] = True
        wider = read_again.copy()
        wider[segments.file_id[touched[of_segment]]] = True
        if np.array_equal(wider, read_again):
            break
        read_again = wider
    return tuple(paths.filter(pa.array(read_again & ~before)).to_pylist())


def _others(sidecar: Sidecar, changes: Changes) -> tuple[str, ...]:
    paths = sidecar.files.column("path")
    return tuple(paths.filter(pa.array(~_is_in(paths, (*changes.changed, *changes.gone)))).to_pylist())


def _has_same_columns(sidecar: Sidecar, stays: npt.NDArray[np.bool_], scan: ScanBatch) -> bool:
    """Return whether the files have the columns, and the types, that those of the snapshot had.

    Statistics, attributes, aggregates and steps of a sequence hang on what all files have: on the types that hold all
    values, and on which columns have statistics. Where that is another thing by now, no file's are as they were; and
    files that are scanned alone must show all of it.
    """
    numbers = sidecar.files.column("schema_no")
    left = pc.unique(numbers.filter(pa.array(stays))).to_pylist()
    after = [*(sidecar.snapshot.schemas[number] for number in left), *scan.schemas]
    everything = _shapes(after)
    return _shapes(sidecar.records) == everything and _shapes(scan.schemas) in (set(), everything)


def _shapes(records: Iterable[SchemaRecord]) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    return {(record.field_names, tuple(map(type_name, record.to_arrow().types))) for record in records}


def _is_in(paths: pa.ChunkedArray, some: Iterable[str]) -> npt.NDArray[np.bool_]:
    found = pc.is_in(paths, value_set=pa.array(list(some), pa.string()))
    return np.asarray(found.to_numpy(), bool)


def _check_types(sidecar: Sidecar, scan: ScanBatch) -> None:
    """Refuse files whose order column has a type that does not go with that of the others."""
    one_type(
        [
            (sidecar.sequences.schema.field("order_min").type, "the index"),
            (
                scan.runs.schema.field("order_min").type,
                str(scan.files.column("path")[0]) if scan.files.num_rows else "",
            ),
        ],
        column=sidecar.snapshot.options.order or "",
    )


def _without(sidecar: Sidecar, paths: Iterable[str]) -> list[Part]:
    """Return the parts of a snapshot without some files; a part of which no file is left is left out."""
    parts = []
    for part, names in zip(sidecar.snapshot.parts, sidecar.paths_of_parts(), strict=True):
        removed = sorted({*part.removed_files, *np.flatnonzero(_is_in(names, paths)).tolist()})
        if len(removed) < len(names):
            parts.append(replace(part, removed_files=tuple(removed)))
    return parts
