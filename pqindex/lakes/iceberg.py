"""Apache Iceberg: the live files of one snapshot, by the library pyiceberg (the extra ``iceberg``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pqindex.errors import FIRST_PLACES, NotFoundError, TableFormatError, UnsupportedFileError
from pqindex.lakes.live import (
    LiveFiles,
    missing_library,
    no_table,
    relative_path,
    rows_deleted,
    unreadable,
)
from pqindex.listing import PartitionValues

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

KIND = "Apache Iceberg"
_FOLDER = "metadata"
_DOCUMENT = re.compile(r"^v?(\d+).*\.metadata\.json(\.gz)?$")
_UNDO_DELETES = "rewrite the data files with the deletes applied (rewrite_data_files), then build again"


def live_files(root: str, version: int | None) -> LiveFiles:
    """Return the live files of an Iceberg table, at its current snapshot by default.

    The table is what the newest metadata file of the folder describes, or the metadata file that `root` names; no
    catalog is asked. A table that was moved is read where it lies. Partition values are those of the manifests, as
    the texts that Iceberg itself makes of them.

    Raises
    ------
    MissingDependencyError
        If pyiceberg is not installed.
    NotFoundError
        If there is no table, or no such snapshot.
    TableFormatError
        If the table has delete files or renamed columns, or its metadata cannot be read.
    UnsupportedFileError
        If live files are not Parquet.
    """
    try:
        import pyiceberg.table  # noqa: F401  # only to say in one place that it is missing
    except ImportError as error:
        raise missing_library("pyiceberg", "iceberg", error) from error
    document = _newest_document(root) if os.path.isdir(root) else root
    if not os.path.isfile(document):
        raise no_table(KIND, root, "there is no such folder or metadata file")
    root = os.path.dirname(os.path.dirname(document))
    try:
        table = _open(document, root)
        snapshot = _snapshot(table, version, root)
        _refuse_renamed_columns(table, root)
        partitions = {} if snapshot is None else _data_files(table, snapshot, root)
    except (TableFormatError, UnsupportedFileError, NotFoundError):
        raise
    except Exception as error:  # of many kinds: the library has no base for its errors
        raise unreadable(KIND, root, f"{type(error).__name__}: {error}") from error
    return LiveFiles(
        root=root, version="none" if snapshot is None else str(snapshot.snapshot_id), partitions=partitions
    )


def _newest_document(root: str) -> str:
    folder = os.path.join(root, _FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = {name: match for name in names if (match := _DOCUMENT.match(name))}
    if not found:
        raise no_table(KIND, root, f"there is no {_FOLDER}/*.metadata.json")
    numbers = {name: int(match.group(1)) for name, match in found.items()}
    newest = [name for name, number in numbers.items() if number == max(numbers.values())]
    if len(newest) > 1:
        raise TableFormatError(
            f"{KIND} table {root} has several newest metadata files: {', '.join(sorted(newest)[:FIRST_PLACES])}; only "
            "the catalog knows which one is the table",
            hint="name the metadata file instead of the folder",
            path=root,
            kind=KIND,
        )
    return os.path.join(folder, newest[0])


def _open(document: str, root: str) -> Table:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import StaticTable

    metadata = FromInputFile.table_metadata(PyArrowFileIO().new_input(document))
    was = metadata.location.rstrip("/")

    class _MovedFileIO(PyArrowFileIO):
        """Reads what lay in the table's recorded folder where the table lies now."""

        def new_input(self, location: str) -> Any:
            return super().new_input(_moved(location, was, root))

    return StaticTable(
        identifier=("table",),
        metadata=metadata,
        metadata_location=document,
        io=_MovedFileIO(),
        catalog=NoopCatalog("none"),
    )


def _moved(location: str, was: str, root: str) -> str:
    """Return where a file of the table lies now."""
    if location.startswith(was + "/"):
        return root + location[len(was) :]
    return location


def _snapshot(table: Table, version: int | None, root: str) -> Snapshot | None:
    if version is None:
        return table.current_snapshot()
    snapshot = table.metadata.snapshot_by_id(version)
    if snapshot is None:
        known = [str(s.snapshot_id) for s in table.metadata.snapshots]
        raise NotFoundError(
            f"no snapshot {version} of the {KIND} table {root}; there are {', '.join(known[-FIRST_PLACES:]) or 'none'}",
            path=root,
            version=version,
        )
    return snapshot


def _data_files(table: Table, snapshot: Snapshot, root: str) -> dict[str, PartitionValues]:
    """Return the partition values of each live data file, by its path."""
    was = table.metadata.location.rstrip("/")
    found: dict[str, PartitionValues] = {}
    deletes: list[str] = []
    others: list[str] = []
    for spec_id, data_file in _entries(table, snapshot):
        path = relative_path(_moved(data_file.file_path, was, root), root, KIND)
        if int(data_file.content) != 0:
            deletes.append(path)
        elif data_file.file_format.value.upper() != "PARQUET":
            others.append(f"{path} ({data_file.file_format.value})")
        else:
            found[path] = _partition(table, spec_id, data_file.partition)
    if deletes:
        raise rows_deleted(KIND, root, "delete files", sorted(deletes), _UNDO_DELETES)
    if others:
        raise UnsupportedFileError(
            f"{len(others)} live files of the {KIND} table {root} are not Parquet: {'; '.join(others[:FIRST_PLACES])}",
            hint="rewrite the table in Parquet",
            file=others[0],
        )
    return found


def _entries(table: Table, snapshot: Snapshot) -> Iterator[tuple[int, Any]]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield manifest.partition_spec_id, entry.data_file


def _partition(table: Table, spec_id: int, record: Any) -> PartitionValues:
    values = []
    for position, field in enumerate(table.specs()[spec_id].fields):
        if str(field.transform) == "void":
            continue
        value = record[position]
        source = next((s for s in table.metadata.schemas if field.source_id in s.field_ids), table.schema())
        text = None
        if value is not None:
            text = field.transform.to_human_string(source.find_type(field.source_id), value)
        values.append((field.name, text))
    return tuple(values)


def _refuse_renamed_columns(table: Table, root: str) -> None:
    """Refuse a table in which a column had several names, or a name was several columns: its files are read by name."""
    names: dict[int, set[str]] = {}
    ids: dict[str, set[int]] = {}
    for schema in table.metadata.schemas:
        for field_id in schema.field_ids:
            name = schema.find_column_name(field_id) or ""
            names.setdefault(field_id, set()).add(name)
            ids.setdefault(name, set()).add(field_id)
    renamed = [" and ".join(sorted(found)) for found in names.values() if len(found) > 1]
    again = [f"{name}, dropped and added again" for name, found in ids.items() if len(found) > 1]
    if renamed or again:
        raise TableFormatError(
            f"{KIND} table {root} has columns with other names in older files: "
            + "; ".join(sorted(renamed) + sorted(again)),
            hint="rewrite the data files with the newest schema into a new table, or pass the files with --files FILE "
            "and use the names in the files",
            path=root,
            kind=KIND,
        )
