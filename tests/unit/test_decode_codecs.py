"""Decompression gives exactly the bytes that a page header says, or an error."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from pqindex.decode.codecs import DECOMPRESS, from_lz4_by_block, from_lz4_by_frame
from pqindex.decode.columns import LZ4_RAW, SNAPPY, ZSTD
from pqindex.decode.signals import BadPageError, NotDirectError

NAMES = {SNAPPY: "snappy", LZ4_RAW: "lz4_raw", ZSTD: "zstd"}
SIZES = (1, 12, 13, 2000, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 18, (1 << 20) + 5, 1 << 22)


def content(size: int, *, is_random: bool) -> bytes:
    rng = np.random.default_rng(size)
    return rng.bytes(size) if is_random else bytes(rng.integers(0, 3, size, np.uint8))


def compressed(codec: int, data: bytes) -> bytes:
    result: bytes = pa.Codec(NAMES[codec]).compress(data, asbytes=True)
    return result


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("is_random", [False, True])
def test_all_sizes_come_out_as_they_went_in(codec: int, is_random: bool) -> None:
    for size in SIZES:
        data = content(size, is_random=is_random)
        packed = compressed(codec, data)
        if codec == LZ4_RAW and len(packed) > 1 << 22 and DECOMPRESS[codec] is from_lz4_by_frame:
            with pytest.raises(NotDirectError, match="a page is too large for an LZ4 frame"):
                DECOMPRESS[codec](packed, size)
        else:
            assert DECOMPRESS[codec](packed, size) == data
            assert DECOMPRESS[codec](memoryview(packed), size) == data


def test_both_ways_to_read_lz4_are_one() -> None:
    pytest.importorskip("lz4.block", reason="the package lz4 is a choice")
    assert DECOMPRESS[LZ4_RAW] is from_lz4_by_block
    rng = np.random.default_rng(0)
    for number in range(2000):
        size = int(rng.integers(1, 300))
        data = content(size, is_random=number % 2 == 0)
        packed = bytearray(compressed(LZ4_RAW, data))
        if number % 4:
            packed[rng.integers(len(packed))] ^= 1 << rng.integers(8)
        asked = size + int(rng.choice([0, 0, 0, -1, 1]))
        found = []
        for way in (from_lz4_by_block, from_lz4_by_frame):
            try:
                found.append(way(bytes(packed), asked))
            except BadPageError:
                found.append(None)
        assert found[0] == found[1], (number, asked)
        assert asked == size or found[0] != data


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("other", [-1, 1, 700, 1 << 30])
def test_another_size_is_an_error_case_of_memory_never_written(codec: int, other: int) -> None:
    # PyArrow's codecs return a buffer of the size asked for, written or not.
    if other == 1 << 30 and codec != SNAPPY:
        other = 1 << 21
    packed = compressed(codec, content(2000, is_random=True))
    with pytest.raises(BadPageError, match=r"another size than the page|do not decompress") as caught:
        DECOMPRESS[codec](packed, 2000 + other)
    assert str(2000 + other) in str(caught.value.expected)


@pytest.mark.parametrize("codec", NAMES)
def test_cut_and_prolonged_bytes_are_errors(codec: int) -> None:
    packed = compressed(codec, content(2000, is_random=True))
    for bad in (b"", packed[:1], packed[:-1], packed[:1000]):
        with pytest.raises(BadPageError, match=r"another size than the page|do not decompress"):
            DECOMPRESS[codec](bad, 2000)
    longer = packed + b"abc"
    with pytest.raises(NotDirectError if codec == ZSTD else BadPageError):
        DECOMPRESS[codec](longer, 2000)


def test_zstd_frames_without_a_size_are_read_and_held_to_the_page() -> None:
    data = content(2000, is_random=False)
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert zstandard.frame_content_size(packed) == -1
    assert DECOMPRESS[ZSTD](packed, 2000) == data
    for size in (1999, 2001):
        with pytest.raises(BadPageError):
            DECOMPRESS[ZSTD](packed, size)


def test_a_zstd_frame_that_asks_for_gigabytes_gets_none() -> None:
    # Magic, one segment, eight bytes of content size.
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + (1 << 40).to_bytes(8, "little") + bytes(20)
    with pytest.raises(BadPageError, match="the zstd frame has another size than the page") as caught:
        DECOMPRESS[ZSTD](frame, 2000)
    assert caught.value.found == 1 << 40


def test_several_zstd_frames_are_left_to_pyarrow() -> None:
    frame = compressed(ZSTD, content(1000, is_random=False))
    with pytest.raises(NotDirectError, match="a page has several zstd frames"):
        DECOMPRESS[ZSTD](frame + frame, 2000)
