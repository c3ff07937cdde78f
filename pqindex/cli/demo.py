"""`pqindex demo`: from Parquet files to a trained model, each step as a user would type it."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from typing import Any

import click

from pqindex.cli.options import common
from pqindex.cli.output import print_fields, print_json, print_rows, print_text
from pqindex.demo.steps import Demo, Step


@click.command()
@click.option(
    "--dir", "folder", metavar="FOLDER", help="Work in FOLDER and keep it; by default in a temporary one."
)
@common
def demo(folder: str | None, *, as_json: bool) -> int:
    """Index, query, pin and train on a small real data set, in under a minute.

    Japanese Vowels (Kudo, Toyama, Shimbo; UCI, CC BY 4.0) comes with the package. The exit code is 1 if the model
    is not right on more than 90 % of the held-out utterances, or if a second run does not give the same batches.
    """
    started = time.monotonic()
    done: list[dict[str, Any]] = []
    with ExitStack() as stack:
        story = Demo(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="pqindex-demo-")))
        for step in story.steps():
            if not as_json:
                _print_typed(step)
            outcome = step.run()
            if not as_json:
                _print_outcome(outcome)
            done.append({"title": step.title, step.language: step.typed, "outcome": outcome})
    verdict = {
        "ok": story.ok,
        "held_out_accuracy": story.accuracy,
        "same_batches": story.same_batches,
        "elapsed_s": round(time.monotonic() - started, 1),
    }
    if as_json:
        print_json({**verdict, "steps": done})
    else:
        print_text("")
        print_fields(verdict)
        if folder is None:
            print_text("the temporary folder is gone; pqindex demo --dir FOLDER keeps the files")
    return 0 if story.ok else 1


def _print_typed(step: Step) -> None:
    prompt = "$ " if step.language == "sh" else "    "
    print_text(f"\n# {step.title}\n")
    for line in step.typed.splitlines():
        print_text(f"{prompt}{line}".rstrip())
    print_text("")


def _print_outcome(outcome: dict[str, Any] | list[dict[str, Any]]) -> None:
    if isinstance(outcome, dict):
        print_fields(outcome)
    else:
        print_rows(list(outcome[0]), [list(row.values()) for row in outcome])
