"""Reads of some rows of a row group: the pages that hold them, instead of the whole chunks.

Columns whose pages begin at the same rows are decoded together, the others apart, and each part is cut to the asked
rows. Never here: whether that is cheaper than the whole group is said by `RowRange.n_bytes`; the reader decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pqindex.footer.blocks import Block
from pqindex.footer.paging import PagePlaces
from pqindex.footer.reading import ChunkPlaces
from pqindex.footer.synthetic import Projection, SchemaRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Fields whose pages hold the same rows: one decode.

    `spans` are (start, length) of the dictionary pages and of the data pages of each leaf, one behind the other.
    """

    fields: tuple[int, ...]
    leaves: tuple[int, ...]
    row_start: int
    row_stop: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """What to read for the rows ``[row_start, row_stop)`` of a row group.

    Attributes
    ----------
    parts : tuple
        What is decoded together.
    n_bytes : int
        Bytes of all pages.
    n_dictionary_bytes : int
        Those of dictionary pages among them.
    """

    row_start: int
    row_stop: int
    parts: tuple[_Part, ...]
    n_bytes: int
    n_dictionary_bytes: int

    @property
    def covered_stop(self) -> int:
        """The row behind the last one that some page of the range holds."""
        return max((part.row_stop for part in self.parts), default=self.row_stop)


def plan_row_range(
    projection: Projection,
    places: ChunkPlaces,
    pages: Sequence[PagePlaces | None],
    *,
    n_rows: int,
    row_start: int,
    row_stop: int,
) -> RowRange:
    """Return which pages hold the rows; a column without page places, or whose leaves differ, is taken whole.

    Parameters
    ----------
    projection, places
        The columns, and their chunks in this row group.
    pages : sequence of PagePlaces or None
        The pages of each chunk.
    n_rows : int
        Rows of the row group.
    row_start, row_stop : int
        The rows that are wanted, half-open, at least one.
    """
    starts, lengths = places.start.tolist(), places.length.tolist()
    covered: list[tuple[int, int]] = []
    spans: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for leaf, own in enumerate(pages):
        if own is None:
            covered.append((0, n_rows))
            spans.append(((starts[leaf], 0), (starts[leaf], lengths[leaf])))
            continue
        first = int(np.searchsorted(own.first_row, row_start, side="right")) - 1
        stop = int(np.searchsorted(own.first_row, row_stop, side="left"))
        covered.append((int(own.first_row[first]), int(own.first_row[stop]) if stop < len(own) else n_rows))
        data = int(own.offset[first])
        data_length = int(own.offset[stop - 1] + own.length[stop - 1]) - data
        spans.append(((starts[leaf], int(own.offset[0]) - starts[leaf]), (data, data_length)))

    fields = [leaf.field for leaf in projection.leaves]
    by_rows: dict[tuple[int, int], list[int]] = {}
    for name in projection.field_indices:
        own_leaves = [i for i, field in enumerate(fields) if field == name]
        rows = {covered[i] for i in own_leaves}
        if len(rows) > 1:
            rows = {(0, n_rows)}
            for i in own_leaves:
                spans[i] = ((starts[i], 0), (starts[i], lengths[i]))
        by_rows.setdefault(rows.pop(), []).extend(own_leaves)
    parts = tuple(
        _Part(
            fields=tuple(dict.fromkeys(fields[i] for i in leaves)),
            leaves=tuple(leaves),
            row_start=rows[0],
            row_stop=rows[1],
            spans=tuple(span for i in leaves for span in spans[i]),
        )
        for rows, leaves in by_rows.items()
    )
    dictionaries = sum(dictionary[1] for dictionary, _ in spans)
    return RowRange(
        row_start=row_start,
        row_stop=row_stop,
        parts=parts,
        n_bytes=dictionaries + sum(data[1] for _, data in spans),
        n_dictionary_bytes=dictionaries,
    )


def row_range_blocks(
    record: SchemaRecord, places: ChunkPlaces, wanted: RowRange, *, file: str, row_group: int
) -> list[Block]:
    """Return the blocks of a row range, one a part."""
    num_values, codec = places.num_values.tolist(), places.codec.tolist()
    return [
        Block(
            record.project(part.fields),
            part.row_stop - part.row_start,
            [start for start, _ in part.spans],
            [length for _, length in part.spans],
            2,
            [num_values[leaf] for leaf in part.leaves],
            [codec[leaf] for leaf in part.leaves],
            0,
            file,
            row_group,
        )
        for part in wanted.parts
    ]


def join_parts(
    projection: Projection, wanted: RowRange, tables: Sequence[pa.Table], *, row_start: int, row_stop: int
) -> pa.Table:
    """Return the rows ``[row_start, row_stop)`` of the row group from the decoded parts of a range that holds them."""
    columns: dict[int, pa.ChunkedArray] = {}
    for part, table in zip(wanted.parts, tables, strict=True):
        rows = table.slice(row_start - part.row_start, row_stop - row_start)
        if len(wanted.parts) == 1:
            return rows
        columns.update(zip(part.fields, rows.columns, strict=True))
    return pa.table([columns[field] for field in projection.field_indices], schema=projection.arrow_schema)
