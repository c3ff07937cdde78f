"""Blocks: what is read and decoded together, and the way from their bytes to tables.

A block is some rows of some columns of one row group: whole chunks, or a dictionary page and the data pages that hold
the rows. Blocks of one projection go through one synthetic footer, whatever files they are from, so that a batch of
sequences pays once for opening a buffer. Never here: which blocks to read, and opening files.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pqindex.errors import SourceChangedError
from pqindex.footer.synthetic import MAGIC, GroupChunks, Projection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    ReadRanges = Callable[[list[tuple[int, int]]], Sequence[bytes | memoryview]]

MAX_DECODE_BYTES = 8 << 20
"""So many bytes of blocks are put into one buffer; one block may have more."""


class Block(NamedTuple):
    """Rows of a row group that are decoded together.

    Attributes
    ----------
    projection : Projection
    n_rows : int
    starts, lengths : list of int
        Spans of the file: `spans_per_leaf` for each leaf of the projection, one behind the other.
    spans_per_leaf : int
        1 for whole chunks; 2 for a dictionary page, of length 0 where there is none, and data pages.
    num_values, codec : list of int
        Of the chunk of each leaf.
    padding : int
        Bytes to read past each span, as far as the file has them.
    file : str
    row_group : int
    """

    projection: Projection
    n_rows: int
    starts: list[int]
    lengths: list[int]
    spans_per_leaf: int
    num_values: list[int]
    codec: list[int]
    padding: int
    file: str
    row_group: int

    @property
    def n_bytes(self) -> int:
        """Bytes of all spans."""
        return sum(self.lengths)


class Fetched(NamedTuple):
    """A block with its bytes: `parts` one behind the other, in which each chunk begins at `starts`."""

    block: Block
    parts: list[bytes | memoryview]
    starts: list[int]

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(len(part) for part in self.parts)


def fetch(
    blocks: Sequence[Block], read_ranges: ReadRanges, *, file_size: int, max_gap: int = 0
) -> list[Fetched]:
    """Read the bytes of some blocks of one file: each byte once, in one call of `read_ranges`.

    Parameters
    ----------
    blocks : sequence of Block
    read_ranges : callable
        Takes a list of (offset, length) in ascending order and returns as many bytes-like objects.
    file_size : int
        Size of the file in bytes.
    max_gap : int
        Ranges with at most so many bytes between them are read as one.

    Raises
    ------
    SourceChangedError
        If the file is too short for the places.
    """
    if len(blocks) == 1 and blocks[0].spans_per_leaf == 1 and not blocks[0].padding:  # most reads: no copies
        (block,) = blocks
        ranges, positions = coalesce(block.starts, block.lengths, max_gap=max_gap)
        parts = read_exactly(read_ranges, ranges, file=block.file, row_group=block.row_group)
        return [Fetched(block, list(parts), positions)]
    starts: list[int] = []
    lengths: list[int] = []
    for block in blocks:
        starts += block.starts
        if block.padding:
            lengths += [
                min(length + block.padding, file_size - start)
                for start, length in zip(block.starts, block.lengths, strict=True)
            ]
        else:
            lengths += block.lengths
    ranges, positions = coalesce(starts, lengths, max_gap=max_gap)
    buffers = read_exactly(read_ranges, ranges, file=blocks[0].file, row_group=blocks[0].row_group)
    if len(blocks) == 1 and blocks[0].spans_per_leaf == 1:
        return [Fetched(blocks[0], list(buffers), positions)]
    whole = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
    fetched = []
    at = 0
    for block in blocks:
        stop = at + len(block.starts)
        fetched.append(_cut(block, whole, positions[at:stop], lengths[at:stop]))
        at = stop
    return fetched


def _cut(block: Block, whole: memoryview, positions: list[int], lengths: list[int]) -> Fetched:
    """Bring the spans of each leaf together: a dictionary page and the data pages far behind it."""
    step = block.spans_per_leaf
    if step == 1 and positions and _are_neighbours(positions, lengths):  # as the columns of most reads are
        first = positions[0]
        part = whole[first : positions[-1] + lengths[-1]]
        return Fetched(block, [part], [position - first for position in positions])
    parts: list[bytes | memoryview] = []
    starts: list[int] = []
    at = 0
    for i, (position, length) in enumerate(zip(positions, lengths, strict=True)):
        if i % step == 0:
            starts.append(at)
        if length:
            parts.append(whole[position : position + length])
            at += length
    return Fetched(block, parts, starts)


def _are_neighbours(positions: list[int], lengths: list[int]) -> bool:
    reach = positions[0]
    for position, length in zip(positions, lengths, strict=True):
        if position != reach:
            return False
        reach += length
    return True


def leaf_spans(fetched: Fetched) -> list[tuple[bytes | memoryview, int, int]]:
    """Return where the bytes of each leaf lie: (buffer, start, stop)."""
    lengths = fetched.block.lengths
    if fetched.block.spans_per_leaf == 2:
        parts = iter(fetched.parts)
        return [
            _one_span([next(parts) for length in both if length])
            for both in zip(lengths[::2], lengths[1::2], strict=True)
        ]
    if len(fetched.parts) == 1:
        (part,) = fetched.parts
        return [(part, start, start + length) for start, length in zip(fetched.starts, lengths, strict=True)]
    stops = list(accumulate(map(len, fetched.parts)))
    spans = []
    for start, length in zip(fetched.starts, lengths, strict=True):
        at = bisect_right(stops, start) if length else 0
        before = stops[at - 1] if at else 0
        spans.append((fetched.parts[at], start - before, start - before + length))
    return spans


def _one_span(parts: list[bytes | memoryview]) -> tuple[bytes | memoryview, int, int]:
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    return whole, 0, len(whole)


def select_leaves(fetched: Fetched, projection: Projection, leaves: Sequence[int]) -> Fetched:
    """Return some leaves of a block without padding, with their bytes, as a block of a narrower projection."""
    block = fetched.block
    spans = leaf_spans(fetched)
    parts: list[bytes | memoryview] = [
        memoryview(buffer)[start:stop] for buffer, start, stop in map(spans.__getitem__, leaves)
    ]
    lengths = [len(part) for part in parts]
    narrow = block._replace(
        projection=projection,
        starts=[block.starts[leaf * block.spans_per_leaf] for leaf in leaves],
        lengths=lengths,
        spans_per_leaf=1,
        num_values=[block.num_values[leaf] for leaf in leaves],
        codec=[block.codec[leaf] for leaf in leaves],
    )
    return Fetched(narrow, parts, [0, *accumulate(lengths)][:-1])


def decode_blocks(fetched: Sequence[Fetched]) -> list[pa.Table]:
    """Return the rows of each block; all are of one projection, and decoded from one buffer (see `batches`).

    Raises
    ------
    BadFileError
        If the pages are corrupt, or hold another number of rows.
    UnsupportedFileError
        If pyarrow does not know how to read them.
    """
    parts: list[bytes | memoryview] = [MAGIC]
    groups = []
    at = len(MAGIC)
    for block, own, starts in fetched:
        lengths = block.lengths
        if block.spans_per_leaf == 2:
            lengths = [a + b for a, b in zip(lengths[::2], lengths[1::2], strict=True)]
        groups.append(
            GroupChunks(block.n_rows, [at + s for s in starts], lengths, block.num_values, block.codec)
        )
        parts += own
        at += sum(map(len, own))
    places = [(one.block.file, one.block.row_group) for one in fetched]
    return fetched[0].block.projection.decode(parts, groups, places)


def batches(fetched: Sequence[Fetched], *, at_least: int = 1) -> list[list[int]]:
    """Return which blocks are decoded together: those of one projection, up to `MAX_DECODE_BYTES`.

    With `at_least`, none has more than its share of so many, so that they can be decoded side by side.
    """
    most = -(-len(fetched) // at_least)
    open_batches: dict[int, tuple[list[int], int]] = {}
    found: list[list[int]] = []
    for number, one in enumerate(fetched):
        key = id(one.block.projection)
        numbers, n_bytes = open_batches.get(key, ([], 0))
        if not numbers or len(numbers) == most or n_bytes + one.n_bytes > MAX_DECODE_BYTES:
            numbers, n_bytes = [], 0
            found.append(numbers)
        numbers.append(number)
        open_batches[key] = (numbers, n_bytes + one.n_bytes)
    return found


def read_exactly(
    read_ranges: ReadRanges, ranges: list[tuple[int, int]], *, file: str, row_group: int
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
    """Join ranges that touch, overlap or nearly touch; those without bytes are left out.

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
    first = reach = starts[0]
    positions = []
    for start, length in zip(starts, lengths, strict=True):
        if start != reach:
            break
        positions.append(start - first)
        reach += length
    else:  # the columns of most reads are neighbours
        return [(first, reach - first)] if reach > first else [], positions
    positions = [0] * len(starts)
    ranges: list[tuple[int, int]] = []
    with_bytes = [i for i, length in enumerate(lengths) if length]
    if not with_bytes:
        return [], positions
    range_start = reach = min(starts[i] for i in with_bytes)
    n_before = 0
    for i in sorted(with_bytes, key=starts.__getitem__):
        start = starts[i]
        if start > reach + max_gap:
            ranges.append((range_start, reach - range_start))
            n_before += reach - range_start
            range_start = reach = start
        positions[i] = n_before + start - range_start
        reach = max(reach, start + lengths[i])
    ranges.append((range_start, reach - range_start))
    return ranges, positions
