"""Direct decode of the columns of one read, or of many at once."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from pqindex.decode.blocks import fill_block, usual_chunk
from pqindex.decode.indices import IndexBatch
from pqindex.decode.pages import ChunkDecoder
from pqindex.decode.signals import BadPageError, NotDirectError
from pqindex.errors import BadFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pqindex.decode.columns import DirectColumn
    from pqindex.decode.headers import Buffer


MOST_WAITING_BYTES: Final = 1 << 26
"""Indices are looked up at the end of all reads, or once the dictionaries that wait for that have so many bytes."""


class DirectRead(NamedTuple):
    """The columns of one row group, or of some of its pages, and where their values go.

    A named tuple, since one is made for each read. The sequences are by column, `outs` is by field.

    Attributes
    ----------
    file : str
        For messages.
    row_group : int
        For messages.
    codecs : sequence of int
        Parquet's numbers.
    spans : sequence of (buffer, start, stop)
        The bytes of each column: a whole chunk, or its dictionary page, if it has one, and consecutive data pages.
        Buffers are bytes or contiguous memoryviews of bytes, and may be one for all columns.
    n_rows : sequence of int
        Rows that the pages of each column hold.
    outs : sequence of ndarray, shape (rows, columns of the field)
        Writable, with any strides; each column gets as many rows as there are.
    row_starts : sequence of int or None
        Which of its pages' rows each column begins with; None for 0 in all.
    """

    file: str
    row_group: int
    codecs: Sequence[int]
    spans: Sequence[tuple[Buffer, int, int]]
    n_rows: Sequence[int]
    outs: Sequence[npt.NDArray[Any]]
    row_starts: Sequence[int] | None = None


class Refusal(NamedTuple):
    """A column of a read that PyArrow must decode; its values in the out are anything by then.

    Attributes
    ----------
    read, column : int
        Positions among the reads of a call, and among the decoder's columns.
    reason : str
        One of few sentences, to be counted.
    """

    read: int
    column: int
    reason: str


class DirectDecoder:
    """Decodes reads of some columns. Holds nothing but the columns: thread-safe, picklable.

    Parameters
    ----------
    columns : sequence of DirectColumn
        Those of the first field, then those of the second, and so on.
    widths : sequence of int
        How many of the columns each field has.

    Raises
    ------
    UsageError
        If the widths do not add up to the columns.
    """

    __slots__ = ("_columns", "_fields", "_is_like")

    def __init__(self, columns: Sequence[DirectColumn], widths: Sequence[int]) -> None:
        if sum(widths) != len(columns) or any(width < 0 for width in widths):
            raise UsageError(
                f"widths of fields do not fit the columns; expected a sum of {len(columns)}, found {list(widths)}"
            )
        self._columns = tuple(columns)
        self._fields = tuple(range(start, stop) for start, stop in pairwise(accumulate(widths, initial=0)))
        # Fields whose columns are stored alike, as they are to be: their values can be copied in one step.
        self._is_like = tuple(
            bool(field)
            and len({dtype for at in field for dtype in (columns[at].stored, columns[at].dtype)}) == 1
            and columns[field.start].stored.kind != "b"  # bits, in a page
            for field in self._fields
        )

    def decode(self, reads: Sequence[DirectRead]) -> list[Refusal]:
        """Fill the outs of all reads, and return what is left to PyArrow.

        A few microseconds a page. Memory in proportion to the outs, and some for dictionaries, whatever the bytes say.
        Values are cast to the dtype of their out as numpy does, without a check for what that loses; NaNs keep their
        bits where the dtype stays. Checksums of pages are verified where there are any.

        Returns
        -------
        list of Refusal
            Empty in the usual case.

        Raises
        ------
        BadFileError
            If a page contradicts itself, its chunk, its dictionary or its checksum.
        UsageError
            If an out does not fit its rows, a span its buffer, or a dtype its column.
        """
        indices = IndexBatch()
        refusals: list[Refusal] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for number, read in enumerate(reads):
                self._check(read)
                for field, is_like, out in zip(self._fields, self._is_like, read.outs, strict=True):
                    columns = self._decode_usual(read, number, field, out, indices) if is_like else field
                    for at in columns:
                        reason = self._decode_any(read, number, at, out[:, at - field.start], indices)
                        if reason:
                            refusals.append(Refusal(number, at, reason))
                if indices.n_dictionary_bytes > MOST_WAITING_BYTES:
                    self._finish(indices, reads)
                    indices = IndexBatch()
            self._finish(indices, reads)
        return refusals

    def _decode_usual(
        self, read: DirectRead, number: int, field: range, out: npt.NDArray[Any], indices: IndexBatch
    ) -> list[int]:
        """Decode the columns of a field that are one page each, as most are; return the others."""
        codecs, spans, columns, n_rows = read.codecs, read.spans, self._columns, read.n_rows
        skips = read.row_starts
        n_out = len(out)
        itemsize = columns[field.start].stored.itemsize
        plain: list[int] = []
        pages: list[tuple[Buffer, int]] = []
        others: list[int] = []
        for at in field:
            try:
                chunk = usual_chunk(columns[at], codecs[at], spans[at], n_rows[at]) if n_out else None
            except (BadPageError, NotDirectError):
                chunk = None  # the other way finds it again, and knows where
            if chunk is None:
                others.append(at)
                continue
            buffer, start, stop, dictionary, position = chunk
            skip = 0 if skips is None else skips[at]
            if dictionary is None:
                plain.append(at)
                pages.append((buffer, start + skip * itemsize))
                continue
            place = (number, at, position - spans[at][1])
            try:
                page = (buffer, start + 1, stop)
                values = out[:, at - field.start]
                indices.add(place, page, buffer[start], n_rows[at], dictionary, skip, values)
            except (BadPageError, NotDirectError):
                others.append(at)
        stored = columns[field.start].stored
        if len(plain) == len(field):
            fill_block(out, pages, stored)
        else:
            for at, single in zip(plain, pages, strict=True):
                fill_block(out[:, at - field.start : at - field.start + 1], [single], stored)
        return others

    def _decode_any(
        self, read: DirectRead, number: int, at: int, out: npt.NDArray[Any], indices: IndexBatch
    ) -> str | None:
        """Decode a column page by page; return the reason why PyArrow must do it, if it must."""
        row_start = 0 if read.row_starts is None else read.row_starts[at]
        decoder = ChunkDecoder(self._columns[at], read.codecs[at], read.spans[at], indices, (number, at))
        try:
            decoder.decode(read.n_rows[at], out, row_start)
        except NotDirectError as reason:
            return str(reason)
        except BadPageError as error:
            self._refuse(read, at, decoder.position - read.spans[at][1], error)
        return None

    def _finish(self, indices: IndexBatch, reads: Sequence[DirectRead]) -> None:
        for (number, at, position), error in indices.finish():
            self._refuse(reads[number], at, position, error)

    # -- what is asked ----------------------------------------------------------------------------------------

    def _check(self, read: DirectRead) -> None:
        """Refuse a read that does not fit the columns."""
        file, _, codecs, spans, n_rows, outs, row_starts = read
        n = len(self._columns)
        if not len(codecs) == len(spans) == len(n_rows) == n or len(outs) != len(self._fields):
            raise UsageError(
                f"a read does not fit its decoder: {file}; expected {n} columns in {len(self._fields)} fields, found"
                f" {len(codecs)} codecs, {len(spans)} spans, {len(n_rows)} row counts and {len(outs)} outs"
            )
        for buffer, start, stop in spans:
            if not 0 <= start <= stop <= len(buffer):
                raise UsageError(
                    f"a span lies outside its buffer: {file}; expected bytes in [0, {len(buffer)}), found"
                    f" [{start}, {stop})"
                )
        for field, is_like, out in zip(self._fields, self._is_like, outs, strict=True):
            rows = n_rows[field.start : field.stop]
            starts = None if row_starts is None else row_starts[field.start : field.stop]
            if out.ndim != 2 or out.shape[1] != len(field) or not _fit(rows, starts, len(out)):
                raise UsageError(
                    f"an out does not fit its field: {file}; expected {len(field)} columns and rows within"
                    f" {list(rows)} from {starts or 0} on, found shape {out.shape}"
                )
            for column in self._columns[field.start : field.start + 1 if is_like else field.stop]:
                _check_cast(column, out.dtype)

    def _refuse(self, read: DirectRead, at: int, position: int, error: BadPageError) -> NoReturn:
        _, start, stop = read.spans[at]
        name = self._columns[at].name
        raise BadFileError(
            f"pages are corrupt, {error.what}: {read.file}, row group {read.row_group}, column {name!r}, byte"
            f" {position} of {stop - start}; expected {error.expected}, found {error.found}",
            hint="restore the file or write it again; leave the column out to read the others",
            file=read.file,
            row_group=read.row_group,
            column=name,
            position=position,
            expected=error.expected,
            found=error.found,
        ) from error


def _fit(n_rows: Sequence[int], starts: Sequence[int] | None, n_out: int) -> bool:
    """Return whether so many rows lie within the rows of all columns, from their starts on."""
    if starts is None:
        return not n_rows or min(n_rows) >= n_out
    return all(0 <= start <= n - n_out for n, start in zip(n_rows, starts, strict=True))


def _check_cast(column: DirectColumn, target: np.dtype[Any]) -> None:
    if target != column.dtype and not _may_cast(column.dtype, target):
        raise UsageError(
            f"a column cannot be decoded into this dtype: column {column.name!r}; expected a cast of one kind from"
            f" {column.dtype}, found {target}",
            hint="decode into the column's own dtype, and cast that",
        )


@lru_cache(maxsize=1 << 10)
def _may_cast(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether a cast means the same on every machine: a float out of an integer's range does not."""
    return np.can_cast(source, target, "same_kind") or (source.kind == "i" and target.kind == "u")
