"""Lists as time equal the same values written a row a step, for random lengths, types, nulls and cuts into rows."""

from __future__ import annotations

import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from pqindex.errors import NullValueError
from pqindex.torch.dataset import read_axis
from pqindex.torch.fields import parse_fields, resolve_fields
from pqindex.torch.steps import steps_of

FIELDS = parse_fields({"x": ["a", "b"], "a": "a", "v": "v", "w": "w"})
TYPES = {"a": pa.int16(), "b": pa.float32(), "v": pa.list_(pa.int8(), 2), "w": pa.string()}


@st.composite
def sequences(draw):
    """The same sequence twice: a row a step; and cut into rows of lists, in slices of other lists."""
    value = st.one_of(st.none(), st.integers(-9, 9)) if draw(st.booleans()) else st.integers(-9, 9)
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    n = sum(lengths)
    many = {"min_size": n, "max_size": n}
    flat = {
        "a": draw(st.lists(value, **many)),
        "b": draw(st.lists(st.integers(-9, 9).map(float), **many)),
        "v": draw(st.lists(st.lists(value, min_size=2, max_size=2), **many)),
        "w": draw(st.lists(st.sampled_from(["", "a", "ü"]), **many)),
    }
    large = draw(st.booleans())
    rows, lists = {}, {}
    for name, values in flat.items():
        rows[name] = pa.array(values, TYPES[name])
        kind = (pa.large_list if large else pa.list_)(TYPES[name])
        parts = [None]  # a row before the sequence, which a slice leaves out
        for start, length in zip([sum(lengths[:i]) for i in range(len(lengths))], lengths, strict=True):
            parts.append(values[start : start + length])
        lists[name] = pa.array(parts, kind)[1:]
    return pa.table(rows), pa.table(lists)


def resolve(table, lists, nulls):
    policies = {"dtype": {"v": torch.int64}, "nulls": nulls, "non_finite": "error", "lossy": False}
    return resolve_fields(FIELDS, table.schema, **policies, lists=lists)


@given(sequences(), st.booleans())
def test_lists_as_time_equal_rows(tables, filled):
    by_row, by_list = tables
    nulls = dict.fromkeys("xav", ("fill", 7)) if filled else "error"
    steps = steps_of(by_list, 0)
    fields = zip(resolve(by_row, "rows", nulls), resolve(by_list, "time", nulls), strict=True)
    for row_field, step_field in fields:
        found = []
        for field, table, of_list in ((row_field, by_row, None), (step_field, by_list, steps)):
            try:
                found.append(read_axis(field, table, of_list, 0))
            except NullValueError as error:
                found.append((error.column, error.facts.get("row" if of_list is None else "step")))
        for mine, theirs in zip(*found, strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
