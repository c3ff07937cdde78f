"""Casts between numpy dtypes that are exact for integers, or say which value is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DType = np.dtype[Any]


def always_exact(source: DType, target: DType, precision: int | None) -> bool:
    """Return whether no value of one dtype can lose anything that counts in another.

    Integers must keep their value. Floats may round to a narrower float, which is what a narrower float is.

    Parameters
    ----------
    source, target : numpy.dtype
    precision : int or None
        Bits of the significand, where `target` stands for a float.
    """
    if source == target or source.kind == "b":
        return True
    if precision is not None:
        return source.kind == "f" or np.iinfo(source).bits - (source.kind == "i") <= precision
    return source.kind != "f" and target.kind != "b" and bool(np.can_cast(source, target))


def inexact_values(values: Array, target: DType, precision: int | None) -> npt.NDArray[np.bool_] | None:
    """Return which values a cast would change, or None if it changes none.

    Values that are not finite count as exact: whether they may pass is another question.

    Returns
    -------
    ndarray of the shape of `values`, bool, or None
    """
    if not values.size:
        return None
    if precision is not None:
        return _any(_beyond_precision(values, target, precision)) if values.dtype.kind != "f" else None
    if target.kind == "b":
        return _any(~((values == 0) | (values == 1) | ~np.isfinite(values)))
    limits = np.iinfo(target)
    if values.dtype.kind != "f":
        if int(values.min()) >= limits.min and int(values.max()) <= limits.max:
            return None
        wrapped = values.astype(target)  # there, back, and with the same sign: no comparison between dtypes
        return _any((wrapped.astype(values.dtype) != values) | ((wrapped < 0) != (values < 0)))
    wide = values.astype(np.float64, copy=False)
    outside = (wide < float(limits.min)) | (wide >= float(limits.max + 1))
    return _any((outside | (wide != np.trunc(wide))) & np.isfinite(wide))


def cast_into(out: Array, values: Array) -> None:
    """Write values into an array of another dtype, without warnings.

    Integers beyond a narrower integer wrap around; the fraction of a float is cut off, and a float beyond an
    integer's range becomes the nearest end of it, so that the result is the same on every machine.
    """
    if values.dtype.kind == "f" and out.dtype.kind in "iu":
        limits = np.iinfo(out.dtype)
        wide = np.trunc(values.astype(np.float64, copy=False))
        inside = (wide >= float(limits.min)) & (wide < float(limits.max + 1))
        out[...] = np.where(wide < 0, limits.min, limits.max)
        np.copyto(out, wide, casting="unsafe", where=inside)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = values


def _beyond_precision(values: Array, target: DType, precision: int) -> npt.NDArray[np.bool_]:
    """Return which integers have more significant bits than a float keeps, or lie beyond its range."""
    limit = 1 << precision
    if int(values.min()) >= -limit and int(values.max()) <= limit:
        return np.zeros(values.shape, np.bool_)
    magnitude = values.astype(np.uint64)
    if values.dtype.kind == "i":
        magnitude = np.where(values < 0, np.uint64(0) - magnitude, magnitude)
    lowest_bit = np.maximum(magnitude & (np.uint64(0) - magnitude), np.uint64(1))
    beyond = magnitude // lowest_bit >= np.uint64(limit)
    largest = float(np.finfo(target).max)
    return beyond | (magnitude > np.uint64(largest)) if largest < 2.0**64 else beyond


def _any(found: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    return found if found.any() else None
