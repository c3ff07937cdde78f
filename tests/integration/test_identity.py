"""Digests hang on content alone: not on the machine, the path, the time, or how many processes built."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import pqindex

SQL = """
SELECT seq_id, row_count * 2 AS twice, stats.weight.max AS peak
FROM index WHERE row_count >= ? ORDER BY peak DESC
"""


def identities(source: Path, work: Path, workers: int) -> tuple[str, str, str]:
    index = pqindex.build(source, order="t", workers=workers, index=work / "i.pqindex")
    manifest = index.select(SQL, params=[10]).pin(work / "m.manifest.parquet", seed=3)
    assert len(manifest) > 0
    return index.content_digest, manifest.digest, index.select(SQL, params=[10]).digest


def test_copied_touched_and_built_again_T25_case_73(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shared / "data/sequences/chick_weights/one_per_row_group"
    (tmp_path / "one").mkdir()
    first = identities(source, tmp_path / "one", workers=1)
    copy = tmp_path / "else where/ü/data"
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    for path in copy.rglob("*"):
        os.utime(path, ns=(1_000_000_007, 1_000_000_007))
    (tmp_path / "two").mkdir()
    assert identities(copy, tmp_path / "two", workers=2) == first
    monkeypatch.chdir(copy.parent)
    (tmp_path / "three").mkdir()
    assert identities(Path("data"), tmp_path / "three", workers=2) == first


def test_index_and_data_move_together(shared: Path, tmp_path: Path) -> None:
    source = tmp_path / "a/data"
    shutil.copytree(
        shared / "data/sequences/basic_motions/one_per_row_group", source, copy_function=shutil.copyfile
    )
    index = pqindex.build(source, order="t")
    digest = index.content_digest
    manifest = index.select().pin(tmp_path / "a/m.manifest.parquet")
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = pqindex.open(tmp_path / "b/data.pqindex")
    assert moved.content_digest == digest
    assert moved.verify().ok
    with pqindex.Reader(moved.select(), columns=["ch0"]) as reader:
        assert reader[0].num_rows == 100
    again = pqindex.load_manifest(tmp_path / "b/m.manifest.parquet")
    assert again.digest == manifest.digest
    assert again.verify().ok
    assert (
        pqindex.load_manifest(tmp_path / "b/m.manifest.parquet", root=tmp_path).verify().problems[0].change
        == "removed"
    )


def test_another_seed_query_or_option_is_another_identity(shared: Path, tmp_path: Path) -> None:
    source = shared / "data/sequences/chick_weights/one_per_row_group"
    index = pqindex.build(source, order="t", index=tmp_path / "i.pqindex")
    digests = {
        index.select(SQL, params=[10]).pin(tmp_path / "1.manifest.parquet", seed=3).digest,
        index.select(SQL, params=[10]).pin(tmp_path / "2.manifest.parquet", seed=4).digest,
        index.select(SQL, params=[11]).pin(tmp_path / "3.manifest.parquet", seed=3).digest,
        index.select("SELECT seq_id FROM index").pin(tmp_path / "4.manifest.parquet", seed=3).digest,
    }
    assert len(digests) == 4
    other = pqindex.build(source, index=tmp_path / "j.pqindex")
    assert other.content_digest != index.content_digest
