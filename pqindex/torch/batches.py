"""One batch of a plan: its positions, and which batch it is, on the way to the training loop and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pqindex.errors import UsageError

BATCH_NUMBER: Final = "batch_number"
"""Under this name an item, and a batch that was collated, carry which batch of the plan they are of."""


class Batch(list[int]):
    """The positions of one batch, and which batch it is.

    Attributes
    ----------
    epoch : int
    number : int
        Counted on this rank from where the epoch was begun or resumed.
    """

    __slots__ = ("epoch", "number")

    def __init__(self, positions: list[int], epoch: int, number: int) -> None:
        super().__init__(positions)
        self.epoch = epoch
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self.epoch, self.number)

    @property
    def carried(self) -> tuple[int, int]:
        """What an item of the batch carries under `BATCH_NUMBER`: the epoch and the number."""
        return self.epoch, self.number


def carry_number(items: list[Any], indices: object) -> list[Any]:
    """Return the items, each with the number of its batch where they are of a batch of a plan."""
    if isinstance(indices, Batch):
        for item in items:
            if isinstance(item, dict):
                item[BATCH_NUMBER] = indices.carried
    return items


def number_of(batch: Mapping[str, Any] | Batch) -> tuple[int, int]:
    """Return the epoch and number that a batch carries.

    Raises
    ------
    UsageError
        If it carries none.
    """
    if isinstance(batch, Batch):
        return batch.epoch, batch.number
    carried = batch.get(BATCH_NUMBER) if hasattr(batch, "get") else None
    if carried is None or len(carried) != 2:
        raise UsageError(
            f"the batch does not say which one it is: expected a mapping with {BATCH_NUMBER!r}",
            hint="collate with collate_padded, collate_packed or collate_nested, or keep that key in yours",
        )
    return int(carried[0]), int(carried[1])
