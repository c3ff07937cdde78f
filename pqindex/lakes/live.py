"""What every adapter gives: the live files of a table, and the errors that all formats share."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pqindex.errors import FIRST_PLACES, MissingDependencyError, NotFoundError, TableFormatError
from pqindex.listing import PartitionValues

_ABSOLUTE = re.compile(r"^(/|[A-Za-z][A-Za-z0-9+.-]*:/)")
_LOCAL = re.compile(r"^(?:file:(?://[^/]*)?)?(/.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFiles:
    """The live files of one version of a table.

    Attributes
    ----------
    root : str
        The folder of the table, absolute.
    version : str
        Version or snapshot id, in decimal.
    partitions : dict of str to tuple
        By path relative to the root, the partition values that the log has of the file.
    """

    root: str
    version: str
    partitions: Mapping[str, PartitionValues]


def missing_library(library: str, extra: str, error: ImportError) -> MissingDependencyError:
    """Return the error for an adapter whose library is not there."""
    return MissingDependencyError(
        f"{library} is not installed, and only it reads the log of such a table: {error}",
        hint=f'pip install "pqindex[{extra}]", or pass the live files with --files FILE',
    )


def no_table(kind: str, root: str, said: object) -> NotFoundError:
    """Return the error for a folder that is no such table."""
    return NotFoundError(
        f"no {kind} table at {root}: {_one_line(said)}", hint="name the folder of the table", path=root
    )


def unreadable(kind: str, root: str, said: object) -> TableFormatError:
    """Return the error for a log that the library of the format does not read."""
    return TableFormatError(
        f"the log of the {kind} table cannot be read: {root}: {_one_line(said)}",
        hint="pass the live files with --files FILE",
        path=root,
        kind=kind,
    )


def rows_deleted(kind: str, root: str, how: str, files: Sequence[str], hint: str) -> TableFormatError:
    """Return the error for files that hold rows which the table says are deleted."""
    more = f"; and {len(files) - FIRST_PLACES} more" if len(files) > FIRST_PLACES else ""
    return TableFormatError(
        f"{kind} table {root} has {how}: rows that are deleted would come back: "
        f"{'; '.join(files[:FIRST_PLACES])}{more}",
        hint=hint,
        path=root,
        kind=kind,
    )


def relative_path(location: str, root: str, kind: str) -> str:
    """Return the path of a file below the table's folder, from the relative or absolute path or URI that a log has.

    Raises
    ------
    TableFormatError
        If the file lies elsewhere.
    """
    path = local_path(location if is_absolute(location) else f"{root}/{location}")
    path = None if path is None else posixpath.normpath(path)
    below = root.rstrip("/") + "/"
    if path is None or not path.startswith(below):
        raise TableFormatError(
            f"a live file lies outside of the {kind} table: {location}; expected below {root}",
            hint="copy the table into one folder, or pass the files with --files FILE",
            path=root,
            kind=kind,
        )
    return path[len(below) :]


def local_path(location: str) -> str | None:
    """Return the local path of a location, None where it is in a store.

    >>> local_path("file:///data/t/a b.parquet"), local_path("/data/t"), local_path("s3://bucket/t")
    ('/data/t/a b.parquet', '/data/t', None)
    """
    if not is_absolute(location):
        return None
    found = _LOCAL.match(location)
    return None if found is None else found.group(1)


def is_absolute(location: str) -> bool:
    """Return whether a location is an absolute path, or has the scheme of a store."""
    return _ABSOLUTE.match(location) is not None


def _one_line(said: object) -> str:
    return " ".join(str(said).split())
