"""Parquet footers.

Here belongs what the bytes of a footer say and how to write one: the Thrift encoding, the facts of row groups and
column chunks as arrays, which statistics to believe, and the synthetic footers that reads go through. Never here:
opening files, listing them, and what a sequence is.
"""

from pqindex.footer.blocks import (
    Block,
    Fetched,
    batches,
    coalesce,
    decode_blocks,
    fetch,
    leaf_spans,
    select_leaves,
)
from pqindex.footer.chunks import UNKNOWN_CODEC, Chunks, chunk_start
from pqindex.footer.metadata import (
    MAX_FOOTER_BYTES,
    TAIL_BYTES,
    FileMetadata,
    parse_footer,
    read_tail,
    tail_of,
)
from pqindex.footer.paging import PagePlaces, find_pages, has_checksum
from pqindex.footer.reading import ChunkPlaces, read_group, unreadable, unreadable_chunks, whole_group
from pqindex.footer.rowrange import RowRange, join_parts, plan_row_range, row_range_blocks
from pqindex.footer.schema import Leaf, LogicalType, parse_schema
from pqindex.footer.statistics import Bounds, bounds, bounds_of, bounds_of_files, leaf_types
from pqindex.footer.synthetic import MAGIC, GroupChunks, Projection, SchemaRecord

__all__ = [
    "MAGIC",
    "MAX_FOOTER_BYTES",
    "TAIL_BYTES",
    "UNKNOWN_CODEC",
    "Block",
    "Bounds",
    "ChunkPlaces",
    "Chunks",
    "Fetched",
    "FileMetadata",
    "GroupChunks",
    "Leaf",
    "LogicalType",
    "PagePlaces",
    "Projection",
    "RowRange",
    "SchemaRecord",
    "batches",
    "bounds",
    "bounds_of",
    "bounds_of_files",
    "chunk_start",
    "coalesce",
    "decode_blocks",
    "fetch",
    "find_pages",
    "has_checksum",
    "join_parts",
    "leaf_spans",
    "leaf_types",
    "parse_footer",
    "parse_schema",
    "plan_row_range",
    "read_group",
    "read_tail",
    "row_range_blocks",
    "select_leaves",
    "tail_of",
    "unreadable",
    "unreadable_chunks",
    "whole_group",
]
