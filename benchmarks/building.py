"""What pqindex's index costs: building it, opening it, asking it, and its size."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import pqindex
from benchmarks.shapes import Source
from benchmarks.timing import Samples, interleaved

READ_METADATA = "`pq.read_metadata`"


def measure_building(
    source: Source, index: Path, *, rounds: int, processes: tuple[int, ...]
) -> dict[str, Any]:
    """Return the samples of every measure of the index, in seconds, and its sizes in bytes."""
    samples = _build(source, index, rounds=rounds, processes=processes) | _query(index, rounds=rounds)
    (chunks,) = (index / "parts").glob("*-chunks.parquet")
    shape = source.shape
    return {
        "seconds": samples,
        "data_bytes": sum(Path(path).stat().st_size for path in source.paths),
        "index_bytes": pqindex.open(index).info()["index_bytes"],
        "chunks_bytes_per_column_chunk": chunks.stat().st_size
        / (shape.n_files * shape.n_groups * (shape.n_columns + 2)),
    }


def _build(source: Source, index: Path, *, rounds: int, processes: tuple[int, ...]) -> dict[str, Samples]:
    """Time a build with some numbers of processes, against `pq.read_metadata` over the same files."""

    def build(workers: int) -> Callable[[], object]:
        def run() -> object:
            shutil.rmtree(index, ignore_errors=True)
            return pqindex.build(source.data, index=index, workers=workers)

        return run

    return interleaved(
        {
            READ_METADATA: lambda: [pq.read_metadata(path).num_rows for path in source.paths],
            **{f"build, {n} process{'es' if n > 1 else ''}": build(n) for n in processes},
        },
        rounds=rounds,
    )


def _query(index: Path, *, rounds: int) -> dict[str, Samples]:
    """Time an open, a first filtered question, and the next."""
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
