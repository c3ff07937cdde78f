"""numpy's memmap over one file of all values: what the machine can do when there is nothing to decode."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.adapters.base import Adapter
from benchmarks.adapters.raw import read_all


class Memmap(Adapter):
    """Rows of all sequences one after another, as float32, and where each begins."""

    def prepare(self) -> None:
        """Write the values and the offsets."""
        with (self.home / "values.f32").open("wb") as file:
            for values in read_all(self.source):
                file.write(values.numpy().data)
        np.save(self.home / "starts.npy", np.append(self.source.starts, self.source.lengths.sum()))

    def open(self) -> None:
        """Map the file."""
        self.starts = np.load(self.home / "starts.npy")
        flat = np.memmap(self.home / "values.f32", np.float32, mode="r")
        self.values = flat.reshape(-1, len(self.source.columns))

    def read(self, position: int) -> torch.Tensor:
        """Return a copy of the rows."""
        return torch.from_numpy(np.array(self.values[self.starts[position] : self.starts[position + 1]]))
