"""A check that a training can be resumed exactly, at every batch, with other workers and ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from pqindex.errors import PlanError, PqindexError, UsageError
from pqindex.torch.arguments import integer


class Loader(Protocol):
    """What is checked: a `SequenceLoader`, or something that wraps one."""

    def __iter__(self) -> Any:
        """Return an iterator over the batches of the present epoch."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return where the training is."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go to where a state was taken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """What was tried.

    Attributes
    ----------
    n_batches : int
        Batches of the epoch on one rank of the first world size.
    n_resumes : int
        How often a state was taken up again.
    """

    n_batches: int
    n_resumes: int


def check_resumable(
    make_loader: Callable[..., Loader],
    *,
    num_workers: Sequence[int] = (0, 2),
    world_sizes: Sequence[int] = (1,),
    epoch: int = 0,
    stride: int = 1,
    ids: Callable[[Any], Sequence[Any]] | None = None,
) -> ResumeReport:
    """Save the state before every batch of an epoch, take it up with other workers and ranks, and compare the rest.

    Each state goes through JSON, as it would in a checkpoint. What comes after it is compared with what would have
    come: batch by batch for the same world size, and as a sequence of ids for another one, which may cut its last
    batches otherwise. The next epoch is compared too. Costs O(batches^2 / stride) batches: give it a small selection.

    Parameters
    ----------
    make_loader : callable
        Called with ``num_workers=``, ``rank=`` and ``world_size=``; returns a new loader.
    num_workers : sequence of int, default (0, 2)
        Each state is taken up with each of these; the first one saves.
    world_sizes : sequence of int, default (1,)
        Each state is taken up with each of these; the first one saves.
    epoch : int, default 0
    stride : int, default 1
        Save before every so many batches only. The start and the end of the epoch are always among them.
    ids : callable, optional
        From a batch to the ids in it; by default ``batch["seq_id"]``.

    Returns
    -------
    ResumeReport

    Raises
    ------
    PlanError
        If something is missing, repeated or in another order; it says where, and what was expected.
    UsageError
        If an argument makes no sense, or a batch has no ids.

    Examples
    --------
    ::

        def make_loader(num_workers, rank, world_size):
            plan = BatchPlan(manifest, 4, shuffle="full", rank=rank, world_size=world_size, tail="short")
            dataset = SequenceDataset(manifest, fields={"x": ["f0"]})
            return SequenceLoader(dataset, plan, num_workers=num_workers)

        check_resumable(make_loader, num_workers=(0, 2), world_sizes=(1, 2, 3))
    """
    stride = integer("stride", stride, least=1)
    if not num_workers or not world_sizes:
        raise UsageError("num_workers and world_sizes need at least one number each")
    read = _ids if ids is None else ids
    first = world_sizes[0]
    whole = _steps(make_loader, num_workers[0], first, epoch, None, read)
    after = _flat(_steps(make_loader, num_workers[0], first, epoch + 1, None, read))
    n_resumes = 0
    state: Mapping[str, Any] = {}
    for n_steps in sorted({*range(0, len(whole), stride), len(whole)}):
        state = _saved(make_loader, num_workers[0], first, epoch, n_steps, read, whole)
        for workers in num_workers:
            for world_size in world_sizes:
                where = (
                    f"saved after {n_steps} of {len(whole)} steps on {first} ranks with {num_workers[0]} workers, "
                    f"resumed on {world_size} ranks with {workers}"
                )
                rest = _steps(make_loader, workers, world_size, epoch, state, read)
                _compare(whole[n_steps:], rest, same_ranks=world_size == first, where=where)
                n_resumes += 1
    following = _steps(make_loader, num_workers[-1], world_sizes[-1], epoch + 1, state, read)
    _compare(
        [[after]], [[_flat(following)]], same_ranks=False, where=f"epoch {epoch + 1} after the last resume"
    )
    return ResumeReport(n_batches=len(whole), n_resumes=n_resumes)


Step = list[list[Any]]


def _steps(
    make_loader: Callable[..., Loader],
    num_workers: int,
    world_size: int,
    epoch: int,
    state: Mapping[str, Any] | None,
    ids: Callable[[Any], Sequence[Any]],
) -> list[Step]:
    """Return the ids of each batch, step by step, a batch a rank."""
    ranks = []
    for rank in range(world_size):
        loader = make_loader(num_workers=num_workers, rank=rank, world_size=world_size)
        if state is not None:
            loader.load_state_dict(state)
        loader.set_epoch(epoch)
        ranks.append([list(ids(batch)) for batch in loader])
    n_steps = max(map(len, ranks))
    return [[batches[step] for batches in ranks if step < len(batches)] for step in range(n_steps)]


def _saved(
    make_loader: Callable[..., Loader],
    num_workers: int,
    world_size: int,
    epoch: int,
    n_steps: int,
    ids: Callable[[Any], Sequence[Any]],
    whole: Sequence[Step],
) -> Mapping[str, Any]:
    """Return the state after some steps, as rank 0 gives it, through JSON."""
    loader = make_loader(num_workers=num_workers, rank=0, world_size=world_size)
    loader.set_epoch(epoch)
    seen = [list(ids(batch)) for batch in islice(loader, n_steps)]
    expected = [step[0] for step in whole[:n_steps]]
    if seen != expected:
        raise PlanError(
            f"an epoch is not the same twice: the first {n_steps} batches of rank 0; expected {_short(expected)}, "
            f"found {_short(seen)}",
            expected=expected,
            found=seen,
        )
    try:
        state: Mapping[str, Any] = json.loads(json.dumps(loader.state_dict()))
    except TypeError as error:
        raise PlanError(f"the state cannot be written as JSON: {error}") from error
    return state


def _compare(expected: Sequence[Step], found: Sequence[Step], *, same_ranks: bool, where: str) -> None:
    if same_ranks:
        for step, (mine, other) in enumerate(zip(expected, found, strict=False)):
            if mine != other:
                raise _differs(f"{where}: step {step} after it", mine, other)
    mine, other = _flat(expected), _flat(found)
    if mine == other:
        return
    missing = [x for x in mine if x not in other]
    again = [x for x in other if x not in mine or other.count(x) > mine.count(x)]
    if missing or again:
        raise _differs(f"{where}: missing {_short(missing)}, too often {_short(again)}", mine, other)
    raise _differs(f"{where}: in another order", mine, other)


def _differs(where: str, expected: Sequence[Any], found: Sequence[Any]) -> PqindexError:
    return PlanError(
        f"a resumed epoch differs: {where}; expected {_short(expected)}, found {_short(found)}",
        hint="count batches where they are delivered, not where workers fetch them; see docs/batches.md",
        expected=list(expected),
        found=list(found),
    )


def _flat(steps: Sequence[Step]) -> list[Any]:
    return [x for step in steps for batch in step for x in batch]


def _short(values: Sequence[Any]) -> str:
    return (
        repr(list(values[:10])) if len(values) <= 10 else f"{list(values[:10])!r} and {len(values) - 10} more"
    )


def _ids(batch: Any) -> Sequence[Any]:
    try:
        found = batch["seq_id"]
    except (TypeError, KeyError, IndexError):
        raise UsageError(
            f"a batch has no 'seq_id': {type(batch).__name__}",
            hint="say how to find the ids of a batch, with ids=",
        ) from None
    return found.tolist() if hasattr(found, "tolist") else list(found)
