"""`pqindex doctor` on the command line, and the line that a build ends with."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.cli import main


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Twenty sequences of ten rows, twelve to a row group of 100 rows and some straddling, beside a wide column."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    ids = np.repeat(np.arange(20), 9)
    columns = {f"f{i}": np.random.default_rng(i).standard_normal(len(ids)) for i in range(13)}
    table = pa.table({"seq_id": ids, "label": ["\x1b[2J"] * len(ids), **columns})
    pq.write_table(table, tmp_path / "data/a.parquet", row_group_size=100)
    pqindex.build(tmp_path / "data")
    return "data.pqindex"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_report_has_its_tables_and_ends_with_advice(run: Any, index: str) -> None:
    code, out, err = run("doctor", index)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("data.pqindex: 20 sequences of 180 rows in 2 row groups of 1 file, 15 columns")
    titles = [line for before, line in pairwise(lines) if not before]
    assert titles == [
        "spread",
        "places",
        "columns",
        "an epoch, each sequence read alone by one reader",
        "advice",
    ]
    fields = {line.split("  ")[0]: line.split("  ")[-1] for line in lines}
    assert fields["in several row groups"] == "1"
    assert fields["shared row groups"] == "2 of 2"
    assert fields["and 3 smaller ones (--json lists all)"]
    rows = [line.split() for line in lines if line.startswith(("shuffled", "file"))]
    assert [row[1] for row in rows] == ["2", "2"]
    assert "note: read-amplification: a sequence read alone costs" in out
    assert f"  do: pqindex rewrite {Path(index).absolute()} -o DIR" in lines
    assert "\x1b" not in out


def test_named_columns_alone_are_examined(run: Any, index: str) -> None:
    code, out, _ = run("doctor", index, "--column", "f1", "--column", "f0", "--json")
    document = json.loads(out)
    assert code == 0
    assert [column["name"] for column in document["columns"]] == ["f1", "f0"]
    assert document["largest"]["sequence_bytes"] == 9 * 2 * 8
    assert {advice["code"] for advice in document["advice"]} >= {"read-amplification", "straddling"}
    assert all(
        set(advice) == {"code", "severity", "message", "gain", "remedy"} for advice in document["advice"]
    )


def test_a_manifest_is_examined(run: Any, index: str) -> None:
    manifest = (
        pqindex.open(index).select("SELECT seq_id FROM index WHERE seq_id < 3").pin("m.manifest.parquet")
    )
    code, out, _ = run("doctor", "m.manifest.parquet", "--json")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(manifest.doctor().to_dict()))


def test_a_column_that_is_not_there_and_a_target_that_is_not_there_are_wrong_use(
    run: Any, index: str
) -> None:
    code, out, err = run("doctor", index, "--column", "f99")
    assert (code, out) == (2, "")
    assert err.startswith("error: no source file of the selection has a column 'f99'")
    code, _, err = run("doctor", "nowhere")
    assert code == 2
    assert "neither an index nor a manifest is there: nowhere" in err


def test_the_build_ends_with_a_word_on_the_layout(run: Any, index: str) -> None:
    code, out, _ = run("build", "data")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("layout: ")]
    assert line.startswith("layout: 10 sequences per row group at the median, 1.1 pieces per sequence, ")
    assert line.endswith("; see pqindex doctor data.pqindex")
    assert "layout" not in json.loads(run("build", "data", "--json")[1])
