"""Every error that pqindex raises on purpose, and its reason code.

A message reads *what is wrong: where; expected X, found Y. Hint: what helps*. The facts in it are attributes
too, so that a program never has to parse the sentence. `reason` is a stable code and part of the public surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

FIRST_PLACES = 10


class PqindexError(Exception):
    """Base of every error of pqindex.

    Attributes
    ----------
    reason : str
        Stable code of the kind of error, for programs.
    hint : str or None
        The command or option that helps.
    facts : dict
        The facts of the message by name (`file`, `row_group`, `column`, `expected`, `found`, ...). Each is
        readable as an attribute of the error too.
    """

    reason: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        self.message = message
        self.hint = hint
        self.facts = facts
        end = "" if message.endswith("?") else "."
        super().__init__(f"{message.rstrip('.')}{end} Hint: {hint}" if hint else message)

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)


def _rebuild(kind: type[PqindexError], message: str, hint: str | None, facts: dict[str, Any]) -> PqindexError:
    return kind(message, hint=hint, **facts)


# -- bytes of ours that break the specification ---------------------------------------------------------------


class FormatError(PqindexError, ValueError):
    """A pqindex file does not follow the specification."""

    reason = "format"


class DocumentInvalidError(FormatError):
    """A snapshot or manifest document has problems; `problems` lists all of them."""

    reason = "document-invalid"


class UnsupportedVersionError(FormatError):
    """A file was written by a later version of the format than this reader knows."""

    reason = "unsupported-version"


class UnsupportedFeatureError(FormatError):
    """A file names a reader feature that this reader does not know."""

    reason = "unsupported-feature"


# -- source data that is not what was asked for ---------------------------------------------------------------


class SourceError(PqindexError, ValueError):
    """The source data is not what was asked for."""

    reason = "source"


class BadFileError(SourceError):
    """A source file is not readable Parquet: torn, corrupt, contradictory or not Parquet at all."""

    reason = "bad-file"


class UnsupportedFileError(SourceError):
    """A source file is valid Parquet that pqindex does not read (encrypted, unknown codec)."""

    reason = "unsupported-file"


class EmptySourceError(SourceError):
    """The source holds no Parquet file, or no row with a key."""

    reason = "empty-source"


class TableFormatError(SourceError):
    """The source belongs to a table format (Delta Lake, Apache Iceberg, Apache Hudi) and cannot be read as plain files.

    Attributes
    ----------
    kind : str
        Name of the table format.
    """

    reason = "table-format"


class ColumnMissingError(SourceError):
    """A named column is in none, or not in all, of the files."""

    reason = "column-missing"


class ColumnTypeError(SourceError):
    """A column has a type that its role cannot have, or types that differ between files beyond widening."""

    reason = "column-type"


class PlacesError(SourceError):
    """A fault of the rows, with the places where it was found.

    Attributes
    ----------
    places : tuple of str
        The first ten places, each as ``file#row_group[row_start:row_stop]`` and what was found there.
    n_places : int
        How many places there are in all.
    """

    reason = "places"

    @classmethod
    def at(cls, what: str, places: Sequence[str], n_places: int, *, hint: str, **facts: Any) -> PlacesError:
        """Return the error that says `what` and lists the first ten of `places`."""
        first = tuple(places[:FIRST_PLACES])
        more = f"; and {n_places - len(first)} more" if n_places > len(first) else ""
        return cls(f"{what}: {'; '.join(first)}{more}", hint=hint, places=first, n_places=n_places, **facts)


class NullKeyError(PlacesError):
    """Rows have no key."""

    reason = "null-key"


class FragmentedSequenceError(PlacesError):
    """One key lies in places that do not touch."""

    reason = "fragmented-sequence"


class MixedRowGroupError(PlacesError):
    """A row group does not hold exactly one whole sequence, and the layout asked for says it must."""

    reason = "mixed-row-group"


class NotIncreasingError(PlacesError):
    """The order column does not strictly increase inside a sequence (equal, smaller, null or NaN)."""

    reason = "not-increasing"


class NonFiniteError(SourceError):
    """A value asked for as a finite number is NaN, infinite, or too large for the dtype asked for."""

    reason = "non-finite"


class NullValueError(SourceError):
    """A value asked for is null."""

    reason = "null-value"


class LossyCastError(SourceError):
    """A cast to the dtype asked for would change integers."""

    reason = "lossy-cast"


class RaggedListError(SourceError):
    """Lists that must have one length, in all rows of a column or in all columns of a row, have others."""

    reason = "ragged-list"


class NotConstantError(SourceError):
    """A column that must have one value in all rows of a sequence has several."""

    reason = "not-constant"


class SequenceTooLongError(SourceError):
    """A sequence has more rows than `max_rows` allows."""

    reason = "sequence-too-long"


class SequenceTooShortError(SourceError):
    """No sequence has the rows that a window needs."""

    reason = "sequence-too-short"


# -- bytes that are not those that were recorded --------------------------------------------------------------


class IntegrityError(PqindexError):
    """Bytes are not those that were recorded."""

    reason = "integrity"


class DigestMismatchError(IntegrityError):
    """A digest differs from the recorded one."""

    reason = "digest-mismatch"


class SourceChangedError(IntegrityError):
    """A source file was changed, replaced, truncated or removed since it was indexed."""

    reason = "source-changed"


# -- use ------------------------------------------------------------------------------------------------------


class UsageError(PqindexError, ValueError):
    """An argument has a value that makes no sense."""

    reason = "usage"


class QueryError(PqindexError, ValueError):
    """SQL was refused, failed, or is not a selection."""

    reason = "query"


class PlanError(PqindexError, ValueError):
    """No batch plan exists for the policy, the sequences and the ranks asked for."""

    reason = "plan"


class ConflictError(PqindexError):
    """Another writer committed first, or the target exists."""

    reason = "conflict"


class WriteError(PqindexError, OSError):
    """A file could not be written; nothing is left of it."""

    reason = "write-failed"

    def __str__(self) -> str:
        return str(self.args[0])


class NotFoundError(PqindexError, FileNotFoundError):
    """A file, index, snapshot or manifest is not there."""

    reason = "not-found"

    def __str__(self) -> str:
        return str(self.args[0])


class SelectionIndexError(PqindexError, IndexError):
    """A position lies outside the selection."""

    reason = "selection-index"


class MissingDependencyError(PqindexError, ImportError):
    """An optional dependency is not installed."""

    reason = "missing-dependency"


class ProcessBoundaryError(PqindexError, RuntimeError):
    """An object that belongs to one process was used in another."""

    reason = "process-boundary"
