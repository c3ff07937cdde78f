"""Records of known sizes in one sparse file, filled by whoever has them first.

Every record has its place before the first is written, since all sizes are known. So there is no index to keep,
nothing to lock, and any number of processes may fill and read the same file: a record is written, then its flag, which
is its checksum. A process that dies between the two leaves a record that nobody takes for written; two that write the
same record write the same bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from pqindex.errors import UsageError, WriteError

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

MAGIC: Final = b"PQSLOTS1"
KEY_BYTES: Final = 32
_HEADER: Final = struct.Struct("<8s32sqq")
_PAGE: Final = 4096


class SlotFile:
    """A sparse file of records, and which of them are there.

    Safe for threads and processes, forked children too. The file may be removed at any time: who has it open goes on
    with it, and who comes next makes a new one.

    Layout: a header of one page (magic, key, number of records, bytes of all records); n + 1 offsets of the records,
    int64; n flags, uint64, 0 for a record that is not there; and, from the next page on, the records.

    Parameters
    ----------
    path : str
        Made where it is missing, or is a file of another key.
    key : bytes
        32 bytes that say what the records are; another key's file is replaced.
    n_records, n_bytes : int
        Number of records, and their bytes together.
    sizes : callable
        Returns the bytes of each record, shape (n,), int64; called where the file has to be made.

    Raises
    ------
    WriteError
        If the file cannot be made.
    """

    def __init__(
        self, path: str, key: bytes, *, n_records: int, n_bytes: int, sizes: Callable[[], Int64Array]
    ) -> None:
        if len(key) != KEY_BYTES:
            raise UsageError(f"a key has {KEY_BYTES} bytes, found {len(key)}")
        self.path = path
        self.n_records = n_records
        self._fd = -1
        head = _HEADER.pack(MAGIC, key, n_records, n_bytes)
        try:
            self._fd = _opened(path, head, self.n_records)
            if self._fd < 0:
                self._fd = _made(path, head, sizes())
        except OSError as error:
            raise WriteError(
                f"cannot make the cache file {path}: {error.strerror or error}",
                hint="give another cache_dir, or do without the cache",
                path=path,
                errno=error.errno,
            ) from error
        # Mapped, so that all processes share one copy; both were allocated, so that a store cannot meet a full disk.
        shared = mmap.mmap(self._fd, _data_start(self.n_records))
        self._offsets = np.frombuffer(shared, np.int64, self.n_records + 1, _PAGE)
        self._flags = np.frombuffer(shared, np.uint64, self.n_records, _PAGE + self._offsets.nbytes)
        self._start = _data_start(self.n_records)

    @property
    def n_filled(self) -> int:
        """How many records are there."""
        return int(np.count_nonzero(self._flags))

    def has(self, number: int) -> bool:
        """Return whether a record is there."""
        return bool(self._flags[number])

    def read(self, number: int, into: Sequence[Array]) -> bool:
        """Read a record into arrays, one behind the other; return whether it was there and whole.

        Parameters
        ----------
        number : int
        into : sequence of ndarray
            C-contiguous and of as many bytes together as the record has. What they hold afterwards is only of use
            where the answer is True.
        """
        flag = int(self._flags[number])
        if not flag:
            return False
        size = int(self._offsets[number + 1] - self._offsets[number])
        buffers = [array.data.cast("B") for array in into if array.nbytes]
        try:
            n = os.preadv(self._fd, buffers, self._start + int(self._offsets[number])) if buffers else 0
        except OSError:
            return False
        return n == size and _flag(number, buffers) == flag

    def write(self, number: int, arrays: Sequence[Array]) -> None:
        """Write a record, then its flag.

        Raises
        ------
        WriteError
            If the disk takes no more; the record is then not there.
        UsageError
            If the arrays have another number of bytes than the record.
        """
        size = int(self._offsets[number + 1] - self._offsets[number])
        buffers = [np.ascontiguousarray(array).data.cast("B") for array in arrays if array.nbytes]
        if sum(map(len, buffers)) != size:
            raise UsageError(f"record {number} has {size} bytes, found {sum(map(len, buffers))}")
        flag = _flag(number, buffers)
        self._flags[number] = 0
        try:
            n = os.pwritev(self._fd, buffers, self._start + int(self._offsets[number])) if buffers else 0
        except OSError as error:
            raise WriteError(
                f"cannot write to the cache file {self.path}: {error.strerror or error}",
                hint="free some space, or give a smaller cache_bytes",
                path=self.path,
                errno=error.errno,
            ) from error
        if n != size:
            raise WriteError(
                f"cannot write to the cache file {self.path}: {n} of {size} bytes were taken",
                hint="free some space, or give a smaller cache_bytes",
                path=self.path,
            )
        self._flags[number] = flag

    def close(self) -> None:
        """Close the file; later reads and writes fail."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def _data_start(n_records: int) -> int:
    """Return where the records begin: behind header, offsets and flags, at a page."""
    return -(-(_PAGE + 8 * (n_records + 1) + 8 * n_records) // _PAGE) * _PAGE


def _flag(number: int, buffers: Sequence[memoryview]) -> int:
    """Return the checksum of a record at its place; never 0."""
    if len(buffers) == 1:
        return xxhash.xxh3_64_intdigest(buffers[0], number & 0xFFFF_FFFF) | 1
    digest = xxhash.xxh3_64(seed=number & 0xFFFF_FFFF)
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest() | 1


def _opened(path: str, head: bytes, n_records: int) -> int:
    """Return a descriptor of the file, or -1 where it is not there or is of other records."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    if os.pread(fd, len(head), 0) == head and os.fstat(fd).st_size >= _data_start(n_records):
        return fd
    os.close(fd)
    return -1


def _made(path: str, head: bytes, sizes: Int64Array) -> int:
    """Make the file under another name, give it its name once its offsets are there, and return its descriptor.

    Of two processes that make it at once, one goes on with the file of the other.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype("<i8")
    temporary = f"{path}.{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        start = _data_start(len(sizes))
        _allocate(fd, start)
        os.pwrite(fd, head, 0)
        os.pwrite(fd, offsets.tobytes(), _PAGE)
        os.ftruncate(fd, start + int(offsets[-1]))
        try:
            os.link(temporary, path)
        except FileExistsError:
            other = _opened(path, head, len(sizes))
            if other >= 0:
                os.close(fd)
                return other
            os.replace(temporary, path)
            return fd
        return fd
    except OSError:
        os.close(fd)
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _allocate(fd: int, n_bytes: int) -> None:
    """Have the disk set the first bytes of a file aside, so that writing them later cannot fail."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, n_bytes)
        return
    block = bytes(1 << 20)
    for offset in range(0, n_bytes, len(block)):
        os.pwrite(fd, block[: n_bytes - offset], offset)
