"""From the tables of an index to the same tables with what only the values tell: tasks out, results put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pqindex.content.results import content_notes, raise_not_constant, with_columns, with_digests
from pqindex.content.tasks import Layout, Source
from pqindex.content.wanted import needs_content, resolve_wanted
from pqindex.content.work import Found, SequencesTask, Task, look_at_groups, look_at_sequences
from pqindex.documents import BuildOptions
from pqindex.errors import BadFileError
from pqindex.footer import SchemaRecord
from pqindex.scan import Skipped
from pqindex.workers import process_ended, run_tasks

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The tables of an index with what the values tell.

    Attributes
    ----------
    tables : dict of str to pyarrow.Table
        As they were given, `row_groups` and `sequences` with their new columns.
    skipped : tuple of Skipped
        Files that turned out not to be readable. Where there are any, the tables are as they were given: the caller
        has to leave the files out and begin again.
    notes : tuple of str
        For people.
    """

    tables: Mapping[str, pa.Table]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = field(default=())


def add_content(
    tables: Mapping[str, pa.Table],
    schemas: Sequence[SchemaRecord],
    options: BuildOptions,
    *,
    root: str,
    types_of: Sequence[SchemaRecord] | None = None,
    n_processes: int = 1,
    probe: bool = False,
    progress: Progress | None = None,
) -> Content:
    """Return the tables with what the options ask of the values: statistics, digests, attributes, aggregates.

    It sees the files of `tables` alone, so that a refresh may give those that changed; every sequence in them must be
    there with all its segments. Without such options nothing is read. The answer hangs neither on the number of
    processes nor on which other files there are.

    Cost: with ``check="full"`` all bytes of the row groups, once; else the columns of the attributes where bounds do
    not prove them, and those that aggregates name. What aggregates name of sequences of several segments is read again.
    Memory: some columns of one row group a process, a few hundred bytes a sequence and column, and the rows of the
    longest sequence in the columns that aggregates name.

    Parameters
    ----------
    tables : mapping of str to pyarrow.Table
        `files` (whose `file_id` is the row number), `row_groups`, `sequences`, and `segments` where there are any, as
        `assemble` gives them.
    schemas : sequence of SchemaRecord
        What `files.schema_no` counts.
    types_of : sequence of SchemaRecord, optional
        The schemas of all files of the index: names and types of attributes and aggregates hold for all of them. By
        default those of `schemas`.
    options : BuildOptions
    root : str
        Folder of the source files.
    n_processes : int
    probe : bool
        Begin in this process alone; see `workers.run_tasks`.
    progress : callable, optional
        Called with (row groups done, row groups in all, "content").

    Raises
    ------
    ColumnMissingError, ColumnTypeError, QueryError
        If an attribute or aggregate names what is not there, has no fitting type, or fails.
    NotConstantError
        If an attribute has several values in a sequence.
    BadFileError, UnsupportedFileError
        If a column cannot be read, and ``on_bad_file`` is not ``"skip"``.
    SourceChangedError
        If a file was changed since it was scanned.
    """
    if not needs_content(options):
        return Content(tables=tables)
    sequences = tables["sequences"]
    wanted, notes = resolve_wanted(sequences.schema, schemas if types_of is None else types_of, options)
    layout = Layout.of(tables)
    source = Source(
        root=root,
        files=tables["files"],
        schemas=schemas,
        wanted=wanted,
        may_skip=options.on_bad_file == "skip",
    )

    groups = layout.groups(all_of_them=wanted.digests)
    tasks = [source.task(layout, some) for some in layout.batches(groups)]
    straddling = source.sequences_tasks(layout) if wanted.aggregates else []
    n_groups = len(groups) + sum(len(f.row_groups) for task in straddling for f in task.groups.files)
    tell = _Teller(n_groups, progress)
    found = [
        tell(one)
        for one in run_tasks(look_at_groups, tasks, n_processes, probe=probe, alone=_files_of, lost=_lost)
    ]
    skipped = {one.path: one for result in found for one in result.skipped}
    if skipped:
        return Content(tables=tables, skipped=tuple(skipped.values()))
    raise_not_constant(found, layout, tables, options)
    later = [
        tell(one)
        for one in run_tasks(
            look_at_sequences, straddling, n_processes, probe=probe, alone=lambda task: [task], lost=_lost
        )
    ]
    skipped = {one.path: one for result in later for one in result.skipped}
    if skipped:
        return Content(tables=tables, skipped=tuple(skipped.values()))

    result = dict(tables)
    if wanted.digests:
        result["row_groups"] = with_digests(tables["row_groups"], groups, found)
    result["sequences"] = with_columns(sequences, layout, wanted, found, later, tables, options)
    return Content(tables=result, notes=(*notes, *content_notes(wanted, result)))


@dataclass(slots=True)
class _Teller:
    """Passes results on, and tells how many row groups are done."""

    n_groups: int
    progress: Progress | None
    done: int = 0

    def __call__(self, found: Found) -> Found:
        self.done += found.n_groups
        if self.progress is not None:
            self.progress(self.done, self.n_groups, "content")
        return found


def _files_of(task: Task) -> list[Task]:
    return [replace(task, files=(one,)) for one in task.files]


def _lost(task: Task | SequencesTask) -> Found:
    """Return, or raise, that a task ended its process."""
    groups = task if isinstance(task, Task) else task.groups
    path = groups.files[0].path
    if not groups.may_skip:
        raise BadFileError(process_ended(path), file=path)
    return Found(
        n_groups=0, skipped=[Skipped(path=path, reason=BadFileError.reason, message=process_ended(path))]
    )
