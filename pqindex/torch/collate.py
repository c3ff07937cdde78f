"""From a list of sequences of different lengths to one batch, by a padding policy with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from pqindex.errors import LossyCastError, NullValueError, RaggedListError, UsageError
from pqindex.torch.arguments import integer, one_of, refuse_unknown
from pqindex.torch.batches import BATCH_NUMBER
from pqindex.torch.fields import MASK_SUFFIX

Side = Literal["right", "left"]


def collate_padded(
    items: Sequence[Mapping[str, Any]],
    *,
    padding_value: float | Mapping[str, float] = 0.0,
    side: Side = "right",
    multiple_of: int = 1,
) -> dict[str, Any]:
    """Return a batch in which every sequence is padded to the longest, with a mask of what is real.

    Use it as the `collate_fn` of a DataLoader, with `functools.partial` for its options. The batch is made of
    fresh memory, so `pin_memory` works and items stay as they were.

    Parameters
    ----------
    items : sequence of dict
        As `SequenceDataset` gives them.
    padding_value : float, or mapping of floats by field, default 0.0
        Written where a sequence has no rows. Fields that a mapping leaves out get 0. Masks are padded with
        False.
    side : {"right", "left"}, default "right"
        Where the padding goes.
    multiple_of : int, default 1
        Round the padded length up to a multiple of this.

    Returns
    -------
    dict
        - each tensor with a row for each time step: shape (B, T_max, ...), its dtype kept;
        - any other tensor: shape (B, ...), stacked;
        - "lengths": shape (B,), int64, and "mask": shape (B, T_max), bool, True where a row is real;
        - ids and the query's columns: shape (B,), int64, float64 or bool where all are such, else a list;
        - a text field: a list of B lists;
        - "batch_number": shape (2,), int64, for `BatchPlan.delivered`.

    Raises
    ------
    UsageError
        If there are no items, one is no dict with a "length", names differ between items, or an option makes
        no sense.
    RaggedListError
        If tensors differ in more than their number of rows.
    NullValueError
        If some but not all values of a column of numbers are null.
    LossyCastError
        If a padding value does not fit the dtype of a field.
    """
    one_of("side", side, ("right", "left"))
    multiple_of = integer("multiple_of", multiple_of, least=1)
    _validate_items(items)
    lengths = [int(item["length"]) for item in items]
    n_steps = -(-max(lengths) // multiple_of) * multiple_of
    starts = [0 if side == "right" else n_steps - length for length in lengths]
    if isinstance(padding_value, Mapping):
        refuse_unknown("padding_value", padding_value, [n for n in items[0] if n not in {"length", "seq_id"}])
    batch: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name in items[0]:
        values = [item[name] for item in items]
        if isinstance(values[0], torch.Tensor):
            _validate_tensors(name, values, items)
            if all(v.ndim > 0 and v.shape[0] == length for v, length in zip(values, lengths, strict=True)):
                padding = (
                    padding_value.get(name, 0.0) if isinstance(padding_value, Mapping) else padding_value
                )
                is_mask = name.endswith(MASK_SUFFIX) and name.removesuffix(MASK_SUFFIX) in items[0]
                batch[name] = _padded(name, values, starts, n_steps, False if is_mask else padding)
            else:
                batch[name] = _stacked(name, values, items)
        elif name == BATCH_NUMBER:
            rest[name] = torch.tensor(values[0])  # a tensor, for loops that move every value to a device
        elif name != "length":
            rest[name] = _column(name, values, items)
    lengths_tensor = torch.tensor(lengths, dtype=torch.int64)
    steps = torch.arange(n_steps) - torch.tensor(starts, dtype=torch.int64)[:, None]
    batch["lengths"] = lengths_tensor
    batch["mask"] = (steps >= 0) & (steps < lengths_tensor[:, None])
    return batch | rest


def _validate_items(items: Sequence[Any]) -> None:
    if not items:
        raise UsageError("there is nothing to collate: the list of items is empty")
    for i, item in enumerate(items):
        if not isinstance(item, Mapping) or "length" not in item:
            raise UsageError(
                f"item {i} is {type(item).__name__} without a 'length'",
                hint="collate items of a SequenceDataset; a transform must return a dict and keep 'length'",
            )
        if item.keys() != items[0].keys():
            name = min(item.keys() ^ items[0].keys())
            raise UsageError(
                f"the items of a batch have different names: {name!r} is in some and not in all",
                hint="a transform must give every item the same names",
                name=name,
            )
    for name in ("lengths", "mask"):
        if name in items[0]:
            raise UsageError(
                f"an item has the name {name!r}, which the batch has for itself", hint="rename it", name=name
            )


def _validate_tensors(name: str, values: list[Any], items: Sequence[Mapping[str, Any]]) -> None:
    first = values[0]
    for value, item in zip(values, items, strict=True):
        if not isinstance(value, torch.Tensor) or value.dtype != first.dtype:
            found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise UsageError(
                f"{name!r} is {first.dtype} in one sequence and {found} in another: "
                f"sequence {item.get('seq_id')!r}",
                hint="a transform must give every item the same dtypes",
                field=name,
            )


def _padded(
    name: str, values: list[torch.Tensor], starts: list[int], n_steps: int, padding: float
) -> torch.Tensor:
    first = values[0]
    for value in values:
        if value.shape[1:] != first.shape[1:]:
            raise RaggedListError(
                f"the sequences of a batch have rows of different shapes in {name!r}: expected "
                f"{tuple(first.shape[1:])}, found {tuple(value.shape[1:])}",
                hint="a list column must have lists of one length in all sequences that are batched together",
                field=name,
                expected=tuple(first.shape[1:]),
                found=tuple(value.shape[1:]),
            )
    _validate_padding(name, padding, first.dtype)
    out = first.new_full((len(values), n_steps, *first.shape[1:]), padding)
    for row, value, start in zip(out, values, starts, strict=True):
        row[start : start + len(value)] = value
    return out


def _validate_padding(name: str, padding: float, dtype: torch.dtype) -> None:
    fits = True
    if not dtype.is_floating_point:
        try:
            fits = torch.tensor(int(padding), dtype=dtype).item() == padding
        except (ValueError, OverflowError, RuntimeError, TypeError):  # NaN, infinity, beyond the dtype
            fits = False
    if not fits:
        raise LossyCastError(
            f"padding_value={padding!r} does not fit field {name!r}, which is {dtype}",
            hint=f"give a value for each field, as padding_value={{{name!r}: 0}}",
            field=name,
            value=padding,
        )


def _stacked(name: str, values: list[torch.Tensor], items: Sequence[Mapping[str, Any]]) -> torch.Tensor:
    for value, item in zip(values, items, strict=True):
        if value.shape != values[0].shape:
            raise RaggedListError(
                f"{name!r} has neither a row for each of the sequence's steps nor one shape in all "
                f"sequences: sequence {item.get('seq_id')!r} of length {item['length']}; "
                f"expected {tuple(values[0].shape)}, found {tuple(value.shape)}",
                hint="a transform that changes the number of rows must do so in every field and in 'length'",
                field=name,
                expected=tuple(values[0].shape),
                found=tuple(value.shape),
            )
    return torch.stack(values)


def _column(name: str, values: list[Any], items: Sequence[Mapping[str, Any]]) -> torch.Tensor | list[Any]:
    """Return ids or values of a query's column: a tensor where all are numbers of one kind, else a list."""
    kinds = {type(value) for value in values}
    numbers = kinds - {type(None)}
    if not numbers or not (numbers <= {int, float} or numbers == {bool}):
        return values
    if len(kinds) > len(numbers):
        item = next(item for item, value in zip(items, values, strict=True) if value is None)
        raise NullValueError(
            f"column {name!r} of the query is null: sequence {item.get('seq_id')!r}",
            hint="give it a value in the query, with coalesce, or leave the sequence out",
            column=name,
            seq_id=item.get("seq_id"),
        )
    if numbers == {bool}:
        return torch.tensor(values, dtype=torch.bool)
    if float in numbers:
        return torch.tensor(values, dtype=torch.float64)
    if all(-(1 << 63) <= value < 1 << 63 for value in values):
        return torch.tensor(values, dtype=torch.int64)
    return values  # unsigned ids of 2**63 and more
