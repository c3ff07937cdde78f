"""Read-ahead in threads of the training process: batches in order, a bounded number of them under way.

Moving a tensor between processes costs more than a fast read of it, and reading, decompressing and decoding release the
interpreter's lock. So where reads are fast (a decoded cache, plain encodings, small sequences) threads beat worker
processes; where Python code does the work (transforms, a collate of one's own), processes do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def read_ahead(
    batches: Iterable[list[int]],
    make: Callable[[list[int]], Any],
    *,
    num_threads: int,
    depth: int,
) -> Iterator[Any]:
    """Yield what `make` gives for each batch, in order, made by threads ahead of time.

    An error of a batch is raised where the batch would have been yielded. When the iterator is closed, what was not
    begun is dropped, and what was begun is waited for: no thread outlives it.

    Parameters
    ----------
    batches : iterable of list of int
        Taken in the caller's thread, `depth` ahead.
    make : callable
        From a list of positions to a batch; called by several threads at once.
    num_threads : int
    depth : int
        Batches under way or waiting, at least 1.
    """
    with ThreadPoolExecutor(num_threads, thread_name_prefix="pqindex-batch") as pool:
        pending: deque[Future[Any]] = deque()
        rest = iter(batches)
        try:
            for batch in rest:
                pending.append(pool.submit(make, batch))
                if len(pending) >= depth:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
