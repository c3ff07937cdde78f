"""The bytes and the columns of one row group, each byte read once: the digest of its chunks, and decoded columns.

Columns are read and decoded some at a time, so that memory is bounded by a few columns of one row group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from pqindex import storage
from pqindex.digest import sha256_hex
from pqindex.errors import BadFileError, PqindexError, SourceChangedError, UnsupportedFileError
from pqindex.footer import (
    UNKNOWN_CODEC,
    ChunkPlaces,
    FileMetadata,
    SchemaRecord,
    coalesce,
    parse_footer,
    read_group,
)
from pqindex.keyruns import in_column

BYTES_AT_ONCE: Final = 32 << 20
"""Compressed bytes of columns that are read together; one column may have more."""

DECODED_AT_ONCE: Final = 128 << 20
"""The same of decoded bytes, as the footer says them."""

_PIECE: Final = 8 << 20


def open_metadata(
    file: storage.SourceFile, path: str, *, size_bytes: int, offset: int, length: int, sha256: bytes
) -> FileMetadata:
    """Return the footer of a file, after the check that it is the one that was indexed.

    Raises
    ------
    SourceChangedError
        If the file has another size, or another footer.
    """
    found = file.facts.size_bytes
    footer = file.read(offset, length) if found == size_bytes else b""
    if bytes.fromhex(sha256_hex(footer)) != sha256:
        raise SourceChangedError(
            f"source file was changed while it was read: {path}; expected {size_bytes} bytes and the footer of before, "
            f"found {found} bytes",
            hint="build the index when nobody writes to the files",
            file=path,
            expected=size_bytes,
            found=found,
            change="replaced",
        )
    return parse_footer(footer, file=path, file_size=size_bytes)


class GroupReader:
    """Reads row groups of one file. Not thread-safe."""

    def __init__(self, file: storage.SourceFile, meta: FileMetadata, record: SchemaRecord) -> None:
        self._file = file
        self._meta = meta
        self._record = record
        self._leaves = record.parsed.field_leaves
        self._starts = meta.chunks.start
        self._group = -1
        self._spans_of_field: list[list[tuple[int, int]]] = []
        self._decoded_of_field: list[int] = []

    def is_readable(self, group: int, field: int) -> bool:
        """Return whether a column is neither encrypted nor of an unknown codec in a row group."""
        leaves = slice(*self._leaves[field])
        chunks = self._meta.chunks
        hidden = chunks.encrypted[group, leaves] | (chunks.codec[group, leaves] == UNKNOWN_CODEC)
        return not bool(hidden.any())

    def columns(
        self, group: int, fields: Sequence[int], digest: GroupDigest | None = None
    ) -> Iterator[tuple[int, pa.ChunkedArray]]:
        """Yield some columns of a row group, in the order of their bytes, and digest all of its chunks on the way.

        Parameters
        ----------
        group : int
        fields : sequence of int
            Top-level fields.
        digest : GroupDigest, optional
            Gets the bytes of every chunk of the row group, of those columns too that are not asked for.

        Raises
        ------
        BadFileError, UnsupportedFileError
            If a column cannot be read; it is named.
        """
        self._set_group(group)
        if digest is not None and not self._is_ordered():
            self._digest_alone(group, digest)
            digest = None
        wanted = range(len(self._leaves)) if digest is not None else fields
        asked = set(fields)
        for batch in self._batches(wanted):
            spans = self._spans(batch)
            ranges, _ = coalesce([start for start, _ in spans], [length for _, length in spans])
            buffers = dict(zip(ranges, self._read(group, ranges), strict=True))
            if digest is not None:
                for start, length in spans:
                    digest.update(_cut(buffers, start, length))
            some = sorted(asked.intersection(batch))
            if some:
                yield from zip(some, self._decoded(group, some, buffers), strict=True)

    def digest(self, group: int) -> bytes | None:
        """Return the digest of a row group alone; None where a chunk is encrypted."""
        digest = GroupDigest.of(self._meta, group)
        if digest is None:
            return None
        self._digest_alone(group, digest)
        return digest.value()

    # -- which bytes ------------------------------------------------------------------------------------------

    def _set_group(self, group: int) -> None:
        """Take the facts of a row group out of the arrays, once for all its columns."""
        if group == self._group:
            return
        chunks = self._meta.chunks
        n_bytes = np.where(chunks.num_values[group] > 0, chunks.total_compressed_size[group], 0)
        spans = list(zip(self._starts[group].tolist(), n_bytes.tolist(), strict=True))
        decoded = chunks.total_uncompressed_size[group].tolist()
        # Chunks without values have no bytes, whatever place a writer gave them.
        self._spans_of_field = [
            sorted(span for span in spans[first:stop] if span[1] > 0) for first, stop in self._leaves
        ]
        self._decoded_of_field = [sum(decoded[first:stop]) for first, stop in self._leaves]
        self._group = group

    def _spans(self, fields: Sequence[int]) -> list[tuple[int, int]]:
        """Return (start, length) of the chunks of some fields, ascending."""
        return sorted(span for field in fields for span in self._spans_of_field[field])

    def _in_order(self, fields: Sequence[int]) -> list[int]:
        """Return fields by the places of their first bytes."""
        spans = self._spans_of_field
        return sorted(fields, key=lambda field: (spans[field][0][0] if spans[field] else 0, field))

    def _is_ordered(self) -> bool:
        """Return whether the bytes of one field lie before or behind all those of another."""
        spans = [self._spans_of_field[field] for field in self._in_order(range(len(self._leaves)))]
        return all(before[-1] <= after[0] for before, after in pairwise(filter(None, spans)))

    def _batches(self, fields: Sequence[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        n_bytes = n_decoded = 0
        for field in self._in_order(fields):
            own = sum(length for _, length in self._spans_of_field[field])
            decoded = self._decoded_of_field[field]
            if batch and (n_bytes + own > BYTES_AT_ONCE or n_decoded + decoded > DECODED_AT_ONCE):
                yield batch
                batch, n_bytes, n_decoded = [], 0, 0
            batch.append(field)
            n_bytes, n_decoded = n_bytes + own, n_decoded + decoded
        if batch:
            yield batch

    # -- reading ----------------------------------------------------------------------------------------------

    def _read(self, group: int, ranges: list[tuple[int, int]]) -> list[bytes]:
        try:
            return self._file.read_ranges(ranges)
        except OSError as error:
            if isinstance(error, PqindexError):
                raise
            raise BadFileError(
                f"cannot be read: {self._meta.file}, row group {group}: {error.strerror or error}",
                file=self._meta.file,
                row_group=group,
            ) from error

    def _digest_alone(self, group: int, digest: GroupDigest) -> None:
        self._set_group(group)
        for start, length in self._spans(range(len(self._leaves))):
            for at in range(start, start + length, _PIECE):
                (piece,) = self._read(group, [(at, min(_PIECE, start + length - at))])
                digest.update(piece)

    def _decoded(
        self, group: int, fields: list[int], buffers: dict[tuple[int, int], bytes]
    ) -> list[pa.ChunkedArray]:
        def held(ranges: list[tuple[int, int]]) -> list[bytes | memoryview]:
            return [_find(buffers, *span) or self._read(group, [span])[0] for span in ranges]

        def decode(some: list[int]) -> pa.Table:
            projection = self._record.project(some)
            return read_group(
                projection,
                ChunkPlaces.from_metadata(self._meta, group, projection.leaf_indices),
                held,
                n_rows=int(self._meta.group_n_rows[group]),
                file_size=self._file.facts.size_bytes,
                file=self._meta.file,
                row_group=group,
            )

        try:
            return list(decode(fields).columns)
        except (BadFileError, UnsupportedFileError):
            for field in fields:  # which of them is it?
                try:
                    decode([field])
                except (BadFileError, UnsupportedFileError) as error:
                    raise in_column(error, self._meta.file, group, self._record.field_names[field]) from error
            raise


def _find(buffers: dict[tuple[int, int], bytes], start: int, length: int) -> memoryview | None:
    for (offset, size), data in buffers.items():
        if offset <= start and start + length <= offset + size:
            return memoryview(data)[start - offset : start - offset + length]
    return None


def _cut(buffers: dict[tuple[int, int], bytes], start: int, length: int) -> memoryview:
    found = _find(buffers, start, length)
    assert found is not None  # noqa: S101  # the ranges were made of these spans
    return found


class GroupDigest:
    """The digest of the bytes of a row group's column chunks, in the order of their places in the file (rule R1)."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    @classmethod
    def of(cls, meta: FileMetadata, group: int) -> GroupDigest | None:
        """Return a digest without bytes; None where a chunk is encrypted, since its place is hidden."""
        return None if bool(meta.chunks.encrypted[group].any()) else cls()

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        self._sha.update(data)

    def value(self) -> bytes:
        """Return the 32 bytes of the digest."""
        return self._sha.digest()
