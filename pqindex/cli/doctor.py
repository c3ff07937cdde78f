"""`pqindex doctor`: what the layout of the source files costs, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pqindex.cli.options import common, located
from pqindex.cli.output import one_line, print_fields, print_json, print_rows, print_text
from pqindex.cli.targets import open_target

if TYPE_CHECKING:
    from pqindex.doctor import LayoutReport, Spread

MOST_COLUMNS = 12


@click.command()
@click.argument("target", metavar="INDEX|MANIFEST")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="COLUMN",
    help="Say what reading this column costs, and others only if they are named too. Repeatable.",
)
@located
@common
def doctor(target: str, *, columns: tuple[str, ...], root: str | None, as_json: bool) -> None:
    """Say what the layout of the source files costs, and what to change.

    From the index alone: no value of the source is read. Advice is no error: the exit code is 0.

    \b
      pqindex doctor data.pqindex
      pqindex doctor train.manifest.parquet --column f0 --column f1
    """  # noqa: D301 - click wants the backspace character itself
    report = open_target(target, root=root).doctor(columns or None)
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)


def _print_report(report: LayoutReport) -> None:
    from pqindex.doctor import size_text

    print_text(one_line(f"{report.target}: {_counts(report)}"))
    _title("spread")
    names = ["", "min", "25 %", "median", "75 %", "99 %", "max"]
    rows = [
        _spread("rows a sequence", report.rows_per_sequence, _count),
        _spread("sequences a row group", report.sequences_per_row_group, _count),
        _spread("row groups a file", report.row_groups_per_file, _count),
        _spread("bytes of a row group", report.row_group_bytes, size_text),
        _spread("bytes of a sequence", report.sequence_bytes, size_text),
        _spread("a sequence's read / its bytes", report.amplification.read, _times),
        _spread("the same, whole row groups", report.amplification.whole_groups, _times),
    ]
    print_rows(names, rows)
    _title("places")
    place, pages, footers, largest = report.placement, report.pages, report.footers, report.largest
    print_fields(
        {
            "one row group each": f"{place.n_whole:,} of {place.n_sequences:,} sequences",
            "in several row groups": f"{place.n_straddling:,}",
            "pieces do not touch": f"{place.n_fragmented:,}",
            "in several files": f"{place.n_in_several_files:,}",
            "shared row groups": f"{place.n_shared_row_groups:,} of {place.n_row_groups:,}",
            "page places": f"recorded for {pages.recorded_share:.0%} of the chunks; "
            f"{pages.page_index_share:.0%} have a page index",
            "page checksums": "not known from the index",
            "footers": f"{size_text(footers.n_bytes)}, {footers.share:.1%} of the files; the largest takes "
            f"{size_text(footers.largest_bytes)}, about {footers.open_ms:,.1f} ms to open by "
            "(none of it through the index)",
            "longest sequence": f"{largest.sequence!r}, {largest.sequence_rows:,} rows, "
            f"{_about(largest.is_estimate)}{size_text(largest.sequence_bytes)} decoded",
            "largest row group": f"{largest.row_group_rows:,} rows, {_about(largest.is_estimate)}"
            f"{size_text(largest.row_group_bytes)} decoded"
            + ("" if largest.is_kept else ", more than a reader keeps"),
        }
    )
    _title("columns")
    _print_columns(report)
    _title("an epoch, each sequence read alone by one reader")
    print_rows(
        ["order", "requests", "bytes", "/ own bytes", "row groups", "page reads", "kept"],
        [
            [
                epoch.order,
                f"{epoch.requests:,}",
                size_text(epoch.n_bytes),
                _times(epoch.amplification),
                f"{epoch.whole_reads:,}",
                f"{epoch.page_reads:,}",
                f"{epoch.kept_hits:,}",
            ]
            for epoch in report.epochs
        ],
    )
    _title("advice")
    for advice in report.advice:
        print_text(one_line(f"{advice.severity}: {advice.code}: {advice.message}"))
        if advice.gain:
            print_text(one_line(f"  gain: {advice.gain}"))
        if advice.remedy:
            print_text(one_line(f"  do: {advice.remedy}"))


def _print_columns(report: LayoutReport) -> None:
    from pqindex.doctor import size_text

    largest = sorted(report.columns, key=lambda column: -column.n_bytes)
    rows = [
        [
            column.name,
            column.type,
            size_text(column.n_bytes),
            ", ".join(column.codecs) or "-",
            ", ".join(column.encodings) or "-",
            "-" if column.cost is None else _times(column.cost),
            _direct(column.direct_share, column.not_direct),
        ]
        for column in largest[:MOST_COLUMNS]
    ]
    print_rows(["column", "type", "bytes", "codec", "encoding", "decoding", "direct"], rows)
    print_text("decoding: time over that of plain values without compression")
    place = report.placement
    if place.n_whole < place.n_sequences:
        print_text(f"direct: where a sequence is a row group, {place.n_whole:,} of {place.n_sequences:,}")
    if len(largest) > MOST_COLUMNS:
        print_text(f"and {len(largest) - MOST_COLUMNS:,} smaller ones (--json lists all)")
    for name, reason in list(report.left_out.items())[:MOST_COLUMNS]:
        print_text(one_line(f"left out: {name}: {reason}"))


def _counts(report: LayoutReport) -> str:
    place = report.placement
    return (
        f"{_n(place.n_sequences, 'sequence')} of {_n(place.n_rows, 'row')} in {_n(place.n_row_groups, 'row group')} of "
        f"{_n(place.n_files, 'file')}, {_n(len(report.columns), 'column')}"
    )


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _title(text: str) -> None:
    print_text(f"\n{text}")


def _spread(name: str, spread: Spread, form: Callable[[float], str]) -> list[str]:
    values = (spread.min, spread.quarter, spread.median, spread.three_quarters, spread.p99, spread.max)
    return [name, *(form(value) for value in values)]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _times(value: float) -> str:
    return f"{value:,.2f} x"


def _about(is_estimate: bool) -> str:
    return "about " if is_estimate else ""


def _direct(share: float, reason: str | None) -> str:
    if reason is None:
        return "yes"
    return f"no: {reason}" if share == 0 else f"{share:.0%}, not: {reason}"
