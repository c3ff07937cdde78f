"""The LRU: bounded in count and bytes, oldest use first."""

from __future__ import annotations

from pqindex.lru import LRU


def test_the_one_used_longest_ago_goes_first_A7() -> None:
    lru: LRU[int, str] = LRU(max_items=2)
    lru.put(1, "a")
    lru.put(2, "b")
    assert lru.get(1) == "a"
    lru.put(3, "c")
    assert (lru.get(2), lru.get(1), lru.get(3)) == (None, "a", "c")
    assert (len(lru), lru.hits, lru.misses, lru.evictions) == (2, 3, 1, 1)


def test_bytes_bound_and_too_large_values() -> None:
    lru: LRU[int, bytes] = LRU(max_bytes=10, size_of=len)
    assert lru.put(1, b"x" * 11) == b"x" * 11
    assert len(lru) == 0
    lru.put(1, b"x" * 6)
    lru.put(2, b"y" * 4)
    assert lru.n_bytes == 10
    lru.put(3, b"z")
    assert (lru.get(1), lru.n_bytes) == (None, 5)
    lru.clear()
    assert (len(lru), lru.n_bytes) == (0, 0)


def test_the_first_value_of_a_key_stays() -> None:
    lru: LRU[int, str] = LRU(max_items=2)
    assert lru.put(1, "first") == "first"
    assert lru.put(1, "second") == "first"
