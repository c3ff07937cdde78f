"""A mapping that forgets what was used longest ago, bounded in count and in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Keep at most `max_items` values of at most `max_bytes` together; the one used longest ago goes first.

    Thread-safe. A value larger than `max_bytes` alone is handed back and not kept.

    Parameters
    ----------
    max_items
        Greatest number of values, or None for no bound.
    max_bytes
        Greatest sum of the values' sizes, or None for no bound.
    size_of
        The size of a value in bytes; needed with `max_bytes`.

    Notes
    -----
    A value is forgotten by dropping the reference to it, so that another thread that still uses it may finish;
    what it holds (a file descriptor, say) is freed with its last reference.
    """

    def __init__(
        self,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
        size_of: Callable[[V], int] | None = None,
    ) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size_of = size_of or (lambda _value: 0)
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._n_bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def n_bytes(self) -> int:
        """Size of all values kept, in bytes."""
        return self._n_bytes

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used, or None."""
        with self._lock:
            value = self._values.get(key)
            if value is None:
                self.misses += 1
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> V:
        """Keep a value and return it; where another thread was first, the value that is kept already."""
        with self._lock:
            present = self._values.get(key)
            if present is not None:
                return present
            if self._max_bytes is None or self._size_of(value) <= self._max_bytes:
                self._values[key] = value
                self._n_bytes += self._size_of(value)
                while self._is_over():
                    _, old = self._values.popitem(last=False)
                    self._n_bytes -= self._size_of(old)
                    self.evictions += 1
            return value

    def set(self, key: K, value: V) -> None:
        """Keep a value in place of what the key had; not for values with a size."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while self._is_over():
                self._values.popitem(last=False)
                self.evictions += 1

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._n_bytes = 0

    def _is_over(self) -> bool:
        return (self._max_items is not None and len(self._values) > self._max_items) or (
            self._max_bytes is not None and self._n_bytes > self._max_bytes
        )
