"""From a list of sequences of different lengths to one batch, by a padding policy with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from pqindex.errors import LossyCastError
from pqindex.torch.arguments import integer, one_of, refuse_unknown
from pqindex.torch.batchitems import of_items, rows_and_rest
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
        As `SequenceDataset` gives them, or `WindowDataset`. Items that were padded already bring their "mask"
        with them, shape (T,), and their rows count as T; each "length" stays what the item says.
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
    lengths = of_items(items, reserved=("lengths",))
    masks = [item["mask"] for item in items] if "mask" in items[0] else None
    row_counts = lengths if masks is None else [len(mask) for mask in masks]
    n_steps = -(-max(row_counts) // multiple_of) * multiple_of
    starts = [0 if side == "right" else n_steps - n_rows for n_rows in row_counts]
    if isinstance(padding_value, Mapping):
        refuse_unknown("padding_value", padding_value, [n for n in items[0] if n not in {"length", "seq_id"}])
    rows, rest = rows_and_rest(items, row_counts)
    batch: dict[str, Any] = {}
    for name, values in rows.items():
        padding = padding_value.get(name, 0.0) if isinstance(padding_value, Mapping) else padding_value
        of_what = name.removesuffix(MASK_SUFFIX)
        is_mask = of_what != name and (of_what in items[0] or masks is not None)
        batch[name] = _padded(name, values, starts, n_steps, False if is_mask else padding)
    batch["lengths"] = torch.tensor(lengths, dtype=torch.int64)
    if masks is None:
        # the rows of a sequence are its last or its first steps
        ends = batch["lengths"] if side == "right" else torch.tensor(starts)
        before = torch.arange(n_steps) < ends[:, None]
        batch["mask"] = before if side == "right" else ~before
    else:
        batch["mask"] = _padded("mask", masks, starts, n_steps, False)
    return batch | rest


def _padded(
    name: str, values: list[torch.Tensor], starts: list[int], n_steps: int, padding: float
) -> torch.Tensor:
    first = values[0]
    _validate_padding(name, padding, first.dtype)
    if not any(starts) and n_steps == max(map(len, values)) and (first.is_floating_point() or not padding):
        # one call for all rows; its padding is a float, which holds not every integer
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=float(padding))
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
