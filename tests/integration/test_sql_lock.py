"""The lock below the guard: raw hostile SQL, with the guard passed by, opens nothing.

Every statement runs twice: as a query of ours would (in a transaction that cannot write), and on the bare connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.errors import QueryError
from pqindex.sql import LockedDatabase, check_query, run_selection
from pqindex.sql.engine import parser

MARK = "the-mark-of-a-secret"

# `{here}` is the current folder, `{index}` the folder of an index, `{tmp}` the temporary folder, `{home}` the home.
READS = [
    "SELECT * FROM 'data.parquet'",
    "SELECT * FROM '{index}/parts/p-sequences.parquet'",
    "SELECT * FROM '{tmp}/left.csv'",
    "SELECT * FROM read_parquet('data.parquet')",
    "SELECT * FROM parquet_scan('{index}/parts/*.parquet')",
    "SELECT * FROM parquet_metadata('data.parquet')",
    "SELECT * FROM parquet_schema('data.parquet')",
    "SELECT * FROM parquet_kv_metadata('data.parquet')",
    "SELECT * FROM parquet_file_metadata('data.parquet')",
    "SELECT * FROM parquet_bloom_probe('data.parquet', 'a', 'x')",
    "SELECT * FROM read_csv('secret.csv')",
    "SELECT * FROM read_csv_auto('{here}/secret.csv')",
    "SELECT * FROM sniff_csv('secret.csv')",
    "SELECT content FROM read_text('secret.csv')",
    "SELECT content FROM read_text('{index}/00000001.snapshot.json')",
    "SELECT content FROM read_text('{here}/../here/secret.csv')",
    "SELECT content FROM read_text('file://{here}/secret.csv')",
    "SELECT content FROM read_blob('secret.csv')",
    "SELECT * FROM read_json('{index}/00000001.snapshot.json')",
    "SELECT * FROM read_json_objects('{index}/00000001.snapshot.json')",
    "SELECT * FROM read_ndjson_objects('{index}/00000001.snapshot.json')",
    "SELECT content FROM read_text('.tmp/secret.csv')",
    "SELECT * FROM read_csv('/dev/stdin')",
    "SELECT content FROM read_text('/proc/self/environ')",
    "SELECT * FROM glob('*')",
    "SELECT * FROM glob('{index}/**')",
    "SELECT * FROM glob('{tmp}/*')",
    "SELECT * FROM glob('.tmp/*')",
    "SELECT * FROM query('SELECT content FROM read_text(''secret.csv'')')",
    "SELECT * FROM query_table('data.parquet')",
    "SELECT * FROM query_table(['data.parquet'])",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT content FROM read_text(''secret.csv'')'))",
    "CREATE MACRO m(p) AS TABLE SELECT content FROM read_text(p); SELECT * FROM m('secret.csv')",
    "CREATE TABLE t AS SELECT * FROM 'data.parquet'; SELECT * FROM t",
    "CREATE VIEW v AS SELECT content FROM read_text('secret.csv'); SELECT * FROM v",
    "COPY index FROM 'secret.csv'; SELECT * FROM index",
    "INSERT INTO index SELECT * FROM read_csv('secret.csv'); SELECT * FROM index",
    "PREPARE p AS SELECT content FROM read_text('secret.csv'); EXECUTE p",
    "ATTACH 'old.db' AS old (READ_ONLY); SELECT * FROM old.t",
    "ATTACH '{here}/old.db' AS old; SELECT * FROM old.t",
    "SELECT * FROM read_duckdb('old.db')",
    "IMPORT DATABASE '{here}'",
    "SET VARIABLE p = 'secret.csv'; SELECT content FROM read_text(getvariable('p'))",
    "SELECT getenv('PQINDEX_TEST_SECRET')",
    # a Python variable of the caller
    "SELECT * FROM frame",
    "SELECT * FROM arrow_table",
    "SELECT * FROM query_table('arrow_table')",
    # settings back
    "SET enable_external_access = true; SELECT content FROM read_text('secret.csv')",
    "SET disabled_filesystems = ''; SELECT content FROM read_text('secret.csv')",
    "SET lock_configuration = false; SET enable_external_access = true; SELECT content FROM read_text('secret.csv')",
    "RESET lock_configuration; RESET disabled_filesystems; SELECT content FROM read_text('secret.csv')",
    "SET allowed_paths = ['{here}/secret.csv']; SELECT content FROM read_text('{here}/secret.csv')",
    "SET allowed_directories = ['{here}']; SELECT content FROM read_text('{here}/secret.csv')",
    "SET python_enable_replacements = true; SELECT * FROM arrow_table",
    "SET file_search_path = '{here}'; SELECT * FROM 'data.parquet'",
    "SET temp_directory = '{here}'; SELECT content FROM read_text('secret.csv')",
    "SET secret_directory = '{home}'; SELECT * FROM duckdb_secrets()",
    "PRAGMA enable_external_access = true; SELECT content FROM read_text('secret.csv')",
    "CALL enable_logging(storage = 'file', storage_config = {{'path': '{here}'}}); SELECT * FROM duckdb_logs",
    "INSTALL httpfs; LOAD httpfs; SELECT * FROM 'https://localhost/x.parquet'",
    "SELECT * FROM 'https://localhost/x.parquet'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "LOAD '{here}/evil.duckdb_extension'",
    "ATTACH 'x.sqlite' (TYPE sqlite)",
]

WRITES = [
    "COPY index TO 'out.csv'",
    "COPY index TO '{here}/out.parquet' (FORMAT parquet)",
    "COPY index TO '{tmp}/out.csv'",
    "COPY index TO '{home}/out.csv'",
    "COPY (SELECT 2) TO 'data.parquet' (FORMAT parquet, USE_TMP_FILE false)",
    "COPY (SELECT 2) TO '{index}/parts/p-sequences.parquet' (USE_TMP_FILE false)",
    "COPY (SELECT 2) TO '{index}/00000002.snapshot.json' (FORMAT json)",
    "COPY (SELECT 2) TO '.tmp/out.csv'",
    "COPY (SELECT 2) TO '{here}/.tmp/out.csv' (USE_TMP_FILE false)",
    "COPY (SELECT 1 AS a, 2 AS b) TO '{here}/parts' (FORMAT parquet, PARTITION_BY (a))",
    "COPY (SELECT 2) TO '/dev/stdout'",
    "EXPORT DATABASE 'export'",
    "EXPORT DATABASE '{tmp}/export'",
    "ATTACH 'new.db'",
    "ATTACH '.tmp/new.db' AS n; CREATE TABLE n.t AS SELECT 1",
    "ATTACH '{tmp}/new.db' AS n",
    "ATTACH 'old.db' AS old; DROP TABLE old.t",
    "ATTACH ':memory:' AS m; USE m; DETACH memory; COPY (SELECT 1) TO 'out.csv' (USE_TMP_FILE false)",
    "USE memory; DETACH memory; COPY (SELECT 1) TO 'data.parquet' (USE_TMP_FILE false)",
    "COPY FROM DATABASE memory TO old",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "CREATE PERSISTENT SECRET s IN local_file (TYPE http, BEARER_TOKEN 'x')",
    "SET secret_directory = '{here}'; CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "SET log_query_path = '{here}/log.txt'; SELECT 1",
    "PRAGMA log_query_path = '{here}/log.txt'; SELECT 1",
    "PRAGMA profiling_output = '{here}/profile.json'; PRAGMA enable_profiling = 'json'; SELECT 1",
    "SET profiling_output = '{here}/profile.json'; SELECT 1",
    "CALL enable_profiling(save_location = '{here}/profile.json'); SELECT 1",
    "CALL enable_logging('QueryLog', storage = 'file', storage_config = {{'path': '{here}/logs'}}); SELECT 1",
    "CALL enable_logging(storage = 'file', storage_path = '{here}/logs'); SELECT 1",
    "SET temp_directory = '{here}/spill'; SELECT 1",
    "SET extension_directory = '{here}/extensions'; INSTALL httpfs",
    "FORCE INSTALL httpfs FROM '{here}'",
    "UPDATE EXTENSIONS",
    "CREATE TABLE big AS SELECT range AS x, repeat('x', 100) AS y FROM range(2000000); SELECT x FROM big ORDER BY y, x",
    "SELECT write_log('x'); CHECKPOINT; FORCE CHECKPOINT; VACUUM",
]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Four folders with a marked file in each, and nothing else on the machine to find."""
    places = {name: tmp_path / name for name in ("here", "index", "tmp", "home")}
    for place in places.values():
        place.mkdir()
    secret = pa.table({"a": [MARK]})
    (places["index"] / "parts").mkdir()
    (places["here"] / ".tmp").mkdir()
    pq.write_table(secret, places["here"] / "data.parquet")
    pq.write_table(secret, places["index"] / "parts" / "p-sequences.parquet")
    for path in (
        places["here"] / "secret.csv",
        places["here"] / ".tmp" / "secret.csv",
        places["tmp"] / "left.csv",
        places["home"] / "note.txt",
        places["index"] / "00000001.snapshot.json",
        places["here"] / "evil.duckdb_extension",
    ):
        path.write_text(f'{{"a": "{MARK}"}}\n')
    with duckdb.connect(str(places["here"] / "old.db")) as old:
        old.execute("CREATE TABLE t AS SELECT ? AS a", [MARK])
    monkeypatch.chdir(places["here"])
    monkeypatch.setenv("TMPDIR", str(places["tmp"]))
    monkeypatch.setenv("HOME", str(places["home"]))
    monkeypatch.setenv("PQINDEX_TEST_SECRET", MARK)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return places


@pytest.fixture
def database(folders: dict[str, Path]) -> Iterator[LockedDatabase]:
    with LockedDatabase({"index": pa.table({"seq_id": [1, 2]})}, memory_limit="200MB") as database:
        database.execute(check_query("FROM index", relations=database.schemas))
        yield database


def state(folders: dict[str, Path]) -> dict[str, str]:
    """Every file below the folders, with the digest of what it holds."""
    root = folders["here"].parent
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(root.rglob("*"))
    }


def run(database: LockedDatabase, sql: str) -> list[object]:
    """Run hostile SQL both ways, and return every row that came back."""
    frame = arrow_table = pa.table({"a": [MARK]})  # what a replacement scan would find
    assert frame is arrow_table
    found: list[object] = []
    with contextlib.suppress(QueryError, duckdb.Error):
        found += database.run_unchecked(sql).table.to_pylist()
    connection = database._engines.get(None).connection.duckdb
    for statement in sql.split("; "):
        with contextlib.suppress(duckdb.Error, RuntimeError):
            found += connection.execute(statement).fetchall()
    with contextlib.suppress(duckdb.Error):
        relation = connection.sql(sql)
        found += relation.fetchall() if relation is not None else []
    return found


@pytest.mark.parametrize("sql", [*READS, *WRITES])
def test_nothing_is_read_or_written(
    database: LockedDatabase, folders: dict[str, Path], sql: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = state(folders)
    found = run(database, sql.format(**folders))
    assert state(folders) == before
    said = repr(found) + capfd.readouterr().out
    assert MARK not in said
    assert not any(name in said for name in ("secret.csv", "left.csv", "p-sequences", "old.db", "note.txt"))


def test_the_folders_are_worth_the_attack(folders: dict[str, Path]) -> None:
    """The same statements read and write where nothing is locked: the test above can fail."""
    with duckdb.connect() as unlocked:
        assert MARK in repr(unlocked.execute("SELECT * FROM 'data.parquet'").fetchall())
        assert MARK in repr(unlocked.execute("SELECT content FROM read_text('.tmp/secret.csv')").fetchall())
        unlocked.execute("COPY (SELECT 1) TO '.tmp/out.csv'")
    assert "here/.tmp/out.csv" in state(folders)


def test_a_query_of_ours_cannot_change_the_relations(database: LockedDatabase) -> None:
    for sql in (
        "DROP TABLE index",
        "INSERT INTO index VALUES (99)",
        "UPDATE index SET seq_id = 0",
        "CREATE TABLE other AS SELECT 1",
        "COMMIT; DELETE FROM index; COMMIT",
        "SELECT 1; DROP TABLE index",
        "COMMIT",
        "WITH t AS (DELETE FROM index RETURNING *) SELECT * FROM t",
    ):
        with pytest.raises(QueryError):
            database.run_unchecked(sql)
    query = check_query("SELECT sum(seq_id) AS n FROM index", relations=database.schemas)
    assert database.execute(query).to_pylist() == [{"n": 3}]


def test_both_engines_and_the_parser_are_locked(database: LockedDatabase) -> None:
    index = pa.table({"seq_id": [1], "seq_no": [0]})
    with LockedDatabase({"index": index}) as other:
        query = check_query("SELECT seq_id FROM index", relations=other.schemas)
        run_selection(other, query)
        other.execute(query)
        parsing = parser().connection
        assert parsing is not None
        connections = [engine.connection for engine in other._engines._by_threads.values()]
        assert len(connections) == 2
        for connection in (*connections, parsing):
            with pytest.raises(duckdb.Error, match="LocalFileSystem has been disabled"):
                connection.duckdb.execute("SELECT content FROM read_text('secret.csv')")
            settings = dict(connection.duckdb.execute("SELECT name, value FROM duckdb_settings()").fetchall())
            for name, value in {
                "enable_external_access": "false",
                "lock_configuration": "true",
                "temp_directory": "",
                "allowed_paths": "[]",
                "allowed_directories": "[]",
                "python_enable_replacements": "false",
                "autoload_known_extensions": "false",
                "autoinstall_known_extensions": "false",
                "allow_persistent_secrets": "false",
                "TimeZone": "UTC",
            }.items():
                assert settings[name] == value, name
