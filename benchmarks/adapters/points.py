"""DuckDB asked for one sequence at a time, over the Parquet files as they are."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import torch

from benchmarks.adapters.base import Adapter


class Points(Adapter):
    """One query for each read or batch, on one thread, with DuckDB's own cache of footers.

    Workers are spawned: its threads do not come through a fork.
    """

    start_method = "spawn"

    def open(self) -> None:
        """Connect; the files are looked at by the queries."""
        self.connection = duckdb.connect()
        self.connection.execute("SET threads = 1; SET parquet_metadata_cache = true")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def read(self, position: int) -> torch.Tensor:
        """Return the rows with one id."""
        return self.read_batch([position])[0]

    def read_batch(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return the rows of some ids, by one query, in the order asked for."""
        names = ", ".join(self.source.columns)
        answer = self.connection.execute(
            f"SELECT seq_id, {names} FROM read_parquet(?) WHERE seq_id IN ({', '.join('?' * len(positions))}) "  # noqa: S608  # our names and question marks
            "ORDER BY seq_id, t",
            [self.source.paths, *positions],
        ).fetchnumpy()
        values = np.stack([answer[name] for name in self.source.columns], axis=1)
        first = np.searchsorted(answer["seq_id"], positions)
        n_rows = self.source.lengths[list(positions)]
        return [torch.from_numpy(values[a : a + n]) for a, n in zip(first, n_rows, strict=True)]
