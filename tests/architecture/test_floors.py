"""The house: who may import whom, what an import brings, which names are public."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pqindex

PACKAGE = Path(pqindex.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    "torch",
    "duckdb",
    "deltalake",
    "pyiceberg",
    "sqlglot",
    "ray",
    "pandas",
    "polars",
    "pyarrow",
    "numpy",
    "click",
    "rich",
)


def run_python(code: str) -> str:
    """Run `code` in a child process and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_floors_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_architecture_page_and_contract_name_the_same_modules() -> None:
    page = (REPOSITORY / "ARCHITECTURE.md").read_text()
    floors = [line.replace("\\|", "\0").split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    on_page = [sorted(part.strip(" `/") for part in floor.split("\0")) for floor in floors]
    config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contract = config["tool"]["importlinter"]["contracts"][0]
    in_contract = [sorted(part.strip() for part in layer.split("|")) for layer in contract["layers"]]
    assert on_page == in_contract


def test_contracts_on_libraries_cover_every_module() -> None:
    """A new module must be named in the contracts that keep torch and duckdb out, too."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    floors, torch, duckdb, lakes, _ = contracts
    modules = {f"pqindex.{part.strip()}" for layer in floors["layers"] for part in layer.split("|")}
    assert modules - set(torch["source_modules"]) == {"pqindex.torch", "pqindex.demo"}
    assert modules - set(duckdb["source_modules"]) == {"pqindex.sql"}
    assert modules - set(lakes["source_modules"]) == {"pqindex.lakes"}


def test_import_is_light() -> None:
    loaded = run_python(f"import sys, pqindex; print(*[m for m in {HEAVY} if m in sys.modules])")
    assert loaded == ""


def test_public_names_are_loaded_without_torch_and_frames() -> None:
    """Pandas is not looked for: pyarrow.dataset, through which DuckDB sees Arrow data, brings it if it is there."""
    loaded = run_python(
        "import sys, pqindex\n"
        "for name in pqindex.__all__: getattr(pqindex, name)\n"
        "print(*[m for m in ('torch', 'ray', 'polars') if m in sys.modules])"
    )
    assert loaded == ""


@pytest.mark.parametrize("module", ["pqindex.reader", "pqindex.torch"])
def test_what_a_training_worker_imports_is_light(module: str) -> None:
    loaded = run_python(
        f"import sys, {module}\n"
        "print(*[m for m in ('duckdb', 'sqlglot', 'pandas', 'polars', 'click', 'rich') if m in sys.modules])"
    )
    assert loaded == ""


@pytest.mark.parametrize("public", pqindex.__all__)
def test_public_names_exist(public: str) -> None:
    assert public in dir(pqindex)
    assert getattr(pqindex, public) is not None


@pytest.mark.parametrize("first", ["pqindex", "pqindex.api", "pqindex.cli", "pqindex.reader"])
def test_public_functions_win_over_submodules_whatever_was_imported_before(first: str) -> None:
    kinds = run_python(
        f"import {first}, pqindex\n"
        "for name in ('build', 'open', 'load_manifest'): print(type(getattr(pqindex, name)).__name__)"
    )
    assert kinds.split() == ["function"] * 3


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        pqindex.biuld  # noqa: B018 - the access is the test


def test_every_error_is_public_and_has_its_own_reason() -> None:
    errors = importlib.import_module("pqindex.errors")
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.PqindexError)
    ]
    assert {kind.__name__ for kind in classes} <= set(pqindex.__all__)
    assert len({kind.reason for kind in classes}) == len(classes)


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_module_has_a_docstring(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_assertions_say_why_they_cannot_fail(module: Path) -> None:
    """`python -O` removes assertions, so none may check input; the few that tell a type checker something say so."""
    text = module.read_text()
    lines = text.splitlines()
    found = [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
    assert [line for line in found if not re.search(r"# noqa: S101\W+\w+", lines[line - 1])] == []


def test_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
