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
    N_GROUP_SLOTS,
    read_chunks,
    read_encodings,
    read_path,
)
from pqindex.footer.lanes import LaneClass, Lanes, Words, varint_lengths
from pqindex.footer.thrift import BINARY, I32, LIST, STRUCT, CompactReader, encode_list_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pqindex.footer.chunks import Int64s

MIN_CHUNKS: Final = 400
"""From so many chunks on this is faster than reading one field after another."""

# Two slots more than a chunk has: where the value of its path lies.
_PATH, _PATH_LENGTH, _N_SLOTS = chunks.N_SLOTS, chunks.N_SLOTS + 1, chunks.N_SLOTS + 2

_FILE_OFFSET: Final = 0x26  # ColumnChunk's field 2, i64, as its first
_METADATA: Final = 0x1C  # its field 3, a struct, behind field 2
_TYPE: Final = 0x15  # ColumnMetaData's field 1, i32
_ENCODINGS: Final = 0x19  # its field 2, a list
_AFTER_FILE_OFFSET: Final = 2
_AFTER_CHUNKS: Final = 1
_MAX_PATH_WORDS: Final = 64

_ENCODING_BITS: Final = np.array(
    [1 << (raw >> 1 if raw % 2 == 0 and raw < 60 else chunks.UNKNOWN_ENCODING_BIT) for raw in range(128)], np.int64
)


def read_groups_columnar(
    footer: bytes, position: int, encoded_paths: Sequence[bytes], *, file: str
) -> tuple[Int64s, Int64s, int] | None:
    """Return what `groups.read_groups` returns, or None where that is not proved.

    About 0.4 us a chunk. Takes some 300 bytes a chunk while it runs.
    """
    try:
        n_groups, kind = CompactReader(footer, position, file=file).list_header()
    except BadFileError:
        return None
    n_leaves = len(encoded_paths)
    # Each chunk takes dozens of bytes, so that the number is bounded before anything is allocated by it.
    if kind != STRUCT or n_leaves == 0 or not 0 < n_groups * n_leaves <= len(footer) // 16:
        return None
    words = Words(footer)
    starts = _guess(words)
    if len(starts) < n_groups * n_leaves:
        return None
    lanes = Lanes(words, np.full((_N_SLOTS, len(starts)), -1, np.int64), _LISTS)
    ends = lanes.read(starts, CHUNK_TABLE, after_field=_AFTER_FILE_OFFSET)
    ...
    return None
