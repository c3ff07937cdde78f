"""Thousands of damaged chunks and page ranges in a child process: an error of ours, a refusal, or what PyArrow reads.

With other numbers: ``PQINDEX_MUTATIONS=100000 python -m pytest tests/unit/test_decode_mutations.py``, or by hand, with
the outcomes: ``python tests/unit/test_decode_mutations.py SEED COUNT``.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

N_ROWS = 200
COUNT = int(os.environ.get("PQINDEX_MUTATIONS", "4000"))
MEMORY_LIMIT = 2 << 30
MOST_GROWTH = 256 << 20


# -- in the child ---------------------------------------------------------------------------------------------


def written() -> list[tuple[bytes, Any, bool]]:
    """Files of three columns in all ways to write them: bytes, footer, and whether pages have checksums."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pqindex.footer import parse_footer, read_tail

    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "f": rng.normal(size=N_ROWS).astype(np.float32),
            "i": np.repeat(rng.integers(-9, 9, N_ROWS // 8), 8),
            "b": rng.integers(0, 2, N_ROWS).astype(np.bool_),
        }
    )
    files = []
    for codec, dictionary, version, crc, size in product(
        ("none", "snappy", "lz4", "zstd"), (False, True), ("1.0", "2.0"), (False, True), (300, 1 << 20)
    ):
        sink = io.BytesIO()
        pq.write_table(
            table,
            sink,
            compression=codec,
            use_dictionary=dictionary,
            data_page_version=version,
            write_page_checksum=crc,
            data_page_size=size,
            write_batch_size=64,
        )
        data = sink.getvalue()
        offset, length = read_tail(data[-8:], file_size=len(data), file="f")
        meta = parse_footer(data[offset : offset + length], file="f", file_size=len(data))
        files.append((data, meta, crc))
    return files


def damaged(rng: Any, chunk: bytes) -> bytes:
    """A chunk with one thing changed, more often near its beginning, where headers are."""
    at = int(rng.integers(len(chunk)) if rng.integers(2) else rng.integers(min(60, len(chunk))))
    kind = int(rng.integers(6))
    if kind == 0:
        return chunk[:at] + bytes([chunk[at] ^ 1 << int(rng.integers(8))]) + chunk[at + 1 :]
    if kind == 1:
        return chunk[:at] + rng.bytes(1) + chunk[at + 1 :]
    if kind == 2:
        return chunk[:at]
    if kind == 3:
        return chunk[:at] + rng.bytes(int(rng.integers(1, 6))) + chunk[at:]
    if kind == 4:
        return chunk[:at] + chunk[at + int(rng.integers(1, 6)) :]
    return (
        chunk[:at]
        + rng.choice([b"\xff", b"\xff\xff\xff\xff\x0f", b"\x00", b"\x80\x80\x80\x80\x08"])
        + chunk[at + 1 :]
    )


class Case(NamedTuple):
    """The bytes of a column that are read: a whole chunk, or a dictionary page and some data pages of it.

    `rows` of `n_rows` are wanted, and `truth` is what they are.
    """

    data: bytes
    column: Any
    projection: Any
    codec: int
    n_rows: int
    rows: slice
    truth: bytes
    has_checksums: bool


def cases_of(data: bytes, meta: Any, has_checksums: bool) -> Iterator[Case]:
    """Each chunk of a file, and three ranges of its pages."""
    import numpy as np
    import pyarrow.parquet as pq

    from pqindex.decode import direct_column
    from pqindex.footer import SchemaRecord, find_pages

    schema = pq.read_schema(io.BytesIO(data))
    record = SchemaRecord.from_metadata(meta)
    pages = find_pages(meta, 0, lambda offset, length: data[offset : offset + length])
    for c, leaf in enumerate(meta.leaves):
        column, places = direct_column(leaf, schema.field(c).type), pages[c]
        assert column is not None
        assert places is not None
        start = int(meta.chunks.start[0, c])
        stop = start + int(meta.chunks.total_compressed_size[0, c])
        values = pq.read_table(io.BytesIO(data)).column(c).to_numpy()
        what = column, record.project([c]), int(meta.chunks.codec[0, c])
        yield Case(
            data[start:stop], *what, N_ROWS, slice(0, N_ROWS), values.tobytes(), has_checksums=has_checksums
        )
        rows_of_pages = [*places.first_row.tolist(), N_ROWS]
        dictionary = data[start : int(places.offset[0])]
        for first, last in {
            (0, 0),
            (len(places) // 2, len(places) - 1),
            (len(places) // 3, len(places) // 2),
        }:
            data_stop = int(places.offset[last] + places.length[last])
            row_start, row_stop = rows_of_pages[first], rows_of_pages[last + 1]
            rows = slice((row_stop - row_start) // 5, row_stop - row_start - (row_stop - row_start) // 7)
            yield Case(
                dictionary + data[int(places.offset[first]) : data_stop],
                *what,
                row_stop - row_start,
                rows,
                np.ascontiguousarray(values[row_start:row_stop][rows]).tobytes(),
                has_checksums=has_checksums,
            )


def by_pyarrow(case: Case, data: bytes) -> bytes | None:
    """Return what PyArrow reads of damaged bytes, None for an error or nulls."""
    from pqindex.errors import PqindexError
    from pqindex.footer import Block, Fetched, decode_blocks

    block = Block(case.projection, case.n_rows, [4], [len(data)], 1, [N_ROWS], [case.codec], 0, "f", 0)
    try:
        (table,) = decode_blocks([Fetched(block, [data], [0])])
    except PqindexError:
        return None
    rows = table.column(0).slice(case.rows.start, case.rows.stop - case.rows.start)
    if rows.null_count:
        return None
    values: bytes = rows.to_numpy().tobytes()
    return values


def main(seed: int, count: int) -> None:
    import numpy as np

    from pqindex.decode import DirectDecoder, DirectRead
    from pqindex.errors import BadFileError

    rng = np.random.default_rng(seed)
    cases = [case for data, meta, crc in written() for case in cases_of(data, meta, crc)]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        case = cases[number % len(cases)]
        bad = damaged(rng, case.data)
        out = np.zeros((case.rows.stop - case.rows.start, 1), case.column.dtype)
        read = DirectRead(
            file="f",
            row_group=0,
            codecs=[case.codec],
            spans=[(bad if number % 3 else memoryview(bad), 0, len(bad))],
            n_rows=[case.n_rows],
            outs=[out],
            row_starts=[case.rows.start] if case.rows.start else None,
        )
        print(json.dumps({"begin": number}), flush=True)  # noqa: T201
        outcomes["of page ranges" if case.rows.stop < N_ROWS else "of whole chunks"] += 1
        try:
            refused = DirectDecoder([case.column], [1]).decode([read])
        except BadFileError:
            outcomes["error"] += 1
            continue
        if refused:
            outcomes["refused"] += 1
            continue
        if out.tobytes() == case.truth:
            outcomes["unchanged"] += 1
            continue
        outcomes["changed"] += 1
        theirs = by_pyarrow(case, bad)
        if out.tobytes() != theirs:
            wrong.append(
                f"{number}: {case.column.name}, codec {case.codec}, crc {case.has_checksums}, rows {case.rows} of"
                f" {case.n_rows}, {bad[:80].hex()}, PyArrow {theirs is not None}"
            )
        elif case.has_checksums:
            outcomes["changed with a checksum, as PyArrow reads it"] += 1
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps({"outcomes": outcomes, "wrong": wrong, "growth": growth}))  # noqa: T201


# -- in the parent --------------------------------------------------------------------------------------------


def test_damage_is_an_error_a_refusal_or_what_pyarrow_reads() -> None:
    child = subprocess.run(
        [sys.executable, __file__, "1", str(COUNT)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, (child.stdout[-200:], child.stderr[-2000:])
    report = json.loads(child.stdout.splitlines()[-1])
    assert report["wrong"] == []
    assert report["growth"] < MOST_GROWTH
    assert sum(report["outcomes"][kind] for kind in ("error", "refused", "unchanged", "changed")) == COUNT
    assert report["outcomes"]["error"] > COUNT // 3
    assert report["outcomes"]["of page ranges"] > COUNT // 2


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
