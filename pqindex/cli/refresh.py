"""`pqindex refresh`, `snapshots` and `compact`: an index that follows its source."""

from __future__ import annotations

import time
from typing import Any

import click

import pqindex
from pqindex.cli.options import common, located
from pqindex.cli.output import one_line, print_fields, print_json, print_rows, print_text, progress_bar

SHOWN = 20
"""Paths of each kind of change that are listed; --json has all."""


@click.command()
@click.argument("index")
@click.option("--dry-run", is_flag=True, help="Say what would be read again, and write nothing.")
@click.option(
    "--compare",
    type=click.Choice(["stat", "footer"]),
    default="stat",
    show_default=True,
    help="How to find changed files: by size and time of change, or by their footers too.",
)
@click.option(
    "--files",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    metavar="FILE",
    help="Of an index of a list of files: the list of today, one a line; - is standard input.",
)
@click.option("--compact", "then_compact", is_flag=True, help="Make one part of all parts at the end.")
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Remove all but the last N snapshots at the end."
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Use N processes.")
@located
@common
def refresh(
    index: str,
    *,
    dry_run: bool,
    compare: str,
    files: Any,
    then_compact: bool,
    keep: int | None,
    workers: int | None,
    root: str | None,
    as_json: bool,
) -> int:
    """Bring INDEX up to date with its source.

    Only files that are new or changed are read, with the options that the index was built with; the result is that of
    a new build. The snapshots before stay, and manifests that were pinned on them. The exit code is 1 if files were
    skipped.
    """
    started = time.monotonic()
    opened = pqindex.open(index, root=root, staleness="ignore")
    names = None if files is None else [line for line in files.read().splitlines() if line]
    before = opened.snapshot
    if dry_run:
        changes = opened.changes(files=names, compare=compare)
        if as_json:
            print_json({"snapshot": before, "dry_run": True, "changes": changes.to_dict()})
        else:
            _print_changes(changes.to_dict())
            print_text(
                f"{len(changes.to_scan):,} files would be read"
                if changes or changes.to_scan
                else "nothing to do"
            )
        return 0
    with progress_bar() as progress:
        opened.refresh(files=names, compare=compare, workers=workers, progress=progress)
    changes = pqindex.Changes() if opened.last_changes is None else opened.last_changes
    refreshed = opened.snapshot
    if then_compact:
        opened.compact()
    pruned = opened.prune(keep) if keep is not None else []
    skipped = opened.report["skipped"]
    elapsed_s = time.monotonic() - started
    if as_json:
        facts = {
            "dry_run": False,
            "changes": changes.to_dict(),
            "pruned": pruned,
            "elapsed_s": round(elapsed_s, 3),
        }
        print_json({**opened.info(), **facts})
        return 1 if skipped else 0
    _print_changes(changes.to_dict())
    if opened.snapshot == before:
        print_text(f"snapshot {before} is up to date")
    else:
        print_text(f"snapshot {opened.snapshot}: {opened.n_sequences:,} sequences, {elapsed_s:.2f} s")
    if opened.snapshot not in (before, refreshed):
        print_text("one part made of all")
    if pruned:
        print_text(f"removed snapshots {', '.join(map(str, pruned))}")
    for note in opened.report["notes"] if changes else ():
        print_text(f"note: {one_line(note)}")
    for file in skipped:
        print_text(one_line(f"skipped: {file['path']}: {file['reason']}: {file['message']}"))
    return 1 if skipped else 0


def _print_changes(changes: dict[str, Any]) -> None:
    for kind in ("new", "changed", "gone", "retried", "shared"):
        paths = changes[kind]
        for path in paths[:SHOWN]:
            print_text(one_line(f"{kind}: {path}"))
        if len(paths) > SHOWN:
            print_text(f"{kind}: {len(paths) - SHOWN:,} more")
    print_text(f"unchanged: {changes['n_unchanged']:,} files")


@click.command()
@click.argument("index")
@click.option("--prune", is_flag=True, help="Remove old snapshots, and what only they need.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --prune: keep the last N, by default 1.",
)
@common
def snapshots(index: str, *, prune: bool, keep: int | None, as_json: bool) -> None:
    """List the snapshots of INDEX, the latest last."""
    if keep is not None and not prune:
        raise click.UsageError("--keep is for --prune")
    opened = pqindex.open(index, staleness="ignore")
    if prune:
        pruned = opened.prune(1 if keep is None else keep)
        if not as_json:
            print_text(f"removed {len(pruned)} snapshot{'s' * (len(pruned) != 1)}")
    found = opened.snapshots()
    if as_json:
        print_json(found)
        return
    names = list(dict.fromkeys(name for snapshot in found for name in snapshot))
    print_rows(names, [[snapshot.get(name) for name in names] for snapshot in found])


@click.command()
@click.argument("index")
@common
def compact(index: str, *, as_json: bool) -> None:
    """Make one part of the parts that refreshes of INDEX left, in a new snapshot with the same content."""
    opened = pqindex.open(index, staleness="ignore")
    before = opened.snapshot
    opened.compact()
    facts = {
        "snapshot": opened.snapshot,
        "compacted": opened.snapshot != before,
        "content_digest": opened.content_digest,
    }
    (print_json if as_json else print_fields)(facts)
