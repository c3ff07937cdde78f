"""A versioned sidecar index over Parquet: pick sequences with SQL, pin them, read them at random.

The public names are loaded when they are first used, so that ``import pqindex`` costs nothing and brings
neither torch nor duckdb. PyTorch's side is a module of its own, ``pqindex.torch``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pqindex.errors import (
    BadFileError,
    ColumnMissingError,
    ColumnTypeError,
    ConflictError,
    DigestMismatchError,
    DocumentInvalidError,
    EmptySourceError,
    FormatError,
    FragmentedSequenceError,
    IntegrityError,
    LossyCastError,
    MissingDependencyError,
    MixedRowGroupError,
    NonFiniteError,
    NotConstantError,
    NotFoundError,
    NotIncreasingError,
    NullKeyError,
    NullValueError,
    PlacesError,
    PlanError,
    PqindexError,
    ProcessBoundaryError,
    QueryError,
    RaggedListError,
    SelectionIndexError,
    SequenceTooLongError,
    SequenceTooShortError,
    SourceChangedError,
    SourceError,
    TableFormatError,
    UnsupportedFeatureError,
    UnsupportedFileError,
    UnsupportedVersionError,
    UsageError,
    WriteError,
)

if TYPE_CHECKING:
    from pqindex.api import Index, Manifest, Selection, build, load_manifest, open
    from pqindex.doctor import LayoutReport
    from pqindex.reader import Reader
    from pqindex.refresh import Changes
    from pqindex.rewrite import RewriteReport
    from pqindex.statistics import ColumnStatistics

__version__ = "0.1.0"

__all__ = [
    "BadFileError",
    "Changes",
    "ColumnMissingError",
    "ColumnStatistics",
    "ColumnTypeError",
    "ConflictError",
    "DigestMismatchError",
    "DocumentInvalidError",
    "EmptySourceError",
    "FormatError",
    "FragmentedSequenceError",
    "Index",
    "IntegrityError",
    "LayoutReport",
    "LossyCastError",
    "Manifest",
    "MissingDependencyError",
    "MixedRowGroupError",
    "NonFiniteError",
    "NotConstantError",
    "NotFoundError",
    "NotIncreasingError",
    "NullKeyError",
    "NullValueError",
    "PlacesError",
    "PlanError",
    "PqindexError",
    "ProcessBoundaryError",
    "QueryError",
    "RaggedListError",
    "Reader",
    "RewriteReport",
    "Selection",
    "SelectionIndexError",
    "SequenceTooLongError",
    "SequenceTooShortError",
    "SourceChangedError",
    "SourceError",
    "TableFormatError",
    "UnsupportedFeatureError",
    "UnsupportedFileError",
    "UnsupportedVersionError",
    "UsageError",
    "WriteError",
    "__version__",
    "build",
    "load_manifest",
    "open",
]

_LAZY = {
    "Changes": "pqindex.refresh",
    "ColumnStatistics": "pqindex.statistics",
    "Index": "pqindex.api",
    "LayoutReport": "pqindex.doctor",
    "Manifest": "pqindex.api",
    "Reader": "pqindex.reader",
    "RewriteReport": "pqindex.rewrite",
    "Selection": "pqindex.api",
    "build": "pqindex.api",
    "load_manifest": "pqindex.api",
    "open": "pqindex.api",
}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it, once."""
    try:
        module = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package's own type, in which a public name wins over a submodule of the same name.

    The import system binds every submodule to its package as an attribute. Without this, ``pqindex.build``
    would be the function or the module ``pqindex/build.py``, depending on what was imported before.
    ``from pqindex.build import ...`` still reaches the module.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
