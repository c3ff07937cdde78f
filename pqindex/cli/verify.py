"""`pqindex verify`: whether the source files are still those that were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pqindex.cli.options import common, located
from pqindex.cli.output import one_line, print_json, print_text, progress_bar
from pqindex.cli.targets import open_target

if TYPE_CHECKING:
    from pqindex.manifest import VerifyReport


@click.command()
@click.argument("target", metavar="INDEX|MANIFEST")
@click.option(
    "--deep",
    is_flag=True,
    help="Read every row group too: compare its bytes with what was recorded of them, or else decode its pages.",
)
@located
@common
def verify(target: str, *, deep: bool, root: str | None, as_json: bool) -> int:
    """Compare the source files with what an index or a manifest recorded of them.

    The exit code is 1 if a file was changed, replaced, truncated or removed.
    """
    with progress_bar() as progress:
        report = open_target(target, root=root).verify(deep=deep, progress=progress)
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
        read += (
            f", {report.n_compared:,} of them compared with what was recorded" if report.n_row_groups else ""
        )
        print_text(f"ok: {report.n_files:,} files compared{read}")
