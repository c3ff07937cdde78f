"""WebDataset: tar files with an array for each sequence, read from end to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import webdataset

from benchmarks.adapters.base import Adapter, padded, worker_options
from benchmarks.adapters.raw import read_all

SHARDS = 16
BUFFER = 1000


class Tars(Adapter):
    """Sixteen shards; their order is shuffled, and samples in a buffer of a thousand. No random access."""

    reads_at_random = False

    def prepare(self) -> None:
        """Write a .npy a sequence."""
        per_shard = -(-self.source.shape.n_sequences // SHARDS)
        pattern = str(self.home / "%06d.tar")
        with webdataset.ShardWriter(pattern, maxcount=per_shard, verbose=0) as writer:
            for position, values in enumerate(read_all(self.source)):
                writer.write({"__key__": str(position), "x.npy": values.numpy()})

    def open(self) -> None:
        """List the shards."""
        self.shards = sorted(str(path) for path in self.home.glob("*.tar"))

    def loader(self, *, batch_size: int, num_workers: int) -> Iterable[dict[str, Any]]:
        """Return WebDataset's own loader over shuffled shards."""
        samples = (
            webdataset.WebDataset(self.shards, shardshuffle=len(self.shards), empty_check=False, seed=1)
            .shuffle(BUFFER)
            .decode()
            .to_tuple("__key__", "x.npy")
            .batched(batch_size, collation_fn=_padded_samples)
        )
        options = worker_options(num_workers) | {"collate_fn": None}
        return webdataset.WebLoader(samples, batch_size=None, **options)


def _padded_samples(samples: list[tuple[str, Any]]) -> dict[str, Any]:
    return padded([(int(key), torch.from_numpy(values)) for key, values in samples])
