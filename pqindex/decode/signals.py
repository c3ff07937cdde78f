"""What the parts of direct decode tell each other when they stop; neither leaves the package."""

from __future__ import annotations


class NotDirectError(Exception):
    """A page is of a kind that is left to PyArrow; the text is the reason, one of few, to be counted."""


class BadPageError(ValueError):
    """A page contradicts itself, its chunk or its dictionary; the place is known further up.

    Attributes
    ----------
    what : str
    expected, found : object
    """

    def __init__(self, what: str, *, expected: object, found: object) -> None:
        super().__init__(what, expected, found)
        self.what = what
        self.expected = expected
        self.found = found
