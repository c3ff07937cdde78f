"""Accelerate and the Trainer of Hugging Face, with the recipes of docs/trainers.md (T10 to T12)."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard

import pqindex
from pqindex.torch import BatchPlan

MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.log = Log()

    def forward(self, batch):
        self.log.write(batch)
        return self.linear(batch["x"]).square().mean()
"""

KEYWORDS_MODEL = MODEL.replace("(self, batch)", "(self, **batch)").replace(
    'return self.linear(batch["x"]).square().mean()',
    'return {"loss": self.linear(batch["x"]).square().mean()}',
)


@pytest.fixture(scope="module")
def batches(pinned) -> list[list[int]]:
    """Ids of the 32 batches of two epochs."""
    plan = BatchPlan(pqindex.load_manifest(pinned), 4, shuffle="full", rank=0, world_size=1)
    batches = []
    for epoch in range(2):
        plan.set_epoch(epoch)
        batches.extend(plan)
    return batches


@pytest.fixture(scope="module")
def whole(batches) -> list[int]:
    return list(chain.from_iterable(batches))


def test_why_the_loader_is_not_prepared(pinned):
    plans = [BatchPlan(pqindex.load_manifest(pinned), 4, rank=rank, world_size=2) for rank in range(2)]
    prepared = [list(BatchSamplerShard(plan, 2, plan.rank)) for plan in plans]
    assert [len(plan) for plan in plans] == [8, 8]
    assert [len(batches) for batches in prepared] == [4, 4]  # half of the half
    of_one_rank = BatchPlan(pqindex.load_manifest(pinned), 4, rank=0, world_size=1)
    shards = [list(BatchSamplerShard(of_one_rank, 2, rank)) for rank in range(2)]
    assert Counter(chain(*shards[0], *shards[1])).most_common(3) == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]  # to fill the last batch


@pytest.mark.slow
def test_accelerate_is_killed_and_goes_on_with_one_rank_more(run, recipe, whole, tmp_path):
    killed = run(recipe("accelerate"), model=MODEL, n_ranks=2, PAUSE_S="0.05")
    killed.kill_after(random.randrange(4, 15))  # of 16 steps
    last = max((tmp_path / "checkpoints").glob("*[0-9]"))
    state = torch.load(last / "custom_checkpoint_0.pkl")
    n_saved = state["epoch"] * 61 + state["position"]
    before = killed.delivered(n_saved)
    assert before == whole[:n_saved] != []

    resumed = run(recipe("accelerate"), model=MODEL, n_ranks=3).wait()
    assert len(resumed.ranks) == 3
    assert before + resumed.delivered() == whole, state


@pytest.mark.slow
def test_the_trainer_of_hugging_face_goes_on_exactly(run, recipe, batches, whole, tmp_path):
    text = recipe("hugging face trainer")
    killed = run(text, model=KEYWORDS_MODEL, n_ranks=2, PAUSE_S="0.1")
    killed.kill_after(random.choice([5, 8, 11, 14]))  # of 16 steps; the Trainer is not saving then
    last = max(int(folder.name.split("-")[1]) for folder in (tmp_path / "checkpoints").glob("checkpoint-*"))
    resumed = run(text, model=KEYWORDS_MODEL, n_ranks=2).wait()
    assert len(resumed.ranks) == 2
    n_saved = sum(map(len, batches[: 2 * last]))  # a step is a batch on each rank
    assert killed.delivered(n_saved) + resumed.delivered() == whole, last
