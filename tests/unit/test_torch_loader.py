"""SequenceLoader: a DataLoader that cannot drift from its plan, and that counts what it delivered."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

import pqindex.torch.dataset
from pqindex.errors import PlanError, UsageError
from pqindex.pieces import Piece, Round
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader


class Source:
    """n sequences in memory, of 1, 2, 3, 1, 2, 3, ... rows."""

    seed = None
    read_plan = None  # what tells a selection

    def __init__(self, n, digest="d" * 64):
        self.n = n
        self.digest = digest

    def __len__(self):
        return self.n


class Reader:
    """The protocol of `pqindex.Reader`, in memory."""

    def __init__(self, source, columns, *, max_open_files, staleness):
        self.schema = pa.schema([(name, pa.float64()) for name in columns])
        self.seq_ids = pa.array(np.arange(source.n) + 100)
        self.row_counts = np.arange(source.n) % 3 + 1
        self.extra = pa.table({"label": np.arange(source.n)})
        self.digest = source.digest

    def __len__(self):
        return len(self.seq_ids)

    def fetch_rows(self, requests):
        """Nothing to decode: every sequence is kept as a table."""
        return [
            Round(
                [],
                [
                    (Piece(i, start, stop, number, 0), pa.table({"f": np.full(stop - start, float(i))}))
                    for number, (i, start, stop) in enumerate(requests)
                ],
            )
        ]


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch):
    monkeypatch.setattr(pqindex.torch.dataset, "Reader", Reader)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def loader(n=10, batch_size=4, *, source=None, loader_options=None, **options) -> SequenceLoader:
    source = source or Source(n)
    dataset = SequenceDataset(source, {"x": ["f"]})
    return SequenceLoader(dataset, BatchPlan(source, batch_size, **options), **(loader_options or {}))


def ids(batches) -> list[list[int]]:
    return [batch["seq_id"].tolist() for batch in batches]


def test_batches_are_those_of_the_plan_padded():
    batches = list(loader())
    assert ids(batches) == [[100, 101, 102, 103], [104, 105, 106, 107], [108, 109]]
    assert batches[0]["x"].shape == (4, 3, 1)
    assert batches[0]["x"][:, :, 0].tolist() == [[0, 0, 0], [1, 1, 0], [2, 2, 2], [3, 0, 0]]
    assert batches[0]["lengths"].tolist() == [1, 2, 3, 1]
    assert batches[0]["label"].tolist() == [0, 1, 2, 3]


def test_len_is_the_plan_s():
    assert len(loader()) == 3
    assert len(loader(rank=1, world_size=3, batch_size=1, tail="short")) == 3


def test_the_plan_is_the_batch_sampler():
    made = loader()
    assert made.batch_sampler is made.plan
    assert made.batch_sampler.sampler is made.plan


def test_case_75_set_epoch_changes_the_order():
    made = loader(shuffle="full")
    epochs = []
    for epoch in range(3):
        made.set_epoch(epoch)
        assert made.plan.epoch == epoch
        epochs.append(ids(made))
    assert len({str(batches) for batches in epochs}) == 3
    made.set_epoch(1)
    assert ids(made) == epochs[1]


def test_a_collate_function_of_one_s_own():
    made = loader(loader_options={"collate_fn": len})
    assert list(made) == [4, 4, 2]


@pytest.mark.parametrize("name", ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"])
def test_arguments_that_the_plan_decides_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} is given to a SequenceLoader, whose plan decides about it"):
        loader(loader_options={name: 1})


def test_T15_a_plan_of_another_selection_is_refused():
    dataset = SequenceDataset(Source(10, "a" * 64), {"x": "f"})
    with pytest.raises(
        PlanError, match=f"different selections: 10 sequences, digest {'a' * 64}; and 10 .*{'b' * 64}"
    ):
        SequenceLoader(dataset, BatchPlan(Source(10, "b" * 64)))


def test_a_plan_of_another_length_is_refused():
    with pytest.raises(PlanError, match=r"10 sequences.*and 11 sequences"):
        SequenceLoader(SequenceDataset(Source(10), {"x": "f"}), BatchPlan(Source(11)))


def test_other_kinds_of_plan_and_dataset_are_refused():
    plan = BatchPlan(Source(10))
    with pytest.raises(UsageError, match="plan is a list"):
        SequenceLoader(SequenceDataset(Source(10), {"x": "f"}), [[0]])
    with pytest.raises(UsageError, match="dataset is a list"):
        SequenceLoader([0], plan)


def test_case_84_workers_without_work_are_a_warning_in_the_parent():
    with pytest.warns(UserWarning, match="1 of 2 workers have nothing to do: the plan has 1 batches"):
        loader(n=4, loader_options={"num_workers": 2})


def test_workers_live_on_from_epoch_to_epoch_by_default():
    assert not loader().persistent_workers
    assert loader(loader_options={"num_workers": 1}).persistent_workers
    assert not loader(loader_options={"num_workers": 1, "persistent_workers": False}).persistent_workers


# -- state ----------------------------------------------------------------------------------------------------


def test_T10_the_state_is_exact_at_every_batch_and_resumes_anywhere():
    whole = ids(loader(20, 3, shuffle="full", seed=5))
    for k in range(len(whole) + 1):
        interrupted = loader(20, 3, shuffle="full", seed=5)
        iterator = iter(interrupted)
        seen = [next(iterator)["seq_id"].tolist() for _ in range(k)]
        state = json.loads(json.dumps(interrupted.state_dict()))
        resumed = loader(20, 3, shuffle="full", seed=5)
        resumed.load_state_dict(state)
        resumed.set_epoch(0)  # as the loop over epochs does
        assert len(resumed) == len(whole) - k
        assert seen + ids(resumed) == whole


def test_T10_a_state_taken_in_the_loop_counts_the_batch_of_the_loop():
    made = loader(20, 3)
    positions = [made.state_dict()["position"] for _ in made]
    assert positions == [3, 6, 9, 12, 15, 18, 20]


def test_T10_a_second_resume_goes_on_from_the_first():
    whole = ids(loader(20, 3))
    first = loader(20, 3)
    iterator = iter(first)
    next(iterator), next(iterator)
    second = loader(20, 3)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    iterator = iter(second)
    assert next(iterator)["seq_id"].tolist() == whole[2]
    third = loader(20, 3)
    third.load_state_dict(second.state_dict())
    assert ids(third) == whole[3:]


def test_a_state_taken_after_set_epoch_is_of_the_new_epoch_whoever_called_it():
    for go in (lambda made: made.set_epoch(1), lambda made: made.plan.sampler.set_epoch(1)):
        made = loader()
        assert len(ids(made)) == 3
        go(made)
        assert (made.state_dict()["epoch"], made.state_dict()["position"]) == (1, 0)


def test_a_new_pass_over_an_epoch_counts_anew():
    made = loader()
    assert len(ids(made)) == 3
    iterator = iter(made)
    assert made.state_dict()["position"] == 0
    next(iterator)
    assert made.state_dict()["position"] == 4


def test_case_78_the_epochs_after_a_resume_are_whole():
    made = loader(20, 3, shuffle="full")
    iterator = iter(made)
    for _ in range(5):
        next(iterator)
    resumed = loader(20, 3, shuffle="full")
    resumed.load_state_dict(made.state_dict())
    lengths = []
    for epoch in range(3):
        resumed.set_epoch(epoch)
        lengths.append(len(ids(resumed)))
    assert lengths == [2, 7, 7]


def test_a_state_of_another_selection_is_refused():
    with pytest.raises(PlanError, match="another selection"):
        loader(source=Source(10, "b" * 64)).load_state_dict(loader().state_dict())
