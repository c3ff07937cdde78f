"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """What one run of the command knows besides the options of its verb."""

    debug: bool = False


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Session).debug = True


def _read_attached(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    attached: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"expected NAME=PATH, found {value!r}")
        if name in attached:
            raise click.BadParameter(f"{name!r} is attached twice")
        attached[name] = path
    return attached


def read_types(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return the values NAME=TYPE of an option as a mapping."""
    types: dict[str, str] = {}
    for value in values:
        name, equals, wanted = value.rpartition("=")
        if not (name and equals and wanted):
            raise click.BadParameter(f"expected NAME=TYPE, found {value!r}")
        if name in types:
            raise click.BadParameter(f"{name!r} is given two types")
        types[name] = wanted
    return types


def read_expressions(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return the expressions of NAME=EXPR options by name."""
    expressions: dict[str, str] = {}
    for value in values:
        name, equals, expression = value.partition("=")
        if not (name.strip() and equals and expression.strip()):
            raise click.BadParameter(f"expected NAME=EXPR, found {value!r}")
        if name.strip() in expressions:
            raise click.BadParameter(f"{name.strip()!r} is there twice")
        expressions[name.strip()] = expression.strip()
    return expressions


def _read_parameters(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[Any]:
    return [_read_parameter(value) for value in values]


def _read_parameter(text: str) -> Any:
    """Return a JSON number, string, true, false or null as what it is, and all else as text."""
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value


def common(command: Decorated) -> Decorated:
    """Add `--json` (as `as_json`) and `--debug`, which every verb has."""
    command = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Show the traceback of an error (or set PQINDEX_DEBUG=1).",
    )(command)
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document on standard output, and nothing else.",
    )(command)


def located(command: Decorated) -> Decorated:
    """Add `--root`."""
    return click.option(
        "--root", metavar="FOLDER", help="Where the source files lie now, if they or the index were moved."
    )(command)


def versioned(command: Decorated) -> Decorated:
    """Add `--snapshot`."""
    return click.option(
        "--snapshot", type=click.IntRange(min=1), metavar="N", help="Use snapshot N instead of the latest."
    )(command)


def selecting(command: Decorated) -> Decorated:
    """Add `--param`, `--attach` and `--dialect`."""
    command = click.option(
        "--dialect", default="duckdb", show_default=True, help="The SQL dialect that the query is written in."
    )(command)
    command = click.option(
        "--attach",
        multiple=True,
        metavar="NAME=PATH",
        callback=_read_attached,
        help="Make the table in a Parquet or CSV file available to the query as NAME. Repeatable.",
    )(command)
    return click.option(
        "--param",
        "params",
        multiple=True,
        metavar="VALUE",
        callback=_read_parameters,
        help="The value of the next ? in the query: a JSON scalar (64, 0.5, true, null, '\"64\"'), or else text. "
        "Repeatable.",
    )(command)


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes as people write it: ``1000``, ``256MB`` (10**6), ``1.5GiB`` (2**30)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", value.strip(), re.IGNORECASE)
        unit = None if found is None else _UNITS.get(found.group(2).upper())
        if found is None or unit is None or float(found.group(1)) * unit < 1:
            self.fail(f"{value!r} is no size; expected a number of bytes, as 256MB or 1.5GiB", param, ctx)
        return int(float(found.group(1)) * unit)
