"""Read-ahead in threads: in order, bounded, and over when it is closed."""

from __future__ import annotations

import threading
import time
from itertools import count

import pytest

from pqindex.torch.readahead import read_ahead


def threads() -> int:
    return sum(thread.name.startswith("pqindex-batch") for thread in threading.enumerate())


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("depth", [1, 4, 100])
def test_batches_come_in_order(num_threads: int, depth: int) -> None:
    def make(batch: list[int]) -> int:
        time.sleep(0.003 if batch[0] % 3 == 0 else 0)
        return batch[0] * 2

    got = list(read_ahead(([i] for i in range(30)), make, num_threads=num_threads, depth=depth))
    assert got == [2 * i for i in range(30)]
    assert threads() == 0


def test_only_so_many_are_taken_ahead() -> None:
    taken = 0

    def batches():
        nonlocal taken
        for i in count():
            taken += 1
            yield [i]

    stream = read_ahead(batches(), lambda batch: batch[0], num_threads=2, depth=5)
    assert [next(stream) for _ in range(10)] == list(range(10))
    assert taken == 14
    stream.close()
    assert threads() == 0


def test_an_error_comes_in_its_place() -> None:
    def make(batch: list[int]) -> int:
        if batch[0] == 3:
            raise ValueError("three")
        return batch[0]

    stream = read_ahead(([i] for i in range(9)), make, num_threads=2, depth=4)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(stream)
    assert threads() == 0


def test_what_was_not_begun_is_dropped() -> None:
    made = []
    go = threading.Event()

    def make(batch: list[int]) -> int:
        made.append(batch[0])
        go.wait(0.05)
        return batch[0]

    stream = read_ahead(([i] for i in range(100)), make, num_threads=1, depth=50)
    go.set()
    assert next(stream) == 0
    go.clear()
    stream.close()
    assert len(made) < 60
    assert threads() == 0


def test_nothing_to_do() -> None:
    assert list(read_ahead([], lambda batch: batch, num_threads=2, depth=2)) == []
