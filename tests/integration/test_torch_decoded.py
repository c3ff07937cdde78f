"""The decoded cache: the same tensors from the second reading on, whoever read first, and never wrong ones."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pqindex
from pqindex import caches
from pqindex.errors import UsageError
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader
from pqindex.torch.decoded import PqindexCacheWarning


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PQINDEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "_SHARED_MEMORY", str(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    return tmp_path / "cache"


def write(path: Path, scale: float = 1.0) -> None:
    lengths = np.random.default_rng(1).integers(1, 40, 60)
    ids = np.repeat(np.arange(60), lengths)
    random_ = np.random.default_rng(2)
    table = pa.table(
        {
            "seq_id": ids,
            "f0": (random_.normal(size=len(ids)) * scale).astype(np.float32),
            "f1": pa.array([None if i % 11 == 3 else float(i) for i in range(len(ids))]),
            "n": random_.integers(0, 9, len(ids)),
            "name": [f"n{i}" for i in ids],
            "pair": pa.array([[1.0, float(i)] for i in range(len(ids))], pa.list_(pa.float32(), 2)),
        }
    )
    pq.write_table(table, path, row_group_size=200)


@pytest.fixture
def manifest(tmp_path: Path) -> pqindex.Manifest:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.parquet")
    selection = pqindex.build(tmp_path / "data").select(
        "SELECT seq_id, row_count % 3 AS fold FROM index ORDER BY hash(seq_id)"
    )
    return selection.pin(tmp_path / "m.manifest.parquet")


OPTIONS: dict[str, Any] = {
    "fields": {"x": ["f0", "f1", "pair"], "n": "n", "b": ["n"]},
    "dtype": {"n": None, "b": torch.bfloat16},
    "nulls": {"x": ("fill", -1.0)},
}


def equal(one: Any, other: Any) -> bool:
    assert one.keys() == other.keys()
    return all(
        torch.equal(value, other[name]) and value.dtype == other[name].dtype
        if isinstance(value, torch.Tensor)
        else value == other[name]
        for name, value in one.items()
    )


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_items_are_the_same_and_are_read_once(manifest: pqindex.Manifest, kind: Any) -> None:
    plain = SequenceDataset(manifest, **OPTIONS)
    cached = SequenceDataset(manifest, cache=kind, **OPTIONS)
    for _ in range(2):
        assert all(equal(cached[i], plain[i]) for i in range(60))
        assert all(
            equal(a, b)
            for a, b in zip(cached.__getitems__([5, -1, 5]), plain.__getitems__([5, -1, 5]), strict=True)
        )
    assert cached._reader.stats()["reads"] == 60
    again = SequenceDataset(manifest, cache=kind, **OPTIONS)
    assert all(equal(again[i], plain[i]) for i in range(60))
    assert again._reader.stats()["reads"] == 0
    item = again[3]
    item["x"][:] = 99  # the user's own memory
    assert equal(again[3], plain[3])


def test_a_transform_comes_after_the_cache(manifest: pqindex.Manifest) -> None:
    first = SequenceDataset(manifest, cache="disk", transform=double, **OPTIONS)
    assert equal(first[0], first[0])
    assert torch.equal(first[0]["n"], SequenceDataset(manifest, cache="disk", **OPTIONS)[0]["n"] * 2)


def double(item: Any) -> Any:
    item["n"] = item["n"] * 2
    return item


def test_other_fields_policies_and_data_have_files_of_their_own(
    manifest: pqindex.Manifest, cache: Path, tmp_path: Path
) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"dtype": {"n": torch.float64, "b": torch.bfloat16}},
        {"nulls": {"x": ("fill", -2.0)}},
        {"fields": {"x": ["f1", "f0", "pair"], "n": "n", "b": ["n"]}},
        {"lossy": True},
    ]
    paths = {SequenceDataset(manifest, cache="disk", **(OPTIONS | change))._cache.path for change in changes}  # type: ignore[union-attr]
    assert len(paths) == len(changes)
    SequenceDataset(manifest, cache="disk", **OPTIONS)[0]
    path = tmp_path / "data" / "a.parquet"
    os.utime(path, ns=(1, 1))  # as far as anybody can tell, other data
    changed = SequenceDataset(manifest, cache="disk", **OPTIONS)
    assert changed._cache is not None
    assert changed._cache.n_filled == 0
    assert [file.kind for file in caches.cache_files(["decoded"])] == ["decoded"] * (len(changes) + 1)


def test_only_so_many_bytes_are_kept(manifest: pqindex.Manifest) -> None:
    plain = SequenceDataset(manifest, **OPTIONS)
    row_nbytes = plain.item_nbytes(0) // int(plain.row_counts[0])
    limit = int(plain.row_counts[:10].sum()) * row_nbytes + 1
    cached = SequenceDataset(manifest, cache="disk", cache_bytes=limit, **OPTIONS)
    cached.warm()
    assert cached._cache is not None
    assert (cached._cache.n_kept, cached._cache.n_filled) == (10, 10)
    assert all(equal(cached[i], plain[i]) for i in range(60))
    none = SequenceDataset(manifest, cache="disk", cache_bytes=1, **OPTIONS)
    none.warm()
    assert equal(none[0], plain[0])


def test_warming_reads_what_is_missing_and_says_how_far_it_is(
    manifest: pqindex.Manifest, tmp_path: Path
) -> None:
    cached = SequenceDataset(manifest, cache="disk", cache_dir=tmp_path / "here", **OPTIONS)
    cached[7]
    told: list[tuple[int, int]] = []
    cached.warm(progress=lambda done, total: told.append((done, total)), batch_size=25)
    assert told == [(25, 60), (50, 60), (60, 60)]
    assert cached._reader.stats()["reads"] == 60
    cached.warm()
    assert cached._reader.stats()["reads"] == 60
    assert len(os.listdir(tmp_path / "here")) == 1


def test_what_cannot_be_is_refused(manifest: pqindex.Manifest, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="field 'name' is text, and a cache needs fields of known sizes"):
        SequenceDataset(manifest, fields={"name": "name"}, cache="disk")
    with pytest.raises(UsageError, match="cache='ram' is not known"):
        SequenceDataset(manifest, cache="ram", **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match='cache_dir is given with cache="memory"'):
        SequenceDataset(manifest, cache="memory", cache_dir=tmp_path, **OPTIONS)
    with pytest.raises(UsageError, match="belong to a cache"):
        SequenceDataset(manifest, cache_bytes=5, **OPTIONS)
    with pytest.raises(UsageError, match="no cache to warm"):
        SequenceDataset(manifest, **OPTIONS).warm()


@pytest.mark.parametrize("how", ["workers", "threads"])
def test_workers_and_threads_fill_one_file(manifest: pqindex.Manifest, how: str) -> None:
    cached = SequenceDataset(manifest, cache="disk", **OPTIONS)
    assert len(pickle.dumps(cached)) < 10_000
    plan = BatchPlan(manifest, 4, shuffle="full")
    plain = SequenceLoader(SequenceDataset(manifest, **OPTIONS), plan)
    options: dict[str, Any] = {"num_workers": 2} if how == "workers" else {"num_threads": 2}
    loader = SequenceLoader(cached, plan, **options)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for one, other in zip(loader, plain, strict=True):
            assert equal(one, other)
    assert cached._cache is not None
    assert cached._cache.n_filled == 60


FILL = """
import sys
import torch, pqindex
from pqindex.torch import SequenceDataset

manifest = pqindex.load_manifest(sys.argv[1])
dataset = SequenceDataset(manifest, {"x": ["f0", "f1", "pair"]}, nulls=("fill", -1.0), cache="disk")
print("go", flush=True)
order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(int(sys.argv[2]))).tolist()
while True:
    for position in order:
        dataset.__getitems__([position])
    break
"""


@pytest.mark.slow
def test_fillers_killed_at_random_moments_leave_no_wrong_tensor(
    manifest: pqindex.Manifest, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"fields": {"x": ["f0", "f1", "pair"]}, "nulls": ("fill", -1.0)}
    plain = [SequenceDataset(manifest, **options)[i] for i in range(60)]
    n_filled = []
    for round_ in range(5):
        fillers = [
            subprocess.Popen(
                [sys.executable, "-c", FILL, str(tmp_path / "m.manifest.parquet"), str(2 * round_ + i)],
                stdout=subprocess.PIPE,
            )
            for i in range(2)
        ]
        for filler in fillers:
            assert filler.stdout is not None
            filler.stdout.readline()
        time.sleep(random.uniform(0, 0.01))
        for filler in fillers:
            filler.send_signal(signal.SIGKILL)
            filler.wait()
            assert filler.stdout is not None
            filler.stdout.close()
        cached = SequenceDataset(manifest, cache="disk", **options)
        assert cached._cache is not None
        n_filled.append(cached._cache.n_filled)
        for position in range(60):
            kept = cached._cache.load(position, int(cached.row_counts[position]))
            assert kept is None or all(
                torch.equal(value, plain[position][name]) for name, value in kept.items()
            )
    assert n_filled == sorted(n_filled)


FULL = """
import resource, signal, sys, warnings
import pqindex
from pqindex.torch import SequenceDataset

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
manifest = pqindex.load_manifest(sys.argv[1])
dataset = SequenceDataset(manifest, {"x": ["f0"]}, cache="disk")
plain = SequenceDataset(manifest, {"x": ["f0"]})
resource.setrlimit(resource.RLIMIT_FSIZE, (8192 + 300, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        for i in range(len(dataset)):
            assert dataset[i]["x"].equal(plain[i]["x"])
print([str(w.message)[:70] for w in caught])
print(0 < dataset._cache.n_filled < 60)
"""


def test_a_full_disk_is_said_once_and_training_goes_on(manifest: pqindex.Manifest, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "m.manifest.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "['the decoded cache takes no more, and training goes on without it: cann']",
        "True",
    ]
    assert issubclass(PqindexCacheWarning, UserWarning)
