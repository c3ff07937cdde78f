"""Runs and packed bits: every width, against the definition; and runs that lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqindex.decode.runs import (
    MAX_RUNS,
    PADDING,
    Run,
    all_defined,
    check_all_defined,
    fill_runs,
    packed_header,
    parse_runs,
    sized_all_defined,
    unpack,
)
from pqindex.decode.signals import BadPageError, NotDirectError
from pqindex.footer.thrift import encode_varint


def packed(values: Any, bit_width: int) -> bytes:
    """Pack whole groups of 8 values, least bit first, by the definition."""
    number = sum(int(value) << place * bit_width for place, value in enumerate(values))
    return number.to_bytes(len(values) * bit_width // 8, "little")


def repeated(value: int, n: int, bit_width: int) -> bytes:
    return encode_varint(n << 1) + value.to_bytes((bit_width + 7) // 8, "little")


def literal(values: Any, bit_width: int) -> bytes:
    return encode_varint(len(values) // 8 << 1 | 1) + packed(values, bit_width)


@pytest.mark.parametrize("bit_width", range(1, 33))
@pytest.mark.parametrize("n_groups", [1, 7, 1024, 1025, 2050])
def test_every_width_unpacks(bit_width: int, n_groups: int) -> None:
    rng = np.random.default_rng(bit_width)
    values = rng.integers(0, 1 << bit_width, 8 * n_groups, np.uint64)
    values[-1] = values[0] = (1 << bit_width) - 1
    bits = (values[:, None] >> np.arange(bit_width, dtype=np.uint64)) & np.uint64(1)
    data = np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()
    assert np.array_equal(unpack(data + PADDING, bit_width, n_groups), values)


@given(data=st.data(), bit_width=st.integers(0, 32))
def test_mixed_runs_give_their_values(data: st.DataObject, bit_width: int) -> None:
    value = st.integers(0, (1 << bit_width) - 1)
    values: list[int] = []
    encoded, packed_parts = b"", b""
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            n = data.draw(st.integers(1, 300))
            repeat = data.draw(value)
            encoded += repeated(repeat, n, bit_width)
            values += [repeat] * n
        else:
            some = data.draw(st.lists(value, min_size=8, max_size=8)) * data.draw(st.integers(1, 3))
            encoded += literal(some, bit_width)
            packed_parts += packed(some, bit_width)
            values += some
    runs = parse_runs(b"?" + encoded, 1, 1 + len(encoded), bit_width=bit_width, n_values=len(values))
    n_groups = sum((run.n_values + 7) // 8 for run in runs if run.value < 0)
    unpacked = (
        unpack(packed_parts + PADDING, bit_width, n_groups)
        if bit_width
        else np.zeros(8 * n_groups, np.uint32)
    )
    assert fill_runs(runs, unpacked, 0).tolist() == values


def test_the_last_group_of_a_page_may_be_padded() -> None:
    data = literal([1] * 16, 3)
    assert parse_runs(data, 0, len(data), bit_width=3, n_values=9) == [Run(9, -1, 1, 7)]
    assert packed_header(9) == data[:1]


@pytest.mark.parametrize(
    ("data", "n_values", "reason"),
    [
        (repeated(1, 1, 3) * (MAX_RUNS + 1), MAX_RUNS + 1, "a page has many runs"),
        (repeated(1, 0, 3) + repeated(1, 5, 3), 5, "a run is empty"),
        (repeated(1, 6, 3), 5, "a run is longer than its page"),
        (literal([1] * 16, 3), 8, "a run is longer than its page"),
        (literal([1] * 16, 3)[:-1], 9, "a packed run is cut short"),
        (repeated(1, 5, 3) + b"\0", 5, "bytes follow the runs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_writers_may_write_are_left_to_pyarrow(data: bytes, n_values: int, reason: str) -> None:
    with pytest.raises(NotDirectError, match=reason):
        parse_runs(data, 0, len(data), bit_width=3, n_values=n_values)


@pytest.mark.parametrize(
    ("data", "what", "found"),
    [
        (b"", "the runs of a page end early", "the end"),
        (b"\x80", "the runs of a page end early", "the end"),
        (repeated(1, 4, 3), "the runs of a page end early", "the end"),
        (b"\x08", "a run has no value", 0),
        (literal([1] * 8, 3)[:-2], "a packed run passes the end of its page", 3),
        (b"\xff\xff\xff\xff\x0f" + bytes(9), "a packed run passes the end of its page", 3 * (2**31 - 1)),
        (b"\xff\xff\xff\xff\x1f" + bytes(9), "the length of a run is too large", "more"),
        (b"\xff\xff\xff\xff\xff\x01" + bytes(9), "the length of a run is too large", "more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_lie_are_bad(data: bytes, what: str, found: object) -> None:
    n_values = 80 if data[:1] == b"\xff" else 8
    with pytest.raises(BadPageError, match=what) as caught:
        parse_runs(data, 0, len(data), bit_width=3, n_values=n_values)
    assert caught.value.found == found


def test_levels_of_values_without_nulls_are_told_from_all_others() -> None:
    for n in (1, 7, 8, 9, 500, 10**6):
        levels = all_defined(n)
        check_all_defined(levels, 0, len(levels), n)
        assert sized_all_defined(n) == len(levels).to_bytes(4, "little") + levels
    bits = literal([1] * 11 + [0] * 5, 1)
    check_all_defined(bits, 0, len(bits), 11)
    with pytest.raises(NotDirectError, match="a page has nulls"):
        check_all_defined(bits, 0, len(bits), 12)
    mixed = repeated(1, 20, 1) + repeated(0, 1, 1)
    with pytest.raises(NotDirectError, match="a page has nulls"):
        check_all_defined(mixed, 0, len(mixed), 21)
    high = repeated(2, 20, 1)
    with pytest.raises(BadPageError, match="a definition level is too great"):
        check_all_defined(high, 0, len(high), 20)
