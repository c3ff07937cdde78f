"""Footers: what is read from good ones, and the reason why each kind of bad one is refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.errors import BadFileError, PqindexError, UnsupportedFileError
from pqindex.footer import TAIL_BYTES, UNKNOWN_CODEC, FileMetadata, chunk_start, parse_footer, read_tail
from pqindex.footer import thrift as t

N_GROUPS = 3


# -- a footer as a tree, to be changed and written again ------------------------------------------------------

Tree = dict[int, tuple[int, Any]]


def decode(cursor: t.CompactReader, kind: int) -> Any:
    if kind in (t.TRUE, t.FALSE):
        return None
    if kind == t.I8:
        return cursor.byte()
    if kind in (t.I16, t.I32, t.I64):
        return cursor.integer()
    if kind == t.BINARY:
        return cursor.binary()
    if kind == t.LIST:
        size, of = cursor.list_header()
        return [of, *(decode(cursor, of) for _ in range(size))]
    assert kind == t.STRUCT, kind
    tree: Tree = {}
    field = 0
    while header := cursor.byte():
        field = field + (header >> 4) if header >> 4 else cursor.integer()
        tree[field] = (header & 15, decode(cursor, header & 15))
    return tree


def encode(kind: int, value: Any) -> bytes:
    if kind in (t.TRUE, t.FALSE):
        return b""
    if kind == t.I8:
        return bytes([value])
    if kind in (t.I16, t.I32, t.I64):
        return t.encode_integer(value)
    if kind == t.BINARY:
        return t.encode_binary(value)
    if kind == t.LIST:
        of, *values = value
        return t.encode_list_header(len(values), of) + b"".join(encode(of, v) for v in values)
    return t.encode_struct(*((field, of, encode(of, v)) for field, (of, v) in value.items()))


def tree_of(footer: bytes) -> Tree:
    tree: Tree = decode(t.CompactReader(footer, file="a"), t.STRUCT)
    return tree


def bytes_of(tree: Tree) -> bytes:
    return encode(t.STRUCT, tree)


def put(struct: Tree, field: int, value: Any) -> None:
    struct[field] = (struct[field][0], value)


def groups(tree: Tree) -> list[Tree]:
    return tree[4][1][1:]  # type: ignore[no-any-return]


def chunk(tree: Tree, group: int, column: int) -> Tree:
    return groups(tree)[group][1][1][1 + column]  # type: ignore[no-any-return]


def facts(tree: Tree, group: int, column: int) -> Tree:
    return chunk(tree, group, column)[3][1]  # type: ignore[no-any-return]


def split(data: bytes) -> tuple[bytes, int]:
    offset, length = read_tail(data[-TAIL_BYTES:], file_size=len(data), file="a")
    return data[offset : offset + length], len(data)


def parse_whole(data: bytes) -> FileMetadata:
    footer, size = split(data)
    return parse_footer(footer, file="a", file_size=size)


@pytest.fixture(scope="module")
def data() -> bytes:
    n = 30
    table = pa.table(
        {
            "id": np.repeat(np.arange(N_GROUPS), n // N_GROUPS),
            "name": pa.array([None if i % 4 == 0 else f"é{i}" for i in range(n)]),
            "list": pa.array([[1, 2], None, []] * (n // 3), pa.list_(pa.float32())),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=n // N_GROUPS, compression="zstd", write_page_index=True)
    return buffer.getvalue()


@pytest.fixture
def tree(data: bytes) -> Tree:
    return tree_of(split(data)[0])


def parse(tree: Tree, data: bytes) -> FileMetadata:
    """Parse a changed footer as if the data before it were those of the file."""
    old, size = split(data)
    footer = bytes_of(tree)
    return parse_footer(footer, file="bad.parquet", file_size=size - len(old) + len(footer))


# -- good footers ---------------------------------------------------------------------------------------------


def test_the_tree_writes_what_it_read(data: bytes) -> None:
    footer, _ = split(data)
    assert bytes_of(tree_of(footer)) == footer


def test_every_fact_agrees_with_pyarrow_L5(data: bytes) -> None:
    footer, size = split(data)
    meta = parse_footer(footer, file="a", file_size=size)
    theirs = pq.ParquetFile(io.BytesIO(data)).metadata
    assert meta.n_rows == theirs.num_rows
    assert meta.created_by == theirs.created_by
    assert meta.n_row_groups == theirs.num_row_groups == N_GROUPS
    assert meta.arrow_schema == theirs.metadata[b"ARROW:schema"]
    chunks = meta.chunks
    for g in range(N_GROUPS):
        group = theirs.row_group(g)
        assert meta.group_n_rows[g] == group.num_rows
        assert meta.group_byte_size[g] == group.total_byte_size
        for c in range(group.num_columns):
            column = group.column(c)
            assert ".".join(meta.leaves[c].path) == column.path_in_schema
            assert chunks.data_page_offset[g, c] == column.data_page_offset
            assert chunks.dictionary_page_offset[g, c] == (column.dictionary_page_offset or -1)
            assert chunks.total_compressed_size[g, c] == column.total_compressed_size
            assert chunks.total_uncompressed_size[g, c] == column.total_uncompressed_size
            assert chunks.num_values[g, c] == column.num_values
            assert chunks.null_count[g, c] == column.statistics.null_count
            assert chunks.codec[g, c] == 6
            assert (chunks.offset_index_length[g, c] > 0) == column.has_offset_index
            assert (chunks.column_index_length[g, c] > 0) == column.has_column_index
            assert not chunks.encrypted[g, c]
            # PLAIN 0, RLE 3, RLE_DICTIONARY 8
            assert chunks.encodings[g, c] == (1 << 0 | 1 << 3 | 1 << 8)


def test_the_bounds_point_into_the_footer(data: bytes) -> None:
    footer, size = split(data)
    chunks = parse_footer(footer, file="a", file_size=size).chunks
    for g in range(N_GROUPS):
        for name in ("min_value", "max_value", "min", "max"):
            start, length = (int(getattr(chunks, f"{name}_{part}")[g, 0]) for part in ("start", "length"))
            assert footer[start : start + length] == g.to_bytes(8, "little")
    assert (
        chunks.min_exact.tolist() == [[1, 1, 1]] * N_GROUPS
        or chunks.min_exact.tolist() == [[-1, -1, -1]] * N_GROUPS
    )


def test_pages_of_the_index_are_where_they_are_said_to_be(data: bytes) -> None:
    footer, size = split(data)
    chunks = parse_footer(footer, file="a", file_size=size).chunks
    offset, length = int(chunks.offset_index_offset[1, 0]), int(chunks.offset_index_length[1, 0])
    cursor = t.CompactReader(data[offset : offset + length], file="a")
    cursor.skip(t.STRUCT)
    assert cursor.position == length


def test_no_row_group_and_empty_row_groups_L8(data: bytes) -> None:
    schema = pa.schema([("a", pa.int64())])
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema):
        pass
    footer, size = split(buffer.getvalue())
    meta = parse_footer(footer, file="a", file_size=size)
    assert (meta.n_rows, meta.n_row_groups, meta.chunks.num_values.shape) == (0, 0, (0, 1))
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema) as writer:
        for n in (0, 5, 0):
            writer.write_table(pa.table({"a": range(n)}, schema=schema))
    footer, size = split(buffer.getvalue())
    assert parse_footer(footer, file="a", file_size=size).group_n_rows.tolist() == [0, 5, 0]


def test_no_column() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}).select([]), buffer)
    footer, size = split(buffer.getvalue())
    meta = parse_footer(footer, file="a", file_size=size)
    assert meta.leaves == ()
    assert meta.chunks.num_values.shape == (meta.n_row_groups, 0)


def test_more_than_32767_row_groups_case_31() -> None:
    n = 40_000
    tree: Tree = {
        1: (t.I32, 1),
        2: (
            t.LIST,
            [
                t.STRUCT,
                {4: (t.BINARY, b"r"), 5: (t.I32, 1)},
                {1: (t.I32, 1), 3: (t.I32, 0), 4: (t.BINARY, b"a")},
            ],
        ),
        3: (t.I64, n),
        4: (
            t.LIST,
            [
                t.STRUCT,
                *(
                    {
                        1: (
                            t.LIST,
                            [
                                t.STRUCT,
                                {
                                    2: (t.I64, 0),
                                    3: (
                                        t.STRUCT,
                                        {
                                            1: (t.I32, 1),
                                            2: (t.LIST, [t.I32, 0]),
                                            3: (t.LIST, [t.BINARY, b"a"]),
                                            4: (t.I32, 0),
                                            5: (t.I64, 1),
                                            6: (t.I64, 20),
                                            7: (t.I64, 20),
                                            9: (t.I64, 4 + 20 * g),
                                        },
                                    ),
                                },
                            ],
                        ),
                        2: (t.I64, 20),
                        3: (t.I64, 1),
                    }
                    for g in range(n)
                ),
            ],
        ),
    }
    footer = bytes_of(tree)
    meta = parse_footer(footer, file="a", file_size=4 + 20 * n + len(footer) + TAIL_BYTES)
    assert meta.n_row_groups == n
    assert meta.chunks.data_page_offset[-1, 0] == 4 + 20 * (n - 1)
    assert meta.created_by is None
    assert meta.arrow_schema is None


def test_fields_in_another_order_are_read(data: bytes) -> None:
    """Thrift promises no order of fields: the row groups may stand before the schema."""
    footer, size = split(data)
    tree = tree_of(footer)
    order = [4, 7, 3, 6, 5, 1, 2]
    parts = [bytes([tree[field][0]]) + t.encode_integer(field) + encode(*tree[field]) for field in order]
    shuffled = b"".join(parts) + b"\0"
    got = parse_footer(shuffled, file="a", file_size=size - len(footer) + len(shuffled))
    expected = parse_footer(footer, file="a", file_size=size)
    assert got.leaves == expected.leaves
    assert np.array_equal(got.chunks.data_page_offset, expected.chunks.data_page_offset)
    assert got.schema_bytes == expected.schema_bytes


def test_unknown_fields_and_bytes_behind_the_footer_are_passed_over(data: bytes, tree: Tree) -> None:
    """A later version of the format adds fields; a signed footer has its signature behind it."""
    tree[15] = (t.STRUCT, {1: (t.I32, 1)})
    facts(tree, 0, 0)[17] = (t.STRUCT, {1: (t.BINARY, b"x")})
    assert parse(tree, data).n_rows == 30
    footer, size = split(data)
    assert parse_footer(footer + b"\0" * 28, file="a", file_size=size + 28).n_rows == 30


# -- quirks of good writers -----------------------------------------------------------------------------------


def test_a_dictionary_offset_of_zero_is_none_T27(data: bytes, tree: Tree) -> None:
    put(facts(tree, 0, 0), 11, 0)
    meta = parse(tree, data)
    assert meta.chunks.dictionary_page_offset[0, 0] == -1
    assert meta.chunks.start[0, 0] == meta.chunks.data_page_offset[0, 0]


def test_a_chunk_begins_with_its_dictionary_if_that_comes_first() -> None:
    data_page, dictionary = np.array([100, 100, 100, 100]), np.array([50, -1, 0, 150])
    assert chunk_start(data_page, dictionary).tolist() == [50, 100, 100, 100]


def test_a_file_offset_of_zero_is_no_fault_T27(data: bytes, tree: Tree) -> None:
    put(chunk(tree, 0, 0), 2, 0)
    parse(tree, data)


def test_an_encrypted_column_leaves_the_others_usable_case_38(data: bytes, tree: Tree) -> None:
    column = chunk(tree, 1, 1)
    column[8] = (t.STRUCT, {1: (t.STRUCT, {})})
    del chunk(tree, 2, 0)[3]
    meta = parse(tree, data)
    assert meta.chunks.encrypted.tolist() == [[False] * 3, [False, True, False], [True, False, False]]
    for place in ((1, 1), (2, 0)):
        assert meta.chunks.start[place] == -1
        assert meta.chunks.total_compressed_size[place] == 0
        assert meta.chunks.codec[place] == UNKNOWN_CODEC
        assert meta.chunks.min_value_length[place] == -1
        assert meta.chunks.null_count[place] == -1


def test_an_unknown_codec_is_marked_case_39(data: bytes, tree: Tree) -> None:
    put(facts(tree, 0, 0), 4, 5000)
    put(facts(tree, 0, 1), 4, 7)
    assert parse(tree, data).chunks.codec[0].tolist() == [UNKNOWN_CODEC, 7, 6]


def test_encodings_without_a_bit_share_one(data: bytes, tree: Tree) -> None:
    put(facts(tree, 0, 0), 2, [t.I32, 0, 31, -4, 2**31 - 1])
    assert parse(tree, data).chunks.encodings[0, 0] == 1 << 0 | 1 << 30


def test_a_page_index_outside_the_file_counts_as_none(data: bytes, tree: Tree) -> None:
    put(chunk(tree, 0, 0), 4, 10**9)
    put(chunk(tree, 0, 1), 5, -1)
    put(chunk(tree, 0, 2), 7, 2**31 - 1)
    chunks = parse(tree, data).chunks
    assert (
        chunks.offset_index_offset[0, 0]
        == chunks.offset_index_offset[0, 1]
        == chunks.column_index_offset[0, 2]
        == -1
    )
    assert (
        chunks.offset_index_length[0, 0]
        == chunks.offset_index_length[0, 1]
        == chunks.column_index_length[0, 2]
        == 0
    )
    assert chunks.offset_index_length[1, 0] > 0


def test_a_negative_null_count_is_unknown(data: bytes, tree: Tree) -> None:
    put(facts(tree, 0, 0)[12][1], 3, -5)
    assert parse(tree, data).chunks.null_count[0, 0] == -1


# -- contradictions, case 41 ----------------------------------------------------------------------------------


def change(tree: Tree, what: str) -> None:  # noqa: C901, PLR0912  # one line a fault
    first = facts(tree, 0, 1) if groups(tree) else {}
    if what == "sum of rows":
        put(tree, 3, 31)
    elif what == "negative rows of the file":
        put(tree, 3, -30)
    elif what == "no rows of the file":
        del tree[3]
    elif what == "no schema":
        del tree[2]
    elif what == "no groups":
        del tree[4]
    elif what == "negative rows":
        put(groups(tree)[1], 3, -1)
    elif what == "huge rows":
        put(groups(tree)[1], 3, 2**63 - 1)
        put(groups(tree)[2], 3, 2**63 - 1)
    elif what == "negative size of a group":
        put(groups(tree)[1], 2, -1)
    elif what == "missing chunk":
        groups(tree)[1][1][1].pop()
    elif what == "extra chunk":
        groups(tree)[1][1][1].append(chunk(tree, 0, 0))
    elif what == "no chunks":
        del groups(tree)[1][1]
    elif what == "type":
        put(first, 1, 2)
    elif what == "path":
        put(first, 3, [t.BINARY, b"id"])
    elif what == "no path":
        del first[3]
    elif what == "file path":
        chunk(tree, 0, 1)[1] = (t.BINARY, b"part-0.parquet")
        groups(tree)[0][1][1][2] = dict(sorted(chunk(tree, 0, 1).items()))
    elif what == "negative values":
        put(first, 5, -1)
    elif what == "more values than rows":
        put(first, 5, 11)
    elif what == "fewer values than rows":
        put(facts(tree, 0, 2), 5, 9)
    elif what == "negative size":
        put(first, 7, -1)
    elif what == "no size":
        del first[7]
    elif what == "negative uncompressed size":
        put(first, 6, -1)
    elif what == "no offset":
        del first[9]
    elif what == "no codec":
        del first[4]
    elif what == "no encodings":
        del first[2]
    elif what == "start before the data":
        put(first, 11, 3)
    elif what == "start in the footer":
        put(first, 9, 10**7)
        put(first, 11, 10**7)
    elif what == "huge start":
        put(first, 9, 2**63 - 1)
        put(first, 11, 2**63 - 1)
    elif what == "runs into the footer":
        put(first, 7, 10**6)
    elif what == "huge size":
        put(first, 7, 2**63 - 1)
    else:
        raise AssertionError(what)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "sum of rows",
            r"rows of the row groups are not those of the file: bad\.parquet; expected 31, found 30",
        ),
        ("negative rows of the file", "no num_rows: bad.parquet.*found -30"),
        ("no rows of the file", "no num_rows.*found none"),
        ("no schema", "no schema"),
        ("no groups", "no row groups"),
        (
            "negative rows",
            r"num_rows is negative or missing: bad\.parquet, row group 1; expected 0 or more, found -1",
        ),
        ("huge rows", "rows of the row groups are not those of the file"),
        ("negative size of a group", "total_byte_size is negative or missing.*row group 1"),
        ("missing chunk", "not one chunk a column: bad.parquet, row group 1; expected 3, found 2"),
        ("extra chunk", "not one chunk a column.*expected 3, found 4"),
        ("no chunks", "not one chunk a column.*expected 3, found 0"),
        ("type", "type of a chunk.*row group 0, column 'name'; expected BYTE_ARRAY, found INT64"),
        (
            "path",
            "path of a chunk.*row group 0, column 'name'; expected the path in the schema, found another one",
        ),
        ("no path", "path of a chunk.*found none"),
        ("negative values", "num_values of a chunk is negative or missing"),
        ("more values than rows", "num_values of a chunk is not the number of rows.*expected 10, found 11"),
        ("fewer values than rows", "fewer values than.*column 'list.list.element'; expected 10, found 9"),
        ("negative size", "total_compressed_size of a chunk is negative or missing"),
        ("no size", "total_compressed_size of a chunk is negative or missing"),
        ("negative uncompressed size", "total_uncompressed_size of a chunk is negative or missing"),
        ("no offset", "data_page_offset of a chunk is negative or missing"),
        ("no codec", "codec of a chunk is negative or missing"),
        ("no encodings", "encodings of a chunk is negative or missing"),
        (
            "start before the data",
            r"begins outside the data.*column 'name'; expected a byte in \[4, \d+\), found 3",
        ),
        ("start in the footer", "begins outside the data.*found 10000000"),
        ("huge start", "begins outside the data"),
        ("runs into the footer", "runs into the footer"),
        ("huge size", "runs into the footer"),
    ],
)
def test_a_contradiction_is_refused_with_its_place(data: bytes, tree: Tree, what: str, message: str) -> None:
    change(tree, what)
    with pytest.raises(BadFileError, match=message) as caught:
        parse(tree, data)
    assert caught.value.file == "bad.parquet"
    assert caught.value.reason == "bad-file"


def test_a_summary_file_is_no_data_case_50(data: bytes, tree: Tree) -> None:
    change(tree, "file path")
    with pytest.raises(UnsupportedFileError, match=r"in other files.*_metadata"):
        parse(tree, data)


def test_a_row_group_that_lists_its_chunks_twice_is_refused(data: bytes, tree: Tree) -> None:
    group = groups(tree)[0]
    twice = (
        bytes([0x10 | t.LIST])
        + encode(*group[1])
        + bytes([t.LIST])
        + t.encode_integer(1)
        + encode(*group[1])
        + b"\0"
    )
    footer = bytes_of(tree)
    broken = footer.replace(encode(t.STRUCT, group), twice)
    with pytest.raises(BadFileError, match="twice"):
        parse_footer(broken, file="a", file_size=len(data))


# -- tails ----------------------------------------------------------------------------------------------------


def tail(length: int, magic: bytes = b"PAR1") -> bytes:
    return length.to_bytes(4, "little") + magic


def test_the_footer_stands_before_the_tail() -> None:
    assert read_tail(b"xx" + tail(100), file_size=1000, file="a") == (892, 100)


@pytest.mark.parametrize(
    ("data", "file_size", "message"),
    [
        (b"", 0, "truncated or still being written: a.parquet; expected 12 bytes or more, found 0"),
        (b"PAR1", 4, "expected 12 bytes or more, found 4"),
        (b"PAR1PAR1", 8, "expected 12 bytes or more"),
        (b"R1" + tail(1)[1:], 11, "expected 12 bytes or more"),
        (
            tail(10, b"PAR2"),
            1000,
            "truncated or still being written: a.parquet; expected PAR1 at the end, found b'PAR2'",
        ),
        (tail(0), 1000, "length of the footer makes no sense: a.parquet; expected 1 to 988 bytes, found 0"),
        (tail(989), 1000, "expected 1 to 988 bytes, found 989"),
        (tail(2**32 - 1), 1000, "found 4294967295"),
        (tail((1 << 30) + 1), 1 << 40, "expected 1 to 1073741824 bytes, found 1073741825"),
    ],
)
def test_a_torn_tail_is_refused_case_37(data: bytes, file_size: int, message: str) -> None:
    with pytest.raises(BadFileError, match=message):
        read_tail(data, file_size=file_size, file="a.parquet")


def test_an_encrypted_footer_is_refused_T33() -> None:
    with pytest.raises(UnsupportedFileError, match=r"footer is encrypted: a\.parquet; expected PAR1"):
        read_tail(tail(10, b"PARE"), file_size=1000, file="a.parquet")


def test_a_file_cut_at_every_byte_is_refused_with_a_reason_case_37(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(PqindexError):
            parse_whole(data[:size])


def test_a_footer_cut_at_every_byte_is_refused(data: bytes) -> None:
    footer, size = split(data)
    for stop in range(len(footer)):
        with pytest.raises(BadFileError):
            parse_footer(footer[:stop], file="a", file_size=size)
