"""Where windows lie: counts, prefix sums, draws."""

from __future__ import annotations

import numpy as np
import pytest

from pqindex.errors import UsageError
from pqindex.torch.windowplaces import BLOCK, PrefixSums, RandomWindows, WindowGrid


def grid(length=4, stride=4, context=0, horizon=0, partial="drop") -> WindowGrid:
    return WindowGrid.of(length=length, stride=stride, context=context, horizon=horizon, partial=partial)


def starts(made: WindowGrid, n_rows: int) -> list[int]:
    (count,) = made.counts(np.array([n_rows]))
    return made.row_starts(np.arange(count)).tolist()


@pytest.mark.parametrize(
    ("options", "n_rows", "expected"),
    [
        ({}, 3, []),
        ({}, 4, [0]),
        ({}, 11, [0, 4]),
        ({"stride": 1}, 6, [0, 1, 2]),
        ({"stride": 7}, 18, [0, 7, 14]),
        ({"stride": 7}, 17, [0, 7]),
        ({"context": 2, "horizon": 1}, 6, []),
        ({"context": 2, "horizon": 1}, 7, [2]),
        ({"context": 2, "horizon": 1, "stride": 1}, 9, [2, 3, 4]),
        ({"partial": "keep"}, 1, [0]),
        ({"partial": "keep"}, 8, [0, 4]),
        ({"partial": "keep"}, 9, [0, 4, 8]),
        ({"partial": "keep", "stride": 2}, 8, [0, 2, 4]),  # [6, 8) would be the end of [4, 8) again
        ({"partial": "keep", "stride": 2}, 9, [0, 2, 4, 6]),
        ({"partial": "keep", "stride": 6}, 6, [0]),
        ({"partial": "keep", "stride": 6}, 7, [0, 6]),
        ({"partial": "pad", "stride": 1, "length": 1, "context": 3, "horizon": 9}, 3, [0, 1, 2]),
        ({"partial": "pad"}, 0, []),
        ({}, 0, []),
    ],
)
def test_the_windows_of_a_sequence(options, n_rows, expected):
    assert starts(grid(**options), n_rows) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length=0 makes no sense: expected an integer from 1"),
        ({"stride": 0}, "stride=0 makes no sense"),
        ({"context": -1}, "context=-1 makes no sense"),
        ({"horizon": 1.5}, "horizon=1.5 makes no sense"),
        ({"length": 1 << 48}, "length=281474976710656 makes no sense"),
        ({"partial": "wrap"}, "partial='wrap' is not known: expected 'drop' or 'keep' or 'pad'"),
        ({"partial": "keep", "horizon": 2}, 'partial="keep" with context=0 and horizon=2: .*Hint: .*"pad"'),
        ({"partial": "keep", "context": 2}, 'partial="keep" with context=2 and horizon=0'),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        grid(**options)


def test_1e9_windows_are_found_and_take_the_memory_of_the_sequences_only():
    n = 1_000_003
    lengths = np.arange(n) % 2000 + 1  # so the prefix sums are known in closed form
    sums = PrefixSums(lengths, grid(length=1, stride=1).counts)
    assert sums.total == int(lengths.sum()) > 10**9
    assert sums._stops.nbytes == 8 * -(-n // BLOCK)
    whole = 2000 * 2001 // 2
    for item in (0, 1, 2, whole - 1, whole, 7 * whole + 5050, sums.total - 1):
        ((sequence,), (number,)) = sums.locate(np.array([item]))
        cycle, rest = divmod(item, whole)
        of_cycle = np.concatenate([[0], np.cumsum(np.arange(1, 2001))])
        at = int(np.searchsorted(of_cycle, rest, side="right")) - 1
        assert (sequence, number) == (2000 * cycle + at, rest - of_cycle[at])


def test_sequences_without_windows_are_passed_over():
    lengths = np.array([0, 3, 0, 0, 2, *[0] * 40, 1, 0])
    sums = PrefixSums(lengths, grid(length=1, stride=1).counts)
    sequences, numbers = sums.locate(np.arange(6))
    assert sequences.tolist() == [1, 1, 1, 4, 4, 45]
    assert numbers.tolist() == [0, 1, 2, 0, 1, 0]


def test_an_empty_selection_has_no_windows():
    sums = PrefixSums(np.zeros(0, np.int64), grid().counts)
    assert sums.total == 0
    assert [x.tolist() for x in sums.locate(np.zeros(0, np.int64))] == [[], []]


def test_more_windows_than_a_plan_can_order_are_refused():
    lengths = np.full(4, 1 << 61)
    with pytest.raises(UsageError, match=r"there are about 9.22e\+18 windows; expected fewer than 2\*\*62"):
        PrefixSums(lengths, grid(length=1, stride=1).counts)


# -- draws ----------------------------------------------------------------------------------------------------

LENGTHS = np.array([3, 10, 2, 40, 9, 0, 4])


def drawn(n=12, *, by="windows", seed=7, epoch=0, lengths=LENGTHS, **options):
    made = RandomWindows(grid(stride=1, **options), lengths, by=by, seed=seed)
    return [tuple(pair) for pair in np.stack(made.locate(np.arange(n), epoch), axis=1).tolist()]


def test_draws_are_the_same_on_every_machine():
    """These values are a promise: a resumed epoch goes on with the windows that it would have had."""
    assert drawn(4) == FIRST_BY_WINDOWS
    assert drawn(4, by="sequences") == FIRST_BY_SEQUENCES


FIRST_BY_WINDOWS = [(3, 31), (3, 4), (3, 0), (1, 5)]
FIRST_BY_SEQUENCES = [(6, 0), (1, 2), (1, 3), (1, 0)]


def test_a_draw_is_a_function_of_seed_epoch_and_number():
    made = RandomWindows(grid(stride=1), LENGTHS, by="windows", seed=7)
    whole = np.stack(made.locate(np.arange(100), 3))
    for item in (0, 57, 99):
        assert np.stack(made.locate(np.array([item]), 3))[:, 0].tolist() == whole[:, item].tolist()
    assert drawn() == drawn()
    assert len({str(drawn(seed=s, epoch=e)) for s in (0, 7, 2**64 - 1) for e in (0, 1, 2**63)}) == 9


def shares(pairs, n) -> np.ndarray:
    return np.bincount([sequence for sequence, _ in pairs], minlength=n) / len(pairs)


def test_by_windows_every_window_is_equally_likely():
    pairs = drawn(20_000)
    counts = grid(stride=1).counts(LENGTHS)
    assert counts.tolist() == [0, 7, 0, 37, 6, 0, 1]
    assert {(s, i) for s, n in enumerate(counts) for i in range(n)} == set(pairs)
    assert np.abs(shares(pairs, 7) - counts / counts.sum()).max() < 0.015


def test_by_sequences_every_sequence_that_has_a_window_is_equally_likely_and_then_every_window():
    pairs = drawn(20_000, by="sequences")
    assert np.abs(shares(pairs, 7) - np.array([0, 1, 0, 1, 1, 0, 1]) / 4).max() < 0.015
    of_long = np.bincount([number for sequence, number in pairs if sequence == 3], minlength=37)
    assert len(of_long) == 37
    assert of_long.min() > 0.6 * of_long.mean()


def test_by_is_one_of_two():
    with pytest.raises(UsageError, match="draw_by='rows' is not known: expected 'windows' or 'sequences'"):
        drawn(by="rows")
