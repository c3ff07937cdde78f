"""`pqindex pin`: a selection, pinned in a manifest."""

from __future__ import annotations

import shlex
from typing import Any

import click

import pqindex
from pqindex.cli.options import common, located, selecting, versioned
from pqindex.cli.output import print_fields, print_json, print_text, progress_bar


@click.command()
@click.argument("index")
@click.argument("sql")
@click.option(
    "-o", "--output", metavar="MANIFEST", required=True, help="The manifest to write, one Parquet file."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="The seed of the order of training, part of the manifest.",
)
@click.option(
    "--statistics",
    multiple=True,
    metavar="COLUMN,...",
    help="Read these columns of all the sequences, and pin their counts, mean, deviation and bounds too. "
    "Repeatable.",
)
@click.option(
    "--content",
    is_flag=True,
    help="Read the sequences' row groups and record their bytes, so that verify --deep sees replaced values.",
)
@click.option("--overwrite", is_flag=True, help="Replace MANIFEST if it exists.")
@selecting
@versioned
@located
@common
def pin(
    index: str,
    sql: str,
    output: str,
    *,
    seed: int | None,
    statistics: tuple[str, ...],
    content: bool,
    overwrite: bool,
    params: list[Any],
    attach: dict[str, str],
    dialect: str,
    snapshot: int | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Pin the sequences that SQL selects from INDEX, in that order, in a manifest.

    The result of the query must have a column seq_id; its other columns travel with each sequence.

    \b
      pqindex pin data.pqindex "SELECT seq_id, label FROM index JOIN labels USING (seq_id) WHERE row_count >= ?" \\
          --param 64 --attach labels=labels.csv --seed 7 -o train.manifest.parquet
    """  # noqa: D301 - click wants the backspace character itself
    selection = pqindex.open(index, snapshot=snapshot, root=root).select(
        sql, params=params or None, attach=attach or None, dialect=dialect
    )
    columns = [name for names in statistics for name in names.split(",")]
    with progress_bar() as progress:
        manifest = selection.pin(
            output,
            seed=seed,
            statistics=columns or None,
            content=content,
            overwrite=overwrite,
            progress=progress,
        )
    facts = {"path": output, "n_sequences": len(manifest), "digest": manifest.digest}
    if as_json:
        print_json(facts)
        return
    print_fields(facts)
    print_text(f"next: pqindex show {shlex.quote(output)}")
