"""Values as text and JSON, and a standard output that may be closed at any time."""

from __future__ import annotations

import io
import json
import sys

import pytest

from pqindex.cli import output


def test_json_has_no_numbers_that_json_does_not_know(capsys) -> None:
    output.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": b"\x01", "d": (1, None)})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": "NaN",
        "b": ["Infinity", 1.5],
        "c": "01",
        "d": [1, None],
    }


def test_json_keeps_names_that_are_not_utf8(monkeypatch) -> None:
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", raw)
    output.print_json({"file": b"\xff\xc3\xa4".decode("utf-8", "surrogateescape")})
    written = raw.buffer.getvalue().decode()
    assert "ä" in written
    assert json.loads(written)["file"] == "\udcffä"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "yes"),
        (1234567, "1234567"),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        ("a\tb\x1b[2J", "a\\tb\\x1b[2J"),
        ("Zoë 日本", "Zoë 日本"),
        (b"\x00\x01", "0001"),
        (["a", "b"], '["a", "b"]'),
        ({"min": 1}, '{"min": 1}'),
    ],
)
def test_values_as_text(value, text) -> None:
    assert output.to_text(value) == text


def test_fields_are_aligned_nested_and_without_the_empty(capsys) -> None:
    output.print_fields(
        {
            "n_rows": 1234567,
            "seed": 1234,
            "key": "seq_id",
            "order": None,
            "totals": {"size_bytes": 5000},
            "ids": [1, 2],
            "notes": ["a" * 50, "b" * 50],
        }
    )
    assert capsys.readouterr().out.splitlines() == [
        "n rows  1,234,567",
        "seed    1234",
        "key     seq_id",
        "totals",
        "  size bytes  5,000",
        "ids     1, 2",
        "notes",
        "  " + "a" * 50,
        "  " + "b" * 50,
    ]


def test_rows_are_aligned(capsys) -> None:
    output.print_rows(["a", "number"], [["x", 1], ["yy", None]])
    assert capsys.readouterr().out.splitlines() == ["a   number", "x   1", "yy  NULL"]


def test_error_is_one_line_on_standard_error(capsys) -> None:
    output.print_error("first\nsecond\r\x1b[31m")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: first\\nsecond\\r\\x1b[31m\n"


def test_no_standard_output_is_no_error(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    output.print_text("nobody reads this")
    output.print_note("nor this")
    with output.progress_bar() as progress:
        assert progress is None


def test_no_progress_bar_without_a_terminal() -> None:
    assert not sys.stderr.isatty()
    with output.progress_bar() as progress:
        assert progress is None
