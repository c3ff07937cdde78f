"""What is known of the writers of Parquet files: which of their numbers are wrong.

Data with a reason each, so that a line can be added, and removed, without touching code. A line costs the users of that
writer some speed (a column is read where a footer would have told) and never an answer; a missing line costs an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Columns: TypeAlias = Literal["all", "dictionary", "decimal", "timestamp"]
"""Which columns a fault touches. `dictionary`: those written from dictionary-encoded Arrow arrays, which is every
column of byte arrays where the file does not say (it has no ``ARROW:schema``)."""

Fault: TypeAlias = Literal["bounds", "null_count", "nonzero_null_count", "exact", "exact_with_nulls"]
"""What is not to be believed; `exact`: the bounds hold, but may not be values of the column (`_with_nulls`: where it
has nulls)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterFault:
    """A fault of some versions of a writer.

    Attributes
    ----------
    name : re.Pattern
        What its `created_by` begins with.
    before : tuple of int or None
        The first version without the fault, None while there is none. A file that gives no version has the fault.
    columns : str
        See `Columns`.
    faults : frozenset of str
        See `Fault`.
    reason : str
    """

    name: re.Pattern[str]
    before: tuple[int, int, int] | None
    columns: Columns
    faults: frozenset[Fault]
    reason: str


def _fault(
    name: str, columns: Columns, *faults: Fault, reason: str, before: tuple[int, int, int] | None = None
) -> WriterFault:
    return WriterFault(
        name=re.compile(name), before=before, columns=columns, faults=frozenset(faults), reason=reason
    )


STATISTICS_FAULTS: Final[tuple[WriterFault, ...]] = (
    _fault(
        r"parquet-cpp(-arrow)?\b",
        "dictionary",
        "bounds",
        "null_count",
        before=(6, 0, 0),
        reason="null counts of 0 with nulls, and bounds of the dictionary instead of the rows (Arrow's issues"
        " ARROW-12513, ARROW-11634, PARQUET-1783); seen in duckdb/h2oai/h2oai_group_small.parquet",
    ),
    _fault(
        r"parquet-cpp-arrow\b",
        "dictionary",
        "exact_with_nulls",
        reason="a row group with nulls gets the bounds of the rows behind it too; seen with pyarrow 26.0.1, where"
        " ('0', null), ('') as a dictionary in row groups of two rows gives '' to '0' for the first",
    ),
    _fault(
        r"DuckDB$",
        "all",
        "null_count",
        reason="early versions gave no version, so that a faulty one cannot be told from a good one",
    ),
    _fault(
        r"Polars$|Arrow2 - Native Rust",
        "all",
        "bounds",
        "null_count",
        reason="early versions gave no version; they joined the bounds of pages wrongly, bounded unsigned numbers"
        " as signed, and counted the nulls of a dictionary instead of the rows (polars' issues 7842 and 15323,"
        " arrow2's 1414)",
    ),
    _fault(
        r"Polars\b",
        "all",
        "nonzero_null_count",
        before=(2, 1, 0),
        reason="null counts multiplied by the number of pages (polars' issue 29321)",
    ),
    _fault(
        r"Polars\b",
        "dictionary",
        "exact",
        reason="bounds of all categories, used or not (polars' issue 29364)",
    ),
    _fault(
        r"Polars\b|ClickHouse\b|hyparquet\b",
        "decimal",
        "bounds",
        reason="decimals compared as unsigned bytes, or bounds without the scale (polars' issue 29347, ClickHouse's"
        " 83754, hyparquet-writer's 38)",
    ),
    _fault(
        r"Parquet\.Net\b",
        "timestamp",
        "bounds",
        reason="bounds shifted by the writer's time zone, or in another unit (parquet-dotnet's issue 769); seen in"
        " duckdb/corrupt_stats.parquet",
    ),
)

NEVER_CUTS: Final = re.compile(r"parquet-cpp-arrow\b")
"""Writers that leave a long bound out instead of cutting it."""

MAX_UNCUT_BYTES: Final = 56
"""Text of at most so many bytes was cut by no known writer: the shortest cut is at 64 bytes, at a whole character."""

CHUNK_PADDING: Final = 100
"""Bytes that pyarrow reads past a chunk whose writer left its dictionary page's header out of the chunk's size.

That is PARQUET-816, repaired in parquet-mr 1.2.9.
"""
_PADDED: Final = re.compile(r"parquet-mr\b")
_PADDED_BEFORE: Final = (1, 2, 9)

_VERSION: Final = re.compile(r"\bversion\s+v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


def parse_version(created_by: str) -> tuple[int, int, int] | None:
    """Return (major, minor, patch) of a writer, None where it gives none.

    >>> parse_version("parquet-cpp-arrow version 26.0.1"), parse_version("DuckDB")
    ((26, 0, 1), None)
    """
    match = _VERSION.search(created_by)
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def statistics_faults(created_by: str | None) -> tuple[WriterFault, ...]:
    """Return the faults that the statistics of a file have by its `created_by`."""
    writer = (created_by or "").strip()
    version = parse_version(writer)
    return tuple(
        fault
        for fault in STATISTICS_FAULTS
        if fault.name.match(writer) and not (fault.before and version and version >= fault.before)
    )


def chunk_padding(created_by: str | None) -> int:
    """Return how many bytes to read past every chunk, see `CHUNK_PADDING`.

    Where no version is given, more rather than less: bytes that nobody needs do no harm.
    """
    writer = (created_by or "").strip()
    if not _PADDED.match(writer):
        return 0
    version = parse_version(writer)
    return CHUNK_PADDING if version is None or version < _PADDED_BEFORE else 0
