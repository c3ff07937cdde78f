"""Each verb of the command line: what it prints, as text and as JSON, and the code it ends with."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import pqindex
from pqindex.cli import main
from pqindex.cli.app import commands

N_SEQUENCES = 6


def write_sequences(path, ids, *, rows_of=lambda seq_id: seq_id + 1) -> None:
    """Write one row group a sequence: `seq_id`, `step`, `price`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("seq_id", pa.int64()), ("step", pa.int32()), ("price", pa.float64())])
    with pq.ParquetWriter(path, schema) as writer:
        for seq_id in ids:
            n_rows = rows_of(seq_id)
            columns = [[seq_id] * n_rows, range(n_rows), [seq_id + 0.5] * n_rows]
            writer.write_table(pa.table(columns, schema=schema))


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder ``data`` with six sequences of 1 to 6 rows in two files; the current folder is its parent."""
    write_sequences(tmp_path / "data" / "a.parquet", [0, 1, 2])
    write_sequences(tmp_path / "data" / "b.parquet", [3, 4, 5])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.fixture
def index(source) -> str:
    pqindex.build(source, order="step")
    return "data.pqindex"


@pytest.fixture
def manifest(index, tmp_path) -> str:
    pqindex.open(index).select("SELECT seq_id FROM index WHERE row_count > 3").pin("train.manifest.parquet")
    return "train.manifest.parquet"


@pytest.fixture
def run(capsys):
    """Run the command line; give its exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# -- build ----------------------------------------------------------------------------------------------------


def test_build_says_where_the_index_is_what_it_holds_and_what_to_do_next(run, source) -> None:
    code, out, err = run("build", "data", "--order", "step")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "data.pqindex"
    assert [line.split() for line in lines[1:6]] == [
        ["n", "sequences", "6"],
        ["n", "rows", "21"],
        ["n", "files", "2"],
        ["n", "row", "groups", "6"],
        ["snapshot", "1"],
    ]
    assert lines[-1] == 'next: pqindex query data.pqindex "SELECT * FROM index LIMIT 5"'


def test_build_as_json(run, source, tmp_path) -> None:
    code, out, err = run("build", "data", "--json", "-o", tmp_path / "elsewhere.pqindex")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["totals"]["n_sequences"] == N_SEQUENCES
    assert facts["skipped"] == []
    assert pqindex.open(tmp_path / "elsewhere.pqindex").content_digest == facts["content_digest"]


def test_build_takes_a_file_several_files_a_glob_and_a_list(run, source, tmp_path) -> None:
    (tmp_path / "list").write_text("b.parquet\n\n")
    for number, words in enumerate(
        [
            ["data/a.parquet"],
            ["data/a.parquet", "data/b.parquet"],
            ["data/*.parquet"],
            ["data", "--files", "list"],
        ]
    ):
        code, out, _ = run("build", *words, "--json", "-o", tmp_path / f"{number}.pqindex")
        assert code == 0
        assert json.loads(out)["totals"]["n_sequences"] == (3 if number in {0, 3} else 6)


def test_build_passes_its_options_on(run, source) -> None:
    write_sequences(source / "c.parquet", [5], rows_of=lambda _: 2)
    code, _, err = run("build", "data", "--key", "seq_id")
    assert code == 2
    assert "1 of 6 sequences lie in places that do not touch" in err
    code, _, err = run("build", "data", "--key", "trip")
    assert code == 2
    assert "'trip'" in err
    code, _, err = run("build", "data/a.parquet", "--order", "price", "--layout", "one-per-row-group")
    assert code == 2
    assert "'price' does not strictly increase" in err


def test_build_keeps_the_statistics_that_are_named(run, source) -> None:
    assert run("build", "data", "--statistics", "price")[0] == 0
    code, out, _ = run("query", "data.pqindex", "SELECT max(stats.price.max) AS top FROM index", "--json")
    assert (code, json.loads(out)) == (0, [{"top": 5.5}])
    code, _, err = run("query", "data.pqindex", "SELECT max(stats.step.max) FROM index")
    assert code == 2
    assert "step" in err


def test_build_that_skipped_a_bad_file_ends_with_one_and_names_it(run, source) -> None:
    (source / "torn.parquet").write_bytes(b"PAR1 and no more")
    code, out, err = run("build", "data")
    assert (code, out) == (2, "")
    assert "torn.parquet" in err
    assert "--on-bad-file skip" in err
    code, out, err = run("build", "data", "--on-bad-file", "skip")
    assert (code, err) == (1, "")
    assert "skipped: torn.parquet: bad-file: " in out
    code, out, _ = run("build", "data", "--on-bad-file", "skip", "--json")
    assert code == 1
    assert [file["path"] for file in json.loads(out)["skipped"]] == ["torn.parquet"]


def test_build_says_what_it_noted(run, source) -> None:
    (source / "_SUCCESS").touch()
    assert "note: 1 name passed over: hidden name\n" in run("build", "data")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent"], "absent"),
        (["empty"], "no Parquet file below empty"),
        (["data", "--check", "some"], "'some' is not one of"),
        (["data", "--workers", "0"], "0 is not in the range"),
        (["data", "--join"], "--order"),
        (["data", "--files", "absent"], "absent"),
        ([], "Missing argument 'SOURCE...'"),
    ],
)
def test_build_refuses_wrong_use_in_one_line(run, source, words, message) -> None:
    (source.parent / "empty").mkdir()
    code, out, err = run("build", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


# -- query ----------------------------------------------------------------------------------------------------

LONG = "SELECT seq_id, row_count FROM index WHERE row_count >= ? ORDER BY seq_id DESC"


def test_query_prints_a_table(run, index) -> None:
    code, out, err = run("query", index, LONG, "--param", 5)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["seq_id  row_count", "5       6", "4       5"]


def test_query_prints_json_and_csv(run, index) -> None:
    rows = [{"seq_id": 5, "row_count": 6}, {"seq_id": 4, "row_count": 5}]
    for words in (["--json"], ["--format", "json"], ["--json", "--format", "json"]):
        code, out, err = run("query", index, LONG, "--param", 5, *words)
        assert (code, json.loads(out), err) == (0, rows, "")
    code, out, _ = run("query", index, LONG, "--param", 5, "--format", "csv")
    assert (code, out) == (0, '"seq_id","row_count"\n5,6\n4,5\n')


def test_query_prints_every_column_of_the_index_in_every_form(run, index) -> None:
    for form in ("table", "csv", "json"):
        code, out, err = run("query", index, "SELECT * FROM index", "--format", form)
        assert (code, err) == (0, "")
        assert "price" in out
    rows = list(csv.DictReader(io.StringIO(run("query", index, "FROM index", "--format", "csv")[1])))
    assert [row["stats.price.max"] for row in rows] == ["0.5", "1.5", "2.5", "3.5", "4.5", "5.5"]


def test_query_writes_a_file_in_the_form_of_its_ending(run, index, tmp_path) -> None:
    code, out, err = run("query", index, LONG, "--param", 5, "-o", tmp_path / "long.parquet")
    assert (code, out) == (0, "")
    assert err == f"2 rows written to {tmp_path / 'long.parquet'}\n"
    assert pq.read_table(tmp_path / "long.parquet").to_pydict() == {"seq_id": [5, 4], "row_count": [6, 5]}
    code, out, _ = run("query", index, LONG, "--param", 5, "-o", tmp_path / "long.csv", "--json")
    assert json.loads(out) == {"path": str(tmp_path / "long.csv"), "format": "csv", "n_rows": 2}
    assert (tmp_path / "long.csv").read_text() == '"seq_id","row_count"\n5,6\n4,5\n'


def test_query_does_not_replace_a_file_unless_told_to(run, index, tmp_path) -> None:
    path = tmp_path / "kept.parquet"
    path.write_bytes(b"kept")
    code, _, err = run("query", index, "SELECT seq_id FROM index", "-o", path)
    assert code == 2
    assert "exists already" in err
    assert path.read_bytes() == b"kept"
    assert run("query", index, "SELECT 1 AS a", "-o", path, "--overwrite")[0] == 0
    assert pq.read_table(path).to_pydict() == {"a": [1]}


def test_query_joins_attached_tables(run, index, tmp_path) -> None:
    (tmp_path / "labels.csv").write_text("seq_id,label\n4,cat\n5,dog\n")
    sql = "SELECT label FROM index JOIN labels USING (seq_id) ORDER BY label"
    code, out, _ = run("query", index, sql, "--attach", f"labels={tmp_path / 'labels.csv'}", "--json")
    assert (code, json.loads(out)) == (0, [{"label": "cat"}, {"label": "dog"}])


def test_query_speaks_other_dialects(run, index) -> None:
    sql = "SELECT TOP 2 seq_id FROM index ORDER BY seq_id"
    code, out, err = run("query", index, sql, "--dialect", "tsql", "--json")
    assert (code, err) == (0, "")
    assert [row["seq_id"] for row in json.loads(out)] == [0, 1]


def test_query_of_a_snapshot_and_of_moved_sources(run, index, source, tmp_path) -> None:
    write_sequences(source / "c.parquet", [6])
    assert run("build", "data", "--order", "step")[0] == 0
    count = "SELECT count(*) AS n FROM index"
    assert json.loads(run("query", index, count, "--json")[1]) == [{"n": 7}]
    assert json.loads(run("query", index, count, "--json", "--snapshot", 1)[1]) == [{"n": 6}]
    source.rename(tmp_path / "moved")
    assert json.loads(run("query", index, count, "--json", "--root", tmp_path / "moved")[1]) == [{"n": 7}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.pqindex", "SELECT 1"], "absent.pqindex"),
        (["data", "SELECT 1"], "data"),
        (["data.pqindex", "SELECT nix FROM index"], "nix"),
        (["data.pqindex", "DROP TABLE index"], "SELECT"),
        (["data.pqindex", "SELECT 1; SELECT 2"], "one"),
        (["data.pqindex", "SELECT * FROM 'data/a.parquet'"], "a.parquet"),
        (["data.pqindex", "SELECT 1 AS a", "--format", "xml"], "'xml' is not one of"),
        (["data.pqindex", "SELECT 1 AS a", "--format", "csv", "--json"], "exclude each other"),
        (["data.pqindex", "SELECT 1 AS a, 2 AS a", "--json"], "'a'"),
        (["data.pqindex", "SELECT 1 AS a", "--attach", "x=absent.csv"], "absent.csv"),
        (["data.pqindex"], "Missing argument 'SQL'"),
    ],
)
def test_query_refuses_wrong_use_in_one_line(run, index, words, message) -> None:
    code, out, err = run("query", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


# -- pin, show, verify, info, snapshots -----------------------------------------------------------------------


def test_pin_writes_a_manifest(run, index) -> None:
    code, out, err = run("pin", index, LONG, "--param", 4, "--seed", 7, "-o", "long.manifest.parquet")
    assert (code, err) == (0, "")
    manifest = pqindex.load_manifest("long.manifest.parquet")
    assert manifest.to_table()["seq_id"].to_pylist() == [5, 4, 3]
    assert manifest.digest in out
    assert out.splitlines()[-1] == "next: pqindex show long.manifest.parquet"
    code, out, _ = run(
        "pin", index, LONG, "--param", 4, "--seed", 7, "-o", "again.manifest.parquet", "--json"
    )
    assert json.loads(out) == {"path": "again.manifest.parquet", "n_sequences": 3, "digest": manifest.digest}


def test_pin_pins_statistics_and_show_prints_them(run, index) -> None:
    words = ("pin", index, "SELECT seq_id FROM index WHERE seq_id < 2", "-o", "s.manifest.parquet")
    assert run(*words, "--statistics", "price,step")[0] == 0
    pinned = pqindex.load_manifest("s.manifest.parquet").statistics()
    assert (pinned["price"].count, pinned["price"].min, pinned["price"].max) == (3, 0.5, 1.5)
    run(*words, "--overwrite", "--statistics", "price", "--statistics", "step")
    assert pqindex.load_manifest("s.manifest.parquet").statistics() == pinned
    lines = run("show", "s.manifest.parquet")[1].splitlines()
    assert lines[-4] == "statistics"
    assert " ".join(lines[-3].split()) == "column count null count nan count infinite count mean std min max"
    assert lines[-2].split()[:2] == ["price", "3"]
    shown = json.loads(run("show", "s.manifest.parquet", "--json")[1])
    assert shown["statistics"]["price"] == pinned["price"].to_json()
    code, _, err = run(*words, "--overwrite", "--statistics", "nope")
    assert code == 2
    assert "'nope'" in err


def test_pin_does_not_replace_a_manifest_unless_told_to(run, index, manifest) -> None:
    code, _, err = run("pin", index, "SELECT seq_id FROM index", "-o", manifest)
    assert code == 2
    assert "exists already" in err
    assert run("pin", index, "SELECT seq_id FROM index", "-o", manifest, "--overwrite")[0] == 0
    assert len(pqindex.load_manifest(manifest)) == N_SEQUENCES


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT row_count FROM index", "seq_id"),
        ("SELECT seq_id FROM index LIMIT 2", "ORDER BY"),
        ("SELECT seq_id FROM index WHERE random() < 0.5", "random"),
    ],
)
def test_pin_refuses_what_is_not_a_selection(run, index, sql, message, tmp_path) -> None:
    code, out, err = run("pin", index, sql, "-o", "x.manifest.parquet")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x.manifest.parquet").exists()


def test_info_show_and_snapshots(run, index, manifest) -> None:
    for words in (["info", index], ["show", index], ["show", manifest]):
        code, out, err = run(*words)
        assert (code, err) == (0, "")
        assert "n sequences" in out
        code, out, err = run(*words, "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert facts.get("totals", facts)["n_sequences"] == (3 if words[1] == manifest else 6)
    assert len(json.loads(run("snapshots", index, "--json")[1])) == 1
    assert len(run("snapshots", index)[1].splitlines()) == 2


def test_verify_finds_nothing_in_what_is_unchanged(run, index, manifest) -> None:
    for target, n_files in ((index, 2), (manifest, 1)):
        assert run("verify", target) == (0, f"ok: {n_files} files compared\n", "")
        code, out, _ = run("verify", target, "--json")
        assert code == 0
        assert json.loads(out)["ok"] is True


def test_verify_names_the_file_that_changed_and_ends_with_one(run, index, manifest, source) -> None:
    write_sequences(source / "b.parquet", [3, 4, 5], rows_of=lambda seq_id: seq_id + 2)
    for target in (index, manifest):
        code, out, err = run("verify", target)
        assert (code, err) == (1, "")
        assert out.startswith("replaced: ")
        assert out.count("b.parquet") == 1
        code, out, _ = run("verify", target, "--json")
        assert code == 1
        report = json.loads(out)
        assert report["ok"] is False
        assert [problem["file"] for problem in report["problems"]] == ["b.parquet"]


def test_verify_names_the_file_that_is_gone(run, index, manifest, source) -> None:
    (source / "b.parquet").unlink()
    for target in (index, manifest):
        code, out, _ = run("verify", target)
        assert code == 1
        assert out.startswith("removed: source file is gone: b.parquet")


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_target_that_is_absent_or_neither_is_refused(run, source, verb) -> None:
    for target in ("absent", "data", "data/a.parquet"):
        code, out, err = run(verb, target)
        assert (code, out) == (2, "")
        assert target in err
        assert err.count("\n") == 1


def test_unreadable_index_is_refused(run, index, tmp_path) -> None:
    for name in sorted((tmp_path / index).iterdir()):
        if name.is_file():
            name.write_text('{"format": "something else"}')
    code, out, err = run("query", index, "SELECT 1")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


# -- the command itself ---------------------------------------------------------------------------------------


def test_help_names_every_verb(run) -> None:
    for words in ([], ["-h"], ["--help"]):
        code, out, err = run(*words)
        assert (code, err) == (0, "")
        for verb in ("build", "info", "query", "pin", "show", "verify", "snapshots", "demo"):
            assert f"\n  {verb} " in out
            assert run(verb, "--help")[0] == 0


def test_version(run) -> None:
    assert run("--version") == (0, f"pqindex, version {pqindex.__version__}\n", "")


@pytest.mark.parametrize("words", [["biuld"], ["--nix"], ["query", "--nix"], ["pin", "a", "b"]])
def test_wrong_words_are_an_error_in_one_line(run, words) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "Hint: pqindex" in err
    assert err.count("\n") == 1


def test_traceback_is_shown_on_request_only(run, source, monkeypatch) -> None:
    assert "Traceback" not in run("build", "absent")[2]
    for words in (["--debug", "build", "absent"], ["build", "absent", "--debug"]):
        assert "Traceback" in run(*words)[2]
    monkeypatch.setenv("PQINDEX_DEBUG", "1")
    assert "Traceback" in run("build", "absent")[2]
    monkeypatch.setenv("PQINDEX_DEBUG", "0")
    assert "Traceback" not in run("build", "absent")[2]


def test_fault_of_our_own_asks_for_a_report(run, source, monkeypatch) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("pqindex.open", broken)
    code, out, err = run("query", "data.pqindex", "SELECT 1")
    assert (code, out) == (2, "")
    assert err == "error: unexpected KeyError: 'x'. Hint: run with --debug and report what it shows\n"


def test_operating_system_errors_name_the_file(run, source, monkeypatch) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", "data.pqindex")

    monkeypatch.setattr("pqindex.open", broken)
    assert run("info", "data.pqindex") == (2, "", "error: Permission denied: data.pqindex\n")


def test_interrupt_ends_with_130_and_without_words(run, source, monkeypatch) -> None:
    def interrupted(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pqindex.open", interrupted)
    code, out, err = run("info", "data.pqindex")
    assert (code, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(
    ("verb", "examples"),
    [
        (
            "build",
            """
  pqindex build data/
  pqindex build "logs/2026-*/*.parquet" --key trip_id --order time -o trips.pqindex
""",
        ),
        (
            "query",
            """
  pqindex query data.pqindex "SELECT seq_id FROM index WHERE row_count >= 64 AND stats.price.max > 3"
  pqindex query data.pqindex "SELECT label, count(*) FROM index JOIN labels USING (seq_id) GROUP BY ALL" \\
      --attach labels=labels.csv
""",
        ),
        (
            "pin",
            """
  pqindex pin data.pqindex "SELECT seq_id, label FROM index JOIN labels USING (seq_id) WHERE row_count >= ?" \\
      --param 64 --attach labels=labels.csv --seed 7 -o train.manifest.parquet
""",
        ),
    ],
)
def test_help_shows_its_examples_as_they_are_typed(verb, examples) -> None:
    shown = CliRunner().invoke(commands, [verb, "--help"], terminal_width=120).output
    assert "\b" not in shown
    assert "\\b" not in shown
    assert examples.replace("\n  ", "\n    ") in shown


def test_query_never_writes_onto_the_source_or_the_index(run, index, source) -> None:
    files = [source / "a.parquet", *(path for path in Path(index).rglob("*") if path.is_file())]
    before = [path.read_bytes() for path in files]
    for path in [*files, Path(index) / "new.parquet"]:
        code, out, err = run("query", index, "SELECT no_such_column FROM index", "-o", path, "--overwrite")
        assert (code, out) == (2, "")
        assert "the file to write" in err
    assert [path.read_bytes() for path in files] == before
    assert not (Path(index) / "new.parquet").exists()
