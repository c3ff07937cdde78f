"""Arrow tables in the forms that a query can print: aligned columns, CSV, JSON and Parquet."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from pqindex.cli.output import align, print_note, to_json, to_text, widths, write
from pqindex.errors import UsageError
from pqindex.storage import writing

FORMS = ("table", "csv", "json", "parquet")
ROWS_AT_ONCE = 1000
TERMINAL_ROWS = 50
TERMINAL_CELL = 60


def print_table(table: pa.Table, form: str) -> None:
    """Print a table on standard output.

    On a terminal, the form ``table`` shows the first fifty rows and shortens very long cells; what was left out is
    said on standard error. Anywhere else all is printed.

    Raises
    ------
    UsageError
        If the form is binary and standard output a terminal, or a JSON object would hold two columns of one name.
    """
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    if form == "parquet" and on_terminal:
        raise UsageError("a terminal cannot show Parquet", hint="write to a file with -o FILE")
    if form != "table" or not on_terminal:
        for chunk in _CHUNKS[form](table):
            write(chunk)
        return
    for chunk in _text_chunks(table.slice(0, TERMINAL_ROWS), longest=TERMINAL_CELL):
        write(chunk)
    if table.num_rows > TERMINAL_ROWS:
        print_note(f"{table.num_rows - TERMINAL_ROWS:,} more rows (--format csv shows all)")


def save_table(table: pa.Table, path: str, form: str, *, overwrite: bool) -> None:
    """Write a table to a file that is whole or absent.

    Raises
    ------
    ConflictError
        If the file exists and `overwrite` is false.
    """
    with writing(path, overwrite=overwrite) as file:
        for chunk in _CHUNKS[form](table):
            file.write(chunk)


# -- one generator of bytes a form ----------------------------------------------------------------------------


def _text_chunks(table: pa.Table, longest: int | None = None) -> Iterator[bytes]:
    """Columns are as wide as the names and the first thousand rows need."""
    names = [to_text(name) for name in table.column_names]
    columns: list[int] = []
    for rows in _batches_of_rows(table):
        lines = [[_shorten(to_text(value), longest) for value in row] for row in rows]
        if not columns:
            lines.insert(0, names)
            columns = widths(lines)
        yield align(lines, columns)
    if not columns:
        yield align([names], [len(name) for name in names])


def _json_chunks(table: pa.Table) -> Iterator[bytes]:
    """Give an array with an object a row; times, dates and decimals are text, bytes hexadecimal."""
    repeated = [name for name, count in Counter(table.column_names).items() if count > 1]
    if repeated:
        raise UsageError(
            f"two columns of the result have one name: {repeated[0]!r}", hint="name one of them with AS"
        )
    separator = "[\n"
    for rows in _batches_of_rows(table):
        objects = (to_json(dict(zip(table.column_names, row, strict=True))) for row in rows)
        yield (separator + ",\n".join(objects)).encode("utf-8", "backslashreplace")
        separator = ",\n"
    yield b"[]\n" if table.num_rows == 0 else b"\n]\n"


def _csv_chunks(table: pa.Table) -> Iterator[bytes]:
    """Give a column for each field of a struct (``stats.price.min``); lists are JSON text, bytes hexadecimal.

    Text is quoted and a null is not, so that an empty text and a null stay apart.
    """
    flat = _flatten(table)
    schema = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in flat.schema])
    buffer = io.BytesIO()
    with pyarrow.csv.CSVWriter(buffer, schema) as writer:
        for batch in flat.to_batches(max_chunksize=ROWS_AT_ONCE):
            columns = [
                _csv_column(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _parquet_chunks(table: pa.Table) -> Iterator[bytes]:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    yield buffer.getvalue()


_CHUNKS = {"table": _text_chunks, "csv": _csv_chunks, "json": _json_chunks, "parquet": _parquet_chunks}


# -- values ---------------------------------------------------------------------------------------------------


def _batches_of_rows(table: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        if batch.num_rows:
            yield list(zip(*(_printable(column).to_pylist() for column in batch.columns), strict=True))


def _printable(column: pa.Array) -> pa.Array:
    kind = _printable_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _printable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with text in place of times and decimals, whose Python objects cannot hold every value."""
    types = pa.types
    if types.is_dictionary(kind):
        return _printable_type(kind.value_type)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _printable_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_printable_type(kind.key_type), _printable_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_printable_type(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_printable_type(kind.value_type))
    if types.is_list(kind):
        return pa.list_(_printable_type(kind.value_type))
    return kind


def _flatten(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that the CSV writer gets; whatever it could not write, or not exactly, is text."""
    types = pa.types
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind):
        return kind
    return pa.string()


def _csv_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    printable = _printable(column)
    if printable.type == kind:
        return printable
    return pa.array([None if value is None else _csv_text(value) for value in printable.to_pylist()], kind)


def _csv_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return to_json(value) if isinstance(value, dict | list) else to_text(value)


def _shorten(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"
