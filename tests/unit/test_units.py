"""Units other than a key: ids, what is refused with them, orders inside them, and several processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import units
from pqindex.cli import main
from pqindex.errors import NotIncreasingError, UsageError
from pqindex.units import unit_ids


def write(root: Path, name: str, groups: list[list[Any]]) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, pa.schema([("t", pa.float64())])) as writer:
        for group in groups:
            writer.write_table(
                pa.table({"t": pa.array(group, pa.float64())}), row_group_size=max(1, len(group))
            )


def test_ids_say_where_a_unit_lies_U1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "BLOCK", 2)
    paths = pa.array(["a#1.parquet", "x=%2F/é.parquet"])
    places = (
        np.array([0, 0, 1], np.int32),
        np.array([0, 12, 3], np.int32),
        np.array([0, 0, 1 << 40], np.int64),
    )
    expected = {
        "file": ["a#1.parquet", "a#1.parquet", "x=%2F/é.parquet"],
        "row_group": ["a#1.parquet#0", "a#1.parquet#12", "x=%2F/é.parquet#3"],
        "row": ["a#1.parquet#0:0", "a#1.parquet#12:0", "x=%2F/é.parquet#3:1099511627776"],
    }
    for unit, ids in expected.items():
        found = unit_ids(unit, paths, *places)
        assert (found.to_pylist(), found.num_chunks, found.type) == (ids, 2, pa.string())
    assert len(unit_ids("row", paths, *(part[:0] for part in places))) == 0


def test_groups_and_files_without_rows_are_no_sequences_L8(tmp_path: Path) -> None:
    write(tmp_path / "d", "a.parquet", [[], [1, 2], [], [3]])
    write(tmp_path / "d", "b.parquet", [[]])
    write(tmp_path / "d", "c.parquet", [])
    expected = {
        "file": (["a.parquet"], [3]),
        "row_group": (["a.parquet#1", "a.parquet#3"], [2, 1]),
        "row": (["a.parquet#1:0", "a.parquet#1:1", "a.parquet#3:0"], [1, 1, 1]),
    }
    for unit, (ids, counts) in expected.items():
        index = pqindex.build(tmp_path / "d", unit=unit, index=tmp_path / f"{unit}.pqindex")
        assert index.select().seq_ids.to_pylist() == ids
        assert index.select().row_counts.tolist() == counts
        assert "3 row groups without rows are no sequences" in index.report["notes"]
        assert index.info()["options"]["key"] is None
    assert index.sql("SELECT max(n_segments) AS n FROM index")["n"].to_pylist() == [1]
    whole = pqindex.open(tmp_path / "file.pqindex")
    assert whole.sql("SELECT row_group, row_start, row_stop FROM segments").to_pydict() == {
        "row_group": [1, 3],
        "row_start": [0, 0],
        "row_stop": [2, 1],
    }
    assert whole.sql("SELECT key_min, key_null_count FROM row_groups LIMIT 1").to_pylist() == [
        {"key_min": None, "key_null_count": None}
    ]


def test_statistics_are_those_of_whole_row_groups(tmp_path: Path) -> None:
    write(tmp_path / "d", "a.parquet", [[1, 5], [7]])
    write(tmp_path / "d", "b.parquet", [[2, 3]])

    def maxima(unit: str) -> list[Any]:
        index = pqindex.build(tmp_path / "d", unit=unit, index=tmp_path / f"{unit}.pqindex")
        return index.sql("SELECT stats.t.max AS m FROM index ORDER BY seq_no")["m"].to_pylist()

    assert maxima("row_group") == [5, 7, 3]
    assert maxima("file") == [None, 3]
    assert maxima("row") == [None, None, 7, None, None]


@pytest.mark.parametrize(
    ("groups", "bad"),
    [
        ([[1, 2], [3]], ()),
        ([[1, 2], [2]], ("file",)),
        ([[2, 1], [3]], ("file", "row_group")),
        ([[1, float("nan")], [3]], ("file", "row_group", "row")),
        ([[1, None], [3]], ("file", "row_group", "row")),
    ],
)
def test_the_order_is_checked_inside_each_unit_L10(
    tmp_path: Path, groups: list[list[Any]], bad: tuple[str, ...]
) -> None:
    write(tmp_path / "d", "a.parquet", groups)
    for unit in ("file", "row_group", "row"):
        if unit in bad:
            with pytest.raises(NotIncreasingError, match=r"a\.parquet#"):
                pqindex.build(tmp_path / "d", unit=unit, order="t", index=tmp_path / "i.pqindex")
        else:
            pqindex.build(tmp_path / "d", unit=unit, order="t", index=tmp_path / f"{unit}.pqindex")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "seq_id"}, "--key"),
        ({"join": True, "order": "t"}, "--join"),
        ({"skip_null_keys": True}, "--skip-null-keys"),
        ({"layout": "one-per-row-group"}, "--layout one-per-row-group"),
    ],
)
@pytest.mark.parametrize("unit", ["row", "row_group", "file"])
def test_what_is_about_keys_is_refused(tmp_path: Path, unit: str, options: dict[str, Any], said: str) -> None:
    write(tmp_path / "d", "a.parquet", [[1]])
    with pytest.raises(UsageError, match=f"{said} is about .* each {unit.replace('_', ' ')} is one"):
        pqindex.build(tmp_path / "d", unit=unit, **options)
    with pytest.raises(UsageError, match="unit: expected one of key, row, row_group, file"):
        pqindex.build(tmp_path / "d", unit="rows")


def test_processes_and_units_are_part_of_the_identity(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / "d", f"{number}.parquet", [[1, 2], [3]])
    digests = {
        (unit, workers): pqindex.build(
            tmp_path / "d", unit=unit, order="t", workers=workers, index=tmp_path / f"{unit}{workers}.pqindex"
        ).content_digest
        for unit, workers in (("row", 1), ("row", 2), ("row_group", 1), ("file", 1))
    }
    assert digests["row", 1] == digests["row", 2]
    assert len(set(digests.values())) == 3


def test_the_command_takes_units(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("d"), "a.parquet", [[1, 2], [3]])
    assert main(["build", "d", "--unit", "row_group", "--order", "t", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["options"]["unit"] == "row_group"
    assert main(["pin", "d.pqindex", "SELECT seq_id FROM index", "-o", "m.manifest.parquet"]) == 0
    assert main(["show", "m.manifest.parquet"]) == 0
    assert main(["verify", "m.manifest.parquet"]) == 0
    capfdbinary.readouterr()
    assert main(["build", "d", "--unit", "file", "--key", "t", "-o", "e.pqindex"]) == 2
    assert "leave out --key or --unit" in capfdbinary.readouterr().err.decode()
