"""Which rows around a window a field takes, and what stands where the sequence has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from pqindex.errors import UsageError
from pqindex.torch.arguments import one_of, refuse_unknown
from pqindex.torch.fields import Field, fits_dtype
from pqindex.torch.windowplaces import WindowGrid

Part = Literal["context", "window", "horizon"]
PartsArgument = Mapping[str, Part | Sequence[Part]]
PaddingArgument = float | str | Mapping[str, Any] | None

PARTS: Final = ("context", "window", "horizon")
EDGE: Final = "edge"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRows:
    """The rows that a field of a window takes: half-open ``[start, stop)``, counted from the window's start.

    Attributes
    ----------
    start, stop : int
    padding : number, str, bytes, None or "edge"
        Stands where the sequence has no such row; "edge" repeats the sequence's nearest row.
    """

    start: int
    stop: int
    padding: Any

    def inside(self, row_start: int, n_rows: int) -> tuple[int, int]:
        """Return which rows of the sequence to read for the window at `row_start`; at least one.

        They are the rows that are there, or the sequence's nearest row where none is: it says what a row of a
        list column looks like, and is what "edge" repeats.
        """
        first = min(max(row_start + self.start, 0), n_rows - 1)
        return first, max(min(row_start + self.stop, n_rows), first + 1)

    def filled(
        self,
        values: torch.Tensor | list[Any],
        mask: torch.Tensor | None,
        *,
        row_start: int,
        n_rows: int,
        first: int,
    ) -> tuple[torch.Tensor | list[Any], torch.Tensor | None]:
        """Return the values and their mask with ``stop - start`` rows, those that are not there padded.

        Parameters
        ----------
        values : Tensor, shape (R, ...), or list of length R
            What was read.
        mask : Tensor of that shape, bool, or None
        row_start : int
            Where the window starts.
        n_rows : int
            Rows of the sequence.
        first : int
            Row of the sequence that `values` start with.

        Returns
        -------
        values : Tensor, shape (stop - start, ...), or list of that length
        mask : Tensor of that shape, bool, or None
            False in padded rows.
        """
        rows = torch.arange(row_start + self.start, row_start + self.stop)
        outside = (rows < 0) | (rows >= n_rows)
        if not outside.any():
            return values, mask
        nearest = rows.clamp(first, first + len(values) - 1) - first
        if mask is not None:
            mask = mask[nearest]
            mask[outside] = False
        if isinstance(values, list):
            padding = [self.padding != EDGE and is_outside for is_outside in outside.tolist()]
            texts = [values[i] for i in nearest.tolist()]
            return [self.padding if p else text for p, text in zip(padding, texts, strict=True)], mask
        values = values[nearest]
        if self.padding != EDGE:
            values[outside] = self.padding
        return values, mask


def resolve_parts(
    parts: PartsArgument | None, padding: PaddingArgument, *, fields: Sequence[Field], grid: WindowGrid
) -> dict[str, FieldRows]:
    """Return the rows of each field.

    Raises
    ------
    UsageError
        If a part or a padding value makes no sense for its field, or a context or horizon is asked for that
        no field takes.
    """
    names = [field.name for field in fields]
    refuse_unknown("parts", parts or {}, names)
    if padding is not None and grid.partial != "pad":
        raise UsageError(
            f'padding={padding!r} is given and partial={grid.partial!r} pads nothing; expected partial="pad"',
            hint='give partial="pad", or leave padding out',
        )
    if isinstance(padding, Mapping):
        refuse_unknown("padding", padding, names)
    bounds = {
        "context": (-grid.context, 0),
        "window": (0, grid.length),
        "horizon": (grid.length, grid.length + grid.horizon),
    }
    rows: dict[str, FieldRows] = {}
    taken: set[str] = set()
    for field in fields:
        given = _parts_of(field.name, (parts or {}).get(field.name, "window"))
        start, stop = bounds[given[0]][0], bounds[given[-1]][1]
        if start == stop:
            raise UsageError(
                f"field {field.name!r} takes the {given[0]}, which has no rows: {given[0]}=0",
                hint=f"give for example {given[0]}=8, or take the field out of parts",
                field=field.name,
            )
        rows[field.name] = FieldRows(start=start, stop=stop, padding=_padding_of(field, padding))
        taken.update(given)
    for part, size in (("context", grid.context), ("horizon", grid.horizon)):
        if size and part not in taken:
            raise UsageError(
                f"{part}={size} is asked for and no field takes it",
                hint=f"say which field does, as parts={{{names[-1]!r}: {part!r}}}",
                part=part,
            )
    return rows


def _parts_of(field: str, given: object) -> tuple[str, ...]:
    parts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    for part in parts:
        one_of(f"parts of field {field!r}", part, PARTS)
    joined = "".join(f"{part}," for part in PARTS)
    if not parts or "".join(f"{part}," for part in parts) not in joined:
        raise UsageError(
            f"field {field!r} takes {given!r}; expected one of {', '.join(PARTS)}, or neighbours in that order",
            hint=f'give for example parts={{{field!r}: ("context", "window")}}',
            field=field,
        )
    return parts


def _padding_of(field: Field, padding: PaddingArgument) -> Any:
    is_text = field.dtype is None
    value = padding.get(field.name) if isinstance(padding, Mapping) else padding
    if value is None:
        return None if is_text else 0
    if value == EDGE:
        return EDGE
    if field.dtype is None:
        if not isinstance(padding, Mapping):  # one number for all is for the fields of numbers
            return None
        if isinstance(value, str | bytes):
            return value
    elif isinstance(value, int | float) and fits_dtype(value, field.dtype):
        return value
    raise UsageError(
        f"field {field.name!r} is padded with {value!r}, which is no {field.dtype or 'text'}",
        hint=f'give the value by field, as padding={{{field.name!r}: ...}}, or "edge"',
        field=field.name,
        value=value,
    )
