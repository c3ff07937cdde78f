"""All contenders on the files of one shape: prepared, checked against each other, and measured in turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.adapters import RAW
from benchmarks.host import Host, HostError
from benchmarks.shapes import Source
from benchmarks.timing import Samples

READS = 2048
OPENING_S = 10.0
CHECKED = 8
WORKERS = (0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: rounds, seconds for each turn, and with how many processes to build."""

    rounds: int
    epoch_rounds: int
    read_s: float
    epoch_s: float
    build_processes: tuple[int, ...]


@dataclass(slots=True)
class Contest:
    """The contenders that still run, what was measured of each, and why others do not run.

    `samples` has a list for each measure of each contender: seconds a sequence, sequences a second, bytes.
    """

    hosts: dict[str, Host]
    samples: dict[str, dict[str, Samples]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    notes: dict[str, str] = field(default_factory=dict)

    def turn(self, run: Callable[[str, Host], None]) -> None:
        """Give each contender a turn; one that fails is out, with a note."""
        for name, host in list(self.hosts.items()):
            try:
                run(name, host)
            except HostError as error:
                host.stop()
                del self.hosts[name]
                self.notes[name] = str(error)

    def record(self, name: str, measure: str, value: float | None) -> None:
        """Keep one sample."""
        if value is not None:
            self.samples[name][measure].append(value)


def hold(
    source: Source, folder: Path, names: Iterable[str], effort: Effort, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the samples of every measure and contender, and a note for each that failed."""
    contest = Contest({})
    for name in names:
        home = folder / name
        home.mkdir()
        contest.hosts[name] = Host(name, source, home)
    try:
        contest.turn(lambda _, host: host.wait_until_ready())
        say("prepare")
        contest.turn(lambda name, host: _prepare(contest, name, host))
        check(contest, source)
        say("reads")
        _reads(contest, source, effort)
        say("epochs")
        for _ in range(effort.epoch_rounds):
            for num_workers in WORKERS:
                _epochs(contest, num_workers, effort)
    finally:
        for host in contest.hosts.values():
            host.stop()
    return {
        "samples": {name: dict(measures) for name, measures in contest.samples.items()},
        "notes": contest.notes,
    }


def _prepare(contest: Contest, name: str, host: Host) -> None:
    made = host.measure("prepare")
    contest.record(name, "prepare_s", made["seconds"])
    contest.record(name, "disk_bytes", made["bytes"])
    opened_s = host.measure("first_batch")
    contest.record(name, "first_batch_s", opened_s)
    contest.record(name, "from_nothing_s", made["seconds"] + opened_s)


def check(contest: Contest, source: Source) -> None:
    """Put out whoever gives other tensors than the floor does."""
    positions = np.random.default_rng(2).permutation(source.shape.n_sequences)[:CHECKED].tolist()
    found: dict[str, dict[int, str]] = {}

    def run(name: str, host: Host) -> None:
        found[name] = host.measure("digests", positions)

    contest.turn(run)
    if RAW not in contest.hosts:
        raise SystemExit(f"the floor does not run: {contest.notes[RAW]}")
    others = sorted({position for digests in found.values() for position in digests})
    truth = contest.hosts[RAW].measure("digests", others)

    def compare(name: str, _host: Host) -> None:
        differing = [position for position, digest in found[name].items() if truth[position] != digest]
        if differing:
            raise HostError(f"its tensors differ from PyArrow's, first at sequence {differing[0]}")

    contest.turn(compare)


def _reads(contest: Contest, source: Source, effort: Effort) -> None:
    """Measure single and batched reads of open files, then first reads; the round 0 warms caches only.

    First reads come last, for they close what the others find open.
    """

    def take(measure: str, *arguments: Any, into: str | None) -> None:
        def run(name: str, host: Host) -> None:
            if host.reads_at_random:
                value = host.measure(measure, *arguments)
                if into is not None:
                    contest.record(name, into, value)

        contest.turn(run)

    orders = [
        np.random.default_rng(number).permutation(source.shape.n_sequences).tolist()
        for number in range(effort.rounds + 1)
    ]
    take("open_files", OPENING_S, into=None)
    for number, order in enumerate(orders):
        take("random_reads", order[:READS], effort.read_s, into="random_s" if number else None)
        take("batched_reads", order[-READS:], effort.read_s, into="batched_s" if number else None)
    for number, order in enumerate(orders):
        for position in order[:2]:
            take("first_touch", position, into="first_touch_s" if number else None)


def _epochs(contest: Contest, num_workers: int, effort: Effort) -> None:
    def run(name: str, host: Host) -> None:
        rates = host.measure("epochs", num_workers, effort.epoch_s)
        contest.record(name, f"epoch_1_{num_workers}_workers", rates["first"])
        contest.record(name, f"epoch_2_{num_workers}_workers", rates["second"])
        contest.record(name, "workers_pss_bytes", rates["workers_pss_bytes"])

    contest.turn(run)
