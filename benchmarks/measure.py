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
    sql = "SELECT seq_id FROM index WHERE row_count >= 30 AND seq_id % 3 = 1"
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
    """Seconds a random sequence of ten columns, stacked.

    The floor is PyArrow at its best: every file open, no pre-buffering, one row group decoded and cut. A reader
    without a cache of decoded row groups does the same work; with it, neighbours of a shared group are cheap.
    """
    names = [f"f{i}" for i in range(min(COLUMNS, shape.n_columns))]
    opened = pqindex.open(index)
    selection = opened.select()
    order = np.random.default_rng(1).permutation(shape.n_sequences)[:reads].tolist()
    answer = opened.sql("SELECT file_id, row_group, row_start, row_count FROM index ORDER BY seq_no")
    places = [tuple(column[i].as_py() for column in answer.columns) for i in order]
    files = {n: pq.ParquetFile(paths[n], pre_buffer=False) for n in {place[0] for place in places}}
    bare = pqindex.Reader(selection, columns=names, max_open_files=len(paths), group_cache_bytes=0)
    reader = pqindex.Reader(selection, columns=names, max_open_files=len(paths))

    def raw(file: int, group: int, start: int, n_rows: int) -> np.ndarray:
        table = files[file].read_row_group(group, columns=names, use_threads=False)
        return _stack(table.slice(start, n_rows))

    for i, place in zip(order[:20], places, strict=False):
        if not np.array_equal(_stack(bare[i]), raw(*place)):
            raise SystemExit(f"sequence {i} differs from PyArrow's")

    def raw_first_touch() -> np.ndarray:
        file, group, start, n_rows = places[0]
        opened_now = pq.ParquetFile(paths[file], pre_buffer=False)
        return _stack(opened_now.read_row_group(group, columns=names, use_threads=False).slice(start, n_rows))

    def first_touch() -> np.ndarray:
        bare.close()
        return _stack(bare[order[0]])

    taken = interleaved(
        {
            "raw": lambda: [raw(*place) for place in places],
            "pqindex": lambda: [_stack(bare[i]) for i in order],
            "pqindex, decoded groups kept": lambda: [_stack(reader[i]) for i in order],
        },
        rounds=rounds,
    )
    # Apart from each other: a large footer that was just parsed and freed makes whoever comes next slow.
    touches = max(rounds * 10, 20)
    touch = interleaved({"raw, first touch of a file": raw_first_touch}, rounds=touches)
    touch |= interleaved({"pqindex, first touch of a file": first_touch}, rounds=touches)
    return {**{name: seconds / len(order) for name, seconds in taken.items()}, **touch}
