"""Plain torch: two ranks are killed at a random step and the run goes on with fewer and more ranks (T10 to T12, L16)."""

from __future__ import annotations

import random
import shutil
from itertools import chain

import pytest
import torch

import pqindex
from pqindex.torch import BatchPlan

pytestmark = pytest.mark.slow

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

POLICIES = {  # and the numbers of ranks that go on
    "batch_size": ({"batch_size": 4}, (1, 3)),
    "max_tokens": ({"max_tokens": 20}, (3,)),
}


def order(plan: BatchPlan) -> list[int]:
    """Two epochs of a plan of one rank; ids of this manifest are positions."""
    epochs = []
    for epoch in range(2):
        plan.set_epoch(epoch)
        epochs.extend(chain.from_iterable(plan))
    return epochs


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_at_a_random_step_and_resumed_by_fewer_and_by_more_ranks(
    policy, run, recipe, pinned, tmp_path
):
    options, resumed_by = POLICIES[policy]
    ((name, value),) = options.items()
    text = recipe("ddp", **{"batch_size=4": f"{name}={value}"})
    manifest = pqindex.load_manifest(pinned)
    whole = order(BatchPlan(manifest, **options, shuffle="full", rank=0, world_size=1))
    n_steps = len(BatchPlan(manifest, **options, shuffle="full", rank=0, world_size=2))

    killed = run(text, model=MODEL, n_ranks=2, PAUSE_S="0.05")
    killed.kill_after(random.randrange(4, 2 * n_steps - 2))
    checkpoint = tmp_path / "checkpoint.pt"
    state = torch.load(checkpoint)["loader"]
    n_saved = state["epoch"] * 61 + state["position"]
    before = killed.delivered(n_saved)
    assert before == whole[:n_saved] != []

    shutil.copy(checkpoint, tmp_path / "kept.pt")
    for n_ranks in resumed_by:
        shutil.copy(tmp_path / "kept.pt", checkpoint)
        resumed = run(text, model=MODEL, n_ranks=n_ranks).wait()
        assert len({len(rank) for rank in resumed.ranks}) == 1
        assert len(resumed.ranks) == n_ranks
        rest = resumed.delivered()
        # from the saved state on, nothing is left out, nothing comes twice, and the order is the plan's
        assert before + rest == whole, (n_ranks, state)
