"""PyArrow at its best, with every file open and with at most 128 of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pyarrow.parquet as pq
import torch

from benchmarks.adapters.base import Adapter, stacked
from benchmarks.shapes import Source


class Raw(Adapter):
    """The floor: no pre-buffering, no threads, one row group decoded and cut, its columns stacked.

    Files are opened at their first read and stay open.
    """

    max_open = 1 << 30

    def open(self) -> None:
        """Begin with no file open."""
        self.files: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self.places = self.source.places
        self.columns = self.source.columns

    def close(self) -> None:
        """Close every file."""
        for file in self.files.values():
            file.close()
        self.files.clear()

    def read(self, position: int) -> torch.Tensor:
        """Return a sequence through its file's handle."""
        file, group, start, n_rows = self.places[position]
        handle = self.files.get(file)
        if handle is None:
            if len(self.files) >= self.max_open:
                self.files.popitem(last=False)[1].close()
            handle = self.files[file] = pq.ParquetFile(self.source.paths[file], pre_buffer=False)
        else:
            self.files.move_to_end(file)
        table = handle.read_row_group(group, columns=self.columns, use_threads=False)
        return stacked(table.slice(start, n_rows))


class Handles(Raw):
    """The same with an LRU of open files, as one must where there are more files than memory for footers."""

    max_open = 128


def read_all(source: Source) -> Iterator[torch.Tensor]:
    """Give every sequence in order, each row group decoded once: what a conversion starts from."""
    per_group = source.shape.per_group
    lengths = iter(source.lengths.reshape(-1, per_group).tolist())
    for path in source.paths:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=source.columns, use_threads=False)
                yield from stacked(table).split(next(lengths))
