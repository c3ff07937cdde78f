"""check_resumable: an honest loader passes at every batch, and each way of being wrong is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.errors import PlanError, UsageError
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader, check_resumable, resumable


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> pqindex.Manifest:
    folder = tmp_path_factory.mktemp("resumable")
    lengths = np.random.default_rng(0).integers(1, 30, 23)
    ids = np.repeat(np.arange(23), lengths)
    (folder / "data").mkdir()
    pq.write_table(pa.table({"seq_id": ids, "f0": ids.astype(np.float32)}), folder / "data" / "a.parquet")
    return pqindex.build(folder / "data").select().pin(folder / "m.manifest.parquet")


def loader_of(manifest: pqindex.Manifest, kind: type[SequenceLoader] = SequenceLoader, **options: Any) -> Any:
    def make(num_workers: int, rank: int, world_size: int) -> SequenceLoader:
        plan = BatchPlan(
            manifest, shuffle="full", seed=3, rank=rank, world_size=world_size, tail="short", **options
        )
        dataset = SequenceDataset(manifest, fields={"x": ["f0"]})
        return kind(dataset, plan, num_workers=num_workers, persistent_workers=False)

    return make


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"max_tokens": 90}])
def test_T10_every_batch_can_be_resumed_on_other_ranks(manifest: pqindex.Manifest, options: Any) -> None:
    report = check_resumable(loader_of(manifest, **options), num_workers=(0,), world_sizes=(1, 2, 3))
    assert report.n_batches >= 6
    assert report.n_resumes == 3 * (report.n_batches + 1)
    report = check_resumable(loader_of(manifest, **options), num_workers=(0,), world_sizes=(2, 1), epoch=4)
    assert report.n_resumes == 2 * (report.n_batches + 1)


def test_T10_with_other_workers(manifest: pqindex.Manifest) -> None:
    report = check_resumable(loader_of(manifest, batch_size=4), num_workers=(2, 0, 1), stride=3)
    assert report.n_resumes == 3 * 3


class CountsWhatIsFetched(SequenceLoader):
    def state_dict(self) -> dict[str, Any]:
        return self.plan.state_dict(min(self._delivered + 2, len(self.plan)))


class ForgetsThePlace(SequenceLoader):
    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.plan.set_epoch(self.plan.epoch + 1)


class ForgetsTheEpoch(SequenceLoader):
    def set_epoch(self, epoch: int) -> None:
        pass


class NeverTheSame(SequenceLoader):
    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(int(np.random.default_rng().integers(1 << 40)))


class NoJson(SequenceLoader):
    def state_dict(self) -> Any:
        return {"x": {1, 2}}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (CountsWhatIsFetched, r"a resumed epoch differs: saved after 0 of 6 steps on 1 ranks with 0 workers"),
        (ForgetsThePlace, r"saved after 1 of 6 steps.*step 0 after it"),
        (ForgetsTheEpoch, r"a resumed epoch differs"),
        (NeverTheSame, r"an epoch is not the same twice|a resumed epoch differs"),
        (NoJson, r"the state cannot be written as JSON"),
    ],
)
def test_a_loader_that_is_wrong_is_found(
    manifest: pqindex.Manifest, kind: type[SequenceLoader], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        check_resumable(loader_of(manifest, kind, batch_size=4), num_workers=(0,))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([[[1, 2]], [[4]]], r"here: missing \[3\], too often \[\]"),
        ([[[1, 2], [3, 4]], [[2]]], r"here: missing \[\], too often \[2, 2\]"),
        ([[[2, 1], [3, 4]]], r"here: in another order; expected \[1, 2, 3, 4\], found \[2, 1, 3, 4\]"),
    ],
)
def test_missing_and_repeated_ids_are_named(found: Any, says: str) -> None:
    resumable._compare([[[1, 2]], [[3, 4]]], [[[1], [2]], [[3], [4]]], same_ranks=False, where="here")
    with pytest.raises(PlanError, match=says):
        resumable._compare([[[1, 2]], [[3, 4]]], found, same_ranks=False, where="here")


def test_other_batches_need_a_way_to_their_ids(manifest: pqindex.Manifest) -> None:
    def make(**where: int) -> Any:
        loader = loader_of(manifest, batch_size=8)(**where)
        loader.collate_fn = list
        return loader

    with pytest.raises(UsageError, match="a batch has no 'seq_id': list"):
        check_resumable(make, num_workers=(0,))
    report = check_resumable(make, num_workers=(0,), ids=lambda batch: [item["seq_id"] for item in batch])
    assert report.n_batches == 3
    with pytest.raises(UsageError, match="at least one number each"):
        check_resumable(make, num_workers=())
