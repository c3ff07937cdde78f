"""The map-style dataset: position in the selection -> the tensors of that sequence."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import pyarrow as pa
import torch
from torch.utils.data import Dataset

from pqindex.errors import (
    SelectionIndexError,
    SequenceTooLongError,
    SourceError,
    UsageError,
)
from pqindex.numbers import NumberRead, NumberReader
from pqindex.reader import Reader, Source
from pqindex.torch.arguments import integer, one_of, refuse_other_source
from pqindex.torch.batches import BATCH_NUMBER, carry_number
from pqindex.torch.decoded import DecodedCache, Kind
from pqindex.torch.fields import (
    DEFAULT_DTYPE,
    MASK_SUFFIX,
    DTypeArgument,
    Field,
    FieldsArgument,
    PoliciesArgument,
    parse_fields,
    resolve_fields,
)
from pqindex.torch.steps import Steps, TimeAxis, one_row
from pqindex.torch.tensors import field_of_numbers, number_fields, read_field
from pqindex.torch.transforms import Transform, checked_transform

if TYPE_CHECKING:
    from pqindex.torch.stops import Int64Array

Item = dict[str, Any]

FIRST_SEQUENCES: Final = 10
# names of an item or a batch that are not the user's to give
_RESERVED: Final = ("seq_id", "length", "lengths", "mask", BATCH_NUMBER)


class SequenceDataset(Dataset[Item]):
    """The sequences of a selection as tensors, by position.

    ``ds[0]`` is a dict, ``{"x": (T, F), "y": (T, K), "seq_id": ..., "length": T}``.

    What can be known without the data is checked here: columns and their types, dtypes and policies, names,
    lengths. The rest is checked at each read, with field, column, sequence and row in the message; how each
    Arrow type is treated is written in `pqindex.torch.fields`.

    A read costs the bytes of the sequence's projected columns. No file is opened before the first read of a
    process, so fork, spawn and forkserver all work, also after reads in the parent. A dataset pickles to a
    few KB, whatever the selection's size. Threads may share it. Every tensor is the only owner of its memory.

    Parameters
    ----------
    source : Selection or Manifest
        Which sequences, in which order.
    fields : mapping of str to str or sequence of str
        ``{"x": ["f0", "f1"]}`` gives x of shape (T, 2); ``{"y": "label"}`` gives y of shape (T,), or (T, k)
        for a column of lists of k numbers. A string column given by its name comes as a list of T strings.
    dtype : torch.dtype, None, or mapping of those by field, default torch.float32
        None keeps a column's own dtype. Fields that a mapping leaves out get float32.
    max_rows : int, optional
        Refuse a selection that holds a longer sequence; with ``lists="time"``, one of more steps.
    lists : {"rows", "time"}, default "rows"
        "rows": a list in a row is the values of that row, along the last axis. "time": a row is a whole sequence, and
        the values of its lists are the time steps, so ``{"x": ["f0", "f1"]}`` gives (T, 2) where the lists have T
        values. All list columns of a row must have one length; the lists of several rows follow each other. A column
        without lists is given by its name and says one thing of the sequence: its shape is ().
    length : str, optional
        For ``lists="time"``: the column of the query that says how many steps each sequence has. Then `max_rows` and
        `item_nbytes` hold without reading, and a sequence of another length is an error.
    nulls : "error", "keep", ("fill", value), or mapping of those by field, default "error"
        "keep" gives NaN (None among strings). A fill adds ``<field>_mask``, True where the value is the
        file's own.
    non_finite : "error", "keep", ("fill", value), or mapping of those by field, default "error"
        About NaN and infinities after the cast, so that 1e39 counts in float32. A fill adds the mask too.
    lossy : bool, default False
        Let casts change integers: rounded in a float dtype, wrapped around in a narrower integer, fractions
        cut off.
    staleness : {"error", "warn", "refresh", "ignore"}, default "error"
        What to do where a file is not the one that was indexed. ``"refresh"`` refreshes the index of a selection and
        asks it again; give this dataset to `BatchPlan` then, since the selection is of before.
    max_open_files : int, default 128
        A process.
    transform : callable or sequence of those, optional
        Applied to each item, last, one after the other; see `pqindex.torch.transforms`. Each must be picklable, since
        workers may be spawned. One that changes the number of rows must set "length" too.
    cache : {"disk", "memory"}, optional
        Keep the tensors of sequences that were decoded, in a file or in memory that the processes of this machine
        share: workers, ranks and later runs read them from there. See `pqindex.torch.decoded`.
    cache_dir : path, optional
        With "disk": the folder; by default below the user's cache folder, where caches that no process has open make
        room for a new one.
    cache_bytes : int, optional
        As many of the first sequences as fit are kept; 64 GiB on disk by default, 4 GiB in memory.

    Raises
    ------
    UsageError
        If an argument makes no sense, or a name is used twice.
    ColumnMissingError
        If a column is not there.
    ColumnTypeError
        If no tensor can be made of a column.
    SequenceTooLongError
        If a sequence has more than `max_rows` rows. With ``lists="time"`` and no `length`, only a read can tell.
    """

    def __init__(
        self,
        source: Source,
        fields: FieldsArgument,
        *,
        dtype: DTypeArgument = DEFAULT_DTYPE,
        max_rows: int | None = None,
        lists: Literal["rows", "time"] = "rows",
        length: str | None = None,
        nulls: PoliciesArgument = "error",
        non_finite: PoliciesArgument = "error",
        lossy: bool = False,
        staleness: Literal["error", "warn", "refresh", "ignore"] = "error",
        max_open_files: int = 128,
        transform: Transform | Sequence[Transform] | None = None,
        cache: Kind | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        refuse_other_source(source, "read_plan")
        one_of("lists", lists, ("rows", "time"))
        if length is not None and lists == "rows":
            raise UsageError(
                f"length={length!r} is for lists='time'; the length of other sequences is their number of rows",
                hint="leave it out, or give it to BatchPlan",
                argument="length",
            )
        parsed = parse_fields(fields)
        self._transform = checked_transform(transform)
        columns = list(dict.fromkeys(column for names, _ in parsed.values() for column in names))
        self._reader = Reader(source, columns=columns, max_open_files=max_open_files, staleness=staleness)
        self._fields = resolve_fields(
            parsed,
            self._reader.schema,
            dtype=dtype,
            nulls=nulls,
            non_finite=non_finite,
            lossy=bool(lossy),
            lists=lists,
        )
        self._list_widths: dict[str, int] = {}
        self._seed: int | None = getattr(source, "seed", None)
        numbers, self._sources = number_fields(self._fields if lists == "rows" else ())
        self._numbers = NumberReader(self._reader, numbers)
        self._check_names()
        longest = None if max_rows is None else integer("max_rows", max_rows, least=1)
        self._time = None if lists == "rows" else TimeAxis(length=length, max_steps=longest)
        if self._time is not None:
            self._time.check_column(self._reader.extra)
        if longest is not None and (self._time is None or length is not None):
            self._check_lengths(longest)
        self._cache = self._open_cache(cache, cache_dir, cache_bytes)

    # -- what is in it ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._reader)

    @property
    def digest(self) -> str:
        """Identity of the selection or manifest."""
        return self._reader.digest

    @property
    def row_counts(self) -> Int64Array:
        """Rows of each sequence: shape (n,), int64."""
        return self._reader.row_counts

    @property
    def seq_ids(self) -> pa.Array:
        """Ids of the sequences: an Arrow array of length n, in the key's own type."""
        return self._reader.seq_ids

    @property
    def extra(self) -> pa.Table:
        """The query's other columns, a row a sequence."""
        return self._reader.extra

    @property
    def seed(self) -> int | None:
        """Seed that was pinned with the sequences, if any; what a `BatchPlan` of this dataset takes."""
        return self._seed

    def item_nbytes(self, index: SupportsIndex) -> int:
        """Return the bytes that the tensors of a sequence take: rows x values a row x width, masks included.

        Text and the query's columns are not counted. How many values a list column of no fixed size holds is
        learnt from one read of the first sequence, once; everything else is known without the data.

        Raises
        ------
        UsageError
            With ``lists="time"`` and no `length`, since nothing but a read tells how many steps a sequence has.
        """
        position = self._position(index)
        return int(self._lengths()[position]) * self._step_nbytes() + self._sequence_nbytes()

    @property
    def max_item_nbytes(self) -> int:
        """Bytes that the tensors of the longest sequence take: batches and prefetching multiply it.

        Raises `UsageError` where `item_nbytes` does.
        """
        lengths = self._lengths()
        return int(lengths.max()) * self._step_nbytes() + self._sequence_nbytes() if len(self) else 0

    # -- reading ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return the sequence at a position, negative from the end.

        Returns
        -------
        dict
            Each field, and ``<field>_mask`` where values are filled; "seq_id", the key's value; "length", the
            number of rows T; and the query's other columns by their names. With a transform, what that
            returns.

        Raises
        ------
        SelectionIndexError
            If the position is outside the selection.
        NullValueError, NonFiniteError, LossyCastError, RaggedListError
            If a value is refused.
        """
        position = self._position(index)
        kept = self._kept(position)
        return self._read([position])[0] if kept is None else self._finished(position, kept)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return the sequences at some positions, in their order, read together; a DataLoader calls this.

        Each item of a batch that a `BatchPlan` made carries its "batch_number", so that `BatchPlan.delivered` knows
        it again.
        """
        positions = [self._position(index) for index in indices]
        kept = [self._kept(position) for position in positions]
        missing = [position for position, item in zip(positions, kept, strict=True) if item is None]
        read = iter(self._read(missing))
        items = [
            next(read) if item is None else self._finished(position, item)
            for position, item in zip(positions, kept, strict=True)
        ]
        return carry_number(items, indices)

    def warm(self, *, progress: Callable[[int, int], None] | None = None, batch_size: int = 64) -> None:
        """Read every sequence that the cache keeps and does not have yet.

        Several processes may do so at once; a stop loses nothing that is there. Where the disk takes no more, it ends.

        Parameters
        ----------
        progress : callable, optional
            Told how many of how many sequences are there.
        batch_size : int, default 64
            Sequences read together.

        Raises
        ------
        UsageError
            If the dataset has no cache.
        """
        if self._cache is None:
            raise UsageError("the dataset has no cache to warm", hint='give it cache="disk" or "memory"')
        n_kept = self._cache.n_kept
        for start in range(0, n_kept, integer("batch_size", batch_size, least=1)):
            stop = min(start + batch_size, n_kept)
            missing = [position for position in range(start, stop) if not self._cache.has(position)]
            self._read(missing)
            if self._cache.is_full:
                return
            if progress is not None:
                progress(stop, n_kept)

    def close(self) -> None:
        """Close the files that this process has open; the next read opens them again."""
        self._reader.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._cache is not None:
            self._cache.reopen(self.row_counts)

    def _position(self, index: SupportsIndex) -> int:
        n = len(self)
        try:
            asked = operator.index(index)
        except TypeError:
            raise UsageError(
                f"a sequence is asked for by {index!r}; expected an integer position",
                hint="for several sequences, use dataset.__getitems__([...]) or a BatchPlan",
            ) from None
        if not -n <= asked < n:
            raise SelectionIndexError(
                f"position {asked} is outside the selection of {n} sequences",
                hint="positions count from 0 in the selection's order; they are not sequence ids",
                index=asked,
                n_sequences=n,
            )
        return asked + n if asked < 0 else asked

    def _read(self, positions: Sequence[int]) -> list[Any]:
        """Return the items at some positions, read together."""
        if not positions:
            return []
        counts = self._reader.row_counts
        reads = self._read_rows([(position, 0, int(counts[position])) for position in positions])
        return [self._item(position, read) for position, read in zip(positions, reads, strict=True)]

    def _read_rows(self, requests: Sequence[tuple[int, int, int]]) -> list[NumberRead]:
        """Return some rows of each of several sequences; with ``lists="time"`` as tables."""
        if self._sources:
            return self._numbers.read_rows(requests)
        return [NumberRead(None, [], table) for table in self._reader.read_rows(requests)]

    def _item(self, position: int, read: NumberRead) -> Any:
        """Return an item of the rows of a sequence."""
        if self._time is not None:
            return self._item_of_steps(position, read.table, self._steps(position, read.table))
        item: Item = {}
        rows = slice(0, int(self.row_counts[position]))
        seq_id = self._reader.seq_ids[position].as_py()
        for field in self._fields:
            item[field.name], mask = self._values(field, position, read, rows, seq_id)
            if mask is not None:
                item[field.name + MASK_SUFFIX] = mask
        if self._cache is not None:
            self._cache.store(position, item)
        return self._finished(position, item)

    def _item_of_steps(self, position: int, table: pa.Table, steps: Steps | None) -> Any:
        """Return an item whose lists are the time axis."""
        seq_id = self._reader.seq_ids[position].as_py()
        item: Item = {}
        for field in self._fields:
            try:
                item[field.name], mask = read_axis(field, table, steps, seq_id)
            except SourceError as error:
                raise self._placed(error if steps is None else steps.with_row(error), position) from None
            if mask is not None:
                item[field.name + MASK_SUFFIX] = mask
        return self._finished(position, item, length=None if steps is None else steps.table.num_rows)

    def _kept(self, position: int) -> Item | None:
        """Return the fields of a sequence where the cache has them."""
        if self._cache is None:
            return None
        return self._cache.load(position, int(self.row_counts[position]))

    def _finished(self, position: int, item: Item, *, length: int | None = None) -> Any:
        """Return an item with all that it has besides its fields, through the transform."""
        item |= self._ids(position, length=int(self.row_counts[position]) if length is None else length)
        return item if self._transform is None else self._transform(item)

    def _values(
        self,
        field: Field,
        position: int,
        read: NumberRead,
        rows: slice,
        seq_id: object,
        *,
        first_row: int = 0,
    ) -> tuple[torch.Tensor | list[Any], torch.Tensor | None]:
        """Return a field of some of the rows that were read of a sequence, and its mask if it has one.

        Parameters
        ----------
        rows : slice
            Which of the rows that were read.
        first_row : int
            Which row of the sequence the first of these is.
        """
        source = self._sources.get(field.name)
        n_rows = rows.stop - rows.start
        try:
            if source is None or read.arrays is None:
                return read_field(field, read.rows_of_table(rows), seq_id, first_row=first_row)
            request = (position, first_row, first_row + n_rows)
            return field_of_numbers(
                field,
                source,
                read,
                seq_id,
                rows=rows,
                first_row=first_row,
                whole=lambda: self._reader.read_rows([request])[0],
            )
        except SourceError as error:
            raise self._placed(error, position) from None

    def _ids(self, position: int, *, length: int) -> Item:
        """Return what an item has besides its fields: id, length, and the query's other columns."""
        extra = self._reader.extra
        columns = {name: extra.column(i)[position].as_py() for i, name in enumerate(extra.column_names)}
        return {"seq_id": self._reader.seq_ids[position].as_py(), "length": length, **columns}

    def _steps(self, position: int, table: pa.Table) -> Steps | None:
        """Return the list columns of a sequence as steps, where lists are the time axis."""
        if self._time is None:
            return None
        try:
            return self._time.steps(
                table, position, self._reader.seq_ids[position].as_py(), self._reader.extra
            )
        except SourceError as error:
            raise self._placed(error, position) from None

    def _placed(self, error: SourceError, position: int) -> SourceError:
        """Return the error with the file and the row group of the value that it tells of."""
        row = int(error.facts.get("row", 0))
        for segment in self._reader.segments(position):
            n_rows = segment.row_stop - segment.row_start
            if row < n_rows:
                facts = {**error.facts, "file": segment.file, "row_group": segment.row_group}
                where = f"{segment.file}, row group {segment.row_group}"
                return type(error)(f"{where}: {error.message}", hint=error.hint, **facts)
            row -= n_rows
        return error

    def _lengths(self) -> Int64Array:
        """Return the number of time steps of each sequence, as far as it is known without reading."""
        return self.row_counts if self._time is None else self._time.lengths(self._reader.extra)

    def _step_nbytes(self) -> int:
        fields = [field for field in self._fields if field.axis != "sequence"]
        return sum(field.row_nbytes(self._width(field.name, field.width)) for field in fields)

    def _sequence_nbytes(self) -> int:
        return sum(field.row_nbytes(1) for field in self._fields if field.axis == "sequence")

    def _width(self, name: str, known: int | None) -> int:
        if known is not None:
            return known
        if name not in self._list_widths:
            table, seq_id = self._reader[0], self._reader.seq_ids[0].as_py()
            steps = self._steps(0, table)
            for field in self._fields:
                if field.width is None:
                    values, _ = read_axis(field, table, steps, seq_id)
                    if isinstance(values, torch.Tensor):
                        self._list_widths[field.name] = values.shape[1]
        return self._list_widths[name]

    # -- checks ----------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        extras = self._reader.extra.column_names
        fields = [field.name for field in self._fields]
        masks = [field.name + MASK_SUFFIX for field in self._fields if field.is_masked]
        taken: set[str] = set(_RESERVED)
        for names, what, remedy in (
            (fields, "field", "give the field another name"),
            (masks, "mask", "give the field another name"),
            (extras, "column of the query", "name it otherwise in the query, with AS"),
        ):
            for name in names:
                if name in taken:
                    raise UsageError(
                        f"the name {name!r} of a {what} is taken: an item has one value a name, and "
                        f"{', '.join(_RESERVED)} are its own",
                        hint=remedy,
                        name=name,
                    )
                taken.add(name)

    def _open_cache(
        self, kind: Kind | None, folder: str | os.PathLike[str] | None, max_bytes: int | None
    ) -> DecodedCache | None:
        if kind is None:
            if folder is not None or max_bytes is not None:
                raise UsageError(
                    "cache_dir and cache_bytes belong to a cache", hint='give cache="disk" or "memory"'
                )
            return None
        if self._time is not None:
            raise UsageError(
                "a cache needs sequences whose sizes are their rows, and lists='time' has others",
                hint="leave cache= out",
            )
        return DecodedCache(
            self._fields,
            self._reader.row_counts,
            identity=self._reader.plan_digest,
            kind=kind,
            folder=folder,
            max_bytes=max_bytes,
        )

    def _check_lengths(self, max_rows: int) -> None:
        lengths = self._lengths()
        too_long = (lengths > max_rows).nonzero()[0]
        if not too_long.size:
            return
        what, column = ("rows", "row_count") if self._time is None else ("steps", self._time.length)
        first = [(self.seq_ids[int(i)].as_py(), int(lengths[i])) for i in too_long[:FIRST_SEQUENCES]]
        listed = ", ".join(f"{seq_id!r} ({n_rows})" for seq_id, n_rows in first)
        more = f", and {too_long.size - len(first)} more" if too_long.size > len(first) else ""
        raise SequenceTooLongError(
            f"{too_long.size} of {len(self)} sequences have more than max_rows={max_rows} {what}; "
            f"sequences ({what}): {listed}{more}",
            hint=f"select with WHERE {column} <= {max_rows}, or raise max_rows",
            max_rows=max_rows,
            n_sequences=int(too_long.size),
            sequences=tuple(first),
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.dtype or 'text'}" for field in self._fields)
        return f"SequenceDataset({len(self)} sequences; {fields})"


def read_axis(
    field: Field, table: pa.Table, steps: Steps | None, seq_id: object
) -> tuple[Any, torch.Tensor | None]:
    """Return a field of a sequence along its own axis, and its mask if it has one: rows, steps, or the one value."""
    if field.axis == "row" or steps is None:
        return read_field(field, table, seq_id)
    if field.axis == "step":
        return read_field(field, steps.table, seq_id)
    values, mask = read_field(field, one_row(table, field, seq_id), seq_id)
    return values[0], None if mask is None else mask[0]
