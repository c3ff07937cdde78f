"""Building: what a sequence is, what is refused and how it is said, and what a commit leaves."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import workers
from pqindex.errors import (
    BadFileError,
    ColumnMissingError,
    ColumnTypeError,
    ConflictError,
    EmptySourceError,
    FragmentedSequenceError,
    MixedRowGroupError,
    NotIncreasingError,
    NullKeyError,
    QueryError,
    UsageError,
)
from pqindex.scan import ScanBatch, ScanOptions, scan_files

Groups = Sequence[Sequence[Any]]


@pytest.fixture
def data(tmp_path: Path) -> Callable[..., Path]:
    """Write files of row groups; a group is a list of (key, t)."""

    def write(
        files: dict[str, Groups], key_type: pa.DataType | None = None, t_type: pa.DataType | None = None
    ) -> Path:
        for name, groups in files.items():
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            tables = [
                pa.table(
                    {
                        "seq_id": pa.array([key for key, _ in group], key_type or pa.int64()),
                        "t": pa.array([t for _, t in group], t_type or pa.int64()),
                    }
                )
                for group in groups
            ]
            with pq.ParquetWriter(path, tables[0].schema) as writer:
                for table in tables:
                    writer.write_table(table, row_group_size=max(1, table.num_rows))
        return tmp_path / "data"

    return write


def places(index: pqindex.Index) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for row in index.sql(
            "SELECT seq_id, file, row_group, row_start, row_count, n_segments FROM index ORDER BY seq_no"
        ).to_pylist()
    ]


def rows(key: Any, n: int, start: int = 0) -> list[tuple[Any, int]]:
    return [(key, start + i) for i in range(n)]


# -- what a sequence is ---------------------------------------------------------------------------------------


def test_the_fixture_of_the_lesson_L22(data: Callable[..., Path]) -> None:
    index = pqindex.build(data({"a.parquet": [rows(17, 3), rows(23, 4)]}), order="t")
    assert places(index) == [(17, "a.parquet", 0, 0, 3, 1), (23, "a.parquet", 1, 0, 4, 1)]
    assert index.report["notes"] == []


def test_a_group_of_several_is_cut_at_true_boundaries_L9_L27_L28(data: Callable[..., Path]) -> None:
    index = pqindex.build(data({"a.parquet": [rows(5, 2) + rows(-1, 3) + rows(9, 1)]}), order="t")
    assert places(index) == [
        (5, "a.parquet", 0, 0, 2, 1),
        (-1, "a.parquet", 0, 2, 3, 1),
        (9, "a.parquet", 0, 5, 1, 1),
    ]


def test_a_sequence_goes_on_over_groups_and_empty_groups_L8_L26_case_42(data: Callable[..., Path]) -> None:
    groups = [rows(1, 2), [], rows(1, 3, 2) + rows(2, 1), [], rows(2, 4, 1)]
    index = pqindex.build(data({"a.parquet": groups}), order="t")
    assert places(index) == [(1, "a.parquet", 0, 0, 5, 2), (2, "a.parquet", 2, 3, 5, 2)]
    assert index.sql("SELECT * FROM segments ORDER BY seq_no, segment").select(
        ["seq_id", "segment", "row_group", "row_start", "row_stop"]
    ).to_pylist() == [
        {"seq_id": 1, "segment": 0, "row_group": 0, "row_start": 0, "row_stop": 2},
        {"seq_id": 1, "segment": 1, "row_group": 2, "row_start": 0, "row_stop": 3},
        {"seq_id": 2, "segment": 0, "row_group": 2, "row_start": 3, "row_stop": 4},
        {"seq_id": 2, "segment": 1, "row_group": 4, "row_start": 0, "row_stop": 4},
    ]


def test_counts_and_groups_are_each_files_own_T1_case_43(data: Callable[..., Path]) -> None:
    files = {
        "b.parquet": [rows(1, 5)],
        "a.parquet": [rows(2, 1), rows(3, 2), rows(4, 7)],
        "c.parquet": [rows(5, 3), rows(6, 1)],
    }
    index = pqindex.build(data(files), order="t")
    assert [row[:3] for row in places(index)] == [
        (2, "a.parquet", 0),
        (3, "a.parquet", 1),
        (4, "a.parquet", 2),
        (1, "b.parquet", 0),
        (5, "c.parquet", 0),
        (6, "c.parquet", 1),
    ]
    assert (index.n_rows, index.n_files, index.n_sequences) == (19, 3, 6)


def test_join_puts_pieces_in_the_order_columns_order(data: Callable[..., Path]) -> None:
    files = {
        "a.parquet": [rows(1, 2, 10) + rows(2, 1), rows(1, 2, 4)],
        "b.parquet": [rows(1, 3, 6) + rows(3, 1)],
    }
    source = data(files)
    with pytest.raises(FragmentedSequenceError) as caught:
        pqindex.build(source, order="t")
    assert caught.value.places == ("1 at a.parquet#0[0:2] and a.parquet#1[0:2] and b.parquet#0[0:3]",)
    assert "--join" in str(caught.value)
    index = pqindex.build(source, order="t", join=True)
    with pqindex.Reader(index.select("SELECT seq_id FROM index WHERE seq_id = 1")) as reader:
        assert reader[0].column("t").to_pylist() == [4, 5, 6, 7, 8, 10, 11]


def test_join_needs_an_order_and_refuses_overlap(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 5)], "b.parquet": [rows(1, 5, 3)]})
    with pytest.raises(UsageError, match="--order"):
        pqindex.build(source, join=True)
    with pytest.raises(NotIncreasingError, match=r"b.parquet#0\[0:5\] 3 after 4"):
        pqindex.build(source, order="t", join=True)


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (pa.int64(), [2**53, 2**53 + 1, -5]),
        (pa.uint32(), [4294967295, 0, 1]),
        (pa.uint64(), [2**63 + 5, 2**63 + 6, 1]),
        (pa.string(), ["x" * 100 + "a", "x" * 100 + "b", ""]),
        (pa.binary(), [b"\xff" * 70, b"\xff" * 70 + b"\0", b""]),
        (pa.binary(16), [bytes(16), b"\xff" * 16, bytes(15) + b"\1"]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
        (pa.timestamp("ns"), [dt.datetime(1700, 1, 1), dt.datetime(2260, 1, 1), dt.datetime(1970, 1, 1)]),  # noqa: DTZ001
        (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "c"]),
        (pa.large_string(), ["b", "a", "c"]),
    ],
)
@pytest.mark.parametrize("statistics", [True, False])
def test_ids_compare_exactly_T30_T34_case_10_12_22_98(
    tmp_path: Path, key_type: pa.DataType, keys: list[Any], statistics: bool
) -> None:
    (tmp_path / "data").mkdir()
    schema = pa.schema([("seq_id", key_type), ("v", pa.int8())])
    with pq.ParquetWriter(tmp_path / "data/a.parquet", schema, write_statistics=statistics) as writer:
        for key in keys:
            plain = pa.array([key] * 2, key_type.value_type if pa.types.is_dictionary(key_type) else key_type)
            writer.write_table(pa.table([plain.cast(key_type), pa.array([1, 2], pa.int8())], schema=schema))
    index = pqindex.build(tmp_path / "data")
    assert index.select().seq_ids.to_pylist() == pa.array(keys, index.select().seq_ids.type).to_pylist()
    assert index.select().row_counts.tolist() == [2, 2, 2]


# -- what is refused ------------------------------------------------------------------------------------------


def test_null_keys_are_named_with_the_remedy_L10(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 2), [(None, 0), (None, 1)], [*rows(2, 1), (None, 1), *rows(3, 1)]]})
    with pytest.raises(NullKeyError) as caught:
        pqindex.build(source, order="t")
    error = caught.value
    assert error.places == ("a.parquet#1[0:2] null", "a.parquet#2[1:2] null")
    assert (error.file, error.row_group, error.reason) == ("a.parquet", 1, "null-key")
    assert "3 rows have no 'seq_id'" in str(error)
    assert "--skip-null-keys" in str(error)
    index = pqindex.build(source, order="t", skip_null_keys=True)
    assert [row[0] for row in places(index)] == [1, 2, 3]
    assert "3 rows without a key were passed over" in index.report["notes"]


def test_an_all_null_key_is_no_sequence(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [[(None, 0), (None, 1)]]})
    with pytest.raises(NullKeyError):
        pqindex.build(source)
    assert len(pqindex.build(source, skip_null_keys=True)) == 0


def test_the_first_ten_places_and_the_number_of_all(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(i % 15, 1, i) for i in range(30)]})
    with pytest.raises(FragmentedSequenceError) as caught:
        pqindex.build(source, order="t")
    assert (len(caught.value.places), caught.value.n_places) == (10, 15)
    assert "and 5 more" in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "says", "bounds_say"),
    [
        ([0, 1, 1], "a.parquet#0[2:3] 1 after 1", "a.parquet#0[0:3] only 0 to 1"),
        ([0, 2, 1], "a.parquet#0[2:3] 1 after 2", None),
        ([None, 1, 2], "a.parquet#0[0:1] None", "a.parquet#0[0:3] only 1 to 2"),
        ([0, None, 2], "a.parquet#0[1:2] None after 0", None),
        ([-(2**63), 2**63 - 1, 0], "a.parquet#0[2:3] 0 after 9223372036854775807", None),
    ],
)
def test_steps_strictly_increase_L1_L10(
    data: Callable[..., Path], steps: list[int | None], says: str, bounds_say: str | None
) -> None:
    source = data({"a.parquet": [[(7, step) for step in steps]]})
    with pytest.raises(NotIncreasingError) as caught:
        pqindex.build(source, order="t")
    assert caught.value.places[0] == says
    assert pqindex.build(source).n_sequences == 1
    by_bounds = {"order": "t", "check": "footer", "index": source.parent / "footer.pqindex"}
    if bounds_say is None:
        index = pqindex.build(source, **by_bounds)
        assert "that 't' increases inside row groups was not proved (check: footer)" in index.report["notes"]
        assert index.sql("SELECT proved.order AS o FROM index").column("o").to_pylist() == [False]
    else:
        with pytest.raises(NotIncreasingError) as caught:
            pqindex.build(source, **by_bounds)
        assert caught.value.places == (bounds_say,)


def test_bounds_that_fall_over_groups_are_an_error_without_reading(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [[(1, 0), (1, 3)], [(1, 1), (1, 2)]]})
    with pytest.raises(NotIncreasingError, match=r"a.parquet#1\[0:2\] 1 after 3"):
        pqindex.build(source, order="t", check="footer")


@pytest.mark.parametrize("names", [["f", "F"], ["é", "É"]])
def test_columns_that_differ_only_in_case_give_no_statistics_T28(tmp_path: Path, names: list[str]) -> None:
    """SQL does not tell them apart inside `stats`, and would answer with the wrong one."""
    table = pa.table({"seq_id": [1, 2], names[0]: [1.0, 2.0], names[1]: [100.0, 200.0], "g": [5, 6]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    index = pqindex.build(tmp_path / "a.parquet")
    assert any("differ only in letter case" in note for note in index.report["notes"])
    with pytest.raises(QueryError):
        index.sql(f'SELECT stats."{names[1]}".max FROM index')
    assert index.sql("SELECT stats.g.max AS g FROM index ORDER BY seq_id").column("g").to_pylist() == [5, 6]
    with pqindex.Reader(index.select(), columns=[names[1]]) as reader:
        assert reader[0].to_pydict() == {names[1]: [100.0]}


def test_what_statistics_do_not_tell_is_noted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seq_id": [1, 1, 2], "v": [1, 2, 3]}), tmp_path / "shared.parquet")
    assert any(
        "`stats` is null for 2 of 2 sequences" in n
        for n in pqindex.build(tmp_path / "shared.parquet").report["notes"]
    )
    with pytest.raises(ColumnMissingError, match=r"statistics column 'w' is in no file"):
        pqindex.build(tmp_path / "shared.parquet", statistics=["w"])
    with pytest.raises(UsageError, match="list of names"):
        pqindex.build(tmp_path / "shared.parquet", statistics="v")


def test_a_link_that_leads_nowhere_is_a_bad_file(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 2)]})
    (source / "b.parquet").symlink_to("nowhere.parquet")
    with pytest.raises(BadFileError, match=r"link that leads nowhere.*nowhere.parquet"):
        pqindex.build(source)
    assert pqindex.build(source, on_bad_file="skip").report["skipped"][0]["path"] == "b.parquet"


def test_sources_that_are_none(tmp_path: Path, data: Callable[..., Path]) -> None:
    index = pqindex.build(data({"a.parquet": [rows(1, 2)]}))
    with pytest.raises(UsageError, match="is an index itself"):
        pqindex.build(index.path)
    with pytest.raises(UsageError, match="object store"):
        pqindex.build("s3://bucket/data")
    with pytest.raises(pqindex.NotFoundError, match=r"did you mean .*data.pqindex\?"):
        pqindex.open(tmp_path / "data")
    with pytest.raises(pqindex.NotFoundError, match="root of the source files"):
        pqindex.open(index.path, root=tmp_path / "nowhere")


def test_nan_steps_are_an_error_and_string_steps_are_refused_L10(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [[(7, 0.0), (7, float("nan")), (7, 2.0)]]}, t_type=pa.float64())
    with pytest.raises(NotIncreasingError, match=r"nan after 0.0"):
        pqindex.build(source, order="t")
    one = data({"a.parquet": [[(7, float("nan"))]]}, t_type=pa.float64())
    with pytest.raises(NotIncreasingError):
        pqindex.build(one, order="t")
    text = data({"a.parquet": [[(7, "1"), (7, "2")]]}, t_type=pa.string())
    with pytest.raises(ColumnTypeError, match="expected a number or a time column, found string"):
        pqindex.build(text, order="t")


def test_steps_increase_over_the_border_of_groups_T19(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 3), rows(1, 2, 2)]})
    with pytest.raises(NotIncreasingError, match=r"a.parquet#1\[0:2\] 2 after 2"):
        pqindex.build(source, order="t")


def test_the_strict_layout_is_checked_never_assumed_L1_L9_L25(data: Callable[..., Path]) -> None:
    good = data({"a.parquet": [rows(1, 3), [], rows(2, 2)]})
    assert pqindex.build(good, order="t", layout="one-per-row-group").n_sequences == 2
    bad = data({"b.parquet": [rows(3, 1) + rows(4, 1)], "c.parquet": [rows(5, 2), rows(5, 1, 2)]})
    with pytest.raises(MixedRowGroupError) as caught:
        pqindex.build(bad, order="t", layout="one-per-row-group", index=bad.parent / "strict.pqindex")
    assert caught.value.places == (
        "b.parquet#0[0:1] sequence 3 shares the row group",
        "b.parquet#0[1:2] sequence 4 shares the row group",
        "c.parquet#0[0:2] sequence 5 goes on elsewhere",
        "c.parquet#1[0:1] sequence 5 goes on elsewhere",
    )


def test_ids_that_repeat_across_files_are_an_error_case_20(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(0, 2)], "copy/a.parquet": [rows(0, 2)]})
    with pytest.raises(FragmentedSequenceError, match="two recordings use the same ids"):
        pqindex.build(source, order="t")


def test_columns_that_are_missing_are_named_with_near_names_L12_L15(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 2)]})
    with pytest.raises(
        ColumnMissingError, match=r"'seqid' is missing: a.parquet. Hint: did you mean 'seq_id'\? .*--key"
    ):
        pqindex.build(source, key="seqid")
    with pytest.raises(ColumnMissingError, match="order column 'zzz' is missing"):
        pqindex.build(source, order="zzz")
    with pytest.raises(ColumnMissingError, match="did you mean 'seq_id'"):
        pqindex.build(source, key="SEQ_ID")


def test_floats_and_nested_columns_cannot_be_keys(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": [1.0], "l": [[1]], "s": [{"a": 1}]}), tmp_path / "a.parquet")
    for key in ("f", "l", "s"):
        with pytest.raises(ColumnTypeError, match=f"key column '{key}' cannot be used: a.parquet"):
            pqindex.build(tmp_path / "a.parquet", key=key)


def test_types_widen_over_files_or_are_refused_by_name_case_5(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    pq.write_table(
        pa.table({"seq_id": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32())}), source / "a.parquet"
    )
    pq.write_table(
        pa.table({"seq_id": pa.array([2**40], pa.int64()), "v": pa.array(["x"])}), source / "b.parquet"
    )
    index = pqindex.build(source)
    assert index.select().seq_ids.equals(pa.array([1, 2**40], pa.int64()))
    assert any("no statistics: column 'v'" in note for note in index.report["notes"])
    pq.write_table(pa.table({"seq_id": pa.array(["x"])}), source / "c.parquet")
    with pytest.raises(ColumnTypeError, match=r"int64 in .*string in c.parquet"):
        pqindex.build(source)


@pytest.mark.parametrize("name", ["a.parquet", "z.parquet"])
def test_an_all_null_column_of_type_null_changes_nothing_case_1(tmp_path: Path, name: str) -> None:
    source = tmp_path / "data"
    source.mkdir()
    pq.write_table(pa.table({"seq_id": [1], "note": ["x"]}), source / "m.parquet")
    pq.write_table(pa.table({"seq_id": [2], "note": pa.nulls(1)}), source / name)
    selection = pqindex.build(source).select(
        "SELECT seq_id, stats.note.min AS low FROM index ORDER BY seq_id"
    )
    assert selection.extra.column("low").to_pylist() == ["x", None]
    with pqindex.Reader(selection, columns=["note"]) as reader:
        assert reader.schema.field("note").type == pa.string()
        assert [reader[i].column("note").to_pylist() for i in range(2)] == [["x"], [None]]


def test_leading_zeros_and_types_in_paths_stay_text_case_7_8(tmp_path: Path) -> None:
    for code, seq_id in (("01001", 1), ("2A001", 2), ("__HIVE_DEFAULT_PARTITION__", 3), ("A%2FB", 4)):
        folder = tmp_path / "data" / f"code={code}" / "seq_id=9"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"seq_id": [seq_id]}), folder / "p.parquet")
    index = pqindex.build(tmp_path / "data")
    answer = index.sql(
        "SELECT seq_id, partition.code AS code, partition.seq_id AS path_id FROM index ORDER BY seq_id"
    )
    assert answer.column("code").to_pylist() == ["01001", "2A001", None, "A/B"]
    assert answer.column("path_id").to_pylist() == ["9"] * 4
    assert any("'seq_id' is both a folder name and a column" in note for note in index.report["notes"])
    with pytest.raises(NullKeyError, match=r"1 rows have no 'code': code=__HIVE_DEFAULT_PARTITION__"):
        pqindex.build(tmp_path / "data", key="code")


# -- bad files ------------------------------------------------------------------------------------------------


def test_bad_files_are_an_error_or_skipped_and_recorded_T23_case_37_52(data: Callable[..., Path]) -> None:
    source = data({f"{i}.parquet": [rows(i, 2)] for i in range(9)})
    whole = (source / "0.parquet").read_bytes()
    (source / "torn.parquet").write_bytes(whole[:-20])
    (source / "zero.parquet").write_bytes(b"")
    with pytest.raises(BadFileError) as caught:
        pqindex.build(source)
    assert "2 of 11 files cannot be indexed" in str(caught.value)
    assert caught.value.files == ("torn.parquet", "zero.parquet")
    assert "--on-bad-file skip" in str(caught.value)
    index = pqindex.build(source, on_bad_file="skip")
    assert index.n_sequences == 9
    assert [(s["path"], s["reason"]) for s in index.report["skipped"]] == [
        ("torn.parquet", "bad-file"),
        ("zero.parquet", "bad-file"),
    ]


def test_a_source_of_bad_files_only_is_an_error_in_either_mode(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    for mode in ("error", "skip"):
        with pytest.raises(BadFileError, match=r"a.parquet"):
            pqindex.build(tmp_path / "a.parquet", on_bad_file=mode)
    assert not (tmp_path / "a.pqindex").exists()


def test_a_file_cut_at_every_offset_is_named_case_37(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seq_id": [1, 1], "x": [1.0, 2.0]}), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.parquet").write_bytes(whole[:length])
        with pytest.raises(BadFileError, match=r"cut.parquet"):
            pqindex.build(tmp_path / "cut.parquet", index=tmp_path / "i.pqindex")


# -- options and commits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"check": "all"},
        {"unit": "column"},
        {"layout": "x"},
        {"on_bad_file": "ignore"},
        {"workers": 0},
        {"order": "seq_id"},
        {"key": 1},
        {"workers": 1.5},
        {"pages": "some"},
    ],
)
def test_options_that_make_no_sense_are_refused(data: Callable[..., Path], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        pqindex.build(data({"a.parquet": [rows(1, 2)]}), **options)


def test_an_empty_source_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(EmptySourceError):
        pqindex.build(tmp_path / "data")


def test_a_second_build_gives_the_same_index_and_a_changed_source_a_new_snapshot(
    data: Callable[..., Path],
) -> None:
    source = data({"a.parquet": [rows(1, 2)]})
    first = pqindex.build(source, order="t")
    assert (first.path, first.snapshot) == (f"{source}.pqindex", 1)
    assert pqindex.build(source, order="t").snapshot == 1
    data({"b.parquet": [rows(2, 2)]})
    second = pqindex.build(source, order="t")
    assert (second.snapshot, second.n_sequences) == (2, 2)
    assert [s["n_sequences"] for s in second.snapshots()] == [1, 2]
    assert (
        pqindex.open(first.path, snapshot=1).content_digest == first.content_digest != second.content_digest
    )
    assert not [name for name in os.listdir(first.path) if name.startswith(".tmp-")]


def test_the_digest_is_the_contents_own_T25(data: Callable[..., Path], tmp_path: Path) -> None:
    files = {f"{i:02}/p.parquet": [rows(i * 2, 2), rows(i * 2 + 1, 3)] for i in range(40)}
    source = data(files)
    first = pqindex.build(source, order="t", workers=1)
    parts = {
        name: (Path(first.path) / "parts" / name).read_bytes()
        for name in os.listdir(Path(first.path) / "parts")
    }
    elsewhere = tmp_path / "else where" / "copy"
    shutil.copytree(source, elsewhere)
    for path in elsewhere.rglob("*.parquet"):
        os.utime(path, ns=(1, 1))
    second = pqindex.build(elsewhere, order="t", workers=2)
    assert second.content_digest == first.content_digest
    again = pqindex.build(source, order="t", workers=2, index=tmp_path / "again.pqindex")
    assert {p.name: p.read_bytes() for p in (Path(again.path) / "parts").iterdir()} == parts


def test_the_place_of_an_index_is_not_taken_from_others(data: Callable[..., Path], tmp_path: Path) -> None:
    source = data({"a.parquet": [rows(1, 2)]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("all of it")
    with pytest.raises(ConflictError, match=r"thesis.txt"):
        pqindex.build(source, index=tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConflictError):
        pqindex.build(source, index=tmp_path / "file")


def test_default_place_of_the_index(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 2)]})
    assert pqindex.build(source / "a.parquet").path == str(source / "a.pqindex")
    assert pqindex.build(str(source / "*.parquet")).path == f"{source}.pqindex"


def test_a_part_of_a_source_never_takes_the_place_of_the_whole(data: Callable[..., Path]) -> None:
    source = data({"a.parquet": [rows(1, 2)], "b.parquet": [rows(2, 2)]})
    whole = pqindex.build(source)
    for part in ([source / "a.parquet"], str(source / "a*.parquet")):
        with pytest.raises(
            ConflictError, match=r"it was made of a folder, and this is a (list|glob a\*.parquet).*-o"
        ):
            pqindex.build(part)
    with pytest.raises(ConflictError):
        pqindex.build(source, files=["a.parquet"])
    assert pqindex.open(whole.path).n_sequences == 2
    assert pqindex.build([source / "a.parquet"], index=source.parent / "a.pqindex").n_sequences == 1


def test_statistics_are_of_whole_groups_and_chosen_columns_case_102(tmp_path: Path) -> None:
    wide = pa.table({"seq_id": [1, 1], **{f"c{i}": [i, i + 1] for i in range(70)}})
    pq.write_table(wide, tmp_path / "wide.parquet")
    schema = pqindex.build(tmp_path / "wide.parquet").sql("SELECT * FROM index").schema
    assert "stats" not in schema.names
    chosen = pqindex.build(tmp_path / "wide.parquet", statistics=["c3", "c69"])
    assert chosen.sql("SELECT stats.c69.max AS high, stats.c3.null_count AS n FROM index").to_pylist() == [
        {"high": 70, "n": 0}
    ]
    shared = pa.table({"seq_id": [1, 1, 2], "v": [1, 2, 3]})
    pq.write_table(shared, tmp_path / "shared.parquet")
    assert pqindex.build(tmp_path / "shared.parquet").sql("SELECT stats FROM index").column(
        0
    ).to_pylist() == [None, None]


def test_progress_is_told(data: Callable[..., Path]) -> None:
    told: list[tuple[int, int, str]] = []
    source = data({f"{i}.parquet": [rows(i, 2)] for i in range(5)})
    pqindex.build(source, workers=1, progress=lambda *state: told.append(state))
    assert told[-1] == (5, 5, "write")
    assert [done for done, _, phase in told if phase == "scan"] == sorted(
        done for done, _, phase in told if phase == "scan"
    )


def test_a_process_that_dies_names_the_file_case_38(
    data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A death that no `except` sees, as a library's fault or the kernel's memory killer bring it."""
    source = data({f"{i:02}.parquet": [rows(i, 2)] for i in range(11, 15)})
    monkeypatch.setattr(workers, "_scan_batch", _dying_scan)
    with pytest.raises(BadFileError, match=r"1 of 4 files .*ended the process.*: 13.parquet"):
        pqindex.build(source, workers=2)
    index = pqindex.build(source, workers=2, on_bad_file="skip")
    assert index.n_sequences == 3
    assert [s["path"] for s in index.report["skipped"]] == ["13.parquet"]


def _dying_scan(root: str, task: tuple[tuple[str, ...], ScanOptions]) -> ScanBatch:
    paths, options = task
    if "13.parquet" in paths:
        os._exit(9)
    return scan_files(root, paths, options)


_dying_scan.__module__ = "__main__"  # so that it is sent by value


def test_large_sources_get_processes_by_themselves(
    data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = data({f"{i:02}.parquet": [rows(i, 2)] for i in range(40)})
    alone = pqindex.build(source, workers=1)
    monkeypatch.setattr(workers, "PROBE_S", 0.0)
    monkeypatch.setattr(workers, "WORTH_PROCESSES_S", 0.0)
    monkeypatch.setattr(importlib.import_module("pqindex.build"), "n_cores", lambda: 2)
    helped = pqindex.build(source, index=source.parent / "helped.pqindex")
    assert helped.content_digest == alone.content_digest


@pytest.mark.parametrize("options", [{"order": "t"}, {"order": "t", "check": "footer"}, {"pages": "always"}])
def test_ranges_of_row_groups_of_a_big_file_are_the_file(
    data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """What processes read of one file, a range each, is what one process reads of it: runs, pages, joined pieces."""
    mixed = [rows(i, 3) + rows(i + 100, 2) for i in range(20)]  # each group has two keys
    whole = [rows(i + 200, 4) for i in range(10)]
    straddling = [rows(300, 2), rows(300, 2, 2), rows(300, 1, 4)]
    source = data(
        {
            "a.parquet": [rows(900, 2)],
            "b.parquet": [*mixed, *straddling, *whole],
            "c.parquet": [rows(901, 1)],
        }
    )
    build = importlib.import_module("pqindex.build")
    alone = pqindex.build(source, workers=1, index=source.parent / "1.pqindex", **options)
    monkeypatch.setattr(build, "RANGE_WEIGHT", 3)
    monkeypatch.setattr(workers, "WORTH_PROCESSES_S", 1e9)  # the ranges are cut, and read here
    cut = pqindex.build(source, index=source.parent / "2.pqindex", **options)
    assert places(cut) == places(alone)
    assert cut.content_digest == alone.content_digest
    assert cut._sidecar.snapshot.parts == alone._sidecar.snapshot.parts
    monkeypatch.setattr(workers, "WORTH_PROCESSES_S", 0.0)
    monkeypatch.setattr(workers, "PROBE_S", 0.0)
    processes = pqindex.build(source, workers=2, index=source.parent / "3.pqindex", **options)
    assert processes._sidecar.snapshot.parts == alone._sidecar.snapshot.parts


def test_faults_in_ranges_are_those_of_the_file(
    data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Null keys and steps that fall are named in the order of the places; a torn page leaves the whole file out."""
    monkeypatch.setattr(importlib.import_module("pqindex.build"), "RANGE_WEIGHT", 2)
    monkeypatch.setattr(importlib.import_module("pqindex.build"), "n_cores", lambda: 2)
    groups = [[(i, 2), (i, 1), (i + 50, 0)] for i in range(12)]
    source = data({"a.parquet": [rows(900, 2)], "b.parquet": groups})
    with pytest.raises(
        NotIncreasingError, match=r"b\.parquet#0\[1:2\] 1 after 2; b\.parquet#1\[1:2\]"
    ) as caught:
        pqindex.build(source, order="t")
    assert caught.value.n_places == 12
    nulls = [[(None, 2), (i, 1)] for i in range(12)]
    source = data({"b.parquet": nulls})
    with pytest.raises(
        NullKeyError, match=r"12 rows have no 'seq_id': b\.parquet#0\[0:1\] null; b\.parquet#1"
    ):
        pqindex.build(source)
    source = data({"b.parquet": [rows(i, 3) + rows(i + 100, 2) for i in range(12)]})
    column = pq.ParquetFile(source / "b.parquet").metadata.row_group(9).column(0)
    raw = bytearray((source / "b.parquet").read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    raw[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    (source / "b.parquet").write_bytes(bytes(raw))
    with pytest.raises(BadFileError, match=r"b\.parquet"):
        pqindex.build(source)
    index = pqindex.build(source, on_bad_file="skip")
    assert [entry["path"] for entry in index.report["skipped"]] == ["b.parquet"]
    assert index.select().seq_ids.to_pylist() == [900]
