"""`pqindex rewrite`: the sequences of an index or a manifest in new files, in the layout that reads fastest."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

import pqindex
from pqindex.cli.options import Size, common, located, selecting, versioned
from pqindex.cli.output import print_fields, print_json, print_note, print_text, progress_bar
from pqindex.cli.targets import open_target


@click.command()
@click.argument("target", metavar="INDEX|MANIFEST")
@click.option(
    "-o", "--output", metavar="DIR", required=True, help="The folder to make; its index is DIR.pqindex."
)
@click.option(
    "--sql", metavar="SQL", help="Of an index: the sequences that this SELECT chooses, in its order."
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="COLUMN",
    help="Copy this column, and others only if they are named too; the key and the order always. Repeatable.",
)
@click.option(
    "--pack-rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="Put whole sequences together in row groups of up to N rows, instead of a row group for each.",
)
@click.option(
    "--codec",
    type=click.Choice(["lz4", "none", "snappy", "zstd"]),
    default="lz4",
    show_default=True,
    help="How pages are compressed.",
)
@click.option(
    "--dictionary",
    type=click.Choice(["auto", "never", "always"]),
    default="auto",
    show_default=True,
    help="Which columns are dictionary-encoded; auto: texts, binaries and the key.",
)
@click.option(
    "--file-size",
    type=Size(),
    default="256MB",
    show_default=True,
    metavar="SIZE",
    help="Close a file with the row group with which it has so many bytes.",
)
@click.option(
    "--order", metavar="COLUMN", help="The order column of the new index; by default that of the old one."
)
@click.option("--no-check", is_flag=True, help="Do not read the new files back to compare every sequence.")
@selecting
@versioned
@located
@common
def rewrite(
    target: str,
    output: str,
    *,
    sql: str | None,
    columns: tuple[str, ...],
    pack_rows: int | None,
    codec: str,
    dictionary: str,
    file_size: int,
    order: str | None,
    no_check: bool,
    params: list[Any],
    attach: dict[str, str],
    dialect: str,
    snapshot: int | None,
    root: str | None,
    as_json: bool,
) -> None:
    """Copy the sequences of INDEX or MANIFEST to new files that read faster: one sequence a row group, plain numbers.

    DIR must be absent or empty and apart from the source, which is not changed. Every sequence is read back and
    compared. If the command is stopped, the same command goes on after the last complete file.

    \b
      pqindex rewrite logs.pqindex -o fast/
      pqindex rewrite logs.pqindex -o small/ --sql "SELECT seq_id FROM index WHERE row_count >= ?" --param 64 \\
          --column f0 --column f1 --pack-rows 20000 --codec zstd
    """  # noqa: D301 - click wants the backspace character itself
    opened: pqindex.Index | pqindex.Manifest | pqindex.Selection
    if sql is not None or snapshot is not None or params or attach:
        if os.path.isfile(target):
            raise click.UsageError("--sql, --param, --attach and --snapshot need an index")
        index = pqindex.open(target, snapshot=snapshot, root=root)
        chosen = {} if sql is None else {"sql": sql}
        opened = index.select(**chosen, params=params or None, attach=attach or None, dialect=dialect)
    else:
        opened = open_target(target, root=root)
    try:
        with progress_bar() as progress:
            made = opened.rewrite(
                output,
                columns=list(columns) or None,
                codec=codec,
                dictionary=dictionary,
                pack_rows=pack_rows,
                file_size=file_size,
                order=order,
                check=not no_check,
                progress=progress,
                say=print_note,
            )
    except KeyboardInterrupt:
        print_note("interrupted: run the same command again to go on after the last complete file")
        raise click.Abort from None
    report = made.rewritten
    facts = {"path": made.root, "index": made.path, **({} if report is None else report.to_dict())}
    if as_json:
        print_json(facts | {"elapsed_s": round(facts.get("elapsed_s", 0), 3)})
        return
    seconds = facts.pop("elapsed_s", 0)
    print_fields(facts | {"n_kept_files": facts["n_kept_files"] or None, "time": f"{seconds:.2f} s"})
    print_text(f"next: pqindex info {shlex.quote(made.path)}")
