"""What pqindex keeps on this machine to be faster: read plans and decoded sequences.

All of it may be removed at any time. It lies in folders of this user that nobody else may read: below
``PQINDEX_CACHE_DIR``, else the user's cache folder, and in shared memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from pqindex.errors import WriteError

KINDS: Final = ("plans", "decoded", "memory")
"""Read plans; decoded sequences on disk; decoded sequences in shared memory."""

_HINT: Final = "set PQINDEX_CACHE_DIR to a folder of yours"
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # a folder of this user's own is made in it


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFile:
    """One file of a cache.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    path : str
    size_bytes : int
        What it takes of the disk or the memory; a sparse file has a greater length.
    modified_ns : int
        When it was last written to, or opened as a decoded cache, in nanoseconds since 1970.
    """

    kind: str
    path: str
    size_bytes: int
    modified_ns: int


def cache_folder(kind: str) -> str:
    """Return the folder of one of `KINDS`, made where it is missing.

    Raises
    ------
    WriteError
        If it cannot be made, or belongs to somebody else.
    """
    hint = 'give cache="disk"' if kind == "memory" else _HINT
    return private_folder(_where(kind), hint=hint)


def private_folder(folder: str, *, hint: str = _HINT) -> str:
    """Make a folder, where it is missing, that nobody else may read, and return its path.

    Raises
    ------
    WriteError
        If it cannot be made, is no folder, or belongs to somebody else.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError as error:
        raise WriteError(
            f"cannot make the cache folder {folder}: {error.strerror or error}",
            hint=hint,
            path=folder,
        ) from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(os.stat(folder).st_mode):
        raise WriteError(
            f"the cache folder belongs to somebody else: {folder}; expected user {os.getuid()}, "
            f"found {found.st_uid}",
            hint=hint,
            path=folder,
            expected=os.getuid(),
            found=found.st_uid,
        )
    return folder


def cache_files(kinds: Collection[str] = KINDS) -> list[CacheFile]:
    """Return the files of some caches, by kind and path."""
    files = [
        CacheFile(kind=kind, path=path, size_bytes=_taken(facts), modified_ns=facts.st_mtime_ns)
        for kind in kinds
        for path, facts in _regular_files(_where(kind))
    ]
    return sorted(files, key=lambda file: (KINDS.index(file.kind), file.path))


def clear_caches(kinds: Collection[str] = KINDS) -> list[CacheFile]:
    """Remove the files of some caches and return what they were; a process that has one open keeps it."""
    removed = []
    for file in cache_files(kinds):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)
            removed.append(file)
    return removed


def keep_newest(folder: str, n_files: int) -> None:
    """Remove all but the newest files of a cache folder; a process that has one open or mapped keeps it."""
    files = sorted((facts.st_mtime_ns, path) for path, facts in _regular_files(folder))
    for _, path in files[: max(0, len(files) - n_files)]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def make_room(folder: str, n_bytes: int, *, max_bytes: int) -> None:
    """Remove files of a cache folder, those used longest ago first, until so many more bytes fit into a limit.

    A file that a process has open, and has marked with a shared `flock`, is left; so more may be there than the limit.
    """
    files = [(facts.st_mtime_ns, path, _taken(facts)) for path, facts in _regular_files(folder)]
    room = max_bytes - n_bytes - sum(size for _, _, size in files)
    for _, path, size in sorted(files):
        if room >= 0:
            return
        room += size if _removed_unused(path) else 0


def _regular_files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Give the files of a folder with their facts; what goes away meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    yield entry.path, facts


def _taken(facts: os.stat_result) -> int:
    """Return the bytes that a file takes, which are fewer than its length where it is sparse."""
    return min(facts.st_size, facts.st_blocks * 512) if facts.st_blocks else facts.st_size


def _removed_unused(path: str) -> bool:
    """Remove a file unless a process has it open; return whether it is gone."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)
        return True
    return False


def _where(kind: str) -> str:
    if kind == "memory":
        base = _SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else tempfile.gettempdir()
        return os.path.join(base, f"pqindex-{os.getuid()}")
    base = os.environ.get("PQINDEX_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pqindex"
    )
    return os.path.join(base, kind)
