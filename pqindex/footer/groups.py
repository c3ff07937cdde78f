"""The row groups of a footer, read one field after another.

This is the reference that the columnar parser must equal, and what reads small footers and odd ones.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from pqindex.errors import BadFileError
from pqindex.footer import chunks
from pqindex.footer.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    CompactReader,
    Constant,
    Nested,
    Table,
    encode_binary,
    encode_list_header,
    key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pqindex.footer.chunks import Int64s

N_ROWS: Final = 0
TOTAL_BYTE_SIZE: Final = 1
N_GROUP_SLOTS: Final = 2
_SHORT_LIST: Final = 16
_ABSENT: Final = [-1] * chunks.N_SLOTS


class _GroupReader(CompactReader):
    """Cursor that knows which columns come, and keeps what it has read of them."""

    __slots__ = ("chunk_slots", "group_slots", "n_chunks", "paths")

    def __init__(self, buffer: bytes, position: int, paths: Sequence[bytes], *, file: str) -> None:
        super().__init__(buffer, position, file=file)
        self.paths = paths
        self.n_chunks = -1
        # Grown by what is read, never by a number that the file says.
        self.group_slots = array("q")
        self.chunk_slots = array("q")


def read_groups(
    footer: bytes, position: int, encoded_paths: Sequence[bytes], *, file: str
) -> tuple[Int64s, Int64s, int]:
    """Read the list of row groups that begins at `position`.

    About 10 us a chunk. Nothing is checked but that every row group has a chunk for each leaf; see
    `chunks.build_chunks`.

    Returns
    -------
    group_slots : ndarray of int64, shape (2, row groups)
        Rows and total byte size.
    chunk_slots : ndarray of int64, shape (chunks.N_SLOTS, row groups * leaves)
    position : int
        The byte after the list.

    Raises
    ------
    BadFileError
        If the Thrift is corrupt, or a row group has another number of chunks than there are leaves.
    """
    reader = _GroupReader(footer, position, encoded_paths, file=file)
    n_groups, kind = reader.list_header()
    if n_groups and kind != STRUCT:
        reader.fail("row groups are not structs", expected=STRUCT, found=kind)
    for row_group in range(n_groups):
        reader.n_chunks = -1
        values = [-1] * N_GROUP_SLOTS
        reader.struct(GROUP_TABLE, values)
        if reader.n_chunks != len(encoded_paths):
            raise BadFileError(
                f"footer contradicts itself, a row group has not one chunk a column: {file}, row group {row_group};"
                f" expected {len(encoded_paths)}, found {max(reader.n_chunks, 0)}",
                file=file,
                row_group=row_group,
                expected=len(encoded_paths),
                found=max(reader.n_chunks, 0),
            )
        reader.group_slots.extend(values)
    groups = np.asarray(reader.group_slots, np.int64).reshape(n_groups, N_GROUP_SLOTS)
    slots = np.asarray(reader.chunk_slots, np.int64).reshape(-1, chunks.N_SLOTS)
    return groups.T.copy(), slots.T.copy(), reader.position


def _read_chunks(reader: CompactReader, _values: list[int]) -> None:
    assert isinstance(reader, _GroupReader)  # noqa: S101  # the table below is read by no other
    n_chunks, kind = reader.list_header()
    if n_chunks and kind != STRUCT:
        reader.fail("column chunks are not structs", expected=STRUCT, found=kind)
    if reader.n_chunks >= 0:
        reader.fail("a row group lists its chunks twice", expected="once", found="twice")
    reader.n_chunks = n_chunks
    for leaf in range(min(n_chunks, len(reader.paths))):
        reader.context = leaf
        values = _ABSENT.copy()
        reader.struct(CHUNK_TABLE, values)
        reader.chunk_slots.extend(values)
    if n_chunks > len(reader.paths):
        for _ in range(n_chunks - len(reader.paths)):
            reader.skip(STRUCT)


def read_encodings(reader: CompactReader, values: list[int]) -> None:
    """Read a list of encodings as a set of bits."""
    size, kind = reader.list_header()
    if size and kind != I32:
        reader.fail("encodings are not numbers", expected=I32, found=kind)
    bits = (
        _encoding_bits(reader.buffer[reader.position : reader.position + size]) if size < _SHORT_LIST else -1
    )
    if bits >= 0:
        reader.position += size
    else:
        bits = 0
        for _ in range(size):
            bits |= 1 << encoding_bit(reader.integer(32))
    values[chunks.ENCODINGS] = bits


@lru_cache(maxsize=256)
def _encoding_bits(raw: bytes) -> int:
    """Return the bits of encodings that take one byte each, -1 where they do not."""
    bits = 0
    for byte in raw:
        if byte >= 0x80:
            return -1
        bits |= 1 << encoding_bit((byte >> 1) ^ -(byte & 1))
    return bits


def encoding_bit(encoding: int) -> int:
    """Return which bit of `Chunks.encodings` stands for an encoding."""
    return encoding if 0 <= encoding < chunks.UNKNOWN_ENCODING_BIT else chunks.UNKNOWN_ENCODING_BIT


def read_path(reader: CompactReader, values: list[int]) -> None:
    """Read the path of a chunk and note whether it is that of its column."""
    assert isinstance(reader, _GroupReader)  # noqa: S101  # the table below is read by no other
    expected = reader.paths[reader.context]
    if reader.buffer.startswith(expected, reader.position):
        # Thrift values are prefix-free: a value that begins with these bytes is these bytes.
        reader.position += len(expected)
        values[chunks.HAS_PATH] = 1
        return
    size, kind = reader.list_header()
    if size and kind != BINARY:
        reader.fail("a column path is not text", expected=BINARY, found=kind)
    names = [encode_binary(reader.binary()) for _ in range(size)]
    values[chunks.HAS_PATH] = encode_list_header(size, BINARY) + b"".join(names) == expected


_STATISTICS_TABLE: Final[Table] = {
    key(1, BINARY): chunks.MAX,
    key(2, BINARY): chunks.MIN,
    key(3, I64): chunks.NULL_COUNT,
    key(5, BINARY): chunks.MAX_VALUE,
    key(6, BINARY): chunks.MIN_VALUE,
    key(7, TRUE): Constant(chunks.MAX_EXACT, 1),
    key(7, FALSE): Constant(chunks.MAX_EXACT, 0),
    key(8, TRUE): Constant(chunks.MIN_EXACT, 1),
    key(8, FALSE): Constant(chunks.MIN_EXACT, 0),
}
METADATA_TABLE: Final[Table] = {
    key(1, I32): chunks.TYPE,
    key(2, LIST): read_encodings,
    key(3, LIST): read_path,
    key(4, I32): chunks.CODEC,
    key(5, I64): chunks.NUM_VALUES,
    key(6, I64): chunks.UNCOMPRESSED_SIZE,
    key(7, I64): chunks.COMPRESSED_SIZE,
    key(9, I64): chunks.DATA_PAGE_OFFSET,
    key(11, I64): chunks.DICTIONARY_PAGE_OFFSET,
    key(12, STRUCT): Nested(_STATISTICS_TABLE),
}
CHUNK_TABLE: Final[Table] = {
    key(1, BINARY): chunks.FILE_PATH,
    key(3, STRUCT): Nested(METADATA_TABLE, chunks.HAS_METADATA),
    key(4, I64): chunks.OFFSET_INDEX_OFFSET,
    key(5, I32): chunks.OFFSET_INDEX_LENGTH,
    key(6, I64): chunks.COLUMN_INDEX_OFFSET,
    key(7, I32): chunks.COLUMN_INDEX_LENGTH,
    key(8, STRUCT): Nested({}, chunks.IS_ENCRYPTED),
}
GROUP_TABLE: Final[Table] = {
    key(1, LIST): _read_chunks,
    key(2, I64): TOTAL_BYTE_SIZE,
    key(3, I64): N_ROWS,
}
