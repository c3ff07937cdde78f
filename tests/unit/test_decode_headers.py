"""Page headers: the pattern and the Thrift reader say the same, and bad headers are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pqindex.decode.headers import (
    MAX_HEADER_BYTES,
    PageHeader,
    match_data_page,
    match_dictionary_page,
    parse_any_header,
    parse_header,
)
from pqindex.decode.signals import BadPageError, NotDirectError
from pqindex.footer.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    STRUCT,
    TRUE,
    encode_binary,
    encode_integer,
    encode_struct,
)


def i32(number: int, value: int) -> tuple[int, int, bytes]:
    return number, I32, encode_integer(value)


def header(kind: int, own: bytes, *, size: int = 8, stored: int = 8, crc: int | None = None) -> bytes:
    field = {0: 5, 2: 7, 3: 8}[kind]
    fields = [i32(1, kind), i32(2, size), i32(3, stored)]
    if crc is not None:
        fields.append(i32(4, crc))
    return encode_struct(*fields, (field, STRUCT, own))


def both(data: bytes, start: int = 0, stop: int | None = None) -> list[Any]:
    outcomes: list[Any] = []
    for parse in (parse_header, parse_any_header):
        try:
            outcomes.append(parse(data, start, len(data) if stop is None else stop))
        except (BadPageError, NotDirectError) as error:
            outcomes.append(type(error))
    return outcomes


numbers = st.one_of(st.integers(0, 300), st.integers(-(1 << 31), (1 << 31) - 1))


@st.composite
def statistics(draw: st.DrawFn) -> bytes:
    width = draw(st.sampled_from([1, 2, 4, 8, 3]))
    bound = st.binary(min_size=width, max_size=width)
    fields = [
        (number, BINARY, encode_binary(draw(bound))) for number in (1, 2, 5, 6) if draw(st.integers(0, 4))
    ]
    if draw(st.booleans()):
        fields.append((3, I64, encode_integer(draw(st.integers(0, 1 << 40)))))
    fields += [
        (number, draw(st.sampled_from([TRUE, FALSE])), b"") for number in (7, 8) if draw(st.booleans())
    ]
    return encode_struct(*sorted(fields))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([0, 2, 3]))
    n = {0: 4, 2: 2, 3: 6}[kind]
    fields = [i32(i + 1, draw(numbers)) for i in range(n)]
    if kind != 0 and draw(st.booleans()):
        fields.append((n + 1, draw(st.sampled_from([TRUE, FALSE])), b""))
    if kind != 2 and draw(st.booleans()):
        fields.append((5 if kind == 0 else 8, STRUCT, draw(statistics())))
    if draw(st.integers(0, 9)) == 0:
        fields.pop(draw(st.integers(0, len(fields) - 1)))
    return header(
        kind,
        encode_struct(*fields),
        size=draw(numbers),
        stored=draw(numbers),
        crc=draw(st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1))),
    )


@settings(max_examples=400)
@given(
    data=headers(),
    rest=st.binary(max_size=4),
    change=st.one_of(st.none(), st.tuples(st.integers(0), st.binary(max_size=3))),
)
def test_the_pattern_and_the_reader_say_the_same(
    data: bytes, rest: bytes, change: tuple[int, bytes] | None
) -> None:
    if change is not None:
        at = change[0] % len(data)
        data = data[:at] + change[1] + data[at + 1 :]
    ours, reference = both(b"??" + data + rest, 2)
    assert ours == reference
    assert (
        both(memoryview(data)[:-1].tobytes() + b"\x00", 0, len(data) - 1)[0]
        == both(data, 0, len(data) - 1)[1]
    )


def test_the_usual_headers_take_the_pattern() -> None:
    bound = encode_binary(b"1234")
    stats = encode_struct(
        (1, BINARY, bound),
        (2, BINARY, bound),
        (3, I64, b"\x00"),
        (5, BINARY, bound),
        (6, BINARY, bound),
        (7, TRUE, b""),
        (8, TRUE, b""),
    )
    own = encode_struct(i32(1, 500), i32(2, 0), i32(3, 3), i32(4, 3), (5, STRUCT, stats))
    data = header(0, own, size=2006, stored=1999, crc=-1)
    assert match_data_page(data)
    facts = PageHeader(
        kind=0,
        size=2006,
        stored_size=1999,
        n_values=500,
        encoding=0,
        level_encoding=3,
        n_nulls=-1,
        n_rows=-1,
        definition_size=-1,
        repetition_size=-1,
        is_compressed=True,
    )
    assert both(data) == [(facts, 0xFFFFFFFF, len(data))] * 2
    assert match_dictionary_page(header(2, encode_struct(i32(1, 5), i32(2, 0), (3, FALSE, b""))))


def test_a_header_that_ends_early_or_says_too_much_is_bad() -> None:
    data = header(0, encode_struct(i32(1, 5), i32(2, 0), i32(3, 3), i32(4, 3)))
    for stop in range(len(data)):
        with pytest.raises(BadPageError, match="the page header does not parse"):
            parse_header(data, 0, stop)


@pytest.mark.parametrize(
    ("checksum", "is_good"), [(b"\xff\xff\xff\xff\x0f", True), (b"\xff\xff\xff\xff\x1f", False)]
)
def test_a_checksum_of_more_than_32_bits_is_bad(checksum: bytes, is_good: bool) -> None:
    own = encode_struct(i32(1, 5), i32(2, 0), i32(3, 3), i32(4, 3))
    data = header(0, own, crc=-(1 << 31)).replace(b"\xff\xff\xff\xff\x0f", checksum)
    assert checksum in data
    assert match_data_page(data)
    ours, reference = both(data)
    assert ours == reference
    assert ours[1] == 1 << 31 if is_good else ours is BadPageError


@pytest.mark.parametrize("fields", [{1: -1}, {1: 5, 2: 0}, {2: 0, 3: 3}])
def test_missing_and_negative_numbers_are_bad(fields: dict[int, int]) -> None:
    data = header(0, encode_struct(*(i32(number, value) for number, value in fields.items())))
    with pytest.raises(BadPageError, match=r"a field of the page header is missing|is negative") as caught:
        parse_header(data, 0, len(data))
    assert caught.value.expected in ("all fields", "0 or more")


def test_a_negative_size_is_bad() -> None:
    data = header(0, encode_struct(i32(1, 5), i32(2, 0), i32(3, 3), i32(4, 3)), size=-7)
    with pytest.raises(BadPageError, match="a number of the page header is negative") as caught:
        parse_header(data, 0, len(data))
    assert caught.value.found == -7


def test_other_kinds_and_long_headers_are_left_to_pyarrow() -> None:
    index_page = encode_struct(i32(1, 1), i32(2, 8), i32(3, 8))
    with pytest.raises(NotDirectError, match="a page is of another kind"):
        parse_header(index_page, 0, len(index_page))
    with pytest.raises(BadPageError, match="the page header has no kind of page"):
        parse_header(encode_struct(i32(2, 8)), 0, 4)
    stats = encode_struct((1, BINARY, encode_binary(bytes(MAX_HEADER_BYTES))))
    data = header(0, encode_struct(i32(1, 5), i32(2, 0), i32(3, 3), i32(4, 3), (5, STRUCT, stats)))
    with pytest.raises(NotDirectError, match="a page header is long"):
        parse_header(data, 0, len(data))
