"""A refreshed index is the index of a fresh build, whatever was done to the source."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import pqindex
from pqindex.errors import FragmentedSequenceError, SourceError
from pqindex.format import CHUNK_FACTS

NAMES = ("a", "b", "c/d", "é", "z=1/a")


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """One file: its keys, the rows of each, rows a row group, and the types of its columns."""
    return {
        "keys": draw(st.lists(st.integers(0, 6), max_size=4, unique=True)),
        "n_rows": draw(st.integers(1, 4)),
        "group": draw(st.integers(1, 5)),
        "wide": draw(st.booleans()),
        "note": draw(st.sampled_from([None, pa.string(), pa.float32(), pa.int8()])),
    }


def write(path: Path, spec: dict[str, Any], number: int) -> None:
    """Write a file; `number` keeps the order column growing over the files that share a key."""
    keys = [key + 10 * spec["salt"] for key in spec["keys"] for _ in range(spec["n_rows"])]
    steps = [100 * number + i for i in range(len(keys))]
    columns = {
        "seq_id": pa.array(keys, pa.int64() if spec["wide"] else pa.int32()),
        "t": pa.array(steps, pa.int64()),
        "x": pa.array([float(step) for step in steps], pa.float64() if spec["wide"] else pa.float32()),
    }
    columns["sign"] = pa.array([1] * len(keys), columns["x"].type)
    if spec["note"] is not None:
        columns["note"] = pa.array(range(len(keys)), pa.int8()).cast(spec["note"])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=spec["group"])


def tables(index: pqindex.Index) -> dict[str, list[Any]]:
    """Every table of the snapshot as plain values, but for what no digest has: times, and numbers of schemas."""
    sidecar = index._sidecar
    segments = sidecar.segments
    return {
        "files": sidecar.files.drop_columns(["mtime_ns", "schema_no"]).to_pylist(),
        "row_groups": sidecar.row_groups.to_pylist(),
        "sequences": sidecar.sequences.to_pylist(),
        "segments": [getattr(segments, name).tolist() for name in segments.__dataclass_fields__],
        "chunks": sidecar.chunks(list(CHUNK_FACTS)).to_pylist(),
        "pages": sidecar.pages.to_pylist(),
    }


def differing(one: pqindex.Index, other: pqindex.Index) -> list[str]:
    first, second = tables(one), tables(other)
    return [name for name in first if first[name] != second[name]]


@settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@given(
    rounds=st.lists(
        st.dictionaries(st.sampled_from(NAMES), st.none() | contents(), min_size=1, max_size=4),
        min_size=2,
        max_size=4,
    ),
    join=st.booleans(),
    pages=st.sampled_from(["auto", "always"]),
    check=st.sampled_from(["keys", "full"]),
)
def test_refresh_is_a_fresh_build(rounds: list[dict[str, Any]], join: bool, pages: str, check: str) -> None:
    """Files come, change and go; keys are shared between files with `join`, and apart without it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        refreshed: pqindex.Index | None = None
        options: dict[str, Any] = {"order": "t", "join": join, "pages": pages, "check": check}
        if check == "full":
            options["aggregates"] = {"last": "max(x)", "n": "count(*)"}
            options["attributes"] = ["sign"]
        for turn, edits in enumerate(rounds):
            for name, spec in edits.items():
                path = root / f"{name}.parquet"
                if spec is None:
                    path.unlink(missing_ok=True)
                else:
                    salt = 0 if join else NAMES.index(name)
                    write(path, {**spec, "salt": salt}, NAMES.index(name) + 10 * turn)
            if not list(root.rglob("*.parquet")):
                continue
            try:
                fresh = pqindex.build(root, index=Path(folder) / f"fresh-{turn}.pqindex", **options)
            except SourceError as error:
                if refreshed is not None:
                    before = refreshed.content_digest
                    with pytest.raises(type(error)):
                        refreshed.refresh()
                    assert pqindex.open(refreshed.path, staleness="ignore").content_digest == before
                continue
            refreshed = pqindex.build(root, **options) if refreshed is None else refreshed.refresh()
            assert refreshed.content_digest == fresh.content_digest
            assert differing(refreshed, fresh) == []
            assert refreshed.verify().ok
        if refreshed is not None and list(root.rglob("*.parquet")) and not refreshed.changes():
            before, digest = tables(refreshed), refreshed.content_digest
            refreshed.compact()
            assert refreshed.content_digest == digest
            assert refreshed.info()["n_parts"] == 1
            assert tables(refreshed) == before
            assert refreshed.verify().ok


def test_a_key_that_comes_back_elsewhere_is_an_error_case_20(tmp_path: Path) -> None:
    """A new file with a key that an unchanged file has is refused by name, as a fresh build refuses it."""
    root = tmp_path / "data"
    spec = {"keys": [1, 2], "n_rows": 2, "group": 2, "wide": False, "note": None, "salt": 0}
    write(root / "a.parquet", spec, 0)
    index = pqindex.build(root, order="t")
    write(root / "b.parquet", {**spec, "keys": [2, 3]}, 1)
    with pytest.raises(FragmentedSequenceError, match=r"2 at a\.parquet#1\[0:2\] and b\.parquet#0\[0:2\]"):
        index.refresh()
    assert index.snapshot == 1
    shutil.rmtree(index.path)
    with pytest.raises(FragmentedSequenceError, match=r"2 at a\.parquet#1\[0:2\] and b\.parquet#0\[0:2\]"):
        pqindex.build(root, order="t")


def test_statistics_of_a_file_that_is_gone_are_in_nobodys_way(tmp_path: Path) -> None:
    """An old part keeps a column of texts for a file that is gone; the column of numbers of the new files stays."""
    root = tmp_path / "data"
    plain = {"keys": [], "n_rows": 1, "group": 1, "wide": False, "note": None, "salt": 0}
    write(root / "a.parquet", {**plain, "keys": [1], "note": pa.string()}, 0)
    write(root / "b.parquet", plain, 0)
    index = pqindex.build(root, order="t")
    write(root / "a.parquet", {**plain, "keys": [1], "note": pa.float32()}, 0)
    index.refresh()
    assert differing(index, pqindex.build(root, order="t", index=tmp_path / "fresh")) == []
    assert index.sql("SELECT stats.note.max AS note FROM index").to_pydict() == {"note": [0.0]}
