"""Where the chunks of a row group lie, whether such places can be read, and the read of a whole row group.

Never here: opening the file and reading it, which is the caller's `read_ranges`, and pages within a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pqindex.errors import BadFileError, PqindexError, SourceChangedError, UnsupportedFileError, UsageError
from pqindex.footer.blocks import Block, decode_blocks, fetch
from pqindex.footer.chunks import FIRST_DATA_BYTE, N_CODECS, Int64s, chunk_start
from pqindex.footer.synthetic import MAX_NUMBER, Projection

if TYPE_CHECKING:
    import numpy.typing as npt

    from pqindex.footer.blocks import ReadRanges
    from pqindex.footer.metadata import FileMetadata
    from pqindex.footer.schema import Leaf


class ChunkPlaces(NamedTuple):
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
    read_ranges: ReadRanges,
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
    n_leaves = len(projection.leaves)
    if not n_leaves == len(places.start) == len(places.length) == len(places.num_values) == len(places.codec):
        raise UsageError(
            f"places do not fit the projection; expected {n_leaves} leaves, found {len(places.start)}",
            expected=n_leaves,
            found=len(places.start),
        )
    is_nested = np.array([leaf.max_repetition_level > 0 for leaf in projection.leaves], np.bool_)
    bad = unreadable_chunks(places, is_nested=is_nested, n_rows=n_rows, file_size=file_size)
    if bad.any():
        at = int(bad.argmax())
        raise unreadable(
            projection.leaves[at],
            places,
            at,
            n_rows=n_rows,
            file_size=file_size,
            file=file,
            row_group=row_group,
        )
    block = whole_group(projection, places, n_rows=n_rows, file=file, row_group=row_group)
    return decode_blocks(fetch([block], read_ranges, file_size=file_size, max_gap=max_gap))[0]


def whole_group(
    projection: Projection, places: ChunkPlaces, *, n_rows: int, file: str, row_group: int
) -> Block:
    """Return the block of a whole row group; its places must have been found readable."""
    return Block(
        projection,
        n_rows,
        places.start.tolist(),
        places.length.tolist(),
        1,
        places.num_values.tolist(),
        places.codec.tolist(),
        projection.padding,
        file,
        row_group,
    )


def unreadable_chunks(
    places: ChunkPlaces,
    *,
    is_nested: npt.NDArray[np.bool_],
    n_rows: int | Int64s,
    file_size: int | Int64s,
) -> npt.NDArray[np.bool_]:
    """Return which chunks cannot be read: their places make no sense, or do not fit the file or the row group.

    PyArrow stops after `n_rows` rows without a word, so that more values than that would be lost in silence.

    Parameters
    ----------
    places : ChunkPlaces
        Of shape (n,), of any number of row groups.
    is_nested : ndarray of bool, shape (n,)
        Whether the leaf is in a list, so that it may have more values than rows.
    n_rows, file_size : int, or ndarray of int64 of shape (n,)
        Of the row group and the file of each chunk.
    """
    good = (places.start >= FIRST_DATA_BYTE) & (places.length >= 0)
    good &= places.length <= file_size - places.start
    good &= (places.num_values == n_rows) | (is_nested & (places.num_values > n_rows))
    good &= (places.num_values <= MAX_NUMBER) & (places.codec >= 0) & (places.codec < N_CODECS)
    return ~good


def unreadable(
    leaf: Leaf,
    places: ChunkPlaces,
    at: int,
    *,
    n_rows: int,
    file_size: int,
    file: str,
    row_group: int,
) -> PqindexError:
    """Return the error that says why a chunk cannot be read."""
    start, length = int(places.start[at]), int(places.length[at])
    num_values, codec = int(places.num_values[at]), int(places.codec[at])
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
