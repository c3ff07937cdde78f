"""Records of known sizes in one sparse file, filled by whoever has them first.

Every record has its place before the first is written, since all sizes are known. So there is no index to keep, and
any number of processes may fill and read the same file without a lock: a record is written, then its flag, which is its
checksum, and a reader takes only bytes that have the checksum. A process that dies between the two leaves a record that
nobody takes for written; two that write the same record write the same bytes; bytes that were damaged are written anew.

The file is read and written, never mapped: a file that somebody cuts short, or a disk that fails, is then an absent
record and not a signal that ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from pqindex.errors import UsageError, WriteError

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

MAGIC: Final = b"PQSLOTS2"
KEY_BYTES: Final = 32
_HEADER: Final = struct.Struct("<8s32sqq")
_CHECKSUM: Final = struct.Struct("<Q")
_ENTRY: Final = np.dtype([("offset", "<i8"), ("flag", "<u8")])
_PLACE: Final = struct.Struct("<qQq")  # an entry, and the offset of the next
_FLAG_AT: Final = 8
_PAGE: Final = 4096
_ENTRIES: Final = 1 << 16  # looked at together
_BUFFERS: Final = 512  # of one call; systems take 1,024
_NO_FILE_OF_OURS: Final = (errno.ENOENT, errno.ENXIO)
_CHANGED: Final = "it was changed by somebody else"
_HINTS: Final = dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or give a smaller cache_bytes"
)


class SlotFile:
    """A sparse file of records, and which of them are there.

    Safe for threads and processes, forked children too. The file may be removed at any time: who has it open goes on
    with it, and who comes next makes a new one. It is marked as in use (a shared `flock`) for as long as it is open.

    Layout: a header of one page (magic, key, number of records, bytes of all records, checksum of the offsets); n + 1
    entries of an offset, int64, and a flag, uint64, 0 for a record that is not there; and, from the next page on, the
    records. A flag is a checksum of the record with its key and number, so that a record of another file or another
    place is none.

    Parameters
    ----------
    path : str
        Made where it is missing, or is anything but a whole file of this user with this key.
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
        self.n_bytes = n_bytes
        self._seed = int.from_bytes(key[:8], "little")
        self._start = _data_start(n_records)
        self._fd = -1
        self._head = _HEADER.pack(MAGIC, key, n_records, n_bytes)
        try:
            self._fd = _opened(path, self._head, n_records)
            if self._fd < 0:
                self._fd = _made(path, self._head, n_records, sizes)
            _mark_as_used(self._fd)
        except OSError as error:
            raise WriteError(
                f"cannot make the cache file {path}: {error.strerror or error}",
                hint="give another cache_dir, or do without the cache",
                path=path,
                errno=error.errno,
            ) from error

    @property
    def n_filled(self) -> int:
        """How many records are there."""
        return sum(int(np.count_nonzero(entries["flag"])) for entries in _entries(self._fd, self.n_records))

    def has(self, number: int) -> bool:
        """Return whether a record is there, as far as its flag tells."""
        return self._place(number) is not None

    def is_whole(self, number: int) -> bool:
        """Return whether a record is there and has its checksum."""
        place = self._place(number)
        if place is None:
            return False
        return self.read(number, [np.empty(place[1], np.uint8)])

    def read(self, number: int, into: Sequence[Array]) -> bool:
        """Read a record into arrays, one behind the other; return whether it was there and whole.

        Parameters
        ----------
        number : int
        into : sequence of ndarray
            C-contiguous and of as many bytes together as the record has. What they hold afterwards is only of use
            where the answer is True.
        """
        buffers = [array.data.cast("B") for array in into if array.nbytes]
        try:
            offset, size, flag = self._entry(number)
            if not flag or size != sum(map(len, buffers)):
                return False
            if _moved(os.preadv, self._fd, buffers, self._start + offset, size) != size:
                return False
        except OSError:
            return False
        return self._flag(number, buffers) == flag

    def write(self, number: int, arrays: Sequence[Array]) -> None:
        """Write a record, then its flag; one that is there and whole is left as it is, a damaged one is written over.

        Raises
        ------
        WriteError
            If the disk takes no more, or the file is damaged; the record is then not there.
        UsageError
            If the arrays have another number of bytes than the record.
        """
        buffers = [np.ascontiguousarray(array).data.cast("B") for array in arrays if array.nbytes]
        try:
            self._put(number, buffers)
        except OSError as error:
            raise WriteError(
                f"cannot write to the cache file {self.path}: {error.strerror or error}",
                hint=_HINTS.get(error.errno or 0, "remove the file, or give another cache_dir"),
                path=self.path,
                errno=error.errno,
            ) from error

    def _put(self, number: int, buffers: list[memoryview]) -> None:
        given = sum(map(len, buffers))
        offset, size, flag = self._entry(number)
        if given != size:
            if not _is_whole(self._fd, self._head, self.n_records):
                raise OSError(errno.EIO, _CHANGED)
            raise UsageError(f"record {number} has {size} bytes, found {given}")
        if flag:
            if self.is_whole(number):
                return
            self._set_flag(number, 0)
        n = _moved(os.pwritev, self._fd, buffers, self._start + offset, size)
        if n != size:
            raise OSError(errno.ENOSPC, f"{n} of {size} bytes were taken")
        self._set_flag(number, self._flag(number, buffers))

    def _place(self, number: int) -> tuple[int, int, int] | None:
        """Return offset, size and flag of a record, or None where it is not there."""
        try:
            place = self._entry(number)
        except OSError:
            return None
        return place if place[2] else None

    def _entry(self, number: int) -> tuple[int, int, int]:
        """Return offset, size and flag of a record.

        Raises
        ------
        OSError
            If the file cannot be read, or no longer says where the record is.
        """
        found = os.pread(self._fd, _PLACE.size, _PAGE + number * _ENTRY.itemsize)
        if len(found) == _PLACE.size:
            offset, flag, stop = _PLACE.unpack(found)
            if 0 <= offset <= stop <= self.n_bytes:
                return offset, stop - offset, flag
        raise OSError(errno.EIO, _CHANGED)

    def _flag(self, number: int, buffers: Sequence[memoryview]) -> int:
        """Return the checksum of a record at its place; never 0."""
        seed = self._seed ^ number
        if len(buffers) == 1:
            return xxhash.xxh3_64_intdigest(buffers[0], seed) | 1
        digest = xxhash.xxh3_64(seed=seed)
        for buffer in buffers:
            digest.update(buffer)
        return digest.intdigest() | 1

    def _set_flag(self, number: int, flag: int) -> None:
        at = _PAGE + number * _ENTRY.itemsize + _FLAG_AT
        if os.pwrite(self._fd, _CHECKSUM.pack(flag), at) != _CHECKSUM.size:
            raise OSError(errno.ENOSPC, "a flag was not taken")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if (
            getattr(self, "_fd", -1) >= 0
        ):  # at the end of the interpreter, modules are gone and arguments are not
            close(self._fd)
            self._fd = -1


def _data_start(n_records: int) -> int:
    """Return where the records begin: behind header and entries, at a page."""
    return -(-(_PAGE + _ENTRY.itemsize * (n_records + 1)) // _PAGE) * _PAGE


def _moved(call: Callable[..., int], fd: int, buffers: list[memoryview], offset: int, size: int) -> int:
    """Return how many of `size` bytes `os.preadv` or `os.pwritev` moved, called as often as it takes.

    One call moves 2 GiB at most, and takes so many buffers; a file that ends or a disk that is full moves fewer.
    """
    done = 0
    while done < size:
        n = call(fd, buffers if len(buffers) <= _BUFFERS else buffers[:_BUFFERS], offset + done)
        done += n
        if not n or done == size:
            break
        at = 0
        while n >= len(buffers[at]):
            n -= len(buffers[at])
            at += 1
        buffers = [buffers[at][n:], *buffers[at + 1 :]]
    return done


def _entries(fd: int, n_records: int) -> Iterator[npt.NDArray[np.void]]:
    """Give the entries of a file, some at a time, without the last; fewer where the file is short."""
    for start in range(0, n_records, _ENTRIES):
        n = min(_ENTRIES, n_records - start)
        found = os.pread(fd, n * _ENTRY.itemsize, _PAGE + start * _ENTRY.itemsize)
        yield np.frombuffer(found[: len(found) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)


def _opened(path: str, head: bytes, n_records: int) -> int:
    """Return a descriptor of the file, or -1 where it is not there, or is not what it should be."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE_OF_OURS:
            return -1
        raise
    try:
        is_ours = _is_whole(fd, head, n_records)
    except BaseException:
        os.close(fd)
        raise
    if not is_ours:
        os.close(fd)
        return -1
    return fd


def _is_whole(fd: int, head: bytes, n_records: int) -> bool:
    """Return whether header and offsets of a file are what they should be; its records have checksums of their own."""
    facts = os.fstat(fd)
    if (
        not stat.S_ISREG(facts.st_mode)
        or facts.st_uid != os.getuid()
        or facts.st_size < _data_start(n_records)
    ):
        return False
    found = os.pread(fd, len(head) + _CHECKSUM.size, 0)
    if found[: len(head)] != head:
        return False
    digest = xxhash.xxh3_64()
    for entries in _entries(fd, n_records + 1):
        digest.update(entries["offset"].tobytes())
    return found[len(head) :] == _CHECKSUM.pack(digest.intdigest())


def _mark_as_used(fd: int) -> None:
    """Let others see that the file is open, and since when; a mark that cannot be had is no error."""
    with contextlib.suppress(OSError):
        os.utime(fd)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _made(path: str, head: bytes, n_records: int, sizes: Callable[[], Int64Array]) -> int:
    """Make the file under another name, give it its name once its offsets are there, and return its descriptor.

    One process at a time makes files in a folder, so that those who come together go on with one file. Where the
    file system has no locks, of two that come together each may have a file, and the first is lost with its process.
    """
    with _alone(os.path.dirname(path)) as is_alone:
        if is_alone:
            fd = _opened(path, head, n_records)
            if fd >= 0:
                return fd
            _remove_unfinished(path)
        offsets = np.concatenate([[0], np.cumsum(sizes())]).astype("<i8")
        temporary = f"{path}.{os.getpid()}-{secrets.token_hex(8)}"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _fill(fd, head, offsets)
            os.replace(temporary, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return fd


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[bool]:
    """Hold a lock on a folder; give whether it could be had. It ends with the process, however that ends."""
    fd = os.open(folder or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        is_alone = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            is_alone = False
        yield is_alone
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # also for a child that another thread has forked meanwhile
        os.close(fd)


def _remove_unfinished(path: str) -> None:
    """Remove what processes left that died while they made this file."""
    folder, name = os.path.split(path)
    for other in os.listdir(folder or "."):
        if other.startswith(f"{name}."):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, other))


def _fill(fd: int, head: bytes, offsets: Int64Array) -> None:
    """Write header and entries; the disk sets them aside, so that a flag finds its place later."""
    start = _data_start(len(offsets) - 1)
    _allocate(fd, start)
    entries = np.zeros(len(offsets), _ENTRY)
    entries["offset"] = offsets
    os.pwrite(fd, head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(offsets.tobytes())), 0)
    if _moved(os.pwritev, fd, [entries.view(np.uint8).data], _PAGE, entries.nbytes) != entries.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, start + int(offsets[-1]))


def _allocate(fd: int, n_bytes: int) -> None:
    """Have the disk set the first bytes of a file aside, so that writing them later cannot fail."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, n_bytes)
        return
    block = bytes(1 << 20)
    for offset in range(0, n_bytes, len(block)):
        os.pwrite(fd, block[: n_bytes - offset], offset)
