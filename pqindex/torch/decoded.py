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
from pqindex.torch.fields import MASK_SUFFIX, STORAGE, Field

Kind = Literal["disk", "memory"]

KINDS: Final = ("disk", "memory")
DEFAULT_BYTES: Final[Mapping[str, int]] = {"disk": 64 << 30, "memory": 4 << 30}
SUFFIX: Final = ".decoded"
_VERSION: Final = 2


class PqindexCacheWarning(UserWarning):
    """The decoded cache takes no more, and training goes on without it."""


class _Array(NamedTuple):
    """One array of a record: the values of a field, or its mask."""

    name: str
    dtype: torch.dtype
    width: int | None

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * (1 if self.width is None else self.width)


class DecodedCache:
    """The tensors of sequences that were decoded before, by position.

    Safe for threads and processes. Pickles to a few hundred bytes; another process opens the same file. The file
    may be removed at any time. A record that was damaged is not taken, and is written anew.

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
        For "disk". By default below the user's cache folder, where a new file makes room for itself: of the
        caches that no process has open, those used longest ago are removed, until all fit into the default of
        `max_bytes`, or into what is given if that is more. Nothing is ever removed from a folder that was given.
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
        self._is_full = False
        self._arrays = _arrays(fields)
        self._row_nbytes = sum(array.row_nbytes for array in self._arrays)
        stops = np.cumsum(row_counts * self._row_nbytes)
        self.n_kept = int(np.searchsorted(stops, limit, side="right"))
        self._n_bytes = int(stops[self.n_kept - 1]) if self.n_kept else 0
        described = [_VERSION, identity, self.n_kept, [_described(field) for field in fields]]
        self._key = sha256_hex(canonical_json(described))
        self.path = os.path.join(_folder(kind, folder), self._key + SUFFIX)
        self._room = max(limit, DEFAULT_BYTES[kind]) if folder is None else None
        self._slots: SlotFile | None = self._open(row_counts)

    def _open(self, row_counts: npt.NDArray[np.int64]) -> SlotFile:
        def sizes() -> npt.NDArray[np.int64]:
            if self._room is not None:
                caches.make_room(os.path.dirname(self.path), self._n_bytes, max_bytes=self._room)
            return row_counts[: self.n_kept] * self._row_nbytes

        return SlotFile(
            self.path,
            bytes.fromhex(self._key),
            n_records=self.n_kept,
            n_bytes=self._n_bytes,
            sizes=sizes,
        )

    def reopen(self, row_counts: npt.NDArray[np.int64]) -> None:
        """Open the file in a process that this object was sent to; warn and do without it where that cannot be."""
        try:
            caches.private_folder(os.path.dirname(self.path))  # somebody may have removed it
            self._slots = self._open(row_counts)
        except WriteError as error:
            self._stop_keeping(error)

    @property
    def n_filled(self) -> int:
        """How many sequences are there."""
        return 0 if self._slots is None else self._slots.n_filled

    @property
    def is_full(self) -> bool:
        """Whether this process has stopped keeping sequences, since the disk takes no more."""
        return self._is_full

    def has(self, position: int) -> bool:
        """Return whether a sequence is there."""
        return self._slots is not None and position < self.n_kept and self._slots.has(position)

    def load(self, position: int, n_rows: int) -> dict[str, torch.Tensor] | None:
        """Return the tensors of a sequence, in memory of their own, or None where it is not there and whole."""
        if self._slots is None or position >= self.n_kept:
            return None
        tensors, memory = {}, []
        for name, dtype, width in self._arrays:
            shape = (n_rows,) if width is None else (n_rows, width)
            storage = STORAGE[dtype]
            if storage.itemsize == dtype.itemsize:
                array = np.empty(shape, storage)  # in less time than torch takes
                tensors[name] = torch.from_numpy(array)
            else:
                tensors[name] = torch.empty(shape, dtype=dtype)
                array = _memory_of(tensors[name])
            memory.append(array)
        return tensors if self._slots.read(position, memory) else None

    def store(self, position: int, tensors: Mapping[str, Any]) -> None:
        """Keep the tensors of a sequence; where the disk is full, warn once and keep nothing more."""
        if self._slots is None or position >= self.n_kept or self._is_full:
            return
        try:
            self._slots.write(position, [_memory_of(tensors[array.name]) for array in self._arrays])
        except WriteError as error:
            self._stop_keeping(error)

    def _stop_keeping(self, error: WriteError) -> None:
        if self._is_full:
            return
        self._is_full = True
        warnings.warn(
            f"the decoded cache takes no more, and training goes on without it: {error}",
            PqindexCacheWarning,
            stacklevel=3,
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_slots": None}


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


def _memory_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return the memory of a tensor as an array; a copy where it is not in one piece."""
    tensor = tensor.contiguous()
    array: npt.NDArray[Any] = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _folder(kind: Kind, folder: str | os.PathLike[str] | None) -> str:
    if folder is not None:
        return caches.private_folder(os.path.abspath(folder), hint="give another cache_dir")
    return os.path.abspath(caches.cache_folder("decoded" if kind == "disk" else "memory"))
