"""The keyed permutation: fixed values that are a promise, and uniformity where it can be counted."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from pqindex.errors import SelectionIndexError, UsageError
from pqindex.torch.permutation import CHUNK, SMALL, FeistelNetwork, Permutation, permutation_key, splitmix64


def order(n: int, key: int) -> list[int]:
    return Permutation(n, key)(np.arange(n)).tolist()


def test_splitmix64_gives_the_outputs_of_its_reference_code():
    assert splitmix64(1234567, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_keys_are_fixed():
    assert [permutation_key(seed, epoch) for seed, epoch in [(0, 0), (7, 0), (7, 1), (2**64 - 1, 3)]] == [
        12035550249420947055,
        13309476754707697221,
        2875738036014693257,
        209967342931450243,
    ]


def test_small_orders_are_fixed():
    assert order(5, 7) == [1, 0, 4, 3, 2]
    assert order(12, permutation_key(7, 3)) == [2, 3, 1, 11, 10, 6, 9, 5, 7, 8, 0, 4]


def test_large_orders_are_fixed():
    positions = np.array([0, 1, 2, 65_535, 65_536, 99_999])
    assert Permutation(100_000, permutation_key(7, 3))(positions).tolist() == [
        10852,
        8174,
        96933,
        46084,
        18618,
        5781,
    ]
    assert Permutation(10**12, permutation_key(7, 3))(np.array([0, 10**12 - 1])).tolist() == [
        889325078908,
        614564166647,
    ]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000, SMALL - 1, SMALL, SMALL + 1, 3 * CHUNK + 17])
def test_every_item_comes_once(n):
    assert sorted(order(n, 11)) == list(range(n))


def test_the_network_alone_is_a_bijection_of_every_small_n():
    for n in range(1, 300):
        assert sorted(FeistelNetwork(n, 3)(np.arange(n)).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [4, 5])
def test_small_orders_are_uniform_over_seeds_and_epochs(n):
    keys = [permutation_key(seed, epoch) for seed in range(6_000) for epoch in range(5)]
    counts = Counter(tuple(order(n, key)) for key in keys)
    expected = len(keys) / math.factorial(n)
    chi_square = sum((count - expected) ** 2 for count in counts.values()) / expected
    assert len(counts) == math.factorial(n)
    degrees = math.factorial(n) - 1
    assert abs(chi_square - degrees) < 4 * math.sqrt(2 * degrees)


def test_the_first_place_of_a_large_order_is_uniform_over_keys():
    n, bins = SMALL + 4_464, 20
    firsts = [int(Permutation(n, permutation_key(seed, 0))([0])[0]) for seed in range(4_000)]
    counts = np.histogram(firsts, bins, (0, n))[0]
    chi_square = float(((counts - 200.0) ** 2 / 200).sum())
    assert chi_square < bins - 1 + 4 * math.sqrt(2 * (bins - 1))


def test_case_87_neighbours_of_the_selection_are_spread_over_the_whole_order():
    for n in (5_000, 100_000):
        items = np.array(order(n, permutation_key(1, 0)))
        assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 0.05
        assert abs(items[: n // 10].mean() / n - 0.5) < 0.05


def test_orders_differ_by_epoch_and_by_seed():
    orders = {tuple(order(100, permutation_key(seed, epoch))) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_places_are_computed_one_by_one_as_all_together():
    permutation = Permutation(SMALL + 10, 5)
    positions = np.array([SMALL + 9, 0, 17, 17])
    assert permutation(positions).tolist() == [int(permutation([p])[0]) for p in positions]


@pytest.mark.parametrize("position", [-1, 5])
def test_a_place_outside_is_refused(position):
    with pytest.raises(SelectionIndexError, match="expected 0 to 4"):
        Permutation(5, 1)([position])


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_a_size_that_cannot_be_is_refused(n):
    with pytest.raises(UsageError, match="expected 0 to 2"):
        Permutation(n, 1)
