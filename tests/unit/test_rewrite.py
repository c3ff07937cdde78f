"""A selection in new files: what is written, what is refused, what is left of a run that was stopped."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import rewrite as rewriting
from pqindex import storage
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    ConflictError,
    DigestMismatchError,
    EmptySourceError,
    NotIncreasingError,
    SourceChangedError,
    SourceError,
    UsageError,
    WriteError,
)

N = 12
SMALL = 6000  # bytes: some sequences a file
ROOM = 30_000  # bytes: for the first file with its footer, and not for the second


def write_source(folder: Path, *, n: int = N) -> None:
    """`n` sequences of 1 to n rows of noise in two files, four to a row group."""
    folder.mkdir()
    ids = np.repeat(np.arange(n), np.arange(1, n + 1))
    random = np.random.default_rng(1)
    table = pa.table(
        {
            "seq_id": ids,
            "t": np.concatenate([np.arange(k + 1) for k in range(n)]),
            "f": random.standard_normal((len(ids), 20)).astype(np.float32).sum(axis=1),
            "x": pa.array([random.bytes(400) if i % 7 else None for i in range(len(ids))], pa.binary()),
        }
    )
    half = int(np.searchsorted(ids, n // 2))
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=10)


@pytest.fixture
def index(tmp_path) -> pqindex.Index:
    write_source(tmp_path / "data")
    return pqindex.build(tmp_path / "data", order="t")


def rows_of(source) -> list[tuple[object, list[dict]]]:
    selection = source.select() if isinstance(source, pqindex.Index) else source
    with pqindex.Reader(selection) as reader:
        return [(selection.seq_ids[i].as_py(), reader[i].to_pylist()) for i in range(len(selection))]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def bytes_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


# -- what is written ------------------------------------------------------------------------------------------


def test_an_index_becomes_one_sequence_a_row_group_with_an_index_of_its_own_A15(index, tmp_path) -> None:
    made = index.rewrite(tmp_path / "fast")
    assert names(tmp_path) == ["data", "data.pqindex", "fast", "fast.pqindex"]
    assert made.path == str(tmp_path / "fast.pqindex")
    assert made.root == str(tmp_path / "fast")
    assert rows_of(made) == rows_of(index)
    options = made.info()["options"]
    assert (options["key"], options["order"], options["layout"]) == ("seq_id", "t", "one-per-row-group")
    meta = pq.read_metadata(tmp_path / "fast" / "part-00000.parquet")
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == list(range(1, N + 1))
    assert made.verify().ok
    assert pqindex.open(tmp_path / "fast.pqindex").rewritten is None


def test_keys_are_proved_by_footers_alone(index, tmp_path) -> None:
    made = index.rewrite(tmp_path / "fast")
    sql = "SELECT bool_and(key_exact AND key_min = key_max AND key_null_count = 0) FROM row_groups"
    assert made.sql(sql).column(0).to_pylist() == [True]


def test_the_report_counts_what_was_copied(index, tmp_path) -> None:
    report = index.rewrite(tmp_path / "fast", file_size=SMALL).rewritten
    chunks = [
        pq.read_metadata(path).row_group(g).column(c).total_compressed_size
        for path in (tmp_path / "data").iterdir()
        for g in range(pq.read_metadata(path).num_row_groups)
        for c in range(4)
    ]
    assert report.bytes_before == sum(chunks)
    assert report.bytes_after == sum(path.stat().st_size for path in (tmp_path / "fast").iterdir())
    assert (report.n_sequences, report.n_rows) == (N, N * (N + 1) // 2)
    assert report.n_files == len(names(tmp_path / "fast")) > 2
    assert (report.n_kept_files, report.checked) == (0, True)
    assert report.to_dict()["elapsed_s"] == report.elapsed_s > 0


def test_a_selection_is_written_in_its_own_order(index, tmp_path) -> None:
    selection = index.select("SELECT seq_id FROM index WHERE row_count > 3 ORDER BY seq_id DESC")
    made = selection.rewrite(tmp_path / "some", file_size=SMALL)
    assert rows_of(made) == rows_of(selection)
    assert made.rewritten.bytes_before < index.rewrite(tmp_path / "all").rewritten.bytes_before


def test_a_manifest_is_rewritten_with_its_index_and_without(index, tmp_path) -> None:
    manifest = index.select("SELECT seq_id FROM index WHERE row_count > 5 ORDER BY seq_id DESC").pin(
        tmp_path / "m.manifest.parquet"
    )
    expected = rows_of(manifest)
    made = manifest.rewrite(tmp_path / "with")
    assert (rows_of(made), made.info()["options"]["order"]) == (expected, "t")
    shutil.rmtree(tmp_path / "data.pqindex")
    bare = manifest.rewrite(tmp_path / "without")
    assert (rows_of(bare), bare.info()["options"]["order"]) == (expected, None)
    assert manifest.rewrite(tmp_path / "named", order="t").info()["options"]["order"] == "t"
    assert bytes_of(tmp_path / "with") == bytes_of(tmp_path / "without")


def test_whole_sequences_are_packed_up_to_a_number_of_rows(index, tmp_path) -> None:
    made = index.rewrite(tmp_path / "packed", pack_rows=10)
    meta = pq.read_metadata(tmp_path / "packed" / "part-00000.parquet")
    groups = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    assert groups == [10, 5 + 0, 6, 7, 8, 9, 10, 11, 12]
    assert rows_of(made) == rows_of(index)
    assert made.info()["options"]["layout"] == "any"
    assert made.info()["totals"]["n_segments"] == N, "no sequence is cut"


def test_a_file_is_closed_before_its_footer_is_large(index, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rewriting, "MAX_FILE_CHUNKS", 20)
    made = index.rewrite(tmp_path / "out")
    assert [pq.read_metadata(path).num_row_groups for path in sorted((tmp_path / "out").iterdir())] == [
        5,
        5,
        2,
    ]
    assert rows_of(made) == rows_of(index)


def test_columns_are_those_named_after_the_key_and_the_order(index, tmp_path) -> None:
    made = index.rewrite(tmp_path / "one", columns=["f"])
    assert pq.read_schema(tmp_path / "one" / "part-00000.parquet").names == ["seq_id", "t", "f"]
    other = index.rewrite(tmp_path / "two", columns=["f", "t"])
    assert pq.read_schema(tmp_path / "two" / "part-00000.parquet").names == ["seq_id", "f", "t"]
    assert len(made) == len(other) == N


def test_the_order_column_can_be_named_and_is_proved(index, tmp_path) -> None:
    with pytest.raises(NotIncreasingError):
        index.rewrite(tmp_path / "bad", order="f")
    assert names(tmp_path) == ["data", "data.pqindex"]


def test_a_sequence_in_pieces_becomes_whole_case_104(tmp_path) -> None:
    (tmp_path / "log").mkdir()
    for number in range(3):
        table = pa.table({"seq_id": [1, 2, 3], "t": [number] * 3, "v": [number * 10 + i for i in range(3)]})
        pq.write_table(table, tmp_path / "log" / f"{number}.parquet")
    index = pqindex.build(tmp_path / "log", order="t", join=True)
    made = index.rewrite(tmp_path / "sorted")
    assert rows_of(made) == rows_of(index)
    assert made.info()["options"]["join"] is False
    assert made.info()["totals"]["n_segments"] == 3


def test_rows_without_a_key_are_left_behind(tmp_path) -> None:
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"seq_id": [1, None, 2, 2]}), tmp_path / "d" / "a.parquet")
    made = pqindex.build(tmp_path / "d", skip_null_keys=True).rewrite(tmp_path / "out")
    assert (made.n_rows, made.info()["options"]["skip_null_keys"]) == (3, False)


def test_files_of_several_schemas_become_one(tmp_path) -> None:
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"seq_id": [1], "v": pa.array([1], pa.int16())}), tmp_path / "d" / "a.parquet")
    pq.write_table(
        pa.table({"w": ["x"], "v": pa.array([2], pa.int64()), "seq_id": [2]}), tmp_path / "d" / "b.parquet"
    )
    made = pqindex.build(tmp_path / "d").rewrite(tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "part-00000.parquet")
    assert schema.names == ["seq_id", "v", "w"]
    assert schema.field("v").type == pa.int64()
    assert [row for _, (row,) in rows_of(made)] == [
        {"seq_id": 1, "v": 1, "w": None},
        {"seq_id": 2, "v": 2, "w": "x"},
    ]
    pq.write_table(pa.table({"seq_id": [3], "v": ["text"]}), tmp_path / "d" / "c.parquet")
    with pytest.raises(ColumnTypeError, match=r"'v' has types .* c\.parquet"):
        pqindex.build(tmp_path / "d").rewrite(tmp_path / "out2")


def test_the_same_rows_give_the_same_bytes_T25(index, tmp_path, monkeypatch) -> None:
    index.rewrite(tmp_path / "a", file_size=SMALL)
    monkeypatch.setattr(rewriting, "SEQUENCES_AT_ONCE", 1)
    monkeypatch.setattr(rewriting, "GROUP_CACHE_BYTES", 0)
    pqindex.open(index.path).rewrite(tmp_path / "b", file_size=SMALL)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert len(names(tmp_path / "a")) > 2


def test_progress_tells_of_each_phase(index, tmp_path) -> None:
    told: list[tuple[int, int, str]] = []
    index.rewrite(tmp_path / "out", progress=lambda *facts: told.append(facts))
    own = [facts for facts in told if facts[2] in {"rewrite", "check"}]
    assert [done for done, _, phase in own if phase == "rewrite"] == list(range(N + 1))
    assert [done for done, _, phase in own if phase == "check"] == list(range(N + 1))
    assert {total for _, total, _ in own} == {N}


COLUMNS = {
    "numbers": pa.array([1.0, -0.0, 3.0]),
    "nulls": pa.array([1, None, 3]),
    "bools": pa.array([True, False, True]),
    "texts": pa.array(["a", "", "bc"]),
    "lists": pa.array([[1], [], [2, 3]]),
    "codes": pa.array(["a", "b", "a"]).dictionary_encode(),
    "times": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_digest_hangs_on_values_and_not_on_chunks(kind) -> None:
    array = COLUMNS[kind]
    longer = pa.concat_arrays([array, array])
    whole = pa.table({"x": array})
    cut = pa.table({"x": pa.chunked_array([longer.slice(3, 1), longer.slice(0, 0), longer.slice(4, 2)])})
    assert rewriting.sequence_digest(cut) == rewriting.sequence_digest(whole)
    assert rewriting.sequence_digest(pa.table({"x": array.take([0, 2, 1])})) != rewriting.sequence_digest(
        whole
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (
            pa.array(np.array([0x7FC00000], np.uint32).view(np.float32)),
            pa.array(np.array([0x7FC00001], np.uint32).view(np.float32)),
        ),
        (pa.array([0]), pa.array([None], pa.int64())),
        (pa.array([""]), pa.array([None], pa.string())),
        (pa.array([[]], pa.list_(pa.int8())), pa.array([None], pa.list_(pa.int8()))),
        (pa.array([[None]], pa.list_(pa.int8())), pa.array([[0]], pa.list_(pa.int8()))),
    ],
)
def test_a_digest_tells_equal_looking_values_apart(one, other) -> None:
    assert rewriting.sequence_digest(pa.table({"x": one})) != rewriting.sequence_digest(
        pa.table({"x": other})
    )


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "gzip"}, "codec: expected one of lz4, none, snappy, zstd, found 'gzip'"),
        ({"dictionary": True}, "dictionary: expected one of auto, never, always, found True"),
        ({"pack_rows": 0}, "pack_rows: expected an integer >= 1, found 0"),
        ({"file_size": "256MB"}, "file_size: expected an integer >= 1, found '256MB'"),
        ({"columns": "f"}, "columns: expected a list of names, found the text 'f'"),
        ({"columns": ["f", "f"]}, "column named twice: 'f'"),
    ],
)
def test_options_that_make_no_sense(index, tmp_path, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        index.rewrite(tmp_path / "out", **options)
    assert names(tmp_path) == ["data", "data.pqindex"]


def test_a_column_that_is_not_there_and_an_empty_selection(index, tmp_path) -> None:
    with pytest.raises(ColumnMissingError, match="'g'"):
        index.rewrite(tmp_path / "out", columns=["g"])
    with pytest.raises(EmptySourceError, match="nothing is selected"):
        index.select("SELECT seq_id FROM index WHERE row_count > 99").rewrite(tmp_path / "out")
    assert names(tmp_path) == ["data", "data.pqindex"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("data", "is the source"),
        ("data/new", "lies in the source"),
        ("data/../data/new", "lies in the source"),
        (".", "holds the source"),
        ("link/new", "lies in the source"),
        ("link", "is a link"),
        ("data.pqindex", "names that end in .pqindex are indexes"),
        ("data.pqindex/new", "lies in an index of the source"),
        ("far/new", "lies in the source"),
        ("linked-index/new", "lies in an index of the source"),
    ],
)
def test_nothing_is_written_onto_the_source_A15(tmp_path, target, message) -> None:
    write_source(tmp_path / "data")
    shutil.move(tmp_path / "data" / "1.parquet", tmp_path / "far.parquet")
    (tmp_path / "far").mkdir()
    shutil.move(tmp_path / "far.parquet", tmp_path / "far" / "1.parquet")
    (tmp_path / "data" / "far").symlink_to(tmp_path / "far")  # a folder of the source that lies elsewhere
    (tmp_path / "link").symlink_to(tmp_path / "data")
    index = pqindex.build(tmp_path / "data", order="t")
    (tmp_path / "linked-index").symlink_to(tmp_path / "data.pqindex")
    manifest = index.select().pin(tmp_path / "m.manifest.parquet")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for source in (index, index.select(), manifest):
        with pytest.raises(UsageError, match=message):
            source.rewrite(tmp_path / target)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_a_source_that_is_named_by_a_link_is_the_same_source(tmp_path) -> None:
    write_source(tmp_path / "data")
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    index = pqindex.build(tmp_path / "alias", order="t")
    with pytest.raises(UsageError, match="lies in the source"):
        index.rewrite(tmp_path / "data" / "new")


def test_a_folder_that_holds_other_files_is_refused_and_an_empty_one_taken(index, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ConflictError, match=r"is there already: .*out; it holds mine\.txt"):
        index.rewrite(tmp_path / "out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConflictError, match="it is a file"):
        index.rewrite(tmp_path / "file")
    (tmp_path / "next.pqindex").mkdir()
    with pytest.raises(ConflictError, match=r"the index .* is there already"):
        index.rewrite(tmp_path / "next")
    (tmp_path / "empty").mkdir()
    assert rows_of(index.rewrite(tmp_path / "empty")) == rows_of(index)
    with pytest.raises(ConflictError, match="part-00000"):
        index.rewrite(tmp_path / "empty")
    assert names(tmp_path) == [
        "data", "data.pqindex", "empty", "empty.pqindex", "file", "next.pqindex", "out",
    ]  # fmt: skip


def test_of_two_at_once_one_has_the_folder(index, tmp_path) -> None:
    with storage.work_folder(str(tmp_path / "out")), pytest.raises(ConflictError, match="another process"):
        index.rewrite(tmp_path / "out")
    assert rows_of(index.rewrite(tmp_path / "out")) == rows_of(index)


def test_of_two_processes_one_wins_case_107(index, tmp_path) -> None:
    command = [sys.executable, "-m", "pqindex.cli", "rewrite", index.path, "-o", "out"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    (error,) = [text for text in said if text]
    assert "another process is writing the same folder" in error or "is there already" in error
    assert rows_of(pqindex.open(tmp_path / "out.pqindex")) == rows_of(index)
    assert names(tmp_path) == ["data", "data.pqindex", "out", "out.pqindex"]


def test_a_source_that_changed_before_is_named_and_nothing_is_left(index, tmp_path) -> None:
    path = tmp_path / "data" / "1.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SourceChangedError, match=r"1\.parquet"):
        index.rewrite(tmp_path / "out")
    assert names(tmp_path) == ["data", "data.pqindex"]


def test_a_source_that_changes_meanwhile_is_not_published(index, tmp_path) -> None:
    def touch(done: int, _total: int, phase: str) -> None:
        if phase == "check" and done == 2:
            os.utime(tmp_path / "data" / "0.parquet", ns=(1, 1))

    with pytest.raises(SourceChangedError, match=r"while it was rewritten: 0\.parquet; 1 of 2 files"):
        index.rewrite(tmp_path / "out", progress=touch)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.pqindex").exists()
    assert names(tmp_path) == ["data", "data.pqindex"]
    assert rows_of(index.rewrite(tmp_path / "out")) == rows_of(index)


def spoil(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Change the new files when all are written and none is checked."""
    real = rewriting.build_index

    def build_index(source, *arguments, **options):
        for path in sorted(Path(source).iterdir()):
            change(path)
        return real(source, *arguments, **options)

    monkeypatch.setattr(rewriting, "build_index", build_index)


def test_one_wrong_bit_is_found_and_nothing_is_left(index, tmp_path, monkeypatch) -> None:
    def flip(path: Path) -> None:
        table = pq.read_table(path)
        f = table.column("f").to_numpy().copy()
        f.view(np.uint32)[21] ^= 1  # the first row of the seventh sequence
        table = table.set_column(2, table.field("f"), pa.array(f))
        with pq.ParquetWriter(path, table.schema) as writer:
            for k in range(N):
                writer.write_table(table.filter(pa.compute.field("seq_id") == k))

    spoil(monkeypatch, flip)
    with pytest.raises(
        DigestMismatchError, match=r"not the one that was read: 6 in part-00000\.parquet#6; .* Nothing"
    ):
        index.rewrite(tmp_path / "out")
    assert names(tmp_path) == ["data", "data.pqindex"]
    assert index.rewrite(tmp_path / "unseen", check=False).rewritten.checked is False


def test_a_page_that_cannot_be_read_back_is_found(index, tmp_path, monkeypatch) -> None:
    def spoil_a_page(path: Path) -> None:
        chunk = pq.read_metadata(path).row_group(6).column(2)
        data = bytearray(path.read_bytes())
        data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
        path.write_bytes(data)

    spoil(monkeypatch, spoil_a_page)
    with pytest.raises(DigestMismatchError, match=r"cannot be read back: pages are corrupt: part-00000"):
        index.rewrite(tmp_path / "out", codec="none")
    assert names(tmp_path) == ["data", "data.pqindex"]


def test_a_missing_sequence_is_found(index, tmp_path, monkeypatch) -> None:
    def shorten(path: Path) -> None:
        table = pq.read_table(path)
        with pq.ParquetWriter(path, table.schema) as writer:
            for k in range(1, N):
                writer.write_table(table.filter(pa.compute.field("seq_id") == k))

    spoil(monkeypatch, shorten)
    with pytest.raises(DigestMismatchError, match=r"expected 12 sequences .* found 11"):
        index.rewrite(tmp_path / "out")
    assert names(tmp_path) == ["data", "data.pqindex"]


# -- going on -------------------------------------------------------------------------------------------------


class Disk:
    """A disk with room for so many bytes of data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 60
        real = storage.DigestingFile.write

        def write(file: storage.DigestingFile, data: bytes) -> int:
            if len(data) > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.path)
            self.room -= len(data)
            return real(file, data)

        monkeypatch.setattr(storage.DigestingFile, "write", write)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def reads(monkeypatch) -> list[int]:
    """The sequences that were read of sources and copies, by their number."""
    seen: list[int] = []
    real = rewriting._read

    def read(*arguments):
        for number, table in real(*arguments):
            seen.append(number)
            yield number, table

    monkeypatch.setattr(rewriting, "_read", read)
    return seen


def stop_halfway(index: pqindex.Index, disk: Disk, out: Path, **options) -> WriteError:
    disk.room = ROOM
    with pytest.raises(WriteError) as caught:
        index.rewrite(out, **{"file_size": SMALL, **options})
    disk.room = 1 << 60
    return caught.value


def test_a_full_disk_says_what_is_there_and_the_next_run_goes_on_case_106(
    index, tmp_path, disk, reads
) -> None:
    index.rewrite(tmp_path / "whole", file_size=SMALL)
    error = stop_halfway(index, disk, tmp_path / "out")
    assert f"cannot write the new files of {tmp_path}/out: No space left on device; " in str(error)
    kept = f"complete and kept in {tmp_path}/.tmp-work-out: 1 file, {error.n_sequences} of 12 sequences, "
    assert f"{kept}{error.n_bytes} bytes. Hint" in str(error)
    assert str(error).endswith("run the same command again to go on, or remove that folder")
    assert names(tmp_path) == [".tmp-work-out", "data", "data.pqindex", "whole", "whole.pqindex"]
    work = tmp_path / ".tmp-work-out" / "out"
    assert names(work) == ["part-00000.parquet"], "a torn file gives its room back"
    inode = (work / "part-00000.parquet").stat().st_ino
    reads.clear()
    made = index.rewrite(tmp_path / "out", file_size=SMALL, check=False)
    assert reads == list(range(error.n_sequences, N))
    assert made.rewritten.n_kept_files == 1
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_ino == inode
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    assert ".tmp-work-out" not in names(tmp_path)


def test_a_disk_that_was_full_from_the_start_has_nothing_left(index, tmp_path, disk) -> None:
    disk.room = 10
    with pytest.raises(WriteError, match=r"no file was complete, and nothing is left\. Hint: make room"):
        index.rewrite(tmp_path / "out")
    assert names(tmp_path) == ["data", "data.pqindex"]


def test_a_source_that_cannot_be_read_is_no_full_disk(index, tmp_path, monkeypatch) -> None:
    def pread(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def spoil_the_disk(done: int, _total: int, phase: str) -> None:
        if phase == "rewrite" and done == 1:
            monkeypatch.setattr(storage.SourceFile, "read", pread)

    monkeypatch.setattr(rewriting, "SEQUENCES_AT_ONCE", 1)
    with pytest.raises(SourceError, match=r"the files below .*data cannot be read: Input/output error"):
        index.rewrite(tmp_path / "out", progress=spoil_the_disk)
    assert names(tmp_path) == ["data", "data.pqindex"]


def test_kept_sequences_are_checked_too(index, tmp_path, disk, reads) -> None:
    stop_halfway(index, disk, tmp_path / "out")
    reads.clear()
    index.rewrite(tmp_path / "out", file_size=SMALL)
    assert reads[-N:] == list(range(N))


@pytest.mark.parametrize("harm", ["other bytes", "shorter", "gone", "no digests"])
def test_a_kept_file_that_is_not_as_it_was_is_written_again(index, tmp_path, disk, harm) -> None:
    index.rewrite(tmp_path / "whole", file_size=SMALL)
    stop_halfway(index, disk, tmp_path / "out")
    work = tmp_path / ".tmp-work-out"
    path = work / "out" / "part-00000.parquet"
    data = path.read_bytes()
    if harm == "other bytes":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif harm == "shorter":
        path.write_bytes(data[:-1])
    elif harm == "gone":
        path.unlink()
    else:
        (work / "journal" / "part-00000.parquet.digests").unlink()
    assert index.rewrite(tmp_path / "out", file_size=SMALL).rewritten.n_kept_files == 0
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "other",
    [
        {"codec": "zstd"},
        {"columns": ["f"]},
        {"pack_rows": 5},
        {"file_size": SMALL + 1},
        {"dictionary": "never"},
    ],
)
def test_other_options_start_anew_after_saying_so(index, tmp_path, disk, other) -> None:
    stop_halfway(index, disk, tmp_path / "out")
    said: list[str] = []
    made = index.rewrite(tmp_path / "out", **{"file_size": SMALL, **other}, say=said.append)
    assert said == [
        f"an earlier rewrite to {tmp_path}/out was of other data or with other options: it starts anew"
    ]
    assert made.rewritten.n_kept_files == 0


def test_another_selection_starts_anew(index, tmp_path, disk) -> None:
    stop_halfway(index, disk, tmp_path / "out")
    said: list[str] = []
    selection = index.select("SELECT seq_id FROM index ORDER BY seq_id DESC")
    made = selection.rewrite(tmp_path / "out", file_size=SMALL, say=said.append)
    assert len(said) == 1
    assert rows_of(made) == rows_of(selection)


def test_an_interrupt_keeps_what_is_complete(index, tmp_path) -> None:
    def interrupt(done: int, _total: int, phase: str) -> None:
        if phase == "rewrite" and done == N - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.rewrite(tmp_path / "out", file_size=SMALL, progress=interrupt)
    assert not (tmp_path / "out").exists()
    assert index.rewrite(tmp_path / "out", file_size=SMALL).rewritten.n_kept_files > 0


class StoppedError(Exception):
    """As if the process had been killed."""


@pytest.mark.parametrize("names_given", [0, 1, 2])
def test_a_run_that_was_killed_while_publishing_is_finished(
    index, tmp_path, monkeypatch, names_given
) -> None:
    """The index has its name first, the data last; after that only the work folder is to be removed."""
    real = storage.publish_folder
    left = [names_given]

    def publish_folder(staged: str, path: str) -> None:
        if not left[0]:
            raise StoppedError
        left[0] -= 1
        real(staged, path)

    def remove_folder(path: str) -> None:
        if path.endswith(".tmp-work-out"):
            raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(storage, "publish_folder", publish_folder)
        patched.setattr(rewriting, "_leave", lambda *_: None)
        if names_given == 2:
            patched.setattr(storage, "remove_folder", remove_folder)
        with pytest.raises(StoppedError):
            index.rewrite(tmp_path / "out", file_size=SMALL)
    assert (tmp_path / "out.pqindex").exists() == (names_given > 0)
    assert (tmp_path / "out").exists() == (names_given > 1)
    made = index.rewrite(tmp_path / "out", file_size=SMALL)
    assert made.rewritten.n_kept_files == made.rewritten.n_files > 2
    assert rows_of(made) == rows_of(index)
    assert names(tmp_path) == ["data", "data.pqindex", "out", "out.pqindex"]


def test_an_index_whose_data_never_came_goes_with_the_run_that_made_it(index, tmp_path, monkeypatch) -> None:
    real = storage.publish_folder

    def publish_folder(staged: str, path: str) -> None:
        if not path.endswith(".pqindex"):
            raise StoppedError
        real(staged, path)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "publish_folder", publish_folder)
        patched.setattr(rewriting, "_leave", lambda *_: None)
        with pytest.raises(StoppedError):
            index.rewrite(tmp_path / "out")
    assert names(tmp_path) == [".tmp-work-out", "data", "data.pqindex", "out.pqindex"]
    made = index.rewrite(tmp_path / "out", codec="zstd")
    assert rows_of(made) == rows_of(index)


def test_who_takes_the_name_meanwhile_keeps_it(index, tmp_path) -> None:
    def take(done: int, _total: int, phase: str) -> None:
        if phase == "check" and done == N:
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "mine.txt").write_text("mine")

    with pytest.raises(
        ConflictError, match=r"another process made this first: .*out; the complete copy is kept"
    ):
        index.rewrite(tmp_path / "out", progress=take)
    assert names(tmp_path / "out") == ["mine.txt"]
    assert not (tmp_path / "out.pqindex").exists()
    shutil.rmtree(tmp_path / "out")
    assert index.rewrite(tmp_path / "out").rewritten.n_kept_files == 1
