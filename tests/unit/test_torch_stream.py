"""SequenceStream in one process: order, shares, epochs, state, refusals. Real workers are in tests/integration."""

from __future__ import annotations

import json
import pickle
from itertools import chain, zip_longest

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from pqindex.errors import PlanError, UsageError
from pqindex.torch import BatchPlan, SequenceStream
from pqindex.torch.stream import StreamIterator


class Numbers:
    """A dataset whose items are their own positions."""

    seed = None

    def __init__(self, n=23, digest="d" * 64):
        self.n = n
        self.digest = digest
        self.asked = []

    def __len__(self):
        return self.n

    def __getitems__(self, positions):
        self.asked.append(list(positions))
        return list(positions)


class Drawn(Numbers):
    """A dataset that draws by epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitems__(self, positions):
        return [(self.epoch, position) for position in positions]


def planned(n=23, batch_size=4, **options) -> BatchPlan:
    return BatchPlan(Numbers(n), batch_size, **{"shuffle": "full", "rank": 0, "world_size": 1} | options)


def stream(plan=None, *, items=False, dataset=None) -> SequenceStream:
    plan = plan or planned()
    dataset = dataset or Numbers(plan.n_sequences)
    return SequenceStream(dataset, plan, collate_fn=None if items else list)


def shares(plan, n_workers, *, items=False, yielded=None):
    """Return what each worker yields, the way that a DataLoader splits it."""
    found = []
    for worker in range(n_workers):
        iterator = StreamIterator(
            plan, Numbers(plan.n_sequences), None if items else list, worker=worker, n_workers=n_workers
        )
        if yielded is not None:
            iterator.load_state_dict({"yielded": yielded[worker], "worker": worker, "n_workers": n_workers})
        found.append(list(iterator))
    return found


def in_turn(parts) -> list:
    """Return what a loader yields that asks its workers in turn."""
    return [x for turn in zip_longest(*parts) for x in turn if x is not None]


def test_batches_and_items_are_those_of_the_plan():
    plan = planned()
    assert list(stream(plan)) == list(plan)
    assert list(stream(plan, items=True)) == list(chain.from_iterable(plan))
    assert len(stream(plan)) == 6
    assert len(stream(plan, items=True)) == 23


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_L16_workers_in_turn_give_the_plan_s_order(n_workers, world_size):
    everything = []
    for rank in range(world_size):
        plan = planned(rank=rank, world_size=world_size)
        assert in_turn(shares(plan, n_workers)) == list(plan)
        assert in_turn(shares(plan, n_workers, items=True)) == list(chain.from_iterable(plan))
        everything += chain.from_iterable(plan)
    assert sorted(everything) == list(range(23))


def test_items_of_a_batch_are_read_together_and_only_those_of_the_share():
    plan = planned(shuffle="none", batch_size=6)
    dataset = Numbers()
    assert list(StreamIterator(plan, dataset, None, worker=1, n_workers=4)) == [1, 5, 9, 13, 17, 21]
    assert dataset.asked == [[1, 5], [9], [13, 17], [21]]


def test_an_iteration_keeps_the_epoch_that_it_started_with():
    made = stream()
    first = list(made)
    iterator = iter(made)
    made.set_epoch(1)
    assert list(iterator) == first != list(made)


def test_set_epoch_goes_to_the_stream_and_not_to_the_plan_that_was_given():
    plan = planned()
    made = stream(plan)
    made.set_epoch(2)
    assert (made.epoch, plan.epoch) == (2, 0)
    plan.set_epoch(2)
    assert list(made) == list(plan)
    plan.set_epoch(3)
    assert made.epoch == 2
    with pytest.raises(UsageError, match="epoch=-1 makes no sense"):
        made.set_epoch(-1)


def test_a_stream_starts_where_its_plan_stands():
    plan = planned()
    plan.load_state_dict(plan.state_dict(2))
    assert list(stream(plan)) == list(planned())[2:]


def test_a_dataset_that_draws_is_told_the_epoch():
    plan = planned()
    plan.set_epoch(4)
    made = stream(plan, dataset=Drawn())
    assert {epoch for epoch, _ in chain.from_iterable(made)} == {4}
    made.set_epoch(5)
    assert {epoch for epoch, _ in chain.from_iterable(made)} == {5}
    state = made.state_dict(1)
    other = stream(dataset=Drawn())
    other.load_state_dict(state)
    assert {epoch for epoch, _ in chain.from_iterable(other)} == {5}


# -- in the workers of other datasets -------------------------------------------------------------------------


class Wrapped(IterableDataset):
    """What users write around a stream."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(self.inner)


class Whole(Dataset):
    """A map-style dataset that iterates a stream for each of its items."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return 2

    def __getitem__(self, i):
        assert get_worker_info() is not None
        return list(chain.from_iterable(self.inner))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_worker_of_another_dataset_nothing_is_lost_and_nothing_is_there_twice():
    loader = DataLoader(Wrapped(stream()), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [[int(i) for i in batch] for batch in loader] == list(planned())
    loader = DataLoader(Whole(stream()), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [sorted(int(i) for i in epoch) for epoch in loader] == [list(range(23))] * 2


# -- state ----------------------------------------------------------------------------------------------------


def test_T10_a_state_at_any_batch_is_the_plan_s_and_resumes_with_any_ranks():
    plan = planned(seed=5)
    whole = list(plan)
    for k in range(len(whole) + 1):
        state = json.loads(json.dumps(stream(plan).state_dict(k)))
        assert state == plan.state_dict(k)
        resumed = stream(planned(seed=5))
        resumed.load_state_dict(state)
        resumed.set_epoch(0)  # as the loop over epochs does
        assert (list(resumed), len(resumed)) == (whole[k:], len(whole) - k)
        resumed.set_epoch(1)  # case 78
        assert len(list(resumed)) == len(whole)
    rest = []
    state = stream(plan).state_dict(2)
    for rank in range(3):
        resumed = stream(planned(seed=5, rank=rank, world_size=3))
        resumed.load_state_dict(state)
        rest += chain.from_iterable(resumed)
    assert sorted(rest) == sorted(chain.from_iterable(whole[2:]))


def test_T10_a_second_resume_goes_on_from_the_first():
    whole = list(planned())
    first = stream()
    first.load_state_dict(first.state_dict(2))
    second = stream()
    second.load_state_dict(first.state_dict(1))
    assert list(second) == whole[3:]


def test_items_are_counted_up_to_whole_batches():
    made = stream(planned(n=10, batch_size=4, shuffle="none"), items=True)
    assert [made.state_dict(k)["position"] for k in (0, 4, 8, 10)] == [0, 4, 8, 10]
    with pytest.raises(
        UsageError,
        match="delivered=9 items end inside a batch of the plan; the batches around end at 8 and 10",
    ):
        made.state_dict(9)
    with pytest.raises(UsageError, match="the batches around end at 10"):
        made.state_dict(11)
    made.load_state_dict(made.state_dict(8))
    assert (list(made), len(made)) == ([8, 9], 2)


def test_a_state_of_other_items_is_refused_and_the_stream_stays_where_it_was():
    made = stream()
    made.set_epoch(1)
    other = BatchPlan(Numbers(digest="e" * 64), 4, shuffle="full", rank=0, world_size=1)
    with pytest.raises(PlanError, match="the state belongs to another selection"):
        made.load_state_dict(other.state_dict())
    assert made.epoch == 1


@pytest.mark.parametrize("items", [False, True])
def test_an_iterator_goes_on_after_what_its_worker_yielded(items):
    plan = planned()
    for n_workers in (1, 3):
        parts = shares(plan, n_workers, items=items)
        for k in range(4):
            yielded = [min(k + worker % 2, len(part)) for worker, part in enumerate(parts)]
            rest = shares(plan, n_workers, items=items, yielded=yielded)
            assert rest == [part[n:] for part, n in zip(parts, yielded, strict=True)]


def test_an_iterator_s_state_counts_what_was_yielded():
    iterator = iter(stream())
    assert iterator.state_dict() == {"yielded": 0, "worker": 0, "n_workers": 1}
    next(iterator), next(iterator)
    state = iterator.state_dict()
    assert state["yielded"] == 2
    other = iter(stream())
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert list(other) == list(planned())[2:]


def test_an_iterator_reads_nothing_again_of_what_was_yielded():
    dataset = Numbers()
    iterator = StreamIterator(planned(), dataset, None, worker=0, n_workers=1)
    iterator.load_state_dict({"yielded": 10, "worker": 0, "n_workers": 1})
    assert len(list(iterator)) == 13
    assert sum(map(len, dataset.asked)) == 13


def test_states_that_are_of_no_or_another_share_are_refused():
    iterator = iter(stream())
    with pytest.raises(
        UsageError, match=r"the state is of worker 1 of 2; expected worker 0 of 1.*same num_workers"
    ):
        iterator.load_state_dict({"yielded": 1, "worker": 1, "n_workers": 2})
    for state in (
        {},
        None,
        {"yielded": -1, "worker": 0, "n_workers": 1},
        {"yielded": "1", "worker": 0, "n_workers": 1},
    ):
        with pytest.raises(UsageError, match="not the state of a stream's iterator"):
            iterator.load_state_dict(state)


# -- refusals -------------------------------------------------------------------------------------------------


def test_a_plan_of_other_items_is_refused():
    with pytest.raises(
        PlanError, match=r"dataset and plan are of different items: 22, digest d+; and 23, digest d+"
    ):
        SequenceStream(Numbers(22), planned())
    with pytest.raises(PlanError, match=r"different items: 23, digest e+; and 23"):
        SequenceStream(Numbers(23, "e" * 64), planned())


def test_other_kinds_of_arguments_are_refused():
    with pytest.raises(UsageError, match="plan is a list"):
        SequenceStream(Numbers(), [[0]])
    with pytest.raises(UsageError, match="dataset is a list"):
        SequenceStream([0], planned())
    with pytest.raises(UsageError, match="collate_fn=3 cannot be called"):
        SequenceStream(Numbers(), planned(), collate_fn=3)


def test_a_loader_may_not_shuffle_it():
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(stream(), shuffle=True)


def test_what_it_says_of_itself():
    dataset = Numbers()
    made = SequenceStream(dataset, planned())
    assert made.dataset is dataset
    assert made.digest == planned().digest
    assert repr(made).startswith("SequenceStream(items of BatchPlan(23 sequences, 6 batches")
    assert repr(stream()).startswith("SequenceStream(batches of BatchPlan(")


def test_a_pickled_stream_stands_where_it_stood():
    made = stream()
    made.set_epoch(3)
    made.load_state_dict(made.state_dict(2))
    other = pickle.loads(pickle.dumps(made))
    assert list(other) == list(made)
    made.set_epoch(4)
    assert other.epoch == 3
