"""What is measured of every contender, one function a measure, each run in the contender's own process."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.adapters.base import Adapter

BATCH = 32
CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """How far an epoch came: sequences delivered in so many seconds, and whether time ran out first."""

    n_sequences: int
    elapsed_s: float
    is_cut: bool

    @property
    def rate(self) -> float:
        """Sequences a second."""
        return self.n_sequences / self.elapsed_s


def prepare(adapter: Adapter) -> dict[str, float]:
    """Make the index or the copy; return the seconds, those of CPU time, and the bytes on the disk."""
    start, cpu_s = time.perf_counter(), time.process_time()
    adapter.prepare()
    elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
    size_bytes = sum(path.stat().st_size for path in adapter.home.rglob("*") if path.is_file())
    return {"seconds": elapsed_s, "cpu_s": cpu_s, "bytes": size_bytes}


def first_batch(adapter: Adapter) -> float:
    """Return the seconds from what was prepared to the first shuffled batch, without workers.

    Libraries are imported already. The adapter stays open.
    """
    start = time.perf_counter()
    adapter.open()
    next(iter(adapter.loader(batch_size=BATCH, num_workers=0)))
    return time.perf_counter() - start


def digests(adapter: Adapter, positions: list[int]) -> dict[int, str]:
    """Return a digest of shape and values of some sequences: as they are read, batched, and in an epoch.

    A sequence that comes otherwise by another way gets a digest that nothing else has.
    """
    found: dict[int, str] = {}
    if adapter.reads_at_random:
        found = {position: _digest(adapter.read(position)) for position in positions}
        for position, values in zip(positions, adapter.read_batch(positions), strict=True):
            if found[position] != _digest(values):
                found[position] = "the batch differs"
    batch = next(iter(adapter.loader(batch_size=BATCH, num_workers=0)))
    ids = [int(i) for i in batch["seq_id"]]
    lengths = [int(n) for n in batch["lengths"]]
    for position, length, values in zip(ids, lengths, batch["x"], strict=True):
        digest = _digest(values[:length])
        found[position] = digest if found.get(position, digest) == digest else "the epoch differs"
    return found


def open_files(adapter: Adapter, limit_s: float) -> float:
    """Read a sequence of each file, for as long as is given, so that later reads find it open."""
    shape = adapter.source.shape
    firsts = range(0, shape.n_sequences, shape.n_groups * shape.per_group)
    return _repeated(adapter.read, firsts, limit_s)


def random_reads(adapter: Adapter, positions: list[int], limit_s: float) -> float:
    """Return the seconds a sequence of reading one after another, for as long as is given."""
    return _repeated(adapter.read, positions, limit_s)


def batched_reads(adapter: Adapter, positions: list[int], limit_s: float) -> float:
    """Return the seconds a sequence of reading 32 together, for as long as is given."""
    batches = [positions[i : i + BATCH] for i in range(0, len(positions) - BATCH + 1, BATCH)] or [positions]
    return _repeated(adapter.read_batch, batches, limit_s) / len(batches[0])


def first_touch(adapter: Adapter, position: int) -> float:
    """Return the seconds of a new reader's first sequence."""
    adapter.forget()
    start = time.perf_counter()
    adapter.read(position)
    return time.perf_counter() - start


def epochs(adapter: Adapter, num_workers: int, limit_s: float) -> dict[str, Any]:
    """Return sequences a second of a first and a second shuffled epoch, and the memory of the workers.

    The first begins with no worker started and no file open; the second once workers stand ready for it. An
    epoch that takes longer than what is given is cut.
    """
    adapter.forget()
    loader = adapter.loader(batch_size=BATCH, num_workers=num_workers)
    start = time.perf_counter()
    first = _deliver(iter(loader), start, limit_s)
    _go_to_epoch(loader, 1)
    batches = iter(loader)
    second = _deliver(batches, time.perf_counter(), limit_s)
    memory = workers_pss() if num_workers else None
    del batches, loader
    return {
        "first": first.rate,
        "second": second.rate,
        "n_sequences": second.n_sequences,
        "is_cut": second.is_cut,
        "workers_pss_bytes": memory,
    }


def first_epoch(adapter: Adapter, num_workers: int, limit_s: float) -> dict[str, float]:
    """Return the rates of a first shuffled epoch, which starts workers and opens files; cut after what is given.

    An epoch that fills a cache is never cut, since the next would lack what it left out.
    """
    adapter.forget()
    adapter.running = adapter.loader(batch_size=BATCH, num_workers=num_workers)
    return _rates(adapter, num_workers, float("inf") if adapter.fills_a_cache else limit_s)


def next_epoch(adapter: Adapter, number: int, num_workers: int, limit_s: float) -> dict[str, float]:
    """Return the rates of a later epoch over the same loader."""
    _go_to_epoch(adapter.running, number)
    return _rates(adapter, num_workers, limit_s)


def end_of_epochs(adapter: Adapter) -> int | None:
    """Return the memory of the workers, and let go of the loader."""
    memory = workers_pss() if multiprocessing.active_children() else None
    adapter.running = None
    return memory


def _rates(adapter: Adapter, num_workers: int, limit_s: float) -> dict[str, float]:
    """Return sequences a second of an epoch, and of the CPU time of this process where it alone reads."""
    assert adapter.running is not None  # noqa: S101  # measures come in order
    cpu_s = time.process_time()
    epoch = _deliver(iter(adapter.running), time.perf_counter(), limit_s)
    cpu_s = time.process_time() - cpu_s
    return {"wall": epoch.rate} | ({} if num_workers else {"cpu": epoch.n_sequences / max(cpu_s, 1e-9)})


def forget_peak(_adapter: Adapter) -> None:
    """Begin anew with the peak of this process' memory; only Linux can."""
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5", encoding="ascii")


def peak_memory(_adapter: Adapter) -> int | None:
    """Return the most resident memory since `forget_peak`, mapped files included; None where Linux is not."""
    status = Path("/proc/self/status")
    if not CLEAR_REFS.exists():
        return None
    (line,) = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def left_behind(adapter: Adapter) -> dict[str, int]:
    """Return the bytes of the disk that everything below the home takes, and those of shared memory."""
    facts = [path.stat() for path in adapter.home.rglob("*") if path.is_file()]
    return {
        "disk": sum(
            min(fact.st_size, fact.st_blocks * 512) if fact.st_blocks else fact.st_size for fact in facts
        ),
        "shared": adapter.shared_bytes(),
    }


def finish(adapter: Adapter) -> None:
    """Let go of all that would outlive the process."""
    adapter.finish()


def workers_pss() -> int | None:
    """Return the memory of this process' children, shared pages counted in parts; None where Linux is not."""
    total = 0
    for child in multiprocessing.active_children():
        rollup = Path(f"/proc/{child.pid}/smaps_rollup")
        if not rollup.exists():
            return None
        (line,) = [line for line in rollup.read_text().splitlines() if line.startswith("Pss:")]
        total += int(line.split()[1]) * 1024
    return total


MEASURES: dict[str, Callable[..., Any]] = {
    measure.__name__: measure
    for measure in (
        prepare,
        first_batch,
        digests,
        open_files,
        random_reads,
        batched_reads,
        first_touch,
        epochs,
        first_epoch,
        next_epoch,
        end_of_epochs,
        forget_peak,
        peak_memory,
        left_behind,
        finish,
    )
}


def _digest(values: torch.Tensor) -> str:
    array = values.contiguous().numpy()
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()


def _repeated(run: Callable[[Any], object], arguments: Iterable[Any], limit_s: float) -> float:
    start = time.perf_counter()
    elapsed_s = 0.0
    n = 0
    for argument in arguments:
        run(argument)
        n += 1
        elapsed_s = time.perf_counter() - start
        if elapsed_s > limit_s:
            break
    return elapsed_s / n


def _deliver(batches: Iterator[dict[str, Any]], start: float, limit_s: float) -> Epoch:
    n_sequences = 0
    for batch in batches:
        n_sequences += len(batch["lengths"])
        elapsed_s = time.perf_counter() - start
        if elapsed_s > limit_s:
            return Epoch(n_sequences=n_sequences, elapsed_s=elapsed_s, is_cut=True)
    return Epoch(n_sequences=n_sequences, elapsed_s=time.perf_counter() - start, is_cut=False)


def _go_to_epoch(loader: object, epoch: int) -> None:
    set_epoch = getattr(loader, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)
