"""The decoded cache: the same tensors from the second reading on, whoever read first, and never wrong ones."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
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
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader, decoded
from pqindex.torch.decoded import PqindexCacheWarning

KILLS = int(os.environ.get("PQINDEX_TEST_KILLS", "12"))
"""How often each of two workers is killed."""


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


KILLED = """
import os, random, signal, sys, time
import torch, pqindex
from pqindex.torch import SequenceDataset

manifest, n_rounds = pqindex.load_manifest(sys.argv[1]), int(sys.argv[2])


def opened(**cache):
    return SequenceDataset(manifest, {"x": ["f0", "f1", "pair"], "n": "n"}, nulls={"x": ("fill", -1.0)}, **cache)


def start(dataset, seed):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        dataset = dataset or opened(cache="disk")
        for position in torch.randperm(60, generator=torch.Generator().manual_seed(seed)).tolist():
            dataset.__getitems__([position])
            if theirs:
                os.write(theirs, b"g")
                theirs = 0
        os._exit(0)
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    return child


plain = opened()
right = [plain[i] for i in range(60)]
n_amid = 0
for round_ in range(n_rounds):
    dataset = opened(cache="disk")  # one filler goes on with it, as a forked worker does, and one opens its own
    children = [start(dataset, 2 * round_), start(None, 2 * round_ + 1)]
    time.sleep(random.uniform(0, 0.02))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    cache = opened(cache="disk")._cache
    n_amid += 0 < cache.n_filled < 60
    for position in range(60):
        kept = cache.load(position, right[position]["length"])
        assert (kept is not None) == cache.has(position), position
        assert kept is None or all(torch.equal(value, right[position][name]) for name, value in kept.items())
    if cache.n_filled == 60:
        os.unlink(cache.path)
print(n_rounds, n_amid)
"""


@pytest.mark.slow
def test_fillers_killed_at_random_moments_leave_no_wrong_tensor(
    manifest: pqindex.Manifest, tmp_path: Path
) -> None:
    """Two workers, each killed so many times; some of them in the middle of their work."""
    n_rounds, n_amid = run(KILLED, tmp_path / "m.manifest.parquet", KILLS).split()
    assert int(n_rounds) == KILLS
    assert int(n_amid) > 0 or KILLS < 50, "of many kills, some are in the middle of a record"


def run(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, "files that are open at the end are closed in silence"
    return done.stdout


def damage(path: Path) -> None:
    content = np.fromfile(path, np.uint8)
    content[8192::700] ^= 0xFF
    with path.open("r+b") as file:
        file.write(content.tobytes())


def cut(path: Path) -> None:
    os.truncate(path, 10_000)


def remove(path: Path) -> None:
    shutil.rmtree(path.parent)


def n_filled(manifest: pqindex.Manifest) -> int:
    cache = SequenceDataset(manifest, cache="disk", **OPTIONS)._cache
    assert cache is not None
    return cache.n_filled


def test_a_cache_that_is_damaged_cut_or_removed_between_epochs_costs_time_only(
    manifest: pqindex.Manifest,
) -> None:
    cached = SequenceDataset(manifest, cache="disk", **OPTIONS)
    plan = BatchPlan(manifest, 4, shuffle="full")
    plain = list(SequenceLoader(SequenceDataset(manifest, **OPTIONS), plan))
    assert cached._cache is not None
    for happens in (None, damage, cut, remove):
        if happens is not None:
            happens(Path(cached._cache.path))
        loader = SequenceLoader(cached, plan, num_workers=2, persistent_workers=False)
        assert all(equal(one, other) for one, other in zip(loader, plain, strict=True))
        # forked workers go on with the file that was removed
        assert cached._cache.n_filled == 60
        assert n_filled(manifest) == (0 if happens is remove else 60)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_were_sent_the_dataset_go_on_with_the_file(
    manifest: pqindex.Manifest, start_method: str
) -> None:
    cached = SequenceDataset(manifest, cache="disk", **OPTIONS)
    plan = BatchPlan(manifest, 4, shuffle="full")
    plain = list(SequenceLoader(SequenceDataset(manifest, **OPTIONS), plan))
    loader = SequenceLoader(cached, plan, num_workers=1, multiprocessing_context=start_method)
    assert cached._cache is not None
    for _ in range(2):
        assert all(equal(one, other) for one, other in zip(loader, plain, strict=True))
        assert cached._cache.n_filled == 60
        damage(Path(cached._cache.path))


def test_a_damaged_sequence_is_read_once_more_and_kept_again(manifest: pqindex.Manifest) -> None:
    cached = SequenceDataset(manifest, cache="disk", **OPTIONS)
    cached.warm()
    assert cached._cache is not None
    with open(cached._cache.path, "r+b") as file:
        file.seek(8192 + 10)
        file.write(b"damage")
    plain = SequenceDataset(manifest, **OPTIONS)
    other = SequenceDataset(manifest, cache="disk", **OPTIONS)
    for _ in range(2):
        assert all(equal(other[i], plain[i]) for i in range(60))
    assert other._reader.stats()["reads"] == 1
    assert all(equal(cached[i], plain[i]) for i in range(60))
    assert cached._reader.stats()["reads"] == 60


def test_a_worker_that_cannot_open_the_cache_says_so_and_goes_on(
    manifest: pqindex.Manifest, cache: Path
) -> None:
    cached = SequenceDataset(manifest, cache="disk", **OPTIONS)
    sent = pickle.dumps(cached)
    shutil.rmtree(cache / "decoded")
    (cache / "decoded").write_bytes(b"a file")
    with pytest.warns(PqindexCacheWarning, match="goes on without it: cannot make the cache folder"):
        there = pickle.loads(sent)
    assert equal(there[0], cached[0])
    assert (there._cache.n_filled, there._cache.has(0), there._cache.is_full) == (0, False, True)


def test_a_new_cache_makes_room_of_those_that_nobody_uses(
    manifest: pqindex.Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 3 * SequenceDataset(manifest, **OPTIONS).row_counts.sum() * 21
    monkeypatch.setattr(decoded, "DEFAULT_BYTES", {"disk": limit, "memory": limit})

    def made(fill: float, **where: Any) -> SequenceDataset:
        dataset = SequenceDataset(
            manifest, cache="disk", **(OPTIONS | {"nulls": {"x": ("fill", fill)}}), **where
        )
        dataset.warm()
        return dataset

    def there(*datasets: SequenceDataset) -> list[bool]:
        return [os.path.exists(dataset._cache.path) for dataset in datasets]  # type: ignore[union-attr]

    used, unused, given = made(1.0), made(2.0), made(3.0, cache_dir=tmp_path / "given")
    path = unused._cache.path  # type: ignore[union-attr]
    del unused
    newest = made(4.0)
    assert there(used, given, newest) == [True] * 3
    assert not os.path.exists(path)
    more = [made(5.0), made(6.0)]
    assert there(used, given, newest, *more) == [True] * 5
    with_own = [made(fill, cache_dir=tmp_path / "given") for fill in (7.0, 8.0, 9.0)]
    assert there(given, *with_own) == [True] * 4


def test_the_cache_is_the_same_from_another_working_folder(
    manifest: pqindex.Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cached = SequenceDataset(manifest, cache="disk", cache_dir="here", **OPTIONS)
    cached.warm()
    sent = pickle.dumps(cached)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert pickle.loads(sent)._cache.n_filled == 60
    assert os.listdir(tmp_path / "other") == []


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
    assert run(FULL, tmp_path / "m.manifest.parquet").splitlines() == [
        "['the decoded cache takes no more, and training goes on without it: cann']",
        "True",
    ]
    assert issubclass(PqindexCacheWarning, UserWarning)


SMALL_DISK = """
import sys, warnings
import pqindex
from pqindex.torch import SequenceDataset

manifest = pqindex.load_manifest(sys.argv[1])
options = {"fields": {"x": ["f0", "f1", "pair"]}, "nulls": ("fill", -1.0)}
dataset, plain = SequenceDataset(manifest, cache="disk", cache_dir=sys.argv[2], **options), SequenceDataset(manifest, **options)
with open(sys.argv[2] + "/rest", "wb", buffering=0) as rest:  # all but some pages of the disk
    try:
        while True:
            rest.write(bytes(4096))
    except OSError:
        rest.truncate(rest.tell() - 3 * 4096)
told = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    dataset.warm(progress=lambda done, total: told.append(done), batch_size=5)
    for _ in range(2):
        for i in range(60):
            assert dataset[i]["x"].equal(plain[i]["x"])
print([(type(w.message).__name__, "No space left on device" in str(w.message)) for w in caught])
print(0 < dataset._cache.n_filled < 60, 0 < len(told) < 12)
"""


def test_a_disk_without_space_is_said_once_and_training_goes_on(
    manifest: pqindex.Manifest, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        assert run(SMALL_DISK, tmp_path / "m.manifest.parquet", disk).splitlines() == [
            "[('PqindexCacheWarning', True)]",
            "True True",
        ]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
