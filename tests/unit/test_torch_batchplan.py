"""BatchPlan: a list of batches that depends on nothing but the selection, the policy and the epoch."""

from __future__ import annotations

import ast
import json
import pickle
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import pqindex.torch.batchplan
from pqindex.errors import PlanError, UsageError
from pqindex.torch import BatchPlan
from pqindex.torch.permutation import CHUNK, Permutation, permutation_key


@dataclass
class Source:
    n: int
    digest: str = "d" * 64
    seed: int | None = None

    def __len__(self) -> int:
        return self.n


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def plans(n, world_size, **options) -> list[BatchPlan]:
    return [BatchPlan(Source(n), rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def steps(ranks: list[BatchPlan]) -> list[list[list[int]]]:
    """All batches in the order of their delivery, step by step."""
    each = [list(plan) for plan in ranks]
    return [[batches[step] for batches in each if step < len(batches)] for step in range(max(map(len, each)))]


def delivered(ranks: list[BatchPlan]) -> list[int]:
    return list(chain.from_iterable(chain.from_iterable(steps(ranks))))


# -- order ----------------------------------------------------------------------------------------------------


def test_L14_without_shuffling_the_order_is_the_selection_s():
    assert list(BatchPlan(Source(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_batches_are_lists_of_python_integers():
    (batch,) = list(BatchPlan(Source(3), shuffle="full", seed=1))
    assert isinstance(batch, list)
    assert {type(position) for position in batch} == {int}


def test_the_shuffled_order_is_fixed():
    plan = BatchPlan(Source(12), 5, shuffle="full", seed=7)
    plan.set_epoch(3)
    assert list(plan) == [[2, 3, 1, 11, 10], [6, 9, 5, 7, 8], [0, 4]]


def test_case_87_a_shuffle_goes_over_the_whole_selection_and_is_the_same_on_all_ranks():
    ranks = plans(90, 3, batch_size=10, shuffle="full", seed=4)
    order = Permutation(90, permutation_key(4, 0))(np.arange(90)).tolist()
    assert delivered(ranks) == order
    for plan in ranks:  # ids sorted by class: each rank sees all of them
        mine = np.array(list(chain.from_iterable(plan)))
        assert {0, 1, 2} == set((mine // 30).tolist())


def test_case_75_epochs_differ_and_are_reproducible():
    plan, again = BatchPlan(Source(50), shuffle="full"), BatchPlan(Source(50), shuffle="full")
    seen = []
    for epoch in (0, 1, 2):
        plan.set_epoch(epoch)
        seen.append(list(plan))
    assert len({str(batches) for batches in seen}) == 3
    again.set_epoch(1)
    assert list(again) == seen[1]


def test_T24_the_seed_is_the_argument_s_else_the_manifest_s_else_0():
    assert BatchPlan(Source(50, seed=9), seed=3).seed == 3
    assert BatchPlan(Source(50, seed=9)).seed == 9
    assert BatchPlan(Source(50, seed=9), seed=0).seed == 0
    assert BatchPlan(Source(50)).seed == 0


def test_iterating_has_no_side_effect():
    plan = BatchPlan(Source(20), 3, shuffle="full")
    first, second = iter(plan), iter(plan)
    assert [next(first), next(first)] == [next(second), next(second)]
    assert list(plan) == list(plan)
    assert plan.state_dict() == BatchPlan(Source(20), 3, shuffle="full").state_dict()


def test_an_iterator_keeps_the_epoch_that_it_was_made_in():
    plan = BatchPlan(Source(20), 20, shuffle="full")
    before = list(plan)
    iterator = iter(plan)
    plan.set_epoch(1)
    assert list(iterator) == before
    assert list(plan) != before


def test_orders_longer_than_a_chunk_are_evaluated_in_groups_and_come_out_the_same():
    n = 2 * CHUNK + 5_000
    order = Permutation(n, permutation_key(0, 0))(np.arange(n)).tolist()
    for batch_size in (7, CHUNK - 1, CHUNK + 1, n):
        batches = list(BatchPlan(Source(n), batch_size, shuffle="full"))
        assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert list(chain.from_iterable(batches)) == order
    assert delivered(plans(n, 3, batch_size=1000, shuffle="full")) == order


# -- ranks ----------------------------------------------------------------------------------------------------


def test_step_s_of_W_ranks_delivers_the_next_W_batches():
    whole = list(BatchPlan(Source(24), 2))
    assert steps(plans(24, 4, batch_size=2)) == [whole[0:4], whole[4:8], whole[8:12]]


def test_L16_every_sequence_goes_to_exactly_one_rank():
    for world_size in range(1, 9):
        assert delivered(plans(50, world_size, batch_size=4)) == list(range(50))


def test_T11_T12_all_ranks_take_the_same_number_of_steps():
    for world_size in range(1, 9):
        assert len({len(plan) for plan in plans(50, world_size, batch_size=4)}) == 1


def test_batches_before_the_tail_are_the_same_for_every_world_size():
    whole = list(BatchPlan(Source(400), 4))
    for world_size in (2, 3, 7, 8):
        batches = list(chain.from_iterable(steps(plans(400, world_size, batch_size=4))))
        assert batches[:96] == whole[:96]


def test_a_world_size_that_divides_rank_multiple_sees_identical_batches():
    options = {"batch_size": 4, "rank_multiple": 12, "shuffle": "full"}
    whole = list(BatchPlan(Source(50), **options))
    assert len(whole) == 24
    for world_size in (1, 2, 3, 4, 6, 12):
        assert list(chain.from_iterable(steps(plans(50, world_size, **options)))) == whole


def test_case_82_len_agrees_with_what_is_yielded():
    for tail in ("error", "drop", "pad", "short"):
        for plan in plans(5, 2, batch_size=2, tail=tail) + plans(13, 8, batch_size=3, tail=tail):
            for epoch in (0, 1):
                plan.set_epoch(epoch)
                assert len(plan) == len(list(plan))


def test_case_82_the_tail_is_named():
    with pytest.raises(PlanError, match="2 ranks cannot take equal numbers of steps"):
        plans(5, 2, batch_size=1)
    assert delivered(plans(5, 2, batch_size=1, tail="drop")) == [0, 1, 2, 3]
    assert delivered(plans(5, 2, batch_size=1, tail="pad")) == [0, 1, 2, 3, 4, 0]
    assert delivered(plans(5, 2, batch_size=1, tail="short")) == [0, 1, 2, 3, 4]
    assert [len(plan) for plan in plans(5, 2, batch_size=1, tail="short")] == [3, 2]


def test_a_padded_tail_repeats_the_start_of_the_order():
    assert delivered(plans(2, 5, batch_size=1, tail="pad", shuffle="full")) == [1, 0, 1, 0, 1] or delivered(
        plans(2, 5, batch_size=1, tail="pad", shuffle="full")
    ) == [0, 1, 0, 1, 0]


def test_case_85_a_short_tail_gives_each_sequence_once_on_any_number_of_ranks():
    for world_size in range(1, 14):
        ranks = plans(10, world_size, batch_size=3, tail="short")
        assert sorted(delivered(ranks)) == list(range(10))
    padded = delivered(plans(10, 4, batch_size=1, tail="pad"))
    assert sorted(padded) == [0, 0, 1, 1, *range(2, 10)]


def test_dropping_everything_is_refused():
    with pytest.raises(
        PlanError, match='tail="drop" would leave nothing: 1 batches of 3 sequences for 4 ranks'
    ):
        plans(3, 4, tail="drop")


def test_the_rank_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    plan = BatchPlan(Source(8), 2)
    assert (plan.rank, plan.world_size) == (1, 2)
    assert list(plan) == [[2, 3], [6, 7]]


# -- identity -------------------------------------------------------------------------------------------------


def test_the_sampler_is_the_plan():
    plan = BatchPlan(Source(5))
    assert plan.sampler is plan


def test_the_digest_is_fixed_and_depends_on_selection_and_policy_only():
    plan = BatchPlan(Source(50), 4, shuffle="full", seed=7)
    assert plan.digest == "6541b3c75872d51b84d6975b60fe920e5a7c310b15cf34771adfd7ddd007e1ea"
    same = BatchPlan(Source(50, seed=7), 4, shuffle="full", rank=1, world_size=2, tail="pad")
    same.set_epoch(5)
    assert same.digest == plan.digest
    others = [
        BatchPlan(Source(50, digest="e" * 64), 4, shuffle="full", seed=7),
        BatchPlan(Source(50), 5, shuffle="full", seed=7),
        BatchPlan(Source(50), 4, shuffle="none", seed=7),
        BatchPlan(Source(50), 4, shuffle="full", seed=8),
        BatchPlan(Source(50), 4, shuffle="full", seed=7, rank_multiple=2),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 6


def test_seeds_use_all_64_bits_of_the_digest():
    digests = {
        BatchPlan(Source(5), shuffle="full", seed=seed).digest for seed in (2**53, 2**53 + 1, 2**64 - 1)
    }
    assert len(digests) == 3


def test_an_unused_seed_is_no_part_of_the_digest():
    assert BatchPlan(Source(5), seed=1).digest == BatchPlan(Source(5), seed=2).digest


def test_stops_are_those_of_the_whole_plan_and_cannot_be_changed():
    plan = BatchPlan(Source(10), 4, rank=1, world_size=2)
    assert plan.stops.tolist() == [4, 8, 10]
    with pytest.raises(ValueError, match="read-only"):
        plan.stops[0] = 5


def test_a_plan_pickles_without_its_source():
    plan = BatchPlan(Source(1000), 4, shuffle="full")
    assert list(pickle.loads(pickle.dumps(plan))) == list(plan)
    assert b"Source" not in pickle.dumps(plan)


def test_the_repr_says_what_it_is():
    text = repr(BatchPlan(Source(10), 4, rank=1, world_size=2))
    assert text == "BatchPlan(10 sequences, 3 batches of at most 4, shuffle='none', epoch 0, rank 1 of 2)"


def test_no_module_of_the_plan_imports_torch():
    folder = Path(pqindex.torch.batchplan.__file__).parent
    for name in ("batchplan", "permutation", "stops", "ranks", "arguments"):
        tree = ast.parse((folder / f"{name}.py").read_text())
        imported = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        } | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {module for module in imported if module.split(".")[0] == "torch"}


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 makes no sense: expected an integer of at least 1"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"shuffle": True}, "shuffle=True is not known: expected 'none' or 'full' or 'block'"),
        ({"shuffle": "blocks"}, "shuffle='blocks'"),
        ({"block_size": 0}, "block_size=0"),
        ({"batch_size": 4, "max_tokens": 9}, "batch_size and max_tokens are both given"),
        ({"length": "n"}, "length is given without max_tokens"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": 9, "bucket_ratio": 1.0}, "bucket_ratio=1.0 makes no sense"),
        ({"evaluate": True, "shuffle": "full"}, "evaluate=True takes every sequence once and in one order"),
        ({"evaluate": True, "tail": "drop"}, "found shuffle='none', tail='drop'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"seed": "7"}, "seed='7'"),
        ({"rank_multiple": 0}, "rank_multiple=0"),
        ({"tail": "keep"}, "tail='keep' is not known"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": 1}, "without world_size"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        BatchPlan(Source(5), **options)


@pytest.mark.parametrize("epoch", [-1, 1.0, None, True])
def test_an_epoch_that_makes_no_sense_is_refused(epoch):
    with pytest.raises(UsageError, match="epoch="):
        BatchPlan(Source(5)).set_epoch(epoch)


def test_what_is_no_selection_is_refused():
    with pytest.raises(UsageError, match="source is a list; expected a Selection or Manifest"):
        BatchPlan([0, 1])


def test_an_empty_selection_is_refused():
    with pytest.raises(PlanError, match="the selection is empty"):
        BatchPlan(Source(0))


def test_numpy_integers_are_integers():
    plan = BatchPlan(Source(5), np.int64(2), seed=np.int32(3))
    assert (type(plan.batch_size), type(plan.seed)) == (int, int)


# -- state ----------------------------------------------------------------------------------------------------


def rest_of(ranks: list[BatchPlan], state: dict) -> list[list[list[int]]]:
    for plan in ranks:
        plan.load_state_dict(json.loads(json.dumps(state)))
    return steps(ranks)


def test_T10_a_state_is_json_and_says_how_many_sequences_were_delivered_by_all_ranks():
    ranks = plans(50, 2, batch_size=4)
    state = ranks[0].state_dict(delivered=3)
    assert state["position"] == 24
    assert state == ranks[1].state_dict(delivered=3)
    assert json.loads(json.dumps(state)) == state


def test_T10_case_81_the_rest_is_exactly_the_rest_on_any_number_of_ranks():
    for before in (1, 2, 3):
        whole = delivered(plans(50, before, batch_size=4, shuffle="full"))
        for k in range(len(plans(50, before, batch_size=4)[0]) + 1):
            state = plans(50, before, batch_size=4, shuffle="full")[0].state_dict(delivered=k)
            for after in (1, 2, 3, 5):
                ranks = plans(50, after, batch_size=4, shuffle="full", tail="short")
                rest = rest_of(ranks, state)
                assert list(chain.from_iterable(chain.from_iterable(rest))) == whole[state["position"] :]
                assert sum(map(len, ranks)) == sum(map(len, rest))


def test_T10_with_the_same_ranks_the_same_batches_are_left_even_inside_a_cut_tail():
    for world_size, tail in ((3, "error"), (40, "error"), (64, "pad"), (64, "short"), (48, "drop")):
        options = {"batch_size": 32, "shuffle": "full", "tail": tail}
        n = 64 if tail == "error" else 50
        whole = steps(plans(n, world_size, **options))
        for k in range(len(whole)):
            state = plans(n, world_size, **options)[0].state_dict(delivered=k)
            assert rest_of(plans(n, world_size, **options), state) == whole[k:]


def test_T10_a_second_resume_counts_from_the_first():
    plan = BatchPlan(Source(50), 4, shuffle="full")
    whole = list(plan)
    plan.load_state_dict(plan.state_dict(delivered=5))
    again = BatchPlan(Source(50), 4, shuffle="full")
    again.load_state_dict(plan.state_dict(delivered=2))
    assert list(again) == whole[7:]
    assert list(again) == whole[7:]  # and nothing is used up by iterating
    assert len(again) == len(whole) - 7


def test_case_78_after_a_resume_all_later_epochs_are_whole():
    plan = BatchPlan(Source(50), 4, shuffle="full")
    plan.set_epoch(1)
    state = plan.state_dict(delivered=10)
    resumed = BatchPlan(Source(50), 4, shuffle="full")
    resumed.load_state_dict(state)
    for epoch in (1, 2, 3):
        resumed.set_epoch(epoch)
        plan.set_epoch(epoch)
        assert list(resumed) == list(plan)[10 if epoch == 1 else 0 :]


def test_case_77_a_resume_starts_at_the_next_sequence():
    plan = BatchPlan(Source(5000), 1)
    plan.load_state_dict(plan.state_dict(delivered=200))
    assert next(iter(plan)) == [200]


def test_case_81_another_selection_is_refused():
    state = BatchPlan(Source(50, digest="a" * 64), 4).state_dict(delivered=1)
    plan = BatchPlan(Source(50, digest="b" * 64), 4)
    with pytest.raises(PlanError, match=f"another selection: expected {'b' * 64}, found {'a' * 64}"):
        plan.load_state_dict(state)
    assert plan.state_dict() == BatchPlan(Source(50, digest="b" * 64), 4).state_dict()


def test_case_81_another_policy_is_refused_and_named():
    state = BatchPlan(Source(50), 4, shuffle="full", seed=1).state_dict(delivered=1)
    with pytest.raises(PlanError, match=r"batch_size was 4 and is 5; seed was '1' and is '2'\. Hint"):
        BatchPlan(Source(50), 5, shuffle="full", seed=2).load_state_dict(state)


def test_a_rest_that_cannot_be_shared_out_is_refused_and_changes_nothing():
    state = BatchPlan(Source(10), 1).state_dict(delivered=5)
    plan = BatchPlan(Source(10), 1, rank=0, world_size=2)
    with pytest.raises(PlanError, match="2 ranks cannot take equal numbers of steps"):
        plan.load_state_dict(state)
    assert list(plan) == [[0], [2], [4], [6], [8]]


@pytest.mark.parametrize("delivered", [-1, 14, 1.0])
def test_a_number_of_delivered_batches_that_cannot_be_is_refused(delivered):
    with pytest.raises(UsageError, match="delivered="):
        BatchPlan(Source(50), 4).state_dict(delivered=delivered)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "found version 2"),
        ({"position": -1}, "position missing or wrong"),
        ({"position": 51}, "position 51 of 50 sequences, from 0 on"),
        ({"epoch": "1"}, "epoch missing or wrong"),
        ({"plan": None, "tail": 3, "policy": 0}, "plan, tail, policy missing or wrong"),
    ],
)
def test_what_is_no_state_is_refused(change, message):
    state = BatchPlan(Source(50), 4).state_dict(delivered=1) | change
    with pytest.raises(UsageError, match=message):
        BatchPlan(Source(50), 4).load_state_dict(state)


def test_a_state_that_is_no_mapping_is_refused():
    with pytest.raises(UsageError, match="a list is not the state of a batch plan"):
        BatchPlan(Source(50), 4).load_state_dict([1])
