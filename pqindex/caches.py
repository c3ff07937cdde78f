"""What pqindex keeps on this machine to be faster: read plans and decoded sequences.

All of it may be removed at any time. It lies in folders of this user that nobody else may read: below
``PQINDEX_CACHE_DIR``, else the user's cache folder, and in shared memory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pqindex.errors import WriteError

KINDS: Final = ("plans", "decoded", "memory")
"""Read plans; decoded sequences on disk; decoded sequences in shared memory."""

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
        When it was last written to, in nanoseconds since 1970.
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
    folder = _where(kind)
    private_folder(folder)
    return folder


def private_folder(folder: str) -> str:
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
            hint="set PQINDEX_CACHE_DIR to a folder of yours",
            path=folder,
        ) from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(os.stat(folder).st_mode):
        raise WriteError(
            f"the cache folder belongs to somebody else: {folder}; expected user {os.getuid()}, "
            f"found {found.st_uid}",
            hint="set PQINDEX_CACHE_DIR to a folder of yours",
            path=folder,
            expected=os.getuid(),
            found=found.st_uid,
        )
    return folder


def cache_files(kinds: Collection[str] = KINDS) -> list[CacheFile]:
    """Return the files of some caches, by kind and path."""
    files = []
    for kind in kinds:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(_where(kind)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode):
                        size = min(facts.st_size, facts.st_blocks * 512) if facts.st_blocks else facts.st_size
                        files.append(
                            CacheFile(
                                kind=kind, path=entry.path, size_bytes=size, modified_ns=facts.st_mtime_ns
                            )
                        )
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
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                files.append((entry.stat().st_mtime_ns, entry.path))
    for _, path in sorted(files)[: max(0, len(files) - n_files)]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _where(kind: str) -> str:
    if kind == "memory":
        base = _SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else tempfile.gettempdir()
        return os.path.join(base, f"pqindex-{os.getuid()}")
    base = os.environ.get("PQINDEX_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pqindex"
    )
    return os.path.join(base, kind)
