"""Rows that are whole sequences held in lists: from a row with lists of T values to a table of T rows, and back.

With ``lists="time"`` a list column is the time axis, and each of its values is a step. A column without lists then says
something of the whole sequence, and has one value in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.arrowtypes import plain_array
from pqindex.columns import is_lists, item_type, list_items
from pqindex.errors import (
    ColumnMissingError,
    ColumnTypeError,
    NotConstantError,
    NullValueError,
    RaggedListError,
    SequenceTooLongError,
    SourceError,
    UsageError,
)

if TYPE_CHECKING:
    from pqindex.torch.fields import Field

Axis = Literal["row", "step", "sequence"]

STEP: Final = "step"


def steps_schema(schema: pa.Schema) -> pa.Schema:
    """Return the list columns of a schema, each with the type of its values."""
    return pa.schema([pa.field(f.name, item_type(f.type)) for f in schema if is_lists(f.type)])


def axes_of_fields(parsed: Mapping[str, tuple[tuple[str, ...], bool]], schema: pa.Schema) -> dict[str, Axis]:
    """Return, by field, whether it has a value for each step or one for the sequence.

    Parameters
    ----------
    parsed : mapping
        From `parse_fields`.
    schema : pa.Schema
        Of the projected columns.

    Raises
    ------
    ColumnTypeError
        If a field mixes the two, or lists several columns that have no lists.
    UsageError
        If no field has lists.
    """
    axes: dict[str, Axis] = {}
    for name, (columns, by_name) in parsed.items():
        without = [column for column in columns if not is_lists(schema.field(column).type)]
        if without and not by_name:
            raise ColumnTypeError(
                f"column {without[0]!r} of field {name!r} is {schema.field(without[0]).type} and holds no lists, which "
                "are the time axis with lists='time'",
                hint="a column with one value a sequence is a field of its own, by its name: "
                f"fields={{{without[0]!r}: {without[0]!r}}}",
                field=name,
                column=without[0],
            )
        axes[name] = "sequence" if without else "step"
    if "step" not in axes.values():
        raise UsageError(
            f"lists='time', and no field has a column of lists: {', '.join(map(repr, parsed))}",
            hint="leave lists='time' out where rows are the time steps",
        )
    return axes


@dataclass(frozen=True, slots=True)
class Steps:
    """The list columns of a sequence, a row a step.

    Attributes
    ----------
    table : pa.Table
        T rows, in the order of `steps_schema`.
    row_stops : ndarray, shape (n_rows,), int64
        Steps up to the end of each row of the file.
    """

    table: pa.Table
    row_stops: npt.NDArray[np.int64]

    def with_row(self, error: SourceError) -> SourceError:
        """Return an error about a step with the row of the sequence that the step lies in, as a fact."""
        if STEP not in error.facts:
            return error
        row = int(np.searchsorted(self.row_stops, error.facts[STEP], side="right"))
        return type(error)(
            error.message, hint=error.hint, **error.facts, row=min(row, len(self.row_stops) - 1)
        )


def steps_of(table: pa.Table, seq_id: object) -> Steps:
    """Return the list columns of a sequence as a table with a row for each step; the rows' lists follow each other.

    Parameters
    ----------
    table : pa.Table
        The projected columns of the sequence, at least one of them of lists.
    seq_id : object
        For messages.

    Raises
    ------
    NullValueError
        If a list is null: nothing says how many steps it has.
    RaggedListError
        If the lists of a row differ in length.
    """
    names: list[str] = []
    items: list[pa.ChunkedArray] = []
    expected = np.zeros(0, np.int64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not is_lists(column.type):
            continue
        values, lengths = list_items(column)
        if (lengths < 0).any():
            row = int((lengths < 0).argmax())
            raise NullValueError(
                f"a list is null: column {name!r}, sequence {seq_id!r}, row {row}",
                hint="nothing says how many steps a null list has; leave the sequence out in SQL",
                column=name,
                seq_id=seq_id,
                row=row,
            )
        if not names:
            expected = lengths
        elif not np.array_equal(lengths, expected):
            row = int((lengths != expected).argmax())
            raise RaggedListError(
                f"the lists of a row differ in length: column {name!r} and column {names[0]!r}, sequence {seq_id!r}, "
                f"row {row}; expected {expected[row]} values, found {lengths[row]}",
                hint="with lists='time' all list columns have one value a step; leave out the column or the sequence",
                columns=(names[0], name),
                column=name,
                seq_id=seq_id,
                row=row,
                expected=int(expected[row]),
                found=int(lengths[row]),
            )
        names.append(name)
        items.append(values)
    return Steps(pa.table(items, names=names), np.cumsum(expected, dtype=np.int64))


def one_row(table: pa.Table, field: Field, seq_id: object) -> pa.Table:
    """Return the first row of a sequence, after the check that a field has the same value in all of them.

    Raises
    ------
    NotConstantError
        If it has not.
    """
    if table.num_rows > 1:
        column = field.columns[0]
        values = plain_array(table.column(column.index)).unique()
        if len(values) > 1:
            found: list[Any] = values[:2].to_pylist()
            raise NotConstantError(
                f"a column has several values in one sequence: field {field.name!r}, column {column.name!r}, "
                f"sequence {seq_id!r}; found {found[0]!r} and {found[1]!r}",
                hint="with lists='time' a column without lists is about the whole sequence",
                field=field.name,
                column=column.name,
                seq_id=seq_id,
                found=tuple(found),
            )
    return table.slice(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """How long the sequences of a dataset may be whose lists are the time axis, and how long they are.

    Attributes
    ----------
    length : str or None
        The column of the query that says how many steps each sequence has.
    max_steps : int or None
        How many a sequence may have.
    """

    length: str | None
    max_steps: int | None

    def check_column(self, extra: pa.Table) -> None:
        """Raise ColumnMissingError or ColumnTypeError if `length` is no column of integers in the query's columns."""
        name = self.length
        if name is None:
            return
        if name not in extra.column_names:
            raise ColumnMissingError(
                f"length={name!r} is no column of the query, whose other columns are: "
                f"{', '.join(map(repr, extra.column_names)) or 'none'}",
                hint=f"let the query return it, as it returns seq_id: ... AS {name}",
                column=name,
            )
        column = extra.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            found = f"{column.null_count} nulls" if pa.types.is_integer(column.type) else str(column.type)
            raise ColumnTypeError(
                f"length={name!r} must be a column of integers without nulls; found {found}",
                hint="cast it in the query, or leave out the sequences without a length",
                column=name,
                found=found,
            )

    def lengths(self, extra: pa.Table) -> npt.NDArray[np.int64]:
        """Return the number of steps of each sequence: shape (n,), int64; UsageError where nothing says it."""
        if self.length is None:
            raise UsageError(
                "nothing says how many steps the sequences have, whose lists are the time axis",
                hint='give length="n_tokens", a column of the query',
                argument="length",
            )
        return np.asarray(extra.column(self.length).to_numpy(), np.int64)

    def steps(self, table: pa.Table, position: int, seq_id: object, extra: pa.Table) -> Steps:
        """Return the steps of one sequence, after the check that there are as many as there should be.

        Raises
        ------
        RaggedListError
            If `length` says another number.
        SequenceTooLongError
            If there are more than `max_steps`.
        """
        steps = steps_of(table, seq_id)
        found = steps.table.num_rows
        if self.length is not None:
            expected = extra.column(self.length)[position].as_py()
            if found != expected:
                raise RaggedListError(
                    f"a sequence has another number of steps than column {self.length!r} of the query says: sequence "
                    f"{seq_id!r}; expected {expected}, found {found}",
                    hint="let the column of the query be the length of the lists",
                    column=self.length,
                    seq_id=seq_id,
                    expected=expected,
                    found=found,
                )
        elif self.max_steps is not None and found > self.max_steps:
            raise SequenceTooLongError(
                f"sequence {seq_id!r} has {found} steps, more than max_rows={self.max_steps}",
                hint="leave it out in SQL, or raise max_rows; with length= this is checked before anything is read",
                max_rows=self.max_steps,
                n_sequences=1,
                sequences=((seq_id, found),),
            )
        return steps
