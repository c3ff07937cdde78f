"""A DataLoader over a dataset and a batch plan that cannot drift apart, and that counts what it delivered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from torch.utils.data import DataLoader

from pqindex.errors import PlanError, UsageError
from pqindex.torch.batchplan import BatchPlan
from pqindex.torch.collate import collate_padded
from pqindex.torch.dataset import SequenceDataset

# arguments of DataLoader that would make an order or batches of their own
_OF_THE_PLAN: Final = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class SequenceLoader(DataLoader[Any]):
    """A DataLoader whose batches are those of a plan, in the plan's order with any number of workers.

    It also knows how many batches the training loop was given, which a batch sampler cannot know once workers
    fetch ahead. So `state_dict` is exact at every batch. An epoch has one order, whenever it is iterated:
    call `set_epoch` to go to the next.

    What prefetching costs in memory is ``num_workers * prefetch_factor`` batches (the factor is 2 by
    default), each of up to ``batch_size * dataset.max_item_nbytes``.

    Parameters
    ----------
    dataset : SequenceDataset
    plan : BatchPlan
        Over the same selection or manifest.
    collate_fn : callable, default `collate_padded`
        From a list of items to a batch.
    num_workers : int, default 0
        Worker processes. They live on from epoch to epoch unless ``persistent_workers=False`` is given.
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
        dataset: SequenceDataset,
        plan: BatchPlan,
        *,
        collate_fn: Callable[[list[Any]], Any] = collate_padded,
        num_workers: int = 0,
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
        options.setdefault("persistent_workers", num_workers > 0)
        super().__init__(
            dataset, batch_sampler=plan, collate_fn=collate_fn, num_workers=num_workers, **options
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
        return self._counting(super().__iter__())

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


def _refuse_strangers(dataset: SequenceDataset, plan: BatchPlan) -> None:
    if not isinstance(plan, BatchPlan):
        raise UsageError(
            f"plan is a {type(plan).__name__}", hint="give a BatchPlan over the dataset's selection"
        )
    if not isinstance(dataset, SequenceDataset):
        raise UsageError(f"dataset is a {type(dataset).__name__}", hint="give a SequenceDataset")
    if (dataset.digest, len(dataset)) != (plan.source_digest, plan.n_sequences):
        raise PlanError(
            f"dataset and plan are of different selections: {len(dataset)} sequences, digest "
            f"{dataset.digest}; and {plan.n_sequences} sequences, digest {plan.source_digest}",
            hint="make both from the same selection or manifest",
            expected=dataset.digest,
            found=plan.source_digest,
        )
