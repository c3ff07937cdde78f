"""The list of batches of an epoch, as arithmetic: which sequences, in which batch, on which rank.

Batches are cut from one order of the selection that every rank computes alike. Workers never enter into it,
and ranks only share the list out. So there is nothing to synchronise, to shuffle in a buffer or to replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.digest import canonical_json, sha256_hex
from pqindex.errors import PlanError, UsageError
from pqindex.torch.arguments import integer, one_of, refuse_other_source
from pqindex.torch.batches import Batch, number_of
from pqindex.torch.lengths import lengths_of
from pqindex.torch.order import SHUFFLES, EpochOrder, FixedSizeOrder, Order, Shuffle, TokenBudgetOrder
from pqindex.torch.permutation import CHUNK
from pqindex.torch.ranks import resolve_ranks
from pqindex.torch.stops import TAILS, Int64Array, equal_step_stops

Tail = Literal["error", "drop", "pad", "short"]

DEFAULT_BATCH_SIZE: Final = 32
DEFAULT_BLOCK_SIZE: Final = 4096
DEFAULT_RATIO: Final = 1.1
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

    @property
    def row_counts(self) -> Int64Array:
        """Rows of each sequence; asked for with `max_tokens` only."""
        ...

    @property
    def extra(self) -> pa.Table:
        """The query's other columns; asked for with `length` only."""
        ...


class BatchPlan:
    """The batches of every epoch of a selection, shared out to ranks: a torch batch sampler.

    The list of batches is a pure function of the selection, the policy (everything below but ranks and `tail`)
    and the epoch. Step s of W ranks delivers batches ``s W .. s W + W - 1`` of it, one to each rank. Their number
    is the same in every epoch.

    Over W ranks every sequence goes to exactly one rank once an epoch, and all ranks take the same number of
    steps. Where the number of batches is no multiple of W, the missing cuts halve the largest batches of the
    shortest sufficient tail; all batches before the tail are the same for every W. With fewer sequences than
    ``W ceil(batches / W)`` that is impossible, and `tail` decides. W that divides `rank_multiple` needs no
    cuts: all such W see identical batches.

    Iterating has no side effect and may be done any number of times: torch does it twice in an epoch with
    workers. Memory is O(batches), and 4 bytes a sequence with `max_tokens`. Threads may share a plan while none
    changes its epoch.

    Parameters
    ----------
    source : Selection or Manifest
        The sequences. Only their number, digest and seed are kept.
    batch_size : int, optional
        Sequences a batch, 32 by default; the last batch of an epoch holds what is left.
    max_tokens : int, optional
        Instead of `batch_size`: the longest sequence of a batch, times their number, is at most so much. Sequences
        of like length make a batch, see `pqindex.torch.order`.
    length : str or array_like of int, optional
        With `max_tokens`: the length of each sequence, or the column of the query that has it. By default its rows.
    bucket_ratio : float, default 1.1
        With `max_tokens`: the lengths of a batch differ by less than this factor. Smaller pads less and makes more
        batches that are not full.
    shuffle : {"none", "full", "block"}, default "none"
        Keep the selection's order; permute the whole selection anew in every epoch; or permute blocks of neighbours,
        and the sequences inside each block, so that what is read one after the other lies near.
    block_size : int, default 4096
        Sequences a block, with "block".
    seed : int, optional
        In [0, 2**64). By default the manifest's seed, else 0.
    rank, world_size : int, optional
        By default those of torch.distributed if it is initialised, else of RANK and WORLD_SIZE in the
        environment, else 0 of 1; looked up here, once.
    rank_multiple : int, default 1
        Cut batches until their number is a multiple of this one. Part of the plan, whatever the ranks are.
    tail : {"error", "drop", "pad", "short"}, optional
        What happens if steps cannot be made equal: refuse, which is the default; leave out the last batches;
        repeat sequences from the start of the epoch's order; or deliver everything exactly once with some ranks
        a step shorter.
    evaluate : bool, default False
        Every sequence exactly once on any number of ranks, in one order: no shuffle, and a "short" tail.

    Raises
    ------
    UsageError
        If an argument makes no sense.
    PlanError
        If there are no sequences, or not enough for `rank_multiple` or the ranks, or one is longer than
        `max_tokens`.
    ColumnMissingError, ColumnTypeError
        If the query has no such column of lengths, or not of integers that are there.

    Examples
    --------
    Of a selection of five sequences::

        plan = BatchPlan(selection, batch_size=2)
        list(plan)  # [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        source: PlanSource,
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        length: str | npt.ArrayLike | None = None,
        bucket_ratio: float = DEFAULT_RATIO,
        shuffle: Shuffle = "none",
        block_size: int = DEFAULT_BLOCK_SIZE,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        rank_multiple: int = 1,
        tail: Tail | None = None,
        evaluate: bool = False,
    ) -> None:
        refuse_other_source(source, "seed")
        one_of("shuffle", shuffle, SHUFFLES)
        if evaluate and (shuffle != "none" or tail not in {None, "short"}):
            raise UsageError(
                f"evaluate=True takes every sequence once and in one order; found shuffle={shuffle!r}, tail={tail!r}",
                hint="leave shuffle and tail out",
            )
        tail = tail or ("short" if evaluate else "error")
        one_of("tail", tail, TAILS)
        _refuse_contradictions(batch_size, max_tokens, length)
        self.batch_size: Final = (
            None
            if max_tokens is not None
            else integer("batch_size", DEFAULT_BATCH_SIZE if batch_size is None else batch_size, least=1)
        )
        self.max_tokens: Final = None if max_tokens is None else integer("max_tokens", max_tokens, least=1)
        self.shuffle: Final = shuffle
        self.block_size: Final = integer("block_size", block_size, least=1)
        self.bucket_ratio: Final = _ratio(bucket_ratio)
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
        self._lengths_sha256: str | None = None
        self._order = self._make_order(source, length)
        self._epoch = 0
        self._present: EpochOrder = self._order.epoch(self.seed, 0)
        self._course = self._course_from(self._present, 0)
        self._counted = 0
        if not len(self._course.stops):
            raise PlanError(
                f'tail="drop" would leave nothing: {len(self.stops)} batches of {self.n_sequences} '
                f"sequences for {self.world_size} ranks",
                hint='use fewer ranks, or tail="pad" or "short"',
                n_sequences=self.n_sequences,
                world_size=self.world_size,
            )

    def _make_order(self, source: PlanSource, length: str | npt.ArrayLike | None) -> Order:
        if self.batch_size is not None:
            return FixedSizeOrder(
                self.n_sequences,
                self.batch_size,
                shuffle=self.shuffle,
                block_size=self.block_size,
                rank_multiple=self.rank_multiple,
            )
        lengths = lengths_of(source, length)
        self._lengths_sha256 = sha256_hex(lengths.astype("<i8", copy=False).data.cast("B"))
        return TokenBudgetOrder(
            lengths,
            self.max_tokens or 1,
            ratio=self.bucket_ratio,
            shuffle=self.shuffle,
            block_size=self.block_size,
            rank_multiple=self.rank_multiple,
        )

    def _course_from(self, order: EpochOrder, start: int) -> _Course:
        return _Course.of(order.stops, start, self.world_size, self.tail)

    # -- what the plan is ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Epoch whose batches are iterated."""
        return self._epoch

    @property
    def stops(self) -> Int64Array:
        """Stops of the whole epoch, before ranks enter: shape (n_batches,), int64, read-only."""
        return self._present.stops

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
        policy: dict[str, Any] = {
            "n_sequences": self.n_sequences,
            "batch_size": self.batch_size,
            "max_tokens": self.max_tokens,
            "shuffle": self.shuffle,
            "seed": str(self.seed) if self.shuffle != "none" else None,  # text: JSON has no 64-bit integers
            "rank_multiple": self.rank_multiple,
        }
        if self.max_tokens is not None:
            policy |= {"bucket_ratio": repr(self.bucket_ratio), "lengths": self._lengths_sha256}
        if self.shuffle == "block":
            policy["block_size"] = self.block_size
        return policy

    # -- iterating -------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the epoch that is on already, stay where it was resumed."""
        epoch = integer("epoch", epoch, below=1 << 64)
        if epoch != self._epoch:
            self._present = self._order.epoch(self.seed, epoch)
            self._course = self._course_from(self._present, 0)
            self._epoch = epoch
            self._counted = 0

    def __len__(self) -> int:
        """Return the number of batches of this rank: the same in every epoch that starts at its start."""
        return len(self._mine(self._course))

    def __iter__(self) -> PlanIterator:
        """Return an iterator over this rank's batches, as lists of positions in the selection."""
        # bound now, not at the first batch: a later set_epoch is for later iterators
        return PlanIterator(self, self._place())

    def _place(self) -> _Place:
        return _Place(self._epoch, self._present, self._course)

    def _mine(self, course: _Course) -> range:
        return range(course.steps * self.world_size + self.rank, len(course.stops), self.world_size)

    def _batches(self, place: _Place) -> Iterator[Batch]:
        course = place.course
        mine = np.array(self._mine(course), np.int64)
        stops = course.stops[mine]
        starts = np.where(mine > 0, course.stops[mine - 1], course.start)
        ends = np.cumsum(stops - starts)  # in this rank's own stream of sequences
        first = 0
        while first < len(mine):  # by groups of batches, to evaluate the order for a chunk of places at once
            done = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + CHUNK, side="right")))
            sizes = stops[first:last] - starts[first:last]
            offsets = ends[first:last] - sizes
            places = np.arange(done, int(ends[last - 1])) + np.repeat(starts[first:last] - offsets, sizes)
            places %= self.n_sequences  # a padded tail goes on past the last place
            positions = place.order.positions(places).tolist()
            spans = zip(sizes.tolist(), (offsets - done).tolist(), strict=True)
            for number, (size, offset) in enumerate(spans, first):
                yield Batch(positions[offset : offset + size], place.epoch, number)
            first = last

    # -- state -----------------------------------------------------------------------------------------------

    def delivered(self, batch: Mapping[str, Any] | Batch) -> None:
        """Say that the training loop has had a batch, where a plain DataLoader cannot count: see `state_dict`.

        Parameters
        ----------
        batch : mapping or Batch
            What a DataLoader with one of our collates yielded, or anything that kept its "batch_number"; or what
            the plan itself yielded.

        Raises
        ------
        UsageError
            If it does not say which batch it is.
        PlanError
            If it is of another epoch.
        """
        epoch, number = number_of(batch)
        if epoch != self._epoch or not 0 <= number < len(self):
            raise PlanError(
                f"the batch is not one of this epoch's: expected epoch {self._epoch} and a number below "
                f"{len(self)}, found epoch {epoch}, number {number}",
                hint="call plan.delivered(batch) before plan.set_epoch(...)",
                expected=self._epoch,
                found=epoch,
            )
        self._counted = number + 1

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Return where the training is, as JSON-able integers and digests.

        Parameters
        ----------
        delivered : int, optional
            Batches that each rank has delivered to the training loop since this plan was made, resumed, or
            went to its present epoch; by default what `delivered` was told. Not those that were handed out to
            workers: a sampler cannot know what was delivered, so `SequenceLoader` counts. With a short tail,
            rank 0 counts the most.

        Returns
        -------
        dict
            `position` is the number of sequences delivered by all ranks, a prefix of the epoch's order.

        Raises
        ------
        UsageError
            If `delivered` is more than the batches of this rank.
        """
        counted = self._counted if delivered is None else integer("delivered", delivered, below=len(self) + 1)
        return self._state_of(self._place(), counted)

    def _state_of(self, place: _Place, delivered: int) -> dict[str, Any]:
        course = place.course
        steps = course.steps + delivered
        n_batches = min(steps * self.world_size, len(course.stops))
        position = int(course.stops[n_batches - 1]) if n_batches else course.start
        return {
            "version": _STATE_VERSION,
            "plan": self.digest,
            "source": self.source_digest,
            "policy": self._policy(),
            "epoch": place.epoch,
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
        place = self._place_of(state)
        self._epoch, self._present, self._course = place.epoch, place.order, place.course
        self._counted = 0

    def _place_of(self, state: Mapping[str, Any]) -> _Place:
        """Return where a state was taken, for these ranks."""
        _validate_state(state)
        self._refuse_other_plan(state)
        position, start, steps, epoch = (int(state[name]) for name in ("position", "start", "steps", "epoch"))
        if not start <= position <= self.n_sequences:
            raise UsageError(
                f"not the state of a batch plan: position {position} of {self.n_sequences} sequences, "
                f"from {start} on",
                hint=_STATE_HINT,
            )
        order = self._present if epoch == self._epoch else self._order.epoch(self.seed, epoch)
        same_ranks = (state["world_size"], state["tail"]) == (self.world_size, self.tail)
        course = self._course_from(order, start if same_ranks else position)
        if same_ranks:
            course = replace(course, steps=steps)
        return _Place(epoch, order, course)

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
        most = f"{self.batch_size}" if self.batch_size is not None else f"{self.max_tokens} tokens"
        return (
            f"BatchPlan({self.n_sequences} sequences, {len(self.stops)} batches of at most "
            f"{most}, shuffle={self.shuffle!r}, epoch {self._epoch}, "
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


@dataclass(frozen=True, slots=True)
class _Place:
    """An epoch, its order, and the batches of it that these ranks take."""

    epoch: int
    order: EpochOrder
    course: _Course


class PlanIterator(Iterator[Batch]):
    """The batches of a rank from a place on, and where it is: what torchdata's StatefulDataLoader asks for.

    Its state counts the batches that it handed out; StatefulDataLoader keeps the state that belongs to each batch
    and gives back that of the one that was delivered. Loading a state moves the plan as well: at the end of an epoch
    StatefulDataLoader asks for another iterator, which must not begin the epoch again.
    """

    def __init__(self, plan: BatchPlan, place: _Place) -> None:
        self._plan = plan
        self._go_to(place)

    def _go_to(self, place: _Place) -> None:
        self._place = place
        self._batches = self._plan._batches(place)  # one job in two classes: torch wants both
        self._n_given = 0

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self._n_given += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the batch that was given last; see `BatchPlan.state_dict`."""
        return self._plan._state_of(self._place, self._n_given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, with the plan; see `BatchPlan.load_state_dict`."""
        self._plan.load_state_dict(state)
        self._go_to(self._plan._place())


def _refuse_contradictions(batch_size: object, max_tokens: object, length: object) -> None:
    if batch_size is not None and max_tokens is not None:
        raise UsageError("batch_size and max_tokens are both given", hint="give one of them")
    if length is not None and max_tokens is None:
        raise UsageError("length is given without max_tokens", hint="give max_tokens, or leave length out")


def _ratio(value: float) -> float:
    if isinstance(value, bool) or not 1 < value <= 1000:
        raise UsageError(f"bucket_ratio={value!r} makes no sense: expected a number above 1, at most 1000")
    return float(value)


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
