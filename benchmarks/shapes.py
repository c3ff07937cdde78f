"""Parquet files to measure on, made from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layout: `n_files` files of `n_groups` row groups, each `per_group` sequences of `rows` rows of floats.

    `options` are the writer's, on top of zstd.
    """

    name: str
    n_files: int
    n_groups: int
    rows: tuple[int, int]
    n_columns: int
    per_group: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_sequences(self) -> int:
        """Number of sequences of all files."""
        return self.n_files * self.n_groups * self.per_group


FULL = (
    Shape(name="A: one sequence a group", n_files=100, n_groups=64, rows=(200, 800), n_columns=32),
    Shape(name="B: 5,000 small groups a file", n_files=4, n_groups=5000, rows=(20, 60), n_columns=32),
    Shape(
        name="C: 200 sequences a group", n_files=4, n_groups=4, rows=(500, 500), n_columns=10, per_group=200
    ),
    Shape(
        name="D: as C, plain, small pages",
        n_files=4,
        n_groups=4,
        rows=(500, 500),
        n_columns=10,
        per_group=200,
        options={"use_dictionary": ["seq_id"], "data_page_size": 8192, "write_batch_size": 2048},
    ),
)
QUICK = (
    Shape(name="Q: quick look", n_files=8, n_groups=16, rows=(20, 60), n_columns=8),
    Shape(name="R: shared groups", n_files=2, n_groups=2, rows=(50, 50), n_columns=8, per_group=20),
)


def write(shape: Shape, folder: Path, *, seed: int = 7) -> list[Path]:
    """Write the files of a shape with pyarrow and zstd, and return their paths."""
    random = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(shape.n_columns)]
    schema = pa.schema([("seq_id", pa.int64()), ("t", pa.int32()), *((name, pa.float32()) for name in names)])
    paths = []
    seq_id = 0
    for number in range(shape.n_files):
        path = folder / f"part-{number:05}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd", **shape.options) as writer:
            for _ in range(shape.n_groups):
                lengths = random.integers(shape.rows[0], shape.rows[1] + 1, shape.per_group)
                ids = np.repeat(np.arange(seq_id, seq_id + shape.per_group), lengths)
                steps = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
                values = random.standard_normal((shape.n_columns, len(ids)), dtype=np.float32)
                columns = [pa.array(column) for column in (ids, steps, *values)]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=len(ids))
                seq_id += shape.per_group
        paths.append(path)
    return paths
