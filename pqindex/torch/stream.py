"""The batches of a plan as an iterable dataset, for trainers that insist on one."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from pqindex.errors import PlanError, UsageError
from pqindex.torch.arguments import integer
from pqindex.torch.batchplan import BatchPlan
from pqindex.torch.sharedvalue import SharedValue

_STATE_NAMES: Final = ("yielded", "worker", "n_workers")


class StreamSource(Protocol):
    """What a stream reads: a dataset of sequences or windows."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the items and their order."""
        ...

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at some positions, in their order."""
        ...


class SequenceStream(IterableDataset[Any]):
    """The batches of a plan, or their items, one after the other: an iterable dataset.

    Prefer `SequenceLoader`, or a DataLoader with the plan as its batch sampler, wherever a map-style dataset
    will do. This is for trainers that want an iterable one. Ranks are those of the plan: nothing else may
    share the stream out to ranks again.

    With `collate_fn`, the stream yields batches, for ``DataLoader(stream, batch_size=None)``. Worker w of N
    makes batches w, w + N, ... of this rank, so that the loader, which asks its workers in turn, gives the
    plan's order for every N. Without it, the stream yields items; worker w then reads items w, w + N, ..., so
    that ``DataLoader(stream, batch_size=None)`` gives the plan's order of items for every N too. A loader that
    makes batches of such items has other batches than the plan for N > 1, without loss and without repeats.

    The stream starts where the plan stands and from then on has an epoch and a place of its own. `set_epoch`
    and `load_state_dict` on the stream, not on the plan, reach workers that live on; call them before the
    epoch is iterated. In a worker of another
    dataset that is iterable the stream is split as well; in one of a map-style dataset, whose workers do not
    share an iteration, it is whole.

    Each worker walks through the whole plan of its rank, which is arithmetic (0.1 us a sequence), and reads
    only what is its own.

    Parameters
    ----------
    dataset : SequenceDataset or WindowDataset
    plan : BatchPlan
        Over the same selection or manifest, or over the same windows.
    collate_fn : callable, optional
        From the list of items of a batch to a batch, such as `collate_padded`.

    Raises
    ------
    UsageError
        If `plan` is no plan, `dataset` no dataset of this package's kind, or `collate_fn` cannot be called.
    PlanError
        If plan and dataset are not of the same items.

    Examples
    --------
    A loop that counts what it was given, and may stop and resume anywhere::

        stream = SequenceStream(dataset, plan, collate_fn=collate_padded)
        loader = DataLoader(stream, batch_size=None, num_workers=4, persistent_workers=True)
        for epoch in range(stream.epoch, 10):
            stream.set_epoch(epoch)
            for delivered, batch in enumerate(loader, start=1):
                train(batch)
                save(stream.state_dict(delivered))
    """

    def __init__(
        self,
        dataset: StreamSource,
        plan: BatchPlan,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        _refuse_strangers(dataset, plan)
        if collate_fn is not None and not callable(collate_fn):
            raise UsageError(
                f"collate_fn={collate_fn!r} cannot be called", hint="give a function of a list of items"
            )
        self._dataset = dataset
        self._plan = plan
        self._collate_fn = collate_fn
        self._shared = SharedValue(plan.state_dict())
        self._tell_dataset()

    @property
    def dataset(self) -> StreamSource:
        """The dataset that is read."""
        return self._dataset

    @property
    def digest(self) -> str:
        """Identity of the stream's plan."""
        return self._plan.digest

    @property
    def epoch(self) -> int:
        """Epoch that is iterated."""
        return self._current_plan().epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the epoch that is on already, stay where it was resumed.

        Workers look at it when an iteration starts in them. A dataset that draws its items by epoch is told.
        """
        plan = self._current_plan()
        plan.set_epoch(epoch)
        self._share(plan)

    # -- iterating -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many batches this rank has from where the epoch was resumed, or items if it gives these.

        Of all workers together, as a DataLoader wants it. Items are counted by a walk through the plan.
        """
        plan = self._current_plan()
        return len(plan) if self._collate_fn is not None else sum(map(len, plan))

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this worker's share of the present epoch, from where it was resumed.

        It has `state_dict` and `load_state_dict`, by which torchdata's StatefulDataLoader stops and resumes
        with the same number of workers.
        """
        worker, n_workers = _share_of_this_process()
        return StreamIterator(
            self._current_plan(), self._dataset, self._collate_fn, worker=worker, n_workers=n_workers
        )

    # -- state -----------------------------------------------------------------------------------------------

    def state_dict(self, delivered: int = 0) -> dict[str, Any]:
        """Return where the training is: a state of the plan, JSON-able, for any ranks and workers.

        Parameters
        ----------
        delivered : int, default 0
            How many batches, or items if the stream gives these, the training loop was given since the
            iteration started. The loop counts, since workers fetch ahead.

        Raises
        ------
        UsageError
            If there are not so many, or so many items end inside a batch.
        """
        plan = self._current_plan()
        if self._collate_fn is not None:
            return plan.state_dict(delivered)
        delivered = integer("delivered", delivered)
        stops = np.cumsum([0, *map(len, plan)])
        n_batches = int(np.searchsorted(stops, delivered))
        if n_batches == len(stops) or stops[n_batches] != delivered:
            around = [int(stop) for stop in stops[max(n_batches - 1, 0) : n_batches + 1]]
            raise UsageError(
                f"delivered={delivered} items end inside a batch of the plan; the batches around end at "
                f"{' and '.join(map(str, around))}",
                hint="save after a whole batch, or give collate_fn and count batches",
                delivered=delivered,
            )
        return plan.state_dict(n_batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken; see `BatchPlan.load_state_dict`, whose errors it raises."""
        plan = self._current_plan()
        plan.load_state_dict(state)
        self._share(plan)

    def _current_plan(self) -> BatchPlan:
        """Return a plan of one's own that stands where the stream does, in whichever process."""
        plan = copy.copy(self._plan)
        state = self._shared.get()
        if state != plan.state_dict():
            plan.load_state_dict(state)
        return plan

    def _share(self, plan: BatchPlan) -> None:
        self._plan = plan
        self._shared.set(plan.state_dict())
        self._tell_dataset()

    def _tell_dataset(self) -> None:
        """Have the dataset draw what belongs to the epoch, if it draws."""
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._plan.epoch)

    def __repr__(self) -> str:
        what = "items" if self._collate_fn is None else "batches"
        return f"SequenceStream({what} of {self._current_plan()!r})"


class StreamIterator(Iterator[Any]):
    """One worker's share of an epoch: what to yield, and how much of it was.

    Parameters
    ----------
    plan : BatchPlan
        Its batches are bound here: a later change of the plan is for later iterators.
    dataset : StreamSource
    collate_fn : callable or None
        None yields items.
    worker, n_workers : int
        Which share.
    """

    def __init__(
        self,
        plan: BatchPlan,
        dataset: StreamSource,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        worker: int,
        n_workers: int,
    ) -> None:
        self._plan = plan
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._worker = worker
        self._n_workers = n_workers
        self._start(yielded=0)

    def _start(self, *, yielded: int) -> None:
        self._yielded = yielded
        self._items: deque[Any] = deque()
        batches = iter(self._plan)
        if self._collate_fn is None:
            self._parts = _items_from(_dealt(batches, self._worker, self._n_workers), yielded)
        else:
            first = self._worker + yielded * self._n_workers
            self._parts = islice(batches, first, None, self._n_workers)

    def __next__(self) -> Any:
        """Return the next batch or item."""
        if self._collate_fn is not None:
            made = self._collate_fn(self._dataset.__getitems__(next(self._parts)))
        else:
            if not self._items:
                self._items.extend(self._dataset.__getitems__(next(self._parts)))
            made = self._items.popleft()
        self._yielded += 1  # only now: what failed was not yielded
        return made

    def state_dict(self) -> dict[str, int]:
        """Return how much of this share was yielded; where it started is in the stream's own state."""
        return {"yielded": self._yielded, "worker": self._worker, "n_workers": self._n_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after what was yielded when a state was taken, without reading it again.

        Raises
        ------
        UsageError
            If it is no such state, or one of another share: the number of workers must be the same.
        """
        yielded, *share = _parse_state(state)
        if share != [self._worker, self._n_workers]:
            raise UsageError(
                f"the state is of worker {share[0]} of {share[1]}; expected worker {self._worker} of "
                f"{self._n_workers}",
                hint="resume with the same num_workers, or keep SequenceStream.state_dict(delivered), "
                "which goes to any",
                expected=self._n_workers,
                found=share[1],
            )
        self._start(yielded=yielded)


def _parse_state(state: object) -> list[int]:
    """Return the numbers of an iterator's state, in the order of their names."""
    found = [state.get(name) for name in _STATE_NAMES] if isinstance(state, Mapping) else []
    numbers = [n for n in found if isinstance(n, int) and n >= 0]
    if len(numbers) != len(_STATE_NAMES):
        raise UsageError(
            f"not the state of a stream's iterator: {state!r}", hint="give what state_dict() returned"
        )
    return numbers


def _share_of_this_process() -> tuple[int, int]:
    """Return (worker, number of workers) among which an iteration is shared out."""
    info = get_worker_info()
    if info is None or not isinstance(info.dataset, IterableDataset):
        return 0, 1  # no worker, or one in which each item of a map-style dataset stands for itself
    return info.id, info.num_workers


def _dealt(batches: Iterator[list[int]], worker: int, n_workers: int) -> Iterator[list[int]]:
    """Yield items w, w + N, ... of all batches together, in lists that never reach over a batch."""
    n_before = 0
    for batch in batches:
        mine = batch[(worker - n_before) % n_workers :: n_workers]
        n_before += len(batch)
        if mine:
            yield mine


def _items_from(parts: Iterator[list[int]], skipped: int) -> Iterator[list[int]]:
    for part in parts:
        if skipped < len(part):
            yield part[skipped:]
        skipped = max(skipped - len(part), 0)


def _refuse_strangers(dataset: StreamSource, plan: BatchPlan) -> None:
    if not isinstance(plan, BatchPlan):
        raise UsageError(f"plan is a {type(plan).__name__}", hint="give a BatchPlan over the dataset's items")
    if not (hasattr(dataset, "digest") and hasattr(dataset, "__getitems__")):
        raise UsageError(
            f"dataset is a {type(dataset).__name__}", hint="give a SequenceDataset or WindowDataset"
        )
    if (dataset.digest, len(dataset)) != (plan.source_digest, plan.n_sequences):
        raise PlanError(
            f"dataset and plan are of different items: {len(dataset)}, digest {dataset.digest}; and "
            f"{plan.n_sequences}, digest {plan.source_digest}",
            hint="make both from the same selection or manifest, or the plan from the WindowDataset",
            expected=dataset.digest,
            found=plan.source_digest,
        )
