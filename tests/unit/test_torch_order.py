"""Orders of epochs: token budgets by length buckets, and blocks of neighbours."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pqindex.errors import ColumnMissingError, ColumnTypeError, PlanError, UsageError
from pqindex.torch import BatchPlan
from pqindex.torch.order import bucket_edges
from pqindex.torch.permutation import BlockPermutation


@dataclass
class Source:
    row_counts: np.ndarray
    extra: pa.Table = field(default_factory=lambda: pa.table({}))
    digest: str = "d" * 64
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.row_counts)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


LENGTHS = np.exp(np.random.default_rng(3).normal(4, 1, 3000)).astype(np.int64)


def cost(batch: list[int], lengths: np.ndarray = LENGTHS) -> int:
    return int(lengths[batch].max()) * len(batch)


def padding(batches: list[list[int]], lengths: np.ndarray = LENGTHS) -> float:
    padded = sum(cost(batch, lengths) for batch in batches)
    return 1 - sum(int(lengths[batch].sum()) for batch in batches) / padded


@pytest.mark.parametrize("shuffle", ["none", "full", "block"])
def test_no_batch_is_over_budget_and_each_sequence_is_in_one(shuffle: Any) -> None:
    plan = BatchPlan(Source(LENGTHS), max_tokens=8192, shuffle=shuffle, seed=5, block_size=700)
    counts = set()
    for epoch in range(3):
        plan.set_epoch(epoch)
        batches = list(plan)
        assert sorted(chain.from_iterable(batches)) == list(range(3000))
        assert max(map(cost, batches)) <= 8192
        counts.add((len(batches), tuple(sorted(map(len, batches)))))
    assert len(counts) == 1, "as many batches, of the same sizes, in every epoch"


def test_sequences_of_like_length_make_a_batch() -> None:
    plan = BatchPlan(Source(LENGTHS), max_tokens=8192, shuffle="full")
    assert padding(list(plan)) < 0.06
    fixed = BatchPlan(Source(LENGTHS), 32, shuffle="full")
    assert padding(list(fixed)) > 0.5
    for batch in plan:
        assert LENGTHS[batch].max() <= max(LENGTHS[batch].min() + 1, 1.1 * LENGTHS[batch].min())


def test_a_bucket_is_cut_evenly() -> None:
    plan = BatchPlan(Source(np.full(10, 100, np.int64)), max_tokens=400)
    assert [len(batch) for batch in plan] == [3, 3, 4]


def test_without_a_shuffle_buckets_keep_the_order_and_batches_come_by_their_first() -> None:
    lengths = np.array([5, 1, 5, 1, 5, 1, 50], np.int64)
    assert list(BatchPlan(Source(lengths), max_tokens=50)) == [[0, 2, 4], [1, 3, 5], [6]]
    assert list(BatchPlan(Source(lengths), max_tokens=50, evaluate=True)) == [[0, 2, 4], [1, 3, 5], [6]]


SHUFFLED = [[5], [6], [3, 1], [4, 0, 7, 8, 2]]


def test_the_shuffled_order_is_fixed() -> None:
    """What this order is, is a promise: a resume on another machine or version needs it."""
    plan = BatchPlan(
        Source(np.array([10, 30, 10, 31, 10, 30, 90, 10, 10])), max_tokens=90, shuffle="full", seed=7
    )
    plan.set_epoch(3)
    assert list(plan) == SHUFFLED


def test_sequences_are_shuffled_inside_buckets_and_batches_over_the_epoch() -> None:
    plan = BatchPlan(Source(np.full(4000, 10, np.int64)), max_tokens=100, shuffle="full")
    seen = list(chain.from_iterable(plan))
    assert abs(np.corrcoef(seen, np.arange(4000))[0, 1]) < 0.06
    assert abs(np.mean(next(iter(plan))) - 2000) < 1500
    plan.set_epoch(1)
    assert list(chain.from_iterable(plan)) != seen


def test_blocks_keep_neighbours_near() -> None:
    plan = BatchPlan(Source(LENGTHS), 50, shuffle="block", block_size=500, seed=2)
    for batch in plan:
        assert len({position // 500 for position in batch}) == 1
    plan = BatchPlan(Source(LENGTHS), max_tokens=4096, shuffle="block", block_size=500)
    blocks = [{position // 500 for position in batch} for batch in plan]
    assert all(len(block) == 1 for block in blocks)
    order = [next(iter(block)) for block in blocks]
    changes = sum(a != b for a, b in pairwise(order))
    assert changes == 5, "all batches of a block, then those of the next"
    assert order != sorted(order)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 6, 7, 99, 100])
@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 100, 1000])
def test_a_block_permutation_is_one(n: int, block_size: int) -> None:
    order = BlockPermutation(n, 11, block_size)
    items = order(np.arange(n))
    assert sorted(items.tolist()) == list(range(n))
    shuffled = np.random.default_rng(0).permutation(n)
    assert np.array_equal(order(shuffled), items[shuffled])
    blocks = items // block_size
    assert np.count_nonzero(np.diff(blocks)) == max(len(set(blocks.tolist())) - 1, 0)


def test_every_order_of_small_blocks_comes_about_as_often() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(3200):
        items = tuple(BlockPermutation(5, key, 2)(np.arange(5)).tolist())
        counts[items] = counts.get(items, 0) + 1
    assert len(counts) == 3 * 2 * 2 * 2  # three blocks in any order, two of two items
    expected = 3200 / len(counts)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # 23 degrees, one in a thousand
    with pytest.raises(Exception, match="outside the permutation"):
        BlockPermutation(5, 0, 2)([5])


def test_edges_grow_by_the_ratio_and_by_one_at_least() -> None:
    assert bucket_edges(30, 1.5).tolist() == [1, 2, 3, 4, 6, 9, 13, 19, 28]
    assert bucket_edges(1, 1.1).tolist() == [1]
    edges = bucket_edges(10**6, 1.1)
    assert (edges[1:] <= np.maximum(edges[:-1] + 1, edges[:-1] * 1.1)).all()


def test_rank_multiple_and_ranks_share_budget_batches() -> None:
    whole = list(BatchPlan(Source(LENGTHS), max_tokens=8192, shuffle="full", rank_multiple=12))
    assert len(whole) % 12 == 0
    for world_size in (1, 2, 3, 4, 6, 12):
        plans = [
            BatchPlan(
                Source(LENGTHS),
                max_tokens=8192,
                shuffle="full",
                rank_multiple=12,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]
        assert [batch for step in zip(*plans, strict=True) for batch in step] == whole


def test_too_long_sequences_are_named() -> None:
    lengths = LENGTHS.copy()
    lengths[[5, 70]] = 9000, 10_000
    with pytest.raises(
        PlanError,
        match=r"2 of 3000 sequences are longer than max_tokens=8192: position 5 \(9000\), position 70 \(10000\)\. Hint: .*WHERE",
    ) as caught:
        BatchPlan(Source(lengths), max_tokens=8192)
    assert caught.value.facts["positions"] == (5, 70)
    with pytest.raises(PlanError, match=r"\(9000\).*and 2990 more"):
        BatchPlan(Source(np.full(3000, 9000)), max_tokens=8192)


def test_lengths_may_be_a_column_of_the_query_or_an_array() -> None:
    n_tokens = LENGTHS[::-1].copy()
    source = Source(LENGTHS, pa.table({"n_tokens": n_tokens, "name": ["x"] * 3000}))
    by_name = BatchPlan(source, max_tokens=8192, length="n_tokens")
    by_array = BatchPlan(source, max_tokens=8192, length=n_tokens)
    assert list(by_name) == list(by_array)
    assert by_name.digest == by_array.digest != BatchPlan(source, max_tokens=8192).digest
    assert max(cost(batch, n_tokens) for batch in by_name) <= 8192
    with pytest.raises(
        ColumnMissingError, match=r"no column 'n_token' for the lengths; .*did you mean 'n_tokens'"
    ):
        BatchPlan(source, max_tokens=8192, length="n_token")
    with pytest.raises(ColumnMissingError, match=r"it has none. Hint: name it in the query"):
        BatchPlan(Source(LENGTHS), max_tokens=8192, length="n")
    for length in (LENGTHS[:5], LENGTHS.astype(float), -LENGTHS):
        with pytest.raises(UsageError, match="expected 3000 integers, none negative"):
            BatchPlan(source, max_tokens=8192, length=length)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["a", "b", "c"], "its type is string"),
        ([1.0, 2.0, 3.0], "its type is double"),
        ([1, None, 3], "it is null for position 1"),
        ([1, 2, -3], "it is negative for position 2"),
    ],
)
def test_a_column_that_cannot_be_lengths_is_refused(values: list[Any], says: str) -> None:
    source = Source(np.ones(3, np.int64), pa.table({"n": values}))
    with pytest.raises(ColumnTypeError, match=f"column 'n' of the query cannot be lengths: {says}"):
        BatchPlan(source, max_tokens=9, length="n")


def test_sequences_without_rows_have_a_place() -> None:
    batches = list(BatchPlan(Source(np.array([0, 3, 0], np.int64)), max_tokens=2 + 1))
    assert sorted(chain.from_iterable(batches)) == [0, 1, 2]


def test_batches_know_their_number_in_every_process() -> None:
    plan = BatchPlan(Source(LENGTHS), 100)
    plan.set_epoch(2)
    for number, batch in enumerate(plan):
        copy = pickle.loads(pickle.dumps(batch))
        assert copy == batch
        assert (copy.epoch, copy.number, copy.carried) == (2, number, (2, number))


def test_what_was_delivered_is_known_from_the_batch() -> None:
    plan = BatchPlan(Source(LENGTHS), 100, shuffle="full")
    batches = list(plan)
    assert plan.state_dict() == plan.state_dict(delivered=0)
    plan.delivered(batches[3])
    assert plan.state_dict() == plan.state_dict(delivered=4)
    plan.delivered({"x": 1, "batch_number": (0, 6)})
    state = plan.state_dict()
    assert state == plan.state_dict(delivered=7)
    plan.load_state_dict(state)
    rest = list(plan)
    assert rest == batches[7:]
    assert rest[0].number == 0
    plan.delivered(rest[1])
    assert plan.state_dict()["position"] == 900
    with pytest.raises(UsageError, match="the batch does not say which one it is"):
        plan.delivered({"x": 1})
    with pytest.raises(UsageError, match="keep that key in yours"):
        plan.delivered([1, 2])  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="expected epoch 0 and a number below 23, found epoch 0, number 23"):
        plan.delivered({"batch_number": (0, 23)})
    plan.set_epoch(1)
    assert plan.state_dict()["position"] == 0
    with pytest.raises(PlanError, match=r"expected epoch 1 .*found epoch 0.*before plan\.set_epoch"):
        plan.delivered(rest[1])


def test_the_iterator_keeps_a_state_of_its_own() -> None:
    plan = BatchPlan(Source(LENGTHS), max_tokens=8192, shuffle="full")
    plan.set_epoch(1)
    batches = list(plan)
    before = plan.state_dict()
    iterator = iter(plan)
    for number in range(len(batches)):
        state = iterator.state_dict()
        resumed = iter(BatchPlan(Source(LENGTHS), max_tokens=8192, shuffle="full"))
        resumed.load_state_dict(state)
        if number % 7 == 0:
            assert list(resumed) == batches[number:]
        assert next(iterator) == batches[number]
    assert plan.state_dict() == before
    other = BatchPlan(Source(LENGTHS), max_tokens=8000, shuffle="full")
    with pytest.raises(PlanError, match="max_tokens was 8192 and is 8000"):
        iter(other).load_state_dict(before)


def test_a_state_of_other_lengths_is_refused() -> None:
    state = BatchPlan(Source(LENGTHS), max_tokens=8192).state_dict()
    with pytest.raises(PlanError, match="lengths was"):
        BatchPlan(Source(LENGTHS), max_tokens=8192, length=LENGTHS[::-1].copy()).load_state_dict(state)
    with pytest.raises(
        PlanError, match=r"block_size was None and is 4096; .*shuffle was 'none' and is 'block'"
    ):
        BatchPlan(Source(LENGTHS), max_tokens=8192, shuffle="block").load_state_dict(state)
