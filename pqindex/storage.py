"""The one door to bytes: reading ranges, and writing files that are whole or absent.

Nothing else in pqindex opens or writes a file, but for what may be removed at any time (`caches`, `slots`) and the logs
of table formats (`lakes`); `listing` says which files a source has, and its names are here too.
Paths of source files are relative to the source's root, with
``/``, byte for byte as the file system lists them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Self

from pqindex.errors import (
    BadFileError,
    ConflictError,
    NotFoundError,
    PqindexError,
    SourceChangedError,
    SourceError,
    UsageError,
    WriteError,
)
from pqindex.listing import INDEX_SUFFIX as INDEX_SUFFIX
from pqindex.listing import MANIFEST_SUFFIX as MANIFEST_SUFFIX
from pqindex.listing import PARQUET_SUFFIXES as PARQUET_SUFFIXES
from pqindex.listing import Listing as Listing
from pqindex.listing import PathLike as PathLike
from pqindex.listing import list_source as list_source

TEMPORARY_PREFIX = ".tmp-"


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

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter modules are gone, and default arguments are not.
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)
            self._fd = -1

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


# -- folders that appear whole --------------------------------------------------------------------------------


@contextlib.contextmanager
def work_folder(path: str) -> Iterator[str]:
    """Hold the folder in which the folder `path` is made, and yield its path.

    It lies beside `path` under a hidden name that hangs on `path` alone, so that who comes after a process that
    was killed finds what that left. One process has it at a time: the lock is the kernel's, and is gone with its
    process. The folder stays unless `remove_folder` takes it away.

    Raises
    ------
    ConflictError
        If another process holds it.
    WriteError
        If it cannot be made.
    """
    folder = os.path.join(os.path.dirname(path), f"{TEMPORARY_PREFIX}work-{os.path.basename(path)}")
    try:
        lock = _lock_in(folder, path)
    except OSError as error:
        if isinstance(error, PqindexError):
            raise
        raise _write_error(folder, error) from error
    try:
        yield folder
    finally:
        os.close(lock)


def _lock_in(folder: str, path: str) -> int:
    """Return the descriptor of a locked file in `folder`, which is made where it is not there."""
    name = os.path.join(folder, "lock")
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except FileNotFoundError:  # the holder of before took the folder away just now
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, there = os.fstat(lock), os.stat(name)
            if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                return lock
        except FileNotFoundError:
            pass
        except BlockingIOError as error:
            os.close(lock)
            raise ConflictError(
                f"another process is writing the same folder: {path}",
                hint="let it finish, or choose another folder",
                path=path,
            ) from error
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


class DigestingFile:
    """A new file that knows how many bytes were written and their sha256. For one thread.

    Attributes
    ----------
    n_bytes : int
    closed : bool
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.n_bytes = 0
        self.closed = False
        self._sha = hashlib.sha256()
        self._file: BinaryIO | None = open(path, "wb", buffering=1 << 20)  # noqa: SIM115 - closed by `close`

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; of a file that was discarded, do nothing."""
        view = memoryview(data).cast("B")
        if self._file is not None:
            self._file.write(view)
            self._sha.update(view)
            self.n_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.n_bytes

    def flush(self) -> None:
        """Do nothing: `close` forces all bytes to the disk."""

    def close(self) -> None:
        """Force the bytes to the disk and close the file."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        self.closed = True

    def discard(self) -> None:
        """Close the file and remove it; it never fails."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                file.close()
        self.closed = True
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def hexdigest(self) -> str:
        """Return the sha256 of what was written as 64 hex digits."""
        return self._sha.hexdigest()


def lies_in(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies in it, by whatever names; neither needs to be there.

    Folders that are there are compared by what they are, so that a link, another mount or another case of letters does
    not hide one.
    """
    if path == folder or path.startswith(folder.rstrip(os.sep) + os.sep):
        return True
    wanted = _identity(folder)
    while wanted is not None:
        if _identity(path) == wanted:
            return True
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    return False


def _identity(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def make_folder(path: str) -> None:
    """Make a folder where there is none."""
    os.makedirs(path, exist_ok=True)


def remove_folder(path: str) -> None:
    """Remove a folder with all that is in it; one that is not there, or will not go, is left."""
    shutil.rmtree(path, ignore_errors=True)


def remove_file(path: str) -> None:
    """Remove a file where there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def publish_folder(staged: str, path: str) -> None:
    """Give a folder whose files are on the disk its name, in one step.

    Raises
    ------
    ConflictError
        If there is something of that name other than an empty folder.
    WriteError
        If it cannot be done.
    """
    try:
        _sync_folder(staged)
        os.rename(staged, path)
        _sync_folder(os.path.dirname(path))
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
            raise ConflictError(
                f"another process made this first: {path}", hint="choose another name", path=path
            ) from error
        raise _write_error(path, error) from error
