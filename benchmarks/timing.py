"""Interleaved timing: every contender once a round, and what is left of the rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Samples = list[float]
"""What one contender took in each round."""


def interleaved(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Samples]:
    """Return the seconds of each contender by round; a first round, which warms caches, is left out."""
    taken: dict[str, Samples] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            elapsed_s = time.perf_counter() - start
            if number:
                taken[name].append(elapsed_s)
    return taken


def spread(samples: Samples) -> float:
    """Return the distance of the quartiles as a share of the median; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / statistics.median(samples)
