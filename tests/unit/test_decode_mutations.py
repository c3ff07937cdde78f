"""Thousands of damaged chunks in a child process: an error of ours, a refusal, or what PyArrow reads.

Run by hand with other numbers: ``python tests/unit/test_decode_mutations.py SEED COUNT``.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from collections import Counter
from itertools import product
from typing import Any

N_ROWS = 200
COUNT = 4000
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


def main(seed: int, count: int) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    from pqindex.decode import DirectDecoder, DirectRead, direct_column
    from pqindex.errors import BadFileError, PqindexError
    from pqindex.footer import ChunkPlaces, SchemaRecord, read_group

    rng = np.random.default_rng(seed)
    cases = []
    for data, meta, crc in written():
        schema = pq.read_schema(io.BytesIO(data))
        record = SchemaRecord.from_metadata(meta)
        for c, leaf in enumerate(meta.leaves):
            column = direct_column(leaf, schema.field(c).type)
            assert column is not None
            projection = record.project([c])
            places = ChunkPlaces.from_metadata(meta, 0, projection.leaf_indices)
            start = int(places.start[0])
            chunk = data[start : start + int(places.length[0])]
            truth = pq.read_table(io.BytesIO(data)).column(c).to_numpy().tobytes()
            cases.append((chunk, column, int(places.codec[0]), projection, truth, crc))

    def by_pyarrow(chunk: bytes, codec: int, projection: Any) -> bytes | None:
        try:
            table = read_group(
                projection,
                ChunkPlaces(
                    start=np.array([4]),
                    length=np.array([len(chunk)]),
                    num_values=np.array([N_ROWS]),
                    codec=np.array([codec]),
                ),
                lambda _ranges: [chunk],
                n_rows=N_ROWS,
                file_size=len(chunk) + 4,
                file="f",
                row_group=0,
            )
        except PqindexError:
            return None
        if table.column(0).null_count:
            return None
        values: bytes = table.column(0).to_numpy().tobytes()
        return values

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        chunk, column, codec, projection, truth, crc = cases[number % len(cases)]
        bad = damaged(rng, chunk)
        out = np.zeros((N_ROWS, 1), column.dtype)
        read = DirectRead(
            file="f", row_group=0, codecs=[codec], spans=[(bad, 0, len(bad))], n_rows=[N_ROWS], outs=[out]
        )
        print(json.dumps({"begin": number}), flush=True)  # noqa: T201
        try:
            refused = DirectDecoder([column], [1]).decode([read])
        except BadFileError:
            outcomes["error"] += 1
            continue
        if refused:
            outcomes["refused"] += 1
            continue
        if out.tobytes() == truth:
            outcomes["unchanged"] += 1
            continue
        outcomes["changed"] += 1
        theirs = by_pyarrow(bad, codec, projection)
        if out.tobytes() != theirs:
            wrong.append(
                f"{number}: {column.name}, codec {codec}, crc {crc}, {bad[:80].hex()}, PyArrow {theirs is not None}"
            )
        elif crc:
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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
