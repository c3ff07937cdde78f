"""LitData over the Parquet files as they are: random access by row; a sequence is asked for row by row."""

from __future__ import annotations

import os
from collections.abc import Iterator

import litdata
import torch
from litdata.streaming.item_loader import ParquetLoader

from benchmarks.adapters.base import Adapter


class LitParquet(Adapter):
    """Its index of the folder, kept apart from the data, and its loader that reads a row group at a time."""

    def prepare(self) -> None:
        """Write the index of the files."""
        (self.home / "index").mkdir()
        litdata.index_parquet_dataset(str(self.source.data), cache_dir=str(self.home / "index"))

    def open(self) -> None:
        """Open the dataset and find where each of our files begins in its own order of files."""
        self.rows = litdata.StreamingDataset(
            str(self.source.data),
            item_loader=ParquetLoader(columns=self.source.columns),
            index_path=str(self.home / "index"),
            cache_dir=str(self.home / "cache"),
        )
        len(self.rows)
        per_file = self.source.shape.n_groups * self.source.shape.per_group
        begins = dict(self._begins())
        self.shifts = [
            begins[os.path.basename(path)] - int(self.source.starts[number * per_file])
            for number, path in enumerate(self.source.paths)
        ]
        self.per_file = per_file

    def _begins(self) -> Iterator[tuple[str, int]]:
        self.rows[0]  # the order of files is known after the first read
        begin = 0
        for chunk in self.rows.cache._reader.config._chunks:
            yield os.path.basename(chunk["filename"]), begin
            begin += chunk["chunk_size"]

    def close(self) -> None:
        """Drop the dataset."""
        del self.rows

    def read(self, position: int) -> torch.Tensor:
        """Return the rows of a sequence, one by one."""
        start = int(self.source.starts[position]) + self.shifts[position // self.per_file]
        stop = start + int(self.source.lengths[position])
        rows = [self.rows[row] for row in range(start, stop)]
        return torch.tensor([list(row.values()) if isinstance(row, dict) else list(row) for row in rows])
