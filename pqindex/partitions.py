"""Partition values: the columns that folder names, or the log of a table, give to whole files.

Values are text, as they stand in the path, percent-decoded; a type is given to them only on request. A name that is
also a column of the files is no column of the relation `index`, since what is read is the column in the file.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pqindex.arrowtypes import type_name
from pqindex.errors import FIRST_PLACES, ColumnMissingError, ColumnTypeError, UsageError

if TYPE_CHECKING:
    from pqindex.footer import Bounds

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

INDEX_COLUMNS = frozenset(
    {
        *("seq_id", "seq_no", "file", "file_id", "row_group", "row_start", "row_count", "n_segments"),
        *("order_min", "order_max", "proved", "stats", "partition"),
    }
)
"""Columns that the relation `index` has of its own."""

TYPES: Mapping[str, pa.DataType] = {
    type_name(data_type): data_type
    for data_type in (
        *(pa.string(), pa.bool_(), pa.float32(), pa.float64(), pa.date32()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    )
}
"""Types that partition values may be given, by the name of rule T1."""

PartitionValues: TypeAlias = Sequence[tuple[str, str | None]]


def hive_partition(path: str) -> list[tuple[str, str | None]]:
    """Return the Hive partition values in a path, as the text they are, percent-decoded.

    Of a name that several folders of the path have, the deepest counts.

    >>> hive_partition("year=2020/name=A%2FA/part-0.parquet")
    [('year', '2020'), ('name', 'A/A')]
    """
    pairs = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
    values = {unquote(name): None if value == HIVE_NULL else unquote(value) for name, value in pairs if name}
    return list(values.items())


def validate_types(types: Mapping[str, str]) -> None:
    """Refuse types that partition values cannot be given.

    Raises
    ------
    UsageError
        If a type has no such name.
    """
    for name, wanted in types.items():
        if wanted not in TYPES:
            raise UsageError(
                f"partition type of {name!r}: expected one of {', '.join(TYPES)}, found {wanted!r}"
            )


def typed(texts: pa.Array, name: str, wanted: str | None, paths: Sequence[str]) -> pa.Array:
    """Return the values of one partition name with the type asked for, text by default.

    Parameters
    ----------
    texts : pa.Array of string, length n
    name
        Of the partition, for messages.
    wanted
        Name of the type.
    paths
        The file of each value, for messages.

    Raises
    ------
    ColumnTypeError
        If a value does not parse; it names the folder.
    """
    data_type = TYPES[wanted or "string"]
    try:
        return _parsed(texts, data_type)
    except pa.ArrowInvalid:
        position = next(i for i, text in enumerate(texts.to_pylist()) if not _parses(text, data_type))
        text, path = texts[position].as_py(), paths[position]
        folder = path.rpartition("/")[0]
        raise ColumnTypeError(
            f"partition value {name}={text!r} is no {wanted}: {folder or path}",
            hint=f"leave it text, or name another type with --partition-type {name}=TYPE",
            file=path,
            column=name,
            expected=wanted,
            found=text,
        ) from None


def _parsed(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    return texts if data_type == texts.type else pc.cast(texts, data_type)


def _parses(text: str | None, data_type: pa.DataType) -> bool:
    try:
        _parsed(pa.array([text], pa.string()), data_type)
    except pa.ArrowInvalid:
        return False
    return True


# -- the columns of the relation `index` ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumns:
    """The partition values of some files, a value a file.

    Attributes
    ----------
    struct : pa.StructArray or None
        All of them; None where no file has any.
    names : tuple of str
        Those that are columns of `index` too.
    notes : tuple of str
        Why the others are not.
    """

    struct: pa.StructArray | None
    names: tuple[str, ...]
    notes: tuple[str, ...]


def partition_columns(
    files: pa.Table, types: Mapping[str, str], *, own: Collection[str], in_files: Collection[str]
) -> PartitionColumns:
    """Return the partition values of the table `files` as columns.

    Names are told apart without letter case, as SQL does. A name that has a twin in another case is in neither; one
    that is a column of `index` itself, or of a file, is in the struct only.

    Parameters
    ----------
    files
        The table `files`.
    types
        Types that were asked for, by name.
    own
        Columns of the relation.
    in_files
        Columns of the source files.

    Raises
    ------
    ColumnTypeError
        If a value does not parse as the type asked for.
    """
    pairs = files.column("partition").to_pylist()
    found = sorted({name for pair in pairs for name, _ in pair})
    lower = Counter(name.lower() for name in found)
    twins = [name for name in found if lower[name.lower()] > 1]
    names = [name for name in found if lower[name.lower()] == 1]
    notes = []
    if twins:
        notes.append(
            f"partitions {' and '.join(map(repr, twins))} differ only in letter case, which SQL does not tell apart: "
            "they are in `files.partition` only"
        )
    own, in_files = {name.lower() for name in own}, set(in_files)
    columns = []
    for name in names:
        if name in in_files:
            notes.append(
                f"{name!r} is both a folder name and a column of the files: the column in the file is what is "
                f"read, and what the folder says is partition['{name}']"
            )
        elif name.lower() in own:
            notes.append(f"`index` has a column {name!r} of its own: the partition is partition['{name}']")
        else:
            columns.append(name)
    paths = files.column("path").to_pylist() if types else []
    values = [dict(pair) for pair in pairs]
    arrays = [
        typed(pa.array([v.get(name) for v in values], pa.string()), name, types.get(name), paths)
        for name in names
    ]
    struct = pa.StructArray.from_arrays(arrays, names=names) if names else None
    return PartitionColumns(struct=struct, names=tuple(columns), notes=tuple(notes))


def check_types_are_used(files: pa.Table, types: Mapping[str, str]) -> None:
    """Refuse a type for a partition that no file has.

    Raises
    ------
    ColumnMissingError
        If a name is in no path.
    """
    if not types:
        return
    names = {name for pair in files.column("partition").to_pylist() for name, _ in pair}
    for name in types:
        if name not in names and files.num_rows:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            raise ColumnMissingError(
                f"partition {name!r} has a type, and no file has such a partition",
                hint=f"did you mean {' or '.join(map(repr, near))}?" if near else "leave the type out",
                column=name,
            )


# -- what the path says against what the file holds -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the footer of one file says of a column that its path gives a value to as well.

    Attributes
    ----------
    name, path : str
        Of the partition, and of the file.
    in_path : str or None
        The value in the path.
    in_file : str or None
        A value of the column that is another one, as text; None where none is known.
    compared : bool
        Whether the bounds say of every row group which one value it holds, or that it holds another.
    """

    name: str
    path: str
    in_path: str | None
    in_file: str | None = None
    compared: bool


def compare(name: str, path: str, in_path: str | None, found: Bounds, n_rows: np.ndarray) -> Comparison:
    """Compare a partition value with the exact bounds of the column of that name; no page is read.

    Parameters
    ----------
    name, path, in_path
        The partition, the file, and the value in its path.
    found
        Bounds of the column, a row group each.
    n_rows : ndarray, shape (n_row_groups,), int64
        Rows of each row group; those without rows say nothing.
    """
    has_rows = n_rows > 0
    exact = found.exact & has_rows
    null_count = pc.fill_null(found.null_count, -1).to_numpy(zero_copy_only=False)
    if in_path is None:
        differs = exact & (null_count < n_rows)
        same = null_count == n_rows
    else:
        try:
            value = pa.scalar(in_path, pa.string()).cast(found.min.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # A text that is no integer is another value than every integer; times have many texts.
            is_other = pa.types.is_integer(found.min.type) or pa.types.is_boolean(found.min.type)
            differs, same = exact & is_other, np.zeros(len(exact), bool)
        else:
            below, above = _holds(pc.less(found.max, value)), _holds(pc.greater(found.min, value))
            # Floats are let be: bounds do not tell of NaN.
            is_float = pa.types.is_floating(found.min.type)
            one = _holds(pc.equal(found.min, value)) & _holds(pc.equal(found.max, value)) & (null_count == 0)
            differs, same = exact & (below | above), exact & one & (not is_float)
    other = None
    if differs.any():
        other = _text(found.min[int(np.flatnonzero(differs)[0])])
    return Comparison(
        name=name,
        path=path,
        in_path=in_path,
        in_file=other,
        compared=other is not None or bool((same | ~has_rows).all()),
    )


def _holds(answer: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(answer, False).to_numpy(zero_copy_only=False), bool)


def _text(value: pa.Scalar) -> str:
    return repr(value.as_py()) if pa.types.is_string(value.type) else str(value.as_py())


def comparison_notes(comparisons: Iterable[Comparison]) -> list[str]:
    """Return what the build says of partition values that are columns of the files too."""
    by_name: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        by_name.setdefault(comparison.name, []).append(comparison)
    notes = []
    for name, found in sorted(by_name.items()):
        differ = [c for c in found if c.in_file is not None]
        unknown = sum(not c.compared for c in found)
        if differ:
            first = "; ".join(
                f"{c.path}: path {c.in_path!r}, file {c.in_file}" for c in differ[:FIRST_PLACES]
            )
            more = f"; and {len(differ) - FIRST_PLACES} more" if len(differ) > FIRST_PLACES else ""
            notes.append(
                f"path and file differ in {name!r} in {len(differ)} of {len(found)} files: {first}{more}"
            )
        if unknown:
            notes.append(
                f"path and file were not compared in {name!r} in {unknown} of {len(found)} files: the bounds there do "
                "not say which one value the column holds"
            )
    return notes
