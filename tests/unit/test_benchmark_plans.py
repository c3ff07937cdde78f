"""The figures of batch plans can be made again, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_quick_run_prints_its_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plans", "--quick", "--json", str(tmp_path / "plans.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| `max_tokens=65,536` |" in done.stdout
    figures = json.loads((tmp_path / "plans.json").read_text())
    assert figures["padding"]["log-normal"]["budget"] < 0.1 < figures["padding"]["log-normal"]["fixed"]
