"""A DuckDB connection that can reach nothing, and that survives its process being forked.

The lock is the second wall, below the guard: whatever SQL comes through, no file of any file system can be opened,
no extension loaded, no Python variable scanned and no setting changed back. Data enters through Python only.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

DUCKDB_MAJOR = int(duckdb.__version__.split(".", maxsplit=1)[0])

STOP_WITHIN_S = 2.0
"""How long an interrupted statement is waited for, before its connection is given up."""

Parameters = Sequence[Any] | Mapping[str, Any] | None

_ANSWERS: tuple[tuple[str, object], ...] = (
    ("TimeZone", "UTC"),
    ("Calendar", "gregorian"),
    ("default_collation", ""),
    ("default_order", "ASC"),
    ("default_null_order", "NULLS_LAST"),
    ("preserve_insertion_order", True),
    ("error_on_division_by_zero", False),
)
"""What an answer may hang on, so that it hangs on the query alone. Names that a version lacks are passed over."""

_LOCKS: tuple[tuple[str, object], ...] = (
    # The default leaves .tmp under the current folder readable, writable and attachable.
    ("temp_directory", ""),
    ("autoload_known_extensions", False),
    ("autoinstall_known_extensions", False),
    ("allow_community_extensions", False),
    ("allow_persistent_secrets", False),
    ("python_enable_replacements", False),
    ("python_scan_all_frames", False),
    ("enable_progress_bar", False),
    # Closes log files too, which the end of external access does not.
    ("disabled_filesystems", "LocalFileSystem"),
    ("enable_external_access", False),
    ("lock_configuration", True),
)
"""What closes the database, in this order: some can only be set before others. All must be known."""


class OutOfTimeError(Exception):
    """A query was interrupted since it ran longer than it may. Never leaves this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one statement returned.

    Attributes
    ----------
    table : pyarrow.Table
        The rows, as DuckDB gives them: see `pqindex.sql.plain` for plain types.
    types : tuple
        DuckDB's type of each column.
    """

    table: pa.Table
    types: tuple[Any, ...]


class Connection:
    """One locked in-memory DuckDB of one process.

    Not thread-safe: the owner holds a lock. Not to be used in another process; a forked child must not even free
    it (DuckDB 2 crashes there, since the threads it would join do not exist), so a child keeps it for ever.

    Parameters
    ----------
    n_threads : int or None
        Threads that run a query; None leaves DuckDB's own choice, the number of cores.
    memory_limit : str or None
        As DuckDB writes it, ``"4GB"``; None leaves DuckDB's own choice, 80 % of the memory.

    Attributes
    ----------
    is_usable : bool
        False once a statement could not be stopped: it may still be running.
    """

    def __init__(self, *, n_threads: int | None = None, memory_limit: str | None = None) -> None:
        config: dict[str, Any] = {}
        if n_threads is not None:
            config["threads"] = n_threads
        if memory_limit is not None:
            config["memory_limit"] = memory_limit
        self.pid = os.getpid()
        self.is_usable = True
        self.duckdb = duckdb.connect(":memory:", config=config)
        for name, value in _ANSWERS:
            try:
                self._set(name, value)
            except duckdb.CatalogException:
                continue
        for name, value in _LOCKS:
            self._set(name, value)
        _ALIVE.add(self)

    def _set(self, name: str, value: object) -> None:
        literal = str(value).lower() if isinstance(value, bool) else "'" + str(value).replace("'", "''") + "'"
        self.duckdb.execute(f"SET {name} = {literal}")

    def fetch(self, sql: str, params: Parameters = None) -> Answer:
        """Run one statement and return its rows.

        Raises
        ------
        duckdb.Error
            As DuckDB raises it.
        """
        if DUCKDB_MAJOR < 2:  # a relation with parameters goes through pandas there, row by row
            cursor: Any = self.duckdb.execute(sql, params)
            types = tuple(column[1] for column in cursor.description or ())
            to_table = getattr(cursor, "to_arrow_table", None) or cursor.fetch_arrow_table
            return Answer(table=to_table(), types=types)
        relation: Any = self.duckdb.sql(sql, params=params)
        if relation is None:
            return Answer(table=pa.table({}), types=())
        return Answer(table=relation.to_arrow_table(), types=tuple(relation.types))

    def fetch_read_only(
        self, sql: str, params: Parameters = None, *, timeout_s: float | None = None
    ) -> Answer:
        """Run one SELECT in a transaction that cannot write, and undo what is left of it.

        It runs in a thread of its own while this one waits, so that Ctrl-C and the clock stop it: DuckDB itself
        does not hear signals while it works.

        Raises
        ------
        OutOfTimeError
            If it ran longer than `timeout_s`.
        duckdb.Error
            As DuckDB raises it, and for text that is not one SELECT, before it is run.
        """
        work = _Work(self, sql, params)
        work.start()
        try:
            finished = work.done.wait(timeout_s)
        except BaseException:
            self.is_usable = work.stop()
            raise
        if not finished:
            self.is_usable = work.stop()
            raise OutOfTimeError(f"stopped after {timeout_s} s")
        if work.error is not None:
            raise work.error
        return work.answer

    def check_select(self, sql: str) -> None:
        """Refuse text that is not one SELECT, whatever let it through: COMMIT would end a transaction.

        Raises
        ------
        duckdb.InvalidInputException
            If it is something else.
        """
        kinds = self.statement_kinds(sql)
        if kinds != ["SELECT"]:
            raise duckdb.InvalidInputException(
                f"one SELECT is allowed, found {', '.join(kinds) or 'nothing'}"
            )

    def statement_kinds(self, sql: str) -> list[str]:
        """Return the kind of each statement in a text, such as COPY."""
        kinds = []
        for statement in self.duckdb.extract_statements(sql):
            try:
                kinds.append(statement.type.name.replace("_", " "))
            except ValueError:  # DuckDB's own Python side lacks some names
                kinds.append("a statement without a name")
        return kinds

    def create_table(self, name: str, data: Any) -> None:
        """Copy Arrow data into a table, rows in their order."""
        loading = "__pqindex_loading"
        self.duckdb.register(loading, data)
        try:
            self.duckdb.execute(f"CREATE TABLE {quote(name)} AS SELECT * FROM {loading}")  # noqa: S608 - quoted
        finally:
            self.duckdb.unregister(loading)

    def drop_table(self, name: str) -> None:
        """Forget a table that `create_table` made."""
        self.duckdb.execute(f"DROP TABLE {quote(name)}")

    def close(self) -> None:
        """Free the database; in another process, do nothing."""
        if os.getpid() == self.pid:
            _ALIVE.discard(self)
            self.duckdb.close()


class _Work(threading.Thread):
    """One SELECT in a read-only transaction, in a thread of its own."""

    def __init__(self, connection: Connection, sql: str, params: Parameters) -> None:
        super().__init__(name="pqindex-sql", daemon=True)
        self.done = threading.Event()
        self.answer = Answer(table=pa.table({}), types=())
        self.error: BaseException | None = None
        self._connection = connection
        self._sql = sql
        self._params = params

    def run(self) -> None:
        """Keep the answer or the error, and say that it is done."""
        try:
            self._connection.check_select(self._sql)
            self._connection.duckdb.execute("BEGIN TRANSACTION READ ONLY")
            try:
                self.answer = self._connection.fetch(self._sql, self._params)
            finally:
                self._connection.duckdb.execute("ROLLBACK")
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self.error = error
        finally:
            self.done.set()

    def stop(self) -> bool:
        """Interrupt the statement and return whether it ended.

        DuckDB looks for an interrupt between chunks of rows, so one long call of one function may go on.
        """
        last_s = time.monotonic() + STOP_WITHIN_S
        while not self.done.is_set() and time.monotonic() < last_s:
            self._connection.duckdb.interrupt()
            self.done.wait(0.05)
        return self.done.is_set()


def quote(identifier: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


# -- one connection a process that parses ---------------------------------------------------------------------


class _Parser:
    """The connection through which text becomes a tree: made on first use, one a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None

    def call(self, function: str, argument: str) -> str:
        """Return what a text-to-text function of DuckDB says."""
        with self.lock:
            if self.connection is None:
                self.connection = Connection(n_threads=1)
            row = self.connection.duckdb.execute(f"SELECT {function}($1)", [argument]).fetchall()[0]
        return str(row[0])

    def statement_kinds(self, sql: str) -> list[str]:
        """Return the kind of each statement in a text, such as COPY."""
        with self.lock:
            if self.connection is None:
                self.connection = Connection(n_threads=1)
            return self.connection.statement_kinds(sql)


_ALIVE: weakref.WeakSet[Connection] = weakref.WeakSet()
_PARSER = _Parser()


def parser() -> _Parser:
    """Return the parser of this process."""
    return _PARSER


def _after_fork_in_child() -> None:
    global _PARSER  # noqa: PLW0603 - the parent's parser, and its lock, belong to threads that do not exist here
    for connection in list(_ALIVE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection.duckdb))
    _PARSER = _Parser()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
