"""An index on disk: snapshots and parts as one thing.

This is the only place that opens a snapshot, and so the only gate for versions, and the only place that commits one.
A commit is the creation of the next snapshot's name; whatever was not committed is not part of the index.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pqindex import storage
from pqindex.arrowtypes import is_bounds_type, plain_type, unify_types
from pqindex.digest import RecordDigest
from pqindex.documents import BuildOptions, Part, Snapshot, TableDescriptor
from pqindex.errors import (
    ConflictError,
    DigestMismatchError,
    DocumentInvalidError,
    IntegrityError,
    NotFoundError,
    PqindexError,
)
from pqindex.footer import SchemaRecord
from pqindex.format import (
    CHUNKS,
    FILES,
    FORMAT_NAME,
    FORMAT_VERSION,
    MAX_SNAPSHOT_BYTES,
    PAGES,
    PART_TABLE_NAME,
    PARTS_FOLDER,
    SEGMENTS,
    SNAPSHOT_NAME,
    TABLE_KEY,
    row_groups_schema,
    sequences_schema_of,
    snapshot_name,
    table_metadata,
)
from pqindex.merging import STATS, order_of, union, with_types
from pqindex.partitions import hive_partition

Tables: TypeAlias = Mapping[str, pa.Table]
"""The tables of a part, by name."""

_ROWS_PER_GROUP = {"chunks": 4096, "pages": 4096}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentArrays:
    """The segments of some sequences, in order.

    Attributes
    ----------
    stops : ndarray, shape (n_sequences + 1,), int64
        Segments of sequence i are ``[stops[i], stops[i + 1])``.
    file_id, row_group : ndarray, shape (n_segments,), int32
    row_start, row_stop : ndarray, shape (n_segments,), int64
    """

    stops: npt.NDArray[np.int64]
    file_id: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    row_start: npt.NDArray[np.int64]
    row_stop: npt.NDArray[np.int64]


class Sidecar:
    """One snapshot of an index, its tables read on first use.

    The tables are in the canonical order: files by the bytes of their paths, everything else by (file, row group,
    row). `file_id` is the rank of the file in that order, whatever parts the rows came in by.
    """

    def __init__(self, path: str, snapshot: Snapshot, written: Mapping[str, Tables] | None = None) -> None:
        """Open a snapshot; `written` has the tables of parts, by name, that need not be read since they are here."""
        self.path = path
        self.snapshot = snapshot
        self._written = dict(written or {})

    @property
    def name(self) -> str:
        """How messages call this snapshot."""
        return os.path.join(self.path, snapshot_name(self.snapshot.number))

    @cached_property
    def files(self) -> pa.Table:
        """The table `files`."""
        return self._files_and_ranks[0]

    @cached_property
    def records(self) -> list[SchemaRecord]:
        """The schemas that the files have, each once; `snapshot.schemas` may have some of files that are gone."""
        return [self.snapshot.schemas[n] for n in pc.unique(self.files.column("schema_no")).to_pylist()]

    @cached_property
    def row_groups(self) -> pa.Table:
        """The table `row_groups`."""
        return self._in_order("row_groups")

    @cached_property
    def sequences(self) -> pa.Table:
        """The table `sequences`; row number i is `seq_no` i."""
        return self._sequences_and_ranks[0]

    @cached_property
    def segments(self) -> SegmentArrays:
        """The segments of all sequences, those with one segment too."""
        found = []
        for number, part in enumerate(self.snapshot.parts):
            if "segments" in part.tables:
                table = self._read(part, "segments")
                found.append(table if self._is_plain else self._own_segments(number, table))
        return segment_arrays(self.sequences, pa.concat_tables(found) if found else None)

    def some_columns(self, table: str, columns: Sequence[str]) -> pa.Table:
        """Return `row_groups` or `sequences` with their places and the columns asked for.

        Cheaper than the whole table, of which statistics are the most.
        """
        order = ["file_id", "row_group", *(["row_start"] if table == "sequences" else [])]
        return self._in_order(table, [*order, *columns])

    def chunks(self, columns: Sequence[str]) -> pa.Table:
        """Return the table `chunks` with `file_id`, `row_group` and the columns asked for."""
        return self._in_order("chunks", ["file_id", "row_group", *columns])

    @cached_property
    def pages(self) -> pa.Table:
        """The table `pages`, without rows where no part has it."""
        return self._in_order("pages")

    def paths_of_parts(self) -> list[pa.ChunkedArray]:
        """Return the paths of each part's files, the removed ones too."""
        return [self._read(part, "files", ["path"]).column("path") for part in self.snapshot.parts]

    def verify(self) -> list[IntegrityError]:
        """Return what is wrong with the index's own files: sizes, digests, and the content digest."""
        problems: list[IntegrityError] = []
        for part in self.snapshot.parts:
            for table, descriptor in part.tables.items():
                path = os.path.join(self.path, part.path(table))
                size = storage.size_of(path)
                if size is None:
                    problems.append(IntegrityError(f"index table is missing: {path}", file=path))
                elif size != descriptor.size_bytes or storage.file_sha256(path) != descriptor.sha256:
                    problems.append(
                        DigestMismatchError(
                            f"index table was changed: {path}; expected {descriptor.size_bytes} bytes with sha256 "
                            f"{descriptor.sha256[:16]}..., found {size} bytes",
                            hint="build the index again",
                            file=path,
                        )
                    )
        if not problems:
            found = content_digest(
                self.snapshot.options, self.files, self.sequences, self.segments, self.row_groups
            )
            if found != self.snapshot.content_digest:
                problems.append(
                    DigestMismatchError(
                        f"content digest differs: {self.name}; expected {self.snapshot.content_digest}, found {found}",
                        hint="build the index again",
                        file=self.name,
                    )
                )
        return problems

    def _read(self, part: Part, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        if part.name in self._written:
            here = self._written[part.name][table]
            return here if columns is None else here.select(list(columns))
        path = os.path.join(self.path, part.path(table))
        size = storage.size_of(path)
        if size is None and storage.size_of(self.name) is None:
            raise NotFoundError(
                f"snapshot {self.snapshot.number} was removed since it was opened: {self.path}",
                hint="open the index again",
                file=path,
            )
        if size is None:
            raise NotFoundError(
                f"index table is missing: {path}",
                hint="copy the whole index folder, or build again",
                file=path,
            )
        if size != part.tables[table].size_bytes:
            raise DigestMismatchError(
                f"index table was changed: {path}; expected {part.tables[table].size_bytes} bytes, found {size}",
                hint="copy the index folder again, or build again",
                file=path,
            )
        try:
            with pq.ParquetFile(path, memory_map=False) as file:
                found = file.read(columns=None if columns is None else list(columns), use_threads=True)
        except (pa.ArrowException, OSError) as error:
            raise DigestMismatchError(
                f"index table cannot be read: {path}: {error}", hint="build the index again", file=path
            ) from error
        _check_table(found, table, path)
        return found.replace_schema_metadata(None)

    # -- several parts as one ---------------------------------------------------------------------------------

    @property
    def _is_plain(self) -> bool:
        """Whether the tables of the one part are those of the snapshot, as they stand."""
        return len(self.snapshot.parts) == 1 and not self.snapshot.parts[0].removed_files

    @cached_property
    def _files_and_ranks(self) -> tuple[pa.Table, list[npt.NDArray[np.int32]]]:
        """The table `files`, and for each part the rank of each of its files; -1 of those that were removed."""
        tables = [self._read(part, "files") for part in self.snapshot.parts]
        if self._is_plain:
            return tables[0], [np.arange(tables[0].num_rows, dtype=np.int32)]
        kept = []
        for part, table in zip(self.snapshot.parts, tables, strict=True):
            mask = np.ones(table.num_rows, bool)
            mask[list(part.removed_files)] = False
            kept.append(np.flatnonzero(mask))
        merged = union([table.take(pa.array(rows)) for table, rows in zip(tables, kept, strict=True)])
        order = pc.sort_indices(merged.column("path")).to_numpy()
        merged = merged.take(pa.array(order))
        paths = merged.column("path")
        if pc.count_distinct(paths).as_py() != len(paths):
            raise DocumentInvalidError(
                f"{self.name} has a file in several parts",
                hint="take another snapshot, or build the index again",
                problems=("parts",),
            )
        rank_of = np.empty(len(order), np.int32)
        rank_of[order] = np.arange(len(order), dtype=np.int32)
        stops = np.cumsum([len(rows) for rows in kept])
        ranks = []
        for table, rows, stop in zip(tables, kept, stops, strict=True):
            own = np.full(table.num_rows, -1, np.int32)
            own[rows] = rank_of[stop - len(rows) : stop]
            ranks.append(own)
        numbers = pa.array(np.arange(len(order), dtype=np.int32))
        return merged.set_column(0, FILES.field("file_id"), numbers), ranks

    @cached_property
    def _sequences_and_ranks(self) -> tuple[pa.Table, list[npt.NDArray[np.int64]]]:
        """The table `sequences`, and for each part the row of each of its sequences; -1 of those that were removed."""
        if self._is_plain:
            table = self._read(self.snapshot.parts[0], "sequences")
            return table, [np.arange(table.num_rows)]
        owned = [
            self._owned(number, self._read(part, "sequences"))
            for number, part in enumerate(self.snapshot.parts)
        ]
        narrowed = [
            self._narrowed(table, self._types_of_part(number)) for number, (table, _) in enumerate(owned)
        ]
        merged = _of_format("sequences", self._narrowed(union(narrowed), self._types_of_schemas))
        order = order_of(merged.column("file_id"))
        rank_of = np.arange(merged.num_rows)
        if order is not None:
            merged = merged.take(pa.array(order))
            rank_of[order] = np.arange(len(order))
        ranks, start = [], 0
        for table, mask in owned:
            own = np.full(len(mask), -1, np.int64)
            own[mask] = rank_of[start : start + table.num_rows]
            ranks.append(own)
            start += table.num_rows
        return merged, ranks

    def _in_order(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table of all parts that have it, its rows in the order of their files."""
        if self._is_plain and name in self.snapshot.parts[0].tables:
            return self._read(self.snapshot.parts[0], name, columns)
        tables = [
            self._owned(number, self._read(part, name, columns))[0]
            for number, part in enumerate(self.snapshot.parts)
            if name in part.tables
        ]
        if not tables:
            return PAGES.empty_table()
        merged = union(tables)
        if name == "row_groups":
            merged = self._narrowed(merged, self._types_of_schemas)
        order = order_of(merged.column("file_id"))
        return merged if order is None else merged.take(pa.array(order))

    def _narrowed(self, table: pa.Table, files: Sequence[Mapping[str, pa.DataType]]) -> pa.Table:
        """Return a table with the types that the columns of some files have, those that are left of it (rule P6).

        A part keeps the type that was needed for files which are gone by now.
        """
        options = self.snapshot.options
        types: dict[str, pa.DataType | None] = {}
        if options.key is not None:
            types |= dict.fromkeys(("seq_id", "key_min", "key_max"), _type_in_files(files, options.key))
        if options.order is not None:
            types |= dict.fromkeys(("order_min", "order_max"), _type_in_files(files, options.order))
        if "attributes" in table.column_names:
            before = table.schema.field("attributes").type
            found = [pa.field(f.name, _type_in_files(files, f.name) or f.type) for f in before]
            types["attributes"] = pa.struct(found)
        if STATS in table.column_names:
            kept = []
            for field in table.schema.field(STATS).type:
                data_type = _type_in_files(files, field.name, bounds=True)
                if data_type is not None:
                    members = [m.with_type(data_type) if m.name in {"min", "max"} else m for m in field.type]
                    kept.append(pa.field(field.name, pa.struct(members)))
            if not kept:
                table = table.drop_columns([STATS])
            types[STATS] = pa.struct(kept)
        return with_types(table, {name: t for name, t in types.items() if t is not None})

    @cached_property
    def _types_of_schemas(self) -> list[dict[str, pa.DataType]]:
        return [_plain_types(record) for record in self.records]

    def _types_of_part(self, number: int) -> list[dict[str, pa.DataType]]:
        """Return the types of the columns of each schema that a file of a part has which is left."""
        files = self._read(self.snapshot.parts[number], "files", ["schema_no"])
        left = files.column("schema_no").filter(pa.array(self._files_and_ranks[1][number] >= 0))
        return [_plain_types(self.snapshot.schemas[n]) for n in pc.unique(left).to_pylist()]

    def _owned(self, number: int, table: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Return a part's rows of files that were not removed, with the files' ranks, and which rows they are."""
        ranks = self._files_and_ranks[1][number][table.column("file_id").to_numpy()]
        mask = ranks >= 0
        if not mask.all():
            table, ranks = table.filter(pa.array(mask)), ranks[mask]
        at = table.column_names.index("file_id")
        return table.set_column(at, table.field(at), pa.array(ranks)), mask

    def _own_segments(self, number: int, table: pa.Table) -> pa.Table:
        """Return a part's segments with `sequence_row` and `file_id` counted in the whole snapshot."""
        rows = self._sequences_and_ranks[1][number][table.column("sequence_row").to_numpy()]
        table = table.filter(pa.array(rows >= 0)).set_column(0, SEGMENTS.field(0), pa.array(rows[rows >= 0]))
        moved, mask = self._owned(number, table)
        if not mask.all():
            raise DocumentInvalidError(
                f"{self.name} has sequences that lie in a removed file in part",
                hint="build the index again",
                problems=("removed_files",),
            )
        return moved


def _plain_types(record: SchemaRecord) -> dict[str, pa.DataType]:
    """Return the plain types of the columns of a schema, by name."""
    return dict(zip(record.field_names, map(plain_type, record.to_arrow().types), strict=True))


def _type_in_files(
    files: Sequence[Mapping[str, pa.DataType]], column: str, *, bounds: bool = False
) -> pa.DataType | None:
    """Return the type of a column in some files; None where none has it, or no type holds all.

    With `bounds`, only files count in which it has statistics.
    """
    found = (types[column] for types in files if column in types)
    return unify_types(t for t in found if not bounds or is_bounds_type(t))


def _check_table(found: pa.Table, table: str, path: str) -> None:
    """Refuse a table that is another one, or lacks a column of the format (unknown columns are ignored)."""
    said = (found.schema.metadata or {}).get(TABLE_KEY)
    if said != table.encode():
        raise DocumentInvalidError(
            f"not the table {table!r}: {path}; it says {said!r}",
            hint="build the index again",
            problems=("table",),
        )


# -- tables to arrays and digests -----------------------------------------------------------------------------


def segment_arrays(sequences: pa.Table, segments: pa.Table | None) -> SegmentArrays:
    """Return the segments of `sequences` as arrays; `segments` has those of sequences with more than one."""

    def column(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
        return np.asarray(table.column(name).to_numpy())

    counts = column(sequences, "n_segments").astype(np.int64)
    stops = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    row_start = column(sequences, "row_start")
    arrays = {
        "file_id": np.repeat(column(sequences, "file_id"), counts),
        "row_group": np.repeat(column(sequences, "row_group"), counts),
        "row_start": np.repeat(row_start, counts),
        "row_stop": np.repeat(row_start + column(sequences, "row_count"), counts),
    }
    if segments is not None and segments.num_rows:
        at = stops[column(segments, "sequence_row")] + column(segments, "segment")
        for name, values in arrays.items():
            values[at] = column(segments, name)
    return SegmentArrays(stops=stops, **arrays)


def content_digest(
    options: BuildOptions, files: pa.Table, sequences: pa.Table, segments: SegmentArrays, row_groups: pa.Table
) -> str:
    """Return the identity of an index (rule D5): equal on every machine and with every library version.

    Aggregates are no part of it, since the last bit of a sum may hang on the version of DuckDB; their expressions are.
    """
    digest = RecordDigest()
    digest.add_json(FORMAT_NAME, {"format_version": FORMAT_VERSION, "options": options.identity()})
    digest.add_array("path", files.column("path"))
    digest.add_integers("size_bytes", files.column("size_bytes").to_numpy())
    digest.add_array("footer_sha256", files.column("footer_sha256"))
    partition = files.column("partition")
    pairs = zip(partition.to_pylist(), files.column("path").to_pylist(), strict=True)
    if any(dict(values) != dict(hive_partition(path)) for values, path in pairs):
        digest.add_array("partition", partition)  # a table's log says what the paths do not
    digest.add_array("seq_id", sequences.column("seq_id"))
    digest.add_integers("segment_stops", segments.stops)
    for name in ("file_id", "row_group", "row_start", "row_stop"):
        digest.add_integers(name, getattr(segments, name))
    if options.check == "full":
        digest.add_array("data_sha256", row_groups.column("data_sha256"))
    for i in range(len(options.attributes)):
        digest.add_array(f"attributes.{i}", pc.struct_field(sequences.column("attributes"), [i]))
    return digest.hexdigest()


# -- opening and committing -----------------------------------------------------------------------------------


def snapshot_numbers(path: str) -> list[int]:
    """Return the numbers of the snapshots in an index folder, ascending."""
    matches = [SNAPSHOT_NAME.match(name) for name in storage.names_in(path)]
    return sorted(int(match.group(1)) for match in matches if match)


def open_sidecar(path: str, number: int | None = None) -> Sidecar:
    """Open a snapshot of an index, the newest by default.

    Raises
    ------
    NotFoundError
        If there is no index, or no such snapshot.
    FormatError
        If the snapshot document is damaged or of a later version.
    """
    numbers = snapshot_numbers(path)
    if not numbers:
        beside = path.rstrip("/") + storage.INDEX_SUFFIX
        hint = (
            f"did you mean {beside}?" if snapshot_numbers(beside) else "make one with: pqindex build SOURCE"
        )
        raise NotFoundError(f"no index at {path}", hint=hint, path=path)
    if number is None:
        number = numbers[-1]
    elif number not in numbers:
        raise NotFoundError(
            f"no snapshot {number} in {path}; there are {', '.join(map(str, numbers))}",
            path=path,
            snapshot=number,
        )
    name = os.path.join(path, snapshot_name(number))
    snapshot = Snapshot.from_json(storage.read_file(name, max_bytes=MAX_SNAPSHOT_BYTES), name=name)
    if snapshot.number != number:
        raise DocumentInvalidError(
            f"{name} says that it is snapshot {snapshot.number}",
            hint="do not rename snapshots",
            problems=("snapshot",),
        )
    return Sidecar(path, snapshot)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Be a writer of an index; what writers that were killed left in it is removed first.

    Whatever is written and committed is written inside this. Readers, and other writers, may be at work all the time.
    """
    with storage.writers_share(path, lambda: remove_leftovers(path)):
        yield


def prune(path: str, keep: int) -> list[int]:
    """Remove all but the last `keep` snapshots, and the parts that only they have; return the numbers removed.

    Raises
    ------
    NotFoundError
        If there is no index.
    ConflictError
        If another writer is at work.
    """
    open_sidecar(path)
    gone: list[int] = []

    def remove_old() -> None:
        gone.extend(snapshot_numbers(path)[:-keep])
        for number in gone:
            storage.remove(os.path.join(path, snapshot_name(number)))
        remove_leftovers(path)

    with storage.writers_share(path, remove_old) as alone:
        if not alone:
            raise ConflictError(
                f"another writer is at work on {path}, or its file system has no locks",
                hint="run the command again when it is done",
                path=path,
            )
    return gone


def remove_leftovers(path: str) -> None:
    """Remove unfinished writes, and parts that no snapshot has; called while nobody else writes.

    Nothing is removed from an index in which a snapshot cannot be read, since it may be of a later version.
    """
    names = storage.names_in(path)
    try:
        snapshots = [open_sidecar(path, number).snapshot for number in snapshot_numbers(path)]
    except PqindexError:
        return
    parts = {part.name for snapshot in snapshots for part in snapshot.parts}
    for name in names:
        if name.startswith(storage.TEMPORARY_PREFIX):
            storage.remove(os.path.join(path, name))
    folder = os.path.join(path, PARTS_FOLDER)
    for name in storage.names_in(folder):
        match = PART_TABLE_NAME.match(name)
        if match and match.group(1) not in parts:
            storage.remove(os.path.join(folder, name))


def write_part(path: str, tables: Tables, notes: Sequence[str] = ()) -> tuple[Part, Tables]:
    """Write the tables of a part; return it, and the tables as they were written.

    The index does not have it before a snapshot is committed.
    """
    tables = {name: _of_format(name, table) for name, table in tables.items()}
    with storage.staging(path) as staging:
        descriptors = {}
        for name, table in tables.items():
            _write_table(staging.path(name), name, table)
            descriptors[name] = TableDescriptor(
                size_bytes=storage.size_of(staging.path(name)) or 0,
                sha256=storage.file_sha256(staging.path(name)),
                n_rows=table.num_rows,
            )
        part = Part(name=Part.name_of(descriptors), tables=descriptors, notes=tuple(notes))
        for name in descriptors:
            staging.publish(name, os.path.join(path, part.path(name)))
    return part, tables


def commit(path: str, snapshot: Snapshot) -> Sidecar:
    """Make a snapshot the newest of an index.

    Raises
    ------
    ConflictError
        If another writer committed this number first.
    """
    name = os.path.join(path, snapshot_name(snapshot.number))
    try:
        storage.write_bytes(name, snapshot.to_json())
    except ConflictError as error:
        raise ConflictError(
            f"another writer committed snapshot {snapshot.number} of {path} first",
            hint="run the command again",
            path=path,
            snapshot=snapshot.number,
        ) from error
    return Sidecar(path, snapshot)


def _write_table(path: str, name: str, table: pa.Table) -> None:
    """Write a table with its format's schema; integers as deltas, since most of them grow along the rows."""
    schema = table.schema
    integers = dict.fromkeys(_integer_leaves(schema), "DELTA_BINARY_PACKED")
    plain = [leaf for leaf in ("path", "footer_sha256", "data_sha256") if leaf in schema.names]
    dictionary = [
        leaf for leaf in _leaves(schema) if leaf not in integers and leaf not in plain and leaf != "seq_id"
    ]
    pq.write_table(
        table.replace_schema_metadata(table_metadata(name)),
        path,
        compression="zstd",
        row_group_size=_ROWS_PER_GROUP.get(name, 1 << 20),
        use_dictionary=dictionary,
        column_encoding=integers,
        write_page_checksum=True,
        store_schema=True,
    )


def _of_format(name: str, table: pa.Table) -> pa.Table:
    """Return a table with the columns and types of its format, and no others."""
    schema = _schema_of(name, table)
    return table.select(schema.names).cast(schema)


def _schema_of(name: str, table: pa.Table) -> pa.Schema:
    fixed = {"files": FILES, "segments": SEGMENTS, "chunks": CHUNKS, "pages": PAGES}
    if name in fixed:
        return fixed[name]
    if name == "row_groups":
        return row_groups_schema(table.schema.field("key_min").type)
    return sequences_schema_of(table.schema)


def _leaves(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the Parquet path of each leaf and its type."""
    found: dict[str, pa.DataType] = {}

    def walk(prefix: str, data_type: pa.DataType) -> None:
        if pa.types.is_struct(data_type):
            for child in data_type:
                walk(f"{prefix}.{child.name}", child.type)
        elif pa.types.is_map(data_type):
            walk(f"{prefix}.key_value.key", data_type.key_type)
            walk(f"{prefix}.key_value.value", data_type.item_type)
        elif pa.types.is_list(data_type):
            walk(f"{prefix}.list.element", data_type.value_type)
        else:
            found[prefix] = data_type

    for field in schema:
        walk(field.name, field.type)
    return found


def _integer_leaves(schema: pa.Schema) -> list[str]:
    """Return the leaves that are stored as 32- or 64-bit integers, aside from what has columns of the source in it."""
    return [
        path
        for path, data_type in _leaves(schema).items()
        if pa.types.is_integer(data_type) and not path.startswith(("stats.", "attributes.", "aggregates."))
    ]
