"""Packed and nested batches: no padding, and everything else rides along."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pqindex.torch.ragged
from pqindex.errors import NullValueError, RaggedListError, UsageError
from pqindex.torch import collate_nested, collate_packed

COLLATES = [collate_packed, collate_nested]


def item(seq_id: int, n_rows: int, **more: Any) -> dict[str, Any]:
    return {
        "x": torch.full((n_rows, 2), float(seq_id)),
        "y": torch.arange(n_rows),
        "text": [f"t{i}" for i in range(n_rows)],
        "seq_id": seq_id,
        "length": n_rows,
        "label": f"l{seq_id}",
        "fold": seq_id % 2,
        "weight": seq_id / 4,
        **more,
    }


ITEMS = [item(5, 3), item(6, 1), item(7, 2)]


def test_packed_is_what_flash_attention_takes() -> None:
    batch = collate_packed(ITEMS)
    assert batch["x"].tolist() == [[5.0, 5.0]] * 3 + [[6.0, 6.0]] + [[7.0, 7.0]] * 2
    assert batch["y"].tolist() == [0, 1, 2, 0, 0, 1]
    assert batch["cu_seqlens"].tolist() == [0, 3, 4, 6]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["max_seqlen"] == 3
    assert type(batch["max_seqlen"]) is int
    assert batch["position_ids"].tolist() == [0, 1, 2, 0, 0, 1]
    assert batch["position_ids"].dtype == torch.int64
    assert batch["lengths"].tolist() == [3, 1, 2]


def test_nested_keeps_each_length() -> None:
    batch = collate_nested(ITEMS)
    assert batch["x"].is_nested
    assert batch["x"].layout == torch.jagged
    assert [part.tolist() for part in batch["x"].unbind()] == [
        [[5.0, 5.0]] * 3,
        [[6.0, 6.0]],
        [[7.0, 7.0]] * 2,
    ]
    assert batch["y"].dtype == torch.int64
    assert batch["lengths"].tolist() == [3, 1, 2]


def test_nested_fields_of_a_batch_fit_each_other() -> None:
    batch = collate_nested([item(i, n, z=torch.ones(n, 2)) for i, n in enumerate((4, 2))])
    assert [part.tolist() for part in (batch["x"] + batch["z"]).unbind()] == [
        [[1.0, 1.0]] * 4,
        [[2.0, 2.0]] * 2,
    ]


@pytest.mark.parametrize("collate", COLLATES)
def test_ids_texts_and_columns_ride_along(collate: Any) -> None:
    batch = collate([{**one, "flat": torch.ones(7), "batch_number": (2, 5)} for one in ITEMS])
    assert batch["seq_id"].tolist() == [5, 6, 7]
    assert batch["label"] == ["l5", "l6", "l7"]
    assert batch["fold"].tolist() == [1, 0, 1]
    assert batch["weight"].tolist() == [1.25, 1.5, 1.75]
    assert batch["text"] == [["t0", "t1", "t2"], ["t0"], ["t0", "t1"]]
    assert batch["flat"].shape == (3, 7)
    assert batch["batch_number"].tolist() == [2, 5]
    assert "length" not in batch


@pytest.mark.parametrize("collate", COLLATES)
def test_rows_that_a_window_was_padded_with_are_left_out(collate: Any) -> None:
    padded = [
        {
            "x": torch.arange(4.0)[:, None],
            "seq_id": 1,
            "length": 3,
            "mask": torch.tensor([0, 1, 1, 1]).bool(),
        },
        {
            "x": torch.arange(4.0)[:, None],
            "seq_id": 2,
            "length": 2,
            "mask": torch.tensor([1, 1, 0, 0]).bool(),
        },
    ]
    batch = collate(padded)
    rows = batch["x"] if collate is collate_packed else batch["x"].values()
    assert rows[:, 0].tolist() == [1, 2, 3, 0, 1]
    assert batch["lengths"].tolist() == [3, 2]
    assert "mask" not in batch


@pytest.mark.parametrize("collate", COLLATES)
def test_a_sequence_without_rows_has_its_place(collate: Any) -> None:
    batch = collate([item(1, 0), item(2, 2)])
    assert batch["lengths"].tolist() == [0, 2]


@pytest.mark.parametrize("collate", COLLATES)
def test_what_does_not_fit_together_is_named(collate: Any) -> None:
    with pytest.raises(UsageError, match="nothing to collate"):
        collate([])
    with pytest.raises(UsageError, match="item 1 is int without a 'length'"):
        collate([item(1, 2), 3])
    with pytest.raises(
        RaggedListError, match=r"rows of different shapes in 'x': expected \(2,\), found \(3,\)"
    ):
        collate([item(1, 2), item(2, 2, x=torch.ones(2, 3))])
    with pytest.raises(RaggedListError, match="'x' has neither a row for each"):
        collate([item(1, 2), item(2, 2, x=torch.ones(3, 2))])
    with pytest.raises(
        UsageError, match=r"'y' is torch\.int64 in one sequence and torch\.float32 in another: sequence 2"
    ):
        collate([item(1, 2), item(2, 2, y=torch.ones(2))])
    with pytest.raises(NullValueError, match="column 'fold' of the query is null: sequence 2"):
        collate([item(1, 2), item(2, 2, fold=None)])
    with pytest.raises(UsageError, match="different names: 'z'"):
        collate([item(1, 2), item(2, 2, z=1)])
    with pytest.raises(UsageError, match="an item has the name 'lengths', which the batch has for itself"):
        collate([item(1, 2, lengths=1)])


def test_names_of_a_packed_batch_are_its_own() -> None:
    for name in ("cu_seqlens", "max_seqlen", "position_ids"):
        with pytest.raises(UsageError, match=f"the name '{name}'"):
            collate_packed([item(1, 2, **{name: 3})])


def test_more_rows_than_int32_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pqindex.torch.ragged, "_MAX_INT32", 5)
    with pytest.raises(UsageError, match="a packed batch has 6 rows; cu_seqlens holds at most 5"):
        collate_packed(ITEMS)


@pytest.mark.parametrize("collate", COLLATES)
def test_batches_are_fresh_memory_of_what_pinning_handles(collate: Any) -> None:
    batch = collate(ITEMS[:1])
    for value in batch.values():
        assert isinstance(value, torch.Tensor | list | int)
    rows = batch["x"] if collate is collate_packed else batch["x"].values()
    rows[:] = 0
    assert ITEMS[0]["x"].tolist() == [[5.0, 5.0]] * 3
    assert callable(batch["x"].pin_memory)
