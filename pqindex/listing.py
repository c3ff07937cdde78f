"""Which files a source has: a folder, a glob pattern, one file, or a list, with the rules for what is passed over.

The rules are data, in one place (`docs/sources.md` says them in sentences), and look only at the part of a path
below the root. A folder that a table format manages is recognised, since not every file in it is live.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pqindex.errors import (
    FIRST_PLACES,
    BadFileError,
    EmptySourceError,
    NotFoundError,
    TableFormatError,
    UsageError,
)

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
INDEX_SUFFIX = ".pqindex"
MANIFEST_SUFFIX = ".manifest.parquet"

HIDDEN = "hidden name"
INDEX_FOLDER = "index folder"
MANIFEST = "manifest"
OTHER_NAME = "not a Parquet name"
SEEN = "folder seen already"
DELETE_FILE = "delete file"

_LAKE_FOLDERS = {"_delta_log": "Delta Lake", ".hoodie": "Apache Hudi"}
_ICEBERG = "Apache Iceberg"
_ICEBERG_FOLDER = "metadata"
_ICEBERG_SUFFIXES = (".metadata.json", ".metadata.json.gz", ".gz.metadata.json")
_ICEBERG_DELETES = "-deletes.parquet"
_LAKE_OPTIONS = {"Delta Lake": "--delta", _ICEBERG: "--iceberg"}

PathLike = str | os.PathLike[str]
PartitionValues = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a source.

    Attributes
    ----------
    root : str
        Absolute path of the folder that the paths are relative to.
    paths : tuple of str
        Relative paths in the order of their bytes.
    kind : str
        How the source was named: ``"folder"``, ``"file"``, ``"list"``, ``"glob "`` and the pattern below the root,
        ``"delta table"`` or ``"iceberg table"``.
    skipped : dict of str to int
        How many names were passed over, by rule; a folder counts as one name.
    ignore_lake : bool
        Whether what a table format says of its files is ignored.
    table : dict of str to str or None
        Of a table: ``format`` and ``version``.
    partitions : dict of str to tuple or None
        Of a table: the partition values of each file, as its log has them; None where the paths say them.
    """

    root: str
    paths: tuple[str, ...]
    kind: str
    skipped: Mapping[str, int] = field(default_factory=dict)
    ignore_lake: bool = False
    table: Mapping[str, str] | None = None
    partitions: Mapping[str, PartitionValues] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A name that is no source file, and the rule that says so."""

    path: str
    rule: str


def list_source(
    source: PathLike | Sequence[PathLike],
    files: Sequence[PathLike] | None = None,
    *,
    ignore_lake: bool = False,
    passed_over: list[PassedOver] | None = None,
) -> Listing:
    """List the Parquet files of a folder, one file, a glob pattern, or a list of files.

    A folder is walked in full. Names that start with ``.`` or ``_`` below the root are passed over, as are names
    without a Parquet suffix, index folders and manifests; each is counted by rule. A leading ``_`` is allowed
    where the name is a Hive partition folder (``_x=1``). Links are followed, each folder and file once. With
    `files`, exactly those files are the source, whatever their names; `source` is then the folder they lie below,
    and names that are not absolute are relative to it.

    Parameters
    ----------
    source, files
        What to list.
    ignore_lake
        Take what lies in the folder of a table format, whatever is live.
    passed_over
        Filled with the names that are passed over.

    Raises
    ------
    NotFoundError
        If the source is not there.
    EmptySourceError
        If it holds no Parquet file.
    TableFormatError
        If a folder belongs to a table format whose live files only its own log knows.
    """
    walk = _Walk(ignore_lake=ignore_lake, passed_over=passed_over)
    if files is not None:
        if not isinstance(source, str | os.PathLike) or not os.path.isdir(source):
            raise UsageError(f"a list of files needs the folder they lie below, found {source!r}")
        folder = os.path.abspath(source)
        return list_named([os.path.join(folder, name) for name in files], root=folder)
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        refuse_store(text)
        if text.rstrip("/").endswith(INDEX_SUFFIX) and os.path.isdir(text):
            raise UsageError(
                f"source is an index itself: {text}", hint="name the folder of the data", path=text
            )
        if os.path.isdir(text):
            return walk.folder(text)
        if os.path.isfile(text):
            return _list_files([text], root=os.path.dirname(os.path.abspath(text)), kind="file")
        if globbing.has_magic(text):
            fixed = Path(text)
            while globbing.has_magic(str(fixed)):
                fixed = fixed.parent
            root = os.path.abspath(fixed)
            return walk.glob(root, os.path.relpath(os.path.abspath(text), root))
        raise NotFoundError(f"source is not there: {text}", hint="check the path", path=text)
    return list_named([os.fspath(name) for name in source], root=None)


def list_again(
    root: str,
    kind: str,
    paths: Sequence[str],
    *,
    ignore_lake: bool = False,
    passed_over: list[PassedOver] | None = None,
) -> Listing:
    """List a source as it was listed before.

    Parameters
    ----------
    root, kind, ignore_lake
        Of the listing before; the root may be another one by now.
    paths
        Of the listing before: what a source that was named file by file has.
    passed_over
        Filled with the names that are passed over.

    Raises
    ------
    NotFoundError, EmptySourceError, TableFormatError
        As for `list_source`.
    """
    walk = _Walk(ignore_lake=ignore_lake, passed_over=passed_over)
    if kind == "folder":
        if not os.path.isdir(root):
            raise NotFoundError(f"source is not there: {root}", hint="check the path", path=root)
        return walk.folder(root)
    if kind.startswith("glob "):
        return walk.glob(root, kind.removeprefix("glob "))
    return list_named([os.path.join(root, path) for path in paths], root=root, kind=kind)


def refuse_store(text: str) -> None:
    """Refuse a source that is named by the address of an object store."""
    if "://" in text:
        raise UsageError(
            f"source is in an object store, which this version does not read: {text}",
            hint="copy the files, or mount the store",
            path=text,
        )


def list_named(names: list[str], *, root: str | None, kind: str = "list") -> Listing:
    """Return exactly these files as a listing; `root` is by default the deepest folder that all lie in."""
    if not names:
        raise EmptySourceError("the list of files is empty", hint="name at least one Parquet file")
    missing = [name for name in names if not os.path.isfile(name)]
    if missing:
        what = "source" if kind == "file" else kind
        raise NotFoundError(
            f"{len(missing)} of {len(names)} files of the {what} are not there: {', '.join(missing[:FIRST_PLACES])}",
            hint=f"check the {what}",
            path=missing[0],
        )
    if root is None:
        root = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names])
    return _list_files(names, root=root, kind=kind)


# -- folders and patterns -------------------------------------------------------------------------------------


class _Walk:
    """One walk over a source: the files found, the names passed over by rule, and the tables met."""

    def __init__(self, *, ignore_lake: bool, passed_over: list[PassedOver] | None) -> None:
        self._ignore_lake = ignore_lake
        self._passed_over = passed_over
        self._counts: dict[str, int] = {}
        self._found: set[str] = set()

    def folder(self, folder: str) -> Listing:
        """List a folder."""
        root = os.path.abspath(folder)
        lakes = [] if self._ignore_lake else _lakes_around(root)
        seen: set[tuple[int, int]] = set()
        pending = [""]
        while pending:
            relative = pending.pop()
            here = os.path.join(root, relative) if relative else root
            stat = os.stat(here)
            if (stat.st_dev, stat.st_ino) in seen:
                self._pass_over(relative, SEEN)
                continue
            seen.add((stat.st_dev, stat.st_ino))
            with os.scandir(here) as entries:
                inside = {entry.name: entry.is_dir(follow_symlinks=True) for entry in entries}
            lake = None if self._ignore_lake else _lake_of(here, inside)
            if lake is not None:
                lakes.append(lake)
                continue
            for name, is_folder in inside.items():
                path = f"{relative}/{name}" if relative else name
                rule = _rule_of_folder(name) if is_folder else _rule_of_file(name)
                if rule is not None:
                    self._pass_over(path, rule)
                elif is_folder:
                    pending.append(path)
                else:
                    self._found.add(path)
        if lakes:
            raise _lake_error(root, lakes)
        self._pass_over_deletes(root)
        if not self._found:
            raise EmptySourceError(
                f"no Parquet file below {folder}" + self._said(),
                hint=f"names must end in {', '.join(PARQUET_SUFFIXES)} and not start with '.' or '_'",
                path=folder,
            )
        return self._listing(root, "folder")

    def glob(self, root: str, pattern: str) -> Listing:
        """List what a glob pattern matches below a folder."""
        for path in globbing.iglob(pattern, root_dir=root, recursive=True):
            if not os.path.isfile(os.path.join(root, path)):
                continue
            *folders, last = path.split(os.sep)
            rules = [_rule_of_folder(part) for part in folders] + [_rule_of_file(last)]
            rule = next((r for r in rules if r is not None), None)
            if rule is None:
                self._found.add(path)
            else:
                self._pass_over(path, rule)
        if not self._ignore_lake:
            below = (_lake_of(os.path.join(root, folder)) for folder in _folders_of(self._found))
            lakes = _lakes_around(root) + [lake for lake in below if lake is not None]
            if lakes:
                raise _lake_error(root, lakes)
        self._pass_over_deletes(root)
        if not self._found:
            raise EmptySourceError(
                f"no Parquet file matches {os.path.join(root, pattern)}" + self._said(),
                hint="quote the pattern, and check it with ls",
                path=os.path.join(root, pattern),
            )
        return self._listing(root, f"glob {pattern}")

    def _pass_over_deletes(self, root: str) -> None:
        """Pass over the delete files of Iceberg tables that are taken as they lie: they are Parquet, and never data."""
        named = [path for path in self._found if path.endswith(_ICEBERG_DELETES)]
        tables: dict[str, bool] = {}
        for path in named:
            if any(_is_iceberg(root, folder, tables) for folder in _folders_of([path])):
                self._found.discard(path)
                self._pass_over(path, DELETE_FILE)

    def _pass_over(self, path: str, rule: str) -> None:
        self._counts[rule] = self._counts.get(rule, 0) + 1
        if self._passed_over is not None:
            self._passed_over.append(PassedOver(path=path, rule=rule))

    def _said(self) -> str:
        counts = ", ".join(f"{n} passed over: {rule}" for rule, n in sorted(self._counts.items()))
        return f" ({counts})" if counts else ""

    def _listing(self, root: str, kind: str) -> Listing:
        return Listing(
            root=root,
            paths=in_byte_order(self._found),
            kind=kind,
            skipped=dict(sorted(self._counts.items())),
            ignore_lake=self._ignore_lake,
        )


def _list_files(names: Iterable[str], *, root: str, kind: str) -> Listing:
    paths = [os.path.relpath(os.path.abspath(name), root) for name in names]
    outside = [path for path in paths if path.split(os.sep)[0] == os.pardir]
    if outside:
        raise UsageError(f"file lies outside {root}: {outside[0]}", path=outside[0])
    return Listing(root=root, paths=in_byte_order(dict.fromkeys(paths)), kind=kind)


def in_byte_order(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths in the order of their bytes; one that is not UTF-8 is a BadFileError."""
    encoded = []
    for path in paths:
        try:
            encoded.append(path.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise BadFileError(
                f"file name is not UTF-8: {path!r}", hint="rename the file", file=path
            ) from error
    return tuple(name.decode("utf-8") for name in sorted(encoded))


# -- the rules ------------------------------------------------------------------------------------------------


def _rule_of_folder(name: str) -> str | None:
    if name.endswith(INDEX_SUFFIX):
        return INDEX_FOLDER
    return HIDDEN if _is_hidden(name) else None


def _rule_of_file(name: str) -> str | None:
    if _is_hidden(name):
        return HIDDEN
    if name.lower().endswith(MANIFEST_SUFFIX):
        return MANIFEST
    return None if name.lower().endswith(PARQUET_SUFFIXES) else OTHER_NAME


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


# -- table formats --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lake:
    """A folder that a table format manages, and the name that tells it."""

    folder: str
    kind: str
    marker: str


def _lake_of(folder: str, inside: Mapping[str, bool] | None = None) -> _Lake | None:
    """Return what table format manages a folder, by the names of its own metadata.

    `inside` has the names in the folder and whether each is a folder; without it the file system is asked.
    """

    def has(name: str) -> bool:
        return os.path.isdir(os.path.join(folder, name)) if inside is None else inside.get(name, False)

    for marker, kind in _LAKE_FOLDERS.items():
        if has(marker):
            return _Lake(folder=folder, kind=kind, marker=marker)
    document = next(_iceberg_documents(folder), None) if has(_ICEBERG_FOLDER) else None
    if document is not None:
        return _Lake(folder=folder, kind=_ICEBERG, marker=f"{_ICEBERG_FOLDER}/{document}")
    return None


def _iceberg_documents(folder: str) -> Iterator[str]:
    try:
        with os.scandir(os.path.join(folder, _ICEBERG_FOLDER)) as entries:
            for entry in entries:
                if entry.name.endswith(_ICEBERG_SUFFIXES) and entry.is_file():
                    yield entry.name
    except OSError:
        return


def _is_iceberg(root: str, folder: str, known: dict[str, bool]) -> bool:
    if folder not in known:
        known[folder] = next(_iceberg_documents(os.path.join(root, folder)), None) is not None
    return known[folder]


def _lakes_around(root: str) -> list[_Lake]:
    """Return the tables that a folder lies in: one partition of a table has files that are not live, too."""
    found = (_lake_of(str(parent)) for parent in Path(root).parents)
    return [lake for lake in found if lake is not None]


def _folders_of(paths: Iterable[str]) -> list[str]:
    """Return the folders that files lie in, and those above, relative to the root, which is ``""``."""
    folders = {""}
    for path in paths:
        parts = path.split("/")[:-1]
        folders.update("/".join(parts[:i]) for i in range(1, len(parts) + 1))
    return sorted(folders)


def _lake_error(root: str, lakes: Sequence[_Lake]) -> TableFormatError:
    lakes = sorted(set(lakes), key=lambda lake: lake.folder)
    first = lakes[0]
    said = [
        f"{lake.folder} is {'an' if lake.kind[0] in 'AEIOU' else 'a'} {lake.kind} table" for lake in lakes
    ]
    more = f"; and {len(said) - FIRST_PLACES} more" if len(said) > FIRST_PLACES else ""
    what = (
        f"{said[0]} (it holds {first.marker})"
        if len(lakes) == 1
        else f"{len(lakes)} folders are tables: {'; '.join(said[:FIRST_PLACES])}{more}"
    )
    option = _LAKE_OPTIONS.get(first.kind)
    ways = []
    if option is not None:
        one = "" if first.folder == root else f" {first.folder}" if len(lakes) == 1 else " TABLE"
        ways.append(f"index its live files with {f'pqindex build{one} ' if one else ''}{option}")
    ways += ["pass the live files with --files FILE", "take all that lies there with --ignore-lake"]
    return TableFormatError(
        f"{what}: not every Parquet file in it is live",
        hint=f"{', '.join(ways[:-1])}, or {ways[-1]}",
        path=first.folder,
        kind=first.kind,
        folders=tuple(lake.folder for lake in lakes),
    )
