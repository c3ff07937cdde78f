"""What users hold: an index, a selection, a manifest. Each method is one call to the floors below."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex import manifest as manifests
from pqindex import storage
from pqindex.build import Progress, build_index, is_count
from pqindex.content import DeepReport, Recorded, content_of, no_digest, roll_up, verify_content
from pqindex.doctor import LayoutReport, examine, facts_of_footers, facts_of_index, glance
from pqindex.documents import DEFAULT_KEY, BuildOptions
from pqindex.errors import FIRST_PLACES, NotFoundError, PqindexError, SourceChangedError, UsageError
from pqindex.listing import PassedOver
from pqindex.listing import list_again as walk_again
from pqindex.manifest import LoadedManifest, Problem, VerifyReport
from pqindex.places import Places, SourceFiles
from pqindex.query import (
    Asked,
    Database,
    Parameters,
    all_places,
    chunk_source,
    recorded_content,
    snapshots_relation,
    source_files,
)
from pqindex.readplan import ChunkSource, PqindexStalenessWarning, ReadPlan, resolve
from pqindex.refresh import Changes, find_changes, list_again, refresh_index
from pqindex.rewrite import FILE_SIZE, Origin, RewriteOptions, RewriteReport, Say, rewrite
from pqindex.sidecar import Sidecar, open_sidecar, prune
from pqindex.statistics import ColumnStatistics, column_statistics
from pqindex.upkeep import compact_index

OPEN_STALENESS = ("warn", "error", "refresh", "ignore")


def build(
    source: storage.PathLike | Sequence[storage.PathLike],
    key: str | None = None,
    order: str | None = None,
    *,
    index: storage.PathLike | None = None,
    unit: str = "key",
    check: str = "keys",
    layout: str = "any",
    join: bool = False,
    skip_null_keys: bool = False,
    trust_statistics: bool = True,
    on_bad_file: str = "error",
    statistics: Sequence[str] | None = None,
    pages: str = "auto",
    partition_types: Mapping[str, str] | None = None,
    attributes: Sequence[str] = (),
    aggregates: Mapping[str, str] | None = None,
    files: Sequence[storage.PathLike] | None = None,
    table_format: str | None = None,
    table_version: int | None = None,
    ignore_lake: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Index:
    """Build the index of a source and return it.

    Only footers are read where their exact bounds prove that a row group has one key; elsewhere the key column of
    that row group is read as well, and the order column where one is named. The source is never written to. Where
    the index is there already and nothing changed, it is returned as it is; else a new snapshot is committed.

    Parameters
    ----------
    source : path or list of paths
        A folder, one file, a glob pattern, or a list of files; with `table_format`, the folder of a table.
    key : str, optional
        The column that names a sequence: integers, strings, binaries, dates or timestamps; ``"seq_id"`` by default. It
        may be a Hive partition that is no column of the files: all rows of a file then have its value.
    order : str, optional
        The column that must strictly increase inside a sequence.
    index : path, optional
        Where the index lies; beside the source by default (``data/`` gives ``data.pqindex/``).
    unit : {"key", "row", "row_group", "file"}
        What one sequence is: all rows of one key; or each row, row group or file, whose ``seq_id`` is then text made of
        the path and the numbers, ``PATH#GROUP:ROW``, ``PATH#GROUP`` or ``PATH``. An index of rows has one row a row.
    check : {"keys", "footer", "full"}
        ``"keys"`` proves the order column's order by reading it; ``"footer"`` takes exact footer bounds for it.
        ``"full"`` reads every value: statistics of every sequence with counts of nulls, NaN and infinities, mean and
        deviation, the steps of the order column, and a digest of each row group's bytes. See docs/checks.md.
    layout : {"any", "one-per-row-group"}
        ``"one-per-row-group"`` refuses a row group that is not exactly one whole sequence.
    join : bool
        Join the places of a key that do not touch, in the order column's order; else they are an error.
    skip_null_keys : bool
        Pass over rows without a key; else they are an error.
    trust_statistics : bool
        Whether exact bounds prove keys; without it every key is read.
    on_bad_file : {"error", "skip"}
        What to do with files that are not readable Parquet; skipped ones are recorded with the reason.
    statistics : list of str, optional
        Columns whose bounds become ``stats.<column>.min`` and ``.max`` (after a full check their moments too); by
        default all flat columns of files that have at most 64 of them.
    pages : {"auto", "never", "always"}
        Of which row groups the places of the pages are recorded, so that a part of them can be read: by default of
        those that are not one whole sequence.
    partition_types : dict of str to str, optional
        Types of Hive partition values, by name: ``{"year": "int64"}``. All others stay the text that they are.
    attributes : list of str
        Columns without nesting that are constant inside every sequence: each becomes a column of ``index`` under its
        own name. That is proved, by exact bounds or by reading; null in all rows of a sequence is null.
    aggregates : dict of str to str
        SQL aggregates over the rows of each sequence by name, as ``{"mean_price": "avg(price)"}``: each becomes a
        column of ``index``. An expression sees the columns of the files alone.
    files : list of paths, optional
        Exactly these files below the folder `source`.
    table_format : {"delta", "iceberg"}, optional
        Take the files of such a table that are live, and the partition values of its log. Needs the extra of that name.
    table_version : int, optional
        Version of a Delta table, or snapshot id of an Iceberg table; the newest by default.
    ignore_lake : bool
        Take every file that lies in the folder of a table format, live or not; else such a folder is an error.
    workers : int, optional
        Number of processes.
    progress : callable, optional
        Called with (files done, files in all, phase).

    Returns
    -------
    Index

    Raises
    ------
    SourceError
        If the data is not what was asked for: NullKeyError, FragmentedSequenceError, NotIncreasingError,
        MixedRowGroupError, BadFileError, ColumnMissingError, ColumnTypeError, EmptySourceError, TableFormatError;
        NotConstantError for an attribute.
    QueryError
        If an aggregate is not one, is not allowed, or fails.
    NotFoundError
        If the source is not there.
    ConflictError
        If another writer committed at the same time.
    MissingDependencyError
        If the library of the table format is not installed.
    """
    for name, value in {"key": key, "order": order}.items():
        if not isinstance(value, str) and value is not None:
            raise UsageError(f"{name}: expected the name of a column, found {value!r}")
    if isinstance(statistics, str):
        raise UsageError(f"statistics: expected a list of names, found the text {statistics!r}")
    if partition_types is not None and not isinstance(partition_types, Mapping):
        raise UsageError(f"partition_types: expected names and types, found {partition_types!r}")
    if isinstance(attributes, str) or not all(isinstance(name, str) for name in attributes):
        raise UsageError(f"attributes: expected a list of names, found {attributes!r}")
    options = BuildOptions(
        unit=unit,
        key=DEFAULT_KEY if key is None and unit == "key" else key,
        order=order,
        check=check,
        layout=layout,
        join=join,
        skip_null_keys=skip_null_keys,
        trust_statistics=trust_statistics,
        on_bad_file=on_bad_file,
        statistics=None if statistics is None else tuple(statistics),
        pages=pages,
        partition_types=dict(partition_types or {}),
        attributes=tuple(attributes),
        aggregates=_expressions(aggregates),
    )
    return Index(
        build_index(
            source,
            options,
            index=index,
            files=files,
            table_format=table_format,
            table_version=table_version,
            ignore_lake=ignore_lake,
            workers=workers,
            progress=progress,
        )
    )


def _expressions(aggregates: Any) -> tuple[tuple[str, str], ...]:
    pairs = aggregates.items() if isinstance(aggregates, Mapping) else () if aggregates is None else [(None,)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise UsageError(
            f"aggregates: expected expressions by name, found {aggregates!r}",
            hint='aggregates={"mean_price": "avg(price)"}',
        )
    return tuple(sorted(pairs))


def open(  # noqa: A001  # read as pqindex.open
    path: storage.PathLike,
    snapshot: int | None = None,
    root: storage.PathLike | None = None,
    *,
    staleness: str = "warn",
) -> Index:
    """Open an index.

    Cost: one small document, and the table of the files with one stat of each; ``staleness="ignore"`` saves these.
    Other tables are read when they are needed.

    Parameters
    ----------
    path
        The index folder.
    snapshot
        Number of the snapshot; the newest by default.
    root
        Folder of the source files; by default where they were, seen from the index.
    staleness : {"warn", "error", "refresh", "ignore"}
        What to do where files have another size or time of change than was recorded, or are gone: a warning, an
        error, a new snapshot (see `Index.refresh`, which also takes new files in), or nothing. Whatever is chosen,
        a dataset and a reader compare the files that they use with the index again. Without the source's root
        folder there is nothing to compare.

    Raises
    ------
    NotFoundError
        If there is no index, or no such snapshot.
    FormatError
        If it is damaged, or of a later version.
    SourceChangedError
        If files were changed, and that is to be an error.
    """
    sidecar = open_sidecar(os.path.abspath(path), snapshot)
    if root is not None and not os.path.isdir(root):
        raise NotFoundError(f"root of the source files is not there: {os.fspath(root)}", path=os.fspath(root))
    index = Index(sidecar, root=None if root is None else os.path.abspath(root))
    if staleness not in OPEN_STALENESS:
        raise UsageError(f"staleness: expected one of {', '.join(OPEN_STALENESS)}, found {staleness!r}")
    if staleness == "refresh":
        if snapshot is not None:
            raise UsageError("a snapshot that is named cannot be refreshed", hint="leave the number out")
        return index.refresh()
    if staleness != "ignore" and os.path.isdir(index.root):
        index._say_stale(staleness)
    return index


def load_manifest(path: storage.PathLike, root: storage.PathLike | None = None) -> Manifest:
    """Load a manifest and check that it is whole.

    Parameters
    ----------
    path
        The manifest file.
    root
        Folder of the source files; by default where they were, seen from the manifest.

    Raises
    ------
    NotFoundError, FormatError, DigestMismatchError
        If it is not there, not a manifest, or was changed.
    """
    return Manifest(manifests.load(os.fspath(path), None if root is None else os.fspath(root)))


class Index:
    """One snapshot of an index.

    Thread-safe. Queries run in this process; make and query an index before worker processes are forked, or in each.
    """

    rewritten: RewriteReport | None = None
    """What `rewrite` reported of the data of this index; None for an index that was built or opened."""

    def __init__(self, sidecar: Sidecar, *, root: str | None = None) -> None:
        self._sidecar = sidecar
        hint = sidecar.snapshot.root
        self._root = root or os.path.normpath(os.path.join(sidecar.path, hint if hint is not None else "."))
        self._database = Database(sidecar)
        self.last_changes: Changes | None = None
        """What the last `refresh` of this object found; None before the first."""

    def __repr__(self) -> str:
        return f"<pqindex.Index {self.path!r} snapshot {self.snapshot}: {self.n_sequences} sequences>"

    def __len__(self) -> int:
        return self.n_sequences

    @property
    def path(self) -> str:
        """The index folder."""
        return self._sidecar.path

    @property
    def root(self) -> str:
        """The folder of the source files."""
        return self._root

    @property
    def snapshot(self) -> int:
        """Number of the snapshot."""
        return self._sidecar.snapshot.number

    @property
    def content_digest(self) -> str:
        """Identity of the index: equal wherever the same files are indexed with the same options."""
        return self._sidecar.snapshot.content_digest

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return self._sidecar.snapshot.totals["n_sequences"]

    @property
    def n_rows(self) -> int:
        """Number of rows of the source files."""
        return self._sidecar.snapshot.totals["n_rows"]

    @property
    def n_files(self) -> int:
        """Number of source files."""
        return self._sidecar.snapshot.totals["n_files"]

    @property
    def report(self) -> dict[str, Any]:
        """What the build had to say: ``skipped`` files with their reasons, and ``notes``."""
        snapshot = self._sidecar.snapshot
        return {"skipped": [dict(entry) for entry in snapshot.skipped], "notes": snapshot.all_notes()}

    def info(self) -> dict[str, Any]:
        """Return what there is to know about the index without reading a table, as JSON-able values."""
        snapshot = self._sidecar.snapshot
        size = sum(t.size_bytes for part in snapshot.parts for t in part.tables.values())
        return {
            "path": self.path,
            "root": self.root,
            "source": {
                "kind": snapshot.kind,
                "table": None if snapshot.table is None else dict(snapshot.table),
                "ignore_lake": snapshot.ignore_lake,
                "passed_over": dict(snapshot.passed_over),
            },
            "snapshot": snapshot.number,
            "created_at": snapshot.created_at,
            "writer": snapshot.writer,
            "options": snapshot.options.to_json(),
            "totals": dict(snapshot.totals),
            "n_parts": len(snapshot.parts),
            "index_bytes": size,
            "content_digest": snapshot.content_digest,
            **self.report,
        }

    def passed_over(self) -> list[dict[str, str]]:
        """Return the names below the root that are no source files, and the rule of each, as they are now.

        Cost: the walk of a build. A folder that is passed over is one name. Of files that were named one by one, and of
        a table, there are none.

        Returns
        -------
        list of dict
            With ``path``, relative to the root, and ``rule``; in the order of the paths.
        """
        snapshot = self._sidecar.snapshot
        if snapshot.kind != "folder" and not snapshot.kind.startswith("glob "):
            return []
        found: list[PassedOver] = []
        walk_again(self.root, snapshot.kind, (), ignore_lake=snapshot.ignore_lake, passed_over=found)
        return [{"path": name.path, "rule": name.rule} for name in sorted(found, key=lambda name: name.path)]

    def sql(
        self,
        sql: str,
        params: Parameters = None,
        attach: Mapping[str, object] | None = None,
        dialect: str = "duckdb",
    ) -> pa.Table:
        """Return the answer to one SELECT over the relations of the index.

        Relations: ``index`` (one row a sequence), ``files``, ``row_groups``, ``segments``, ``snapshots``, and the
        attached tables. Nothing else can be read, and nothing can be written.

        Parameters
        ----------
        sql : str
        params : sequence or mapping, optional
            Values for ``?``, ``$1`` or ``$name``.
        attach : mapping, optional
            Tables by name: paths of Parquet, CSV or Arrow files, Arrow tables, pandas or polars frames.
        dialect : str
            The SQL dialect of `sql`; others than DuckDB's are translated.

        Raises
        ------
        QueryError
            If the query is not one SELECT, names what is not there, or fails.
        """
        return self._database.sql(sql, params, attach, dialect)

    def select(
        self,
        sql: str = "SELECT seq_id FROM index",
        params: Parameters = None,
        attach: Mapping[str, object] | None = None,
        dialect: str = "duckdb",
    ) -> Selection:
        """Return the sequences that one SELECT chooses, in the order of its ORDER BY.

        The answer needs a column ``seq_id``; its other columns travel with the sequences. Ties, and queries without
        ORDER BY, are in the canonical order (file, row group, row). The query runs on one thread over rows in the
        canonical order, so that it gives the same answer each time. Parameters as in `sql`.

        Raises
        ------
        QueryError
            As `sql`, and where ``seq_id`` is missing, null, unknown, or there twice.
        """
        places, files, asked = self._database.select(self._root, sql, params, attach, dialect)
        # A selection stays at its snapshot when this object is refreshed.
        return Selection(copy.copy(self), places, files, asked, (sql, params, attach, dialect))

    def rewrite(
        self,
        path: storage.PathLike,
        *,
        columns: Sequence[str] | None = None,
        codec: str = "lz4",
        dictionary: str = "auto",
        pack_rows: int | None = None,
        file_size: int = FILE_SIZE,
        order: str | None = None,
        check: bool = True,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> Index:
        """Copy all sequences, in the canonical order, to new files in the layout that reads fastest.

        Parameters, return value and errors as in `Selection.rewrite`.
        """
        return self.select().rewrite(
            path,
            columns=columns,
            codec=codec,
            dictionary=dictionary,
            pack_rows=pack_rows,
            file_size=file_size,
            order=order,
            check=check,
            progress=progress,
            say=say,
        )

    def snapshots(self) -> list[dict[str, Any]]:
        """Return what there is to know about each snapshot of the index folder, oldest first."""
        return list(snapshots_relation(self.path).to_pylist())

    def verify(self, deep: bool = False, *, progress: Progress | None = None) -> VerifyReport:
        """Check the index's own files, and compare every source file with what was indexed.

        Cost: all bytes of the index, and one read of each source file's footer; with `deep`, all bytes of the source.

        Parameters
        ----------
        deep
            Also read every row group: its bytes are compared where the index recorded them (``check="full"``), else its
            pages are decoded. The report's notes say what could not be seen. See docs/checks.md.
        progress
            Called with (row groups done, row groups in all, phase) while row groups are read.
        """
        own = [Problem.of(error, error.facts.get("file", self.path)) for error in self._sidecar.verify()]
        if own:
            return VerifyReport(problems=tuple(own), n_files=0)
        files = source_files(self._sidecar, self._root, np.arange(self._sidecar.files.num_rows))
        if not deep:
            return manifests.verify_files(files)
        groups = self._sidecar.row_groups
        file_no, row_group = (groups.column(name).to_numpy() for name in ("file_id", "row_group"))
        recorded = recorded_content(self._sidecar, files)

        def read(skip: frozenset[int]) -> DeepReport:
            return verify_content(files, file_no, row_group, recorded, skip=skip, progress=progress)

        return manifests.verify_files(files, read, remedy="build with check='full' / --check full records it")

    def doctor(self, columns: Sequence[str] | None = None) -> LayoutReport:
        """Return what the layout of the source costs those who read its sequences, and what to change.

        From the index alone: no source file is opened. Cost: the tables of the index.

        Parameters
        ----------
        columns
            Top-level columns that would be read; None for all, of which those that cannot be read are left out.

        Raises
        ------
        ColumnMissingError, ColumnTypeError, BadFileError, UnsupportedFileError
            If a column that was named cannot be read.
        """
        places, files = all_places(self._sidecar, self._root)
        return self._examine(places, files, columns, self.path)

    def layout(self) -> str:
        """Return the layout in a few words, as ``"one sequence per row group, reads cost 1.0x their bytes"``.

        Cost: some columns of two tables of the index. `doctor` says more.
        """
        return glance(self._sidecar)

    def _examine(
        self, places: Places, files: SourceFiles, columns: Sequence[str] | None, target: str
    ) -> LayoutReport:
        return examine(
            places,
            files,
            self._chunk_source(files),
            lambda plan: facts_of_index(self._sidecar, plan),
            columns=columns,
            target=target,
        )

    def check_target(self, path: storage.PathLike) -> None:
        """Refuse a file to write that is one of the index or of its source; nothing here ever writes onto data.

        Raises
        ------
        UsageError
            If `path` is a source file, lies in the index folder, or would be taken for a source file by the next
            build.
        """
        target = os.path.realpath(path)
        if target.startswith(os.path.realpath(self.path) + os.sep):
            raise UsageError(
                f"the file to write lies in the index: {path}", hint="write it elsewhere", path=str(path)
            )
        root = os.path.realpath(self._root)
        relative = os.path.relpath(target, root).replace(os.sep, "/")
        if relative in set(self._sidecar.files.column("path").to_pylist()):
            raise UsageError(
                f"the file to write is a source file of the index: {path}",
                hint="write it elsewhere",
                path=str(path),
            )

    def changes(self, *, files: Sequence[storage.PathLike] | None = None, compare: str = "stat") -> Changes:
        """Return what a refresh would do: which files are new, changed or gone since this snapshot.

        Cost: a listing and one stat a file. Parameters as in `refresh`.
        """
        return find_changes(self._sidecar, list_again(self._sidecar, self._root, files), compare=compare)

    def refresh(
        self,
        *,
        files: Sequence[storage.PathLike] | None = None,
        compare: str = "stat",
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Index:
        """Bring the index up to date with its source; this object is then the newest snapshot.

        Only files that are new or changed are read, with the options of the build. The answers and the content digest
        are those of a fresh build. Where nothing was changed nothing is written. Selections that were made before
        stay at their snapshot. What was changed is in `last_changes`.

        Parameters
        ----------
        files
            The files of today, where the source is a list of files; those that are gone are found without it.
        compare : {"stat", "footer"}
            ``"stat"`` takes files with the recorded size and time of change for unchanged; ``"footer"`` also compares
            their footers, for files whose times were put back or are not to be believed.
        workers
            Number of processes.
        progress
            Called with (files done, files in all, phase).

        Returns
        -------
        Index
            This one.

        Raises
        ------
        SourceError
            As `build`, about the files that are new or changed; the index stays as it was.
        ConflictError
            If another writer committed at the same time.
        """
        newest = open_sidecar(self.path)
        found, changes = refresh_index(
            newest, self._root, files=files, compare=compare, workers=workers, progress=progress
        )
        self._move_to(found)
        self.last_changes = changes
        return self

    def compact(self) -> Index:
        """Make one part of the parts that refreshes left; this object is then the newest snapshot.

        The content digest stays. Nothing of the source is read.

        Raises
        ------
        ConflictError
            If another writer committed at the same time.
        """
        self._move_to(compact_index(open_sidecar(self.path)))
        return self

    def prune(self, keep: int = 1) -> list[int]:
        """Remove all but the last `keep` snapshots, and what only they need; return the numbers of those removed.

        Manifests need no snapshot: they stay good. Whoever has an old snapshot open may find its tables gone.

        Raises
        ------
        ConflictError
            If another writer is at work.
        """
        if not is_count(keep):
            raise UsageError(f"keep: expected an integer >= 1, found {keep!r}")
        return prune(self.path, keep)

    def _move_to(self, sidecar: Sidecar) -> None:
        if sidecar.snapshot.number != self.snapshot:
            self._sidecar = sidecar
            self._database = Database(sidecar)

    def _say_stale(self, staleness: str) -> None:
        """Warn or raise where files of this snapshot were changed or are gone."""
        files = self._sidecar.files
        columns = (files.column(name).to_pylist() for name in ("path", "size_bytes", "mtime_ns"))
        stale = [
            path
            for path, size_bytes, mtime_ns in zip(*columns, strict=True)
            if not storage.is_still(storage.join(self._root, path), size_bytes, mtime_ns)
        ]
        if not stale:
            return
        more = f" and {len(stale) - FIRST_PLACES} more" if len(stale) > FIRST_PLACES else ""
        error = SourceChangedError(
            f"{len(stale)} of {files.num_rows} files were changed or removed since snapshot {self.snapshot} of "
            f"{self.path}: {', '.join(stale[:FIRST_PLACES])}{more}",
            hint=f"pqindex verify {self.path} says how; pqindex refresh {self.path} takes them in",
            file=stale[0],
            files=tuple(stale),
        )
        if staleness == "error":
            raise error
        warnings.warn(str(error), PqindexStalenessWarning, stacklevel=3)

    def close(self) -> None:
        """Free the database of the index; a later query makes a new one."""
        self._database.close()
        self._database = Database(self._sidecar)

    def _content(
        self, places: Places, files: SourceFiles, *, read: bool, progress: Progress | None
    ) -> tuple[str | None, ...]:
        """Return what is to be recorded of the bytes of each file; with `read`, of all of them."""
        known = recorded_content(self._sidecar, files)
        file_no, row_group = places.row_groups()
        if read:
            return content_of(files, file_no, row_group, known, progress)
        groups = zip(file_no.tolist(), row_group.tolist(), strict=True)
        by_file: list[list[bytes | None]] = [[] for _ in files.paths]
        for number, group in groups:
            by_file[number].append(known(number, group))
        return tuple(map(roll_up, by_file))

    def _chunk_source(self, files: SourceFiles) -> ChunkSource:
        return chunk_source(self._sidecar, files)


class Selection:
    """An ordered choice of sequences at one snapshot, with the query's other columns.

    Immutable; holds no open file and no database connection.
    """

    def __init__(
        self,
        index: Index,
        places: Places,
        files: SourceFiles,
        asked: Asked,
        question: tuple[str, Parameters, Mapping[str, object] | None, str],
    ) -> None:
        self._index = index
        self._places = places
        self._files = files
        self._asked = asked
        self._question = question
        self._digest: str | None = None

    def __repr__(self) -> str:
        return f"<pqindex.Selection of {len(self)} sequences>"

    def __len__(self) -> int:
        return len(self._places)

    @property
    def seq_ids(self) -> pa.Array:
        """Key of each sequence, length n."""
        return self._places.seq_ids

    @property
    def row_counts(self) -> npt.NDArray[np.int64]:
        """Rows of each sequence, shape (n,), int64."""
        return self._places.row_counts

    @property
    def extra(self) -> pa.Table:
        """The query's other columns, n rows."""
        return self._places.extra

    @property
    def seed(self) -> None:
        """A selection has no seed; a manifest may have one."""
        return None

    @property
    def digest(self) -> str:
        """Digest of the sequences, their places, their order and their columns; computed once."""
        if self._digest is None:
            self._digest = self._places.digest(self._files)
        return self._digest

    def to_table(self) -> pa.Table:
        """Return ``seq_id``, ``row_count`` and the query's other columns, n rows.

        A column that the query itself calls ``row_count`` is the query's.
        """
        return _to_table(self._places)

    def statistics(
        self, columns: Sequence[str], *, progress: Progress | None = None
    ) -> dict[str, ColumnStatistics]:
        """Return count, mean, standard deviation and bounds of some columns over all rows, by column.

        Reads those columns of every sequence once; the answer is the same on every machine, to the last bit. See
        `pqindex.statistics`.

        Parameters
        ----------
        columns
            Columns of numbers, times, or lists of them.
        progress
            Called with (sequences done, sequences in all, phase).

        Raises
        ------
        UsageError, ColumnMissingError, ColumnTypeError, NonFiniteError
            If a column has no statistics.
        SourceChangedError
            If a source file is not the one that was indexed.
        """
        return column_statistics(self, self._places, columns, progress=progress)

    def pin(
        self,
        path: storage.PathLike,
        seed: int | None = None,
        *,
        statistics: Sequence[str] | None = None,
        content: bool = False,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> Manifest:
        """Write the selection as a manifest and return it.

        Parameters
        ----------
        path
            The file to write, by custom ``NAME.manifest.parquet``.
        seed
            Seed for the order of training, from 0 to 2**53 - 1; part of the manifest's identity.
        statistics
            Columns whose statistics are computed and pinned too, part of the manifest's identity: a training that
            normalises otherwise is another training. It reads those columns of every sequence.
        content
            Record the bytes of every row group that the sequences touch, part of the manifest's identity, so that
            ``verify(deep=True)`` sees values that were replaced. What the index recorded (``check="full"``) is pinned
            in any case; with `content` the rest is read.
        overwrite
            Replace a manifest that is there; other files are never replaced.
        progress
            Called with (number done, number in all, phase) while statistics are computed or content is read.

        Raises
        ------
        QueryError
            If the query may give another answer tomorrow: ``random()``, ``now()``, LIMIT without ORDER BY.
        ConflictError
            If the file is there and `overwrite` is not set, or is no manifest.
        UsageError
            If the file is one of the source or of the index.
        UsageError, ColumnMissingError, ColumnTypeError, NonFiniteError, SourceChangedError
            As `statistics` does.
        """

        def computed() -> dict[str, dict[str, Any]]:
            found = {} if statistics is None else self.statistics(statistics, progress=progress)
            return {name: values.to_json() for name, values in found.items()}

        def recorded() -> tuple[str | None, ...]:
            return self._index._content(self._places, self._files, read=content, progress=progress)

        info = self._index.info()
        self._index.check_target(path)
        manifests.pin(
            os.fspath(path),
            self._places,
            self._files,
            self._asked,
            key=info["options"]["key"],
            content_digest=self._index.content_digest,
            seed=seed,
            overwrite=overwrite,
            index=self._index.path,
            notes={"snapshot": self._index.snapshot, "writer": info["writer"]},
            statistics=computed,
            content=recorded,
        )
        return load_manifest(path, root=self._index.root)

    def refreshed(self) -> Selection:
        """Refresh the index and ask the same question again: the selection as of today.

        Returns this selection where nothing was changed. Raises what `Index.refresh` and `Index.select` raise.
        """
        index = copy.copy(self._index).refresh()
        if index.content_digest == self._index.content_digest:
            return self
        return index.select(*self._question)

    def doctor(self, columns: Sequence[str] | None = None) -> LayoutReport:
        """Return what the layout costs those who read these sequences; see `Index.doctor`."""
        return self._index._examine(self._places, self._files, columns, self._index.path)

    def rewrite(
        self,
        path: storage.PathLike,
        *,
        columns: Sequence[str] | None = None,
        codec: str = "lz4",
        dictionary: str = "auto",
        pack_rows: int | None = None,
        file_size: int = FILE_SIZE,
        order: str | None = None,
        check: bool = True,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> Index:
        """Copy the sequences, in this order, to new files in the layout that reads fastest, with an index of their own.

        One sequence a row group, numbers plain, small pages, page indexes, checksums. Types, order of the columns,
        nullability and the metadata of the Arrow schema are kept; the query's other columns are not written. Each
        sequence is read back through the new index and compared, bit for bit. The folder and its index appear when
        all is done, the folder last; a run that is stopped is gone on with by the same call.

        Cost: every byte of the sequences is read, written, and read again. Memory: some sequences, the longest one
        three times, and up to 256 MiB of row groups of the source.

        Parameters
        ----------
        path : path
            The folder to make; it must be absent or empty, and must not touch the source. Its index is
            ``path.pqindex``.
        columns : list of str, optional
            Columns to copy; all by default. The key and the order column are always copied.
        codec : {"lz4", "none", "snappy", "zstd"}
        dictionary : {"auto", "never", "always"}
            Which columns are dictionary-encoded; by default texts, binaries and the key.
        pack_rows : int, optional
            Put whole sequences together in row groups of up to so many rows; by default each has its own.
        file_size : int
            A file is closed with the row group with which it has so many bytes.
        order : str, optional
            The order column of the new index; by default that of the source's index.
        check : bool
            Whether every sequence is read back and compared.
        progress : callable, optional
            Called with (done, all, phase).
        say : callable, optional
            Called with a sentence where an earlier run, of other data or options, is given up.

        Returns
        -------
        Index
            Of the new files; its attribute `rewritten` has the report.

        Raises
        ------
        UsageError
            If an argument makes no sense, or `path` touches the source or its index.
        ConflictError
            If `path` or its index is there already, or another process writes it.
        EmptySourceError
            If there is no sequence.
        SourceChangedError
            If a source file was changed.
        ColumnMissingError, ColumnTypeError
            If a column cannot be read, or not be written so that it comes back as it is.
        DigestMismatchError
            If a sequence does not come back as it was read.
        WriteError
            If the disk is full, or a file cannot be written; what is complete is kept.
        """
        snapshot = self._index._sidecar.snapshot
        return _rewrite(
            self,
            self._files,
            path,
            options=snapshot.options,
            indexes=(self._index.path,),
            columns=columns,
            codec=codec,
            dictionary=dictionary,
            pack_rows=pack_rows,
            file_size=file_size,
            order=order,
            check=check,
            progress=progress,
            say=say,
        )

    def read_plan(self, columns: Sequence[str] | None = None, *, staleness: str = "error") -> ReadPlan:
        """Resolve the sequences and some columns to byte places; see `pqindex.readplan.resolve`."""
        return resolve(
            self._places,
            self._files,
            columns,
            selection_digest=self.digest,
            known=self._index._chunk_source(self._files),
            staleness=staleness,
        )


class Manifest:
    """A pinned selection.

    Immutable; holds no open file. It needs the source files, and no index.
    """

    def __init__(self, loaded: LoadedManifest) -> None:
        self._loaded = loaded

    def __repr__(self) -> str:
        return f"<pqindex.Manifest {self.path!r}: {len(self)} sequences, digest {self.digest[:16]}>"

    def __len__(self) -> int:
        return len(self._loaded.places)

    @property
    def path(self) -> str:
        """The manifest file."""
        return self._loaded.path

    @property
    def root(self) -> str:
        """The folder of the source files."""
        return self._loaded.files.root

    @property
    def digest(self) -> str:
        """Identity of the manifest: sha256 of its header, equal on every machine for the same inputs."""
        return self._loaded.digest

    @property
    def header(self) -> dict[str, Any]:
        """The header as it stands in the file."""
        return dict(self._loaded.header_json)

    @property
    def seq_ids(self) -> pa.Array:
        """Key of each sequence, length n."""
        return self._loaded.places.seq_ids

    @property
    def row_counts(self) -> npt.NDArray[np.int64]:
        """Rows of each sequence, shape (n,), int64."""
        return self._loaded.places.row_counts

    @property
    def extra(self) -> pa.Table:
        """The query's other columns, n rows."""
        return self._loaded.places.extra

    @property
    def seed(self) -> int | None:
        """Seed for the order of training."""
        return self._loaded.header.seed

    def statistics(
        self, columns: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> dict[str, ColumnStatistics]:
        """Return count, mean, standard deviation and bounds of some columns over all rows, by column.

        Those that were pinned are answered without reading; the others are computed as `Selection.statistics` does.

        Parameters
        ----------
        columns
            Columns of numbers, times, or lists of them; by default those that were pinned.
        progress
            Called with (sequences done, sequences in all, phase).

        Raises
        ------
        UsageError
            If none are named and none were pinned.
        ColumnMissingError, ColumnTypeError, NonFiniteError, SourceChangedError
            As `Selection.statistics` does.
        """
        pinned = {
            name: ColumnStatistics.from_json(value) for name, value in self._loaded.header.statistics.items()
        }
        if columns is None and not pinned:
            raise UsageError(
                f"the manifest has no statistics: {self.path}",
                hint='name the columns, or pin with statistics=["f0"] (pqindex pin --statistics f0)',
                path=self.path,
            )
        if columns is None:
            return pinned
        missing = columns if isinstance(columns, str) else [name for name in columns if name not in pinned]
        if missing or not columns:
            places = self._loaded.places
            pinned |= column_statistics(self, places, missing, progress=progress)
        return {name: pinned[name] for name in columns}

    def info(self) -> dict[str, Any]:
        """Return what a person wants to know about the manifest, as JSON-able values."""
        header = self._loaded.header
        return {
            "path": self.path,
            "root": self.root,
            "digest": self.digest,
            "query": header.sql,
            "canonical_query": self._loaded.notes.get("canonical_sql"),
            "parameters": header.parameters,
            "attached": dict(header.attached),
            "seed": header.seed,
            "key": header.key,
            "n_sequences": header.n_sequences,
            "n_rows": header.n_rows,
            "n_files": len(header.files),
            "content_recorded": all("content_sha256" in file for file in header.files),
            "columns": self.extra.column_names,
            "statistics": {name: dict(values) for name, values in header.statistics.items()},
            "selection_digest": header.selection_digest,
            "index_content_digest": header.content_digest,
            "writer": self._loaded.notes.get("writer"),
        }

    def to_table(self) -> pa.Table:
        """Return ``seq_id``, ``row_count`` and the query's other columns, n rows.

        A column that the query itself calls ``row_count`` is the query's.
        """
        return _to_table(self._loaded.places)

    def verify(self, deep: bool = False, *, progress: Progress | None = None) -> VerifyReport:
        """Compare every source file of the manifest with what was pinned.

        Parameters
        ----------
        deep
            Also read every row group that the manifest touches: its bytes are compared where they were recorded, in the
            manifest or in the index that was asked, else its pages are decoded. The report's notes say what could not
            be seen. See docs/checks.md.
        progress
            Called with (row groups done, row groups in all, phase) while row groups are read.
        """
        files = self._loaded.files
        if not deep:
            return manifests.verify_files(files)
        file_no, row_group = self._loaded.places.row_groups()
        recorded = _recorded_of_manifest(self._loaded)

        def read(skip: frozenset[int]) -> DeepReport:
            return verify_content(
                files,
                file_no,
                row_group,
                recorded,
                rolled_up=files.content_sha256,
                skip=skip,
                progress=progress,
            )

        return manifests.verify_files(files, read, remedy="pin with content=True / --content records it")

    def doctor(self, columns: Sequence[str] | None = None) -> LayoutReport:
        """Return what the layout costs those who read these sequences; see `Index.doctor`.

        Where the index that was asked is still there, it knows the chunks, and no source file is opened; else the
        footers of the source files are read, and page places are not known.

        Raises
        ------
        SourceChangedError
            If there is no index, and a source file is not the one that was pinned.
        """
        sidecar, files = sidecar_of_manifest(self._loaded), self._loaded.files
        return examine(
            self._loaded.places,
            files,
            None if sidecar is None else chunk_source(sidecar, files),
            lambda plan: facts_of_footers(files, plan) if sidecar is None else facts_of_index(sidecar, plan),
            columns=columns,
            target=self.path,
        )

    def rewrite(
        self,
        path: storage.PathLike,
        *,
        columns: Sequence[str] | None = None,
        codec: str = "lz4",
        dictionary: str = "auto",
        pack_rows: int | None = None,
        file_size: int = FILE_SIZE,
        order: str | None = None,
        check: bool = True,
        progress: Progress | None = None,
        say: Say | None = None,
    ) -> Index:
        """Copy the sequences, in this order, to new files in the layout that reads fastest, with an index of their own.

        Parameters, return value and errors as in `Selection.rewrite`. The new index takes its options from the index
        that was asked, where that is still there; else `order` names the order column, and there is none without.
        """
        asked = sidecar_of_manifest(self._loaded)
        own = BuildOptions(key=self._loaded.header.key)
        return _rewrite(
            self,
            self._loaded.files,
            path,
            options=own if asked is None else asked.snapshot.options,
            indexes=() if asked is None else (asked.path,),
            columns=columns,
            codec=codec,
            dictionary=dictionary,
            pack_rows=pack_rows,
            file_size=file_size,
            order=order,
            check=check,
            progress=progress,
            say=say,
        )

    def read_plan(self, columns: Sequence[str] | None = None, *, staleness: str = "error") -> ReadPlan:
        """Resolve the sequences and some columns to byte places.

        Where the index that was asked is still there, it knows them; else the footers of the source files are parsed.
        """
        names = None if columns is None else tuple(columns)
        return resolve(
            self._loaded.places,
            self._loaded.files,
            names,
            selection_digest=self.digest,
            known=chunk_source_of_manifest(self._loaded),
            staleness=staleness,
            origin=(_resolve_manifest, (self.path, self.root, self.digest, names, staleness)),
        )

    def refreshed(self) -> Manifest:
        """Refuse: what is pinned stays as it was pinned."""
        raise UsageError(
            f"a manifest cannot be refreshed: {self.path}",
            hint="refresh the index, ask it again, and pin the answer",
            path=self.path,
        )


def chunk_source_of_manifest(loaded: LoadedManifest) -> ChunkSource | None:
    """Return what the index of a manifest knows, None where it is gone or is another one by now."""
    sidecar = sidecar_of_manifest(loaded)
    try:
        return None if sidecar is None else chunk_source(sidecar, loaded.files)
    except PqindexError:
        return None


def _recorded_of_manifest(loaded: LoadedManifest) -> Recorded:
    """Return what the index of a manifest knows of the bytes of row groups; nothing where it is gone."""
    sidecar = sidecar_of_manifest(loaded)
    try:
        return no_digest if sidecar is None else recorded_content(sidecar, loaded.files)
    except PqindexError:
        return no_digest


def sidecar_of_manifest(loaded: LoadedManifest) -> Sidecar | None:
    """Return the index of a manifest, None where it is gone or is another one by now."""
    hint, number = loaded.notes.get("index"), loaded.notes.get("snapshot")
    if not isinstance(hint, str) or not isinstance(number, int):
        return None
    path = os.path.normpath(os.path.join(os.path.dirname(loaded.path), hint))
    try:
        sidecar = open_sidecar(path, number)
    except PqindexError:
        return None
    return sidecar if sidecar.snapshot.content_digest == loaded.header.content_digest else None


def _rewrite(
    source: Selection | Manifest,
    files: SourceFiles,
    path: storage.PathLike,
    *,
    options: BuildOptions,
    indexes: tuple[str, ...],
    columns: Sequence[str] | None,
    order: str | None,
    progress: Progress | None,
    say: Say | None,
    **form: Any,
) -> Index:
    if isinstance(columns, str):
        raise UsageError(f"columns: expected a list of names, found the text {columns!r}")
    if order is not None:
        options = replace(options, order=order)
    sidecar, report = rewrite(
        source,
        path,
        Origin(root=files.root, paths=files.paths, indexes=indexes, options=options),
        RewriteOptions(columns=None if columns is None else tuple(columns), **form),
        progress=progress,
        say=say,
    )
    index = Index(sidecar)
    index.rewritten = report
    return index


def _resolve_manifest(
    path: str, root: str, digest: str, columns: tuple[str, ...] | None, staleness: str
) -> ReadPlan:
    """Resolve a manifest's plan in a process that has not got it."""
    manifest = load_manifest(path, root=root)
    if manifest.digest != digest:
        raise UsageError(
            f"the manifest was replaced while it was in use: {path}; expected digest {digest[:16]}..., found "
            f"{manifest.digest[:16]}...",
            hint="make the dataset again",
        )
    return manifest.read_plan(columns, staleness=staleness)


def _to_table(places: Places) -> pa.Table:
    own = {"seq_id": places.seq_ids, "row_count": pa.array(places.row_counts)}
    extra = dict(zip(places.extra.column_names, places.extra.columns, strict=True))
    return pa.table({**own, **extra})
