"""Iceberg tables: what is live, by the table's own metadata, and what cannot be taken from files alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.cli import main
from pqindex.errors import (
    EmptySourceError,
    MissingDependencyError,
    NotFoundError,
    TableFormatError,
    UnsupportedFileError,
)

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="the catalog that the tables are written with needs sqlalchemy")

from pyiceberg.catalog.sql import SqlCatalog  # after the check that it is there
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.transforms import IdentityTransform


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("ns")
    yield catalog
    catalog.close()


def rows(*ids: int, who: str | None = "a") -> pa.Table:
    keys = [i for i in ids for _ in range(3)]
    return pa.table(
        {
            "seq_id": pa.array(keys, pa.int64()),
            "t": pa.array([0, 1, 2] * len(ids), pa.int64()),
            "x": pa.array([i / 2 for i in keys], pa.float64()),
            "who": pa.array([who] * len(keys), pa.string()),
        }
    )


def folder(table: Any) -> Path:
    return Path(table.location().removeprefix("file://"))


def rows_of(index: pqindex.Index) -> dict[Any, list[float]]:
    selection = index.select()
    with pqindex.Reader(selection, columns=["x"]) as reader:
        return {selection.seq_ids[i].as_py(): reader[i]["x"].to_pylist() for i in range(len(reader))}


def test_only_live_files_are_taken_at_every_snapshot_case_51(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("ns.t", schema=rows(1).schema)
    table.append(rows(1, 2))
    first = table.current_snapshot().snapshot_id
    table.append(rows(3))
    table.delete("seq_id = 2")  # which rewrites the file of 1 and 2
    root = folder(table)
    for inside in (root, root / "data", root.parent):
        with pytest.raises(TableFormatError, match=r"Apache Iceberg.*--iceberg"):
            pqindex.build(inside, order="t")
    index = pqindex.build(root, order="t", table_format="iceberg")
    assert index.path == f"{root}.pqindex"
    assert rows_of(index) == {1: [0.5] * 3, 3: [1.5] * 3}
    newest = str(table.current_snapshot().snapshot_id)
    assert index.info()["source"]["table"] == {"format": "iceberg", "version": newest}
    old = pqindex.build(
        root, order="t", table_format="iceberg", table_version=first, index=tmp_path / "old.pqindex"
    )
    assert sorted(rows_of(old)) == [1, 2]
    table.append(rows(9))
    again = pqindex.build(root, order="t", table_format="iceberg")
    assert (again.snapshot, sorted(rows_of(again))) == (2, [1, 3, 9])
    with pytest.raises(NotFoundError, match=r"no snapshot 5 .* there are \d+"):
        pqindex.build(root, table_format="iceberg", table_version=5)
    # a metadata file names the table too, and its index lies beside the table
    document = Path(table.metadata_location.removeprefix("file://"))
    named = pqindex.build(document, order="t", table_format="iceberg")
    assert (named.path, named.snapshot) == (index.path, 2)


def test_partition_values_of_the_manifests_are_text_case_7(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("ns.t", schema=rows(1).schema)
    with table.update_spec() as spec:
        spec.add_field("who", IdentityTransform(), "by_who")
    for i, who in enumerate(["a b", "c/d", None, "é%"]):
        table.append(rows(i, who=who))
    index = pqindex.build(folder(table), order="t", table_format="iceberg")
    assert index.sql("SELECT by_who FROM index ORDER BY seq_id")["by_who"].to_pylist() == [
        "a b",
        "c/d",
        None,
        "é%",
    ]
    assert any("by_who=a" in path for path in index.sql("SELECT path FROM files")["path"].to_pylist())
    assert index.verify().ok
    by_partition = pqindex.build(
        folder(table), key="by_who", skip_null_keys=True, table_format="iceberg", index=tmp_path / "k.pqindex"
    )
    assert set(by_partition.select().seq_ids.to_pylist()) == {"a b", "c/d", "é%"}


def test_a_moved_table_is_read_where_it_lies(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("ns.t", schema=rows(1).schema)
    table.append(rows(1))
    shutil.move(folder(table), tmp_path / "moved")
    assert rows_of(pqindex.build(tmp_path / "moved", order="t", table_format="iceberg")) == {1: [0.5] * 3}


def test_renamed_and_reused_columns_are_refused(catalog: SqlCatalog) -> None:
    renamed = catalog.create_table("ns.renamed", schema=rows(1).schema)
    renamed.append(rows(1))
    with renamed.update_schema() as schema:
        schema.rename_column("x", "y")
    with pytest.raises(TableFormatError, match=r"other names in older files: x and y"):
        pqindex.build(folder(renamed), table_format="iceberg")
    again = catalog.create_table("ns.again", schema=rows(1).schema)
    again.append(rows(1))
    with again.update_schema() as schema:
        schema.delete_column("x")
    with again.update_schema() as schema:
        schema.add_column("x", again.schema().find_type("seq_id"))
    with pytest.raises(TableFormatError, match="x, dropped and added again"):
        pqindex.build(folder(again), table_format="iceberg")
    grown = catalog.create_table("ns.grown", schema=rows(1).schema)
    grown.append(rows(1))
    with grown.update_schema() as schema:
        schema.add_column("z", grown.schema().find_type("seq_id"))
    assert pqindex.build(folder(grown), order="t", table_format="iceberg").n_sequences == 1


@pytest.mark.parametrize(
    ("content", "file_format", "error", "says"),
    [
        (
            DataFileContent.POSITION_DELETES,
            FileFormat.PARQUET,
            TableFormatError,
            "delete files.*would come back",
        ),
        (
            DataFileContent.EQUALITY_DELETES,
            FileFormat.PARQUET,
            TableFormatError,
            "delete files.*would come back",
        ),
        (DataFileContent.DATA, FileFormat.ORC, UnsupportedFileError, "not Parquet"),
    ],
)
def test_deletes_and_other_formats_are_refused(
    catalog: SqlCatalog,
    monkeypatch: pytest.MonkeyPatch,
    content: Any,
    file_format: Any,
    error: Any,
    says: str,
) -> None:
    """The library writes neither, so the entries of a manifest are put in its place."""
    table = catalog.create_table("ns.t", schema=rows(1).schema)
    table.append(rows(1))
    facts = {
        "content": content,
        "file_path": f"{table.location()}/data/other",
        "file_format": file_format,
        "partition": None,
        "record_count": 1,
        "file_size_in_bytes": 1,
    }
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=DataFile.from_args(**facts))
    monkeypatch.setattr("pyiceberg.manifest.ManifestFile.fetch_manifest_entry", lambda *_a, **_k: [entry])
    with pytest.raises(error, match=says):
        pqindex.build(folder(table), table_format="iceberg")


def test_what_is_no_table_or_has_no_rows_is_said(catalog: SqlCatalog, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for source in ("plain", "none", "plain/metadata/v1.metadata.json"):
        with pytest.raises(NotFoundError, match="no Apache Iceberg table"):
            pqindex.build(tmp_path / source, table_format="iceberg")
    table = catalog.create_table("ns.empty", schema=rows(1).schema)
    with pytest.raises(EmptySourceError, match="no live file"):
        pqindex.build(folder(table), table_format="iceberg")
    (tmp_path / "broken/metadata").mkdir(parents=True)
    (tmp_path / "broken/metadata/v1.metadata.json").write_text("{}")
    with pytest.raises(TableFormatError, match="cannot be read"):
        pqindex.build(tmp_path / "broken", table_format="iceberg")
    document = Path(table.metadata_location.removeprefix("file://"))
    shutil.copy(document, document.with_name("00000-twin.metadata.json"))
    with pytest.raises(TableFormatError, match=r"several newest metadata files.*name the metadata file"):
        pqindex.build(folder(table), table_format="iceberg")


def test_a_file_outside_of_the_table_is_refused(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("ns.t", schema=rows(1).schema)
    pq.write_table(rows(1), tmp_path / "elsewhere.parquet")
    table.add_files([f"file://{tmp_path}/elsewhere.parquet"])
    with pytest.raises(TableFormatError, match="outside of the Apache Iceberg table"):
        pqindex.build(folder(table), table_format="iceberg")


def test_a_missing_library_is_said_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "pqindex\[iceberg\]"'):
        pqindex.build(tmp_path, table_format="iceberg")


def test_the_command_takes_a_table(
    catalog: SqlCatalog, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    table = catalog.create_table("ns.t", schema=rows(1).schema)
    table.append(rows(1))
    first = table.current_snapshot().snapshot_id
    table.append(rows(2))
    assert main(["build", str(folder(table)), "--iceberg", "--order", "t", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["totals"]["n_sequences"] == 2
    words = ["--iceberg", "--table-version", str(first), "-o", str(tmp_path / "o.pqindex"), "--json"]
    assert main(["build", str(folder(table)), *words]) == 0
    assert json.loads(capfdbinary.readouterr().out)["source"]["table"]["version"] == str(first)
