"""A selection in a better layout: its sequences copied to new files, compared with the source, and published at once.

Everything is written in a work folder beside the target. A file that is complete is noted there with its digests, so
that a run that was stopped goes on behind it. The new index gets its name first and the new data last: where the folder
of the data is there, all of it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from pqindex import storage
from pqindex.build import build_index
from pqindex.digest import RecordDigest, canonical_json, sha256_hex, table_digest
from pqindex.documents import BuildOptions
from pqindex.errors import (
    ConflictError,
    DigestMismatchError,
    EmptySourceError,
    IntegrityError,
    NotFoundError,
    PqindexError,
    SourceChangedError,
    SourceError,
    UsageError,
    WriteError,
)
from pqindex.layout import (
    CODECS,
    DICTIONARIES,
    MAX_GROUP_ROWS,
    FileForm,
    file_form,
    open_writer,
    output_schema,
    row_group_table,
)
from pqindex.places import Places, empty_columns
from pqindex.query import chunk_source, source_files
from pqindex.reader import Reader, Source, checked_count
from pqindex.readplan import ReadPlan, resolve
from pqindex.sidecar import Sidecar, open_sidecar, snapshot_numbers

FILE_SIZE: Final = 256 * 10**6
"""A file is closed with the row group with which it has so many bytes."""

GROUP_CACHE_BYTES: Final = 256 << 20
"""Decoded row groups of the source are kept up to this size."""

ROWS_AT_ONCE: Final = 1 << 16
SEQUENCES_AT_ONCE: Final = 256
BYTES_AT_ONCE: Final = 16 << 20
"""Sequences are read together up to these bounds, the last one of the bytes of the source's files."""

MAX_FILE_CHUNKS: Final = 1 << 17
"""A file is closed with so many column chunks too: its footer has a hundred bytes for each."""

DIGEST_BYTES: Final = 32

Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """What the new files are like.

    Attributes
    ----------
    columns : tuple of str or None
        None for all; the key and the order column are always there.
    codec : str
    dictionary : str
        ``"auto"`` encodes texts, binaries and the key, and no other column.
    pack_rows : int or None
        None gives each sequence a row group of its own; else whole sequences share one of up to so many rows.
    file_size : int
        Bytes.
    check : bool
        Whether every sequence is read back and compared.
    """

    columns: tuple[str, ...] | None = None
    codec: str = "lz4"
    dictionary: str = "auto"
    pack_rows: int | None = None
    file_size: int = FILE_SIZE
    check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteReport:
    """What a rewrite did.

    Attributes
    ----------
    n_sequences, n_rows, n_files : int
    n_kept_files : int
        Files that an earlier run, which was stopped, had completed.
    bytes_before : int
        Bytes of the source's column chunks that were copied; of a shared row group its share by rows.
    bytes_after : int
        Bytes of the new files.
    checked : bool
        Whether every sequence was read back and compared.
    elapsed_s : float
    """

    n_sequences: int
    n_rows: int
    n_files: int
    n_kept_files: int
    bytes_before: int
    bytes_after: int
    checked: bool
    elapsed_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a selection comes from, and what its new index takes over.

    Attributes
    ----------
    root : str
        Folder of the source files.
    paths : sequence of str
        The source files below it.
    indexes : tuple of str
        Index folders and manifests that belong to the source.
    options : BuildOptions
    """

    root: str
    paths: Sequence[str]
    indexes: tuple[str, ...]
    options: BuildOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _DoneFile:
    """A complete file: sequences ``[first, stop)`` of the selection."""

    name: str
    first: int
    stop: int
    n_rows: int
    size_bytes: int
    sha256: str
    digests_sha256: str


class _Group(NamedTuple):
    """Whole sequences, ``[first, stop)``, for one row group."""

    first: int
    stop: int
    tables: list[pa.Table]


class _Work:
    """The work folder: the new data, the new index, and the journal of what is complete."""

    def __init__(self, folder: str, target: str) -> None:
        self.folder = folder
        self.target = target
        self.index_target = target + storage.INDEX_SUFFIX
        # The index knows its source by a relative path, so both lie here as they will lie there.
        self.data = os.path.join(folder, os.path.basename(target))
        self.index = self.data + storage.INDEX_SUFFIX
        self.journal = os.path.join(folder, "journal")

    # -- notes --------------------------------------------------------------------------------------------

    def note(self, name: str, value: Any) -> None:
        """Write a note; it is whole or absent."""
        self.note_bytes(name, json.dumps(value).encode())

    def note_bytes(self, name: str, data: bytes) -> None:
        """Write bytes as a note."""
        storage.write_bytes(os.path.join(self.journal, name), data, overwrite=True)

    def noted(self, name: str) -> Any:
        """Return a note, None where there is none."""
        try:
            return json.loads(self.noted_bytes(name))
        except (NotFoundError, ValueError):
            return None

    def noted_bytes(self, name: str) -> bytes:
        """Return a note's bytes."""
        return storage.read_file(os.path.join(self.journal, name), max_bytes=1 << 31)

    # -- the state ----------------------------------------------------------------------------------------

    def index_is_published(self) -> bool:
        """Return whether the index at its place is the one that this folder was about to publish."""
        digest = self.noted("publish")
        if digest is None or os.path.isdir(self.index) or not snapshot_numbers(self.index_target):
            return False
        try:
            return bool(open_sidecar(self.index_target).snapshot.content_digest == digest)
        except PqindexError:
            return False

    def take_index_back(self) -> None:
        """Remove the index from its place if it is the one of this folder: its data are not there."""
        if self.index_is_published():
            storage.remove_folder(self.index_target)

    def has_files(self) -> bool:
        """Return whether a file is complete."""
        return bool(storage.names_in(self.data)) and any(
            name.startswith("part-") for name in storage.names_in(self.journal)
        )

    def begin(self, job: str, say: Say) -> None:
        """Make the folder ready for a job, keeping what belongs to it and nothing else."""
        before = self.noted("job")
        if before is not None and before != job and self.has_files():
            say(
                f"an earlier rewrite to {self.target} was of other data or with other options: it starts anew"
            )
        if before != job:
            self.take_index_back()
            self.clear()
            self.note("job", job)
        storage.make_folder(self.data)

    def clear(self) -> None:
        """Remove everything but the lock."""
        for folder in (self.data, self.index, self.journal):
            storage.remove_folder(folder)

    def complete_files(self, name_of: Callable[[int], str]) -> list[_DoneFile]:
        """Return the files that are complete and as they were noted, and remove all others."""
        done: list[_DoneFile] = []
        first = 0
        while True:
            file = self._complete(name_of(len(done)), first)
            if file is None:
                break
            done.append(file)
            first = file.stop
        kept = {file.name for file in done}
        for name in storage.names_in(self.data):
            if name not in kept:
                storage.remove_file(os.path.join(self.data, name))
        return done

    def _complete(self, name: str, first: int) -> _DoneFile | None:
        noted = self.noted(name)
        if not isinstance(noted, dict):
            return None
        file = _DoneFile(**noted)
        path = os.path.join(self.data, name)
        if file.first != first or storage.size_of(path) != file.size_bytes:
            return None
        try:
            digests = self.noted_bytes(f"{name}.digests")
        except NotFoundError:
            return None
        whole = storage.file_sha256(path) == file.sha256 and sha256_hex(digests) == file.digests_sha256
        return file if whole else None

    def note_file(self, file: _DoneFile, digests: bytes) -> None:
        """Note that a file is complete."""
        self.note_bytes(f"{file.name}.digests", digests)
        self.note(file.name, asdict(file))

    def digests(self, file: _DoneFile) -> npt.NDArray[np.uint8]:
        """Return the digests of the sequences of a file, shape (n, 32), uint8."""
        return np.frombuffer(self.noted_bytes(f"{file.name}.digests"), np.uint8).reshape(-1, DIGEST_BYTES)


class _Resolved:
    """A read plan as a source, so that it need not be resolved again."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def read_plan(self, columns: Sequence[str] | None, *, staleness: str) -> ReadPlan:  # noqa: ARG002
        return self._plan


# -- the whole job --------------------------------------------------------------------------------------------


def rewrite(
    source: Source,
    path: storage.PathLike,
    origin: Origin,
    options: RewriteOptions,
    *,
    progress: Progress | None = None,
    say: Say | None = None,
) -> tuple[Sidecar, RewriteReport]:
    """Copy the sequences of a selection to new files in the fast layout, with an index of their own.

    Sequences are read as any reader reads them, in the order of the selection, and written in that order. Where `check`
    is set, the new files are read back through the new index, and each sequence must have the digest that it had when
    it was read. The folder `path` and its index ``path.pqindex`` appear when all is well, the folder last.

    Cost: every selected byte is read, written, and read again. Memory: some sequences, the longest one three times, and
    up to 256 MiB of decoded row groups of the source.

    A run that is stopped leaves a hidden work folder beside `path`; the same call goes on after the last complete file.

    Raises
    ------
    UsageError
        If an option makes no sense, or `path` touches the source or an index of it.
    ConflictError
        If `path` is there and not empty, its index is there, or another process writes it.
    EmptySourceError
        If nothing is selected.
    SourceChangedError
        If a source file is not the one that was indexed, or changed meanwhile.
    ColumnMissingError, ColumnTypeError
        If a column cannot be read, or Parquet does not give its type back.
    DigestMismatchError
        If a sequence read back is not the one that was read.
    WriteError
        If the disk is full, or a file cannot be written.
    """
    started = time.monotonic()
    _validate(options)
    target = checked_target(path, origin)
    key = _key_of(origin.options)
    columns = _columns(options, key, origin.options.order)
    plan = source.read_plan(columns, staleness="error")
    if key not in plan.schema.names:
        raise UsageError(
            f"the key {key!r} is a partition, and no column of the files, so that a copy would not have it",
            hint="write the key into the files first",
            column=key,
        )
    if not len(plan.row_counts):
        raise EmptySourceError("nothing is selected, so there is nothing to write", hint="change the query")
    form = file_form(output_schema(plan), key=key, codec=options.codec, dictionary=options.dictionary)
    job = _job_digest(plan, form, options, origin.options)
    with storage.work_folder(target) as folder:
        work = _Work(folder, target)
        try:
            kept = _kept_after_publishing(work, job)
            if kept is None:
                refuse_occupied(work)
                work.begin(job, say or _nowhere)
                run = _Run(work, plan, form, options, progress)
                kept = run.write()
                sidecar = run.index(_new_options(origin.options, form, plan, options))
                _refuse_changed(plan, source.read_plan(columns, staleness="error"))
                _publish(work, sidecar)
        except BaseException as error:
            _leave(work, error)
            raise
        storage.remove_folder(folder)
    return open_sidecar(work.index_target), _report(work, plan, options, kept, started)


def _kept_after_publishing(work: _Work, job: str) -> int | None:
    """Return how many files there are where a run of the same job was stopped when all but the cleaning was done."""
    is_there = not storage.names_in(work.data) and work.noted("job") == job and work.index_is_published()
    return len(storage.names_in(work.target)) or None if is_there else None


def _nowhere(_text: str) -> None:
    """Say nothing."""


def _leave(work: _Work, error: BaseException) -> None:
    """Remove the work folder unless a later run can go on with what is in it.

    After a fault of the source it cannot: a source that was put right is another one.
    """
    can_go_on = not isinstance(error, PqindexError) or isinstance(error, WriteError | ConflictError)
    if not (can_go_on and work.has_files()):
        if not storage.names_in(work.target):
            work.take_index_back()
        storage.remove_folder(work.folder)


def _validate(options: RewriteOptions) -> None:
    for name, allowed in {"codec": CODECS, "dictionary": DICTIONARIES}.items():
        found = getattr(options, name)
        if found not in allowed:
            raise UsageError(f"{name}: expected one of {', '.join(allowed)}, found {found!r}")
    checked_count("file_size", options.file_size, at_least=1)
    if options.pack_rows is not None:
        checked_count("pack_rows", options.pack_rows, at_least=1)


def _key_of(build: BuildOptions) -> str:
    """Return the key's column; raises UsageError for another unit, whose ids are made of the places of now."""
    if build.key is None:
        raise UsageError(
            f"sequences of unit {build.unit!r} are named by where they lie, and a copy would name them otherwise",
            hint="index the source by a key column",
        )
    return build.key


def _columns(options: RewriteOptions, key: str, order: str | None) -> list[str] | None:
    """Return the columns to copy; the key and the order column come first where they were not named."""
    if options.columns is None:
        return None
    own = [key] if order is None else [key, order]
    return [name for name in own if name not in options.columns] + list(options.columns)


def _new_options(
    build: BuildOptions, form: FileForm, plan: ReadPlan, options: RewriteOptions
) -> BuildOptions:
    """Return the options of the new index: the same key and order, and nothing to put up with."""
    alone = options.pack_rows is None and int(plan.row_counts.max()) <= MAX_GROUP_ROWS
    statistics = build.statistics
    return replace(
        build,
        layout="one-per-row-group" if alone else "any",
        join=False,
        skip_null_keys=False,
        on_bad_file="error",
        partition_types={},
        attributes=tuple(name for name in build.attributes if name in form.schema.names),
        aggregates=build.aggregates if options.columns is None else (),
        statistics=None
        if statistics is None
        else tuple(name for name in statistics if name in form.schema.names),
    )


def _job_digest(plan: ReadPlan, form: FileForm, options: RewriteOptions, build: BuildOptions) -> str:
    """Return what the bytes of the files hang on; files of different jobs are never mixed.

    A file of the source counts as another one if its size, its time or its inode is another.
    """
    return sha256_hex(
        canonical_json(
            {
                "version": 1,
                "pyarrow": pa.__version__,
                "selection": plan.selection_digest,
                "files": [[str(value) for value in row] for row in plan.footprints[:, [0, 1, 3]].tolist()],
                "schema": sha256_hex(form.schema.serialize().to_pybytes()),
                "options": {k: v for k, v in asdict(options).items() if k not in {"check", "columns"}},
                "build": build.to_json(),
            }
        )
    )


# -- where ----------------------------------------------------------------------------------------------------


def checked_target(path: storage.PathLike, origin: Origin) -> str:
    """Return the absolute path of the folder to make, after the check that it does not touch the source.

    Raises
    ------
    UsageError
        If it is a link, is or holds or lies in a folder of the source or an index of it, or cannot be a name of data.
    """
    given = os.path.abspath(path)
    if os.path.islink(given):
        raise UsageError(f"the folder to write is a link: {given}", hint="name the folder itself", path=given)
    parent, name = os.path.split(given)
    target = os.path.join(os.path.realpath(parent), name)
    if not name or name.endswith(storage.INDEX_SUFFIX):
        raise UsageError(
            f"no name of a folder of data: {given}",
            hint=f"names that end in {storage.INDEX_SUFFIX} are indexes",
            path=given,
        )
    root = os.path.realpath(origin.root)
    # folders of the source may be links that lead elsewhere
    folders = {os.path.dirname(file) for file in origin.paths}
    data = {root, *(os.path.realpath(os.path.join(origin.root, folder)) for folder in folders)}
    for what, places in (("the source", sorted(data)), ("an index of the source", origin.indexes)):
        for place in places:
            here = os.path.realpath(place)
            lies_in, holds = storage.lies_in(target, here), storage.lies_in(here, target)
            if lies_in or holds:
                relation = "is" if lies_in and holds else "lies in" if lies_in else "holds"
                raise UsageError(
                    f"the folder to write {relation} {what}: {given}; {what} is at {here}",
                    hint="name a folder beside it, or elsewhere",
                    path=given,
                    found=here,
                )
    if storage.lies_in(root, target + storage.INDEX_SUFFIX):
        raise UsageError(
            f"the index of the folder to write would hold the source: {given}",
            hint="name another folder",
            path=given,
        )
    return target


def refuse_occupied(work: _Work) -> None:
    """Refuse names that are taken.

    Raises
    ------
    ConflictError
    """
    others = storage.names_in(work.target)
    if others or (os.path.lexists(work.target) and not os.path.isdir(work.target)):
        found = f"it holds {', '.join(others[:5])}" if others else "it is a file"
        raise ConflictError(
            f"the folder to write is there already: {work.target}; {found}",
            hint="choose another name, or remove it first",
            path=work.target,
        )
    if os.path.lexists(work.index_target) and not work.index_is_published():
        raise ConflictError(
            f"the index of the folder to write is there already: {work.index_target}",
            hint="choose another name, or remove it first",
            path=work.index_target,
        )


# -- writing, checking ----------------------------------------------------------------------------------------


class _Run:
    """One run of a job: what is read, and where it is written."""

    def __init__(
        self, work: _Work, plan: ReadPlan, form: FileForm, options: RewriteOptions, progress: Progress | None
    ) -> None:
        self._work = work
        self._plan = plan
        self._form = form
        self._options = options
        self._progress = progress
        self._n = len(plan.row_counts)
        self._digits = max(5, len(str(self._n)))
        self._done: list[_DoneFile] = []

    def _name(self, number: int) -> str:
        return f"part-{number:0{self._digits}}.parquet"

    def _tell(self, done: int, phase: str) -> None:
        if self._progress is not None:
            self._progress(done, self._n, phase)

    def write(self) -> int:
        """Write the files that are not complete yet, and return how many were."""
        self._done = self._work.complete_files(self._name)
        n_kept = len(self._done)
        first = self._done[-1].stop if self._done else 0
        self._tell(first, "rewrite")
        if first == self._n:
            return n_kept
        with Reader(_Resolved(self._plan), group_cache_bytes=GROUP_CACHE_BYTES) as reader:
            tables = _read(reader, self._plan, first)
            groups = _row_groups(tables, self._options.pack_rows)
            group = next(groups, None)
            while group is not None:
                with self._telling_what_is_kept():
                    group = self._write_file(group, groups)
        return n_kept

    @contextlib.contextmanager
    def _telling_what_is_kept(self) -> Iterator[None]:
        """Say in the error of a write what is there already, and how to go on."""
        try:
            yield
        except NotFoundError:  # an OSError too, and not of the disk
            raise
        except OSError as error:
            raise self._stopped(error) from error

    def _write_file(self, group: _Group, groups: Iterator[_Group]) -> _Group | None:
        """Write the next file from a group on, and return the group that the one after it begins with."""
        name = self._name(len(self._done))
        sink = storage.DigestingFile(os.path.join(self._work.data, name))
        try:
            file, digests, rest = self._fill(sink, name, group, groups)
            self._work.note_file(file, digests)
        except BaseException:
            sink.discard()
            raise
        self._done.append(file)
        return rest

    def _fill(
        self, sink: storage.DigestingFile, name: str, group: _Group, groups: Iterator[_Group]
    ) -> tuple[_DoneFile, bytes, _Group | None]:
        digests = bytearray()
        n_groups = 0
        writer: pq.ParquetWriter | None = None
        first, n_rows = group.first, 0
        while True:
            for table in group.tables:
                digests += sequence_digest(table)
            try:
                table = row_group_table(group.tables, self._form.schema)
                if writer is None:
                    writer = open_writer(sink, self._form, table)
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
            except pa.ArrowException as error:
                raise SourceError(
                    f"PyArrow cannot write sequences {group.first} to {group.stop} of the selection: {error}",
                    hint="leave the column out with columns=",
                    position=group.first,
                ) from error
            n_rows += table.num_rows
            self._tell(group.stop, "rewrite")
            rest = next(groups, None)
            n_groups += 1
            is_full = (
                sink.n_bytes >= self._options.file_size or n_groups * self._form.n_leaves >= MAX_FILE_CHUNKS
            )
            if rest is None or is_full:
                break
            group = rest
        writer.close()
        sink.close()
        raw = bytes(digests)
        file = _DoneFile(
            name=name,
            first=first,
            stop=group.stop,
            n_rows=n_rows,
            size_bytes=sink.n_bytes,
            sha256=sink.hexdigest(),
            digests_sha256=sha256_hex(raw),
        )
        return file, raw, rest

    def _stopped(self, error: OSError) -> WriteError:
        work, done = self._work, self._done
        n_bytes = sum(file.size_bytes for file in done)
        n_sequences = done[-1].stop if done else 0
        said = error.strerror or str(error.args[0] if error.args else error)
        what = (
            f"complete and kept in {work.folder}: {len(done)} file{'s' * (len(done) > 1)}, {n_sequences} of "
            f"{self._n} sequences, {n_bytes} bytes"
            if done
            else "no file was complete, and nothing is left"
        )
        return WriteError(
            f"cannot write the new files of {work.target}: {said}; {what}",
            hint="make room and run the same command again to go on, or remove that folder"
            if done
            else "make room and run the command again",
            path=work.target,
            n_files=len(done),
            n_sequences=n_sequences,
            n_bytes=n_bytes,
            work_folder=work.folder,
        )

    def index(self, options: BuildOptions) -> Sidecar:
        """Return the index of the new files, which have been compared with what was read of the source."""
        work = self._work
        if work.index_is_published():
            sidecar = open_sidecar(work.index_target)
        else:
            storage.remove_folder(work.index)
            with self._telling_what_is_kept():
                sidecar = build_index(work.data, options, index=work.index, progress=self._progress)
        if self._options.check:
            self._compare(sidecar)
        return sidecar

    def _compare(self, sidecar: Sidecar) -> None:
        """Read every sequence of the new index, and compare it with what was read of the source."""
        plan, work = self._plan, self._work
        back = _plan_of_all(sidecar, work.data)
        expected, found = plan.schema, back.schema
        if not (
            expected.names == found.names
            and expected.types == found.types
            and np.array_equal(plan.row_counts, back.row_counts)
            and table_digest(pa.table({"": plan.seq_ids})) == table_digest(pa.table({"": back.seq_ids}))
        ):
            raise DigestMismatchError(
                f"the new files do not hold the sequences of the source: {work.target}; expected {self._n} sequences "
                f"of {expected.names}, found {len(back.row_counts)} of {found.names}. Nothing was published",
                hint="report this",
                path=work.target,
            )
        self._tell(0, "check")
        with Reader(_Resolved(back), group_cache_bytes=GROUP_CACHE_BYTES) as reader:
            tables = _read_back(reader, back)
            for file in self._done:
                for digest in work.digests(file):
                    number, table = next(tables)
                    expected_hex, found_hex = digest.tobytes().hex(), sequence_digest(table).hex()
                    if expected_hex != found_hex:
                        place = reader.segments(number)[0]
                        raise DigestMismatchError(
                            f"a sequence read back is not the one that was read: {plan.seq_ids[number]} in "
                            f"{place.file}#{place.row_group}; expected {expected_hex[:16]}..., found "
                            f"{found_hex[:16]}.... Nothing was published",
                            hint="check the disk and the memory, and run the command again",
                            file=place.file,
                            row_group=place.row_group,
                            expected=expected_hex,
                            found=found_hex,
                        )
                    self._tell(number + 1, "check")


def _read(reader: Reader, plan: ReadPlan, first: int) -> Iterator[tuple[int, pa.Table]]:
    """Read the sequences of a plan from one on, some at a time."""
    n_bytes = _sequence_bytes(plan)
    position, n = first, len(plan.row_counts)
    while position < n:
        stop = min(position + SEQUENCES_AT_ONCE, n)
        fits = np.cumsum(plan.row_counts[position:stop]) <= ROWS_AT_ONCE
        fits &= np.cumsum(n_bytes[position:stop]) <= BYTES_AT_ONCE
        stop = position + max(1, int(fits.sum()))
        try:
            tables = reader.read(range(position, stop))
        except OSError as error:
            if isinstance(error, PqindexError):
                raise
            raise SourceError(
                f"the files below {plan.root} cannot be read: {error.strerror or error}", errno=error.errno
            ) from error
        yield from zip(range(position, stop), tables, strict=True)
        position = stop


def sequence_digest(table: pa.Table) -> bytes:
    """Return the sha256 of all values of a sequence, bit for bit, and of its nulls.

    It tells tables of one schema and one number of rows apart, however they are cut into chunks. Numbers without nulls
    are taken from Arrow's memory as they are; everything else by the rules of `RecordDigest`.
    """
    sha = hashlib.sha256()
    for column in table.columns:
        kind = column.type
        is_plain = pt.is_primitive(kind) and not pt.is_boolean(kind) and not column.null_count
        sha.update(b"plain" if is_plain else b"other")
        if not is_plain:
            digest = RecordDigest()
            digest.add_array("", column)
            sha.update(bytes.fromhex(digest.hexdigest()))
            continue
        width = kind.bit_width // 8
        for chunk in column.chunks:
            if len(chunk):
                first = chunk.offset * width
                sha.update(memoryview(chunk.buffers()[1])[first : first + len(chunk) * width])
    return sha.digest()


def _read_back(reader: Reader, plan: ReadPlan) -> Iterator[tuple[int, pa.Table]]:
    """Read what was written; that it cannot be read is a fault of ours or of the disk, and not of the source."""
    try:
        yield from _read(reader, plan, 0)
    except (SourceError, IntegrityError) as error:
        raise DigestMismatchError(
            f"a new file cannot be read back: {error.message}; nothing was published",
            hint="check the disk and the memory, and run the command again",
            **error.facts,
        ) from error


def _row_groups(tables: Iterator[tuple[int, pa.Table]], pack_rows: int | None) -> Iterator[_Group]:
    """Put sequences together, whole, up to `pack_rows` rows; each alone without."""
    own: list[pa.Table] = []
    first = n_rows = 0
    for number, table in tables:
        if own and (pack_rows is None or n_rows + table.num_rows > pack_rows):
            yield _Group(first, number, own)
            own = []
        if not own:
            first, n_rows = number, 0
        own.append(table)
        n_rows += table.num_rows
    if own:
        yield _Group(first, first + len(own), own)


def _sequence_bytes(plan: ReadPlan) -> npt.NDArray[np.float64]:
    """Return the bytes of the column chunks of each sequence, of a shared row group its share by rows; shape (n,)."""
    total = np.concatenate([[0], np.cumsum(plan.chunks["length"], dtype=np.int64)])
    of_group = total[plan.chunk_stops[1:]] - total[plan.chunk_stops[:-1]]
    a_row = of_group / np.maximum(plan.group_n_rows, 1)
    of_segment = (plan.row_stop - plan.row_start) * a_row[plan.group_of_segment]
    running = np.concatenate([[0.0], np.cumsum(of_segment)])
    found: npt.NDArray[np.float64] = running[plan.segment_stops[1:]] - running[plan.segment_stops[:-1]]
    return found


def _plan_of_all(sidecar: Sidecar, root: str) -> ReadPlan:
    """Return the read plan of all sequences and columns of an index, in the canonical order."""
    sequences, segments = sidecar.sequences, sidecar.segments
    files = source_files(sidecar, root, np.arange(sidecar.files.num_rows))
    places = Places(
        seq_ids=sequences.column("seq_id").combine_chunks(),
        row_counts=sequences.column("row_count").to_numpy(),
        segment_stops=segments.stops,
        file_no=segments.file_id,
        row_group=segments.row_group,
        row_start=segments.row_start,
        row_stop=segments.row_stop,
        extra=empty_columns(sequences.num_rows),
    )
    return resolve(places, files, None, selection_digest="", known=chunk_source(sidecar, files))


# -- publishing -----------------------------------------------------------------------------------------------


def _refuse_changed(before: ReadPlan, after: ReadPlan) -> None:
    """Refuse to publish what was read of files that changed meanwhile."""
    changed = np.flatnonzero(
        np.any(before.footprints[:, [0, 1, 3]] != after.footprints[:, [0, 1, 3]], axis=1)
    )
    if changed.size:
        file = before.paths[int(changed[0])].as_py()
        raise SourceChangedError(
            f"source file was written to while it was rewritten: {file}; {changed.size} of {len(before.paths)} files "
            "changed, and nothing was published",
            hint="run the command again when nothing writes to the source",
            file=file,
            change="replaced",
        )


def _publish(work: _Work, sidecar: Sidecar) -> None:
    """Give the index and then the data their names."""
    try:
        if not work.index_is_published():
            work.note("publish", sidecar.snapshot.content_digest)
            storage.publish_folder(work.index, work.index_target)
        storage.publish_folder(work.data, work.target)
    except ConflictError as error:
        work.take_index_back()
        raise ConflictError(
            f"{error.message}; the complete copy is kept in {work.folder}",
            hint="put that away and run the same command again, or remove the work folder",
            **error.facts,
        ) from error


def _report(
    work: _Work, plan: ReadPlan, options: RewriteOptions, n_kept: int, started: float
) -> RewriteReport:
    files = [storage.size_of(os.path.join(work.target, name)) or 0 for name in storage.names_in(work.target)]
    return RewriteReport(
        n_sequences=len(plan.row_counts),
        n_rows=int(plan.row_counts.sum()),
        n_files=len(files),
        n_kept_files=n_kept,
        bytes_before=round(float(_sequence_bytes(plan).sum())),
        bytes_after=sum(files),
        checked=options.check,
        elapsed_s=time.monotonic() - started,
    )
