"""Runs of the recipes in docs/trainers.md: their text, the data they expect, and processes that cannot outlive a test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainers.md"
TIMEOUT_S = 240  # of a whole run: only a hang takes so long
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")  # a port of its own for each run

# What a recipe imports as the user's model: it writes down every batch that it is trained on.
LOGGING_MODEL = """
import json, os, time
import torch

class Log:
    def __init__(self):
        self.file = open(f"{os.environ['LOG']}.{os.environ.get('RANK') or os.environ.get('LOCAL_RANK', 0)}", "a")

    def write(self, batch):
        assert len(batch["seq_id"]) == len(batch["x"])
        self.file.write(json.dumps(batch["seq_id"].tolist()) + "\\n")
        self.file.flush()
        time.sleep(float(os.environ.get("PAUSE_S", 0)))
"""


class Run:
    """A recipe that runs as one or more processes, and what their models were trained on."""

    def __init__(self, folder: Path, command: list[str], env: dict[str, str]) -> None:
        self._log = folder / f"run-{len(list(folder.glob('run-*.out')))}"
        self._out = self._log.with_suffix(".out")
        with self._out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env={**os.environ, "LOG": str(self._log), "OMP_NUM_THREADS": "1", **env},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> Run:
        """Wait for the end, which must be a good one."""
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, f"ended with {code}:\n{self.output}"
        return self

    def kill_after(self, n_batches: int) -> None:
        """Send SIGKILL to all processes when each rank has been given so many batches, at least."""
        until = time.monotonic() + TIMEOUT_S
        while min(map(len, self.ranks), default=0) < n_batches:
            assert self.process.poll() is None, f"ended too early:\n{self.output}"
            assert time.monotonic() < until, f"took too long:\n{self.output}"
            time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the process and all below it, if it still runs."""
        if self.process.poll() is None:
            root = psutil.Process(self.process.pid)
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def ranks(self) -> list[list[list[int]]]:
        """Ids of each batch of each rank."""
        files = sorted(self._log.parent.glob(f"{self._log.name}.[0-9]*"))
        return [
            [json.loads(line) for line in f.read_text().splitlines(True) if line.endswith("\n")]
            for f in files
        ]

    def delivered(self, stop: int | None = None) -> list[int]:
        """Ids in the order of delivery, the first `stop` of them: by steps, and in a step by ranks."""
        steps = zip_longest(*self.ranks, fillvalue=[])
        return list(chain.from_iterable(chain.from_iterable(steps)))[:stop]


@pytest.fixture(scope="session")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 61 sequences of one to seven rows in two files, with seed 5."""
    folder = tmp_path_factory.mktemp("pinned")
    (folder / "data").mkdir()
    for k, ids in enumerate(np.array_split(np.arange(61), 2)):
        repeated = np.repeat(ids, ids % 7 + 1)
        table = pa.table({"seq_id": repeated, "f0": repeated * 1.0, "f1": repeated % 2 * 0.5})
        pq.write_table(table, folder / "data" / f"part-{k}.parquet", row_group_size=20)
    path = folder / "train.manifest.parquet"
    pqindex.build(folder / "data").select("SELECT seq_id FROM index").pin(path, seed=5)
    return path


@pytest.fixture
def run(tmp_path: Path, pinned: Path) -> Iterator[Callable[..., Run]]:
    """Start a script in a folder that has the manifest and a model; whatever still runs at the end is killed."""
    for name in ("train.manifest.parquet", "data"):  # a manifest looks for its data beside itself
        (tmp_path / name).symlink_to(pinned.parent / name)
    started: list[Run] = []

    def start(text: str, *, model: str, n_ranks: int | None = None, **env: str) -> Run:
        (tmp_path / "model.py").write_text(LOGGING_MODEL + model)
        (tmp_path / "train.py").write_text(text)
        launcher = [] if n_ranks is None else [*TORCHRUN, f"--nproc-per-node={n_ranks}"]
        started.append(Run(tmp_path, [*launcher, "train.py"], env))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="session")
def recipe() -> Callable[..., str]:
    """Return a block of docs/trainers.md, with words of it replaced."""

    def find(name: str, **replaced: str) -> str:
        pattern = rf"<!-- recipe: {re.escape(name)} -->\n```python\n(.*?)\n```"
        found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.DOTALL)
        assert found, f"no recipe {name!r}"
        text = found.group(1)
        for old, new in replaced.items():
            assert old in text, f"recipe {name!r} does not say {old!r}"
            text = text.replace(old, new)
        return text

    return find
