"""Parquet files to measure on, made from a seed, and where their sequences lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = 10
"""So many columns are read, or all where a shape has fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layout: `n_files` files of `n_groups` row groups, each `per_group` sequences of `rows` rows of floats.

    `options` are the writer's, on top of or instead of zstd.
    """

    key: str
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
    Shape(key="A", name="one sequence a group", n_files=200, n_groups=64, rows=(200, 800), n_columns=16),
    Shape(key="B", name="5,000 small groups a file", n_files=2, n_groups=5000, rows=(20, 60), n_columns=32),
    Shape(
        key="C",
        name="200 sequences a group",
        n_files=4,
        n_groups=4,
        rows=(500, 500),
        n_columns=10,
        per_group=200,
    ),
    Shape(
        key="D",
        name="as C, plain, small pages",
        n_files=4,
        n_groups=4,
        rows=(500, 500),
        n_columns=10,
        per_group=200,
        options={"use_dictionary": ["seq_id"], "data_page_size": 8192, "write_batch_size": 2048},
    ),
)
QUICK = (
    Shape(key="A", name="small, one sequence a group", n_files=6, n_groups=16, rows=(20, 60), n_columns=8),
    Shape(
        key="C",
        name="small, 20 sequences a group",
        n_files=2,
        n_groups=2,
        rows=(50, 50),
        n_columns=8,
        per_group=20,
    ),
)


def _in_codecs(shape: Shape, combinations: Iterable[tuple[str, bool]]) -> tuple[Shape, ...]:
    """Return a shape in other codecs, with and without the dictionaries that PyArrow makes by default."""
    variants = []
    for codec, has_dictionary in combinations:
        encoding = "dictionary" if has_dictionary else "plain"
        options = {"compression": codec, "use_dictionary": True if has_dictionary else ["seq_id"]}
        key, name = f"{shape.key}-{codec}-{encoding}", f"as {shape.key}, {codec}, {encoding}"
        variants.append(replace(shape, key=key, name=name, options=options))
    return tuple(variants)


CODECS = _in_codecs(
    replace(FULL[0], n_files=50),
    (
        (codec, has_dictionary)
        for codec in ("zstd", "lz4", "snappy", "none")
        for has_dictionary in (True, False)
    ),
)
"""A quarter of the first shape, which is zstd with dictionaries itself, in eight ways."""
QUICK_CODECS = _in_codecs(QUICK[0], [("lz4", False)])


@dataclass(frozen=True)
class Source:
    """The files of a shape below a folder; the sequence at position i has the id i.

    `places` tells each reader what it would have to find out for itself, so that the floor pays for no search.
    It is loaded at its first use in a process.
    """

    shape: Shape
    folder: Path

    @property
    def data(self) -> Path:
        """The folder of the Parquet files."""
        return self.folder / "data"

    @cached_property
    def paths(self) -> list[str]:
        """The files, in order."""
        return [str(self.data / f"part-{number:05}.parquet") for number in range(self.shape.n_files)]

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [f"f{i}" for i in range(min(COLUMNS, self.shape.n_columns))]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Rows of each sequence: shape (n,), int64."""
        return np.load(self.folder / "lengths.npy")

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """Number of rows of all files before each sequence: shape (n,), int64."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def places(self) -> list[tuple[int, int, int, int]]:
        """File, row group, first row in it and number of rows, of each sequence."""
        shape = self.shape
        positions = np.arange(shape.n_sequences)
        groups = positions // shape.per_group
        first_of_group = self.starts[groups * shape.per_group]
        columns = (
            groups // shape.n_groups,
            groups % shape.n_groups,
            self.starts - first_of_group,
            self.lengths,
        )
        return list(zip(*(column.tolist() for column in columns), strict=True))


def write(shape: Shape, folder: Path, *, seed: int = 7) -> Source:
    """Write the files of a shape with pyarrow, and zstd unless the shape says otherwise."""
    source = Source(shape, folder)
    source.data.mkdir()
    random = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(shape.n_columns)]
    schema = pa.schema([("seq_id", pa.int64()), ("t", pa.int32()), *((name, pa.float32()) for name in names)])
    seq_id = 0
    all_lengths = []
    for path in source.paths:
        with pq.ParquetWriter(path, schema, **({"compression": "zstd"} | dict(shape.options))) as writer:
            for _ in range(shape.n_groups):
                lengths = random.integers(shape.rows[0], shape.rows[1] + 1, shape.per_group)
                ids = np.repeat(np.arange(seq_id, seq_id + shape.per_group), lengths)
                steps = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
                values = random.standard_normal((shape.n_columns, len(ids)), dtype=np.float32)
                columns = [pa.array(column) for column in (ids, steps, *values)]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=len(ids))
                seq_id += shape.per_group
                all_lengths.append(lengths)
    np.save(folder / "lengths.npy", np.concatenate(all_lengths).astype(np.int64))
    return source
