"""Printing: data on standard output, everything else on standard error.

Standard output is written as UTF-8 bytes and survives a reader that closes its end (``| head``): the rest of
the output then goes nowhere, and the command ends with the code that it would have had.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

DELAY_S = 0.5
LINE = 80
Progress = Callable[[int, int, str], None]


def write(data: bytes) -> None:
    """Write bytes to standard output, at once."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()
    except OSError as error:
        _silence(stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


def _silence(descriptor: int) -> None:
    """Point a descriptor to nowhere, so that what is still buffered cannot fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def print_text(text: str) -> None:
    """Print a line."""
    write(f"{text}\n".encode("utf-8", "backslashreplace"))


def print_json(document: Any) -> None:
    """Print one JSON document.

    Names that are not UTF-8 keep their escapes, and what JSON has no numbers for (NaN, infinities) is text.
    """
    print_text(to_json(document, indent=2))


def print_note(text: str) -> None:
    """Print a line for people on standard error."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{one_line(text)}\n")
            sys.stderr.flush()


def print_error(sentence: str) -> None:
    """Print an error, in one line, on standard error."""
    print_note(f"error: {sentence}")


def print_fields(fields: Mapping[str, Any], *, indent: str = "") -> None:
    """Print names and values in two columns; mappings and lists further in, empty ones not at all."""
    shown = {
        name.replace("_", " "): value for name, value in fields.items() if value not in (None, {}, [], ())
    }
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        if isinstance(value, Mapping):
            print_text(f"{indent}{name}")
            print_fields(value, indent=f"{indent}  ")
        elif isinstance(value, list | tuple) and not _fits_a_line(value):
            print_text(f"{indent}{name}")
            for part in value:
                print_text(f"{indent}  {to_text(part)}")
        else:
            counted = name.startswith("n ") or name.endswith(" bytes")
            text = (
                to_text(value, thousands=counted)
                if not isinstance(value, list | tuple)
                else _in_a_line(value)
            )
            print_text(f"{indent}{name:<{width}}  {text}")


def _fits_a_line(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | str) for value in values) and len(_in_a_line(values)) <= LINE


def _in_a_line(values: Sequence[Any]) -> str:
    return ", ".join(map(to_text, values))


def print_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a small table in aligned columns."""
    lines = [list(names), *([to_text(value) for value in row] for row in rows)]
    write(align(lines, widths(lines)))


def widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def align(lines: Sequence[Sequence[str]], columns: Sequence[int]) -> bytes:
    """Return lines of cells, padded to the widths of their columns."""
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, columns, strict=True)).rstrip() + "\n"
        for line in lines
    ]
    return "".join(text).encode("utf-8", "backslashreplace")


# -- values ---------------------------------------------------------------------------------------------------


def to_text(value: Any, *, thousands: bool = False) -> str:
    """Return a value as people read it: in one line, without control characters."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if thousands else str(value)
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list | tuple | Mapping):
        return one_line(to_json(value))
    return one_line(str(_jsonable(value)))


def one_line(text: str) -> str:
    """Return text with its control characters escaped, so that no name can move the cursor."""
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text
    )


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text; bytes are hexadecimal, and what JSON does not know is text."""
    return json.dumps(_jsonable(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
        )
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    return str(value)


# -- progress -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Give a callback ``(done, total, phase)`` that draws a bar on standard error, or None without a terminal.

    The bar appears after half a second and is gone at the end.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    started = time.monotonic()
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("", total=None)

    def report(done: int, total: int, phase: str) -> None:
        bar.update(task, completed=done, total=total, description=phase)
        if not bar.live.is_started and time.monotonic() - started > DELAY_S:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()
