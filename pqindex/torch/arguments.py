"""Checks of arguments that several modules here share."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import SupportsIndex

from pqindex.errors import UsageError


def integer(name: str, value: SupportsIndex, *, least: int = 0, below: int | None = None) -> int:
    """Return the argument as a Python integer.

    Raises
    ------
    UsageError
        If it is not an integer (a bool is none) or lies outside [least, below).
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (below is not None and number >= below):
        expected = (
            f"an integer of at least {least}" if below is None else f"an integer from {least} to {below - 1}"
        )
        raise UsageError(f"{name}={value!r} makes no sense: expected {expected}", argument=name, value=value)
    return number


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise UsageError if the argument is none of the choices."""
    if value not in choices:
        raise UsageError(
            f"{name}={value!r} is not known: expected {' or '.join(map(repr, choices))}",
            argument=name,
            value=value,
        )


def refuse_other_source(source: object, attribute: str) -> None:
    """Raise UsageError if what is given as a selection or manifest lacks what every one of them has."""
    if not hasattr(source, attribute):
        raise UsageError(
            f"source is a {type(source).__name__}; expected a Selection or Manifest",
            hint="give what index.select(...) or pqindex.load_manifest(...) returned",
            found=type(source).__name__,
        )


def refuse_unknown(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError if a mapping argument has a key that is no field, with near names."""
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=3)
            raise UsageError(
                f"{name} names {key!r}, which is not a field; the fields are {', '.join(map(repr, known))}",
                hint=f"did you mean {' or '.join(map(repr, near))}?" if near else f"take it out of {name}",
                field=key,
            )
