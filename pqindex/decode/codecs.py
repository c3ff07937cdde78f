"""Decompression of one page to exactly the bytes that its header says, or an error.

PyArrow's codecs write into memory of the size asked for and do not say how much of it they wrote, so each way here
proves the size: snappy and zstd have it in the compressed bytes, and an LZ4 block is put into a frame that has it.
Where the package lz4 is installed, that says how much it wrote, and no frame is needed.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import zstandard

from pqindex.decode.columns import LZ4_RAW, SNAPPY, ZSTD
from pqindex.decode.signals import BadPageError, NotDirectError
from pqindex.footer.thrift import encode_varint

_snappy = pa.Codec("snappy")
_lz4_frame = pa.Codec("lz4")
_snappy_size = lru_cache(maxsize=1 << 12)(encode_varint)


class _Own(threading.local):
    """What each thread has for itself: making a zstd context costs more than most pages."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_own = _Own()


def _from_snappy(data: bytes | memoryview, size: int) -> bytes:
    head = _snappy_size(size)
    if data[: len(head)] != head:
        raise BadPageError("the snappy bytes have another size than the page", expected=size, found="another")
    try:
        page: bytes = _snappy.decompress(data, size, asbytes=True)
    except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise _corrupt("snappy", size, error) from error
    return page


# -- LZ4 ------------------------------------------------------------------------------------------------------

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_END: Final = bytes(4)
_LZ4_FLAGS: Final = 0x68  # version 1, blocks that stand alone, the size of the content
_LZ4_SMALLEST: Final = 1 << 16
_LZ4_BLOCK_SIZES: Final = ((1 << 16, 4), (1 << 18, 5), (1 << 20, 6), (1 << 22, 7))


def from_lz4_by_frame(data: bytes | memoryview, size: int) -> bytes:
    """Return the bytes of an LZ4 block, by way of a frame around it."""
    n_stored = len(data)
    head = _lz4_head(size, n_stored if n_stored > _LZ4_SMALLEST else 0)
    frame = b"".join((head, n_stored.to_bytes(4, "little"), data, _LZ4_END))
    try:
        page: bytes = _lz4_frame.decompress(frame, size, asbytes=True)
    except (OSError, ValueError) as error:
        raise _corrupt("LZ4", size, error) from error
    return page


def _lz4_package() -> Any:
    """Return the module of the package lz4 for blocks, or None where it is not installed."""
    try:
        return import_module("lz4.block")
    except ImportError:
        return None


_block: Final = _lz4_package()


def from_lz4_by_block(data: bytes | memoryview, size: int) -> bytes:
    """Return the same by the package lz4, which takes less than half the time for a page of 2 KB."""
    if not size:
        return from_lz4_by_frame(data, size)
    try:
        page: bytes = _block.decompress(data, uncompressed_size=size)
    except (_block.LZ4BlockError, ValueError, OverflowError) as error:
        raise _corrupt("LZ4", size, error) from error
    if len(page) != size:
        raise BadPageError("the LZ4 block has another size than the page", expected=size, found=len(page))
    return page


@lru_cache(maxsize=1 << 12)
def _lz4_head(size: int, n_stored: int) -> bytes:
    """Return the header of an LZ4 frame of one block: "LZ4 Frame Format Description", version 1.6."""
    number = next((number for limit, number in _LZ4_BLOCK_SIZES if max(size, n_stored) <= limit), None)
    if number is None:
        raise NotDirectError("a page is too large for an LZ4 frame")
    descriptor = bytes((_LZ4_FLAGS, number << 4)) + size.to_bytes(8, "little")
    return _LZ4_MAGIC + descriptor + bytes((_xxh32(descriptor) >> 8 & 0xFF,))


_XXH_2: Final = 2246822519
_XXH_1, _XXH_3, _XXH_4, _XXH_5 = 2654435761, 3266489917, 668265263, 374761393
_32_BITS: Final = 0xFFFFFFFF


def _xxh32(data: bytes) -> int:
    """Return the 32-bit xxHash of fewer than 16 bytes, with seed 0: "xxHash fast digest algorithm", version 0.1.1."""

    def rotate(value: int, n_bits: int) -> int:
        return (value << n_bits | value >> (32 - n_bits)) & _32_BITS

    n_words = len(data) // 4
    value = _XXH_5 + len(data)
    for word in range(n_words):
        value += int.from_bytes(data[4 * word : 4 * word + 4], "little") * _XXH_3
        value = rotate(value & _32_BITS, 17) * _XXH_4
    for byte in data[4 * n_words :]:
        value = rotate((value + byte * _XXH_5) & _32_BITS, 11) * _XXH_1
    value &= _32_BITS
    value = (value ^ value >> 15) * _XXH_2 & _32_BITS
    value = (value ^ value >> 13) * _XXH_3 & _32_BITS
    return value ^ value >> 16


# -- zstd -----------------------------------------------------------------------------------------------------

_UNKNOWN: Final = -1


def _from_zstd(data: bytes | memoryview, size: int) -> bytes:
    try:
        # The library takes memory for what the frame says, whatever the limit that it is given.
        content_size = zstandard.frame_content_size(data)
        if content_size > size:
            raise BadPageError(
                "the zstd frame has another size than the page", expected=size, found=content_size
            )
        page: bytes = _own.zstd.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        if "unused data" in str(error):  # several frames are one page to PyArrow
            raise NotDirectError("a page has several zstd frames") from error
        raise _corrupt("zstd", size, error) from error
    if len(page) != size:
        raise BadPageError("the zstd frame has another size than the page", expected=size, found=len(page))
    return page


def _corrupt(codec: str, size: int, error: Exception) -> BadPageError:
    return BadPageError(f"the {codec} bytes do not decompress", expected=f"{size} bytes", found=str(error))


DECOMPRESS: Final = {
    SNAPPY: _from_snappy,
    LZ4_RAW: from_lz4_by_frame if _block is None else from_lz4_by_block,
    ZSTD: _from_zstd,
}
"""By codec: from the compressed bytes, all of them, and the size that the page header says, to that many bytes.

Memory for no more is taken. Thread-safe. Each raises BadPageError if the bytes do not decompress, or to another size,
and NotDirectError if they are of a kind that PyArrow must read.
"""
