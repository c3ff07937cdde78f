"""Chunks made by hand, right and wrong: values, refusals, and every error with its place."""

from __future__ import annotations

import itertools
import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pqindex.decode import DirectColumn, DirectDecoder, DirectRead, Refusal, decoder
from pqindex.decode.columns import LZ4_RAW, SNAPPY, UNCOMPRESSED, ZSTD
from pqindex.decode.pages import MAX_DICTIONARY_BYTES, MAX_INDICES
from pqindex.errors import BadFileError, UsageError
from pqindex.footer.thrift import FALSE, I32, STRUCT, TRUE, encode_integer, encode_struct, encode_varint

FLOAT = DirectColumn(name="f", stored=np.dtype("<f4"), dtype=np.dtype("<f4"), is_optional=False)
OPTIONAL = DirectColumn(name="f", stored=np.dtype("<f4"), dtype=np.dtype("<f4"), is_optional=True)
BOOL = DirectColumn(name="b", stored=np.dtype("?"), dtype=np.dtype("?"), is_optional=False)
BYTE = DirectColumn(name="u", stored=np.dtype("<i4"), dtype=np.dtype("u1"), is_optional=False)

PLAIN, RLE, BIT_PACKED, DELTA, RLE_DICTIONARY, SPLIT = 0, 3, 4, 5, 8, 9
VALUES = np.array([1.5, -2, 3, 4, 5, 6, 7, 8, 9], "<f4")
LEVELS = b"\x02\x00\x00\x00\x12\x01"  # nine ones, and the length in front
# Nine indices of four bits, 0 to 7 and 1, in two packed groups.
INDICES = b"\x04\x05" + bytes([0x10, 0x32, 0x54, 0x76, 0x01, 0, 0, 0])


def page(
    kind: int,
    data: bytes,
    own: bytes,
    *,
    size: int | None = None,
    stored: int | None = None,
    crc: int | None = None,
) -> bytes:
    numbers = [kind, len(data) if size is None else size, len(data) if stored is None else stored]
    fields = [(i + 1, I32, encode_integer(number)) for i, number in enumerate(numbers)]
    if crc is not None:
        fields.append((4, I32, encode_integer(crc - (1 << 32) if crc >> 31 else crc)))
    return encode_struct(*fields, ({0: 5, 2: 7, 3: 8}[kind], STRUCT, own)) + data


def numbers(*values: int) -> list[tuple[int, int, bytes]]:
    return [(i + 1, I32, encode_integer(value)) for i, value in enumerate(values)]


def v1(data: bytes, n: int = 9, encoding: int = PLAIN, levels: int = RLE, **more: Any) -> bytes:
    return page(0, data, encode_struct(*numbers(n, encoding, levels, RLE)), **more)


def dictionary(
    values: npt.NDArray[Any] = VALUES, encoding: int = PLAIN, n: int | None = None, **more: Any
) -> bytes:
    own = encode_struct(*numbers(len(values) if n is None else n, encoding), (3, FALSE, b""))
    return page(2, values.tobytes(), own, **more)


def v2(
    data: bytes,
    n: int = 9,
    encoding: int = PLAIN,
    *,
    nulls: int = 0,
    rows: int | None = None,
    definition: int = 0,
    repetition: int = 0,
    is_compressed: bool = True,
    **more: Any,
) -> bytes:
    own = [*numbers(n, nulls, n if rows is None else rows, encoding, definition, repetition)]
    return page(3, data, encode_struct(*own, (7, TRUE if is_compressed else FALSE, b"")), **more)


def run(
    column: DirectColumn, chunk: bytes, *, n: int = 9, codec: int = UNCOMPRESSED
) -> npt.NDArray[Any] | str:
    """Decode one chunk: the values, or why it was refused."""
    out = np.zeros((n, 1), column.dtype)
    read = DirectRead("part.parquet", 3, [codec], [(b"??" + chunk + b"?", 2, 2 + len(chunk))], [n], [out])
    refused = DirectDecoder([column], [1]).decode([read])
    return refused[0].reason if refused else out[:, 0]


PLAIN_BYTES = VALUES.tobytes()


@pytest.mark.parametrize(
    "chunk",
    [
        v1(PLAIN_BYTES),
        v2(PLAIN_BYTES),
        v1(PLAIN_BYTES[:16], 4) + v1(PLAIN_BYTES[16:], 5),
        v1(PLAIN_BYTES[:16], 4) + v2(PLAIN_BYTES[16:], 5),
        v1(np.frombuffer(PLAIN_BYTES, "u1").reshape(9, 4).T.tobytes(), encoding=SPLIT),
        dictionary() + v1(b"\x04\x05" + bytes([0x10, 0x32, 0x54, 0x76, 8, 0, 0, 0]), encoding=RLE_DICTIONARY),
        dictionary()
        + v1(b"\x04\x03" + bytes([0x10, 0x32, 0x54, 0x76]) + b"\x02\x08", encoding=RLE_DICTIONARY),
        dictionary()
        + v1(b"\x04\x03" + bytes([0x10, 0x32, 0x54, 0x76]), 8, RLE_DICTIONARY)
        + v1(PLAIN_BYTES[-4:], 1),
        v1(PLAIN_BYTES, crc=zlib.crc32(PLAIN_BYTES)),
    ],
    ids=itertools.count(),
)
def test_the_same_values_come_of_every_way_to_write_them(chunk: bytes) -> None:
    assert np.array_equal(run(FLOAT, chunk), VALUES)


@pytest.mark.parametrize("codec", [SNAPPY, ZSTD, LZ4_RAW])
def test_compressed_pages_and_pages_that_were_left_as_they_are(codec: int) -> None:
    name = {SNAPPY: "snappy", ZSTD: "zstd", LZ4_RAW: "lz4_raw"}[codec]
    packed = pa.Codec(name).compress(PLAIN_BYTES, asbytes=True)
    assert np.array_equal(run(FLOAT, v1(packed, size=36), codec=codec), VALUES)
    assert np.array_equal(run(FLOAT, v2(packed, size=36), codec=codec), VALUES)
    assert np.array_equal(run(FLOAT, v2(PLAIN_BYTES, is_compressed=False), codec=codec), VALUES)
    levels = b"\x12\x01"
    assert np.array_equal(run(OPTIONAL, v2(levels + packed, definition=2, size=38), codec=codec), VALUES)


def test_levels_without_nulls_and_logical_types() -> None:
    assert np.array_equal(run(OPTIONAL, v1(LEVELS + PLAIN_BYTES)), VALUES)
    packed_levels = b"\x03\x00\x00\x00\x05\xff\x01"
    assert np.array_equal(run(OPTIONAL, v1(packed_levels + PLAIN_BYTES)), VALUES)
    # PyArrow cuts what does not fit the logical type, and so do we.
    stored = np.array([0, 1, 255, 256, -1, 7, 8, 9, 10], "<i4")
    expected = [0, 1, 255, 0, 255, 7, 8, 9, 10]
    assert run(BYTE, v1(stored.tobytes())).tolist() == expected
    indexed = dictionary(stored) + v1(
        b"\x04\x05" + bytes([0x10, 0x32, 0x54, 0x76, 8, 0, 0, 0]), encoding=RLE_DICTIONARY
    )
    assert run(BYTE, indexed).tolist() == expected
    bits = [True, False, True, True, False, False, False, False, True]
    assert run(BOOL, v1(bytes([0b1101, 1]))).tolist() == bits
    runs = b"\x05" + bytes([0b1101, 1])
    assert run(BOOL, v2(b"\x03\x00\x00\x00" + runs, encoding=RLE)).tolist() == bits


def test_a_boolean_is_one_bit_of_its_byte() -> None:
    out = run(BOOL, v1(b"\x03", 1), n=1)
    assert not isinstance(out, str)
    assert out.tobytes() == b"\x01"


def test_columns_of_one_field_may_lie_in_buffers_of_their_own() -> None:
    # At the places that they would have in one buffer.
    chunks = [v1((VALUES + i).tobytes()) for i in range(3)]
    size = len(chunks[0])
    buffers = [bytes(i * size) + chunk + bytes(3 * size) for i, chunk in enumerate(chunks)]
    together = b"".join(chunks)
    backwards = [(together, i * size, (i + 1) * size) for i in (2, 1, 0)]
    out = np.zeros((9, 3), "<f4")
    DirectDecoder([FLOAT] * 3, [3]).decode([DirectRead("f", 0, [0] * 3, backwards, [9] * 3, [out])])
    assert np.array_equal(out, np.stack([VALUES + 2, VALUES + 1, VALUES], axis=1))
    for view in ([*buffers], [together] * 3, [memoryview(buffer) for buffer in buffers]):
        out = np.zeros((9, 3), "<f4")
        spans = [(buffer, i * size, (i + 1) * size) for i, buffer in enumerate(view)]
        read = DirectRead("f", 0, [UNCOMPRESSED] * 3, spans, [9] * 3, [out])
        assert DirectDecoder([FLOAT] * 3, [3]).decode([read]) == []
        assert np.array_equal(out, np.stack([VALUES, VALUES + 1, VALUES + 2], axis=1))


def test_a_constant_column_has_indices_of_no_bits() -> None:
    for data in (b"\x00\x12", b"\x00\x05", b"\x01\x12\x00"):
        chunk = dictionary(VALUES[:1]) + v1(data, encoding=RLE_DICTIONARY)
        assert np.array_equal(run(FLOAT, chunk), np.full(9, 1.5, "f4"))


@pytest.mark.parametrize(
    ("column", "chunk", "reason"),
    [
        (OPTIONAL, v1(b"\x02\x00\x00\x00\x12\x00" + PLAIN_BYTES[:8]), "a page has nulls"),
        (OPTIONAL, v1(b"\x02\x00\x00\x00\x12\x00" + PLAIN_BYTES), "a page has nulls"),
        (
            OPTIONAL,
            dictionary() + v1(b"\x02\x00\x00\x00\x12\x00" + INDICES, encoding=RLE_DICTIONARY),
            "a page has nulls",
        ),
        (OPTIONAL, v2(b"\x12\x01" + PLAIN_BYTES, nulls=1, definition=2), "a page has nulls"),
        (OPTIONAL, v1(LEVELS + PLAIN_BYTES, levels=BIT_PACKED), "levels have an old encoding"),
        (OPTIONAL, v2(PLAIN_BYTES), "a page has other levels than its column"),
        (FLOAT, v2(b"\x12\x01" + PLAIN_BYTES, definition=2), "a page has other levels than its column"),
        (FLOAT, v1(PLAIN_BYTES, encoding=DELTA), "an encoding is not known here"),
        (BOOL, v1(b"\x00\x00", encoding=SPLIT), "an encoding is not known here"),
        (FLOAT, v1(PLAIN_BYTES + b"\0"), "bytes follow the values of a page"),
        (BOOL, v1(b"\x03\x00\x00\x00\x05\xff\x01\x00", encoding=RLE), "bytes follow the values of a page"),
        (FLOAT, dictionary() + v1(INDICES + b"\0", encoding=RLE_DICTIONARY), "bytes follow the runs"),
        (FLOAT, v1(PLAIN_BYTES) + b"\0\0\0", "bytes follow the pages"),
        (FLOAT, v1(PLAIN_BYTES) + v1(b"", 0), "bytes follow the pages"),
        (FLOAT, v1(b"", 0) + v1(PLAIN_BYTES), "a page is empty"),
        (FLOAT, dictionary() + dictionary() + v1(PLAIN_BYTES), "a dictionary page is not the first page"),
        (FLOAT, v1(PLAIN_BYTES[:4], 1) + dictionary(), "a dictionary page is not the first page"),
        (FLOAT, dictionary(encoding=RLE) + v1(PLAIN_BYTES), "a dictionary is not plain"),
        (BOOL, dictionary() + v1(b"\0\0"), "a dictionary is not plain"),
        (FLOAT, v1(PLAIN_BYTES, size=1 << 30), "a page is larger than its values need"),
        (
            FLOAT,
            dictionary(size=MAX_DICTIONARY_BYTES + 4, n=MAX_DICTIONARY_BYTES // 4 + 1),
            "a dictionary is large",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_pyarrow_is_said(column: DirectColumn, chunk: bytes, reason: str) -> None:
    assert run(column, chunk) == reason


def test_pages_of_many_indices_are_left_to_pyarrow() -> None:
    for n, expected in ((MAX_INDICES, "read"), (MAX_INDICES + 1, "a page has many indices")):
        runs = b"\x04" + encode_varint(n << 1) + b"\x03"
        chunk = dictionary() + v1(runs, n, RLE_DICTIONARY)
        for rows in (n, 10):
            out = np.zeros((rows, 1), "<f4")
            read = DirectRead("f", 0, [UNCOMPRESSED], [(chunk, 0, len(chunk))], [n], [out], [n - rows])
            refused = DirectDecoder([FLOAT], [1]).decode([read])
            if expected == "read":
                assert not refused
                assert np.array_equal(out[:, 0], np.full(rows, VALUES[3]))
            else:
                assert [one.reason for one in refused] == [expected]


def test_a_dictionary_that_does_not_decompress_is_named_by_its_own_place() -> None:
    packed = bytes(pa.Codec("snappy").compress(PLAIN_BYTES, asbytes=True))
    data = pa.Codec("snappy").compress(INDICES, asbytes=True)
    bad = page(2, b"\xff" + packed[1:], encode_struct(*numbers(9, PLAIN)), size=36)
    chunk = bad + v1(data, encoding=RLE_DICTIONARY, size=len(INDICES))
    with pytest.raises(BadFileError, match="snappy bytes have another size") as caught:
        run(FLOAT, chunk, codec=SNAPPY)
    assert caught.value.position == 0


def test_unknown_codecs_are_left_to_pyarrow() -> None:
    for codec in (2, 3, 4, 5, 8, -1):
        assert run(FLOAT, v1(PLAIN_BYTES), codec=codec) == "a codec is not known here"


SMALL = dictionary(VALUES[:7])


@pytest.mark.parametrize(
    ("column", "chunk", "what", "position"),
    [
        (FLOAT, v1(PLAIN_BYTES, crc=5), "the CRC checksum of a page is not that of its bytes", 0),
        (FLOAT, dictionary(crc=5) + v1(INDICES, encoding=8), "the CRC checksum of a page", 0),
        (FLOAT, v1(PLAIN_BYTES, stored=37, size=37), "a page passes the end of its chunk", 0),
        (FLOAT, v1(PLAIN_BYTES[:16], 4), "pages hold too few values", len(v1(PLAIN_BYTES[:16], 4))),
        (FLOAT, b"", "pages hold too few values", 0),
        (FLOAT, v1(PLAIN_BYTES, 10), "pages hold too many values", 0),
        (FLOAT, v1(PLAIN_BYTES) + v1(PLAIN_BYTES), "pages hold too many values", len(v1(PLAIN_BYTES))),
        (FLOAT, v1(PLAIN_BYTES, size=40), "a page that is not compressed has two sizes", 0),
        (FLOAT, v1(PLAIN_BYTES[:-1]), "a page is shorter than its values", 0),
        (BOOL, v1(b"\x00"), "a page is shorter than its values", 0),
        (FLOAT, v1(PLAIN_BYTES[:-1], encoding=SPLIT), "a page is shorter than its values", 0),
        (
            FLOAT,
            dictionary(n=8) + v1(INDICES, encoding=8),
            "a dictionary has another size than its values",
            0,
        ),
        (FLOAT, v1(INDICES, encoding=8), "a page has no dictionary", 0),
        (FLOAT, dictionary() + v1(b"", encoding=8), "a page has no indices", len(dictionary())),
        (
            FLOAT,
            dictionary() + v1(b"\x21\x12\0\0\0\0\0", encoding=8),
            "indices are too wide",
            len(dictionary()),
        ),
        (
            FLOAT,
            dictionary(VALUES[:0]) + v1(INDICES, encoding=8),
            "a dictionary is empty",
            len(dictionary(VALUES[:0])),
        ),
        (FLOAT, SMALL + v1(INDICES, encoding=8), "an index lies beyond the dictionary", len(SMALL)),
        (FLOAT, SMALL + v1(b"\x04\x12\x07", encoding=8), "an index lies beyond the dictionary", len(SMALL)),
        (
            FLOAT,
            SMALL + v1(b"\x04\x02\x07\x10\x00", encoding=8),
            "an index lies beyond the dictionary",
            len(SMALL),
        ),
        (FLOAT, SMALL + v1(b"\x20\x12\xff\xff\xff\xff", encoding=8), "an index lies beyond", len(SMALL)),
        (FLOAT, v2(PLAIN_BYTES, rows=8), "rows of a flat page are not its values", 0),
        (OPTIONAL, v2(PLAIN_BYTES, definition=37), "levels pass the end of their page", 0),
        (OPTIONAL, v1(b"\xff\x00\x00\x00" + PLAIN_BYTES), "runs pass the end of their page", 0),
        (OPTIONAL, v1(b"\x00\x00"), "runs pass the end of their page", 0),
        (BOOL, v1(b"\xff\xff\xff\xff\x00", encoding=RLE), "runs pass the end of their page", 0),
        (FLOAT, v1(PLAIN_BYTES)[:9], "the page header does not parse", 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pages_that_lie_are_errors_with_their_place(
    column: DirectColumn, chunk: bytes, what: str, position: int
) -> None:
    with pytest.raises(BadFileError, match=f"pages are corrupt, {what}") as caught:
        run(column, chunk)
    error = caught.value
    assert (error.file, error.row_group, error.column, error.position) == (
        "part.parquet",
        3,
        column.name,
        position,
    )
    message = str(error)
    assert (
        f"part.parquet, row group 3, column {column.name!r}, byte {position} of {len(chunk)}; expected "
        in message
    )
    assert f"found {error.found}. Hint: restore the file or write it again" in message


def test_a_chunk_must_hold_its_rows_even_if_fewer_are_wanted() -> None:
    chunk = v1(PLAIN_BYTES)
    read = DirectRead("f", 0, [0], [(chunk, 0, len(chunk))], [12], [np.zeros((9, 1), "f4")])
    with pytest.raises(BadFileError, match="pages hold too few values"):
        DirectDecoder([FLOAT], [1]).decode([read])


def test_compressed_bytes_that_lie_are_errors() -> None:
    for codec, name in ((SNAPPY, "snappy"), (ZSTD, "zstd"), (LZ4_RAW, "lz4_raw")):
        packed = pa.Codec(name).compress(PLAIN_BYTES[:-4], asbytes=True)
        with pytest.raises(BadFileError, match=r"pages are corrupt, the (snappy|zstd|LZ4) "):
            run(FLOAT, v1(packed, size=36), codec=codec)


def test_padding_of_the_last_group_may_be_anything() -> None:
    data = b"\x04\x05" + bytes([0x10, 0x32, 0x54, 0x06, 0xF1, 0xFF, 0xFF, 0xFF])
    assert np.array_equal(run(FLOAT, SMALL + v1(data, encoding=RLE_DICTIONARY)), VALUES[[*range(7), 0, 1]])


def chunk_of(values: npt.NDArray[Any]) -> bytes:
    n = len(values)
    indices = encode_varint((n + 7) // 8 << 1 | 1) + bytes(range(n)) + bytes(-n % 8)
    return dictionary(values) + v1(b"\x08" + indices, n, RLE_DICTIONARY)


def test_many_reads_of_several_fields_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    columns = [FLOAT, OPTIONAL, FLOAT, BOOL]
    many = DirectDecoder(columns, [2, 0, 1, 1])
    reads, expected = [], []
    for number in range(20):
        n = int(rng.integers(1, 90))
        values = rng.normal(size=(n, 3)).astype("<f4")
        levels = encode_varint(n << 1) + b"\x01"
        chunks = [
            v1(values[:, 0].tobytes(), n) if number % 3 else chunk_of(values[:, 0]),
            v1(len(levels).to_bytes(4, "little") + levels + values[:, 1].tobytes(), n),
            chunk_of(values[:, 2]) if number != 7 else v1(values[:, 2].tobytes(), n, DELTA),
            v1(np.packbits(values[:, 0] > 0, bitorder="little").tobytes(), n),
        ]
        buffer = memoryview(b"".join(chunks))
        stops = np.cumsum([len(chunk) for chunk in chunks]).tolist()
        spans = [(buffer, stop - len(chunk), stop) for stop, chunk in zip(stops, chunks, strict=True)]
        outs = [np.zeros((n, width), dtype) for width, dtype in ((2, "f8"), (0, "f4"), (1, "f4"), (1, "i2"))]
        reads.append(DirectRead("f", number, [0] * 4, spans, [n] * 4, outs))
        expected.append(values)
    for most in (decoder.MOST_WAITING_BYTES, 1):
        monkeypatch.setattr(decoder, "MOST_WAITING_BYTES", most)
        assert many.decode(reads) == [Refusal(7, 2, "an encoding is not known here")]
        for number, (read, values) in enumerate(zip(reads, expected, strict=True)):
            assert np.array_equal(read.outs[0], values[:, :2])
            assert number == 7 or np.array_equal(read.outs[2], values[:, 2:])
            assert np.array_equal(read.outs[3][:, 0], values[:, 0] > 0)
            for out in read.outs:
                out[:] = 0


def test_reads_without_rows_ask_for_nothing() -> None:
    out = np.zeros((0, 1), "f4")
    read = DirectRead("f", 0, [0], [(b"", 0, 0)], [0], [out])
    assert DirectDecoder([FLOAT], [1]).decode([read]) == []
    assert DirectDecoder([FLOAT], [1]).decode([]) == []


def test_a_decoder_crosses_processes_and_serves_threads() -> None:
    own = pickle.loads(pickle.dumps(DirectDecoder([FLOAT], [1])))
    packed = pa.Codec("zstd").compress(PLAIN_BYTES, asbytes=True)
    chunk = v1(packed, size=36)

    def decode(_: int) -> bytes:
        out = np.zeros((9, 1), "<f4")
        own.decode([DirectRead("f", 0, [ZSTD], [(chunk, 0, len(chunk))], [9], [out])] * 20)
        return out.tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(decode, range(64))) == {PLAIN_BYTES}


def test_nans_keep_their_bits() -> None:
    bits = np.array([0x7F800001, 0x7FC00123, 0xFFC00001, 0xFF800000], "<u4")
    out = run(FLOAT, v1(bits.tobytes(), 4), n=4)
    assert out.tobytes() == bits.tobytes()


def test_requests_that_make_no_sense_are_usage_errors() -> None:
    chunk = v1(PLAIN_BYTES)

    def attempt(**changes: Any) -> None:
        read = DirectRead("f", 0, [0], [(chunk, 0, len(chunk))], [9], [np.zeros((9, 1), "f4")])
        DirectDecoder([FLOAT], [1]).decode([read._replace(**changes)])

    attempt()
    with pytest.raises(
        UsageError, match="widths of fields do not fit the columns; expected a sum of 1, found"
    ):
        DirectDecoder([FLOAT], [1, 1])
    with pytest.raises(
        UsageError, match="a read does not fit its decoder: f; expected 1 columns in 1 fields, found 2"
    ):
        attempt(codecs=[0, 0])
    with pytest.raises(
        UsageError, match=r"a span lies outside its buffer: f; expected bytes in \[0, 5\d\), found \[0, 5\d\)"
    ):
        attempt(spans=[(chunk, 0, len(chunk) + 1)])
    for outs in ([np.zeros(9, "f4")], [np.zeros((9, 2), "f4")], [np.zeros((10, 1), "f4")]):
        with pytest.raises(
            UsageError, match="an out does not fit its field: f; expected 1 columns and rows within"
        ):
            attempt(outs=outs)
    for start in (-1, 1):
        with pytest.raises(UsageError, match="an out does not fit its field"):
            attempt(row_starts=[start])
    with pytest.raises(
        UsageError, match=r"cannot be decoded into this dtype: column 'f'; expected .* float32, found int64"
    ):
        attempt(outs=[np.zeros((9, 1), "i8")])
