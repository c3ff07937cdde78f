"""Interleaved timing: every contender once a round, rounds until the medians stand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender; a first round, which warms caches, is left out."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            elapsed_s = time.perf_counter() - start
            if number:
                taken[name].append(elapsed_s)
    return {name: statistics.median(times) for name, times in taken.items()}
