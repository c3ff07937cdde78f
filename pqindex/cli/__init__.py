"""The command line: verbs that parse, call the library, and print. No verb decides anything itself."""

from __future__ import annotations

from pqindex.cli.app import main

__all__ = ["main"]
