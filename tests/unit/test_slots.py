"""Records of known sizes in one sparse file: shared, whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pqindex.errors import UsageError, WriteError
from pqindex.slots import SlotFile

KEY = bytes(range(32))
SIZES = np.array([16, 0, 400, 8], np.int64)


def slot_file(path: Path, key: bytes = KEY, sizes: np.ndarray = SIZES) -> SlotFile:
    return SlotFile(str(path), key, n_records=len(sizes), n_bytes=int(sizes.sum()), sizes=lambda: sizes)


def record(number: int, size: int) -> np.ndarray:
    return (np.arange(size) * (number + 3) % 251).astype(np.uint8)


def read(slots: SlotFile, number: int, size: int) -> np.ndarray | None:
    out = np.zeros(size, np.uint8)
    return out if slots.read(number, [out]) else None


def test_a_record_is_there_once_written_and_for_every_opener(tmp_path: Path) -> None:
    path = tmp_path / "a.slots"
    slots = slot_file(path)
    other = slot_file(path)
    assert slots.n_filled == 0
    assert read(slots, 2, 400) is None
    for number in (2, 1, 0):
        slots.write(number, [record(number, int(SIZES[number]))])
    for opener in (slots, other, slot_file(path)):
        assert opener.n_filled == 3
        assert [opener.has(i) for i in range(4)] == [True, True, True, False]
        for number in range(3):
            found = read(opener, number, int(SIZES[number]))
            assert found is not None
            assert np.array_equal(found, record(number, int(SIZES[number])))
        assert read(opener, 3, 8) is None


def test_arrays_lie_one_behind_the_other(tmp_path: Path) -> None:
    slots = slot_file(tmp_path / "a.slots")
    x, mask = np.arange(96, dtype=np.float32).reshape(48, 2), np.arange(16, dtype=np.uint8) > 3
    slots.write(2, [x, mask])
    got_x, got_mask = np.empty_like(x), np.empty_like(mask)
    assert slots.read(2, [got_x, got_mask])
    assert np.array_equal(got_x, x)
    assert np.array_equal(got_mask, mask)


def test_another_size_is_refused(tmp_path: Path) -> None:
    slots = slot_file(tmp_path / "a.slots")
    with pytest.raises(UsageError, match="record 0 has 16 bytes, found 15"):
        slots.write(0, [record(0, 15)])
    slots.write(0, [record(0, 16)])
    assert not slots.read(0, [np.zeros(15, np.uint8)])
    with pytest.raises(UsageError, match="a key has 32 bytes, found 3"):
        slot_file(tmp_path / "b.slots", b"abc")


@pytest.mark.parametrize("where", ["key", "sizes", "garbage", "short"])
def test_a_file_of_other_records_is_replaced(tmp_path: Path, where: str) -> None:
    path = tmp_path / "a.slots"
    old = slot_file(path)
    old.write(0, [record(0, 16)])
    if where == "garbage":
        path.write_bytes(os.urandom(9000))
    elif where == "short":
        os.truncate(path, 4096 + 20)
    slots = slot_file(path, bytes(32) if where == "key" else KEY, SIZES[:2] if where == "sizes" else SIZES)
    assert slots.n_filled == 0
    slots.write(0, [record(5, 16)])
    assert np.array_equal(read(slots, 0, 16), record(5, 16))
    assert sorted(os.listdir(tmp_path)) == ["a.slots"]
    if where in {"key", "sizes"}:  # the old one is still what it was
        assert np.array_equal(read(old, 0, 16), record(0, 16))


def test_a_removed_file_serves_who_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "a.slots"
    slots = slot_file(path)
    slots.write(0, [record(0, 16)])
    path.unlink()
    assert read(slots, 0, 16) is not None
    assert slot_file(path).n_filled == 0


def test_damaged_bytes_are_no_record(tmp_path: Path) -> None:
    path = tmp_path / "a.slots"
    slots = slot_file(path)
    slots.write(2, [record(2, 400)])
    slots.write(3, [record(3, 8)])
    with path.open("r+b") as file:
        file.seek(8192 + 16 + 100)
        file.write(b"\xff\xfe")
    assert read(slots, 2, 400) is None
    assert read(slots, 3, 8) is not None
    os.truncate(path, 8192 + 16)
    assert read(slots, 3, 8) is None


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    slot_file(tmp_path / "a.slots")
    assert (tmp_path / "a.slots").stat().st_mode & 0o777 == 0o600


def test_it_is_sparse(tmp_path: Path) -> None:
    slots = slot_file(tmp_path / "a.slots", KEY, np.full(1000, 1 << 20, np.int64))
    slots.write(999, [np.ones(1 << 20, np.uint8)])
    stat = (tmp_path / "a.slots").stat()
    assert stat.st_size > 1 << 29
    assert stat.st_blocks * 512 < 1 << 22


def test_a_folder_that_takes_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"cannot make the cache file .*No such file or directory"):
        slot_file(tmp_path / "none" / "a.slots")


FULL_DISK = """
import resource, signal, sys
import numpy as np
from pqindex.errors import WriteError
from pqindex.slots import SlotFile

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sizes = np.full(4, 10_000, np.int64)
slots = SlotFile(sys.argv[1], bytes(32), n_records=4, n_bytes=40_000, sizes=lambda: sizes)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192 + 15_000, resource.RLIM_INFINITY))
slots.write(0, [np.ones(10_000, np.uint8)])
try:
    slots.write(1, [np.ones(10_000, np.uint8)])
except WriteError as error:
    print(error)
print([slots.read(i, [np.zeros(10_000, np.uint8)]) for i in range(2)])
"""


def test_a_full_disk_is_said_and_the_record_is_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "a.slots")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot write to the cache file" in done.stdout
    assert done.stdout.endswith("[True, False]\n")


FILLER = """
import sys
import numpy as np
from pqindex.slots import SlotFile

sizes = np.full(3000, 40_000, np.int64)
slots = SlotFile(sys.argv[1], bytes(32), n_records=3000, n_bytes=120_000_000, sizes=lambda: sizes)
print("go", flush=True)
order = np.random.default_rng(int(sys.argv[2])).permutation(3000)
for number in order.tolist():
    slots.write(number, [np.full(20_000, number % 251, np.uint8), np.full(20_000, number % 13, np.uint8)])
"""


@pytest.mark.slow
def test_writers_killed_at_any_moment_leave_no_wrong_record(tmp_path: Path) -> None:
    path = str(tmp_path / "a.slots")
    sizes = np.full(3000, 40_000, np.int64)
    random = np.random.default_rng(5)
    n_filled = 0
    for round_ in range(12):
        fillers = [
            subprocess.Popen(
                [sys.executable, "-c", FILLER, path, str(2 * round_ + i)], stdout=subprocess.PIPE
            )
            for i in range(2)
        ]
        for filler in fillers:
            assert filler.stdout is not None
            filler.stdout.readline()
        time.sleep(float(random.uniform(0, 0.02)))
        for filler in fillers:
            filler.send_signal(signal.SIGKILL)
            filler.wait()
            filler.stdout.close()
        slots = slot_file(Path(path), bytes(32), sizes)
        for number in range(3000):
            x, y = np.empty(20_000, np.uint8), np.empty(20_000, np.uint8)
            if slots.has(number):
                assert slots.read(number, [x, y])
                assert (x == number % 251).all()
                assert (y == number % 13).all()
        n_filled = slots.n_filled
    assert n_filled > 0
