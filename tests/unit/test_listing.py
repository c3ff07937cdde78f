"""What lies in a source: tables that a format with a log manages, names that are passed over, and listing it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pqindex
from pqindex.cli import main
from pqindex.errors import NotFoundError, TableFormatError
from pqindex.listing import PassedOver, list_again, list_source


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


MARKERS = {
    "_delta_log/00000000000000000000.json": "Delta Lake",
    ".hoodie/hoodie.properties": "Apache Hudi",
    "metadata/v1.metadata.json": "Apache Iceberg",
    "metadata/00001-0f.metadata.json": "Apache Iceberg",
    "metadata/00001-0f.gz.metadata.json": "Apache Iceberg",
}


@pytest.mark.parametrize(("marker", "kind"), MARKERS.items())
@pytest.mark.parametrize("below", ["", "warehouse/", "x.parquet/"])
def test_a_table_is_refused_with_kind_folder_and_ways_out_case_51(
    tmp_path: Path, marker: str, kind: str, below: str
) -> None:
    touch(tmp_path, f"t/{below}{marker}", f"t/{below}data/a.parquet", "t/b.parquet")
    with pytest.raises(TableFormatError) as caught:
        list_source(tmp_path / "t")
    folder = str(tmp_path / "t" / below).rstrip("/")
    assert (caught.value.kind, caught.value.path, caught.value.folders) == (kind, folder, (folder,))
    option = {"Delta Lake": "--delta", "Apache Iceberg": "--iceberg"}.get(kind)
    for said in (kind, folder, "--files FILE", "--ignore-lake", option or "not every Parquet file"):
        assert said in str(caught.value)
    if below and option:
        assert f"pqindex build {folder} {option}" in str(caught.value)
    taken = list_source(tmp_path / "t", ignore_lake=True)
    assert taken.paths == tuple(sorted([f"{below}data/a.parquet", "b.parquet"]))
    assert taken.ignore_lake


def test_tables_are_met_by_globs_and_from_inside_too_case_51(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "w/t/_delta_log/0.json",
        "w/t/y=1/a.parquet",
        "w/u/metadata/v1.metadata.json",
        "w/u/data/b.parquet",
    )
    with pytest.raises(
        TableFormatError, match=r"2 folders are tables: \S+/w/t is a Delta .*/w/u is an Apache Iceberg"
    ):
        list_source(tmp_path / "w")
    for inside in ("w/t/y=1", "w/u/data", "w/t/y=*/*.parquet", "w/*/*/*.parquet"):
        with pytest.raises(TableFormatError):
            list_source(str(tmp_path / inside))
        assert list_source(str(tmp_path / inside), ignore_lake=True).paths
    assert list_source([tmp_path / "w/t/y=1/a.parquet"]).paths == ("a.parquet",), (
        "named files are a live list"
    )


def test_what_is_no_table_is_none(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "d/metadata/notes.json",
        "d/metadata/a.parquet",
        "d/_delta_log.parquet",
        "d/b.parquet",
        "d/.hoodie",
    )
    assert list_source(tmp_path / "d").paths == ("b.parquet", "metadata/a.parquet")


def test_checkpoints_and_delete_files_are_never_data_case_51(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *(
            "d/_delta_log/00000000000000000010.checkpoint.parquet",
            "d/a.parquet",
            "d/_change_data/cdc-1.parquet",
        ),
        *(
            "i/metadata/v1.metadata.json",
            "i/data/b.parquet",
            "i/data/0-deletes.parquet",
            "i/data/deletion_vector_1.bin",
        ),
        "plain/c-deletes.parquet",
    )
    taken = list_source(tmp_path, ignore_lake=True)
    assert taken.paths == ("d/a.parquet", "i/data/b.parquet", "plain/c-deletes.parquet")
    assert taken.skipped == {"delete file": 1, "hidden name": 2, "not a Parquet name": 2}


def test_names_are_listed_with_their_rule_case_49(tmp_path: Path) -> None:
    root = tmp_path / ".root"
    touch(
        root,
        *(
            "a.parquet",
            "_SUCCESS",
            ".part.crc",
            "_temporary/0/part.parquet",
            "x.parquet.tmp",
            "b/._c.parquet",
        ),
        *("old.pqindex/parts/p-files.parquet", "m.manifest.parquet"),
    )
    names: list[PassedOver] = []
    listing = list_source(root, passed_over=names)
    assert listing.paths == ("a.parquet",)
    assert {name.path: name.rule for name in names} == {
        "_SUCCESS": "hidden name",
        ".part.crc": "hidden name",
        "_temporary": "hidden name",
        "b/._c.parquet": "hidden name",
        "x.parquet.tmp": "not a Parquet name",
        "old.pqindex": "index folder",
        "m.manifest.parquet": "manifest",
    }
    assert sum(listing.skipped.values()) == len(names)


@pytest.mark.parametrize("name", ["d", "d[1]", "d*"])
def test_a_source_is_listed_again_as_it_was(tmp_path: Path, name: str) -> None:
    touch(tmp_path, f"{name}/a.parquet", f"{name}/e/b.parquet", f"{name}/n.txt")
    root = tmp_path / name
    listings = [
        list_source(root),
        list_source(root / "a.parquet"),
        list_source(root, ["a.parquet", "n.txt"]),
    ]
    if name == "d":
        listings.append(list_source(str(root / "**/*.parquet")))
    for listing in listings:
        assert list_again(str(root), listing.kind, listing.paths) == listing
    (root / "a.parquet").unlink()
    with pytest.raises(NotFoundError, match="1 of 1 files of the source"):
        list_again(str(root), "file", ("a.parquet",))
    with pytest.raises(NotFoundError, match="not there"):
        list_again(str(root / "none"), "folder", ())


@pytest.mark.shared
def test_summary_files_are_counted_and_no_data_case_50(shared: Path, tmp_path: Path) -> None:
    index = pqindex.build(shared / "data/fastparquet/split", unit="file", index=tmp_path / "i.pqindex")
    assert index.n_rows == 2000
    assert index.info()["source"]["passed_over"]["hidden name"] == len(index.passed_over())
    assert {"_metadata", "_common_metadata"} <= {name["path"] for name in index.passed_over()}


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["simple_table", "delta-0.8.0-special-partition", "partition-type-primitives"]
)
def test_real_delta_folders_are_refused_case_51(shared: Path, name: str) -> None:
    with pytest.raises(TableFormatError, match="Delta Lake"):
        list_source(shared / "data/delta-rs" / name)
    with pytest.raises(TableFormatError):
        list_source(shared / "data/delta-rs")


def test_the_command_names_what_is_passed_over(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    touch(tmp_path, "data/_SUCCESS", "data/n.txt")
    pq.write_table(pa.table({"seq_id": [1]}), tmp_path / "data/a.parquet")
    monkeypatch.chdir(tmp_path)
    assert main(["build", "data", "--list-skipped"]) == 0
    said = capfdbinary.readouterr().out.decode()
    assert "passed over: _SUCCESS: hidden name\n" in said
    assert "note: 1 name passed over: hidden name\n" in said
    assert main(["info", "data.pqindex", "--skipped"]) == 0
    said = capfdbinary.readouterr().out.decode()
    assert "passed over: n.txt: not a Parquet name\n" in said
    assert "hidden name" in said
    assert main(["info", "data.pqindex", "--skipped", "--json"]) == 0
    facts = json.loads(capfdbinary.readouterr().out)
    assert facts["source"] == {
        "kind": "folder",
        "table": None,
        "ignore_lake": False,
        "passed_over": {"hidden name": 1, "not a Parquet name": 1},
    }
    assert facts["passed_over"][0] == {"path": "_SUCCESS", "rule": "hidden name"}
    touch(tmp_path, "data/_delta_log/0.json")
    assert main(["build", "data"]) == 2
    assert "--ignore-lake" in capfdbinary.readouterr().err.decode()
    assert main(["build", "data", "--ignore-lake"]) == 0
