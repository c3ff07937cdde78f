"""What every collate does: check the items of a batch, and put together what is not padded, packed or nested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pqindex.errors import NullValueError, RaggedListError, UsageError
from pqindex.torch.batches import BATCH_NUMBER


def of_items(items: Sequence[Any], *, reserved: Sequence[str]) -> list[int]:
    """Return the lengths of the items of a batch, after the check that they are of one kind.

    Parameters
    ----------
    items : sequence
        Dicts with a "length".
    reserved : sequence of str
        Names that the batch has for itself.

    Raises
    ------
    UsageError
        If there are none, one is something else, or their names differ or are reserved.
    """
    _validate_items(items, reserved)
    return [int(item["length"]) for item in items]


def rows_and_rest(
    items: Sequence[Mapping[str, Any]], row_counts: Sequence[int]
) -> tuple[dict[str, list[torch.Tensor]], dict[str, Any]]:
    """Return the tensors with a row for each step, by name; and everything else as the batch has it.

    Parameters
    ----------
    items : sequence of dict
    row_counts : sequence of int
        Rows of each item.

    Raises
    ------
    UsageError
        If a name is of one dtype in some items and of another in others.
    RaggedListError
        If tensors differ in more than their number of rows.
    NullValueError
        If some but not all values of a column of numbers are null.
    """
    rows: dict[str, list[torch.Tensor]] = {}
    rest: dict[str, Any] = {}
    for name in items[0]:
        values = [item[name] for item in items]
        if name in {"length", "mask"}:
            continue
        if name == BATCH_NUMBER:
            rest[name] = torch.tensor(values[0])  # a tensor, for loops that move every value to a device
        elif not isinstance(values[0], torch.Tensor):
            rest[name] = _column(name, values, items)
        else:
            _validate_tensors(name, values, items)
            if all(v.ndim > 0 and v.shape[0] == n for v, n in zip(values, row_counts, strict=True)):
                _validate_widths(name, values)
                rows[name] = values
            else:
                rest[name] = _stacked(name, values, items)
    return rows, rest


def _validate_items(items: Sequence[Any], reserved: Sequence[str]) -> None:
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
    for name in reserved:
        if name in items[0]:
            raise UsageError(
                f"an item has the name {name!r}, which the batch has for itself", hint="rename it", name=name
            )
    if "mask" in items[0]:
        for item in items:
            _validate_mask(item)


def _validate_mask(item: Mapping[str, Any]) -> None:
    mask = item["mask"]
    is_mask = isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.ndim == 1
    if not is_mask or int(mask.sum()) != int(item["length"]):
        found = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else repr(mask)
        raise UsageError(
            "an item has the name 'mask', which says which rows of a padded item are real; expected a bool "
            f"tensor of shape (T,) with as many True as 'length' says, {item['length']}; found {found}",
            hint="give it another name if it means something else",
            name="mask",
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


def _validate_widths(name: str, values: list[torch.Tensor]) -> None:
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
