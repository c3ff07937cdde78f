"""The figures of a rewrite can be made again, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_quick_run_prints_its_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.rewriting", "--quick", "--rounds", "1"),
            *("--json", str(tmp_path / "rewriting.json")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| after, `--codec none` |" in done.stdout
    found = json.loads((tmp_path / "rewriting.json").read_text())
    assert set(found["figures"]) == {"before", "before, `--pages never`", *found["copies"]}
    assert all(copy["n_sequences"] == 80 for copy in found["copies"].values())
