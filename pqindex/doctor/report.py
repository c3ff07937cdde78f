"""What a layout report says, as records: spreads, placement, costs, columns, epochs, advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How some numbers are spread: values that are there, not between two; all 0 where there are none."""

    min: float
    quarter: float
    median: float
    three_quarters: float
    p99: float
    max: float
    mean: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Spread:
        """Return the spread of an array."""
        if not len(values):
            return cls(min=0, quarter=0, median=0, three_quarters=0, p99=0, max=0, mean=0.0)
        found = np.quantile(values, QUANTILES, method="inverted_cdf").tolist()
        names = ("min", "quarter", "median", "three_quarters", "p99", "max")
        return cls(**dict(zip(names, found, strict=True)), mean=float(values.mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the sequences lie.

    Attributes
    ----------
    n_files, n_row_groups : int
        Those that hold some of the sequences.
    n_sequences, n_rows : int
    n_whole : int
        Sequences that are exactly one row group.
    n_shared_row_groups : int
        Row groups that hold rows of something else than one whole piece.
    n_straddling : int
        Sequences in more than one row group.
    n_fragmented : int
        Sequences with pieces that do not touch.
    n_in_several_files, n_in_most_files, n_in_every_file : int
        Sequences in more than one file, in more than half of them, and in all; 0 where there is one file.
    reads_per_sequence : float
        Row groups that a sequence touches, on average.
    """

    n_files: int
    n_row_groups: int
    n_sequences: int
    n_rows: int
    n_whole: int
    n_shared_row_groups: int
    n_straddling: int
    n_fragmented: int
    n_in_several_files: int
    n_in_most_files: int
    n_in_every_file: int
    reads_per_sequence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Amplification:
    """Bytes that one sequence costs, read alone, over its rows' share of the bytes of its chunks.

    Attributes
    ----------
    read : Spread
        By the pages whose places are known, and whole row groups elsewhere; `mean` is that of an epoch: all bytes
        that are read over all that are wanted.
    whole_groups : Spread
        As if no page place was known.
    dictionary_share : float
        Part of the bytes of page reads that dictionary pages are; 0 without page reads.
    """

    read: Spread
    whole_groups: Spread
    dictionary_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Footers:
    """What the footers weigh, and what a reader that opens files by them would pay.

    Attributes
    ----------
    n_bytes, largest_bytes, file_bytes : int
    share : float
        Of the bytes of the files.
    open_ms : float
        About what opening the largest file by its footer costs PyArrow: `MS_PER_MEGABYTE` of footer.
    parsed_bytes : int
        About what all footers take when they are parsed and kept: `PARSED_FACTOR` times their bytes.
    index_path_bytes : int
        Bytes of footers that a read through the index costs: always 0.
    """

    n_bytes: int
    largest_bytes: int
    file_bytes: int
    share: float
    open_ms: float
    parsed_bytes: int
    index_path_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShare:
    """The chunks of one codec and one kind of encoding.

    Attributes
    ----------
    codec : str
    encoding : str
        ``plain``, ``dictionary``, ``delta``, ``split`` or ``other``.
    n_bytes : int
        As stored.
    share : float
        Of all bytes of the columns.
    cost : float or None
        Time to decode over that of plain, uncompressed numbers; None where that was not measured.
    """

    codec: str
    encoding: str
    n_bytes: int
    share: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """One top-level column.

    Attributes
    ----------
    name, type : str
    codecs, encodings : tuple of str
        By bytes, the largest part first.
    n_bytes, uncompressed_bytes : int
        As stored, and after decompression.
    cost : float or None
        As in `StorageShare`, weighed by bytes; None where a part was not measured.
    direct_share : float
        Part of its bytes that direct decoding may take (nulls can still refuse it, which only the pages tell).
    not_direct : str or None
        Why the rest is PyArrow's.
    """

    name: str
    type: str
    codecs: tuple[str, ...]
    encodings: tuple[str, ...]
    n_bytes: int
    uncompressed_bytes: int
    cost: float | None
    direct_share: float
    not_direct: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """What is known of pages.

    Attributes
    ----------
    page_index_share : float
        Part of the chunks for which the file has a page index.
    recorded_share : float
        Part of the chunks whose page places the index has.
    n_pages : int
        Recorded.
    option : str or None
        The build's ``pages``; those of chunks with one page are never recorded. None where there is no index.
    checksums : str
        Always ``"unknown"``: whether pages have checksums stands in the pages.
    """

    page_index_share: float
    recorded_share: float
    n_pages: int
    option: str | None
    checksums: str = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one epoch asks of the files, each sequence read once, alone, by one `Reader`.

    Attributes
    ----------
    order : str
        ``"shuffled"`` or ``"file"``.
    requests, n_bytes : int
        Ranges and bytes; what `Reader.stats` would count.
    amplification : float
        Those bytes over the bytes of the sequences.
    whole_reads, page_reads, kept_hits : int
        Row groups read whole; pieces of sequences read by their pages; pieces from row groups that were kept.
    """

    order: str
    requests: int
    n_bytes: int
    amplification: float
    whole_reads: int
    page_reads: int
    kept_hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """Whether the largest fits: decoded bytes are rows x columns x width, and estimates where widths vary.

    Attributes
    ----------
    sequence : str
        The longest sequence.
    sequence_rows : int
    sequence_bytes : int
        Of its rows, decoded.
    row_group_rows, row_group_bytes : int
        Of the row group that is the largest when it is decoded whole.
    is_estimate : bool
        Whether some column has values without a fixed width (texts, lists): then at least about so many bytes.
    is_kept : bool
        Whether such a row group can be kept decoded.
    """

    sequence: str
    sequence_rows: int
    sequence_bytes: int
    row_group_rows: int
    row_group_bytes: int
    is_estimate: bool
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing that is good, or that can be changed.

    Attributes
    ----------
    code : str
        A stable name, for programs.
    severity : {"good", "note", "warning"}
    message : str
        What was found.
    gain : str or None
        What the remedy brings.
    remedy : str or None
        A command, or what to give a reader.
    """

    code: str
    severity: str
    message: str
    gain: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReport:
    """What the layout of some sequences costs, for some columns.

    Made from the index (or, for a manifest whose index is gone, from footers); no value of the source is read, and
    whether the files are still those that were indexed is not looked at: `verify` does that.

    Attributes
    ----------
    target : str
    columns : tuple of ColumnLayout
    left_out : dict of str to str
        Columns that cannot be read, where all were asked for, with the reason.
    placement, amplification, footers, pages, largest
    rows_per_sequence, sequences_per_row_group, row_groups_per_file, row_group_bytes, sequence_bytes : Spread
        `row_group_bytes` are those of the columns as stored, `sequence_bytes` a sequence's rows' share of them.
    storage : tuple of StorageShare
        The largest first.
    epochs : tuple of Epoch
        Shuffled, and in the order of the files.
    advice : tuple of Advice
    """

    target: str
    columns: tuple[ColumnLayout, ...]
    left_out: dict[str, str]
    placement: Placement
    rows_per_sequence: Spread
    sequences_per_row_group: Spread
    row_groups_per_file: Spread
    row_group_bytes: Spread
    sequence_bytes: Spread
    amplification: Amplification
    footers: Footers
    pages: PageFacts
    storage: tuple[StorageShare, ...]
    epochs: tuple[Epoch, ...]
    largest: Largest
    advice: tuple[Advice, ...]

    @property
    def is_good(self) -> bool:
        """Whether no advice is a warning."""
        return all(one.severity != "warning" for one in self.advice)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {"target": self.target, "is_good": self.is_good, **asdict(self)}


def size_text(n_bytes: float) -> str:
    """Return a number of bytes as people read it.

    >>> size_text(1_500_000)
    '1.5 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"
