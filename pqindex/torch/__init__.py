"""Sequences as tensors: a map-style dataset, batches as arithmetic, and a DataLoader. The only home of torch.

`SequenceDataset` reads a selection's sequences as tensors by position and `WindowDataset` windows of them,
`BatchPlan` says which of them make which batch on which rank, `collate_padded`, `collate_packed` and `collate_nested`
make one batch of items of different lengths, and `SequenceLoader` joins them. `SequenceStream` is the iterable face of
a plan. `Rename`, `Cast`, `Map` and `Normalize` change items after they were read.
"""

from __future__ import annotations

from pqindex.errors import MissingDependencyError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":  # torch is there, and something that it needs is not
        raise
    raise MissingDependencyError(
        "pqindex.torch needs torch, which is not installed", hint="pip install pqindex[torch]", name="torch"
    ) from error

from pqindex.torch.batchplan import BatchPlan
from pqindex.torch.collate import collate_padded
from pqindex.torch.dataset import SequenceDataset
from pqindex.torch.loader import SequenceLoader
from pqindex.torch.ragged import collate_nested, collate_packed
from pqindex.torch.resumable import ResumeReport, check_resumable
from pqindex.torch.stream import SequenceStream
from pqindex.torch.transforms import Cast, Compose, Map, Normalize, Rename
from pqindex.torch.windows import WindowDataset

__all__ = [
    "BatchPlan",
    "Cast",
    "Compose",
    "Map",
    "Normalize",
    "Rename",
    "ResumeReport",
    "SequenceDataset",
    "SequenceLoader",
    "SequenceStream",
    "WindowDataset",
    "check_resumable",
    "collate_nested",
    "collate_packed",
    "collate_padded",
]
