"""Where the rows of an ordered choice of sequences lie: parallel arrays, the coin between the floors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.digest import RecordDigest

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The source files that a choice of sequences touches, in byte order of their paths.

    Attributes
    ----------
    root : str
        Folder that the paths are relative to, on this machine.
    paths : tuple of str
    size_bytes, footer_offset, footer_length : ndarray, shape (n_files,), int64
    footer_sha256 : tuple of str
        Hex digests of the footers, as indexed.
    n_rows : ndarray, shape (n_files,), int64
    content_sha256 : tuple of str or None
        What is recorded of the bytes of each file's row groups that the sequences touch (rule M6); empty where it is of
        none.
    """

    root: str
    paths: tuple[str, ...]
    size_bytes: Int64Array
    footer_offset: Int64Array
    footer_length: Int64Array
    footer_sha256: tuple[str, ...]
    n_rows: Int64Array
    content_sha256: tuple[str | None, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def descriptors(self) -> list[dict[str, Any]]:
        """Return one JSON-able record a file: what a manifest says of it."""
        return [
            {
                "path": path,
                "size_bytes": int(size),
                "footer_offset": int(offset),
                "footer_length": int(length),
                "footer_sha256": sha256,
                "n_rows": int(n_rows),
                **({} if content is None else {"content_sha256": content}),
            }
            for path, size, offset, length, sha256, n_rows, content in zip(
                self.paths,
                self.size_bytes,
                self.footer_offset,
                self.footer_length,
                self.footer_sha256,
                self.n_rows,
                self.content_sha256 or [None] * len(self),
                strict=True,
            )
        ]

    @classmethod
    def from_descriptors(cls, root: str, descriptors: list[dict[str, Any]]) -> SourceFiles:
        """Return the files that a manifest describes."""

        def integers(name: str) -> Int64Array:
            return np.array([d[name] for d in descriptors], np.int64)

        return cls(
            root=root,
            paths=tuple(d["path"] for d in descriptors),
            size_bytes=integers("size_bytes"),
            footer_offset=integers("footer_offset"),
            footer_length=integers("footer_length"),
            footer_sha256=tuple(d["footer_sha256"] for d in descriptors),
            n_rows=integers("n_rows"),
            content_sha256=tuple(d.get("content_sha256") for d in descriptors),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """An ordered choice of sequences and where their rows lie.

    Attributes
    ----------
    seq_ids : pa.Array, length n
    row_counts : ndarray, shape (n,), int64
    segment_stops : ndarray, shape (n + 1,), int64
        Segments of sequence i are ``[segment_stops[i], segment_stops[i + 1])``; the first value is 0.
    file_no, row_group : ndarray, shape (n_segments,), int32
        `file_no` counts in the `SourceFiles` beside this record.
    row_start, row_stop : ndarray, shape (n_segments,), int64
        Half-open rows inside the row group.
    extra : pa.Table, n rows
        The query's other columns.
    """

    seq_ids: pa.Array
    row_counts: Int64Array
    segment_stops: Int64Array
    file_no: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    row_start: Int64Array
    row_stop: Int64Array
    extra: pa.Table = field(repr=False)

    def __len__(self) -> int:
        return len(self.seq_ids)

    def row_groups(self) -> tuple[Int64Array, Int64Array]:
        """Return (file_no, row_group) of every row group that the sequences touch, each once, ascending."""
        if not len(self.file_no):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        most = int(self.row_group.max()) + 1
        groups = np.unique(self.file_no.astype(np.int64) * most + self.row_group)
        return groups // most, groups % most

    def digest(self, files: SourceFiles) -> str:
        """Return the selection's digest: which sequences, where, in which order, with which columns (rule D6).

        The digest does not hang on the machine, the root, or the query that chose the sequences.
        """
        digest = RecordDigest()
        digest.add_json(
            "files", [[path, sha256] for path, sha256 in zip(files.paths, files.footer_sha256, strict=True)]
        )
        digest.add_array("seq_id", self.seq_ids)
        digest.add_integers("segment_stops", self.segment_stops)
        for name in ("file_no", "row_group", "row_start", "row_stop"):
            digest.add_integers(name, getattr(self, name))
        digest.add_json("extra", self.extra.column_names)
        for i, column in enumerate(self.extra.columns):
            digest.add_array(f"extra.{i}", column)
        return digest.hexdigest()


def expand_ranges(starts: Int64Array, stops: Int64Array) -> Int64Array:
    """Return the integers of all half-open ranges, one range after the other.

    Shape (sum of lengths,), int64; no Python loop.
    """
    lengths = stops - starts
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    offsets: Int64Array = np.repeat(starts - (ends - lengths), lengths)
    return offsets + np.arange(total, dtype=np.int64)


def narrowest(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return int64 integers as int32 where all of them fit; those of less than 64 bits stay as they are."""
    limits = np.iinfo(np.int32)
    if values.dtype != np.int64 or (len(values) and (values.min() < limits.min or values.max() > limits.max)):
        return values
    return values.astype(np.int32)


def empty_columns(n_rows: int) -> pa.Table:
    """Return a table of no columns and `n_rows` rows."""
    return pa.table({"": pa.nulls(n_rows)}).select([])
