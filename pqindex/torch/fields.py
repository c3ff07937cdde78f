"""What a field is: its columns, its dtype, and the policies about its values.

What a column becomes, by its Arrow type. With ``dtype=None`` a field keeps the dtype in the second column;
with a dtype it is cast, and the last column says when that is refused.

======================================  ==================  =================================================
Arrow type                              own dtype           refused
======================================  ==================  =================================================
bool                                    bool
int8, int16, int32, int64               the same            a float dtype that loses an integer; a narrower
                                                            integer that would wrap around
uint8                                   uint8               as for integers
uint16                                  int32               as for integers
uint32, uint64                          int64               as for integers: a uint64 of 2**63 or more needs
                                                            ``dtype=torch.uint64``
float16, float32, float64               the same            non-finite after the cast (1e39 in float32); a
                                                            fraction in an integer dtype
decimal                                 none: give a dtype  a value that an integer dtype changes; without
                                                            digits after the point, one that a float dtype
                                                            changes
date32, time32, date64, time64,         int64, counting in  as for integers: nanoseconds do not fit float32
timestamp, duration                     their own unit
dictionary, run-end encoded, extension  of the values       as the values
string, binary, fixed-size binary       a Python list       in a field of several columns, or with a dtype
list, large list, fixed-size list       of the values,      rows of other lengths; lists of lists or text
of k numbers                            k columns
null                                    none: give a dtype  unless nulls are filled or kept
struct, map, union, interval            none                always
======================================  ==================  =================================================

Dates and times count from their own epoch in their own unit (days, ms, us, ns); zone-aware timestamps are in
UTC. So no value is made up by a conversion, and year 1 and year 9999 are kept.

A field given as a name has shape (T,), or (T, k) for a list column. A field given as a list of names has
shape (T, F): its columns side by side, list columns taking k of the F.

With ``lists="time"`` a row is a whole sequence, and the values of its lists are the time steps. The table then holds
for the values of the lists: lists of numbers give (T,) or (T, F), lists of lists of k numbers (T, k), lists of text a
Python list. A column without lists is given by its name and has one value a sequence: shape (), or a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import torch

from pqindex.columns import UNKNOWN_WIDTH, ColumnForm, column_form
from pqindex.errors import ColumnTypeError, UsageError
from pqindex.torch.arguments import refuse_unknown
from pqindex.torch.casts import always_exact
from pqindex.torch.steps import Axis, axes_of_fields, steps_schema

FieldsArgument = Mapping[str, str | Sequence[str]]
DTypeArgument = torch.dtype | Mapping[str, torch.dtype | None] | None
PolicyArgument = Literal["error", "keep"] | tuple[Literal["fill"], Any]
PoliciesArgument = PolicyArgument | Mapping[str, PolicyArgument]

DEFAULT_DTYPE: Final = torch.float32
MASK_SUFFIX: Final = "_mask"

# the numpy dtype that holds a tensor's values; numpy has no bfloat16, whose values are made in float32
STORAGE: Final[dict[torch.dtype, np.dtype[Any]]] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.bfloat16: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
_OWN_DTYPE: Final[dict[str, torch.dtype]] = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
# bits of the significand: integers up to 2**bits are exact
PRECISION: Final = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with nulls, or with values that are not finite: "error", "keep", or "fill" with a value."""

    action: Literal["error", "keep", "fill"] = "error"
    value: Any = None

    @classmethod
    def parse(cls, name: str, argument: object) -> Policy:
        """Return the policy that an argument gives; raise UsageError if it gives none."""
        if argument in ("error", "keep"):
            return cls("error" if argument == "error" else "keep")
        if isinstance(argument, tuple) and len(argument) == 2 and argument[0] == "fill":
            return cls("fill", argument[1])
        raise UsageError(
            f"{name}={argument!r} is not known: expected 'error', 'keep' or ('fill', value)",
            argument=name,
            value=argument,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldColumn:
    """A column of a field: its name, its place in the projected table, and what its values are."""

    name: str
    index: int
    form: ColumnForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One named output of a sequence: columns side by side, in one dtype, under policies.

    Safe for threads and processes; pickles small.

    Attributes
    ----------
    name : str
    columns : tuple of FieldColumn
    by_name : bool
        The field was given as a name, so a column with one value a row gives (T,).
    dtype : torch.dtype or None
        None for text, which comes as a list.
    nulls, non_finite : Policy
    lossy : bool
        Casts may change integers.
    is_plain : bool
        Every column holds plain numbers, all of which the dtype holds: copying them needs no check.
    is_uniform : bool
        Plain, and every column holds the dtype itself.
    axis : {"row", "step", "sequence"}
        What has a value: each row; each step of lists; the sequence as a whole.
    """

    name: str
    columns: tuple[FieldColumn, ...]
    by_name: bool
    dtype: torch.dtype | None
    nulls: Policy
    non_finite: Policy
    lossy: bool
    is_plain: bool = False
    is_uniform: bool = False
    axis: Axis = "row"

    @property
    def is_masked(self) -> bool:
        """Whether a ``<field>_mask`` comes with the field, since a policy may fill values in."""
        if self.dtype is None or self.nulls.action == "fill":
            return self.nulls.action == "fill"
        has_floats = self.dtype.is_floating_point or any(c.form.kind == "float" for c in self.columns)
        return self.non_finite.action == "fill" and has_floats

    @property
    def width(self) -> int | None:
        """Values a row, or None where only the data tell."""
        widths = [c.form.n_values for c in self.columns]
        return None if UNKNOWN_WIDTH in widths else sum(widths)

    def row_nbytes(self, width: int) -> int:
        """Return the bytes of one row of `width` values in tensors: values and mask. Text counts nothing."""
        if self.dtype is None:
            return 1 if self.is_masked else 0
        return width * (self.dtype.itemsize + (1 if self.is_masked else 0))


def parse_fields(fields: Mapping[Any, Any]) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Return, by field, its column names and whether it was given as a name.

    Raises
    ------
    UsageError
        If there is no field, a field without a column, or a column named twice in a field.
    """
    if not fields or not isinstance(fields, Mapping):
        raise UsageError(
            f"fields={fields!r} names no field",
            hint='give for example fields={"x": ["f0", "f1"], "y": "label"}',
        )
    parsed: dict[str, tuple[tuple[str, ...], bool]] = {}
    for name, given in fields.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"a field has the name {name!r}", hint="name each field with a non-empty string")
        by_name = isinstance(given, str)
        columns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
        if not columns or not all(isinstance(column, str) for column in columns):
            raise UsageError(
                f"field {name!r} names no columns: found {given!r}",
                hint="give a column's name, or a list of them",
                field=name,
            )
        repeated = [column for i, column in enumerate(columns) if column in columns[:i]]
        if repeated:
            raise UsageError(
                f"field {name!r} names column {repeated[0]!r} twice",
                hint="name it once",
                field=name,
                column=repeated[0],
            )
        parsed[name] = (columns, by_name)
    return parsed


def resolve_fields(
    parsed: Mapping[str, tuple[tuple[str, ...], bool]],
    schema: pa.Schema,
    *,
    dtype: DTypeArgument,
    nulls: PoliciesArgument,
    non_finite: PoliciesArgument,
    lossy: bool,
    lists: Literal["rows", "time"] = "rows",
) -> tuple[Field, ...]:
    """Return the fields over a schema, with everything refused that can be known without the data.

    Parameters
    ----------
    parsed : mapping
        From `parse_fields`.
    schema : pa.Schema
        Of the projected columns.
    dtype : torch.dtype, None, or mapping of those by field
        None keeps the columns' own dtype. Fields that a mapping leaves out get float32.
    nulls, non_finite : "error", "keep", ("fill", value), or mapping of those by field
        Fields that a mapping leaves out get "error".
    lossy : bool
    lists : {"rows", "time"}
        Whether a list in a row is the values of that row, or the time axis.

    Raises
    ------
    UsageError
        If a dtype or policy makes no sense for its field.
    ColumnTypeError
        If no tensor can be made of a column.
    """
    for argument_name, argument in (("dtype", dtype), ("nulls", nulls), ("non_finite", non_finite)):
        if isinstance(argument, Mapping):
            refuse_unknown(argument_name, argument, parsed)
    axes = {} if lists == "rows" else axes_of_fields(parsed, schema)
    fields = []
    for name, (names, by_name) in parsed.items():
        axis: Axis = axes.get(name, "row")
        own_schema = steps_schema(schema) if axis == "step" else schema
        columns = tuple(_field_column(name, column, own_schema) for column in names)
        field_dtype = _field_dtype(name, columns, by_name, dtype, own_schema)
        field = Field(
            name=name,
            columns=columns,
            by_name=by_name,
            dtype=field_dtype,
            nulls=Policy.parse("nulls", _of_field(nulls, name, "error")),
            non_finite=Policy.parse("non_finite", _of_field(non_finite, name, "error")),
            lossy=lossy,
            is_plain=_is_plain(columns, field_dtype),
            is_uniform=_is_uniform(columns, field_dtype),
            axis=axis,
        )
        _check_policies(field)
        fields.append(field)
    return tuple(fields)


def _of_field(argument: Any, name: str, default: Any) -> Any:
    return argument.get(name, default) if isinstance(argument, Mapping) else argument


def _field_column(field: str, column: str, schema: pa.Schema) -> FieldColumn:
    index = schema.get_field_index(column)
    form = column_form(schema.field(index).type)
    if form is None:
        raise ColumnTypeError(
            f"no tensor can be made of column {column!r} of field {field!r}: "
            f"its type is {schema.field(index).type}",
            hint="numbers, times and lists of numbers can be fields; store the parts of a struct as columns",
            field=field,
            column=column,
            found=str(schema.field(index).type),
        )
    return FieldColumn(name=column, index=index, form=form)


def _field_dtype(
    field: str, columns: tuple[FieldColumn, ...], by_name: bool, dtype: DTypeArgument, schema: pa.Schema
) -> torch.dtype | None:
    texts = [column for column in columns if column.form.kind == "text"]
    if texts:
        if not by_name or (isinstance(dtype, Mapping) and dtype.get(field) is not None):
            raise ColumnTypeError(
                f"column {texts[0].name!r} of field {field!r} is {schema.field(texts[0].index).type}, "
                "which is no number",
                hint="give it alone, by its name and without a dtype, to have it as a list: "
                f"fields={{{field!r}: {texts[0].name!r}}}",
                field=field,
                column=texts[0].name,
            )
        return None
    asked = _of_field(dtype, field, DEFAULT_DTYPE)
    if asked is None:
        return _own_dtype(field, columns, schema)
    if not isinstance(asked, torch.dtype) or asked not in STORAGE:
        known = ", ".join(str(known).removeprefix("torch.") for known in STORAGE)
        raise UsageError(
            f"dtype={asked!r} of field {field!r} is not known: expected None or one of torch's {known}",
            field=field,
        )
    return asked


def _is_plain(columns: tuple[FieldColumn, ...], dtype: torch.dtype | None) -> bool:
    if dtype is None:
        return False
    storage, precision = STORAGE[dtype], PRECISION.get(dtype)
    return all(
        c.form.is_plain and c.form.dtype is not None and always_exact(c.form.dtype, storage, precision)
        for c in columns
    )


def _is_uniform(columns: tuple[FieldColumn, ...], dtype: torch.dtype | None) -> bool:
    return dtype is not None and all(c.form.is_plain and c.form.dtype == STORAGE[dtype] for c in columns)


def _own_dtype(field: str, columns: tuple[FieldColumn, ...], schema: pa.Schema) -> torch.dtype:
    own = set()
    for column in columns:
        if column.form.kind in {"decimal", "null"} or column.form.dtype is None:
            raise ColumnTypeError(
                f"column {column.name!r} of field {field!r} is {schema.field(column.index).type}, "
                "which has no dtype of its own",
                hint=f"give one, as dtype={{{field!r}: torch.float64}}",
                field=field,
                column=column.name,
            )
        own.add(_OWN_DTYPE[column.form.dtype.name])
    if len(own) > 1:
        kinds = ", ".join(f"{c.name!r} {schema.field(c.index).type}" for c in columns)
        raise ColumnTypeError(
            f"the columns of field {field!r} have no one dtype of their own: {kinds}",
            hint=f"give one, as dtype={{{field!r}: torch.float32}}",
            field=field,
        )
    return own.pop()


def _check_policies(field: Field) -> None:
    if field.non_finite.action == "fill" and field.dtype is not None:
        _check_fill(field, "non_finite")
    if field.nulls.action == "fill":
        _check_fill(field, "nulls")
    if field.nulls.action == "keep" and field.dtype is not None and not field.dtype.is_floating_point:
        raise UsageError(
            f"field {field.name!r} has dtype {field.dtype}, which has no NaN to keep nulls as",
            hint=f"give the policy by field, as nulls={{{field.name!r}: ('fill', 0)}}",
            field=field.name,
        )
    if field.nulls.action == "error":
        for column in field.columns:
            if column.form.kind == "null":
                raise ColumnTypeError(
                    f"column {column.name!r} of field {field.name!r} is null in every row",
                    hint=f"leave it out, or fill it, as nulls={{{field.name!r}: ('fill', 0)}}",
                    field=field.name,
                    column=column.name,
                )


def _check_fill(field: Field, argument: str) -> None:
    value = (field.nulls if argument == "nulls" else field.non_finite).value
    if field.dtype is None:
        fits = isinstance(value, str | bytes)
    else:
        fits = isinstance(value, int | float | np.number) and fits_dtype(value, field.dtype)
    if not fits:
        raise UsageError(
            f"{argument} of field {field.name!r} fills with {value!r}, which is no {field.dtype or 'text'}",
            hint=f"give the policy by field, as {argument}={{{field.name!r}: ('fill', ...)}}",
            field=field.name,
            value=value,
        )


def fits_dtype(value: float | np.number[Any], dtype: torch.dtype) -> bool:
    """Return whether a dtype holds a number; in a float dtype it may be rounded."""
    number = float(value)
    if not np.isfinite(number):
        return dtype.is_floating_point
    if dtype.is_floating_point:
        return abs(number) <= torch.finfo(dtype).max
    if dtype == torch.bool:
        return value in {0, 1}
    limits = np.iinfo(STORAGE[dtype])
    return value == int(value) and limits.min <= int(value) <= limits.max
