"""Read plans: the places of the projected chunks, whoever says them, in as few bytes as they need."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import planfile, readplan
from pqindex.places import narrowest
from pqindex.readplan import PLACE_FACTS, ReadPlan, blocks_of_groups, stops_of_groups


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PQINDEX_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of three schemas in turn: of columns x and s, of x with lists beside it, and without x."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(7):
        ids = np.repeat(np.arange(4) + 4 * number, 5)
        columns: dict[str, Any] = {"seq_id": ids}
        if number % 3 == 0:
            columns |= {"x": ids * 1.5, "s": [str(i) for i in ids]}
        elif number % 3 == 1:
            columns |= {"l": [[int(i)] * (int(i) % 3) for i in ids], "n": ids, "x": ids * 1.5}
        else:
            columns |= {"s": [str(i) for i in ids]}
        pq.write_table(
            pa.table(columns),
            folder / f"{number}.parquet",
            row_group_size=5,
            data_page_size=1,
            write_batch_size=2,
        )
    return folder


def places_by_pyarrow(plan: ReadPlan, columns: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in PLACE_FACTS[:3]}
    for file, row_group in zip(plan.group_file.tolist(), plan.group_row_group.tolist(), strict=True):
        group = pq.read_metadata(Path(plan.root) / plan.paths[file].as_py()).row_group(row_group)
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.split(".")[0] in columns:
                found["start"].append(chunk.dictionary_page_offset or chunk.data_page_offset)
                found["length"].append(chunk.total_compressed_size)
                found["num_values"].append(chunk.num_values)
    return found


@pytest.mark.parametrize("at_a_time", [2, 16_384])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("columns", [["x"], ["s", "x"], ["l", "n", "seq_id"], ["seq_id", "x", "s", "l", "n"]])
@pytest.mark.parametrize("where", ["", "WHERE seq_id % 5 > 1", "WHERE file = '0.parquet'"])
def test_the_places_are_those_of_the_footers(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    columns: list[str],
    indexed: bool,
    at_a_time: int,
) -> None:
    monkeypatch.setattr(readplan, "_GROUPS_AT_A_TIME", at_a_time)
    index = pqindex.build(source)
    selection: Any = index.select(f"SELECT seq_id FROM index {where} ORDER BY hash(seq_id)")
    if not indexed:
        selection = selection.pin(tmp_path / "m.manifest.parquet")
        shutil.rmtree(index.path)
    if where.endswith("'0.parquet'"):
        columns = [name for name in columns if name not in ("l", "n")]
    plan = selection.read_plan(columns)
    expected = places_by_pyarrow(plan, columns)
    assert {name: plan.chunks[name].tolist() for name in expected} == expected
    assert len(plan.chunks["codec"]) == len(expected["start"]) == plan.chunk_stops[-1]
    widths = [len(plan.fields_of(int(plan.schema_of_file[file]))) for file in plan.group_file]
    assert np.diff(plan.chunk_stops).tolist() == widths  # a list of numbers is one chunk, too


def test_a_selection_of_nothing_has_no_places(source: Path) -> None:
    plan = pqindex.build(source).select("SELECT seq_id FROM index WHERE false").read_plan(["x"])
    assert (plan.schema.names, plan.chunk_stops.tolist()) == (["x"], [0])
    assert [len(values) for values in plan.chunks.values()] == [0] * 4


def test_integers_take_four_bytes_where_they_can(source: Path) -> None:
    plan = pqindex.build(source).select().read_plan()
    for name in ("segment_stops", "group_of_segment", "row_start", "row_stop", "group_n_rows", "chunk_stops"):
        assert getattr(plan, name).dtype == np.int32, name
    assert {name: values.dtype.itemsize for name, values in plan.chunks.items()} == {
        "start": 4,
        "length": 4,
        "num_values": 4,
        "codec": 1,
    }
    assert plan.row_counts.dtype == np.int64, "which users see"


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 0])
def test_what_fits_into_32_bits_is_narrow(value: int) -> None:
    made = narrowest(np.array([1, value], np.int64))
    assert (made.dtype, made.tolist()) == (np.int32, [1, value])


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_what_does_not_fit_stays_wide(value: int) -> None:
    made = narrowest(np.array([1, value], np.int64))
    assert (made.dtype, made.tolist()) == (np.int64, [1, value])


def test_nothing_and_less_than_32_bits_stay() -> None:
    assert narrowest(np.zeros(0, np.int64)).dtype == np.int32
    assert narrowest(np.zeros(3, np.int8)).dtype == np.int8


def test_places_behind_two_gigabytes_are_kept_whole(tmp_path: Path) -> None:
    """A file with a hole in it, which takes no space: its chunks begin behind what 32 bits can say."""
    path = tmp_path / "big.parquet"
    pq.write_table(pa.table({"seq_id": [7] * 3, "x": [1, 2, 3]}), tmp_path / "small.parquet")
    index = pqindex.build(tmp_path / "small.parquet")
    known = index._chunk_source(index.select()._files)
    hole = 3 << 30
    data = (tmp_path / "small.parquet").read_bytes()
    with path.open("wb") as file:
        file.seek(hole)
        file.write(data)
    reader = pqindex.Reader(index.select(), columns=["x"])
    leaves = [np.array([0, 1])]
    facts = known.facts(np.array([0]), np.array([0]), leaves)
    facts["start"] = facts["start"].astype(np.int64) + hole
    wide = dataclasses.replace(known, facts=lambda *_: facts)
    selection = index.select()
    files = dataclasses.replace(
        selection._files,
        paths=("big.parquet",),
        size_bytes=selection._files.size_bytes + hole,
        footer_offset=selection._files.footer_offset + hole,
    )
    plan = readplan.resolve(selection._places, files, None, selection_digest="d", known=wide)
    assert plan.chunks["start"].dtype == np.int64
    assert plan.chunks["length"].dtype == np.int32
    reader._set_plan(plan)
    assert reader[0].column("x").to_pylist() == [1, 2, 3]
    assert reader.read_rows([(0, 1, 2)])[0].column("x").to_pylist() == [2]


@pytest.mark.parametrize("pages", ["always", "never"])
def test_a_shared_plan_is_the_plan(source: Path, pages: str) -> None:
    plan = pqindex.build(source, pages=pages).select("SELECT seq_id, 1 AS n FROM index").read_plan()
    other = planfile.open_plan(planfile.share(plan))
    assert (len(plan.page_stops) > 0) == (pages == "always")
    for field in dataclasses.fields(ReadPlan):
        one, two = getattr(plan, field.name), getattr(other, field.name)
        if isinstance(one, np.ndarray):
            assert (one.dtype, one.shape, one.tolist()) == (two.dtype, two.shape, two.tolist()), field.name
        elif field.name in ("chunks", "pages"):
            assert one.keys() == two.keys()
            assert all(one[k].dtype == two[k].dtype and np.array_equal(one[k], two[k]) for k in one)
        else:
            assert one == two, field.name


def test_groups_come_in_blocks_of_one_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readplan, "_GROUPS_AT_A_TIME", 2)
    leaves = [np.array([1]), np.zeros(0, np.int64), np.array([0, 2, 3])]
    mixed = np.array([2, 0, 2, 1, 2], np.int32)
    assert stops_of_groups(mixed, leaves).tolist() == [0, 3, 4, 7, 7, 10]
    found = [
        (number, np.asarray(groups).tolist(), np.asarray(at).tolist())
        for number, groups, at in blocks_of_groups(mixed, leaves)
    ]
    assert found == [(0, [1], [3]), (1, [3], []), (2, [0, 2], [0, 1, 2, 4, 5, 6]), (2, [4], [7, 8, 9])]
    alone = list(blocks_of_groups(np.array([2, 2, 2], np.int32), leaves))
    assert alone == [(2, slice(0, 2), slice(0, 6)), (2, slice(2, 3), slice(6, 9))]
    assert list(blocks_of_groups(np.zeros(0, np.int32), leaves)) == []
