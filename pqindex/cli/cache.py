"""`pqindex cache`: what is kept on this machine to be faster."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

from pqindex import caches
from pqindex.cli.options import common
from pqindex.cli.output import print_fields, print_json, print_rows

KIND = click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(caches.KINDS),
    help="Only read plans, decoded sequences on disk, or those in shared memory. Repeatable.",
)


@click.group()
def cache() -> None:
    """List or clear read plans and decoded sequences; all of it may be removed at any time."""


@cache.command("list")
@KIND
@common
def list_files(*, kinds: tuple[str, ...], as_json: bool) -> None:
    """List the files, with what they take of the disk or the memory."""
    files = caches.cache_files(kinds or caches.KINDS)
    if as_json:
        print_json([asdict(file) for file in files])
        return
    rows = [[file.kind, file.size_bytes, _written(file.modified_ns), file.path] for file in files]
    print_rows(["kind", "size_bytes", "written", "path"], rows)


@cache.command()
@KIND
@common
def clear(*, kinds: tuple[str, ...], as_json: bool) -> None:
    """Remove the files; a training that uses one goes on with it."""
    removed = caches.clear_caches(kinds or caches.KINDS)
    facts = {"n_files": len(removed), "size_bytes": sum(file.size_bytes for file in removed)}
    (print_json if as_json else print_fields)(facts)


def _written(modified_ns: int) -> str:
    return datetime.fromtimestamp(modified_ns / 1e9, UTC).isoformat(sep=" ", timespec="seconds")
