"""Reads of a row group's projected chunks that need no footer of the file.

Never here: opening the file and reading it, which is the caller's `read_ranges`, and pages within a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pqindex.errors import BadFileError, PqindexError, SourceChangedError, UnsupportedFileError, UsageError
from pqindex.footer.chunks import FIRST_DATA_BYTE, N_CODECS, Int64s, chunk_start
from pqindex.footer.synthetic import MAGIC, MAX_NUMBER, Projection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pqindex.footer.metadata import FileMetadata
    from pqindex.footer.schema import Leaf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkPlaces:
    """Where the chunks of one row group are, for the leaves of a projection; int64 arrays of shape (leaves,).

    Attributes
    ----------
    start : ndarray of int64
        First byte in the file, that of the dictionary page where there is one; -1 for an encrypted chunk.
    length : ndarray of int64
        Bytes, as stored.
    num_values : ndarray of int64
        Levels, nulls among them.
    codec : ndarray of int64
    """

    start: Int64s
    length: Int64s
    num_values: Int64s
    codec: Int64s

    @classmethod
    def from_metadata(cls, metadata: FileMetadata, row_group: int, leaf_indices: Int64s) -> ChunkPlaces:
        """Return the places that a file's own footer gives."""
        chunks = metadata.chunks
        dictionary = chunks.dictionary_page_offset[row_group, leaf_indices]
        return cls(
            start=chunk_start(chunks.data_page_offset[row_group, leaf_indices], dictionary),
            length=chunks.total_compressed_size[row_group, leaf_indices],
            num_values=chunks.num_values[row_group, leaf_indices],
            codec=chunks.codec[row_group, leaf_indices].astype(np.int64),
        )


def read_group(
    projection: Projection,
    places: ChunkPlaces,
    read_ranges: Callable[[list[tuple[int, int]]], Sequence[bytes | memoryview]],
    *,
    n_rows: int,
    file_size: int,
    file: str,
    row_group: int,
    max_gap: int = 0,
) -> pa.Table:
    """Return the rows of one row group, without the file's footer.

    One call of `read_ranges`, one copy of the bytes, one decode. A group without rows is not read at all. Thread-safe
    if `read_ranges` is.

    Parameters
    ----------
    projection : Projection
    places : ChunkPlaces
        The chunks of the projection's leaves.
    read_ranges : callable
        Takes a list of (offset, length) in ascending order and returns as many bytes-like objects.
    n_rows : int
        Rows of the row group.
    file_size : int
        Size of the file in bytes.
    file, row_group
        For messages.
    max_gap : int
        Ranges with at most so many bytes between them are read as one.

    Raises
    ------
    BadFileError
        If a place makes no sense or the pages are corrupt.
    UnsupportedFileError
        If a chunk is encrypted or has an unknown codec.
    SourceChangedError
        If the file is too short for the places.
    """
    if n_rows == 0:
        return projection.arrow_schema.empty_table()
    # Lists, because a loop over the few columns of a read is faster than numpy's calls.
    starts, lengths = places.start.tolist(), places.length.tolist()
    num_values, codecs = places.num_values.tolist(), places.codec.tolist()
    _check_places(
        projection,
        starts,
        lengths,
        num_values,
        codecs,
        n_rows=n_rows,
        file_size=file_size,
        file=file,
        row_group=row_group,
    )
    reach = lengths
    if projection.padding:
        reach = [
            min(length + projection.padding, file_size - start)
            for start, length in zip(starts, lengths, strict=True)
        ]
    ranges, positions = coalesce(starts, reach, max_gap=max_gap)
    parts = read_exactly(read_ranges, ranges, file=file, row_group=row_group)
    footer = projection.footer(
        n_rows=n_rows,
        start=[position + len(MAGIC) for position in positions],
        length=lengths,
        num_values=num_values,
        codec=codecs,
    )
    return projection.decode([MAGIC, *parts, footer], file=file, row_group=row_group, n_rows=n_rows)


def read_exactly(
    read_ranges: Callable[[list[tuple[int, int]]], Sequence[bytes | memoryview]],
    ranges: list[tuple[int, int]],
    *,
    file: str,
    row_group: int,
) -> Sequence[bytes | memoryview]:
    """Return the bytes of some ranges; a range that comes short is a SourceChangedError."""
    parts = read_ranges(ranges)
    for (offset, length), part in zip(ranges, parts, strict=True):
        if len(part) != length:
            raise SourceChangedError(
                f"source file is shorter than when it was indexed: {file}, row group {row_group};"
                f" expected {length} bytes at {offset}, found {len(part)}",
                hint="restore the file, or build the index again",
                file=file,
                row_group=row_group,
                expected=length,
                found=len(part),
            )
    return parts


def coalesce(
    starts: Sequence[int], lengths: Sequence[int], *, max_gap: int = 0
) -> tuple[list[tuple[int, int]], list[int]]:
    """Join ranges that touch, overlap or nearly touch.

    Returns
    -------
    ranges : list of (int, int)
        (offset, length), ascending.
    positions : list of int
        Where each input begins when the ranges are put behind each other.

    Examples
    --------
    >>> coalesce([4, 20, 10], [6, 5, 2])
    ([(4, 8), (20, 5)], [0, 8, 6])
    """
    if not starts:
        return [], []
    positions = [0] * len(starts)
    ranges: list[tuple[int, int]] = []
    range_start = reach = min(starts)
    n_before = 0
    for i in sorted(range(len(starts)), key=starts.__getitem__):
        start = starts[i]
        if start > reach + max_gap:
            ranges.append((range_start, reach - range_start))
            n_before += reach - range_start
            range_start = reach = start
        positions[i] = n_before + start - range_start
        reach = max(reach, start + lengths[i])
    ranges.append((range_start, reach - range_start))
    return ranges, positions


def _check_places(
    projection: Projection,
    starts: list[int],
    lengths: list[int],
    num_values: list[int],
    codecs: list[int],
    *,
    n_rows: int,
    file_size: int,
    file: str,
    row_group: int,
) -> None:
    """Refuse places that cannot be read."""
    leaves = projection.leaves
    if not len(leaves) == len(starts) == len(lengths) == len(num_values) == len(codecs):
        raise UsageError(
            f"places do not fit the projection; expected {len(leaves)} leaves, found {len(starts)}",
            expected=len(leaves),
            found=len(starts),
        )
    for i, start in enumerate(starts):
        # pyarrow stops after `n_rows` rows without a word, so that more values than that would be lost in silence.
        has_all_rows = num_values[i] == n_rows or (
            leaves[i].max_repetition_level > 0 and num_values[i] > n_rows
        )
        if not (
            start >= FIRST_DATA_BYTE
            and 0 <= lengths[i] <= file_size - start
            and has_all_rows
            and num_values[i] <= MAX_NUMBER
            and 0 <= codecs[i] < N_CODECS
        ):
            raise _unreadable(
                leaves[i],
                start,
                lengths[i],
                num_values[i],
                codecs[i],
                n_rows=n_rows,
                file_size=file_size,
                file=file,
                row_group=row_group,
            )


def _unreadable(
    leaf: Leaf,
    start: int,
    length: int,
    num_values: int,
    codec: int,
    *,
    n_rows: int,
    file_size: int,
    file: str,
    row_group: int,
) -> PqindexError:
    """Return the error that says why a chunk cannot be read."""
    column = ".".join(leaf.path)
    where = f"{file}, row group {row_group}, column {column!r}"
    facts: dict[str, Any] = {"file": file, "row_group": row_group, "column": column}
    if start == -1:
        return UnsupportedFileError(f"column is encrypted: {where}", hint="leave the column out", **facts)
    if not 0 <= codec < N_CODECS:
        return UnsupportedFileError(
            f"column has an unknown codec: {where}; expected 0 to {N_CODECS - 1}, found {codec}",
            hint="leave the column out",
            expected=N_CODECS - 1,
            found=codec,
            **facts,
        )
    if start < FIRST_DATA_BYTE or length < 0:
        return BadFileError(
            f"place of a chunk makes no sense: {where};"
            f" expected a start of {FIRST_DATA_BYTE} or more and a length, found {start} and {length}",
            expected=FIRST_DATA_BYTE,
            found=start,
            **facts,
        )
    if length <= file_size - start:
        return BadFileError(
            f"values of a chunk do not fit its row group: {where}; expected {n_rows}, found {num_values}",
            expected=n_rows,
            found=num_values,
            **facts,
        )
    return SourceChangedError(
        f"source file is shorter than when it was indexed: {where};"
        f" expected {start + length} bytes or more, found {file_size}",
        hint="restore the file, or build the index again",
        expected=start + length,
        found=file_size,
        **facts,
    )
