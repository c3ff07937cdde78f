"""Cache folders: private, bounded, listed and cleared."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path

import pytest

from pqindex import caches
from pqindex.cli import main
from pqindex.errors import WriteError


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PQINDEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "_SHARED_MEMORY", str(tmp_path / "shm"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def fill(kind: str, n_files: int, n_bytes: int = 10_000) -> Path:
    folder = Path(caches.cache_folder(kind))
    for number in range(n_files):
        (folder / f"{kind}-{number}").write_bytes(b"x" * n_bytes)
        os.utime(folder / f"{kind}-{number}", ns=(number, number))
    return folder


def test_a_cache_is_private_and_bounded() -> None:
    folder = fill("plans", 5)
    assert folder.stat().st_mode & 0o077 == 0
    caches.keep_newest(str(folder), 2)
    assert sorted(path.name for path in folder.iterdir()) == ["plans-3", "plans-4"]


def test_shared_memory_is_a_folder_of_the_users_own(base: Path) -> None:
    assert caches.cache_folder("memory") == str(base / f"pqindex-{os.getuid()}")
    (base / "shm").mkdir()
    assert caches.cache_folder("memory") == str(base / "shm" / f"pqindex-{os.getuid()}")


def test_without_a_variable_it_is_the_users_cache_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PQINDEX_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "xdg"))
    assert caches.cache_folder("plans") == str(base / "xdg" / "pqindex" / "plans")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(base / "home"))
    assert caches.cache_folder("decoded") == str(base / "home" / ".cache" / "pqindex" / "decoded")


def test_a_folder_that_cannot_be_made_is_said(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "file").write_text("x")
    monkeypatch.setenv("PQINDEX_CACHE_DIR", str(base / "file"))
    with pytest.raises(WriteError, match=r"cannot make the cache folder .*Hint: set PQINDEX_CACHE_DIR"):
        caches.cache_folder("plans")


def test_a_folder_of_somebody_else_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches.private_folder(str(base / "own"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(WriteError, match=r"belongs to somebody else: .*own; expected user 12345"):
        caches.private_folder(str(base / "own"))


def test_files_are_listed_and_cleared_by_kind() -> None:
    assert caches.cache_files() == []
    fill("plans", 2)
    fill("decoded", 1)
    fill("memory", 1)
    files = caches.cache_files()
    assert [(file.kind, os.path.basename(file.path)) for file in files] == [
        ("plans", "plans-0"),
        ("plans", "plans-1"),
        ("decoded", "decoded-0"),
        ("memory", "memory-0"),
    ]
    assert all(file.size_bytes == 10_000 for file in files)
    assert files[1].modified_ns == 1
    assert [file.kind for file in caches.clear_caches(["decoded"])] == ["decoded"]
    assert [file.kind for file in caches.cache_files()] == ["plans", "plans", "memory"]


def test_a_sparse_file_counts_what_it_takes() -> None:
    folder = fill("decoded", 1)
    os.truncate(folder / "decoded-0", 1 << 30)
    (file,) = caches.cache_files(["decoded"])
    assert file.size_bytes < 1 << 20


def test_the_verb_lists_and_clears(capsys: pytest.CaptureFixture[str]) -> None:
    fill("plans", 1)
    fill("memory", 2)
    assert main(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert "plans-0" in shown
    assert "1970-01-01 00:00:00+00:00" in shown
    assert main(["cache", "list", "--kind", "memory", "--json"]) == 0
    assert [file["kind"] for file in json.loads(capsys.readouterr().out)] == ["memory", "memory"]
    assert main(["cache", "clear", "--kind", "memory", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n_files": 2, "size_bytes": 20_000}
    assert main(["cache", "clear"]) == 0
    assert caches.cache_files() == []


def test_room_is_made_of_files_that_nobody_has_open(base: Path) -> None:
    folder = fill("decoded", 5)
    (folder / "folder").mkdir()
    with (folder / "decoded-1").open() as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        caches.make_room(str(folder), 10_000, max_bytes=60_000)
        assert len(list(folder.iterdir())) == 6
        caches.make_room(str(folder), 10_001, max_bytes=60_000)
        assert [path.name for path in sorted(folder.glob("d*"))] == [f"decoded-{i}" for i in (1, 2, 3, 4)]
        caches.make_room(str(folder), 10_000, max_bytes=30_000)
        assert [path.name for path in sorted(folder.glob("d*"))] == ["decoded-1", "decoded-4"]
        caches.make_room(str(folder), 10_000, max_bytes=1)
    assert [path.name for path in sorted(folder.glob("d*"))] == ["decoded-1"]
    caches.make_room(str(base / "none"), 10_000, max_bytes=1)
