"""Hugging Face datasets, map-style: Arrow files with a row for each sequence, which are memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import torch

from benchmarks.adapters.base import Adapter
from benchmarks.adapters.raw import read_all


class HFArrow(Adapter):
    """A row a sequence: its values as one flat list of float32."""

    def prepare(self) -> None:
        """Write the rows with `Dataset.from_generator`, and save them; the generator's cache is removed."""
        features = datasets.Features({"x": datasets.List(datasets.Value("float32"))})
        datasets.disable_progress_bars()

        def rows() -> Iterator[dict[str, Any]]:
            for values in read_all(self.source):
                yield {"x": values.flatten().numpy()}

        cache = self.home / "cache"
        made = datasets.Dataset.from_generator(rows, features=features, cache_dir=str(cache))
        made.save_to_disk(str(self.home / "rows"))
        made.cleanup_cache_files()
        del made
        for path in sorted(cache.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def open(self) -> None:
        """Map the files."""
        self.rows = datasets.load_from_disk(str(self.home / "rows")).with_format("numpy")
        self.width = len(self.source.columns)

    def close(self) -> None:
        """Drop the maps."""
        del self.rows

    def read(self, position: int) -> torch.Tensor:
        """Return a row as a tensor of its own."""
        return torch.tensor(self.rows[position]["x"]).view(-1, self.width)

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return some rows that were asked for together."""
        found = self.rows[list(positions)]["x"]
        return [torch.tensor(values).view(-1, self.width) for values in found]
