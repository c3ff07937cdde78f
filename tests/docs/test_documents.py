"""README and the other pages say what is so: the example runs, links lead somewhere, commands are those that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("spec/**/*.md"), *ROOT.glob("docs/**/*.md")])


def block(page: str, name: str) -> str:
    found = re.search(
        rf"<!-- {name} -->\n```\w+\n(.*?)\n```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
    )
    assert found, f"{page} has no block {name!r}"
    return found.group(1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten sequences of one to ten rows, as README's example expects them."""
    folder = tmp_path / "data"
    folder.mkdir()
    names = ["f0", "f1", "y0"]
    schema = pa.schema([("seq_id", pa.int64()), ("t", pa.int32()), *((name, pa.float32()) for name in names)])
    for number in range(2):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema) as writer:
            for seq_id in range(5 * number, 5 * number + 5):
                n = seq_id + 1
                values = [np.full(n, seq_id + i, np.float32) for i in range(3)]
                writer.write_table(
                    pa.table([[seq_id] * n, np.arange(n, dtype=np.int32), *values], schema=schema)
                )
    return folder


def test_the_example_of_readme_runs_as_it_stands(data: Path) -> None:
    example = block("README.md", "example: readme")
    assert (
        len([line for line in example.splitlines() if line.strip() and not line.lstrip().startswith("#")])
        <= 20
    )
    (data.parent / "example.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=data.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout
    assert all(
        re.match(r"torch\.Size\(\[4, \d+, 2\]\) torch\.Size\(\[4, \d+, 1\]\) \[", line) for line in lines
    )
    seen = [
        int(i)
        for line in lines[:2]
        for i in re.findall(r"\d+", line[line.rindex("]") - 40 :].rsplit("[", 1)[1])
    ]
    assert len(seen) >= 4


def run_example(folder: Path, page: str, name: str) -> list[str]:
    (folder / "example.py").write_text(block(page, name), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork.*:DeprecationWarning", "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_of_sources_runs_as_it_stands(tmp_path: Path) -> None:
    for number, (robot, day) in enumerate(
        [("007", "2026-01-01"), ("007", "2026-01-02"), ("12", "2026-01-03")]
    ):
        folder = tmp_path / "runs" / f"robot={robot}" / f"day={day}"
        folder.mkdir(parents=True)
        t = np.arange(3) + 3 * number
        pq.write_table(pa.table({"seq_id": [number] * 3, "t": t}), folder / "a.parquet")
    assert run_example(tmp_path, "docs/sources.md", "example: sources") == [
        "[{'robot': '007', 'day': datetime.date(2026, 1, 2)}]",
        "['007', '12']",
        "robot=007/day=2026-01-01/a.parquet",
    ]


def test_the_example_of_windows_runs_as_it_stands(data: Path) -> None:
    lines = run_example(data.parent, "docs/windows.md", "example: windows")
    assert len(lines) == 2  # 1 + 1 + 2 + 2 + 3 windows of sequences of 6, 7, 8, 9 and 10 rows
    assert lines[0].startswith("torch.Size([8, 4, 2]) torch.Size([8, 2, 1]) [")
    assert lines[1].startswith("torch.Size([1, 4, 2]) torch.Size([1, 2, 1]) [")


def test_the_example_of_the_page_on_items_runs_as_it_stands(data: Path) -> None:
    lines = run_example(data.parent, "docs/items.md", "example: items")
    assert len(lines) == 3
    assert all(re.match(r"torch\.Size\(\[\d, \d+, 2\]\) torch\.int64 \[", line) for line in lines)


def test_the_example_of_batches_runs_as_it_stands(data: Path) -> None:
    *batches, last = run_example(data.parent, "docs/batches.md", "example: batches")
    lengths = [[int(n) for n in re.findall(r"\d+", line[: line.index("]")])] for line in batches]
    assert sorted(n for batch in lengths for n in batch) == list(range(1, 11))
    assert all(max(batch) * len(batch) <= 20 for batch in lengths)
    assert last == "0 10", "everything was delivered"


def test_the_query_of_the_page_on_checks_runs_as_it_stands(tmp_path: Path) -> None:
    table = pa.table({"seq_id": [1, 1, 2, 2], "t": [0, 1, 0, 1], "price": [1.0, 3.0, float("nan"), 1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    index = pqindex.build(tmp_path / "a.parquet", order="t", check="full")
    found = index.sql(block("docs/checks.md", "example: checks"))
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, 2.0, 1.0)]


def test_the_example_of_a_stream_runs_as_it_stands(data: Path) -> None:
    lines = run_example(data.parent, "docs/windows.md", "example: stream")
    assert [line[0] + line[line.rindex(" ") :] for line in lines] == [
        "0 4",
        "0 8",
        "0 10",
        "1 4",
        "1 8",
        "1 10",
    ]
    epochs = [
        [i for line in lines if line[0] == e for i in re.findall(r"\d+", line[2 : line.rindex(" ")])]
        for e in "01"
    ]
    assert epochs[0] != epochs[1]
    assert sorted(map(int, epochs[0])) == sorted(map(int, epochs[1])) == list(range(10))


def test_the_example_of_a_rewrite_runs_as_it_stands(data: Path) -> None:
    assert run_example(data.parent, "docs/rewrite.md", "example: rewrite") == ["True 8 52 True", "3"]


def test_the_commands_of_readme_run_as_they_stand(data: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (commands,) = [
        b for b in re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL) if b.startswith("pqindex build")
    ]
    for command in commands.splitlines():
        done = subprocess.run(
            command.replace("pqindex ", f"{sys.executable} -m pqindex.cli ", 1),
            shell=True,
            cwd=data.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_is_short_and_has_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "pqindex demo" in block("README.md", "demo-command")
    assert "pytest" in block("README.md", "test-command")
    assert "FIGURES" not in text


def test_every_module_has_its_place_in_the_architecture_page() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("## Floors")[1].split("## The hard choices")[0]
    modules = {p.stem for p in (ROOT / "pqindex").glob("*.py")} | {
        p.parent.name for p in (ROOT / "pqindex").glob("*/__init__.py")
    }
    rows = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {module for module in modules if not module.startswith("__")} <= named
