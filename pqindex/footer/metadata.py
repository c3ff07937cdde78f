"""The footer of a Parquet file: its tail, its FileMetaData, and the one entrance for both.

What a file says is taken only if it adds up. What its statistics mean is said in `statistics`; how the bytes are walked
in `groups` and `columnar`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pqindex.errors import BadFileError, UnsupportedFileError
from pqindex.footer.chunks import Chunks, Int64s, build_chunks
from pqindex.footer.columnar import read_groups_columnar
from pqindex.footer.groups import N_ROWS, TOTAL_BYTE_SIZE, read_groups
from pqindex.footer.schema import Leaf, parse_schema
from pqindex.footer.thrift import BINARY, I32, I64, LIST, STRUCT, CompactReader, Table, key

TAIL_BYTES: Final = 8
"""What to read from the end of a file: the footer's length and the magic number."""

MAX_FOOTER_BYTES: Final = 1 << 30
MIN_COLUMNAR_CHUNKS: Final = 48
"""From so many chunks on, all of them at once is faster than one after another."""

_MAGIC: Final = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_SMALLEST_FILE: Final = 12
_ARROW_SCHEMA_KEY: Final = b"ARROW:schema"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileMetadata:
    """What the footer of one file says.

    Attributes
    ----------
    file : str
        The file, for messages.
    footer : bytes
        The bytes that this was parsed from; the bounds in `chunks` point into them.
    footer_offset : int
        Where the footer begins in the file.
    version : int
        Version of the Parquet format that the writer claims.
    n_rows : int
    created_by : str or None
    schema_bytes : bytes
        The Thrift list of SchemaElement as it stands in the footer, header and elements.
    column_orders_bytes : bytes or None
        The Thrift list of ColumnOrder.
    arrow_schema : bytes or None
        The value of the metadata key ``ARROW:schema``.
    leaves : tuple of Leaf
    field_names : tuple of str
        The top-level fields.
    group_n_rows, group_byte_size : ndarray of int64, shape (row groups,)
        Rows, and uncompressed bytes, of each row group.
    chunks : Chunks
        Arrays of shape (row groups, leaves).
    """

    file: str
    footer: bytes
    footer_offset: int
    version: int
    n_rows: int
    created_by: str | None
    schema_bytes: bytes
    column_orders_bytes: bytes | None
    arrow_schema: bytes | None
    leaves: tuple[Leaf, ...]
    field_names: tuple[str, ...]
    group_n_rows: Int64s
    group_byte_size: Int64s
    chunks: Chunks

    @property
    def n_row_groups(self) -> int:
        """Number of row groups."""
        return len(self.group_n_rows)


def read_tail(tail: bytes, *, file_size: int, file: str) -> tuple[int, int]:
    """Return (offset, length) of the footer of a file whose last bytes are `tail`.

    Parameters
    ----------
    tail : bytes
        The last bytes of the file, `TAIL_BYTES` or more (all of a shorter file).
    file_size : int
        Size of the file in bytes.
    file : str
        The file, for messages.

    Raises
    ------
    BadFileError
        If the file is no Parquet, is torn, or its footer's length makes no sense.
    UnsupportedFileError
        If the footer is encrypted.

    Examples
    --------
    >>> read_tail(bytes([16, 0, 0, 0]) + b"PAR1", file_size=100, file="a.parquet")
    (76, 16)
    """
    magic = tail[-4:]
    if file_size >= _SMALLEST_FILE and magic == _ENCRYPTED_MAGIC:
        raise UnsupportedFileError(
            f"footer is encrypted: {file}; expected PAR1 at the end, found PARE", file=file
        )
    if file_size < _SMALLEST_FILE or len(tail) < TAIL_BYTES:
        raise _bad_tail(
            "not a Parquet file, truncated or still being written", file, "12 bytes or more", file_size
        )
    if magic != _MAGIC:
        raise _bad_tail(
            "not a Parquet file, truncated or still being written", file, "PAR1 at the end", repr(magic)
        )
    length = int.from_bytes(tail[-TAIL_BYTES:-4], "little")
    largest = min(file_size - _SMALLEST_FILE, MAX_FOOTER_BYTES)
    if not 0 < length <= largest:
        raise _bad_tail("the length of the footer makes no sense", file, f"1 to {largest} bytes", length)
    return file_size - TAIL_BYTES - length, length


def tail_of(length: int) -> bytes:
    """Return the last bytes of a file whose footer has this length."""
    return length.to_bytes(4, "little") + _MAGIC


def _bad_tail(what: str, file: str, expected: str, found: object) -> BadFileError:
    return BadFileError(
        f"{what}: {file}; expected {expected}, found {found}", file=file, expected=expected, found=found
    )


_VERSION, _N_ROWS, _GROUPS, _CREATED_BY, _CREATED_BY_LENGTH, _ARROW, _ARROW_LENGTH = range(7)
_N_SLOTS: Final = 7

_N_RECENT: Final = 8
_MAX_RECENT_BYTES: Final = 1 << 20


class _RecentValues:
    """The last few values of a field that is the same in most files, so as not to walk through them again.

    The encoding is prefix-free: where the bytes of a whole list stand, the list is those bytes. Thread-safe, since a
    tuple is replaced as a whole.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: tuple[bytes, ...] = ()

    def read_list(self, reader: CompactReader) -> bytes:
        """Return the bytes of the list that begins here, and move past it."""
        start = reader.position
        for known in self._values:
            if reader.buffer.startswith(known, start):
                reader.position = start + len(known)
                return known
        reader.skip(LIST)
        value = reader.buffer[start : reader.position]
        if len(value) <= _MAX_RECENT_BYTES:
            self._values = (value, *self._values[: _N_RECENT - 1])
        return value


_SCHEMAS: Final = _RecentValues()
_ORDERS: Final = _RecentValues()


class _FileReader(CompactReader):
    """Cursor over a whole FileMetaData, which reads the row groups in passing once it knows the schema."""

    __slots__ = ("groups", "orders", "schema_bytes")

    def __init__(self, footer: bytes, *, file: str) -> None:
        super().__init__(footer, file=file)
        self.schema_bytes: bytes | None = None
        self.orders: bytes | None = None
        self.groups: tuple[Int64s, Int64s] | None = None

    def read_groups(self, start: int, schema_bytes: bytes) -> None:
        """Read the row groups, whose place and whose schema are known."""
        paths = parse_schema(schema_bytes, None, file=self.file).encoded_paths
        self.position = start
        n_groups, _ = self.list_header()
        found = None
        if n_groups * len(paths) >= MIN_COLUMNAR_CHUNKS:
            found = read_groups_columnar(self.buffer, start, paths, file=self.file)
        if found is None:
            found = read_groups(self.buffer, start, paths, file=self.file)
        group_slots, chunk_slots, self.position = found
        self.groups = group_slots, chunk_slots


def _read_schema(reader: CompactReader, _values: list[int]) -> None:
    assert isinstance(reader, _FileReader)  # noqa: S101  # the table below is read by no other
    reader.schema_bytes = _SCHEMAS.read_list(reader)


def _read_orders(reader: CompactReader, _values: list[int]) -> None:
    assert isinstance(reader, _FileReader)  # noqa: S101  # the table below is read by no other
    reader.orders = _ORDERS.read_list(reader)


def _read_row_groups(reader: CompactReader, values: list[int]) -> None:
    assert isinstance(reader, _FileReader)  # noqa: S101  # the table below is read by no other
    values[_GROUPS] = reader.position
    if reader.schema_bytes is None:
        reader.skip(LIST)  # the fields are in another order: `parse_footer` comes back here
    else:
        reader.read_groups(reader.position, reader.schema_bytes)


_KEY, _KEY_LENGTH, _VALUE, _VALUE_LENGTH = range(4)
_KEY_VALUE_TABLE: Final[Table] = {key(1, BINARY): _KEY, key(2, BINARY): _VALUE}


def _read_key_values(reader: CompactReader, values: list[int]) -> None:
    size, kind = reader.list_header()
    if size and kind != STRUCT:
        reader.fail("key/value metadata are not structs", expected=STRUCT, found=kind)
    for _ in range(size):
        pair = [-1] * 4
        reader.struct(_KEY_VALUE_TABLE, pair)
        name = reader.buffer[pair[_KEY] : pair[_KEY] + pair[_KEY_LENGTH]]
        # The first counts when a key comes twice, as in pyarrow.
        if name == _ARROW_SCHEMA_KEY and pair[_VALUE] >= 0 and values[_ARROW] < 0:
            values[_ARROW], values[_ARROW_LENGTH] = pair[_VALUE], pair[_VALUE_LENGTH]


_FILE_TABLE: Final[Table] = {
    key(1, I32): _VERSION,
    key(2, LIST): _read_schema,
    key(3, I64): _N_ROWS,
    key(4, LIST): _read_row_groups,
    key(5, LIST): _read_key_values,
    key(6, BINARY): _CREATED_BY,
    key(7, LIST): _read_orders,
}


def parse_footer(footer: bytes, *, file: str, file_size: int) -> FileMetadata:
    """Return what a footer says, once it is found not to contradict itself.

    Time and memory in proportion to the footer's bytes, whatever numbers stand in them. Keeps the footer's bytes alive.
    Thread-safe.

    Parameters
    ----------
    footer : bytes
        The FileMetaData: the bytes between the data and the tail, see `read_tail`.
    file : str
        The file, for messages.
    file_size : int
        Size of the file in bytes.

    Raises
    ------
    BadFileError
        If the bytes are no FileMetaData, or its numbers contradict each other, the schema or the file's size.
    UnsupportedFileError
        If it is a summary of other files.
    """
    reader = _FileReader(footer, file=file)
    values = [-1] * _N_SLOTS
    reader.struct(_FILE_TABLE, values)
    schema_bytes = reader.schema_bytes
    if schema_bytes is None:
        reader.fail("it has no schema", expected="a schema", found="none")
    for slot, name in ((_N_ROWS, "num_rows"), (_GROUPS, "row groups")):
        if values[slot] < 0:
            reader.fail(
                f"it has no {name}", expected=name, found="none" if values[slot] == -1 else values[slot]
            )
    if reader.groups is None:
        reader.read_groups(values[_GROUPS], schema_bytes)
    schema = parse_schema(schema_bytes, reader.orders, file=file)
    assert reader.groups is not None  # noqa: S101  # read_groups sets it or raises
    group_slots, chunk_slots = reader.groups
    _check_groups(group_slots, values[_N_ROWS], file)
    footer_offset = file_size - TAIL_BYTES - len(footer)
    return FileMetadata(
        file=file,
        footer=footer,
        footer_offset=footer_offset,
        version=values[_VERSION],
        n_rows=values[_N_ROWS],
        created_by=_text(footer, values[_CREATED_BY], values[_CREATED_BY_LENGTH]),
        schema_bytes=schema_bytes,
        column_orders_bytes=reader.orders,
        arrow_schema=_bytes(footer, values[_ARROW], values[_ARROW_LENGTH]),
        leaves=schema.leaves,
        field_names=schema.field_names,
        group_n_rows=group_slots[N_ROWS],
        group_byte_size=group_slots[TOTAL_BYTE_SIZE],
        chunks=build_chunks(chunk_slots, group_slots[N_ROWS], schema, file=file, footer_offset=footer_offset),
    )


def _bytes(footer: bytes, start: int, length: int) -> bytes | None:
    return None if start < 0 else footer[start : start + length]


def _text(footer: bytes, start: int, length: int) -> str | None:
    value = _bytes(footer, start, length)
    return None if value is None else value.decode(errors="replace")


def _check_groups(group_slots: Int64s, n_rows: int, file: str) -> None:
    for slot, name in ((N_ROWS, "num_rows"), (TOTAL_BYTE_SIZE, "total_byte_size")):
        broken = group_slots[slot] < 0
        if broken.any():
            row_group = int(broken.argmax())
            raise BadFileError(
                f"footer contradicts itself, {name} is negative or missing: {file}, row group {row_group};"
                f" expected 0 or more, found {group_slots[slot, row_group]}",
                file=file,
                row_group=row_group,
                expected="0 or more",
                found=int(group_slots[slot, row_group]),
            )
    total = sum(group_slots[N_ROWS].tolist())  # as Python's integers, which do not overflow
    if total != n_rows:
        raise BadFileError(
            f"footer contradicts itself, the rows of the row groups are not those of the file: {file};"
            f" expected {n_rows}, found {total}",
            file=file,
            expected=n_rows,
            found=total,
        )
