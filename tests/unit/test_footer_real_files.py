"""Footers, statistics and reads of files by a hundred writers, checked against pyarrow.

Some of the files make pyarrow abort or ask for gigabytes, so that all of it runs in a child process: this file run as a
script, one line of JSON a file.
"""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.shared

MAX_GROUPS_READ = 12
MAX_GROUPS_COMPARED = 60
MEMORY_LIMIT = 4 << 30

# Files whose footer is refused, and why. Everything else that ends in PAR1 is accepted.
REFUSED = {
    "duckdb/broken-magic/broken_structure.parquet": "runs into the footer",
    "duckdb/broken-magic/firstmarker.parquet": "truncated or still being written",
    "duckdb/broken-magic/footerlengthzero.parquet": "length of the footer makes no sense",
    "duckdb/broken-magic/garbledfooter.parquet": "footer is corrupt",
    "duckdb/broken-magic/hugefooter.parquet": "length of the footer makes no sense",
    "duckdb/broken-magic/missingmagicatend.parquet": "truncated or still being written",
    "duckdb/broken-magic/missingmagicatfront.parquet": "length of the footer makes no sense",
    "duckdb/broken-magic/twomarkers.parquet": "truncated or still being written",
    "fastparquet/split/_metadata": "the data are in other files",
    "impala/corrupt_footer_len_decr.parquet": "footer is corrupt",
    "impala/corrupt_footer_len_incr.parquet": "length of the footer makes no sense",
    "impala/huge_num_rows.parquet": "num_values of a chunk is not the number of rows",
    "impala/zero_rows_one_row_group.parquet": "rows of the row groups are not those of the file",
    "parquet-go/malformed/negative_row_group_num_rows.parquet": "num_rows is negative or missing",
    "parquet-testing/bad_data/ARROW-GH-41317.parquet": "encodings are not numbers",
    "parquet-testing/bad_data/ARROW-RS-GH-6229-DICTHEADER.parquet": "begins outside the data",
    "parquet-testing/bad_data/PARQUET-1481.parquet": "unknown physical type",
    "parquet-testing/data/aes256/uniform_encryption.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/encrypt_columns_and_footer.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/encrypt_columns_and_footer_aad.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/encrypt_columns_and_footer_bloom_filter.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/encrypt_columns_and_footer_ctr.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/encrypt_columns_and_footer_disable_aad_storage.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/external_key_material_java.parquet.encrypted": "footer is encrypted",
    "parquet-testing/data/repeated_no_annotation.parquet": "rows of the row groups are not those of the file",
    "parquet-testing/data/uniform_encryption.parquet.encrypted": "footer is encrypted",
}

# A 4 KB file that expands past 2 GB, in eight seconds.
NOT_READ = "large_string_map.brotli.parquet"

# Files whose footer is good and whose pages are not, or not to be read; what we say, as a pattern.
UNREADABLE = {
    "duckdb/encryption/encrypted_column.parquet": "column is encrypted",
    "impala/bad_codec.parquet": "unknown codec",
    "parquet-go/malformed/negative_page_size.parquet": "pages are corrupt",
    "parquet-testing/bad_data/ARROW-GH-41321.parquet": "pages are corrupt",
    "parquet-testing/bad_data/ARROW-GH-45185.parquet": "pages are corrupt",
    "parquet-testing/bad_data/ARROW-GH-47662.parquet": "pages are corrupt",
    "parquet-testing/bad_data/ARROW-RS-GH-6229-LEVELS.parquet": "pages are corrupt",
    "parquet-testing/data/aes256/encrypt_columns_plaintext_footer.parquet.encrypted": "column is encrypted",
    "parquet-testing/data/datapage_v1-corrupt-checksum.parquet": "CRC checksum",
    "parquet-testing/data/encrypt_columns_plaintext_footer.parquet.encrypted": "column is encrypted",
    "parquet-testing/data/incorrect_map_schema.parquet": "Map keys must be annotated",
    "parquet-testing/data/rle-dict-uncompressed-corrupt-checksum.parquet": "CRC checksum",
}


# -- in the child ---------------------------------------------------------------------------------------------


def check(path: Path, name: str) -> dict[str, Any]:
    """Return {"refused": message}, or what differs from pyarrow in a file that we accept."""
    from pqindex.errors import PqindexError
    from pqindex.footer import parse_footer, read_tail

    data = path.read_bytes()
    try:
        offset, length = read_tail(data[-8:], file_size=len(data), file=name)
        meta = parse_footer(data[offset : offset + length], file=name, file_size=len(data))
    except PqindexError as error:
        return {"refused": str(error), "names_file": name in str(error)}
    report: dict[str, Any] = {"differs": [], "n_read": 0, "n_bounds": 0, "created_by": meta.created_by}
    compare_parsers(meta, data[offset : offset + length], len(data), report)
    try:
        compare_footers(meta, path, report)
        if path.name != NOT_READ:
            compare_reads(meta, data, path, report)
    except PqindexError as error:
        report["unreadable"] = str(error)
    return report


def compare_parsers(meta: Any, footer: bytes, file_size: int, report: dict[str, Any]) -> None:
    """Read the row groups one field after another and all at once: the facts must be the same."""
    import dataclasses
    from unittest import mock

    import numpy as np

    from pqindex.footer import lanes, metadata

    for min_chunks, min_lanes in ((1, 1), (1, lanes.MIN_LANES), (1 << 40, 1)):
        with (
            mock.patch.object(metadata, "MIN_COLUMNAR_CHUNKS", min_chunks),
            mock.patch.object(lanes, "MIN_LANES", min_lanes),
        ):
            other = metadata.parse_footer(footer, file="a", file_size=file_size)
        for field in dataclasses.fields(other.chunks):
            if not np.array_equal(getattr(other.chunks, field.name), getattr(meta.chunks, field.name)):
                report["differs"].append(f"{field.name} by the other parser")


def compare_footers(meta: Any, path: Path, report: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    from pqindex.footer import SchemaRecord

    schema = SchemaRecord.from_metadata(meta).to_arrow()
    theirs = pq.ParquetFile(path, pre_buffer=False)
    differs = report["differs"]

    def same(what: str, ours: Any, other: Any) -> None:
        if ours != other:
            differs.append(f"{what}: {ours!r} is not {other!r}")

    same("row groups", meta.n_row_groups, theirs.metadata.num_row_groups)
    same("rows", meta.n_rows, theirs.metadata.num_rows)
    same("created_by", meta.created_by or "", theirs.metadata.created_by)
    same("schema", schema, theirs.schema_arrow)
    same("leaves", [".".join(leaf.path) for leaf in meta.leaves], [c.path for c in theirs.schema])
    chunks = meta.chunks
    for g in range(min(meta.n_row_groups, MAX_GROUPS_COMPARED)):
        group = theirs.metadata.row_group(g)
        same("rows of a group", int(meta.group_n_rows[g]), group.num_rows)
        same("bytes of a group", int(meta.group_byte_size[g]), group.total_byte_size)
        for c in range(len(meta.leaves)):
            if chunks.encrypted[g, c]:
                continue  # pyarrow aborts when asked
            column = group.column(c)
            for fact in (
                "data_page_offset",
                "total_compressed_size",
                "total_uncompressed_size",
                "num_values",
            ):
                same(fact, int(getattr(chunks, fact)[g, c]), getattr(column, fact))
            same("dictionary", int(chunks.dictionary_page_offset[g, c]), column.dictionary_page_offset or -1)
            same("offset index", bool(chunks.offset_index_length[g, c] > 0), column.has_offset_index)
            same("column index", bool(chunks.column_index_length[g, c] > 0), column.has_column_index)


def compare_reads(meta: Any, data: bytes, path: Path, report: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    from pqindex.footer import ChunkPlaces, SchemaRecord, read_group

    theirs = pq.ParquetFile(path, pre_buffer=False)
    record = SchemaRecord.from_metadata(meta)
    n_fields = len(record.field_names)
    rng = random.Random(n_fields)
    step = max(meta.n_row_groups // MAX_GROUPS_READ, 1)
    for g in range(0, meta.n_row_groups, step):
        whole = None
        for fields in (list(range(n_fields)), rng.sample(range(n_fields), rng.randint(1, n_fields))):
            projection = record.project(fields)
            got = read_group(
                projection,
                ChunkPlaces.from_metadata(meta, g, projection.leaf_indices),
                lambda ranges: [data[offset : offset + length] for offset, length in ranges],
                n_rows=int(meta.group_n_rows[g]),
                file_size=len(data),
                file=report.get("file", path.name),
                row_group=g,
            )
            if whole is None:
                whole = theirs.read_row_group(g, use_threads=False)
            expected = whole.select(sorted(fields))
            equal = got.schema == expected.schema and (
                got.equals(expected) or str(got.to_pydict()) == str(expected.to_pydict())  # NaN
            )
            if not equal or projection.arrow_schema != got.schema:
                report["differs"].append(f"read of row group {g}, fields {fields}")
            report["n_read"] += 1
        compare_bounds(meta, g, whole, report)


def leaf_arrays(array: Any) -> Any:
    """Yield the primitive arrays of a column, which have its values and not always its nulls."""
    import pyarrow as pa
    import pyarrow.types as pt

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from leaf_arrays(array.storage)
    elif pt.is_dictionary(kind):
        yield from leaf_arrays(array.dictionary_decode())
    elif pt.is_map(kind):
        yield from leaf_arrays(array.keys)
        yield from leaf_arrays(array.items)
    elif pt.is_struct(kind):
        for child in array.flatten():
            yield from leaf_arrays(child)
    elif pt.is_nested(kind):
        yield from leaf_arrays(array.flatten())
    else:
        yield array


def compare_bounds(meta: Any, group: int, whole: Any, report: dict[str, Any]) -> None:
    """Note every bound that leaves a value out, every exact one that is no value, every wrong null count."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from pqindex.footer import bounds

    columns = (
        [leaf for c in whole.columns for leaf in leaf_arrays(c.combine_chunks())] if whole.num_rows else []
    )
    for i, values in enumerate(columns):
        got = bounds(meta, i)
        leaf = meta.leaves[i]
        nulls = got.null_count[group].as_py()
        if len(leaf.path) == 1 and nulls not in (None, values.null_count):
            report["differs"].append(f"null count of {leaf.path}: {nulls} is not {values.null_count}")
        known = values.drop_null()
        low, high = got.min[group : group + 1], got.max[group : group + 1]
        if pa.types.is_floating(known.type):
            known, low, high = known.cast(pa.float64()), low.cast(pa.float64()), high.cast(pa.float64())
            known = known.filter(pc.invert(pc.is_nan(known)))
        if not len(known) or not (low[0].is_valid or high[0].is_valid):
            continue
        report["n_bounds"] += 1
        order = pc.sort_indices(known)
        least, greatest = known.take(order[:1]), known.take(order[-1:])
        for side, value, fits in ((low, least, pc.less_equal), (high, greatest, pc.greater_equal)):
            if side[0].is_valid and not fits(side, value)[0].as_py():
                report["differs"].append(f"bound of {leaf.path}: {side[0]} leaves out {value[0]}")
            if got.exact[group] and not pc.equal(side, value)[0].as_py():
                report["differs"].append(f"exact bound of {leaf.path}: {side[0]} is not {value[0]}")


def main(folder: Path, after: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for name in names_of(folder):
        if name > after:
            print(json.dumps({"name": name, "begin": True}), flush=True)  # noqa: T201
            print(json.dumps({"name": name, **check(folder / name, name)}), flush=True)  # noqa: T201


def names_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -- in the parent --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports(shared: Path) -> dict[str, dict[str, Any]]:
    folder = shared / "data"
    found: dict[str, dict[str, Any]] = {}
    after = ""
    while True:
        child = subprocess.run(
            [sys.executable, __file__, str(folder), after], capture_output=True, text=True, check=False
        )
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        found |= {line["name"]: line for line in lines if "begin" not in line}
        if child.returncode == 0:
            return found
        after = lines[-1]["name"] if lines else "\xff"
        found[after] = {"name": after, "died": child.stderr[-500:]}


def parquet(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The reports of files that are meant to be Parquet."""
    return {
        name: report
        for name, report in reports.items()
        if re.search(r"parquet|_metadata", Path(name).name, re.IGNORECASE) and not name.endswith(".crc")
    }


def test_no_file_kills_the_process_case_38_39(reports: dict[str, dict[str, Any]]) -> None:
    assert {name: report["died"] for name, report in reports.items() if "died" in report} == {}


def test_exactly_the_bad_footers_are_refused_with_their_names_T33_case_41(
    reports: dict[str, dict[str, Any]],
) -> None:
    refused = {name: report["refused"] for name, report in parquet(reports).items() if "refused" in report}
    assert sorted(refused) == sorted(REFUSED)
    for name, message in refused.items():
        assert re.search(REFUSED[name], message), (name, message)
        assert reports[name]["names_file"]


def test_what_is_no_parquet_is_refused(reports: dict[str, dict[str, Any]]) -> None:
    others = {name: report for name, report in reports.items() if name not in parquet(reports)}
    assert others
    assert {name for name, report in others.items() if "refused" not in report} == set()


def test_every_fact_read_and_bound_agrees_with_pyarrow_C21_C25_T4(reports: dict[str, dict[str, Any]]) -> None:
    differs = {name: report["differs"] for name, report in reports.items() if report.get("differs")}
    assert differs == {}
    assert sum(report.get("n_read", 0) for report in reports.values()) > 1000
    assert sum(report.get("n_bounds", 0) for report in reports.values()) > 1000


def test_exactly_the_bad_pages_are_unreadable(reports: dict[str, dict[str, Any]]) -> None:
    unreadable = {name: report["unreadable"] for name, report in reports.items() if "unreadable" in report}
    assert sorted(unreadable) == sorted(UNREADABLE)
    for name, message in unreadable.items():
        assert re.search(UNREADABLE[name], message), (name, message)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
