"""Checks of arguments."""

from __future__ import annotations

import numpy as np
import pytest

from pqindex.errors import UsageError
from pqindex.torch.arguments import integer, one_of, refuse_unknown


def test_integers_of_any_kind_become_python_s():
    assert [integer("n", value) for value in (3, np.int8(3), np.uint64(3))] == [3, 3, 3]
    assert type(integer("n", np.int8(3))) is int


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 5])
def test_what_is_no_integer_of_the_range_is_refused(value):
    with pytest.raises(
        UsageError, match=f"n={value!r} makes no sense: expected an integer from 0 to 4"
    ) as error:
        integer("n", value, below=5)
    assert (error.value.argument, error.value.value) == ("n", value)


def test_one_of_names_the_choices():
    one_of("side", "left", ("left", "right"))
    with pytest.raises(UsageError, match="side='up' is not known: expected 'left' or 'right'"):
        one_of("side", "up", ("left", "right"))


def test_unknown_names_come_with_near_ones():
    refuse_unknown("dtype", ["x"], ["x", "y"])
    with pytest.raises(
        UsageError, match=r"dtype names 'stat', .* the fields are 'state', 'y'. Hint: did you mean 'state'"
    ):
        refuse_unknown("dtype", ["stat"], ["state", "y"])
    with pytest.raises(UsageError, match="Hint: take it out of dtype"):
        refuse_unknown("dtype", ["q"], ["state"])
