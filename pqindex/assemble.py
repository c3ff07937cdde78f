"""From the runs of all files to sequences and segments, and what is refused on the way.

Runs of one key that touch are one piece, over the borders of row groups too. A key with several pieces is an error, or
is joined in the order of the order column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pqindex.documents import BuildOptions
from pqindex.errors import (
    FIRST_PLACES,
    FragmentedSequenceError,
    MixedRowGroupError,
    NotIncreasingError,
    NullKeyError,
    PlacesError,
)
from pqindex.format import PROVED, SEGMENTS, sequences_schema
from pqindex.keyruns import Place
from pqindex.places import expand_ranges
from pqindex.scan import ScanBatch
from pqindex.units import KEY, unit_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The runs of all files as arrays, in the order of the rows."""

    file_id: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    row_start: npt.NDArray[np.int64]
    row_stop: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    """Row number of the run's row group in the table `row_groups`."""
    seq_id: pa.Array
    order_min: pa.Array
    order_max: pa.Array
    order_proved: npt.NDArray[np.bool_]


def assemble(scan: ScanBatch, options: BuildOptions) -> tuple[pa.Table, pa.Table]:
    """Return the tables `sequences` and `segments`.

    Runs of one key that touch are one piece; a key with several pieces is an error, or is joined in the order of
    the order column. Where the unit is no key, each run, or all runs of a file, are a sequence.
    """
    if scan.null_runs and not options.skip_null_keys:
        raise _at(
            NullKeyError,
            f"{scan.n_null_rows} rows have no {options.key!r}",
            scan.null_runs,
            hint="fill the key, or pass over such rows with --skip-null-keys",
        )
    if scan.order_faults:
        raise _not_increasing(scan.order_faults, options)
    runs, group_n_rows, row_offset = _run_arrays(scan)
    paths = scan.files.column("path")
    piece_starts = _pieces(runs, row_offset) if options.unit == KEY else _units(runs, options.unit)
    touching = np.ones(len(runs.file_id), bool)
    touching[piece_starts] = False
    _check_order_between(runs, np.flatnonzero(touching), paths, options)

    run_order, stops = _sequences_of_pieces(runs, piece_starts, paths, options)
    first, last = run_order[stops[:-1]], run_order[stops[1:] - 1]
    if options.join:  # else the pieces are sequences, in the order of their places
        by_place = np.lexsort((runs.row_start[first], runs.row_group[first], runs.file_id[first]))
        counts = np.diff(stops)[by_place]
        run_order = run_order[expand_ranges(stops[:-1][by_place], stops[1:][by_place])]
        stops = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        first, last = run_order[stops[:-1]], run_order[stops[1:] - 1]
    if options.layout == "one-per-row-group":
        _check_layout(runs, run_order, stops, group_n_rows, paths)
    return (
        _sequences_table(scan, runs, run_order, stops, group_n_rows, first, last, options.unit),
        _segments_table(runs, run_order, stops),
    )


def _run_arrays(scan: ScanBatch) -> tuple[_Runs, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    counts = scan.files.column("n_row_groups").to_numpy().astype(np.int64)
    base = np.cumsum(counts) - counts
    table = scan.runs
    file_id = table.column("file_id").to_numpy()
    row_group = table.column("row_group").to_numpy()
    runs = _Runs(
        file_id=file_id,
        row_group=row_group,
        row_start=table.column("row_start").to_numpy(),
        row_stop=table.column("row_stop").to_numpy(),
        group=base[file_id] + row_group if len(file_id) else np.zeros(0, np.int64),
        seq_id=_one_array(table.column("seq_id")),
        order_min=_one_array(table.column("order_min")),
        order_max=_one_array(table.column("order_max")),
        order_proved=table.column("order_proved").to_numpy(),
    )
    return runs, scan.row_groups.column("n_rows").to_numpy(), scan.row_groups.column("row_offset").to_numpy()


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _pieces(runs: _Runs, row_offset: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of the runs that start a piece: those that do not go on where the run before ended."""
    n = len(runs.file_id)
    if n == 0:
        return np.zeros(0, np.int64)
    start = row_offset[runs.group] + runs.row_start
    stop = row_offset[runs.group] + runs.row_stop
    same_key = pc.equal(runs.seq_id[1:], runs.seq_id[:-1]).to_numpy(zero_copy_only=False)
    goes_on = same_key & (runs.file_id[1:] == runs.file_id[:-1]) & (start[1:] == stop[:-1])
    return np.concatenate([[0], np.flatnonzero(~goes_on) + 1]).astype(np.int64)


def _units(runs: _Runs, unit: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the runs that start a unit: each row or row group, or the first of each file."""
    n = len(runs.file_id)
    if unit != "file" or n == 0:
        return np.arange(n, dtype=np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(runs.file_id)) + 1]).astype(np.int64)


def _sequences_of_pieces(
    runs: _Runs, piece_starts: npt.NDArray[np.int64], paths: pa.ChunkedArray, options: BuildOptions
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the runs in sequence order, and where each sequence's runs stop.

    Shapes (n_runs,) and (n_sequences + 1,), int64.
    """
    n_runs = len(runs.file_id)
    piece_stops = np.append(piece_starts[1:], n_runs).astype(np.int64)
    if options.unit != KEY:
        return np.arange(n_runs), np.append(piece_starts, n_runs).astype(np.int64)
    codes = (
        runs.seq_id.take(pa.array(piece_starts)).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    )
    n_keys = int(codes.max()) + 1 if len(codes) else 0
    if n_keys == len(codes):
        return np.arange(n_runs), np.append(piece_starts, n_runs).astype(np.int64)
    if not options.join:
        raise _fragmented(runs, piece_starts, codes, paths, options)
    by_order = pc.sort_indices(
        pa.table({"code": codes, "order": runs.order_min.take(pa.array(piece_starts))}),
        sort_keys=[("code", "ascending"), ("order", "ascending")],
    ).to_numpy()
    sorted_codes = codes[by_order]
    same = np.flatnonzero(sorted_codes[1:] == sorted_codes[:-1]) + 1
    _check_order_pairs(
        runs, piece_stops[by_order[same - 1]] - 1, piece_starts[by_order[same]], paths, options
    )
    counts = (piece_stops - piece_starts)[by_order]
    run_order = expand_ranges(piece_starts[by_order], piece_stops[by_order])
    runs_of_key = np.bincount(sorted_codes, weights=counts, minlength=n_keys).astype(np.int64)
    return run_order, np.concatenate([[0], np.cumsum(runs_of_key)]).astype(np.int64)


def _check_order_between(
    runs: _Runs, seconds: npt.NDArray[np.int64], paths: pa.ChunkedArray, options: BuildOptions
) -> None:
    """Check that the order column increases from each run before to the run that goes on from it."""
    _check_order_pairs(runs, seconds - 1, seconds, paths, options)


def _check_order_pairs(
    runs: _Runs,
    firsts: npt.NDArray[np.int64],
    seconds: npt.NDArray[np.int64],
    paths: pa.ChunkedArray,
    options: BuildOptions,
) -> None:
    if not len(seconds) or options.order is None:
        return
    before = runs.order_max.take(pa.array(firsts))
    after = runs.order_min.take(pa.array(seconds))
    # Where the order was not read, both are exact bounds or null; null proves nothing.
    unknown = pa.array(~runs.order_proved[seconds])
    good = pc.if_else(pc.is_null(pc.greater(after, before)), unknown, pc.greater(after, before))
    bad = np.flatnonzero(~good.to_numpy(zero_copy_only=False))
    if len(bad):
        faults = [
            _place(
                runs, int(seconds[i]), paths, f"{after[int(i)].as_py()!r} after {before[int(i)].as_py()!r}"
            )
            for i in bad[: FIRST_PLACES + 1]
        ]
        raise _not_increasing(faults, options, n_places=len(bad))


def _check_layout(
    runs: _Runs,
    run_order: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    group_n_rows: npt.NDArray[np.int64],
    paths: pa.ChunkedArray,
) -> None:
    whole = (runs.row_start == 0) & (runs.row_stop == group_n_rows[runs.group])
    alone = np.zeros(len(whole), bool)
    alone[run_order[stops[:-1]]] = np.diff(stops) == 1
    bad = np.flatnonzero(~(whole & alone))
    if len(bad):
        places = [
            _place(
                runs,
                int(run),
                paths,
                f"sequence {runs.seq_id[int(run)].as_py()!r} "
                + ("shares the row group" if not whole[run] else "goes on elsewhere"),
            )
            for run in bad[: FIRST_PLACES + 1]
        ]
        raise _at(
            MixedRowGroupError,
            "row groups that are not one whole sequence",
            places,
            n_places=len(bad),
            hint="drop --layout one-per-row-group, or write the data with one row group a sequence",
        )


# -- errors with places ---------------------------------------------------------------------------------------


def _place(runs: _Runs, run: int, paths: pa.ChunkedArray, found: str) -> Place:
    return Place(
        file=str(paths[int(runs.file_id[run])]),
        row_group=int(runs.row_group[run]),
        row_start=int(runs.row_start[run]),
        row_stop=int(runs.row_stop[run]),
        found=found,
    )


def _at(
    kind: type[PlacesError], what: str, places: Sequence[Place], *, hint: str, n_places: int | None = None
) -> PlacesError:
    first = places[0]
    return kind.at(
        what,
        [str(place) for place in places],
        len(places) if n_places is None else n_places,
        hint=hint,
        file=first.file,
        row_group=first.row_group,
        row_start=first.row_start,
    )


def _not_increasing(
    faults: Sequence[Place], options: BuildOptions, n_places: int | None = None
) -> PlacesError:
    return _at(
        NotIncreasingError,
        f"column {options.order!r} does not strictly increase inside a sequence",
        faults,
        n_places=n_places,
        hint="sort the rows, name another column with --order, or leave --order out",
    )


def _fragmented(
    runs: _Runs,
    piece_starts: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int32],
    paths: pa.ChunkedArray,
    options: BuildOptions,
) -> PlacesError:
    counts = np.bincount(codes)
    broken = np.flatnonzero(counts > 1)
    places = []
    for code in broken[: FIRST_PLACES + 1]:
        pieces = np.flatnonzero(codes == code)
        said = " and ".join(
            f"{paths[int(runs.file_id[run])]}#{runs.row_group[run]}[{runs.row_start[run]}:{runs.row_stop[run]}]"
            for run in piece_starts[pieces[:3]]
        )
        more = f" and {len(pieces) - 3} more places" if len(pieces) > 3 else ""
        places.append(f"{runs.seq_id[int(piece_starts[pieces[0]])].as_py()!r} at {said}{more}")
    first = int(piece_starts[np.flatnonzero(codes == broken[0])[0]])
    join = "--join" if options.order else "--join with --order COLUMN"
    spread = int(counts.max()) > 10 and len(broken) > len(counts) // 2
    hint = f"join them with {join}; or, where two recordings use the same ids, make the ids differ"
    if spread:
        hint += "; most sequences are spread over many places, so one read a sequence needs the data sorted by key"
    return FragmentedSequenceError.at(
        f"{len(broken)} of {len(counts)} sequences lie in places that do not touch",
        places,
        len(broken),
        hint=hint,
        file=str(paths[int(runs.file_id[first])]),
        row_group=int(runs.row_group[first]),
        n_sequences=len(counts),
    )


# -- tables ---------------------------------------------------------------------------------------------------


def _sequences_table(
    scan: ScanBatch,
    runs: _Runs,
    run_order: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    group_n_rows: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    unit: str,
) -> pa.Table:
    n_segments = np.diff(stops)
    row_counts = np.concatenate([[0], np.cumsum((runs.row_stop - runs.row_start)[run_order])])
    proved_order = np.ones(len(first), bool)
    if len(first):
        proved_order = np.logical_and.reduceat(runs.order_proved[run_order], stops[:-1])
    proved = pa.StructArray.from_arrays(
        [pa.array(np.ones(len(first), bool)), pa.array(proved_order), pa.array(np.zeros(len(first), bool))],
        fields=list(PROVED),
    )
    if unit == KEY:
        seq_ids = runs.seq_id.take(pa.array(first))
    else:
        paths = _one_array(scan.files.column("path"))
        seq_ids = unit_ids(unit, paths, runs.file_id[first], runs.row_group[first], runs.row_start[first])
    columns = {
        "seq_id": seq_ids,
        "file_id": runs.file_id[first],
        "row_group": runs.row_group[first],
        "row_start": runs.row_start[first],
        "row_count": row_counts[stops[1:]] - row_counts[stops[:-1]],
        "n_segments": n_segments.astype(np.int32),
        "order_min": runs.order_min.take(pa.array(first)),
        "order_max": runs.order_max.take(pa.array(last)),
        "proved": proved,
    }
    if scan.group_stats.num_columns:
        is_whole = (runs.row_start[first] == 0) & (runs.row_stop[first] == group_n_rows[runs.group[first]])
        is_group = (n_segments == 1) & is_whole
        stats = scan.group_stats.combine_chunks().take(pa.array(runs.group[first], mask=~is_group))
        columns["stats"] = pa.StructArray.from_arrays(
            [_one_array(column) for column in stats.columns],
            names=stats.column_names,
            mask=pa.array(~is_group),
        )
    stats_types = {f.name: f.type.field("min").type for f in scan.group_stats.schema}
    schema = sequences_schema(runs.seq_id.type, runs.order_min.type, stats_types)
    return pa.table(columns).cast(schema)


def _segments_table(runs: _Runs, run_order: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> pa.Table:
    """Return the segments of the sequences that have more than one."""
    counts = np.diff(stops)
    several = np.flatnonzero(counts > 1)
    chosen = run_order[expand_ranges(stops[:-1][several], stops[1:][several])]
    firsts = np.repeat(np.cumsum(counts[several]) - counts[several], counts[several])
    return pa.table(
        {
            "sequence_row": np.repeat(several, counts[several]),
            "segment": (np.arange(len(chosen)) - firsts).astype(np.int32),
            "file_id": runs.file_id[chosen],
            "row_group": runs.row_group[chosen],
            "row_start": runs.row_start[chosen],
            "row_stop": runs.row_stop[chosen],
        }
    ).cast(SEGMENTS)
