"""Rows, row groups, files and folders as sequences: query and read equal reading every file in full."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import pqindex
from pqindex.torch import BatchPlan, SequenceDataset

NAMES = ["a.parquet", "b#1.parquet", "c d/e.parquet", "é.parquet", "k=1/f.parquet", "k=2/sub/g.parquet"]


@dataclass(frozen=True)
class Source:
    groups: dict[str, list[int]]
    """Rows of each row group, by file."""
    check: str
    order: str | None
    pages: str
    page_rows: int


@st.composite
def sources(draw: st.DrawFn) -> Source:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    groups = {name: draw(st.lists(st.integers(0, 7), max_size=4)) for name in names}
    return Source(
        groups=groups,
        check=draw(st.sampled_from(["keys", "footer"])),
        order=draw(st.sampled_from(["t", None])),
        pages=draw(st.sampled_from(["auto", "never", "always"])),
        page_rows=draw(st.sampled_from([1, 3, 1000])),
    )


def write(source: Source, folder: Path) -> None:
    row = 0
    for name, groups in source.groups.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema(
            [("t", pa.int64()), ("x", pa.float32()), ("s", pa.string()), ("l", pa.list_(pa.int16()))]
        )
        with pq.ParquetWriter(
            path, schema, write_batch_size=1, data_page_size=source.page_rows * 8
        ) as writer:
            for n in groups:
                ids = range(row, row + n)
                values = [
                    list(ids),
                    [i / 2 for i in ids],
                    [f"s{i}" for i in ids],
                    [[i] * (i % 3) for i in ids],
                ]
                writer.write_table(pa.table(values, schema=schema), row_group_size=max(1, n))
                row += n


def naive(source: Source, folder: Path, unit: str) -> dict[str, list[dict[str, Any]]]:
    """Read all files in full, and cut them into units."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(source.groups, key=str.encode):
        file = pq.ParquetFile(folder / name)
        for group in range(file.num_row_groups):
            for number, row in enumerate(file.read_row_group(group).to_pylist()):
                seq_id = {"file": name, "row_group": f"{name}#{group}", "row": f"{name}#{group}:{number}"}[
                    unit
                ]
                found.setdefault(seq_id, []).append(row)
    return found


def check_read(reader: pqindex.Reader, ids: list[str], expected: dict[str, list[dict[str, Any]]]) -> None:
    assert {ids[i]: reader[i].to_pylist() for i in range(len(reader))} == expected
    positions = list(range(len(reader)))[::-1]
    for i, table in zip(positions, reader.read(positions), strict=True):
        assert table.to_pylist() == expected[ids[i]]


@given(source=sources(), unit=st.sampled_from(["row", "row_group", "file"]))
@settings(max_examples=40)
def test_query_and_read_of_units_equal_the_naive_scan(source: Source, unit: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        folder.mkdir()
        write(source, folder)
        index = pqindex.build(
            folder, unit=unit, order=source.order, check=source.check, pages=source.pages, workers=1
        )
        expected = naive(source, folder, unit)
        selection = index.select()
        ids = selection.seq_ids.to_pylist()
        assert ids == list(expected), "in canonical order"
        assert selection.row_counts.tolist() == [len(rows) for rows in expected.values()]
        assert index.verify().ok
        if source.order and source.check == "keys":
            bounds = index.sql(
                "SELECT seq_id, order_min, order_max, proved.order AS proved FROM index ORDER BY seq_no"
            )
            assert bounds.to_pylist() == [
                {"seq_id": i, "order_min": rows[0]["t"], "order_max": rows[-1]["t"], "proved": True}
                for i, rows in expected.items()
            ]
        with pqindex.Reader(selection) as reader:
            check_read(reader, ids, expected)
        if not ids:
            return
        some = index.select(
            "SELECT seq_id, row_count AS n FROM index WHERE seq_no % 2 = 0 ORDER BY seq_no DESC"
        )
        kept = {i: expected[i] for i in ids[::2]}
        manifest = some.pin(Path(name) / "m.manifest.parquet")
        assert manifest.header["key"] is None
        for file in (folder.parent / "data.pqindex").rglob("*.parquet"):
            file.unlink()
        loaded = pqindex.load_manifest(manifest.path)  # which trains without the index
        assert loaded.digest == manifest.digest
        assert loaded.seq_ids.to_pylist() == list(kept)[::-1]
        with pqindex.Reader(loaded) as reader:
            check_read(reader, list(kept)[::-1], kept)
        dataset = SequenceDataset(loaded, fields={"x": ["x"], "t": "t"})
        for batch in BatchPlan(loaded, batch_size=2, shuffle="full"):
            for position in batch:
                item = dataset[position]
                rows = kept[item["seq_id"]]
                assert item["x"].tolist() == [[row["x"]] for row in rows]
                assert item["t"].tolist() == [row["t"] for row in rows]
                assert item["n"] == item["length"] == len(rows)


@given(
    folders=st.dictionaries(st.sampled_from(["a", "01", "x y", "é/%"]), st.integers(1, 3), min_size=1),
    n_rows=st.integers(1, 9),
    group_rows=st.integers(1, 4),
)
@settings(max_examples=15)
def test_folders_as_keys_equal_the_naive_scan(folders: dict[str, int], n_rows: int, group_rows: int) -> None:
    from urllib.parse import quote

    with tempfile.TemporaryDirectory() as name:
        expected: dict[str, list[int]] = {}
        t = 0
        for key, n_files in folders.items():
            for number in range(n_files):
                path = Path(name) / "d" / f"k={quote(key, safe='')}" / f"{number}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                values = list(range(t, t := t + n_rows))
                pq.write_table(pa.table({"t": values}), path, row_group_size=group_rows)
                expected.setdefault(key, []).extend(values)
        index = pqindex.build(Path(name) / "d", key="k", order="t", join=True, workers=1)
        selection = index.select()
        with pqindex.Reader(selection) as reader:
            found = {selection.seq_ids[i].as_py(): reader[i]["t"].to_pylist() for i in range(len(reader))}
        assert found == expected
        assert (
            index.sql("SELECT k FROM index ORDER BY seq_no")["k"].to_pylist() == selection.seq_ids.to_pylist()
        )
        assert np.array_equal(selection.row_counts, [len(expected[k]) for k in selection.seq_ids.to_pylist()])
