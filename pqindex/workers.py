"""The scan as a map over batches of files: in this process, and in others where they are worth starting.

Fresh processes come from loky: a fork would inherit the locks of Arrow's threads, and a spawned process would run the
caller's script again. They never see Ctrl-C, they end with their parent, and one that dies names the file it died of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from pqindex.errors import BadFileError, SourceError
from pqindex.scan import ScanBatch, ScanOptions, Skipped, scan_files

PROBE_S = 0.5
WORTH_PROCESSES_S = 4.0
"""Other processes take a second or two to start; they are started where more than this is left to do."""


def scanned(
    root: str, batches: Sequence[Sequence[str]], options: ScanOptions, n_processes: int, *, probe: bool
) -> Iterator[ScanBatch]:
    """Yield the batches' results in order.

    With `probe`, this process begins alone, and others help only where what is left is worth starting them.
    """
    start = time.monotonic()
    done = 0
    while done < len(batches) and (n_processes == 1 or probe):
        yield _scan_batch(root, batches[done], options)
        done += 1
        elapsed_s = time.monotonic() - start
        left_s = elapsed_s / done * (len(batches) - done)
        probe = elapsed_s < PROBE_S or left_s < WORTH_PROCESSES_S
    yield from _scan_in_processes(root, batches[done:], options, n_processes)


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _scan_in_processes(
    root: str, batches: Sequence[Sequence[str]], options: ScanOptions, n_processes: int
) -> Iterator[ScanBatch]:
    """Scan in fresh processes; the caller's script is not imported again, so it needs no main guard.

    Where a process ends without a word, the files that are left are read one by one, each in a process of its own,
    and the one that ends it is recorded as a bad file.
    """
    if not batches:
        return
    from loky import ProcessPoolExecutor  # starts nothing, but is not needed where one process does the work
    from loky.process_executor import BrokenProcessPool

    def in_pool(batches: Sequence[Sequence[str]], size: int) -> Iterator[ScanBatch]:
        with _interrupts_ignored():
            pool = ProcessPoolExecutor(
                max_workers=min(size, len(batches)), initializer=_start_worker, initargs=(os.getpid(),)
            )
            futures = [pool.submit(_scan_batch, root, paths, options.of(paths)) for paths in batches]
        try:
            for future in futures:
                yield future.result()
        finally:
            with _interrupts_wait():
                for future in futures:
                    future.cancel()
                pool.shutdown(wait=True)

    done = 0
    try:
        for result in in_pool(batches, n_processes):
            yield result
            done += 1
    except BrokenProcessPool:
        for path in (path for paths in batches[done:] for path in paths):
            try:
                yield from in_pool([[path]], 1)
            except BrokenProcessPool:
                empty = _scan_batch(root, [], options)
                message = f"reading it ended the process (out of memory, or a fault of a library): {path}"
                empty.skipped.append(Skipped(path=path, reason=BadFileError.reason, message=message))
                yield empty


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait until what is done here is done whole."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, so that processes that are started here ignore it from their first instruction on.

    For the fraction of a second that starting them takes. A blocked signal would not do: loky unblocks it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(parent: int) -> None:
    """Leave interrupts to the parent, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _recorded(path: str, error: SourceError) -> Skipped:
    return Skipped(path=path, reason=error.reason, message=str(error))


def _scan_batch(root: str, paths: Sequence[str], options: ScanOptions) -> ScanBatch:
    return scan_files(root, paths, options, on_bad_file=_recorded)
