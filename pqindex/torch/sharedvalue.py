"""A small value that worker processes see change: how an epoch reaches workers that live on."""

from __future__ import annotations

import json
import time
import zlib
from typing import Any, Final

import torch

from pqindex.errors import ProcessBoundaryError, UsageError

_HEADER: Final = 8  # bytes: how long the text is, and its CRC
_TRIES: Final = 1000
_PAUSE_S: Final = 0.001


class SharedValue:
    """A JSON-able value in memory that a process shares with the workers that it starts.

    Workers see what is set after they were started, under fork, spawn and forkserver: torch hands shared
    memory over to the workers of a DataLoader. Pickled by other means, the copy has memory of its own and the
    value of that moment. One process sets it at a time; a read that meets a write is made again.

    Parameters
    ----------
    value : object
        Whatever `json.dumps` takes.
    capacity : int
        The most bytes that its JSON text may have.
    """

    def __init__(self, value: Any, *, capacity: int = 4096) -> None:
        self._memory = _shared(torch.zeros(_HEADER + capacity, dtype=torch.uint8))
        self.set(value)

    def set(self, value: Any) -> None:
        """Set the value, for this process and its workers.

        Raises
        ------
        UsageError
            If its JSON text is longer than the capacity.
        """
        text = json.dumps(value, separators=(",", ":")).encode()
        capacity = len(self._memory) - _HEADER
        if len(text) > capacity:
            raise UsageError(
                f"a value to share with workers takes {len(text)} bytes; expected at most {capacity}"
            )
        packed = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text
        self._memory[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    def get(self) -> Any:
        """Return the value.

        Raises
        ------
        ProcessBoundaryError
            If it stays unreadable for a second: the process that set it died in the middle.
        """
        for _ in range(_TRIES):
            packed = self._memory.numpy().tobytes()
            n_bytes = int.from_bytes(packed[:4], "little")
            text = packed[_HEADER : _HEADER + n_bytes]
            if zlib.crc32(text) == int.from_bytes(packed[4:_HEADER], "little"):
                return json.loads(text)
            time.sleep(_PAUSE_S)
        raise ProcessBoundaryError(
            "the value that this process shares with its workers is torn: it was being set when a process died",
            hint="make the dataset or stream again",
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._memory = _shared(state["_memory"])


def _shared(memory: torch.Tensor) -> torch.Tensor:
    """Return the memory shared; where torch handed shared memory over, this does nothing."""
    shared: torch.Tensor = memory.share_memory_()  # type: ignore[no-untyped-call]
    return shared
