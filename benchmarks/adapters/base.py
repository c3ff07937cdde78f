"""What every contender must be able to do, and what it gets for nothing."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.shapes import Source

Pair = tuple[int, torch.Tensor]
"""A sequence's position, and its values: shape (T, F), float32."""


class Adapter(ABC):
    """One way to read the sequences of a source. It has one process of its own, and pickles unopened.

    Parameters
    ----------
    source : Source
        The Parquet files.
    home : Path
        An empty folder for what `prepare` makes; its size is the disk that the contender takes.
    """

    reads_at_random: ClassVar[bool] = True
    """Whether there is a `read`; streams have none."""
    fills_a_cache: ClassVar[bool] = False
    """Whether a first epoch leaves something behind for the second, so that it must not be cut."""
    start_method: ClassVar[str | None] = None
    """How worker processes are started; None is torch's own way."""

    def __init__(self, source: Source, home: Path) -> None:
        self.source = source
        self.home = home
        self.running: Iterable[dict[str, Any]] | None = None  # the loader, between the epochs of a measure

    def prepare(self) -> None:  # noqa: B027  # many need nothing
        """Make whatever is needed besides the Parquet files: an index, or a copy in another format."""

    @abstractmethod
    def open(self) -> None:
        """Get ready to read, in this process."""

    def close(self) -> None:  # noqa: B027  # many hold nothing
        """Let go of files and memory."""

    def shared_bytes(self) -> int:
        """Return what is kept in memory that belongs to no process."""
        return 0

    def finish(self) -> None:
        """Let go of all, also of what would outlive the process and does not lie in `home`."""
        self.close()

    def forget(self) -> None:
        """Become a new reader, as a worker is that has not touched a file yet."""
        self.close()
        self.open()

    def enter_worker(self) -> None:
        """Get ready to read in a worker process, which was forked from an open adapter or is new.

        What came through a fork is dropped, not closed: it belongs to the parent.
        """
        self.open()

    def read(self, position: int) -> torch.Tensor:
        """Return the values of a sequence: shape (T, F), float32."""
        raise NotImplementedError(f"{type(self).__name__} streams: sequence {position} cannot be asked for")

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return the values of some sequences, in their order."""
        return [self.read(position) for position in positions]

    def loader(self, *, batch_size: int, num_workers: int) -> Iterable[dict[str, Any]]:
        """Return a DataLoader whose every iteration is a shuffled epoch of batches as `padded` makes them."""
        return DataLoader(
            Positions(self),
            batch_size=batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(1),
            **worker_options(num_workers, self.start_method),
        )

    def __getstate__(self) -> tuple[Source, Path]:
        return self.source, self.home

    def __setstate__(self, state: tuple[Source, Path]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # an adapter in another process starts unopened


class Positions(Dataset[Pair]):
    """The sequences of an adapter by position, for a DataLoader; opened once in each process."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.opened_in = os.getpid()

    def __len__(self) -> int:
        return self.adapter.source.shape.n_sequences

    def __getitems__(self, positions: list[int]) -> list[Pair]:
        """Return some sequences with their positions."""
        if self.opened_in != os.getpid():
            self.adapter.enter_worker()
            self.opened_in = os.getpid()
        return list(zip(positions, self.adapter.read_batch(positions), strict=True))


def worker_options(num_workers: int, start_method: str | None = None) -> dict[str, Any]:
    """Return the arguments of a DataLoader that have to do with workers and batches."""
    return {
        "collate_fn": padded,
        "num_workers": num_workers,
        "persistent_workers": num_workers > 0,
        "multiprocessing_context": start_method if num_workers else None,
    }


def padded(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return a batch: "seq_id" and "lengths" of shape (B,), and "x" of shape (B, T_max, F) with zeros at the end."""
    positions, values = zip(*pairs, strict=True)
    return {
        "seq_id": torch.tensor(positions),
        "lengths": torch.tensor([len(value) for value in values]),
        "x": torch.nn.utils.rnn.pad_sequence(values, batch_first=True),
    }


def stacked(table: pa.Table) -> torch.Tensor:
    """Return columns of floats side by side: shape (rows, columns), float32."""
    values = np.empty((table.num_rows, table.num_columns), np.float32)
    for number, column in enumerate(table.columns):
        values[:, number] = column.to_numpy()
    return torch.from_numpy(values)
