"""Where the data pages of a column chunk lie, and which rows begin in each.

From the file's offset index where it has one, else from a walk over the page headers. Places are only given where they
are sure: a chunk whose pages do not add up to its rows and bytes has none, and is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pqindex.errors import BadFileError
from pqindex.footer.chunks import Int64s
from pqindex.footer.thrift import I32, I64, LIST, STRUCT, CompactReader, Nested, Table, key

if TYPE_CHECKING:
    from collections.abc import Callable

    from pqindex.footer.metadata import FileMetadata

HEADER_WINDOW: Final = 512
"""Bytes that are read to parse a page header; the window grows where statistics make a header longer."""

MAX_HEADER: Final = 1 << 20
MAX_PAGES: Final = 1 << 18
"""A chunk with more pages than this is read whole."""
_DATA_PAGE: Final = 0
_INDEX_PAGE: Final = 1
_DICTIONARY_PAGE: Final = 2
_DATA_PAGE_V2: Final = 3

_KIND, _COMPRESSED, _V1_VALUES, _V2_VALUES, _V2_ROWS, _CHECKSUM = range(6)
_NO_CHECKSUM: Final = 1 << 40  # a checksum may be any 32 bits
_HEADER: Final[Table] = {
    key(1, I32): _KIND,
    key(3, I32): _COMPRESSED,
    key(4, I32): _CHECKSUM,
    key(5, STRUCT): Nested({key(1, I32): _V1_VALUES}),
    key(8, STRUCT): Nested({key(1, I32): _V2_VALUES, key(3, I32): _V2_ROWS}),
}
_OFFSET, _SIZE, _FIRST_ROW = range(3)
_LOCATION: Final[Table] = {key(1, I64): _OFFSET, key(2, I32): _SIZE, key(3, I64): _FIRST_ROW}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagePlaces:
    """The data pages of one column chunk, in the order of the file.

    Attributes
    ----------
    offset : ndarray of int64, shape (pages,)
        Absolute, of the page's header.
    length : ndarray of int64, shape (pages,)
        Bytes, the header included.
    first_row : ndarray of int64, shape (pages,)
        Row of the row group that the page begins with; strictly growing from 0.
    """

    offset: Int64s
    length: Int64s
    first_row: Int64s

    def __len__(self) -> int:
        return len(self.offset)


def find_pages(
    metadata: FileMetadata, row_group: int, read: Callable[[int, int], bytes]
) -> list[PagePlaces | None]:
    """Return the page places of each chunk of a row group, by the leaves of the file.

    Parameters
    ----------
    metadata, row_group
        The footer, and which row group.
    read : callable
        From (offset, length) to bytes of the file.
    """
    chunks = metadata.chunks
    n_rows = int(metadata.group_n_rows[row_group])
    starts = chunks.start[row_group].tolist()
    found: list[PagePlaces | None] = []
    for leaf, record in enumerate(metadata.leaves):
        if chunks.encrypted[row_group, leaf]:
            found.append(None)
            continue
        start = starts[leaf]
        stop = start + int(chunks.total_compressed_size[row_group, leaf])
        index_offset = int(chunks.offset_index_offset[row_group, leaf])
        index_length = int(chunks.offset_index_length[row_group, leaf])
        places = None
        if index_offset > 0 and index_length > 0 and index_offset + index_length <= metadata.footer_offset:
            data = read(index_offset, index_length)
            places = parse_offset_index(data, n_rows=n_rows, start=start, stop=stop, file=metadata.file)
        if places is None:
            is_flat = record.max_repetition_level == 0
            places = walk_pages(
                read, n_rows=n_rows, start=start, stop=stop, is_flat=is_flat, file=metadata.file
            )
        found.append(places)
    return found


def parse_offset_index(data: bytes, *, n_rows: int, start: int, stop: int, file: str) -> PagePlaces | None:
    """Return the places in an OffsetIndex; None where they do not fit the chunk, or a page has no rows.

    Parameters
    ----------
    data : bytes
        The Thrift struct.
    n_rows : int
        Rows of the row group.
    start, stop : int
        The chunk's bytes in the file.
    file : str
        The file, for messages.
    """
    locations: list[list[int]] = []

    def read_locations(reader: CompactReader, _values: object) -> None:
        size, kind = reader.list_header()
        if size and kind != STRUCT:
            reader.fail("page locations are not structs", expected=STRUCT, found=kind)
        for _ in range(size):
            values = [-1, -1, -1]
            reader.struct(_LOCATION, values)
            locations.append(values)

    try:
        CompactReader(data, file=file, part="offset index").struct({key(1, LIST): read_locations}, [])
    except BadFileError:
        return None
    return _checked(locations, n_rows=n_rows, start=start, stop=stop)


def walk_pages(
    read: Callable[[int, int], bytes], *, n_rows: int, start: int, stop: int, is_flat: bool, file: str
) -> PagePlaces | None:
    """Return the places that the page headers of a chunk give; None where they do not say the rows, or do not fit.

    Pages of version 1 count values, which are rows in columns without lists only; those of version 2 count rows.
    One small read a page.

    Parameters
    ----------
    read : callable
        From (offset, length) to bytes of the file.
    n_rows : int
        Rows of the row group.
    start, stop : int
        The chunk's bytes in the file.
    is_flat : bool
        Whether the column has no lists in it.
    file : str
        The file, for messages.
    """
    pages: list[list[int]] = []
    position = start
    row = 0
    for _ in range(MAX_PAGES):
        if position >= stop:
            break
        header = _page_header(read, position, stop, file)
        if header is None:
            return None
        values, header_length = header
        length = header_length + values[_COMPRESSED]
        if values[_COMPRESSED] < 0 or position + length > stop:
            return None
        kind = values[_KIND]
        if kind in (_DATA_PAGE, _DATA_PAGE_V2):
            n_page_rows = values[_V2_ROWS] if kind == _DATA_PAGE_V2 else values[_V1_VALUES]
            if n_page_rows < 0 or (kind == _DATA_PAGE and not is_flat):
                return None
            if n_page_rows:  # some writers leave empty pages, and PyArrow reads nothing that begins with one
                pages.append([position, length, row])
            row += n_page_rows
        elif kind not in (_DICTIONARY_PAGE, _INDEX_PAGE):
            return None
        position += length
    return (
        _checked(pages, n_rows=n_rows, start=start, stop=stop) if position == stop and row == n_rows else None
    )


def has_checksum(read: Callable[[int, int], bytes], *, start: int, stop: int, file: str) -> bool:
    """Return whether the first page of a chunk has a checksum; writers give one to all pages or to none.

    Parameters as in `walk_pages`.
    """
    header = _page_header(read, start, stop, file) if stop > start else None
    return header is not None and header[0][_CHECKSUM] != _NO_CHECKSUM


def _page_header(
    read: Callable[[int, int], bytes], position: int, stop: int, file: str
) -> tuple[list[int], int] | None:
    window = HEADER_WINDOW
    while True:
        data = read(position, min(window, stop - position))
        values = [-1, -1, -1, -1, -1, _NO_CHECKSUM]
        reader = CompactReader(data, file=file, part="page header")
        try:
            reader.struct(_HEADER, values)
        except BadFileError:
            if len(data) < window or window >= MAX_HEADER:
                return None
            window *= 8
            continue
        return values, reader.position


def _checked(pages: list[list[int]], *, n_rows: int, start: int, stop: int) -> PagePlaces | None:
    """Return the pages as arrays where they lie in the chunk, in order, and begin with growing rows from 0."""
    offset, length, first_row = np.array(pages, np.int64).reshape(-1, 3).T.copy()
    if not len(offset):
        return None
    end = offset + length
    good = (
        offset[0] >= start
        and end[-1] <= stop
        and bool(np.all(length > 0))
        and bool(np.all(offset[1:] >= end[:-1]))
        and first_row[0] == 0
        and bool(np.all(first_row[1:] > first_row[:-1]))
        and first_row[-1] < max(n_rows, 1)
    )
    return PagePlaces(offset=offset, length=length, first_row=first_row) if good else None
