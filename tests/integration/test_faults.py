"""Fault injection: each damage to the source is reported by name, or on first read; rows are never wrong in silence.

What can be seen hangs on what there is: digests of the content, checksums of the pages, or neither. docs/checks.md says
the same in sentences.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.cli import main

FLIPS = Path(__file__).with_name("flips.py")


def write(path: Path, first: int, *, checksums: bool, middle: float = 0.5) -> None:
    """Three row groups of two sequences, plain and not compressed: a flipped byte may be another value."""
    random = np.random.default_rng(first)
    schema = pa.schema([("seq_id", pa.int32()), ("t", pa.int32()), ("x", pa.float32())])
    options: dict[str, Any] = {
        "use_dictionary": False,
        "compression": "none",
        "write_page_checksum": checksums,
    }
    with pq.ParquetWriter(path, schema, **options) as writer:
        for group in range(3):
            keys = np.repeat([first + 2 * group, first + 2 * group + 1], 20)
            x = np.clip(random.normal(size=40), 0.25, 0.75).astype(np.float32)
            x[:4] = 0.25, middle, 0.75, middle
            writer.write_table(pa.table([keys, np.tile(np.arange(20), 2), x], schema=schema))


class Pinned:
    """A source, its index, and a manifest of all sequences."""

    def __init__(self, folder: Path, *, checksums: bool, content: bool) -> None:
        self.source = folder / "data"
        self.source.mkdir()
        for number, name in enumerate(("a", "b")):
            write(self.source / f"{name}.parquet", 100 * number, checksums=checksums)
        self.index = pqindex.build(self.source, order="t", check="full" if content else "keys")
        self.manifest = self.index.select().pin(folder / "m.manifest.parquet")

    def reports(self, *, deep: bool) -> list[pqindex.VerifyReport]:
        return [
            pqindex.open(self.index.path, staleness="ignore").verify(deep=deep),
            pqindex.load_manifest(self.manifest.path).verify(deep=deep),
        ]

    def first_read(self) -> str | None:
        """The reason of the error of a first read of everything, None where there is none."""
        try:
            with pqindex.Reader(pqindex.load_manifest(self.manifest.path)) as reader:
                reader.read(range(len(reader)))
        except pqindex.PqindexError as error:
            return error.reason
        return None


@pytest.fixture
def pinned(tmp_path: Path) -> Callable[..., Pinned]:
    def make(*, checksums: bool = False, content: bool = False) -> Pinned:
        return Pinned(tmp_path, checksums=checksums, content=content)

    return make


def truncate(source: Path) -> None:
    path = source / "a.parquet"
    path.write_bytes(path.read_bytes()[:-300])


def swap(source: Path) -> None:
    (source / "a.parquet").rename(source / "c")
    (source / "b.parquet").rename(source / "a.parquet")
    (source / "c").rename(source / "b.parquet")


def flip_footer(source: Path) -> None:
    path = source / "a.parquet"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


def delete(source: Path) -> None:
    (source / "a.parquet").unlink()


def duplicate_over(source: Path) -> None:
    shutil.copy2(source / "b.parquet", source / "a.parquet")


FAULTS = {
    "truncate": (truncate, {"a.parquet": "truncated"}),
    "swap": (swap, {"a.parquet": "replaced", "b.parquet": "replaced"}),
    "flip a byte of the footer": (flip_footer, {"a.parquet": "replaced"}),
    "delete": (delete, {"a.parquet": "removed"}),
    "copy another file over it": (duplicate_over, {"a.parquet": "replaced"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_footer_shows_is_named_without_reading_a_page_T15_case_35(
    pinned: Callable[..., Pinned], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pinned()
    inject, expected = FAULTS[fault]
    inject(made.source)
    for report in [*made.reports(deep=False), *made.reports(deep=True)]:
        assert {problem.file: problem.change for problem in report.problems} == expected
    assert made.first_read() == "source-changed"
    assert main(["verify", made.index.path]) == 1
    assert "a.parquet" in capsys.readouterr().out


def test_a_file_that_is_there_twice_is_refused_by_the_next_build_T15(pinned: Callable[..., Pinned]) -> None:
    made = pinned()
    shutil.copy2(made.source / "a.parquet", made.source / "again.parquet")
    assert all(report.ok for report in made.reports(deep=True)), "what was indexed is as it was"
    with pytest.raises(pqindex.FragmentedSequenceError, match=r"a\.parquet#0.* and again\.parquet#0"):
        pqindex.build(made.source, order="t", index=made.source.parent / "new.pqindex")


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
def test_other_values_under_an_equal_footer_and_the_old_time_T13_case_35(
    pinned: Callable[..., Pinned], content: bool, checksums: bool
) -> None:
    """Size, footer and modification time are those of before; only the content tells, where it was recorded."""
    made = pinned(checksums=checksums, content=content)
    path = made.source / "a.parquet"
    stat, footer = path.stat(), path.read_bytes()[-600:]
    write(path, 0, checksums=checksums, middle=0.625)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.read_bytes()[-600:]) == (stat.st_size, footer)
    assert all(report.ok for report in made.reports(deep=False))
    for report in made.reports(deep=True):
        assert report.n_row_groups == 6
        if content:
            assert {(p.file, p.reason, p.change) for p in report.problems} == {("a.parquet", "digest-mismatch", "replaced")}  # fmt: skip
            assert len(report.problems) == 3
            assert "a.parquet, row group 1" in report.problems[1].message
            assert report.notes == ()
        else:
            assert report.ok
            assert report.notes[0].startswith(
                "content is not recorded of 6 of 6 row groups: values that were replaced"
            )
            assert ("without checksums" in str(report.notes)) == (not checksums)


def test_a_manifest_alone_names_the_file_where_its_index_is_gone(pinned: Callable[..., Pinned]) -> None:
    made = pinned(content=True)
    shutil.rmtree(made.index.path)
    assert pqindex.load_manifest(made.manifest.path).verify(deep=True).n_compared == 6
    write(made.source / "a.parquet", 0, checksums=False, middle=0.625)
    (problem,) = pqindex.load_manifest(made.manifest.path).verify(deep=True).problems
    assert (problem.file, problem.change) == ("a.parquet", "replaced")
    assert "one or more of row groups 0, 1, 2" in problem.message


def test_content_is_recorded_at_pin_on_request(pinned: Callable[..., Pinned], capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    made = pinned()
    some = made.index.select("SELECT seq_id FROM index WHERE seq_id IN (0, 104)")
    without = some.pin(made.source.parent / "w.manifest.parquet")
    assert "content_sha256" not in without.header["files"][0]
    told: list[tuple[int, int, str]] = []
    manifest = some.pin(
        made.source.parent / "c.manifest.parquet", content=True, progress=lambda *s: told.append(s)
    )
    assert told == [(1, 2, "content"), (2, 2, "content")]
    assert (without.info()["content_recorded"], manifest.info()["content_recorded"]) == (False, True)
    assert manifest.digest != without.digest
    full = pqindex.build(made.source, order="t", check="full", index=made.source.parent / "full.pqindex")
    same = full.select("SELECT seq_id FROM index WHERE seq_id IN (0, 104)").pin(
        made.source.parent / "f.manifest.parquet"
    )
    assert same.header["files"] == manifest.header["files"]
    assert main(["pin", made.index.path, "SELECT seq_id FROM index", "--content", "-o", str(made.source.parent / "x.manifest.parquet")]) == 0  # fmt: skip
    assert main(["verify", "--deep", str(made.source.parent / "x.manifest.parquet")]) == 0
    assert "6 row groups read, 6 of them compared with what was recorded" in capsys.readouterr().out
    # Row groups that the manifest does not touch are none of its business.
    write(made.source / "a.parquet", 0, checksums=False)
    data = bytearray((made.source / "a.parquet").read_bytes())
    chunk = pq.read_metadata(made.source / "a.parquet").row_group(1).column(2)
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    (made.source / "a.parquet").write_bytes(data)
    assert manifest.verify(deep=True).ok
    assert [p.file for p in pqindex.load_manifest(made.source.parent / "x.manifest.parquet").verify(deep=True).problems] == ["a.parquet"]  # fmt: skip


def flips(made: Pinned, places: list[int], mask: int) -> list[dict[str, Any]]:
    job = {
        "index": made.index.path,
        "manifest": made.manifest.path,
        "file": str(made.source / "a.parquet"),
        "places": places,
        "mask": mask,
    }
    done = subprocess.run(
        [sys.executable, str(FLIPS)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("checksums", "content"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_bytes_that_flip_in_pages_are_seen_where_digests_or_checksums_exist(
    pinned: Callable[..., Pinned], checksums: bool, content: bool
) -> None:
    made = pinned(checksums=checksums, content=content)
    groups = pq.read_metadata(made.source / "a.parquet")
    chunks = [groups.row_group(g).column(c) for g in range(3) for c in range(3)]
    stop = max(chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks)
    found = flips(made, list(range(4, stop, 31)), 0x10)
    assert len(found) == len(range(4, stop, 31)) > 40
    silent = [one["place"] for one in found if one["read"] == "wrong" and not all(one["told"].values())]
    unseen = [
        one["place"] for one in found if not all(one["told"].values()) and one["read"] in {"equal", "wrong"}
    ]
    told = {file for one in found for problems in one["told"].values() for file, _ in problems}
    assert told <= {"a.parquet"}
    if content:
        assert unseen == [], "every byte is digested"
    elif checksums:
        assert silent == [], "a checksum covers the values, not the page's header"
    else:
        assert silent, "nothing tells: this is what docs/checks.md says"
    if checksums:
        assert not [one for one in found if one["read"] == "wrong"]
