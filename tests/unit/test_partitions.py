"""Partition values: columns of SQL, types on request, what the path says against what the files hold, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.cli import main
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    FragmentedSequenceError,
    NotIncreasingError,
    NullKeyError,
    QueryError,
    UsageError,
)
from pqindex.partitions import TYPES, hive_partition
from pqindex.torch import SequenceDataset


def write(root: Path, path: str, seq_id: int, n_rows: int = 2, **columns: Any) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    table = {"seq_id": [seq_id] * n_rows, "t": list(range(n_rows)), "x": [seq_id / 2] * n_rows, **columns}
    pq.write_table(pa.table(table), root / path)


def column(index: pqindex.Index, expression: str) -> list[Any]:
    return index.sql(f"SELECT {expression} AS v FROM index ORDER BY seq_id")["v"].to_pylist()


def test_values_are_columns_of_text_T31_case_7(tmp_path: Path) -> None:
    values = ["01001", "01002", "2A001", "__HIVE_DEFAULT_PARTITION__", "A%2FB c%25"]
    for i, value in enumerate(values):
        write(tmp_path / "d", f"code={value}/hour=0{i}/a.parquet", i)
    write(tmp_path / "d", "other/a.parquet", 9)
    index = pqindex.build(tmp_path / "d", order="t")
    assert column(index, "code") == ["01001", "01002", "2A001", None, "A/B c%", None]
    assert column(index, "hour") == ["00", "01", "02", "03", "04", None]
    assert column(index, "partition.code") == column(index, "partition['code']") == column(index, "code")
    selection = index.select("SELECT seq_id, code, hour FROM index WHERE code LIKE '01%' ORDER BY hour DESC")
    assert selection.extra.to_pylist() == [{"code": "01002", "hour": "01"}, {"code": "01001", "hour": "00"}]
    # they travel with each sequence to the trainer, by a manifest without the index
    manifest = selection.pin(tmp_path / "m.manifest.parquet")
    item = SequenceDataset(manifest, fields={"x": "x"})[1]
    assert (item["code"], item["seq_id"], item["x"].tolist()) == ("01001", 0, [0.0, 0.0])


def test_types_are_given_on_request_only(tmp_path: Path) -> None:
    for i, (year, day, ok) in enumerate([("2020", "2020-01-05", "true"), ("007", "1969-12-31", "false")]):
        write(tmp_path / "d", f"year={year}/day={day}/ok={ok}/a.parquet", i)
    write(tmp_path / "d", "year=__HIVE_DEFAULT_PARTITION__/a.parquet", 2)
    index = pqindex.build(tmp_path / "d", partition_types={"year": "int64", "day": "date32", "ok": "bool"})
    assert index.sql("SELECT year, day, ok, partition FROM index").schema.types[:3] == [
        pa.int64(),
        pa.date32(),
        pa.bool_(),
    ]
    assert column(index, "year + 1") == [2021, 8, None]
    assert column(index, "partition.year") == [2020, 7, None]
    assert index.sql("SELECT partition FROM files").schema.field(0).type == pa.map_(pa.string(), pa.string())
    text = pqindex.build(tmp_path / "d", index=tmp_path / "text.pqindex")
    assert column(text, "year") == ["2020", "007", None]
    assert text.content_digest != index.content_digest
    assert index.info()["options"]["partition_types"] == {"day": "date32", "ok": "bool", "year": "int64"}


def test_a_value_that_does_not_parse_names_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "d", "year=2020/a.parquet", 1)
    write(tmp_path / "d", "year=2021.0/b.parquet", 2)
    with pytest.raises(
        ColumnTypeError, match=r"year='2021.0' is no int64: year=2021.0\. Hint: .*--partition-type"
    ):
        pqindex.build(tmp_path / "d", partition_types={"year": "int64"})
    assert column(pqindex.build(tmp_path / "d", partition_types={"year": "float64"}), "year") == [
        2020.0,
        2021.0,
    ]
    with pytest.raises(ColumnMissingError, match="did you mean 'year'"):
        pqindex.build(tmp_path / "d", partition_types={"yeer": "int64"})
    with pytest.raises(UsageError, match=r"expected one of string, .*found 'int63'"):
        pqindex.build(tmp_path / "d", partition_types={"year": "int63"})
    with pytest.raises(UsageError, match="expected names and types"):
        pqindex.build(tmp_path / "d", partition_types="year")


def test_names_of_the_relation_and_twins_have_a_rule(tmp_path: Path) -> None:
    write(tmp_path / "d", "row_count=seven/Stats=s/A=1/a=2/p=q/a.parquet", 1)
    index = pqindex.build(tmp_path / "d")
    assert column(index, "row_count") == [2]
    assert column(index, "partition['row_count']") == ["seven"]
    assert column(index, "partition['Stats']") == ["s"]
    assert column(index, "p") == ["q"]
    notes = index.report["notes"]
    assert "`index` has a column 'row_count' of its own: the partition is partition['row_count']" in notes
    assert any("'A' and 'a' differ only in letter case" in note for note in notes)
    with pytest.raises(QueryError, match="a"):
        index.sql("SELECT a FROM index")
    assert dict(index.sql("SELECT partition FROM files")["partition"][0].as_py())["a"] == "2"


def test_a_column_in_path_and_file_is_that_of_the_file_T31_case_8(tmp_path: Path) -> None:
    write(tmp_path / "d", "a=5/b=x/k=1/s.parquet", 1, a=[1, 1], b=["x", "x"], k=[1, 2])
    write(tmp_path / "d", "a=7/b=x/k=1/t.parquet", 2, a=[7, 7], b=["x", "x"], k=[1, 2])
    index = pqindex.build(tmp_path / "d", order="t")
    notes = "\n".join(index.report["notes"])
    assert "path and file differ in 'a' in 1 of 2 files: a=5/b=x/k=1/s.parquet: path '5', file 1" in notes
    assert "differ in 'b'" not in notes
    assert "not compared in 'b'" not in notes
    assert "path and file were not compared in 'k' in 2 of 2 files" in notes
    with pytest.raises(QueryError):
        index.sql("SELECT a FROM index")
    assert column(index, "partition['a']") == ["5", "7"]
    assert column(index, "stats.a.min") == [1, 7]
    with pqindex.Reader(index.select(), columns=["a"]) as reader:
        assert reader[0]["a"].to_pylist() == [1, 1]
    by_file = pqindex.build(tmp_path / "d", key="a", index=tmp_path / "a.pqindex")
    assert by_file.select().seq_ids.to_pylist() == [1, 7], "the key is the column in the file"


@pytest.mark.parametrize(
    ("text", "values", "verdict"),
    [
        ("05", [5, 5], "same"),
        ("x", [5, 5], "differ"),
        ("9", [5, 6], "differ"),
        ("5", [5, 6], "unknown"),
        ("5", [5, None], "unknown"),
        ("__HIVE_DEFAULT_PARTITION__", pa.nulls(2, pa.int64()), "same"),
        ("__HIVE_DEFAULT_PARTITION__", [5, 5], "differ"),
        ("a%20b", ["a b", "a b"], "same"),
        ("é", ["e", "e"], "differ"),
        ("1.0", [1.0, 1.0], "unknown"),
        ("2.0", [1.0, 1.0], "differ"),
        ("true", [True, True], "same"),
        ("TRUE", [False, False], "differ"),
    ],
)
def test_what_footers_prove_of_path_and_file_case_8(
    tmp_path: Path, text: str, values: Any, verdict: str
) -> None:
    write(tmp_path / "d", f"v={text}/s.parquet", 1, v=values)
    notes = "\n".join(pqindex.build(tmp_path / "d").report["notes"])
    found = "differ" if "path and file differ" in notes else "unknown" if "not compared" in notes else "same"
    assert found == verdict, notes


def test_the_first_ten_conflicts_are_named(tmp_path: Path) -> None:
    for i in range(12):
        write(tmp_path / "d", f"a={i}/{i}.parquet", i, a=[99, 99])
    (note,) = [n for n in pqindex.build(tmp_path / "d").report["notes"] if "differ in 'a'" in n]
    assert note.count("path '") == 10
    assert note.endswith("; and 2 more")


@pytest.mark.shared
def test_the_real_folder_with_a_column_in_both_case_8(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/duckdb/hive-partitioning/hive_col_also_in_file"
    index = pqindex.build(folder, unit="file", index=tmp_path / "i.pqindex")
    assert any("path and file differ in 'a' in 2 of 2 files" in note for note in index.report["notes"])
    with pqindex.Reader(index.select(), columns=["a"]) as reader:
        in_files = {v for i in range(len(reader)) for v in reader[i]["a"].to_pylist()}
    assert in_files.isdisjoint({5, 6})
    assert set(column(index, "partition['a']")) == {"5", "6"}


# -- keys -----------------------------------------------------------------------------------------------------


def test_a_partition_can_be_the_key_and_no_page_is_read(tmp_path: Path) -> None:
    for name in ("b%20b", "007"):
        write(tmp_path / "d", f"who={name}/a.parquet", 1, 5)
    index = pqindex.build(tmp_path / "d", key="who", order="t")
    selection = index.select("SELECT seq_id, row_count, order_max FROM index ORDER BY seq_id")
    assert selection.seq_ids.to_pylist() == ["007", "b b"]
    assert selection.extra.to_pylist() == [{"row_count": 5, "order_max": 4}] * 2
    assert not any("key column" in note for note in index.report["notes"])
    manifest = selection.pin(tmp_path / "m.manifest.parquet")
    assert manifest.header["key"] == "who"
    with pqindex.Reader(manifest) as reader:
        assert reader[0].column_names == ["seq_id", "t", "x"]


def test_a_typed_partition_key_has_its_type_and_spans_row_groups(tmp_path: Path) -> None:
    (tmp_path / "d/n=07").mkdir(parents=True)
    table = pa.table({"t": list(range(6)), "x": [0.5] * 6})
    pq.write_table(table, tmp_path / "d/n=07/a.parquet", row_group_size=2)
    index = pqindex.build(tmp_path / "d", key="n", order="t", partition_types={"n": "int32"})
    assert index.sql("SELECT seq_id, n_segments FROM index").to_pylist() == [{"seq_id": 7, "n_segments": 3}]
    assert index.select().seq_ids.type == pa.int32()
    assert index.sql("SELECT key_min, key_exact FROM row_groups")["key_min"].to_pylist() == [7, 7, 7]
    with pytest.raises(ColumnTypeError, match="is no bool"):
        pqindex.build(tmp_path / "d", key="n", partition_types={"n": "bool"})
    with pytest.raises(ColumnTypeError, match="partition 'n' cannot name sequences"):
        pqindex.build(tmp_path / "d", key="n", partition_types={"n": "float64"})


def test_a_partition_key_is_checked_as_any_key(tmp_path: Path) -> None:
    write(tmp_path / "d", "who=a/1.parquet", 1)
    write(tmp_path / "d", "who=a/2.parquet", 2)
    with pytest.raises(FragmentedSequenceError, match=r"'a' at who=a/1.parquet.* and who=a/2.parquet"):
        pqindex.build(tmp_path / "d", key="who", order="t")
    with pytest.raises(NotIncreasingError):
        pqindex.build(tmp_path / "d", key="who", order="t", join=True)
    write(tmp_path / "e", "who=__HIVE_DEFAULT_PARTITION__/1.parquet", 1)
    write(tmp_path / "e", "who=b/1.parquet", 1)
    with pytest.raises(NullKeyError, match="2 rows have no 'who'"):
        pqindex.build(tmp_path / "e", key="who")
    index = pqindex.build(tmp_path / "e", key="who", skip_null_keys=True)
    assert index.select().seq_ids.to_pylist() == ["b"]
    assert index.info()["totals"]["n_skipped_rows"] == 2
    write(tmp_path / "e", "plain.parquet", 1)
    with pytest.raises(ColumnMissingError, match=r"key column 'who' is missing: plain.parquet"):
        pqindex.build(tmp_path / "e", key="who", skip_null_keys=True)


def test_the_command_types_partitions(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("d"), "year=2020/a=b=c/a.parquet", 1)
    assert main(["build", "d", "--partition-type", "year=int64"]) == 0
    assert main(["query", "d.pqindex", "SELECT year + 1 AS next, a FROM index", "--format", "csv"]) == 0
    assert capfdbinary.readouterr().out.decode().splitlines()[-1] == '2021,"b=c"'
    for words in (["year"], ["year=int64", "--partition-type", "year=int32"], ["year=int63"]):
        assert main(["build", "d", "--partition-type", *words]) == 2
        assert "error: " in capfdbinary.readouterr().err.decode()


def test_hive_partitions_of_a_path() -> None:
    assert hive_partition("a=1/b=__HIVE_DEFAULT_PARTITION__/=x/c=/d=%252F/a=2/e=1.parquet") == [
        ("a", "2"),
        ("b", None),
        ("c", ""),
        ("d", "%2F"),
    ]
    assert TYPES["timestamp[us]"] == pa.timestamp("us")
