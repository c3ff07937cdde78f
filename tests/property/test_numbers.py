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
from hypothesis import event, given, settings
from hypothesis import strategies as st

import pqindex
from pqindex.columns import column_values
from pqindex.decode import DirectDecoder
from pqindex.numbers import MAX_REFUSALS, NumberField, NumberRead, NumberReader
from pqindex.torch import SequenceDataset, WindowDataset

layouts = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip", "brotli"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([1, 64, 1 << 20]),
        "dictionary_pagesize_limit": st.sampled_from([64, 1 << 20]),
        "write_batch_size": st.sampled_from([3, 1024]),
        "write_page_checksum": st.booleans(),
        "write_page_index": st.booleans(),
        "row_group_size": st.sampled_from([7, 40, 1 << 20]),
    }
)


def tables(n_files: int, n_sequences: int, nulls: bool, seed: int) -> list[pa.Table]:
    """One file has a column less; all have any bits in their floats, NaNs with payloads among them."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(n_files):
        lengths = random.integers(1, 60, n_sequences)
        n = int(lengths.sum())
        columns = {
            "seq_id": np.repeat(np.arange(n_sequences) + number * n_sequences, lengths),
            "x": random.integers(0, 256, 4 * n, np.uint8).view(np.float32),
            "y": random.integers(0, 5, n).astype(np.float32),
            "small": random.integers(-100, 100, n).astype(np.int8),
            "wide": random.integers(0, 256, 8 * n, np.uint8).view(np.float64),
            "gap": pa.array(
                [None if nulls and random.random() < 0.2 else 1.5 for _ in range(n)], pa.float32()
            ),
            "text": [f"t{i % 3}" for i in range(n)],
            "yes": random.random(n) < 0.5,
            "day": pa.array(random.integers(0, 9999, n).astype(np.int32), pa.date32()),
            "pair": pa.FixedSizeListArray.from_arrays(random.normal(size=2 * n), 2),
        }
        table = pa.table(columns)
        found.append(table.drop_columns(["yes"]) if number == 1 else table)
    return found


FIELDS = [
    NumberField(("x", "y"), np.dtype(np.float32)),
    NumberField(("small", "gap", "y"), np.dtype(np.float32)),
    NumberField(("wide",), np.dtype(np.float64)),
    NumberField(("yes",), np.dtype(np.bool_)),
    NumberField(("day",), np.dtype(np.int64)),
]
COLUMNS = ["x", "y", "small", "wide", "gap", "text", "yes", "day", "pair"]


def assert_same(read: NumberRead, table: pa.Table, schema: pa.Schema) -> None:
    """What was read is what PyArrow reads, bit for bit, and nobody else's memory."""
    assert read.table is not None, "the text column is PyArrow's"
    assert read.table.schema == schema
    for name in ("text", "pair"):
        assert read.table.column(name).equals(table.column(name))
    if read.arrays is None:
        for name in COLUMNS:
            assert bits(read.table.column(name)) == bits(table.column(name))
        return
    for field, array, absent in zip(FIELDS, read.arrays, read.absent, strict=True):
        assert array.dtype == field.dtype
        assert array.shape == (table.num_rows, len(field.columns))
        assert array.flags.owndata
        assert array.flags.writeable
        for place, name in enumerate(field.columns):
            values = column_values(table.column(name))
            gaps = np.zeros(table.num_rows, np.bool_) if absent is None else absent[:, place]
            assert gaps.tolist() == table.column(name).is_null().to_pylist()
            with np.errstate(all="ignore"):
                expected = values.values[:, 0].astype(field.dtype)
            assert array[~gaps, place].tobytes() == expected[~gaps].tobytes(), name


@settings(deadline=None, max_examples=40)
@given(
    layout=layouts,
    n_files=st.integers(1, 3),
    n_sequences=st.integers(1, 5),
    nulls=st.booleans(),
    pages=st.sampled_from(["auto", "always", "never"]),
    from_manifest=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_rows_equal_what_pyarrow_reads_whatever_they_are_part_of(
    layout: Any, n_files: int, n_sequences: int, nulls: bool, pages: Any, from_manifest: bool, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        for number, table in enumerate(tables(n_files, n_sequences, nulls, seed)):
            pq.write_table(table, data / f"{number}.parquet", **layout)
        source: Any = pqindex.build(data, index=Path(folder) / "i.pqindex", pages=pages).select()
        if from_manifest:
            source.pin(Path(folder) / "m.parquet")
            (Path(folder) / "i.pqindex").rename(Path(folder) / "away")
            source = pqindex.load_manifest(Path(folder) / "m.parquet")
        reader, plain = pqindex.Reader(source, columns=COLUMNS), pqindex.Reader(source, columns=COLUMNS)
        numbers = NumberReader(reader, FIELDS)
        random = np.random.default_rng(seed)
        for _ in range(4):
            requests = []
            for position in random.integers(0, len(plain), int(random.integers(1, 5))).tolist():
                n_rows = int(plain.row_counts[position])
                start = int(random.integers(0, n_rows + 1)) if random.random() < 0.5 else 0
                stop = int(random.integers(start, n_rows + 1)) if random.random() < 0.5 else n_rows
                requests.append((position, start, stop))
            for read, table in zip(numbers.read_rows(requests), plain.read_rows(requests), strict=True):
                assert_same(read, table, reader.schema)
        ours, theirs = reader.stats(), plain.stats()
        assert [ours[name] for name in SAME] == [theirs[name] for name in SAME], "other bytes were read"
        reasons = [name for name in ours if name.startswith("not_direct_")]
        assert sum(ours[name] for name in reasons) == ours["fallback_not_direct"]
        event("ranges" if ours["direct_ranges"] else "groups" if ours["direct_groups"] else "kept")
        if layout["compression"] in {"gzip", "brotli"}:
            assert ours["direct_columns"] == 0
            assert ours["not_direct_codec"] == ours["fallback_not_direct"]


SAME = ("reads", "ranges", "bytes", "opens", "page_reads", "fallback_group_is_cheaper", "fallback_no_pages")


def bits(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_floating(column.type):
        return [None if value is None else np.float64(value).tobytes() for value in column.to_pylist()]
    return column.to_pylist()


def test_a_column_that_cannot_be_decoded_leaves_the_others_direct(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    names = ["f0", "gap", "f1", "delta", "f2"]
    columns: dict[str, Any] = {name: random.normal(size=50).astype(np.float32) for name in names}
    columns["gap"] = pa.array([None, *columns["gap"][1:]], pa.float32())
    columns["delta"] = random.integers(0, 9, 50)
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"seq_id": np.zeros(50, np.int64), **columns}),
        path,
        use_dictionary=["f2"],
        column_encoding={"delta": "DELTA_BINARY_PACKED"},
    )
    selection = pqindex.build(path).select()
    reader = pqindex.Reader(selection, columns=names)
    numbers = NumberReader(reader, [NumberField(tuple(names), np.dtype(np.float32))])
    (read,) = numbers.read([0])
    assert read.table is None
    assert read.arrays is not None
    for place, name in enumerate(names):
        expected = np.asarray(pa.array(columns[name]).fill_null(0)).astype(np.float32)
        start = 1 if name == "gap" else 0
        assert read.arrays[0][start:, place].tolist() == expected[start:].tolist()
    (absent,) = read.absent
    assert absent is not None
    assert np.argwhere(absent).tolist() == [[0, 1]]
    stats = reader.stats()
    assert (stats["direct_columns"], stats["fallback_not_direct"]) == (3, 2)
    assert (stats["not_direct_nulls"], stats["not_direct_encoding"]) == (1, 1)
    assert stats["decodes"] == 1, "one buffer for both"
    # With a null in one column, and another of an encoding that is left to PyArrow, the field is what it was.
    dataset = SequenceDataset(selection, fields={"x": names}, nulls="keep")
    x = dataset[0]["x"]
    assert x[0, 1].isnan()
    assert x[1:].tolist() == read.arrays[0][1:].tolist()
    filled = SequenceDataset(selection, fields={"x": names}, nulls=("fill", 7.0))[0]
    assert filled["x"][0, 1] == 7
    assert (~filled["x_mask"]).nonzero().tolist() == [[0, 1]]
    with pytest.raises(pqindex.NullValueError, match=r"a\.parquet, row group 0: .*column 'gap'.*row 0"):
        SequenceDataset(selection, fields={"x": names})[0]


def test_what_the_plan_knows_is_not_tried(tmp_path: Path) -> None:
    table = pa.table({"seq_id": [0] * 9, "x": np.arange(9.0), "t": ["a"] * 9})
    for number, options in enumerate(({"compression": "gzip"}, {"compression": "none"})):
        own = table.set_column(0, "seq_id", [[number] * 9])
        pq.write_table(own, tmp_path / f"{number}.parquet", **options)
    reader = pqindex.Reader(pqindex.build(tmp_path).select(), columns=["x", "t"])
    assert reader._plan.left.tolist() == [2, 0, 0, 0], "the codec of the first file's x"
    numbers = NumberReader(reader, [NumberField(("x",), np.dtype(np.float64))])
    for _ in range(2):
        for read in numbers.read([0, 1]):
            assert read.arrays is not None
            assert read.arrays[0][:, 0].tolist() == list(range(9))
    stats = reader.stats()
    assert (stats["direct_columns"], stats["not_direct_codec"], stats["fallback_not_direct"]) == (2, 2, 2)
    again = pqindex.Reader.__new__(pqindex.Reader)
    again.__setstate__(reader.__getstate__())
    assert again._plan.left.tolist() == [2, 0, 0, 0]


def test_a_column_that_is_refused_time_and_again_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("seq_id", pa.int64()), ("x", pa.float32()), ("y", pa.float32())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for number in range(60):
            x = pa.array([1, None, 3], pa.float32())
            writer.write_table(pa.table({"seq_id": [number] * 3, "x": x, "y": x.fill_null(2)}, schema=schema))
    reader = pqindex.Reader(pqindex.build(tmp_path).select(), columns=["x", "y"])
    numbers = NumberReader(reader, [NumberField(("x", "y"), np.dtype(np.float32))])
    tried = []
    decode = DirectDecoder.decode

    def decode_and_count(decoder: DirectDecoder, reads: Any) -> Any:
        refusals = decode(decoder, reads)
        tried.append(len(refusals))
        return refusals

    monkeypatch.setattr(DirectDecoder, "decode", decode_and_count)
    for number in range(60):
        (read,) = numbers.read([number])
        assert read.arrays is not None
        assert read.absent[0] is not None
        assert read.absent[0].tolist() == [[False, False], [True, False], [False, False]]
        assert read.arrays[0][:, 1].tolist() == [1, 2, 3]
    assert tried == [1] * MAX_REFUSALS + [0] * (60 - MAX_REFUSALS)
    assert reader.stats()["not_direct_nulls"] == reader.stats()["fallback_not_direct"] == 60
    assert reader.stats()["direct_columns"] == 60
    again = pickle.loads(pickle.dumps(numbers))
    assert again.read([5])[0].absent[0] is not None


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


def test_windows_and_integers_that_are_checked_take_the_direct_way(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    n = 4000
    columns = {
        "seq_id": np.repeat([3, 5], n // 2),
        "a": random.normal(size=n).astype(np.float32),
        "b": random.normal(size=n),
        "label": random.integers(0, 9, n),
    }
    pq.write_table(
        pa.table(columns),
        tmp_path / "a.parquet",
        use_dictionary=["label"],
        data_page_size=1024,
        write_batch_size=64,
        write_page_index=True,
    )
    windows = WindowDataset(
        pqindex.build(tmp_path, pages="always").select(), {"x": ["a", "b"], "y": "label"}, length=50, stride=7
    )
    for number in (0, 3, 100, len(windows) - 1):
        item = windows[number]
        start = item["row_start"] + (n // 2 if item["seq_id"] == 5 else 0)
        rows = slice(start, start + 50)
        expected = np.stack([columns["a"][rows], columns["b"][rows].astype(np.float32)], axis=1)
        assert np.array_equal(item["x"].numpy(), expected)
        assert item["y"].tolist() == columns["label"][rows].tolist()
    stats = windows._sequences._reader.stats()
    assert (stats["direct_ranges"], stats["page_reads"], stats["fallback_not_direct"]) == (4, 4, 0)
    assert stats["direct_columns"] == 12
    assert stats["decodes"] == 0
    large = pa.table({"seq_id": [1, 1], "label": [1, (1 << 24) + 1]})
    (tmp_path / "large").mkdir()
    pq.write_table(large, tmp_path / "large" / "b.parquet")
    with pytest.raises(pqindex.LossyCastError, match=r"b\.parquet.*row 1; found 16777217"):
        SequenceDataset(pqindex.build(tmp_path / "large").select(), {"y": "label"})[0]
