"""What a build says of the values: full checks, attributes, aggregates; what is refused and how; what is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import sql, storage
from pqindex.assemble import assemble
from pqindex.build import scan_source
from pqindex.cli import main
from pqindex.content import INDEX_COLUMNS, add_content, tasks, work
from pqindex.documents import BuildOptions, Snapshot
from pqindex.errors import (
    BadFileError,
    ColumnMissingError,
    ColumnTypeError,
    NotConstantError,
    QueryError,
    UsageError,
)
from pqindex.workers import run_tasks

Columns = dict[str, list[Any]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write files of row groups, each a dict of columns; the names give the types where values do not."""
    types = {"seq_id": pa.int64(), "t": pa.int64(), "x": pa.float64(), "label": pa.string(), "n": pa.int32()}

    def files(groups_of_files: dict[str, list[Columns]], **options: Any) -> Path:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for name, groups in groups_of_files.items():
            tables = [
                pa.table({c: pa.array(values, types.get(c)) for c, values in group.items()})
                for group in groups
            ]
            with pq.ParquetWriter(folder / name, tables[0].schema, **options) as writer:
                for table in tables:
                    writer.write_table(table, row_group_size=max(1, table.num_rows))
        return folder

    return files


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    reads: list[tuple[str, int, int]] = []
    original = storage.SourceFile.read

    def counted(self: storage.SourceFile, offset: int, length: int) -> bytes:
        reads.append((Path(self.path).name, offset, length))
        return original(self, offset, length)

    monkeypatch.setattr(storage.SourceFile, "read", counted)
    return reads


def group(*sequences: tuple[int, int], start: int = 0, **columns: Any) -> Columns:
    """A row group of (id, rows) with steps from `start`; other columns are functions of (id, step)."""
    keys = [(key, start + i) for key, n in sequences for i in range(n)]
    found: Columns = {"seq_id": [key for key, _ in keys], "t": [t for _, t in keys]}
    return found | {name: [function(*key) for key in keys] for name, function in columns.items()}


def label(key: int, _step: int) -> str:
    return f"l{key % 2}"


# -- attributes -----------------------------------------------------------------------------------------------


def test_attributes_are_columns_of_the_index_under_their_own_name(write: Callable[..., Path]) -> None:
    source = write(
        {
            "a.parquet": [group((1, 2), (2, 3), label=label), group((2, 2), start=3, label=label)],
            "b.parquet": [group((3, 1), label=lambda *_: None)],
        }
    )
    index = pqindex.build(source, order="t", attributes=["label"])
    rows = index.sql("SELECT seq_id, label, stats FROM index WHERE label IS DISTINCT FROM 'l0'").to_pylist()
    assert [(row["seq_id"], row["label"]) for row in rows] == [(1, "l1"), (3, None)]
    manifest = index.select("SELECT seq_id, label FROM index WHERE label = 'l0'").pin(
        source.parent / "m.manifest.parquet"
    )
    assert manifest.to_table().to_pylist() == [{"seq_id": 2, "row_count": 5, "label": "l0"}]
    assert pqindex.open(index.path).sql("SELECT label FROM index").column(0).to_pylist() == ["l1", "l0", None]
    assert index.info()["options"]["attributes"] == ["label"]


def test_bounds_prove_an_attribute_without_reading_a_page(
    write: Callable[..., Path], touched: list[tuple[str, int, int]]
) -> None:
    """Where a group's bounds are equal and it has no null; the others are read, that one column alone."""
    source = write({"a.parquet": [group((1, 3), label=label), group((2, 3), label=label)]})
    footer = pq.read_metadata(source / "a.parquet")
    data_stop = source.joinpath("a.parquet").stat().st_size - footer.serialized_size - 8
    index = pqindex.build(source, attributes=["label"], workers=1)
    assert index.sql("SELECT label FROM index").column(0).to_pylist() == ["l1", "l0"]
    assert [read for read in touched if read[1] < data_stop] == []
    del touched[:]
    pqindex.build(source, attributes=["label"], workers=1, trust_statistics=False)
    pages = sorted({read[1:] for read in touched if read[1] < data_stop})
    expected = [
        (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
        for number in range(2)
        for chunk in (footer.row_group(number).column(0), footer.row_group(number).column(2))
    ]
    assert pages == sorted(expected)


def test_equal_bounds_prove_nothing_where_a_null_or_nan_may_be_case_25(write: Callable[..., Path]) -> None:
    source = write({"a.parquet": [group((1, 3), x=lambda _k, t: [1.0, math.nan, 1.0][t])]})
    with pytest.raises(NotConstantError, match=r"row 1; expected 1\.0, found nan"):
        pqindex.build(source, attributes=["x"])
    source = write({"a.parquet": [group((1, 3), label=lambda _k, t: ["a", "a", None][t])]})
    with pytest.raises(NotConstantError, match=r"row 2; expected 'a', found None"):
        pqindex.build(source, attributes=["label"])
    source = write({"a.parquet": [group((1, 3), x=lambda *_: math.nan)]})
    (found,) = pqindex.build(source, attributes=["x"]).sql("SELECT x FROM index").column(0).to_pylist()
    assert math.isnan(found)


def test_an_attribute_that_changes_is_an_error_with_its_place(write: Callable[..., Path]) -> None:
    source = write({"a.parquet": [group((4, 2), label=label), group((7, 3), label=lambda _k, t: "aab"[t])]})
    with pytest.raises(NotConstantError) as caught:
        pqindex.build(source, attributes=["label"])
    error = caught.value
    assert (error.file, error.row_group, error.row, error.column, error.seq_id) == (
        "a.parquet",
        1,
        2,
        "label",
        7,
    )
    assert str(error) == (
        "attribute 'label' is not constant inside sequence 7 (column 'seq_id'): a.parquet, row group 1, row 2; expected "
        "'a', found 'b'. Hint: leave the attribute out, or name an aggregate of it: --aggregate label=first(label), "
        'aggregates={"label": "first(label)"}'
    )
    # and over the border of row groups, both of which are constant
    source = write({"a.parquet": [group((7, 2), label=label), group((7, 2), start=2, label=lambda *_: None)]})
    with pytest.raises(NotConstantError, match=r"a\.parquet, row group 0 and a\.parquet, row group 1, row 0; expected 'l1', found None"):  # fmt: skip
        pqindex.build(source, attributes=["label"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"attributes": ["Row_Count"]}, UsageError, "the name 'Row_Count' of an attribute is taken"),
        ({"attributes": ["label", "label"]}, UsageError, "it is an attribute already"),
        ({"attributes": ["label"], "aggregates": {"LABEL": "count(*)"}}, UsageError, "it is an attribute already"),
        ({"aggregates": {"stats": "count(*)"}}, UsageError, "a column of every index"),
        ({"aggregates": {"": "count(*)"}}, UsageError, "an aggregate needs a name"),
        ({"attributes": "label"}, UsageError, "expected a list of names"),
        ({"attributes": [1]}, UsageError, "expected a list of names"),
        ({"aggregates": {"n": 1}}, UsageError, "expected expressions by name"),
        ({"aggregates": "avg(x)"}, UsageError, "expected expressions by name"),
        ({"attributes": ["labels"]}, ColumnMissingError, "did you mean 'label'?"),
        ({"attributes": ["zzz"]}, ColumnMissingError, "the files have 'seq_id', 't', 'label', 'l'"),
        ({"attributes": ["l"]}, ColumnTypeError, "expected a column without nesting, found list<int64>"),
        ({"aggregates": {"n": "sum(lebel)"}}, QueryError, "did you mean 'label'"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_are_refused(
    write: Callable[..., Path], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    source = write({"a.parquet": [group((1, 2), label=label, l=lambda *_: [1])]})
    with pytest.raises(error) as caught:
        pqindex.build(source, **options)
    assert message in str(caught.value)


def test_the_reserved_names_are_the_columns_of_the_relation(write: Callable[..., Path]) -> None:
    folder = write({"a.parquet": [group((1, 2), x=lambda *_: 1.0)]})
    (folder / "k=1").mkdir()
    (folder / "a.parquet").rename(folder / "k=1/a.parquet")
    index = pqindex.build(folder, order="t", check="full", attributes=["x"])
    assert INDEX_COLUMNS | {"x", "k"} == {
        *index.sql("SELECT * FROM index").column_names,
        "attributes",
        "aggregates",
    }


def test_the_column_of_owners_has_one_name() -> None:
    assert work.GROUP_COLUMN == sql.GROUP_COLUMN


@pytest.mark.parametrize(
    "data_type",
    [pa.float16(), pa.float32(), pa.bool_(), pa.date32(), pa.time32("ms"), pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.duration("ms"), pa.decimal128(9, 2), pa.decimal256(50, 3), pa.binary(), pa.binary(3), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.uint64(), pa.int8(), pa.null()],
    ids=str,
)  # fmt: skip
def test_attributes_of_every_flat_type(tmp_path: Path, data_type: pa.DataType) -> None:
    """Once where the bounds of row groups may prove them, once where they are read."""
    value: Any = 1
    plain = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    if pa.types.is_boolean(plain):
        value = True
    elif any(test(plain) for test in (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_string)):
        value = "é"
    elif pa.types.is_binary(plain) or pa.types.is_fixed_size_binary(plain):
        value = b"a\xffb"
    first = pa.array([None if pa.types.is_null(plain) else value] * 2 + [None] * 2, plain)
    if pa.types.is_dictionary(data_type):
        first = first.dictionary_encode().cast(data_type)
    table = pa.table({"seq_id": [1, 1, 2, 2], "a": first})
    for size in (2, 3):
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=size)
        index = pqindex.build(tmp_path / "a.parquet", attributes=["a"])
        found = index.sql("SELECT a IS NULL AS gone, CAST(a AS VARCHAR) AS text FROM index")
        assert found.column("gone").to_pylist() == [pa.types.is_null(plain), True]
        if value == "é":
            assert found.column("text")[0].as_py() == value


def test_files_may_lack_a_column_and_widen_its_type_case_1_3_5(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"seq_id": [1, 1], "v": pa.array([None, None]), "a": pa.array([5, 5], pa.int8())}), tmp_path / "data/a.parquet")  # fmt: skip
    pq.write_table(pa.table({"seq_id": [2, 2]}), tmp_path / "data/b.parquet")
    pq.write_table(pa.table({"seq_id": [3], "v": [2.5], "a": pa.array([2**40])}), tmp_path / "data/c.parquet")
    index = pqindex.build(
        tmp_path / "data", check="full", attributes=["a"], aggregates={"n": "count(v)", "top": "max(a)"}
    )
    found = index.sql("SELECT a, n, top, stats.v, proved.finite FROM index").to_pylist()
    assert [(row["a"], row["n"], row["top"], row["finite"]) for row in found] == [
        (5, 0, 5, True),
        (None, 0, None, False),
        (2**40, 1, 2**40, True),
    ]
    assert found[0]["v"]["null_count"] == 2
    assert found[1]["v"] is None
    assert any(
        "attribute 'a' is null in the files that have no such column" in n for n in index.report["notes"]
    )


# -- aggregates -----------------------------------------------------------------------------------------------


def test_aggregates_are_typed_columns_over_all_rows_of_a_sequence(write: Callable[..., Path]) -> None:
    source = write(
        {
            "a.parquet": [
                group((1, 2), (2, 1), n=lambda _k, t: t),
                group((2, 3), start=1, n=lambda _k, t: t),
            ],
            "b.parquet": [group((1, 2), start=2, n=lambda _k, t: t)],
        }
    )
    index = pqindex.build(
        source, order="t", join=True, aggregates={"total": "sum(n)", "steps": "list(t)", "mean_n": "avg(n)"}
    )
    table = pqindex.open(index.path).sql("SELECT seq_id, mean_n, steps, total FROM index")
    assert table.to_pylist() == [
        {"seq_id": 1, "mean_n": 1.5, "steps": [0, 1, 2, 3], "total": 6},
        {"seq_id": 2, "mean_n": 1.5, "steps": [0, 1, 2, 3], "total": 6},
    ]
    assert table.schema.types == [pa.int64(), pa.float64(), pa.list_(pa.int64()), pa.int64()]
    assert len(index.select("SELECT seq_id, total FROM index WHERE mean_n > 1 ORDER BY total")) == 2
    assert index.verify(deep=True).ok


def test_an_aggregate_that_fails_on_the_data_is_named(write: Callable[..., Path]) -> None:
    source = write({"a.parquet": [group((1, 2), label=label)]})
    with pytest.raises(QueryError, match=r"aggregate 'bad': .*Could not convert string 'l1'"):
        pqindex.build(source, aggregates={"bad": "sum(CAST(label AS BIGINT))"})


# -- full checks ----------------------------------------------------------------------------------------------


def test_full_reads_each_byte_of_the_chunks_once_and_no_other_check_reads_more(
    write: Callable[..., Path], touched: list[tuple[str, int, int]]
) -> None:
    source = write(
        {"a.parquet": [group((1, 30), x=lambda _k, t: t / 7), group((2, 40), x=lambda _k, t: t / 7)]}
    )
    footer = pq.read_metadata(source / "a.parquet")
    data_stop = (source / "a.parquet").stat().st_size - footer.serialized_size - 8
    pqindex.build(source, workers=1)
    assert [read for read in touched if read[1] < data_stop] == []
    del touched[:]
    pqindex.build(source, check="full", workers=1)
    keys = [
        (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
        for chunk in (footer.row_group(number).column(0) for number in range(2))
    ]
    pages = sorted(read[1:] for read in touched if read[1] < data_stop)
    for key in keys:  # the scan reads the keys, so that what is proved was read
        pages.remove(key)
    assert [start for start, _ in pages] == [4, 4 + pages[0][1]]
    assert sum(length for _, length in pages) == data_stop - 4


def test_full_believes_no_bounds(tmp_path: Path) -> None:
    """A file whose footer says that its keys are all 5, and they are not."""
    path = tmp_path / "a.parquet"
    table = pa.table({"seq_id": pa.array([5, 5, 6, 6], pa.int64()), "t": [0, 1, 0, 1]})
    pq.write_table(table, path, use_dictionary=False, compression="none")
    raw = path.read_bytes()
    six = (6).to_bytes(8, "little")
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    path.write_bytes(raw[:footer] + raw[footer:].replace(six, (5).to_bytes(8, "little")))
    assert pqindex.build(path, index=tmp_path / "keys").n_sequences == 1
    index = pqindex.build(path, check="full", index=tmp_path / "full")
    assert index.sql("SELECT seq_id, row_count, proved.key AS key FROM index").to_pylist() == [
        {"seq_id": 5, "row_count": 2, "key": True},
        {"seq_id": 6, "row_count": 2, "key": True},
    ]


def test_gaps_and_values_that_are_not_finite_are_said_T22(write: Callable[..., Path]) -> None:
    source = write(
        {"a.parquet": [group((1, 3), (2, 1), x=lambda k, t: math.inf if (k, t) == (1, 2) else 1.0)]}
    )
    table = pq.read_table(source / "a.parquet").set_column(1, "t", pa.array([0, 10, 90, 0]))
    pq.write_table(table, source / "a.parquet")
    index = pqindex.build(source, order="t", check="full")
    assert index.report["notes"] == [
        "1 of 2 sequences hold NaN or infinities (`proved.finite` is false)",
        (
            "1 gaps in 't', in 1 of 2 sequences (`order_gaps`): steps of more than one and a half times the sequence's "
            "median step"
        ),
    ]
    rows = index.sql("SELECT order_step_min, order_step_max, order_gaps, stats.x.inf_count AS inf FROM index")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [(10, 80, 1, 1), (None, None, None, 0)]


def test_empty_groups_and_rows_without_a_key_have_digests_too_L8(write: Callable[..., Path]) -> None:
    groups = [group((1, 2)), group(), {"seq_id": [None, 2], "t": [0, 0]}]
    index = pqindex.build(write({"a.parquet": groups}), check="full", skip_null_keys=True)
    digests = index.sql("SELECT data_sha256 FROM row_groups").column(0).to_pylist()
    assert [len(digest) for digest in digests] == [32, 32, 32]
    assert len(set(digests)) == 3
    assert index.verify(deep=True).n_compared == 3


def test_wide_files_have_no_statistics_and_are_not_called_finite_case_102(tmp_path: Path) -> None:
    wide = pa.table({"seq_id": [1, 1], **{f"c{i}": [float(i), math.nan] for i in range(70)}})
    pq.write_table(wide, tmp_path / "wide.parquet")
    index = pqindex.build(tmp_path / "wide.parquet", check="full")
    assert index.sql("SELECT proved.finite FROM index").column(0).to_pylist() == [False]
    index = pqindex.build(tmp_path / "wide.parquet", check="full", statistics=["c3"])
    assert index.sql("SELECT stats.c3.nan_count FROM index").column(0).to_pylist() == [1]


# -- processes, parts, identity -------------------------------------------------------------------------------

ASKED: dict[str, Any] = {
    "order": "t",
    "join": True,
    "check": "full",
    "attributes": ["label"],
    "aggregates": {"mean_x": "avg(x)", "ids": "list(t)"},
}


@pytest.fixture
def many(write: Callable[..., Path]) -> Path:
    def x(key: int, t: int) -> float:
        return (key * 7919 + t * 31) % 101 / 3

    columns = {"x": x, "label": label}
    files = {}
    for number in range(4):
        base = 10 * number
        files[f"{number}.parquet"] = [
            group((base, 5), (base + 1, 3), **columns),
            group((base + 1, 4), start=3, **columns),
            group((base + 2, 6), **columns),
        ]
    files["4.parquet"] = [group((0, 4), start=5, **columns)]
    return write(files)


def test_the_number_of_processes_does_not_matter(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_GROUPS", 2)
    alone, helped = (
        pqindex.build(many, index=many.parent / f"{n}.pqindex", workers=n, **ASKED) for n in (1, 2)
    )
    parts = [
        Snapshot.from_json(Path(index.path, "00000001.snapshot.json").read_bytes(), name="x").parts
        for index in (alone, helped)
    ]
    assert parts[0] == parts[1]
    assert alone.content_digest == helped.content_digest
    assert alone.verify(deep=True).ok


def test_files_that_are_closed_over_their_sequences_give_what_all_files_give(many: Path) -> None:
    """A refresh gives the files that changed alone."""
    options = BuildOptions(
        order="t",
        join=True,
        check="full",
        attributes=("label",),
        aggregates=tuple(ASKED["aggregates"].items()),
    )

    def content(*names: str) -> pa.Table:
        listing = storage.list_source(many, list(names))
        scan = scan_source(listing, listing.paths, options, workers=1)
        sequences, segments = assemble(scan, options)
        groups = scan.row_groups.append_column(
            "data_sha256", pa.nulls(scan.row_groups.num_rows, pa.binary(32))
        )
        tables = {"files": scan.files, "row_groups": groups, "sequences": sequences, "segments": segments}
        found = add_content(tables, scan.schemas, options, root=listing.root)
        assert not found.skipped
        return found.tables["sequences"].drop_columns(["file_id"]).sort_by("seq_id")

    whole = content(*(f"{n}.parquet" for n in range(5)))
    parts = [content("0.parquet", "4.parquet"), content("2.parquet"), content("1.parquet", "3.parquet")]
    assert pa.concat_tables(parts).sort_by("seq_id").equals(whole)


def test_what_was_asked_is_identity_and_stored(many: Path) -> None:
    first = pqindex.build(many, **ASKED)
    again = pqindex.build(many, **ASKED)
    assert (again.snapshot, again.content_digest) == (1, first.content_digest)
    other = pqindex.build(many, **{**ASKED, "aggregates": {"mean_x": "avg(x)"}})
    assert other.snapshot == 2
    assert other.content_digest != first.content_digest
    stored = json.loads(Path(first.path, "00000001.snapshot.json").read_bytes())["options"]
    assert (stored["attributes"], stored["aggregates"]) == (["label"], ASKED["aggregates"])
    assert BuildOptions.from_json(stored).to_json() == stored


def test_content_under_an_equal_footer_is_another_index(tmp_path: Path) -> None:
    """Values that the bounds do not show, of a file that has them: the footer is the same, byte for byte."""
    digests = []
    for middle in (1.0, 2.0):
        (tmp_path / "data").mkdir(exist_ok=True)
        table = pa.table({"seq_id": [1, 1, 1], "x": [0.0, middle, 3.0]})
        pq.write_table(table, tmp_path / "data/a.parquet", compression="none", use_dictionary=False)
        for check in ("keys", "full"):
            index = pqindex.build(tmp_path / "data", check=check, index=tmp_path / f"{check}.pqindex")
            digests.append(index.content_digest)
    assert digests[0] == digests[2]
    assert digests[1] != digests[3]


def test_progress_tells_of_content(many: Path) -> None:
    told: list[tuple[int, int, str]] = []
    pqindex.build(many, workers=1, progress=lambda *state: told.append(state), **ASKED)
    content = [(done, total) for done, total, phase in told if phase == "content"]
    assert content[-1][0] == content[-1][1] > 13
    assert content == sorted(content)


# -- bad files ------------------------------------------------------------------------------------------------


def torn(path: Path, column: int, row_group: int = 0) -> None:
    """Overwrite the pages of one chunk with nonsense; footer and size stay."""
    chunk = pq.read_metadata(path).row_group(row_group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "options", [{"check": "full"}, {"attributes": ["label"], "trust_statistics": False}, {"aggregates": {"n": "max(label)"}}]
)  # fmt: skip
def test_pages_that_are_torn_are_named_and_skipped_on_request_T23_case_52(
    many: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torn(many / "2.parquet", 3, row_group=2)
    with pytest.raises(BadFileError) as caught:
        pqindex.build(many, order="t", join=True, **options)
    assert (caught.value.file, caught.value.row_group, caught.value.column) == ("2.parquet", 2, "label")
    assert "2.parquet, row group 2, column 'label'" in str(caught.value)
    index = pqindex.build(many, order="t", join=True, on_bad_file="skip", **options)
    (skipped,) = index.report["skipped"]
    assert (skipped["path"], skipped["reason"]) == ("2.parquet", "bad-file")
    assert "row group 2, column 'label'" in skipped["message"]
    assert index.n_files == 4
    assert set(index.sql("SELECT seq_id FROM index").column(0).to_pylist()).isdisjoint({20, 21, 22})
    assert main(["info", index.path]) == 0
    assert "row group 2, column 'label'" in capsys.readouterr().out


def test_a_torn_key_or_order_column_is_named_too_T23(many: Path) -> None:
    for column, name in ((0, "seq_id"), (1, "t")):
        raw = (many / "1.parquet").read_bytes()
        torn(many / "1.parquet", column)
        with pytest.raises(BadFileError, match=rf"1\.parquet, row group 0, column '{name}'"):
            pqindex.build(many, order="t", join=True)
        (many / "1.parquet").write_bytes(raw)


def test_a_file_of_a_joined_sequence_is_skipped_as_if_it_were_not_there(many: Path) -> None:
    torn(many / "4.parquet", 2)
    index = pqindex.build(many, on_bad_file="skip", **ASKED)
    (row,) = index.sql("SELECT row_count, n_segments, ids FROM index WHERE seq_id = 0").to_pylist()
    assert row == {"row_count": 5, "n_segments": 1, "ids": [0, 1, 2, 3, 4]}
    for path in many.iterdir():
        torn(path, 2)
    with pytest.raises(BadFileError, match="5 of 5 files cannot be indexed"):
        pqindex.build(many, on_bad_file="skip", **ASKED)


def test_a_file_that_changes_under_the_build_is_said(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def and_write(*args: Any, **kwargs: Any) -> Any:
        pq.write_table(pa.table({"seq_id": [0], "t": [0], "x": [0.0], "label": ["a"]}), many / "0.parquet")
        yield from run_tasks(*args, **kwargs)

    monkeypatch.setattr("pqindex.content.adding.run_tasks", and_write)
    with pytest.raises(pqindex.SourceChangedError, match=r"was changed while it was read: 0\.parquet"):
        pqindex.build(many, workers=1, **ASKED)


# -- the command line -----------------------------------------------------------------------------------------


def test_the_command_passes_all_of_it_on(
    many: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(many.parent)
    words = ["build", "data", "--order", "t", "--join", "--check", "full", "--attribute", "label"]
    words += ["--aggregate", "mean_x=avg(x)", "--aggregate", "big = max(x) = 3"]
    assert main(words) == 0
    capsys.readouterr()
    assert (
        main(["query", "data.pqindex", "SELECT label, mean_x, big FROM index LIMIT 1", "--format", "json"])
        == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert row["label"] == "l0"
    assert row["big"] is False
    for wrong in ("avg(x)", "=avg(x)", "m="):
        assert main(["build", "data", "--aggregate", wrong]) == 2
        assert "expected NAME=EXPR" in capsys.readouterr().err
    assert main(["build", "data", "--aggregate", "m=avg(x)", "--aggregate", "m=max(x)"]) == 2
    assert "'m' is there twice" in capsys.readouterr().err
    torn(many / "1.parquet", 2)
    assert main([*words, "--on-bad-file", "skip"]) == 1
    assert (
        "skipped: 1.parquet: bad-file: pages are corrupt: 1.parquet, row group 0, column 'x'"
        in capsys.readouterr().out
    )
