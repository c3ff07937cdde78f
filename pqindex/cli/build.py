"""`pqindex build`: the index of a source."""

from __future__ import annotations

import os
import shlex
import time
from typing import Any

import click

import pqindex
from pqindex.cli.options import common, read_expressions, read_types
from pqindex.cli.output import one_line, print_fields, print_json, print_text, progress_bar
from pqindex.units import KEY, UNITS

FIRST_QUERY = "SELECT * FROM index LIMIT 5"


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="INDEX", help="Where to write it; by default SOURCE.pqindex beside the source."
)
@click.option(
    "--unit",
    type=click.Choice(UNITS),
    default=KEY,
    show_default=True,
    help="What one sequence is: all rows of one key, or each row, row group or file.",
)
@click.option(
    "--key",
    metavar="COLUMN",
    help="The column, or the Hive partition, that names a sequence.  [default: seq_id, with --unit key]",
)
@click.option("--order", metavar="COLUMN", help="The column that must strictly increase inside a sequence.")
@click.option(
    "--check",
    type=click.Choice(["footer", "keys", "full"]),
    default="keys",
    show_default=True,
    help="How much to prove: footer trusts exact bounds for the order inside a sequence; keys reads the order column; "
    "full reads every value, for statistics of every sequence, gaps, and digests of the content.",
)
@click.option(
    "--join", is_flag=True, help="Join a sequence whose pieces do not touch, in the order of --order."
)
@click.option("--skip-null-keys", is_flag=True, help="Leave out rows without a key instead of refusing them.")
@click.option(
    "--layout",
    type=click.Choice(["any", "one-per-row-group"]),
    default="any",
    show_default=True,
    help="Refuse a source in which a row group is not exactly one whole sequence.",
)
@click.option(
    "--on-bad-file",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do with a file that is not readable Parquet. With skip, the exit code is 1 if one was skipped.",
)
@click.option(
    "--files",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    metavar="FILE",
    help="Index the files that FILE lists, one a line, relative to the folder SOURCE; - is standard input.",
)
@click.option(
    "--delta", "table_format", flag_value="delta", help="SOURCE is a Delta table: index its live files."
)
@click.option(
    "--iceberg",
    "table_format",
    flag_value="iceberg",
    help="SOURCE is an Iceberg table, or one of its metadata files: index its live files.",
)
@click.option(
    "--table-version",
    type=click.IntRange(min=0),
    metavar="N",
    help="Version of the Delta table, or snapshot id of the Iceberg table; the newest by default.",
)
@click.option(
    "--ignore-lake",
    is_flag=True,
    help="Take every file in the folder of a table format (Delta, Iceberg, Hudi), live or not.",
)
@click.option("--list-skipped", is_flag=True, help="List the names that are passed over, and by which rule.")
@click.option(
    "--partition-type",
    "partition_types",
    multiple=True,
    metavar="NAME=TYPE",
    callback=read_types,
    help="Give the values of a Hive partition a type, e.g. year=int64; they are text by default. Repeatable.",
)
@click.option(
    "--statistics",
    multiple=True,
    metavar="COLUMN",
    help="Keep statistics of this column, and of others only if they are named too. Repeatable.",
)
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="COLUMN",
    help="Make this column, which must be constant inside every sequence, a column of the index. Repeatable.",
)
@click.option(
    "--aggregate",
    "aggregates",
    multiple=True,
    metavar="NAME=EXPR",
    callback=read_expressions,
    help="Make a column of the index of an SQL aggregate over each sequence's rows: mean_price=avg(price). Repeatable.",
)
@click.option(
    "--no-trust-statistics", is_flag=True, help="Read the keys of every row group, whatever its footer says."
)
@click.option(
    "--pages",
    type=click.Choice(["auto", "never", "always"]),
    default="auto",
    show_default=True,
    help="Of which row groups to record where the pages are, to read a part of them; auto: those of several sequences.",
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Use N processes.")
@common
def build(
    source: tuple[str, ...],
    output: str | None,
    *,
    unit: str,
    key: str | None,
    order: str | None,
    check: str,
    join: bool,
    skip_null_keys: bool,
    layout: str,
    on_bad_file: str,
    files: Any,
    table_format: str | None,
    table_version: int | None,
    ignore_lake: bool,
    list_skipped: bool,
    partition_types: dict[str, str],
    statistics: tuple[str, ...],
    no_trust_statistics: bool,
    pages: str,
    attributes: tuple[str, ...],
    aggregates: dict[str, str],
    workers: int | None,
    as_json: bool,
) -> int:
    """Build the index of SOURCE: a folder, a file, several files, or a glob pattern in quotes.

    The source is not changed. A sequence is all rows with one value of the key column, or what --unit says.

    \b
      pqindex build data/
      pqindex build "logs/2026-*/*.parquet" --key trip_id --order time -o trips.pqindex
      pqindex build data/ --order t --check full --attribute label --aggregate "mean_price=avg(price)"
    """  # noqa: D301 - click wants the backspace character itself
    started = time.monotonic()
    with progress_bar() as progress:
        index = pqindex.build(
            source[0] if len(source) == 1 else list(source),
            key,
            order,
            index=output,
            unit=unit,
            check=check,
            join=join,
            skip_null_keys=skip_null_keys,
            layout=layout,
            on_bad_file=on_bad_file,
            files=None if files is None else [line for line in files.read().splitlines() if line],
            statistics=list(statistics) or None,
            trust_statistics=not no_trust_statistics,
            pages=pages,
            partition_types=partition_types,
            table_format=table_format,
            table_version=table_version,
            ignore_lake=ignore_lake,
            attributes=attributes,
            aggregates=aggregates,
            workers=workers,
            progress=progress,
        )
    elapsed_s = time.monotonic() - started
    passed_over = index.passed_over() if list_skipped else None
    return print_built(index, elapsed_s=elapsed_s, as_json=as_json, passed_over=passed_over)


def print_built(
    index: pqindex.Index,
    *,
    elapsed_s: float,
    as_json: bool,
    passed_over: list[dict[str, str]] | None = None,
) -> int:
    """Print what a build made, and return the exit code: 1 if files were skipped."""
    skipped = index.report["skipped"]
    if as_json:
        listed = {} if passed_over is None else {"passed_over": passed_over}
        print_json({**index.info(), "elapsed_s": round(elapsed_s, 3), **listed})
        return 1 if skipped else 0
    path = os.path.relpath(index.path) if _is_below_here(index.path) else index.path
    print_text(path)
    print_fields(
        {
            "n_sequences": index.n_sequences,
            "n_rows": index.n_rows,
            "n_files": index.n_files,
            "n_row_groups": index.info()["totals"]["n_row_groups"],
            "snapshot": index.snapshot,
            "time": f"{elapsed_s:.2f} s",
        },
        indent="  ",
    )
    for note in index.report["notes"]:
        print_text(f"note: {one_line(note)}")
    print_passed_over(passed_over or [])
    for file in skipped:
        print_text(one_line(f"skipped: {file['path']}: {file['reason']}: {file['message']}"))
    print_text(f"layout: {index.layout()}; see pqindex doctor {shlex.quote(path)}")
    print_text(f'next: pqindex query {shlex.quote(path)} "{FIRST_QUERY}"')
    return 1 if skipped else 0


def print_passed_over(names: list[dict[str, str]]) -> None:
    """Print the names that are no source files, a line each."""
    for name in names:
        print_text(one_line(f"passed over: {name['path']}: {name['rule']}"))


def _is_below_here(path: str) -> bool:
    return os.path.commonpath([os.path.abspath(path), os.getcwd()]) == os.getcwd()
