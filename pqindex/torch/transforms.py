"""What can be done to an item after it was read: rename, cast, map a field, normalise.

A transform is a function of an item that returns an item. Those here are small records that pickle, so that worker
processes of any kind get them; a dataset takes one, or several that it applies one after the other, and refuses what
does not pickle when it is made, not when the first worker starts.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from pqindex.errors import LossyCastError, NonFiniteError, RaggedListError, UsageError
from pqindex.statistics import ColumnStatistics
from pqindex.torch.arguments import refuse_unknown
from pqindex.torch.casts import always_exact, inexact_values
from pqindex.torch.fields import MASK_SUFFIX, PRECISION, STORAGE, FieldsArgument, parse_fields

Item = dict[str, Any]
Transform = Callable[[Item], Any]

_OWN_NAMES: Final = ("seq_id", "length")


class Compose:
    """Apply transforms one after the other.

    Parameters
    ----------
    transforms : sequence of callables
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = tuple(transforms)
        for transform in self.transforms:
            if not callable(transform):
                raise UsageError(
                    f"transform={transform!r} cannot be called",
                    hint="give a function of an item, or a list of them",
                )

    def __call__(self, item: Item) -> Any:
        """Return what the last transform makes of the item."""
        result: Any = item
        for transform in self.transforms:
            result = transform(result)
        return result

    def __repr__(self) -> str:
        return f"Compose({list(self.transforms)!r})"


@dataclass(frozen=True, slots=True)
class Rename:
    """Give values of an item other names; a field's mask goes with it.

    Parameters
    ----------
    names : mapping of str to str
        From the old name to the new one. "seq_id" and "length" keep theirs, since batches need them.

    Raises
    ------
    UsageError
        If two values would have one name, or a name is not there or not to be changed.
    """

    names: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", dict(self.names))
        for old, new in self.names.items():
            if old in _OWN_NAMES or new in _OWN_NAMES:
                raise UsageError(
                    f"Rename: {old!r} to {new!r}; {' and '.join(map(repr, _OWN_NAMES))} are names of every item",
                    hint="leave them as they are",
                    name=old,
                )

    def __call__(self, item: Item) -> Item:
        """Return the item under its new names, in the same order."""
        _refuse_absent("Rename", self.names, item)
        masks = {old + MASK_SUFFIX: new + MASK_SUFFIX for old, new in self.names.items()}
        names = {name: self.names.get(name, masks.get(name, name)) for name in item}
        renamed = {names[name]: value for name, value in item.items()}
        if len(renamed) < len(item):
            name = next(name for name in renamed if list(names.values()).count(name) > 1)
            raise UsageError(
                f"Rename: two values of an item would have the name {name!r}", hint="rename both", name=name
            )
        return renamed


@dataclass(frozen=True, slots=True)
class Cast:
    """Cast fields to another dtype, with the care that reading takes.

    Floats may round. An integer that would change, and a finite number that becomes an infinity, are errors unless
    `lossy` is set. What was read is cast by the dataset's own ``dtype=``; this is for what transforms made.

    Parameters
    ----------
    dtypes : mapping of torch.dtype by field
    lossy : bool, default False

    Raises
    ------
    UsageError
        If a dtype is none that a field can have, or a field is not there or no tensor.
    LossyCastError
        If the cast would change an integer.
    NonFiniteError
        If the cast would make an infinity of a number, or a number of what is none.
    """

    dtypes: Mapping[str, torch.dtype]
    lossy: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtypes", dict(self.dtypes))
        for name, dtype in self.dtypes.items():
            if dtype not in STORAGE:
                raise UsageError(
                    f"Cast: dtype={dtype!r} of field {name!r} is not known: expected one of torch's "
                    f"{', '.join(str(known).removeprefix('torch.') for known in STORAGE)}",
                    field=name,
                )

    def __call__(self, item: Item) -> Item:
        """Return the item with those fields cast."""
        _refuse_absent("Cast", self.dtypes, item)
        return item | {name: self._cast(name, dtype, item) for name, dtype in self.dtypes.items()}

    def _cast(self, name: str, dtype: torch.dtype, item: Item) -> torch.Tensor:
        tensor = _tensor("Cast", name, item)
        cast = tensor.to(dtype)
        if self.lossy or tensor.dtype == dtype:
            return cast
        values = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        storage, precision = STORAGE[dtype], PRECISION.get(dtype)
        if dtype.is_floating_point and tensor.is_floating_point():
            strange = tensor.isfinite() & ~cast.isfinite()
        elif tensor.is_floating_point():
            strange = ~tensor.isfinite()
        else:
            strange = torch.zeros((), dtype=torch.bool)
        if strange.any():
            self._refuse(NonFiniteError, f"a value is not a finite {dtype}", name, item, strange)
        if not always_exact(values.dtype, storage, precision):
            inexact = inexact_values(values, storage, precision)
            if inexact is not None:
                what = f"a cast to {dtype} would change a value"
                self._refuse(LossyCastError, what, name, item, torch.from_numpy(inexact))
        return cast

    @staticmethod
    def _refuse(
        error: type[LossyCastError | NonFiniteError], what: str, name: str, item: Item, where: torch.Tensor
    ) -> None:
        place = tuple(where.nonzero()[0].tolist())
        found = item[name][place].item()
        raise error(
            f"{what}: field {name!r}, sequence {item.get('seq_id')!r}, place {place}; found {found}",
            hint="give a dtype that holds it, or lossy=True",
            field=name,
            seq_id=item.get("seq_id"),
            place=place,
            found=found,
        )


@dataclass(frozen=True, slots=True)
class Map:
    """Apply a function to the values of some fields, each by itself: a log, a difference, a tokeniser's look-up.

    A function of several fields at once, or one that changes the number of steps, is a transform by itself: it takes
    the item, and returns it with its "length".

    Parameters
    ----------
    function : callable
        From a field's tensor (or list of strings) to what takes its place, with as many steps.
    fields : sequence of str

    Raises
    ------
    UsageError
        If a field is not there.
    RaggedListError
        If the function changes the number of steps.
    """

    function: Callable[[Any], Any]
    fields: Sequence[str]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"Map: {self.function!r} cannot be called", hint="give a function of a tensor")
        if isinstance(self.fields, str) or not self.fields:
            raise UsageError(
                f"Map: fields={self.fields!r} names no fields", hint='give a list of names, as ["x"]'
            )
        object.__setattr__(self, "fields", tuple(self.fields))

    def __call__(self, item: Item) -> Item:
        """Return the item with the function applied."""
        _refuse_absent("Map", self.fields, item)
        mapped = {}
        for name in self.fields:
            value = item[name]
            try:
                result = self.function(value)
            except Exception as error:
                error.add_note(f"in {self.function!r} over field {name!r} of sequence {item.get('seq_id')!r}")
                raise
            if _n_steps(value) != _n_steps(result):
                raise RaggedListError(
                    f"Map changes the number of steps: field {name!r}, sequence {item.get('seq_id')!r}; expected "
                    f"{_n_steps(value)}, found {_n_steps(result)}",
                    hint="give a transform of the whole item, which can set 'length' too",
                    field=name,
                    seq_id=item.get("seq_id"),
                    expected=_n_steps(value),
                    found=_n_steps(result),
                )
            mapped[name] = result
        return item | mapped


class Normalize:
    """Subtract the mean of each column and divide by its standard deviation, over the selection that is trained on.

    Give the statistics of the training selection to the datasets of validation and test too. Of a column with one value
    only the mean is subtracted, so that it becomes 0 and nothing is divided by 0. Values that a policy filled in are
    treated as any others; the mask still says where they are. It is computed in float64 and given in the field's own
    dtype; integers become float32.

    It holds two numbers a column and pickles to a few hundred bytes.

    Parameters
    ----------
    statistics : Manifest, or mapping of ColumnStatistics by column
        What `Selection.statistics` or `Manifest.statistics` returned, or a manifest that has them pinned.
    fields : mapping of str to str or sequence of str
        Which fields, and which columns they are made of, as the dataset has them. A field of one list column has one
        mean for all its values.
    epsilon : float, default 0.0
        Added to the variance, as in batch normalisation, for columns that hardly vary.

    Raises
    ------
    UsageError
        If a column has no statistics or no finite value, a field is not there, no tensor, or of another width.
    """

    def __init__(
        self,
        statistics: Any,
        fields: FieldsArgument,
        *,
        epsilon: float = 0.0,
    ) -> None:
        if not 0 <= epsilon < math.inf:
            raise UsageError(
                f"epsilon={epsilon!r} makes no sense: expected a number >= 0", argument="epsilon"
            )
        known = statistics if isinstance(statistics, Mapping) else _pinned(statistics)
        self._columns = {name: columns for name, (columns, _) in parse_fields(fields).items()}
        self._numbers = {
            name: tuple(_mean_and_scale(column, known, epsilon) for column in columns)
            for name, columns in self._columns.items()
        }

    def __call__(self, item: Item) -> Item:
        """Return the item with those fields normalised, in memory of their own."""
        _refuse_absent("Normalize", self._numbers, item)
        return item | {name: self._scaled(name, item) for name in self._numbers}

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return values of a field, a model's predictions say, in the unit of the files again.

        Parameters
        ----------
        name : str
            The field.
        values : Tensor, shape (..., F)
            As the field has them; any shape for a field of one column.
        """
        refuse_unknown("invert", [name], self._numbers)
        mean, scale = self._tensors(name, values, values.dtype, seq_id=None)
        return values * scale + mean

    def __repr__(self) -> str:
        return f"Normalize({self._columns!r})"

    def _scaled(self, name: str, item: Item) -> torch.Tensor:
        tensor = _tensor("Normalize", name, item)
        mean, scale = self._tensors(name, tensor, torch.float64, seq_id=item.get("seq_id"))
        if tensor.is_floating_point():
            return ((tensor.double() - mean) / scale).to(tensor.dtype)
        return ((tensor.double() - mean) / scale).float()

    def _tensors(
        self, name: str, values: torch.Tensor, dtype: torch.dtype, *, seq_id: object
    ) -> tuple[torch.Tensor | float, torch.Tensor | float]:
        numbers = self._numbers[name]
        if len(numbers) == 1:
            return numbers[0]
        if not values.ndim or values.shape[-1] != len(numbers):
            raise UsageError(
                f"Normalize: field {name!r} has {len(numbers)} columns, {', '.join(map(repr, self._columns[name]))}, "
                f"and the tensor has shape {tuple(values.shape)}: sequence {seq_id!r}",
                hint="name the columns that the dataset has for the field; a list column is a field of its own",
                field=name,
                expected=len(numbers),
                found=tuple(values.shape),
            )
        mean, scale = torch.tensor(numbers, dtype=dtype, device=values.device).unbind(1)
        return mean, scale


def checked_transform(transform: object) -> Transform | None:
    """Return a dataset's transform as one function, or None for none, after the check that it pickles.

    Raises
    ------
    UsageError
        If it cannot be called, or cannot be sent to another process.
    """
    if transform is None:
        return None
    if isinstance(transform, list | tuple):
        transform = Compose(transform)
    elif not callable(transform):
        raise UsageError(
            f"transform={transform!r} cannot be called", hint="give a function of an item, or a list of them"
        )
    try:
        pickle.Pickler(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL).dump(transform)
    except Exception as error:  # whatever an object's own pickling raises
        raise UsageError(
            f"transform={_shown(transform)} cannot be sent to worker processes, since it does not pickle: {error}",
            hint="define the function at the top of a module instead of a lambda or a function in a function, and give "
            "it values with functools.partial",
            argument="transform",
        ) from error
    return transform


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


class _Nowhere:
    """A file that forgets: a transform may hold a large table, of which no copy is needed."""

    def write(self, data: Any) -> int:
        """Take bytes."""
        return memoryview(data).nbytes


def _pinned(manifest: Any) -> Mapping[str, ColumnStatistics]:
    if not hasattr(manifest, "header"):  # a selection would read all its data behind the user's back
        raise UsageError(
            f"Normalize: statistics is a {type(manifest).__name__}; expected a Manifest with statistics, or a mapping",
            hint='give selection.statistics(["f0", "f1"]), or a manifest pinned with statistics=["f0", "f1"]',
            found=type(manifest).__name__,
        )
    statistics: Mapping[str, ColumnStatistics] = manifest.statistics()
    return statistics


def _mean_and_scale(
    column: str, known: Mapping[str, ColumnStatistics], epsilon: float
) -> tuple[float, float]:
    found = known.get(column)
    if found is None:
        raise UsageError(
            f"Normalize: column {column!r} has no statistics; known are those of "
            f"{', '.join(map(repr, known)) or 'no column'}",
            hint=f"compute them too: selection.statistics([..., {column!r}])",
            column=column,
        )
    if found.mean is None or found.std is None:
        raise UsageError(
            f"Normalize: column {column!r} has no finite value in the selection, and so no mean",
            hint="leave it out",
            column=column,
        )
    scale = math.sqrt(found.std * found.std + epsilon)
    return found.mean, scale or 1.0


def _refuse_absent(transform: str, names: Mapping[str, Any] | Sequence[str], item: Item) -> None:
    for name in names:
        if name not in item:
            raise UsageError(
                f"{transform}: {name!r} is not in the item, which has {', '.join(map(repr, item))}",
                hint="transforms are applied in order: one before may have renamed it",
                name=name,
            )


def _tensor(transform: str, name: str, item: Item) -> torch.Tensor:
    value = item[name]
    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"{transform}: {name!r} is a {type(value).__name__} and no tensor: sequence {item.get('seq_id')!r}",
            hint="make it a number in the query, or map it to one before",
            name=name,
        )
    return value


def _n_steps(value: Any) -> int | None:
    """Return the length of what has a time axis: lists, and tensors with an axis."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.ndim else None
    return len(value) if isinstance(value, list) else None
