"""Schema records, projections, and the footers that we write."""

from __future__ import annotations

import base64
import io
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.errors import BadFileError, UnsupportedFileError, UsageError
from pqindex.footer import MAGIC, FileMetadata, GroupChunks, Projection, SchemaRecord, parse_footer, read_tail
from pqindex.footer.synthetic import MAX_NUMBER


def written(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def parsed(data: bytes) -> FileMetadata:
    offset, length = read_tail(data[-8:], file_size=len(data), file="a")
    return parse_footer(data[offset : offset + length], file="a", file_size=len(data))


def metadata(projection: Projection, *groups: GroupChunks) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(MAGIC + projection.footer(groups)))


TABLE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "cat": pa.array(["x", None]).dictionary_encode(),
        "dur": pa.array([1, 2], pa.duration("us")),
        "s": pa.array(
            [{"a": 1, "l": ["u"]}, None], pa.struct({"a": pa.int8(), "l": pa.list_(pa.large_string())})
        ),
        "when": pa.array([0, 1], pa.timestamp("ms", "Europe/Berlin")),
        "": pa.array([1.0, 2.0]),
        "a.b": pa.array([True, False]),
    }
)


@pytest.fixture(scope="module")
def record() -> SchemaRecord:
    return SchemaRecord.from_metadata(parsed(written(TABLE)))


def test_equal_files_have_equal_records(record: SchemaRecord) -> None:
    other = SchemaRecord.from_metadata(parsed(written(TABLE.slice(1), compression="none")))
    assert (other, hash(other)) == (record, hash(record))
    assert pickle.loads(pickle.dumps(record)) == record
    assert replace(record, created_by="x") != record


def test_a_record_knows_its_columns(record: SchemaRecord) -> None:
    assert record.field_names == tuple(TABLE.column_names)
    assert [leaf.field for leaf in record.leaves] == [0, 1, 2, 3, 3, 4, 5, 6]


def test_the_arrow_schema_is_pyarrows_L15(record: SchemaRecord) -> None:
    assert record.to_arrow() == pq.ParquetFile(io.BytesIO(written(TABLE))).schema_arrow == TABLE.schema
    assert record.to_arrow() is record.to_arrow()


def test_without_arrow_schema_the_types_are_those_of_parquet() -> None:
    data = written(TABLE, store_schema=False)
    got = SchemaRecord.from_metadata(parsed(data))
    assert got.arrow_schema is None
    assert got.to_arrow() == pq.ParquetFile(io.BytesIO(data)).schema_arrow != TABLE.schema


@pytest.mark.parametrize("fields", [[0], [1], [2, 1], [3, 6, 0], [5], list(range(7))])
def test_a_projection_has_the_types_of_the_file_in_its_order_L4(
    record: SchemaRecord, fields: list[int]
) -> None:
    projection = record.project(fields)
    assert projection.field_indices == tuple(sorted(fields))
    assert projection.arrow_schema == pa.schema([TABLE.schema.field(i) for i in sorted(fields)])
    expected = [i for i, leaf in enumerate(record.leaves) if leaf.field in fields]
    assert projection.leaf_indices.tolist() == expected
    assert projection.leaves == tuple(record.leaves[i] for i in expected)
    assert record.project(sorted(fields)) is projection


@pytest.mark.parametrize("fields", [[7], [-1], [0, 0]])
def test_a_projection_that_cannot_be_is_refused(record: SchemaRecord, fields: list[int]) -> None:
    with pytest.raises(UsageError, match=r"expected different ones of 0 to 6"):
        record.project(fields)


def test_a_footer_holds_the_numbers_it_was_given(record: SchemaRecord) -> None:
    projection = record.project([0, 3])
    groups = [
        GroupChunks(9, [4, 1000, 2**40], [96, 5, 7], [9, 2**33, 9], [6, 0, 1]),
        GroupChunks(70_000, [2**41, 5, 6], [1, 2, 3], [70_000, 70_000, 2**34], [1, 6, 0]),
    ]
    meta = metadata(projection, *groups)
    assert (meta.num_rows, meta.num_row_groups, meta.created_by) == (70_009, 2, record.created_by)
    for number, group in enumerate(groups):
        assert meta.row_group(number).num_rows == group.n_rows
        for i, path in enumerate(["id", "s.a", "s.l.list.element"]):
            column = meta.row_group(number).column(i)
            assert column.path_in_schema == path
            assert column.data_page_offset == group.start[i]
            assert column.total_compressed_size == group.length[i]
            assert column.num_values == group.num_values[i]
            assert column.dictionary_page_offset is None
    assert [meta.row_group(0).column(i).compression for i in range(3)] == ["ZSTD", "UNCOMPRESSED", "SNAPPY"]
    assert [meta.row_group(1).column(i).compression for i in range(3)] == ["SNAPPY", "ZSTD", "UNCOMPRESSED"]


def test_the_greatest_number_fits(record: SchemaRecord) -> None:
    meta = metadata(record.project([0]), GroupChunks(1, [MAX_NUMBER], [MAX_NUMBER], [1], [7]))
    assert meta.row_group(0).column(0).data_page_offset == MAX_NUMBER


def test_our_parser_reads_our_footers(record: SchemaRecord) -> None:
    projection = record.project([0, 1])
    footer = projection.footer([GroupChunks(2, [4, 20], [16, 30], [2, 2], [0, 1])])
    offset, length = read_tail(footer[-8:], file_size=50 + len(footer), file="a")
    assert offset == 50
    meta = parse_footer(footer[:length], file="a", file_size=50 + len(footer))
    assert meta.chunks.start.tolist() == [[4, 20]]
    assert meta.chunks.total_compressed_size.tolist() == [[16, 30]]
    assert SchemaRecord.from_metadata(meta).to_arrow() == projection.arrow_schema


def test_the_arrow_schema_is_left_out_where_it_changes_nothing(record: SchemaRecord) -> None:
    """It would cost a third of opening the buffer; where it matters it must be pruned to the projection."""
    group = GroupChunks(1, [4], [1], [1], [0])
    assert b"ARROW:schema" not in record.project([0]).footer([group])
    assert b"ARROW:schema" in record.project([1]).footer([group])


def arrow_schema_of(schema: pa.Schema) -> bytes:
    return base64.b64encode(schema.serialize())


def test_an_arrow_schema_of_other_fields_is_ignored_as_pyarrow_does(record: SchemaRecord) -> None:
    for other in (TABLE.schema.remove(0), TABLE.schema.append(pa.field("z", pa.int8()))):
        odd = replace(record, arrow_schema=arrow_schema_of(other))
        assert odd.to_arrow().field("cat").type == pa.string()
        assert odd.project([1]).arrow_schema.field(0).type == pa.string()


@pytest.mark.parametrize("value", [b"!", b"", base64.b64encode(b"no schema")])
def test_a_corrupt_arrow_schema_is_refused(record: SchemaRecord, value: bytes) -> None:
    with pytest.raises(UnsupportedFileError, match="pyarrow makes no Arrow schema of the columns"):
        replace(record, arrow_schema=value).to_arrow()


def test_a_corrupt_schema_is_refused(record: SchemaRecord) -> None:
    broken = replace(record, schema_bytes=record.schema_bytes[:-1], arrow_schema=None)
    with pytest.raises(BadFileError):
        broken.project([0])


def test_pandas_notes_do_not_come_along() -> None:
    noted = TABLE.replace_schema_metadata({b"pandas": b"x" * 1000})
    projection = SchemaRecord.from_metadata(parsed(written(noted))).project([1])
    footer = projection.footer([GroupChunks(1, [4], [1], [1], [0])])
    assert len(footer) < 700
    assert projection.arrow_schema.metadata is None


def test_magic_is_what_a_buffer_begins_with() -> None:
    assert written(TABLE).startswith(MAGIC)
