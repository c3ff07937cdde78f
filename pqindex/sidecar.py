"""An index on disk: snapshots and parts as one thing.

This is the only place that opens a snapshot, and so the only gate for versions, and the only place that commits one.
A commit is the creation of the next snapshot's name; whatever was not committed is not part of the index.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pqindex import storage
from pqindex.digest import RecordDigest
from pqindex.documents import BuildOptions, Part, Snapshot, TableDescriptor
from pqindex.errors import (
    ConflictError,
    DigestMismatchError,
    DocumentInvalidError,
    IntegrityError,
    NotFoundError,
)
from pqindex.format import (
    CHUNKS,
    FILES,
    FORMAT_NAME,
    FORMAT_VERSION,
    MAX_SNAPSHOT_BYTES,
    PAGES,
    SEGMENTS,
    SNAPSHOT_NAME,
    TABLE_KEY,
    row_groups_schema,
    sequences_schema,
    snapshot_name,
    table_metadata,
)

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

    def __init__(self, path: str, snapshot: Snapshot) -> None:
        self.path = path
        self.snapshot = snapshot

    @property
    def name(self) -> str:
        """How messages call this snapshot."""
        return os.path.join(self.path, snapshot_name(self.snapshot.number))

    @cached_property
    def files(self) -> pa.Table:
        """The table `files`."""
        tables = [self._read(part, "files") for part in self.snapshot.parts]
        merged = pa.concat_tables(tables).sort_by("path") if len(tables) > 1 else tables[0]
        return merged.set_column(0, FILES.field("file_id"), pa.array(range(merged.num_rows), pa.int32()))

    @cached_property
    def row_groups(self) -> pa.Table:
        """The table `row_groups`."""
        return self._merged("row_groups", ["file_id", "row_group"])

    @cached_property
    def sequences(self) -> pa.Table:
        """The table `sequences`; row number i is `seq_no` i."""
        return self._merged("sequences", ["file_id", "row_group", "row_start"])

    @cached_property
    def segments(self) -> SegmentArrays:
        """The segments of all sequences, those with one segment too."""
        sequences = self.sequences
        own = [
            self._read(part, "segments") if "segments" in part.tables else None
            for part in self.snapshot.parts
        ]
        if len(own) == 1:
            return segment_arrays(sequences, own[0])
        return segment_arrays(sequences, self._merged_segments(own))

    def chunks(self, columns: Sequence[str]) -> pa.Table:
        """Return the table `chunks` with `file_id`, `row_group` and the columns asked for."""
        return self._merged("chunks", ["file_id", "row_group"], columns=["file_id", "row_group", *columns])

    @cached_property
    def pages(self) -> pa.Table:
        """The table `pages`, without rows where no part has it."""
        parts = [part for part in self.snapshot.parts if "pages" in part.tables]
        if not parts:
            return PAGES.empty_table()
        return self._merged("pages", ["file_id", "row_group", "leaf"], parts=parts)

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
            found = content_digest(self.snapshot.options, self.files, self.sequences, self.segments)
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
        path = os.path.join(self.path, part.path(table))
        size = storage.size_of(path)
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

    def _merged(
        self,
        table: str,
        order: list[str],
        *,
        columns: Sequence[str] | None = None,
        parts: Sequence[Part] | None = None,
    ) -> pa.Table:
        parts = self.snapshot.parts if parts is None else parts
        if len(self.snapshot.parts) == 1:
            return self._read(parts[0], table, columns)
        tables = [self._renumbered(part, self._read(part, table, columns)) for part in parts]
        merged = pa.concat_tables(tables, promote_options="permissive")
        return merged.sort_by([(name, "ascending") for name in order])

    def _renumbered(self, part: Part, table: pa.Table) -> pa.Table:
        """Return the part's rows with `file_id` counted in the whole snapshot."""
        paths = self._read(part, "files", ["path"]).column("path")
        ranks = pc.index_in(paths, value_set=self.files.column("path").combine_chunks()).combine_chunks()
        at = table.column_names.index("file_id")
        return table.set_column(at, table.field(at), ranks.take(table.column("file_id").combine_chunks()))

    def _merged_segments(self, own: Sequence[pa.Table | None]) -> pa.Table:
        """Return the parts' segments with `sequence_row` counted in the whole snapshot."""
        key = ["file_id", "row_group", "row_start"]
        ranks = self.sequences.select(key).append_column("rank", pa.array(np.arange(self.sequences.num_rows)))
        tables = []
        for part, segments in zip(self.snapshot.parts, own, strict=True):
            if segments is None:
                continue
            local = self._renumbered(part, self._read(part, "sequences", key))
            rows = local.append_column("row", pa.array(np.arange(local.num_rows)))
            joined = rows.join(ranks, key).sort_by("row").column("rank").combine_chunks()
            moved = self._renumbered(part, segments)
            tables.append(
                moved.set_column(0, SEGMENTS.field(0), joined.take(moved.column(0).combine_chunks()))
            )
        merged = pa.concat_tables(tables or [SEGMENTS.empty_table()])
        return merged.sort_by([("sequence_row", "ascending"), ("segment", "ascending")])


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
    options: BuildOptions, files: pa.Table, sequences: pa.Table, segments: SegmentArrays
) -> str:
    """Return the identity of an index (rule D5): equal on every machine and with every library version."""
    digest = RecordDigest()
    digest.add_json(FORMAT_NAME, {"format_version": FORMAT_VERSION, "options": options.identity()})
    digest.add_array("path", files.column("path"))
    digest.add_integers("size_bytes", files.column("size_bytes").to_numpy())
    digest.add_array("footer_sha256", files.column("footer_sha256"))
    digest.add_array("seq_id", sequences.column("seq_id"))
    digest.add_integers("segment_stops", segments.stops)
    for name in ("file_id", "row_group", "row_start", "row_stop"):
        digest.add_integers(name, getattr(segments, name))
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


def write_part(path: str, tables: Mapping[str, pa.Table]) -> Part:
    """Write the tables of a part and return it; the index does not have it before a snapshot is committed."""
    with storage.staging(path) as staging:
        descriptors = {}
        for name, table in tables.items():
            _write_table(staging.path(name), name, table)
            descriptors[name] = TableDescriptor(
                size_bytes=storage.size_of(staging.path(name)) or 0,
                sha256=storage.file_sha256(staging.path(name)),
                n_rows=table.num_rows,
            )
        part = Part(name=Part.name_of(descriptors), tables=descriptors)
        for name in descriptors:
            staging.publish(name, os.path.join(path, part.path(name)))
    return part


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
    schema = _schema_of(name, table)
    table = table.select(schema.names).cast(schema).replace_schema_metadata(table_metadata(name))
    integers = dict.fromkeys(_integer_leaves(schema), "DELTA_BINARY_PACKED")
    plain = [leaf for leaf in ("path", "footer_sha256", "data_sha256") if leaf in schema.names]
    dictionary = [
        leaf for leaf in _leaves(schema) if leaf not in integers and leaf not in plain and leaf != "seq_id"
    ]
    pq.write_table(
        table,
        path,
        compression="zstd",
        row_group_size=_ROWS_PER_GROUP.get(name, 1 << 20),
        use_dictionary=dictionary,
        column_encoding=integers,
        write_page_checksum=True,
        store_schema=True,
    )


def _schema_of(name: str, table: pa.Table) -> pa.Schema:
    fixed = {"files": FILES, "segments": SEGMENTS, "chunks": CHUNKS, "pages": PAGES}
    if name in fixed:
        return fixed[name]
    if name == "row_groups":
        return row_groups_schema(table.schema.field("key_min").type)
    stats = {}
    if "stats" in table.column_names:
        stats = {field.name: field.type.field("min").type for field in table.schema.field("stats").type}
    types = [table.schema.field(column).type for column in ("seq_id", "order_min")]
    return sequences_schema(types[0], types[1], stats)


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
    """Return the leaves that are stored as 32- or 64-bit integers, statistics aside."""
    return [
        path
        for path, data_type in _leaves(schema).items()
        if pa.types.is_integer(data_type) and not path.startswith("stats.")
    ]
