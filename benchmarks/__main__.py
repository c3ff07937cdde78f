"""Run the measurements and print them as Markdown: ``python -m benchmarks [--quick] [--json FILE]``."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks import shapes, table
from benchmarks.adapters import CONTENDERS, EVERYONE, RAW
from benchmarks.building import measure_building
from benchmarks.contest import Effort, hold

FULL_EFFORT = Effort(rounds=5, epoch_rounds=3, read_s=0.15, epoch_s=0.5, build_processes=(1, 2))
QUICK_EFFORT = Effort(rounds=1, epoch_rounds=1, read_s=0.02, epoch_s=0.2, build_processes=(1,))


def split_by_installed(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the contenders whose packages are there, and what is missing of the others."""
    present, missing = [], {}
    for name in names:
        absent = [package for package, found in EVERYONE[name].versions().items() if found is None]
        if absent:
            missing[name] = f"skipped: {', '.join(absent)} is not installed"
        else:
            present.append(name)
    return present, missing


def run(
    shape: shapes.Shape, folder: Path, names: list[str], effort: Effort, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return every sample of one shape; its files are written below a folder, and removed by the caller."""
    say("write the files")
    source = shapes.write(shape, folder)
    say("index")
    building = measure_building(
        source, folder / "data.pqindex", rounds=max(1, effort.rounds // 2), processes=effort.build_processes
    )
    homes = folder / "homes"
    homes.mkdir()
    return {
        "shape": asdict(shape),
        "n_sequences": shape.n_sequences,
        "n_columns_read": len(source.columns),
        "effort": asdict(effort),
        "building": building,
        **hold(source, homes, names, effort, say),
    }


def machine(names: list[str]) -> dict[str, str | int | None]:
    """Return what the figures hang on: the machine and the versions."""
    found: dict[str, str | int | None] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }
    for package in ("pqindex", "pyarrow", "duckdb", "numpy", "torch"):
        found[package] = version(package)
    for name in names:
        found |= EVERYONE[name].versions()
    return found


def _names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str]:
    if value is None:
        return list(CONTENDERS)
    asked = value.split(",")
    for name in asked:
        if name not in CONTENDERS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(CONTENDERS)}")
    return [name for name in CONTENDERS if name in asked or name == RAW]


@click.command()
@click.option("--quick", is_flag=True, help="Small shapes and few rounds, to see that everything runs.")
@click.option("--shape", "keys", multiple=True, help="Only this shape, such as A; may be given again.")
@click.option("--only", callback=_names, help="Only these contenders, by comma; the floor always runs.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the samples here, shape by shape."
)
@click.option("--show", is_flag=True, help="Measure nothing; print what the file of --json holds.")
@click.option(
    "--epoch-seconds", type=float, help="Cut epochs after so long; a large number gives whole ones."
)
@click.option("--folder", type=click.Path(path_type=Path), help="Write the files below this folder.")
def main(
    *,
    quick: bool,
    keys: tuple[str, ...],
    only: list[str],
    json_path: Path | None,
    show: bool,
    epoch_seconds: float | None,
    folder: Path | None,
) -> None:
    """Measure building, asking and reading against PyArrow and other libraries, on the same files, in turns.

    With --json, shapes that were measured before stay in the file, so that a run can be taken up shape by shape.
    """
    document: dict[str, Any] = {"results": []}
    if json_path is not None and json_path.exists():
        document = json.loads(json_path.read_text(encoding="utf-8"))
    if not show:
        known = {shape.key: shape for shape in (shapes.QUICK if quick else shapes.FULL)}
        if unknown := [key for key in keys if key not in known]:
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}", param_hint="--shape")
        effort = QUICK_EFFORT if quick else FULL_EFFORT
        if epoch_seconds is not None:
            effort = replace(effort, epoch_s=epoch_seconds)
        names, missing = split_by_installed(only)
        for name, note in missing.items():
            click.echo(f"{CONTENDERS[name].label}: {note}", err=True)
        for key in keys or known:
            result = _measure(known[key], names, effort, folder)
            result["notes"] |= missing
            result["machine"] = machine(names)
            others = [other for other in document["results"] if other["shape"]["key"] != key]
            document["results"] = sorted([*others, result], key=lambda one: one["shape"]["key"])
            if json_path is not None:
                json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    click.echo(table.page(document))


def _measure(shape: shapes.Shape, names: list[str], effort: Effort, folder: Path | None) -> dict[str, Any]:
    start = time.perf_counter()

    def say(what: str) -> None:
        click.echo(f"{shape.key}, {time.perf_counter() - start:.0f} s: {what}", err=True)

    below = Path(tempfile.mkdtemp(prefix="pqindex-benchmark-", dir=folder))
    try:
        return run(shape, below, names, effort, say)
    finally:
        shutil.rmtree(below, ignore_errors=True)
        say("done")


if __name__ == "__main__":
    main()
