"""The JSON documents of the format as frozen records: the snapshot of an index and the header of a manifest.

Parsing collects every problem of a document and then raises once. It checks versions and features before anything
else, since a later version may change everything else. Not checked here: whether the files that a document names
are there and whole (`sidecar`, `manifest`).
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from pqindex.digest import canonical_json, sha256_hex
from pqindex.errors import DocumentInvalidError, UnsupportedFeatureError, UnsupportedVersionError
from pqindex.footer import SchemaRecord
from pqindex.format import FORMAT_NAME, FORMAT_VERSION, OPTIONAL_TABLES, READER_FEATURES, TABLES, table_path
from pqindex.partitions import TYPES
from pqindex.units import KEY, UNITS

DEFAULT_KEY = "seq_id"

MAX_SEED = 2**53
"""Seeds are below this, so that every reader of JSON has them exactly."""

MAX_FLOAT = sys.float_info.max

_HEX64 = re.compile(r"^[0-9a-f]{64}$")
_PART = re.compile(r"^[0-9a-f]{16}$")

Check: TypeAlias = Callable[[Any], str | None]
"""Takes a value and returns what was expected instead, None where the value is good."""

Shape: TypeAlias = "Check | _ListOf | _MapOf | _MayHave | Mapping[str, Shape]"


# -- what a field may hold ------------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "a text"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _count(value: Any) -> str | None:
    return (
        None if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else "an integer >= 0"
    )


def _number_from_one(value: Any) -> str | None:
    return None if _count(value) is None and value >= 1 else "an integer >= 1"


def _number_or_null(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT
    return None if value is None or good else "a finite number, or null"


def _deviation(value: Any) -> str | None:
    good = _number_or_null(value) is None and (value is None or value >= 0)
    return None if good else "a finite number >= 0, or null"


def _seed(value: Any) -> str | None:
    return None if _count(value) is None and value < MAX_SEED else "an integer from 0 to 2**53 - 1"


def _parameters(value: Any) -> str | None:
    return None if value is None or isinstance(value, list | dict) else "a list, an object, or null"


def _sha256(value: Any) -> str | None:
    return None if isinstance(value, str) and _HEX64.match(value) else "64 lower-case hex digits"


def _part_name(value: Any) -> str | None:
    return None if isinstance(value, str) and _PART.match(value) else "16 lower-case hex digits"


def _base64(value: Any) -> str | None:
    try:
        if isinstance(value, str):
            base64.b64decode(value, validate=True)
            return None
    except (binascii.Error, ValueError):
        pass
    return "base64"


def _relative_path(value: Any) -> str | None:
    good = isinstance(value, str) and value and not value.startswith("/") and ".." not in value.split("/")
    return None if good and "\0" not in value else "a relative path without '..'"


def _table_or_null(value: Any) -> str | None:
    good = isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("format", "version"))
    return None if value is None or good else "an object with the texts 'format' and 'version', or null"


def _names_or_null(value: Any) -> str | None:
    good = value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))
    return None if good else "a list of texts, or null"


def _ascending_below(numbers: list[int], limit: int) -> bool:
    return all(a < b for a, b in itertools.pairwise([-1, *numbers, limit]))


def _names(value: Any) -> str | None:
    return None if value is not None and _names_or_null(value) is None else "a list of texts"


def _or_null(check: Check) -> Check:
    def checked(value: Any) -> str | None:
        expected = None if value is None else check(value)
        return None if expected is None else f"{expected}, or null"

    return checked


def _one_of(*names: str) -> Check:
    return lambda value: None if value in names else f"one of {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class _ListOf:
    item: Shape


@dataclass(frozen=True, slots=True)
class _MapOf:
    item: Shape


@dataclass(frozen=True, slots=True)
class _MayHave:
    """A field that may be missing."""

    item: Shape


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _validate(value: Any, shape: Shape, where: str, problems: list[str]) -> None:
    """Add to `problems` whatever in a value does not have the shape."""
    if isinstance(shape, _ListOf):
        if isinstance(value, list):
            for i, item in enumerate(value):
                _validate(item, shape.item, f"{where}[{i}]", problems)
        else:
            problems.append(f"{where}: expected a list, found {_shown(value)}")
    elif isinstance(shape, _MapOf | Mapping):
        if not isinstance(value, dict):
            problems.append(f"{where}: expected an object, found {_shown(value)}")
            return
        inner = shape if isinstance(shape, Mapping) else dict.fromkeys(value, shape.item)
        for name, item_shape in inner.items():
            if name in value:
                _validate(value[name], item_shape, f"{where}.{name}", problems)
            elif not isinstance(item_shape, _MayHave):
                problems.append(f"{where}.{name}: missing")
    elif isinstance(shape, _MayHave):
        _validate(value, shape.item, where, problems)
    else:
        expected = shape(value)
        if expected is not None:
            problems.append(f"{where}: expected {expected}, found {_shown(value)}")


OPTIONS: Mapping[str, Shape] = {
    "unit": _one_of(*UNITS),
    "key": _or_null(_text),
    "order": _or_null(_text),
    "check": _one_of("footer", "keys", "full"),
    "layout": _one_of("any", "one-per-row-group"),
    "join": _flag,
    "skip_null_keys": _flag,
    "trust_statistics": _flag,
    "on_bad_file": _one_of("error", "skip"),
    "statistics": _names_or_null,
    "pages": _one_of("auto", "never", "always"),
    "partition_types": _MapOf(_one_of(*TYPES)),
    "attributes": _names,
    "aggregates": _MapOf(_text),
}

TOTALS = ("n_files", "n_row_groups", "n_rows", "n_sequences", "n_segments", "n_skipped_rows")

_SNAPSHOT: Mapping[str, Shape] = {
    "snapshot": _number_from_one,
    "parent": _or_null(_number_from_one),
    "created_at": _text,
    "writer": _text,
    "source": {
        "root": _or_null(_text),
        "kind": _text,
        "ignore_lake": _flag,
        "table": _table_or_null,
        "passed_over": _MapOf(_count),
    },
    "options": OPTIONS,
    "schemas": _ListOf(
        {
            "schema": _base64,
            "created_by": _or_null(_text),
            "column_orders": _or_null(_base64),
            "arrow_schema": _or_null(_base64),
        }
    ),
    "parts": _ListOf(
        {
            "part": _part_name,
            "tables": _MapOf({"size_bytes": _count, "sha256": _sha256, "n_rows": _count}),
            "removed_files": _ListOf(_count),
            "notes": _ListOf(_text),
        }
    ),
    "skipped": _ListOf({"path": _text, "reason": _text, "message": _text}),
    "notes": _ListOf(_text),
    "totals": dict.fromkeys(TOTALS, _count),
    "content_digest": _sha256,
}

STATISTICS: Mapping[str, Shape] = {
    "count": _count,
    "null_count": _count,
    "nan_count": _count,
    "infinite_count": _count,
    "mean": _number_or_null,
    "std": _deviation,
    "min": _number_or_null,
    "max": _number_or_null,
}

_MANIFEST: Mapping[str, Shape] = {
    "index": {"content_digest": _sha256},
    "query": {"sql": _text, "dialect": _text, "parameters": _parameters, "attached": _MapOf(_sha256)},
    "seed": _or_null(_seed),
    "key": _or_null(_text),
    "counts": {"n_sequences": _count, "n_rows": _count, "n_files": _count},
    "selection_digest": _sha256,
    "files": _ListOf(
        {
            "path": _relative_path,
            "size_bytes": _count,
            "footer_offset": _count,
            "footer_length": _count,
            "footer_sha256": _sha256,
            "n_rows": _count,
            "content_sha256": _MayHave(_sha256),
        }
    ),
}

_MANIFEST_MAY_HAVE: Mapping[str, Shape] = {"statistics": _MapOf(STATISTICS)}


# -- reading a document ---------------------------------------------------------------------------------------


def _document(
    data: bytes, *, name: str, expected: Mapping[str, Shape], may_have: Mapping[str, Shape] | None = None
) -> dict[str, Any]:
    """Return the parsed object, after the gate of versions and features and a check of every field.

    The fields of `may_have` are checked where they are there.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DocumentInvalidError(
            f"not a JSON document: {name}: {error}",
            hint="the file is damaged; take another snapshot or build again",
            problems=(str(error),),
        ) from error
    if not isinstance(value, dict) or value.get("format") != FORMAT_NAME:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise DocumentInvalidError(
            f"not a {FORMAT_NAME} document: {name}; expected format {FORMAT_NAME!r}, found {found!r}",
            problems=("format",),
        )
    version = value.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DocumentInvalidError(
            f"{name}: format_version: expected an integer >= 1, found {version!r}",
            problems=("format_version",),
        )
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{name} has format version {version}, and this reader knows up to {FORMAT_VERSION}",
            hint="upgrade pqindex",
            found=version,
            expected=FORMAT_VERSION,
        )
    problems: list[str] = []
    for features in ("reader_features", "writer_features"):
        _validate(value.get(features), _ListOf(_text), features, problems)
    if not problems:
        unknown = sorted(set(value["reader_features"]) - READER_FEATURES)
        if unknown:
            raise UnsupportedFeatureError(
                f"{name} needs reader features that this reader does not know: {', '.join(unknown)}",
                hint="upgrade pqindex",
                features=tuple(unknown),
            )
    present = {field: shape for field, shape in (may_have or {}).items() if field in value}
    _validate(value, {**expected, **present}, "document", problems)
    if problems:
        raise _invalid(name, problems)
    return value


def _invalid(name: str, problems: Iterable[str]) -> DocumentInvalidError:
    problems = tuple(problem.removeprefix("document.") for problem in problems)
    return DocumentInvalidError(
        f"{name} has {len(problems)} problem{'s' * (len(problems) > 1)}: {'; '.join(problems[:10])}",
        hint="the file is damaged or was edited; take another snapshot or build again",
        problems=problems,
    )


def _preamble() -> dict[str, Any]:
    return {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "reader_features": [],
        "writer_features": [],
    }


# -- the records ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The options of a build that belong to the identity of the index.

    Attributes
    ----------
    unit : str
        What one sequence is: ``"key"``, all rows of one key; or each ``"row"``, ``"row_group"`` or ``"file"``.
    key : str or None
        Name of the column, or of the partition, that names a sequence; None for another unit than ``"key"``.
    order : str or None
        Name of the column that must strictly increase inside a sequence.
    check : str
        ``"footer"``, ``"keys"`` or ``"full"``.
    layout : str
        ``"any"``, or ``"one-per-row-group"`` where every row group must be one whole sequence.
    join : bool
        Whether the places of one key are joined in the order column's order.
    skip_null_keys : bool
        Whether rows without a key are passed over.
    trust_statistics : bool
        Whether exact footer bounds prove that a row group has one key.
    on_bad_file : str
        ``"error"`` or ``"skip"``.
    statistics : tuple of str or None
        Columns that statistics are kept of; None is the default rule.
    pages : str
        For which row groups the places of pages are kept: ``"auto"``, those that are not one whole sequence;
        ``"never"``; ``"always"``. No part of the identity, since it changes only what a read costs.
    partition_types : dict of str to str
        Types that were given to partition values, by name of the partition; the others are text.
    attributes : tuple of str
        Columns that are constant inside a sequence, and become columns of the index.
    aggregates : tuple of (str, str)
        Names and SQL expressions of what is computed over the rows of each sequence, ascending by name.
    """

    unit: str = KEY
    key: str | None = DEFAULT_KEY
    order: str | None = None
    check: str = "keys"
    layout: str = "any"
    join: bool = False
    skip_null_keys: bool = False
    trust_statistics: bool = True
    on_bad_file: str = "error"
    statistics: tuple[str, ...] | None = None
    pages: str = "auto"
    partition_types: Mapping[str, str] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    aggregates: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the options."""
        value = {f.name: getattr(self, f.name) for f in fields(self)}
        value["statistics"] = None if self.statistics is None else list(self.statistics)
        value["partition_types"] = dict(self.partition_types)
        value["attributes"] = list(self.attributes)
        value["aggregates"] = dict(self.aggregates)
        return value

    def identity(self) -> dict[str, Any]:
        """Return the options that belong to the identity of an index, as a JSON object."""
        value = self.to_json()
        del value["pages"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildOptions:
        """Return the options of a checked JSON object."""
        known = {f.name: value[f.name] for f in fields(cls)}
        known["statistics"] = None if known["statistics"] is None else tuple(known["statistics"])
        known["attributes"] = tuple(known["attributes"])
        known["aggregates"] = tuple(sorted(known["aggregates"].items()))
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescriptor:
    """One table of a part: its size, digest and number of rows."""

    size_bytes: int
    sha256: str
    n_rows: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the descriptor."""
        return {"size_bytes": self.size_bytes, "sha256": self.sha256, "n_rows": self.n_rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The tables written by one build or refresh, as one snapshot sees them.

    Attributes
    ----------
    name : str
        16 hex digits, made from the tables' digests (rule P2).
    tables : dict of str to TableDescriptor
    removed_files : tuple of int
        The part's `file_id` of each file whose rows are no longer of the index (rule P5), ascending.
    notes : tuple of str
        What the scan of the part's files had to say, for people.
    """

    name: str
    tables: Mapping[str, TableDescriptor]
    removed_files: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def name_of(tables: Mapping[str, TableDescriptor]) -> str:
        """Return the name of the part that has these tables."""
        return sha256_hex(canonical_json({name: t.to_json() for name, t in tables.items()}))[:16]

    def path(self, table: str) -> str:
        """Return the path of a table, relative to the index folder."""
        return table_path(self.name, table)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the part."""
        return {
            "part": self.name,
            "tables": {name: table.to_json() for name, table in self.tables.items()},
            "removed_files": list(self.removed_files),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Part:
        """Return the part of a checked JSON object."""
        tables = {
            name: TableDescriptor(**{k: t[k] for k in ("size_bytes", "sha256", "n_rows")})
            for name, t in value["tables"].items()
        }
        return cls(
            name=value["part"],
            tables=tables,
            removed_files=tuple(value["removed_files"]),
            notes=tuple(value["notes"]),
        )


def schema_to_json(schema: SchemaRecord) -> dict[str, Any]:
    """Return the JSON object of a schema."""
    return {
        "schema": _encode(schema.schema_bytes),
        "created_by": schema.created_by,
        "column_orders": _encode(schema.column_orders_bytes),
        "arrow_schema": _encode(schema.arrow_schema),
    }


def schema_from_json(value: Mapping[str, Any]) -> SchemaRecord:
    """Return the schema of a checked JSON object."""
    return SchemaRecord(
        schema_bytes=base64.b64decode(value["schema"]),
        created_by=value["created_by"],
        column_orders_bytes=_decode(value["column_orders"]),
        arrow_schema=_decode(value["arrow_schema"]),
    )


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One numbered, immutable version of an index.

    Attributes
    ----------
    number : int
        From 1.
    parent : int or None
        The snapshot that this one follows.
    created_at : str
        Time in UTC, for people; never identity.
    writer : str
        Name and version of the program.
    root : str or None
        Where the source was, relative to the index folder: a hint that the opener may override.
    kind : str
        How the source was named; see `listing.Listing`.
    ignore_lake : bool
        Whether what a table format says of its files was ignored.
    table : dict of str to str or None
        Of a table: ``format`` and ``version``.
    passed_over : dict of str to int
        How many names below the root were no source files, by rule.
    options : BuildOptions
    schemas : tuple of SchemaRecord
        Each distinct Parquet schema of the source, as the footers' own bytes
    parts : tuple of Part
    skipped : tuple of dict
        Source files that were passed over: path, reason, message.
    notes : tuple of str
        What the build has to say about the source.
    totals : dict of str to int
    content_digest : str
        Identity of the index (rule D5).
    unknown : dict
        Fields that this version does not know; kept when the document is written again.
    """

    number: int
    parent: int | None
    created_at: str
    writer: str
    root: str | None
    kind: str
    options: BuildOptions
    schemas: tuple[SchemaRecord, ...]
    parts: tuple[Part, ...]
    skipped: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    totals: Mapping[str, int]
    content_digest: str
    ignore_lake: bool = False
    table: Mapping[str, str] | None = None
    passed_over: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def all_notes(self) -> list[str]:
        """Return the notes of the parts and of the snapshot, each once."""
        return list(dict.fromkeys([*(note for part in self.parts for note in part.notes), *self.notes]))

    def to_json(self) -> bytes:
        """Return the document as canonical JSON."""
        return canonical_json(
            {
                **self.unknown,
                **_preamble(),
                "snapshot": self.number,
                "parent": self.parent,
                "created_at": self.created_at,
                "writer": self.writer,
                "source": {
                    "root": self.root,
                    "kind": self.kind,
                    "ignore_lake": self.ignore_lake,
                    "table": None if self.table is None else dict(self.table),
                    "passed_over": dict(self.passed_over),
                },
                "options": self.options.to_json(),
                "schemas": [schema_to_json(schema) for schema in self.schemas],
                "parts": [part.to_json() for part in self.parts],
                "skipped": [dict(entry) for entry in self.skipped],
                "notes": list(self.notes),
                "totals": dict(self.totals),
                "content_digest": self.content_digest,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, *, name: str) -> Snapshot:
        """Parse a snapshot document; `name` is how errors call it.

        Raises
        ------
        UnsupportedVersionError, UnsupportedFeatureError
            If a later version or an unknown reader feature is named.
        DocumentInvalidError
            If anything else is wrong; `problems` has all of it.
        """
        value = _document(data, name=name, expected=_SNAPSHOT)
        problems = [
            f"parts[{i}].tables.{table}: missing"
            for i, part in enumerate(value["parts"])
            for table in sorted(set(TABLES) - OPTIONAL_TABLES - set(part["tables"]))
        ]
        if not problems:
            problems = [
                f"parts[{i}].removed_files: expected ascending numbers below {part['tables']['files']['n_rows']}"
                for i, part in enumerate(value["parts"])
                if not _ascending_below(part["removed_files"], part["tables"]["files"]["n_rows"])
            ]
        if not value["parts"]:
            problems.append("parts: expected at least one")
        if problems:
            raise _invalid(name, problems)
        known = {*_SNAPSHOT, *_preamble()}
        return cls(
            number=value["snapshot"],
            parent=value["parent"],
            created_at=value["created_at"],
            writer=value["writer"],
            root=value["source"]["root"],
            kind=value["source"]["kind"],
            ignore_lake=value["source"]["ignore_lake"],
            table=value["source"]["table"],
            passed_over=value["source"]["passed_over"],
            options=BuildOptions.from_json(value["options"]),
            schemas=tuple(schema_from_json(entry) for entry in value["schemas"]),
            parts=tuple(Part.from_json(part) for part in value["parts"]),
            skipped=tuple(value["skipped"]),
            notes=tuple(value["notes"]),
            totals=value["totals"],
            content_digest=value["content_digest"],
            unknown={k: v for k, v in value.items() if k not in known},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestHeader:
    """The identity of a manifest: everything here is digested, and nothing here hangs on time, host or path.

    Attributes
    ----------
    content_digest : str
        Of the index that was asked.
    sql, dialect, parameters, attached
        The query as given; its parameters; the digest of each attached table by name.
    seed : int or None
        Seed for the order of training.
    key : str or None
        Name of the column that names a sequence; None where a unit is no key.
    n_sequences, n_rows : int
    selection_digest : str
        Digest of the rows of the manifest (rule D6).
    files : tuple of dict
        Descriptor of every source file that the selection touches.
    statistics : dict of str to dict
        Statistics of some columns over the sequences (rule M5), by column; none unless they were asked for.
    """

    content_digest: str
    sql: str
    dialect: str
    parameters: Any
    attached: Mapping[str, str]
    seed: int | None
    key: str | None
    n_sequences: int
    n_rows: int
    selection_digest: str
    files: tuple[Mapping[str, Any], ...]
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the header as canonical JSON; the manifest's digest is the sha256 of these bytes."""
        statistics = {name: dict(values) for name, values in self.statistics.items()}
        return canonical_json(
            {
                # a header without statistics has the bytes, and so the digest, that it had before there were any
                **({"statistics": statistics} if statistics else {}),
                **_preamble(),
                "index": {"content_digest": self.content_digest},
                "query": {
                    "sql": self.sql,
                    "dialect": self.dialect,
                    "parameters": self.parameters,
                    "attached": dict(self.attached),
                },
                "seed": self.seed,
                "key": self.key,
                "counts": {
                    "n_sequences": self.n_sequences,
                    "n_rows": self.n_rows,
                    "n_files": len(self.files),
                },
                "selection_digest": self.selection_digest,
                "files": [dict(entry) for entry in self.files],
            }
        )

    @classmethod
    def from_json(cls, data: bytes, *, name: str) -> ManifestHeader:
        """Parse a manifest's header; raises as `Snapshot.from_json` does."""
        value = _document(data, name=name, expected=_MANIFEST, may_have=_MANIFEST_MAY_HAVE)
        return cls(
            content_digest=value["index"]["content_digest"],
            sql=value["query"]["sql"],
            dialect=value["query"]["dialect"],
            parameters=value["query"]["parameters"],
            attached=value["query"]["attached"],
            seed=value["seed"],
            key=value["key"],
            n_sequences=value["counts"]["n_sequences"],
            n_rows=value["counts"]["n_rows"],
            selection_digest=value["selection_digest"],
            files=tuple(value["files"]),
            statistics={
                column: {name: entry[name] for name in STATISTICS}
                for column, entry in value.get("statistics", {}).items()
            },
        )
