"""A field equals a naive reading of its rows, for random types, chunks, slices, nulls and policies."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from pqindex.errors import LossyCastError, NonFiniteError, NullValueError
from pqindex.torch.fields import parse_fields, resolve_fields
from pqindex.torch.tensors import read_field

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float32(), pa.float64()]
DTYPES = [
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.float32,
    torch.float64,
]
NUMPY = {dtype: np.dtype(str(dtype).removeprefix("torch.")) for dtype in DTYPES}


@st.composite
def scalars(draw, data_type):
    if data_type in FLOATS:
        width = 32 if data_type == pa.float32() else 64
        return draw(st.one_of(st.none(), st.integers(-3, 3).map(float), st.floats(width=width)))
    limits = np.iinfo(data_type.to_pandas_dtype())
    small = st.integers(max(-3, int(limits.min)), 3)
    return draw(st.one_of(st.none(), small, st.integers(int(limits.min), int(limits.max))))


@st.composite
def columns(draw):
    """A column of numbers or of lists of them, dictionary-encoded or not, in slices of chunks."""
    item = draw(st.sampled_from(INTEGERS + FLOATS))
    width = draw(st.sampled_from([None, 1, 3]))
    value = scalars(item)
    if width is None:
        data_type = item
    else:
        value = st.lists(value, min_size=width, max_size=width)
        value = draw(st.sampled_from([value, st.one_of(st.none(), value)]))
        data_type = draw(st.sampled_from([pa.list_(item, width), pa.list_(item), pa.large_list(item)]))
    chunks = []
    for _ in range(draw(st.integers(1, 2))):
        rows = draw(st.lists(value, min_size=3, max_size=6))
        array = pa.array(rows, data_type)
        start = draw(st.integers(0, 2))
        array = array.slice(start, draw(st.integers(1, len(array) - start)))
        if width is None and draw(st.booleans()):
            array = array.dictionary_encode()
            chunks = [
                chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode() for chunk in chunks
            ]
        elif chunks and pa.types.is_dictionary(chunks[0].type):
            array = array.dictionary_encode()
        chunks.append(array)
    return pa.chunked_array(chunks), width


def naive(value, dtype):
    """One value in a dtype, or the error that a cast must raise."""
    if dtype.is_floating_point:
        with np.errstate(over="ignore"):
            cast = (
                float(NUMPY[dtype].type(value)) if not isinstance(value, int) else _int_to_float(value, dtype)
            )
        return cast if math.isfinite(cast) else NonFiniteError
    if isinstance(value, float) and not math.isfinite(value):
        return NonFiniteError
    low, high = (0, 1) if dtype == torch.bool else (np.iinfo(NUMPY[dtype]).min, np.iinfo(NUMPY[dtype]).max)
    return int(value) if value == int(value) and low <= int(value) <= high else LossyCastError


def _int_to_float(value, dtype):
    try:
        with np.errstate(over="ignore"):
            cast = float(np.array(float(value)).astype(NUMPY[dtype]))
    except OverflowError:
        cast = math.inf
    exact = math.isfinite(cast) and int(cast) == value
    return cast if exact else math.nan


@given(columns(), st.sampled_from(DTYPES), st.sampled_from(["error", "fill"]))
def test_a_field_equals_its_rows_read_one_by_one(column_and_width, dtype, nulls):
    column, width = column_and_width
    rows = column.to_pylist()
    grid = [[row] if width is None else [None] * width if row is None else row for row in rows]
    is_integer = pa.types.is_integer(
        column.type.value_type if width is not None or pa.types.is_dictionary(column.type) else column.type
    )
    parsed = parse_fields({"x": ["c"]})
    table = pa.table({"c": column})
    (field,) = resolve_fields(
        parsed,
        table.schema,
        dtype=dtype,
        nulls=nulls if nulls == "error" else ("fill", 1),
        non_finite="error",
        lossy=False,
    )
    flat = [value for row in grid for value in row]
    problems = set()
    if None in flat and nulls == "error":
        problems.add(NullValueError)
    casts = [1 if value is None else naive(value, dtype) for value in flat]
    problems |= {LossyCastError if is_integer else cast for cast in casts if isinstance(cast, type)}
    if (
        width is not None
        and pa.types.is_fixed_size_list(column.type) is False
        and all(row is None for row in rows)
    ):
        problems.add(NullValueError)  # nothing says how many values to fill in
    try:
        tensor, mask = read_field(field, table, 0)
    except (NullValueError, LossyCastError, NonFiniteError) as error:
        refused = type(error)
    else:
        refused = None
    assert (refused in problems) if problems else refused is None
    if refused is not None:
        return
    assert tensor.dtype == dtype
    assert tensor.numpy().ravel().tolist() == casts
    assert tensor.shape == (len(rows), len(grid[0]))
    if nulls == "fill":
        assert mask.numpy().ravel().tolist() == [value is not None for value in flat]


@given(columns())
def test_reading_twice_gives_the_same_in_other_memory(column_and_width):
    column, width = column_and_width
    table = pa.table({"c": column})
    (field,) = resolve_fields(
        parse_fields({"x": "c"}),
        table.schema,
        dtype=torch.float64,
        nulls="keep" if width is None else ("fill", 0),
        non_finite="keep",
        lossy=True,
    )
    try:
        first, _ = read_field(field, table, 0)
    except NullValueError:  # null lists only
        return
    kept = first.clone()
    first.zero_()
    second, _ = read_field(field, table, 0)
    assert torch.equal(second.nan_to_num(), kept.nan_to_num())
    assert second.data_ptr() != first.data_ptr()
