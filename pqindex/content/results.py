"""What the tasks of a content pass found, put together as columns of the tables of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.content.steps import Steps, step_columns
from pqindex.content.tasks import Layout
from pqindex.content.values import Partials, statistics_of
from pqindex.content.wanted import Wanted
from pqindex.content.work import GROUP_COLUMN, Found, changes
from pqindex.documents import BuildOptions
from pqindex.errors import NotConstantError
from pqindex.format import MAY_HAVE, PROVED, sequences_schema

_COLUMN_ORDER: Final = (*sequences_schema(pa.int64(), pa.int64(), {}).names, *MAY_HAVE)

Int64Array = npt.NDArray[np.int64]


def with_digests(row_groups: pa.Table, groups: Int64Array, found: Sequence[Found]) -> pa.Table:
    """Return the table `row_groups` with the digests, which were found of all of them."""
    digests = [digest for one in found for digest in one.digests]
    assert len(digests) == len(groups) == row_groups.num_rows  # noqa: S101  # digests are wanted of all row groups
    at = row_groups.column_names.index("data_sha256") if "data_sha256" in row_groups.column_names else None
    column = pa.array(digests, pa.binary(32))
    if at is None:
        return row_groups.append_column("data_sha256", column)
    return row_groups.set_column(at, row_groups.field(at), column)


def with_columns(
    sequences: pa.Table,
    layout: Layout,
    wanted: Wanted,
    found: Sequence[Found],
    later: Sequence[Found],
    tables: Mapping[str, pa.Table],
    options: BuildOptions,
) -> pa.Table:
    """Return the table `sequences` with what was found of its segments."""
    columns = {name: sequences.column(name) for name in sequences.column_names}
    stops = layout.segments.stops
    to_sequences = np.empty(len(layout.order), np.int64)
    to_sequences[layout.order] = np.arange(len(layout.order))
    if wanted.digests:
        structs, finite = {}, np.full(sequences.num_rows, bool(wanted.statistics))
        for name in wanted.statistics:
            parts = [one.statistics.pop(name) for one in found if name in one.statistics]  # which frees them
            if parts:
                structs[name], is_finite = statistics_of(Partials.joined(parts).take(to_sequences), stops)
                finite &= is_finite
        if structs:
            columns["stats"] = pa.chunked_array(
                [pa.StructArray.from_arrays(list(structs.values()), names=list(structs))]
            )
        columns["proved"] = pa.chunked_array([_with_finite(sequences.column("proved"), finite)])
    if wanted.order is not None:
        steps = [one.steps for one in found if one.steps is not None]
        if steps:
            columns |= step_columns(_in_order(Steps.joined(steps), to_sequences), stops)
    if wanted.attributes:
        arrays = {
            name: _attribute(name, data_type, found, to_sequences, layout, tables, options)
            for name, data_type in wanted.attributes.items()
        }
        columns["attributes"] = pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))
    if wanted.aggregates:
        columns["aggregates"] = _aggregates(wanted, layout, found, later)
    return pa.table({name: columns[name] for name in sorted(columns, key=_COLUMN_ORDER.index)})


def _with_finite(proved: pa.ChunkedArray, finite: npt.NDArray[np.bool_]) -> pa.StructArray:
    known = proved.combine_chunks()
    arrays = [pa.array(finite) if f.name == "finite" else known.field(f.name) for f in PROVED]
    return pa.StructArray.from_arrays(arrays, fields=list(PROVED))


def _in_order(steps: Steps, to_sequences: Int64Array) -> Steps:
    """Return the steps with segments in the order of sequences."""
    place = np.empty(len(to_sequences), np.int64)
    place[to_sequences] = np.arange(len(to_sequences))
    return Steps(
        n_segments=steps.n_segments,
        segment=place[steps.segment],
        step=steps.step,
        count=steps.count,
        has_many=steps.has_many[to_sequences],
        first=steps.first[to_sequences],
        last=steps.last[to_sequences],
    )


def _attribute(
    name: str,
    data_type: pa.DataType,
    found: Sequence[Found],
    to_sequences: Int64Array,
    layout: Layout,
    tables: Mapping[str, pa.Table],
    options: BuildOptions,
) -> pa.Array:
    """Return the value of an attribute of each sequence; all segments must have the same."""
    parts = [one.attributes[name] for one in found if name in one.attributes]
    if not parts:
        return pa.nulls(0, data_type)
    values = pa.concat_arrays(parts).take(pa.array(to_sequences))
    differs = changes(values)
    differs[layout.segments.stops[:-1]] = False
    at = np.flatnonzero(differs)
    if len(at):
        segment = int(at[0])
        raise _not_constant(
            tables,
            layout,
            options,
            column=name,
            segment=segment,
            row=int(layout.segments.row_start[segment]),
            before=repr(values[segment - 1].as_py()),
            after=repr(values[segment].as_py()),
            before_segment=segment - 1,
        )
    return values.take(pa.array(layout.segments.stops[:-1]))


def raise_not_constant(
    found: Sequence[Found], layout: Layout, tables: Mapping[str, pa.Table], options: BuildOptions
) -> None:
    """Raise for the first place, in the order of the files, where an attribute changes inside a segment."""
    base = 0
    for one in found:
        if one.faults:
            fault = min(one.faults, key=lambda fault: (fault.segment, fault.row))
            raise _not_constant(
                tables,
                layout,
                options,
                column=fault.column,
                segment=int(layout.order[base + fault.segment]),
                row=fault.row,
                before=fault.before,
                after=fault.after,
            )
        base += one.n_segments


def _not_constant(
    tables: Mapping[str, pa.Table],
    layout: Layout,
    options: BuildOptions,
    *,
    column: str,
    segment: int,
    row: int,
    before: str,
    after: str,
    before_segment: int | None = None,
) -> NotConstantError:
    own = layout.segments
    sequence = int(np.searchsorted(own.stops, segment, side="right")) - 1
    seq_id = tables["sequences"].column("seq_id")[sequence].as_py()
    paths = tables["files"].column("path")
    file, group = str(paths[int(own.file_id[segment])]), int(own.row_group[segment])
    where = f"{file}, row group {group}, row {row}"
    if before_segment is not None:
        other = str(paths[int(own.file_id[before_segment])])
        where = f"{other}, row group {int(own.row_group[before_segment])} and {where}"
    return NotConstantError(
        f"attribute {column!r} is not constant inside sequence {seq_id!r} (column {options.key!r}): {where}; "
        f"expected {before}, found {after}",
        hint=f"leave the attribute out, or name an aggregate of it: --aggregate {column}=first({column}), "
        f'aggregates={{"{column}": "first({column})"}}',
        file=file,
        row_group=group,
        row=row,
        column=column,
        seq_id=seq_id,
        expected=before,
        found=after,
    )


def _aggregates(
    wanted: Wanted, layout: Layout, found: Sequence[Found], later: Sequence[Found]
) -> pa.StructArray | pa.ChunkedArray:
    """Return the values of the aggregates of each sequence."""
    owner = layout.owner
    tables = []
    base = 0
    for one in found:
        for table in one.aggregates:
            segments = layout.order[base + table.column(GROUP_COLUMN).to_numpy()]
            tables.append(table.set_column(0, GROUP_COLUMN, pa.array(owner[segments])))
        base += one.n_segments
    tables += [table for one in later for table in one.aggregates]
    names = [name for name, _ in wanted.aggregates]
    if not tables:
        return pa.StructArray.from_arrays([pa.nulls(0)] * len(names), names=names)
    merged = pa.concat_tables(tables).sort_by(GROUP_COLUMN)
    return pa.StructArray.from_arrays([merged.column(name).combine_chunks() for name in names], names=names)


def content_notes(wanted: Wanted, tables: Mapping[str, pa.Table]) -> list[str]:
    """Return what a person should know of what was found."""
    sequences, notes = tables["sequences"], []
    if wanted.digests:
        unknown = tables["row_groups"].column("data_sha256").null_count
        if unknown:
            notes.append(f"content of {unknown} row groups is not recorded, since they are encrypted in part")
        proved = sequences.column("proved").combine_chunks().field("finite")
        n_not = len(proved) - proved.true_count
        if wanted.statistics and n_not:
            notes.append(
                f"{n_not} of {len(proved)} sequences hold NaN or infinities (`proved.finite` is false)"
            )
    if "order_gaps" in sequences.column_names and wanted.order is not None:
        gaps = sequences.column("order_gaps").combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
        if gaps.any():
            notes.append(
                f"{int(gaps.sum())} gaps in {wanted.order[0]!r}, in {int((gaps > 0).sum())} of {len(gaps)} sequences "
                "(`order_gaps`): steps of more than one and a half times the sequence's median step"
            )
    return notes
