"""Deep verification: the bytes of row groups against the digests that were recorded of them, and their pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from pqindex import storage
from pqindex.content.groups import GroupReader, open_metadata
from pqindex.errors import (
    BadFileError,
    DigestMismatchError,
    IntegrityError,
    PqindexError,
    SourceError,
    UnsupportedFileError,
)
from pqindex.footer import FileMetadata, SchemaRecord, has_checksum
from pqindex.places import SourceFiles

Progress = Callable[[int, int, str], None]
Integers = npt.NDArray[np.integer]
Recorded = Callable[[int, int], bytes | None]
"""From (file_no, row_group) to the digest that is known of its bytes."""

_HINT: Final = "restore the file, or build the index again and pin anew"


def no_digest(_file_no: int, _row_group: int) -> None:
    """Return that nothing is known of a row group."""
    return


@dataclass(slots=True, kw_only=True)
class DeepReport:
    """What a reading of row groups found.

    Attributes
    ----------
    problems : list of PqindexError
        In the order of the files.
    n_row_groups, n_compared : int
        Row groups that were read, and those of them whose content was recorded.
    n_without_checksums : int
        Row groups that were not compared, and have pages without checksums.
    n_unread_columns : int
        Column chunks that were not compared, and cannot be read: encrypted, or of an unknown codec.
    """

    problems: list[PqindexError] = field(default_factory=list)
    n_row_groups: int = 0
    n_compared: int = 0
    n_without_checksums: int = 0
    n_unread_columns: int = 0

    def notes(self, *, remedy: str) -> tuple[str, ...]:
        """Return what could not be seen, for people."""
        notes = []
        missing = self.n_row_groups - self.n_compared
        if missing:
            notes.append(
                f"content is not recorded of {missing} of {self.n_row_groups} row groups: values that were replaced "
                f"under an equal footer and good pages cannot be seen there ({remedy})"
            )
        if self.n_without_checksums:
            notes.append(
                f"{self.n_without_checksums} of these have pages without checksums: flipped bits may read as other "
                "values"
            )
        if self.n_unread_columns:
            notes.append(
                f"{self.n_unread_columns} column chunks of these cannot be read, and were passed over"
            )
        return tuple(notes)


def roll_up(digests: Sequence[bytes | None]) -> str | None:
    """Return the one digest of some row groups of a file, ascending (rule M6); None where one is not known."""
    known = [digest for digest in digests if digest is not None]
    return hashlib.sha256(b"".join(known)).hexdigest() if len(known) == len(digests) else None


def content_of(
    files: SourceFiles,
    file_no: Integers,
    row_group: Integers,
    recorded: Recorded,
    progress: Progress | None,
) -> tuple[str | None, ...]:
    """Return the rolled-up digest of the row groups of each file; what is not recorded is read.

    Parameters
    ----------
    files : SourceFiles
    file_no, row_group : ndarray, shape (n_groups,)
        Distinct, ascending.
    recorded : callable
    progress : callable, optional
        Called with (row groups done, row groups in all, "content").

    Raises
    ------
    SourceChangedError
        If a file is not the one that was indexed.
    """
    found = []
    done = 0
    for number in range(len(files)):
        groups = row_group[file_no == number].tolist()
        digests = [recorded(number, group) for group in groups]
        if None in digests:
            with storage.SourceFile(storage.join(files.root, files.paths[number])) as file:
                reader = _reader(file, files, number)[0]
                for i, group in enumerate(groups):
                    digests[i] = digests[i] or reader.digest(group)
                    if progress is not None:
                        progress(done + i + 1, len(row_group), "content")
        done += len(groups)
        found.append(roll_up(digests))
    return tuple(found)


def verify_content(
    files: SourceFiles,
    file_no: Integers,
    row_group: Integers,
    recorded: Recorded,
    *,
    rolled_up: Sequence[str | None] | None = None,
    skip: frozenset[int] = frozenset(),
    progress: Progress | None = None,
) -> DeepReport:
    """Read row groups in full and compare them with what is known of them.

    The bytes of a row group whose digest is known are compared; all others, and those that differ, are decoded, with
    the checksums of their pages where they have any. Memory: some columns of one row group.

    Parameters
    ----------
    files : SourceFiles
        Whose sizes and footers have been compared already.
    file_no, row_group : ndarray, shape (n_groups,)
        Distinct, ascending.
    recorded : callable
        What an index knows of a row group.
    rolled_up : sequence of str or None
        What a manifest knows of all its row groups of each file (rule M6).
    skip : frozenset of int
        Files that are not read.
    progress : callable, optional
        Called with (row groups done, row groups in all, "verify").
    """
    report = DeepReport()
    for number in range(len(files)):
        groups = row_group[file_no == number].tolist()
        if not groups or number in skip:
            continue

        def tell(total: int = len(row_group)) -> None:
            report.n_row_groups += 1
            if progress is not None:
                progress(report.n_row_groups, total, "verify")

        try:
            with storage.SourceFile(storage.join(files.root, files.paths[number])) as file:
                reader, meta, record = _reader(file, files, number)
                whole = None if rolled_up is None else rolled_up[number]
                check = _FileCheck(file, reader, meta, record, report, tell)
                if whole is None:
                    check.groups(groups, [recorded(number, group) for group in groups])
                else:
                    check.rolled_up(groups, whole, [recorded(number, group) for group in groups])
        except (SourceError, IntegrityError, OSError) as error:
            if not isinstance(error, PqindexError):
                error = BadFileError(
                    f"cannot be read: {files.paths[number]}: {error}", file=files.paths[number]
                )
            report.problems.append(error)
    return report


def _reader(
    file: storage.SourceFile, files: SourceFiles, number: int
) -> tuple[GroupReader, FileMetadata, SchemaRecord]:
    meta = open_metadata(
        file,
        files.paths[number],
        size_bytes=int(files.size_bytes[number]),
        offset=int(files.footer_offset[number]),
        length=int(files.footer_length[number]),
        sha256=bytes.fromhex(files.footer_sha256[number]),
    )
    record = SchemaRecord.from_metadata(meta)
    return GroupReader(file, meta, record), meta, record


class _FileCheck:
    """The check of some row groups of one file."""

    def __init__(
        self,
        file: storage.SourceFile,
        reader: GroupReader,
        meta: FileMetadata,
        record: SchemaRecord,
        report: DeepReport,
        tell: Callable[[], None],
    ) -> None:
        self._file = file
        self._reader = reader
        self._meta = meta
        self._record = record
        self._report = report
        self._tell = tell

    def groups(self, groups: Sequence[int], known: Sequence[bytes | None]) -> None:
        """Check row groups one by one."""
        for group, expected in zip(groups, known, strict=True):
            if expected is None:
                self._decode(group)
            else:
                self._report.n_compared += 1
                self._compare(group, expected, self._reader.digest(group))
            self._tell()

    def rolled_up(self, groups: Sequence[int], whole: str, known: Sequence[bytes | None]) -> None:
        """Check row groups of which one digest is known together, and perhaps some of them alone too."""
        digests = []
        for group in groups:
            digests.append(self._reader.digest(group))
            self._report.n_compared += 1
            self._tell()
        found = roll_up(digests)
        if found == whole:
            return
        before = len(self._report.problems)
        for group, expected, digest in zip(groups, known, digests, strict=True):
            if expected is not None and roll_up(known) == whole:  # the index is the one that was pinned
                self._compare(group, expected, digest)
            else:
                self._find_corrupt(group)
        if len(self._report.problems) == before:
            some = ", ".join(map(str, groups[:10])) + (
                f" and {len(groups) - 10} more" if len(groups) > 10 else ""
            )
            self._report.problems.append(
                self._changed(f"one or more of row groups {some}", expected=whole, found=found or "")
            )

    def _compare(self, group: int, expected: bytes, found: bytes | None) -> None:
        if found == expected:
            return
        if not self._find_corrupt(group):
            told = "" if found is None else found.hex()
            self._report.problems.append(
                self._changed(f"row group {group}", expected=expected.hex(), found=told, row_group=group)
            )

    def _changed(
        self, what: str, *, expected: str, found: str, row_group: int | None = None
    ) -> DigestMismatchError:
        return DigestMismatchError(
            f"content was changed since it was recorded: {self._meta.file}, {what}; the footer is the same, and "
            f"the bytes are not (expected sha256 {expected[:16]}..., found {found[:16]}...)",
            hint=_HINT,
            file=self._meta.file,
            row_group=row_group,
            expected=expected,
            found=found,
            change="replaced",
        )

    def _find_corrupt(self, group: int) -> bool:
        """Report the first column of a row group whose pages are corrupt; return whether there is one."""
        fields = range(len(self._record.field_names))
        readable = [number for number in fields if self._reader.is_readable(group, number)]
        try:
            for _ in self._reader.columns(group, readable):
                pass
        except UnsupportedFileError:
            self._report.n_unread_columns += 1
            return False
        except BadFileError as error:
            self._report.problems.append(error)
            return True
        return False

    def _decode(self, group: int) -> None:
        """Decode a row group whose content is not recorded."""
        fields = range(len(self._record.field_names))
        self._report.n_unread_columns += sum(not self._reader.is_readable(group, number) for number in fields)
        self._find_corrupt(group)
        chunks = self._meta.chunks
        starts = chunks.start[group].tolist()
        stops = (chunks.start[group] + chunks.total_compressed_size[group]).tolist()
        filled = ((chunks.num_values[group] > 0) & ~chunks.encrypted[group]).tolist()
        self._report.n_without_checksums += any(
            is_filled and not has_checksum(self._file.read, start=start, stop=stop, file=self._meta.file)
            for start, stop, is_filled in zip(starts, stops, filled, strict=True)
        )
