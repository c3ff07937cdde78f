"""The equal-steps rule and resume, for random selections, policies, ranks and epochs (rows T10, T11, T12, L16)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import chain

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from pqindex.errors import PlanError
from pqindex.torch import BatchPlan
from pqindex.torch.stops import equal_step_stops, round_up_stops


@dataclass
class Source:
    row_counts: np.ndarray
    digest: str = "0"
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.row_counts)


def log_normal(n: int, seed: int) -> list[int]:
    return np.exp(np.random.default_rng(seed).normal(2, 1, n)).astype(int).tolist()


common = {
    "shuffle": st.sampled_from(["none", "full", "block"]),
    "block_size": st.integers(1, 60),
    "seed": st.integers(0, 2**64 - 1),
    "epoch": st.integers(0, 5),
}
lengths_lists = st.one_of(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.builds(log_normal, st.integers(1, 200), st.integers(0, 99)),
)
fixed_size = st.fixed_dictionaries(
    {"lengths": st.integers(1, 200).map(lambda n: [1] * n), "batch_size": st.integers(1, 20), **common}
)
token_budget = st.fixed_dictionaries(
    {
        "lengths": lengths_lists,
        "spare_tokens": st.integers(0, 300),
        "bucket_ratio": st.sampled_from([1.01, 1.1, 1.5, 4.0, 1000.0]),
        **common,
    }
)
policies = st.one_of(fixed_size, token_budget)
world_sizes = st.integers(1, 24)
tails = st.sampled_from(["error", "drop", "pad", "short"])
stops_lists = st.lists(st.integers(1, 9), min_size=1, max_size=30).map(
    lambda sizes: np.cumsum(sizes, dtype=np.int64)
)


def ranks_of(policy, world_size, tail="error", rank_multiple=1) -> list[BatchPlan]:
    plans = []
    for rank in range(world_size):
        lengths = np.array(policy["lengths"], np.int64)
        how = (
            {"batch_size": policy["batch_size"]}
            if "batch_size" in policy
            else {
                "max_tokens": max(int(lengths.max()), 1) + policy["spare_tokens"],
                "bucket_ratio": policy["bucket_ratio"],
            }
        )
        plan = BatchPlan(
            Source(lengths),
            **how,
            shuffle=policy["shuffle"],
            block_size=policy["block_size"],
            seed=policy["seed"],
            rank=rank,
            world_size=world_size,
            rank_multiple=rank_multiple,
            tail=tail,
        )
        plan.set_epoch(policy["epoch"])
        plans.append(plan)
    return plans


def possible(policy, world_size, tail="error", rank_multiple=1) -> list[BatchPlan]:
    try:
        return ranks_of(policy, world_size, tail, rank_multiple)
    except PlanError:
        assume(False)
        raise


def batches_of(plans: list[BatchPlan]) -> list[list[int]]:
    each = [list(plan) for plan in plans]
    n_steps = max(map(len, each))
    return [batches[step] for step in range(n_steps) for batches in each if step < len(batches)]


def sequences_of(plans: list[BatchPlan]) -> list[int]:
    return list(chain.from_iterable(batches_of(plans)))


@given(policies, world_sizes)
def test_the_union_over_ranks_is_exactly_the_selection_in_equal_steps(policy, world_size):
    plans = possible(policy, world_size)
    whole = sequences_of(ranks_of(policy, 1))
    assert sorted(whole) == list(range(len(policy["lengths"])))
    assert sequences_of(plans) == whole
    assert len({len(plan) for plan in plans}) == 1
    assert [len(list(plan)) for plan in plans] == [len(plan) for plan in plans]
    lengths = np.array(policy["lengths"])
    for batch in chain.from_iterable(plans):
        assert batch
        if "batch_size" in policy:
            assert len(batch) <= policy["batch_size"]
        else:
            assert len(batch) * int(lengths[batch].max()) <= plans[0].max_tokens


@given(policies, st.integers(1, 5))
def test_every_epoch_has_as_many_batches_of_the_same_sizes(policy, other):
    first, second = ranks_of(policy, 1)[0], ranks_of(policy | {"epoch": policy["epoch"] + other}, 1)[0]
    assert Counter(map(len, first)) == Counter(map(len, second))


@given(policies, world_sizes)
def test_evaluation_takes_each_sequence_once_on_any_number_of_ranks(policy, world_size):
    plans = ranks_of(policy | {"shuffle": "none"}, world_size, "short")
    assert sorted(sequences_of(plans)) == list(range(len(policy["lengths"])))


@given(policies, world_sizes)
def test_batches_before_the_tail_are_the_same_for_every_world_size(policy, world_size):
    """The tail is the shortest one that can be cut so often: what is before it is untouched."""
    plans = possible(policy, world_size)
    whole = batches_of(ranks_of(policy, 1))
    n_cuts = -len(whole) % world_size
    spare = np.cumsum([len(batch) - 1 for batch in reversed(whole)])
    n_tail = int(np.searchsorted(spare, n_cuts)) + 1 if n_cuts else 0
    n_same = len(whole) - n_tail
    assert batches_of(plans)[:n_same] == whole[:n_same]


@given(policies, st.integers(1, 6), st.integers(1, 4))
def test_all_world_sizes_that_divide_rank_multiple_see_identical_batches(policy, world_size, factor):
    rank_multiple = world_size * factor
    plans = possible(policy, world_size, rank_multiple=rank_multiple)
    assert batches_of(plans) == list(ranks_of(policy, 1, rank_multiple=rank_multiple)[0])


@given(policies, world_sizes, tails)
def test_every_tail_does_what_its_name_says(policy, world_size, tail):
    plans = possible(policy, world_size, tail)
    whole = sequences_of(ranks_of(policy, 1))
    seen = sequences_of(plans)
    lengths = {len(plan) for plan in plans}
    if tail == "short":
        assert seen == whole
        assert max(lengths) - min(lengths) <= 1
    else:
        assert len(lengths) == 1
    if tail == "drop":
        assert seen == whole[: len(seen)]
    if tail == "pad":
        assert seen[: len(whole)] == whole
        assert seen[len(whole) :] == (whole * world_size)[: len(seen) - len(whole)]


@given(policies, world_sizes, world_sizes, st.data())
def test_interrupted_anywhere_and_resumed_anywhere_the_rest_is_exactly_the_rest(policy, before, after, data):
    plans = possible(policy, before, "short")
    whole = sequences_of(plans)
    k = data.draw(st.integers(0, len(plans[0])))
    state = json.loads(json.dumps(plans[0].state_dict(delivered=k)))
    resumed = ranks_of(policy | {"epoch": 0}, after, "short")
    for plan in resumed:
        plan.load_state_dict(state)
    assert sequences_of(resumed) == whole[state["position"] :]
    # twice in one epoch, on other ranks again
    j = data.draw(st.integers(0, len(resumed[0])))
    state = resumed[0].state_dict(delivered=j)
    again = ranks_of(policy, before, "short")
    for plan in again:
        plan.load_state_dict(state)
    assert sequences_of(again) == whole[state["position"] :]


@given(policies, world_sizes, tails, st.data())
def test_resumed_on_as_many_ranks_the_batches_are_the_same_ones(policy, world_size, tail, data):
    plans = possible(policy, world_size, tail)
    k = data.draw(st.integers(0, min(len(plan) for plan in plans)))
    state = plans[0].state_dict(delivered=k)
    resumed = ranks_of(policy, world_size, tail)
    for plan, old in zip(resumed, plans, strict=True):
        plan.load_state_dict(state)
        assert list(plan) == list(old)[k:]
        assert len(plan) == len(old) - k
        plan.set_epoch(policy["epoch"] + 1)
        old.set_epoch(policy["epoch"] + 1)
        assert list(plan) == list(old)


@given(stops_lists, st.integers(0, 50), world_sizes)
def test_equal_steps_touch_the_shortest_sufficient_tail_only_and_are_possible_iff_the_rule_says(
    stops, start, world_size
):
    stops = stops + start
    count, n_left = len(stops), int(stops[-1]) - start
    needed = world_size * -(-count // world_size)
    if n_left < needed:
        try:
            equal_step_stops(stops, start=start, world_size=world_size, tail="error")
        except PlanError:
            return
        raise AssertionError("expected a PlanError")
    result = equal_step_stops(stops, start=start, world_size=world_size, tail="error")
    assert len(result) == needed
    assert set(stops.tolist()) <= set(result.tolist())
    assert (np.diff(result, prepend=start) > 0).all()
    added = sorted(set(result.tolist()) - set(stops.tolist()))
    if added:  # without the first batch of the tail, the rest could not have been cut as often
        sizes = np.diff(stops, prepend=start)
        spare = np.cumsum((sizes - 1)[::-1])
        tail = int(np.searchsorted(spare, len(added))) + 1
        before_tail = int(stops[count - tail - 1]) if count > tail else start
        assert added[0] > before_tail


@given(stops_lists, st.integers(1, 12))
def test_rounding_up_cuts_largest_batches_first(stops, multiple):
    needed = -(-len(stops) // multiple) * multiple
    assume(int(stops[-1]) >= needed)
    result = round_up_stops(stops, multiple)
    assert len(result) == needed
    sizes = Counter(np.diff(stops, prepend=0).tolist())
    for _ in range(needed - len(stops)):  # the multiset of sizes, one halving after the other
        largest = max(sizes.elements())
        sizes.subtract([largest])
        sizes.update([(largest + 1) // 2, largest // 2])
    assert Counter(np.diff(result, prepend=0).tolist()) == +sizes
