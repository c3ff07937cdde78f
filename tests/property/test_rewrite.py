"""Whatever the layout of the source, what is read of the copy is what is in the source, bit for bit."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pqindex
from pqindex import rewrite as rewriting

KEYS: dict[str, Any] = {
    "int32": lambda i: pa.array(i, pa.int32()),
    "uint64": lambda i: pa.array([2**63 + k for k in i], pa.uint64()),
    "string": lambda i: pa.array([f"k{k}" * (1 + 40 * (k % 2)) for k in i]),
    "dictionary": lambda i: pa.array([f"k{k}" for k in i]).dictionary_encode(),
    "long string": lambda i: pa.array([f"{k}" * 5000 for k in i]),
    "timestamp": lambda i: pa.array([k * 10**9 for k in i], pa.timestamp("us", "Europe/Berlin")),
}


def bits(draw: st.DrawFn, n: int, dtype: str) -> np.ndarray:
    return np.frombuffer(
        draw(st.binary(min_size=n * np.dtype(dtype).itemsize, max_size=n * np.dtype(dtype).itemsize)), dtype
    )


def column(draw: st.DrawFn, kind: str, n: int) -> pa.Array:
    """A column of any values, with nulls where the type has any."""
    absent = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    numbers = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    mask = None if kind.startswith("required") else absent
    if kind in {"float32", "float64", "float16", "required float32"}:  # any bits: every NaN, -0.0
        return pa.array(bits(draw, n, kind.removeprefix("required ")), mask=mask)
    values = {
        "int8": (numbers, pa.int8()),
        "bool": ([k % 2 == 0 for k in numbers], pa.bool_()),
        "decimal": ([k * 3 for k in numbers], pa.int64()),
        "text": (["é" * k for k in numbers], pa.string()),
        "large text": (["x" * k for k in numbers], pa.large_string()),
        "code": ([f"c{k}" for k in numbers], pa.string()),
        "ordered code": ([f"c{k}" for k in numbers], pa.string()),
        "binary": ([bytes([k]) * k for k in numbers], pa.binary()),
        "fixed": ([bytes([k]) * 4 for k in numbers], pa.binary(4)),
        "zoned": (numbers, pa.timestamp("ns", "Asia/Kolkata")),
        "date": ([dt.date(1960 + k, 1, 1) for k in numbers], pa.date32()),
        "list": ([[None if j == 2 else float(j) for j in range(k)] for k in numbers], pa.list_(pa.float32())),
        "fixed list": ([[k, None, -k] for k in numbers], pa.list_(pa.int32(), 3)),
        "struct": (
            [{"p": k, "q": [f"s{j}" for j in range(k)]} for k in numbers],
            pa.struct([("p", pa.int64()), ("q", pa.list_(pa.string()))]),
        ),
        "map": ([[(f"m{j}", j) for j in range(k)] for k in numbers], pa.map_(pa.string(), pa.int32())),
        "null": ([None] * n, pa.null()),
    }[kind]
    array = pa.array([None if gone else v for gone, v in zip(absent, values[0], strict=True)], values[1])
    if kind == "decimal":
        return array.cast(pa.decimal128(25, 2))
    if kind == "code":
        return array.dictionary_encode()
    if kind == "ordered code":
        return array.dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string(), ordered=True))
    return array


KINDS = [
    "float32", "float64", "float16", "required float32", "int8", "bool", "decimal", "text", "large text", "code",
    "ordered code", "binary", "fixed", "zoned", "date", "list", "fixed list", "struct", "map", "null",
]  # fmt: skip


def cuts(draw: st.DrawFn, total: int, most: int) -> list[int]:
    points = sorted(draw(st.lists(st.integers(0, total), max_size=most)))
    return [b - a for a, b in zip([0, *points], [*points, total], strict=True)]


@st.composite
def sources(draw: st.DrawFn) -> tuple[pa.Table, list[list[int]], dict[str, Any]]:
    """A table, the rows of the groups of each file, and the writer's options."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    ids = np.repeat(draw(st.permutations(range(len(lengths)))), lengths).tolist()
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    columns = {"seq_id": KEYS[draw(st.sampled_from(sorted(KEYS)))](ids)}
    columns["t"] = pa.array(range(len(ids)), pa.int32())
    columns |= {f"c{i}": column(draw, kind, len(ids)) for i, kind in enumerate(kinds)}
    fields = [
        pa.field(name, array.type, not (name.startswith("c") and kinds[int(name[1:])].startswith("required")))
        for name, array in columns.items()
    ]
    metadata = draw(st.sampled_from([None, {"owner": "me", "": "empty"}]))
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, metadata))
    groups = cuts(draw, len(ids), 6)
    files = cuts(draw, len(groups), 2)
    rows = iter(groups)
    options = {
        "compression": draw(st.sampled_from(["none", "snappy", "zstd"])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "data_page_size": draw(st.sampled_from([64, 1 << 20])),
        "write_batch_size": draw(st.sampled_from([1, 1024])),
    }
    return table, [[next(rows) for _ in range(n)] for n in files], options


def write(folder: Path, table: pa.Table, files: list[list[int]], options: dict[str, Any]) -> None:
    folder.mkdir()
    at = 0
    for number, groups in enumerate(files):
        with pq.ParquetWriter(folder / f"{number}.parquet", table.schema, **options) as writer:
            for n_rows in groups:
                writer.write_table(table.slice(at, n_rows), row_group_size=max(1, n_rows))
                at += n_rows


def in_bits(array: pa.Array) -> list[Any]:
    """The values, floats as the integers of their bits."""
    if pt.is_floating(array.type):
        wide = {2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}[array.type.bit_width // 8]
        return array.view(wide).to_pylist()
    return array.to_pylist()


def rows_of(folder: Path) -> dict[Any, list[tuple[Any, ...]]]:
    """The rows of all files by key, read by pyarrow alone."""
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                columns = [
                    in_bits(pa.concat_arrays(c.unify_dictionaries().chunks)) if c.num_chunks else []
                    for c in table.columns
                ]
                for row in zip(*columns, strict=True):
                    found.setdefault(row[0], []).append(row)
    return found


@given(
    source=sources(),
    pack_rows=st.sampled_from([None, 1, 7, 1000]),
    file_size=st.sampled_from([1, 500, 10**9]),
    codec=st.sampled_from(["lz4", "none", "snappy", "zstd"]),
    dictionary=st.sampled_from(["auto", "never", "always"]),
    descending=st.booleans(),
)
@settings(max_examples=15)
def test_a_copy_equals_its_source_bit_for_bit_A15(
    source, pack_rows, file_size, codec, dictionary, descending
) -> None:
    table, files, options = source
    with tempfile.TemporaryDirectory() as name:
        data, out = Path(name) / "data", Path(name) / "out"
        write(data, table, files, options)
        index = pqindex.build(data, order="t", join=True, workers=1)
        selection = index.select(
            f"SELECT seq_id FROM index ORDER BY order_max {'DESC' if descending else ''}"
        )
        form = {"pack_rows": pack_rows, "file_size": file_size, "codec": codec, "dictionary": dictionary}
        made = selection.rewrite(out, **form)
        expected = rows_of(data)
        found = rows_of(out)
        assert found == expected
        assert list(found) == [in_bits(selection.seq_ids.slice(i, 1))[0] for i in range(len(selection))]
        assert made.select().seq_ids.to_pylist() == selection.seq_ids.to_pylist()
        before = pq.read_schema(next(iter(sorted(data.glob("*.parquet")))))
        for path in out.glob("*.parquet"):
            assert pq.read_schema(path).equals(before, check_metadata=True)
        assert made.info()["totals"]["n_segments"] == len(selection), "no sequence is cut"
        groups = made.sql(
            "SELECT count(*) AS n, sum(row_stop - row_start) AS n_rows FROM segments GROUP BY file, row_group"
        ).to_pylist()
        assert all(group["n"] == 1 or group["n_rows"] <= (pack_rows or 0) for group in groups)
        with (
            pytest.MonkeyPatch.context() as patched
        ):  # the bytes hang on the rows, and not on how they are read
            patched.setattr(rewriting, "SEQUENCES_AT_ONCE", 1)
            patched.setattr(rewriting, "GROUP_CACHE_BYTES", 0)
            selection.rewrite(Path(name) / "again", **form, check=False)
        assert [path.read_bytes() for path in sorted(out.iterdir())] == [
            path.read_bytes() for path in sorted((Path(name) / "again").iterdir())
        ]
