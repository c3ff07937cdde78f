"""Direct decoding and PyArrow from the same bytes: equal arrays, or the table instead (rows L2, A6, A9)."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pqindex
from pqindex.numbers import MAX_REFUSALS, NumberField, NumberReader
from pqindex.torch import SequenceDataset

layouts = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip", "brotli"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([1, 64, 1 << 20]),
        "write_page_checksum": st.booleans(),
    }
)


def tables(n_files: int, nulls: bool, seed: int) -> list[pa.Table]:
    random = np.random.default_rng(seed)
    found = []
    for number in range(n_files):
        n = int(random.integers(1, 60))
        x = random.normal(size=n).astype(np.float32)
        x[random.random(n) < 0.1] = np.nan
        columns = {
            "seq_id": np.full(n, number),
            "x": x,
            "y": random.integers(0, 5, n).astype(np.float32),
            "small": random.integers(-100, 100, n).astype(np.int8),
            "wide": random.normal(size=n),
            "gap": pa.array(
                [None if nulls and random.random() < 0.2 else 1.5 for _ in range(n)], pa.float32()
            ),
            "text": [f"t{i % 3}" for i in range(n)],
            "yes": random.random(n) < 0.5,
        }
        table = pa.table(columns)
        found.append(table.drop_columns(["yes"]) if number == 1 else table)
    return found


FIELDS = [
    NumberField(("x", "y"), np.dtype(np.float32)),
    NumberField(("small", "x"), np.dtype(np.float32)),
    NumberField(("wide",), np.dtype(np.float64)),
    NumberField(("gap",), np.dtype(np.float32)),
    NumberField(("yes",), np.dtype(np.bool_)),
]
COLUMNS = ["x", "y", "small", "wide", "gap", "text", "yes"]


@settings(deadline=None)
@given(layouts, st.integers(1, 4), st.booleans(), st.integers(0, 1000))
def test_arrays_equal_what_pyarrow_reads_or_are_left_to_it(
    layout: Any, n_files: int, nulls: bool, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = tables(n_files, nulls, seed)
        for number, table in enumerate(own):
            pq.write_table(table, Path(folder) / f"{number}.parquet", **layout)
        selection = pqindex.build(folder, index=Path(folder) / "i.pqindex").select()
        reader = pqindex.Reader(selection, columns=COLUMNS)
        numbers = NumberReader(reader, FIELDS)
        order = [*range(n_files), 0]
        reads = numbers.read(order)
        plain = pqindex.Reader(selection, columns=COLUMNS).read(order)
        n_direct = 0
        for read, table in zip(reads, plain, strict=True):
            assert read.table is not None, "the text column is PyArrow's"
            assert read.table.schema == reader.schema
            assert read.table.column("text").equals(table.column("text"))
            for field, array in zip(FIELDS, read.arrays, strict=True):
                if array is None:
                    for name in field.columns:
                        assert bits(read.table.column(name)) == bits(table.column(name))
                    continue
                n_direct += 1
                expected = [table.column(name).to_numpy().astype(field.dtype) for name in field.columns]
                assert array.dtype == field.dtype
                assert array.tobytes() == np.stack(expected, axis=1).tobytes()
                assert array.flags.owndata
                assert array.flags.writeable
        if layout["compression"] in {"none", "snappy", "zstd"} and n_files == 1:
            assert n_direct >= 3


def bits(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_floating(column.type):
        return [None if value is None else np.float64(value).tobytes() for value in column.to_pylist()]
    return column.to_pylist()


def test_a_field_that_is_refused_time_and_again_is_not_tried_again(tmp_path: Path) -> None:
    with pq.ParquetWriter(
        tmp_path / "a.parquet", pa.schema([("seq_id", pa.int64()), ("x", pa.float32())])
    ) as writer:
        for number in range(60):
            writer.write_table(pa.table({"seq_id": [number] * 3, "x": pa.array([1, None, 3], pa.float32())}))
    reader = pqindex.Reader(pqindex.build(tmp_path).select(), columns=["x"])
    numbers = NumberReader(reader, [NumberField(("x",), np.dtype(np.float32))])
    for number in range(60):
        (read,) = numbers.read([number])
        assert read.table is not None
        assert read.table.column("x").to_pylist() == [1, None, 3]
    assert reader.stats()["fallback_not_direct"] == MAX_REFUSALS
    again = pickle.loads(pickle.dumps(numbers))
    assert again.read([5])[0].table is not None


def test_values_that_are_refused_have_their_place_in_the_message(tmp_path: Path) -> None:
    table = pa.table({"seq_id": [7] * 3, "x": pa.array([1, np.inf, 3], pa.float32()), "t": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "a.parquet")
    selection = pqindex.build(tmp_path).select()
    dataset = SequenceDataset(selection, fields={"x": "x", "t": "t"})
    with pytest.raises(
        pqindex.NonFiniteError, match=r"a\.parquet, row group 0: .*column 'x', sequence 7, row 1; found inf"
    ):
        dataset[0]
    kept = SequenceDataset(selection, fields={"x": "x", "t": "t"}, non_finite="keep")
    assert kept[0]["x"].tolist() == [1, np.inf, 3]
    assert kept[0]["t"] == ["a", "b", "c"]
    assert kept._reader.stats()["direct_columns"] == 2  # one a read


def test_a_corrupt_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"seq_id": [7] * 300, "x": np.arange(300, dtype=np.float32)})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    dataset = SequenceDataset(pqindex.build(tmp_path).select(), fields={"x": ["x"]}, staleness="ignore")
    data = bytearray(path.read_bytes())
    at = data.index(np.arange(100, 120, dtype=np.float32).tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(pqindex.BadFileError, match=r"pages are corrupt.*a\.parquet, row group 0, column 'x'"):
        dataset[0]
