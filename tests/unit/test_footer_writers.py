"""What is known of writers: versions, faults, padding."""

from __future__ import annotations

import pytest

from pqindex.footer.writers import (
    CHUNK_PADDING,
    STATISTICS_FAULTS,
    chunk_padding,
    parse_version,
    statistics_faults,
)


@pytest.mark.parametrize(
    ("created_by", "version"),
    [
        ("parquet-cpp-arrow version 26.0.1", (26, 0, 1)),
        ("parquet-mr version 1.12.0-201812210311360288-a86", (1, 12, 0)),
        ("DuckDB version v1.4.4 (build 6ddac802ff)", (1, 4, 4)),
        ("impala version 3 (build x)", (3, 0, 0)),
        ("Polars (python) version 2.1.0 (build 7f9)", (2, 1, 0)),
        ("DuckDB", None),
        ("", None),
        ("cpp version BuildInfo:GitBranch:master", None),
    ],
)
def test_versions(created_by: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(created_by) == version


@pytest.mark.parametrize(
    ("created_by", "padded"),
    [
        ("parquet-mr", True),
        ("parquet-mr version 1.2.8", True),
        (" parquet-mr version v1.0.0", True),
        ("parquet-mr version abc", True),
        ("parquet-mr version 1.2.9", False),
        ("parquet-mr version 1.12.3 (build 1)", False),
        ("parquet-cpp version 1.0.0", False),
        ("foo parquet-mr version 1.0.0", False),
        (None, False),
    ],
)
def test_padding_of_old_parquet_mr(created_by: str | None, padded: bool) -> None:
    assert chunk_padding(created_by) == (CHUNK_PADDING if padded else 0)


@pytest.mark.parametrize(
    ("created_by", "columns"),
    [
        ("parquet-cpp-arrow version 26.0.1", {"dictionary"}),
        ("parquet-cpp-arrow version 6.0.0", {"dictionary"}),
        ("parquet-cpp-arrow version 5.0.0", {"dictionary"}),
        ("parquet-cpp version 1.5.1-SNAPSHOT", {"dictionary"}),
        ("DuckDB", {"all"}),
        ("DuckDB version v1.1.1 (build af39bd0dcf)", set()),
        ("Polars", {"all", "dictionary", "decimal"}),
        ("Polars (python) version 1.9.0", {"all", "dictionary", "decimal"}),
        ("Polars (python) version 2.1.0 (build 7f9)", {"dictionary", "decimal"}),
        ("Parquet.Net version 4.25.0 (build 687fbb)", {"timestamp"}),
        ("hyparquet", {"decimal"}),
        ("parquet-mr version 1.6.0", set()),
        (None, set()),
    ],
)
def test_faults_by_writer(created_by: str | None, columns: set[str]) -> None:
    assert {fault.columns for fault in statistics_faults(created_by)} == columns


def test_every_fault_has_a_reason() -> None:
    assert all(fault.reason and fault.faults for fault in STATISTICS_FAULTS)
