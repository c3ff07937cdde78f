"""A DataLoader over a dataset and a batch plan that cannot drift apart, and that counts what it delivered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset

from pqindex.errors import PlanError, UsageError
from pqindex.torch.arguments import integer
from pqindex.torch.batchplan import BatchPlan
from pqindex.torch.collate import collate_padded
from pqindex.torch.readahead import read_ahead

# arguments of DataLoader that would make an order or batches of their own
_OF_THE_PLAN: Final = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class PlannedDataset(Protocol):
    """A map-style dataset that a plan was made for: a `SequenceDataset` or a `WindowDataset`."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def __getitems__(self, indices: list[int], /) -> list[Any]:
        """Return the items at some positions."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the items and their order."""
        ...


class SequenceLoader(DataLoader[Any]):
    """A DataLoader whose batches are those of a plan, in the plan's order with any number of workers.

    It also knows how many batches the training loop was given, which a batch sampler cannot know once workers
    fetch ahead. So `state_dict` is exact at every batch. An epoch has one order, whenever it is iterated:
    call `set_epoch` to go to the next.

    Batches are made in this process, in worker processes, or in threads of this process, always in the plan's
    order. Threads are better where reads are fast, since moving a tensor between processes costs more than such a
    read; processes where Python code takes the time, such as a transform.

    What prefetching costs in memory is ``num_workers * prefetch_factor`` batches (the factor is 2 by
    default; ``num_threads * prefetch_factor`` with threads), each of up to
    ``batch_size * dataset.max_item_nbytes``.

    Parameters
    ----------
    dataset : SequenceDataset or WindowDataset
    plan : BatchPlan
        Over the same selection or manifest.
    collate_fn : callable, default `collate_padded`
        From a list of items to a batch.
    num_workers : int, default 0
        Worker processes. They live on from epoch to epoch unless ``persistent_workers=False`` is given.
    num_threads : int, default 0
        Threads of this process instead of worker processes.
    **options
        Other arguments of `torch.utils.data.DataLoader`, such as `pin_memory` or `multiprocessing_context`.

    Raises
    ------
    UsageError
        If an option would make batches of its own.
    PlanError
        If plan and dataset are not of the same selection.

    Warns
    -----
    UserWarning
        If there are fewer batches than workers, so that some workers have nothing to do.

    Examples
    --------
    A loop that goes on where a state was loaded, and starts at epoch 0 where none was::

        loader = SequenceLoader(dataset, plan, num_workers=4)
        for epoch in range(loader.plan.epoch, 10):
            loader.set_epoch(epoch)
            for batch in loader:
                train(batch)
    """

    def __init__(
        self,
        dataset: PlannedDataset,
        plan: BatchPlan,
        *,
        collate_fn: Callable[[list[Any]], Any] = collate_padded,
        num_workers: int = 0,
        num_threads: int = 0,
        **options: Any,
    ) -> None:
        for name in _OF_THE_PLAN:
            if name in options:
                raise UsageError(
                    f"{name} is given to a SequenceLoader, whose plan decides about it",
                    hint="give it to BatchPlan" if name in {"batch_size", "shuffle"} else "leave it out",
                    name=name,
                )
        _refuse_strangers(dataset, plan)
        self._num_threads = integer("num_threads", num_threads)
        if num_threads and num_workers:
            raise UsageError("num_threads and num_workers are both given", hint="give one of them")
        depth = options.pop("prefetch_factor", None) if num_threads else None
        self._depth = self._num_threads * integer("prefetch_factor", 2 if depth is None else depth, least=1)
        options.setdefault("persistent_workers", num_workers > 0)
        super().__init__(
            cast("Dataset[Any]", dataset),
            batch_sampler=plan,
            collate_fn=collate_fn,
            num_workers=num_workers,
            **options,
        )
        if len(plan) < num_workers:
            warnings.warn(
                f"{num_workers - len(plan)} of {num_workers} workers have nothing to do: the plan has "
                f"{len(plan)} batches on this rank. Hint: use fewer workers or smaller batches",
                stacklevel=2,
            )
        self.plan = plan
        self._delivered = 0
        self._counted_from: Mapping[str, Any] = plan.state_dict()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class of iterator
        """Return an iterator over the batches of the plan's present epoch, from where it was resumed."""
        self._delivered = 0
        self._counted_from = self.plan.state_dict()
        follow = getattr(self.dataset, "set_epoch", None)
        if follow is not None:  # a dataset that draws windows draws others in each epoch
            follow(self.plan.epoch)
        return self._counting(self._read_ahead() if self._num_threads else super().__iter__())

    def _read_ahead(self) -> Iterator[Any]:
        dataset = cast("PlannedDataset", self.dataset)

        def make(batch: list[int]) -> Any:
            return self.collate_fn(dataset.__getitems__(batch))

        made = read_ahead(iter(self.plan), make, num_threads=self._num_threads, depth=self._depth)
        if not (self.pin_memory and torch.cuda.is_available()):
            return made
        from torch.utils.data._utils.pin_memory import pin_memory  # what a DataLoader itself calls

        return map(pin_memory, made)

    def _counting(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            # before the loop sees it, so that a state saved in the loop's body counts this batch
            self._delivered += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the epoch that is on already, stay where it was resumed."""
        self.plan.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training is: after the batch that the loop was given last, on every rank.

        JSON-able; see `BatchPlan.state_dict`. Batches that workers fetched ahead are not counted.
        """
        started = self.plan.state_dict()
        return self.plan.state_dict(self._delivered) if started == self._counted_from else started

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, with any workers and ranks; see `BatchPlan.load_state_dict`."""
        self.plan.load_state_dict(state)
        self._delivered = 0


def _refuse_strangers(dataset: PlannedDataset, plan: BatchPlan) -> None:
    if not isinstance(plan, BatchPlan):
        raise UsageError(
            f"plan is a {type(plan).__name__}", hint="give a BatchPlan over the dataset's selection"
        )
    if not all(hasattr(dataset, name) for name in ("digest", "__len__", "__getitems__")):
        raise UsageError(
            f"dataset is a {type(dataset).__name__}", hint="give a SequenceDataset or a WindowDataset"
        )
    if (dataset.digest, len(dataset)) != (plan.source_digest, plan.n_sequences):
        raise PlanError(
            f"dataset and plan are of different selections: {len(dataset)} sequences, digest "
            f"{dataset.digest}; and {plan.n_sequences} sequences, digest {plan.source_digest}",
            hint="make both from the same selection or manifest",
            expected=dataset.digest,
            found=plan.source_digest,
        )
