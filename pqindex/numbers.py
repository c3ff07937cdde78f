"""Rows of sequences as arrays of numbers: decoded directly where the bytes are simple, by PyArrow where they are not.

One read, two ways from its bytes, column by column: `pqindex.decode` fills what it can of the arrays, and PyArrow
decodes the other columns from the same bytes. Never here: policies for nulls and values that are not finite, and what
becomes a tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.columns import column_values
from pqindex.decode import (
    REASONS,
    TYPE,
    DirectColumn,
    DirectDecoder,
    DirectRead,
    Refusal,
    direct_column,
    reason_of_refusal,
)
from pqindex.footer import Fetched, Projection, leaf_spans, select_leaves
from pqindex.pieces import Piece, RawRows
from pqindex.reader import Reader

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]

MAX_REFUSALS = 16
"""A column that was refused so often, and not taken between, is not tried again in this process."""


class NumberField(NamedTuple):
    """Columns that become one array, side by side.

    Attributes
    ----------
    columns : tuple of str
        Of the reader's projection; each has one number a row, in whatever Arrow type.
    dtype : numpy.dtype
        Of the array; every value of the columns must fit it.
    """

    columns: tuple[str, ...]
    dtype: np.dtype[Any]


class NumberRead(NamedTuple):
    """What was read of some rows of a sequence.

    Attributes
    ----------
    arrays : list of ndarray of shape (rows, columns), or None
        By field; writable, and the only owner of its memory. None where all rows were kept decoded: they are in the
        table then.
    absent : list of ndarray of bool, of the same shapes, or None
        Where the file has null, and the array anything; None for a field without nulls.
    table : pa.Table or None
        In the reader's schema. Where there are arrays, it has the columns that are in no field, and the others are
        null or not; None where every column is in a field.
    """

    arrays: list[Array] | None
    absent: list[BoolArray | None]
    table: pa.Table | None

    def rows_of_table(self, rows: slice) -> pa.Table:
        """Return some rows of the table, or None where there is none."""
        if self.table is None or rows.stop - rows.start == self.table.num_rows:
            return self.table
        return self.table.slice(rows.start, rows.stop - rows.start)


class _Way(NamedTuple):
    """How row groups of one projection are decoded.

    Attributes
    ----------
    projection : Projection
    decoder : DirectDecoder
    runs : list of (field, start, stop)
        By field of the decoder: which columns of which array.
    leaves, cells : list
        By column of the decoder: the leaf, and the field and the place in it.
    left : dict of str to int
        Columns of numbers that are PyArrow's, with the number of the reason.
    n_left : dict of str to int
        How many cells have each of these reasons.
    """

    projection: Projection
    decoder: DirectDecoder
    runs: list[tuple[int, int, int]]
    leaves: list[int]
    cells: list[tuple[int, int]]
    left: dict[str, int]
    n_left: Counter[int]


class _Request:
    """What is there of one request so far.

    Attributes
    ----------
    arrays, absent
        As in `NumberRead`.
    kept, others : dict of int to pa.Table
        By the row that they begin with: rows that were kept decoded, and columns that are in no field.
    """

    __slots__ = ("absent", "arrays", "kept", "n_rows", "others")

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.arrays: list[Array] | None = None
        self.absent: list[BoolArray | None] = []
        self.kept: dict[int, pa.Table] = {}
        self.others: dict[int, pa.Table] = {}

    def begin(self, fields: Sequence[NumberField]) -> list[Array]:
        """Return the arrays, made when they are first asked for."""
        if self.arrays is None:
            self.arrays = [np.empty((self.n_rows, len(field.columns)), field.dtype) for field in fields]
            self.absent = [None] * len(fields)
        return self.arrays

    def mark(self, field: int, place: int, start: int, absent: BoolArray) -> None:
        """Note which values of a column of a field are null, from a row on."""
        assert self.arrays is not None  # noqa: S101  # made before they are filled
        mask = self.absent[field]
        if mask is None:
            mask = self.absent[field] = np.zeros(self.arrays[field].shape, np.bool_)
        mask[start : start + len(absent), place] = absent


class NumberReader:
    """Reads rows as arrays, through a `Reader`. Thread-safe as that is.

    Parameters
    ----------
    reader : Reader
    fields : sequence of NumberField
        What shall become arrays. The reader's other columns come in the tables.
    """

    def __init__(self, reader: Reader, fields: Sequence[NumberField]) -> None:
        self._reader = reader
        self._fields = tuple(fields)
        self._cells: dict[str, list[tuple[int, int]]] = {}
        for number, field in enumerate(self._fields):
            for place, name in enumerate(field.columns):
                self._cells.setdefault(name, []).append((number, place))
        self._others = frozenset(reader.schema.names) - set(self._cells)
        self._ways: dict[tuple[int, tuple[int, ...]], _Way] = {}
        self._refused: dict[tuple[int, str], int] = {}
        self._given_up: dict[tuple[int, str], int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._reader, self._fields)

    def read(self, positions: Sequence[int]) -> list[NumberRead]:
        """Return the sequences at some positions, in their order, each byte read once."""
        counts = self._reader.row_counts
        return self.read_rows([(position, 0, int(counts[position])) for position in positions])

    def read_rows(self, requests: Sequence[tuple[int, int, int]]) -> list[NumberRead]:
        """Return some rows of each of several sequences in the asked order; see `Reader.read_rows`."""
        found = [_Request(stop - start) for _, start, stop in requests]
        for raw, tables in self._reader.fetch_rows(requests):
            if raw:
                self._decode(raw, found)
            for piece, table in tables:
                found[piece.request].kept[piece.at] = table
        return [self._finished(one) for one in found]

    def _finished(self, request: _Request) -> NumberRead:
        """Return what was read of a request, its pieces put behind each other."""
        if request.arrays is None and not request.others:
            return NumberRead(None, [], self._joined(request.kept))
        for at, table in request.kept.items():
            names = [name for name in self._cells if name in table.column_names]
            self._fill_from(table, names, [Piece(0, 0, table.num_rows, 0, at)], 0, [request])
        others = self._joined(request.others | request.kept) if self._others else None
        return NumberRead(request.begin(self._fields), request.absent, others)

    def _joined(self, tables: dict[int, pa.Table]) -> pa.Table:
        if len(tables) == 1:
            return next(iter(tables.values()))
        if not tables:
            return self._reader.schema.empty_table()
        return pa.concat_tables([tables[at] for at in sorted(tables)])

    def _decode(self, raw: Sequence[RawRows], requests: Sequence[_Request]) -> None:
        """Decode what was fetched into the arrays and tables of the requests."""
        by_way: dict[int, tuple[_Way, list[RawRows]]] = {}
        for one in raw:
            way = self._way(one.projection, one.left)
            by_way.setdefault(id(way), (way, []))[1].append(one)
        left: list[tuple[RawRows, AbstractSet[str]]] = []
        for way, own in by_way.values():
            refused = self._decode_directly(way, own, requests)
            always = self._others.union(way.left)
            for number, one in enumerate(own):
                names = always | refused[number] if number in refused else always
                if names:
                    left.append((one, names))
        if left:
            self._decode_left(left, requests)

    # -- directly ---------------------------------------------------------------------------------------------

    def _decode_directly(
        self, way: _Way, raw: Sequence[RawRows], requests: Sequence[_Request]
    ) -> dict[int, set[str]]:
        """Fill the columns that can be decoded directly; return the names of those that were refused, by read."""
        reads: list[DirectRead] = []
        shared: list[tuple[RawRows, list[Array]]] = []
        for one in raw if way.leaves else ():
            row_start, row_stop = one.rows
            if len(one.pieces) == 1:
                piece = one.pieces[0]
                request = requests[piece.request]
                arrays = request.begin(self._fields)
                if request.n_rows != row_stop - row_start:
                    arrays = [array[piece.at : piece.at + row_stop - row_start] for array in arrays]
            else:
                arrays = [
                    np.empty((row_stop - row_start, len(field.columns)), field.dtype)
                    for field in self._fields
                ]
                shared.append((one, arrays))
            reads.append(_direct_read(way, one, row_start, arrays))
        refusals = way.decoder.decode(reads)
        for one, arrays in shared:
            for piece in one.pieces:
                rows = slice(piece.row_start - one.rows[0], piece.row_stop - one.rows[0])
                n_rows = piece.row_stop - piece.row_start
                for out, array in zip(requests[piece.request].begin(self._fields), arrays, strict=True):
                    out[piece.at : piece.at + n_rows] = array[rows]
        n_direct = len(raw) * len(way.leaves) - len(refusals)
        counts: dict[str, int] = {}
        refused: dict[int, set[str]] = {}
        if refusals or way.n_left:
            counts, refused = self._count_left(way, refusals, n_reads=len(raw))
        self._reader.count(direct_columns=n_direct, **counts)
        if refusals or self._refused:
            self._remember(way, refusals, n_reads=len(raw))
        return refused

    def _count_left(
        self, way: _Way, refusals: Sequence[Refusal], *, n_reads: int
    ) -> tuple[dict[str, int], dict[int, set[str]]]:
        """Return what to count of columns that are PyArrow's, and the names of those that were refused, by read."""
        by_reason = Counter({reason: n * n_reads for reason, n in way.n_left.items()})
        refused: dict[int, set[str]] = {}
        for refusal in refusals:
            refused.setdefault(refusal.read, set()).add(self._name(way, refusal.column))
            by_reason[reason_of_refusal(refusal.reason)] += 1
        counts = {f"not_direct_{REASONS[reason]}": n for reason, n in by_reason.items()}
        return {"fallback_not_direct": by_reason.total(), **counts}, refused

    def _name(self, way: _Way, column: int) -> str:
        field, place = way.cells[column]
        return self._fields[field].columns[place]

    def _remember(self, way: _Way, refusals: Sequence[Refusal], *, n_reads: int) -> None:
        """Leave columns that are refused time and again to PyArrow from the start."""
        reasons: dict[int, list[int]] = {}
        for refusal in refusals:
            reasons.setdefault(refusal.column, []).append(reason_of_refusal(refusal.reason))
        for name, column in {self._name(way, column): column for column in range(len(way.cells))}.items():
            key = (id(way.projection), name)
            own = reasons.get(column, [])
            if len(own) < n_reads:
                self._refused.pop(key, None)
                continue
            self._refused[key] = self._refused.get(key, 0) + len(own)
            if self._refused[key] >= MAX_REFUSALS:
                self._given_up[key] = own[-1]
                self._ways = {at: other for at, other in self._ways.items() if at[0] != id(way.projection)}

    # -- by PyArrow -------------------------------------------------------------------------------------------

    def _decode_left(
        self, left: Sequence[tuple[RawRows, AbstractSet[str]]], requests: Sequence[_Request]
    ) -> None:
        """Decode some columns of what was fetched by PyArrow."""
        blocks: list[tuple[int, int, Fetched]] = []
        for number, (one, names) in enumerate(left):
            for part in one.parts:
                fetched = _selected(part.fetched, names)
                if fetched is not None:
                    blocks.append((number, part.row_start, fetched))
        tables = self._reader.decode_each([fetched for _, _, fetched in blocks])
        columns: list[dict[str, pa.ChunkedArray]] = [{} for _ in left]
        for (number, first_row, _), table in zip(blocks, tables, strict=True):
            row_start, row_stop = left[number][0].rows
            rows = table.slice(row_start - first_row, row_stop - row_start)
            columns[number].update(zip(rows.column_names, rows.columns, strict=True))
        for (one, names), own in zip(left, columns, strict=True):
            self._give(one, names, own, requests)

    def _give(
        self,
        one: RawRows,
        names: AbstractSet[str],
        columns: dict[str, pa.ChunkedArray],
        requests: Sequence[_Request],
    ) -> None:
        """Put decoded columns where they belong: into the arrays, and the others into tables."""
        row_start, row_stop = one.rows
        schema = self._reader.schema
        table = pa.table(
            [
                columns[f.name].cast(f.type) if f.name in columns else pa.nulls(row_stop - row_start, f.type)
                for f in schema
            ],
            schema=schema,
        )
        cells = [name for name in names if name in self._cells]
        self._fill_from(table, cells, one.pieces, row_start, requests)
        if self._others:
            for piece in one.pieces:
                rows = table.slice(piece.row_start - row_start, piece.row_stop - piece.row_start)
                requests[piece.request].others[piece.at] = rows

    def _fill_from(
        self,
        table: pa.Table,
        names: Sequence[str],
        pieces: Sequence[Piece],
        row_start: int,
        requests: Sequence[_Request],
    ) -> None:
        """Write columns of a table, which begins with a row of the row group, into the arrays of some pieces."""
        for name in names:
            values = column_values(table.column(name))
            for piece in pieces:
                request = requests[piece.request]
                rows = slice(piece.row_start - row_start, piece.row_stop - row_start)
                n_rows = piece.row_stop - piece.row_start
                for field, place in self._cells[name]:
                    out = request.begin(self._fields)[field]
                    with np.errstate(over="ignore", invalid="ignore"):
                        out[piece.at : piece.at + n_rows, place] = values.values[rows, 0]
                    if values.absent is not None:
                        request.mark(field, place, piece.at, values.absent[rows, 0])

    # -- ways -------------------------------------------------------------------------------------------------

    def _way(self, projection: Projection, left: tuple[int, ...]) -> _Way:
        way = self._ways.get((id(projection), left))
        if way is None:
            way = self._ways[id(projection), left] = self._way_of(projection, left)
        return way

    def _way_of(self, projection: Projection, left: tuple[int, ...]) -> _Way:
        columns, reasons = self._direct_columns(projection, left)
        runs: list[tuple[int, int, int]] = []
        for number, field in enumerate(self._fields):
            places = [place for place, name in enumerate(field.columns) if name in columns]
            for _, run in groupby(enumerate(places), lambda one: one[1] - one[0]):
                own = [place for _, place in run]
                runs.append((number, own[0], own[-1] + 1))
        cells = [(number, place) for number, start, stop in runs for place in range(start, stop)]
        names = [self._fields[number].columns[place] for number, place in cells]
        return _Way(
            projection,
            DirectDecoder([columns[name][1] for name in names], [stop - start for _, start, stop in runs]),
            runs,
            [columns[name][0] for name in names],
            cells,
            reasons,
            Counter([reason for name, reason in reasons.items() if reason for _ in self._cells[name]]),
        )

    def _direct_columns(
        self, projection: Projection, left: tuple[int, ...]
    ) -> tuple[dict[str, tuple[int, DirectColumn]], dict[str, int]]:
        """Return the columns that may be decoded directly, with their leaves, and why the others may not.

        Columns that a file does not have are among the others, for the reason 0.
        """
        found: dict[str, tuple[int, DirectColumn]] = {}
        reasons = dict.fromkeys(self._cells, 0)
        for i, leaf in enumerate(projection.leaves):
            name = leaf.path[0]
            if name not in self._cells:
                continue
            reasons[name] = self._given_up.get((id(projection), name)) or (left[i] if left else 0)
            if reasons[name]:
                continue
            arrow_type = projection.arrow_schema.field(projection.field_indices.index(leaf.field)).type
            column = direct_column(leaf, arrow_type)
            dtypes = [self._fields[field].dtype for field, _ in self._cells[name]]
            if (
                column is not None
                and arrow_type == self._reader.schema.field(name).type
                and all(np.can_cast(column.dtype, dtype, "same_kind") for dtype in dtypes)
            ):
                found[name] = (i, column)
                del reasons[name]
            else:
                reasons[name] = TYPE
        return found, reasons


def _direct_read(way: _Way, raw: RawRows, row_start: int, arrays: Sequence[Array]) -> DirectRead:
    """Return what the decoder of a way is to do for some rows, whose first is given."""
    outs = [
        arrays[field] if stop - start == arrays[field].shape[1] else arrays[field][:, start:stop]
        for field, start, stop in way.runs
    ]
    leaves = way.leaves
    if len(raw.parts) == 1:
        ((fetched, _, first_row),) = raw.parts
        block, spans = fetched.block, leaf_spans(fetched)
        skip = row_start - first_row
        return DirectRead(
            raw.file,
            raw.row_group,
            [block.codec[leaf] for leaf in leaves],
            [spans[leaf] for leaf in leaves],
            [block.n_rows] * len(leaves),
            outs,
            [skip] * len(leaves) if skip else None,
        )
    by_leaf: dict[int, tuple[int, Any, int, int]] = {}
    for fetched, own, first_row in raw.parts:
        block = fetched.block
        for leaf, codec, span in zip(own, block.codec, leaf_spans(fetched), strict=True):
            by_leaf[leaf] = (codec, span, block.n_rows, row_start - first_row)
    chosen = [by_leaf[leaf] for leaf in leaves]
    return DirectRead(
        raw.file,
        raw.row_group,
        [codec for codec, _, _, _ in chosen],
        [span for _, span, _, _ in chosen],
        [n_rows for _, _, n_rows, _ in chosen],
        outs,
        [skip for _, _, _, skip in chosen],
    )


def _selected(fetched: Fetched, names: AbstractSet[str]) -> Fetched | None:
    """Return the columns of these names with their bytes, or None where there are none."""
    projection = fetched.block.projection
    fields = [
        index
        for index, name in zip(projection.field_indices, projection.arrow_schema.names, strict=True)
        if name in names
    ]
    if not fields:
        return None
    if len(fields) == len(projection.field_indices):
        return fetched
    wanted = set(fields)
    leaves = [i for i, leaf in enumerate(projection.leaves) if leaf.field in wanted]
    return select_leaves(fetched, projection.narrowed(fields), leaves)
