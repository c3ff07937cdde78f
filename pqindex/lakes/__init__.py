"""The live files of tables that a format with a log manages: Delta Lake and Apache Iceberg.

An adapter reads the table's own log, through the library of its format, and gives the files that are live at one
version, relative to the folder of the table. Nothing else of a log is used: an index is one of files, and holds for as
long as they are there. Each library is an extra, imported only in the adapter of its format.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pqindex.errors import EmptySourceError, UsageError
from pqindex.lakes.live import LiveFiles
from pqindex.listing import (
    Listing,
    PassedOver,
    PathLike,
    in_byte_order,
    list_again,
    list_named,
    list_source,
    refuse_store,
)

FORMATS = ("delta", "iceberg")


def list_files(
    source: PathLike | Sequence[PathLike],
    files: Sequence[PathLike] | None = None,
    *,
    table_format: str | None = None,
    table_version: int | None = None,
    ignore_lake: bool = False,
    passed_over: list[PassedOver] | None = None,
) -> Listing:
    """List the files of a source; of a table, those that are live.

    Parameters
    ----------
    source, files, ignore_lake, passed_over
        As for `listing.list_source`.
    table_format : {"delta", "iceberg"}, optional
        The source is the folder of such a table; of Iceberg it may be a metadata file, too.
    table_version
        Version of a Delta table, or snapshot id of an Iceberg table; the newest by default.

    Raises
    ------
    UsageError
        If the options do not go together.
    MissingDependencyError
        If the library of the format is not installed.
    NotFoundError
        If there is no such table, version or file.
    TableFormatError
        If the files alone are not what the table holds: deleted rows that are still in them, renamed columns.
    """
    if table_format is None:
        if table_version is not None:
            raise UsageError(
                "a table version needs the format of the table", hint="name --delta or --iceberg"
            )
        return list_source(source, files, ignore_lake=ignore_lake, passed_over=passed_over)
    if table_format not in FORMATS:
        raise UsageError(f"table_format: expected one of {', '.join(FORMATS)}, found {table_format!r}")
    if files is not None or ignore_lake:
        raise UsageError(
            "the files of a table come from its log: name neither files nor --ignore-lake with it"
        )
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"a table is one folder, found {source!r}", hint="index each table by itself")
    if table_version is not None and (isinstance(table_version, bool) or not isinstance(table_version, int)):
        raise UsageError(f"table_version: expected an integer, found {table_version!r}")
    refuse_store(os.fspath(source))
    return _listing(_live_files(os.path.abspath(source), table_format, table_version), table_format)


def list_files_again(
    root: str, kind: str, paths: Sequence[str], *, table_format: str | None, ignore_lake: bool
) -> Listing:
    """List a source as it was listed before; of a table, the newest version.

    Parameters
    ----------
    root, kind, ignore_lake
        Of the listing before; the root may be another one by now.
    paths
        Of the listing before: what a source that was named file by file has.
    table_format
        Of the table that was listed, None for other sources.

    Raises
    ------
    NotFoundError, EmptySourceError, TableFormatError, MissingDependencyError
        As for `list_files`.
    """
    if table_format is not None:
        return list_files(root, table_format=table_format)
    return list_again(root, kind, paths, ignore_lake=ignore_lake)


def _live_files(path: str, table_format: str, version: int | None) -> LiveFiles:
    if table_format == "delta":
        from pqindex.lakes.delta import live_files
    else:
        from pqindex.lakes.iceberg import live_files
    return live_files(path, version)


def _listing(live: LiveFiles, table_format: str) -> Listing:
    kind = f"{table_format} table"
    if not live.partitions:
        raise EmptySourceError(f"the {kind} has no live file: {live.root}", path=live.root)
    names = [os.path.join(live.root, path) for path in live.partitions]
    paths = list_named(names, root=live.root, kind=kind).paths
    return Listing(
        root=live.root,
        paths=in_byte_order(paths),
        kind=kind,
        table={"format": table_format, "version": live.version},
        partitions=live.partitions,
    )
