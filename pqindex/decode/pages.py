"""The pages of one column chunk."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from pqindex.decode.codecs import DECOMPRESS
from pqindex.decode.columns import (
    BYTE_STREAM_SPLIT,
    DIRECT_CODECS,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    RLE_DICTIONARY,
    UNCOMPRESSED,
)
from pqindex.decode.headers import ABSENT, DATA_PAGE, DICTIONARY_PAGE, Buffer, PageHeader, parse_header
from pqindex.decode.runs import all_defined, check_all_defined, sized_all_defined
from pqindex.decode.signals import BadPageError, NotDirectError

if TYPE_CHECKING:
    from pqindex.decode.columns import DirectColumn
    from pqindex.decode.indices import IndexBatch

MAX_DICTIONARY_BYTES: Final = 1 << 24
"""Larger dictionaries are left to PyArrow; pages of data are bounded by the rows that are asked for."""

MAX_INDICES: Final = 1536
"""Pages of more indices are left to PyArrow: unpacked by numpy they take longer than all of its own work does."""

_TRUTHS: Final = np.array([False, True])


def most_bytes(n_values: int, itemsize: int) -> int:
    """Return how large a page of data may be: no writer needs 8 bytes for the level and the index of a value."""
    return n_values * (itemsize + 8) + 1024


class ChunkDecoder:
    """Goes through the pages of a chunk and writes its values out; those with indices when the batch is finished.

    Parameters
    ----------
    column : DirectColumn
    codec : int
    span : (buffer, start, stop)
        Within the buffer.
    indices : IndexBatch
        Gets the pages with indices.
    chunk : (int, int)
        The chunk's name in the batch: the numbers of its read and its column.

    Attributes
    ----------
    position : int
        Where the header of the page at hand begins, for messages.
    """

    __slots__ = ("_buffer", "_chunk", "_codec", "_column", "_indices", "_start", "_stop", "position")

    def __init__(
        self,
        column: DirectColumn,
        codec: int,
        span: tuple[Buffer, int, int],
        indices: IndexBatch,
        chunk: tuple[int, int],
    ) -> None:
        self._column = column
        self._codec = codec
        self._buffer, self._start, self._stop = span
        self._indices = indices
        self._chunk = chunk
        self.position = self._start

    def decode(self, n_rows: int, out: npt.NDArray[Any], row_start: int) -> None:
        """Write the rows of the pages from `row_start` on into all of `out`.

        Raises
        ------
        BadPageError
            If the pages contradict themselves, or do not hold `n_rows` rows.
        NotDirectError
            If one of them, wanted or not, is of a kind that is left to PyArrow.
        """
        if self._codec not in DIRECT_CODECS:
            raise NotDirectError("a codec is not known here")
        dictionary: tuple[PageHeader, int] | npt.NDArray[Any] | None = None
        row = 0
        row_stop = row_start + len(out)
        while row < n_rows:
            header, page_start = self._header()
            n_values = header.n_values
            if header.kind == DICTIONARY_PAGE:
                if dictionary is not None or row:
                    raise NotDirectError("a dictionary page is not the first page")
                self._check_dictionary(header)
                dictionary = header, page_start  # decompressed once a page of values is not refused
            elif n_values > n_rows - row:
                raise BadPageError("pages hold too many values", expected=n_rows, found=row + n_values)
            elif n_values == 0:
                raise NotDirectError("a page is empty")
            else:
                first, stop = max(row, row_start), min(row + n_values, row_stop)
                if first < stop:
                    part = out if stop - first == len(out) else out[first - row_start : stop - row_start]
                    self._refuse_many_indices(header)
                    if isinstance(dictionary, tuple):
                        at, self.position = self.position, self._start
                        dictionary = self._dictionary(*dictionary)
                        self.position = at
                    self._data(header, page_start, dictionary, first - row, part)
                row += n_values
            self.position = page_start + header.stored_size
        if self.position != self._stop and n_rows:
            self._refuse_rest(n_rows)

    def _header(self) -> tuple[PageHeader, int]:
        """Return the header of the page at hand and where the page begins, once its bytes are found to be its own."""
        if self.position >= self._stop:
            raise BadPageError("pages hold too few values", expected="another page", found="the end")
        header, crc, page_start = parse_header(self._buffer, self.position, self._stop)
        n_bytes = header.stored_size
        if n_bytes > self._stop - page_start:
            raise BadPageError(
                "a page passes the end of its chunk",
                expected=f"at most {self._stop - page_start} bytes",
                found=n_bytes,
            )
        if crc != ABSENT:
            check_crc(self._buffer, page_start, page_start + n_bytes, crc)
        return header, page_start

    def _refuse_rest(self, n_rows: int) -> NoReturn:
        """Say what stands behind the last row: more rows are an error, anything else is PyArrow's to judge."""
        try:
            header, _, _ = parse_header(self._buffer, self.position, self._stop)
        except BadPageError:
            raise NotDirectError("bytes follow the pages") from None
        if header.kind != DICTIONARY_PAGE and header.n_values:
            raise BadPageError("pages hold too many values", expected=n_rows, found=n_rows + header.n_values)
        raise NotDirectError("bytes follow the pages")

    def _refuse_many_indices(self, header: PageHeader) -> None:
        if header.n_values > MAX_INDICES and header.encoding in (RLE_DICTIONARY, PLAIN_DICTIONARY, RLE):
            raise NotDirectError("a page has many indices")

    # -- dictionary pages -------------------------------------------------------------------------------------

    def _check_dictionary(self, header: PageHeader) -> None:
        stored = self._column.stored
        if header.encoding not in (PLAIN, PLAIN_DICTIONARY) or stored.kind == "b":
            raise NotDirectError("a dictionary is not plain")
        if header.size > MAX_DICTIONARY_BYTES:
            raise NotDirectError("a dictionary is large")
        if header.size != header.n_values * stored.itemsize:
            raise BadPageError(
                "a dictionary has another size than its values",
                expected=header.n_values * stored.itemsize,
                found=header.size,
            )

    def _dictionary(self, header: PageHeader, page_start: int) -> npt.NDArray[Any]:
        stored = self._column.stored
        buffer, start = self._page(header, page_start, header.stored_size, header.size)
        values = np.frombuffer(buffer, stored, header.n_values, start) if header.size else np.empty(0, stored)
        return values if stored is self._column.dtype else values.astype(self._column.dtype)

    def _page(self, header: PageHeader, start: int, n_stored: int, size: int) -> tuple[Buffer, int]:
        """Return where `size` bytes of a page lie once decompressed: a buffer, and the first byte in it."""
        if self._codec == UNCOMPRESSED or not header.is_compressed:
            if n_stored != size:
                raise BadPageError(
                    "a page that is not compressed has two sizes", expected=size, found=n_stored
                )
            return self._buffer, start
        return DECOMPRESS[self._codec](self._buffer[start : start + n_stored], size), 0

    # -- data pages -------------------------------------------------------------------------------------------

    def _data(
        self,
        header: PageHeader,
        page_start: int,
        dictionary: npt.NDArray[Any] | None,
        skip: int,
        out: npt.NDArray[Any],
    ) -> None:
        """Write the values of a page from `skip` on into `out`, or have that done later."""
        if header.size > most_bytes(header.n_values, self._column.stored.itemsize):
            raise NotDirectError("a page is larger than its values need")
        buffer, start, stop = self._values(header, page_start)
        encoding = header.encoding
        if encoding == PLAIN:
            self._plain(buffer, start, stop, header.n_values, skip, out)
        elif encoding in (RLE_DICTIONARY, PLAIN_DICTIONARY):
            if dictionary is None:
                raise BadPageError("a page has no dictionary", expected="a dictionary page", found="none")
            if start == stop:
                raise BadPageError("a page has no indices", expected="a bit width", found="the end")
            place = (*self._chunk, self.position - self._start)
            page = (buffer, start + 1, stop)
            self._indices.add(place, page, buffer[start], header.n_values, dictionary, skip, out)
        elif encoding == BYTE_STREAM_SPLIT and self._column.stored.kind != "b":
            self._split(buffer, start, stop, header.n_values, skip, out)
        elif encoding == RLE and self._column.stored.kind == "b":
            page = (buffer, _sized(buffer, start, stop), stop)
            place = (*self._chunk, self.position - self._start)
            self._indices.add(place, page, 1, header.n_values, _TRUTHS, skip, out)
        else:
            raise NotDirectError("an encoding is not known here")

    def _values(self, header: PageHeader, page_start: int) -> tuple[Buffer, int, int]:
        """Return where a page's values lie, behind its levels, which are found to be those of no null."""
        n_values = header.n_values
        if header.kind == DATA_PAGE:
            buffer, start = self._page(header, page_start, header.stored_size, header.size)
            stop = start + header.size
            if self._column.is_optional:
                if header.level_encoding != RLE:
                    raise NotDirectError("levels have an old encoding")
                levels = sized_all_defined(n_values)
                level_stop = start + len(levels)
                if level_stop > stop or buffer[start:level_stop] != levels:
                    level_stop = _sized(buffer, start, stop, to_end=False)
                    check_all_defined(buffer, start + 4, level_stop, n_values)
                start = level_stop
            return buffer, start, stop
        if header.n_nulls:
            raise NotDirectError("a page has nulls")
        n_levels = header.definition_size
        if header.repetition_size or bool(n_levels) != self._column.is_optional:
            raise NotDirectError("a page has other levels than its column")
        if header.n_rows != n_values:
            raise BadPageError(
                "rows of a flat page are not its values", expected=n_values, found=header.n_rows
            )
        if n_levels > min(header.size, header.stored_size):
            raise BadPageError(
                "levels pass the end of their page",
                expected=f"at most {min(header.size, header.stored_size)} bytes",
                found=n_levels,
            )
        level_stop = page_start + n_levels
        if n_levels and self._buffer[page_start:level_stop] != all_defined(n_values):
            check_all_defined(self._buffer, page_start, level_stop, n_values)
        size = header.size - n_levels
        buffer, start = self._page(header, level_stop, header.stored_size - n_levels, size)
        return buffer, start, start + size

    def _plain(
        self, buffer: Buffer, start: int, stop: int, n_values: int, skip: int, out: npt.NDArray[Any]
    ) -> None:
        stored, dtype = self._column.stored, self._column.dtype
        if stored.kind == "b":
            _check_size(start, stop, (n_values + 7) // 8)
            bits = np.frombuffer(buffer, np.uint8, stop - start, start)
            out[:] = np.unpackbits(bits, count=n_values, bitorder="little").view(np.bool_)[
                skip : skip + len(out)
            ]
            return
        _check_size(start, stop, n_values * stored.itemsize)
        values = np.frombuffer(buffer, stored, len(out), start + skip * stored.itemsize)
        out[:] = values if stored is dtype else values.astype(dtype)

    def _split(
        self, buffer: Buffer, start: int, stop: int, n_values: int, skip: int, out: npt.NDArray[Any]
    ) -> None:
        """Bring together the bytes of each value: all first bytes come first, then all second ones, ..."""
        stored, dtype = self._column.stored, self._column.dtype
        _check_size(start, stop, n_values * stored.itemsize)
        streams = np.frombuffer(buffer, np.uint8, n_values * stored.itemsize, start)
        by_value = streams.reshape(stored.itemsize, n_values)[:, skip : skip + len(out)].T
        values = np.ascontiguousarray(by_value).view(stored)[:, 0]
        out[:] = values if stored is dtype else values.astype(dtype)


def check_crc(buffer: Buffer, start: int, stop: int, crc: int) -> None:
    """Raise BadPageError unless the bytes of a page have the checksum that its header says."""
    found = zlib.crc32(memoryview(buffer)[start:stop])
    if found != crc:
        raise BadPageError("the CRC checksum of a page is not that of its bytes", expected=crc, found=found)


def _check_size(start: int, stop: int, n_bytes: int) -> None:
    """Compare the bytes of a page's values with the bytes that so many values take."""
    if stop - start < n_bytes:
        raise BadPageError("a page is shorter than its values", expected=n_bytes, found=stop - start)
    if stop - start > n_bytes:
        raise NotDirectError("bytes follow the values of a page")


def _sized(buffer: Buffer, start: int, stop: int, *, to_end: bool = True) -> int:
    """Check the length of 4 bytes in front of some runs.

    Returns
    -------
    int
        Where the runs begin, if they must fill the page to its end; else where they stop.
    """
    size = int.from_bytes(buffer[start : min(start + 4, stop)], "little")
    if stop - start < 4 or size > stop - start - 4:
        raise BadPageError(
            "runs pass the end of their page",
            expected=f"at most {max(stop - start - 4, 0)} bytes",
            found=size,
        )
    if to_end:
        if size != stop - start - 4:
            raise NotDirectError("bytes follow the values of a page")
        return start + 4
    return start + 4 + size
