"""Stops: fixed sizes, multiples, and equal steps for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from pqindex.errors import PlanError
from pqindex.torch.stops import equal_step_stops, fixed_size_stops, round_up_stops


def sizes(stops, start=0) -> list[int]:
    return np.diff(stops, prepend=start).tolist()


@pytest.mark.parametrize(
    ("n", "batch_size", "expected"),
    [(0, 3, []), (1, 3, [1]), (6, 3, [3, 3]), (7, 3, [3, 3, 1]), (2, 5, [2])],
)
def test_batches_of_a_fixed_size_hold_what_is_left_at_the_end(n, batch_size, expected):
    assert sizes(fixed_size_stops(n, batch_size)) == expected


def test_rounding_up_halves_the_batches_with_most_sequences_the_last_of_equals_first():
    stops = fixed_size_stops(22, 5)  # 5 5 5 5 2
    assert sizes(round_up_stops(stops, 4)) == [5, 3, 2, 3, 2, 3, 2, 2]
    assert round_up_stops(stops, 5) is stops


def test_rounding_up_cuts_a_batch_more_than_once_where_it_must():
    assert sizes(round_up_stops(np.array([8]), 4)) == [2, 2, 2, 2]
    assert sizes(round_up_stops(np.array([8, 9]), 5)) == [2, 2, 2, 2, 1]


def test_rounding_up_needs_a_sequence_for_each_batch():
    with pytest.raises(
        PlanError, match=r"rank_multiple=4 cannot be kept: 1 batches round up to 4, and .* only 3"
    ) as error:
        round_up_stops(np.array([3]), 4)
    assert error.value.hint.startswith("give a smaller rank_multiple")


def equal(stops, world_size, tail="error", start=0) -> list[int]:
    return sizes(equal_step_stops(np.array(stops), start=start, world_size=world_size, tail=tail), start)


def test_T11_equal_steps_cut_the_shortest_sufficient_tail_only():
    stops = fixed_size_stops(26, 4)  # 4 4 4 4 4 4 2
    assert equal(stops, 7) == [4, 4, 4, 4, 4, 4, 2]
    assert equal(stops, 2) == [4, 4, 4, 4, 4, 4, 1, 1]
    assert equal(stops, 3) == [4, 4, 4, 4, 4, 2, 2, 1, 1]
    assert equal(stops, 4) == [4, 4, 4, 4, 4, 4, 1, 1]
    assert equal(stops, 5) == [4, 4, 4, 4, 4, 2, 1, 1, 1, 1]


def test_equal_steps_from_the_middle_of_an_order():
    assert equal([12, 16, 17], 2, start=8) == [4, 2, 2, 1]
    assert equal([], 4, start=8) == []


def test_case_82_five_sequences_two_ranks_batches_of_two():
    assert equal(fixed_size_stops(5, 2), 2) == [2, 1, 1, 1]


@pytest.mark.parametrize("world_size", range(1, 30))
def test_equal_steps_are_possible_exactly_if_there_is_a_sequence_for_each_batch(world_size):
    for n in range(1, 40):
        for batch_size in (1, 2, 3, 7):
            stops = fixed_size_stops(n, batch_size)
            needed = world_size * -(-len(stops) // world_size)
            if n >= needed:
                result = equal(stops, world_size)
                assert len(result) == needed
                assert min(result) >= 1
                assert sum(result) == n
            else:
                with pytest.raises(PlanError):
                    equal(stops, world_size)


def test_the_error_says_how_many_sequences_are_missing_and_what_to_do():
    with pytest.raises(
        PlanError, match="2 ranks cannot take equal numbers of steps: 3 batches need 1 more"
    ) as error:
        equal([1, 2, 3], 2)
    assert "takes 4 sequences, and there are 3" in str(error.value)
    assert all(word in error.value.hint for word in ('tail="drop"', '"pad"', '"short"'))
    assert (error.value.n_sequences, error.value.n_batches, error.value.world_size) == (3, 3, 2)


def test_drop_leaves_out_the_last_batches():
    assert equal([1, 2, 3], 2, "drop") == [1, 1]
    assert equal([2, 3], 4, "drop") == []


def test_pad_goes_on_past_the_last_place():
    assert equal([1, 2, 3], 2, "pad") == [1, 1, 1, 1]
    assert equal([5, 6], 4, "pad", start=3) == [1, 1, 1, 1]


def test_short_leaves_the_batches_as_they_are():
    assert equal([1, 2, 3], 2, "short") == [1, 1, 1]
    assert equal([2, 3], 4, "short") == [2, 1]


@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_a_tail_policy_changes_nothing_where_steps_can_be_made_equal(tail):
    assert equal([4, 8, 10], 2, tail) == equal([4, 8, 10], 2)
