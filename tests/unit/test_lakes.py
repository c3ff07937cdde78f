"""Paths of logs, and the errors that all table formats share."""

from __future__ import annotations

import pytest

from pqindex.errors import TableFormatError
from pqindex.lakes.live import is_absolute, local_path, relative_path, rows_deleted


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("a/b.parquet", "a/b.parquet"),
        ("p=12:30/b.parquet", "p=12:30/b.parquet"),
        ("./a//b.parquet", "a/b.parquet"),
        ("/t/a b#1?.parquet", "a b#1?.parquet"),
        ("file:///t/a%20b.parquet", "a%20b.parquet"),
        ("file:/t/a.parquet", "a.parquet"),
        ("file://localhost/t/a.parquet", "a.parquet"),
    ],
)
def test_paths_of_logs_are_relative_to_the_table(location: str, path: str) -> None:
    assert relative_path(location, "/t", "Delta Lake") == path


@pytest.mark.parametrize(
    "location",
    ["../a.parquet", "/tt/a.parquet", "/t/../a.parquet", "s3://t/a.parquet", "file:///u/a", "hdfs:/t/a"],
)
def test_files_elsewhere_are_refused(location: str) -> None:
    with pytest.raises(TableFormatError, match="outside of the Delta Lake table") as caught:
        relative_path(location, "/t", "Delta Lake")
    assert (caught.value.path, caught.value.kind) == ("/t", "Delta Lake")


def test_what_is_absolute() -> None:
    assert [is_absolute(text) for text in ("/a", "s3://a", "file:/a", "a:b/c", "a", "p=1:/c")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert local_path("abfss://c@a/t") is None


def test_the_first_ten_files_are_named() -> None:
    error = rows_deleted(
        "Delta Lake", "/t", "deletion vectors", [f"{i}.parquet" for i in range(12)], "rewrite"
    )
    assert "9.parquet; and 2 more. Hint: rewrite" in str(error)
