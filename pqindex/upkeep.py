"""One part of several: the same index, which opens faster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from pqindex.documents import Snapshot
from pqindex.format import CHUNK_FACTS
from pqindex.sidecar import SegmentArrays, Sidecar, Tables, commit, write_part, writing


def compact_index(sidecar: Sidecar) -> Sidecar:
    """Commit a snapshot with the same content in one part, and return it; one that has one part is returned as it is.

    The part is the one that a build of the same files writes. Of the source nothing is read. The old parts stay as
    long as there are snapshots that have them.

    Raises
    ------
    ConflictError
        If another writer committed at the same time.
    """
    old = sidecar.snapshot
    if len(old.parts) == 1 and not old.parts[0].removed_files:
        return sidecar
    files = sidecar.files
    numbers = files.column("schema_no").to_numpy()
    used, firsts = np.unique(numbers, return_index=True)
    in_order = used[np.argsort(firsts)]
    renumbered = np.zeros(len(old.schemas), np.int32)
    renumbered[in_order] = np.arange(len(in_order), dtype=np.int32)
    at = files.column_names.index("schema_no")
    files = files.set_column(at, files.field(at), pa.array(renumbered[numbers]))
    tables: dict[str, pa.Table] = {
        "files": files,
        "row_groups": sidecar.row_groups,
        "sequences": sidecar.sequences,
        "chunks": sidecar.chunks(list(CHUNK_FACTS)),
    }
    segments = _segments_table(sidecar.segments)
    if segments.num_rows:
        tables["segments"] = segments
    if sidecar.pages.num_rows:
        tables["pages"] = sidecar.pages
    return _commit(sidecar, tables, replace(old, schemas=tuple(old.schemas[int(i)] for i in in_order)))


def _commit(sidecar: Sidecar, tables: Tables, old: Snapshot) -> Sidecar:
    notes = dict.fromkeys(note for part in old.parts for note in part.notes)
    with writing(sidecar.path):
        part, _ = write_part(sidecar.path, tables, list(notes))
        snapshot = replace(
            old,
            number=old.number + 1,
            parent=old.number,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            parts=(part,),
        )
        return commit(sidecar.path, snapshot)


def _segments_table(segments: SegmentArrays) -> pa.Table:
    """Return the rows of the table `segments`: those of the sequences that have more than one."""
    counts = np.diff(segments.stops)
    of_segment = np.repeat(np.arange(len(counts)), counts)
    several = np.flatnonzero(counts[of_segment] > 1)
    numbers = np.arange(len(of_segment)) - segments.stops[of_segment]
    return pa.table(
        {
            "sequence_row": of_segment[several],
            "segment": numbers[several].astype(np.int32),
            "file_id": segments.file_id[several],
            "row_group": segments.row_group[several],
            "row_start": segments.row_start[several],
            "row_stop": segments.row_stop[several],
        }
    )
