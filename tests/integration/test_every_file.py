"""Files of a hundred writers, odd and hostile ones among them: an index or a message, never a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HOSTILE = Path(__file__).with_name("hostile.py")
MAX_PEAK_BYTES = 2 << 30


def ends_of(files: list[Path]) -> list[dict[str, Any]]:
    """What came of each file, opened in a child process; fails where the process did not outlive one."""
    done = subprocess.run(
        [sys.executable, str(HOSTILE)],
        input="\n".join(map(str, files)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    last = lines[-1].get("begin") or lines[-1]["end"]
    assert done.returncode == 0, f"the process ended at {last} with {done.returncode}: {done.stderr[-2000:]}"
    ends = [line for line in lines if "end" in line]
    assert len(ends) == len(files)
    for end in ends:
        assert end["peak_bytes"] < MAX_PEAK_BYTES, end["end"]
        for key, outcome in end["outcomes"].items():
            reason, _, message = outcome.partition(": ")
            assert reason != "wrong", (end["end"], key, outcome)
            if message and reason != "empty-source":
                assert Path(end["end"]).name in message or "pyarrow" in message, (end["end"], key, outcome)
    return ends


def test_every_file_alone_ends_in_an_index_or_a_message_T33_case_38_39_41(shared: Path) -> None:
    files = sorted(
        path
        for path in (shared / "data").rglob("*")
        if path.is_file() and "sequences" not in path.relative_to(shared).parts and path.suffix != ".csv"
    )
    assert len(files) > 300
    ends = ends_of(files)
    # Most of them are good, and are read.
    assert sum(any(o.startswith("read") for o in end["outcomes"].values()) for end in ends) > 100


def test_odd_files_of_every_clone_end_in_an_index_or_a_message_T33() -> None:
    ends = ends_of(sorted((Path(__file__).parents[1] / "data/parquet-testing").iterdir()))
    assert len(ends) == 9
    outcomes = {outcome.split(":")[0].split(" ")[0] for end in ends for outcome in end["outcomes"].values()}
    assert {"read", "bad-file", "unsupported-file"} <= outcomes
