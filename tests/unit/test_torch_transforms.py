"""Transforms: what they make of an item, that they pickle, and what is refused before a worker starts."""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pqindex.errors import LossyCastError, NonFiniteError, RaggedListError, UsageError
from pqindex.statistics import ColumnStatistics
from pqindex.torch import Cast, Compose, Map, Normalize, Rename
from pqindex.torch.transforms import checked_transform

NAN, INF = float("nan"), float("inf")


def item(**more):
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    return {"x": x, "x_mask": torch.ones(2, 2, dtype=torch.bool), "y": torch.tensor([5, 6])} | {
        "seq_id": 17,
        "length": 2,
        **more,
    }


def known(mean, std, count=3):
    numbers = {"mean": mean, "std": std, "min": mean, "max": mean}
    return ColumnStatistics(count=count, null_count=0, nan_count=0, infinite_count=0, **numbers)


STATISTICS = {
    "f0": known(2.0, 1.0),
    "f1": known(20.0, 5.0),
    "c": known(5.0, 0.0),
    "none": known(None, None, 0),
}


# -- Rename ---------------------------------------------------------------------------------------------------


def test_rename_keeps_the_order_and_takes_the_mask_along():
    renamed = Rename({"x": "inputs", "y": "labels"})(item())
    assert list(renamed) == ["inputs", "inputs_mask", "labels", "seq_id", "length"]
    assert list(Rename({"x": "y", "y": "x"})(item())) == ["y", "y_mask", "x", "seq_id", "length"]


def test_rename_refuses_what_would_be_lost():
    with pytest.raises(UsageError, match="two values of an item would have the name 'y'"):
        Rename({"x": "y"})(item())
    with pytest.raises(UsageError, match="Rename: 'z' is not in the item, which has 'x', 'x_mask', 'y'"):
        Rename({"z": "y"})(item())
    for names in ({"length": "n"}, {"x": "seq_id"}):
        with pytest.raises(UsageError, match="'seq_id' and 'length' are names of every item"):
            Rename(names)


# -- Cast -----------------------------------------------------------------------------------------------------


def test_cast():
    cast = Cast({"x": torch.float16, "y": torch.uint8})(item())
    assert (cast["x"].dtype, cast["y"].dtype) == (torch.float16, torch.uint8)
    assert (cast["x"].tolist(), cast["y"].tolist()) == ([[1, 10], [3, 30]], [5, 6])
    assert Cast({"x": torch.int32})(item())["x"].tolist() == [[1, 10], [3, 30]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_cast_of_floats_may_round(dtype):
    values = torch.tensor([0.1, NAN, -INF], dtype=torch.float64)
    cast = Cast({"x": dtype})(item(x=values))["x"]
    assert cast.dtype == dtype
    assert torch.equal(cast.isnan(), values.isnan())
    assert Cast({"x": torch.float32})(item(x=cast))["x"].dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "dtype", "place", "found"),
    [
        (torch.tensor([1, 300]), torch.uint8, (1,), 300),
        (torch.tensor([[0.0], [0.5]]), torch.int64, (1, 0), 0.5),
        (torch.tensor([2**24 + 1]), torch.float32, (0,), 2**24 + 1),
        (torch.tensor([257]), torch.bfloat16, (0,), 257),
        (torch.tensor([0.5], dtype=torch.bfloat16), torch.int8, (0,), 0.5),
    ],
)
def test_cast_that_changes_a_value_is_an_error_unless_asked_for(values, dtype, place, found):
    with pytest.raises(
        LossyCastError, match=f"a cast to {dtype} would change a value: field 'x', sequence 17"
    ) as error:
        Cast({"x": dtype})(item(x=values))
    assert (error.value.place, error.value.found) == (place, found)
    assert Cast({"x": dtype}, lossy=True)(item(x=values))["x"].dtype == dtype


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1.0, 1e39], torch.float32), ([1.0, 70_000.0], torch.float16), ([1.0, NAN], torch.int8)],
)
def test_cast_makes_no_infinity_and_no_number_of_what_is_none(values, dtype):
    with pytest.raises(NonFiniteError, match=rf"not a finite {dtype}: field 'x', sequence 17, place \(1,\)"):
        Cast({"x": dtype})(item(x=torch.tensor(values, dtype=torch.float64)))


def test_cast_refuses_what_makes_no_sense():
    with pytest.raises(UsageError, match="dtype='float16' of field 'x' is not known"):
        Cast({"x": "float16"})
    with pytest.raises(UsageError, match="Cast: 'words' is a list and no tensor: sequence 17"):
        Cast({"words": torch.int8})(item(words=["a"]))


# -- Map ------------------------------------------------------------------------------------------------------


def test_map():
    mapped = Map(torch.log, ["x"])(item())
    assert torch.equal(mapped["x"], torch.log(item()["x"]))
    assert torch.equal(mapped["y"], item()["y"])
    assert Map(upper, ["words"])(item(words=["a", "b"]))["words"] == ["A", "B"]


def upper(words):
    return [word.upper() for word in words]


def test_map_keeps_the_steps():
    with pytest.raises(
        RaggedListError, match=r"number of steps: field 'y', sequence 17; expected 2, found 1\..*'length'"
    ):
        Map(torch.diff, ["y"])(item())


def broken(values):
    raise RuntimeError("no")


def test_an_error_in_a_mapped_function_says_where_it_came_from():
    with pytest.raises(RuntimeError, match="no") as error:
        Map(broken, ["y"])(item())
    (note,) = error.value.__notes__
    assert "over field 'y' of sequence 17" in note


def test_map_refuses_what_makes_no_sense():
    with pytest.raises(UsageError, match="Map: 3 cannot be called"):
        Map(3, ["x"])
    for fields in ("x", []):
        with pytest.raises(UsageError, match="names no fields"):
            Map(torch.log, fields)


# -- Normalize ------------------------------------------------------------------------------------------------


def test_normalize_by_column():
    normal = Normalize(STATISTICS, {"x": ["f0", "f1"], "y": "c"})(item())
    assert normal["x"].tolist() == [[-1, -2], [1, 2]]
    assert normal["x"].dtype == torch.float32
    assert (normal["y"].tolist(), normal["y"].dtype) == (
        [0, 1],
        torch.float32,
    )  # one value in training: no division
    assert item()["x"].tolist() == [[1, 10], [3, 30]]


def test_normalize_changes_no_tensor_in_place():
    before = item()
    Normalize(STATISTICS, {"x": ["f0", "f1"]})(before)
    assert torch.equal(before["x"], item()["x"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_normalize_keeps_float_dtypes(dtype):
    values = torch.tensor([1.0, 2.0, 3.5], dtype=dtype)
    normal = Normalize(STATISTICS, {"x": "f0"})(item(x=values))["x"]
    assert (normal.dtype, normal.tolist()) == (dtype, [-1, 0, 1.5])


def test_normalize_loses_nothing_of_large_integers():
    statistics = {"t": known(1.7e18, 1e9)}
    values = torch.tensor([1_700_000_000_000_000_000, 1_700_000_001_000_000_000])
    assert Normalize(statistics, {"t": "t"})(item(t=values))["t"].tolist() == [0, 1]


def test_normalize_of_a_list_column_has_one_mean_for_all_its_values():
    assert Normalize(STATISTICS, {"x": ["f0"]})(item())["x"].tolist() == [[-1, 8], [1, 28]]


def test_normalize_with_epsilon():
    normal = Normalize(STATISTICS, {"x": "c"}, epsilon=4.0)(item(x=torch.tensor([7.0])))
    assert normal["x"].tolist() == [1]


def test_normalize_back():
    normalize = Normalize(STATISTICS, {"x": ["f0", "f1"], "y": "c"})
    assert torch.equal(normalize.invert("x", normalize(item())["x"]), item()["x"])
    assert normalize.invert("y", torch.tensor([[0.0, 1.0]])).tolist() == [[5, 6]]
    with pytest.raises(UsageError, match="invert names 'z', which is not a field"):
        normalize.invert("z", torch.zeros(1))


def test_normalize_takes_a_manifest_with_statistics_and_no_selection():
    manifest = SimpleNamespace(header={}, statistics=lambda: STATISTICS)
    assert Normalize(manifest, {"x": "f0"})(item(x=torch.tensor([3.0])))["x"].tolist() == [1]
    with pytest.raises(
        UsageError, match="statistics is a list; expected a Manifest with statistics, or a mapping"
    ):
        Normalize([], {"x": "f0"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": "f9"}, "column 'f9' has no statistics; known are those of 'f0', 'f1', 'c', 'none'"),
        ({"x": "none"}, "column 'none' has no finite value in the selection"),
        ({}, "names no field"),
    ],
)
def test_normalize_refuses_columns_without_numbers(fields, message):
    with pytest.raises(UsageError, match=message):
        Normalize(STATISTICS, fields)


def test_normalize_refuses_what_does_not_fit():
    normalize = Normalize(STATISTICS, {"x": ["f0", "f1"]})
    for values in (torch.zeros(2, 3), torch.tensor(1.0)):
        with pytest.raises(
            UsageError, match=r"field 'x' has 2 columns, 'f0', 'f1', and the tensor has shape"
        ):
            normalize(item(x=values))
    for epsilon in (-1.0, NAN, INF):
        with pytest.raises(UsageError, match="epsilon="):
            Normalize(STATISTICS, {"x": "f0"}, epsilon=epsilon)


# -- several, and to other processes --------------------------------------------------------------------------


def test_transforms_are_applied_in_order():
    composed = Compose([Normalize(STATISTICS, {"x": ["f0", "f1"]}), Rename({"x": "inputs"}), len])
    assert composed(item()) == 5
    assert repr(composed).startswith("Compose([Normalize({'x': ('f0', 'f1')}), Rename(")
    with pytest.raises(UsageError, match="transform=3 cannot be called"):
        Compose([3])


def test_transforms_pickle_small_and_do_the_same_afterwards():
    transform = Compose(
        [
            Normalize(STATISTICS, {"x": ["f0", "f1"]}),
            Cast({"x": torch.float16}),
            Map(torch.abs, ["x"]),
            Rename({"x": "inputs"}),
        ]
    )
    data = pickle.dumps(transform)
    assert len(data) < 1_000
    assert torch.equal(pickle.loads(data)(item())["inputs"], transform(item())["inputs"])


def double(values, factor=2):
    return values * factor


@pytest.mark.parametrize("transform", [double, partial(double, factor=3), len, torch.nn.Identity(), [double]])
def test_what_pickles_is_taken(transform):
    assert callable(checked_transform(transform))


@pytest.mark.parametrize(
    "transform",
    [lambda item: item, partial(lambda item: item), [double, lambda item: item], Map(lambda x: x, ["x"])],
    ids=["lambda", "partial", "list", "map"],
)
def test_what_does_not_pickle_is_refused_with_the_reason(transform):
    with pytest.raises(
        UsageError,
        match=r"cannot be sent to worker processes, since it does not pickle: .*lambda.*top of a module",
    ):
        checked_transform(transform)


def test_what_cannot_be_called_is_refused():
    for transform in (3, [3], "x"):
        with pytest.raises(UsageError, match="cannot be called"):
            checked_transform(transform)
    assert checked_transform(None) is None


def test_a_large_table_in_a_transform_is_not_copied_for_the_check():
    table = np.zeros(1 << 20)
    assert checked_transform(partial(double, factor=table)).keywords["factor"] is table
