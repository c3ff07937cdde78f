"""The length of each sequence, by which a plan with a budget makes its batches."""

from __future__ import annotations

import difflib
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.errors import ColumnMissingError, ColumnTypeError, UsageError
from pqindex.torch.stops import Int64Array


class Measured(Protocol):
    """What is asked of a selection or manifest."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    @property
    def row_counts(self) -> Int64Array:
        """Rows of each sequence."""
        ...

    @property
    def extra(self) -> pa.Table:
        """The query's other columns."""
        ...


def lengths_of(source: Measured, length: str | npt.ArrayLike | None) -> Int64Array:
    """Return the length of each sequence: its rows, a column of the query, or what is given.

    Returns
    -------
    ndarray, shape (n,), int64

    Raises
    ------
    ColumnMissingError, ColumnTypeError
        If the query has no such column, or not of integers that are there and not negative.
    UsageError
        If what is given is no length for each sequence.
    """
    if length is None:
        return np.asarray(source.row_counts, np.int64)
    if isinstance(length, str):
        return _column_of_lengths(source.extra, length)
    lengths = np.asarray(length)
    if lengths.shape != (len(source),) or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise UsageError(
            f"length is an array of shape {lengths.shape}, {lengths.dtype}; expected {len(source)} integers, none "
            "negative",
            hint="give a length for each sequence, in the selection's order",
        )
    return lengths.astype(np.int64)


def _column_of_lengths(extra: pa.Table, name: str) -> Int64Array:
    if name not in extra.column_names:
        near = difflib.get_close_matches(name, extra.column_names, n=3, cutoff=0.5)
        raise ColumnMissingError(
            f"the query has no column {name!r} for the lengths; it has {', '.join(extra.column_names) or 'none'}",
            hint=f"did you mean {' or '.join(map(repr, near))}?"
            if near
            else f"name it in the query, beside seq_id: SELECT seq_id, {name}",
            column=name,
        )
    column = extra.column(name)
    if not pa.types.is_integer(column.type):
        wrong = f"its type is {column.type}"
    elif column.null_count:
        at = int(np.flatnonzero(column.is_null().to_numpy())[0])
        wrong = f"it is null for position {at}"
    else:
        lengths: Int64Array = column.to_numpy().astype(np.int64)
        if not (lengths < 0).any():
            return lengths
        wrong = f"it is negative for position {int((lengths < 0).argmax())}"
    raise ColumnTypeError(
        f"column {name!r} of the query cannot be lengths: {wrong}; expected integers, none null or negative",
        hint="cast it in the query, with CAST(... AS BIGINT), or leave such sequences out",
        column=name,
    )
