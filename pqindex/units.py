"""Sequences that no column names: each row, each row group or each file is one, and its id says where it lies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEY = "key"
UNITS = (KEY, "row", "row_group", "file")

BLOCK = 1 << 20
"""Ids are made so many at a time, which bounds the memory of the parts they are joined from."""


def unit_ids(
    unit: str,
    paths: pa.Array,
    file_id: npt.NDArray[np.int32],
    row_group: npt.NDArray[np.int32],
    row_start: npt.NDArray[np.int64],
) -> pa.ChunkedArray:
    """Return the id of each unit (rule U1): ``PATH``, ``PATH#GROUP`` or ``PATH#GROUP:ROW``.

    Numbers are decimal, from 0, and rows are counted inside their row group. No Python loop over units.

    Parameters
    ----------
    unit
        ``"file"``, ``"row_group"`` or ``"row"``.
    paths : pa.Array of string
        Path of each file.
    file_id, row_group, row_start : ndarray, shape (n,)
        Where each unit begins.

    Returns
    -------
    pa.ChunkedArray of string, length n

    Examples
    --------
    >>> unit_ids("row", pa.array(["a.parquet"]), np.zeros(1, int), np.array([2]), np.array([5])).to_pylist()
    ['a.parquet#2:5']
    """
    blocks = [
        _joined(unit, paths, file_id[a : a + BLOCK], row_group[a : a + BLOCK], row_start[a : a + BLOCK])
        for a in range(0, len(file_id), BLOCK)
    ]
    return pa.chunked_array(blocks, pa.string())


def _joined(unit: str, paths: pa.Array, file_id: object, row_group: object, row_start: object) -> pa.Array:
    parts: Sequence[object] = [paths.take(pa.array(file_id))]
    if unit != "file":
        parts = [*parts, "#", pc.cast(pa.array(row_group), pa.string())]
    if unit == "row":
        parts = [*parts, ":", pc.cast(pa.array(row_start), pa.string())]
    return pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else parts[0]
