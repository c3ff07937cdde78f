"""Windows of sequences as items: a map-style dataset whose positions are windows, regular or drawn."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset

from pqindex.digest import canonical_json, sha256_hex
from pqindex.errors import SelectionIndexError, SequenceTooShortError, UsageError
from pqindex.numbers import NumberRead
from pqindex.reader import Source
from pqindex.torch.arguments import integer
from pqindex.torch.batches import carry_number
from pqindex.torch.dataset import Item, SequenceDataset
from pqindex.torch.fields import DEFAULT_DTYPE, MASK_SUFFIX, DTypeArgument, FieldsArgument, PoliciesArgument
from pqindex.torch.permutation import MAX_N
from pqindex.torch.sharedvalue import SharedValue
from pqindex.torch.windowparts import PaddingArgument, PartsArgument, resolve_parts
from pqindex.torch.windowplaces import (
    DrawBy,
    Int64Array,
    Partial,
    PrefixSums,
    RandomWindows,
    WindowGrid,
)

# names of an item that a window has besides those of a sequence
_RESERVED: Final = ("row_start", "context_mask", "horizon_mask")


class WindowDataset(Dataset[Item]):
    """Windows of the sequences of a selection as tensors, by number.

    A window is `length` consecutive rows of one sequence; windows never cross sequences. Rows before it, its
    context, and after it, its horizon, go to the fields that `parts` says. ``ds[0]`` is a dict,
    ``{"x": (length, F), "seq_id": ..., "length": ..., "row_start": ...}``.

    Windows are numbered in the order of the selection, and by their start inside a sequence. Their places are
    arithmetic: a window is found in O(log n), and 10^9 of them take no more memory than one. A read costs the
    pages that hold its rows where the index knows the pages' places, and else the row group, which is kept
    decoded for its neighbours. A `BatchPlan` over the dataset makes batches of windows.

    With `draw`, the dataset is that many windows an epoch, drawn with replacement. Window i of an epoch is a
    pure function of (seed, epoch, i), so it hangs on neither workers nor ranks, and a resumed epoch goes on
    with the same windows. Call `set_epoch` between epochs; it reaches workers that live on.

    Fork, spawn and forkserver all work, a dataset pickles to a few KB, and threads may share it, as with
    `SequenceDataset`.

    Parameters
    ----------
    source : Selection or Manifest
        Which sequences, in which order.
    fields : mapping of str to str or sequence of str
        As of `SequenceDataset`.
    length : int
        Rows of a window.
    stride : int, optional
        Rows from one window's start to the next one's. By default `length`, so that windows do not overlap;
        with `draw`, 1, so that every row may be a start.
    context, horizon : int, default 0
        Rows before and after a window.
    partial : {"drop", "keep", "pad"}, default "drop"
        "drop": only windows whose context, rows and horizon all lie in the sequence. "keep": windows start at
        row 0 and go on until the last row is reached, and the last may be shorter; without context and
        horizon. "pad": the same windows, each filled up to its full size, with masks. See `WindowGrid`.
    parts : mapping of str to part or sequence of parts, optional
        Which rows a field takes: "context", "window" or "horizon", or neighbours of these, such as
        ``("context", "window")``. Fields that are left out take the window. One column may go to several
        fields: ``fields={"past": ["f0"], "future": ["f0"]}, parts={"future": "horizon"}``.
    padding : number, "edge", or mapping of those by field, optional
        What stands in padded rows: by default 0, and None among text. "edge" repeats the nearest row.
    draw : int, optional
        Draw so many windows an epoch instead of taking all in turn.
    draw_by : {"windows", "sequences"}, default "windows"
        Whether every window is equally likely, or every sequence that has one, and then every window of it.
    seed : int, optional
        Of the draws, in [0, 2**64). By default the manifest's seed, else 0.
    dtype, nulls, non_finite, lossy, staleness, max_open_files, transform
        As of `SequenceDataset`. Values are checked in the rows that a field takes.

    Raises
    ------
    UsageError
        If an argument makes no sense, or a name is used twice.
    SequenceTooShortError
        If there are sequences and none has a window.
    ColumnMissingError, ColumnTypeError
        As of `SequenceDataset`.

    Examples
    --------
    Forecasting: 64 rows in, the next 16 out::

        WindowDataset(
            selection, {"past": ["f0", "f1"], "future": ["f0"]},
            length=64, stride=8, horizon=16, parts={"future": "horizon"},
        )

    Imitation learning: at each row, two observations up to it and eight actions from it on::

        WindowDataset(
            selection, {"state": ["s0", "s1"], "action": ["a0"]},
            length=1, context=1, horizon=7, partial="pad", padding="edge",
            parts={"state": ("context", "window"), "action": ("window", "horizon")},
        )
    """

    def __init__(
        self,
        source: Source,
        fields: FieldsArgument,
        *,
        length: int,
        stride: int | None = None,
        context: int = 0,
        horizon: int = 0,
        partial: Partial = "drop",
        parts: PartsArgument | None = None,
        padding: PaddingArgument = None,
        draw: int | None = None,
        draw_by: DrawBy = "windows",
        seed: int | None = None,
        dtype: DTypeArgument = DEFAULT_DTYPE,
        nulls: PoliciesArgument = "error",
        non_finite: PoliciesArgument = "error",
        lossy: bool = False,
        staleness: Literal["error", "warn", "refresh", "ignore"] = "error",
        max_open_files: int = 128,
        transform: Callable[[Item], Any] | None = None,
    ) -> None:
        if stride is None:
            stride = length if draw is None else 1
        self._grid = WindowGrid.of(
            length=length, stride=stride, context=context, horizon=horizon, partial=partial
        )
        self._draw = None if draw is None else integer("draw", draw, least=1, below=MAX_N)
        self._draw_by: DrawBy = draw_by
        if draw is None and draw_by != "windows":
            raise UsageError(
                f"draw_by={draw_by!r} is given without draw", hint="give draw=N, windows an epoch"
            )
        self._sequences = SequenceDataset(
            source,
            fields,
            dtype=dtype,
            nulls=nulls,
            non_finite=non_finite,
            lossy=lossy,
            staleness=staleness,
            max_open_files=max_open_files,
            transform=transform,
        )
        self._refuse_taken_names()
        self._rows = resolve_parts(parts, padding, fields=self._sequences._fields, grid=self._grid)
        self._mask_rows = self._rows_of_masks()
        pinned: int | None = getattr(source, "seed", None)
        self._seed = pinned if seed is None else integer("seed", seed, below=1 << 64)
        self._epoch = SharedValue(0, capacity=32)
        self._find_windows()
        if len(self._sequences) and not self._places.total:
            self._refuse_short_sequences()

    def _find_windows(self) -> None:
        """Make what says where windows lie; it is O(sequences), so it is made anew in a worker, not pickled."""
        row_counts = self._sequences.row_counts
        self._places: PrefixSums | RandomWindows
        if self._draw is None:
            self._places = PrefixSums(row_counts, self._grid.counts)
        else:
            self._places = RandomWindows(self._grid, row_counts, by=self._draw_by, seed=self._seed or 0)

    # -- what is in it ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of windows of an epoch."""
        return self._places.total if self._draw is None or not self._places.total else self._draw

    @property
    def n_sequences(self) -> int:
        """Number of sequences of the selection, with and without windows."""
        return len(self._sequences)

    @property
    def n_sequences_without_window(self) -> int:
        """Number of sequences that are too short for a window, so that none of their rows is seen."""
        row_counts = self._sequences.row_counts
        return int(np.count_nonzero(row_counts < self._grid.n_rows_needed))

    @property
    def seed(self) -> int | None:
        """Seed of the draws, and by default of a plan over the dataset: as given, else the manifest's."""
        return self._seed

    @property
    def digest(self) -> str:
        """Identity of the windows: sha256 over the selection's digest and what says which windows there are."""
        grid = self._grid
        draw = None if self._draw is None else [str(self._draw), self._draw_by, str(self._seed or 0)]
        places = [str(n) for n in (grid.length, grid.stride, grid.context, grid.horizon)]
        return sha256_hex(
            canonical_json(
                {
                    "windows": 1,
                    "source": self._sequences.digest,
                    "places": places,
                    "partial": grid.partial,
                    "draw": draw,
                }
            )
        )

    @property
    def row_counts(self) -> Int64Array:
        """Rows that each window's own part takes, padding included: shape (n,), int64, read-only.

        One number that is shown n times, without memory; but with ``partial="keep"`` 8 bytes a window. Drawn
        windows that are kept short count as full, since the next epoch draws others.
        """
        if self._grid.partial != "keep" or self._draw is not None:
            return np.broadcast_to(np.int64(self._grid.length), (len(self),))
        sequences, row_starts = self.locate(np.arange(len(self)))
        counts: Int64Array = np.minimum(self._sequences.row_counts[sequences] - row_starts, self._grid.length)
        counts.flags.writeable = False
        return counts

    @property
    def max_item_nbytes(self) -> int:
        """Bytes that the tensors of a window take at most: batches and prefetching multiply it.

        How many values a list column of no fixed size holds is learnt from one read of the first sequence.
        """
        if not len(self):
            return 0
        n_bytes = 0
        for field in self._sequences._fields:
            rows = self._rows[field.name]
            width = self._sequences._width(field.name, field.width)
            n_bytes += (rows.stop - rows.start) * field.row_nbytes(width)
        return n_bytes + sum(stop - start for start, stop in self._mask_rows.values())

    def locate(self, indices: Sequence[SupportsIndex] | Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where some windows lie, without reading anything.

        Returns
        -------
        sequences : ndarray, shape (m,), int64
            Positions of their sequences in the selection.
        row_starts : ndarray, shape (m,), int64
            Their first rows, counted in the sequence. Of drawn windows, in the present epoch.

        Raises
        ------
        SelectionIndexError
            If a number is outside the windows.
        """
        if isinstance(indices, np.ndarray) and indices.dtype == np.int64:
            numbers = indices
            self._refuse_outside(numbers)
        else:
            numbers = np.array([self._number(index) for index in indices], np.int64)
        if isinstance(self._places, RandomWindows):
            sequences, in_sequence = self._places.locate(numbers, self.epoch)
        else:
            sequences, in_sequence = self._places.locate(numbers)
        return sequences, self._grid.row_starts(in_sequence)

    # -- epochs ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Epoch whose windows are drawn."""
        return int(self._epoch.get())

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch: other windows are drawn, also in workers that live on. Without `draw`, all stays.

        A worker looks at the epoch when it reads a batch. So call it before the epoch is iterated and not in
        the middle of it.
        """
        self._epoch.set(integer("epoch", epoch, below=1 << 64))

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return the window of a number, negative from the end.

        Returns
        -------
        dict
            Each field, of shape (rows, F) or (rows,) where rows are those of its parts, and ``<field>_mask``
            where values are filled; "seq_id"; "length", the rows of the window that are the sequence's;
            "row_start", the window's first row, counted in the sequence; the query's other columns. With
            ``partial="pad"`` also "mask", shape (length,), True where a row is the sequence's, and likewise
            "context_mask" and "horizon_mask" where a field takes these. With a transform, what that returns.

        Raises
        ------
        SelectionIndexError
            If the number is outside the windows.
        NullValueError, NonFiniteError, LossyCastError, RaggedListError
            If a value is refused.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return the windows of some numbers, in their order, read together; a DataLoader calls this.

        They carry their "batch_number" as the items of a `SequenceDataset` do.
        """
        sequences, row_starts = self.locate([self._number(index) for index in indices])
        places = list(zip(sequences.tolist(), row_starts.tolist(), strict=True))
        requests = [(position, *self._rows_to_read(position, start)) for position, start in places]
        reads = self._sequences._read_rows(requests)
        items = [
            self._item(position, row_start, read, first)
            for (position, row_start), read, (_, first, _) in zip(places, reads, requests, strict=True)
        ]
        return carry_number(items, indices)

    def close(self) -> None:
        """Close the files that this process has open; the next read opens them again."""
        self._sequences.close()

    def _rows_to_read(self, position: int, row_start: int) -> tuple[int, int]:
        n_rows = int(self._sequences.row_counts[position])
        inside = [rows.inside(row_start, n_rows) for rows in self._rows.values()]
        return min(first for first, _ in inside), max(stop for _, stop in inside)

    def _item(self, position: int, row_start: int, read: NumberRead, first_row: int) -> Any:
        sequences, grid = self._sequences, self._grid
        n_rows = int(sequences.row_counts[position])
        item: Item = {}
        seq_id = sequences.seq_ids[position].as_py()
        for field in sequences._fields:
            rows = self._rows[field.name]
            first, stop = rows.inside(row_start, n_rows)
            values, mask = sequences._values(
                field, position, read, slice(first - first_row, stop - first_row), seq_id, first_row=first
            )
            if grid.partial == "pad":
                values, mask = rows.filled(values, mask, row_start=row_start, n_rows=n_rows, first=first)
            item[field.name] = values
            if mask is not None:
                item[field.name + MASK_SUFFIX] = mask
        item |= sequences._ids(position, length=min(grid.length, n_rows - row_start))
        item["row_start"] = row_start
        for name, (start, stop) in self._mask_rows.items():
            rows_of_part = torch.arange(row_start + start, row_start + stop)
            item[name] = (rows_of_part >= 0) & (rows_of_part < n_rows)
        return item if sequences._transform is None else sequences._transform(item)

    def _rows_of_masks(self) -> dict[str, tuple[int, int]]:
        """Return the rows of each mask of parts, counted from the window's start."""
        grid = self._grid
        rows = {
            "mask": (0, grid.length),
            "context_mask": (-grid.context, 0),
            "horizon_mask": (grid.length, grid.length + grid.horizon),
        }
        return {name: (a, b) for name, (a, b) in rows.items() if a < b} if grid.partial == "pad" else {}

    # -- to other processes ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_places"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._find_windows()

    # -- checks ----------------------------------------------------------------------------------------------

    def _number(self, index: SupportsIndex) -> int:
        try:
            asked = operator.index(index)
        except TypeError:
            raise UsageError(
                f"a window is asked for by {index!r}; expected an integer",
                hint="for several windows, use dataset.__getitems__([...]) or a BatchPlan",
            ) from None
        n = len(self)
        if not -n <= asked < n:
            self._refuse_number(asked)
        return asked + n if asked < 0 else asked

    def _refuse_outside(self, numbers: Int64Array) -> None:
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            self._refuse_number(int(numbers[outside.argmax()]))

    def _refuse_number(self, asked: int) -> None:
        raise SelectionIndexError(
            f"window {asked} is outside the {len(self)} windows of the dataset",
            hint="windows are numbered from 0, over all sequences of the selection",
            index=asked,
            n_windows=len(self),
        )

    def _refuse_taken_names(self) -> None:
        fields = self._sequences._fields
        names = [field.name for field in fields]
        names += [field.name + MASK_SUFFIX for field in fields if field.is_masked]
        for name in (*names, *self._sequences._reader.extra.column_names):
            if name in _RESERVED:
                raise UsageError(
                    f"the name {name!r} is taken: a window has {', '.join(_RESERVED)} for itself",
                    hint="give the field another name, or the column of the query, with AS",
                    name=name,
                )

    def _refuse_short_sequences(self) -> None:
        grid, longest = self._grid, int(self._sequences.row_counts.max())
        raise SequenceTooShortError(
            f"no sequence has the {grid.n_rows_needed} rows that a window needs (context {grid.context}, "
            f"length {grid.length}, horizon {grid.horizon}); the longest of {self.n_sequences} has {longest}",
            hint='give a smaller length, or partial="pad" or "keep" for windows that are partly there',
            expected=grid.n_rows_needed,
            found=longest,
        )

    def __repr__(self) -> str:
        grid = self._grid
        fields = ", ".join(f"{field.name}: {field.dtype or 'text'}" for field in self._sequences._fields)
        how = "" if self._draw is None else f" drawn by {self._draw_by}"
        return (
            f"WindowDataset({len(self)} windows of {grid.length} rows{how} from {self.n_sequences} sequences, "
            f"{self.n_sequences_without_window} of them too short; {fields})"
        )
