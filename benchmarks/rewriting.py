"""Measure reads before and after a rewrite: ``python -m benchmarks.rewriting [--quick] [--json FILE]``.

The source is the shape with 200 sequences a row group. Seconds are of the processor, so that other work on the machine
weighs less.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import pqindex
from benchmarks.shapes import FULL, QUICK, write
from pqindex.torch import SequenceDataset

REWRITES: dict[str, dict[str, Any]] = {
    "after": {},
    "after, `--codec none`": {"codec": "none"},
    "after, `--codec zstd`": {"codec": "zstd"},
    "after, `--pack-rows 10000`": {"pack_rows": 10_000},
}


def measure(folder: Path, *, quick: bool, rounds: int) -> dict[str, Any]:
    """Return the microseconds a sequence of each layout and way to read, by round, and what the copies cost."""
    source = write(next(shape for shape in (QUICK if quick else FULL) if shape.key == "C"), folder)
    layouts = {
        "before": pqindex.build(source.data, order="t", index=folder / "pages.pqindex"),
        "before, `--pages never`": pqindex.build(
            source.data, order="t", index=folder / "none.pqindex", pages="never"
        ),
    }
    copies = {}
    for number, (name, options) in enumerate(REWRITES.items()):
        start = time.process_time()
        copy = layouts[name] = layouts["before"].rewrite(folder / f"copy-{number}", **options)
        report = {} if copy.rewritten is None else copy.rewritten.to_dict()
        copies[name] = report | {"processor_s": time.process_time() - start}
    selections = {name: index.select() for name, index in layouts.items()}
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in layouts}
    for number in range(rounds):
        order = np.random.default_rng(number).permutation(source.shape.n_sequences).tolist()
        for name, selection in selections.items():
            dataset = SequenceDataset(selection, fields={"x": source.columns})
            with (
                pqindex.Reader(selection, columns=source.columns, group_cache_bytes=0) as alone,
                pqindex.Reader(selection, columns=source.columns) as cached,
            ):
                ways: dict[str, tuple[Callable[[int], object], list[int]]] = {
                    "reader_alone": (alone.__getitem__, order[:50]),
                    "dataset": (dataset.__getitem__, order[:200]),
                    "reader_cached": (cached.__getitem__, order[:1600]),
                }
                for way, (read, positions) in ways.items():
                    read(order[-1])
                    start = time.process_time()
                    for position in positions:
                        read(position)
                    taken = (time.process_time() - start) / len(positions)
                    figures[name].setdefault(way, []).append(taken * 1e6)
    return {"figures": figures, "copies": copies}


@click.command()
@click.option("--quick", is_flag=True, help="Small files, to see that everything runs.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here as well.")
def main(*, quick: bool, rounds: int, json_path: Path | None) -> None:
    """Measure reads before and after a rewrite, and print them as Markdown tables."""
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), quick=quick, rounds=rounds)
    click.echo("| a sequence | alone | dataset | with all groups kept |\n|---|---|---|---|")
    for layout, ways in found["figures"].items():
        click.echo(f"| {layout} | {' | '.join(f'{statistics.median(s):,.0f} us' for s in ways.values())} |")
    click.echo("\n| copy | bytes | processor |\n|---|---|---|")
    for layout, copy in found["copies"].items():
        click.echo(
            f"| {layout} | {copy['bytes_before'] / 1e6:.1f} to {copy['bytes_after'] / 1e6:.1f} MB | "
            f"{copy['processor_s']:.1f} s |"
        )
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
