"""Rows through pages equal rows of full reads, for every encoding, codec and page layout that PyArrow writes.

And for files that polars and DuckDB wrote. What is compared is all that a user gets: an index with page places, and a
reader that is asked for rows of sequences.
"""

from __future__ import annotations

import decimal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pqindex

# A type of column, how row i looks, and the encodings there are for it beside "dictionary".
PLAIN = "PLAIN"
DELTA = "DELTA_BINARY_PACKED"
SPLIT = "BYTE_STREAM_SPLIT"
TEXTS = (PLAIN, "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
FLAT: dict[str, tuple[pa.DataType, Any, tuple[str, ...]]] = {
    "int32": (pa.int32(), lambda i: i * 7919 % 1000 - 500, (PLAIN, DELTA, SPLIT)),
    "int64": (pa.int64(), lambda i: (-1) ** i * i * 2**40, (PLAIN, DELTA, SPLIT)),
    "uint8": (pa.uint8(), lambda i: i % 256, (PLAIN, DELTA)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda i: i * 1_000_003, (PLAIN, DELTA)),
    "float32": (pa.float32(), lambda i: i / 3, (PLAIN, SPLIT)),
    "float64": (pa.float64(), lambda i: -i / 7, (PLAIN, SPLIT)),
    "float16": (pa.float16(), lambda i: np.float16(i % 100), (PLAIN, SPLIT)),
    "bool": (pa.bool_(), lambda i: i % 3 == 0, (PLAIN, "RLE")),
    "string": (pa.string(), lambda i: "prefix" * (i % 4) + str(i % 11), TEXTS),
    "binary": (pa.binary(), lambda i: bytes([i % 256]) * (i % 9), TEXTS),
    "fixed": (pa.binary(6), lambda i: i.to_bytes(6, "big"), (PLAIN, "DELTA_BYTE_ARRAY", SPLIT)),
    "decimal": (pa.decimal128(9, 2), lambda i: decimal.Decimal(i) / 100, (PLAIN,)),
}
NESTED: dict[str, tuple[pa.DataType, Any]] = {
    "list": (pa.list_(pa.float32()), lambda i: [i / 2, None, 1.0][: i % 4]),
    "texts": (pa.large_list(pa.string()), lambda i: ["w" * (i % 5)] * (i % 3)),
    "struct": (pa.struct([("a", pa.int16()), ("b", pa.string())]), lambda i: {"a": i % 99, "b": f"b{i % 4}"}),
    "uneven": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))]),
        lambda i: {"a": i, "b": [i % 100] * (i % 5)},
    ),
    "fixed_list": (pa.list_(pa.int32(), 3), lambda i: [i, -i, i % 2]),
    "lists": (pa.list_(pa.list_(pa.int32())), lambda i: [[i], [], [i, i]][: i % 4]),
    "map": (pa.map_(pa.string(), pa.int32()), lambda i: [(f"k{k}", i) for k in range(i % 3)]),
}
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


@dataclass(frozen=True)
class Case:
    lengths: list[int]
    group_rows: int
    columns: dict[str, str]  # kind by name
    nulls: str
    options: dict[str, Any]
    requests: list[tuple[float, float, float]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    flat = draw(st.lists(st.sampled_from(sorted(FLAT)), min_size=1, max_size=3, unique=True))
    nested = draw(st.lists(st.sampled_from(sorted(NESTED)), max_size=2, unique=True))
    encodings = {kind: draw(st.sampled_from([*FLAT[kind][2], "dictionary"])) for kind in flat}
    written = {name: encoding for name, encoding in encodings.items() if encoding != "dictionary"}
    dictionaries = [
        name for name, encoding in encodings.items() if encoding == "dictionary" and name != "bool"
    ]
    codecs = draw(st.one_of(st.sampled_from(CODECS), st.just(None)))
    return Case(
        lengths=lengths,
        group_rows=draw(st.sampled_from([7, 40, 1000])),
        columns={kind: kind for kind in flat + nested},
        nulls=draw(st.sampled_from(["none", "some", "many", "all"])),
        options={
            "use_dictionary": dictionaries,
            "column_encoding": written or None,
            "compression": codecs or {kind: draw(st.sampled_from(CODECS)) for kind in flat},
            "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
            "data_page_size": draw(st.sampled_from([1, 40, 300, 1 << 20])),
            "write_batch_size": draw(st.sampled_from([1, 5, 64, 1024])),
            "dictionary_pagesize_limit": draw(st.sampled_from([1, 64, 1 << 20])),
            "write_page_index": draw(st.booleans()),
            "write_page_checksum": draw(st.booleans()),
            "store_schema": draw(st.booleans()),
        },
        requests=draw(
            st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5)
        ),
    )


def is_null(nulls: str, row: int) -> bool:
    return {"none": False, "some": row % 9 == 4, "many": row % 3 != 1, "all": True}[nulls]


def table_of(case: Case) -> pa.Table:
    ids = np.repeat(np.arange(len(case.lengths)), case.lengths)
    columns: dict[str, Any] = {"seq_id": ids, "t": np.arange(len(ids), dtype=np.int32)}
    for name, kind in case.columns.items():
        data_type, make = (FLAT | NESTED)[kind][:2]
        values = [None if is_null(case.nulls, row) else make(row) for row in range(len(ids))]
        columns[name] = pa.array(values, data_type)
    return pa.table(columns)


def written(case: Case, table: pa.Table, path: Path) -> pa.Table | None:
    """Write the table, and return what PyArrow reads of it; None where it cannot read back what it wrote.

    Lists in pages of a row or two are such a case (an error, or rows that are missing without one).
    """
    pq.write_table(table, path, row_group_size=case.group_rows, **case.options)
    try:
        full = pq.ParquetFile(path).read()
    except pa.ArrowInvalid:
        return None
    return full if full.num_rows == table.num_rows else None


def requests_of(case: Case) -> list[tuple[int, int, int]]:
    found = []
    for which, start, stop in case.requests:
        position = min(int(which * len(case.lengths)), len(case.lengths) - 1)
        n_rows = case.lengths[position]
        first = min(int(start * n_rows), n_rows - 1)
        found.append((position, first, first + 1 + int(stop * (n_rows - first - 1))))
    return found


def check(reader: pqindex.Reader, full: pa.Table, lengths: list[int], requests: list[Any]) -> None:
    first_row = np.cumsum([0, *lengths])
    expected = full.select(reader.schema.names)
    for (position, start, stop), table in zip(requests, reader.read_rows(requests), strict=True):
        rows = expected.slice(int(first_row[position]) + start, stop - start)
        assert table.schema.equals(rows.schema)
        assert table.equals(rows)


@given(case=cases())
@settings(max_examples=100)
def test_rows_through_pages_equal_rows_of_full_reads(case: Case) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.parquet"
        full = written(case, table_of(case), path)
        if full is None:
            return
        index = pqindex.build(path, order="t", pages="always", workers=1)
        selection = index.select("SELECT seq_id FROM index ORDER BY seq_id")
        requests = requests_of(case)
        # A group that would not be kept is never read whole: pages it is, however few bytes that saves.
        for columns, kept in ((None, 0), (list(case.columns)[::-1], 0), (["t", *case.columns], 1 << 20)):
            with pqindex.Reader(selection, columns=columns, group_cache_bytes=kept) as reader:
                check(reader, full, case.lengths, requests)
                for request in requests:
                    check(reader, full, case.lengths, [request])
                assert reader.stats()["footer_reads"] == 0


# -- every encoding once, for certain -------------------------------------------------------------------------


ENCODED = [(kind, encoding) for kind, (_, _, encodings) in FLAT.items() for encoding in encodings]
ENCODED += [(kind, "dictionary") for kind in FLAT if kind != "bool"]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(("kind", "encoding"), ENCODED)
def test_each_encoding_is_read_through_its_pages(
    tmp_path: Path, kind: str, encoding: str, version: str
) -> None:
    case = Case(
        lengths=[1500, 1000, 2500],
        group_rows=10_000,
        columns={kind: kind},
        nulls="some",
        options={
            "use_dictionary": [kind] if encoding == "dictionary" else False,
            "column_encoding": None if encoding == "dictionary" else {kind: encoding},
            "data_page_version": version,
            "data_page_size": 40,
            "write_batch_size": 20,
        },
        requests=[],
    )
    path = tmp_path / "a.parquet"
    full = written(case, table_of(case), path)
    assert full is not None
    used = pq.read_metadata(path).row_group(0).column(2).encodings
    assert ("RLE_DICTIONARY" if encoding == "dictionary" else encoding) in used
    index = pqindex.build(path, order="t", pages="always")
    with pqindex.Reader(index.select(), columns=[kind]) as reader:
        check(reader, full, case.lengths, [(2, 2000, 2030), (0, 0, 1)])
        stats = reader.stats()
        assert (stats["page_reads"], stats["groups"]) == (2, 0)
        assert stats["bytes"] < sum(int(n) for n in reader._plan.chunks["length"])


# -- other writers --------------------------------------------------------------------------------------------


OTHERS = ["int32", "int64", "float32", "float64", "bool", "string", "timestamp"]
LENGTHS = [300, 1, 450, 249]


def by_polars(table: pa.Table, path: Path, **options: Any) -> None:
    pl.from_arrow(table).write_parquet(path, row_group_size=800, **options)


def by_duckdb(table: pa.Table, path: Path, **options: Any) -> None:
    said = "".join(f", {name} {value}" for name, value in options.items())
    with duckdb.connect() as connection:
        connection.register("rows_of_test", table)
        connection.execute(
            f"COPY (SELECT * FROM rows_of_test ORDER BY t) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048{said})"
        )


@pytest.mark.parametrize("nulls", ["none", "some"])
@pytest.mark.parametrize(
    ("write", "options"),
    [
        (by_polars, {"compression": "zstd", "data_page_size": 256}),
        (by_polars, {"compression": "uncompressed", "data_page_size": 1}),
        (by_polars, {"compression": "lz4", "statistics": False}),
        (by_duckdb, {}),
        (by_duckdb, {"COMPRESSION": "zstd", "PARQUET_VERSION": "V2"}),
        (by_duckdb, {"COMPRESSION": "lz4_raw", "PARQUET_VERSION": "V1", "DICTIONARY_SIZE_LIMIT": 1}),
    ],
)
def test_rows_of_files_by_other_writers(
    tmp_path: Path, write: Any, options: dict[str, Any], nulls: str
) -> None:
    case = Case(
        lengths=LENGTHS,
        group_rows=0,
        columns={kind: kind for kind in (*OTHERS, "list")},
        nulls=nulls,
        options={},
        requests=[],
    )
    path = tmp_path / "a.parquet"
    write(table_of(case), path, **options)
    full = pq.ParquetFile(path).read()
    index = pqindex.build(path, order="t", pages="always")
    selection = index.select("SELECT seq_id FROM index ORDER BY seq_id")
    random = np.random.default_rng(0)
    for columns in (OTHERS, ["list"], ["float32", "list", "string"], ["t"]):
        with pqindex.Reader(selection, columns=columns) as reader:
            for _ in range(12):
                position = int(random.integers(0, len(LENGTHS)))
                first, stop = sorted(random.integers(0, LENGTHS[position] + 1, 2).tolist())
                check(reader, full, LENGTHS, [(position, first, stop), (2, 0, 450), (3, 248, 249)])
