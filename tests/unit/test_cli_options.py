"""Values on the command line: parameters and attached tables."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pqindex.cli.options import selecting


@click.command()
@selecting
def echo(params, attach, dialect) -> None:
    click.echo(repr((params, attach, dialect)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("-1", -1),
        ("9007199254740993", 9007199254740993),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ('"64"', "64"),
        ("Main St.", "Main St."),
        ("007", "007"),
        ("NaN", "NaN"),
        ("[1]", "[1]"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_parameter_is_a_json_scalar_or_text(text, value) -> None:
    result = CliRunner().invoke(echo, ["--param", text])
    assert result.output == repr(([value], {}, "duckdb")) + "\n"


def test_parameters_keep_their_order() -> None:
    result = CliRunner().invoke(echo, ["--param", "2", "--param", "1"])
    assert result.output == repr(([2, 1], {}, "duckdb")) + "\n"


def test_attached_tables_have_names() -> None:
    result = CliRunner().invoke(echo, ["--attach", "labels=a=b.csv", "--attach", "folds=folds.parquet"])
    assert result.output == repr(([], {"labels": "a=b.csv", "folds": "folds.parquet"}, "duckdb")) + "\n"


@pytest.mark.parametrize("text", ["labels.csv", "=labels.csv", "labels=", ""])
def test_attached_table_without_a_name_or_path_is_refused(text) -> None:
    result = CliRunner().invoke(echo, ["--attach", text])
    assert result.exit_code == 2
    assert f"expected NAME=PATH, found {text!r}" in result.output


def test_name_attached_twice_is_refused() -> None:
    result = CliRunner().invoke(echo, ["--attach", "a=1.csv", "--attach", "a=2.csv"])
    assert result.exit_code == 2
    assert "'a' is attached twice" in result.output
