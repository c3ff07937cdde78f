"""What a report needs of the chunks besides what a read plan has: from an index, or from the footers themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pqindex.places import SourceFiles
from pqindex.query import chunk_fact, row_offsets
from pqindex.readplan import ReadPlan, check_file
from pqindex.sidecar import Sidecar


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFacts:
    """Facts about the row groups and chunks of a read plan.

    Attributes
    ----------
    chunk : callable
        From the name of a column of the table `chunks` to that fact of each chunk, in the plan's order.
    row_offset : callable
        Gives how many rows of its file stand before each row group, shape (n_groups,), int64.
    pages : str or None
        The option ``pages`` that the index was built with.
    """

    chunk: Callable[[str], npt.NDArray[Any]]
    row_offset: Callable[[], npt.NDArray[Any]]
    pages: str | None


def facts_of_index(sidecar: Sidecar, plan: ReadPlan) -> ChunkFacts:
    """Return the facts that an index has."""
    return ChunkFacts(
        chunk=lambda name: chunk_fact(sidecar, plan, name),
        row_offset=lambda: row_offsets(sidecar, plan),
        pages=sidecar.snapshot.options.pages,
    )


def facts_of_footers(files: SourceFiles, plan: ReadPlan) -> ChunkFacts:
    """Return the facts that the footers of the files have; each is read and parsed once.

    Raises
    ------
    SourceChangedError
        If a file is not the one that was pinned.
    """
    metas = [check_file(files, number, parse=True)[1] for number in range(len(files))]
    first_group = np.searchsorted(plan.group_file, np.arange(len(files) + 1))

    def chunk(name: str) -> npt.NDArray[Any]:
        found = []
        for number, meta in enumerate(metas):
            groups = plan.group_row_group[first_group[number] : first_group[number + 1]]
            leaves = plan.leaves_of(int(plan.schema_of_file[number]))
            values = getattr(meta.chunks, name) if meta is not None else np.zeros((0, 0), np.int64)
            found.append(values[np.ix_(groups, leaves)].ravel())
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def row_offset() -> npt.NDArray[Any]:
        found = np.zeros(len(plan.group_file), np.int64)
        for number, meta in enumerate(metas):
            own = slice(first_group[number], first_group[number + 1])
            if meta is not None:
                n_rows = np.asarray(meta.group_n_rows, np.int64)
                found[own] = (np.cumsum(n_rows) - n_rows)[plan.group_row_group[own]]
        return found

    return ChunkFacts(chunk=chunk, row_offset=row_offset, pages=None)
