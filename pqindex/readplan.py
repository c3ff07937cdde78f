"""The read plan: everything that a reader needs for a selection and a projection, resolved once, in the parent.

Resolving checks that every source file is still the one that was indexed, finds the projected columns in each file's
schema, and lays the byte places of the column chunks, and of pages where they are known, out in parallel arrays.
"""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex import storage
from pqindex.arrowtypes import type_name, unify_types
from pqindex.decode import is_number, not_direct
from pqindex.digest import RecordDigest, sha256_hex
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    NotFoundError,
    PqindexError,
    SourceChangedError,
    SourceError,
    UsageError,
)
from pqindex.footer import (
    TAIL_BYTES,
    ChunkPlaces,
    FileMetadata,
    SchemaRecord,
    parse_footer,
    read_tail,
    tail_of,
    unreadable,
    unreadable_chunks,
)
from pqindex.places import Places, SourceFiles, expand_ranges, narrowest

PLACE_FACTS = ("start", "length", "num_values", "codec")
"""What a read needs to know of a column chunk; see `footer.ChunkPlaces`."""

PAGE_FACTS = ("offset", "length", "first_row")
"""What a read needs to know of a page; see `footer.PagePlaces`."""

_GROUPS_AT_A_TIME = 16_384

STALENESS = ("error", "warn", "ignore")

Int64Array = npt.NDArray[np.int64]
Integers = npt.NDArray[Any]
"""Of some number of bits each."""
FileFootprint = tuple[int, int, int, int]


class PqindexStalenessWarning(UserWarning):
    """A source file is not the one that was indexed, and the reader was told to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSource:
    """What an index knows of the row groups of some files, so that their footers need not be parsed.

    Attributes
    ----------
    schemas : tuple of SchemaRecord
    schema_of_file : ndarray, shape (n_files,), int32
        Which schema each file has; files are counted as in the `SourceFiles` of the selection.
    group_n_rows : callable
        From (file_no, row_group) arrays to the rows of each group.
    facts : callable
        From (file_no, row_group) arrays, and the wanted leaves of each schema, to the `PLACE_FACTS` of those chunks:
        arrays of integers, row group by row group. Also `encodings`, and `null_count` where it is known, as in
        `footer.Chunks`.
    pages : callable
        From (file_no, row_group) arrays to the page places that are known of those row groups.
    """

    schemas: tuple[SchemaRecord, ...]
    schema_of_file: npt.NDArray[np.int32]
    group_n_rows: Callable[[npt.NDArray[Any], npt.NDArray[Any]], Int64Array]
    facts: Callable[[npt.NDArray[Any], npt.NDArray[Any], Sequence[Int64Array]], dict[str, npt.NDArray[Any]]]
    pages: Callable[[npt.NDArray[Any], npt.NDArray[Any]], KnownPages]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPages:
    """Page places of the chunks of some row groups, as far as they are known.

    Attributes
    ----------
    group, leaf : ndarray, shape (n_chunks,), int64
        Which of the asked row groups, and which leaf of its file.
    stops : ndarray, shape (n_chunks + 1,), int64
    places : dict of str to ndarray
        `offset`, `length` and `first_row` of the pages, chunk by chunk, int64.
    """

    group: Int64Array
    leaf: Int64Array
    stops: Int64Array
    places: dict[str, Int64Array]

    @classmethod
    def none(cls) -> KnownPages:
        """Return that nothing is known."""
        empty = np.zeros(0, np.int64)
        return cls(
            group=empty, leaf=empty, stops=np.zeros(1, np.int64), places=dict.fromkeys(PAGE_FACTS, empty)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """A selection and a projection as parallel arrays of byte places.

    There may be ten million sequences of a hundred columns in it, so that integers have 32 bits where those do.

    Attributes
    ----------
    digest : str
        Identity of the plan on this machine: selection, projection, and the files as they were seen.
    selection_digest : str
    root : str
    paths : pa.Array of string, length n_files
    footprints : ndarray, shape (n_files, 4), int64
        Size, mtime_ns, ctime_ns and inode of each file when the plan was resolved.
    schema_of_file : ndarray, shape (n_files,), int32
    schemas : tuple of SchemaRecord
        The distinct schemas of the files.
    schema : pa.Schema
        What every read gives: the asked columns in the asked order, each with the type that all files fit in.
    seq_ids, row_counts, extra
        As in `Places`.
    segment_stops : ndarray, shape (n + 1,), int32 or int64
    group_of_segment, row_start, row_stop : ndarray, shape (n_segments,), int32 or int64
    group_file, group_row_group : ndarray, shape (n_groups,), int32
        The distinct row groups that are read.
    group_n_rows : ndarray, shape (n_groups,), int32 or int64
    chunk_stops : ndarray, shape (n_groups + 1,), int32 or int64
    chunks : dict of str to ndarray
        The facts of the projected chunks, group by group, in the order of the leaves in the file: integers of
        64 bits or less.
    left : ndarray, shape (n_chunks,), int8; shape (0,) where all are 0
        Why a chunk of flat numbers cannot be decoded directly, see `decode.not_direct`; 0 where it may be, and for
        all other columns.
    page_stops : ndarray, shape (n_chunks + 1,), int32 or int64; shape (0,) where no page is known
    pages : dict of str to ndarray
        The known pages of the projected chunks, chunk by chunk, int64.
    staleness : str
    origin : tuple or None
        A function and its arguments that resolve the plan again.
    """

    digest: str
    selection_digest: str
    root: str
    paths: pa.Array
    footprints: Int64Array
    schema_of_file: npt.NDArray[np.int32]
    schemas: tuple[SchemaRecord, ...]
    schema: pa.Schema
    seq_ids: pa.Array
    row_counts: Int64Array
    extra: pa.Table = field(repr=False)
    segment_stops: Integers
    group_of_segment: Integers
    row_start: Integers
    row_stop: Integers
    group_file: npt.NDArray[np.int32]
    group_row_group: npt.NDArray[np.int32]
    group_n_rows: Integers
    chunk_stops: Integers
    chunks: dict[str, Integers] = field(repr=False)
    left: npt.NDArray[np.int8] = field(repr=False)
    page_stops: Integers
    pages: dict[str, Int64Array] = field(repr=False)
    staleness: str
    origin: tuple[Callable[..., ReadPlan], tuple[Any, ...]] | None = field(default=None, repr=False)

    def fields_of(self, schema_no: int) -> list[int]:
        """Return the top-level fields of a file's schema that the projection takes, ascending."""
        return projected_fields(self.schemas[schema_no], self.schema.names)

    def leaves_of(self, schema_no: int) -> Int64Array:
        """Return the leaves of a file's schema that the projection takes, ascending."""
        return _projected_leaves(self.schemas[schema_no], self.schema.names)


def projected_fields(record: SchemaRecord, columns: Sequence[str]) -> list[int]:
    """Return the numbers of the top-level fields that have these names, ascending."""
    wanted = set(columns)
    return [i for i, name in enumerate(record.field_names) if name in wanted]


# -- resolving ------------------------------------------------------------------------------------------------


def resolve(
    places: Places,
    files: SourceFiles,
    columns: Sequence[str] | None,
    *,
    selection_digest: str,
    known: ChunkSource | None,
    staleness: str = "error",
    origin: tuple[Callable[..., ReadPlan], tuple[Any, ...]] | None = None,
) -> ReadPlan:
    """Resolve a selection and a projection to byte places.

    Cost: one open and one read of the footer's bytes for each file of the selection, to compare its digest; the
    footer is parsed only where no index knows the file. No page is read.

    Parameters
    ----------
    places, files
        The selection.
    columns
        Names of top-level columns, each once; None for all.
    selection_digest
        Digest of the selection.
    known
        What an index knows of the files; without it their footers are parsed.
    staleness
        What to do where a file is not the indexed one: ``"error"``, ``"warn"``, or ``"ignore"`` (footers are then
        not compared).

    Raises
    ------
    SourceChangedError
        If files were changed, replaced, truncated or removed; it names the first ten.
    ColumnMissingError, ColumnTypeError
        If a column is in no file, or has types that no one type holds.
    """
    if staleness not in STALENESS:
        raise UsageError(f"staleness: expected one of error, warn, refresh, ignore, found {staleness!r}")
    footprints, metas = _look_at_files(files, staleness, parse=known is None)
    if known is None:
        known = _parsed(metas)
    used = np.unique(known.schema_of_file) if len(files) else np.arange(len(known.schemas))
    records = [known.schemas[int(i)] for i in used]
    renumber = np.searchsorted(used, known.schema_of_file).astype(np.int32)
    schema = _projected_schema(records, renumber, files, columns)

    n_row_groups = 1 + (int(places.row_group.max()) if len(places.row_group) else 0)
    group_keys, group_of_segment = np.unique(
        places.file_no.astype(np.int64) * n_row_groups + places.row_group, return_inverse=True
    )
    group_file = (group_keys // n_row_groups).astype(np.int32)
    group_row_group = (group_keys % n_row_groups).astype(np.int32)
    group_n_rows = known.group_n_rows(group_file, group_row_group)
    leaves = [_projected_leaves(record, schema.names) for record in records]
    chunk_stops = stops_of_groups(renumber[group_file], leaves)
    wanted = [np.zeros(0, np.int64)] * len(known.schemas)
    for number, own in zip(used.tolist(), leaves, strict=True):
        wanted[number] = own
    facts = known.facts(group_file, group_row_group, wanted)
    chunks = {name: facts[name] for name in PLACE_FACTS}
    _refuse_unreadable(
        records, leaves, renumber, files, group_file, group_row_group, group_n_rows, chunk_stops, chunks
    )
    page_stops, pages = _project_pages(known, leaves, renumber, group_file, group_row_group, chunk_stops)
    return ReadPlan(
        digest=_plan_digest(selection_digest, schema, files, footprints),
        selection_digest=selection_digest,
        root=files.root,
        paths=pa.array(files.paths, pa.string()),
        footprints=footprints,
        schema_of_file=renumber,
        schemas=tuple(records),
        schema=schema,
        seq_ids=places.seq_ids,
        row_counts=places.row_counts,
        extra=places.extra,
        segment_stops=narrowest(places.segment_stops),
        group_of_segment=narrowest(group_of_segment),
        row_start=narrowest(places.row_start),
        row_stop=narrowest(places.row_stop),
        group_file=group_file,
        group_row_group=group_row_group,
        group_n_rows=narrowest(group_n_rows),
        chunk_stops=narrowest(chunk_stops),
        chunks={name: narrowest(values) for name, values in chunks.items()},
        left=_left(records, leaves, renumber[group_file], facts),
        page_stops=narrowest(page_stops),
        pages=pages,
        staleness=staleness,
        origin=origin,
    )


def is_torn(file: storage.SourceFile, size_bytes: int) -> bool:
    """Return whether a file of this many bytes lost its end, rather than being another file by now."""
    found = file.facts.size_bytes
    return found < size_bytes and (found < 8 or file.read(found - 4, 4) != b"PAR1")


def check_file(files: SourceFiles, number: int, *, parse: bool) -> tuple[FileFootprint, FileMetadata | None]:
    """Return what one source file is now, after the check that it is the one that was indexed.

    Raises
    ------
    SourceChangedError
        If it is not; the message tells removed, truncated, and replaced apart.
    """
    path = files.paths[number]
    hint = "restore the file, or refresh the index and pin anew"
    try:
        file = storage.SourceFile(storage.join(files.root, path))
    except NotFoundError as error:
        raise SourceChangedError(
            f"source file is gone: {path} (below {files.root})",
            hint="restore the file, or say where the data lie with root=",
            file=path,
            change="removed",
        ) from error
    with file:
        size = int(files.size_bytes[number])
        found = file.facts.size_bytes
        if found != size:
            torn = is_torn(file, size)
            raise SourceChangedError(
                f"source file was {'truncated' if torn else 'replaced or rewritten'} since it was indexed: {path}; "
                f"expected {size} bytes, found {found}",
                hint=hint,
                file=path,
                expected=size,
                found=found,
                change="truncated" if torn else "replaced",
            )
        length = int(files.footer_length[number])
        end = file.read(int(files.footer_offset[number]), length + TAIL_BYTES)
        footer = end[:length]
        if end[length:] != tail_of(length):
            raise SourceChangedError(
                f"the last bytes of the source file are damaged: {path}; expected the length of the footer and PAR1, "
                f"found {end[length:].hex()}",
                hint=hint,
                file=path,
                expected=tail_of(length).hex(),
                found=end[length:].hex(),
                change="replaced",
            )
        sha256 = sha256_hex(footer)
        if sha256 != files.footer_sha256[number]:
            raise SourceChangedError(
                f"source file was replaced since it was indexed: {path}; it has the same size, and another footer "
                f"(expected sha256 {files.footer_sha256[number][:16]}..., found {sha256[:16]}...)",
                hint=hint,
                file=path,
                expected=files.footer_sha256[number],
                found=sha256,
                change="replaced",
            )
        facts = file.facts
        meta = parse_footer(footer, file=path, file_size=size) if parse else None
    return (facts.size_bytes, facts.mtime_ns, facts.ctime_ns, facts.inode), meta


def _look_at_files(
    files: SourceFiles, staleness: str, *, parse: bool
) -> tuple[Int64Array, list[FileMetadata | None]]:
    footprints = np.zeros((len(files), 4), np.int64)
    metas: list[FileMetadata | None] = []
    problems: list[PqindexError] = []
    for number, path in enumerate(files.paths):
        if staleness == "ignore" and not parse:
            continue
        try:
            footprints[number], meta = check_file(files, number, parse=parse)
            metas.append(meta)
        except SourceChangedError as error:
            problems.append(error)
            if parse and staleness != "error":
                metas.append(_footer_of_today(files, number))
        except SourceError as error:
            if "file" not in error.facts:
                error.facts["file"] = path
            raise
    if problems and staleness == "error":
        if len(problems) == 1:
            raise problems[0]
        first = "; ".join(problem.message for problem in problems[:10])
        raise SourceChangedError(
            f"{len(problems)} of {len(files)} source files are not those that were indexed: {first}",
            hint=problems[0].hint,
            file=problems[0].file,
            files=tuple(problem.file for problem in problems),
        )
    for problem in problems if staleness == "warn" else ():
        warnings.warn(str(problem), PqindexStalenessWarning, stacklevel=4)
    return footprints, metas


def _footer_of_today(files: SourceFiles, number: int) -> FileMetadata:
    """Return the footer of a file that is not the one that was indexed, for who wants to go on all the same."""
    path = files.paths[number]
    with storage.SourceFile(storage.join(files.root, path)) as file:
        size = file.facts.size_bytes
        offset, length = read_tail(
            file.read(max(0, size - TAIL_BYTES), min(size, TAIL_BYTES)), file_size=size, file=path
        )
        return parse_footer(file.read(offset, length), file=path, file_size=size)


def _parsed(metas: list[FileMetadata | None]) -> ChunkSource:
    """Return what the footers themselves say, where no index knows the files."""
    parsed = [meta for meta in metas if meta is not None]
    numbers: dict[SchemaRecord, int] = {}
    schema_of_file = np.array(
        [numbers.setdefault(SchemaRecord.from_metadata(meta), len(numbers)) for meta in parsed], np.int32
    )

    def group_n_rows(file_no: npt.NDArray[Any], row_group: npt.NDArray[Any]) -> Int64Array:
        return np.array(
            [parsed[f].group_n_rows[g] for f, g in zip(file_no, row_group, strict=True)], np.int64
        )

    def facts(
        file_no: npt.NDArray[Any], row_group: npt.NDArray[Any], leaves: Sequence[Int64Array]
    ) -> dict[str, Integers]:
        places = [
            ChunkPlaces.from_metadata(parsed[f], int(g), leaves[int(schema_of_file[f])])
            for f, g in zip(file_no, row_group, strict=True)
        ]
        none = [np.zeros(0, np.int64)]
        found = {
            name: np.concatenate([getattr(place, name) for place in places] or none) for name in PLACE_FACTS
        }
        for name in ("encodings", "null_count"):
            found[name] = np.concatenate(
                [
                    getattr(parsed[f].chunks, name)[g, leaves[int(schema_of_file[f])]]
                    for f, g in zip(file_no, row_group, strict=True)
                ]
                or none
            )
        return found

    return ChunkSource(
        schemas=tuple(numbers),
        schema_of_file=schema_of_file,
        group_n_rows=group_n_rows,
        facts=facts,
        pages=lambda _file_no, _row_group: KnownPages.none(),
    )


def _projected_schema(
    records: Sequence[SchemaRecord],
    schema_of_file: npt.NDArray[np.int32],
    files: SourceFiles,
    columns: Sequence[str] | None,
) -> pa.Schema:
    """Return the asked columns, each with the type that holds its values of all files."""
    names = list(dict.fromkeys(name for record in records for name in record.field_names))
    wanted = names if columns is None else list(columns)
    twice = sorted(name for name, count in Counter(wanted).items() if count > 1)
    if twice:
        raise UsageError(f"column named twice: {twice[0]!r}", hint="name each column once")
    if columns is not None and not wanted:
        raise UsageError("no column is asked for", hint="name at least one column")
    fields = []
    counts = [Counter(record.field_names) for record in records]
    arrow_types: dict[int, dict[str, pa.DataType]] = {}
    for name in wanted:
        holders = [i for i, own in enumerate(counts) if name in own]
        if not holders:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            said = (
                f"did you mean {' or '.join(map(repr, near))}?"
                if near
                else f"there are {', '.join(map(repr, names[:20]))}"
            )
            raise ColumnMissingError(
                f"no source file of the selection has a column {name!r}",
                hint=said,
                column=name,
                expected=name,
            )
        for i in holders:
            if counts[i][name] > 1:
                raise ColumnMissingError(
                    f"column {name!r} is there more than once: {_file_with(i, schema_of_file, files)}",
                    hint="write the file with each column named once",
                    column=name,
                )
            if i not in arrow_types:
                arrow_types[i] = dict(zip(records[i].field_names, records[i].to_arrow().types, strict=True))
        types = [arrow_types[i][name] for i in holders]
        data_type = unify_types(types)
        if data_type is None:
            other = next(i for i, t in zip(holders, types, strict=True) if unify_types([types[0], t]) is None)
            raise ColumnTypeError(
                f"column {name!r} has types that no one type holds: {type_name(types[0])} in "
                f"{_file_with(holders[0], schema_of_file, files)}, {type_name(types[holders.index(other)])} in "
                f"{_file_with(other, schema_of_file, files)}",
                hint="select the sequences of files with one type, or leave the column out",
                column=name,
            )
        fields.append(pa.field(name, data_type))
    return pa.schema(fields)


def _file_with(schema_no: int, schema_of_file: npt.NDArray[np.int32], files: SourceFiles) -> str:
    numbers = np.flatnonzero(schema_of_file == schema_no)
    return files.paths[int(numbers[0])] if len(numbers) else "no file"


def _projected_leaves(record: SchemaRecord, columns: Sequence[str]) -> Int64Array:
    """Return the numbers of the leaves of the columns that have these names, ascending."""
    fields = set(projected_fields(record, columns))
    return np.array([i for i, leaf in enumerate(record.leaves) if leaf.field in fields], np.int64)


def stops_of_groups(schema_of_group: npt.NDArray[np.int32], leaves: Sequence[Int64Array]) -> Int64Array:
    """Return where the chunks of each row group stop among all, after a 0; shape (n_groups + 1,), int64."""
    counts = np.array([len(own) for own in leaves], np.int64)
    stops = np.zeros(len(schema_of_group) + 1, np.int64)
    if len(schema_of_group):
        np.cumsum(counts[schema_of_group], out=stops[1:])
    return stops


def blocks_of_groups(
    schema_of_group: npt.NDArray[np.int32], leaves: Sequence[Int64Array]
) -> Iterator[tuple[int, Integers | slice, Integers | slice]]:
    """Return row groups of one schema each, some at a time, so that what is made of their chunks stays small.

    Yields the number of the schema, the row groups, and where their chunks lie among all: slices where all groups
    have one schema, as most do, else arrays of shape (n,) and (n * leaves,).
    """
    numbers = np.flatnonzero(np.bincount(schema_of_group)).tolist()
    stops = stops_of_groups(schema_of_group, leaves) if len(numbers) > 1 else np.zeros(0, np.int64)
    for number in numbers:
        width = len(leaves[number])
        groups = np.flatnonzero(schema_of_group == number) if len(numbers) > 1 else None
        n_groups = len(schema_of_group) if groups is None else len(groups)
        for first in range(0, n_groups, _GROUPS_AT_A_TIME):
            last = min(first + _GROUPS_AT_A_TIME, n_groups)
            if groups is None:
                yield number, slice(first, last), slice(first * width, last * width)
            else:
                some = groups[first:last]
                yield number, some, (stops[some][:, None] + np.arange(width)).ravel()


def _refuse_unreadable(
    records: Sequence[SchemaRecord],
    leaves: Sequence[Int64Array],
    schema_of_file: npt.NDArray[np.int32],
    files: SourceFiles,
    group_file: npt.NDArray[np.int32],
    group_row_group: npt.NDArray[np.int32],
    group_n_rows: Int64Array,
    chunk_stops: Int64Array,
    chunks: dict[str, Integers],
) -> None:
    """Raise for the first chunk whose place cannot be read, so that no reader has to look again."""
    bad = np.zeros(int(chunk_stops[-1]), np.bool_)
    for number, groups, chosen in blocks_of_groups(schema_of_file[group_file], leaves):
        own = leaves[number]
        is_nested = np.array(
            [records[number].leaves[leaf].max_repetition_level > 0 for leaf in own], np.bool_
        )
        n_rows = np.repeat(group_n_rows[groups], len(own))
        found = unreadable_chunks(
            ChunkPlaces(**{name: values[chosen] for name, values in chunks.items()}),
            is_nested=np.tile(is_nested, len(n_rows) // max(len(own), 1)),
            n_rows=n_rows,
            file_size=np.repeat(files.size_bytes[group_file[groups]], len(own)),
        )
        bad[chosen] = found & (n_rows > 0)
    if bad.any():
        at = int(bad.argmax())
        group = int(np.searchsorted(chunk_stops, at, side="right")) - 1
        file_no = int(group_file[group])
        schema_no = int(schema_of_file[file_no])
        raise unreadable(
            records[schema_no].leaves[int(leaves[schema_no][at - int(chunk_stops[group])])],
            ChunkPlaces(**chunks),
            at,
            n_rows=int(group_n_rows[group]),
            file_size=int(files.size_bytes[file_no]),
            file=files.paths[file_no],
            row_group=int(group_row_group[group]),
        )


def _left(
    records: Sequence[SchemaRecord],
    leaves: Sequence[Int64Array],
    schema_of_group: npt.NDArray[np.int32],
    facts: dict[str, Integers],
) -> npt.NDArray[np.int8]:
    """Return which chunks of flat columns cannot be decoded directly by what is known of them; see `ReadPlan.left`."""
    left = not_direct(facts["codec"], facts["encodings"], facts.get("null_count"))
    if not left.any():
        return left[:0]
    for number, _, chosen in blocks_of_groups(schema_of_group, leaves):
        is_flat = np.array([is_number(records[number].leaves[leaf]) for leaf in leaves[number]], np.bool_)
        own = left[chosen].reshape(-1, len(is_flat))
        left[chosen] = np.where(is_flat, own, 0).ravel()
    return left if left.any() else left[:0]


def _project_pages(
    known: ChunkSource,
    leaves: Sequence[Int64Array],
    schema_of_file: npt.NDArray[np.int32],
    group_file: npt.NDArray[np.int32],
    group_row_group: npt.NDArray[np.int32],
    chunk_stops: Int64Array,
) -> tuple[Int64Array, dict[str, Int64Array]]:
    """Return the known pages of the projected chunks, chunk by chunk."""
    found = known.pages(group_file, group_row_group)
    if not len(found.group):
        return np.zeros(0, np.int64), found.places
    group = found.group
    chunk = np.full(len(group), -1, np.int64)
    schema_of_group = schema_of_file[group_file[group]]
    for number, own in enumerate(leaves):
        rows = np.flatnonzero(schema_of_group == number)
        at = np.searchsorted(own, found.leaf[rows])
        is_projected = at < len(own)
        is_projected[is_projected] = own[at[is_projected]] == found.leaf[rows][is_projected]
        chunk[rows[is_projected]] = chunk_stops[group[rows[is_projected]]] + at[is_projected]
    rows = np.flatnonzero(chunk >= 0)
    rows = rows[np.argsort(chunk[rows], kind="stable")]
    counts = np.zeros(int(chunk_stops[-1]), np.int64)
    counts[chunk[rows]] = (found.stops[1:] - found.stops[:-1])[rows]
    positions = expand_ranges(found.stops[:-1][rows], found.stops[1:][rows])
    page_stops = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return page_stops, {name: values[positions] for name, values in found.places.items()}


def _plan_digest(selection_digest: str, schema: pa.Schema, files: SourceFiles, footprints: Int64Array) -> str:
    digest = RecordDigest()
    digest.add_json(
        "plan", [3, selection_digest, files.root, schema.names, [type_name(f.type) for f in schema]]
    )
    digest.add_integers("footprints", footprints)
    return digest.hexdigest()
