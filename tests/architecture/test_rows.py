"""Every row of the two founding lists has a test that names it, or a sentence that says where it belongs."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

LATER = {
    "L21": "what prefetching costs is written in docs/items.md; measuring it waits for the read benchmarks",
    "L31": "that data streams to the training loop is what `test_demo` runs",
    "A14": "slow stores and long transforms are named and measured once object stores are there",
}


def rows_named() -> set[str]:
    names = [
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    ]
    return {
        row
        for name in names
        for row in re.findall(r"(?<![A-Za-z0-9])[LA]\d+(?![A-Za-z0-9])", name.replace("_", " "))
    }


def test_each_row_has_a_test_or_a_reason() -> None:
    rows = {f"L{i}" for i in range(1, 33)} | {f"A{i}" for i in range(1, 17)}
    named = rows_named()
    assert rows - named - LATER.keys() == set()
    assert named & LATER.keys() == set(), "a row that has a test needs no reason"
