"""Reads of some rows of a row group: the pages that hold them, instead of the whole chunks.

Columns whose pages begin at the same rows are decoded together, the others apart, and each part is cut to the asked
rows. Never here: whether that is cheaper than the whole group is said by `RowRange.n_bytes`; the reader decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pqindex.footer.paging import PagePlaces
from pqindex.footer.reading import ChunkPlaces, coalesce, read_exactly
from pqindex.footer.synthetic import MAGIC, Projection, SchemaRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


def read_row_range(
    record: SchemaRecord,
    projection: Projection,
    places: ChunkPlaces,
    wanted: RowRange,
    read_ranges: Callable[[list[tuple[int, int]]], Sequence[bytes | memoryview]],
    *,
    file: str,
    row_group: int,
) -> pa.Table:
    """Return the rows that a row range is about; one call of `read_ranges`.

    Raises
    ------
    BadFileError, UnsupportedFileError
        If the pages are corrupt, do not hold the rows, or cannot be decoded.
    SourceChangedError
        If the file is too short for the places.
    """
    spans = [span for part in wanted.parts for span in part.spans]
    ranges, positions = coalesce([start for start, _ in spans], [length for _, length in spans])
    buffers = read_exactly(read_ranges, ranges, file=file, row_group=row_group)
    columns: dict[int, pa.ChunkedArray] = {}
    at = 0
    for part in wanted.parts:
        table = _decode(record, places, part, buffers, positions[at : at + len(part.spans)], file, row_group)
        at += len(part.spans)
        rows = table.slice(wanted.row_start - part.row_start, wanted.row_stop - wanted.row_start)
        columns.update(zip(part.fields, rows.columns, strict=True))
    return pa.table([columns[field] for field in projection.field_indices], schema=projection.arrow_schema)


def _decode(
    record: SchemaRecord,
    places: ChunkPlaces,
    part: _Part,
    buffers: Sequence[bytes | memoryview],
    positions: list[int],
    file: str,
    row_group: int,
) -> pa.Table:
    """Decode the pages of one part.

    A dictionary page and the data pages of its column lie in the buffer one behind the other only if nothing of
    another column lies between; where they do not, they are brought together.
    """
    lengths = [length for _, length in part.spans]
    starts: list[int] = []
    parts: list[bytes | memoryview] = [MAGIC]
    whole = memoryview(b"".join(buffers))
    at = len(MAGIC)
    for leaf in range(len(part.leaves)):
        starts.append(at)
        for span in (2 * leaf, 2 * leaf + 1):
            parts.append(whole[positions[span] : positions[span] + lengths[span]])
            at += lengths[span]
    leaves = np.array(part.leaves)
    own = record.project(part.fields)
    footer = own.footer(
        n_rows=part.row_stop - part.row_start,
        start=np.array(starts, np.int64),
        length=np.array(lengths, np.int64).reshape(-1, 2).sum(axis=1),
        num_values=places.num_values[leaves],
        codec=places.codec[leaves],
    )
    parts.append(footer)
    return own.decode(parts, file=file, row_group=row_group, n_rows=part.row_stop - part.row_start)
