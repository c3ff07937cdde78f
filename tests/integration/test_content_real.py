"""Full checks, attributes and aggregates over real sequences, in every layout: the same values whatever the layout."""

from __future__ import annotations

import csv
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex

CASES = {
    "japanese_vowels": ("lpc00", "label"),
    "plaid": ("watt", "label"),
    "basic_motions": ("ch0", None),
    "chick_weights": ("weight", "diet"),
}


def rows_of(folder: Path) -> pa.Table:
    """All rows of a folder, each file read in full."""
    files = sorted(folder.rglob("*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in files]
    return pa.concat_tables([t.set_column(0, "seq_id", t.column("seq_id").cast(tables[0].schema.field("seq_id").type)) for t in tables])  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_a_sequence_does_not_hang_on_its_layout(
    shared: Path, tmp_path: Path, name: str
) -> None:
    column, attribute = CASES[name]
    source = shared / "data/sequences" / name
    with (source / "oracle.csv").open() as file:
        labels = {row["seq_id"]: row["label"] for row in csv.DictReader(file)}
    layouts = [path for path in sorted(source.iterdir()) if path.is_dir() and path.name != "list_per_row"]
    seen: dict[Any, Any] = {}
    for layout in layouts:
        folder = tmp_path / layout.name
        shutil.copytree(layout, folder)
        index = pqindex.build(
            folder,
            order="t",
            join=True,
            check="full",
            skip_null_keys=True,
            attributes=[attribute] if attribute else [],
            aggregates={"n": "count(*)", "first_value": f"first({column})", "high": f"max({column})"},
        )
        table = rows_of(folder)
        keys = table.column("seq_id").to_pylist()
        values = table.column(column).to_numpy(zero_copy_only=False).astype(np.float64)
        rows: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            if key is not None:
                rows.setdefault(key, []).append(row)
        found = index.sql("SELECT * FROM index").to_pylist()
        assert {row["seq_id"] for row in found} == set(rows)
        for row in found:
            own, stats = values[rows[row["seq_id"]]], row["stats"][column]
            finite = own[np.isfinite(own)]
            assert (row["n"], stats["min"], stats["max"]) == (len(own), finite.min(), finite.max())
            assert (stats["nan_count"], stats["inf_count"]) == (0, 0)
            assert stats["null_count"] == len(own) - len(finite)
            assert math.isclose(stats["mean"], finite.mean(), rel_tol=1e-9, abs_tol=1e-9)
            assert math.isclose(stats["std"], finite.std(), rel_tol=1e-6, abs_tol=1e-9)
            assert (row["first_value"], row["high"]) == (own[0], finite.max())
            if name in {"japanese_vowels", "plaid"}:
                assert str(row[attribute]) == labels[str(row["seq_id"])]
            said = (row["n"], stats["min"], stats["max"], row["order_gaps"], row.get(attribute or ""))
            assert seen.setdefault(row["seq_id"], said) == said
        report = index.verify(deep=True)
        assert report.ok
        assert report.n_compared == report.n_row_groups == index.info()["totals"]["n_row_groups"]
