"""The StatefulDataLoader of torchdata, with the recipe of docs/trainers.md (T10)."""

from __future__ import annotations

import random
import sys
from itertools import chain, islice
from types import SimpleNamespace

import pytest
import torch

pytestmark = [
    # forking is what torch does by default here: Python warns about it where the parent has threads
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # a call of torchdata's
]

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


@pytest.fixture
def make_loader(recipe, pinned, monkeypatch):
    """Return the recipe's own function: from a number of workers to a loader and its plan."""
    monkeypatch.chdir(pinned.parent)
    monkeypatch.setitem(
        sys.modules, "model", SimpleNamespace(Model=None)
    )  # what only the recipe's script needs
    names = {"__name__": "recipe"}
    exec(compile(recipe("torchdata"), "recipe.py", "exec"), names)
    return names["make_loader"]


def epoch_of(make_loader, epoch: int) -> list[list[int]]:
    _, plan = make_loader(0)
    plan.set_epoch(epoch)
    return list(plan)


def ids(batches) -> list[list[int]]:
    return [batch["seq_id"].tolist() for batch in batches]


def stopped(make_loader, epoch: int, n_batches: int, num_workers: int) -> dict:
    """Return the state after some batches of an epoch, as it comes from a file."""
    loader, plan = make_loader(num_workers)
    plan.set_epoch(epoch)
    iterator = iter(loader)
    assert ids(islice(iterator, n_batches)) == epoch_of(make_loader, epoch)[:n_batches]
    return loader.state_dict()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("n_batches", [1, 7, 16])
def test_T10_the_rest_of_the_epoch_and_the_next_one_come_exactly(
    n_batches, num_workers, make_loader, tmp_path
):
    torch.save(stopped(make_loader, 1, n_batches, num_workers), tmp_path / "state.pt")
    loader, plan = make_loader(num_workers)
    loader.load_state_dict(torch.load(tmp_path / "state.pt"))
    plan.set_epoch(1)
    assert ids(loader) == epoch_of(make_loader, 1)[n_batches:]
    plan.set_epoch(2)
    assert ids(loader) == epoch_of(make_loader, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_T10_a_second_resume_goes_on_from_the_first(num_workers, make_loader):
    whole = epoch_of(make_loader, 1)
    loader, plan = make_loader(num_workers)
    loader.load_state_dict(stopped(make_loader, 1, 5, num_workers))
    plan.set_epoch(1)
    assert ids(islice(iter(loader), 4)) == whole[5:9]
    again, plan = make_loader(num_workers)
    again.load_state_dict(loader.state_dict())
    plan.set_epoch(1)
    assert ids(again) == whole[9:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_T10_a_state_of_a_finished_epoch_goes_on_with_the_next(num_workers, make_loader):
    finished, plan = make_loader(num_workers)
    assert ids(finished) == epoch_of(make_loader, 0)
    loader, plan = make_loader(num_workers)
    loader.load_state_dict(finished.state_dict())
    seen = []
    for epoch in range(2):
        plan.set_epoch(epoch)
        seen.extend(ids(loader))
    assert seen == epoch_of(make_loader, 1)


def test_another_number_of_workers_is_refused_by_torchdata_itself(make_loader):
    state = stopped(make_loader, 0, 3, 2)
    loader, _ = make_loader(1)
    loader.load_state_dict(state)
    with pytest.raises(AssertionError):
        iter(loader)


def test_killed_at_a_random_step_and_resumed(run, recipe, make_loader, tmp_path):
    whole = list(chain(epoch_of(make_loader, 0), epoch_of(make_loader, 1)))
    killed = run(recipe("torchdata"), model=MODEL, PAUSE_S="0.02")
    killed.kill_after(random.randrange(4, 30))  # of 32 batches
    (before,) = killed.ranks
    (rest,) = run(recipe("torchdata"), model=MODEL).wait().ranks
    n_saved = len(whole) - len(rest)
    assert n_saved % 3 == 0 < n_saved
    assert len(before) - 3 <= n_saved <= len(before)  # the last state that can have been saved
    assert before[:n_saved] + rest == whole
