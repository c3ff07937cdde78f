"""`pqindex info` and `show`: what is in an index or a manifest."""

from __future__ import annotations

import click

import pqindex
from pqindex.cli.build import print_passed_over
from pqindex.cli.options import common, located, versioned
from pqindex.cli.output import print_fields, print_json, print_rows, print_text
from pqindex.cli.targets import open_target


@click.command()
@click.argument("index")
@click.option(
    "--skipped",
    is_flag=True,
    help="List the source again, and say which names in it are no source files and by which rule.",
)
@versioned
@located
@common
def info(index: str, *, skipped: bool, snapshot: int | None, root: str | None, as_json: bool) -> None:
    """Say what INDEX holds: counts, key, columns, digest."""
    opened = pqindex.open(index, snapshot=snapshot, root=root)
    facts = opened.info()
    passed_over = opened.passed_over() if skipped else []
    if as_json:
        print_json({**facts, **({"passed_over": passed_over} if skipped else {})})
        return
    print_fields(facts)
    print_passed_over(passed_over)


@click.command()
@click.argument("target", metavar="INDEX|MANIFEST")
@located
@common
def show(target: str, *, root: str | None, as_json: bool) -> None:
    """Say what an index or a manifest holds."""
    facts = open_target(target, root=root).info()
    if as_json:
        print_json(facts)
        return
    statistics = facts.pop("statistics", {})
    print_fields(facts)
    if statistics:
        print_text("statistics")
        names = list(next(iter(statistics.values())))
        rows = [[column, *(values[name] for name in names)] for column, values in statistics.items()]
        print_rows(["column", *(name.replace("_", " ") for name in names)], rows)
