"""Arrow tables as aligned columns, CSV, JSON and Parquet: nothing lost, nothing made up."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import json
import os
import pty

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pqindex.cli import tables
from pqindex.errors import ConflictError, UsageError

ALL_TYPES = pa.table(
    {
        "seq_id": pa.array([2**53 + 1, None, -1], pa.int64()),
        "unsigned": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "text": ["", None, 'a,"b"\nc'],
        "view": pa.array(["", None, "v"], pa.string_view()),
        "raw": pa.array([b"\x00\xff", None, b""], pa.binary()),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "float": [float("nan"), None, float("-inf")],
        "single": pa.array([0.1, None, 1.5], pa.float32()),
        "half": pa.array([0.5, None, 1.5], pa.float16()),
        "flag": [True, None, False],
        "time_ns": pa.array([1, None, -1], pa.timestamp("ns", "UTC")),
        "far": pa.array([dt.date(9999, 12, 31), None, dt.date(1, 1, 1)], pa.date32()),
        "clock": pa.array([1, None, 2], pa.time64("ns")),
        "span": pa.array([1, None, 2], pa.duration("s")),
        "money": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-2.00")]),
        "category": pa.array(["x", None, "y"]).dictionary_encode(),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "days": pa.array([[dt.date(2020, 1, 1)], None, []], pa.large_list(pa.date32())),
        "pair": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "stats": [{"price": {"min": 1.5, "max": None}}, None, {"price": None}],
        "nothing": pa.nulls(3),
    }
)


def rendered(table: pa.Table, form: str) -> bytes:
    return b"".join(tables._CHUNKS[form](table))


def test_json_is_one_array_of_exact_values() -> None:
    first, second, third = json.loads(rendered(ALL_TYPES, "json"))
    assert first["seq_id"] == 9007199254740993
    assert first["unsigned"] == 2**64 - 1
    assert first["float"] == "NaN"
    assert third["float"] == "-Infinity"
    assert first["raw"] == "00ff"
    assert first["time_ns"] == "1970-01-01 00:00:00.000000001Z"
    assert first["far"] == "9999-12-31"
    assert first["money"] == "1.10"
    assert first["map"] == [["k", 1]]
    assert first["stats"] == {"price": {"min": 1.5, "max": None}}
    assert set(second) == set(ALL_TYPES.column_names)
    assert all(value is None for value in second.values())


def test_json_of_no_rows_is_an_empty_array() -> None:
    assert json.loads(rendered(ALL_TYPES.slice(0, 0), "json")) == []


def test_json_refuses_two_columns_of_one_name() -> None:
    with pytest.raises(UsageError, match=r"'a'.*AS"):
        rendered(pa.table([[1], [2]], names=["a", "a"]), "json")


def test_json_comes_in_pieces_that_fit_together() -> None:
    table = pa.table({"seq_id": range(2500)})
    assert [row["seq_id"] for row in json.loads(rendered(table, "json"))] == list(range(2500))
    assert len(list(tables._CHUNKS["json"](table))) > 2


def test_csv_has_a_column_a_field_and_keeps_nulls_apart_from_empty_text() -> None:
    text = rendered(ALL_TYPES, "csv").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["seq_id"] == "9007199254740993"
    assert rows[0]["unsigned"] == str(2**64 - 1)
    assert rows[0]["stats.price.min"] == "1.5"
    assert rows[0]["raw"] == "00ff"
    assert rows[0]["list"] == "[1, null]"
    assert rows[0]["time_ns"] == "1970-01-01 00:00:00.000000001Z"
    assert rows[0]["half"] == "0.5"
    assert rows[0]["span"] == "0:00:01"
    assert rows[2]["text"] == 'a,"b"\nc'
    assert set(rows[1].values()) == {""}
    assert ',"",' in text.splitlines()[1]
    assert text.splitlines()[2] == "," * (len(rows[0]) - 1)


def test_csv_of_no_rows_is_its_header() -> None:
    assert rendered(pa.table({"a": pa.array([], pa.int64())}), "csv") == b'"a"\n'


def test_table_is_aligned_and_escapes_what_would_move_the_cursor() -> None:
    table = pa.table(
        {"seq_id": [1, 20000], "name": ["a\nb\x1b[31m", None], "list": [[], [1.0, float("nan")]]}
    )
    assert rendered(table, "table").decode().splitlines() == [
        "seq_id  name          list",
        "1       a\\nb\\x1b[31m  []",
        '20000   NULL          [1.0, "NaN"]',
    ]


def test_table_of_no_rows_is_its_header() -> None:
    assert rendered(pa.table({"a": [1], "b": [2]}).slice(0, 0), "table") == b"a  b\n"


def test_table_prints_every_type() -> None:
    assert len(rendered(ALL_TYPES, "table").splitlines()) == 4


def test_parquet_is_the_table() -> None:
    plain = ALL_TYPES.select(["seq_id", "text", "stats"])
    assert pq.read_table(io.BytesIO(rendered(plain, "parquet"))).equals(plain)


def test_terminal_gets_fifty_rows_and_a_note(monkeypatch, capfd) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        tables.print_table(pa.table({"seq_id": range(60), "long": ["x" * 100] * 60}), "table")
        text = ""
        while text.count("\n") < 51:  # a terminal gives what it has, in pieces
            text += os.read(leader, 100_000).decode()
        shown = text.splitlines()
        with pytest.raises(UsageError, match="-o FILE"):
            tables.print_table(pa.table({"seq_id": [1]}), "parquet")
    os.close(leader)
    assert len(shown) == 51
    assert shown[1] == "0       " + "x" * 59 + "…"
    assert capfd.readouterr().err == "10 more rows (--format csv shows all)\n"


@pytest.mark.parametrize("form", tables.FORMS)
def test_saved_file_is_whole_and_replaced_only_on_request(tmp_path, form) -> None:
    target = tmp_path / "rows"
    table = pa.table({"seq_id": [1, 2]})
    tables.save_table(table, str(target), form, overwrite=False)
    assert target.read_bytes() == rendered(table, form)
    with pytest.raises(ConflictError, match="exists already"):
        tables.save_table(table, str(target), form, overwrite=False)
    tables.save_table(table.slice(1), str(target), form, overwrite=True)
    assert target.read_bytes() == rendered(table.slice(1), form)


def test_failed_save_leaves_nothing(tmp_path) -> None:
    with pytest.raises(UsageError):
        tables.save_table(
            pa.table([[1], [2]], names=["a", "a"]), str(tmp_path / "rows.json"), "json", overwrite=False
        )
    assert list(tmp_path.iterdir()) == []
