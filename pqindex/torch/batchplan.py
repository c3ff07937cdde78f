"""The list of batches of an epoch, as arithmetic: which sequences, in which batch, on which rank.

Batches are cut from one order of the selection that every rank computes alike. Workers never enter into it,
and ranks only share the list out. So there is nothing to synchronise, to shuffle in a buffer or to replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, Self

import numpy as np

from pqindex.digest import canonical_json, sha256_hex
from pqindex.errors import PlanError, UsageError
from pqindex.torch.arguments import integer, one_of, refuse_other_source
from pqindex.torch.permutation import CHUNK, Permutation, permutation_key
from pqindex.torch.ranks import resolve_ranks
from pqindex.torch.stops import TAILS, Int64Array, equal_step_stops, fixed_size_stops, round_up_stops

Shuffle = Literal["none", "full"]
Tail = Literal["error", "drop", "pad", "short"]

_SHUFFLES: Final = ("none", "full")
_STATE_VERSION: Final = 1
_STATE_HINT: Final = "give what state_dict() returned"
_STATE_INTEGERS: Final = ("epoch", "position", "start", "steps", "world_size")


class PlanSource(Protocol):
    """What a plan needs to know of a selection or manifest."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the sequences and their order."""
        ...

    @property
    def seed(self) -> int | None:
        """Seed that was pinned with them, if any."""
        ...


class BatchPlan:
    """The batches of every epoch of a selection, shared out to ranks: a torch batch sampler.

    The list of batches is a pure function of the selection, the policy (`batch_size`, `shuffle`, `seed`,
    `rank_multiple`) and the epoch. Step s of W ranks delivers batches ``s W .. s W + W - 1`` of it, one to
    each rank.

    Over W ranks every sequence goes to exactly one rank once an epoch, and all ranks take the same number of
    steps. Where the number of batches is no multiple of W, the missing cuts halve the largest batches of the
    shortest sufficient tail; all batches before the tail are the same for every W. With fewer sequences than
    ``W ceil(batches / W)`` that is impossible, and `tail` decides. W that divides `rank_multiple` needs no
    cuts: all such W see identical batches.

    Iterating has no side effect and may be done any number of times: torch does it twice in an epoch with
    workers. Memory is O(batches): no order is held from 65,536 sequences up. Threads may share a
    plan while none changes its epoch.

    Parameters
    ----------
    source : Selection or Manifest
        The sequences. Only their number, digest and seed are kept.
    batch_size : int, default 32
        Sequences a batch; the last batch of an epoch holds what is left.
    shuffle : {"none", "full"}, default "none"
        Keep the selection's order, or permute the whole selection anew in every epoch.
    seed : int, optional
        In [0, 2**64). By default the manifest's seed, else 0.
    rank, world_size : int, optional
        By default those of torch.distributed if it is initialised, else of RANK and WORLD_SIZE in the
        environment, else 0 of 1; looked up here, once.
    rank_multiple : int, default 1
        Cut batches until their number is a multiple of this one. Part of the plan, whatever the ranks are.
    tail : {"error", "drop", "pad", "short"}, default "error"
        What happens if steps cannot be made equal: refuse; leave out the last batches; repeat sequences from
        the start of the epoch's order; or deliver everything exactly once with some ranks a step shorter.

    Raises
    ------
    UsageError
        If an argument makes no sense.
    PlanError
        If there are no sequences, or not enough for `rank_multiple` or the ranks.

    Examples
    --------
    Of a selection of five sequences::

        plan = BatchPlan(selection, batch_size=2)
        list(plan)  # [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        source: PlanSource,
        batch_size: int = 32,
        *,
        shuffle: Shuffle = "none",
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        rank_multiple: int = 1,
        tail: Tail = "error",
    ) -> None:
        refuse_other_source(source, "seed")
        one_of("shuffle", shuffle, _SHUFFLES)
        one_of("tail", tail, TAILS)
        self.batch_size: Final = integer("batch_size", batch_size, least=1)
        self.shuffle: Final = shuffle
        self.seed: Final = integer("seed", (source.seed or 0) if seed is None else seed, below=1 << 64)
        self.rank_multiple: Final = integer("rank_multiple", rank_multiple, least=1)
        self.tail: Final = tail
        ranks = resolve_ranks(rank, world_size)
        self.rank: Final = ranks[0]
        self.world_size: Final = ranks[1]
        self.n_sequences: Final = len(source)
        self.source_digest: Final = source.digest
        if not self.n_sequences:
            raise PlanError("the selection is empty, so there are no batches", hint="check the query's WHERE")
        self._stops = round_up_stops(fixed_size_stops(self.n_sequences, self.batch_size), self.rank_multiple)
        self._stops.flags.writeable = False
        self._epoch = 0
        self._course = _Course.of(self._stops, 0, self.world_size, self.tail)
        if not len(self._course.stops):
            raise PlanError(
                f'tail="drop" would leave nothing: {len(self._stops)} batches of {self.n_sequences} '
                f"sequences for {self.world_size} ranks",
                hint='use fewer ranks, or tail="pad" or "short"',
                n_sequences=self.n_sequences,
                world_size=self.world_size,
            )

    # -- what the plan is ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Epoch whose batches are iterated."""
        return self._epoch

    @property
    def stops(self) -> Int64Array:
        """Stops of the whole plan, before ranks enter: shape (n_batches,), int64, read-only."""
        return self._stops

    @property
    def sampler(self) -> Self:
        """The plan itself: Lightning calls `set_epoch` on a batch sampler's sampler."""
        return self

    @property
    def digest(self) -> str:
        """Identity of the plan: sha256 over the selection's digest and the policy, not ranks or epoch."""
        return sha256_hex(
            canonical_json({"batch_plan": 1, "source": self.source_digest, "policy": self._policy()})
        )

    def _policy(self) -> dict[str, Any]:
        return {
            "n_sequences": self.n_sequences,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": str(self.seed) if self.shuffle != "none" else None,  # text: JSON has no 64-bit integers
            "rank_multiple": self.rank_multiple,
        }

    # -- iterating -------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the epoch that is on already, stay where it was resumed."""
        epoch = integer("epoch", epoch, below=1 << 64)
        if epoch != self._epoch:
            self._course = _Course.of(self._stops, 0, self.world_size, self.tail)
            self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this rank: the same in every epoch that starts at its start."""
        return len(self._mine(self._course))

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over this rank's batches, as lists of positions in the selection."""
        # bound now, not at the first batch: a later set_epoch is for later iterators
        return self._batches(self._course, self._epoch)

    def _mine(self, course: _Course) -> range:
        return range(course.steps * self.world_size + self.rank, len(course.stops), self.world_size)

    def _batches(self, course: _Course, epoch: int) -> Iterator[list[int]]:
        mine = np.array(self._mine(course), np.int64)
        stops = course.stops[mine]
        starts = np.where(mine > 0, course.stops[mine - 1], course.start)
        order = None
        if self.shuffle == "full":
            order = Permutation(self.n_sequences, permutation_key(self.seed, epoch))
        ends = np.cumsum(stops - starts)  # in this rank's own stream of sequences
        first = 0
        while first < len(mine):  # by groups of batches, to evaluate the order for a chunk of places at once
            done = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + CHUNK, side="right")))
            sizes = stops[first:last] - starts[first:last]
            offsets = ends[first:last] - sizes
            places = np.arange(done, int(ends[last - 1])) + np.repeat(starts[first:last] - offsets, sizes)
            places %= self.n_sequences  # a padded tail goes on past the last place
            positions = (places if order is None else order(places)).tolist()
            for size, offset in zip(sizes.tolist(), (offsets - done).tolist(), strict=True):
                yield positions[offset : offset + size]
            first = last

    # -- state -----------------------------------------------------------------------------------------------

    def state_dict(self, delivered: int = 0) -> dict[str, Any]:
        """Return where the training is, as JSON-able integers and digests.

        Parameters
        ----------
        delivered : int, default 0
            Batches that each rank has delivered to the training loop since this plan was made, resumed, or
            went to its present epoch. Not those that were handed out to workers: a sampler cannot know what
            was delivered, so `SequenceLoader` counts. With a short tail, rank 0 counts the most.

        Returns
        -------
        dict
            `position` is the number of sequences delivered by all ranks, a prefix of the epoch's order.

        Raises
        ------
        UsageError
            If `delivered` is more than the batches of this rank.
        """
        delivered = integer("delivered", delivered, below=len(self) + 1)
        course = self._course
        steps = course.steps + delivered
        n_batches = min(steps * self.world_size, len(course.stops))
        position = int(course.stops[n_batches - 1]) if n_batches else course.start
        return {
            "version": _STATE_VERSION,
            "plan": self.digest,
            "source": self.source_digest,
            "policy": self._policy(),
            "epoch": self._epoch,
            "position": min(position, self.n_sequences),
            "start": course.start,
            "steps": steps,
            "world_size": self.world_size,
            "tail": self.tail,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, on any rank of any world size, in O(batches) and without replay.

        The rest of the epoch holds exactly the sequences that were not delivered. With the world size and
        tail of the state its batches are the same ones too; with others, the rest of the plan's batches is
        shared out anew. The next epochs are whole.

        Raises
        ------
        UsageError
            If `state` is not a state of a plan.
        PlanError
            If it is a state of another selection or policy (the message says what differs), or its rest
            cannot be shared out to these ranks and `tail` is "error". The plan is then left as it was.
        """
        _validate_state(state)
        self._refuse_other_plan(state)
        position, start, steps = (int(state[name]) for name in ("position", "start", "steps"))
        if not start <= position <= self.n_sequences:
            raise UsageError(
                f"not the state of a batch plan: position {position} of {self.n_sequences} sequences, "
                f"from {start} on",
                hint=_STATE_HINT,
            )
        same_ranks = (state["world_size"], state["tail"]) == (self.world_size, self.tail)
        course = _Course.of(self._stops, start if same_ranks else position, self.world_size, self.tail)
        if same_ranks:
            course = replace(course, steps=steps)
        self._course, self._epoch = course, int(state["epoch"])

    def _refuse_other_plan(self, state: Mapping[str, Any]) -> None:
        if state["source"] != self.source_digest:
            raise PlanError(
                f"the state belongs to another selection: expected {self.source_digest}, "
                f"found {state['source']}",
                hint="load it with the manifest that it was saved with, or start at epoch 0 of this one",
                expected=self.source_digest,
                found=state["source"],
            )
        mine, theirs = self._policy(), state["policy"]
        if state["plan"] != self.digest or mine != theirs:
            differing = [
                f"{name} was {theirs.get(name)!r} and is {mine.get(name)!r}"
                for name in sorted({*mine, *theirs})
                if mine.get(name) != theirs.get(name)
            ]
            raise PlanError(
                f"the state belongs to another batch plan: {'; '.join(differing) or 'its digest differs'}",
                hint="make the plan with the arguments that the state was saved with",
                expected=self.digest,
                found=state["plan"],
            )

    def __repr__(self) -> str:
        return (
            f"BatchPlan({self.n_sequences} sequences, {len(self._stops)} batches of at most "
            f"{self.batch_size}, shuffle={self.shuffle!r}, epoch {self._epoch}, "
            f"rank {self.rank} of {self.world_size})"
        )


@dataclass(frozen=True, slots=True)
class _Course:
    """The batches that W ranks take from a place of the order on, and how many steps of them are over.

    A run that resumes with the same W keeps its course, so that its last batches are cut as before.
    """

    start: int
    stops: Int64Array
    steps: int = 0

    @classmethod
    def of(cls, plan_stops: Int64Array, start: int, world_size: int, tail: str) -> _Course:
        """Return the course from a place of the order on."""
        rest = plan_stops[np.searchsorted(plan_stops, start, side="right") :]
        return cls(start, equal_step_stops(rest, start=start, world_size=world_size, tail=tail))


def _validate_state(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise UsageError(f"a {type(state).__name__} is not the state of a batch plan", hint=_STATE_HINT)
    if state.get("version") != _STATE_VERSION:
        raise UsageError(
            f"not the state of a batch plan of version {_STATE_VERSION}: "
            f"found version {state.get('version')!r}",
            hint=_STATE_HINT,
        )
    problems = [
        name
        for name in _STATE_INTEGERS
        if not isinstance(state.get(name), int) or isinstance(state.get(name), bool) or state[name] < 0
    ]
    problems += [name for name in ("plan", "source", "tail") if not isinstance(state.get(name), str)]
    if not isinstance(state.get("policy"), Mapping):
        problems.append("policy")
    if problems:
        raise UsageError(
            f"not the state of a batch plan: {', '.join(problems)} missing or wrong", hint=_STATE_HINT
        )
