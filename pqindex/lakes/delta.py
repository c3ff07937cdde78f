"""Delta Lake: the live files of one version, by the library deltalake (the extra ``delta``)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from pqindex.errors import NotFoundError, TableFormatError
from pqindex.lakes.live import (
    LiveFiles,
    missing_library,
    no_table,
    relative_path,
    rows_deleted,
    unreadable,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

KIND = "Delta Lake"
_UNDO_DELETES = "rewrite the files without the deleted rows (REORG TABLE ... APPLY (PURGE)), then build again"


def live_files(root: str, version: int | None) -> LiveFiles:
    """Return the live files of a Delta table, at its newest version by default.

    Paths of the log are decoded once, as the protocol says. Partition values are those of the log, as text. Column
    mapping is taken only where every column has its own name in the files too.

    Raises
    ------
    MissingDependencyError
        If deltalake is not installed.
    NotFoundError
        If there is no table, or no such version.
    TableFormatError
        If the table has deletion vectors or renamed columns, or its log cannot be read.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError as error:
        raise missing_library("deltalake", "delta", error) from error
    if not os.path.isdir(os.path.join(root, "_delta_log")):
        raise no_table(KIND, root, "there is no folder _delta_log")
    try:
        newest = DeltaTable(root)
        if version is not None and not 0 <= version <= newest.version():
            raise NotFoundError(
                f"no version {version} of the {KIND} table {root}; the newest is {newest.version()}",
                path=root,
                version=version,
            )
        table = newest if version is None else DeltaTable(root, version=version)
        _refuse_renamed_columns(table, root)
        _refuse_deletion_vectors(table, root)
        actions = pa.table(table.get_add_actions(flatten=False))
        number = table.version()
    except TableNotFoundError as error:
        raise no_table(KIND, root, error) from error
    except DeltaError as error:
        raise unreadable(KIND, root, error) from error
    paths = [relative_path(unquote(path), root, KIND) for path in actions.column("path").to_pylist()]
    values = zip(*(_texts(column) for column in _partition(actions)), strict=True)
    names = _partition(actions).column_names
    rows = list(values) if names else [()] * len(paths)
    partitions = {path: tuple(zip(names, row, strict=True)) for path, row in zip(paths, rows, strict=True)}
    return LiveFiles(root=root, version=str(number), partitions=partitions)


def _partition(actions: pa.Table) -> pa.Table:
    if "partition" not in actions.column_names:
        return actions.select([])
    struct = actions.column("partition").combine_chunks()
    return pa.table(struct.flatten(), names=[field.name for field in struct.type])


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    return list(pc.cast(column, pa.string()).to_pylist())


def _refuse_deletion_vectors(table: DeltaTable, root: str) -> None:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    files = [
        os.path.basename(name)
        for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
        for name in batch.column("filepath").to_pylist()
    ]
    if files:
        raise rows_deleted(KIND, root, "deletion vectors", files, _UNDO_DELETES)


def _refuse_renamed_columns(table: DeltaTable, root: str) -> None:
    """Refuse a table whose columns have other names in its files than in its schema."""
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") == "none":
        return
    renamed = _renamed(json.loads(table.schema().to_json()))
    if renamed:
        raise TableFormatError(
            f"{KIND} table {root} maps columns to other names in its files: {', '.join(renamed[:10])}",
            hint="write the table anew without column mapping, or pass the live files with --files FILE and use "
            "the names in the files",
            path=root,
            kind=KIND,
        )


def _renamed(schema: Any) -> list[str]:
    """Return the columns, nested ones too, whose physical name is another one."""
    if not isinstance(schema, dict):
        return []
    found = []
    for field in schema.get("fields", ()):
        physical = field.get("metadata", {}).get("delta.columnMapping.physicalName", field["name"])
        if physical != field["name"]:
            found.append(f"{field['name']} is {physical}")
        found += _renamed(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        found += _renamed(schema.get(part))
    return found
