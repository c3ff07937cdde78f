"""Measure batch plans: ``python -m benchmarks.plans [--quick] [--json FILE]``.

Construction and resume for ten million sequences, and the share of padding in batches by budget and by number.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pqindex.torch import BatchPlan

BATCH_SIZE = 32


@dataclass
class Lengths:
    """A selection of which only the lengths are known."""

    row_counts: np.ndarray
    extra: pa.Table = field(default_factory=lambda: pa.table({}))
    digest: str = "0" * 64
    seed: int = 7

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.row_counts)


def measure_plan(n_sequences: int, **policy: Any) -> dict[str, Any]:
    """Return what a plan over log-normal lengths costs: seconds, bytes of its pickle, and peak memory in MB."""
    random = np.random.default_rng(0)
    lengths = np.empty(n_sequences, np.int64)
    for start in range(0, n_sequences, 1 << 20):
        piece = lengths[start : start + (1 << 20)]
        piece[:] = np.clip(np.exp(random.normal(5.5, 1, len(piece))), 1, 65_536)
    source = Lengths(lengths)
    before = time.perf_counter()
    plan = BatchPlan(source, shuffle="full", rank=0, world_size=1, **policy)
    constructed = time.perf_counter()
    state = plan.state_dict(delivered=int(len(plan) * 0.8))
    del plan
    resumed_from = time.perf_counter()
    plan = BatchPlan(source, shuffle="full", rank=0, world_size=1, **policy)
    plan.load_state_dict(state)
    next(iter(plan))
    resumed = time.perf_counter()
    return {
        "n_sequences": n_sequences,
        "n_batches": len(BatchPlan(source, shuffle="full", rank=0, world_size=1, **policy)),
        "construct_s": constructed - before,
        "resume_s": resumed - resumed_from,
        "state_bytes": len(pickle.dumps(state)),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def padding_share(batches: BatchPlan, lengths: np.ndarray) -> float:
    """Return which share of the padded batches is padding."""
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in batches)
    return 1 - int(lengths.sum()) / padded


def measure_padding(lengths: np.ndarray) -> dict[str, Any]:
    """Return the padding of batches of 32, and of a budget that gives about as many batches."""
    source = Lengths(lengths)
    fixed = BatchPlan(source, BATCH_SIZE, shuffle="full", rank=0, world_size=1)
    budget = max(int(lengths.max()), int(BATCH_SIZE * lengths.mean()))
    by_budget = BatchPlan(source, max_tokens=budget, shuffle="full", rank=0, world_size=1)
    return {
        "n_sequences": len(lengths),
        "max_tokens": budget,
        "fixed": padding_share(fixed, lengths),
        "budget": padding_share(by_budget, lengths),
        "n_fixed": len(fixed),
        "n_budget": len(by_budget),
    }


def real_lengths(folder: Path) -> np.ndarray:
    """Return the rows of each sequence of a data set in a folder of Parquet files."""
    table = pa.concat_tables(
        pq.read_table(path, columns=["seq_id"]) for path in sorted(folder.rglob("*.parquet"))
    )
    return table.group_by("seq_id").aggregate([([], "count_all")]).column("count_all").to_numpy()


@click.command()
@click.option("--quick", is_flag=True, help="A hundred thousand sequences, to see that everything runs.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here as well.")
def main(*, quick: bool, json_path: Path | None) -> None:
    """Measure batch plans and print them as Markdown tables."""
    n = 100_000 if quick else 10_000_000
    plans = {"batch_size=256": {"batch_size": 256}, "max_tokens=65,536": {"max_tokens": 65_536}}
    costs = {name: measure_plan(n, **policy) for name, policy in plans.items()}
    click.echo(
        f"| {n:,} sequences | batches | plan | construct and resume at 0.8 | state |\n|---|---|---|---|---|"
    )
    for name, cost in costs.items():
        click.echo(
            f"| `{name}` | {cost['n_batches']:,} | {cost['construct_s']:.2f} s | {cost['resume_s']:.2f} s | "
            f"{cost['state_bytes']} B |"
        )
    click.echo(
        f"\npeak memory, torch and the lengths included: {costs['max_tokens=65,536']['peak_mb']:.0f} MB\n"
    )
    shared = Path(os.environ.get("PQINDEX_SHARED", "../shared")) / "data" / "sequences"
    sets = {
        "log-normal": np.clip(np.exp(np.random.default_rng(1).normal(5.5, 1, n // 100)), 1, 65_536).astype(
            np.int64
        )
    }
    for name, path in (("JapaneseVowels", "japanese_vowels"), ("PLAID", "plaid")):
        found = sorted(shared.glob(f"*{path}*/one_per_row_group"))
        if found:
            sets[name] = real_lengths(found[0])
    padding = {name: measure_padding(lengths) for name, lengths in sets.items()}
    click.echo(
        "| lengths | sequences | 32 a batch: padding | `max_tokens` | padding |\n|---|---|---|---|---|"
    )
    for name, row in padding.items():
        click.echo(
            f"| {name} | {row['n_sequences']:,} | {row['fixed']:.1%} ({row['n_fixed']} batches) | "
            f"{row['max_tokens']:,} | {row['budget']:.1%} ({row['n_budget']} batches) |"
        )
    if json_path is not None:
        json_path.write_text(json.dumps({"plans": costs, "padding": padding}, indent=1) + "\n")


if __name__ == "__main__":
    main()
