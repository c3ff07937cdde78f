"""What one process has open of a read plan: source files behind an LRU, and counts of what was read of them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping

from pqindex import storage
from pqindex.errors import SourceChangedError, SourceError
from pqindex.lru import LRU
from pqindex.readplan import ReadPlan, is_torn


class Counters:
    """What was read so far, by name; thread-safe."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._values = dict.fromkeys(names, 0)
        self._lock = threading.Lock()

    def count(self, **counts: int) -> None:
        """Add to some counters."""
        with self._lock:
            for name, n in counts.items():
                self._values[name] += n

    @property
    def values(self) -> Mapping[str, int]:
        """The counts, as they are now."""
        with self._lock:
            return dict(self._values)


class Handles:
    """The source files of a read plan, opened when they are first read and checked then.

    Thread-safe. Belongs to one process: a forked child makes its own.

    Parameters
    ----------
    plan : ReadPlan
    max_open_files : int
        The file used longest ago is closed when there are more.
    counters : Counters
        With the names "opens", "ranges" and "bytes".
    """

    def __init__(self, plan: ReadPlan, max_open_files: int, counters: Counters) -> None:
        self._plan = plan
        self._files: LRU[int, storage.SourceFile] = LRU(max_items=max_open_files)
        self._counters = counters
        self._paths: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._files)

    @property
    def hits(self) -> int:
        """How often a file was open already."""
        return self._files.hits

    def path(self, file_no: int) -> str:
        """Return the path of a source file, relative to the root."""
        path = self._paths.get(file_no)
        if path is None:
            path = self._paths[file_no] = self._plan.paths[file_no].as_py()
        return path

    def file(self, file_no: int) -> storage.SourceFile:
        """Return a source file, open; where the process has no descriptor left, the others are closed first."""
        file = self._files.get(file_no)
        if file is None:
            try:
                file = self._open(file_no)
            except SourceError as error:
                if error.facts.get("errno") not in (errno.EMFILE, errno.ENFILE) or not len(self._files):
                    raise
                self._files.clear()
                file = self._open(file_no)
            file = self._files.put(file_no, file)
        return file

    def range_reader(self, file: storage.SourceFile) -> Callable[[list[tuple[int, int]]], list[bytes]]:
        """Return a function from (offset, length) pairs to bytes that counts what it reads."""

        def read_ranges(ranges: list[tuple[int, int]]) -> list[bytes]:
            self._counters.count(ranges=len(ranges), bytes=sum([length for _, length in ranges]))
            return file.read_ranges(ranges)

        return read_ranges

    def _open(self, file_no: int) -> storage.SourceFile:
        """Open a source file, after the check that nobody wrote to it since the plan was resolved."""
        plan = self._plan
        path = self.path(file_no)
        file = storage.SourceFile(storage.join(plan.root, path))
        self._counters.count(opens=1)
        facts = file.facts
        found = (facts.size_bytes, facts.mtime_ns, facts.ctime_ns, facts.inode)
        expected = tuple(plan.footprints[file_no].tolist())
        if found != expected and plan.staleness == "error":
            torn = is_torn(file, int(expected[0]))
            file.close()
            raise SourceChangedError(
                f"source file was {'truncated' if torn else 'changed'} since the dataset or reader was made: {path}; "
                f"expected size, mtime, ctime and inode {expected}, found {found}",
                hint="make the dataset again, so that the file is checked against the index",
                file=path,
                expected=expected,
                found=found,
                change="truncated" if torn else "replaced",
            )
        return file
