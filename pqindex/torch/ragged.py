"""Batches without padding: sequences one behind the other, and jagged nested tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from pqindex.errors import UsageError
from pqindex.torch.batchitems import of_items, rows_and_rest

_MAX_INT32: Final = (1 << 31) - 1
_OF_PACKED: Final = ("cu_seqlens", "max_seqlen", "position_ids", "lengths")
_OF_NESTED: Final = ("lengths",)


def collate_packed(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch in which the sequences lie one behind the other, without padding.

    The boundaries are named and typed as FlashAttention's calls for sequences of varying lengths take them:
    ``flash_attn_varlen_func(q, k, v, cu_seqlens_q=batch["cu_seqlens"], max_seqlen_q=batch["max_seqlen"], ...)``.
    The batch is made of fresh memory, one allocation a field, and `pin_memory` works.

    Parameters
    ----------
    items : sequence of dict
        As `SequenceDataset` gives them, or `WindowDataset`; rows that a window was padded with are left out.

    Returns
    -------
    dict
        - each tensor with a row for each time step: shape (sum of lengths, ...), its dtype kept;
        - any other tensor: shape (B, ...), stacked;
        - "cu_seqlens": shape (B + 1,), int32, where each sequence begins, and the sum of lengths;
        - "max_seqlen": the longest length, an int;
        - "position_ids": shape (sum of lengths,), int64, counted from 0 in each sequence;
        - "lengths": shape (B,), int64;
        - ids, the query's columns, text fields and "batch_number" as `collate_padded` gives them.

    Raises
    ------
    UsageError
        If there are no items, one is no dict with a "length", names differ between items or are the batch's own, or
        the lengths add up to more than int32 holds.
    RaggedListError
        If tensors differ in more than their number of rows.
    NullValueError
        If some but not all values of a column of numbers are null.
    """
    lengths = of_items(items, reserved=_OF_PACKED)
    total = sum(lengths)
    if total > _MAX_INT32:
        raise UsageError(
            f"a packed batch has {total} rows; cu_seqlens holds at most {_MAX_INT32}",
            hint="make smaller batches",
            found=total,
            expected=_MAX_INT32,
        )
    rows, rest = _real_rows(items, lengths)
    batch: dict[str, Any] = {name: torch.cat(values) for name, values in rows.items()}
    counts = torch.tensor(lengths, dtype=torch.int64)
    stops = torch.cumsum(counts, 0)
    batch["cu_seqlens"] = torch.cat([torch.zeros(1, dtype=torch.int64), stops]).to(torch.int32)
    batch["max_seqlen"] = max(lengths)
    batch["position_ids"] = torch.arange(total) - torch.repeat_interleave(stops - counts, counts)
    batch["lengths"] = counts
    return batch | rest


def collate_nested(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch of jagged nested tensors: no padding, and each sequence keeps its length.

    All fields of a batch share one tensor of offsets, so that they can be added, multiplied and attended to each
    other. The batch is made of fresh memory.

    Parameters
    ----------
    items : sequence of dict
        As `SequenceDataset` gives them, or `WindowDataset`; rows that a window was padded with are left out.

    Returns
    -------
    dict
        - each tensor with a row for each time step: a nested tensor of shape (B, j, ...), ``layout=torch.jagged``, its
          dtype kept;
        - any other tensor: shape (B, ...), stacked;
        - "lengths": shape (B,), int64;
        - ids, the query's columns, text fields and "batch_number" as `collate_padded` gives them.

    Raises
    ------
    UsageError, RaggedListError, NullValueError
        As `collate_packed` does.
    """
    lengths = of_items(items, reserved=_OF_NESTED)
    rows, rest = _real_rows(items, lengths)
    counts = torch.tensor(lengths, dtype=torch.int64)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(counts, 0)])
    batch: dict[str, Any] = {
        name: torch.nested.nested_tensor_from_jagged(
            torch.cat(values), offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)
        )
        for name, values in rows.items()
    }
    batch["lengths"] = counts
    return batch | rest


def _real_rows(
    items: Sequence[Mapping[str, Any]], lengths: list[int]
) -> tuple[dict[str, list[torch.Tensor]], dict[str, Any]]:
    """Return what `rows_and_rest` does, without the rows that a window was padded with."""
    if "mask" not in items[0]:
        return rows_and_rest(items, lengths)
    masks = [item["mask"] for item in items]
    rows, rest = rows_and_rest(items, [len(mask) for mask in masks])
    return {
        name: [value[mask] for value, mask in zip(values, masks, strict=True)]
        for name, values in rows.items()
    }, rest
