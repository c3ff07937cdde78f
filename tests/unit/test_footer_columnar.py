"""All chunks at once: the same as one after another, or no answer."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.errors import BadFileError
from pqindex.footer import chunks, columnar, lanes, metadata, parse_footer, read_tail
from pqindex.footer.columnar import read_groups_columnar
from pqindex.footer.groups import read_groups
from pqindex.footer.lanes import Lanes, Words, varints
from pqindex.footer.thrift import (
    BINARY,
    DOUBLE,
    I8,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    UUID,
    CompactReader,
    Constant,
    Nested,
    encode_binary,
    encode_integer,
    encode_list_header,
    encode_struct,
    encode_varint,
    key,
)


def written(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def footer_of(data: bytes) -> bytes:
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    return data[offset : offset + length]


def list_of_groups(footer: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Where the row groups begin, and the paths of the columns."""
    reader = metadata._FileReader(footer, file="a")
    found: list[int] = []

    def note(cursor: CompactReader, _values: list[int]) -> None:
        found.append(cursor.position)
        cursor.skip(LIST)

    reader.struct({**metadata._FILE_TABLE, key(4, LIST): note}, [-1] * 16)
    assert reader.schema_bytes is not None
    return found[0], metadata.parse_schema(reader.schema_bytes, None, file="a").encoded_paths


def both(footer: bytes) -> bool:
    """Compare the two parsers; whether there was an answer."""
    position, paths = list_of_groups(footer)
    fast = read_groups_columnar(footer, position, paths, file="a")
    if fast is None:
        return False
    slow = read_groups(footer, position, paths, file="a")
    assert np.array_equal(fast[0], slow[0])
    assert np.array_equal(fast[1], slow[1])
    assert fast[2] == slow[2]
    return True


N = 600
WIDE = pa.table(
    {
        "id": np.repeat(np.arange(30), N // 30),
        "x": np.arange(N, dtype=np.float32),
        "name": pa.array([None if i % 40 < 20 else f"n{i}" * (i % 9) for i in range(N)]),
        "cat": pa.array([f"c{i % 3}" for i in range(N)]).dictionary_encode(),
        "list": pa.array([[i, None][: i % 3] for i in range(N)], pa.list_(pa.int16())),
        "s": pa.array([{"a": i, "b": {"c": str(i)}} for i in range(N)]),
        "a name that is longer than eight bytes, and than sixteen": pa.array([True] * N),
    }
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_statistics": False},
        {"write_statistics": ["id", "s.a"]},
        {"write_page_index": True},
        {
            "compression": {"id": "zstd", "x": "zstd", "name": "none"},
            "use_dictionary": ["name"],
        },
        {"data_page_size": 1},
        {"sorting_columns": [pq.SortingColumn(0)]},
        {"store_decimal_as_integer": True, "version": "1.0"},
    ],
)
@pytest.mark.parametrize("min_lanes", [1, lanes.MIN_LANES])
def test_both_parsers_agree(options: dict[str, Any], min_lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MIN_LANES", min_lanes)
    assert both(footer_of(written(WIDE, row_group_size=20, **options)))


def test_small_classes_alone_are_left_to_the_other_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    footer = footer_of(written(WIDE, row_group_size=200))
    assert not both(footer)
    monkeypatch.setattr(lanes, "MIN_LANES", 1)
    assert both(footer)


def test_many_row_groups_of_few_columns() -> None:
    data = written(
        pa.table({"id": np.arange(5000), "f": np.zeros(5000)}), row_group_size=1, compression="none"
    )
    assert both(footer_of(data))


def test_few_row_groups_of_many_columns_case_102() -> None:
    table = pa.table({f"column {i}": pa.array([i, None, i + 1]) for i in range(2000)})
    assert both(footer_of(written(table, row_group_size=2)))


def test_uneven_statistics_part_the_lanes() -> None:
    """Row groups of nulls have no bounds, long text has none, and small classes are read one by one."""
    values = [
        None if g % 5 == 0 else "x" * (5000 if g % 7 == 0 else g % 11) for g in range(300) for _ in range(2)
    ]
    table = pa.table({"a": values, "b": np.arange(600)})
    assert both(footer_of(written(table, row_group_size=2)))


def test_parse_footer_takes_the_fast_way_for_large_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_args: object, **_options: object) -> None:
        raise AssertionError("read one after another")

    data = written(WIDE, row_group_size=20)
    monkeypatch.setattr(metadata, "read_groups", slow)
    assert parse_footer(footer_of(data), file="a", file_size=len(data)).n_row_groups == 30


def test_facts_that_look_like_a_chunk_are_no_chunk() -> None:
    """Statistics may hold the very bytes by which a chunk is guessed."""
    fake = b"\x1c\x15\x0c\x19\x35\x00\x06\x10\x19\x18\x01a\x15\x02\x16\x04\x16\x04\x16\x04\x26\x08\x00\x00"
    table = pa.table({"a": pa.array([fake * 3] * 200, pa.binary()), "b": np.arange(200)})
    footer = footer_of(written(table, row_group_size=2))
    assert len(columnar._guess(Words(footer))) > 200
    assert both(footer)


# -- doubt ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def footer() -> bytes:
    return footer_of(written(WIDE, row_group_size=20))


def test_another_path_is_left_to_the_other_parser(footer: bytes) -> None:
    position, paths = list_of_groups(footer)
    other = (*paths[:-1], paths[-1][:-1] + b"!")
    assert read_groups_columnar(footer, position, other, file="a") is None
    slots = read_groups(footer, position, other, file="a")[1]
    assert set(slots[chunks.HAS_PATH].tolist()) == {0, 1}


@pytest.mark.parametrize("n_columns", [0, 1, 7, 9])
def test_another_number_of_columns_is_left_to_the_other_parser(footer: bytes, n_columns: int) -> None:
    position, paths = list_of_groups(footer)
    other = (paths * 2)[:n_columns]
    assert read_groups_columnar(footer, position, other, file="a") is None
    with pytest.raises(BadFileError, match="not one chunk a column"):
        read_groups(footer, position, other, file="a")


def test_a_truncated_footer_has_no_answer(footer: bytes) -> None:
    position, paths = list_of_groups(footer)
    stop = read_groups(footer, position, paths, file="a")[2]
    for cut in range(position, stop, 101):
        assert read_groups_columnar(footer[:cut], position, paths, file="a") is None
    assert read_groups_columnar(footer[: stop - 1], position, paths, file="a") is None
    assert read_groups_columnar(footer[:stop], position, paths, file="a") is not None


def test_a_hole_between_chunks_has_no_answer(footer: bytes) -> None:
    position, paths = list_of_groups(footer)
    start = int(columnar._guess(Words(footer))[9])
    assert read_groups_columnar(footer[:start] + b"\0" + footer[start:], position, paths, file="a") is None
    assert read_groups_columnar(footer[: start - 1] + footer[start:], position, paths, file="a") is None


def test_a_row_group_that_lists_its_chunks_twice_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MIN_LANES", 1)
    footer = footer_of(written(pa.table({"a": [1]})))
    position, paths = list_of_groups(footer)
    stop = read_groups(footer, position, paths, file="a")[2]
    again = footer[: stop - 1] + bytes([LIST]) + encode_integer(1) + encode_list_header(0, STRUCT) + b"\0"
    with pytest.raises(BadFileError, match="twice"):
        read_groups(again, position, paths, file="a")
    assert read_groups_columnar(again, position, paths, file="a") is None


def test_a_number_of_groups_that_the_bytes_cannot_hold_allocates_nothing(footer: bytes) -> None:
    position, paths = list_of_groups(footer)
    lying = encode_list_header(2**31, STRUCT) + footer[position + 2 :]
    assert read_groups_columnar(lying, 0, paths, file="a") is None


def test_every_changed_byte_gives_the_same_answer_or_none(footer: bytes) -> None:
    position, paths = list_of_groups(footer)
    rng = np.random.default_rng(0)
    n_answers = 0
    for place in rng.integers(position, len(footer), 300):
        changed = footer[:place] + bytes([rng.integers(256)]) + footer[place + 1 :]
        try:
            slow = read_groups(changed, position, paths, file="a")
        except BadFileError:
            slow = None
        fast = read_groups_columnar(changed, position, paths, file="a")
        if fast is not None:
            n_answers += 1
            assert slow is not None
            assert np.array_equal(fast[0], slow[0])
            assert np.array_equal(fast[1], slow[1])
            assert fast[2] == slow[2]
    assert n_answers > 50


# -- lanes ----------------------------------------------------------------------------------------------------


def test_varints_of_one_to_eight_bytes() -> None:
    values = [0, 1, 127, 128, 300, 2**14, 2**21 - 1, 2**35, 2**42 + 5, 2**49, 2**56 - 1]
    encoded = [encode_varint(value) for value in values] + [b"\x85\x80\x80\x80\x80\x80\x80\x00"]
    found, lengths = varints(
        np.array([int.from_bytes(raw.ljust(8, b"\xaa"), "little") for raw in encoded], np.uint64)
    )
    assert found.tolist() == [*values, 5]
    assert lengths.tolist() == [len(raw) for raw in encoded]


def test_longer_varints_have_length_zero() -> None:
    raw = encode_varint(2**56)
    assert varints(np.array([int.from_bytes(raw[:8], "little")], np.uint64))[1].tolist() == [0]


def read_lanes(structs: list[bytes], table: Any, n_slots: int) -> tuple[np.ndarray, list[bool]]:
    """The slots of the lanes, and which of them were read to their end."""
    buffer = b"".join(structs)
    starts = np.cumsum([0, *map(len, structs)])
    reader = Lanes(Words(buffer), np.full((n_slots, len(structs)), -1, np.int64), {})
    ends = reader.read(starts[:-1], table)
    assert all(end in (-1, stop) for end, stop in zip(ends.tolist(), starts[1:].tolist(), strict=True))
    return reader.slots, (ends >= 0).tolist()


TABLE = {
    key(1, I32): 0,
    key(2, BINARY): 1,
    key(3, TRUE): Constant(3, 7),
    key(4, STRUCT): Nested({key(1, I64): 4}, 5),
}


def one(i: int) -> bytes:
    nested = encode_struct((1, I64, encode_integer(-i)))
    lists = encode_list_header(i % 3, LIST) + (encode_list_header(1, I32) + encode_integer(i)) * (i % 3)
    fields = [
        (1, I32, encode_integer(i * 1000)),
        (2, BINARY, encode_binary(b"x" * i)),
        (4, STRUCT, nested),
        (5, LIST, encode_list_header(20, I32) + encode_integer(i) * 20),
        (6, LIST, lists),
        (
            7,
            STRUCT,
            encode_struct((1, TRUE, b""), (2, UUID, bytes(16)), (3, DOUBLE, bytes(8)), (4, I8, b"x")),
        ),
        (8, SET, encode_list_header(3, DOUBLE) + bytes([i]) * 24),
    ]
    if i % 2:
        fields.insert(2, (3, TRUE, b""))
    return encode_struct(*fields)


def test_lanes_read_what_the_cursor_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MIN_LANES", 1)
    structs = [one(i) for i in range(200)]
    slots, is_read = read_lanes(structs, TABLE, 6)
    assert all(is_read)
    buffer = b"".join(structs)
    position = 0
    for i, raw in enumerate(structs):
        values = [-1] * 6
        CompactReader(buffer, position, file="a").struct(TABLE, values)
        assert slots[:, i].tolist() == values
        position += len(raw)


def test_unusual_lanes_are_left_over() -> None:
    plain = encode_struct((1, I32, encode_integer(1)))
    long_field_id = bytes([I32]) + encode_integer(1) + encode_integer(1) + b"\0"
    huge = encode_struct((1, I64, encode_varint(2**60)))
    too_large = encode_struct((1, I32, encode_varint(2**40)))
    mapping = encode_struct((2, MAP, b"\0"))
    unknown = bytes([0x1E, 0])
    odd = [long_field_id, huge, too_large, mapping, unknown]
    structs = [plain] * 50 + [raw for raw in odd for _ in range(30)] + [plain] * 50
    slots, is_read = read_lanes(structs, {key(1, I32): 0}, 1)
    assert is_read == [True] * 50 + [False] * 150 + [True] * 50
    assert slots[0, [0, -1]].tolist() == [1, 1]


def test_deep_nesting_is_left_over_unless_all_lanes_have_the_same() -> None:
    def deep(i: int) -> bytes:
        return encode_struct(
            (2, LIST, encode_list_header(1, LIST) * 20 + encode_list_header(1, I32) + bytes([i]))
        )

    assert all(read_lanes([deep(1)] * 60, {}, 1)[1])
    assert not any(read_lanes([deep(i) for i in range(60)], {}, 1)[1])


def test_classes_of_few_lanes_are_left_over() -> None:
    many, few = encode_struct((1, I32, encode_integer(1))), encode_struct((2, I32, encode_integer(1)))
    _, is_read = read_lanes([many] * 40 + [few] * (lanes.MIN_LANES - 1), {key(1, I32): 0}, 1)
    assert is_read == [True] * 40 + [False] * (lanes.MIN_LANES - 1)


def test_lanes_that_pass_the_end_are_left_over() -> None:
    buffer = encode_struct((2, BINARY, encode_binary(b"abc"))) * 30 + bytes([0x28, 100]) + b"x"
    starts = np.array([*range(0, 180, 6), *[180] * 30])
    reader = Lanes(Words(buffer), np.full((2, 60), -1, np.int64), {})
    ends = reader.read(starts, {key(2, BINARY): 0})
    assert ends.tolist() == [*range(6, 186, 6), *[-1] * 30]
