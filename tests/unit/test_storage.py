"""Listing a source, reading ranges, and files that are whole or absent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pqindex import storage
from pqindex.errors import (
    BadFileError,
    ConflictError,
    EmptySourceError,
    NotFoundError,
    SourceChangedError,
    SourceError,
    UsageError,
    WriteError,
)


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_a_folder_is_walked_once_in_byte_order_A1_T14_case_49(tmp_path: Path) -> None:
    root = tmp_path / "_root[1]"
    touch(
        root,
        "b.parquet",
        "a/z.parquet",
        "a.parquet",
        "X.PARQUET",
        "c.pq",
        "d.parq",
        "x.parquet/inner.parquet",
        "_year=1/p.parquet",
        "é.parquet",
        # passed over
        "_SUCCESS",
        "_metadata",
        ".part.crc",
        "._part.parquet",
        "_temporary/0/part.parquet",
        ".impala_insert_staging/q.parquet",
        "x.parquet.tmp",
        "notes.txt",
        "old.pqindex/parts/p-files.parquet",
        "train.manifest.parquet",
    )
    listing = storage.list_source(root)
    assert listing.paths == (
        "X.PARQUET",
        "_year=1/p.parquet",
        "a.parquet",
        "a/z.parquet",
        "b.parquet",
        "c.pq",
        "d.parq",
        "x.parquet/inner.parquet",
        "é.parquet",
    )
    assert listing.skipped == {
        "hidden name": 6,
        "index folder": 1,
        "manifest": 1,
        "not a Parquet name": 2,
    }


def test_root_may_be_given_in_any_way_case_73(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    touch(root, "a.parquet", "b/c.parquet")
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    ways = [str(root), f"{root}/", "data", "./data/", "link", root]
    assert len({storage.list_source(way).paths for way in ways}) == 1


def test_links_are_followed_once_and_circles_end(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.parquet", "data/deep/b.parquet")
    (tmp_path / "data/deep/up").symlink_to(tmp_path / "data")
    listing = storage.list_source(tmp_path / "data")
    assert listing.paths == ("a.parquet", "deep/b.parquet")
    assert listing.skipped == {"folder seen already": 1}


def test_file_list_and_glob(tmp_path: Path) -> None:
    touch(tmp_path, "d/a.parquet", "d/e/b.parquet", "d/e/_c.parquet", "d/e/n.txt", "d[1]/f.parquet")
    one = storage.list_source(tmp_path / "d/a.parquet")
    assert (one.root, one.paths) == (str(tmp_path / "d"), ("a.parquet",))
    several = storage.list_source(
        [tmp_path / "d/e/b.parquet", tmp_path / "d/a.parquet", tmp_path / "d/a.parquet"]
    )
    assert (several.root, several.paths) == (str(tmp_path / "d"), ("a.parquet", "e/b.parquet"))
    glob = storage.list_source(str(tmp_path / "d/**/*"))
    assert (glob.root, glob.paths) == (str(tmp_path / "d"), ("a.parquet", "e/b.parquet"))
    assert storage.list_source(str(tmp_path / "d[1]")).paths == ("f.parquet",)
    named = storage.list_source(tmp_path / "d", ["e/n.txt", "a.parquet"])
    assert named.paths == ("a.parquet", "e/n.txt")


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        ("nothing", NotFoundError, "not there"),
        ("empty", EmptySourceError, r"no Parquet file below .*\(1 passed over: not a Parquet name\)"),
        ("empty/*.parquet", EmptySourceError, "no Parquet file matches"),
        ([], EmptySourceError, "list of files is empty"),
        (["nothing.parquet"], NotFoundError, "1 of 1 files"),
    ],
)
def test_what_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | list[str], kind: type[Exception], says: str
) -> None:
    touch(tmp_path, "empty/n.txt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=says):
        storage.list_source(source)


def test_lake_folders_are_refused_with_the_way_out_case_51(tmp_path: Path) -> None:
    touch(tmp_path, "t/_delta_log/0.json", "t/a.parquet")
    with pytest.raises(SourceError, match=r"Delta Lake table.*--files"):
        storage.list_source(tmp_path / "t")
    assert storage.list_source(tmp_path / "t", ["a.parquet"]).paths == ("a.parquet",)
    touch(tmp_path, "b.parquet")
    with pytest.raises(UsageError, match="outside"):
        storage.list_source(tmp_path / "t", ["../b.parquet"])


def test_a_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(BadFileError, match="not UTF-8"):
        storage.list_source(tmp_path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_paths_never_leave_the_root(path: str) -> None:
    with pytest.raises(SourceError, match="leaves the source's root"):
        storage.join("/data", path)


def test_ranges_are_read_exactly_and_short_files_are_said(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    with storage.SourceFile(str(path)) as file:
        assert file.read_ranges([(0, 2), (98, 2)]) == [b"\0\1", b"bc"]
        with pytest.raises(SourceChangedError, match=r"truncated.*expected 5 bytes at 98, found 2"):
            file.read(98, 5)
    with pytest.raises(NotFoundError, match="gone"):
        storage.SourceFile(str(tmp_path / "none"))


def test_a_written_file_is_whole_or_absent_T26(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def write_half() -> None:
        with storage.writing(str(path)) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []
    storage.write_bytes(str(path), b"one")
    with pytest.raises(ConflictError, match="exists"):
        storage.write_bytes(str(path), b"two")
    assert path.read_bytes() == b"one"
    storage.write_bytes(str(path), b"two", overwrite=True)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"two"]


def test_of_many_writers_of_one_name_exactly_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "f"
    barrier = threading.Barrier(8)
    won: list[int] = []

    def write(number: int) -> None:
        barrier.wait()
        try:
            storage.write_bytes(str(path), bytes([number]) * 1000)
            won.append(number)
        except ConflictError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert path.read_bytes() == bytes([won[0]]) * 1000


# -- folders that appear whole --------------------------------------------------------------------------------


def test_a_work_folder_has_a_name_of_its_target_and_one_holder(tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    with storage.work_folder(target) as folder:
        assert folder == str(tmp_path / ".tmp-work-out")
        with pytest.raises(ConflictError, match="another process is writing"), storage.work_folder(target):
            pass
        Path(folder, "kept").write_text("kept")
    with storage.work_folder(target) as again:
        assert Path(again, "kept").read_text() == "kept"
        storage.remove_folder(again)
    assert not Path(folder).exists()


def test_a_lock_in_a_folder_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch) -> None:
    """Who waits between opening the lock and taking it must not hold a file that nobody else will see."""
    target = str(tmp_path / "out")
    real = storage.fcntl.flock
    calls = []

    def flock(descriptor: int, how: int) -> None:
        if not calls:
            storage.remove_folder(str(tmp_path / ".tmp-work-out"))
        calls.append(descriptor)
        real(descriptor, how)

    monkeypatch.setattr(storage.fcntl, "flock", flock)
    with storage.work_folder(target), pytest.raises(ConflictError), storage.work_folder(target):
        pass
    assert len(calls) == 3


def test_a_work_folder_that_cannot_be_made_is_a_write_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot write"), storage.work_folder(str(tmp_path / "file" / "out")):
        pass


def test_a_digesting_file_knows_its_bytes(tmp_path: Path) -> None:
    file = storage.DigestingFile(str(tmp_path / "a"))
    assert file.write(b"ab") == 2
    assert file.write(memoryview(b"c")) == 1
    assert (file.tell(), file.closed) == (3, False)
    file.close()
    file.close()
    assert (file.n_bytes, file.closed, (tmp_path / "a").read_bytes()) == (3, True, b"abc")
    assert file.hexdigest() == storage.file_sha256(str(tmp_path / "a"))
    other = storage.DigestingFile(str(tmp_path / "b"))
    other.write(b"ab")
    other.discard()
    assert other.write(b"cd") == 2
    assert (other.n_bytes, other.closed, (tmp_path / "b").exists()) == (2, True, False)


def test_a_folder_gets_its_name_in_one_step_and_takes_nobody_elses(tmp_path: Path) -> None:
    touch(tmp_path, "staged/a", "taken/b")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("taken", "file"):
        with pytest.raises(ConflictError, match="another process made this first"):
            storage.publish_folder(str(tmp_path / "staged"), str(tmp_path / name))
    storage.publish_folder(str(tmp_path / "staged"), str(tmp_path / "empty"))
    assert os.listdir(tmp_path / "empty") == ["a"]
    with pytest.raises(WriteError):
        storage.publish_folder(str(tmp_path / "staged"), str(tmp_path / "other"))


def test_what_lies_in_a_folder_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data2").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    data = str(tmp_path / "data")
    for name in ("data", "data/", "data/new/newer", "alias", "alias/deep/new"):
        assert storage.lies_in(str(tmp_path / name), data), name
    for name in ("data2", "new", ".", "data.pqindex"):
        assert not storage.lies_in(str(tmp_path / name), data), name
    assert storage.lies_in("/gone/away", "/gone")
    assert not storage.lies_in("/gone/away", "/gone/away/further")
    assert storage.lies_in(data, "/")
