"""Compact Thrift, as far as a Parquet footer needs it: a bounded reader and a minimal writer.

The reader never trusts a number: a varint has at most ten bytes, a length and a list size at most as many as
there are bytes left (no Thrift value takes less than one byte), nesting at most `MAX_DEPTH`. So a hostile
footer costs time in proportion to its bytes, and no memory is taken by a number read from it. Meaning belongs
to the modules above: this one knows no field of Parquet.

The encoding is that of the Apache Thrift specification, "Thrift compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from pqindex.errors import BadFileError

MAX_DEPTH: Final = 32
MAX_VARINT_BYTES: Final = 10
_MAX_KNOWN_BYTES: Final = 256

STOP: Final = 0
TRUE: Final = 1
FALSE: Final = 2
I8: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12
UUID: Final = 13

# Of an element of a list; a boolean that is a field has its value in the field's header.
_FIXED_SIZES: Final[Mapping[int, int]] = {TRUE: 1, FALSE: 1, I8: 1, DOUBLE: 8, UUID: 16}

_BITS: Final[Mapping[int, int]] = {I16: 16, I32: 32, I64: 64}

Values: TypeAlias = "list[int]"
"""What a struct says: a number a slot. What the slots are is the caller's business."""

Action: TypeAlias = "int | Constant | Nested | Callable[[CompactReader, Values], None]"
"""What to do with a field: put its value into a slot, one of the records below, or a call with (reader, values).

An integer's slot gets the number; a binary's slot gets where its bytes start, and the next slot their length.
"""

Table: TypeAlias = Mapping[int, Action]
"""The known fields of a struct by `key(field_id, kind)`. Fields not in it are skipped."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Put `value` into `slot`: for a boolean, whose value is its Thrift type."""

    slot: int
    value: int

    def __call__(self, _reader: CompactReader, values: Values) -> None:
        """Put it."""
        values[self.slot] = self.value


@dataclass(frozen=True, slots=True)
class Nested:
    """Read a struct with a table of its own into the same slots, and note that it was there if it has a `slot`."""

    table: Table
    slot: int | None = None
    value: int = 1

    def __call__(self, reader: CompactReader, values: Values) -> None:
        """Read it."""
        if self.slot is not None:
            values[self.slot] = self.value
        reader.struct(self.table, values)


def key(field_id: int, kind: int) -> int:
    """Return the number that a `Table` uses for a field of this id and Thrift type."""
    return field_id << 4 | kind


class CompactReader:
    """Cursor over a buffer of compact Thrift.

    Not for several threads at once. The buffer is neither copied nor kept beyond the reader's life.

    Parameters
    ----------
    buffer : bytes
        The bytes to read.
    position : int
        Where to begin.
    file : str
        The file that the bytes are from, for messages.
    part : str
        What the buffer holds, for messages.

    Attributes
    ----------
    position : int
        The cursor.
    context : int
        What is being read, as a number of the caller's: in the same context the same unknown fields are expected.

    Raises
    ------
    BadFileError
        From every method, when the bytes break the encoding or a bound.
    """

    __slots__ = ("_skipped", "buffer", "context", "file", "part", "position")

    def __init__(self, buffer: bytes, position: int = 0, *, file: str, part: str = "footer") -> None:
        self.buffer = buffer
        self.position = position
        self.file = file
        self.part = part
        self.context = 0
        self._skipped: dict[int, bytes] = {}

    def fail(self, what: str, *, expected: object, found: object) -> NoReturn:
        """Raise the error that says what is wrong at the cursor."""
        raise BadFileError(
            f"footer is corrupt, {what}: {self.file}, byte {self.position} of the {self.part};"
            f" expected {expected}, found {found}",
            file=self.file,
            position=self.position,
            expected=expected,
            found=found,
        )

    def byte(self) -> int:
        """Return the next byte."""
        try:
            value = self.buffer[self.position]
        except IndexError:
            self.fail("it ends inside a value", expected="a byte", found="the end")
        self.position += 1
        return value

    def varint(self) -> int:
        """Return the next unsigned varint, below 2**64."""
        value = self.byte()
        shift = 0
        while value >> shift >= 0x80:
            value ^= 0x80 << shift
            shift += 7
            if shift == 7 * MAX_VARINT_BYTES:
                self.fail("a number is too long", expected=f"at most {MAX_VARINT_BYTES} bytes", found="more")
            value |= self.byte() << shift
        if value >> 64:
            self.fail("a number is too large", expected="at most 64 bits", found=value)
        return value

    def unsigned(self, bits: int) -> int:
        """Return the next unsigned varint of at most `bits` bits."""
        raw = self.varint()
        if raw >> bits:
            self.fail("a number is too large", expected=f"at most {bits} bits", found=(raw >> 1) ^ -(raw & 1))
        return raw

    def integer(self, bits: int = 64) -> int:
        """Return the next signed (zigzag) integer of at most `bits` bits."""
        raw = self.unsigned(bits)
        return (raw >> 1) ^ -(raw & 1)

    def span(self) -> tuple[int, int]:
        """Return (start, length) of the next binary value, and move past it."""
        length = self.varint()
        start = self.position
        self._check_left(length, "a length")
        self.position = start + length
        return start, length

    def binary(self) -> bytes:
        """Return the bytes of the next binary value."""
        start, length = self.span()
        return self.buffer[start : start + length]

    def list_header(self) -> tuple[int, int]:
        """Return (number of elements, Thrift type of an element) of the list or set that begins here."""
        header = self.byte()
        size = header >> 4
        if size == 15:
            size = self.varint()
        self._check_left(size, "a list size")
        return size, header & 15

    def struct(self, table: Table, values: Values, *, after_field: int = 0) -> None:
        """Read the struct that begins here into `values`, and skip the fields that `table` does not know.

        With `after_field`, the fields up to that one have been read, and the cursor is behind it. A field that comes
        twice counts as it came last, as in Thrift's own readers.
        """
        # This loop reads nearly all of a footer: hence its own cursor, and short cuts for short numbers. Whatever is
        # unusual goes through the methods, which say what is wrong.
        buffer = self.buffer
        position = self.position
        field_id = after_field
        try:
            while header := buffer[position]:
                position += 1
                kind = header & 15
                if header > 15:
                    field_id += header >> 4
                else:
                    self.position = position
                    field_id = self.integer(16)
                    position = self.position
                action = table.get(field_id << 4 | kind)
                if I16 <= kind <= I64:
                    raw = buffer[position]
                    if raw < 0x80:
                        position += 1
                    elif (high := buffer[position + 1]) < 0x80:
                        raw = raw & 0x7F | high << 7
                        position += 2
                    else:
                        self.position = position
                        raw = self.unsigned(_BITS[kind])
                        position = self.position
                    if isinstance(action, int):
                        values[action] = (raw >> 1) ^ -(raw & 1)
                    continue
                self.position = position
                if isinstance(action, int):
                    values[action], values[action + 1] = self.span()
                elif action is None:
                    self.skip(kind)
                else:
                    action(self, values)
                position = self.position
        except IndexError:
            self.position = len(buffer)
            self.byte()
        self.position = position + 1

    def skip(self, kind: int, depth: int = 0) -> None:
        """Move past a value of this Thrift type that stands in a struct."""
        if kind in (TRUE, FALSE):
            return  # their value is in the field's header
        if depth or kind not in (LIST, STRUCT):
            self._skip_element(kind, depth)
            return
        # What is skipped is often what was skipped before. The encoding is prefix-free: where the bytes of a whole
        # value of this type stand, it is that value.
        start = self.position
        place = self.context << 4 | kind
        known = self._skipped.get(place)
        if known is not None and self.buffer.startswith(known, start):
            self.position = start + len(known)
            return
        self._skip_element(kind, depth)
        if self.position - start <= _MAX_KNOWN_BYTES:
            self._skipped[place] = self.buffer[start : self.position]

    def _skip_element(self, kind: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail("values are nested too deeply", expected=f"at most {MAX_DEPTH} levels", found="more")
        if kind == STRUCT:
            self._skip_struct(depth)
        elif kind in _BITS:
            self.unsigned(_BITS[kind])
        elif kind == BINARY:
            self.span()
        elif kind in (LIST, SET):
            size, kind = self.list_header()
            n_bytes = _FIXED_SIZES.get(kind)
            if n_bytes is not None:
                self._move(size * n_bytes)
            else:
                for _ in range(size):
                    self._skip_element(kind, depth + 1)
        elif kind == MAP:
            self._skip_map(depth)
        else:
            n_bytes = _FIXED_SIZES.get(kind)
            if n_bytes is None:
                self.fail("a value has an unknown type", expected="a Thrift type, 1 to 13", found=kind)
            self._move(n_bytes)

    def _skip_struct(self, depth: int) -> None:
        buffer = self.buffer
        position = self.position
        try:
            while header := buffer[position]:
                position += 1
                kind = header & 15
                if header > 15 and I16 <= kind <= I64 and buffer[position] < 0x80:
                    position += 1
                    continue
                self.position = position
                if header <= 15:
                    self.integer(16)
                self.skip(kind, depth + 1)
                position = self.position
        except IndexError:
            self.position = len(buffer)
            self.byte()
        self.position = position + 1

    def _skip_map(self, depth: int) -> None:
        size = self.varint()
        self._check_left(size, "a map size")
        if size:
            kinds = self.byte()
            for _ in range(size):
                self._skip_element(kinds >> 4, depth + 1)
                self._skip_element(kinds & 15, depth + 1)

    def _move(self, n_bytes: int) -> None:
        self._check_left(n_bytes, "a value")
        self.position += n_bytes

    def _check_left(self, size: int, what: str) -> None:
        left = len(self.buffer) - self.position
        if size > left:
            self.fail(f"{what} is too large", expected=f"at most {left}, the bytes left", found=size)


def encode_varint(value: int) -> bytes:
    """Return an unsigned number as a varint.

    >>> encode_varint(300).hex()
    'ac02'
    """
    groups: list[int] = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def encode_integer(value: int) -> bytes:
    """Return a signed integer as a zigzag varint.

    >>> encode_integer(-1).hex(), encode_integer(64).hex()
    ('01', '8001')
    """
    return encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def encode_binary(value: bytes) -> bytes:
    """Return a binary value: its length and its bytes."""
    return encode_varint(len(value)) + value


def encode_list_header(size: int, kind: int) -> bytes:
    """Return what stands before the elements of a list."""
    return bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + encode_varint(size)


def encode_struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Return a struct of encoded (field id, Thrift type, value), the ids ascending by 1 to 15.

    >>> encode_struct((1, I32, encode_integer(1)), (4, BINARY, encode_binary(b"a"))).hex()
    '150238016100'
    """
    parts = []
    previous = 0
    for field_id, kind, value in fields:
        parts += [bytes([(field_id - previous) << 4 | kind]), value]
        previous = field_id
    return b"".join([*parts, b"\0"])
