"""Page headers: the shapes that writers write by one match of a pattern, all others by the Thrift reader.

A pattern is a whole header, from its first byte to its last: the fields of the specification in their order, and the
statistics of fixed-width values, which are stepped over. Thrift's encoding is prefix-free, so a header that matches is
that header and no other, and the bytes of its facts are looked up among those that were parsed before. What does not
match is parsed field by field. Both ways give the same, which a test holds them to.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from pqindex.decode.signals import BadPageError, NotDirectError
from pqindex.errors import BadFileError
from pqindex.footer.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    STRUCT,
    TRUE,
    CompactReader,
    Constant,
    Nested,
    Table,
    key,
)

Buffer: TypeAlias = "bytes | memoryview"

DATA_PAGE: Final = 0
DICTIONARY_PAGE: Final = 2
DATA_PAGE_V2: Final = 3

MAX_HEADER_BYTES: Final = 1 << 12
"""Longer headers are left to PyArrow: numbers have short statistics."""

ABSENT: Final = -1
_MISSING: Final = -1 << 40  # no number that a 32-bit field can hold


class PageHeader(NamedTuple):
    """What a page header says; numbers that a kind of page does not have are `ABSENT`.

    Attributes
    ----------
    kind : int
        `DATA_PAGE`, `DICTIONARY_PAGE` or `DATA_PAGE_V2`.
    size, stored_size : int
        Bytes of the page once decompressed, and in the file.
    n_values : int
        Nulls among them.
    encoding : int
        Of the values.
    level_encoding : int
        Of the definition levels of a page of version 1.
    n_nulls, n_rows, definition_size, repetition_size : int
        Of a page of version 2; sizes in bytes.
    is_compressed : bool
        Whether the codec was used.
    """

    kind: int
    size: int
    stored_size: int
    n_values: int
    encoding: int
    level_encoding: int
    n_nulls: int
    n_rows: int
    definition_size: int
    repetition_size: int
    is_compressed: bool


def parse_header(buffer: Buffer, start: int, stop: int) -> tuple[PageHeader, int, int]:
    """Return what the page header that begins at `start` says, its checksum, and where the page begins.

    About a microsecond for the usual shapes. Reads nothing from `stop` on. The checksum is that of the bytes in the
    file, below ``2 ** 32``, or `ABSENT`; the page begins behind the header.

    Raises
    ------
    BadPageError
        If the header does not parse, lacks a field, or says a negative number.
    NotDirectError
        If it is too long, or of no kind of page that is read here.
    """
    # The second byte of a header that begins with its kind.
    pattern = _PATTERNS.get(buffer[start + 1]) if stop - start > 1 else None
    match = pattern.match(buffer, start, stop) if pattern else None
    if match is None:
        return parse_any_header(buffer, start, stop)
    sizes, crc, own = match.groups()
    return usual_header(sizes, own), ABSENT if crc is None else checksum(crc), match.end()


# -- the usual shapes -----------------------------------------------------------------------------------------

_INTEGER: Final = rb"\x15[\x80-\xff]{0,3}+[\x00-\x7f]"
_CRC: Final = rb"\x15([\x80-\xff]{0,4}+[\x00-\x7f])"
_LONG: Final = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"


def _fields(kind: int) -> bytes:
    """Return the set of first bytes of a field of a Thrift type, whatever its number."""
    return b"".join(b"\\x%02x" % (step << 4 | kind) for step in range(1, 16))


_BOUND: Final = rb"(?:\x04.{4}|\x08.{8}|\x01.|\x02..)"
# What most writers write comes first, since it takes half the time: both bounds twice, a count of nulls, two flags.
_USUAL_STATISTICS: Final = rb"\x18%b\x18%b\x16[\x00-\x7f]\x28%b\x18%b\x11\x11\x00" % ((_BOUND,) * 4)
_ANY_STATISTICS: Final = rb"(?:[%b]%b|[%b]%b|[%b])*+\x00" % (
    *(_fields(BINARY), _BOUND),
    *(_fields(I64), _LONG),
    _fields(TRUE) + _fields(FALSE),
)
_STATISTICS: Final = b"(?:" + _USUAL_STATISTICS + b"|" + _ANY_STATISTICS + b")"


def _pattern(kind: int, field: int, own: bytes, rest: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a header of a kind of page whose own facts are in a field.

    Its groups are the kind and the sizes, the checksum, and the kind's own facts, statistics left out.
    """
    sizes = b"(\\x15\\x%02x" % (kind << 1) + _INTEGER * 2 + b")"
    without_crc, with_crc = (b"\\x%02x" % ((field - before) << 4 | STRUCT) for before in (3, 4))
    begin = sizes + b"(?:" + without_crc + b"|" + _CRC + with_crc + b")"
    return re.compile(begin + b"(" + own + b")" + rest + rb"\x00\x00", re.DOTALL)


_PATTERNS: Final = {
    DATA_PAGE << 1: _pattern(DATA_PAGE, 5, _INTEGER * 4, rb"(?:\x1c" + _STATISTICS + b")?+"),
    DICTIONARY_PAGE << 1: _pattern(DICTIONARY_PAGE, 7, _INTEGER * 2, rb"[\x11\x12]?+"),
    DATA_PAGE_V2 << 1: _pattern(
        DATA_PAGE_V2, 8, _INTEGER * 6 + rb"[\x11\x12]", rb"(?:\x1c" + _STATISTICS + b")?+"
    ),
}


match_data_page: Final = _PATTERNS[DATA_PAGE << 1].match
match_dictionary_page: Final = _PATTERNS[DICTIONARY_PAGE << 1].match


@lru_cache(maxsize=1 << 12)
def usual_header(sizes: bytes, own: bytes) -> PageHeader:
    """Return what the groups of a pattern say; most headers of a file say what others said before."""
    crc_and_rest = b"%c" % (_OWN_FIELD[sizes[1] >> 1] - 3 << 4 | STRUCT) + own + b"\0\0"
    header, _, _ = parse_any_header(sizes + crc_and_rest, 0, len(sizes) + len(crc_and_rest))
    return header


_OWN_FIELD: Final = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}


def checksum(varint: bytes) -> int:
    """Return the checksum that the group of a pattern says."""
    raw = 0
    for place, byte in enumerate(varint):
        raw |= (byte & 0x7F) << 7 * place
    if raw >> 32:
        raise BadPageError("the page header does not parse", expected="a checksum of 32 bits", found=raw)
    return ((raw >> 1) ^ -(raw & 1)) & 0xFFFFFFFF


# -- any shape ------------------------------------------------------------------------------------------------

_KIND, _SIZE, _STORED_SIZE, _CRC_SLOT = range(4)
_V1_VALUES, _V1_ENCODING, _V1_LEVELS, _DICTIONARY_VALUES, _DICTIONARY_ENCODING = range(4, 9)
_V2_VALUES, _V2_NULLS, _V2_ROWS, _V2_ENCODING, _V2_DEFINITION, _V2_REPETITION, _V2_COMPRESSED = range(9, 16)
_N_SLOTS: Final = 16

_HEADER: Final[Table] = {
    key(1, I32): _KIND,
    key(2, I32): _SIZE,
    key(3, I32): _STORED_SIZE,
    key(4, I32): _CRC_SLOT,
    key(5, STRUCT): Nested({key(1, I32): _V1_VALUES, key(2, I32): _V1_ENCODING, key(3, I32): _V1_LEVELS}),
    key(7, STRUCT): Nested({key(1, I32): _DICTIONARY_VALUES, key(2, I32): _DICTIONARY_ENCODING}),
    key(8, STRUCT): Nested(
        {
            key(1, I32): _V2_VALUES,
            key(2, I32): _V2_NULLS,
            key(3, I32): _V2_ROWS,
            key(4, I32): _V2_ENCODING,
            key(5, I32): _V2_DEFINITION,
            key(6, I32): _V2_REPETITION,
            key(7, TRUE): Constant(_V2_COMPRESSED, 1),
            key(7, FALSE): Constant(_V2_COMPRESSED, 0),
        }
    ),
}
_OWN: Final = {
    DATA_PAGE: (_V1_VALUES, _V1_ENCODING, _V1_LEVELS, None, None, None, None),
    DICTIONARY_PAGE: (_DICTIONARY_VALUES, _DICTIONARY_ENCODING, None, None, None, None, None),
    DATA_PAGE_V2: (_V2_VALUES, _V2_ENCODING, None, _V2_NULLS, _V2_ROWS, _V2_DEFINITION, _V2_REPETITION),
}


def parse_any_header(buffer: Buffer, start: int, stop: int) -> tuple[PageHeader, int, int]:
    """Return the same as `parse_header`, field by field."""
    window = bytes(buffer[start : min(stop, start + MAX_HEADER_BYTES)])
    reader = CompactReader(window, file="", part="page header")
    values = [_MISSING] * _N_SLOTS
    try:
        reader.struct(_HEADER, values)
    except BadFileError as error:
        if len(window) == MAX_HEADER_BYTES:
            raise NotDirectError("a page header is long") from error
        raise BadPageError(
            "the page header does not parse", expected=error.facts["expected"], found=error.facts["found"]
        ) from error
    kind = values[_KIND]
    if kind not in _OWN:
        if kind == _MISSING:
            raise BadPageError("the page header has no kind of page", expected="a kind", found="none")
        raise NotDirectError("a page is of another kind")
    numbers = [values[_SIZE], values[_STORED_SIZE]]
    own = [ABSENT if slot is None else values[slot] for slot in _OWN[kind]]
    needed = [number for slot, number in zip(_OWN[kind], own, strict=True) if slot is not None]
    if _MISSING in numbers or _MISSING in needed:
        raise BadPageError("a field of the page header is missing", expected="all fields", found="not all")
    encodings = slice(1, 3) if kind == DATA_PAGE else slice(1, 2)
    del needed[encodings]
    if min(numbers + needed) < 0:
        smallest = min(numbers + needed)
        raise BadPageError("a number of the page header is negative", expected="0 or more", found=smallest)
    n_values, encoding, level_encoding, n_nulls, n_rows, definition_size, repetition_size = own
    crc = values[_CRC_SLOT]
    header = PageHeader(
        kind=kind,
        size=values[_SIZE],
        stored_size=values[_STORED_SIZE],
        n_values=n_values,
        encoding=encoding,
        level_encoding=level_encoding,
        n_nulls=n_nulls,
        n_rows=n_rows,
        definition_size=definition_size,
        repetition_size=repetition_size,
        is_compressed=values[_V2_COMPRESSED] != 0,
    )
    return header, ABSENT if crc == _MISSING else crc & 0xFFFFFFFF, start + reader.position
