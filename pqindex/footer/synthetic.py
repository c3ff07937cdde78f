"""Footers that we write: a schema as an index keeps it, and its projections.

The chunks of a projection are put behind each other into one buffer, with a footer of a few hundred bytes that says
where in the buffer they are, and pyarrow reads that buffer as if it were a file of one row group. Never here: where the
chunks are in a file; see `reading`.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pqindex.errors import BadFileError, UnsupportedFileError, UsageError
from pqindex.footer.chunks import N_CODECS, Int64s
from pqindex.footer.schema import Leaf, Schema, parse_schema
from pqindex.footer.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    encode_binary,
    encode_integer,
    encode_list_header,
    encode_struct,
)
from pqindex.footer.writers import chunk_padding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pqindex.footer.metadata import FileMetadata

MAGIC: Final = b"PAR1"

# num_values, total_compressed_size and data_page_offset of a ColumnMetaData. Each takes eight bytes, the field's header
# and a varint padded to seven, so that a footer is a template with numbers put in. They stand together, behind the
# fields that are the same for every chunk of a column: the order of fields is free.
_N_NUMBERS: Final = 3
_LANE_BYTES: Final = 8
_BLOCK_BYTES: Final = _N_NUMBERS * _LANE_BYTES
_MAX_HEADS: Final = 64
MAX_NUMBER: Final = (1 << 48) - 1
"""Greatest number that fits into a template."""
_EMPTY_LIST_OF_NUMBERS: Final = encode_list_header(0, I32)
_ARROW_SCHEMA_KEY: Final = b"ARROW:schema"

# The object behind `ParquetFile.reader`: opening it alone takes 20 us less than the ParquetFile around it, which
# prepares a look-up of columns by name that nothing here uses.
_ParquetReader: Final = pq.ParquetReader

# pyarrow raises OSError for a corrupt page, and its own classes for most else.
_PYARROW_ERRORS: Final = (pa.ArrowException, OSError, UnicodeDecodeError)


class GroupChunks(NamedTuple):
    """One row group of a synthetic footer: where the chunk of each leaf lies in the buffer.

    Attributes
    ----------
    n_rows : int
        Rows of the row group.
    start : list of int
        Where the chunk of each leaf begins in the buffer. The buffer begins with `MAGIC`, as pyarrow refuses an
        offset of 0.
    length : list of int
        Bytes of each chunk in the buffer: the dictionary page, if any, and data pages behind it.
    num_values : list of int
        Levels, not rows. Where the buffer has some of the pages only, still those of the whole chunk: the bytes end
        the stream.
    codec : list of int
    """

    n_rows: int
    start: list[int]
    length: list[int]
    num_values: list[int]
    codec: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRecord:
    """What an index keeps of a Parquet schema: equal records give equal Arrow types.

    What is derived from a record is computed once a process and kept (64 records, 256 projections).

    Attributes
    ----------
    schema_bytes : bytes
        The Thrift list of SchemaElement.
    created_by : str or None
    column_orders_bytes : bytes or None
        The Thrift list of ColumnOrder.
    arrow_schema : bytes or None
        The value of the metadata key ``ARROW:schema``, base64.
    """

    schema_bytes: bytes
    created_by: str | None
    column_orders_bytes: bytes | None
    arrow_schema: bytes | None

    @classmethod
    def from_metadata(cls, metadata: FileMetadata) -> SchemaRecord:
        """Return the record of a file's schema."""
        return cls(
            schema_bytes=metadata.schema_bytes,
            created_by=metadata.created_by,
            column_orders_bytes=metadata.column_orders_bytes,
            arrow_schema=metadata.arrow_schema,
        )

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The primitive columns."""
        return self.parsed.leaves

    @property
    def field_names(self) -> tuple[str, ...]:
        """The top-level fields."""
        return self.parsed.field_names

    @property
    def parsed(self) -> Schema:
        """The schema, with the places of its elements."""
        return parse_schema(self.schema_bytes, self.column_orders_bytes, file="")

    @property
    def padding(self) -> int:
        """Bytes to read past every chunk, see `writers.CHUNK_PADDING`."""
        return chunk_padding(self.created_by)

    def to_arrow(self) -> pa.Schema:
        """Return the schema that pyarrow gives to a file of this schema: its names, types and nullability.

        Raises
        ------
        UnsupportedFileError
            If pyarrow cannot make Arrow types of it.
        """
        return _to_arrow(self)

    def project(self, field_indices: Sequence[int]) -> Projection:
        """Return the projection to some top-level fields, in the order of the file.

        Raises
        ------
        UsageError
            If there is no such field, or one is named twice.
        """
        wanted = tuple(sorted(int(index) for index in field_indices))
        n_fields = len(self.field_names)
        if len(set(wanted)) != len(wanted) or (wanted and not 0 <= wanted[0] <= wanted[-1] < n_fields):
            raise UsageError(
                f"no such projection: fields {list(field_indices)}; expected different ones of 0 to {n_fields - 1}",
                expected=n_fields,
                found=list(field_indices),
            )
        return _project(self, wanted)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """Some top-level fields of a schema, ready to be read. Immutable, so usable by any number of threads.

    Attributes
    ----------
    leaves : tuple of Leaf
        The primitive columns of the fields.
    leaf_indices : ndarray of int64, shape (leaves,)
        Their positions among the leaves of the file.
    field_indices : tuple of int
        Positions of the fields, ascending.
    arrow_schema : pyarrow.Schema
        What a read returns.
    padding : int
        Bytes to read past every chunk.
    """

    leaves: tuple[Leaf, ...]
    leaf_indices: Int64s
    field_indices: tuple[int, ...]
    arrow_schema: pa.Schema
    padding: int
    _record: SchemaRecord = field(repr=False)
    _head: bytes
    _chunk_heads: tuple[bytes, ...]
    _tail: bytes
    _heads_of_codecs: dict[tuple[int, ...], tuple[bytes, ...]] = field(default_factory=dict, repr=False)

    def narrowed(self, field_indices: Sequence[int]) -> Projection:
        """Return the projection of the same schema to some of the fields."""
        return self._record.project(field_indices)

    def footer(self, groups: Sequence[GroupChunks]) -> bytes:
        """Return a footer with these row groups, and the tail that ends a file: what stands behind the chunks.

        About 6 us a row group of ten columns.
        """
        parts = [
            self._head,
            encode_integer(sum(group.n_rows for group in groups)),
            _GROUPS_HEAD,
            encode_list_header(len(groups), STRUCT),
        ]
        columns = _COLUMNS_HEAD + encode_list_header(len(self.leaves), STRUCT)
        for group in groups:
            chunks = zip(group.num_values, group.length, group.start, strict=True)
            blocks = _encode_numbers([number for chunk in chunks for number in chunk])
            parts.append(columns)
            at = 0
            for head in self._heads(tuple(group.codec)):
                parts += (head, blocks[at : at + _BLOCK_BYTES])
                at += _BLOCK_BYTES
            parts += (_CHUNK_TAIL if self.leaves else b"", _GROUP_TAIL, encode_integer(group.n_rows), b"\0")
        parts.append(self._tail)
        return _with_tail(b"".join(parts))

    def _heads(self, codec: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return what stands before the numbers of each chunk: the end of the one before, and its own head."""
        heads = self._heads_of_codecs.get(codec)
        if heads is None:
            own = [head + _CODECS[c] for head, c in zip(self._chunk_heads, codec, strict=True)]
            heads = tuple(own[:1] + [_CHUNK_TAIL + head for head in own[1:]])
            if len(self._heads_of_codecs) < _MAX_HEADS:
                self._heads_of_codecs[codec] = heads
        return heads

    def decode(
        self,
        parts: Sequence[bytes | memoryview],
        groups: Sequence[GroupChunks],
        places: Sequence[tuple[str, int]],
    ) -> list[pa.Table]:
        """Return the tables in a buffer that is `MAGIC` and the chunks, given in parts, one a row group.

        Checksums of pages are verified where there are any. Each row group is decoded for itself, so that one whose
        pages hold more rows than its footer said cannot shift those behind it.

        Parameters
        ----------
        parts : sequence of bytes-like
        groups : sequence of GroupChunks
        places : sequence of (file, row group)
            Where each row group is from, for messages.

        Raises
        ------
        BadFileError
            If pyarrow finds the pages corrupt, or they hold another number of rows.
        UnsupportedFileError
            If pyarrow does not know how to read them.
        """
        reader: Any = None
        tables = []
        buffer = pa.BufferReader(b"".join([*parts, self.footer(groups)]))
        for number, (group, (file, row_group)) in enumerate(zip(groups, places, strict=True)):
            try:
                if reader is None:
                    reader = _ParquetReader()
                    reader.open(
                        buffer,
                        pre_buffer=False,
                        page_checksum_verification=True,
                        arrow_extensions_enabled=True,
                    )
                table = reader.read_row_group(number, use_threads=False)
            except pa.ArrowNotImplementedError as error:
                raise UnsupportedFileError(
                    f"pyarrow does not read this: {file}, row group {row_group}: {error}",
                    file=file,
                    row_group=row_group,
                ) from error
            except _PYARROW_ERRORS as error:
                raise BadFileError(
                    f"pages are corrupt: {file}, row group {row_group}: {error}",
                    file=file,
                    row_group=row_group,
                ) from error
            if table.num_rows != group.n_rows:
                raise BadFileError(
                    f"pages hold another number of rows: {file}, row group {row_group};"
                    f" expected {group.n_rows}, found {table.num_rows}",
                    file=file,
                    row_group=row_group,
                    expected=group.n_rows,
                    found=table.num_rows,
                )
            tables.append(table)
        return tables


# -- templates ------------------------------------------------------------------------------------------------


def _header(field_id: int, previous: int, kind: int) -> bytes:
    """Return what stands before a field that follows another one."""
    return bytes([(field_id - previous) << 4 | kind])


_VERSION_1: Final = _header(1, 0, I32) + encode_integer(1)
_GROUPS_HEAD: Final = _header(4, 3, LIST)
_COLUMNS_HEAD: Final = _header(1, 0, LIST)
# total_byte_size, which nothing reads, and num_rows.
_GROUP_TAIL: Final = _header(2, 1, I64) + encode_integer(0) + _header(3, 2, I64)
# A field of a smaller number than the one before has its number in full: the second byte of its header.
_FULL_NUMBER: Final = bytes([I64])
_NUMBER_HEADERS: Final = (encode_integer(5), _header(7, 5, I64), _header(9, 7, I64))
# The codec, and total_uncompressed_size, which nothing reads.
_CODECS: Final = tuple(
    _header(4, 3, I32) + encode_integer(codec) + _header(6, 4, I64) + encode_integer(0) + _FULL_NUMBER
    for codec in range(N_CODECS)
)
# Ends ColumnMetaData and ColumnChunk.
_CHUNK_TAIL: Final = b"\0\0"

_PARTS_OF_LANE: Final = ((0x000000000FFFFFFF, 4), (0x00003FFF00003FFF, 2), (0x007F007F007F007F, 1))
_CONTINUED: Final = 0x0080808080808000  # all bytes of the varint but its last


@lru_cache(maxsize=64)
def _masks(n_chunks: int) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """Return the masks and shifts that spread the lanes of so many chunks, and the bits to put around them."""

    def repeated(lane: int, n_lanes: int) -> int:
        return int.from_bytes(lane.to_bytes(_LANE_BYTES, "little") * n_lanes, "little")

    n_lanes = n_chunks * _N_NUMBERS
    every_bit = (1 << 8 * _LANE_BYTES) - 1
    steps = tuple(
        (repeated(low, n_lanes), repeated(low ^ every_bit, n_lanes), shift) for low, shift in _PARTS_OF_LANE
    )
    headers = b"".join(header + bytes(_LANE_BYTES - 1) for header in _NUMBER_HEADERS) * n_chunks
    return steps, repeated(_CONTINUED, n_lanes) | int.from_bytes(headers, "little")


def _encode_numbers(numbers: list[int]) -> bytes:
    """Return the three number fields of every chunk, `_BLOCK_BYTES` a chunk.

    All numbers lie in one big integer, a lane of 64 bits each, and are spread together to seven bits a byte: the lower
    half of each part of a lane stays and the upper half moves up, in three halvings.
    """
    steps, around = _masks(len(numbers) // _N_NUMBERS)
    # Shifted by one bit, which is zigzag of what is not negative.
    lanes = int.from_bytes(struct.pack(f"<{len(numbers)}Q", *numbers), "little") << 1
    for low, high, shift in steps:
        lanes = (lanes & low) | ((lanes & high) << shift)
    return ((lanes << 8) | around).to_bytes(len(numbers) * _LANE_BYTES, "little")


def _chunk_head(leaf: Leaf, encoded_path: bytes) -> bytes:
    """Return a ColumnChunk up to where its numbers begin."""
    return b"".join(
        (
            _header(2, 0, I64),
            encode_integer(0),
            _header(3, 2, STRUCT),
            _header(1, 0, I32),
            encode_integer(leaf.physical_type),
            _header(2, 1, LIST),
            _EMPTY_LIST_OF_NUMBERS,
            _header(3, 2, LIST),
            encoded_path,
        )
    )


def _file_tail(created_by: str | None, arrow_schema: bytes | None) -> bytes:
    """Return what stands behind the row groups of a FileMetaData.

    No column orders: they say how to read statistics, and there are none.
    """
    parts = []
    previous = 4
    if arrow_schema is not None:
        pair = encode_struct(
            (1, BINARY, encode_binary(_ARROW_SCHEMA_KEY)), (2, BINARY, encode_binary(arrow_schema))
        )
        parts += [_header(5, previous, LIST), encode_list_header(1, STRUCT), pair]
        previous = 5
    if created_by is not None:
        parts += [_header(6, previous, BINARY), encode_binary(created_by.encode())]
    return b"".join([*parts, b"\0"])


def _with_tail(footer: bytes) -> bytes:
    return b"".join([footer, len(footer).to_bytes(4, "little"), MAGIC])


@lru_cache(maxsize=64)
def _to_arrow(record: SchemaRecord) -> pa.Schema:
    head = [_VERSION_1, _header(2, 1, LIST), record.schema_bytes, _header(3, 2, I64), encode_integer(0)]
    groups = [_header(4, 3, LIST), encode_list_header(0, STRUCT)]
    footer = b"".join([*head, *groups, _file_tail(record.created_by, record.arrow_schema)])
    try:
        return pq.ParquetFile(pa.BufferReader(MAGIC + _with_tail(footer)), pre_buffer=False).schema_arrow
    except _PYARROW_ERRORS as error:
        raise UnsupportedFileError(f"pyarrow makes no Arrow schema of the columns: {error}") from error


@lru_cache(maxsize=256)
def _project(record: SchemaRecord, field_indices: tuple[int, ...]) -> Projection:
    schema = record.parsed
    arrow_schema = record.to_arrow()
    leaf_indices = [leaf for index in field_indices for leaf in range(*schema.field_leaves[index])]
    elements = [record.schema_bytes[slice(*schema.field_spans[index])] for index in field_indices]
    n_elements = 1 + sum(schema.field_sizes[index] for index in field_indices)
    root = encode_struct((4, BINARY, encode_binary(b"schema")), (5, I32, encode_integer(len(field_indices))))
    schema_bytes = b"".join([encode_list_header(n_elements, STRUCT), root, *elements])
    projected = pa.schema([arrow_schema.field(index) for index in field_indices])
    return Projection(
        leaves=tuple(schema.leaves[leaf] for leaf in leaf_indices),
        leaf_indices=np.array(leaf_indices, np.int64),
        field_indices=field_indices,
        arrow_schema=projected,
        padding=record.padding,
        _record=record,
        _head=b"".join([_VERSION_1, _header(2, 1, LIST), schema_bytes, _header(3, 2, I64)]),
        _chunk_heads=tuple(
            _chunk_head(schema.leaves[leaf], schema.encoded_paths[leaf]) for leaf in leaf_indices
        ),
        _tail=_file_tail(record.created_by, _pruned(record, field_indices, schema_bytes, projected)),
    )


def _pruned(
    record: SchemaRecord, field_indices: tuple[int, ...], schema_bytes: bytes, projected: pa.Schema
) -> bytes | None:
    """Return the value of ``ARROW:schema`` for a projection, None where the types are the same without.

    pyarrow pairs its fields with those of the file by position, so that one that is not pruned gives wrong types; one
    with another number of fields than the file it ignores. The schema's own metadata (pandas' notes) say nothing about
    types and are left out.
    """
    if record.arrow_schema is None:
        return None
    bare = SchemaRecord(
        schema_bytes=schema_bytes, created_by=record.created_by, column_orders_bytes=None, arrow_schema=None
    )
    if _to_arrow.__wrapped__(bare).equals(projected, check_metadata=True):
        return None  # parsing it would cost about a third of opening the buffer
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record.arrow_schema)))
    if len(schema) != len(record.field_names):
        return None
    subset = pa.schema([schema.field(index) for index in field_indices])
    return base64.b64encode(subset.serialize())
