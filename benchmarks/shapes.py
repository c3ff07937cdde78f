"""Parquet files to measure on, made from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layout: `n_files` files of `n_groups` row groups, each one sequence of `rows` rows and `n_columns` floats."""

    name: str
    n_files: int
    n_groups: int
    rows: tuple[int, int]
    n_columns: int

    @property
    def n_sequences(self) -> int:
        """Number of sequences of all files."""
        return self.n_files * self.n_groups


FULL = (
    Shape(name="A: 200-800 rows a group", n_files=100, n_groups=64, rows=(200, 800), n_columns=32),
    Shape(name="B: 5,000 small groups a file", n_files=4, n_groups=5000, rows=(20, 60), n_columns=32),
)
QUICK = (Shape(name="Q: quick look", n_files=8, n_groups=16, rows=(20, 60), n_columns=8),)


def write(shape: Shape, folder: Path, *, seed: int = 7) -> list[Path]:
    """Write the files of a shape with pyarrow's defaults and zstd, and return their paths."""
    random = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(shape.n_columns)]
    schema = pa.schema([("seq_id", pa.int64()), ("t", pa.int32()), *((name, pa.float32()) for name in names)])
    paths = []
    seq_id = 0
    for number in range(shape.n_files):
        path = folder / f"part-{number:05}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for _ in range(shape.n_groups):
                n_rows = int(random.integers(shape.rows[0], shape.rows[1] + 1))
                values = random.standard_normal((shape.n_columns, n_rows), dtype=np.float32)
                columns = [np.full(n_rows, seq_id), np.arange(n_rows, dtype=np.int32), *values]
                writer.write_table(
                    pa.table([pa.array(c) for c in columns], schema=schema), row_group_size=n_rows
                )
                seq_id += 1
        paths.append(path)
    return paths
