"""collate_padded: a padding policy with a name, and errors that name the field."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pqindex.errors import LossyCastError, NullValueError, RaggedListError, UsageError
from pqindex.torch import collate_padded

NAN = float("nan")


def item(length, seq_id=1, **more):
    x = torch.arange(length * 2, dtype=torch.float32).reshape(length, 2) + 1
    return {
        "x": x,
        "y": torch.arange(length, dtype=torch.int64) + 1,
        "seq_id": seq_id,
        "length": length,
    } | more


def test_L23_sequences_of_different_lengths_are_padded_with_a_mask():
    batch = collate_padded([item(2, 17), item(3, 23)])
    assert list(batch) == ["x", "y", "lengths", "mask", "seq_id"]
    assert batch["x"].tolist() == [[[1, 2], [3, 4], [0, 0]], [[1, 2], [3, 4], [5, 6]]]
    assert batch["y"].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert batch["lengths"].tolist() == [2, 3]
    assert batch["mask"].tolist() == [[True, True, False], [True, True, True]]
    assert batch["seq_id"].tolist() == [17, 23]
    assert [batch[name].dtype for name in ("x", "y", "lengths", "mask", "seq_id")] == [
        torch.float32,
        torch.int64,
        torch.int64,
        torch.bool,
        torch.int64,
    ]


def test_L23_torch_s_own_collate_does_not_stack_them_either():
    with pytest.raises(RuntimeError, match="equal size"):
        torch.utils.data.default_collate([item(2), item(3)])


def test_padding_on_the_left():
    batch = collate_padded([item(1), item(3)], side="left")
    assert batch["y"].tolist() == [[0, 0, 1], [1, 2, 3]]
    assert batch["mask"].tolist() == [[False, False, True], [True, True, True]]


def test_padding_up_to_a_multiple():
    for side, expected in (("right", [1, 2, 3, 0]), ("left", [0, 1, 2, 3])):
        batch = collate_padded([item(3)], multiple_of=4, side=side)
        assert batch["y"].tolist() == [expected]
        assert batch["mask"].sum() == 3
    assert collate_padded([item(4)], multiple_of=4)["x"].shape == (1, 4, 2)


def test_padding_values_for_all_and_by_field():
    batch = partial(collate_padded, padding_value=-1)([item(1), item(2)])
    assert (batch["x"][0, 1].tolist(), batch["y"][0, 1].item()) == ([-1, -1], -1)
    batch = collate_padded([item(1), item(2)], padding_value={"y": -100})
    assert (batch["x"][0, 1].tolist(), batch["y"][0, 1].item()) == ([0, 0], -100)
    batch = collate_padded([item(1), item(2)], padding_value={"x": NAN})
    assert torch.isnan(batch["x"][0, 1]).all()


def test_masks_of_fields_are_padded_with_false():
    items = [item(n, x_mask=torch.ones(n, 2, dtype=torch.bool)) for n in (1, 2)]
    batch = collate_padded(items, padding_value={"x": 9})
    assert batch["x_mask"].tolist() == [[[True, True], [False, False]], [[True, True], [True, True]]]
    batch = collate_padded(items, padding_value=9)
    assert not batch["x_mask"][0, 1].any()


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.uint16, torch.uint64]
)
def test_dtypes_are_kept(dtype):
    items = [{"x": torch.ones(n).to(dtype), "length": n} for n in (1, 2)]
    batch = collate_padded(items)
    assert batch["x"].dtype == dtype
    assert batch["x"].to(torch.float32).tolist() == [[1, 0], [1, 1]]


def test_a_batch_is_made_of_memory_of_its_own():
    items = [item(3)]
    batch = collate_padded(items)
    batch["x"] += 1
    assert items[0]["x"][0, 0] == 1


def test_sequences_without_rows():
    batch = collate_padded([item(0), item(2)])
    assert batch["mask"].tolist() == [[False, False], [True, True]]
    assert collate_padded([item(0)])["x"].shape == (1, 0, 2)


def test_tensors_without_a_time_axis_are_stacked():
    items = [item(n, weight=torch.tensor(0.5), embedding=torch.arange(4)) for n in (1, 2)]
    batch = collate_padded(items)
    assert batch["weight"].tolist() == [0.5, 0.5]
    assert batch["embedding"].shape == (2, 4)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], torch.int64, [1, 2]),
        ([0.5, 2.0], torch.float64, [0.5, 2.0]),
        ([1, 0.5], torch.float64, [1.0, 0.5]),
        ([True, False], torch.bool, [True, False]),
        ([-(2**63), 2**63 - 1], torch.int64, [-(2**63), 2**63 - 1]),
        (["a", None], None, ["a", None]),
        ([None, None], None, [None, None]),
        ([b"a", b"b"], None, [b"a", b"b"]),
        ([2**63 + 5, 1], None, [2**63 + 5, 1]),
        ([[1], [2, 3]], None, [[1], [2, 3]]),
        ([True, 1], None, [True, 1]),
    ],
)
def test_ids_and_columns_of_the_query_are_tensors_where_all_are_numbers(values, dtype, expected):
    batch = collate_padded([item(1, seq_id=value, label=value) for value in values])
    for name in ("seq_id", "label"):
        assert getattr(batch[name], "dtype", None) == dtype
        assert (batch[name] if dtype is None else batch[name].tolist()) == expected


def test_text_fields_stay_lists():
    batch = collate_padded([item(1, words=["a"]), item(2, words=["b", "c"])])
    assert batch["words"] == [["a"], ["b", "c"]]


# -- refusals -------------------------------------------------------------------------------------------------


def test_a_null_among_numbers_is_an_error_that_names_column_and_sequence():
    with pytest.raises(
        NullValueError, match=r"column 'label' of the query is null: sequence 23.*coalesce"
    ) as error:
        collate_padded([item(1, 17, label=1), item(1, 23, label=None)])
    assert (error.value.column, error.value.seq_id) == ("label", 23)


def test_lists_of_different_lengths_in_two_sequences_are_an_error_that_names_the_field():
    with pytest.raises(
        RaggedListError, match=r"rows of different shapes in 'v': expected \(2,\), found \(3,\)"
    ):
        collate_padded([item(1, v=torch.zeros(1, 2)), item(2, v=torch.zeros(2, 3))])


def test_a_transform_that_forgets_the_length_is_an_error():
    with pytest.raises(
        RaggedListError,
        match=r"'y' has neither a row for each of the sequence's steps.*sequence 2 of length 4",
    ):
        collate_padded([item(3), item(4, 2) | {"y": torch.tensor([1, 2])}])


@pytest.mark.parametrize(
    ("padding_value", "name"),
    [(0.5, "y"), (NAN, "y"), (float("inf"), "y"), (1 << 63, "y"), ({"y": 0.5}, "y"), ({"y": "0"}, "y")],
)
def test_a_padding_value_that_the_dtype_cannot_hold_is_an_error(padding_value, name):
    with pytest.raises(LossyCastError, match=f"does not fit field '{name}', which is torch.int64"):
        collate_padded([item(1)], padding_value=padding_value)


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.bool, 2), (torch.bool, -1), (torch.uint8, -1), (torch.uint8, 256)]
)
def test_a_padding_value_outside_a_narrow_dtype_is_an_error(dtype, value):
    with pytest.raises(LossyCastError, match=f"does not fit field 'x', which is {dtype}"):
        collate_padded([{"x": torch.ones(1, dtype=dtype), "length": 1}], padding_value=value)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the list of items is empty"),
        ([{"x": torch.zeros(1)}], "item 0 is dict without a 'length'"),
        ([item(1), torch.zeros(1)], "item 1 is Tensor without a 'length'"),
        ([item(1), item(1, z=1)], "'z' is in some and not in all"),
        ([item(1, mask=1)], "an item has the name 'mask', .*with as many True as 'length' says, 1; found 1"),
        ([item(1, mask=torch.ones(1, 1, dtype=torch.bool))], r"found torch.bool of shape \(1, 1\)"),
        ([item(1, mask=torch.ones(2, dtype=torch.bool))], r"found torch.bool of shape \(2,\)"),
        ([item(1, lengths=1)], "an item has the name 'lengths', which the batch has for itself"),
        (
            [item(1), item(1) | {"y": [1]}],
            "'y' is torch.int64 in one sequence and list in another: sequence 1",
        ),
        (
            [item(1), item(1) | {"y": torch.zeros(1)}],
            "'y' is torch.int64 in one sequence and torch.float32 in another",
        ),
    ],
)
def test_items_that_make_no_batch_are_refused(items, message):
    with pytest.raises(UsageError, match=message):
        collate_padded(items)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "top"}, "side='top' is not known: expected 'right' or 'left'"),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"padding_value": {"xx": 0}}, "padding_value names 'xx'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        collate_padded([item(1)], **options)
