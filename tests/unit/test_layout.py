"""The fast layout: what the schema keeps, how columns are encoded, where pages are cut, and equal rows as equal bytes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pqindex
from pqindex.errors import ColumnTypeError
from pqindex.layout import file_form, open_writer, output_schema, row_group_table


def plan_of(folder: Path, *tables: pa.Table, **options):
    data = folder / "data"
    data.mkdir()
    for number, table in enumerate(tables):
        pq.write_table(table, data / f"{number}.parquet", **options)
    return pqindex.build(data).select().read_plan()


def schema(*fields: pa.Field, **metadata: str) -> pa.Schema:
    return pa.schema(fields, metadata or None)


def table_of(schema: pa.Schema, seq_id: int) -> pa.Table:
    return pa.Table.from_pylist([{f.name: seq_id for f in schema}] * 3, schema=schema)


KEY = pa.field("seq_id", pa.int64(), nullable=False)


def test_nullability_and_metadata_of_one_file_are_kept(tmp_path) -> None:
    own = schema(KEY, pa.field("x", pa.float32(), metadata={"unit": "m"}), owner="me")
    found = output_schema(plan_of(tmp_path, table_of(own, 1)))
    assert found.equals(own, check_metadata=True)


def test_what_files_do_not_agree_on_is_given_up(tmp_path) -> None:
    first = schema(KEY, pa.field("x", pa.float32(), False, {"unit": "m", "a": "1"}), owner="me", year="1")
    second = schema(KEY, pa.field("x", pa.float64(), True, {"unit": "m", "a": "2"}), owner="me", year="2")
    third = schema(KEY, owner="me")
    found = output_schema(plan_of(tmp_path, *(table_of(s, i) for i, s in enumerate((first, second, third)))))
    assert found.equals(
        schema(KEY, pa.field("x", pa.float64(), True, {"unit": "m"}), owner="me"), check_metadata=True
    )


def test_a_file_without_an_arrow_schema_has_no_metadata_to_keep(tmp_path) -> None:
    own = schema(KEY, owner="me")
    assert output_schema(plan_of(tmp_path, table_of(own, 1), store_schema=False)).metadata is None


def test_numbers_are_plain_and_texts_and_the_key_have_dictionaries() -> None:
    own = schema(
        KEY,
        pa.field("f", pa.float32()),
        pa.field("i", pa.int64()),
        pa.field("when", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(20, 3)),
        pa.field("half", pa.float16()),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("code", pa.dictionary(pa.int8(), pa.string())),
        pa.field("nest", pa.struct([("n", pa.int32()), ("s", pa.list_(pa.string()))])),
        pa.field("a.b", pa.string()),
    )
    auto = file_form(own, key="seq_id", codec="lz4", dictionary="auto")
    assert auto.dictionary == ("seq_id", "text", "raw", "code", "nest.s.list.element", "a.b")
    assert file_form(own, key="seq_id", codec="lz4", dictionary="never").dictionary is False
    assert file_form(own, key="seq_id", codec="lz4", dictionary="always").dictionary is True


@pytest.mark.parametrize("dictionary", ["auto", "never", "always"])
def test_the_file_is_encoded_as_its_form_says(dictionary) -> None:
    table = pa.table({"seq_id": [1] * 9, "f": [0.5] * 9, "s": ["a"] * 9})
    form = file_form(table.schema, key="seq_id", codec="zstd", dictionary=dictionary)
    meta = written(table, form).metadata
    chunks = [meta.row_group(0).column(i) for i in range(3)]
    expected = {
        "auto": [True, False, True],
        "never": [False, False, False],
        "always": [True, True, True],
    }[dictionary]
    assert [chunk.has_dictionary_page for chunk in chunks] == expected
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    assert all(chunk.has_offset_index and chunk.has_column_index for chunk in chunks)
    assert chunks[0].statistics.min == chunks[0].statistics.max == 1


def test_a_type_that_parquet_does_not_give_back_is_refused() -> None:
    with pytest.raises(
        ColumnTypeError, match=r"'t' would come back .* timestamp\[s\], found timestamp\[ms\]"
    ):
        file_form(schema(KEY, pa.field("t", pa.timestamp("s"))), key="seq_id", codec="lz4", dictionary="auto")
    with pytest.raises(ColumnTypeError, match="cannot write"):
        file_form(
            schema(KEY, pa.field("t", pa.month_day_nano_interval())),
            key="seq_id",
            codec="lz4",
            dictionary="auto",
        )


def written(table: pa.Table, form) -> pq.ParquetFile:
    sink = io.BytesIO()
    with open_writer(sink, form, table) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
    sink.seek(0)
    return pq.ParquetFile(sink)


def first_rows(folder: Path, table: pa.Table) -> dict[int, list[int]]:
    """The first rows of the pages of each leaf, as an index finds them."""
    folder.mkdir()
    form = file_form(table.schema, key="seq_id", codec="none", dictionary="auto")
    with (folder / "a.parquet").open("wb") as sink, open_writer(sink, form, table) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
    sidecar = pqindex.build(folder, pages="always")._sidecar
    return dict(
        zip(
            sidecar.pages.column("leaf").to_pylist(),
            sidecar.pages.column("first_row").to_pylist(),
            strict=True,
        )
    )


def test_pages_of_numbers_have_2048_rows_and_begin_together(tmp_path) -> None:
    n = 5000
    numbers = np.random.default_rng(0).integers(0, 100, n)
    table = pa.table(
        {
            "seq_id": pa.array([1] * n),
            "f": numbers.astype(np.float64),
            "h": numbers.astype(np.float16),
            "i": numbers.astype(np.int8),
            "when": pa.array(numbers, pa.timestamp("us")),
            "s": [f"{i}" for i in numbers],
            "b": numbers % 2 == 0,
        }
    )
    pages = first_rows(tmp_path / "d", table)
    assert {leaf: pages[leaf] for leaf in range(1, 6)} == {leaf: [0, 2048, 4096] for leaf in range(1, 6)}
    assert 6 not in pages, "a bit a row: one page, of which no place is kept"


@pytest.mark.parametrize("n_values", [0, 1, 3000, 100_000])
@pytest.mark.parametrize("n_rows", [1, 3])
def test_lists_of_any_length_come_back(n_values, n_rows) -> None:
    texts = [f"v{i}" for i in range(n_values)]
    lists = pa.array([texts] * n_rows, pa.list_(pa.string()))
    nested = pa.array([{"q": texts}] * n_rows, pa.struct([("q", pa.list_(pa.string()))]))
    table = pa.table({"seq_id": [1] * n_rows, "l": lists, "s": nested, "f": [1.0] * n_rows})
    form = file_form(table.schema, key="seq_id", codec="lz4", dictionary="auto")
    assert written(table, form).read().equals(table)


def test_pages_of_wide_values_are_bounded_in_bytes(tmp_path) -> None:
    blobs = [bytes([i]) * 100_000 for i in range(40)]
    table = pa.table({"seq_id": pa.array([1] * 40), "blob": blobs, "f": np.arange(40.0)})
    pages = first_rows(tmp_path / "d", table)
    assert pages[1] == [0, 16, 24, 32], "a dictionary of a megabyte, then plain pages of less"
    assert pages.get(2, [0]) == [0]


# -- equal rows, equal bytes ----------------------------------------------------------------------------------


def test_a_row_group_hangs_on_its_rows_and_not_on_how_they_were_read() -> None:
    table = pa.table({"seq_id": pa.array([1] * 6), "s": pa.array(list("abcabc")).dictionary_encode()})
    other = pa.table({"seq_id": [1], "s": pa.array(["z"]).dictionary_encode()})
    slices = [table.slice(0, 2), table.slice(2, 4)]
    as_one = row_group_table([table.slice(1, 4)], table.schema)
    in_parts = row_group_table([pa.concat_tables([other, t]).slice(1) for t in slices], table.schema)
    assert in_parts.to_pylist() == table.to_pylist()
    assert [column.num_chunks for column in in_parts.columns] == [1, 1]
    assert as_one.column("s").chunk(0).dictionary.to_pylist() == ["a", "b", "c"]
    assert row_group_table([table.slice(1, 2)], table.schema).column("s").chunk(0).dictionary.to_pylist() == [
        "b",
        "c",
    ]


def test_the_order_of_a_dictionary_and_its_type_are_kept() -> None:
    kind = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    array = pa.DictionaryArray.from_arrays(
        pa.array([2, None, 1], pa.int8()), pa.array(["low", "mid", "high"]), ordered=True
    )
    table = pa.table({"seq_id": [1, 1, 1], "s": array})
    (column,) = row_group_table([table], table.schema).column("s").chunks
    assert column.type == kind
    assert column.dictionary.to_pylist() == ["mid", "high"]
    assert column.to_pylist() == ["high", None, "mid"]


@pytest.mark.parametrize("values", [[], [None, None]])
def test_a_dictionary_without_values(values) -> None:
    table = pa.table({"s": pa.array(values, pa.string()).dictionary_encode()})
    assert row_group_table([table], table.schema).column("s").to_pylist() == values
