"""`pqindex verify`: whether the source files are still those that were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import pqindex
from pqindex.cli.options import common, located
from pqindex.cli.output import one_line, print_json, print_text
from pqindex.cli.targets import open_target

if TYPE_CHECKING:
    from pqindex.manifest import VerifyReport


@click.command()
@click.argument("target", metavar="INDEX|MANIFEST")
@click.option("--deep", is_flag=True, help="Of a manifest: read every row group that it touches, too.")
@located
@common
def verify(target: str, *, deep: bool, root: str | None, as_json: bool) -> int:
    """Compare the source files with what an index or a manifest recorded of them.

    The exit code is 1 if a file was changed, replaced, truncated or removed.
    """
    opened = open_target(target, root=root)
    if isinstance(opened, pqindex.Manifest):
        report = opened.verify(deep=deep)
    elif deep:
        raise click.UsageError("--deep needs a manifest")
    else:
        report = opened.verify()
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    return 0 if report.ok else 1


def _print_report(report: VerifyReport) -> None:
    for problem in report.problems:
        named = "" if f": {problem.file}" in problem.message else f"{problem.file}: "
        print_text(one_line(f"{named}{problem.change or problem.reason}: {problem.message}"))
    for note in report.notes:
        print_text(f"note: {one_line(note)}")
    if report.ok:
        read = f" and {report.n_row_groups:,} row groups read" if report.n_row_groups else ""
        print_text(f"ok: {report.n_files:,} files compared{read}")
