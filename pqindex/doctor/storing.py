"""How the chunks of a plan are stored: codecs, encodings, what decoding costs, and which columns decode directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pqindex.arrowtypes import type_name
from pqindex.decode import DIRECT_CODECS, direct_column, not_direct
from pqindex.doctor.facts import ChunkFacts
from pqindex.doctor.pieces import blocks_of
from pqindex.doctor.report import ColumnLayout, PageFacts, StorageShare
from pqindex.footer import Leaf
from pqindex.readplan import ReadPlan

CODECS: Final = ("none", "snappy", "gzip", "lzo", "brotli", "lz4 (old frames)", "zstd", "lz4")
ENCODINGS: Final = ("plain", "dictionary", "delta", "split", "other")

_DICTIONARY: Final = 1 << 2 | 1 << 8
_DELTA: Final = 1 << 5 | 1 << 6 | 1 << 7
_SPLIT: Final = 1 << 9
_PLAIN: Final = 1 << 0 | 1 << 3 | 1 << 4
"""Parquet's numbers of encodings, as bits; RLE and BIT_PACKED beside PLAIN are those of levels."""

COSTS: Final[Mapping[tuple[str, str], float]] = {
    ("none", "plain"): 1.0,
    ("none", "dictionary"): 1.3,
    ("none", "split"): 1.0,
    ("snappy", "plain"): 1.1,
    ("snappy", "dictionary"): 1.4,
    ("snappy", "split"): 1.1,
    ("lz4", "plain"): 1.0,
    ("lz4", "dictionary"): 1.3,
    ("lz4", "split"): 1.1,
    ("zstd", "plain"): 3.0,
    ("zstd", "dictionary"): 4.9,
    ("zstd", "split"): 2.2,
    ("gzip", "plain"): 2.7,
    ("gzip", "dictionary"): 3.2,
    ("gzip", "split"): 2.9,
    ("brotli", "plain"): 2.5,
    ("brotli", "dictionary"): 2.9,
    ("brotli", "split"): 2.5,
}
"""Time of PyArrow for 500 rows of ten float32 columns, over that of plain, uncompressed ones: docs/doctor.md."""

_PHYSICAL_WIDTHS: Final = (0.125, 4, 8, 8, 4, 8, None, None)
"""Bytes of a decoded value of BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE; texts and fixed lengths are apart."""


class Storing(NamedTuple):
    """How the chunks of a plan are stored.

    Attributes
    ----------
    columns, storage, pages
        Parts of the report.
    decoded_bytes : ndarray of float64, shape (n_groups,)
        Of each row group, when it is decoded whole.
    is_estimate : bool
        Whether some column has no fixed width.
    """

    columns: tuple[ColumnLayout, ...]
    storage: tuple[StorageShare, ...]
    pages: PageFacts
    decoded_bytes: npt.NDArray[np.float64]
    is_estimate: bool


class _Sums(NamedTuple):
    """What adds up of each top-level column; `kinds` are bytes by codec and kind of encoding."""

    kinds: npt.NDArray[np.float64]
    uncompressed: npt.NDArray[np.float64]
    direct: npt.NDArray[np.float64]


_N_KINDS: Final = (len(CODECS) + 1) * len(ENCODINGS)


def storing_of(plan: ReadPlan, facts: ChunkFacts) -> Storing:
    """Return how the chunks of a plan are stored.

    Cost: three more facts of the chunks are read of the index; no Python loop over chunks.
    """
    n_groups, names = len(plan.group_file), plan.schema.names
    decoded = np.zeros(n_groups)
    sums = _Sums(np.zeros(len(names) * _N_KINDS), np.zeros(len(names)), np.zeros(len(names)))
    encodings, uncompressed = facts.chunk("encodings"), facts.chunk("total_uncompressed_size")
    types: dict[str, str] = {}
    is_estimate = False
    number_of = {name: number for number, name in enumerate(names)}
    for number, some, chunks in blocks_of(plan, np.arange(n_groups)):
        record, arrow = plan.schemas[number], plan.schemas[number].to_arrow()
        all_leaves, fields = record.leaves, record.field_names  # each parses, or looks a long key up
        leaves = [all_leaves[leaf] for leaf in plan.leaves_of(number).tolist()]
        data_types = [arrow.field(leaf.field).type for leaf in leaves]
        widths = [_width(leaf, data_type) for leaf, data_type in zip(leaves, data_types, strict=True)]
        is_direct_type = np.array(
            [direct_column(leaf, t) is not None for leaf, t in zip(leaves, data_types, strict=True)], np.bool_
        )
        for leaf, data_type, may in zip(leaves, data_types, is_direct_type.tolist(), strict=True):
            if not may:
                types.setdefault(fields[leaf.field], f"type {type_name(data_type)}")
        column = np.array([number_of[fields[leaf.field]] for leaf in leaves], np.int64)
        length, full = plan.chunks["length"][chunks].astype(np.float64), uncompressed[chunks]
        codec, bits = plan.chunks["codec"][chunks].astype(np.int64), encodings[chunks].astype(np.int64)

        is_exact = np.array([exact for _, exact in widths], np.bool_)
        is_estimate |= not bool(is_exact.all())
        values = plan.chunks["num_values"][chunks] * np.array([width for width, _ in widths])
        decoded[some] = (values + np.where(is_exact, 0, full)).sum(axis=1)

        kind = np.where((codec < 0) | (codec >= len(CODECS)), len(CODECS), codec) * len(ENCODINGS)
        kind += _encoding_kind(bits) + column * _N_KINDS
        sums.kinds[:] += np.bincount(kind.ravel(), length.ravel(), len(sums.kinds))
        np.add.at(sums.uncompressed, column, full.sum(axis=0))
        np.add.at(
            sums.direct, column, (length * ((not_direct(codec, bits) == 0) & is_direct_type)).sum(axis=0)
        )
    by_column = sums.kinds.reshape(len(names), len(CODECS) + 1, len(ENCODINGS)).astype(np.int64)
    layouts = tuple(
        _layout(field, kinds, int(full), int(direct), types.get(field.name))
        for field, kinds, full, direct in zip(
            plan.schema, by_column, sums.uncompressed, sums.direct, strict=True
        )
    )
    return Storing(layouts, _storage(by_column.sum(axis=0)), _page_facts(plan, facts), decoded, is_estimate)


def _width(leaf: Leaf, data_type: pa.DataType) -> tuple[float, bool]:
    """Return the bytes of a decoded value, and whether that is all of it."""
    if len(leaf.path) == 1 and not pa.types.is_nested(data_type):
        try:
            return data_type.bit_width / 8, not pa.types.is_dictionary(data_type)
        except ValueError:
            return 4.0, False
    width = leaf.type_length if leaf.type_length > 0 else _PHYSICAL_WIDTHS[leaf.physical_type]
    return (4.0, False) if width is None else (float(width), False)


def _encoding_kind(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position in `ENCODINGS` of what the values of each chunk are stored as."""
    found: npt.NDArray[np.int64] = np.select(
        [
            (bits & _DICTIONARY) != 0,
            (bits & _DELTA) != 0,
            (bits & _SPLIT) != 0,
            (bits & ~np.int64(_PLAIN)) == 0,
        ],
        [1, 2, 3, 0],
        4,
    ).astype(np.int64)
    return found


def _codec_name(number: int) -> str:
    return CODECS[number] if 0 <= number < len(CODECS) else "unknown"


def _layout(
    field: pa.Field, kinds: npt.NDArray[np.int64], uncompressed: int, direct: int, type_reason: str | None
) -> ColumnLayout:
    by_codec, by_encoding, n_bytes = kinds.sum(axis=1), kinds.sum(axis=0), int(kinds.sum())
    return ColumnLayout(
        name=field.name,
        type=type_name(field.type),
        codecs=tuple(_codec_name(i) for i in _largest_first(by_codec)),
        encodings=tuple(ENCODINGS[i] for i in _largest_first(by_encoding)),
        n_bytes=n_bytes,
        uncompressed_bytes=uncompressed,
        cost=_mean_cost(kinds),
        direct_share=direct / n_bytes if n_bytes else 0.0,
        not_direct=(type_reason or _reason(kinds)) if direct < n_bytes else None,
    )


def _largest_first(sums: npt.NDArray[np.int64]) -> list[int]:
    return [i for i in np.argsort(-sums, kind="stable").tolist() if sums[i]]


def _reason(kinds: npt.NDArray[np.int64]) -> str:
    """Return the codec and the encoding of the largest part that is never decoded directly."""
    left = kinds.copy()
    left[np.ix_(DIRECT_CODECS, [ENCODINGS.index(name) for name in ("plain", "dictionary", "split")])] = 0
    if not left.any():
        return "encodings"
    codec, encoding = np.unravel_index(int(left.argmax()), left.shape)
    return f"{_codec_name(int(codec))}, {ENCODINGS[int(encoding)]}"


def _mean_cost(kinds: npt.NDArray[np.int64]) -> float | None:
    total = 0.0
    for codec, encoding in np.argwhere(kinds).tolist():
        cost = COSTS.get((_codec_name(codec), ENCODINGS[encoding]))
        if cost is None:
            return None
        total += cost * int(kinds[codec, encoding])
    return total / int(kinds.sum()) if kinds.any() else None


def _storage(kinds: npt.NDArray[np.int64]) -> tuple[StorageShare, ...]:
    total = int(kinds.sum())
    shares = [
        StorageShare(
            codec=_codec_name(codec),
            encoding=ENCODINGS[encoding],
            n_bytes=int(kinds[codec, encoding]),
            share=int(kinds[codec, encoding]) / total,
            cost=COSTS.get((_codec_name(codec), ENCODINGS[encoding])),
        )
        for codec, encoding in np.argwhere(kinds).tolist()
    ]
    return tuple(sorted(shares, key=lambda one: -one.n_bytes))


def _page_facts(plan: ReadPlan, facts: ChunkFacts) -> PageFacts:
    n_chunks = int(plan.chunk_stops[-1]) if len(plan.chunk_stops) else 0
    with_index = int((facts.chunk("offset_index_length") > 0).sum())
    recorded = int((np.diff(plan.page_stops) > 0).sum()) if len(plan.page_stops) else 0
    return PageFacts(
        page_index_share=with_index / n_chunks if n_chunks else 0.0,
        recorded_share=recorded / n_chunks if n_chunks else 0.0,
        n_pages=len(plan.pages["offset"]),
        option=facts.pages,
    )
