"""What to change of a layout, and what that would bring: rules over the numbers of a report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pqindex.doctor.report import Advice, ColumnLayout, LayoutReport, size_text

HIGH_AMPLIFICATION: Final = 2.0
GOOD_AMPLIFICATION: Final = 1.25
LARGE_FOOTER_SHARE: Final = 0.1
SLOW_TO_OPEN_MS: Final = 5.0
MANY_GROUPS: Final = 1000
TINY_GROUP_BYTES: Final = 64 << 10
SLOW_COST: Final = 2.0
LARGE_ITEM_BYTES: Final = 1 << 30
MANY_COLUMNS: Final = 256


def advise(report: LayoutReport) -> LayoutReport:
    """Return the report with advice: warnings first, then notes, then what is good."""
    found = [advice for rule in _RULES for advice in rule(report)]
    amplification = max(report.amplification.read.mean, _shuffled(report))
    if all(advice.severity != "warning" for advice in found) and amplification < HIGH_AMPLIFICATION:
        found.append(_good(report))
    ranks = {"warning": 0, "note": 1, "good": 2}
    return replace(report, advice=tuple(sorted(found, key=lambda advice: ranks[advice.severity])))


def _shuffled(report: LayoutReport) -> float:
    return next(epoch.amplification for epoch in report.epochs if epoch.order == "shuffled")


def _rewrite(report: LayoutReport) -> str:
    return f"pqindex rewrite {shlex.quote(report.target)} -o DIR"


def _good(report: LayoutReport) -> Advice:
    place, read = report.placement, report.amplification.read.mean
    if not place.n_sequences:
        return Advice(code="layout-good", severity="good", message="there are no sequences to read")
    if place.n_whole == place.n_sequences:
        what = "every sequence is one row group"
    else:
        what = f"{place.n_whole:,} of {place.n_sequences:,} sequences are one row group"
    return Advice(
        code="layout-good",
        severity="good",
        message=f"the layout is good for random access: {what}, and a sequence costs {read:.2f} x its own bytes",
    )


# -- rules ------------------------------------------------------------------------------------------------------


def _in_every_file(report: LayoutReport) -> Iterator[Advice]:
    place = report.placement
    if place.n_in_most_files * 2 <= place.n_sequences or not place.n_sequences:
        return
    every = place.n_in_every_file == place.n_sequences
    where = "every file" if every else "more than half of the files"
    n = place.n_sequences if every else place.n_in_most_files
    yield Advice(
        code="sequence-in-every-file",
        severity="warning",
        message=(
            f"{_of(n, place.n_sequences)} sequences lie in {where} ({place.n_files:,} files), as in a log in the "
            "order of time: bounds of keys do not separate them, and one read a sequence is impossible; each takes "
            f"{place.reads_per_sequence:,.0f} reads on average"
        ),
        gain=f"1 read a sequence in place of {place.reads_per_sequence:,.0f}",
        remedy=_rewrite(report),
    )


def _straddling(report: LayoutReport) -> Iterator[Advice]:
    place = report.placement
    if not place.n_straddling or any(_in_every_file(report)):
        return
    pieces = f", {place.n_fragmented:,} of them in pieces that do not touch" if place.n_fragmented else ""
    share = place.n_straddling / place.n_sequences
    yield Advice(
        code="straddling",
        severity="warning" if share > 0.1 or place.n_fragmented else "note",
        message=(
            f"{_of(place.n_straddling, place.n_sequences)} sequences lie in more than one row group{pieces}: each "
            "costs a read for each, and `stats` is null for them"
        ),
        gain=f"1 read a sequence in place of {place.reads_per_sequence:.2f}",
        remedy=_rewrite(report),
    )


def _amplification(report: LayoutReport) -> Iterator[Advice]:
    read = report.amplification.read.mean
    if read < HIGH_AMPLIFICATION:
        return
    shuffled = _shuffled(report)
    is_kept = shuffled < HIGH_AMPLIFICATION
    epoch = (
        f"; a shuffled epoch costs {shuffled:.1f} x, since the row groups fit in memory and are kept"
        if is_kept
        else f"; a shuffled epoch costs {shuffled:.1f} x"
    )
    has_pages = report.pages.recorded_share > 0
    dictionary = report.amplification.dictionary_share
    if has_pages and dictionary > 0.5:
        code = "dictionaries"
        why = (
            f"{dictionary:.0%} of what its pages cost are dictionary pages, which every read of a part needs"
        )
    else:
        code = "read-amplification"
        why = _why_amplified(report)
    yield Advice(
        code=code,
        severity="note" if is_kept else "warning",
        message=f"a sequence read alone costs {read:.1f} x its own bytes: {why}{epoch}",
        gain=f"{read:.1f} x fewer bytes a sequence",
        remedy=_rewrite(report),
    )


def _read_again(report: LayoutReport) -> Iterator[Advice]:
    read, shuffled = report.amplification.read.mean, _shuffled(report)
    if not report.pages.recorded_share or shuffled < HIGH_AMPLIFICATION or shuffled < 1.5 * read:
        return
    yield Advice(
        code="read-again",
        severity="warning",
        message=(
            f"a shuffled epoch costs {shuffled:.1f} x the bytes of the sequences, where a sequence read alone costs "
            f"{read:.1f} x: row groups are read whole once their pages have cost as much, and they are more than are "
            "kept"
        ),
        gain=f"{shuffled / read:.1f} x fewer bytes an epoch",
        remedy='BatchPlan(shuffle="block"), or Reader(..., group_cache_bytes=0), which always reads pages',
    )


def _why_amplified(report: LayoutReport) -> str:
    if report.pages.recorded_share:
        return "its pages hold many other rows"
    if report.pages.option in {"auto", "always"}:
        return "it shares its row group, whose chunks have one page each"
    return "it shares its row group, and no page places are known"


def _no_places(report: LayoutReport) -> Iterator[Advice]:
    place = report.placement
    if report.pages.option != "never" or not place.n_shared_row_groups:
        return
    whole = report.amplification.whole_groups.mean
    if whole < GOOD_AMPLIFICATION:
        return
    yield Advice(
        code="no-page-places",
        severity="note",
        message=(
            f"{place.n_shared_row_groups:,} row groups are shared, and the index was built without places of their "
            "pages: each is read whole"
        ),
        gain=f"up to {whole:.1f} x fewer bytes a sequence, as far as pages are smaller than row groups",
        remedy="pqindex build SOURCE --pages auto",
    )


def _groups_too_large(report: LayoutReport) -> Iterator[Advice]:
    largest = report.largest
    if largest.is_kept or not report.placement.n_shared_row_groups:
        return
    yield Advice(
        code="large-row-groups",
        severity="note",
        message=(
            f"the largest row group has {size_text(largest.row_group_bytes)} when it is decoded, more than a reader "
            "keeps: neighbours in it are read anew each time"
        ),
        gain="row groups that are read once serve their neighbours",
        remedy="Reader(..., group_cache_bytes=...) above that size, or " + _rewrite(report),
    )


def _tiny_groups(report: LayoutReport) -> Iterator[Advice]:
    per_file, size = report.row_groups_per_file.max, report.row_group_bytes.median
    footers = report.footers
    if per_file < MANY_GROUPS or size >= TINY_GROUP_BYTES:
        return
    yield Advice(
        code="tiny-row-groups",
        severity="note",
        message=(
            f"up to {per_file:,} row groups a file, {size_text(size)} each at the median: the time of a read is that "
            "of its column chunks and not of its bytes, and who opens a file by its footer waits about "
            f"{footers.open_ms:,.0f} ms (pqindex reads no footer)"
        ),
        gain="fewer columns a read (name those that are needed), or several sequences a row group in small pages",
        remedy=_rewrite(report),
    )


def _footers(report: LayoutReport) -> Iterator[Advice]:
    footers = report.footers
    if footers.share < LARGE_FOOTER_SHARE and footers.open_ms < SLOW_TO_OPEN_MS:
        return
    yield Advice(
        code="footer-share",
        severity="note",
        message=(
            f"footers are {footers.share:.0%} of the files ({size_text(footers.n_bytes)}); readers that open files by "
            f"them parse {size_text(footers.largest_bytes)}, about {footers.open_ms:,.0f} ms, for the largest, and "
            f"about {size_text(footers.parsed_bytes)} of memory to keep them all. Reads through the index take none "
            "of it"
        ),
        gain=f"up to {footers.share:.0%} of the disk, and other readers open files sooner",
        remedy=_rewrite(report),
    )


def _slow_decode(report: LayoutReport) -> Iterator[Advice]:
    total = sum(column.n_bytes for column in report.columns)
    slow = [column for column in report.columns if _is_slow_number(column)]
    n_bytes = sum(column.n_bytes for column in slow)
    if not slow or n_bytes < total / 10:
        return
    first = max(slow, key=lambda column: column.n_bytes)
    cost = sum((column.cost or 0.0) * column.n_bytes for column in slow) / n_bytes
    yield Advice(
        code="slow-decode",
        severity="note",
        message=(
            f"columns of numbers that are slow to decode: {len(slow):,}, with {n_bytes / total:.0%} of the bytes, as "
            f"{first.codecs[0]}, {first.encodings[0]}: for small row groups PyArrow takes about {cost:.1f} x as long "
            "as for plain values without compression"
        ),
        gain=f"with LZ4 and plain about {cost:.1f} x faster to decode, in larger files",
        remedy=_rewrite(report),
    )


def _is_slow_number(column: ColumnLayout) -> bool:
    is_number = column.not_direct is None or not column.not_direct.startswith("type ")
    return is_number and column.cost is not None and column.cost >= SLOW_COST


def _not_direct(report: LayoutReport) -> Iterator[Advice]:
    left = [
        column
        for column in report.columns
        if column.not_direct is not None and not column.not_direct.startswith("type ")
    ]
    if not left:
        return
    first = left[0]
    yield Advice(
        code="not-direct",
        severity="note",
        message=(
            f"columns of numbers that are never decoded directly: {len(left):,}, as {first.name!r} ({first.not_direct})"
        ),
        gain="they are decoded several times faster where a sequence is a row group",
        remedy=_rewrite(report),
    )


def _largest_item(report: LayoutReport) -> Iterator[Advice]:
    largest = report.largest
    if largest.sequence_bytes < LARGE_ITEM_BYTES:
        return
    yield Advice(
        code="large-item",
        severity="warning",
        message=(
            f"the longest sequence has {largest.sequence_rows:,} rows, about {size_text(largest.sequence_bytes)} when "
            "it is decoded: each worker holds several items at a time"
        ),
        gain="items of a bounded size",
        remedy="WindowDataset (over an index built with --pages always), SequenceDataset(max_rows=...), fewer columns",
    )


def _wide(report: LayoutReport) -> Iterator[Advice]:
    if len(report.columns) < MANY_COLUMNS:
        return
    yield Advice(
        code="wide",
        severity="note",
        message=f"{len(report.columns):,} columns are asked for: the time of a read is that of its column chunks",
        gain="bytes and time in proportion to the columns that are named",
        remedy="--column NAME, and columns=[...] of the reader or dataset",
    )


def _left_out(report: LayoutReport) -> Iterator[Advice]:
    if not report.left_out:
        return
    name, reason = next(iter(report.left_out.items()))
    yield Advice(
        code="unreadable-columns",
        severity="warning",
        message=f"columns that cannot be read, and are left out here: {len(report.left_out):,}; {reason}",
        remedy=f"columns=[...] of the reader or dataset without {name!r}",
    )


_RULES = (
    _in_every_file,
    _straddling,
    _amplification,
    _read_again,
    _no_places,
    _left_out,
    _largest_item,
    _groups_too_large,
    _tiny_groups,
    _footers,
    _slow_decode,
    _not_direct,
    _wide,
)


def _of(n: int, total: int) -> str:
    return f"all {total:,}" if n == total else f"{n:,} of {total:,}"
