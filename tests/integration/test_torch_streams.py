"""Windows and streams in real DataLoader workers: order, epochs that reach them, resume (rows T10, A10, A11, L20)."""

from __future__ import annotations

import json
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import pqindex
from pqindex.torch import (
    BatchPlan,
    SequenceDataset,
    SequenceLoader,
    SequenceStream,
    WindowDataset,
    collate_padded,
)

pytestmark = [
    # forking is what is tested: Python warns about it where the parent has threads
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    # three workers are what is tested, also on two cores
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker:UserWarning"),
    # torchdata 0.11 under torch 2.13
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

CONTEXTS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module")
def selection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams") / "data"
    folder.mkdir()
    for k in range(3):
        lengths = np.arange(10) % 6 + 2
        ids = np.repeat(np.arange(10) + 10 * k, lengths)
        step = np.concatenate([np.arange(n) for n in lengths])
        table = pa.table({"seq_id": ids, "step": step, "f0": ids * 100.0 + step})
        pq.write_table(table, folder / f"part-{k}.parquet", row_group_size=9)
    return pqindex.build(folder, order="step").select("SELECT seq_id FROM index ORDER BY seq_id")


@pytest.fixture
def sequences(selection) -> SequenceDataset:
    return SequenceDataset(selection, {"x": ["f0"]})


class Sequences:
    """What a plan over a dataset's sequences needs: the selection, without a fixture for it."""

    seed = None

    def __init__(self, dataset):
        self.n, self.digest = len(dataset), dataset.digest

    def __len__(self):
        return self.n


def planned(dataset, batch_size=4, **options) -> BatchPlan:
    source = dataset if isinstance(dataset, WindowDataset) else Sequences(dataset)
    return BatchPlan(
        source, batch_size, **{"shuffle": "full", "seed": 3, "rank": 0, "world_size": 1} | options
    )


def stream(dataset, **options) -> SequenceStream:
    return SequenceStream(dataset, planned(dataset, **options), collate_fn=collate_padded)


def loader(made, num_workers, context=None, **options) -> DataLoader:
    if num_workers:
        options |= {"multiprocessing_context": context, "persistent_workers": True}
    return DataLoader(made, batch_size=None, num_workers=num_workers, **options)


def first_values(batches) -> list[list[float]]:
    return [batch["x"][:, 0, 0].tolist() for batch in batches]


def alone(dataset, epoch=0, **options) -> list[list[float]]:
    """Return the first value of each item of each batch, read in this process by the plan."""
    plan = planned(dataset, **options)
    plan.set_epoch(epoch)
    if isinstance(dataset, WindowDataset):
        dataset.set_epoch(epoch)
    return first_values(collate_padded(dataset.__getitems__(positions)) for positions in plan)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_L20_a_stream_gives_the_plan_s_batches_with_any_workers(sequences, num_workers):
    made = stream(sequences)
    stock = loader(made, num_workers, "fork" if num_workers else None)
    assert first_values(stock) == alone(sequences)
    assert len(stock) == len(made) == 8


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_L20_a_stream_of_items_gives_the_plan_s_order_with_any_workers(sequences, num_workers):
    items = DataLoader(
        SequenceStream(sequences, planned(sequences)), batch_size=None, num_workers=num_workers
    )
    assert [item["x"][0, 0].item() for item in items] == list(chain.from_iterable(alone(sequences)))
    batched = DataLoader(
        SequenceStream(sequences, planned(sequences)),
        batch_size=7,
        num_workers=num_workers,
        collate_fn=collate_padded,
    )
    ids = list(chain.from_iterable(batch["seq_id"].tolist() for batch in batched))
    assert sorted(ids) == list(range(30))  # L16


@pytest.mark.parametrize("context", CONTEXTS)
def test_case_75_three_epochs_of_a_stream_reach_workers_that_live_on(sequences, context):
    made = stream(sequences)
    together = loader(made, 2, context)
    epochs = []
    for epoch in range(3):
        made.set_epoch(epoch)
        epochs.append(first_values(together))
        assert epochs[-1] == alone(sequences, epoch)
    assert len({str(epoch) for epoch in epochs}) == 3
    made.load_state_dict(made.state_dict(5))  # a state reaches them too
    assert first_values(together) == epochs[-1][5:]


def in_workers(ds, context, face):
    """Return a loader over drawn windows whose workers live on, and what sets its epoch."""
    plan = planned(ds)
    if face == "stream":
        streamed = SequenceStream(ds, plan, collate_fn=collate_padded)
        return loader(streamed, 2, context), [streamed.set_epoch]
    stock = DataLoader(
        ds,
        batch_sampler=plan,
        collate_fn=collate_padded,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    return stock, [ds.set_epoch, plan.set_epoch]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("face", ["map", "stream"])
def test_three_epochs_of_drawn_windows_reach_workers_that_live_on(selection, context, face):
    ds = WindowDataset(selection, {"x": ["f0"]}, length=2, draw=30, seed=5)
    reference = WindowDataset(selection, {"x": ["f0"]}, length=2, draw=30, seed=5)
    made, set_epochs = in_workers(ds, context, face)
    windows = []
    for epoch in range(3):
        for set_epoch in set_epochs:
            set_epoch(epoch)
        found = first_values(made)
        assert found == alone(reference, epoch)
        windows.append(sorted(chain.from_iterable(found)))
    assert windows[0] != windows[1] != windows[2]  # other windows, and not only another order


@pytest.mark.parametrize("face", ["map", "stream"])
def test_an_epoch_that_was_left_in_the_middle_does_not_reach_into_the_next(selection, face):
    ds = WindowDataset(selection, {"x": ["f0"]}, length=2, draw=60, seed=5)
    reference = WindowDataset(selection, {"x": ["f0"]}, length=2, draw=60, seed=5)
    together, set_epochs = in_workers(ds, "fork", face)
    for epoch in range(4):
        for set_epoch in set_epochs:
            set_epoch(epoch)
        assert first_values(islice(iter(together), 2)) == alone(reference, epoch)[:2]


@pytest.mark.parametrize("options", [{"stride": 1}, {"partial": "pad"}, {"partial": "keep"}])
def test_A10_A11_windows_are_read_by_workers_as_by_the_parent(selection, options):
    ds = WindowDataset(selection, {"x": ["f0"]}, length=4, **options)
    expected = alone(ds)
    for num_workers, context in ((1, "spawn"), (2, "fork")):
        made = DataLoader(
            ds,
            batch_sampler=planned(ds),
            collate_fn=collate_padded,
            num_workers=num_workers,
            multiprocessing_context=context,
        )
        assert first_values(made) == expected


def test_T10_a_stream_is_resumed_by_what_was_delivered_with_other_workers(sequences):
    whole = alone(sequences)
    for k in (1, 4):
        made = stream(sequences)
        iterator = iter(loader(made, 2, "fork"))
        assert first_values(islice(iterator, k)) == whole[:k]
        state = json.loads(json.dumps(made.state_dict(k)))
        del iterator
        for num_workers in (0, 1):
            resumed = stream(sequences)
            resumed.load_state_dict(state)
            assert first_values(loader(resumed, num_workers, "fork" if num_workers else None)) == whole[k:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("items", [False, True])
def test_T10_torchdata_s_loader_resumes_a_stream(sequences, num_workers, items):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def made() -> tuple[SequenceStream, torch.utils.data.DataLoader]:
        collate = None if items else collate_padded
        new = SequenceStream(sequences, planned(sequences), collate_fn=collate)
        options = {"multiprocessing_context": "fork", "persistent_workers": True} if num_workers else {}
        return new, stateful.StatefulDataLoader(new, batch_size=None, num_workers=num_workers, **options)

    def values(found) -> list:
        return [x["x"].tolist() for x in found]

    reference, first = made()
    reference.set_epoch(1)
    whole = values(first)
    for k in (0, 1, 4, len(whole)):
        interrupted, one = made()
        interrupted.set_epoch(1)
        iterator = iter(one)
        assert values(islice(iterator, k)) == whole[:k]
        state = one.state_dict()
        del iterator
        resumed, other = made()
        other.load_state_dict(state)
        assert values(other) == whole[k:]
        resumed.set_epoch(2)
        assert len(values(other)) == len(whole)
        assert resumed.epoch == 2


# -- what a window costs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_sequences(tmp_path_factory):
    """Two sequences of 20,000 rows, each a row group, in small pages."""
    folder = tmp_path_factory.mktemp("long") / "data"
    folder.mkdir()
    n = 20_000
    values = np.random.default_rng(0).normal(size=(2, n))
    tables = [pa.table({"seq_id": [i] * n, "step": np.arange(n), "f0": values[i]}) for i in range(2)]
    with pq.ParquetWriter(
        folder / "a.parquet",
        tables[0].schema,
        data_page_size=8 << 10,
        write_batch_size=256,
        use_dictionary=False,
    ) as writer:
        for table in tables:
            writer.write_table(table)
    return folder


def test_windows_of_long_sequences_go_over_the_selection_without_loss(long_sequences):
    selection = pqindex.build(long_sequences, order="step", pages="always").select()
    ds = WindowDataset(selection, {"x": "f0"}, length=512, partial="keep", dtype=torch.float64)
    read = torch.cat([item["x"] for item in ds]).numpy()
    assert (read == np.random.default_rng(0).normal(size=(2, 20_000)).ravel()).all()


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"num_threads": 2}])
def test_a_sequence_loader_takes_windows_and_tells_them_the_epoch(selection, how):
    dataset = WindowDataset(selection, {"x": ["f0"]}, length=2, draw=40, seed=5)
    plan = BatchPlan(dataset, 8, rank=0, world_size=1)
    made = SequenceLoader(dataset, plan, **how)
    seen = []
    for epoch in range(3):
        made.set_epoch(epoch)
        dataset.set_epoch(epoch)
        expected = [dataset[i]["x"][0, 0].item() for i in range(40)]
        batches = list(made)
        assert list(chain.from_iterable(first_values(batches))) == expected
        seen.append(expected)
        plan.delivered(batches[2])
        assert plan.state_dict() == plan.state_dict(delivered=3)
    assert len({tuple(values) for values in seen}) == 3


def test_windows_with_pages_read_their_pages_only(tmp_path):
    (tmp_path / "data").mkdir()
    n = 20_000
    table = pa.table({"seq_id": np.zeros(n, np.int64), "x": np.random.default_rng(0).normal(size=n)})
    pq.write_table(
        table,
        tmp_path / "data" / "a.parquet",
        use_dictionary=False,
        data_page_size=4096,
        write_batch_size=256,
    )
    selection = pqindex.build(tmp_path / "data", pages="always").select()
    dataset = WindowDataset(selection, {"x": "x"}, length=64)
    for number in (0, 100, 250):
        expected = table.column("x")[number * 64 : number * 64 + 64].to_pylist()
        assert dataset[number]["x"].tolist() == torch.tensor(expected).tolist()
    stats = dataset._sequences._reader.stats()
    assert (stats["page_reads"], stats["groups"]) == (3, 0)
    assert stats["bytes"] < 0.1 * (tmp_path / "data" / "a.parquet").stat().st_size
