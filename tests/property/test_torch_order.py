"""The permutation is a bijection for every n and key, and equals a plain reading of its definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pqindex.torch.permutation import SMALL, FeistelNetwork, Permutation, permutation_key

WORD = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
keys = st.integers(0, WORD)


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def splitmix(seed: int, n: int) -> list[int]:
    return [mix((seed + GAMMA * (i + 1)) & WORD) for i in range(n)]


def feistel(n: int, key: int, position: int) -> int:
    """One place of the network, in Python's own integers."""
    rows = next(r for r in range(int((n - 1) ** 0.5) - 1, n + 1) if r * r >= n)
    columns = -(-n // rows)
    round_keys = splitmix(key, 8)
    while True:
        left, right = divmod(position, columns)
        for i, round_key in enumerate(round_keys):
            if i % 2 == 0:
                left = (left + ((mix((right + round_key) & WORD) >> 32) * rows >> 32)) % rows
            else:
                right = (right + ((mix((left + round_key) & WORD) >> 32) * columns >> 32)) % columns
        position = left * columns + right
        if position < n:
            return position


@given(st.integers(0, 3_000), keys)
def test_a_small_order_holds_every_item_once(n, key):
    assert sorted(Permutation(n, key)(np.arange(n)).tolist()) == list(range(n))


@settings(max_examples=15)
@given(st.integers(SMALL - 1, 300_000), keys)
def test_a_large_order_holds_every_item_once(n, key):
    counts = np.bincount(Permutation(n, key)(np.arange(n)), minlength=n)
    assert len(counts) == n
    assert (counts == 1).all()


@given(st.integers(1, 2_000), keys)
def test_the_network_alone_is_a_bijection(n, key):
    assert sorted(FeistelNetwork(n, key)(np.arange(n)).tolist()) == list(range(n))


@given(st.integers(1, 500), keys)
def test_a_small_order_is_sorted_by_splitmix64(n, key):
    words = splitmix(key, n)
    assert Permutation(n, key)(np.arange(n)).tolist() == sorted(range(n), key=lambda i: (words[i], i))


@given(st.one_of(st.integers(SMALL, 200_000), st.integers(2**31, 2**50)), keys, st.data())
def test_a_large_order_is_the_network_of_its_definition(n, key, data):
    position = data.draw(st.integers(0, n - 1))
    assert Permutation(n, key)([position])[0] == feistel(n, key, position)


@given(st.integers(0, WORD), st.integers(0, 1_000))
def test_keys_are_mixed_from_seed_and_epoch(seed, epoch):
    assert permutation_key(seed, epoch) == mix((mix((GAMMA + seed) & WORD) + GAMMA + epoch) & WORD)
