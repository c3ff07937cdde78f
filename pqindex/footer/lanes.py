"""Many structs of compact Thrift read at the same time, each a lane with a cursor of its own.

Footers hold the same struct thousands of times with nearly the same fields. So all lanes take a step together as long
as they meet the same byte (a field's header, a list's header), and where they do not, they part into *classes* that go
on by themselves. Small classes are not worth it and are left over, as are lanes that meet anything unusual (numbers of
more than eight bytes, maps, deep nesting, the end of the buffer): whoever calls reads those another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pqindex.errors import BadFileError
from pqindex.footer.thrift import (
    BINARY,
    DOUBLE,
    FALSE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    SET,
    STOP,
    STRUCT,
    TRUE,
    UUID,
    CompactReader,
    Constant,
    Nested,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pqindex.footer.chunks import Int64s

U64s: TypeAlias = npt.NDArray[np.uint64]

MIN_LANES: Final = 24
"""Classes of fewer lanes are left over: reading them one by one costs less than a class's steps."""

_MAX_FRAMES: Final = 12
_MAX_SAME_BYTES: Final = 56
_STEP_BYTES: Final = 20
"""What a step moves the cursors at most, unless it says so: a header and a number, or a UUID."""
_MARGIN: Final = 64
"""Zero bytes behind the buffer, more than a step can pass the end by before the next check."""

_CONTINUE_BITS: Final = np.uint64(0x8080808080808080)
_VALUE_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_LENGTH_OF_TERMINATOR: Final = np.uint64(0x0102030405060708)
_ONE, _SEVEN, _TOP_BYTE = (np.uint64(number) for number in (1, 7, 56))
# Squeeze seven bits a byte into 56: the upper half of each part of a word moves down, in three doublings.
_SQUEEZE_STEPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_FIXED_SIZES: Final = {I8: 1, DOUBLE: 8, UUID: 16, TRUE: 1, FALSE: 1}
_BITS: Final = {I16: 16, I32: 32, I64: 64}


class Words:
    """A buffer that gives the byte, or the eight bytes, at many places at once."""

    __slots__ = ("buffer", "bytes", "n_bytes", "words")

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.n_bytes = len(buffer)
        padded = buffer + bytes(_MARGIN)
        self.bytes = np.frombuffer(padded, np.uint8)
        # One word for every byte, overlapping.
        self.words: U64s = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))


def varint_lengths(words: U64s) -> tuple[Int64s, U64s]:
    """Return (bytes, first bit of the terminating byte's top) of the varints that the words begin with.

    The length is 0 for a varint of more than eight bytes.
    """
    ends = ~words & _CONTINUE_BITS
    terminator = ends & (~ends + _ONE)
    lengths = ((terminator >> _SEVEN) * _LENGTH_OF_TERMINATOR) >> _TOP_BYTE
    return lengths.view(np.int64), terminator


def varints(words: U64s) -> tuple[U64s, Int64s]:
    """Return (values, bytes) of the unsigned varints that the words begin with; see `varint_lengths`."""
    lengths, terminator = varint_lengths(words)
    values = words & ((terminator << _ONE) - _ONE) & _VALUE_BITS
    for low, high, shift in _SQUEEZE_STEPS:
        values = (values & low) | ((values & high) >> shift)
    return values, lengths


@dataclass(frozen=True, slots=True)
class _Struct:
    """A struct that is being read, up to and with this field."""

    table: Table
    field_id: int


@dataclass(frozen=True, slots=True)
class _ListStart:
    """A list of which the header comes next; `read` takes its elements, without it they are skipped."""

    read: ListAction | None


@dataclass(frozen=True, slots=True)
class _List:
    """A list that is being skipped: elements to come, and their type."""

    n_left: int
    kind: int


_Frame: TypeAlias = "_Struct | _ListStart | _List"


@dataclass(slots=True)
class LaneClass:
    """Lanes that have met the same bytes so far, so that they are at the same place of the same structs."""

    lanes: Int64s
    cursors: Int64s
    frames: list[_Frame]
    n_safe: int = 0  # bytes that every cursor may yet move without a check

    def keep(self, wanted: npt.NDArray[np.bool_]) -> None:
        """Leave the other lanes over."""
        self.lanes, self.cursors = self.lanes[wanted], self.cursors[wanted]


ListAction: TypeAlias = "Callable[[Lanes, LaneClass, int, int, int], bool]"
"""Takes (reader, class, where the list's header began as bytes before the cursors, number of elements, their type),
moves the cursors behind the list, and returns False to leave the class over."""


class Lanes:
    """Reads one struct from each of many places.

    Parameters
    ----------
    words : Words
    slots : ndarray of int64, shape (slots, lanes)
        Where the tables' actions put what they find; the caller fills it with -1.
    lists : mapping
        For an action of a table that is a function, what reads that list here.
    """

    __slots__ = ("_lists", "_work", "ends", "slots", "words")

    def __init__(self, words: Words, slots: Int64s, lists: Mapping[Any, ListAction]) -> None:
        self.words = words
        self.slots = slots
        self._lists = lists
        self._work: list[LaneClass] = []
        self.ends = np.full(slots.shape[1], -1, np.int64)

    def read(self, starts: Int64s, table: Table, *, after_field: int = 0) -> Int64s:
        """Return the byte after each struct, shape (lanes,); -1 for a lane that is left over.

        Parameters
        ----------
        starts : ndarray of int64, shape (lanes,)
        table : Table
        after_field : int
            The fields up to this one have been read already.
        """
        frames: list[_Frame] = [_Struct(table, after_field)]
        self._work = [LaneClass(np.arange(len(starts)), starts.copy(), frames)]
        while self._work:
            group = self._work.pop()
            while len(group.lanes) >= MIN_LANES and self._step(group):
                pass
        return self.ends

    def put(self, slot: int, group: LaneClass, values: Int64s | int) -> None:
        """Put a number a lane into a slot."""
        row = self.slots[slot]
        if len(group.lanes) == len(row):
            row[...] = values
        else:
            row[group.lanes] = values

    def integers(self, group: LaneClass, *, bits: int = 64) -> Int64s:
        """Return the unsigned varint at each cursor, and move behind it; lanes with larger ones are left over."""
        first = self.words.bytes[group.cursors]
        if np.maximum.reduce(first) < 0x80:
            group.cursors += 1
            return first.astype(np.int64)
        values, lengths = varints(self.words.words[group.cursors])
        if lengths.min() == 0 or (bits < 56 and int(values.max()) >> bits):
            wanted = (lengths > 0) & (values >> np.uint64(min(bits, 63)) == 0)
            group.keep(wanted)
            values, lengths = values[wanted], lengths[wanted]
        group.cursors += lengths
        return values.view(np.int64)

    def same_byte(self, group: LaneClass, ahead: int = 0) -> int | None:
        """Return the byte that all lanes have at the cursor; where they differ, part the class and return None."""
        found = self.words.bytes[group.cursors + ahead if ahead else group.cursors]
        first = int(found[0])
        if np.count_nonzero(found == first) == len(found):
            return first
        for value in np.flatnonzero(np.bincount(found, minlength=256)):
            part = found == value
            self._work.append(LaneClass(group.lanes[part], group.cursors[part], group.frames.copy()))
        return None

    def _step(self, group: LaneClass) -> bool:
        """Read the next thing in all lanes; False when the class is done, has parted or is left over."""
        if not group.frames:
            self._put_ends(group)
            return False
        if len(group.frames) > _MAX_FRAMES:
            return False
        group.n_safe -= _STEP_BYTES
        if group.n_safe < 0:
            group.keep(group.cursors < self.words.n_bytes)
            if len(group.lanes) == 0:
                return False
            group.n_safe = self.words.n_bytes - int(np.maximum.reduce(group.cursors))
        frame = group.frames[-1]
        if isinstance(frame, _Struct):
            return self._read_field(group, frame)
        if isinstance(frame, _ListStart):
            return self._read_list_start(group, frame)
        return self._skip_elements(group, frame)

    def _jump(self, group: LaneClass, lengths: Int64s) -> None:
        group.cursors += lengths
        group.n_safe = 0

    def _put_ends(self, group: LaneClass) -> None:
        group.keep(group.cursors <= self.words.n_bytes)
        self.ends[group.lanes] = group.cursors

    def _read_field(self, group: LaneClass, frame: _Struct) -> bool:
        header = self.same_byte(group)
        if header is None:
            return False
        group.cursors += 1
        if header == STOP:
            group.frames.pop()
            return True
        kind, delta = header & 15, header >> 4
        if delta == 0:
            return False
        field_id = frame.field_id + delta
        group.frames[-1] = _Struct(frame.table, field_id)
        action = frame.table.get(field_id << 4 | kind)
        if action is None:
            return kind in (TRUE, FALSE) or self._skip(group, kind)
        if isinstance(action, Constant):
            self.put(action.slot, group, action.value)
        elif isinstance(action, Nested):
            if action.slot is not None:
                self.put(action.slot, group, action.value)
            group.frames.append(_Struct(action.table, 0))
        elif not isinstance(action, int):
            read = self._lists.get(action)
            if read is None:
                return False
            group.frames.append(_ListStart(read))
        elif kind == BINARY:
            lengths = self.integers(group)
            self.put(action, group, group.cursors)
            self.put(action + 1, group, lengths)
            self._jump(group, lengths)
        else:
            raw = self.integers(group, bits=_BITS[kind])
            self.put(action, group, (raw >> 1) ^ -(raw & 1))
        return True

    def _read_list_start(self, group: LaneClass, frame: _ListStart) -> bool:
        header = self.same_byte(group)
        if header is None:
            return False
        size, n_header_bytes = header >> 4, 1
        if size == 15:
            long_size = self.same_byte(group, ahead=1)
            if long_size is None or long_size >= 0x80:
                return False
            size, n_header_bytes = long_size, 2
        group.frames.pop()
        group.cursors += n_header_bytes
        kind = header & 15
        if frame.read is not None:
            group.n_safe = 0
            return frame.read(self, group, n_header_bytes, size, kind)
        group.frames.append(_List(size, kind))
        return True

    def _skip_elements(self, group: LaneClass, frame: _List) -> bool:
        n_bytes = _FIXED_SIZES.get(frame.kind)
        if frame.n_left == 0 or n_bytes is not None:
            group.frames.pop()
            group.cursors += frame.n_left * (n_bytes or 0)
            group.n_safe = 0
            return True
        group.frames[-1] = _List(frame.n_left - 1, frame.kind)
        return self._skip(group, frame.kind)

    def _skip(self, group: LaneClass, kind: int) -> bool:
        if kind in _BITS:
            self.integers(group, bits=_BITS[kind])
        elif kind == BINARY:
            self._jump(group, self.integers(group))
        elif kind in (STRUCT, LIST, SET):
            self._skip_nested(group, kind)
        elif kind in _FIXED_SIZES:
            group.cursors += _FIXED_SIZES[kind]
        else:
            return False
        return True

    def _skip_nested(self, group: LaneClass, kind: int) -> None:
        """Skip a struct or a list: at once in the lanes that have the same bytes as the first, by steps in the others.

        The encoding is prefix-free: where the bytes of a whole value of this type stand, it is that value.
        """
        frame: _Frame = _Struct({}, 0) if kind == STRUCT else _ListStart(None)
        start = int(group.cursors[0])
        reader = CompactReader(self.words.buffer, start, file="")
        try:
            reader.skip(kind)
        except BadFileError:
            group.frames.append(frame)
            return
        length = reader.position - start
        if length > _MAX_SAME_BYTES:
            group.frames.append(frame)
            return
        same = np.ones(len(group.lanes), np.bool_)
        for i in range(0, length, 8):
            unused = np.uint64(8 * max(i + 8 - length, 0))
            found = self.words.words[group.cursors + i]
            same &= (found ^ found[0]) << unused == 0
        n_same = np.count_nonzero(same)
        if n_same < MIN_LANES:
            group.frames.append(frame)
            return
        if n_same < len(same):
            others = ~same
            self._work.append(LaneClass(group.lanes[others], group.cursors[others], [*group.frames, frame]))
            group.keep(same)
        group.cursors += length
        group.n_safe = 0
