"""Manifests: what is pinned, what is refused, and what is seen when they or their source change."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.errors import (
    ConflictError,
    DigestMismatchError,
    DocumentInvalidError,
    NotFoundError,
    QueryError,
    SourceChangedError,
    UnsupportedVersionError,
    UsageError,
    WriteError,
)


@pytest.fixture
def index(tmp_path: Path) -> pqindex.Index:
    source = tmp_path / "data"
    source.mkdir()
    for name, first in (("a", 0), ("b", 10)):
        ids = [first + i // 3 for i in range(30)]
        table = pa.table({"seq_id": ids, "t": list(range(30)), "x": [float(i) for i in range(30)]})
        pq.write_table(table, source / f"{name}.parquet", row_group_size=3)
    return pqindex.build(source, order="t")


def test_a_manifest_is_one_parquet_file_that_stock_readers_read_M1_M2(
    index: pqindex.Index, tmp_path: Path
) -> None:
    sql = "SELECT seq_id, seq_id % 2 AS fold, 'é' AS tag FROM index WHERE seq_id >= ? ORDER BY seq_id DESC"
    manifest = index.select(sql, params=[15]).pin(tmp_path / "m.manifest.parquet", seed=7)
    table = pq.read_table(tmp_path / "m.manifest.parquet")
    assert table.column("seq_id").to_pylist() == [19, 18, 17, 16, 15]
    assert table.column("segments")[0].as_py() == [
        {"file_no": 0, "row_group": 9, "row_start": 0, "row_stop": 3}
    ]
    assert table.column("extra")[0].as_py() == {"fold": 1, "tag": "é"}
    header = json.loads(table.schema.metadata[b"pqindex.manifest"])
    assert header == manifest.header
    assert header["query"] == {"sql": sql, "dialect": "duckdb", "parameters": [15], "attached": {}}
    assert header["counts"] == {"n_sequences": 5, "n_rows": 15, "n_files": 1}
    assert [entry["path"] for entry in header["files"]] == ["b.parquet"]
    assert manifest.seed == 7
    assert manifest.to_table().column_names == ["seq_id", "row_count", "fold", "tag"]
    assert not any(
        str(tmp_path) in json.dumps(value)
        for value in (header, json.loads(table.schema.metadata[b"pqindex.notes"]))
    )


def test_what_is_loaded_is_what_was_selected(index: pqindex.Index, tmp_path: Path) -> None:
    selection = index.select("SELECT seq_id, row_count AS n FROM index ORDER BY hash(seq_id)")
    selection.pin(tmp_path / "m.manifest.parquet")
    manifest = pqindex.load_manifest(tmp_path / "m.manifest.parquet")
    assert manifest.seq_ids.equals(selection.seq_ids)
    assert manifest.row_counts.tolist() == selection.row_counts.tolist()
    assert manifest.extra.equals(selection.extra)
    assert manifest.header["selection_digest"] == selection.digest
    assert len(manifest) == len(selection) == 20


def test_a_manifest_trains_without_its_index(index: pqindex.Index, tmp_path: Path) -> None:
    manifest = index.select("SELECT seq_id FROM index WHERE seq_id IN (3, 12)").pin(
        tmp_path / "m.manifest.parquet"
    )
    shutil.rmtree(index.path)
    with pqindex.Reader(manifest, columns=["x"]) as reader:
        assert [reader[i].column("x").to_pylist() for i in range(2)] == [[9.0, 10.0, 11.0], [6.0, 7.0, 8.0]]


def test_an_empty_selection_can_be_pinned(index: pqindex.Index, tmp_path: Path) -> None:
    manifest = index.select("SELECT seq_id FROM index WHERE row_count > 99").pin(
        tmp_path / "m.manifest.parquet"
    )
    assert len(manifest) == 0
    assert manifest.verify().ok
    assert manifest.seq_ids.type == pa.int64()


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT seq_id FROM index WHERE random() < 0.5", r"hash\(seq_id\)"),
        ("SELECT seq_id FROM index WHERE order_min < epoch(now())", "now"),
        ("SELECT seq_id FROM index LIMIT 5", "ORDER BY"),
        ("SELECT seq_id FROM index USING SAMPLE 5", "SAMPLE|sampl"),
    ],
)
def test_a_query_of_another_answer_tomorrow_is_not_pinned_T3_case_71(
    index: pqindex.Index, tmp_path: Path, sql: str, says: str
) -> None:
    selection = index.select(sql)
    with pytest.raises(QueryError, match=says):
        selection.pin(tmp_path / "m.manifest.parquet")
    assert not (tmp_path / "m.manifest.parquet").exists()


def test_files_are_not_replaced_unless_told_so(index: pqindex.Index, tmp_path: Path) -> None:
    path = tmp_path / "m.manifest.parquet"
    index.select().pin(path)
    with pytest.raises(ConflictError, match="exists"):
        index.select().pin(path)
    assert len(index.select("SELECT seq_id FROM index WHERE seq_id < 3").pin(path, overwrite=True)) == 3


def test_nothing_is_ever_written_onto_data(index: pqindex.Index, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    selection = index.select()
    for target in (
        tmp_path / "data/a.parquet",
        tmp_path / "data/../data/b.parquet",
        Path(index.path) / "x",
        Path(index.path, "parts/y"),
    ):
        with pytest.raises(UsageError, match=r"source file of the index|lies in the index"):
            selection.pin(target, overwrite=True)
    (tmp_path / "thesis.parquet").write_bytes(b"all of it")
    with pytest.raises(ConflictError, match="is no manifest"):
        selection.pin(tmp_path / "thesis.parquet", overwrite=True)
    with pytest.raises(UsageError, match="folder"):
        selection.pin(tmp_path, overwrite=True)
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert (tmp_path / "thesis.parquet").read_bytes() == b"all of it"


def test_facts_of_the_machine_are_not_pinned_T25(index: pqindex.Index, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="history of this index"):
        index.select("SELECT seq_id FROM index, snapshots").pin(tmp_path / "m.manifest.parquet")
    assert not {"mtime_ns", "etag"} & set(index.sql("SELECT * FROM files").column_names)


def test_a_column_that_the_query_calls_row_count_is_the_querys(index: pqindex.Index) -> None:
    assert (
        index.select("SELECT seq_id, 5 AS row_count FROM index").to_table().column("row_count")[0].as_py()
        == 5
    )


def test_a_write_that_fails_is_said_with_its_place(index: pqindex.Index) -> None:
    with pytest.raises(WriteError, match=r"cannot write /proc/none/m.manifest.parquet"):
        index.select().pin("/proc/none/m.manifest.parquet")


def test_statistics_are_pinned_and_answered_without_the_data_M5(index: pqindex.Index, tmp_path: Path) -> None:
    selection = index.select("SELECT seq_id FROM index WHERE seq_id IN (0, 1, 12)")
    manifest = selection.pin(tmp_path / "m.manifest.parquet", statistics=["x"])
    assert manifest.header["statistics"] == {"x": selection.statistics(["x"])["x"].to_json()}
    assert manifest.header["statistics"]["x"]["mean"] == (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 9
    (tmp_path / "data/a.parquet").unlink()
    found = pqindex.load_manifest(tmp_path / "m.manifest.parquet").statistics()
    assert found == selection_statistics(manifest)
    with pytest.raises(SourceChangedError):
        manifest.statistics(["x", "t"])


def selection_statistics(manifest: pqindex.Manifest) -> dict[str, pqindex.ColumnStatistics]:
    return {
        name: pqindex.ColumnStatistics.from_json(value)
        for name, value in manifest.header["statistics"].items()
    }


def test_statistics_that_were_not_pinned_are_computed(index: pqindex.Index, tmp_path: Path) -> None:
    selection = index.select()
    manifest = selection.pin(tmp_path / "m.manifest.parquet", statistics=["x"])
    assert manifest.statistics(["t", "x"]) == selection.statistics(["t", "x"])
    assert list(manifest.statistics(["t", "x"])) == ["t", "x"]
    for columns in ([], "x"):
        with pytest.raises(UsageError, match="names no columns"):
            manifest.statistics(columns)
    bare = selection.pin(tmp_path / "bare.manifest.parquet")
    assert bare.statistics(["x"]) == selection.statistics(["x"])
    with pytest.raises(UsageError, match=r"the manifest has no statistics: .*bare.*pqindex pin --statistics"):
        bare.statistics()


def test_statistics_belong_to_the_identity_and_their_absence_changes_nothing(
    index: pqindex.Index, tmp_path: Path
) -> None:
    digests = [
        index.select().pin(tmp_path / f"{number}.manifest.parquet", statistics=columns).digest
        for number, columns in enumerate([None, ["x"], ["x"], ["x", "t"], ["t", "x"]])
    ]
    assert digests[1] == digests[2]
    assert digests[3] == digests[4]
    assert len(set(digests)) == 3
    assert "statistics" not in pqindex.load_manifest(tmp_path / "0.manifest.parquet").header


def test_nothing_is_read_for_a_manifest_that_cannot_be_written(index: pqindex.Index, tmp_path: Path) -> None:
    index.select().pin(tmp_path / "m.manifest.parquet")
    seen: list[Any] = []
    with pytest.raises(ConflictError, match="exists already"):
        index.select().pin(
            tmp_path / "m.manifest.parquet", statistics=["x"], progress=lambda *t: seen.append(t)
        )
    assert seen == []
    index.select().pin(
        tmp_path / "m.manifest.parquet", statistics=["x"], overwrite=True, progress=lambda *t: seen.append(t)
    )
    assert seen[-1] == (20, 20, "statistics")


@pytest.mark.parametrize("seed", [-1, 2**53, 1.5, True, "7"])
def test_seeds_are_checked(index: pqindex.Index, tmp_path: Path, seed: Any) -> None:
    with pytest.raises(UsageError, match="seed"):
        index.select().pin(tmp_path / "m.manifest.parquet", seed=seed)


def test_parameters_of_every_kind_are_kept(index: pqindex.Index, tmp_path: Path) -> None:
    params = {"a": 2**60, "b": 0.5, "c": dt.date(2020, 1, 2), "d": "x", "e": None, "f": True}
    sql = "SELECT seq_id, $c AS day FROM index WHERE seq_id < $a AND seq_id > $b AND $d = 'x' AND $e IS NULL AND $f"
    manifest = index.select(sql, params=params).pin(tmp_path / "m.manifest.parquet")
    assert manifest.header["query"]["parameters"] == {
        "a": {"type": "integer", "text": str(2**60)},
        "b": 0.5,
        "c": {"type": "date", "text": "2020-01-02"},
        "d": "x",
        "e": None,
        "f": True,
    }
    assert manifest.extra.column("day").to_pylist()[0] == dt.date(2020, 1, 2)


def test_attached_tables_are_part_of_the_identity_by_content(index: pqindex.Index, tmp_path: Path) -> None:
    labels = pa.table({"seq_id": list(range(20)), "label": [f"l{i % 3}" for i in range(20)]})
    pq.write_table(labels, tmp_path / "labels.parquet")
    sql = "SELECT seq_id, label FROM index JOIN labels USING (seq_id) WHERE label = 'l1'"
    by_table = index.select(sql, attach={"labels": labels}).pin(tmp_path / "1.manifest.parquet")
    by_path = index.select(sql, attach={"labels": tmp_path / "labels.parquet"}).pin(
        tmp_path / "2.manifest.parquet"
    )
    assert by_table.digest == by_path.digest
    assert by_table.extra.column("label").unique().to_pylist() == ["l1"]
    other = labels.set_column(1, "label", pa.array(["l1"] * 20))
    assert (
        index.select(sql, attach={"labels": other}).pin(tmp_path / "3.manifest.parquet").digest
        != by_table.digest
    )
    with pytest.raises(QueryError, match="the name 'files' is taken"):
        index.select(sql, attach={"files": labels})


# -- manifests that are not what they say ---------------------------------------------------------------------


def edited(
    path: Path, target: Path, header: dict[str, Any] | None = None, table: pa.Table | None = None
) -> Path:
    original = pq.read_table(path)
    metadata = dict(original.schema.metadata)
    if header is not None:
        metadata[b"pqindex.manifest"] = json.dumps(header).encode()
    pq.write_table((table or original).replace_schema_metadata(metadata), target)
    return target


def test_edited_rows_and_headers_are_refused_M3(index: pqindex.Index, tmp_path: Path) -> None:
    path = tmp_path / "m.manifest.parquet"
    manifest = index.select().pin(path)
    rows = pq.read_table(path)
    with pytest.raises(DigestMismatchError, match="not those that its header tells of"):
        pqindex.load_manifest(edited(path, tmp_path / "fewer", table=rows.slice(1)))
    with pytest.raises(DigestMismatchError):
        pqindex.load_manifest(
            edited(path, tmp_path / "order", table=rows.sort_by([("seq_id", "descending")]))
        )
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        pqindex.load_manifest(edited(path, tmp_path / "v2", header={**manifest.header, "format_version": 2}))
    stranger = json.loads(json.dumps(manifest.header))
    stranger["files"][0]["path"] = "../../etc/passwd"
    with pytest.raises(DocumentInvalidError, match=r"without '\.\.'"):
        pqindex.load_manifest(edited(path, tmp_path / "path", header=stranger))


def test_what_is_no_manifest_is_said(index: pqindex.Index, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="manifest is not there"):
        pqindex.load_manifest(tmp_path / "none")
    with pytest.raises(DocumentInvalidError, match="no manifest header"):
        pqindex.load_manifest(tmp_path / "data/a.parquet")
    (table,) = Path(index.path, "parts").glob("*-files.parquet")
    with pytest.raises(DocumentInvalidError, match="the table 'files' of an index"):
        pqindex.load_manifest(table)
    (tmp_path / "text").write_text("no")
    with pytest.raises(DocumentInvalidError, match="cannot be read"):
        pqindex.load_manifest(tmp_path / "text")
    with pytest.raises(NotFoundError, match="pqindex build"):
        pqindex.open(tmp_path / "none.pqindex")
    with pytest.raises(NotFoundError, match="no snapshot 9"):
        pqindex.open(index.path, snapshot=9)


# -- indexes that are not what they say -----------------------------------------------------------------------


def test_a_damaged_index_says_so_V5(index: pqindex.Index, tmp_path: Path) -> None:
    assert index.verify().ok
    (sequences,) = Path(index.path, "parts").glob("*-sequences.parquet")
    data = bytearray(sequences.read_bytes())
    data[len(data) // 2] ^= 255
    sequences.write_bytes(data)
    problems = pqindex.open(index.path).verify().problems
    assert [(Path(p.file).name, p.reason) for p in problems] == [(sequences.name, "digest-mismatch")]
    sequences.write_bytes(data[:-1])
    with pytest.raises(DigestMismatchError, match="was changed"):
        pqindex.open(index.path).select()
    sequences.unlink()
    with pytest.raises(NotFoundError, match="index table is missing"):
        pqindex.open(index.path).select()


def test_info_is_json(index: pqindex.Index, tmp_path: Path) -> None:
    info = json.loads(json.dumps(index.info()))
    assert info["totals"]["n_sequences"] == len(index) == 20
    manifest = index.select().pin(tmp_path / "m.manifest.parquet")
    assert json.loads(json.dumps(manifest.info()))["n_sequences"] == 20
    assert json.loads(json.dumps(manifest.verify().to_dict()))["ok"] is True
    assert repr(index).startswith("<pqindex.Index")
    assert "20 sequences" in repr(manifest)
