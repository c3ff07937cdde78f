"""One field of one sequence: from the columns of an Arrow table to a tensor, under the field's policies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from pqindex.columns import (
    UNKNOWN_WIDTH,
    BoolArray,
    ColumnValues,
    NotExactError,
    RaggedRowError,
    column_texts,
    column_values,
)
from pqindex.errors import LossyCastError, NonFiniteError, NullValueError, RaggedListError
from pqindex.numbers import NumberField, NumberRead
from pqindex.torch.casts import always_exact, cast_into, inexact_values
from pqindex.torch.fields import PRECISION, STORAGE, Field, FieldColumn

Array = npt.NDArray[Any]


def read_field(
    field: Field, table: pa.Table, seq_id: object, *, first_row: int = 0
) -> tuple[torch.Tensor | list[Any], torch.Tensor | None]:
    """Return a field of one sequence, and its mask if it has one.

    The tensor is the only owner of its memory, allocated once: changing it in place changes nothing else.
    Thread-safe.

    Parameters
    ----------
    field : Field
    table : pa.Table
        The projected columns of the sequence, with a row for each value that the field has; see `steps` for lists.
    seq_id : object
        For messages.
    first_row : int, default 0
        Which row of the sequence the table starts with, for messages too.

    Returns
    -------
    values : Tensor, shape (T,) or (T, F), of the field's dtype; or list of T str or bytes
    mask : Tensor of the same shape, bool, or None
        True where the value is the file's own, False where it was filled.

    Raises
    ------
    NullValueError, NonFiniteError, LossyCastError, RaggedListError
        With field, column, sequence and row.
    """
    return _FieldRead(field, table, seq_id, first_row).result()


class FieldSource(NamedTuple):
    """Which arrays of a `NumberRead` the columns of a field are in.

    Attributes
    ----------
    whole : int or None
        The array that is the field: just its columns, in the dtype that it is stored in.
    cells : tuple of (array, column) or None
        By column of the field; None for columns that come in the table.
    """

    whole: int | None
    cells: tuple[tuple[int, int] | None, ...]


def number_fields(fields: Sequence[Field]) -> tuple[list[NumberField], dict[str, FieldSource]]:
    """Return what is asked of a `NumberReader` for some fields, and where each of them finds it, by name.

    Columns of one number a row are asked for in the field's dtype where that holds all their values, else in their
    own, to be checked. Fields without such columns have no source.
    """
    found: list[NumberField] = []
    sources: dict[str, FieldSource] = {}
    for field in fields:
        if field.dtype is None:
            continue
        storage, precision = STORAGE[field.dtype], PRECISION.get(field.dtype)
        by_dtype: dict[np.dtype[Any], list[int]] = {}
        for i, column in enumerate(field.columns):
            own = column.form.dtype
            if own is None or column.form.width is not None or column.form.kind not in _NUMBERS:
                continue
            by_dtype.setdefault(storage if always_exact(own, storage, precision) else own, []).append(i)
        if not by_dtype:
            continue
        cells: list[tuple[int, int] | None] = [None] * len(field.columns)
        for dtype, columns in by_dtype.items():
            for place, i in enumerate(columns):
                cells[i] = (len(found), place)
            found.append(NumberField(tuple(field.columns[i].name for i in columns), dtype))
        is_whole = len(by_dtype.get(storage, ())) == len(field.columns)
        sources[field.name] = FieldSource(len(found) - 1 if is_whole else None, tuple(cells))
    return found, sources


_NUMBERS = ("bool", "integer", "float")


def field_of_numbers(
    field: Field,
    source: FieldSource,
    read: NumberRead,
    seq_id: object,
    *,
    rows: slice,
    first_row: int = 0,
    whole: Callable[[], pa.Table],
) -> tuple[torch.Tensor | list[Any], torch.Tensor | None]:
    """Return the same as `read_field`, of what a `NumberReader` read.

    Parameters
    ----------
    field, seq_id, first_row
        As in `read_field`.
    source : FieldSource
    read : NumberRead
        With arrays. They become tensors, as they are where all their rows are wanted.
    rows : slice
        Which rows of the read.
    whole : callable
        Returns a table of all columns of these rows, to say what was found in the file.
    """
    arrays = read.arrays or []
    if source.whole is not None and read.absent[source.whole] is None:
        array = arrays[source.whole]
        if rows.stop - rows.start != len(array):
            array = array[rows].copy()
        tensor = _plain_tensor(field, array)
        if tensor is not None:
            return tensor, torch.ones(tensor.shape, dtype=torch.bool) if field.is_masked else None
    given: list[ColumnValues | None] = []
    for cell in source.cells:
        if cell is None:
            given.append(None)
            continue
        number, place = cell
        absent = read.absent[number]
        gaps = None if absent is None else absent[rows, place : place + 1]
        if gaps is not None and not gaps.any():
            gaps = None
        given.append(ColumnValues(arrays[number][rows, place : place + 1], gaps))
    return _FieldRead(field, read.rows_of_table(rows), seq_id, first_row, given, whole).result()


def _plain_tensor(field: Field, array: Array) -> torch.Tensor | None:
    """Return a field whose values are an array already, or None where one of them is not finite and may not be."""
    tensor = torch.from_numpy(array)
    dtype = field.dtype
    if dtype == torch.bfloat16:
        tensor = tensor.to(dtype)
    if dtype is not None and dtype.is_floating_point and field.non_finite.action != "keep":
        finite = torch.isfinite(tensor).all() if dtype == torch.bfloat16 else np.isfinite(array).all()
        if not finite:
            return None
    return tensor[:, 0] if field.by_name else tensor


@dataclass(slots=True)
class _Grid:
    """A field in the making: the values, and which of them are not the file's own.

    Attributes
    ----------
    out : ndarray, shape (T, F)
    widths : list of int
        How many of the F each column takes.
    absent, strange : ndarray, shape (T, F), bool, or None
        Null in the file; not finite.
    """

    out: npt.NDArray[Any]
    widths: list[int]
    absent: BoolArray | None = None
    strange: BoolArray | None = None

    def mask(self) -> torch.Tensor:
        """Return which values are the file's own."""
        mask = torch.ones(self.out.shape, dtype=torch.bool)
        for filled in (self.absent, self.strange):
            if filled is not None:
                mask &= torch.from_numpy(~filled)
        return mask


def _copied(field: Field, table: pa.Table, storage: np.dtype[Any]) -> _Grid | None:
    """Return the columns of a plain field copied as they are, or None where one has nulls or several chunks.

    Most fields of most data sets: columns of one type are laid side by side by one call of Arrow, into memory that
    nothing else has; others one by one. Arrow's own memory is never shared, since the reader may keep it for the next
    sequence of the same row group.
    """
    batches = table.to_batches()
    if len(batches) != 1:
        return None
    columns = [column.index for column in field.columns]
    if field.is_uniform and len(columns) > 1:
        try:
            out = batches[0].select(columns).to_tensor(row_major=True).to_numpy()
        except pa.ArrowTypeError:  # there are nulls
            return None
        return _Grid(out, [1] * len(columns))
    out = np.empty((table.num_rows, len(columns)), storage)
    with np.errstate(over="ignore"):
        for i, column in enumerate(columns):
            array = batches[0].column(column)
            if array.null_count:
                return None
            out[:, i] = array.to_numpy()
    return _Grid(out, [1] * len(columns))


class _FieldRead:
    """One reading of a field of one sequence: the values so far, and which of them are not the file's own."""

    def __init__(
        self,
        field: Field,
        table: pa.Table,
        seq_id: object,
        first_row: int,
        given: Sequence[ColumnValues | None] | None = None,
        whole: Callable[[], pa.Table] | None = None,
    ) -> None:
        self._field = field
        self._table = table
        self._seq_id = seq_id
        self._first_row = first_row
        self._given = given
        self._whole = whole

    def result(self) -> tuple[torch.Tensor | list[Any], torch.Tensor | None]:
        if self._field.dtype is None:
            return self._texts()
        return self._numbers(self._field.dtype)

    # -- text ------------------------------------------------------------------------------------------------

    def _texts(self) -> tuple[list[Any], torch.Tensor | None]:
        field, column = self._field, self._field.columns[0]
        texts = column_texts(self._table.column(column.index))
        if field.nulls.action == "keep":
            return texts, None
        absent = [row for row, text in enumerate(texts) if text is None]
        if absent and field.nulls.action == "error":
            self._refuse_null(column, absent[0])
        if field.nulls.action != "fill":
            return texts, None
        mask = torch.ones(len(texts), dtype=torch.bool)
        mask[absent] = False
        return [field.nulls.value if text is None else text for text in texts], mask

    # -- numbers ---------------------------------------------------------------------------------------------

    def _numbers(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
        field = self._field
        may_copy = field.is_plain and self._given is None
        grid = (_copied(field, self._table, STORAGE[dtype]) if may_copy else None) or self._cast(dtype)
        if grid.strange is not None:
            grid.out[grid.strange] = field.non_finite.value
        if grid.absent is not None:
            grid.out[grid.absent] = field.nulls.value if field.nulls.action == "fill" else np.nan
        tensor = torch.from_numpy(grid.out)
        if dtype == torch.bfloat16:
            tensor = tensor.to(dtype)
        if dtype.is_floating_point and field.non_finite.action != "keep":
            self._check_finite(tensor, grid)
        mask = grid.mask() if field.is_masked else None
        if field.by_name and field.columns[0].form.width is None:
            return tensor[:, 0], None if mask is None else mask[:, 0]
        return tensor, mask

    def _cast(self, dtype: torch.dtype) -> _Grid:
        """Return the columns side by side in the dtype, each checked for what the cast would change."""
        storage = STORAGE[dtype]
        given = self._given or [None] * len(self._field.columns)
        parts = [
            self._column_values(column, storage) if own is None else self._checked(column, own)
            for column, own in zip(self._field.columns, given, strict=True)
        ]
        widths = [part.values.shape[1] for part in parts]
        grid = _Grid(np.empty((len(parts[0].values), sum(widths)), storage), widths)
        start = 0
        for column, part, width in zip(self._field.columns, parts, widths, strict=True):
            block = slice(start, start + width)
            start += width
            values = part.values
            if part.absent is not None:
                grid.absent = np.zeros(grid.out.shape, np.bool_) if grid.absent is None else grid.absent
                grid.absent[:, block] = part.absent
            infinite = (
                self._infinite(column, values) if storage.kind != "f" and values.dtype.kind == "f" else None
            )
            if infinite is not None:
                grid.strange = np.zeros(grid.out.shape, np.bool_) if grid.strange is None else grid.strange
                grid.strange[:, block] = infinite
                values = np.where(infinite, values.dtype.type(0), values)
            self._write(column, grid.out[:, block], values, dtype)
        return grid

    def _checked(self, column: FieldColumn, part: ColumnValues) -> ColumnValues:
        """Return the values of a column, once they are found to have no null that the policy refuses."""
        if part.absent is not None and self._field.nulls.action == "error":
            self._refuse_null(column, int(part.absent[:, 0].argmax()))
        return part

    def _column_values(self, column: FieldColumn, storage: np.dtype[Any]) -> ColumnValues:
        field, form = self._field, column.form
        integers = None
        if form.kind == "decimal" and not field.lossy:
            if storage.kind in "iu":
                integers = storage
            elif storage.kind == "b" or form.scale <= 0:
                integers = np.dtype(np.int64)
        cells = self._table.column(column.index)
        try:
            part = column_values(cells, integers=integers)
        except RaggedRowError as error:
            raise RaggedListError(
                f"a list has another length than the lists before it: {self._place(column, error.row)}; "
                f"expected {error.expected} values, found {error.found}",
                hint="leave out the column or the sequence; a field needs lists of one length",
                **self._facts(column, error.row, expected=error.expected, found=error.found),
            ) from None
        except NotExactError:
            self._refuse_lossy(column, self._first_inexact_decimal(column, integers))
        if part.absent is not None and field.nulls.action == "error":
            rows = part.absent.any(axis=1) | cells.is_null().to_numpy()
            self._refuse_null(column, int(rows.argmax()))
        if form.width == UNKNOWN_WIDTH and len(cells) and cells.null_count == len(cells):
            self._refuse_null(column, 0)  # null lists only: nothing says how many values to fill in
        return part

    def _infinite(self, column: FieldColumn, values: npt.NDArray[Any]) -> BoolArray | None:
        """Return which values of a float column are not finite, on the way to integers."""
        infinite: BoolArray = ~np.isfinite(values)
        if not infinite.any():
            return None
        if self._field.non_finite.action != "fill":
            self._refuse_non_finite(column, int(infinite.any(axis=1).argmax()))
        return infinite

    def _write(
        self, column: FieldColumn, block: npt.NDArray[Any], values: npt.NDArray[Any], dtype: torch.dtype
    ) -> None:
        precision = PRECISION.get(dtype)
        if not self._field.lossy and not always_exact(values.dtype, block.dtype, precision):
            inexact = inexact_values(values, block.dtype, precision)
            if inexact is not None:
                self._refuse_lossy(column, int(inexact.any(axis=1).argmax()))
        cast_into(block, values)

    def _check_finite(self, tensor: torch.Tensor, grid: _Grid) -> None:
        """Check a field of floats after the cast; fill what is not finite in it, or refuse it."""
        finite: BoolArray = np.isfinite(grid.out)
        if tensor.dtype == torch.bfloat16:  # narrower in range than the float32 that it was made from
            finite = torch.isfinite(tensor).numpy()
        if grid.absent is not None:
            finite |= grid.absent
        if finite.all():
            return
        grid.strange = ~finite
        if self._field.non_finite.action == "error":
            row, place = (int(x) for x in np.argwhere(grid.strange)[0])
            at = bisect_right(list(accumulate(grid.widths)), place)
            self._refuse_non_finite(self._field.columns[at], row)
        tensor[torch.from_numpy(grid.strange)] = self._field.non_finite.value

    # -- refusals --------------------------------------------------------------------------------------------

    def _place(self, column: FieldColumn, row: int) -> str:
        what = "step" if self._field.axis == "step" else "row"
        return (
            f"field {self._field.name!r}, column {column.name!r}, sequence {self._seq_id!r}, "
            f"{what} {self._first_row + row}"
        )

    def _facts(self, column: FieldColumn, row: int, **more: Any) -> dict[str, Any]:
        what = "step" if self._field.axis == "step" else "row"
        place = {"field": self._field.name, "column": column.name, "seq_id": self._seq_id}
        return {**place, what: self._first_row + row, **more}

    def _found(self, column: FieldColumn, row: int) -> str:
        if self._whole is not None:
            self._table, self._whole = self._whole(), None
        cell = self._table.column(column.index)[row]
        # as a number where it is a time: no time is out of range then
        text = str(cell.value if pa.types.is_temporal(cell.type) else cell.as_py())
        return text if len(text) <= 80 else f"{text[:77]}..."

    def _first_inexact_decimal(self, column: FieldColumn, integers: np.dtype[Any] | None) -> int:
        cells = self._table.column(column.index)
        for row in range(len(cells)):
            try:
                column_values(cells.slice(row, 1), integers=integers)
            except NotExactError:
                return row
        return 0

    def _refuse_null(self, column: FieldColumn, row: int) -> NoReturn:
        raise NullValueError(
            f"a value is null: {self._place(column, row)}",
            hint="nulls=('fill', 0) with a mask, nulls='keep' for NaN, or leave the sequence out in SQL",
            **self._facts(column, row),
        )

    def _refuse_non_finite(self, column: FieldColumn, row: int) -> NoReturn:
        found = self._found(column, row)
        raise NonFiniteError(
            f"a value is not a finite {self._field.dtype}: {self._place(column, row)}; found {found}",
            hint="non_finite=('fill', 0) with a mask, non_finite='keep' for a float dtype, a wider dtype, "
            "or leave the sequence out in SQL",
            **self._facts(column, row, found=found),
        )

    def _refuse_lossy(self, column: FieldColumn, row: int) -> NoReturn:
        found = self._found(column, row)
        raise LossyCastError(
            f"a cast to {self._field.dtype} would change a value: {self._place(column, row)}; found {found}",
            hint=f"give a dtype that holds it, as dtype={{{self._field.name!r}: torch.int64}}, or lossy=True",
            **self._facts(column, row, found=found),
        )
