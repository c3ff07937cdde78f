"""SQL about an index: the relations that a query sees, and from its answer to the places of sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pqindex.digest import table_digest
from pqindex.footer import chunk_start
from pqindex.partitions import INDEX_COLUMNS, partition_columns
from pqindex.places import Places, SourceFiles, empty_columns, expand_ranges, narrowest
from pqindex.readplan import (
    PAGE_FACTS,
    ChunkSource,
    KnownPages,
    ReadPlan,
    blocks_of_groups,
    stops_of_groups,
)
from pqindex.sidecar import Sidecar, open_sidecar, segment_arrays, snapshot_numbers
from pqindex.sql import RANK_COLUMN, CheckedQuery, LockedDatabase, attached_tables, check_query, run_selection

RELATIONS = ("index", "files", "row_groups", "segments", "snapshots")

Parameters = Sequence[Any] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked, for a manifest.

    Attributes
    ----------
    query : CheckedQuery
    parameters : sequence, mapping or None
    attached : dict of str to str
        The digest of each attached table by name.
    """

    query: CheckedQuery
    parameters: Parameters
    attached: Mapping[str, str]


class Database:
    """The relations of one index in a locked database; each is loaded when a query first names it.

    Thread-safe. Not for use in a forked child of the process that made it.
    """

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._locked = LockedDatabase(relations(sidecar))

    def sql(
        self,
        sql: str,
        params: Parameters = None,
        attach: Mapping[str, object] | None = None,
        dialect: str = "duckdb",
    ) -> pa.Table:
        """Return the answer to one SELECT."""
        with self._with(attached_tables(attach or {}, reserved=RELATIONS)) as database:
            return database.execute(check_query(sql, relations=database.schemas, dialect=dialect), params)

    def select(
        self,
        root: str,
        sql: str,
        params: Parameters = None,
        attach: Mapping[str, object] | None = None,
        dialect: str = "duckdb",
    ) -> tuple[Places, SourceFiles, Asked]:
        """Return the places of the sequences that one SELECT chooses, in its order."""
        attached = attached_tables(attach or {}, reserved=RELATIONS)
        with self._with(attached) as database:
            query = check_query(sql, relations=database.schemas, dialect=dialect)
            answer = run_selection(database, query, params)
        places, files = _places(self._sidecar, root, answer)
        digests = {name: table_digest(table) for name, table in attached.items()}
        return places, files, Asked(query=query, parameters=params, attached=digests)

    def close(self) -> None:
        """Close the database; it cannot be asked again."""
        self._locked.close()

    def _with(self, attached: Mapping[str, pa.Table]) -> LockedDatabase:
        return self._locked.with_relations(attached)


# -- the relations --------------------------------------------------------------------------------------------


def relations(sidecar: Sidecar) -> dict[str, Callable[[], pa.Table]]:
    """Return what makes each relation; `index` is in the canonical order, with `seq_no` its row number."""
    return {
        "index": lambda: _index_relation(sidecar),
        # Times and etags are facts of a machine: what hangs on them could not be pinned.
        "files": lambda: sidecar.files.drop_columns(["mtime_ns", "etag"]),
        "row_groups": lambda: _with_file(sidecar.row_groups, sidecar.files),
        "segments": lambda: _segments_relation(sidecar),
        "snapshots": lambda: snapshots_relation(sidecar.path),
    }


def _with_file(table: pa.Table, files: pa.Table) -> pa.Table:
    paths = _paths_of(table.column("file_id"), files)
    at = table.column_names.index("file_id")
    return table.add_column(at, "file", paths)


def _paths_of(file_id: pa.ChunkedArray, files: pa.Table) -> pa.ChunkedArray:
    return files.column("path").take(file_id)


def _index_relation(sidecar: Sidecar) -> pa.Table:
    table = _with_file(sidecar.sequences, sidecar.files)
    table = table.add_column(1, "seq_no", pa.array(np.arange(table.num_rows, dtype=np.int64)))
    asked = [_members(table, name) for name in ("attributes", "aggregates")]
    table = table.select([name for name in table.column_names if name not in {"attributes", "aggregates"}])
    for name, column in (pair for members in asked for pair in members.items()):
        table = table.append_column(name, column)
    found = partition_columns(
        sidecar.files,
        sidecar.snapshot.options.partition_types,
        own={*table.column_names, *INDEX_COLUMNS},
        in_files={name for schema in sidecar.records for name in schema.field_names},
    )
    if found.struct is None:
        return table
    values = found.struct.take(table.column("file_id").combine_chunks())
    for name in found.names:
        table = table.append_column(name, values.field(name))
    return table.append_column("partition", values)


def _members(table: pa.Table, name: str) -> dict[str, pa.ChunkedArray]:
    """Return the members of a struct column by name, none where there is no such column."""
    if name not in table.column_names:
        return {}
    column = table.column(name)
    return {member.name: pc.struct_field(column, [i]) for i, member in enumerate(column.type)}


def _segments_relation(sidecar: Sidecar) -> pa.Table:
    segments = sidecar.segments
    counts = np.diff(segments.stops)
    seq_no = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    table = pa.table(
        {
            "seq_id": sidecar.sequences.column("seq_id").take(pa.array(seq_no)),
            "seq_no": seq_no,
            "segment": (np.arange(len(seq_no)) - np.repeat(segments.stops[:-1], counts)).astype(np.int32),
            "file_id": segments.file_id,
            "row_group": segments.row_group,
            "row_start": segments.row_start,
            "row_stop": segments.row_stop,
        }
    )
    return _with_file(table, sidecar.files)


def snapshots_relation(path: str) -> pa.Table:
    """Return one row a snapshot of the index at `path`, oldest first."""
    snapshots = [open_sidecar(path, number).snapshot for number in snapshot_numbers(path)]
    totals = ("n_files", "n_row_groups", "n_rows", "n_sequences", "n_segments")
    columns: dict[str, pa.Array] = {
        "snapshot": pa.array([s.number for s in snapshots], pa.int64()),
        "parent": pa.array([s.parent for s in snapshots], pa.int64()),
        "created_at": pa.array([s.created_at for s in snapshots], pa.string()),
        "writer": pa.array([s.writer for s in snapshots], pa.string()),
        **{name: pa.array([s.totals[name] for s in snapshots], pa.int64()) for name in totals},
        "content_digest": pa.array([s.content_digest for s in snapshots], pa.string()),
    }
    return pa.table(columns)


# -- from an answer to places ---------------------------------------------------------------------------------


def _places(sidecar: Sidecar, root: str, answer: pa.Table) -> tuple[Places, SourceFiles]:
    """Return where the rows of the sequences lie whose ranks the answer has, and the files they touch."""
    ranks = answer.column(RANK_COLUMN).to_numpy().astype(np.int64)
    segments = sidecar.segments
    starts, stops = segments.stops[ranks], segments.stops[ranks + 1]
    chosen = expand_ranges(starts, stops)
    file_ids, file_no = np.unique(segments.file_id[chosen], return_inverse=True)
    seq_ids = sidecar.sequences.column("seq_id").take(pa.array(ranks)).combine_chunks()
    places = Places(
        seq_ids=seq_ids,
        row_counts=sidecar.sequences.column("row_count").to_numpy()[ranks],
        segment_stops=np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64),
        file_no=file_no.astype(np.int32),
        row_group=segments.row_group[chosen],
        row_start=segments.row_start[chosen],
        row_stop=segments.row_stop[chosen],
        extra=answer.drop_columns([RANK_COLUMN, "seq_id"]),
    )
    return places, source_files(sidecar, root, file_ids)


def all_places(sidecar: Sidecar, root: str) -> tuple[Places, SourceFiles]:
    """Return where the rows of every sequence lie, in the canonical order, without asking in SQL."""
    names = ("seq_id", "row_count", "n_segments")
    sequences = sidecar.some_columns("sequences", names)
    totals = sidecar.snapshot.totals
    is_simple = totals["n_segments"] == totals["n_sequences"]
    segments = segment_arrays(sequences, None) if is_simple else sidecar.segments
    places = Places(
        seq_ids=sequences.column("seq_id").combine_chunks(),
        row_counts=sequences.column("row_count").to_numpy(),
        segment_stops=segments.stops,
        file_no=segments.file_id,
        row_group=segments.row_group,
        row_start=segments.row_start,
        row_stop=segments.row_stop,
        extra=empty_columns(sequences.num_rows),
    )
    return places, source_files(sidecar, root, np.arange(sidecar.files.num_rows))


def source_files(sidecar: Sidecar, root: str, file_ids: Sequence[int] | np.ndarray[Any, Any]) -> SourceFiles:
    """Return some source files of an index as a manifest and a read plan need them."""
    table = sidecar.files.take(pa.array(file_ids, pa.int64()))

    def integers(name: str) -> Any:
        return table.column(name).to_numpy().astype(np.int64)

    return SourceFiles(
        root=root,
        paths=tuple(table.column("path").to_pylist()),
        size_bytes=integers("size_bytes"),
        footer_offset=integers("footer_offset"),
        footer_length=integers("footer_length"),
        footer_sha256=tuple(sha.hex() for sha in table.column("footer_sha256").to_pylist()),
        n_rows=integers("n_rows"),
    )


def recorded_content(sidecar: Sidecar, files: SourceFiles) -> Callable[[int, int], bytes | None]:
    """Return what an index knows of the bytes of some files' row groups: from (file_no, row_group) to a digest."""
    paths = sidecar.files.column("path").combine_chunks()
    file_ids = pc.index_in(pa.array(files.paths, pa.string()), value_set=paths).to_numpy(zero_copy_only=False)
    counts = sidecar.files.column("n_row_groups").to_numpy().astype(np.int64)
    base = np.cumsum(counts) - counts
    digests = sidecar.row_groups.column("data_sha256")

    def recorded(file_no: int, row_group: int) -> bytes | None:
        digest: bytes | None = digests[int(base[file_ids[file_no]]) + row_group].as_py()
        return digest

    return recorded


def chunk_source(sidecar: Sidecar, files: SourceFiles) -> ChunkSource:
    """Return what an index knows of the row groups of some of its files, for a read plan."""
    paths = sidecar.files.column("path").combine_chunks()
    file_ids = pc.index_in(pa.array(files.paths, pa.string()), value_set=paths).to_numpy(zero_copy_only=False)
    counts = sidecar.files.column("n_row_groups").to_numpy().astype(np.int64)
    base = np.cumsum(counts) - counts
    schema_of_file = sidecar.files.column("schema_no").to_numpy()[file_ids]

    def rows(file_no: Any, row_group: Any) -> Any:
        return base[file_ids[file_no]] + row_group

    def group_n_rows(file_no: Any, row_group: Any) -> Any:
        return sidecar.row_groups.column("n_rows").to_numpy()[rows(file_no, row_group)]

    def facts(file_no: Any, row_group: Any, leaves: Sequence[Any]) -> dict[str, Any]:
        # A column at a time: each would be a hundred megabytes at a million row groups.
        chosen = rows(file_no, row_group)
        schemas = schema_of_file[file_no]

        def column(name: str) -> Any:
            lists = sidecar.chunks([name]).column(name)
            whole = lists.chunk(0) if lists.num_chunks == 1 else lists.combine_chunks()  # which copies
            return _of_leaves(whole, chosen, schemas, leaves)

        return {
            "start": chunk_start(column("data_page_offset"), column("dictionary_page_offset")),
            "length": column("total_compressed_size"),
            "num_values": column("num_values"),
            "codec": column("codec"),
            "encodings": column("encodings"),
        }

    def pages(file_no: Any, row_group: Any) -> KnownPages:
        table = sidecar.pages
        if not table.num_rows:
            return KnownPages.none()
        there = base[table.column("file_id").to_numpy()] + table.column("row_group").to_numpy()
        group = pc.index_in(pa.array(there), value_set=pa.array(rows(file_no, row_group)))
        chosen = table.filter(group.is_valid())
        lists = {name: chosen.column(name).combine_chunks() for name in PAGE_FACTS}
        stops = np.concatenate([[0], np.cumsum(lists["offset"].value_lengths().to_numpy())]).astype(np.int64)
        return KnownPages(
            group=group.drop_null().to_numpy(zero_copy_only=False).astype(np.int64),
            leaf=chosen.column("leaf").to_numpy().astype(np.int64),
            stops=stops,
            places={name: values.flatten().to_numpy().astype(np.int64) for name, values in lists.items()},
        )

    return ChunkSource(
        schemas=sidecar.snapshot.schemas,
        schema_of_file=schema_of_file,
        group_n_rows=group_n_rows,
        facts=facts,
        pages=pages,
    )


def chunk_fact(sidecar: Sidecar, plan: ReadPlan, name: str) -> Any:
    """Return a fact of the footers of each chunk of a read plan, in the plan's order; shape (n_chunks,).

    Parameters
    ----------
    sidecar, plan
        The index, and a plan of some of its sequences.
    name : str
        A column of the table `chunks`.
    """
    lists = sidecar.chunks([name]).column(name)
    leaves = [plan.leaves_of(number) for number in range(len(plan.schemas))]
    schemas = plan.schema_of_file[plan.group_file]
    whole = lists.chunk(0) if lists.num_chunks == 1 else lists.combine_chunks()
    return _of_leaves(whole, _rows_of_groups(sidecar, plan), schemas, leaves)


def row_offsets(sidecar: Sidecar, plan: ReadPlan) -> Any:
    """Return how many rows of its file stand before each row group of a read plan; shape (n_groups,), int64."""
    return (
        sidecar.some_columns("row_groups", ["row_offset"])
        .column("row_offset")
        .to_numpy()[_rows_of_groups(sidecar, plan)]
    )


def _rows_of_groups(sidecar: Sidecar, plan: ReadPlan) -> Any:
    """Return which rows of the tables `row_groups` and `chunks` a plan's row groups are."""
    paths = sidecar.files.column("path").combine_chunks()
    file_ids = pc.index_in(plan.paths, value_set=paths).to_numpy(zero_copy_only=False)
    counts = sidecar.files.column("n_row_groups").to_numpy().astype(np.int64)
    base = np.cumsum(counts) - counts
    return base[file_ids[plan.group_file]] + plan.group_row_group


def _of_leaves(lists: pa.Array, rows: Any, schema_of_row: Any, leaves: Sequence[Any]) -> Any:
    """Return the values of some leaves of some rows of a list column, row by row; of 32 bits where all fit in them.

    Parameters
    ----------
    lists : pa.ListArray
        One value a leaf.
    rows, schema_of_row : ndarray, shape (n,)
        Which rows, and the schema of each.
    leaves : sequence of ndarray
        The wanted leaves of each schema.
    """
    offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
    data_type = narrowest(np.array([values.min(), values.max()])).dtype if len(values) else values.dtype
    found = np.zeros(int(stops_of_groups(schema_of_row, leaves)[-1]), data_type)
    for number, some, at in blocks_of_groups(schema_of_row, leaves):
        found[at] = values[(offsets[rows[some]][:, None] + leaves[number]).ravel()]
    return found
