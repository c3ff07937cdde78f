"""Run the measurements and print them as a Markdown table: ``python -m benchmarks [--quick] [--json FILE]``."""

from __future__ import annotations

import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

import pqindex
from benchmarks import measure, shapes

FLOORS = {
    "build, 1 process": "pq.read_metadata",
    "build, 2 processes": "pq.read_metadata",
    "pqindex": "raw",
    "pqindex, decoded groups kept": "raw",
    "raw, first touch of a file": "raw",
    "pqindex, first touch of a file": "raw",
}
"""What each figure is a ratio of."""


def run(shape: shapes.Shape, folder: Path, *, rounds: int, reads: int) -> dict[str, Any]:
    """Return every figure of one shape, in seconds."""
    source = folder / "data"
    source.mkdir()
    paths = shapes.write(shape, source)
    index = folder / "data.pqindex"
    seconds = measure.measure_build(paths, index, rounds=rounds)
    seconds |= measure.measure_query(index, rounds=rounds)
    reads = min(reads, shape.n_sequences, 200 if shape.per_group > 1 else reads)
    seconds |= measure.measure_reads(shape, paths, index, reads=reads, rounds=rounds)
    size = pqindex.open(index).info()["index_bytes"]
    (chunks,) = (index / "parts").glob("*-chunks.parquet")
    return {
        "shape": shape.name,
        "n_sequences": shape.n_sequences,
        "data_bytes": sum(path.stat().st_size for path in paths),
        "index_bytes": size,
        "chunks_bytes_per_column_chunk": chunks.stat().st_size
        / (shape.n_files * shape.n_groups * (shape.n_columns + 2)),
        "seconds": seconds,
        "ratios": {name: seconds[name] / seconds[floor] for name, floor in FLOORS.items()},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| | " + " | ".join(r["shape"] for r in results) + " |", "|---" * (len(results) + 1) + "|"]
    for name in results[0]["seconds"]:
        cells = []
        for result in results:
            seconds = result["seconds"][name]
            shown = f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
            ratio = result["ratios"].get(name)
            cells.append(shown if ratio is None else f"{shown} ({ratio:.2f} x)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    rows = {
        "index size, data size": lambda r: f"{r['index_bytes'] / 1e6:.2f} MB, {r['data_bytes'] / 1e6:.0f} MB",
        "bytes of `chunks` a column chunk": lambda r: f"{r['chunks_bytes_per_column_chunk']:.1f}",
    }
    lines += [f"| {name} | " + " | ".join(cell(r) for r in results) + " |" for name, cell in rows.items()]
    return "\n".join(lines)


@click.command()
@click.option("--quick", is_flag=True, help="Small shapes, to see that everything runs.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here as well.")
@click.option("--rounds", default=5, show_default=True, help="Rounds of the interleaved run.")
def main(*, quick: bool, json_path: Path | None, rounds: int) -> None:
    """Measure building, asking and reading, as ratios to PyArrow on the same files."""
    results = []
    for shape in shapes.QUICK if quick else shapes.FULL:
        with tempfile.TemporaryDirectory() as folder:
            results.append(
                run(shape, Path(folder), rounds=2 if quick else rounds, reads=20 if quick else 1000)
            )
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: version(name) for name in ("pqindex", "pyarrow", "duckdb", "numpy")},
    }
    click.echo(", ".join(f"{name} {value}" for name, value in machine.items()))
    click.echo(table(results))
    if json_path is not None:
        json_path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
