"""Manifests: a selection pinned in one Parquet file, loaded again, and verified against the source.

The rows are the sequences in order, with their places and the query's other columns; the header is canonical JSON in
the file's key/value metadata, and its sha256 is the manifest's digest. An index is redundant, a manifest is not: it
trains with the data files alone.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pqindex import storage
from pqindex.content import DeepReport
from pqindex.digest import sha256_hex
from pqindex.documents import MAX_SEED, ManifestHeader
from pqindex.errors import (
    ConflictError,
    DigestMismatchError,
    DocumentInvalidError,
    NotFoundError,
    PqindexError,
    QueryError,
    UsageError,
)
from pqindex.format import MANIFEST_KEY, NOTES_KEY, TABLE_KEY, VERSION_KEY, manifest_schema, table_metadata
from pqindex.places import Places, SourceFiles, empty_columns
from pqindex.query import Asked
from pqindex.readplan import check_file
from pqindex.sql import refuse_for_pin

_SAFE_INTEGER = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that a check found.

    Attributes
    ----------
    file : str
    reason : str
        The error's stable code.
    change : str or None
        ``"removed"``, ``"truncated"`` or ``"replaced"`` where a source file changed.
    message : str
    """

    file: str
    reason: str
    change: str | None
    message: str

    @classmethod
    def of(cls, error: PqindexError, file: str) -> Problem:
        """Return the problem that an error tells of."""
        return cls(file=file, reason=error.reason, change=error.facts.get("change"), message=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a check looked at and found.

    Attributes
    ----------
    problems : tuple of Problem
        In the order of the files; those of content behind those of files.
    n_files, n_row_groups, n_compared : int
        How many source files were compared, how many row groups were read in full, and of how many of these the bytes
        were compared with a recorded digest.
    notes : tuple of str
        What the check could not see.
    """

    problems: tuple[Problem, ...]
    n_files: int
    n_row_groups: int = 0
    n_compared: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {
            "ok": self.ok,
            "n_files": self.n_files,
            "n_row_groups": self.n_row_groups,
            "n_compared": self.n_compared,
            "problems": [
                {"file": p.file, "reason": p.reason, "change": p.change, "message": p.message}
                for p in self.problems
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedManifest:
    """A manifest as it lies on the disk.

    Attributes
    ----------
    path : str
    digest : str
        sha256 of the header's bytes.
    header : ManifestHeader
    header_json : dict
        The header as it stands in the file, unknown fields too.
    notes : dict
        What is not identity: when, by what, where the source was, the query in canonical form.
    places, files
        The sequences and the source files they touch.
    """

    path: str
    digest: str
    header: ManifestHeader
    header_json: Mapping[str, Any]
    notes: Mapping[str, Any]
    places: Places
    files: SourceFiles


# -- pinning --------------------------------------------------------------------------------------------------


def pin(
    path: str,
    places: Places,
    files: SourceFiles,
    asked: Asked,
    *,
    key: str | None,
    content_digest: str,
    seed: int | None,
    overwrite: bool,
    index: str,
    notes: Mapping[str, Any],
    statistics: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None,
    content: Callable[[], tuple[str | None, ...]] | None = None,
) -> None:
    """Write a manifest; it is whole or absent.

    `statistics` gives the statistics to pin, by column, as JSON objects, and `content` what is recorded of the bytes of
    each file (rule M6). They may read all the data, so they are called once everything that can be refused without was.

    Raises
    ------
    QueryError
        If the query may give another answer tomorrow.
    ConflictError
        If the file exists and `overwrite` is not set.
    UsageError
        If the seed is not an integer of [0, 2**53).
    """
    path = os.path.abspath(path)
    _refuse_to_pin(path, asked, seed, overwrite=overwrite)
    header = ManifestHeader(
        content_digest=content_digest,
        sql=asked.query.text,
        dialect=asked.query.dialect,
        parameters=_parameters_to_json(asked.parameters),
        attached=asked.attached,
        seed=seed,
        key=key,
        n_sequences=len(places),
        n_rows=int(places.row_counts.sum()),
        selection_digest=places.digest(files),
        files=tuple(replace(files, content_sha256=() if content is None else content()).descriptors()),
        statistics={} if statistics is None else statistics(),
    )
    notes = {
        **notes,
        "canonical_sql": asked.query.canonical,
        "root": os.path.relpath(files.root, os.path.dirname(path)).replace(os.sep, "/"),
        "index": os.path.relpath(index, os.path.dirname(path)).replace(os.sep, "/"),
    }
    table = _rows(places)
    metadata = {
        **table_metadata("manifest"),
        MANIFEST_KEY: header.to_json(),
        NOTES_KEY: json.dumps(notes, sort_keys=True).encode(),
    }
    with storage.writing(path, overwrite=overwrite) as file:
        pq.write_table(
            table.replace_schema_metadata(metadata), file, compression="zstd", write_page_checksum=True
        )


def _refuse_to_pin(path: str, asked: Asked, seed: int | None, *, overwrite: bool) -> None:
    refuse_for_pin(asked.query)
    if "snapshots" in asked.query.relations:
        raise QueryError(
            "the query asks for the history of this index (relation 'snapshots'), which a manifest must not hang on",
            hint="choose by the content of the data",
        )
    if not _is_seed(seed):
        raise UsageError(f"seed: expected an integer from 0 to 2**53 - 1, found {seed!r}")
    # the write would refuse it too, but after the statistics were computed
    if not overwrite and os.path.lexists(path):
        raise ConflictError(
            f"file exists already: {path}",
            hint="choose another name, or replace it with overwrite=True (--overwrite)",
            path=path,
        )
    if overwrite and os.path.isfile(path) and not _is_manifest(path):
        raise ConflictError(
            f"the file that is there is no manifest, and is not replaced: {path}",
            hint="choose another name",
            path=path,
        )


def _is_manifest(path: str) -> bool:
    try:
        with pq.ParquetFile(path, memory_map=False) as file:
            return MANIFEST_KEY in (file.schema_arrow.metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _is_seed(seed: object) -> bool:
    return seed is None or (isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < MAX_SEED)


def _rows(places: Places) -> pa.Table:
    schema = manifest_schema(places.seq_ids.type, places.extra.schema)
    segments = pa.StructArray.from_arrays(
        [
            pa.array(places.file_no, pa.int32()),
            pa.array(places.row_group, pa.int32()),
            pa.array(places.row_start, pa.int64()),
            pa.array(places.row_stop, pa.int64()),
        ],
        fields=list(schema.field("segments").type.value_type),
    )
    columns: list[pa.Array] = [
        places.seq_ids,
        pa.array(places.row_counts, pa.int64()),
        pa.ListArray.from_arrays(
            pa.array(places.segment_stops.astype(np.int32)), segments, type=schema.field("segments").type
        ),
    ]
    if places.extra.num_columns:
        columns.append(
            pa.StructArray.from_arrays(
                [c.combine_chunks() for c in places.extra.columns], fields=list(schema.field("extra").type)
            )
        )
    return pa.table(columns, schema=schema)


def _parameters_to_json(parameters: Sequence[Any] | Mapping[str, Any] | None) -> Any:
    """Return a query's parameters as canonical JSON can hold them; other types as ``{"type": ..., "text": ...}``."""
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return {str(name): _parameter(value) for name, value in parameters.items()}
    return [_parameter(value) for value in parameters]


def _parameter(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return _parameter(value.item())
    if isinstance(value, int):
        return value if abs(value) < _SAFE_INTEGER else {"type": "integer", "text": str(value)}
    if isinstance(value, float):
        return value if np.isfinite(value) else {"type": "float", "text": repr(value)}
    if isinstance(value, bytes):
        return {"type": "binary", "text": value.hex()}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return {"type": type(value).__name__, "text": value.isoformat()}
    if isinstance(value, decimal.Decimal):
        return {"type": "decimal", "text": str(value)}
    if isinstance(value, list | tuple):
        return [_parameter(item) for item in value]
    raise QueryError(
        f"a parameter of type {type(value).__name__} cannot be pinned",
        hint="pass numbers, texts, bytes, dates or lists of them",
    )


# -- loading --------------------------------------------------------------------------------------------------


def load(path: str, root: str | None = None) -> LoadedManifest:
    """Load a manifest and check that its rows are those that its header tells of.

    Parameters
    ----------
    path
        The manifest file.
    root
        Folder of the source files; by default where they were, seen from the manifest.

    Raises
    ------
    NotFoundError
        If there is no such file.
    FormatError
        If it is not a manifest, or one of a later version.
    DigestMismatchError
        If its rows were changed.
    """
    path = os.path.abspath(path)
    if storage.size_of(path) is None:
        raise NotFoundError(f"manifest is not there: {path}", hint="pin one with: pqindex pin", path=path)
    try:
        with pq.ParquetFile(path, memory_map=False) as file:
            metadata = file.schema_arrow.metadata or {}
            table = file.read() if MANIFEST_KEY in metadata else None
    except (pa.ArrowException, OSError) as error:
        raise DocumentInvalidError(
            f"manifest cannot be read: {path}: {error}",
            hint="pin it again",
            problems=(str(error),),
            file=path,
        ) from error
    if table is None:
        what = metadata.get(TABLE_KEY, b"").decode(errors="replace")
        said = (
            f"it is the table {what!r} of an index"
            if what and VERSION_KEY in metadata
            else "it has no manifest header"
        )
        raise DocumentInvalidError(
            f"not a manifest: {path}; {said}",
            hint="pin one with: pqindex pin",
            problems=("header",),
            file=path,
        )
    raw = metadata[MANIFEST_KEY]
    header = ManifestHeader.from_json(raw, name=path)
    notes = _notes(metadata.get(NOTES_KEY, b"{}"))
    if root is None:
        root = os.path.normpath(os.path.join(os.path.dirname(path), notes.get("root") or "."))
    files = SourceFiles.from_descriptors(os.path.abspath(root), [dict(entry) for entry in header.files])
    places = _places(table, path, len(files))
    found = places.digest(files)
    if found != header.selection_digest or len(places) != header.n_sequences:
        raise DigestMismatchError(
            f"the rows of the manifest are not those that its header tells of: {path}; expected {header.n_sequences} "
            f"sequences with digest {header.selection_digest[:16]}..., found {len(places)} with {found[:16]}...",
            hint="pin it again",
            file=path,
            expected=header.selection_digest,
            found=found,
        )
    return LoadedManifest(
        path=path,
        digest=sha256_hex(raw),
        header=header,
        header_json=json.loads(raw),
        notes=notes,
        places=places,
        files=files,
    )


def _notes(raw: bytes) -> dict[str, Any]:
    try:
        notes = json.loads(raw)
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}


def _places(table: pa.Table, path: str, n_files: int) -> Places:
    """Return the rows of a manifest as arrays, after the check that they make sense."""
    problems = [
        f"column {name!r} is missing"
        for name in ("seq_id", "row_count", "segments")
        if name not in table.column_names
    ]
    if not problems:
        expected = manifest_schema(table.schema.field("seq_id").type, pa.schema([])).field("segments").type
        if not pa.types.is_list(table.schema.field("segments").type):
            problems.append(
                f"column 'segments': expected {expected}, found {table.schema.field('segments').type}"
            )
    if problems:
        raise DocumentInvalidError(
            f"manifest has problems: {path}: {'; '.join(problems)}",
            hint="pin it again",
            problems=tuple(problems),
        )
    segments = table.column("segments").combine_chunks()
    flat = segments.flatten()
    arrays = {name: flat.field(name).to_numpy() for name in ("file_no", "row_group", "row_start", "row_stop")}
    row_counts = table.column("row_count").combine_chunks().to_numpy()
    stops = np.concatenate([[0], np.cumsum(segments.value_lengths().to_numpy())]).astype(np.int64)
    lengths = np.concatenate([[0], np.cumsum(arrays["row_stop"] - arrays["row_start"])])
    good = (
        bool(np.all((arrays["file_no"] >= 0) & (arrays["file_no"] < n_files)))
        and bool(np.all((arrays["row_group"] >= 0) & (arrays["row_start"] >= 0)))
        and bool(np.all(arrays["row_stop"] > arrays["row_start"]))
        and bool(np.all(np.diff(stops) >= 1))
        and np.array_equal(lengths[stops[1:]] - lengths[stops[:-1]], row_counts)
    )
    if not good:
        raise DocumentInvalidError(
            f"manifest has segments that make no sense: {path}", hint="pin it again", problems=("segments",)
        )
    extra = empty_columns(table.num_rows)
    if "extra" in table.column_names:
        struct = table.column("extra").combine_chunks()
        extra = pa.table(struct.flatten(), names=[f.name for f in struct.type])
    return Places(
        seq_ids=table.column("seq_id").combine_chunks(),
        row_counts=row_counts,
        segment_stops=stops,
        extra=extra,
        **arrays,
    )


# -- verifying ------------------------------------------------------------------------------------------------


def verify_files(
    files: SourceFiles, deep: Callable[[frozenset[int]], DeepReport] | None = None, *, remedy: str = ""
) -> VerifyReport:
    """Compare source files with what was recorded of them: presence, size, and the digest of the footer.

    Parameters
    ----------
    files
        What was recorded.
    deep
        Reads the row groups of all files but those that it is given, and says what it found.
    remedy
        How content would be recorded.
    """
    problems = []
    bad = set()
    for number, path in enumerate(files.paths):
        try:
            check_file(files, number, parse=False)
        except PqindexError as error:
            problems.append(Problem.of(error, path))
            bad.add(number)
    if deep is None:
        return VerifyReport(problems=tuple(problems), n_files=len(files))
    found = deep(frozenset(bad))
    problems += [Problem.of(error, str(error.facts.get("file", ""))) for error in found.problems]
    return VerifyReport(
        problems=tuple(problems),
        n_files=len(files),
        n_row_groups=found.n_row_groups,
        n_compared=found.n_compared,
        notes=found.notes(remedy=remedy),
    )
