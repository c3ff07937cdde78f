"""Which rank this is: from arguments, from torch.distributed, from the environment."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from pqindex.errors import UsageError
from pqindex.torch.ranks import resolve_ranks


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def set_variables(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)


def test_alone_by_default():
    assert resolve_ranks(None, None) == (0, 1)


def test_arguments_win_over_the_environment(monkeypatch):
    set_variables(monkeypatch, "1", "4")
    assert resolve_ranks(2, 3) == (2, 3)


def test_the_environment_of_torchrun(monkeypatch):
    set_variables(monkeypatch, "1", "4")
    assert resolve_ranks(None, None) == (1, 4)


def test_an_initialised_process_group_wins_over_the_environment(monkeypatch):
    set_variables(monkeypatch, "1", "4")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert resolve_ranks(None, None) == (0, 1)
    finally:
        dist.destroy_process_group()
    assert resolve_ranks(None, None) == (1, 4)


def test_a_process_group_of_several(monkeypatch):
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert resolve_ranks(None, None) == (5, 8)


def test_torch_distributed_is_not_imported_for_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert resolve_ranks(None, None) == (0, 1)
    assert "torch.distributed" not in sys.modules


@pytest.mark.parametrize(("rank", "world_size"), [(None, 2), (1, None)])
def test_one_of_the_two_alone_is_refused(rank, world_size):
    with pytest.raises(UsageError, match="give both"):
        resolve_ranks(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0), (True, 2), ("0", "1"), (0.0, 1)])
def test_numbers_that_make_no_sense_are_refused(rank, world_size):
    with pytest.raises(UsageError, match="makes no sense"):
        resolve_ranks(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [("1", ""), ("", "2"), ("one", "2")])
def test_half_an_environment_is_refused(monkeypatch, rank, world_size):
    set_variables(monkeypatch, rank, world_size)
    with pytest.raises(UsageError, match="set both RANK and WORLD_SIZE"):
        resolve_ranks(None, None)
