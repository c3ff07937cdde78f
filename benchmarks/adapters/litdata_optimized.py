"""LitData's own format: chunks with an item for each sequence."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import litdata
import torch

from benchmarks.adapters.base import Adapter, padded
from benchmarks.adapters.raw import read_all


class LitOptimized(Adapter):
    """Chunks of 64 MB, written by one process with the library's writer."""

    def prepare(self) -> None:
        """Write an item a sequence."""
        writer = litdata.streaming.cache.Cache(str(self.home / "chunks"), chunk_bytes=64 << 20)
        for position, values in enumerate(read_all(self.source)):
            writer[position] = {"seq_id": position, "x": values.contiguous()}
        writer.done()
        writer.merge()

    def open(self) -> None:
        """Open the chunks."""
        self.items = litdata.StreamingDataset(str(self.home / "chunks"), shuffle=True, seed=1)
        self.in_order = litdata.StreamingDataset(str(self.home / "chunks"))

    def close(self) -> None:
        """Drop the datasets."""
        del self.items, self.in_order

    def read(self, position: int) -> torch.Tensor:
        """Return the tensor of an item."""
        return self.in_order[position]["x"]

    def loader(self, *, batch_size: int, num_workers: int) -> Iterable[dict[str, Any]]:
        """Return the library's own loader, which shuffles chunks and inside them."""
        os.environ.setdefault("LITDATA_LOG_LEVEL", "ERROR")
        return litdata.StreamingDataLoader(
            self.items,
            batch_size=batch_size,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=_padded_items,
        )


def _padded_items(items: list[dict[str, Any]]) -> dict[str, Any]:
    return padded([(item["seq_id"], item["x"]) for item in items])
