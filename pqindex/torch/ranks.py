"""Which rank this process is, and of how many."""

from __future__ import annotations

import os
import sys
from typing import Final

from pqindex.errors import UsageError
from pqindex.torch.arguments import integer

_VARIABLES: Final = ("RANK", "WORLD_SIZE")


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world size): as given, else of torch.distributed, else of the environment, else (0, 1).

    torch.distributed counts only if this process has initialised it; it is never imported here. The variables
    RANK and WORLD_SIZE are those that torchrun sets.

    Raises
    ------
    UsageError
        If only one of the two is given, or a number makes no sense.
    """
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise UsageError(
            f"{given} is given without {missing}", hint="give both, or neither to have them found"
        )
    if rank is None or world_size is None:
        rank, world_size = _of_torch_distributed() or _of_environment() or (0, 1)
    rank, world_size = integer("rank", rank), integer("world_size", world_size, least=1)
    if rank >= world_size:
        raise UsageError(
            f"rank {rank} of {world_size} ranks makes no sense: expected 0 <= rank < world_size",
            hint="ranks are counted from 0",
            rank=rank,
            world_size=world_size,
        )
    return rank, world_size


def _of_torch_distributed() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _of_environment() -> tuple[int, int] | None:
    texts = [os.environ.get(name, "") for name in _VARIABLES]
    if not any(texts):
        return None
    try:
        rank, world_size = map(int, texts)
    except ValueError:
        found = ", ".join(f"{name}={text!r}" for name, text in zip(_VARIABLES, texts, strict=True))
        raise UsageError(
            f"the environment does not say which rank this is: {found}; expected two integers",
            hint="set both RANK and WORLD_SIZE, or give rank=0, world_size=1 for a single process",
        ) from None
    return rank, world_size
