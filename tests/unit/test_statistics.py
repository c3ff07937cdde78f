"""Statistics of a selection: what counts, what is refused, and the same bits in any order and any cut."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.errors import ColumnMissingError, ColumnTypeError, NonFiniteError, UsageError
from pqindex.statistics import BLOCK, ColumnStatistics, halving_sum

NAN, INF = math.nan, math.inf


def build(folder: Path, columns: dict[str, pa.Array], *, rows: int = 3, group_rows: int = 5) -> pqindex.Index:
    """An index over two files with sequences of so many rows, which cross row groups."""
    (folder / "data").mkdir()
    table = pa.table(columns)
    half = table.num_rows // 2 // rows * rows
    steps = np.arange(table.num_rows)
    table = table.add_column(0, "seq_id", pa.array(steps // rows)).add_column(1, "t", pa.array(steps))
    for name, part in (("a", table.slice(0, half)), ("b", table.slice(half))):
        pq.write_table(part, folder / "data" / f"{name}.parquet", row_group_size=group_rows)
    return pqindex.build(folder / "data", order="t")


def of(folder: Path, array: pa.Array) -> ColumnStatistics:
    return build(folder, {"x": array}).select().statistics(["x"])["x"]


def test_what_is_counted_and_what_the_numbers_are_of(tmp_path: Path) -> None:
    found = of(
        tmp_path, pa.array([1.0, None, 3.0, NAN, INF, -INF, 8.0, None, 4.0, -0.0, 2.0, 6.0], pa.float32())
    )
    values = [1.0, 3.0, 8.0, 4.0, 0.0, 2.0, 6.0]
    assert (found.count, found.null_count, found.nan_count, found.infinite_count) == (7, 2, 1, 2)
    assert (found.min, found.max) == (0.0, 8.0)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-15)
    assert found.std == pytest.approx(np.std(values), rel=1e-15)


@pytest.mark.parametrize(
    ("array", "numbers"),
    [
        (pa.array([1, 2, 3, 4, 5, 6], pa.uint8()), [1, 2, 3, 4, 5, 6]),
        (pa.array([True, False, True, True, None, False]), [1, 0, 1, 1, 0]),
        (pa.array([1, 2, 3, 4, 5, None], pa.float16()), [1, 2, 3, 4, 5]),
        (pa.array([dt.date(1970, 1, 1 + i) for i in range(6)]), [0, 1, 2, 3, 4, 5]),
        (pa.array([10, 20, 30, 10, 20, 30], pa.timestamp("ms", "UTC")), [10, 20, 30, 10, 20, 30]),
        (pa.array([Decimal("1.5"), Decimal("2.5")] * 3, pa.decimal128(4, 1)), [1.5, 2.5] * 3),
        (pa.array([5, 7, 5, 7, 5, 7]).dictionary_encode(), [5, 7] * 3),
        (pa.array([[1, 2], [3], [], [None, 4], [5], None], pa.list_(pa.float32())), [1, 2, 3, 4, 5]),
        (pa.array([[1, 2], [3, 4], None] * 2, pa.list_(pa.int16(), 2)), [1, 2, 3, 4] * 2),
        (pa.array([[[1], [2, 3]], [], [[4], None]] * 2, pa.list_(pa.list_(pa.int8()))), [1, 2, 3, 4] * 2),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_every_type_of_numbers(tmp_path: Path, array: pa.Array, numbers: list[float]) -> None:
    found = of(tmp_path, array)
    assert found.count == len(numbers)
    assert (found.min, found.max) == (min(numbers), max(numbers))
    assert found.mean == pytest.approx(np.mean(numbers), rel=1e-15)
    assert found.std == pytest.approx(np.std(numbers), rel=1e-15)


def test_nulls_in_lists_and_null_lists_count_once_each(tmp_path: Path) -> None:
    array = pa.array([[1, None], None, [2], [None, None], [], None], pa.list_(pa.float64()))
    assert of(tmp_path, array).null_count == 5


def test_a_column_with_one_value_has_no_deviation_at_all(tmp_path: Path) -> None:
    found = of(tmp_path, pa.array([0.1] * 12))
    assert (found.mean, found.std) == (0.1, 0.0)


def test_a_column_without_a_finite_value_has_no_mean(tmp_path: Path) -> None:
    found = of(tmp_path, pa.array([None, NAN, INF] * 2))
    assert (found.count, found.mean, found.std, found.min, found.max) == (0, None, None, None, None)
    assert (found.null_count, found.nan_count, found.infinite_count) == (2, 2, 2)


def test_far_from_zero_the_deviation_is_not_lost(tmp_path: Path) -> None:
    values = 1e9 + np.arange(12) % 2
    found = of(tmp_path, pa.array(values))
    assert (found.mean, found.std) == (1e9 + 0.5, 0.5)


def test_the_same_sequences_give_the_same_bits_in_any_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    index = build(tmp_path, {"x": pa.array(rng.lognormal(0, 9, 3000))}, group_rows=50)
    by_file, by_hash, backwards = (
        index.select(f"SELECT seq_id FROM index ORDER BY {order}").statistics(["x"])
        for order in ("seq_no", "hash(seq_id)", "seq_id DESC")
    )
    assert by_file == by_hash == backwards


def test_the_same_values_give_the_same_bits_however_files_and_sequences_are_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    values = pa.array(rng.lognormal(0, 9, 2 * BLOCK + 1000).astype(np.float32))
    found = []
    for rows, group_rows in ((1000, 3000), (2 * BLOCK + 7, 1 << 20), (17_001, 999)):
        folder = tmp_path / str(rows)
        folder.mkdir()
        found.append(
            build(folder, {"x": values}, rows=rows, group_rows=group_rows).select().statistics(["x"])
        )
    assert found[0] == found[1] == found[2]
    exact = np.array(values.to_pylist())
    assert found[0]["x"].count == len(exact)
    assert found[0]["x"].mean == pytest.approx(math.fsum(exact) / len(exact), rel=1e-13)
    assert found[0]["x"].std == pytest.approx(exact.std(), rel=1e-12)


def test_only_the_selected_sequences_count(tmp_path: Path) -> None:
    index = build(tmp_path, {"x": pa.array(np.arange(12.0)), "y": pa.array(np.arange(12))})
    found = index.select("SELECT seq_id FROM index WHERE seq_id IN (0, 2)").statistics(["y", "x"])
    assert list(found) == ["y", "x"]
    assert (found["x"].count, found["x"].mean) == (6, 4.0)
    assert found["x"] == found["y"]
    empty = index.select("SELECT seq_id FROM index WHERE seq_id > 99").statistics(["x"])
    assert empty["x"].count == 0


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    index = build(tmp_path, {"x": pa.array(np.arange(3000.0))}, rows=1, group_rows=700)
    seen: list[tuple[int, int, str]] = []
    index.select().statistics(["x"], progress=lambda *told: seen.append(told))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (3000, 3000, "statistics")


@pytest.mark.parametrize("columns", ["x", [], [1], ()])
def test_columns_that_are_no_list_of_names_are_refused(tmp_path: Path, columns: object) -> None:
    with pytest.raises(UsageError, match=r"names no columns.*give a list of names"):
        build(tmp_path, {"x": pa.array([1.0] * 6)}).select().statistics(columns)


def test_columns_that_have_no_mean_are_refused(tmp_path: Path) -> None:
    texts = pa.array([["a"], ["b"]] * 3)
    selection = build(tmp_path, {"s": texts, "m": pa.array([{"a": 1}] * 6)}).select()
    for name, said in (("s", "list<.*string>"), ("m", "struct")):
        with pytest.raises(ColumnTypeError, match=f"column '{name}' has no mean: its type is {said}"):
            selection.statistics([name])
    with pytest.raises(ColumnMissingError):
        selection.statistics(["z"])


@pytest.mark.parametrize("values", [[1e308] * 5 + [1.7e308], [1e200, -1e200] * 3])
def test_values_too_large_to_be_added_up_are_an_error_and_no_infinity(
    tmp_path: Path, values: list[float]
) -> None:
    with pytest.raises(
        NonFiniteError, match="the values of column 'x' are too large for statistics in float64"
    ):
        of(tmp_path, pa.array(values))


def test_the_sum_of_a_block_is_the_one_of_the_rule() -> None:
    rng = np.random.default_rng(5)
    for n in (1, 2, 3, 1000, BLOCK):
        values = rng.lognormal(0, 20, n)
        padded = [*values.tolist(), *[0.0] * (BLOCK - n)]
        half = BLOCK // 2
        while half:
            padded = [padded[i] + padded[i + half] for i in range(half)]
            half //= 2
        assert halving_sum(values) == padded[0]


def test_a_record_comes_back_from_json_and_pickles_small() -> None:
    record = ColumnStatistics(
        count=2, null_count=0, nan_count=0, infinite_count=0, mean=1.0, std=0.5, min=0.5, max=1.5
    )
    assert ColumnStatistics.from_json({**record.to_json(), "mean": 1, "more": 0}) == record
    assert isinstance(ColumnStatistics.from_json({**record.to_json(), "mean": 1}).mean, float)
    assert pickle.loads(pickle.dumps(record)) == record
    assert len(pickle.dumps(record)) < 300
