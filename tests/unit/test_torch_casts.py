"""Casts: which are exact for every value, which values are not, and what a cast that is forced gives."""

from __future__ import annotations

import numpy as np
import pytest

from pqindex.torch.casts import always_exact, cast_into, inexact_values

PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


@pytest.mark.parametrize(
    ("source", "target", "precision", "exact"),
    [
        ("int64", "int64", None, True),
        ("int32", "int64", None, True),
        ("int64", "int32", None, False),
        ("uint32", "int64", None, True),
        ("uint64", "int64", None, False),
        ("int8", "uint64", None, False),
        ("bool", "int8", None, True),
        ("bool", "float32", 24, True),
        ("int16", "float32", 24, True),
        ("uint16", "float32", 24, True),
        ("int32", "float32", 24, False),
        ("int32", "float64", 53, True),
        ("int64", "float64", 53, False),
        ("int8", "float32", 8, True),  # bfloat16, stored as float32
        ("uint8", "float32", 8, True),
        ("int16", "float32", 8, False),
        ("float64", "float32", 24, True),
        ("float32", "int64", None, False),
        ("float32", "bool", None, False),
        ("uint8", "bool", None, False),
    ],
)
def test_which_casts_need_no_check(source, target, precision, exact):
    assert always_exact(np.dtype(source), np.dtype(target), precision) is exact


def inexact(values, target) -> list[int]:
    storage = np.dtype("float32" if target == "bfloat16" else target)
    found = inexact_values(np.asarray(values), storage, PRECISION.get(target))
    return [] if found is None else np.flatnonzero(found).tolist()


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        (np.array([2**24, 2**24 + 1, 2**24 + 2, -(2**24) - 1]), "float32", [1, 3]),
        (np.array([2**53, 2**53 + 1, -(2**63), 2**63 - 1]), "float64", [1, 3]),
        (np.array([2**63, 2**64 - 1, 2**64 - 2048], np.uint64), "float64", [1]),
        (np.array([2048, 2049, 65504, 65536, 65535]), "float16", [1, 3, 4]),
        (np.array([256, 257, 258, 1 << 20]), "bfloat16", [1]),
        (np.array([127, 128, -128, -129]), "int8", [1, 3]),
        (np.array([2**63 - 1, 2**63], np.uint64), "int64", [1]),
        (np.array([-1, 5]), "uint64", [0]),
        (np.array([-1, 5, 256]), "uint8", [0, 2]),
        (np.array([0, 1, 2]), "bool", [2]),
        (np.array([0.0, 1.0, 0.5, np.nan]), "bool", [2]),
        (np.array([1.0, 1.5, -2.0, np.inf, np.nan]), "int64", [1]),
        (np.array([2.0**63, -(2.0**63), 2.0**62]), "int64", [0]),
        (np.array([2.0**64, 2.0**63, -1.0, -0.0]), "uint64", [0, 2]),
        (np.array([255.0, 256.0], np.float16), "uint8", [1]),
        (np.array([0.1, 1e300]), "float32", []),
        (np.array([], np.int64), "float32", []),
    ],
)
def test_which_values_a_cast_would_change(values, target, expected):
    assert inexact(values, target) == expected


def test_T30_every_integer_that_a_float_holds_is_let_through():
    powers = np.array([1 << k for k in range(63)] + [-(1 << k) for k in range(64)])
    assert inexact(powers, "float32") == []
    assert inexact(powers, "float64") == []


def cast(values, target) -> list:
    out = np.empty(len(values), target)
    cast_into(out, np.asarray(values))
    return out.tolist()


def test_forced_casts_give_the_same_on_every_machine():
    assert cast([2**24 + 1], "float32") == [2**24]
    assert cast([256, -1], "uint8") == [0, 255]
    assert cast([1.9, -1.9, 300.0, -300.0, np.inf, -np.inf], "int8") == [1, -1, 127, -128, 127, -128]
    assert cast([1e30, -1e30], "int64") == [2**63 - 1, -(2**63)]
    assert cast([2.0**63], "uint64") == [2**63]
    assert cast([1e39], "float32") == [np.inf]
    assert cast([2.5, 0.0], "bool") == [True, False]
