"""The row groups of a large footer, read column-wise: all chunks at once.

Where a chunk's metadata begin is only known once the chunk before was read, which is what makes a footer slow. So the
places are guessed by the bytes that they begin with, the chunks are read as lanes, and then the guess is proved: the
first chunk begins where the list begins, every chunk ends where the next one begins, every row group ends where the
next one begins, and there are as many as the footer says. A parse that begins at the same byte and takes the same steps
gives the same facts, so that nothing else needs to be compared. Wherever the proof fails, the answer is None, and
`groups` reads the footer one field after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pqindex.errors import BadFileError
from pqindex.footer import chunks
from pqindex.footer.groups import (
    CHUNK_TABLE,
    GROUP_TABLE,
    METADATA_TABLE,
    N_GROUP_SLOTS,
    encoding_bit,
    read_encodings,
)
from pqindex.footer.lanes import LaneClass, Lanes, Words, varint_lengths
from pqindex.footer.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    Nested,
    Table,
    encode_list_header,
    key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pqindex.footer.chunks import Int64s

# Two slots more than a chunk has: where the value of its path lies, whose column is not known while it is read.
_PATH, _PATH_LENGTH, _N_SLOTS = range(chunks.N_SLOTS, chunks.N_SLOTS + 3)

_FILE_OFFSET: Final = 2 << 4 | I64  # the first field of a ColumnChunk that has no file_path
_METADATA: Final = 1 << 4 | STRUCT  # the one behind it
_TYPE: Final = 1 << 4 | I32  # the first field of a ColumnMetaData
_ENCODINGS: Final = 1 << 4 | LIST  # the one behind it
_MIN_CHUNK_BYTES: Final = 20
_MANY_FALSE: Final = 1000


def _read_path_span(reader: CompactReader, values: list[int]) -> None:
    values[_PATH] = reader.position
    reader.skip(LIST)
    values[_PATH_LENGTH] = reader.position - values[_PATH]


_LANE_METADATA_TABLE: Final[Table] = {**METADATA_TABLE, key(3, LIST): _read_path_span}
_LANE_CHUNK_TABLE: Final[Table] = {
    **CHUNK_TABLE,
    key(3, STRUCT): Nested(_LANE_METADATA_TABLE, chunks.HAS_METADATA),
}


def _refuse_list(reader: CompactReader, _values: list[int]) -> None:
    reader.fail("a row group lists its chunks twice", expected="once", found="twice")


_TAIL_TABLE: Final[Table] = {**GROUP_TABLE, key(1, LIST): _refuse_list}


def read_groups_columnar(
    footer: bytes, position: int, encoded_paths: Sequence[bytes], *, file: str
) -> tuple[Int64s, Int64s, int] | None:
    """Return what `groups.read_groups` returns, or None where that is not proved.

    About 0.4 us a chunk. Takes some 300 bytes a chunk while it runs.
    """
    n_leaves = len(encoded_paths)
    reader = CompactReader(footer, position, file=file)
    try:
        n_groups, kind = reader.list_header()
    except BadFileError:
        return None
    # Nothing is allocated by a number that the bytes cannot hold.
    if kind != STRUCT or not 0 < n_groups * n_leaves <= len(footer) // _MIN_CHUNK_BYTES:
        return None
    words = Words(footer)
    starts = _guess(words)
    # Few places are false, unless somebody made them.
    if not n_groups * n_leaves <= len(starts) <= 2 * n_groups * n_leaves + _MANY_FALSE:
        return None
    lanes = Lanes(words, np.full((_N_SLOTS, len(starts)), -1, np.int64), _LISTS)
    ends = lanes.read(starts, _LANE_CHUNK_TABLE, after_field=2)
    if not _read_left_over(footer, starts, lanes):
        return None
    chosen = _follow(starts, ends, reader.position, n_groups * n_leaves)
    if chosen is None:
        return None
    slots = lanes.slots
    if len(chosen) < len(starts):
        slots, starts, ends = slots[:, chosen], starts[chosen], ends[chosen]
    shape = (n_groups, n_leaves)
    groups = _prove_chain(words, starts.reshape(shape), ends.reshape(shape), reader.position)
    if groups is None:
        return None
    group_slots, stop = groups
    if not _are_paths(words, slots[_PATH].reshape(shape), slots[_PATH_LENGTH].reshape(shape), encoded_paths):
        return None
    slots[chunks.HAS_PATH] = np.where(slots[_PATH] >= 0, 1, -1)
    return group_slots, slots[: chunks.N_SLOTS], stop


def _guess(words: Words) -> Int64s:
    """Return where the metadata of chunks seem to begin: all true places, and perhaps some false ones."""
    data = words.bytes[: words.n_bytes]
    found = np.flatnonzero(data == _METADATA)
    for ahead, mask, byte in ((3, 0xFF, _ENCODINGS), (1, 0xFF, _TYPE), (2, 0xF1, 0), (4, 0x0F, I32)):
        found = found[words.bytes[found + ahead] & mask == byte]
    return found


def _read_left_over(footer: bytes, starts: Int64s, lanes: Lanes) -> bool:
    """Read the lanes that were left over one by one; False where those are too many for this to be worth it."""
    left_over = np.flatnonzero(lanes.ends < 0)
    if len(left_over) > len(starts) // 2:
        return False
    for lane in left_over.tolist():
        values = [-1] * _N_SLOTS
        reader = CompactReader(footer, int(starts[lane]), file="")
        try:
            reader.struct(_LANE_CHUNK_TABLE, values, after_field=2)
        except BadFileError:
            continue  # a false place, or the chain will break here
        lanes.slots[:, lane] = values
        lanes.ends[lane] = reader.position
    return True


def _follow(starts: Int64s, ends: Int64s, first: int, n_chunks: int) -> Int64s | None:
    """Return the lanes that follow each other from `first` on, None if they are fewer than `n_chunks`."""
    if len(starts) == n_chunks and (ends >= 0).all() and (starts[1:] >= ends[:-1]).all():
        return np.arange(n_chunks)
    following = np.searchsorted(starts, ends).tolist()
    is_read = (ends >= 0).tolist()
    lane = int(np.searchsorted(starts, first))
    chosen = []
    for _ in range(n_chunks):
        if lane >= len(starts) or not is_read[lane]:
            return None
        chosen.append(lane)
        lane = following[lane]
    return np.array(chosen, np.int64)


def _prove_chain(words: Words, starts: Int64s, ends: Int64s, first: int) -> tuple[Int64s, int] | None:
    """Return (group slots, byte after the last group) if the chunks and the groups follow each other without a gap.

    Parameters
    ----------
    words : Words
    starts, ends : ndarray of int64, shape (row groups, leaves)
        Each chunk from its metadata on.
    first : int
        Where the first row group begins.
    """
    n_groups, n_leaves = starts.shape
    head = bytes([1 << 4 | LIST]) + encode_list_header(n_leaves, STRUCT)
    tails = Lanes(words, np.full((N_GROUP_SLOTS, n_groups), -1, np.int64), {})
    group_ends = tails.read(np.ascontiguousarray(ends[:, -1]), _TAIL_TABLE, after_field=1)
    if not _read_tails(words, ends[:, -1], tails):
        return None
    group_starts = np.concatenate(([first], group_ends[:-1]))
    for i, byte in enumerate(head):
        if not (words.bytes[group_starts + i] == byte).all():
            return None
    chunk_starts = np.empty_like(starts)
    chunk_starts[:, 0] = group_starts + len(head)
    chunk_starts[:, 1:] = ends[:, :-1]
    if not (words.bytes[chunk_starts] == _FILE_OFFSET).all():
        return None
    lengths, _ = varint_lengths(words.words[chunk_starts + 1])
    if not ((lengths > 0) & (chunk_starts + 1 + lengths == starts)).all():
        return None
    return tails.slots, int(group_ends[-1])


def _read_tails(words: Words, starts: Int64s, tails: Lanes) -> bool:
    """Read what the lanes left over of the row groups; False if some of it is corrupt."""
    for group in np.flatnonzero(tails.ends < 0).tolist():
        values = [-1] * N_GROUP_SLOTS
        reader = CompactReader(words.buffer, int(starts[group]), file="")
        try:
            reader.struct(_TAIL_TABLE, values, after_field=1)
        except BadFileError:
            return False
        tails.slots[:, group] = values
        tails.ends[group] = reader.position
    return True


def _are_paths(words: Words, starts: Int64s, lengths: Int64s, encoded_paths: Sequence[bytes]) -> bool:
    """Return whether every chunk that has metadata has the path of its column."""
    expected = np.array([len(path) for path in encoded_paths])
    is_there = starts >= 0
    if not ((lengths == expected) | ~is_there).all():
        return False
    n_words = int(expected.max() + 7) // 8
    padded = b"".join(path.ljust(8 * n_words, b"\0") for path in encoded_paths)
    wanted = np.frombuffer(padded, "<u8").reshape(len(encoded_paths), n_words)
    for i in range(n_words):
        longer = np.flatnonzero(expected > 8 * i)
        n_bytes = np.minimum(expected[longer] - 8 * i, 8).astype(np.uint64)
        mask = np.uint64(2**64 - 1) >> (np.uint64(64) - n_bytes * np.uint64(8))
        places = np.maximum(starts[:, longer], 0) + 8 * i
        same = (words.words[places] & mask) == wanted[longer, i]
        if not (same | ~is_there[:, longer]).all():
            return False
    return True


# -- lists in lanes -------------------------------------------------------------------------------------------

_MAX_LIST: Final = 40
# By the byte that an encoding is written as, if it is one byte.
_ENCODING_BITS: Final = np.array(
    [1 << encoding_bit((raw >> 1) ^ -(raw & 1)) for raw in range(0x80)], np.int64
)


def _lane_encodings(lanes: Lanes, group: LaneClass, _n_header_bytes: int, size: int, kind: int) -> bool:
    if (size and kind != I32) or size > _MAX_LIST:
        return False
    bits = np.zeros(len(group.lanes), np.int64)
    for i in range(size):
        raw = lanes.words.bytes[group.cursors + i]
        if raw.max() >= 0x80:
            return False
        bits |= _ENCODING_BITS[raw]
    group.cursors += size
    lanes.put(chunks.ENCODINGS, group, bits)
    return True


def _lane_path(lanes: Lanes, group: LaneClass, n_header_bytes: int, size: int, kind: int) -> bool:
    if size and kind != BINARY:
        return False
    lanes.put(_PATH, group, group.cursors - n_header_bytes)
    for _ in range(size):
        if len(group.lanes) == 0 or group.cursors.max() >= lanes.words.n_bytes:
            return False
        lengths = lanes.integers(group)
        group.cursors += lengths
    lanes.put(_PATH_LENGTH, group, group.cursors - lanes.slots[_PATH][group.lanes])
    return True


_LISTS: Final = {read_encodings: _lane_encodings, _read_path_span: _lane_path}
