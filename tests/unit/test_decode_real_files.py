"""Direct decode of every flat numeric chunk of the real files, in a child process: as PyArrow, or refused."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.shared

MEMORY_LIMIT = 6 << 30
MAX_GROUPS = 200
# A file that is made to expand past 2 GB.
NOT_READ = "large_string_map.brotli.parquet"

# Files whose pages are corrupt, and what is said of them.
CORRUPT = {
    "parquet-go/malformed/negative_page_size.parquet": "number of the page header is negative",
    "parquet-go/malformed/num_values_exceeds_data.parquet": "pages hold too many values",
    "parquet-testing/bad_data/ARROW-GH-41321.parquet": "runs of a page end early",
    "parquet-testing/data/datapage_v1-corrupt-checksum.parquet": "CRC checksum",
    "parquet-testing/data/rle-dict-uncompressed-corrupt-checksum.parquet": "CRC checksum",
}
# PyArrow reads 500 values of a page that says it has 7732, without a word.
READ_BY_PYARROW = {"parquet-go/malformed/num_values_exceeds_data.parquet"}


# -- in the child ---------------------------------------------------------------------------------------------


def check(path: Path, name: str) -> dict[str, Any]:
    """Return how many chunks were decoded directly, why others were not, and what differs from PyArrow."""
    from pqindex.decode import direct_column, not_direct
    from pqindex.errors import PqindexError
    from pqindex.footer import SchemaRecord, parse_footer, read_tail

    data = path.read_bytes()
    report: dict[str, Any] = {"n_direct": 0, "refused": Counter(), "corrupt": [], "differs": []}
    try:
        offset, length = read_tail(data[-8:], file_size=len(data), file=name)
        meta = parse_footer(data[offset : offset + length], file=name, file_size=len(data))
        record = SchemaRecord.from_metadata(meta)
        schema = record.to_arrow()
    except PqindexError:
        return report
    if path.name == NOT_READ:
        return report
    chunks = meta.chunks
    may = not_direct(chunks.codec, chunks.encodings) == 0
    step = max(meta.n_row_groups // MAX_GROUPS, 1)
    for c, leaf in enumerate(meta.leaves):
        column = direct_column(leaf, schema.field(leaf.field).type)
        if column is None or chunks.encrypted[:, c].any():
            continue
        for g in range(0, meta.n_row_groups, step):
            if may[g, c]:
                compare(data, meta, record, column, (g, c), report)
    return report


def compare(
    data: bytes, meta: Any, record: Any, column: Any, chunk: tuple[int, int], report: dict[str, Any]
) -> None:
    import numpy as np
    import pyarrow as pa

    from pqindex.decode import DirectDecoder, DirectRead
    from pqindex.errors import PqindexError
    from pqindex.footer import ChunkPlaces, read_group

    g, c = chunk
    n_rows = int(meta.group_n_rows[g])
    projection = record.project([meta.leaves[c].field])
    places = ChunkPlaces.from_metadata(meta, g, projection.leaf_indices)
    try:
        array = read_group(
            projection,
            places,
            lambda ranges: [data[offset : offset + length] for offset, length in ranges],
            n_rows=n_rows,
            file_size=len(data),
            file="f",
            row_group=g,
        ).column(0)
    except PqindexError as error:
        array = error
    out = np.zeros((n_rows, 1), column.dtype)
    start = int(places.start[0])
    span = (data, start, start + int(places.length[0]))
    read = DirectRead(
        file="f", row_group=g, codecs=places.codec.tolist(), spans=[span], n_rows=[n_rows], outs=[out]
    )
    try:
        refused = DirectDecoder([column], [1]).decode([read])
    except PqindexError as error:
        report["corrupt"].append(str(error))
        if not isinstance(array, PqindexError):
            report["read_by_pyarrow"] = True
        return
    if refused:
        report["refused"][refused[0].reason] += 1
        return
    report["n_direct"] += 1
    if isinstance(array, PqindexError):
        report["differs"].append(f"{chunk}: we read it, and PyArrow says {array}")
        return
    if array.null_count:
        report["differs"].append(f"{chunk}: there are nulls")
        return
    values = array.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if values.to_numpy(zero_copy_only=False).tobytes() != out.tobytes():
        report["differs"].append(f"{chunk}: other values, {values[:5]} and {out[:5]}")


def main(folder: Path, after: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for name in sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()):
        if name > after:
            print(json.dumps({"name": name, "begin": True}), flush=True)  # noqa: T201
            print(json.dumps({"name": name, **check(folder / name, name)}), flush=True)  # noqa: T201


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


def test_no_file_kills_the_process(reports: dict[str, dict[str, Any]]) -> None:
    assert {name: report["died"] for name, report in reports.items() if "died" in report} == {}


def test_every_chunk_equals_pyarrow_or_is_refused(reports: dict[str, dict[str, Any]]) -> None:
    assert {name: report["differs"] for name, report in reports.items() if report.get("differs")} == {}
    assert sum(report.get("n_direct", 0) for report in reports.values()) > 10_000


def test_exactly_the_bad_pages_are_corrupt(reports: dict[str, dict[str, Any]]) -> None:
    corrupt = {name: report["corrupt"] for name, report in reports.items() if report.get("corrupt")}
    assert sorted(corrupt) == sorted(CORRUPT)
    for name, messages in corrupt.items():
        assert all(CORRUPT[name] in message for message in messages), messages
    assert {name for name, report in reports.items() if report.get("read_by_pyarrow")} == READ_BY_PYARROW


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
