"""The one door to bytes: listing a source, reading ranges, and writing files that are whole or absent.

Nothing else in pqindex opens, lists or writes a file, but for what may be removed at any time (`caches`, `slots`).
Paths of source files are relative to the source's root, with
``/``, byte for byte as the file system lists them.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob as globbing
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from pqindex.errors import (
    BadFileError,
    ConflictError,
    EmptySourceError,
    NotFoundError,
    PqindexError,
    SourceChangedError,
    SourceError,
    UsageError,
    WriteError,
)

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
INDEX_SUFFIX = ".pqindex"
MANIFEST_SUFFIX = ".manifest.parquet"
TEMPORARY_PREFIX = ".tmp-"
_LAKE_MARKERS = {"_delta_log": "Delta Lake", ".hoodie": "Apache Hudi"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What the file system says of a file; equal facts mean that nobody wrote to it since.

    Attributes
    ----------
    size_bytes, mtime_ns, ctime_ns, inode : int
        As `os.stat` gives them.
    """

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


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
        How the source was named: ``"folder"``, ``"file"``, ``"list"``, or ``"glob "`` and the pattern below the root.
    skipped : dict of str to int
        How many names were passed over, by reason.
    """

    root: str
    paths: tuple[str, ...]
    kind: str
    skipped: dict[str, int] = field(default_factory=dict)


class SourceFile:
    """A file open for ranged reads.

    Reads are positional, so one object may serve several threads. The descriptor is closed by `close` or with the
    last reference.
    """

    __slots__ = ("_fd", "facts", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError as error:
            if os.path.islink(path):
                raise BadFileError(
                    f"a link that leads nowhere: {path} -> {os.readlink(path)}",
                    hint="remove the link, or put its target back",
                    file=path,
                ) from error
            raise NotFoundError(
                f"source file is gone: {path}",
                hint="put it back, or build the index again",
                file=path,
            ) from error
        except OSError as error:
            raise SourceError(
                f"source file cannot be opened: {path}: {error.strerror}", file=path, errno=error.errno
            ) from error
        self.facts = _facts(os.fstat(self._fd))

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`.

        Raises
        ------
        SourceChangedError
            If the file ends before.
        """
        data = os.pread(self._fd, length, offset)
        if len(data) < length:
            data = self._read_on(data, offset, length)
        return data

    def _read_on(self, data: bytes, offset: int, length: int) -> bytes:
        parts = [data]
        have = len(data)
        while have < length:
            more = os.pread(self._fd, length - have, offset + have)
            if not more:
                raise SourceChangedError(
                    f"source file is truncated: {self.path}; expected {length} bytes at {offset}, found {have}",
                    hint="restore the file, or build the index again",
                    file=self.path,
                    expected=length,
                    found=have,
                )
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (offset, length)."""
        return [self.read(offset, length) for offset, length in ranges]

    def close(self) -> None:
        """Close the descriptor; later reads fail."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _facts(stat: os.stat_result) -> FileFacts:
    return FileFacts(
        size_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, ctime_ns=stat.st_ctime_ns, inode=stat.st_ino
    )


def join(root: str, path: str) -> str:
    """Return the absolute path of a source file.

    Raises
    ------
    SourceError
        If `path` is absolute or climbs out of the root; an index or manifest from a stranger must not be able to
        name a file elsewhere.
    """
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise SourceError(f"path leaves the source's root: {path!r}", file=path)
    return os.path.join(root, path)


# -- listing --------------------------------------------------------------------------------------------------


PathLike = str | os.PathLike[str]


def list_source(source: PathLike | Sequence[PathLike], files: Sequence[PathLike] | None = None) -> Listing:
    """List the Parquet files of a folder, one file, a glob pattern, or a list of files.

    A folder is walked in full. Names that start with ``.`` or ``_`` below the root are passed over, as are names
    without a Parquet suffix, index folders and manifests; each is counted by reason. A leading ``_`` is allowed
    where the name is a Hive partition folder (``_x=1``). Links are followed, each folder and file once. With
    `files`, exactly those files are the source, whatever their names; `source` is then the folder they lie below,
    and names that are not absolute are relative to it.

    Raises
    ------
    NotFoundError
        If the source is not there.
    EmptySourceError
        If it holds no Parquet file.
    SourceError
        If the folder belongs to a table format whose live files only its own log knows.
    """
    if files is not None:
        if not isinstance(source, str | os.PathLike) or not os.path.isdir(source):
            raise UsageError(f"a list of files needs the folder they lie below, found {source!r}")
        folder = os.path.abspath(source)
        return _list_named([os.path.join(folder, name) for name in files], root=folder)
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        if "://" in text:
            raise UsageError(
                f"source is in an object store, which this version does not read: {text}",
                hint="copy the files, or mount the store",
                path=text,
            )
        if text.rstrip("/").endswith(INDEX_SUFFIX) and os.path.isdir(text):
            raise UsageError(
                f"source is an index itself: {text}", hint="name the folder of the data", path=text
            )
        if os.path.isdir(text):
            return _list_folder(text)
        if os.path.isfile(text):
            return _list_files([text], root=os.path.dirname(os.path.abspath(text)), kind="file")
        if globbing.has_magic(text):
            pattern, root = _split_glob(text)
            return _list_glob(pattern, root=root)
        raise NotFoundError(f"source is not there: {text}", hint="check the path", path=text)
    return _list_named([os.fspath(name) for name in source], root=None)


def list_again(root: str, kind: str, paths: Sequence[str]) -> Listing:
    """List a source that was listed before.

    Parameters
    ----------
    root
        Where its root folder is now.
    kind
        How it was named; see `Listing`.
    paths
        The files that it had, for a source that is a file or a list of files: those are listed that are there.

    Raises
    ------
    NotFoundError
        If the root is not there.
    EmptySourceError
        If a folder holds no Parquet file any more, or a pattern matches none.
    """
    if not os.path.isdir(root):
        raise NotFoundError(
            f"root of the source files is not there: {root}",
            hint="name the folder that the paths are relative to with --root / root=",
            path=root,
        )
    if kind == "folder":
        return _list_folder(root)
    if kind.startswith("glob "):
        return _list_glob(kind.removeprefix("glob "), root=os.path.abspath(root))
    there = [path for path in dict.fromkeys(paths) if os.path.isfile(join(root, path))]
    return _listing(os.path.abspath(root), there, kind, {})


def _list_named(names: list[str], *, root: str | None) -> Listing:
    if not names:
        raise EmptySourceError("the list of files is empty", hint="name at least one Parquet file")
    missing = [name for name in names if not os.path.isfile(name)]
    if missing:
        raise NotFoundError(
            f"{len(missing)} of {len(names)} files of the list are not there: {', '.join(missing[:10])}",
            hint="check the list",
            path=missing[0],
        )
    if root is None:
        root = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names])
    return _list_files(names, root=root, kind="list")


def _list_folder(folder: str) -> Listing:
    root = os.path.abspath(folder)
    skipped: dict[str, int] = {}
    found: list[str] = []
    seen_folders: set[tuple[int, int]] = set()
    pending = [""]
    while pending:
        relative = pending.pop()
        here = os.path.join(root, relative) if relative else root
        stat = os.stat(here)
        if (stat.st_dev, stat.st_ino) in seen_folders:
            _count(skipped, "folder seen already")
            continue
        seen_folders.add((stat.st_dev, stat.st_ino))
        with os.scandir(here) as entries:
            for entry in entries:
                path = f"{relative}/{entry.name}" if relative else entry.name
                if entry.name in _LAKE_MARKERS:
                    _refuse_lake(folder, path, _LAKE_MARKERS[entry.name])
                if _is_folder(entry):
                    reason = _why_skip_folder(entry.name)
                    if reason is None:
                        pending.append(path)
                else:
                    reason = _why_skip_file(entry.name)
                    if reason is None:
                        found.append(path)
                if reason is not None:
                    _count(skipped, reason)
    if not found:
        raise EmptySourceError(
            f"no Parquet file below {folder}" + (f" ({_counts(skipped)})" if skipped else ""),
            hint=f"names must end in {', '.join(PARQUET_SUFFIXES)} and not start with '.' or '_'",
            path=folder,
        )
    return _listing(root, found, "folder", skipped)


def _split_glob(pattern: str) -> tuple[str, str]:
    """Return the folder that a pattern begins with, and what comes after it."""
    fixed = Path(pattern)
    while globbing.has_magic(str(fixed)):
        fixed = fixed.parent
    root = os.path.abspath(fixed)
    return os.path.relpath(os.path.abspath(pattern), root), root


def _list_glob(pattern: str, *, root: str) -> Listing:
    """List what matches a pattern that is relative to the root."""
    skipped: dict[str, int] = {}
    found: set[str] = set()
    for name in globbing.iglob(pattern, root_dir=root, recursive=True):
        if not os.path.isfile(os.path.join(root, name)):
            continue
        path = os.path.normpath(name)
        *folders, last = path.split(os.sep)
        reasons = [_why_skip_folder(part) for part in folders] + [_why_skip_file(last)]
        reason = next((r for r in reasons if r is not None), None)
        if reason is None:
            found.add(path)
        else:
            _count(skipped, reason)
    if not found:
        whole = os.path.join(root, pattern)
        raise EmptySourceError(
            f"no Parquet file matches {whole}" + (f" ({_counts(skipped)})" if skipped else ""),
            hint="quote the pattern, and check it with ls",
            path=whole,
        )
    return _listing(root, found, f"glob {pattern}", skipped)


def _list_files(names: Iterable[str], *, root: str, kind: str) -> Listing:
    paths = [os.path.relpath(os.path.abspath(name), root) for name in names]
    outside = [path for path in paths if path.split(os.sep)[0] == os.pardir]
    if outside:
        raise UsageError(f"file lies outside {root}: {outside[0]}", path=outside[0])
    return _listing(root, dict.fromkeys(paths), kind, {})


def _listing(root: str, found: Iterable[str], kind: str, skipped: dict[str, int]) -> Listing:
    return Listing(root=root, paths=in_byte_order(found), kind=kind, skipped=dict(sorted(skipped.items())))


def in_byte_order(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths in the order of their bytes; raises BadFileError for one that is not UTF-8."""
    encoded = []
    for path in paths:
        try:
            encoded.append(path.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise BadFileError(
                f"file name is not UTF-8: {path!r}", hint="rename the file", file=path
            ) from error
    return tuple(name.decode("utf-8") for name in sorted(encoded))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=True)


def _why_skip_folder(name: str) -> str | None:
    if name.endswith(INDEX_SUFFIX):
        return "index folder"
    return _why_hidden(name)


def _why_skip_file(name: str) -> str | None:
    hidden = _why_hidden(name)
    if hidden is not None:
        return hidden
    if name.lower().endswith(MANIFEST_SUFFIX):
        return "manifest"
    return None if name.lower().endswith(PARQUET_SUFFIXES) else "not a Parquet name"


def _why_hidden(name: str) -> str | None:
    if name.startswith(".") or (name.startswith("_") and "=" not in name):
        return "hidden name"
    return None


def _refuse_lake(folder: str, marker: str, kind: str) -> None:
    raise SourceError(
        f"{folder} is a {kind} table (it holds {marker}): not every Parquet file in it is live",
        hint="pass the live files as a list (files=[...], --files FILE)",
        path=folder,
    )


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} passed over: {reason}" for reason, n in sorted(counts.items()))


# -- writing --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: str, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Write a file that appears under its name only when it is whole.

    The bytes go to a temporary name in the same folder, are forced to the disk, and get the name in one step. With
    `overwrite` the name then means the new file; without it a name that exists is a ConflictError, and of two
    writers at once exactly one succeeds. A write that fails leaves nothing, and is a WriteError.
    """
    if os.path.isdir(path):
        raise UsageError(f"a file is to be written, and this is a folder: {path}", path=path)
    if not overwrite and os.path.lexists(path):
        raise _conflict(path)
    try:
        with _writing(path, overwrite=overwrite) as file:
            yield file
    except OSError as error:
        if isinstance(error, PqindexError):
            raise
        raise _write_error(path, error) from error


def _write_error(path: str, error: OSError) -> WriteError:
    return WriteError(
        f"cannot write {path}: {error.strerror or error}",
        hint="check the disk and the permissions",
        path=path,
    )


@contextlib.contextmanager
def _writing(path: str, *, overwrite: bool) -> Iterator[BinaryIO]:
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                raise _conflict(path) from error
        _sync_folder(folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def write_bytes(path: str, data: bytes, *, overwrite: bool = False) -> None:
    """Write a whole file, or nothing; see `writing`."""
    with writing(path, overwrite=overwrite) as file:
        file.write(data)


def _conflict(path: str) -> ConflictError:
    return ConflictError(
        f"file exists already: {path}",
        hint="choose another name, or replace it with overwrite=True (--overwrite)",
        path=path,
    )


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: str, *, max_bytes: int) -> bytes:
    """Return a whole small file.

    Raises
    ------
    NotFoundError
        If it is not there.
    UsageError
        If it is larger than `max_bytes`.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"file is not there: {path}", path=path) from error
    except IsADirectoryError as error:
        raise UsageError(f"a file is needed, and this is a folder: {path}", path=path) from error
    if len(data) > max_bytes:
        raise UsageError(f"file is too large: {path}; expected at most {max_bytes} bytes", path=path)
    return data


class Staging:
    """A temporary folder whose files get their names one by one, each whole and on the disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        """Return where to write a file of this name."""
        return os.path.join(self.folder, name)

    def publish(self, name: str, path: str) -> None:
        """Give a staged file its name; one that is there already is replaced by its equal."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        staged = self.path(name)
        descriptor = os.open(staged, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(staged, path)
        _sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def staging(folder: str) -> Iterator[Staging]:
    """Make a temporary folder inside `folder` and remove it, with whatever is left in it, at the end."""
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    try:
        os.makedirs(temporary)
        yield Staging(temporary)
    except OSError as error:
        if isinstance(error, PqindexError):
            raise
        raise _write_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def writers_share(folder: str, clean: Callable[[], None]) -> Iterator[bool]:
    """Hold a writer's share of a folder, and say whether it was cleaned.

    The folder is made where it is not there, and removed where it was made here and the writer fails. Where no other
    writer has a share, `clean` is called first, while none can get one: then whatever looks unfinished was left by
    writers that ended. A share is a lock that ends with its process, however that ends. On a file system without
    locks nothing is ever cleaned.
    """
    was_there = os.path.isdir(folder)
    done = False
    try:
        descriptor = _open_folder(folder)
        try:
            alone = _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if alone:
                clean()
            _lock(descriptor, fcntl.LOCK_SH)
            yield alone
        finally:
            os.close(descriptor)
        done = True
    finally:
        if not done and not was_there:
            for name in [*names_in(folder), ""]:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(folder, name))


def _open_folder(folder: str) -> int:
    try:
        os.makedirs(folder, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _write_error(folder, error) from error


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True


def remove(path: str) -> None:
    """Remove a file, or a folder with what is in it; what is gone already is as good.

    Raises
    ------
    WriteError
        If it cannot be removed.
    """
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteError(
            f"cannot remove {path}: {error.strerror or error}", hint="check the permissions", path=path
        ) from error


def file_sha256(path: str) -> str:
    """Return the sha256 of a file's bytes as 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: str) -> int | None:
    """Return the size of a file in bytes, or None where there is no such file."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_still(path: str, size_bytes: int, mtime_ns: int) -> bool:
    """Return whether a file is there with this size and time of its last change."""
    try:
        stat = os.stat(path)
    except OSError:
        return False
    return stat.st_size == size_bytes and stat.st_mtime_ns == mtime_ns


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
