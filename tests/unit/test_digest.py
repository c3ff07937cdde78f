"""Canonical JSON and record digests: what counts, and what must not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pqindex.digest import RecordDigest, canonical_json, table_digest


def digest_of(array: pa.Array) -> str:
    digest = RecordDigest()
    digest.add_array("x", array)
    return digest.hexdigest()


def test_canonical_json_sorts_keys_and_has_no_spaces() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'.encode()


def test_canonical_json_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(ValueError, match=r"domain|NaN|nan"):
        canonical_json(float("nan"))
    with pytest.raises(ValueError, match=r"domain|range|safe"):
        canonical_json(2**60)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["a", "b", "a"])),
        (pa.array(["a", None]).cast(pa.large_string()), pa.array(["a", None])),
        (pa.array(["a", None]).cast(pa.string_view()), pa.array(["a", None])),
        (pa.array([9, 1, 2, None])[1:], pa.array([1, 2, None])),
        (pa.array([[9.0], [1.0, 2.0], None])[1:], pa.array([[1.0, 2.0], None], pa.list_(pa.float64()))),
        (pa.array([[9.0], [1.0]], pa.large_list(pa.float64()))[1:], pa.array([[1.0]])),
        (pa.array([True, False, None])[1:], pa.array([False, None])),
        (pa.chunked_array([["a"], ["b"]]), pa.array(["a", "b"])),
        (pa.array([b"ab", b"cd"], pa.binary(2))[1:], pa.array([b"cd"], pa.binary(2))),
    ],
)
def test_the_same_values_digest_the_same_whatever_their_memory(left: pa.Array, right: pa.Array) -> None:
    assert digest_of(left) == digest_of(right)


def test_what_lies_under_a_null_does_not_count() -> None:
    mask = np.array([False, True])
    left = pa.array(np.array([1, 7]), mask=mask)
    right = pa.array(np.array([1, 9]), mask=mask)
    assert digest_of(left) == digest_of(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, 2]), pa.array([2, 1])),
        (pa.array([1, 2]), pa.array([1, 2], pa.int32())),
        (pa.array([0, None]), pa.array([0, 0])),
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (pa.array(["", None]), pa.array([None, ""])),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([[1], []]), pa.array([[], [1]])),
        (pa.array([None, None]), pa.array([None])),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}])),
        (pa.array([{"a": None}]), pa.array([None], pa.struct([("a", pa.null())]))),
    ],
)
def test_different_values_digest_differently(left: pa.Array, right: pa.Array) -> None:
    assert digest_of(left) != digest_of(right)


def test_a_record_cannot_be_mistaken_for_two() -> None:
    left, right = RecordDigest(), RecordDigest()
    left.add_bytes("a", b"xy")
    right.add_bytes("a", b"x")
    right.add_bytes("", b"y")
    assert left.hexdigest() != right.hexdigest()


def test_table_digest_counts_names_and_order() -> None:
    table = pa.table({"a": [1], "b": [2]})
    assert table_digest(table) == table_digest(table.replace_schema_metadata({"k": "v"}))
    assert table_digest(table) != table_digest(table.select(["b", "a"]))
    assert table_digest(table) != table_digest(table.rename_columns(["a", "c"]))
