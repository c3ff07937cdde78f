"""Flip single bytes of a source file, and say who notices; run as a child process by its test.

Reads one JSON object from standard input: where the index, the manifest and the file are, and the places to flip. Writes
a JSON line for each place.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa

import pqindex
from pqindex.errors import PqindexError


def read(manifest: pqindex.Manifest) -> list[pa.Table]:
    with pqindex.Reader(manifest) as reader:
        return reader.read(range(len(reader)))


def main() -> None:
    """Flip, look, and put back."""
    job = json.loads(sys.stdin.read())
    path = Path(job["file"])
    raw = path.read_bytes()
    stat = path.stat()
    expected = read(pqindex.load_manifest(job["manifest"]))
    for place in job["places"]:
        data = bytearray(raw)
        data[place] ^= job["mask"]
        path.write_bytes(data)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        targets = {"index": pqindex.open(job["index"]), "manifest": pqindex.load_manifest(job["manifest"])}
        told = {
            name: [[problem.file, problem.message] for problem in target.verify(deep=True).problems]
            for name, target in targets.items()
        }
        try:
            outcome = "equal" if read(targets["manifest"]) == expected else "wrong"
        except PqindexError as error:
            outcome = error.reason
        print(json.dumps({"place": place, "told": told, "read": outcome}), flush=True)  # noqa: T201
    path.write_bytes(raw)


main()
