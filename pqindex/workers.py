"""A map over tasks, such as batches of files: in this process, and in others where they are worth starting.

Fresh processes come from loky: a fork would inherit the locks of Arrow's threads, and a spawned process would run the
caller's script again. They never see Ctrl-C, they end with their parent, and one that dies names the file it died of.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from pqindex.errors import BadFileError, SourceError, UnsupportedFileError
from pqindex.scan import Rest, ScanBatch, ScanOptions, Skipped, scan_files, scan_rest

ScanTask: TypeAlias = tuple[tuple[str, ...], ScanOptions]
RestTask: TypeAlias = tuple[Rest, ScanOptions]
T = TypeVar("T")
R = TypeVar("R")

PROBE_S = 0.5
WORTH_PROCESSES_S = 4.0
"""Other processes take a second or two to start; they are started where more than this is left to do."""


def scanned(
    root: str, batches: Sequence[Sequence[str]], options: ScanOptions, n_processes: int, *, probe: bool
) -> Iterator[ScanBatch]:
    """Yield the batches' results in order; see `run_tasks`. A file that ends its process is recorded as a bad one."""

    def lost(task: ScanTask) -> ScanBatch:
        empty = _scan_batch(root, ((), options))
        empty.skipped += [
            Skipped(path=path, reason=BadFileError.reason, message=process_ended(path)) for path in task[0]
        ]
        return empty

    def alone(task: ScanTask) -> list[ScanTask]:
        return [((path,), options.of([path])) for path in task[0]]

    tasks: list[ScanTask] = [(tuple(paths), options.of(paths)) for paths in batches]
    yield from run_tasks(partial(_scan_batch, root), tasks, n_processes, probe=probe, alone=alone, lost=lost)


def scanned_rests(
    root: str, rests: Sequence[Rest], options: ScanOptions, n_processes: int, *, probe: bool
) -> Iterator[ScanBatch]:
    """Yield what the row groups hold that `scanned` left out, in order; a bad file is recorded as `skipped`."""

    def lost(task: RestTask) -> ScanBatch:
        return _skipped_rest(root, task, BadFileError(process_ended(task[0].path)))

    tasks: list[RestTask] = [(rest, options.of([rest.path])) for rest in rests]
    yield from run_tasks(
        partial(_scan_rest, root), tasks, n_processes, probe=probe, alone=lambda task: [task], lost=lost
    )


def run_tasks(
    function: Callable[[T], R],
    tasks: Sequence[T],
    n_processes: int,
    *,
    probe: bool,
    alone: Callable[[T], Sequence[T]],
    lost: Callable[[T], R],
) -> Iterator[R]:
    """Yield the results of a function of each task, in order.

    With `probe`, this process begins alone, and others help only where what is left is worth starting them.

    Parameters
    ----------
    function : callable
        Importable by its name, as what it takes and gives back is plain data.
    tasks, n_processes
    alone : callable
        From a task to tasks that may be to blame where a process ends without a word; each is then tried in a process
        of its own.
    lost : callable
        From one of those that ended its process to the result that says so.
    """
    start = time.monotonic()
    done = 0
    while done < len(tasks) and (n_processes == 1 or probe):
        yield function(tasks[done])
        done += 1
        elapsed_s = time.monotonic() - start
        left_s = elapsed_s / done * (len(tasks) - done)
        probe = elapsed_s < PROBE_S or left_s < WORTH_PROCESSES_S
    yield from _run_in_processes(function, tasks[done:], n_processes, alone=alone, lost=lost)


def process_ended(path: str) -> str:
    """Return what is said of a file that ended the process that read it."""
    return f"reading it ended the process (out of memory, or a fault of a library): {path}"


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_in_processes(
    function: Callable[[T], R],
    tasks: Sequence[T],
    n_processes: int,
    *,
    alone: Callable[[T], Sequence[T]],
    lost: Callable[[T], R],
) -> Iterator[R]:
    """Run in fresh processes; the caller's script is not imported again, so it needs no main guard.

    Where a process ends without a word, the tasks that are left are run one by one, each in a process of its own, and
    the one that ends it is lost.
    """
    if not tasks:
        return
    from loky import ProcessPoolExecutor  # starts nothing, but is not needed where one process does the work
    from loky.process_executor import BrokenProcessPool

    def in_pool(tasks: Sequence[T], size: int) -> Iterator[R]:
        with _interrupts_ignored():
            pool = ProcessPoolExecutor(
                max_workers=min(size, len(tasks)), initializer=_start_worker, initargs=(os.getpid(),)
            )
            futures = [pool.submit(function, task) for task in tasks]
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
        for result in in_pool(tasks, n_processes):
            yield result
            done += 1
    except BrokenProcessPool:
        for task in (one for several in tasks[done:] for one in alone(several)):
            try:
                yield from in_pool([task], 1)
            except BrokenProcessPool:
                yield lost(task)


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


def _scan_batch(root: str, task: ScanTask) -> ScanBatch:
    paths, options = task
    return scan_files(root, paths, options, on_bad_file=_recorded)


def _scan_rest(root: str, task: RestTask) -> ScanBatch:
    try:
        return scan_rest(root, *task)
    except (BadFileError, UnsupportedFileError) as error:
        return _skipped_rest(root, task, error)


def _skipped_rest(root: str, task: RestTask, error: SourceError) -> ScanBatch:
    empty = scan_files(root, (), task[1])
    empty.skipped.append(_recorded(task[0].path, error))
    return empty
