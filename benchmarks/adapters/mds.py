"""MosaicML streaming's own format, MDS: shards with a sample for each sequence."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.adapters.base import Adapter, padded, worker_options
from benchmarks.adapters.raw import read_all


def _stand_in_for_torchvision() -> None:
    """Let `streaming` import names of torchvision, whose wheels fail beside a CPU torch; images alone use them."""
    names = (
        "torchvision",
        "torchvision.datasets",
        "torchvision.transforms",
        "torchvision.transforms.functional",
    )
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        sys.modules.setdefault(name, module)
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]


_stand_in_for_torchvision()

import streaming  # noqa: E402  # after its stand-in


class MDS(Adapter):
    """A sample a sequence: its id and its values as an array of float32."""

    def prepare(self) -> None:
        """Write the shards, uncompressed, of the library's own size."""
        columns = {"seq_id": "int", "x": "ndarray:float32"}
        with streaming.MDSWriter(out=str(self.home / "shards"), columns=columns) as writer:
            for position, values in enumerate(read_all(self.source)):
                writer.write({"seq_id": position, "x": values.numpy()})

    def open(self) -> None:
        """Open the shards."""
        streaming.base.util.clean_stale_shared_memory()
        self.samples = streaming.StreamingDataset(
            local=str(self.home / "shards"),
            shuffle=True,
            shuffle_seed=1,
            batch_size=32,
            allow_unsafe_types=False,
        )

    def close(self) -> None:
        """Drop the dataset."""
        del self.samples

    def read(self, position: int) -> torch.Tensor:
        """Return the values of a sample as a tensor of its own."""
        return torch.tensor(self.samples[position]["x"])

    def loader(self, *, batch_size: int, num_workers: int) -> Iterable[dict[str, Any]]:
        """Return a DataLoader over the dataset, which shuffles by its own rule."""
        options = worker_options(num_workers) | {"collate_fn": _padded_samples}
        return DataLoader(self.samples, batch_size=batch_size, **options)


def _padded_samples(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return padded([(sample["seq_id"], torch.tensor(sample["x"])) for sample in samples])
