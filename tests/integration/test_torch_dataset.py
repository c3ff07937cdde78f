"""SequenceDataset over real Parquet files: what is read, what is shared, what every column type becomes."""

from __future__ import annotations

import datetime as dt
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import pqindex
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    NonFiniteError,
    SequenceTooLongError,
    SourceChangedError,
    UsageError,
)
from pqindex.torch import BatchPlan, SequenceDataset, collate_padded


def write(path, table: pa.Table, row_groups: list[int] | None = None, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        start = 0
        for n_rows in row_groups or [table.num_rows]:
            writer.write_table(table.slice(start, n_rows))
            start += n_rows


def sequences(ids, lengths, seed=0) -> pa.Table:
    """Rows of sequences one after the other: seq_id, step, f0, f1, y0; f0 tells id and step."""
    rng = np.random.default_rng(seed)
    seq_id = np.repeat(ids, lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    return pa.table(
        {
            "seq_id": seq_id,
            "step": step,
            "f0": (seq_id * 1000 + step).astype(np.float32),
            "f1": rng.normal(size=len(step)).astype(np.float32),
            "y0": rng.integers(0, 2, len(step)),
        }
    )


XY = {"x": ["f0", "f1"], "y": ["y0"]}


@pytest.fixture
def shared_groups(tmp_path):
    """Forty sequences in two files of row groups that each hold several of them, cut blind."""
    for k in range(2):
        lengths = np.arange(20) % 7 + 1
        table = sequences(np.arange(20) + 100 * (k + 1), lengths, seed=k)
        write(tmp_path / "data" / f"part-{k}.parquet", table, [13] * 6)
    return pqindex.build(tmp_path / "data", order="step").select(
        "SELECT seq_id, n_segments FROM index ORDER BY seq_id"
    )


def naive(path) -> dict[int, pa.Table]:
    table = pq.read_table(path)
    return {i: table.filter(pc.equal(table["seq_id"], i)) for i in table["seq_id"].unique().to_pylist()}


def test_L22_the_lesson_s_fixture(tmp_path):
    write(tmp_path / "data" / "a.parquet", sequences([17, 23], [3, 4]), [3, 4])
    selection = pqindex.build(tmp_path / "data", order="step").select("SELECT seq_id FROM index")
    ds = SequenceDataset(selection, XY)
    assert [(item["seq_id"], item["length"]) for item in ds] == [(17, 3), (23, 4)]
    assert [(item["x"].shape, item["y"].shape) for item in ds] == [((3, 2), (3, 1)), ((4, 2), (4, 1))]
    assert {item[name].dtype for item in ds for name in "xy"} == {torch.float32}
    assert ds[1]["x"][:, 0].tolist() == [23000, 23001, 23002, 23003]


def test_L2_L26_every_sequence_equals_a_naive_scan(shared_groups, tmp_path):
    expected = naive(tmp_path / "data")
    ds = SequenceDataset(shared_groups, XY, dtype={"y": torch.int64})
    assert len(ds) == len(expected) == 40
    assert max(item["n_segments"] for item in ds) == 2  # some straddle row groups
    for item in ds.__getitems__(range(40)):
        rows = expected[item["seq_id"]]
        assert item["length"] == rows.num_rows
        assert item["x"].numpy().tolist() == np.column_stack([rows["f0"], rows["f1"]]).tolist()
        assert item["y"].numpy().tolist() == [[y] for y in rows["y0"].to_pylist()]


def test_case_15_items_follow_the_selection_and_ids_stay(tmp_path):
    write(tmp_path / "data" / "a.parquet", sequences(np.arange(205), [2] * 205))
    ix = pqindex.build(tmp_path / "data")
    ds = SequenceDataset(
        ix.select("SELECT seq_id FROM index WHERE seq_id >= 200 ORDER BY seq_id DESC"), {"x": ["f0"]}
    )
    assert len(ds) == 5
    assert [item["seq_id"] for item in ds] == [204, 203, 202, 201, 200]
    assert ds[4]["x"].tolist() == [[200000], [200001]]
    with pytest.raises(IndexError):
        ds[200]


def test_L17_no_file_is_opened_before_the_first_read(shared_groups):
    ds = SequenceDataset(shared_groups, XY)
    assert (ds.max_item_nbytes, ds.item_nbytes(0), len(ds)) == (7 * 3 * 4, 3 * 4, 40)
    assert ds._reader.stats()["opens"] == 0
    ds[0]
    assert ds._reader.stats()["opens"] == 1


def test_L4_A9_only_the_columns_of_the_fields_are_read(tmp_path):
    table = sequences([1], [1000])
    for i in range(20):
        table = table.append_column(f"unused{i}", pa.array(np.random.default_rng(i).normal(size=1000)))
    write(tmp_path / "data" / "a.parquet", table)
    selection = pqindex.build(tmp_path / "data").select("SELECT seq_id FROM index")
    narrow = SequenceDataset(selection, {"x": ["f0"], "again": "f0"})
    narrow[0]
    everything = SequenceDataset(selection, {"x": [name for name in table.column_names if name != "seq_id"]})
    everything[0]
    assert narrow._reader.stats()["bytes"] < everything._reader.stats()["bytes"] / 20


def test_L7_a_sequence_that_is_too_long_is_refused_before_a_byte_of_it_is_read(shared_groups, tmp_path):
    for path in (tmp_path / "data").iterdir():  # no page can be decoded any more; footers are whole
        content = bytearray(path.read_bytes())
        content[4:400] = bytes(396)
        times = path.stat()
        path.write_bytes(bytes(content))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(
        SequenceTooLongError, match=r"4 of 40 sequences have more than max_rows=6 rows.*106 \(7\)"
    ):
        SequenceDataset(shared_groups, XY, max_rows=6)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, UsageError, "names no field"),
        ({"x": []}, UsageError, "names no columns"),
        ({"x": ["f0", "f0"]}, UsageError, "twice"),
        ({"x": ["f00"]}, ColumnMissingError, "'f00'.*did you mean.*'f0'"),
        ({"seq_id": "f0"}, UsageError, "taken"),
        ({"n_segments": "f0"}, UsageError, "taken"),
    ],
)
def test_L13_what_can_be_known_is_refused_at_construction(shared_groups, fields, error, message):
    with pytest.raises(error, match=message):
        SequenceDataset(shared_groups, fields)


def test_A11_T8_a_dataset_pickles_small_without_handles_and_reads_the_same_elsewhere(tmp_path):
    n = 20_000
    write(tmp_path / "data" / "a.parquet", sequences(np.arange(n), [1] * n))
    selection = pqindex.build(tmp_path / "data").select("SELECT seq_id, row_count AS weight FROM index")
    ds = SequenceDataset(selection, XY, nulls=("fill", 0))
    before = ds[n - 1]
    pickled = pickle.dumps(ds)
    assert len(pickled) < 10_000
    again = pickle.loads(pickled)
    assert again._reader.stats()["opens"] == 0
    after = again[n - 1]
    assert torch.equal(before.pop("x"), after.pop("x"))
    assert str(before) == str(after)
    assert (again.digest, len(again)) == (ds.digest, n)


def test_case_93_a_tensor_changed_in_place_changes_no_later_read(shared_groups, recwarn):
    ds = SequenceDataset(shared_groups, {"x": ["f0", "f1"], "f0": "f0", "y": "y0"}, dtype=None)
    kept = [
        {name: value.clone() for name, value in ds[i].items() if isinstance(value, torch.Tensor)}
        for i in range(40)
    ]
    for item in ds:
        for name in kept[0]:
            item[name] += 1
    for i, expected in enumerate(kept):
        for name, value in expected.items():
            assert torch.equal(ds[i][name], value)
    assert not recwarn.list


def test_case_64_T7_threads_share_a_dataset(shared_groups):
    ds = SequenceDataset(shared_groups, XY, max_open_files=1)
    expected = [item["x"] for item in ds]
    positions = np.random.default_rng(0).permutation(np.tile(np.arange(40), 20))
    with ThreadPoolExecutor(8) as pool:
        for position, item in zip(positions, pool.map(ds.__getitem__, positions), strict=True):
            assert torch.equal(item["x"], expected[position])


def test_L11_L12_a_value_that_is_not_finite_is_named(tmp_path):
    table = sequences([17, 23], [3, 4])
    values = table["f1"].to_numpy().astype(np.float64)
    values[5] = 1e39
    table = table.set_column(3, "f1", pa.array(values))
    write(tmp_path / "data" / "a.parquet", table)
    ds = SequenceDataset(pqindex.build(tmp_path / "data").select("SELECT seq_id FROM index"), XY)
    assert ds[0]["length"] == 3
    with pytest.raises(NonFiniteError, match=r"field 'x', column 'f1', sequence 23, row 2; found 1e\+39"):
        ds[1]


def test_a_file_that_changes_under_the_dataset_is_an_error(shared_groups, tmp_path):
    ds = SequenceDataset(shared_groups, XY)
    path = tmp_path / "data" / "part-0.parquet"
    write(path, sequences(np.arange(20) + 100, np.arange(20) % 7 + 1, seed=9), [12] * 7)
    with pytest.raises(SourceChangedError, match=r"part-0.parquet"):
        ds[0]
    with pytest.raises(SourceChangedError, match=r"part-0.parquet"):
        SequenceDataset(shared_groups, XY)


# -- types ----------------------------------------------------------------------------------------------------

MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)

TYPED = {
    "b": (pa.array([True, False, True]), torch.bool, [True, False, True]),
    "i8": (pa.array([-128, 0, 127], pa.int8()), torch.int8, [-128, 0, 127]),
    "u16": (pa.array([0, 1, 65535], pa.uint16()), torch.int32, [0, 1, 65535]),
    "u32": (pa.array([0, 1, 2**32 - 1], pa.uint32()), torch.int64, [0, 1, 2**32 - 1]),
    "u64": (pa.array([0, 1, 2**63 - 1], pa.uint64()), torch.int64, [0, 1, 2**63 - 1]),
    "i64": (pa.array([-(2**63), 2**53 + 1, 2**63 - 1]), torch.int64, [-(2**63), 2**53 + 1, 2**63 - 1]),
    "f16": (pa.array([0.5, -2, 65504], pa.float16()), torch.float16, [0.5, -2, 65504]),
    "f64": (pa.array([0.1, -0.0, 1e300]), torch.float64, [0.1, -0.0, 1e300]),
    "date": (pa.array([-1, 0, 2932896], pa.date32()), torch.int64, [-1, 0, 2932896]),
    "ts": (pa.array([-1, 0, 2**62], pa.timestamp("ns")), torch.int64, [-1, 0, 2**62]),
    "zoned": (pa.array([MOMENT] * 3, pa.timestamp("us", "Asia/Tokyo")), torch.int64, [1714979289_000000] * 3),
    "time": (pa.array([0, 1, 86_399_999], pa.time32("ms")), torch.int64, [0, 1, 86_399_999]),
    "dur": (pa.array([-5, 0, 5], pa.duration("us")), torch.int64, [-5, 0, 5]),
    "cat": (pa.array([7, 5, 7], pa.int32()).dictionary_encode(), torch.int32, [7, 5, 7]),
    "list": (
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32())),
        torch.float32,
        [[1, 2], [3, 4], [5, 6]],
    ),
    "fixed": (
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
        torch.int16,
        [[1, 2], [3, 4], [5, 6]],
    ),
    "large": (pa.array([[1], [3], [5]], pa.large_list(pa.float64())), torch.float64, [[1], [3], [5]]),
    "text": (pa.array(["a", "", "ü"]), None, ["a", "", "ü"]),
    "ltext": (pa.array(["a", "", "ü"], pa.large_string()), None, ["a", "", "ü"]),
    "ctext": (pa.array(["a", "b", "a"]).dictionary_encode(), None, ["a", "b", "a"]),
    "bytes": (pa.array([b"\x00", b"", b"\xff"]), None, [b"\x00", b"", b"\xff"]),
    "uuid": (pa.array([b"0123", b"4567", b"89ab"], pa.binary(4)), None, [b"0123", b"4567", b"89ab"]),
}


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """A column of every type, three sequences of three rows in one row group, so that two slices start inside."""
    folder = tmp_path_factory.mktemp("typed") / "data"
    columns = {name: pa.concat_arrays([array] * 3) for name, (array, _, _) in TYPED.items()}
    columns["dec"] = pa.array([Decimal("1.10"), Decimal("2.00"), Decimal("-3.25")] * 3, pa.decimal128(12, 2))
    columns["nested"] = pa.array([{"a": 1}] * 9)
    columns["nul"] = pa.array([None, 1.5, None] * 3)
    columns["nul_list"] = pa.array([[1, None], None, [5, 6]] * 3, pa.list_(pa.float32(), 2))
    table = pa.table({"seq_id": np.repeat([1, 2, 3], 3), **columns})
    write(folder / "a.parquet", table)
    return pqindex.build(folder).select("SELECT seq_id FROM index")


def test_case_94_T29_T30_what_every_type_becomes(typed):
    ds = SequenceDataset(typed, {name: name for name in TYPED}, dtype=None)
    for item in (ds[2], ds.__getitems__([1])[0]):
        for name, (_, dtype, expected) in TYPED.items():
            if dtype is None:
                assert item[name] == expected, name
            else:
                assert item[name].dtype == dtype, name
                assert item[name].tolist() == expected, name


def test_T30_decimals_are_given_a_dtype(typed):
    ds = SequenceDataset(typed, {"x": ["dec"]}, dtype=torch.float64)
    assert ds[1]["x"].tolist() == [[1.1], [2.0], [-3.25]]
    with pytest.raises(ColumnTypeError, match="has no dtype of its own"):
        SequenceDataset(typed, {"x": ["dec"]}, dtype=None)


def test_case_96_nulls_of_slices_that_start_inside_are_masked_and_never_shifted(typed):
    item = SequenceDataset(typed, {"x": ["nul", "nul_list"]}, nulls=("fill", -1))[2]
    assert item["x"].tolist() == [[-1, 1, -1], [1.5, -1, -1], [-1, 5, 6]]
    assert item["x_mask"].tolist() == [[False, True, False], [True, False, False], [False, True, True]]


@pytest.mark.parametrize("name", ["nested", "text", "bytes", "ctext"])
def test_T30_what_is_no_number_is_refused_at_construction(typed, name):
    with pytest.raises(ColumnTypeError, match=f"column '{name}' of field 'x'"):
        SequenceDataset(typed, {"x": [name]})


def test_T28_columns_with_odd_names(tmp_path):
    names = ["a.b", "with space", "Ünï", 'q"uote', "case", "CASE", "list.element", "x'y"]
    columns = {name: np.full(4, float(i), np.float32) for i, name in enumerate(names)}
    write(tmp_path / "data" / "a.parquet", pa.table({"seq_id": [1, 1, 2, 2], **columns}))
    selection = pqindex.build(tmp_path / "data").select("SELECT seq_id FROM index")
    item = SequenceDataset(selection, {"x": names[::-1]})[1]
    assert item["x"].tolist() == [[7, 6, 5, 4, 3, 2, 1, 0]] * 2


# -- manifests ------------------------------------------------------------------------------------------------


def test_a_manifest_gives_the_same_batches_as_its_selection(shared_groups, tmp_path):
    manifest = shared_groups.pin(tmp_path / "train.manifest.parquet", seed=7)
    again = pqindex.load_manifest(tmp_path / "train.manifest.parquet")
    plan = BatchPlan(again, 8, shuffle="full")
    assert (plan.seed, plan.digest) == (7, BatchPlan(manifest, 8, shuffle="full").digest)
    theirs, ours = SequenceDataset(again, XY), SequenceDataset(shared_groups, XY)
    assert theirs.digest == plan.source_digest
    for positions in plan:
        batch = collate_padded(theirs.__getitems__(positions))
        assert torch.equal(batch["x"], collate_padded(ours.__getitems__(positions))["x"])
