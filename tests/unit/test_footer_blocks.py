"""Blocks: from places to bytes to tables, several row groups and files at a time."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqindex.errors import BadFileError, SourceChangedError
from pqindex.footer import (
    Block,
    ChunkPlaces,
    Fetched,
    FileMetadata,
    SchemaRecord,
    batches,
    coalesce,
    decode_blocks,
    fetch,
    parse_footer,
    read_tail,
    whole_group,
)
from pqindex.footer import blocks as blocks_module
from pqindex.footer.blocks import read_exactly
from pqindex.footer.writers import CHUNK_PADDING

N = 400
TABLE = pa.table(
    {
        "id": np.arange(N),
        "x": np.arange(N, dtype=np.float32) / 2,
        "s": pa.array([None if i % 7 == 0 else f"n{i % 50}" for i in range(N)]),
        "l": pa.array([[i] * (i % 3) for i in range(N)], pa.list_(pa.int16())),
    }
)
Ranges = list[tuple[int, int]]


class File:
    """A Parquet file in memory that remembers what was read of it."""

    def __init__(self, table: pa.Table, name: str = "a", **options: Any) -> None:
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=100, **options)
        self.name = name
        self.table = table
        self.data = sink.getvalue()
        offset, length = read_tail(self.data[-8:], file_size=len(self.data), file=name)
        self.meta: FileMetadata = parse_footer(
            self.data[offset : offset + length], file=name, file_size=len(self.data)
        )
        self.record = SchemaRecord.from_metadata(self.meta)
        self.calls: list[Ranges] = []

    def read(self, ranges: Ranges) -> list[bytes]:
        self.calls.append(list(ranges))
        return [self.data[offset : offset + length] for offset, length in ranges]

    def places(self, group: int, fields: list[int]) -> ChunkPlaces:
        return ChunkPlaces.from_metadata(self.meta, group, self.record.project(fields).leaf_indices)

    def block(self, group: int, fields: list[int], **changes: Any) -> Block:
        projection = self.record.project(fields)
        made = whole_group(
            projection, self.places(group, fields), n_rows=100, file=self.name, row_group=group
        )
        return made._replace(**changes)

    def expected(self, group: int, fields: list[int]) -> pa.Table:
        return self.table.select(sorted(fields)).slice(100 * group, 100)

    def fetch(self, blocks: list[Block], **options: Any) -> list[Fetched]:
        return fetch(blocks, self.read, file_size=len(self.data), **options)


@pytest.fixture(scope="module")
def file() -> File:
    return File(TABLE)


# -- fetching -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [[0], [1, 3], [0, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("groups", [[0], [3, 1], [2, 2, 0], [0, 1, 2, 3]])
def test_row_groups_are_fetched_in_one_call_and_decoded_together(
    file: File, groups: list[int], fields: list[int]
) -> None:
    file.calls.clear()
    fetched = file.fetch([file.block(group, fields) for group in groups])
    assert len(file.calls) == 1
    (ranges,) = file.calls
    assert ranges == sorted(ranges)
    assert all(a + n < b for (a, n), (b, _) in pairwise(ranges)), "joined, and once"
    assert sum(n for _, n in ranges) == sum(file.block(group, fields).n_bytes for group in set(groups))
    assert [one.n_bytes for one in fetched] == [one.block.n_bytes for one in fetched]
    tables = decode_blocks(fetched)
    assert tables == [file.expected(group, fields) for group in groups]


def test_neighbours_are_one_range_and_a_gap_may_be_read_along(file: File) -> None:
    file.calls.clear()
    file.fetch([file.block(group, [0, 1, 2, 3]) for group in range(4)])
    gap = int(file.places(1, [2]).length[0])
    apart, along = (file.fetch([file.block(1, [1, 3])], max_gap=most) for most in (gap - 1, gap))
    assert [len(ranges) for ranges in file.calls] == [1, 2, 1]
    assert decode_blocks(apart) == decode_blocks(along) == [file.expected(1, [1, 3])]


def test_dictionary_and_data_pages_come_together_from_two_spans(file: File) -> None:
    """The spans of a leaf: its dictionary page, and the data pages behind it."""
    chunk = pq.ParquetFile(io.BytesIO(file.data)).metadata.row_group(2).column(2)
    start, data = chunk.dictionary_page_offset, chunk.data_page_offset
    stop = start + chunk.total_compressed_size
    block = file.block(2, [2])._replace(
        starts=[start, data], lengths=[data - start, stop - data], spans_per_leaf=2
    )
    (fetched,) = file.fetch([block])
    assert decode_blocks([fetched]) == [file.expected(2, [2])]
    assert (fetched.starts, fetched.n_bytes, block.n_bytes) == ([0], stop - start, stop - start)


def test_a_leaf_without_a_dictionary_page_reads_nothing_for_it() -> None:
    plain = File(TABLE.select(["id", "x"]), use_dictionary=False)
    places = plain.places(1, [0, 1])
    spans = [
        (start, n) for own in zip(places.start, places.length, strict=True) for start, n in ((4, 0), own)
    ]
    block = plain.block(1, [0, 1])._replace(
        starts=[int(start) for start, _ in spans], lengths=[int(n) for _, n in spans], spans_per_leaf=2
    )
    fetched = plain.fetch([block])
    assert plain.calls == [[(int(places.start[0]), int(places.length.sum()))]]
    assert decode_blocks(fetched) == [plain.expected(1, [0, 1])]


def test_blocks_that_overlap_are_read_once(file: File) -> None:
    file.calls.clear()
    fetched = file.fetch([file.block(1, [0, 1]), file.block(1, [1, 2]), file.block(1, [0, 1])])
    (ranges,) = file.calls
    assert sum(n for _, n in ranges) == file.block(1, [0, 1, 2]).n_bytes
    assert [decode_blocks([one])[0] for one in fetched] == [
        file.expected(1, fields) for fields in ([0, 1], [1, 2], [0, 1])
    ]


def test_padded_blocks_are_read_further_as_far_as_the_file_goes() -> None:
    """Chunks of an old writer, whose sizes leave a header out: two of them do not get into each other's way."""
    old = File(TABLE.select(["id", "x"]), use_dictionary=False)
    old.record = SchemaRecord.from_metadata(replace(old.meta, created_by="parquet-mr version 1.2.8"))
    blocks = [old.block(group, [0, 1]) for group in (0, 3)]
    cut = [block._replace(lengths=[n - 15 for n in block.lengths]) for block in blocks]
    assert {block.padding for block in cut} == {CHUNK_PADDING}
    for size in (len(old.data), cut[1].starts[1] + cut[1].lengths[1] + 15):
        fetched = fetch(cut, old.read, file_size=size)
        assert max(offset + length for offset, length in old.calls[-1]) <= size
        assert decode_blocks(fetched) == [old.expected(group, [0, 1]) for group in (0, 3)]


def test_ranges_that_come_short_name_the_file_and_the_row_group(file: File) -> None:
    def short(ranges: Ranges) -> list[bytes]:
        return [part[:-1] for part in file.read(ranges)]

    blocks = [file.block(group, [1]) for group in (2, 3)]
    for own in (blocks, blocks[:1]):
        with pytest.raises(
            SourceChangedError, match=r"shorter than when it was indexed: a, row group 2; expected \d+ bytes"
        ) as caught:
            fetch(own, short, file_size=len(file.data))
        assert caught.value.found == caught.value.expected - 1
    assert read_exactly(file.read, [(0, 4)], file="a", row_group=0) == [b"PAR1"]


# -- decoding -------------------------------------------------------------------------------------------------


def test_row_groups_of_several_files_and_codecs_are_one_buffer() -> None:
    files = [
        File(TABLE, "a", compression="zstd"),
        File(TABLE.slice(100, 300), "b", compression="none"),
        File(TABLE.slice(7, 200), "c", compression={"id": "gzip", "x": "snappy", "s": "none"}),
    ]
    assert len({file.record for file in files}) == 1
    fetched = [one for file in files for one in file.fetch([file.block(1, [0, 1, 2])])]
    assert batches(fetched) == [[0, 1, 2]]
    assert decode_blocks(fetched) == [file.expected(1, [0, 1, 2]) for file in files]


@pytest.mark.parametrize("said", [99, 1])
def test_a_row_group_with_more_rows_than_said_does_not_shift_the_next(file: File, said: int) -> None:
    """PyArrow stops after as many rows, and without a word; the next row group begins where it begins."""
    lying = file.block(1, [0, 1, 2, 3])._replace(n_rows=said)
    fetched = file.fetch([file.block(0, [0, 1, 2, 3]), lying, file.block(2, [0, 1, 2, 3])])
    before, own, behind = decode_blocks(fetched)
    assert own == file.expected(1, [0, 1, 2, 3]).slice(0, said)
    assert (before, behind) == (file.expected(0, [0, 1, 2, 3]), file.expected(2, [0, 1, 2, 3]))


@pytest.mark.parametrize("fields", [[0], [1], [2], [3]])
def test_a_row_group_with_fewer_rows_than_said_is_named(file: File, fields: list[int]) -> None:
    lying = file.block(1, fields)._replace(n_rows=101)
    fetched = file.fetch([file.block(0, fields), lying, file.block(2, fields)])
    with pytest.raises(
        BadFileError, match=r"another number of rows: a, row group 1; expected 101, found 100"
    ) as caught:
        decode_blocks(fetched)
    assert (caught.value.row_group, caught.value.found) == (1, 100)


def test_corrupt_pages_are_named_by_their_own_file(file: File) -> None:
    other = File(TABLE, "b", compression="none", use_dictionary=False, write_page_checksum=True)
    places = other.places(3, [1])
    spoiled = bytearray(other.data)
    spoiled[int(places.start[0] + places.length[0]) - 1] ^= 255
    other.data = bytes(spoiled)
    fetched = [*file.fetch([file.block(3, [1])]), *other.fetch([other.block(2, [1]), other.block(3, [1])])]
    with pytest.raises(BadFileError, match=r"pages are corrupt: b, row group 3: .*CRC") as caught:
        decode_blocks(fetched)
    assert (caught.value.file, caught.value.row_group) == ("b", 3)
    assert decode_blocks(fetched[:2]) == [file.expected(3, [1]), other.expected(2, [1])]


# -- which are decoded together -------------------------------------------------------------------------------


def test_what_has_one_projection_is_decoded_together_up_to_a_size(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [[0], [1], [0], [1], [0], [1]]
    fetched = [file.fetch([file.block(i % 4, fields)])[0] for i, fields in enumerate(kinds)]
    assert batches([]) == []
    assert batches(fetched) == [[0, 2, 4], [1, 3, 5]]
    sizes = [one.n_bytes for one in fetched]
    monkeypatch.setattr(blocks_module, "MAX_DECODE_BYTES", sizes[0] + sizes[2])
    assert batches(fetched[::2]) == [[0, 1], [2]]
    monkeypatch.setattr(blocks_module, "MAX_DECODE_BYTES", 1)
    assert batches(fetched) == [[0], [1], [2], [3], [4], [5]], "one block may have more"


@given(kinds=st.lists(st.integers(0, 2), max_size=20), at_least=st.integers(1, 6))
def test_each_block_is_in_one_batch_with_its_own_kind(file: File, kinds: list[int], at_least: int) -> None:
    fetched = [file.fetch([file.block(0, [kind])])[0] for kind in kinds]
    found = batches(fetched, at_least=at_least)
    assert sorted(i for batch in found for i in batch) == list(range(len(kinds)))
    assert all(batch == sorted(batch) and len({kinds[i] for i in batch}) == 1 for batch in found)
    assert max(map(len, found), default=0) <= -(-len(kinds) // at_least)


# -- ranges ---------------------------------------------------------------------------------------------------


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12),
    max_gap=st.integers(0, 4),
)
def test_ranges_are_ascending_apart_and_hold_every_span(spans: Any, max_gap: int) -> None:
    file = bytes(range(100))
    starts, lengths = [start for start, _ in spans], [length for _, length in spans]
    ranges, positions = coalesce(starts, lengths, max_gap=max_gap)
    assert all(length > 0 for _, length in ranges), "nothing is no read"
    assert all(a + n + max_gap < b for (a, n), (b, _) in pairwise(ranges))
    whole = b"".join(file[offset : offset + length] for offset, length in ranges)
    for start, length, position in zip(starts, lengths, positions, strict=True):
        assert whole[position : position + length] == file[start : start + length]
