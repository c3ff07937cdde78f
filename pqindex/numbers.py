"""Sequences as arrays of numbers: decoded directly where the bytes are simple, through PyArrow where they are not.

One read, two ways from its bytes: `pqindex.decode` fills the arrays of the fields that it can, and PyArrow decodes the
columns of the others from the same bytes. Never here: policies for nulls and values that are not finite, and what
becomes a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.decode import DirectColumn, DirectDecoder, DirectRead, direct_column
from pqindex.footer import Fetched, Projection, decode_blocks, leaf_spans, select_leaves
from pqindex.reader import Reader

Array = npt.NDArray[Any]

MAX_REFUSALS = 16
"""A field that was refused so often, and never taken, is not tried again in this process."""


class NumberField(NamedTuple):
    """Columns that become one array, side by side.

    Attributes
    ----------
    columns : tuple of str
        Of the reader's projection.
    dtype : numpy.dtype
        Of the array; every value of the columns must fit it.
    """

    columns: tuple[str, ...]
    dtype: np.dtype[Any]


class NumberRead(NamedTuple):
    """What was read of a sequence.

    Attributes
    ----------
    arrays : list of ndarray of shape (rows, columns), or None
        By field; writable, and the only owner of its memory. None where the table has to be looked at.
    table : pa.Table or None
        The reader's columns, of which those of arrays may be null. None where no field needs it.
    """

    arrays: list[Array | None]
    table: pa.Table | None


class _Way(NamedTuple):
    """How the fields of one schema of the files are decoded.

    `fields` are those that may be decoded directly; `leaves` and `field_of_column` are by column of the decoder.
    """

    projection: Projection
    columns: dict[str, tuple[int, DirectColumn]]
    decoder: DirectDecoder
    fields: list[int]
    leaves: list[int]
    field_of_column: list[int]


class NumberReader:
    """Reads sequences as arrays, through a `Reader`. Thread-safe as that is.

    Parameters
    ----------
    reader : Reader
    fields : sequence of NumberField
        What shall become arrays. The reader's other columns come in the tables.
    """

    def __init__(self, reader: Reader, fields: Sequence[NumberField]) -> None:
        self._reader = reader
        self._fields = tuple(fields)
        self._dtypes = {name: field.dtype for field in fields for name in field.columns}
        self._others = set(reader.schema.names) - set(self._dtypes)
        self._ways: dict[int, _Way] = {}
        self._refused: dict[tuple[int, int], int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._reader, self._fields)

    def read(self, positions: Sequence[int]) -> list[NumberRead]:
        """Return the sequences at some positions, in their order, each byte read once."""
        found: list[NumberRead | None] = [None] * len(positions)
        fetched = self._reader.fetch_whole(positions)
        direct = [number for number, one in enumerate(fetched) if one is not None]
        results = self._decoded([one for one in fetched if one is not None])
        for number, result in zip(direct, results, strict=True):
            found[number] = result
        others = [number for number, one in enumerate(fetched) if one is None]
        tables = self._reader.read([positions[number] for number in others]) if others else []
        for number, table in zip(others, tables, strict=True):
            found[number] = NumberRead([None] * len(self._fields), table)
        return [result for result in found if result is not None]

    def _decoded(self, fetched: Sequence[Fetched]) -> list[NumberRead]:
        """Decode what was fetched: directly what can be, and the rest by PyArrow from the same bytes."""
        reads: list[NumberRead] = [NumberRead([None] * len(self._fields), None) for _ in fetched]
        by_way: dict[int, list[int]] = {}
        for number, one in enumerate(fetched):
            by_way.setdefault(id(one.block.projection), []).append(number)
        left: list[tuple[int, Fetched, set[str]]] = []
        for numbers in by_way.values():
            way = self._way(fetched[numbers[0]].block.projection)
            self._decode_directly(way, [fetched[i] for i in numbers], [reads[i].arrays for i in numbers])
            for number in numbers:
                arrays = reads[number].arrays
                missing = [f.columns for f, array in zip(self._fields, arrays, strict=True) if array is None]
                names = self._others | {name for columns in missing for name in columns}
                if names:
                    left.append((number, fetched[number], names))
        for number, one, names in left:
            reads[number] = reads[number]._replace(table=self._table(one, names))
        return reads

    def _decode_directly(
        self, way: _Way, fetched: Sequence[Fetched], arrays: Sequence[list[Array | None]]
    ) -> None:
        """Fill the arrays of the fields that can be decoded directly; those of the others stay None."""
        if not way.fields:
            return
        reads = []
        for one in fetched:
            block, spans = one.block, leaf_spans(one)
            outs = [
                np.empty((block.n_rows, len(self._fields[field].columns)), self._fields[field].dtype)
                for field in way.fields
            ]
            reads.append(
                DirectRead(
                    block.file,
                    block.row_group,
                    [block.codec[leaf] for leaf in way.leaves],
                    [spans[leaf] for leaf in way.leaves],
                    [block.n_rows] * len(way.leaves),
                    outs,
                )
            )
        refusals = way.decoder.decode(reads)
        refused = {(refusal.read, way.field_of_column[refusal.column]) for refusal in refusals}
        for number, read in enumerate(reads):
            for field, out in zip(way.fields, read.outs, strict=True):
                if (number, field) not in refused:
                    arrays[number][field] = out
        self._remember(way, {field for _, field in refused}, n_reads=len(reads))
        self._reader.count_direct(columns=len(reads) * len(way.leaves) - len(refusals), refused=len(refusals))

    def _remember(self, way: _Way, refused: set[int], *, n_reads: int) -> None:
        """Leave fields that are refused time and again to PyArrow from the start."""
        given_up = set()
        for field in way.fields:
            key = (id(way.projection), field)
            self._refused[key] = self._refused.get(key, 0) + n_reads if field in refused else -MAX_REFUSALS
            if self._refused[key] >= MAX_REFUSALS:
                given_up.add(field)
        if given_up:
            fields = [field for field in way.fields if field not in given_up]
            self._ways[id(way.projection)] = self._way_of(way.projection, way.columns, fields)

    def _table(self, fetched: Fetched, names: set[str]) -> pa.Table:
        """Return some columns as PyArrow decodes them, in the reader's schema; the others are null."""
        block = fetched.block
        schema, has = self._reader.schema, block.projection.arrow_schema.names
        wanted = [i for i, name in enumerate(has) if name in names]
        columns: dict[str, pa.ChunkedArray] = {}
        if wanted:
            fields = [block.projection.field_indices[i] for i in wanted]
            leaves = [i for i, leaf in enumerate(block.projection.leaves) if leaf.field in fields]
            narrow = block.projection.narrowed(fields)
            (table,) = decode_blocks([select_leaves(fetched, narrow, leaves)])
            columns = {name: table.column(i) for i, name in enumerate(table.column_names)}
        return pa.table(
            [
                columns[f.name].cast(f.type) if f.name in columns else pa.nulls(block.n_rows, f.type)
                for f in schema
            ],
            schema=schema,
        )

    def _way(self, projection: Projection) -> _Way:
        way = self._ways.get(id(projection))
        if way is None:
            columns = self._direct_columns(projection)
            fields = [
                i for i, field in enumerate(self._fields) if all(name in columns for name in field.columns)
            ]
            way = self._ways[id(projection)] = self._way_of(projection, columns, fields)
        return way

    def _direct_columns(self, projection: Projection) -> dict[str, tuple[int, DirectColumn]]:
        """Return the columns that may be decoded directly into the arrays that are asked for, with their leaves."""
        found = {}
        for i, leaf in enumerate(projection.leaves):
            name = leaf.path[0]
            if name not in self._dtypes or len(leaf.path) != 1:
                continue
            arrow_type = projection.arrow_schema.field(projection.field_indices.index(leaf.field)).type
            column = direct_column(leaf, arrow_type)
            same = column is not None and arrow_type == self._reader.schema.field(name).type
            if column is not None and same and np.can_cast(column.dtype, self._dtypes[name], "same_kind"):
                found[name] = (i, column)
        return found

    def _way_of(
        self, projection: Projection, columns: dict[str, tuple[int, DirectColumn]], fields: list[int]
    ) -> _Way:
        names = [name for field in fields for name in self._fields[field].columns]
        return _Way(
            projection,
            columns,
            DirectDecoder(
                [columns[name][1] for name in names], [len(self._fields[f].columns) for f in fields]
            ),
            fields,
            [columns[name][0] for name in names],
            [field for field in fields for _ in self._fields[field].columns],
        )
