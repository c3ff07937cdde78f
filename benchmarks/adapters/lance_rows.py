"""Lance: a data set with a row for each sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import lance
import pyarrow as pa
import torch

from benchmarks.adapters.base import Adapter
from benchmarks.adapters.raw import read_all

SCHEMA = pa.schema([("x", pa.list_(pa.float32()))])


class LanceRows(Adapter):
    """A row a sequence: its values as one flat list of float32. Workers are spawned: Lance forbids fork."""

    start_method = "spawn"

    def prepare(self) -> None:
        """Write the rows in batches of a thousand."""
        lance.write_dataset(
            pa.RecordBatchReader.from_batches(SCHEMA, self._batches()), str(self.home / "rows.lance")
        )

    def _batches(self) -> Iterator[pa.RecordBatch]:
        sequences = read_all(self.source)
        while part := list(islice(sequences, 1000)):
            stops = torch.tensor([0, *(values.numel() for values in part)]).cumsum(0).int().numpy()
            flat = torch.cat([values.flatten() for values in part]).numpy()
            yield pa.RecordBatch.from_arrays(
                [pa.ListArray.from_arrays(pa.array(stops), pa.array(flat))], schema=SCHEMA
            )

    def open(self) -> None:
        """Open the data set."""
        self.rows = lance.dataset(str(self.home / "rows.lance"))
        self.width = len(self.source.columns)

    def close(self) -> None:
        """Drop the data set."""
        del self.rows

    def read(self, position: int) -> torch.Tensor:
        """Take one row."""
        return self.read_batch([position])[0]

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Take some rows with one call, in the order asked for."""
        taken = self.rows.take(list(positions), columns=["x"])["x"]
        return [torch.tensor(row.values.to_numpy()).view(-1, self.width) for row in taken]
