"""What is measured: building an index, opening and asking it, and reading random sequences."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pqindex
from benchmarks.shapes import Shape
from benchmarks.timing import interleaved

COLUMNS = 10


def measure_build(paths: list[Path], index: Path, *, rounds: int) -> dict[str, float]:
    """Seconds to build with 1 and 2 processes, against `pq.read_metadata` over the same files."""
    source = paths[0].parent

    def build(workers: int) -> Callable[[], object]:
        def run() -> object:
            shutil.rmtree(index, ignore_errors=True)
            return pqindex.build(source, index=index, workers=workers)

        return run

    contenders: dict[str, Callable[[], object]] = {
        "pq.read_metadata": lambda: [pq.read_metadata(path).num_rows for path in paths],
        "build, 1 process": build(1),
        "build, 2 processes": build(2),
    }
    return interleaved(contenders, rounds=rounds)


def measure_query(index: Path, *, rounds: int) -> dict[str, float]:
    """Seconds to open, to ask a first filtered question, and to ask the next."""
    sql = "SELECT seq_id FROM index WHERE row_count >= 30 AND stats.f3.max > 1"
    warm = pqindex.open(index)
    warm.select(sql)
    return interleaved(
        {
            "open": lambda: pqindex.open(index),
            "open + first select": lambda: pqindex.open(index).select(sql),
            "next select": lambda: warm.select(sql),
        },
        rounds=rounds,
    )


def _stack(table: pa.Table) -> np.ndarray:
    return np.stack([column.to_numpy() for column in table.columns], axis=1)


def measure_reads(
    shape: Shape, paths: list[Path], index: Path, *, reads: int, rounds: int
) -> dict[str, float]:
    """Seconds a random sequence of ten columns, stacked: files open, and first touch of a file by a new reader."""
    names = [f"f{i}" for i in range(min(COLUMNS, shape.n_columns))]
    selection = pqindex.open(index).select()
    order = np.random.default_rng(1).permutation(shape.n_sequences)[:reads]
    places = [divmod(int(i), shape.n_groups) for i in order]
    files = {n: pq.ParquetFile(paths[n], pre_buffer=False) for n in {file for file, _ in places}}
    reader = pqindex.Reader(selection, columns=names, max_open_files=len(paths))
    first = places[0]

    def raw(file: int, group: int) -> np.ndarray:
        return _stack(files[file].read_row_group(group, columns=names, use_threads=False))

    for i, place in zip(order[:20], places, strict=False):
        if not np.array_equal(_stack(reader[int(i)]), raw(*place)):
            raise SystemExit(f"sequence {i} differs from PyArrow's")

    def first_touch() -> np.ndarray:
        reader.close()
        return _stack(reader[int(order[0])])

    def opened() -> np.ndarray:
        file = pq.ParquetFile(paths[first[0]], pre_buffer=False)
        return _stack(file.read_row_group(first[1], columns=names, use_threads=False))

    taken = interleaved(
        {
            "raw, files open": lambda: [raw(*place) for place in places],
            "pqindex, files open": lambda: [_stack(reader[int(i)]) for i in order],
        },
        rounds=rounds,
    )
    touch = interleaved(
        {"raw, first touch": opened, "pqindex, first touch": first_touch}, rounds=max(rounds * 10, 20)
    )
    return {**{name: seconds / len(order) for name, seconds in taken.items()}, **touch}
