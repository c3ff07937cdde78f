"""The usual chunks, of one page each, in few steps; and the values of several such columns copied in one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pqindex.decode.codecs import DECOMPRESS
from pqindex.decode.columns import PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY, UNCOMPRESSED
from pqindex.decode.headers import Buffer, checksum, match_data_page, match_dictionary_page, usual_header
from pqindex.decode.pages import MAX_DICTIONARY_BYTES, MAX_INDICES, check_crc, most_bytes
from pqindex.decode.runs import sized_all_defined

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from pqindex.decode.columns import DirectColumn


def usual_chunk(
    column: DirectColumn, codec: int, span: tuple[Buffer, int, int], n_rows: int
) -> tuple[Buffer, int, int, npt.NDArray[Any] | None, int] | None:
    """Return where the values of a column lie, if it is one page of version 1, after a dictionary or plain.

    Parameters
    ----------
    column, codec, span
        As in `DirectRead`.
    n_rows : int
        Of the page.

    Returns
    -------
    buffer, start, stop
        Where the values lie, behind the levels.
    dictionary : ndarray or None
        What they are indices into; None where they are plain.
    position : int
        Where the header of the data page begins.

    None instead for everything else, good or bad: the way through all pages says what it is.

    Raises
    ------
    BadPageError, NotDirectError
        As that way does.
    """
    buffer, position, stop = span
    dictionary = None
    match = match_data_page(buffer, position, stop)
    if match is None:
        match = match_dictionary_page(buffer, position, stop) if n_rows <= MAX_INDICES else None
        if match is None:
            return None
        dictionary, position = _dictionary(column, codec, buffer, match, stop)
        if dictionary is None:
            return None
        match = match_data_page(buffer, position, stop)
        if match is None:
            return None
    sizes, crc, own = match.groups()
    facts = _page_facts(
        sizes, own, n_rows, column.stored.itemsize, column.is_optional, dictionary is not None
    )
    page_start = match.end()
    if facts is None or facts[1] != stop - page_start:
        return None
    size, stored_size, levels = facts
    if crc is not None:
        check_crc(buffer, page_start, stop, checksum(crc))
    decompress = DECOMPRESS.get(codec)
    if decompress is not None:
        buffer, page_start = decompress(buffer[page_start:stop], size), 0
    elif codec != UNCOMPRESSED or size != stored_size:
        return None
    start = page_start + len(levels)
    if levels and buffer[page_start:start] != levels:
        return None
    return buffer, start, page_start + size, dictionary, position


@lru_cache(maxsize=1 << 12)
def _page_facts(
    sizes: bytes, own: bytes, n_rows: int, itemsize: int, is_optional: bool, has_dictionary: bool
) -> tuple[int, int, bytes] | None:
    """Return size, stored size and levels of a usual data page, or None if it is not usual."""
    header = usual_header(sizes, own)
    levels = sized_all_defined(n_rows) if is_optional else b""
    if header.n_values != n_rows or (is_optional and header.level_encoding != RLE):
        return None
    if has_dictionary:
        is_usual = header.encoding in (RLE_DICTIONARY, PLAIN_DICTIONARY) and (
            len(levels) < header.size <= most_bytes(n_rows, itemsize)
        )
    else:
        is_usual = header.encoding == PLAIN and header.size == n_rows * itemsize + len(levels)
    return (header.size, header.stored_size, levels) if is_usual else None


def _dictionary(
    column: DirectColumn, codec: int, buffer: Buffer, match: re.Match[bytes], stop: int
) -> tuple[npt.NDArray[Any] | None, int]:
    """Return the values of a usual dictionary page, or None, and where the page ends."""
    sizes, crc, own = match.groups()
    header = usual_header(sizes, own)
    size = header.size
    start = match.end()
    page_stop = start + header.stored_size
    if (
        header.encoding not in (PLAIN, PLAIN_DICTIONARY)
        or size != header.n_values * column.stored.itemsize
        or not 0 < size <= MAX_DICTIONARY_BYTES
        or page_stop > stop
    ):
        return None, stop
    if crc is not None:
        check_crc(buffer, start, page_stop, checksum(crc))
    decompress = DECOMPRESS.get(codec)
    if decompress is not None:
        buffer, start = decompress(buffer[start:page_stop], size), 0
    elif codec != UNCOMPRESSED or size != header.stored_size:
        return None, stop
    return np.frombuffer(buffer, column.stored, header.n_values, start), page_stop


def fill_block(out: npt.NDArray[Any], pages: Sequence[tuple[Buffer, int]], stored: np.dtype[Any]) -> None:
    """Write the values of pages into the columns of `out`, shape (rows, pages).

    Parameters
    ----------
    pages : sequence of (buffer, start)
        Where the values of each column lie.
    stored : numpy.dtype
        Of them all.
    """
    n_rows, n_pages = out.shape
    buffer, first = pages[0]
    n_bytes = n_rows * stored.itemsize
    step = pages[1][1] - first if n_pages > 1 else n_bytes
    # Pages often lie behind each other in one buffer at one distance, as the headers of like columns are alike.
    if not all(
        page is buffer and start == first + number * step for number, (page, start) in enumerate(pages)
    ):
        buffer = b"".join([page[start : start + n_bytes] for page, start in pages])
        first, step = 0, n_bytes
    values: npt.NDArray[Any] = np.ndarray((n_pages, n_rows), stored, buffer, first, (step, stored.itemsize))
    out[:] = values.T
