"""The demo as a list of steps: what a user would type, and a function that does the same and says what came of it."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

import pqindex
from pqindex.errors import ConflictError, MissingDependencyError

DATA = "japanese_vowels"
INDEX = f"{DATA}.pqindex"
TRAIN, TEST = "train.manifest.parquet", "test.manifest.parquet"
SEED = 7
WANTED_ACCURACY = 0.9

QUERY = (
    "SELECT stats.label.min AS speaker, count(*) AS utterances, min(row_count) AS shortest, "
    "max(row_count) AS longest FROM index GROUP BY ALL ORDER BY ALL"
)
PIN_TRAIN = "SELECT seq_id, CAST(stats.label.min AS BIGINT) - 1 AS speaker FROM index WHERE seq_id < 270"
PIN_TEST = PIN_TRAIN.replace("<", ">=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the demo.

    Attributes
    ----------
    title : str
        What the step is for.
    typed : str
        What a user would type: lines for a shell or for Python.
    language : str
        ``sh`` or ``python``.
    run : callable
        Does the same, and returns what came of it: facts by name, or rows of a table.
    """

    title: str
    typed: str
    language: str
    run: Callable[[], dict[str, Any] | list[dict[str, Any]]]


class Demo:
    """The steps of the demo in one folder.

    Parameters
    ----------
    folder : str
        An empty or absent folder, which the demo fills.

    Attributes
    ----------
    accuracy : float or None
        Of the trained model on the held-out utterances, once it was trained.
    same_batches : bool or None
        Whether the second run gave the batches of the first, once it ran.

    Raises
    ------
    MissingDependencyError
        If torch is not installed.
    ConflictError
        If the folder holds something.
    """

    def __init__(self, folder: str) -> None:
        if importlib.util.find_spec("torch") is None:
            raise MissingDependencyError(
                "the demo trains with PyTorch, which is not installed",
                hint='pip install "pqindex[torch]"',
                package="torch",
            )
        if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
            raise ConflictError(
                f"the demo needs an empty folder: {folder}", hint="name another with --dir", path=folder
            )
        self.folder = folder
        self.accuracy: float | None = None
        self.same_batches: bool | None = None
        self._first: list[tuple[list[int], str]] = []

    @property
    def ok(self) -> bool:
        """Whether the model is good enough and the second run gave the same batches."""
        return (self.accuracy or 0.0) > WANTED_ACCURACY and self.same_batches is True

    def steps(self) -> list[Step]:
        """Return the steps, to be run in this order."""
        with as_file(files("pqindex.demo") / DATA) as packaged:
            here = shlex.quote(self.folder)
            copied = f"mkdir -p {here}\ncd {here}\ncp -r {shlex.quote(str(packaged))} {DATA}"
        return [
            Step(
                title="Copy the data: 640 utterances of two Japanese vowels by nine speakers",
                typed=copied,
                language="sh",
                run=self._copy,
            ),
            Step(
                title="Index it, beside the files, which stay as they are",
                typed=_shell("pqindex", "build", DATA, "--order", "t"),
                language="sh",
                run=self._build,
            ),
            Step(
                title="Ask it something",
                typed=_shell("pqindex", "query", INDEX, QUERY),
                language="sh",
                run=self._query,
            ),
            Step(
                title="Pin the utterances to train on",
                typed=_shell("pqindex", "pin", INDEX, PIN_TRAIN, "--seed", str(SEED), "-o", TRAIN),
                language="sh",
                run=lambda: self._pin(PIN_TRAIN, TRAIN),
            ),
            Step(
                title="Pin those held out",
                typed=_shell("pqindex", "pin", INDEX, PIN_TEST, "--seed", str(SEED), "-o", TEST),
                language="sh",
                run=lambda: self._pin(PIN_TEST, TEST),
            ),
            Step(
                title="Train on the first, test on the second, with two worker processes",
                typed=_training(),
                language="python",
                run=self._train,
            ),
            Step(
                title="Run again from the manifest alone: the same batches, without workers this time",
                typed=(
                    f'again = record(open_loader("{TRAIN}", n_workers=0), epoch=0)\n'
                    'print("same batches:", again == first)'
                ),
                language="python",
                run=self._run_again,
            ),
        ]

    # -- what the steps do ------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _copy(self) -> dict[str, Any]:
        with as_file(files("pqindex.demo") / DATA) as packaged:
            shutil.copytree(packaged, self._path(DATA))
        names = sorted(os.listdir(self._path(DATA)))
        return {"files": names, "notice": self._path(os.path.join(DATA, "NOTICE"))}

    def _build(self) -> dict[str, Any]:
        index = pqindex.build(self._path(DATA), order="t")
        return {"n_sequences": index.n_sequences, "n_rows": index.n_rows, "n_files": index.n_files}

    def _query(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pqindex.open(self._path(INDEX)).sql(QUERY).to_pylist()
        return rows

    def _pin(self, sql: str, name: str) -> dict[str, Any]:
        manifest = pqindex.open(self._path(INDEX)).select(sql).pin(self._path(name), seed=SEED)
        return {"n_sequences": len(manifest), "digest": manifest.digest}

    def _train(self) -> dict[str, Any]:
        import torch

        from pqindex.demo import train

        n_threads = torch.get_num_threads()
        torch.set_num_threads(train.N_THREADS)
        try:
            loader = train.open_loader(self._path(TRAIN), 2)
            self._first = train.record(loader, epoch=0)
            model = train.train(loader)
            self.accuracy = train.accuracy(model, train.open_loader(self._path(TEST), 2))
        finally:
            torch.set_num_threads(n_threads)
        return {"n_batches": len(self._first), "held_out_accuracy": round(self.accuracy, 4)}

    def _run_again(self) -> dict[str, Any]:
        from pqindex.demo import train

        again = train.record(train.open_loader(self._path(TRAIN), 0), epoch=0)
        self.same_batches = again == self._first
        return {
            "first_batch_ids": again[0][0][:5],
            "first_batch_checksums": [self._first[0][1], again[0][1]],
            "n_batches": len(again),
            "same_batches": self.same_batches,
        }


def _shell(*words: str) -> str:
    return " ".join(f'"{word}"' if " " in word else shlex.quote(word) for word in words)


def _training() -> str:
    """Return the lines for Python; the function that matters is shown in full, as it stands in `train`."""
    source = (files("pqindex.demo") / "train.py").read_text(encoding="utf-8")
    shown = next(
        ast.get_source_segment(source, node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "open_loader"
    )
    return f"""\
import pqindex, torch
from pqindex.torch import BatchPlan, SequenceDataset, SequenceLoader, collate_padded
from pqindex.demo.train import CHANNELS, N_THREADS, accuracy, record, train

{shown}

torch.set_num_threads(N_THREADS)
loader = open_loader("{TRAIN}", n_workers=2)
first = record(loader, epoch=0)
model = train(loader)
print("held-out accuracy:", accuracy(model, open_loader("{TEST}", n_workers=2)))"""
