"""Index and read one Parquet file after another, and say what came of it; run as a child process by its test.

Reads paths from standard input, a line each; writes a JSON line before and after each file, so that the parent knows
which file ended the process.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pqindex
from pqindex import storage
from pqindex.errors import PqindexError
from pqindex.footer import SchemaRecord, parse_footer
from pqindex.scan import read_footer

MOST_KEYS = 4


def keys_of(path: Path) -> list[str]:
    """The default key, and the first columns of the file, whatever they are."""
    try:
        with storage.SourceFile(str(path)) as file:
            footer, _ = read_footer(file, path.name)
            meta = parse_footer(footer, file=path.name, file_size=file.facts.size_bytes)
            names = SchemaRecord.from_metadata(meta).field_names
    except PqindexError:
        names = ()
    return list(dict.fromkeys(["seq_id", *names[:MOST_KEYS]]))


def attempt(folder: Path, key: str) -> str:
    """Build with a key, joining nothing; ask for the layout; then read every sequence in full."""
    try:
        index = pqindex.build(folder, key=key, index=folder.parent / "i.pqindex", skip_null_keys=True)
        index.doctor()
        selection = index.select()
        with pqindex.Reader(selection) as reader:
            for i in range(min(len(reader), 200)):
                if reader[i].num_rows != selection.row_counts[i]:
                    return f"wrong: {key}: {reader[i].num_rows} rows, expected {selection.row_counts[i]}"
    except PqindexError as error:
        return f"{error.reason}: {error}"
    finally:
        shutil.rmtree(folder.parent / "i.pqindex", ignore_errors=True)
    return f"read {len(selection)}"


def main() -> None:
    """Work through the files."""
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        print(json.dumps({"begin": str(path)}), flush=True)  # noqa: T201
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "alone"
            folder.mkdir()
            copy = folder / (path.name if path.name.lower().endswith(".parquet") else f"{path.name}.parquet")
            shutil.copyfile(path, copy)
            os.chmod(copy, 0o600)
            start = time.monotonic()
            outcomes = {key: attempt(folder, key) for key in keys_of(copy)}
        print(  # noqa: T201
            json.dumps(
                {
                    "end": str(path),
                    "elapsed_s": time.monotonic() - start,
                    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                    "outcomes": outcomes,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
