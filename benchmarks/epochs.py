"""Measure whole lives, from nothing to the second epoch: ``python -m benchmarks.epochs [--quick] [--json FILE]``.

In each round every contender lives once: a new process and an empty folder, its conversion if it has one, its first
batch, a first epoch and some more. So a conversion is weighed against the epochs that it serves, and a cache that the
first epoch fills against a copy that was made before. All contenders of a round live side by side and take turns, stage
by stage, one of them at work at a time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks import shapes, table
from benchmarks.__main__ import machine, split_by_installed
from benchmarks.adapters import EVERYONE, RAW
from benchmarks.contest import Contest, check
from benchmarks.host import Host
from benchmarks.shapes import Source
from benchmarks.timing import Samples

OURS = (RAW, "dataset", "dataset-disk", "dataset-memory")
NAMES = (*OURS, "hf-streaming", "hf-arrow", "mds", "litdata", "lance", "webdataset", "memmap")
ROUNDS = 3
LIMIT_S = 30.0
LATER_EPOCHS = 3


def rounds(
    source: Source,
    folder: Path,
    names: list[str],
    *,
    n_rounds: int,
    num_workers: int,
    limit_s: float,
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Give the samples and the notes after each round; every other round goes the other way round.

    A contender that fails is out, with a note, and without the figures that it had.
    """
    notes: dict[str, str] = {}
    samples: dict[str, dict[str, Samples]] = defaultdict(lambda: defaultdict(list))
    for number in range(n_rounds):
        present = [name for name in names if name not in notes]
        with _contest(source, folder, present[:: -1 if number % 2 else 1]) as contest:

            def tell(what: str, number: int = number) -> None:
                say(f"round {number + 1} of {n_rounds}: {what}")

            live(contest, source, num_workers=num_workers, limit_s=limit_s, say=tell)
        notes |= contest.notes
        for name in notes:
            samples.pop(name, None)
            contest.samples.pop(name, None)
        for name, measures in contest.samples.items():
            for measure, values in measures.items():
                samples[name][measure] += values
        yield {"samples": {name: dict(of) for name, of in samples.items()}, "notes": dict(notes)}


def live(
    contest: Contest, source: Source, *, num_workers: int, limit_s: float, say: Callable[[str], None]
) -> None:
    """Let the contenders live once, stage by stage, and record what each took."""

    def stage(what: str, run: Callable[[str, Host], None]) -> None:
        say(what)
        contest.turn(run)

    def prepare(name: str, host: Host) -> None:
        host.measure("forget_peak")
        made = host.measure("prepare")
        contest.record(name, "prepare_s", made["seconds"])
        contest.record(name, "prepare_cpu_s", made["cpu_s"])
        contest.record(name, "prepare_peak_bytes", host.measure("peak_memory"))
        host.measure("forget_peak")

    def first_batch(name: str, host: Host) -> None:
        opened_s = host.measure("first_batch")
        contest.record(name, "first_batch_s", opened_s)
        contest.record(name, "from_nothing_s", contest.samples[name]["prepare_s"][-1] + opened_s)

    def first_epoch(name: str, host: Host) -> None:
        for clock, rate in host.measure("first_epoch", num_workers, limit_s).items():
            contest.record(name, f"epoch_1_{clock}", rate)

    def next_epoch(number: int) -> Callable[[str, Host], None]:
        def run(name: str, host: Host) -> None:
            for clock, rate in host.measure("next_epoch", number, num_workers, limit_s).items():
                contest.record(name, f"epoch_2_{clock}", rate)

        return run

    def count(name: str, host: Host) -> None:
        contest.record(name, "peak_bytes", host.measure("peak_memory"))
        contest.record(name, "workers_pss_bytes", host.measure("end_of_epochs"))
        left = host.measure("left_behind")
        contest.record(name, "disk_bytes", left["disk"])
        contest.record(name, "shared_bytes", left["shared"])

    stage("start", lambda _, host: host.wait_until_ready())
    stage("convert", prepare)
    stage("first batch", first_batch)
    stage("first epoch", first_epoch)
    for number in range(1, 1 + LATER_EPOCHS):
        stage(f"epoch {number + 1}", next_epoch(number))
    stage("memory and disk", count)
    say("compare")
    check(contest, source)
    contest.turn(lambda _, host: host.measure("finish"))


@contextmanager
def _contest(source: Source, folder: Path, names: list[str]) -> Iterator[Contest]:
    """Give a process and an empty folder to each contender, and take both away in the end."""
    homes = Path(tempfile.mkdtemp(prefix="homes-", dir=folder))
    contest = Contest({})
    try:
        for name in names:
            (homes / name).mkdir()
            contest.hosts[name] = Host(name, source, homes / name)
        yield contest
    finally:
        for host in contest.hosts.values():
            host.stop()
        shutil.rmtree(homes, ignore_errors=True)


def _names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str] | None:
    if value is None:
        return None
    asked = value.split(",")
    for name in asked:
        if name not in EVERYONE:
            raise click.BadParameter(f"{name!r} is none of {', '.join(EVERYONE)}")
    return [name for name in EVERYONE if name in asked or name == RAW]


@click.command()
@click.option("--quick", is_flag=True, help="Small shapes and one round, to see that everything runs.")
@click.option(
    "--shape", "keys", multiple=True, help="Only this shape, such as A or A-lz4-plain; may be given again."
)
@click.option("--only", callback=_names, help="Only these contenders, by comma; the floor always runs.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the samples here, round by round."
)
@click.option("--show", is_flag=True, help="Measure nothing; print what the file of --json holds.")
@click.option(
    "--rounds", "n_rounds", type=click.IntRange(1), help=f"Lives of each contender; by default {ROUNDS}."
)
@click.option(
    "--workers", "num_workers", type=click.IntRange(0), default=0, help="Worker processes in the epochs."
)
@click.option(
    "--epoch-seconds",
    "limit_s",
    type=float,
    default=LIMIT_S,
    show_default=True,
    help="Cut epochs after so long, unless they fill a cache.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Write the files below this folder.")
def main(
    *,
    quick: bool,
    keys: tuple[str, ...],
    only: list[str] | None,
    json_path: Path | None,
    show: bool,
    n_rounds: int | None,
    num_workers: int,
    limit_s: float,
    folder: Path | None,
) -> None:
    """Measure lives: conversion, first batch, first and second epoch, disk and memory, in turns on the same files.

    Shapes in other codecs (A-lz4-plain and so on) are measured with pqindex and the floor only, since a converted copy
    does not hang on them, unless --only says otherwise. With --json, shapes that were measured before stay in the
    file, so that a run can be taken up shape by shape; a round that is whole is written at once.
    """
    document: dict[str, Any] = {"results": []}
    if json_path is not None and json_path.exists():
        document = json.loads(json_path.read_text(encoding="utf-8"))
    if not show:
        plain, codecs = (shapes.QUICK, shapes.QUICK_CODECS) if quick else (shapes.FULL, shapes.CODECS)
        known = {shape.key: shape for shape in (*plain, *codecs)}
        if unknown := [key for key in keys if key not in known]:
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}", param_hint="--shape")
        for key in keys or known:
            names, missing = split_by_installed(only or list(OURS if known[key] in codecs else NAMES))
            for name, note in missing.items():
                click.echo(f"{EVERYONE[name].label}: {note}", err=True)
            for result in _measured(
                known[key], names, n_rounds or (1 if quick else ROUNDS), num_workers, limit_s, folder
            ):
                result["notes"] |= missing
                others = [other for other in document["results"] if other["shape"]["key"] != key]
                document["results"] = [*others, result]
                if json_path is not None:
                    json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    click.echo(table.epochs_page(document))


def _measured(
    shape: shapes.Shape,
    names: list[str],
    n_rounds: int,
    num_workers: int,
    limit_s: float,
    folder: Path | None,
) -> Iterator[dict[str, Any]]:
    """Give the result of one shape after each round; its files are removed in the end."""
    start = time.perf_counter()

    def say(what: str) -> None:
        click.echo(f"{shape.key}, {time.perf_counter() - start:.0f} s: {what}", err=True)

    below = Path(tempfile.mkdtemp(prefix="pqindex-benchmark-", dir=folder))
    try:
        say("write the files")
        source = shapes.write(shape, below)
        facts = {
            "shape": asdict(shape),
            "n_sequences": shape.n_sequences,
            "n_columns_read": len(source.columns),
            "data_bytes": sum(Path(path).stat().st_size for path in source.paths),
            "num_workers": num_workers,
            "limit_s": limit_s,
            "machine": machine(names),
        }
        for measured in rounds(
            source, below, names, n_rounds=n_rounds, num_workers=num_workers, limit_s=limit_s, say=say
        ):
            yield facts | measured
    finally:
        shutil.rmtree(below, ignore_errors=True)
        say("done")


if __name__ == "__main__":
    main()
