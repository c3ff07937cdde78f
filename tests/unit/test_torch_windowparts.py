"""Which rows of a window a field takes, and padding."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from pqindex.errors import UsageError
from pqindex.torch.windowparts import FieldRows, resolve_parts
from pqindex.torch.windowplaces import WindowGrid


@dataclass
class Field:
    name: str
    dtype: torch.dtype | None = torch.float32


FIELDS = (Field("x"), Field("y", torch.uint8), Field("word", None))


def resolve(parts=None, padding=None, *, context=2, horizon=3, partial="pad", fields=FIELDS):
    grid = WindowGrid.of(length=4, stride=1, context=context, horizon=horizon, partial=partial)
    return resolve_parts(parts, padding, fields=fields, grid=grid)


def test_fields_take_the_window_unless_told_otherwise():
    rows = resolve({"x": ("context", "window", "horizon"), "y": "horizon"})
    assert {name: (r.start, r.stop) for name, r in rows.items()} == {
        "x": (-2, 7),
        "y": (4, 7),
        "word": (0, 4),
    }


def test_a_part_without_rows_may_stand_beside_one_that_has_some():
    rows = resolve({"x": ("context", "window")}, context=0, horizon=0)
    assert (rows["x"].start, rows["x"].stop) == (0, 4)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"z": "context"}, {}, "parts names 'z', which is not a field"),
        ({"x": "past"}, {}, "parts of field 'x'='past' is not known: expected 'context' or 'window'"),
        (
            {"x": ("context", "horizon")},
            {},
            r"field 'x' takes \('context', 'horizon'\); expected .*neighbours",
        ),
        ({"x": ("window", "context")}, {}, "neighbours in that order"),
        ({"x": ()}, {}, r"field 'x' takes \(\); expected one of"),
        ({"x": 3}, {}, "field 'x' takes 3; expected one of"),
        ({"x": "horizon"}, {"horizon": 0}, "field 'x' takes the horizon, which has no rows: horizon=0"),
        (
            {"x": "horizon"},
            {},
            r"context=2 is asked for and no field takes it. Hint: .*parts=\{'word': 'context'\}",
        ),
        ({"x": "context"}, {}, "horizon=3 is asked for and no field takes it"),
    ],
)
def test_parts_that_make_no_sense_are_refused(parts, options, message):
    with pytest.raises(UsageError, match=message):
        resolve(parts, **options)


ALL = {"x": ("context", "window", "horizon")}


def test_padding_is_zero_for_numbers_and_none_for_text_unless_given():
    def values(padding):
        return [rows.padding for rows in resolve(ALL, padding).values()]

    assert values(None) == [0, 0, None]
    assert values(7) == [7, 7, None]
    assert values("edge") == ["edge"] * 3
    assert values({"x": -1.5, "word": "?"}) == [-1.5, 0, "?"]


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        ({"z": 1}, "padding names 'z', which is not a field"),
        (-1, "field 'y' is padded with -1, which is no torch.uint8"),
        ({"y": 256}, "field 'y' is padded with 256, which is no torch.uint8.*padding={'y': ...}"),
        ({"y": "?"}, "field 'y' is padded with '\\?', which is no torch.uint8"),
        ({"word": 0}, "field 'word' is padded with 0, which is no text"),
        ("wrap", "field 'x' is padded with 'wrap', which is no torch.float32"),
    ],
)
def test_padding_that_does_not_fit_its_field_is_refused(padding, message):
    with pytest.raises(UsageError, match=message):
        resolve(ALL, padding)


def test_padding_where_nothing_is_padded_is_refused():
    with pytest.raises(UsageError, match="padding=0 is given and partial='drop' pads nothing"):
        resolve(ALL, 0, partial="drop")


@pytest.mark.parametrize(
    ("start", "stop", "row_start", "expected"),
    [(-2, 0, 0, (0, 1)), (-2, 0, 1, (0, 1)), (0, 4, 8, (8, 10)), (4, 6, 8, (9, 10)), (-3, 9, 5, (2, 10))],
)
def test_what_is_read_is_what_is_there_or_the_nearest_row(start, stop, row_start, expected):
    assert FieldRows(start=start, stop=stop, padding=0).inside(row_start, 10) == expected


def filled(values, mask=None, *, start=-2, stop=3, row_start=1, n_rows=3, first=0, padding=-1):
    rows = FieldRows(start=start, stop=stop, padding=padding)
    return rows.filled(values, mask, row_start=row_start, n_rows=n_rows, first=first)


def test_rows_that_are_not_there_are_padded_on_both_sides():
    values = torch.tensor([[1.0], [2.0], [3.0]])
    assert filled(values)[0][:, 0].tolist() == [-1, 1, 2, 3, -1]
    assert filled(values, padding="edge")[0][:, 0].tolist() == [1, 1, 2, 3, 3]
    assert filled(["a", "b", "c"], padding=None)[0] == [None, "a", "b", "c", None]
    assert filled(["a", "b", "c"], padding="edge")[0] == ["a", "a", "b", "c", "c"]


@pytest.mark.parametrize("padding", [-1, "edge"])
def test_padded_rows_are_not_the_file_s_own_in_the_mask_of_a_fill(padding):
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    _, padded = filled(torch.zeros(3, 2), mask, padding=padding)
    assert padded.tolist() == [[False] * 2, *mask.tolist(), [False] * 2]


def test_a_part_that_lies_outside_as_a_whole_has_only_padding():
    assert filled(torch.tensor([9]), start=-2, stop=0, row_start=0)[0].tolist() == [-1, -1]
    assert filled(torch.tensor([9]), start=4, stop=6, row_start=2, first=2, padding="edge")[0].tolist() == [
        9,
        9,
    ]


def test_rows_that_are_all_there_are_passed_on_as_they_are():
    values = torch.zeros(3)
    assert filled(values, start=0, stop=3, row_start=0)[0] is values
