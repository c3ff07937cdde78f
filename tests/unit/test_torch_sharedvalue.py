"""A value that workers see change. That they do is shown with real workers in tests/integration."""

from __future__ import annotations

import copy
import pickle

import pytest

import pqindex.torch.sharedvalue
from pqindex.errors import ProcessBoundaryError, UsageError
from pqindex.torch.sharedvalue import SharedValue


@pytest.mark.parametrize("value", [0, 2**64 - 1, None, "Ünï", {"epoch": 3, "policy": {"seed": "7"}}, []])
def test_a_value_comes_back(value):
    shared = SharedValue("something longer, so that what is left of it does not count")
    shared.set(value)
    assert shared.get() == value
    assert shared._memory.is_shared()


def test_a_pickled_copy_has_memory_of_its_own():
    shared = SharedValue(1)
    other = pickle.loads(pickle.dumps(shared))
    shared.set(2)
    assert (shared.get(), other.get()) == (2, 1)
    assert other._memory.is_shared()


def test_a_shallow_copy_shares():
    shared = SharedValue(1)
    other = copy.copy(shared)
    shared.set(2)
    assert other.get() == 2


def test_a_value_that_takes_too_much_room_is_refused_and_the_old_one_stays():
    shared = SharedValue(1, capacity=8)
    with pytest.raises(UsageError, match="a value to share with workers takes 11 bytes; expected at most 8"):
        shared.set("123456789")
    assert shared.get() == 1


def test_a_torn_value_is_an_error_and_no_value(monkeypatch):
    monkeypatch.setattr(pqindex.torch.sharedvalue, "_PAUSE_S", 0)
    shared = SharedValue(12)
    shared._memory[8] += 1
    with pytest.raises(
        ProcessBoundaryError, match="the value that this process shares with its workers is torn"
    ):
        shared.get()
