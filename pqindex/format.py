"""The specification as data: names, versions, and the schema of every table of an index and a manifest.

`spec/pqindex-v1.md` says the same in sentences; `tests/conformance` holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

FORMAT_NAME = "pqindex"
FORMAT_VERSION = 1
READER_FEATURES: frozenset[str] = frozenset()
"""The reader features that this reader knows; a file that names another one is refused."""

TABLE_KEY = b"pqindex.table"
VERSION_KEY = b"pqindex.format_version"
MANIFEST_KEY = b"pqindex.manifest"
NOTES_KEY = b"pqindex.notes"

SNAPSHOT_NAME = re.compile(r"^(\d{8})\.snapshot\.json$")
PARTS_FOLDER = "parts"
PART_TABLE_NAME = re.compile(r"^([0-9a-f]{16})-[a-z_]+\.parquet$")
MAX_SNAPSHOT_BYTES = 1 << 28

TABLES = ("files", "row_groups", "sequences", "segments", "chunks", "pages")
OPTIONAL_TABLES = frozenset({"segments", "pages"})


def snapshot_name(number: int) -> str:
    """Return the file name of a snapshot (rule S1)."""
    return f"{number:08d}.snapshot.json"


def table_path(part: str, table: str) -> str:
    """Return the path of a part's table, relative to the index folder (rule P1)."""
    return f"{PARTS_FOLDER}/{part}-{table}.parquet"


def _required(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


def _list_of(data_type: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", data_type, nullable=False))


FILES = pa.schema(
    [
        _required("file_id", pa.int32()),
        _required("path", pa.string()),
        _required("size_bytes", pa.int64()),
        _required("mtime_ns", pa.int64()),
        pa.field("etag", pa.string()),
        _required("footer_offset", pa.int64()),
        _required("footer_length", pa.int64()),
        _required("footer_sha256", pa.binary(32)),
        _required("n_rows", pa.int64()),
        _required("n_row_groups", pa.int32()),
        _required("schema_no", pa.int32()),
        pa.field("created_by", pa.string()),
        _required("partition", pa.map_(pa.string(), pa.string())),
    ]
)

SEGMENTS = pa.schema(
    [
        _required("sequence_row", pa.int64()),
        _required("segment", pa.int32()),
        _required("file_id", pa.int32()),
        _required("row_group", pa.int32()),
        _required("row_start", pa.int64()),
        _required("row_stop", pa.int64()),
    ]
)

CHUNK_FACTS: Mapping[str, pa.DataType] = {
    "data_page_offset": pa.int64(),
    "dictionary_page_offset": pa.int64(),
    "total_compressed_size": pa.int64(),
    "total_uncompressed_size": pa.int64(),
    "num_values": pa.int64(),
    "codec": pa.int8(),
    "encodings": pa.int32(),
    "offset_index_offset": pa.int64(),
    "offset_index_length": pa.int32(),
    "column_index_offset": pa.int64(),
    "column_index_length": pa.int32(),
    "encrypted": pa.bool_(),
}
"""What `chunks` holds of each column chunk, by the field's name in Parquet's own specification."""

CHUNKS = pa.schema(
    [_required("file_id", pa.int32()), _required("row_group", pa.int32())]
    + [_required(name, _list_of(data_type)) for name, data_type in CHUNK_FACTS.items()]
)


PAGES = pa.schema(
    [
        _required("file_id", pa.int32()),
        _required("row_group", pa.int32()),
        _required("leaf", pa.int32()),
        _required("offset", _list_of(pa.int64())),
        _required("length", _list_of(pa.int32())),
        _required("first_row", _list_of(pa.int64())),
    ]
)


def row_groups_schema(key_type: pa.DataType) -> pa.Schema:
    """Return the schema of the table `row_groups` for a key of this type."""
    return pa.schema(
        [
            _required("file_id", pa.int32()),
            _required("row_group", pa.int32()),
            _required("n_rows", pa.int64()),
            _required("row_offset", pa.int64()),
            _required("total_byte_size", pa.int64()),
            _required("total_compressed_size", pa.int64()),
            pa.field("key_min", key_type),
            pa.field("key_max", key_type),
            pa.field("key_null_count", pa.int64()),
            _required("key_exact", pa.bool_()),
            pa.field("data_sha256", pa.binary(32)),
        ]
    )


PROVED = pa.struct([_required(name, pa.bool_()) for name in ("key", "order", "finite")])


def stats_type(columns: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type of `sequences.stats`: one struct a column."""
    return pa.struct(
        [
            pa.field(
                name,
                pa.struct(
                    [
                        pa.field("min", data_type),
                        pa.field("max", data_type),
                        pa.field("null_count", pa.int64()),
                    ]
                ),
            )
            for name, data_type in columns.items()
        ]
    )


def sequences_schema(
    key_type: pa.DataType, order_type: pa.DataType, stats: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Return the schema of the table `sequences`; it has no `stats` column where no column has statistics."""
    fields = [
        _required("seq_id", key_type),
        _required("file_id", pa.int32()),
        _required("row_group", pa.int32()),
        _required("row_start", pa.int64()),
        _required("row_count", pa.int64()),
        _required("n_segments", pa.int32()),
        pa.field("order_min", order_type),
        pa.field("order_max", order_type),
        _required("proved", PROVED),
    ]
    if stats:
        fields.append(pa.field("stats", stats_type(stats)))
    return pa.schema(fields)


MAY_HAVE = ("order_step_min", "order_step_max", "order_gaps", "stats", "attributes", "aggregates")
"""The columns of `sequences` that hang on what was asked of the build, in their order."""


def sequences_schema_of(found: pa.Schema) -> pa.Schema:
    """Return the schema of a table `sequences`, with those of the columns `MAY_HAVE` that are there, in their types."""
    fixed = sequences_schema(found.field("seq_id").type, found.field("order_min").type, {})
    return pa.schema(
        [*fixed, *(pa.field(name, found.field(name).type) for name in MAY_HAVE if name in found.names)]
    )


def manifest_schema(key_type: pa.DataType, extra: pa.Schema) -> pa.Schema:
    """Return the schema of a manifest's rows (rule M2)."""
    segment = pa.struct(
        [
            _required("file_no", pa.int32()),
            _required("row_group", pa.int32()),
            _required("row_start", pa.int64()),
            _required("row_stop", pa.int64()),
        ]
    )
    fields = [
        _required("seq_id", key_type),
        _required("row_count", pa.int64()),
        _required("segments", _list_of(segment)),
    ]
    if len(extra):
        fields.append(_required("extra", pa.struct(list(extra))))
    return pa.schema(fields)


def table_metadata(table: str) -> dict[bytes, bytes]:
    """Return the key/value metadata that every table carries (rule P3)."""
    return {TABLE_KEY: table.encode(), VERSION_KEY: str(FORMAT_VERSION).encode()}
