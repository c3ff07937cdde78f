"""The layout that reads fastest, and Parquet files in it.

Numbers are plain, so that they can be decoded directly; pages are small, so that a part of a long sequence can be read;
there are page indexes, checksums of pages, and bounds, so that a build proves keys by footers alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from pqindex.errors import ColumnTypeError
from pqindex.footer import TAIL_BYTES, SchemaRecord, parse_footer, read_tail
from pqindex.readplan import ReadPlan

CODECS: Final = ("lz4", "none", "snappy", "zstd")
DICTIONARIES: Final = ("auto", "never", "always")

PAGE_ROWS: Final = 2048
"""Rows of a page of plain numbers."""

MAX_PAGE_BYTES: Final = 1 << 20
"""Pages of wide values have fewer rows, about so many bytes."""

PAGE_BYTES: Final = 2048
"""A page ends with the batch of rows with which it has so many bytes, so that numbers of all widths have equal pages.

Not less: before a long list PyArrow writes an empty page, which it cannot read back, if what its encoder of dictionary
indices counts for nothing at all (some 1,200 bytes) fills a page.
"""

MIXED_PAGE_BYTES: Final = 8192
"""The same for files with wide values, whose batches are short."""

MAX_GROUP_ROWS: Final = 64 << 20
"""PyArrow cuts a row group that would have more rows than these."""

_BYTE_ARRAYS: Final = {6, 7}
_NUMBERS_IN_BYTES: Final = {"decimal", "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm:
    """How the files of one output are written.

    Attributes
    ----------
    schema : pa.Schema
        With nullability and metadata.
    n_leaves : int
        Column chunks of a row group.
    codec : str
        One of `CODECS`.
    dictionary : bool or tuple of str
        The paths of the leaves that are dictionary-encoded, or all, or none.
    """

    schema: pa.Schema
    n_leaves: int
    codec: str
    dictionary: bool | tuple[str, ...]


def output_schema(plan: ReadPlan) -> pa.Schema:
    """Return the schema of what a plan reads, with what its files say besides the types.

    A field is required where it is so in all files. Metadata of the Arrow schema, and of its fields, are kept where all
    files have them and agree.
    """
    arrow = [record.to_arrow() for record in plan.schemas]
    stored = [_stored_schema(record) for record in plan.schemas]
    fields = []
    for field in plan.schema:
        own = [schema.field(field.name) if field.name in schema.names else None for schema in arrow]
        is_required = bool(own) and all(one is not None and not one.nullable for one in own)
        holders = [
            schema.field(field.name).metadata if schema.names.count(field.name) == 1 else None
            for schema, one in zip(stored, own, strict=True)
            if one is not None
        ]
        fields.append(pa.field(field.name, field.type, not is_required, _common(holders)))
    return pa.schema(fields, _common(schema.metadata for schema in stored))


def _stored_schema(record: SchemaRecord) -> pa.Schema:
    """Return the Arrow schema that the writer left in a file, an empty one where it left none."""
    if record.arrow_schema is None:
        return pa.schema([])
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record.arrow_schema)))
    except (pa.ArrowException, ValueError, OSError):
        return pa.schema([])


def _common(metadata: Iterable[dict[bytes, bytes] | None]) -> dict[bytes, bytes] | None:
    """Return the entries that all have alike, None without any."""
    entries = [set((one or {}).items()) for one in metadata]
    common = reduce(set.__and__, entries) if entries else set()
    return dict(sorted(common)) or None


def file_form(schema: pa.Schema, *, key: str, codec: str, dictionary: str) -> FileForm:
    """Return how files of a schema are written, after the check that Parquet gives its types back.

    Raises
    ------
    ColumnTypeError
        If a column would come back with another type, or cannot be written.
    """
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(schema.empty_table(), sink)
        data = sink.getvalue().to_pybytes()
        found = pq.read_schema(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise ColumnTypeError(
            f"PyArrow cannot write these columns to Parquet: {error}",
            hint="leave the column out with columns=",
        ) from error
    for expected, back in zip(schema, found, strict=True):
        if expected.type != back.type:
            raise ColumnTypeError(
                f"column {expected.name!r} would come back from Parquet with another type; expected {expected.type}, "
                f"found {back.type}",
                hint="leave the column out with columns=",
                column=expected.name,
                expected=str(expected.type),
                found=str(back.type),
            )
    offset, length = read_tail(data[-TAIL_BYTES:], file_size=len(data), file="")
    footer = parse_footer(data[offset : offset + length], file="", file_size=len(data))
    leaves = SchemaRecord.from_metadata(footer).leaves
    paths = tuple(
        ".".join(leaf.path)
        for leaf in leaves
        if _is_text(leaf.physical_type, leaf.logical.name if leaf.logical else "")
        or schema.field(leaf.field).name == key
        or pt.is_dictionary(schema.field(leaf.field).type)
    )
    return FileForm(
        schema=schema,
        n_leaves=len(leaves),
        codec=codec,
        dictionary=paths if dictionary == "auto" else dictionary == "always",
    )


def _is_text(physical_type: int, logical: str) -> bool:
    return physical_type in _BYTE_ARRAYS and logical not in _NUMBERS_IN_BYTES


def open_writer(sink: Any, form: FileForm, first: pa.Table) -> pq.ParquetWriter:
    """Return a writer of one file; the rows of its pages hang on its first row group alone."""
    page_rows = PAGE_ROWS
    if first.num_rows:
        widest = max((column.nbytes / first.num_rows for column in first.columns), default=0)
        # a power of two, which a bitmap more or less in memory does not change
        page_rows = min(PAGE_ROWS, 1 << (max(1, int(MAX_PAGE_BYTES / max(widest, 1))).bit_length() - 1))
    return pq.ParquetWriter(
        sink,
        form.schema,
        version="2.6",
        compression=form.codec,
        use_dictionary=form.dictionary if isinstance(form.dictionary, bool) else list(form.dictionary),
        write_statistics=True,
        data_page_size=PAGE_BYTES if page_rows == PAGE_ROWS else MIXED_PAGE_BYTES,
        write_batch_size=page_rows,
        write_page_index=True,
        write_page_checksum=True,
        store_schema=True,
    )


def row_group_table(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return whole sequences as the table of one row group.

    Its chunks, and what is in its dictionaries, hang on the rows alone and not on how they were read: equal rows give
    equal bytes.
    """
    joined = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    columns = [_one_dictionary(c) if pt.is_dictionary(c.type) else c for c in joined.columns]
    table = pa.Table.from_arrays(columns, schema=schema)
    try:
        return table.combine_chunks()
    except pa.ArrowInvalid:  # nested values past what offsets of 32 bits can count stay in chunks
        return table


def _one_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with one dictionary of the values that it has, in the order of the dictionary it had."""
    kind = column.type
    if column.num_chunks != 1:
        try:
            column = column.unify_dictionaries()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = column.cast(kind.value_type).dictionary_encode()
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], kind)
    indices = array.indices
    used = np.unique(indices.drop_null().to_numpy())
    if len(used) < len(array.dictionary):
        places = np.zeros(len(array.dictionary), np.int64)
        places[used] = np.arange(len(used))
        renumbered = pa.array(places).take(indices.cast(pa.int64()))
        array = pa.DictionaryArray.from_arrays(
            renumbered.cast(kind.index_type), array.dictionary.take(pa.array(used)), ordered=kind.ordered
        )
    elif array.type != kind:
        array = array.cast(kind)
    return pa.chunked_array([array], kind)
