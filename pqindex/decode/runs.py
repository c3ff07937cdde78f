"""Parquet's hybrid of runs and packed bits, which levels and dictionary indices are written in."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pqindex.decode.signals import BadPageError, NotDirectError
from pqindex.footer.thrift import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pqindex.decode.headers import Buffer

MAX_RUNS: Final = 32
"""Pages of more runs are left to PyArrow: a run costs a microsecond here, and next to nothing there."""

MAX_BIT_WIDTH: Final = 32
_MAX_VARINT_BYTES: Final = 5
_BLOCK: Final = 1024  # groups of 8 values that are unpacked at once: the tables below stay small
_NARROW: Final = 25  # the greatest width that any 4 bytes hold whole, whatever bit it begins at
PADDING: Final = bytes(8)
"""What must follow packed bytes, since words are read past the last value."""


class Run(NamedTuple):
    """Consecutive values of a page.

    Attributes
    ----------
    n_values : int
    value : int
        What is repeated; -1 where the values are packed.
    start, stop : int
        Where the packed bytes lie, whole groups of 8 values.
    """

    n_values: int
    value: int
    start: int
    stop: int


def parse_runs(buffer: Buffer, start: int, stop: int, *, bit_width: int, n_values: int) -> list[Run]:
    """Return the runs that hold exactly `n_values`, in `buffer[start:stop]`.

    Raises
    ------
    BadPageError
        If the bytes end before the values.
    NotDirectError
        If there are more than `MAX_RUNS` runs, empty runs, or more values or bytes than asked: some writers pad, and
        what is right is PyArrow's to say.
    """
    runs: list[Run] = []
    n_left = n_values
    value_size = (bit_width + 7) // 8
    while n_left:
        if len(runs) == MAX_RUNS:
            raise NotDirectError("a page has many runs")
        header, start = _varint(buffer, start, stop)
        count = header >> 1
        if count == 0:
            raise NotDirectError("a run is empty")
        if header & 1:
            run_stop = start + count * bit_width
            n = min(8 * count, n_left)
            if run_stop > stop:
                if 8 * (stop - start) >= n * bit_width:
                    raise NotDirectError("a packed run is cut short")
                raise BadPageError(
                    "a packed run passes the end of its page", expected=stop - start, found=count * bit_width
                )
            if 8 * count - n >= 8:
                raise NotDirectError("a run is longer than its page")
            runs.append(Run(n, -1, start, run_stop))
            start = run_stop
        else:
            n = count
            if n > n_left:
                raise NotDirectError("a run is longer than its page")
            if start + value_size > stop:
                raise BadPageError("a run has no value", expected=value_size, found=stop - start)
            value = int.from_bytes(buffer[start : start + value_size], "little")
            start += value_size
            runs.append(Run(n, value, start, start))
        n_left -= n
    if start != stop:
        raise NotDirectError("bytes follow the runs")
    return runs


def _varint(buffer: Buffer, start: int, stop: int) -> tuple[int, int]:
    raw = 0
    for place in range(_MAX_VARINT_BYTES):
        if start >= stop:
            raise BadPageError("the runs of a page end early", expected="more runs", found="the end")
        byte = buffer[start]
        start += 1
        raw |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if raw >> 32:
                break
            return raw, start
    raise BadPageError("the length of a run is too large", expected="at most 32 bits", found="more")


# -- levels ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def all_defined(n_values: int) -> bytes:
    """Return the definition levels of a flat column without nulls, as one run, the way writers write them."""
    return encode_varint(n_values << 1) + b"\x01"


@lru_cache(maxsize=1 << 12)
def sized_all_defined(n_values: int) -> bytes:
    """Return the same with the length in front, as in pages of version 1."""
    run = all_defined(n_values)
    return struct.pack("<I", len(run)) + run


def check_all_defined(buffer: Buffer, start: int, stop: int, n_values: int) -> None:
    """Raise NotDirectError if there are nulls, BadPageError if these are not levels of so many values."""
    for run in parse_runs(buffer, start, stop, bit_width=1, n_values=n_values):
        if run.value < 0:
            bits = np.unpackbits(
                np.frombuffer(buffer, np.uint8, run.stop - run.start, run.start),
                count=run.n_values,
                bitorder="little",
            )
            has_nulls = not bits.all()
        elif run.value > 1:
            raise BadPageError("a definition level is too great", expected="0 or 1", found=run.value)
        else:
            has_nulls = run.value == 0
        if has_nulls:
            raise NotDirectError("a page has nulls")


@lru_cache(maxsize=1 << 12)
def packed_header(n_values: int) -> bytes:
    """Return what stands before all values of a page where they are one packed run."""
    return encode_varint((n_values + 7) // 8 << 1 | 1)


# -- packed bits ----------------------------------------------------------------------------------------------


def unpack(packed: bytes, bit_width: int, n_groups: int) -> npt.NDArray[Any]:
    """Return packed values; about a nanosecond a value once there are some hundreds.

    Parameters
    ----------
    packed : bytes
        Groups of 8 values, one behind the other, then `PADDING`.
    bit_width : int
        Bits a value, 1 to 32.
    n_groups : int

    Returns
    -------
    ndarray, shape (8 * n_groups,), uint32 or uint64
        Each value is below ``2 ** bit_width``.
    """
    if n_groups <= _BLOCK:
        return _unpack_block(packed, 0, bit_width, n_groups)
    values = np.empty(8 * n_groups, np.uint32)
    for first in range(0, n_groups, _BLOCK):
        n = min(_BLOCK, n_groups - first)
        values[8 * first : 8 * (first + n)] = _unpack_block(packed, first * bit_width, bit_width, n)
    return values


def _unpack_block(packed: bytes, start: int, bit_width: int, n_groups: int) -> npt.NDArray[Any]:
    """Take the word that begins at each value's first byte, and shift and mask the value out of it."""
    positions, shifts, mask = _places(bit_width)
    n_values = 8 * n_groups
    # Words that overlap, one at every byte: the last one read begins in the values and ends in the padding.
    words: npt.NDArray[Any] = np.ndarray((n_groups * bit_width,), mask.dtype, packed, start, (1,))
    values = words.take(positions[:n_values])
    values >>= shifts[:n_values]
    values &= mask
    return values


@lru_cache(maxsize=MAX_BIT_WIDTH)
def _places(bit_width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], np.generic]:
    """Return byte and bit of each value of a block, and the mask of a value."""
    word = np.dtype("<u4") if bit_width <= _NARROW else np.dtype("<u8")
    first_bits = np.arange(8 * _BLOCK, dtype=np.int64) * bit_width
    mask = word.type((1 << bit_width) - 1)
    return first_bits >> 3, (first_bits & 7).astype(word), mask


def fill_runs(runs: Sequence[Run], unpacked: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
    """Return the values of a page's runs, the packed of which lie unpacked from `first` on in whole groups."""
    values = np.empty(sum(run.n_values for run in runs), np.uint32)
    at = 0
    for run in runs:
        if run.value < 0:
            values[at : at + run.n_values] = unpacked[first : first + run.n_values]
            first += (run.n_values + 7) // 8 * 8
        else:
            values[at : at + run.n_values] = run.value
        at += run.n_values
    return values
