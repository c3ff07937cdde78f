"""Write the demo's Parquet files from Japanese Vowels in Parquet: python tools/make_demo_data.py SOURCE [TARGET].

SOURCE is a folder of Parquet files with the columns seq_id, t, lpc00 .. lpc11 and label, all rows of an utterance
together. TARGET is the package's folder unless it is named. Order is kept; the values are compared after writing.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TARGET = Path(__file__).resolve().parent.parent / "pqindex" / "demo" / "japanese_vowels"
CHANNELS = [f"lpc{number:02}" for number in range(12)]
IDS = ("seq_id", "t", "label")
SCHEMA = pa.schema(
    [pa.field(name, pa.int32(), nullable=False) for name in ("seq_id", "t")]
    + [pa.field(name, pa.float32(), nullable=False) for name in CHANNELS]
    + [pa.field("label", pa.string(), nullable=False)]
)
SEQUENCES_PER_FILE = 160


def write(table: pa.Table, path: Path) -> None:
    """Write `table` with one row group a sequence, small and with a checksum on each page."""
    writer = pq.ParquetWriter(
        path,
        table.schema,
        # Twenty floats do not get smaller; repeated ids, steps and labels do.
        compression={name: "zstd" if name in IDS else "none" for name in SCHEMA.names},
        use_dictionary=False,
        write_page_checksum=True,
        write_statistics=list(IDS),
        store_schema=False,
    )
    ids = table["seq_id"].to_numpy()
    starts = [0, *((ids[1:] != ids[:-1]).nonzero()[0] + 1).tolist(), len(ids)]
    with writer:
        for start, stop in itertools.pairwise(starts):
            writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)


def main(source: Path, target: Path) -> None:
    """Rewrite the files of `source` below `target`."""
    read = [pq.read_table(path) for path in sorted(source.glob("*.parquet"))]
    table = pa.concat_tables(read).select(SCHEMA.names).cast(SCHEMA)
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.parquet"):
        old.unlink()
    n_sequences = pc.max(table["seq_id"]).as_py() + 1
    written = []
    for number, first in enumerate(range(0, n_sequences, SEQUENCES_PER_FILE)):
        inside = pc.and_(
            pc.greater_equal(table["seq_id"], first), pc.less(table["seq_id"], first + SEQUENCES_PER_FILE)
        )
        path = target / f"part-{number:05}.parquet"
        write(table.filter(inside), path)
        written.append(pq.read_table(path, page_checksum_verification=True))
        print(
            f"{path.name}: {pq.read_metadata(path).num_row_groups} row groups, {path.stat().st_size:,} bytes"
        )
    if not pa.concat_tables(written).equals(table):
        sys.exit("the files written do not hold the values read")


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else TARGET)
