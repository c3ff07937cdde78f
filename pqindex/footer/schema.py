"""The schema of a Parquet file: its leaves, their levels and their logical types.

Works on the `list<SchemaElement>` exactly as it stands in a footer, since that is what an index stores. What Arrow
makes of it is the business of `synthetic`, which asks pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pqindex.footer.thrift import (
    BINARY,
    FALSE,
    I8,
    I32,
    STRUCT,
    TRUE,
    CompactReader,
    Constant,
    Nested,
    Table,
    encode_binary,
    encode_list_header,
    key,
)
from pqindex.lru import LRU

BOOLEAN: Final = 0
INT32: Final = 1
INT64: Final = 2
INT96: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
BYTE_ARRAY: Final = 6
FIXED_LEN_BYTE_ARRAY: Final = 7
PHYSICAL_NAMES: Final = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)

MAX_SCHEMA_DEPTH: Final = 100
"""Nesting that is read; pyarrow's default too. Without a bound, n nested fields have paths of n * n names."""

_TYPE, _TYPE_LENGTH, _REPETITION, _NAME, _NAME_LENGTH, _CHILDREN, _CONVERTED, _SCALE, _PRECISION = range(9)
_LOGICAL, _L_SCALE, _L_PRECISION, _L_UTC, _L_UNIT, _L_BITS, _L_SIGNED = range(9, 16)
_N_SLOTS: Final = 16
_ABSENT: Final = -1 << 62  # no number that a 32-bit field can hold, so that a negative one is told apart

_DECIMAL: Final = 5
_OPTIONAL: Final = 1
_REPEATED: Final = 2

_UNITS: Final = ("ms", "us", "ns")
_LOGICAL_NAMES: Final = {
    1: "string",
    2: "map",
    3: "list",
    4: "enum",
    5: "decimal",
    6: "date",
    7: "time",
    8: "timestamp",
    9: "interval",
    10: "integer",
    11: "null",
    12: "json",
    13: "bson",
    14: "uuid",
    15: "float16",
    16: "variant",
    17: "geometry",
    18: "geography",
}


def _bit_width(reader: CompactReader, values: list[int]) -> None:
    values[_L_BITS] = reader.byte()


_UNIT_TABLE: Final[Table] = {key(i + 1, STRUCT): Nested({}, _L_UNIT, i) for i in range(len(_UNITS))}
_TIME_TABLE: Final[Table] = {
    key(1, TRUE): Constant(_L_UTC, 1),
    key(1, FALSE): Constant(_L_UTC, 0),
    key(2, STRUCT): Nested(_UNIT_TABLE),
}
_MEMBER_TABLES: Final[dict[str, Table]] = {
    "decimal": {key(1, I32): _L_SCALE, key(2, I32): _L_PRECISION},
    "time": _TIME_TABLE,
    "timestamp": _TIME_TABLE,
    "integer": {
        key(1, I8): _bit_width,
        key(2, TRUE): Constant(_L_SIGNED, 1),
        key(2, FALSE): Constant(_L_SIGNED, 0),
    },
}
_LOGICAL_TABLE: Final[Table] = {
    key(number, STRUCT): Nested(_MEMBER_TABLES.get(name, {}), _LOGICAL, number)
    for number, name in _LOGICAL_NAMES.items()
}
_ORDER_TABLE: Final[Table] = {key(1, STRUCT): Nested({}, 0, 1)}
_ELEMENT_TABLE: Final[Table] = {
    key(1, I32): _TYPE,
    key(2, I32): _TYPE_LENGTH,
    key(3, I32): _REPETITION,
    key(4, BINARY): _NAME,
    key(5, I32): _CHILDREN,
    key(6, I32): _CONVERTED,
    key(7, I32): _SCALE,
    key(8, I32): _PRECISION,
    key(10, STRUCT): Nested(_LOGICAL_TABLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalType:
    """What the values of a leaf mean, by LogicalType or, where a writer gave only that, ConvertedType.

    Attributes
    ----------
    name : str
        Parquet's name in lower case: `string`, `integer`, `decimal`, `timestamp`, ...
    unit : str or None
        `ms`, `us` or `ns` of a time or timestamp.
    utc : bool or None
        Whether a time or timestamp is an instant (normalised to UTC).
    precision, scale : int or None
        Of a decimal.
    bit_width : int or None
        Of an integer.
    signed : bool or None
        Of an integer.
    """

    name: str
    unit: str | None = None
    utc: bool | None = None
    precision: int | None = None
    scale: int | None = None
    bit_width: int | None = None
    signed: bool | None = None


_CONVERTED_TYPES: Final = {
    0: LogicalType(name="string"),
    1: LogicalType(name="map"),
    2: LogicalType(name="map"),
    3: LogicalType(name="list"),
    4: LogicalType(name="enum"),
    6: LogicalType(name="date"),
    7: LogicalType(name="time", unit="ms", utc=True),
    8: LogicalType(name="time", unit="us", utc=True),
    9: LogicalType(name="timestamp", unit="ms", utc=True),
    10: LogicalType(name="timestamp", unit="us", utc=True),
    **{11 + i: LogicalType(name="integer", bit_width=8 << i, signed=False) for i in range(4)},
    **{15 + i: LogicalType(name="integer", bit_width=8 << i, signed=True) for i in range(4)},
    19: LogicalType(name="json"),
    20: LogicalType(name="bson"),
    21: LogicalType(name="interval"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A primitive column of a Parquet file.

    Attributes
    ----------
    path : tuple of str
        Names from the top-level field down.
    physical_type : int
        Number of the Parquet physical type, see `PHYSICAL_NAMES`.
    type_length : int
        Bytes of a fixed-length value, -1 for other types.
    logical : LogicalType or None
        What the values mean, None where the physical type says all.
    max_definition_level, max_repetition_level : int
        Greatest levels; a flat required column has 0 and 0.
    field : int
        Position of the top-level field that it belongs to.
    order_defined : bool
        Whether `column_orders` says that min_value and max_value follow the type's own order.
    """

    path: tuple[str, ...]
    physical_type: int
    type_length: int
    logical: LogicalType | None
    max_definition_level: int
    max_repetition_level: int
    field: int
    order_defined: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schema:
    """A parsed schema, shared by all files that have the same bytes.

    Attributes
    ----------
    leaves : tuple of Leaf
        The primitive columns, in the order of column chunks.
    field_names : tuple of str
        The top-level fields.
    field_spans : tuple of (int, int)
        Where the elements of each top-level field begin and stop in the schema's bytes.
    field_sizes : tuple of int
        How many elements those are.
    field_leaves : tuple of (int, int)
        First leaf and the one after the last of each top-level field.
    order_spans : tuple of (int, int)
        Where each leaf's element of the column orders begins and stops in their bytes; empty without them.
    encoded_paths : tuple of bytes
        `path_in_schema` of each leaf as writers encode it.
    types : ndarray of int64, shape (leaves,)
        Physical type of each leaf.
    is_flat : ndarray of bool, shape (leaves,)
        Whether each leaf has one value a row.
    """

    leaves: tuple[Leaf, ...]
    field_names: tuple[str, ...]
    field_spans: tuple[tuple[int, int], ...]
    field_sizes: tuple[int, ...]
    field_leaves: tuple[tuple[int, int], ...]
    order_spans: tuple[tuple[int, int], ...]
    encoded_paths: tuple[bytes, ...]
    types: npt.NDArray[np.int64]
    is_flat: npt.NDArray[np.bool_]


# Files of one source share few schemas, and parsing one costs more than reading a chunk's facts.
_SCHEMAS: LRU[tuple[bytes, bytes | None], Schema] = LRU(max_items=64)


def parse_schema(schema_bytes: bytes, column_orders_bytes: bytes | None, *, file: str) -> Schema:
    """Return the schema that a footer's `schema` and `column_orders` lists say.

    Time in proportion to the bytes, kept for the next file with the same schema. Thread-safe.

    Parameters
    ----------
    schema_bytes : bytes
        The Thrift list of SchemaElement, header and elements.
    column_orders_bytes : bytes or None
        The Thrift list of ColumnOrder.
    file : str
        The file, for messages.

    Raises
    ------
    BadFileError
        If the tree does not add up, a type is unknown, a name is not UTF-8, or the two lists disagree.
    """
    schema = _SCHEMAS.get((schema_bytes, column_orders_bytes))
    if schema is None:
        if column_orders_bytes is None:
            schema = _parse(schema_bytes, file)
        else:
            schema = _with_orders(parse_schema(schema_bytes, None, file=file), column_orders_bytes, file)
        _SCHEMAS.put((schema_bytes, column_orders_bytes), schema)
    return schema


@dataclass(slots=True, kw_only=True)
class _Group:
    """A node of the tree whose children are being read."""

    path: tuple[str, ...]
    n_left: int
    definition_level: int
    repetition_level: int


def _parse(schema_bytes: bytes, file: str) -> Schema:
    reader = CompactReader(schema_bytes, file=file, part="schema")
    n_elements, kind = reader.list_header()
    if kind != STRUCT or n_elements == 0:
        reader.fail("there is no schema", expected="schema elements", found=f"{n_elements} of type {kind}")
    root = _element(reader)
    stack = [_Group(path=(), n_left=_n_children(root, reader), definition_level=0, repetition_level=0)]
    leaves: list[Leaf] = []
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    sizes: list[int] = []
    leaf_starts: list[int] = []
    for number in range(1, n_elements):
        while stack and stack[-1].n_left == 0:
            stack.pop()
        if not stack:
            reader.fail("the schema has loose elements", expected=f"{number} elements", found=n_elements)
        start = reader.position
        element = _element(reader)
        node = _child(stack[-1], element, reader)
        if len(node.path) == 1:
            names.append(node.path[0])
            spans.append((start, start))
            sizes.append(0)
            leaf_starts.append(len(leaves))
        spans[-1] = (spans[-1][0], reader.position)
        sizes[-1] += 1
        if node.n_left == 0 and element[_TYPE] != _ABSENT:
            leaves.append(_leaf(element, node, field=len(names) - 1, reader=reader))
        else:
            stack.append(node)
    missing = sum(group.n_left for group in stack)
    if missing:
        reader.fail("the schema ends early", expected=f"{missing} more elements at least", found="the end")
    if reader.position != len(schema_bytes):
        reader.fail("bytes follow the schema", expected=reader.position, found=len(schema_bytes))
    return Schema(
        leaves=tuple(leaves),
        field_names=tuple(names),
        field_spans=tuple(spans),
        field_sizes=tuple(sizes),
        field_leaves=tuple(zip(leaf_starts, [*leaf_starts, len(leaves)][1:], strict=True)),
        order_spans=(),
        encoded_paths=tuple(_encode_path(leaf.path) for leaf in leaves),
        types=np.array([leaf.physical_type for leaf in leaves], np.int64),
        is_flat=np.array([leaf.max_repetition_level == 0 for leaf in leaves], np.bool_),
    )


def _encode_path(path: tuple[str, ...]) -> bytes:
    return encode_list_header(len(path), BINARY) + b"".join(encode_binary(name.encode()) for name in path)


def _element(reader: CompactReader) -> list[int]:
    element = [_ABSENT] * _N_SLOTS
    reader.struct(_ELEMENT_TABLE, element)
    return element


def _n_children(element: list[int], reader: CompactReader) -> int:
    n_children = element[_CHILDREN]
    if n_children == _ABSENT:
        return 0
    if n_children < 0:
        reader.fail("a group has a negative number of children", expected="0 or more", found=n_children)
    return n_children


def _child(parent: _Group, element: list[int], reader: CompactReader) -> _Group:
    """Return the node of `element` as the next child of `parent`."""
    parent.n_left -= 1
    if len(parent.path) == MAX_SCHEMA_DEPTH:
        reader.fail("the schema is too deep", expected=f"at most {MAX_SCHEMA_DEPTH} levels", found="more")
    start, length = element[_NAME], element[_NAME_LENGTH]
    if start == _ABSENT:
        reader.fail("a schema element has no name", expected="a name", found="none")
    try:
        name = reader.buffer[start : start + length].decode()
    except UnicodeDecodeError:
        name_bytes = reader.buffer[start : start + length]
        reader.fail("a column name is not text", expected="UTF-8", found=name_bytes[:64])
    repetition = 0 if element[_REPETITION] == _ABSENT else element[_REPETITION]
    if repetition not in (0, _OPTIONAL, _REPEATED):
        reader.fail(f"column {name!r} has an unknown repetition", expected="0, 1 or 2", found=repetition)
    return _Group(
        path=(*parent.path, name),
        n_left=_n_children(element, reader),
        definition_level=parent.definition_level + (repetition != 0),
        repetition_level=parent.repetition_level + (repetition == _REPEATED),
    )


def _leaf(element: list[int], node: _Group, *, field: int, reader: CompactReader) -> Leaf:
    physical_type = element[_TYPE]
    if not 0 <= physical_type < len(PHYSICAL_NAMES):
        reader.fail(
            f"column {'.'.join(node.path)!r} has an unknown physical type",
            expected="0 to 7",
            found=physical_type,
        )
    type_length = _ABSENT if physical_type != FIXED_LEN_BYTE_ARRAY else element[_TYPE_LENGTH]
    if physical_type == FIXED_LEN_BYTE_ARRAY and type_length < 0:
        reader.fail(
            f"column {'.'.join(node.path)!r} has no fixed length",
            expected="0 bytes or more",
            found="none" if type_length == _ABSENT else type_length,
        )
    return Leaf(
        path=node.path,
        physical_type=physical_type,
        type_length=-1 if type_length == _ABSENT else type_length,
        logical=_logical(element),
        max_definition_level=node.definition_level,
        max_repetition_level=node.repetition_level,
        field=field,
        order_defined=False,
    )


def _known(value: int) -> int | None:
    return None if value == _ABSENT else value


def _logical(element: list[int]) -> LogicalType | None:
    number = element[_LOGICAL]
    if number == _ABSENT:
        return _converted(element)
    unit, signed, utc = element[_L_UNIT], _known(element[_L_SIGNED]), _known(element[_L_UTC])
    return LogicalType(
        name=_LOGICAL_NAMES[number],
        unit=None if unit == _ABSENT else _UNITS[unit],
        utc=None if utc is None else bool(utc),
        precision=_known(element[_L_PRECISION]),
        scale=_known(element[_L_SCALE]),
        bit_width=_known(element[_L_BITS]),
        signed=None if signed is None else bool(signed),
    )


def _converted(element: list[int]) -> LogicalType | None:
    if element[_CONVERTED] == _DECIMAL:
        # The scale may be left out, and is then zero.
        scale = 0 if element[_SCALE] == _ABSENT else element[_SCALE]
        return LogicalType(name="decimal", precision=_known(element[_PRECISION]), scale=scale)
    return _CONVERTED_TYPES.get(element[_CONVERTED])


def _with_orders(schema: Schema, orders: bytes, file: str) -> Schema:
    """Return the schema with what the list of ColumnOrder says of its leaves."""
    reader = CompactReader(orders, file=file, part="column orders")
    n_orders, kind = reader.list_header()
    if n_orders != len(schema.leaves) or (n_orders and kind != STRUCT):
        reader.fail(
            "column orders do not match the schema",
            expected=f"{len(schema.leaves)} structs",
            found=f"{n_orders} of Thrift type {kind}",
        )
    spans = []
    leaves = []
    for leaf in schema.leaves:
        start = reader.position
        member = [_ABSENT]
        reader.struct(_ORDER_TABLE, member)
        spans.append((start, reader.position))
        leaves.append(replace(leaf, order_defined=member[0] == 1))
    if reader.position != len(orders):
        reader.fail("bytes follow the column orders", expected=reader.position, found=len(orders))
    return replace(schema, leaves=tuple(leaves), order_spans=tuple(spans))
