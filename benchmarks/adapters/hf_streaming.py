"""Hugging Face datasets, streaming over the Parquet files: files in random order, sequences in file order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.adapters.base import Adapter, Pair, stacked, worker_options


class HFStreaming(Adapter):
    """Tables of consecutive rows, cut where the id changes.

    The library's shuffle mixes rows, also those of several files, and would tear sequences apart. So only the
    order of the files is shuffled, once, by us: this does less than the others do.
    """

    reads_at_random = False

    def open(self) -> None:
        """Name the files, in random order."""
        datasets.disable_progress_bars()
        self.stream = datasets.load_dataset(
            "parquet",
            data_files=np.random.default_rng(1).permutation(self.source.paths).tolist(),
            split="train",
            streaming=True,
            columns=["seq_id", *self.source.columns],
            cache_dir=str(self.home),
        ).with_format("arrow")

    def close(self) -> None:
        """Drop the stream."""
        del self.stream

    def loader(self, *, batch_size: int, num_workers: int) -> Iterable[dict[str, Any]]:
        """Return a DataLoader over the stream, whose workers share the files."""
        sequences = _Sequences(self.stream, self.source.columns)
        return DataLoader(sequences, batch_size=batch_size, **worker_options(num_workers))


class _Sequences(IterableDataset[Pair]):
    """The stream's rows as sequences."""

    def __init__(self, stream: datasets.IterableDataset, columns: list[str]) -> None:
        self.stream = stream
        self.columns = columns

    def __iter__(self) -> Iterator[Pair]:
        held: list[Any] = []
        held_id = -1
        for table in self.stream.iter(batch_size=4096):
            ids = table["seq_id"].to_numpy()
            cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
            values = stacked(table.select(self.columns))
            for start, stop in pairwise(cuts):
                if ids[start] != held_id and held:
                    yield held_id, held[0] if len(held) == 1 else held[0].new_tensor(np.concatenate(held))
                    held = []
                held_id = int(ids[start])
                held.append(values[start:stop])
        if held:
            yield held_id, held[0].new_tensor(np.concatenate(held))
