# The verbs of the house. `.ci/run` and CONTRIBUTING.md use these and no others.

PYTHON ?= python

.PHONY: help install format lint types floors check test bench build

help: ## show the verbs
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

install: ## install the package for editing, with everything that the other verbs need
	$(PYTHON) -m pip install -q -c constraints.txt -e ".[dev]"

format: ## rewrite the code in the house's layout
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint: ## layout and lint
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types: ## mypy, strict
	$(PYTHON) -m mypy

floors: ## who may import whom
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

check: lint types floors ## all that needs no test

test: ## every test
	$(PYTHON) -m pytest -n auto --dist loadfile

bench: ## the figures beside all peers, in an environment of their own; ARGS="--shape A" and the like
	$(PYTHON) -m benchmarks.environment $(ARGS)

build: ## wheel and source distribution under dist/
	$(PYTHON) -m build
