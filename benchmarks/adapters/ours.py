"""pqindex: tensors from `SequenceDataset`, and Arrow tables from `Reader` that are stacked as the floor's are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

import pqindex
from benchmarks.adapters.base import Adapter, stacked
from pqindex import caches
from pqindex.reader import GROUP_CACHE_BYTES
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader, collate_padded


class _Ours(Adapter):
    """An index beside the data, and all of its sequences."""

    def prepare(self) -> None:
        """Build the index, with as many processes as pqindex thinks fit."""
        pqindex.build(self.source.data, index=self.home / "data.pqindex")

    def selection(self) -> pqindex.Selection:
        """Return every sequence in canonical order."""
        return pqindex.open(self.home / "data.pqindex").select()


class OurReader(_Ours):
    """Arrow tables from one reader, whose decoded row groups are kept if they hold several sequences."""

    group_cache_bytes = GROUP_CACHE_BYTES

    def open(self) -> None:
        """Resolve the selection to byte places."""
        self.reader = pqindex.Reader(
            self.selection(), columns=self.source.columns, group_cache_bytes=self.group_cache_bytes
        )

    def close(self) -> None:
        """Close every file."""
        self.reader.close()

    def forget(self) -> None:
        """Close every file; the read plan stays, as it does for a worker."""
        self.close()

    def enter_worker(self) -> None:
        """Go on with the reader that came through the fork; it opens files of its own."""
        if not hasattr(self, "reader"):
            self.open()

    def read(self, position: int) -> torch.Tensor:
        """Return a sequence's table, stacked."""
        return stacked(self.reader[position])

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return some sequences' tables that were read together, stacked."""
        return [stacked(table) for table in self.reader.read(positions)]


class BareReader(OurReader):
    """The reader without decoded row groups: in shared groups it does the work that the floor does."""

    group_cache_bytes = 0


class OurDataset(_Ours):
    """What users train from: items with their ids, batches by a plan, padded with a mask."""

    def open(self) -> None:
        """Resolve the selection to byte places."""
        self.chosen = self.selection()
        self.dataset = SequenceDataset(self.chosen, fields={"x": self.source.columns}, **self.cache())

    def cache(self) -> dict[str, Any]:
        """Return the arguments of a cache."""
        return {}

    def close(self) -> None:
        """Close every file."""
        self.dataset.close()

    def forget(self) -> None:
        """Close every file; the read plan stays, as it does for a worker."""
        self.close()

    def read(self, position: int) -> torch.Tensor:
        """Return the tensor of an item."""
        return self.dataset[position]["x"]

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return the tensors of items that were read together."""
        return [item["x"] for item in self.dataset.__getitems__(positions)]

    def loader(self, *, batch_size: int, num_workers: int) -> Iterable[dict[str, Any]]:
        """Return a `SequenceLoader` with a fully shuffled plan."""
        plan = BatchPlan(self.chosen, batch_size=batch_size, shuffle="full", seed=1, rank=0, world_size=1)
        return SequenceLoader(self.dataset, plan, collate_fn=collate_padded, num_workers=num_workers)


class DiskCached(OurDataset):
    """The same with decoded sequences kept in a file below its home, which the first epoch fills."""

    fills_a_cache = True

    def cache(self) -> dict[str, Any]:
        """Return where the file is."""
        return {"cache": "disk", "cache_dir": self.home / "cache"}


class MemoryCached(OurDataset):
    """The same with decoded sequences kept in shared memory, from which they are removed in the end."""

    fills_a_cache = True

    def cache(self) -> dict[str, Any]:
        """Return the kind of cache."""
        return {"cache": "memory"}

    def shared_bytes(self) -> int:
        """Return the size of the file in shared memory."""
        return sum(file.size_bytes for file in self._files())

    def finish(self) -> None:
        """Remove the file from shared memory."""
        for file in self._files():
            os.unlink(file.path)
        self.close()

    def _files(self) -> list[caches.CacheFile]:
        """Return the file of this dataset, which alone has the selection's key."""
        cache = self.dataset._cache
        return [
            file for file in caches.cache_files(["memory"]) if cache is not None and file.path == cache.path
        ]
