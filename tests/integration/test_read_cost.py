"""A shuffled epoch over more files than may be open reads the bytes of the wanted columns, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex import storage

N_FILES, N_GROUPS, N_ROWS = 300, 64, 4
MAX_OPEN_FILES = 128
COLUMNS = ["x", "z"]  # with a column between them that nobody wants

Read = tuple[str, int, int]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> pqindex.Index:
    """300 files of 64 row groups, each a sequence of four rows."""
    folder = tmp_path_factory.mktemp("epoch") / "data"
    folder.mkdir()
    n = N_GROUPS * N_ROWS
    steps = np.arange(n, dtype=np.float32)
    for number in range(N_FILES):
        ids = np.repeat(np.arange(N_GROUPS) + N_GROUPS * number, N_ROWS)
        table = pa.table(
            {"seq_id": ids, "x": ids * 10.0 + steps % N_ROWS, "y": steps, "z": (ids % 7).astype(np.int32)}
        )
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=N_ROWS)
    return pqindex.build(folder)


@pytest.fixture(scope="module")
def chunks(index: pqindex.Index) -> set[Read]:
    """The byte ranges of the wanted chunks, as the footers say."""
    wanted = set()
    for number in range(N_FILES):
        name = f"{number:03}.parquet"
        metadata = pq.read_metadata(os.path.join(index.root, name))
        for group in range(N_GROUPS):
            for column in (1, 3):
                chunk = metadata.row_group(group).column(column)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                wanted.add((name, start, chunk.total_compressed_size))
    assert len(wanted) == N_FILES * N_GROUPS * len(COLUMNS)
    return wanted


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Every (file, offset, length) that is read of source files, once the test empties the list."""
    reads: list[Read] = []
    original = storage.SourceFile.read

    def counted(self: storage.SourceFile, offset: int, length: int) -> bytes:
        reads.append((os.path.basename(self.path), offset, length))
        return original(self, offset, length)

    monkeypatch.setattr(storage.SourceFile, "read", counted)
    return reads


def shuffled(n: int) -> list[int]:
    return list(np.random.default_rng(5).permutation(n).tolist())


@pytest.mark.parametrize("batch_size", [1, 32])
def test_a_shuffled_epoch_reads_the_wanted_chunks_and_nothing_else_A9_L17(
    index: pqindex.Index, chunks: set[Read], touched: list[Read], batch_size: int
) -> None:
    selection = index.select("SELECT seq_id FROM index ORDER BY seq_id")
    with pqindex.Reader(selection, columns=COLUMNS, max_open_files=MAX_OPEN_FILES) as reader:
        touched.clear()  # to make a reader, the bytes of each footer were compared with the index
        order = shuffled(len(reader))
        for at in range(0, len(order), batch_size):
            positions = order[at : at + batch_size]
            found = reader.read(positions) if batch_size > 1 else [reader[positions[0]]]
            for position, table in zip(positions, found, strict=True):
                assert table.column("x").to_pylist() == [position * 10.0 + i for i in range(N_ROWS)]
                assert table.column("z").to_pylist() == [position % 7] * N_ROWS
        stats = reader.stats()
    assert Counter(touched) == Counter(inside(touched, chunks)), "a byte outside the wanted chunks"
    read, wanted = (sum(length for _, _, length in some) for some in (touched, chunks))
    assert wanted <= read <= 1.01 * wanted
    assert (stats["reads"], stats["footer_reads"]) == (N_FILES * N_GROUPS, 0)
    assert (stats["bytes"], stats["ranges"]) == (read, len(touched))
    assert stats["open_files"] == MAX_OPEN_FILES
    assert stats["opens"] > N_FILES, "no file was opened twice: the epoch was too small to say anything"


def inside(reads: list[Read], chunks: set[Read]) -> list[Read]:
    """Return the reads that are a wanted chunk, or several that touch."""
    stop_of = {(file, start): start + length for file, start, length in chunks}
    good = []
    for file, offset, length in reads:
        at = offset
        while (file, at) in stop_of and at < offset + length:
            at = stop_of[file, at]
        if at == offset + length:
            good.append((file, offset, length))
    return good


EPOCH = """
import os, sys
import numpy as np
import pqindex
index, mark, columns, n_open = sys.argv[1], sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])
reader = pqindex.Reader(pqindex.open(index).select(), columns=columns, max_open_files=n_open)
reader[0]
order = np.random.default_rng(5).permutation(len(reader)).tolist()
os.close(os.open(mark, os.O_RDONLY))
for position in order:
    reader[position]
os.close(os.open(mark, os.O_RDONLY))
"""
CALL = re.compile(r"(openat|read|pread64)\((?:\d+<([^>]*)>|AT_FDCWD[^,]*, \"([^\"]*)\").*\) = (-?\d+)")


def test_the_kernel_saw_the_same_reads(index: pqindex.Index, chunks: set[Read], tmp_path: Path) -> None:
    """As the counting door above, from outside of the process: nothing reads past the door."""
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-e", "trace=openat,read,pread64"]
    if (
        shutil.which("strace") is None
        or subprocess.run([*strace, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no strace here that may trace")
    (mark := tmp_path / "mark").touch()
    log = tmp_path / "calls"
    arguments = [index.path, str(mark), ",".join(COLUMNS), str(MAX_OPEN_FILES)]
    child = [sys.executable, "-c", EPOCH, *arguments]
    subprocess.run([*strace, "-o", str(log), *child], check=True, capture_output=True)
    lines = log.read_text(errors="replace").splitlines()
    first, last = (i for i, line in enumerate(lines) if f'"{mark}"' in line)
    reads: list[Read] = []
    others = []
    for line in lines[first + 1 : last]:
        call = CALL.search(line)
        if call is None or call[1] == "openat":
            continue
        path, length = call[2], int(call[4])
        if call[1] == "pread64" and path.startswith(f"{index.root}/"):
            offset = int(line.rsplit(") = ", 1)[0].rsplit(", ", 1)[1])
            reads.append((os.path.basename(path), offset, length))
        elif path.endswith(".parquet"):
            others.append(line)
    assert others == [], "read of a source file past the one door"
    assert Counter(reads) == Counter(chunks)
    opens = sum(".parquet" in line and "openat(" in line for line in lines[first:last])
    assert N_FILES < opens < len(chunks)
