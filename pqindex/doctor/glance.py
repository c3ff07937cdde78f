"""One line on the layout of an index, from two of its tables."""

from __future__ import annotations

import numpy as np

from pqindex.sidecar import Sidecar


def glance(sidecar: Sidecar) -> str:
    """Return in a few words how the sequences lie, and what a read of one costs.

    Cost: some columns of `sequences` and `row_groups`; a few milliseconds for ten thousand sequences. All columns of
    the source count, and pages do not: `examine` is for both.
    """
    totals = sidecar.snapshot.totals
    n = totals["n_sequences"]
    if not n:
        return "no sequences"
    groups = sidecar.some_columns("row_groups", ["n_rows", "total_compressed_size"])
    group_rows = groups.column("n_rows").to_numpy()
    group_bytes = groups.column("total_compressed_size").to_numpy().astype(np.float64)
    counts = sidecar.files.column("n_row_groups").to_numpy().astype(np.int64)
    base = np.cumsum(counts) - counts
    if totals["n_segments"] == n:
        places = sidecar.some_columns("sequences", ["row_count"])
        file_id, row_group = places.column("file_id").to_numpy(), places.column("row_group").to_numpy()
        rows = places.column("row_count").to_numpy()
    else:
        segments = sidecar.segments
        file_id, row_group, rows = (
            segments.file_id,
            segments.row_group,
            segments.row_stop - segments.row_start,
        )
    group = base[file_id] + row_group
    own = float((group_bytes[group] * rows / np.maximum(group_rows[group], 1)).sum())
    cost = float(group_bytes[group].sum()) / own if own else 1.0
    if len(group) == n and bool((rows == group_rows[group]).all()):
        return f"one sequence per row group, reads cost {cost:.1f}x their bytes"
    per_group = float(np.median(np.bincount(group)[np.unique(group)]))
    words = [f"{per_group:,.0f} sequence{'s' * (per_group != 1)} per row group at the median"]
    if len(group) > n:
        words.append(f"{len(group) / n:.1f} pieces per sequence")
    if any("pages" in part.tables for part in sidecar.snapshot.parts):
        words.append(f"page places recorded (a read of whole row groups costs {cost:.1f}x)")
    else:
        words.append(f"read whole, which costs a sequence {cost:.1f}x its bytes")
    return ", ".join(words)
