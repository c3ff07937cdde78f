"""What is read of row groups for some requests: the rows that are wanted, and what was fetched of them, undecoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from pqindex.footer import Block, Fetched, Projection, RowRange


class Piece(NamedTuple):
    """Rows of one row group that were asked for.

    Attributes
    ----------
    group, row_start, row_stop : int
        Number of the row group in the read plan, and its rows.
    request : int
        Which of the requests wants them.
    at : int
        Where they begin among the rows of the request.
    """

    group: int
    row_start: int
    row_stop: int
    request: int
    at: int


class RawPart(NamedTuple):
    """Bytes of columns that begin with the same row.

    Attributes
    ----------
    fetched : Fetched
    leaves : sequence of int
        Which leaves of the row group's projection they are.
    row_start : int
        The row of the row group that they begin with.
    """

    fetched: Fetched
    leaves: Sequence[int]
    row_start: int


class RawRows(NamedTuple):
    """Rows of a row group that were fetched and not decoded.

    Attributes
    ----------
    file : str
    row_group : int
    projection : Projection
    parts : list of RawPart
        Which have all of the projection's leaves.
    left : tuple of int
        By leaf: the number of the reason why it cannot be decoded directly, see `decode.not_direct`; 0 where it may
        be. Empty where all may be.
    pieces : list of Piece
        What they are for, all within the rows of each part.
    rows : (int, int)
        The first row of the pieces, and the row behind their last.
    """

    file: str
    row_group: int
    projection: Projection
    parts: list[RawPart]
    left: tuple[int, ...]
    pieces: list[Piece]
    rows: tuple[int, int]


class Round(NamedTuple):
    """What was fetched of some requests: undecoded, or as tables of pieces where it is kept decoded."""

    raw: list[RawRows]
    tables: list[tuple[Piece, pa.Table]]


class Job(NamedTuple):
    """What is read of one row group, and which pieces it is for.

    `ranges` are page ranges, each of as many blocks as it has parts; without any, the one block is the whole group.
    """

    group: int
    pieces: list[int]
    blocks: list[Block]
    ranges: list[RowRange]
