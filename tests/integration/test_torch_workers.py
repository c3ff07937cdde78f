"""Real DataLoader workers, by fork, spawn and forkserver (rows A10 to A12, L16, L20, T10, T24, cases 63 and 75)."""

from __future__ import annotations

import json
from functools import partial
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import pqindex
from pqindex.errors import NonFiniteError
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader, collate_padded

N = 60

# forking is what is tested: Python warns about it where the parent has threads
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def selection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers") / "data"
    folder.mkdir()
    for k in range(4):
        lengths = np.arange(15) % 5 + 2
        ids = np.repeat(np.arange(15) + 15 * k, lengths)
        step = np.concatenate([np.arange(n) for n in lengths])
        table = pa.table({"seq_id": ids, "step": step, "f0": ids * 100.0 + step, "f1": step * 0.5})
        pq.write_table(table, folder / f"part-{k}.parquet", row_group_size=9)
    return pqindex.build(folder, order="step").select(
        "SELECT seq_id, row_count AS n FROM index ORDER BY seq_id"
    )


@pytest.fixture
def dataset(selection) -> SequenceDataset:
    return SequenceDataset(selection, {"x": ["f0", "f1"]}, max_open_files=2)


def loader(dataset, selection, num_workers, *, shuffle="full", **options) -> SequenceLoader:
    plan = BatchPlan(selection, 4, shuffle=shuffle, seed=3, rank=0, world_size=1)
    return SequenceLoader(dataset, plan, num_workers=num_workers, **options)


def ids(batches) -> list[list[int]]:
    return [batch["seq_id"].tolist() for batch in batches]


def check_same(batches, expected) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in other)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_L20_A10_A11_A12_workers_give_the_plan_s_batches_however_they_are_started(
    dataset, selection, context
):
    expected = list(loader(dataset, selection, 0))  # and so the parent has read, and has files open
    assert sorted(chain.from_iterable(ids(expected))) == list(range(N))  # L16
    made = loader(dataset, selection, 2, multiprocessing_context=context)
    check_same(list(made), expected)
    opens = dataset._reader.stats()["opens"]
    made.set_epoch(1)  # the same workers: persistent
    second = list(made)
    assert ids(second) != ids(expected)
    assert sorted(chain.from_iterable(ids(second))) == list(range(N))
    assert dataset._reader.stats()["opens"] == opens  # L17: files are opened in the workers


def test_case_75_three_epochs_with_persistent_workers(dataset, selection):
    alone, together = loader(dataset, selection, 0), loader(dataset, selection, 2)
    epochs = []
    for epoch in range(3):
        alone.set_epoch(epoch)
        together.set_epoch(epoch)
        epochs.append(ids(together))
        assert epochs[-1] == ids(alone)
    assert len({str(epoch) for epoch in epochs}) == 3


def test_a_plan_is_a_batch_sampler_of_the_stock_data_loader(dataset, selection):
    plan = BatchPlan(selection, 4, shuffle="full", seed=3, rank=0, world_size=1)
    stock = DataLoader(dataset, batch_sampler=plan, collate_fn=collate_padded, num_workers=2)
    assert len(stock) == 15
    check_same(list(stock), list(loader(dataset, selection, 0)))


def test_T10_batches_that_workers_fetched_ahead_are_not_counted_and_resume_takes_other_workers(
    dataset, selection
):
    whole = ids(loader(dataset, selection, 0))
    for k in (1, 7):
        interrupted = loader(dataset, selection, 2)
        iterator = iter(interrupted)
        assert ids(islice(iterator, k)) == whole[:k]
        state = json.loads(json.dumps(interrupted.state_dict()))
        assert state["position"] == 4 * k
        del iterator, interrupted
        for num_workers in (0, 1):
            resumed = loader(dataset, selection, num_workers)
            resumed.load_state_dict(state)
            assert ids(resumed) == whole[k:]
            resumed.set_epoch(1)  # case 78
            assert len(ids(resumed)) == len(whole)


def _with_noise(item):
    return item | {"noise": torch.rand(())}


def test_T24_workers_draw_different_random_numbers_and_the_order_does_not_hang_on_them(selection):
    dataset = SequenceDataset(selection, {"x": ["f0"]}, transform=_with_noise)
    noise = {}
    for num_workers in (0, 2):
        torch.manual_seed(0)
        options = {"multiprocessing_context": "fork"} if num_workers else {}
        batches = list(loader(dataset, selection, num_workers, **options))
        assert ids(batches) == ids(loader(dataset, selection, 0))
        noise[num_workers] = torch.cat([batch["noise"] for batch in batches])
        assert len(noise[num_workers].unique()) == N


def test_options_of_collate_by_partial_go_to_spawned_workers(dataset, selection):
    collate = partial(collate_padded, padding_value=-1, side="left", multiple_of=8)
    made = loader(dataset, selection, 1, multiprocessing_context="spawn", collate_fn=collate)
    # All of them: a spawned worker that is stopped in the middle of a batch may abort inside torch.
    for batch in made:
        assert batch["x"].shape[1] == 8
        assert (batch["x"][~batch["mask"]] == -1).all()


def test_L12_an_error_in_a_worker_reaches_the_loop_with_its_type_and_facts(selection, tmp_path):
    table = pa.table({"seq_id": [1, 1, 2, 2], "f0": [0.0, 1.0, 2.0, float("nan")]})
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "a.parquet")
    bad = pqindex.build(tmp_path / "data").select("SELECT seq_id FROM index")
    plan = BatchPlan(bad, 1, rank=0, world_size=1)
    made = SequenceLoader(SequenceDataset(bad, {"x": ["f0"]}), plan, num_workers=1)
    iterator = iter(made)
    assert next(iterator)["seq_id"].tolist() == [1]
    with pytest.raises(NonFiniteError, match="field 'x', column 'f0', sequence 2, row 1; found nan"):
        next(iterator)


def test_case_84_sequences_are_split_and_not_files(tmp_path):
    (tmp_path / "data").mkdir()
    ids = np.repeat(np.arange(8), 2)
    pq.write_table(pa.table({"seq_id": ids, "f0": ids * 1.0}), tmp_path / "data" / "one.parquet")
    one_file = pqindex.build(tmp_path / "data").select("SELECT seq_id FROM index")
    dataset = SequenceDataset(one_file, {"x": "f0"}, transform=_worker)
    plan = BatchPlan(one_file, 1, rank=0, world_size=1)
    made = SequenceLoader(dataset, plan, num_workers=2, multiprocessing_context="fork")
    assert [int(batch["worker"]) for batch in made] == [0, 1] * 4


def _worker(item):
    info = torch.utils.data.get_worker_info()
    return item | {"worker": -1 if info is None else info.id}
