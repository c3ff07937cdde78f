"""The locked database: named relations in, checked queries over them, plain Arrow tables out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pds

from pqindex.errors import ProcessBoundaryError, QueryError
from pqindex.sql.engine import DUCKDB_MAJOR, Answer, Connection, OutOfTimeError, Parameters
from pqindex.sql.guard import CheckedQuery
from pqindex.sql.hints import did_you_mean, query_error
from pqindex.sql.plain import has_floats, is_loadable, loadable_table, plain_answer, refuse_twins
from pqindex.sql.tree import first_line

COPY_BELOW_ROWS = 1_000_000
"""Relations of fewer rows are copied into DuckDB: 10 to 30 times faster to filter, for about 100 bytes a row."""

Source: TypeAlias = "pa.Table | pds.Dataset | Callable[[], pa.Table | pds.Dataset]"


class LockedDatabase:
    """Named relations in an in-memory DuckDB that can reach nothing else.

    A relation is loaded when a query names it for the first time: copied if it has fewer than `COPY_BELOW_ROWS`
    rows, else scanned where it lies, through Arrow. (DuckDB 1 compares NaN wrongly in Arrow scans, so there a
    relation with floats is always copied.) Rows keep their order. Names that differ only in letter case are
    refused: see `refuse_twins`.

    Thread-safe: one query runs at a time. A use in another process than the one that made it raises at once;
    DuckDB would hang. What it costs: about 15 ms for a first query, and the copy; once for `execute`, and once
    for selections, which run on an engine of one thread.

    Parameters
    ----------
    relations : mapping of str to pyarrow.Table, pyarrow.dataset.Dataset or callable
        By name. A callable is called once, when its relation is named.
    threads : int, optional
        Threads for `execute`, by default one a core. Selections run on one, whatever this is.
    memory_limit : str, optional
        As DuckDB writes it (``"4GB"``), by default 80 % of the memory; for each engine. There is no spilling: past
        it is an error. What a function makes of a single value, as ``repeat`` can, is not in DuckDB's account.
    timeout_s : float or None
        How long a query may run. It may take `STOP_WITHIN_S` more until it has stopped.
    """

    def __init__(
        self,
        relations: Mapping[str, Source],
        *,
        threads: int | None = None,
        memory_limit: str | None = None,
        timeout_s: float | None = 60.0,
    ) -> None:
        self._engines = _Engines(memory_limit=memory_limit)
        self._owns_engines = True
        self._added: tuple[_Relation, ...] = ()
        self._relations = _named(relations)
        self.threads = threads
        self.timeout_s = timeout_s

    def with_relations(self, relations: Mapping[str, Source]) -> LockedDatabase:
        """Return a database that sees `relations` too, and shares what is loaded with this one.

        Close it before this one, or with it.

        Raises
        ------
        QueryError
            If a name is taken.
        """
        self._check_process()
        added = _named(relations)
        for key, relation in added.items():
            if key in self._relations:
                raise QueryError(
                    f"the name {relation.name!r} is taken by a relation",
                    hint="choose another name",
                    name=relation.name,
                )
        other = object.__new__(LockedDatabase)
        other._engines = self._engines
        other._owns_engines = False
        other._added = tuple(added.values())
        other._relations = {**self._relations, **added}
        other.threads, other.timeout_s = self.threads, self.timeout_s
        return other

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The schema of each relation, read when it is asked for."""
        return _Schemas(self._relations)

    def execute(self, query: CheckedQuery, params: Parameters = None) -> pa.Table:
        """Return the answer to a checked query, in plain types: see `pqindex.sql.plain`.

        Raises
        ------
        QueryError
            If a column or a parameter is missing, the query fails, or it takes more time or memory than it may.
        ProcessBoundaryError
            In another process than the one that made the database.
        """
        answer = self.run_unchecked(
            query.sql,
            checked_parameters(query.parameters, params),
            relations=query.relations,
            query=query,
        )
        return plain_answer(answer.table, answer.types)

    def run_unchecked(
        self,
        sql: str,
        params: Parameters = None,
        *,
        relations: Iterable[str] = (),
        n_threads: int | None = None,
        query: CheckedQuery | None = None,
    ) -> Answer:
        """Run one SELECT that the guard has not seen: for what this package wraps around checked queries.

        It runs in a transaction that cannot write, in a database that can reach no file.

        Parameters
        ----------
        sql : str
        params : sequence, mapping or None
        relations : iterable of str
            The relations that it names, to be loaded first.
        n_threads : int, optional
            By default the database's own number.
        query : CheckedQuery, optional
            What it was made of, for better errors.
        """
        self._check_process()
        wanted = []
        for name in relations:
            relation = self._relations.get(name.lower())
            if relation is None:
                raise QueryError(
                    f"no relation {name!r}",
                    hint=did_you_mean(name, self.schemas, f"there are: {', '.join(self.schemas)}"),
                    relation=name,
                )
            wanted.append(relation)
        with self._engines.lock:
            engine = self._engines.get(self.threads if n_threads is None else n_threads)
            engine.load(wanted)
            return self._run(engine, sql, params, wanted, query)

    def _run(
        self,
        engine: _Engine,
        sql: str,
        params: Parameters,
        relations: list[_Relation],
        query: CheckedQuery | None,
    ) -> Answer:
        schemas = {relation.name: relation.schema for relation in relations}
        try:
            return engine.connection.fetch_read_only(sql, params, timeout_s=self.timeout_s)
        except OutOfTimeError as error:
            raise QueryError(
                f"the query took longer than {self.timeout_s:g} s",
                hint="ask for less, or filter earlier",
                timeout_s=self.timeout_s,
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise QueryError(
                f"the query needs more memory than it may use: {first_line(error)}",
                hint="ask for less, or filter earlier: nothing is spilled to disk",
            ) from error
        except duckdb.FatalException as error:
            engine.connection.is_usable = False
            raise QueryError(f"DuckDB failed: {first_line(error)}") from error
        except duckdb.Error as error:
            if query is None:
                raise query_error(error, schemas=schemas) from error
            raise query_error(error, schemas=schemas, sql=query.sql, document=query.document) from error

    def close(self) -> None:
        """Free the database, or, for one made by `with_relations`, the relations that it added."""
        if os.getpid() != self._engines.pid:
            return
        with self._engines.lock:
            if self._owns_engines:
                self._engines.close()
            else:
                self._engines.unload(self._added)

    def _check_process(self) -> None:
        if os.getpid() != self._engines.pid:
            raise ProcessBoundaryError(
                f"a database of process {self._engines.pid} was used in process {os.getpid()}",
                hint="make the database, and run the query, in the process that needs it",
            )
        if self._engines.closed:
            raise QueryError("the database is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ProcessBoundaryError(
            "a database cannot be sent to another process",
            hint="send the answer, or make the database in the process that needs it",
        )


# -- relations ------------------------------------------------------------------------------------------------


class _Relation:
    """One relation: where its rows come from, and its schema as SQL sees it."""

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self._source = source
        self._data: pa.Table | pds.Dataset | None = None
        self._lock = threading.Lock()

    @property
    def data(self) -> pa.Table | pds.Dataset:
        """The rows, in a form that DuckDB takes."""
        with self._lock:
            if self._data is None:
                data = self._source() if callable(self._source) else self._source
                if isinstance(data, pa.RecordBatch):
                    data = pa.Table.from_batches([data])
                if not isinstance(data, pa.Table | pds.Dataset):
                    raise QueryError(
                        f"the relation {self.name!r} is a {type(data).__name__}",
                        hint="give a pyarrow Table or Dataset",
                        relation=self.name,
                    )
                refuse_twins(f"the relation {self.name!r}", data.schema)
                if not is_loadable(data.schema):
                    data = loadable_table(
                        self.name, data.to_table() if isinstance(data, pds.Dataset) else data
                    )
                self._data = data
            return self._data

    @property
    def schema(self) -> pa.Schema:
        return self.data.schema

    @property
    def is_copied(self) -> bool:
        """Whether DuckDB gets a copy, instead of scanning where it lies."""
        data = self.data
        n_rows = data.num_rows if isinstance(data, pa.Table) else data.count_rows()
        return n_rows < COPY_BELOW_ROWS or (DUCKDB_MAJOR < 2 and has_floats(data.schema.types))


def _named(relations: Mapping[str, Source]) -> dict[str, _Relation]:
    named: dict[str, _Relation] = {}
    for name, source in relations.items():
        if name.lower() in named:
            raise QueryError(
                f"two relations are called {name!r}, letter case aside", hint="choose another name", name=name
            )
        named[name.lower()] = _Relation(name, source)
    return named


class _Schemas(Mapping[str, pa.Schema]):
    """Schemas by name; the names alone cost nothing."""

    def __init__(self, relations: Mapping[str, _Relation]) -> None:
        self._by_name = {relation.name: relation for relation in relations.values()}

    def __getitem__(self, name: str) -> pa.Schema:
        return self._by_name[name].schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


# -- engines --------------------------------------------------------------------------------------------------


class _Engine:
    """One connection and the relations that are loaded in it."""

    def __init__(self, *, n_threads: int | None, memory_limit: str | None) -> None:
        self.connection = Connection(n_threads=n_threads, memory_limit=memory_limit)
        self._loaded: dict[str, _Relation] = {}
        self._copied: set[str] = set()

    def load(self, relations: Iterable[_Relation]) -> None:
        """Make each relation readable under its name, in the place of another that had the name."""
        for relation in relations:
            key = relation.name.lower()
            if self._loaded.get(key) is relation:
                continue
            self.unload(key)
            try:
                self._load(relation)
            except duckdb.OutOfMemoryException as error:
                raise QueryError(
                    f"the relation {relation.name!r} does not fit into memory: {first_line(error)}",
                    hint="attach fewer rows or columns",
                    relation=relation.name,
                ) from error
            except (duckdb.Error, pa.ArrowException) as error:
                raise QueryError(
                    f"the relation {relation.name!r} cannot be loaded: {first_line(error)}",
                    relation=relation.name,
                ) from error
            self._loaded[key] = relation

    def _load(self, relation: _Relation) -> None:
        if relation.is_copied:
            self.connection.create_table(relation.name, relation.data)
            self._copied.add(relation.name.lower())
        else:
            self.connection.duckdb.register(relation.name, relation.data)

    def unload(self, key: str, only: _Relation | None = None) -> None:
        """Forget the relation under a name; with `only`, if it is that one."""
        relation = self._loaded.get(key)
        if relation is None or (only is not None and relation is not only):
            return
        del self._loaded[key]
        if key in self._copied:
            self._copied.discard(key)
            self.connection.drop_table(relation.name)
        else:
            self.connection.duckdb.unregister(relation.name)


class _Engines:
    """The engines of one database, one a number of threads, made on first use."""

    def __init__(self, *, memory_limit: str | None) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.closed = False
        self._memory_limit = memory_limit
        self._by_threads: dict[int | None, _Engine] = {}

    def get(self, n_threads: int | None) -> _Engine:
        engine = self._by_threads.get(n_threads)
        if engine is None or not engine.connection.is_usable:
            try:
                engine = _Engine(n_threads=n_threads, memory_limit=self._memory_limit)
            except duckdb.Error as error:
                raise QueryError(
                    f"DuckDB does not start: {first_line(error)}", hint="memory_limit is written as '4GB'"
                ) from error
            self._by_threads[n_threads] = engine
        return engine

    def unload(self, relations: Iterable[_Relation]) -> None:
        for relation in relations:
            for engine in self._by_threads.values():
                engine.unload(relation.name.lower(), relation)

    def close(self) -> None:
        self.closed = True
        for engine in self._by_threads.values():
            engine.connection.close()
        self._by_threads = {}


# -- parameters -----------------------------------------------------------------------------------------------


def checked_parameters(names: tuple[str, ...], params: Parameters) -> list[Any] | dict[str, Any] | None:
    """Return parameters as DuckDB takes them: a list for numbers, a dict for names, None where there are none.

    Raises
    ------
    QueryError
        If one is missing or left over, or names and numbers are mixed.
    """
    if isinstance(params, str | bytes):
        raise QueryError(
            "the parameters are one text",
            hint="params=[value] or params={'name': value} / --param VALUE",
            found=type(params).__name__,
        )
    numbered = [int(name) for name in names if name.isdigit()]
    if numbered and len(numbered) < len(names):
        raise QueryError("the query mixes numbered and named parameters", hint="use ? or $name, not both")
    if isinstance(params, Mapping):
        given = {str(name): _plain_value(value) for name, value in params.items()}
        if set(given) != set(names):
            raise QueryError(
                f"the parameters of the query are {_listed(names)}, given are {_listed(sorted(given))}",
                hint="params={'name': value} with one value for each $name; --param gives those of ? in their order",
                expected=names,
                found=tuple(sorted(given)),
            )
        return given or None
    values = [_plain_value(value) for value in params or ()]
    if (names and not numbered) or len(values) != len(names) or (numbered and max(numbered) != len(numbered)):
        raise QueryError(
            f"the parameters of the query are {_listed(names)}, given are {len(values)} values without names",
            hint="params=[value, ...] / --param VALUE, one for each ?; params={'name': value} for $name",
            expected=names,
            found=len(values),
        )
    return values or None


def _plain_value(value: Any) -> Any:
    """Return a value as Python has it: numpy's and Arrow's scalars are not known to DuckDB."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _listed(names: Iterable[str]) -> str:
    return ", ".join("$" + name for name in names) or "none"
