"""indexed-parquet-dataset: random access by row; a sequence is asked for as its rows, together."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from indexed_parquet_dataset import IndexedParquetDataset

from benchmarks.adapters.base import Adapter


class IndexedParquet(Adapter):
    """Its index of the folder, saved, and its cache of 128 files and 16 row groups."""

    def prepare(self) -> None:
        """Scan the folder and save the index."""
        IndexedParquetDataset.from_folder(str(self.source.data)).save_index(str(self.home / "index"))

    def open(self) -> None:
        """Load the index and find where each of our files begins in it."""
        (index,) = self.home.iterdir()
        dataset = IndexedParquetDataset.load_index(str(index))
        self.dataset = dataset.select_columns(self.source.columns)
        begins = {
            os.path.basename(file.path): int(begin)
            for file, begin in zip(dataset.index.files, dataset.file_offsets, strict=False)
        }
        per_file = self.source.shape.n_groups * self.source.shape.per_group
        self.shifts = [
            begins[os.path.basename(path)] - int(self.source.starts[number * per_file])
            for number, path in enumerate(self.source.paths)
        ]
        self.per_file = per_file

    def close(self) -> None:
        """Drop the open files."""
        del self.dataset

    def read(self, position: int) -> torch.Tensor:
        """Return the rows of a sequence."""
        return self.read_batch([position])[0]

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return the rows of some sequences, asked for in one call."""
        rows: list[int] = []
        for position in positions:
            start = int(self.source.starts[position]) + self.shifts[position // self.per_file]
            rows.extend(range(start, start + int(self.source.lengths[position])))
        found = self.dataset.__getitems__(rows)
        values = np.array([list(row.values()) for row in found], np.float32)
        return list(torch.from_numpy(values).split(self.source.lengths[list(positions)].tolist()))
