"""`pqindex query`: the answer to a SELECT over an index."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import click

import pqindex
from pqindex.cli.options import common, located, selecting, versioned
from pqindex.cli.output import print_json, print_note
from pqindex.cli.tables import FORMS, print_table, save_table


@click.command()
@click.argument("index")
@click.argument("sql")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="How to print the rows; by default as the ending of FILE says, or as a table.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the rows to FILE instead of standard output.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@selecting
@versioned
@located
@common
def query(
    index: str,
    sql: str,
    form: str | None,
    output: str | None,
    *,
    overwrite: bool,
    params: list[Any],
    attach: dict[str, str],
    dialect: str,
    snapshot: int | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Answer SQL, one SELECT over INDEX.

    The relations are index (a row a sequence), files, row_groups, segments, snapshots, and what --attach names.

    \b
      pqindex query data.pqindex "SELECT seq_id FROM index WHERE row_count >= 64 AND stats.price.max > 3"
      pqindex query data.pqindex "SELECT label, count(*) FROM index JOIN labels USING (seq_id) GROUP BY ALL" \\
          --attach labels=labels.csv
    """  # noqa: D301 - click wants the backspace character itself
    if as_json and form not in {None, "json"} and output is None:
        raise click.UsageError(f"--json and --format {form} exclude each other")
    chosen = form or _form_of(output) or ("json" if as_json else "table")
    opened = pqindex.open(index, snapshot=snapshot, root=root)
    if output is not None:
        opened.check_target(output)
    table = opened.sql(sql, params=params or None, attach=attach or None, dialect=dialect)
    if output is None:
        print_table(table, chosen)
        return
    save_table(table, output, chosen, overwrite=overwrite)
    if as_json:
        print_json({"path": output, "format": chosen, "n_rows": table.num_rows})
    else:
        print_note(f"{table.num_rows:,} rows written to {output}")


def _form_of(output: str | None) -> str | None:
    if output is None:
        return None
    ending = PurePath(output).suffix.lstrip(".").lower()
    return ending if ending in FORMS else None
