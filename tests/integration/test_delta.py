"""Delta tables: what is live, by the table's own log, and what cannot be taken from files alone."""

from __future__ import annotations

import base64
import datetime as dt
import json
import shutil
import sys
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
    UsageError,
)
from pqindex.lakes import list_files, list_files_again

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
pyroaring = pytest.importorskip("pyroaring", reason="pyroaring, which comes with pyiceberg, is not installed")


def table_of(ids: list[int], n_rows: int = 3, **columns: Any) -> pa.Table:
    keys = [i for i in ids for _ in range(n_rows)]
    extra = {name: [values[ids.index(i)] for i in keys] for name, values in columns.items()}
    return pa.table(
        {"seq_id": keys, "t": list(range(n_rows)) * len(ids), "x": [i / 2 for i in keys], **extra}
    )


def rows_of(index: pqindex.Index) -> dict[Any, list[float]]:
    selection = index.select()
    with pqindex.Reader(selection, columns=["x"]) as reader:
        return {selection.seq_ids[i].as_py(): reader[i]["x"].to_pylist() for i in range(len(reader))}


def write_log(
    root: Path, *, protocol: dict[str, Any], fields: list[Any], adds: list[Any], **configuration: str
) -> None:
    """A table whose log is written by hand, for what the library does not write."""
    schema = json.dumps({"type": "struct", "fields": fields})
    meta = {
        "id": "0",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 1,
    }
    facts = {"partitionValues": {}, "size": 10, "modificationTime": 1, "dataChange": True}
    lines = [{"protocol": protocol}, {"metaData": meta}, *({"add": {**facts, **add}} for add in adds)]
    (root / "_delta_log").mkdir(parents=True)
    (root / "_delta_log/00000000000000000000.json").write_text("\n".join(map(json.dumps, lines)))


PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}
SEQ_ID = {"name": "seq_id", "type": "long", "nullable": True, "metadata": {}}


def test_only_live_files_are_taken_at_every_version_case_51(tmp_path: Path) -> None:
    root = tmp_path / "table"
    deltalake.write_deltalake(root, table_of([1, 2]))
    deltalake.write_deltalake(root, table_of([3]), mode="append")
    deltalake.DeltaTable(root).delete("seq_id = 2")  # which rewrites the file of 1 and 2
    with pytest.raises(TableFormatError, match="--delta"):
        pqindex.build(root, order="t")
    index = pqindex.build(root, order="t", table_format="delta")
    assert index.path == str(tmp_path / "table.pqindex")
    assert rows_of(index) == {1: [0.5] * 3, 3: [1.5] * 3}
    assert index.info()["source"]["table"] == {"format": "delta", "version": "2"}
    assert index.info()["source"]["kind"] == "delta table"
    old = pqindex.build(
        root, order="t", table_format="delta", table_version=0, index=tmp_path / "old.pqindex"
    )
    assert sorted(rows_of(old)) == [1, 2]
    assert old.info()["source"]["table"]["version"] == "0"
    # the same option takes the newest version later on
    deltalake.write_deltalake(root, table_of([9]), mode="append")
    again = pqindex.build(root, order="t", table_format="delta")
    assert (again.snapshot, sorted(rows_of(again))) == (2, [1, 3, 9])
    assert again.info()["source"]["table"]["version"] == "3"
    assert pqindex.build(root, order="t", table_format="delta").snapshot == 2, "nothing changed"
    relisted = list_files_again(str(root), "delta table", (), table_format="delta", ignore_lake=False)
    assert relisted == list_files(root, table_format="delta")
    assert list_files_again(str(root), "folder", (), table_format=None, ignore_lake=True).kind == "folder"
    # an index of the live files by name is the same one
    live = [Path(uri).name for uri in deltalake.DeltaTable(root).file_uris()]
    by_name = pqindex.build(root, order="t", files=live, index=tmp_path / "list.pqindex")
    assert by_name.content_digest == again.content_digest


def test_paths_are_decoded_once_and_values_are_text_case_7(tmp_path: Path) -> None:
    values = {
        "p": ["a b", "c/d", "é%", None, "100%25"],
        "code": [7, 8, 9, 10, 11],
        "d": [dt.date(2020, 1, i + 1) for i in range(5)],
        "yes": [True, False, None, True, False],
    }
    data = table_of([1, 2, 3, 4, 5], **values)
    deltalake.write_deltalake(tmp_path / "t", data, partition_by=["p", "code", "d", "yes"])
    index = pqindex.build(tmp_path / "t", order="t", table_format="delta", partition_types={"code": "int64"})
    answer = index.sql("SELECT seq_id, p, code, d, yes FROM index ORDER BY seq_id").to_pydict()
    assert answer == {
        "seq_id": [1, 2, 3, 4, 5],
        "p": values["p"],
        "code": values["code"],
        "d": [f"2020-01-0{i + 1}" for i in range(5)],
        "yes": ["true", "false", None, "true", "false"],
    }
    assert rows_of(index) == {i: [i / 2] * 3 for i in range(1, 6)}
    chosen = index.select("SELECT seq_id, p FROM index WHERE p = 'c/d'")
    assert (chosen.seq_ids.to_pylist(), chosen.extra.to_pylist()) == ([2], [{"p": "c/d"}])
    live = index.sql("SELECT path FROM files")["path"].to_pylist()
    by_name = pqindex.build(
        tmp_path / "t", order="t", files=live, partition_types={"code": "int64"}, index=tmp_path / "l.pqindex"
    )
    assert by_name.content_digest == index.content_digest, "the paths say what the log says"
    by_partition = pqindex.build(
        tmp_path / "t", key="code", table_format="delta", index=tmp_path / "code.pqindex"
    )
    assert sorted(by_partition.select().seq_ids.to_pylist()) == ["10", "11", "7", "8", "9"]


def test_values_that_only_the_log_has_are_taken(tmp_path: Path) -> None:
    """Paths need not say partition values: another process scans them too, and they are part of the identity."""
    root = tmp_path / "t"
    root.mkdir()
    for i in range(6):
        pq.write_table(table_of([i]), root / f"{i}.parquet")
    fields = [SEQ_ID, {"name": "who", "type": "string", "nullable": True, "metadata": {}}]

    def write(names: str, workers: int = 1) -> pqindex.Index:
        shutil.rmtree(root / "_delta_log", ignore_errors=True)
        adds = [{"path": f"{i}.parquet", "partitionValues": {"who": names[i]}} for i in range(6)]
        write_log(root, protocol=PLAIN, fields=fields, adds=adds)
        log = root / "_delta_log/00000000000000000000.json"
        log.write_text(log.read_text().replace('"partitionColumns": []', '"partitionColumns": ["who"]'))
        return pqindex.build(
            root, order="t", table_format="delta", workers=workers, index=tmp_path / f"{names}.pqindex"
        )

    index = write("abcabc", workers=2)
    assert index.sql("SELECT who FROM index ORDER BY seq_id")["who"].to_pylist() == list("abcabc")
    assert index.verify().ok
    assert write("abcabd").content_digest != index.content_digest
    keys = {"key": "who", "order": "t", "table_format": "delta", "index": tmp_path / "k.pqindex"}
    with pytest.raises(pqindex.FragmentedSequenceError, match=r"'a' at 0.parquet.* and 3.parquet"):
        pqindex.build(root, **keys)
    write("abcdef")
    assert pqindex.build(root, **keys).select().seq_ids.to_pylist() == list("abcdef")


def inline_deletion_vector(rows: list[int]) -> dict[str, Any]:
    """A deletion vector that stands in the log itself, by the protocol: a magic number and 32-bit roaring bitmaps."""
    bitmap = pyroaring.BitMap(rows).serialize()
    raw = (1681511377).to_bytes(4, "little") + (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bitmap
    padded = raw + bytes(-len(raw) % 4)
    python = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(padded).decode().translate(str.maketrans(python, z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(raw), "cardinality": len(rows)}


def test_rows_that_are_deleted_never_come_back(tmp_path: Path) -> None:
    deleted = {
        "path": "a.parquet",
        "stats": '{"numRecords":3}',
        "deletionVector": inline_deletion_vector([1]),
    }
    features = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    write_log(tmp_path / "t", protocol=features, fields=[SEQ_ID], adds=[deleted])
    pq.write_table(table_of([1]), tmp_path / "t/a.parquet")
    with pytest.raises(
        TableFormatError, match=r"has deletion vectors: rows .* would come back: a\.parquet\. Hint: rewrite"
    ):
        pqindex.build(tmp_path / "t", table_format="delta")
    # one that cannot be read is no proof that nothing is deleted
    gone = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    lost = {**deleted, "deletionVector": {**deleted["deletionVector"], **gone}}
    write_log(tmp_path / "v", protocol=features, fields=[SEQ_ID], adds=[lost])
    pq.write_table(table_of([1]), tmp_path / "v/a.parquet")
    with pytest.raises(TableFormatError, match="cannot be read"):
        pqindex.build(tmp_path / "v", table_format="delta")
    # the feature alone deletes nothing
    write_log(tmp_path / "u", protocol=features, fields=[SEQ_ID], adds=[{"path": "a.parquet"}])
    pq.write_table(table_of([1]), tmp_path / "u/a.parquet")
    assert pqindex.build(tmp_path / "u", order="t", table_format="delta").n_sequences == 1


@pytest.mark.parametrize("nested", [False, True])
def test_renamed_columns_are_refused_and_unchanged_names_taken(tmp_path: Path, nested: bool) -> None:
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}

    def field(physical: str, number: int = 1) -> dict[str, Any]:
        names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
        return {**SEQ_ID, "metadata": names}

    def fields(physical: str) -> list[Any]:
        struct = {"type": "struct", "fields": [field(physical)]}
        array = {"type": "array", "elementType": struct, "containsNull": True}
        return [{**field("outer", 2), "name": "outer", "type": array}] if nested else [field(physical)]

    mode = {"delta.columnMapping.mode": "name"}
    write_log(tmp_path / "t", protocol=protocol, fields=fields("col-1"), adds=[{"path": "a.parquet"}], **mode)
    with pytest.raises(TableFormatError, match="seq_id is col-1"):
        pqindex.build(tmp_path / "t", table_format="delta")
    write_log(
        tmp_path / "u", protocol=protocol, fields=fields("seq_id"), adds=[{"path": "a.parquet"}], **mode
    )
    pq.write_table(table_of([1]), tmp_path / "u/a.parquet")
    assert pqindex.build(tmp_path / "u", order="t", table_format="delta").n_sequences == 1


def test_files_elsewhere_gone_or_none_are_said(tmp_path: Path) -> None:
    def build(name: str, *paths: str) -> pqindex.Index:
        root = tmp_path / name
        write_log(root, protocol=PLAIN, fields=[SEQ_ID], adds=[{"path": path} for path in paths])
        pq.write_table(table_of([1]), root / "a b.parquet")
        return pqindex.build(root, order="t", table_format="delta")

    assert build("inside", f"file://{tmp_path}/inside/a%20b.parquet").n_sequences == 1
    assert build("dots", "./x/../a%20b.parquet").n_sequences == 1
    for path in (
        "file:///elsewhere/a.parquet",
        "s3://bucket/a.parquet",
        "/elsewhere/a.parquet",
        "../a.parquet",
    ):
        with pytest.raises(TableFormatError, match="outside of the Delta Lake table"):
            build(f"outside-{abs(hash(path))}", path)
    with pytest.raises(NotFoundError, match="1 of 1 files of the delta table are not there"):
        build("gone", "gone.parquet")
    with pytest.raises(EmptySourceError, match="no live file"):
        build("none")


def test_what_is_no_table_and_unknown_features_are_said(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for source in ("plain", "none"):
        with pytest.raises(NotFoundError, match="no Delta Lake table"):
            pqindex.build(tmp_path / source, table_format="delta")
    deltalake.write_deltalake(tmp_path / "t", table_of([1]))
    with pytest.raises(NotFoundError, match=r"no version 7 .* the newest is 0"):
        pqindex.build(tmp_path / "t", table_format="delta", table_version=7)
    features = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["zork"],
        "writerFeatures": ["zork"],
    }
    write_log(tmp_path / "u", protocol=features, fields=[SEQ_ID], adds=[])
    with pytest.raises(TableFormatError, match=r"log of the Delta Lake table cannot be read.*zork"):
        pqindex.build(tmp_path / "u", table_format="delta")


@pytest.mark.parametrize(
    "options",
    [
        {"table_format": "hudi"},
        {"table_version": 1},
        {"table_format": "delta", "files": ["a.parquet"]},
        {"table_format": "delta", "ignore_lake": True},
        {"table_format": "delta", "table_version": "1"},
        {"table_format": "delta", "table_version": True},
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        pqindex.build(tmp_path, **options)
    with pytest.raises(UsageError, match="one folder"):
        pqindex.build([tmp_path], table_format="delta")
    with pytest.raises(UsageError, match="object store"):
        pqindex.build("s3://bucket/t", table_format="delta")


def test_a_missing_library_is_said_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "pqindex\[delta\]"'):
        pqindex.build(tmp_path, table_format="delta")


@pytest.mark.shared
def test_real_tables_case_51_case_7(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/delta-rs"
    live = {"simple_table": 5, "delta-0.8.0-special-partition": 2, "partition-type-primitives": 16}
    indexes = {
        name: pqindex.build(
            folder / name, unit="file", table_format="delta", index=tmp_path / f"{name}.pqindex"
        )
        for name in live
    }
    assert {name: index.n_files for name, index in indexes.items()} == live
    special = indexes["delta-0.8.0-special-partition"]
    assert special.sql("SELECT x FROM index ORDER BY x")["x"].to_pylist() == ["A/A", "B B"]
    years = indexes["partition-type-primitives"].sql(
        "SELECT year, count(*) AS n FROM index GROUP BY year ORDER BY year"
    )
    assert years.to_pydict() == {"year": ["2020", "2021.0"], "n": [8, 8]}
    everything = pqindex.build(
        folder / "simple_table", unit="file", ignore_lake=True, index=tmp_path / "all.pqindex"
    )
    assert (everything.n_files, everything.n_sequences) == (37, 32), "some files have no rows"


def test_the_command_takes_a_table(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deltalake.write_deltalake("t", table_of([1]))
    deltalake.write_deltalake("t", table_of([2]), mode="append")
    assert main(["build", "t", "--delta", "--order", "t"]) == 0
    assert main(["info", "t.pqindex", "--json"]) == 0
    out = capfdbinary.readouterr().out.decode()
    assert json.loads(out[out.index("{") :])["source"]["table"] == {"format": "delta", "version": "1"}
    assert main(["build", "t", "--delta", "--table-version", "0", "-o", "o.pqindex", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["totals"]["n_sequences"] == 1
    assert main(["build", "t", "--delta", "--table-version", "5", "-o", "p.pqindex"]) == 2
    assert "no version 5" in capfdbinary.readouterr().err.decode()
