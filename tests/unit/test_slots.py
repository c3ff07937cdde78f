"""Records of known sizes in one sparse file: shared, whole or absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pqindex.errors import UsageError, WriteError
from pqindex.slots import SlotFile

KEY = bytes(range(32))
KILLS = int(os.environ.get("PQINDEX_TEST_KILLS", "12"))
"""How often each of two writers is killed."""
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


KILLED = """
import os, random, signal, sys, time
import numpy as np
from pqindex.slots import SlotFile

path, n_rounds = sys.argv[1], int(sys.argv[2])
N, SIZE = 600, 40_000


def opened():
    return SlotFile(path, bytes(32), n_records=N, n_bytes=N * SIZE, sizes=lambda: np.full(N, SIZE, np.int64))


def fill(slots, seed, say):
    for number in np.random.default_rng(seed).permutation(N).tolist():
        slots.write(number, [np.full(SIZE // 2, number % 251, np.uint8), np.full(SIZE // 2, number % 13, np.uint8)])
        if say:
            os.write(say, b"g")
            say = 0


def start(slots, seed):
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        fill(slots or opened(), seed, theirs)
        os._exit(0)
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    return child


x, y = np.empty(SIZE // 2, np.uint8), np.empty(SIZE // 2, np.uint8)
n_amid = 0
for round_ in range(n_rounds):
    slots = opened()  # one filler goes on with it, as a forked worker does, and one opens the file itself
    children = [start(slots, 2 * round_), start(None, 2 * round_ + 1)]
    time.sleep(random.uniform(0, 0.01))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    n_filled = opened().n_filled
    n_amid += 0 < n_filled < N
    for number in range(N):
        if slots.has(number):
            assert slots.read(number, [x, y]), number
            assert (x == number % 251).all() and (y == number % 13).all(), number
    if n_filled == N:
        os.unlink(path)
print(n_rounds, n_amid)
"""


@pytest.mark.slow
def test_writers_killed_at_any_moment_leave_no_wrong_record(tmp_path: Path) -> None:
    """Two writers, each killed so many times; some of them in the middle of their work."""
    n_rounds, n_amid = run(KILLED, tmp_path / "a.slots", KILLS).split()
    assert int(n_rounds) == KILLS
    assert int(n_amid) > 0


TORN = """
import os, sys
import numpy as np
from pqindex.slots import SlotFile

N, SIZE = 5, 30_000
slots = SlotFile(sys.argv[1], bytes(32), n_records=N, n_bytes=N * SIZE, sizes=lambda: np.full(N, SIZE, np.int64))
right = [np.random.default_rng(i).integers(0, 256, SIZE, np.uint8) for i in range(N)]
children = []
for seed in range(3):
    child = os.fork()
    if not child:
        random = np.random.default_rng(seed)
        for _ in range(2000):
            number = int(random.integers(N))
            if seed < 2:
                slots.write(number, [right[number]])
            else:  # the third damages bytes, and flags
                place = 4096 + 16 * number + 8 if random.integers(3) else 8192 + SIZE * number + 500
                os.pwrite(slots._fd, random.bytes(8), place)
        os._exit(0)
    children.append(child)
out = np.empty(SIZE, np.uint8)
n_whole = n_absent = 0
while children:
    for number in range(N):
        if slots.read(number, [out]):
            assert (out == right[number]).all()
            n_whole += 1
        else:
            n_absent += 1
    if os.waitpid(children[-1], os.WNOHANG)[0]:
        children.pop()
for number in range(N):
    if not slots.is_whole(number):
        slots.write(number, [right[number]])
    assert slots.read(number, [out]) and (out == right[number]).all()
print(n_whole > 0, n_absent > 0)
"""


def test_records_that_are_written_anew_and_damaged_while_they_are_read_are_right_or_absent(
    tmp_path: Path,
) -> None:
    assert run(TORN, tmp_path / "a.slots") == "True True\n"


CUT = """
import os, sys
import numpy as np
from pqindex.errors import WriteError
from pqindex.slots import SlotFile

path = sys.argv[1]
sizes = np.full(4, 10_000, np.int64)


def opened():
    return SlotFile(path, bytes(32), n_records=4, n_bytes=40_000, sizes=lambda: sizes)


out = np.empty(10_000, np.uint8)
slots = opened()
for number in range(4):
    slots.write(number, [np.full(10_000, number, np.uint8)])
os.truncate(path, 8192 + 15_000)
print([slots.read(number, [out]) for number in range(4)], slots.n_filled)
slots.write(2, [np.full(10_000, 2, np.uint8)])
print([slots.read(number, [out]) for number in range(4)], opened().n_filled)
os.truncate(path, 0)
print([slots.read(number, [out]) for number in range(4)], slots.n_filled, slots.has(1))
for grown in (0, 100_000):
    os.truncate(path, grown)
    try:
        slots.write(1, [np.full(10_000, 1, np.uint8)])
    except WriteError as error:
        print(error.message[-28:], error.hint)
print(opened().n_filled, slots.has(1))
"""


def test_a_file_that_is_cut_short_while_it_is_used_is_absent_records_and_no_signal(tmp_path: Path) -> None:
    assert run(CUT, tmp_path / "a.slots").splitlines() == [
        "[True, False, False, False] 4",
        "[True, False, True, False] 4",
        "[False, False, False, False] 0 False",
        *["it was changed by somebody else remove the file, or give another cache_dir".removeprefix("it ")]
        * 2,
        "0 False",
    ]


def test_a_damaged_record_is_written_anew_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "a.slots"
    slots, other = slot_file(path), slot_file(path)
    slots.write(2, [record(2, 400)])
    assert slots.is_whole(2)
    with path.open("r+b") as file:
        file.seek(8192 + 16 + 100)
        file.write(b"\xff\xfe")
    assert other.has(2)
    assert not other.is_whole(2)
    other.write(2, [record(2, 400)])
    assert np.array_equal(read(slots, 2, 400), record(2, 400))


def test_a_record_of_another_key_or_another_place_is_none(tmp_path: Path) -> None:
    """Somebody copies another cache of the same sizes over this one, or a record over another."""
    sizes = np.array([50, 50], np.int64)
    slots, other = slot_file(tmp_path / "a", sizes=sizes), slot_file(tmp_path / "b", bytes(32), sizes)
    for number in range(2):
        other.write(number, [record(number, 50)])
    with (tmp_path / "a").open("r+b") as file:
        file.write((tmp_path / "b").read_bytes())
    assert slots.n_filled == 2
    assert [read(slots, number, 50) for number in range(2)] == [None, None]
    content = bytearray((tmp_path / "b").read_bytes())
    content[4096 + 24 : 4096 + 32], content[8192 + 50 :] = (
        content[4096 + 8 : 4096 + 16],
        content[8192 : 8192 + 50],
    )
    with (tmp_path / "b").open("r+b") as file:
        file.write(content)
    assert read(other, 0, 50) is not None
    assert read(other, 1, 50) is None


def test_a_record_may_have_more_arrays_than_one_call_takes_and_calls_may_move_less_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [np.full(3, i % 251, np.uint8) for i in range(3000)]
    preadv, pwritev = os.preadv, os.pwritev
    for most in (1 << 30, 1000):
        slots = slot_file(tmp_path / f"{most}.slots", sizes=np.array([9000], np.int64))
        monkeypatch.setattr(os, "pwritev", lambda fd, b, at, most=most: pwritev(fd, cut(b, most), at))
        monkeypatch.setattr(os, "preadv", lambda fd, b, at, most=most: preadv(fd, cut(b, most), at))
        slots.write(0, arrays)
        out = [np.empty(3, np.uint8) for _ in arrays]
        assert slots.read(0, out)
        assert np.array_equal(np.concatenate(out), np.concatenate(arrays))


def cut(buffers: list[memoryview], most: int) -> list[memoryview]:
    kept = []
    for buffer in buffers:
        kept.append(buffer[:most])
        most -= len(kept[-1])
    return [buffer for buffer in kept if len(buffer)]


def test_what_lies_at_the_path_and_is_no_file_of_ours_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "dangling", "fifo"):
        slots = slot_file(tmp_path / name)
        slots.write(0, [record(0, 16)])
        assert slot_file(tmp_path / name).n_filled == 1
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteError, match="cannot make the cache file"):
        slot_file(tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "elsewhere", "fifo", "folder", "link"]


def test_a_file_of_somebody_else_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot_file(tmp_path / "a.slots").write(0, [record(0, 16)])
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert slot_file(tmp_path / "a.slots").n_filled == 0


def test_damaged_offsets_and_another_version_are_noticed_at_the_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.slots"
    for at, found in ((4096 + 16, b"\x11"), (7, b"1"), (56, b"\0\0\0")):
        slots = slot_file(path)
        slots.write(0, [record(0, 16)])
        with path.open("r+b") as file:
            file.seek(at)
            file.write(found)
        assert slot_file(path).n_filled == 0


def test_what_a_process_left_that_died_while_it_made_the_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.slots.123-abcdef").write_bytes(b"x" * 100)
    (tmp_path / "b.slots.123-abcdef").write_bytes(b"x" * 100)
    slot_file(tmp_path / "a.slots")
    assert sorted(os.listdir(tmp_path)) == ["a.slots", "b.slots.123-abcdef"]


TOGETHER = """
import os, sys
import numpy as np
from pqindex.slots import SlotFile

path = sys.argv[1]
for round_ in range(20):
    with open(path, "wb") as file:
        file.write(b"PQSLOTS1" + bytes(20_000))  # of an older version
    go, come = os.pipe(), os.pipe()
    children = []
    for i in range(4):
        child = os.fork()
        if not child:
            os.close(go[1])
            os.read(go[0], 1)
            slots = SlotFile(path, bytes(32), n_records=4, n_bytes=40, sizes=lambda: np.full(4, 10, np.int64))
            slots.write(i, [np.full(10, i, np.uint8)])
            os.write(come[1], b"%20d" % os.fstat(slots._fd).st_ino)
            os._exit(0)
        children.append(child)
    for end in go:
        os.close(end)
    for child in children:
        os.waitpid(child, 0)
    inodes = {os.read(come[0], 20) for _ in children}
    for end in come:
        os.close(end)
    slots = SlotFile(path, bytes(32), n_records=4, n_bytes=40, sizes=lambda: np.full(4, 10, np.int64))
    assert (len(inodes), slots.n_filled) == (1, 4), (inodes, slots.n_filled)
print(os.listdir(os.path.dirname(path)))
"""


def test_processes_that_replace_an_old_file_together_go_on_with_one(tmp_path: Path) -> None:
    assert run(TOGETHER, tmp_path / "a.slots") == "['a.slots']\n"


FORKED = """
import fcntl, os, sys
import numpy as np
from pqindex.slots import SlotFile

ours, theirs = os.pipe()
children = []


def sizes():
    child = os.fork()
    if not child:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    children.append(child)
    return np.full(4, 10, np.int64)


slots = SlotFile(sys.argv[1], bytes(32), n_records=4, n_bytes=40, sizes=sizes)
fcntl.flock(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
os.close(theirs)
os.waitpid(children[0], 0)
print("free")
"""


def test_a_child_that_is_forked_while_a_file_is_made_keeps_no_lock(tmp_path: Path) -> None:
    assert run(FORKED, tmp_path / "a.slots") == "free\n"


def run(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
