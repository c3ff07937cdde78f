"""Refreshing: what is read, what is said, and which ways to name a source follow it."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import scan, storage
from pqindex.cli.app import main
from pqindex.errors import (
    BadFileError,
    ColumnTypeError,
    EmptySourceError,
    NotFoundError,
    NotIncreasingError,
    SourceChangedError,
    UsageError,
)
from pqindex.readplan import PqindexStalenessWarning


def write(path: Path, keys: range | list[int], n_rows: int = 3, **extra: pa.Array) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [key for key in keys for _ in range(n_rows)]
    columns = {"seq_id": ids, "t": list(range(len(ids))), "x": [float(i) for i in ids], **extra}
    pq.write_table(pa.table(columns), path, row_group_size=n_rows)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for i in range(4):
        write(tmp_path / "data" / f"f{i}.parquet", range(10 * i, 10 * i + 3))
    return tmp_path / "data"


@pytest.fixture
def footers_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose footer was read."""
    found: list[str] = []
    real = scan.read_footer

    def counted(file: storage.SourceFile, name: str) -> tuple[bytes, int]:
        found.append(name)
        return real(file, name)

    monkeypatch.setattr(scan, "read_footer", counted)
    return found


def fresh_digest(index: pqindex.Index, source: Any, tmp_path: Path, **options: Any) -> str:
    return pqindex.build(source, index=tmp_path / "fresh.pqindex", **options).content_digest


# -- what is read and written ---------------------------------------------------------------------------------


def test_one_changed_file_of_many_costs_one_footer(tmp_path: Path, footers_read: list[str]) -> None:
    root = tmp_path / "data"
    for i in range(300):
        write(root / f"{i:03}.parquet", [i])
    index = pqindex.build(root, workers=1)
    assert len(footers_read) == 300
    footers_read.clear()
    write(root / "150.parquet", [150, 1150])
    index.refresh()
    assert footers_read == ["150.parquet"]
    assert index.last_changes == pqindex.Changes(changed=("150.parquet",), n_unchanged=299)
    assert index.content_digest == fresh_digest(index, root, tmp_path)
    assert len(index) == 301


def test_an_unchanged_source_writes_nothing(source: Path, footers_read: list[str]) -> None:
    index = pqindex.build(source)
    footers_read.clear()
    assert index.refresh() is index
    assert (index.snapshot, footers_read) == (1, [])
    assert not index.last_changes
    assert len(list(Path(index.path).glob("*.json"))) == 1


def test_a_touched_file_is_scanned_again_and_is_the_same_content(
    source: Path, footers_read: list[str]
) -> None:
    """An equal footer does not prove equal keys, so a file with another time is read; its identity stays."""
    index = pqindex.build(source)
    digest = index.content_digest
    footers_read.clear()
    os.utime(source / "f1.parquet", ns=(1, 1))
    index.refresh()
    assert footers_read == ["f1.parquet"]
    assert (index.content_digest, index.snapshot) == (digest, 2)
    assert not index.refresh().last_changes


def test_a_size_and_time_that_were_put_back_are_seen_by_footers_case_35(source: Path) -> None:
    index = pqindex.build(source)
    path = source / "f1.parquet"
    before = path.stat()
    write(path, range(50, 53))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not index.changes()
    assert index.changes(compare="footer").changed == ("f1.parquet",)
    assert index.refresh(compare="footer").select().seq_ids.to_pylist() == [
        0,
        1,
        2,
        50,
        51,
        52,
        *range(20, 23),
        *range(30, 33),
    ]
    with pytest.raises(UsageError, match="compare: expected one of stat, footer, found 'mtime'"):
        index.refresh(compare="mtime")


def test_only_gone_files(source: Path, footers_read: list[str]) -> None:
    index = pqindex.build(source)
    (source / "f0.parquet").unlink()
    (source / "f3.parquet").unlink()
    footers_read.clear()
    index.refresh()
    assert (index.last_changes.gone, footers_read) == (("f0.parquet", "f3.parquet"), [])
    assert index.select().seq_ids.to_pylist() == [*range(10, 13), *range(20, 23)]
    assert [dict(entry) for entry in index.sql("SELECT path FROM files").to_pylist()] == [
        {"path": "f1.parquet"},
        {"path": "f2.parquet"},
    ]


def test_all_gone_is_an_error_and_the_index_stays(source: Path) -> None:
    index = pqindex.build(source)
    for path in source.iterdir():
        path.unlink()
    with pytest.raises(EmptySourceError, match="no Parquet file below"):
        index.refresh()
    source.rmdir()
    with pytest.raises(NotFoundError, match="root of the source files is not there") as caught:
        index.refresh()
    assert "--root" in str(caught.value)
    assert index.snapshot == 1


def test_the_options_of_the_build_hold(source: Path) -> None:
    """A refresh cannot be asked with other options: what was proved of the old files is asked of the new ones."""
    index = pqindex.build(source, order="t", statistics=["x"])
    path = write(source / "new.parquet", [90], x=pa.array([1.0, 2.0, 3.0]), y=pa.array([1, 2, 3]))
    index.refresh()
    assert index.sql("SELECT stats.x.max FROM index WHERE seq_id = 90").to_pydict() == {"max": [3.0]}
    assert [f.name for f in index.sql("SELECT stats FROM index").schema.field("stats").type] == ["x"]
    write(path, [90], t=pa.array([3, 2, 1]))
    with pytest.raises(NotIncreasingError, match=r"new\.parquet#0\[1:2\]"):
        index.refresh()
    assert index.snapshot == 2


def test_types_widen_over_parts_or_are_refused_case_5(source: Path, tmp_path: Path) -> None:
    index = pqindex.build(source)
    ids = pa.array([2**40] * 2, pa.int64())
    pq.write_table(
        pa.table({"seq_id": ids, "t": [0, 1], "x": pa.array([1, 2], pa.int32())}), source / "g.parquet"
    )
    index.refresh()
    assert index.sql("SELECT max(seq_id) AS id, max(stats.x.max) AS x FROM index").to_pylist() == [
        {"id": 2**40, "x": 32.0}
    ]
    assert index.content_digest == fresh_digest(index, source, tmp_path)
    pq.write_table(pa.table({"seq_id": ["a"], "t": [0], "x": [1.0]}), source / "h.parquet")
    with pytest.raises(ColumnTypeError, match="column 'seq_id' has types that no one type holds"):
        index.refresh()
    pq.write_table(pa.table({"seq_id": [5], "t": [0], "x": ["text"]}), source / "h.parquet")
    index.refresh()
    assert [f.name for f in index.sql("SELECT stats FROM index").schema.field("stats").type] == ["t"]


def test_a_sequence_over_files_is_read_whole_again(tmp_path: Path, footers_read: list[str]) -> None:
    """With `join` the unchanged files of a sequence that changed are scanned too; files of others are not."""
    root = tmp_path / "data"

    def part(name: str, key: int, start: int) -> None:
        table = pa.table({"seq_id": [key] * 3, "t": [start, start + 1, start + 2]})
        root.mkdir(exist_ok=True)
        pq.write_table(table, root / name)

    for name, key, start in [("a", 1, 0), ("b", 1, 10), ("c", 2, 0), ("d", 3, 0)]:
        part(f"{name}.parquet", key, start)
    index = pqindex.build(root, order="t", join=True)
    footers_read.clear()
    part("b.parquet", 1, 20)
    part("e.parquet", 3, 30)
    index.refresh()
    assert sorted(set(footers_read)) == ["a.parquet", "b.parquet", "d.parquet", "e.parquet"]
    assert index.last_changes.shared == ("a.parquet", "d.parquet")
    assert index.content_digest == fresh_digest(index, root, tmp_path, order="t", join=True)
    assert index.sql("SELECT seq_id, n_segments, order_max FROM index ORDER BY 1").to_pylist() == [
        {"seq_id": 1, "n_segments": 2, "order_max": 22},
        {"seq_id": 2, "n_segments": 1, "order_max": 2},
        {"seq_id": 3, "n_segments": 2, "order_max": 32},
    ]


def test_bad_files_are_tried_again_T23(source: Path) -> None:
    (source / "torn.parquet").write_bytes(b"PAR1 and no more")
    index = pqindex.build(source, on_bad_file="skip")
    assert [entry["path"] for entry in index.report["skipped"]] == ["torn.parquet"]
    index.refresh()
    assert index.last_changes.retried == ("torn.parquet",)
    assert index.snapshot == 1
    write(source / "torn.parquet", [77])
    index.refresh()
    assert index.report["skipped"] == []
    assert 77 in index.select().seq_ids.to_pylist()
    (source / "f1.parquet").write_bytes(b"PAR1 and no more")
    index.refresh()
    assert [entry["path"] for entry in index.report["skipped"]] == ["f1.parquet"]
    assert 10 not in index.select().seq_ids.to_pylist()


def test_a_bad_file_is_an_error_and_the_index_stays(source: Path) -> None:
    index = pqindex.build(source)
    (source / "f1.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadFileError, match=r"f1\.parquet"):
        index.refresh()
    assert index.snapshot == 1


def test_a_file_that_changes_while_it_is_indexed_is_an_error(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan has read one file, and another one has its name at the commit."""
    real = scan._batch

    def slow(*args: Any) -> Any:
        write(source / "f2.parquet", range(60, 65))
        return real(*args)

    monkeypatch.setattr(scan, "_batch", slow)
    with pytest.raises(
        SourceChangedError, match=r"1 of 4 files were changed while they were indexed: f2\.parquet"
    ):
        pqindex.build(source)
    assert not os.path.exists(f"{source}.pqindex")
    monkeypatch.setattr(scan, "_batch", real)
    index = pqindex.build(source)
    write(source / "f3.parquet", range(30, 31))
    monkeypatch.setattr(scan, "_batch", slow)
    write(source / "f2.parquet", range(70, 72))
    with pytest.raises(SourceChangedError, match=r"f2\.parquet"):
        index.refresh()
    assert index.snapshot == 1


# -- how the source was named ---------------------------------------------------------------------------------


def test_a_pattern_is_matched_again(source: Path) -> None:
    index = pqindex.build(f"{source}/f[0-2].parquet", index=f"{source}.pqindex")
    write(source / "f1.parquet", [11])
    write(source / "g.parquet", [90])
    (source / "f2.parquet").unlink()
    assert index.refresh().select().seq_ids.to_pylist() == [0, 1, 2, 11]
    assert index.last_changes.gone == ("f2.parquet",)


def test_a_list_of_files_loses_files_and_is_given_new_ones(source: Path) -> None:
    index = pqindex.build(source, files=["f0.parquet", "f1.parquet"], index=f"{source}.pqindex")
    (source / "f0.parquet").unlink()
    assert index.refresh().select().seq_ids.to_pylist() == [10, 11, 12]
    index.refresh(files=["f1.parquet", "f3.parquet"])
    assert (index.last_changes.new, index.last_changes.gone) == (("f3.parquet",), ())
    assert index.refresh(files=["f3.parquet"]).select().seq_ids.to_pylist() == [30, 31, 32]
    folder = pqindex.build(source, index=f"{source}.2.pqindex")
    with pytest.raises(UsageError, match="the source of the index is a folder, not a list of files"):
        folder.refresh(files=["f1.parquet"])


def test_one_file(source: Path) -> None:
    index = pqindex.build(source / "f0.parquet")
    write(source / "f0.parquet", [5])
    assert index.refresh().select().seq_ids.to_pylist() == [5]


def test_a_moved_source_is_named(source: Path, tmp_path: Path) -> None:
    index = pqindex.build(source)
    source.rename(tmp_path / "elsewhere")
    moved = pqindex.open(index.path, root=tmp_path / "elsewhere")
    write(tmp_path / "elsewhere" / "f9.parquet", [90])
    moved.refresh()
    assert (moved.last_changes.new, moved.last_changes.n_unchanged) == (("f9.parquet",), 4)
    assert pqindex.open(index.path).root == str(tmp_path / "elsewhere")


# -- snapshots ------------------------------------------------------------------------------------------------


def test_old_snapshots_stay_readable_until_they_are_pruned(source: Path) -> None:
    index = pqindex.build(source)
    selection = index.select("SELECT seq_id FROM index WHERE seq_id < 12")
    digest = selection.digest
    write(source / "g.parquet", [90])
    index.refresh()
    index.compact()
    assert [s["snapshot"] for s in index.snapshots()] == [1, 2, 3]
    assert len(pqindex.open(index.path, 1)) == 12
    assert selection.digest == digest
    with pqindex.Reader(selection, columns=["x"]) as reader:
        assert len(reader) == 5
    assert index.info()["n_parts"] == 1
    assert index.compact().snapshot == 3
    with pytest.raises(UsageError, match="keep: expected an integer >= 1, found 0"):
        index.prune(0)
    assert index.prune(keep=2) == [1]
    assert index.prune() == [2]
    assert len(list((Path(index.path) / "parts").iterdir())) == 4
    with pytest.raises(NotFoundError, match="no snapshot 1 in"):
        pqindex.open(index.path, 1)
    write(source / "h.parquet", [91])
    assert index.refresh().snapshot == 4


def test_a_manifest_outlives_refreshes_of_what_it_does_not_touch(source: Path, tmp_path: Path) -> None:
    index = pqindex.build(source)
    manifest = index.select("SELECT seq_id FROM index WHERE seq_id < 3").pin(tmp_path / "a.manifest.parquet")
    write(source / "f3.parquet", [30])
    index.refresh()
    index.prune()
    assert manifest.verify().ok
    with pqindex.Reader(pqindex.load_manifest(manifest.path)) as reader:
        assert [table.num_rows for table in reader.read([0, 1, 2])] == [3, 3, 3]
    write(source / "f0.parquet", [0])
    with pytest.raises(SourceChangedError):
        pqindex.Reader(manifest)


# -- staleness ------------------------------------------------------------------------------------------------


def test_opening_a_stale_index_warns_fails_refreshes_or_says_nothing(source: Path) -> None:
    index = pqindex.build(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pqindex.open(index.path)
    write(source / "f1.parquet", [11])
    (source / "f2.parquet").unlink()
    with pytest.warns(
        PqindexStalenessWarning, match=r"2 of 4 files were changed or removed .*: f1\.parquet, f2\."
    ):
        opened = pqindex.open(index.path)
    assert len(opened) == 12
    with pytest.raises(SourceChangedError, match="pqindex refresh"):
        pqindex.open(index.path, staleness="error")
    assert len(pqindex.open(index.path, staleness="ignore")) == 12
    with pytest.raises(UsageError, match="a snapshot that is named cannot be refreshed"):
        pqindex.open(index.path, 1, staleness="refresh")
    with pytest.raises(UsageError, match="staleness: expected one of"):
        pqindex.open(index.path, staleness="no")
    assert len(pqindex.open(index.path, staleness="refresh")) == 7
    pqindex.open(index.path, staleness="error")


def test_a_reader_refreshes_a_selection_and_no_manifest(source: Path, tmp_path: Path) -> None:
    index = pqindex.build(source)
    selection = index.select("SELECT seq_id FROM index WHERE seq_id >= ? ORDER BY seq_id DESC", [12])
    manifest = selection.pin(tmp_path / "a.manifest.parquet")
    assert selection.refreshed() is selection
    write(source / "f1.parquet", [11, 13])
    with pytest.raises(SourceChangedError):
        pqindex.Reader(selection)
    with pqindex.Reader(selection, columns=["x"], staleness="refresh") as reader:
        assert reader.seq_ids.to_pylist() == [32, 31, 30, 22, 21, 20, 13]
        assert reader[-1].column("x").to_pylist() == [13.0] * 3
    with pytest.raises(UsageError, match="a manifest cannot be refreshed"):
        pqindex.Reader(manifest, staleness="refresh")


# -- the command ----------------------------------------------------------------------------------------------


def test_the_command_says_what_was_done(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = pqindex.build(source)
    write(source / "f1.parquet", [11])
    write(source / "g.parquet", [90])
    (source / "f2.parquet").unlink()
    assert main(["refresh", index.path, "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "new: g.parquet",
        "changed: f1.parquet",
        "gone: f2.parquet",
        "unchanged: 2 files",
        "2 files would be read",
    ]
    assert pqindex.open(index.path, staleness="ignore").snapshot == 1
    assert main(["refresh", index.path, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"]["new"] == ["g.parquet"]
    assert main(["query", index.path, "SELECT count(*) AS n FROM index", "--json"]) == 0
    _, err = capsys.readouterr()
    assert err.startswith("warning: 2 of 4 files were changed or removed since snapshot 1")
    assert main(["refresh", index.path, "--compact", "--keep", "1", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["snapshot"], done["pruned"], done["n_parts"]) == (3, [1, 2], 1)
    assert main(["refresh", index.path]) == 0
    assert "snapshot 3 is up to date" in capsys.readouterr().out
    assert main(["compact", index.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compacted"] is False
    write(source / "h.parquet", [91])
    assert main(["refresh", index.path]) == 0
    assert "snapshot 4: 9 sequences" in capsys.readouterr().out
    assert main(["snapshots", index.path, "--prune", "--json"]) == 0
    assert [s["snapshot"] for s in json.loads(capsys.readouterr().out)] == [4]
    (source / "torn.parquet").write_bytes(b"PAR1 and no more")
    assert main(["refresh", index.path]) == 2
    assert "torn.parquet" in capsys.readouterr().err


# -- where features meet --------------------------------------------------------------------------------------


def asked(index: pqindex.Index) -> list[dict[str, Any]]:
    return list(index.sql("SELECT * EXCLUDE (file_id) FROM index ORDER BY seq_no").to_pylist())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (
            pa.array([1, 2, 3], pa.timestamp("ms")),
            pa.array([1, 2, 3], pa.timestamp("ms")).cast(pa.timestamp("ns")),
        ),
        (pa.array([1, 2, 3], pa.int32()), pa.array([1.5, 2.5, 4.5])),
        (pa.nulls(3), pa.array([1, 2, 3])),
        (pa.array([1, 2, 3]), pa.nulls(3)),
        (pa.array([1.5, 2.5, 3.5]), None),
        (None, pa.array([1.5, 2.5, 3.5])),
    ],
)
def test_what_hangs_on_all_files_is_looked_at_again_where_their_columns_change(
    tmp_path: Path, first: pa.Array | None, then: pa.Array | None
) -> None:
    """Means, aggregates and statistics of old files are those in the type that holds the values of the new ones too."""
    root = tmp_path / "data"
    options: dict[str, Any] = {"order": "t", "check": "full", "aggregates": {"z": "max(typeof(x))"}}
    write(root / "a.parquet", [1], v=pa.array([1, 2, 3]) if first is None else first)
    index = pqindex.build(root, **options)
    write(root / "b.parquet", [2], **({} if then is None else {"v": then}))
    index.refresh()
    assert index.last_changes is not None
    assert index.last_changes.shared == ("a.parquet",)
    fresh = pqindex.build(root, index=tmp_path / "fresh", **options)
    assert asked(index) == asked(fresh)
    (root / "a.parquet").unlink()
    assert asked(index.refresh()) == asked(pqindex.build(root, index=tmp_path / "fresh2", **options))


def test_files_with_the_columns_of_before_cost_only_themselves(
    tmp_path: Path, footers_read: list[str]
) -> None:
    root = tmp_path / "data"
    write(root / "a.parquet", [1])
    index = pqindex.build(root, order="t", check="full", attributes=["seq_id"][:0])
    footers_read.clear()
    write(root / "b.parquet", [2])
    index.refresh()
    assert footers_read == ["b.parquet"]


def test_a_partition_that_was_a_column_of_a_file_that_is_gone_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write(root / "day=1" / "a.parquet", [1])
    write(root / "day=3" / "c.parquet", [2], day=pa.array([7, 7, 7]))
    index = pqindex.build(root)
    assert "day" not in index.sql("SELECT * FROM index").column_names
    (root / "day=3" / "c.parquet").unlink()
    assert index.refresh().sql("SELECT day FROM index").to_pydict() == {"day": ["1"]}


def test_damage_behind_the_footer_is_seen(source: Path) -> None:
    """The length of the footer and the magic are in no digest; a file without them cannot be opened."""
    index = pqindex.build(source)
    path = source / "f1.parquet"
    before, raw = path.stat(), bytearray(path.read_bytes())
    for at in (-1, -6):
        damaged = raw.copy()
        damaged[at] ^= 1
        path.write_bytes(bytes(damaged))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        (problem,) = index.verify().problems
        assert "the last bytes of the source file are damaged: f1.parquet" in problem.message
        assert index.changes(compare="footer").changed == ("f1.parquet",)


def test_a_moved_source_that_did_not_change_is_found_the_next_time(source: Path, tmp_path: Path) -> None:
    index = pqindex.build(source)
    digest = index.content_digest
    source.rename(tmp_path / "elsewhere")
    moved = pqindex.open(index.path, root=tmp_path / "elsewhere").refresh()
    assert (moved.snapshot, moved.content_digest) == (2, digest)
    assert pqindex.open(index.path).verify().ok


def test_a_snapshot_that_was_pruned_while_it_was_open_says_so(source: Path) -> None:
    index = pqindex.build(source)
    write(source / "g.parquet", [90])
    other = pqindex.open(index.path, staleness="ignore").refresh().compact()
    other.prune()
    with pytest.raises(NotFoundError, match="snapshot 1 was removed since it was opened"):
        index.sql("SELECT count(*) FROM index")


def test_the_command_counts_what_is_unchanged(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = pqindex.build(source)
    assert main(["refresh", index.path]) == 0
    assert "unchanged: 4 files" in capsys.readouterr().out
    assert main(["snapshots", index.path, "--keep", "1"]) == 2
    assert "--keep is for --prune" in capsys.readouterr().err
