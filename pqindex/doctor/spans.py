"""What byte spans cost when they are read together: many reads at once, as matrices of spans."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


class SpanCost(NamedTuple):
    """What each of n reads asks of its file; arrays of shape (n,), int64.

    Attributes
    ----------
    n_bytes, n_ranges
        After spans that touch or overlap were joined.
    first, reach
        First byte, and the byte behind the last; 0 where nothing is read.
    """

    n_bytes: Int64Array
    n_ranges: Int64Array
    first: Int64Array
    reach: Int64Array


def span_cost(starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> SpanCost:
    """Return what reads cost whose spans are the rows of two matrices; as `footer.coalesce` joins them.

    Parameters
    ----------
    starts, lengths : ndarray of int, shape (n, spans)
        Spans without bytes are passed over.
    """
    n, width = starts.shape
    zeros = np.zeros(n, np.int64)
    if not width or not n:
        return SpanCost(zeros, zeros, zeros, zeros)
    lengths = lengths.astype(np.int64, copy=False)
    has = lengths > 0
    far = np.iinfo(np.int64).max
    if bool(has.all()):
        first, is_empty = starts.min(axis=1).astype(np.int64), np.zeros(n, np.bool_)
        is_sorted = bool((starts[:, 1:] >= starts[:, :-1]).all())
    else:
        first = np.where(has, starts, far).min(axis=1)
        is_empty = first == far
        first[is_empty] = 0
        low = np.where(has, starts, 0)
        low[:, 0] = np.maximum(low[:, 0], first)  # a span without bytes lies within the one before it
        high = np.maximum.accumulate(low, axis=1)
        is_sorted = bool((high == low)[has].all())
        starts = high if is_sorted else np.where(has, starts, first[:, None])
    if not is_sorted:
        order = np.argsort(starts, axis=1, kind="stable")
        starts = np.take_along_axis(starts, order, axis=1)
        lengths = np.take_along_axis(lengths, order, axis=1)
    reaches = np.maximum.accumulate(starts + lengths, axis=1)
    gaps = np.maximum(starts[:, 1:] - reaches[:, :-1], 0)
    reach = reaches[:, -1]
    return SpanCost(
        n_bytes=reach - first - gaps.sum(axis=1),
        n_ranges=np.where(is_empty, 0, 1 + (gaps > 0).sum(axis=1)),
        first=first,
        reach=np.where(is_empty, 0, reach),
    )
