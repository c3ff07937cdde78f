"""Compact Thrift: what is read, what is skipped, and every bound."""

from __future__ import annotations

import pytest

from pqindex.errors import BadFileError
from pqindex.footer import thrift
from pqindex.footer.thrift import (
    BINARY,
    DOUBLE,
    FALSE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    UUID,
    CompactReader,
    encode_binary,
    encode_integer,
    encode_list_header,
    encode_struct,
    encode_varint,
    key,
)


def reader(data: bytes) -> CompactReader:
    return CompactReader(data, file="a.parquet")


def padded(varint: bytes, width: int) -> bytes:
    """The same number in at least `width` bytes: leading zero groups are legal."""
    while len(varint) < width:
        varint = varint[:-1] + bytes([varint[-1] | 0x80, 0])
    return varint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("width", [1, 2, 10])
def test_a_varint_is_read_as_it_was_written_padded_or_not(value: int, width: int) -> None:
    encoded = padded(encode_varint(value), width)
    cursor = reader(encoded)
    assert cursor.varint() == value
    assert cursor.position == len(encoded) >= width


@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_an_integer_keeps_its_sign(value: int) -> None:
    assert reader(encode_integer(value)).integer() == value


def test_a_varint_longer_than_ten_bytes_is_refused() -> None:
    with pytest.raises(
        BadFileError, match=r"too long: a\.parquet, byte 10 of the footer; expected at most 10 bytes"
    ):
        reader(b"\x80" * 11 + b"\x00").varint()


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(BadFileError, match="at most 64 bits"):
        reader(encode_varint(2**64)).varint()


@pytest.mark.parametrize(("bits", "value"), [(16, 2**15), (32, -(2**31) - 1)])
def test_a_number_too_large_for_its_type_is_refused(bits: int, value: int) -> None:
    with pytest.raises(BadFileError, match=f"at most {bits} bits, found {value}"):
        reader(encode_integer(value)).integer(bits)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_the_end_inside_a_value_is_an_error(data: bytes) -> None:
    with pytest.raises(BadFileError, match="ends inside a value"):
        reader(data).varint()


def test_a_length_is_at_most_the_bytes_left() -> None:
    assert reader(encode_binary(b"abc")).binary() == b"abc"
    with pytest.raises(BadFileError, match=r"a length is too large.*at most 2, the bytes left, found 3"):
        reader(b"\x03ab").binary()


def test_a_list_size_is_at_most_the_bytes_left() -> None:
    assert reader(encode_list_header(3, I32) + b"\0\0\0").list_header() == (3, I32)
    assert reader(encode_list_header(20, STRUCT) + b"\0" * 20).list_header() == (20, STRUCT)
    with pytest.raises(BadFileError, match=r"a list size is too large.*found 4294967295"):
        reader(encode_list_header(2**32 - 1, I32)).list_header()


def every_kind() -> bytes:
    """A struct with a field of every Thrift type, field 99 among them with the value 7."""
    nested = encode_struct((1, TRUE, b""), (2, LIST, encode_list_header(2, STRUCT) + b"\0\0"))
    return encode_struct(
        (1, TRUE, b""),
        (2, FALSE, b""),
        (3, I8, b"\xff"),
        (4, I16, encode_integer(-3)),
        (5, I32, encode_integer(2**30)),
        (6, I64, encode_integer(2**60)),
        (7, DOUBLE, b"\0" * 8),
        (8, BINARY, encode_binary(b"abc")),
        (9, LIST, encode_list_header(2, TRUE) + b"\1\2"),
        (10, SET, encode_list_header(1, DOUBLE) + b"\0" * 8),
        (
            11,
            MAP,
            b"\x02" + bytes([BINARY << 4 | I32]) + encode_binary(b"k") + b"\0" + encode_binary(b"") + b"\0",
        ),
        (12, MAP, b"\0"),
        (13, STRUCT, nested),
        (14, UUID, b"\0" * 16),
        (
            15,
            LIST,
            encode_list_header(2, LIST) + encode_list_header(0, I32) + encode_list_header(1, I64) + b"\x02",
        ),
    )[:-1] + (bytes([I32]) + encode_integer(99) + encode_integer(7) + b"\0")


def test_unknown_fields_of_every_type_are_skipped() -> None:
    data = every_kind()
    cursor = reader(data + b"rest")
    values = [-1]
    cursor.struct({key(99, I32): 0}, values)
    assert values == [7]
    assert cursor.position == len(data)
    cursor = reader(data + b"rest")
    cursor.skip(STRUCT)
    assert cursor.position == len(data)


def test_every_truncation_is_an_error_and_never_a_hang() -> None:
    data = every_kind()
    for stop in range(len(data)):
        with pytest.raises(BadFileError):
            reader(data[:stop]).struct({key(99, I32): 0}, [-1])
        with pytest.raises(BadFileError):
            reader(data[:stop]).skip(STRUCT)


def test_a_known_field_of_another_type_is_skipped() -> None:
    values = [-1]
    reader(encode_struct((1, BINARY, encode_binary(b"x")))).struct({key(1, I32): 0}, values)
    assert values == [-1]


def test_a_field_that_comes_twice_counts_as_it_came_last() -> None:
    values = [-1]
    once = encode_struct((1, I32, encode_integer(1)))[:-1]
    again = bytes([I32]) + encode_integer(1) + encode_integer(2) + b"\0"
    reader(once + again).struct({key(1, I32): 0}, values)
    assert values == [2]


def test_a_binary_field_gives_where_its_bytes_are() -> None:
    values = [-1, -1]
    data = encode_struct((8, BINARY, encode_binary(b"abc")))
    reader(data).struct({key(8, BINARY): 0}, values)
    start, length = values
    assert data[start : start + length] == b"abc"


def nested_lists(depth: int) -> bytes:
    return encode_list_header(1, LIST) * (depth - 1) + encode_list_header(0, I32)


def test_nesting_is_bounded() -> None:
    reader(nested_lists(thrift.MAX_DEPTH)).skip(LIST)
    with pytest.raises(BadFileError, match="nested too deeply"):
        reader(nested_lists(thrift.MAX_DEPTH + 2)).skip(LIST)
    with pytest.raises(BadFileError, match="nested too deeply"):
        reader(bytes([0x10 | STRUCT]) * 10_000).skip(STRUCT)


@pytest.mark.parametrize("kind", [0, 14, 15])
def test_a_type_that_thrift_does_not_have_is_refused(kind: int) -> None:
    with pytest.raises(BadFileError, match=f"unknown type.*found {kind}"):
        reader(encode_list_header(1, kind) + b"\0").skip(LIST)
