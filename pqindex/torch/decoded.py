"""The decoded cache: the tensors of a selection's fields, at places that arithmetic gives.

Every length is known before the first read, so every sequence has its place in one sparse file (`pqindex.slots`).
Whoever decodes a sequence first puts its tensors there: workers, ranks, other runs of this machine. Later reads of it
are one read of the file into the memory of the tensors.

What is kept is what the fields give, before transforms: a transform may change with the code around it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pqindex import caches
from pqindex.digest import canonical_json, sha256_hex
from pqindex.errors import UsageError, WriteError
from pqindex.slots import SlotFile
from pqindex.torch.arguments import integer, one_of
from pqindex.torch.fields import MASK_SUFFIX, Field

Kind = Literal["disk", "memory"]

KINDS: Final = ("disk", "memory")
DEFAULT_BYTES: Final[Mapping[str, int]] = {"disk": 64 << 30, "memory": 4 << 30}
SUFFIX: Final = ".decoded"
_VERSION: Final = 1


class PqindexCacheWarning(UserWarning):
    """The decoded cache takes no more, and training goes on without it."""


class _Array(NamedTuple):
    """One array of a record: the values of a field, or its mask."""

    name: str
    dtype: torch.dtype
    width: int | None

    def empty(self, n_rows: int) -> torch.Tensor:
        shape = (n_rows,) if self.width is None else (n_rows, self.width)
        return torch.empty(shape, dtype=self.dtype)

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * (1 if self.width is None else self.width)


class DecodedCache:
    """The tensors of sequences that were decoded before, by position.

    Safe for threads and processes. Pickles to a few hundred bytes; another process opens the same file. The file
    may be removed at any time.

    Parameters
    ----------
    fields : sequence of Field
        Fields of numbers, each of a width that its columns tell.
    row_counts : ndarray of int64, shape (n,)
        Rows of each sequence.
    identity : str
        Changes when the selection, the projection or a source file does.
    kind : {"disk", "memory"}
        In a folder, or in memory that the processes of this machine share.
    folder : str, optional
        For "disk". By default below the user's cache folder.
    max_bytes : int, optional
        The first sequences of the selection are kept, as many as fit: 64 GiB on disk by default, 4 GiB in memory.

    Raises
    ------
    UsageError
        If a field cannot be kept, or an argument makes no sense.
    WriteError
        If the file cannot be made.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        row_counts: npt.NDArray[np.int64],
        *,
        identity: str,
        kind: Kind,
        folder: str | os.PathLike[str] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        one_of("cache", kind, KINDS)
        limit = DEFAULT_BYTES[kind] if max_bytes is None else integer("cache_bytes", max_bytes, least=1)
        if folder is not None and kind == "memory":
            raise UsageError(
                'cache_dir is given with cache="memory"', hint='give cache="disk", or leave it out'
            )
        self._arrays = _arrays(fields)
        self._row_nbytes = sum(array.row_nbytes for array in self._arrays)
        stops = np.cumsum(row_counts * self._row_nbytes)
        self.n_kept = int(np.searchsorted(stops, limit, side="right"))
        self._n_bytes = int(stops[self.n_kept - 1]) if self.n_kept else 0
        described = [_VERSION, identity, self.n_kept, [_described(field) for field in fields]]
        self._key = sha256_hex(canonical_json(described))
        self.path = os.path.join(_folder(kind, folder), self._key + SUFFIX)
        self._slots = self._open(row_counts)
        self._is_full = False

    def _open(self, row_counts: npt.NDArray[np.int64]) -> SlotFile:
        return SlotFile(
            self.path,
            bytes.fromhex(self._key),
            n_records=self.n_kept,
            n_bytes=self._n_bytes,
            sizes=lambda: row_counts[: self.n_kept] * self._row_nbytes,
        )

    def reopen(self, row_counts: npt.NDArray[np.int64]) -> None:
        """Open the file in a process that this object was sent to."""
        self._slots = self._open(row_counts)

    @property
    def n_filled(self) -> int:
        """How many sequences are there."""
        return self._slots.n_filled

    def has(self, position: int) -> bool:
        """Return whether a sequence is there."""
        return position < self.n_kept and self._slots.has(position)

    def load(self, position: int, n_rows: int) -> dict[str, torch.Tensor] | None:
        """Return the tensors of a sequence, in memory of their own, or None where it is not there."""
        if not self.has(position):
            return None
        tensors = {array.name: array.empty(n_rows) for array in self._arrays}
        return tensors if self._slots.read(position, [_bytes_of(t) for t in tensors.values()]) else None

    def store(self, position: int, tensors: Mapping[str, Any]) -> None:
        """Keep the tensors of a sequence; where the disk is full, warn once and keep nothing more."""
        if position >= self.n_kept or self._is_full or self._slots.has(position):
            return
        try:
            self._slots.write(position, [_bytes_of(tensors[array.name]) for array in self._arrays])
        except WriteError as error:
            self._is_full = True
            warnings.warn(
                f"the decoded cache takes no more, and training goes on without it: {error}",
                PqindexCacheWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the file."""
        self._slots.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_slots"}


def _arrays(fields: Sequence[Field]) -> tuple[_Array, ...]:
    arrays = []
    for field in fields:
        if field.dtype is None or field.width is None:
            why = "is text" if field.dtype is None else "has lists whose length only the data tell"
            raise UsageError(
                f"field {field.name!r} {why}, and a cache needs fields of known sizes",
                hint="leave it out of this dataset, or do without cache=",
                field=field.name,
            )
        width = None if field.by_name and field.columns[0].form.width is None else field.width
        arrays.append(_Array(field.name, field.dtype, width))
        if field.is_masked:
            arrays.append(_Array(field.name + MASK_SUFFIX, torch.bool, width))
    return tuple(arrays)


def _described(field: Field) -> list[Any]:
    """Return what the tensors of a field hang on, besides the data."""
    policies = [[policy.action, repr(policy.value)] for policy in (field.nulls, field.non_finite)]
    columns = [column.name for column in field.columns]
    return [field.name, columns, field.by_name, str(field.dtype), policies, field.lossy]


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a tensor as bytes; a copy where it is not in one piece."""
    array: npt.NDArray[np.uint8] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return array


def _folder(kind: Kind, folder: str | os.PathLike[str] | None) -> str:
    if folder is not None:
        return caches.private_folder(os.fspath(folder))
    return caches.cache_folder("decoded" if kind == "disk" else "memory")
