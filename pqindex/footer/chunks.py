"""The facts of all column chunks of a file as arrays, and the checks that they do not contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pqindex.errors import BadFileError, UnsupportedFileError
from pqindex.footer.schema import PHYSICAL_NAMES, Leaf, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Int64s: TypeAlias = npt.NDArray[np.int64]

# What a parser notes of a chunk: one number a slot, -1 for absent. Two slots (start, length) for bytes of the footer.
FILE_PATH, FILE_PATH_LENGTH, HAS_METADATA, IS_ENCRYPTED = range(4)
OFFSET_INDEX_OFFSET, OFFSET_INDEX_LENGTH, COLUMN_INDEX_OFFSET, COLUMN_INDEX_LENGTH = range(4, 8)
TYPE, ENCODINGS, HAS_PATH, CODEC, NUM_VALUES = range(8, 13)
UNCOMPRESSED_SIZE, COMPRESSED_SIZE, DATA_PAGE_OFFSET, DICTIONARY_PAGE_OFFSET = range(13, 17)
NULL_COUNT, MAX_VALUE, MAX_VALUE_LENGTH, MIN_VALUE, MIN_VALUE_LENGTH = range(17, 22)
MAX, MAX_LENGTH, MIN, MIN_LENGTH, MAX_EXACT, MIN_EXACT = range(22, 28)
N_SLOTS: Final = 28

N_CODECS: Final = 8
UNKNOWN_CODEC: Final = -1
UNKNOWN_ENCODING_BIT: Final = 30
"""Bit of `encodings` for every encoding number that has no bit of its own."""

FIRST_DATA_BYTE: Final = 4
"""Data begin after the magic number at the start of the file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """The column chunks of a file; every array has shape (row groups, leaves).

    Attributes
    ----------
    data_page_offset, dictionary_page_offset : ndarray of int64
        Absolute; the dictionary's is -1 where there is none (older writers wrote 0 for none).
    total_compressed_size, total_uncompressed_size, num_values : ndarray of int64
        `num_values` counts levels, nulls among them, not rows.
    codec : ndarray of int8
        0 to 7, `UNKNOWN_CODEC` for a number that Parquet does not have.
    encodings : ndarray of int32
        Bit set by encoding number.
    offset_index_offset, offset_index_length, column_index_offset, column_index_length : ndarray
        The page index (int64 and int32); -1 and 0 where there is none.
    encrypted : ndarray of bool
        The chunk cannot be read: its other facts are -1 or 0.
    null_count : ndarray of int64
        As the footer says, -1 where it says nothing. `statistics.bounds` decides what to believe.
    min_value_start, min_value_length, max_value_start, max_value_length : ndarray of int32
        Where the raw bounds lie in the footer's bytes; the length is -1 where there is none.
    min_start, min_length, max_start, max_length : ndarray of int32
        The same for the deprecated bounds.
    min_exact, max_exact : ndarray of int8
        What the footer says: 1 exact, 0 not, -1 nothing.
    """

    data_page_offset: Int64s
    dictionary_page_offset: Int64s
    total_compressed_size: Int64s
    total_uncompressed_size: Int64s
    num_values: Int64s
    codec: npt.NDArray[np.int8]
    encodings: npt.NDArray[np.int32]
    offset_index_offset: Int64s
    offset_index_length: npt.NDArray[np.int32]
    column_index_offset: Int64s
    column_index_length: npt.NDArray[np.int32]
    encrypted: npt.NDArray[np.bool_]
    null_count: Int64s
    min_value_start: npt.NDArray[np.int32]
    min_value_length: npt.NDArray[np.int32]
    max_value_start: npt.NDArray[np.int32]
    max_value_length: npt.NDArray[np.int32]
    min_start: npt.NDArray[np.int32]
    min_length: npt.NDArray[np.int32]
    max_start: npt.NDArray[np.int32]
    max_length: npt.NDArray[np.int32]
    min_exact: npt.NDArray[np.int8]
    max_exact: npt.NDArray[np.int8]

    @property
    def start(self) -> Int64s:
        """First byte of each chunk: its dictionary page where that comes before the data, else its data."""
        return chunk_start(self.data_page_offset, self.dictionary_page_offset)


def chunk_start(data_page_offset: Int64s, dictionary_page_offset: Int64s) -> Int64s:
    """Return the first byte of chunks, shape of the inputs, int64."""
    has_dictionary = (dictionary_page_offset > 0) & (dictionary_page_offset < data_page_offset)
    return np.where(has_dictionary, dictionary_page_offset, data_page_offset)


def build_chunks(slots: Int64s, n_rows: Int64s, schema: Schema, *, file: str, footer_offset: int) -> Chunks:
    """Return the chunks that a parser noted, once they are found not to contradict the schema and the file.

    Parameters
    ----------
    slots : ndarray of int64, shape (N_SLOTS, row groups * leaves)
        What was noted; group by group. Changed in place.
    n_rows : ndarray of int64, shape (row groups,)
        Rows of each row group, none negative.
    schema : Schema
    file : str
        The file, for messages.
    footer_offset : int
        Where the footer begins in the file, which is where data end.

    Raises
    ------
    BadFileError
        If a chunk contradicts the schema, its row group or the file's size.
    UnsupportedFileError
        If a chunk lies in another file, as in a `_metadata` summary.
    """
    shape = (len(n_rows), schema.types.size)
    encrypted = (slots[IS_ENCRYPTED] == 1) | (slots[HAS_METADATA] != 1)
    places = _Places(
        file=file, leaves=schema.leaves, plain=~encrypted.reshape(shape) if encrypted.any() else None
    )
    by_group = slots.reshape(N_SLOTS, *shape)
    _check_against_schema(by_group, schema, places)
    _check_numbers(by_group, n_rows[:, None], schema, places)
    _check_bytes(by_group, footer_offset, places)
    _drop_page_indexes(slots, footer_offset)
    _hide(slots, encrypted)

    def facts(slot: int, dtype: type[np.generic] = np.int64) -> Any:
        return by_group[slot].astype(dtype)  # a copy, since a view would keep all slots alive

    return Chunks(
        data_page_offset=facts(DATA_PAGE_OFFSET),
        dictionary_page_offset=facts(DICTIONARY_PAGE_OFFSET),
        total_compressed_size=facts(COMPRESSED_SIZE),
        total_uncompressed_size=facts(UNCOMPRESSED_SIZE),
        num_values=facts(NUM_VALUES),
        codec=facts(CODEC, np.int8),
        encodings=facts(ENCODINGS, np.int32),
        offset_index_offset=facts(OFFSET_INDEX_OFFSET),
        offset_index_length=facts(OFFSET_INDEX_LENGTH, np.int32),
        column_index_offset=facts(COLUMN_INDEX_OFFSET),
        column_index_length=facts(COLUMN_INDEX_LENGTH, np.int32),
        encrypted=encrypted.reshape(shape),
        null_count=facts(NULL_COUNT),
        min_value_start=facts(MIN_VALUE, np.int32),
        min_value_length=facts(MIN_VALUE_LENGTH, np.int32),
        max_value_start=facts(MAX_VALUE, np.int32),
        max_value_length=facts(MAX_VALUE_LENGTH, np.int32),
        min_start=facts(MIN, np.int32),
        min_length=facts(MIN_LENGTH, np.int32),
        max_start=facts(MAX, np.int32),
        max_length=facts(MAX_LENGTH, np.int32),
        min_exact=facts(MIN_EXACT, np.int8),
        max_exact=facts(MAX_EXACT, np.int8),
    )


_NO_WORDS: Final[Mapping[int, str]] = {}
_TYPE_WORDS: Final[Mapping[int, str]] = dict(enumerate(PHYSICAL_NAMES))
# All slots from ENCODINGS to DATA_PAGE_OFFSET; HAS_PATH, among them, has been checked by then.
_REQUIRED: Final[Mapping[int, str]] = {
    ENCODINGS: "encodings",
    CODEC: "codec",
    NUM_VALUES: "num_values",
    UNCOMPRESSED_SIZE: "total_uncompressed_size",
    COMPRESSED_SIZE: "total_compressed_size",
    DATA_PAGE_OFFSET: "data_page_offset",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Names the chunk that breaks a rule; `plain` says which chunks are not encrypted, None for all of them."""

    file: str
    leaves: Sequence[Leaf]
    plain: npt.NDArray[np.bool_] | None

    def refuse_any(
        self,
        broken: npt.NDArray[np.bool_],
        what: str,
        *,
        expected: str | Int64s,
        found: Int64s,
        words: Mapping[int, str] = _NO_WORDS,
    ) -> None:
        """Raise for the first chunk that is `broken`; `words` says numbers of `expected` and `found` in words.

        Arrays have the shape (row groups, leaves), or one that becomes it.
        """
        if not broken.any():
            return
        if self.plain is not None:
            broken = broken & self.plain
            if not broken.any():
                return
        row_group, leaf = (int(number) for number in np.unravel_index(broken.argmax(), broken.shape))
        column = ".".join(self.leaves[leaf].path)

        def word(numbers: Int64s) -> int | str:
            number = int(np.broadcast_to(numbers, broken.shape)[row_group, leaf])
            return words.get(number, number)

        right = expected if isinstance(expected, str) else word(expected)
        wrong = word(found)
        raise BadFileError(
            f"footer contradicts itself, {what}: {self.file}, row group {row_group}, column {column!r};"
            f" expected {right}, found {wrong}",
            file=self.file,
            row_group=row_group,
            column=column,
            expected=right,
            found=wrong,
        )


def _check_against_schema(slots: Int64s, schema: Schema, places: _Places) -> None:
    in_other_file = slots[FILE_PATH_LENGTH] > 0
    if in_other_file.any():
        raise UnsupportedFileError(
            f"the data are in other files, this is a summary: {places.file}; expected chunks without file_path,"
            f" found {int(in_other_file.sum())} with it",
            hint="leave summary files such as _metadata out",
            file=places.file,
        )
    places.refuse_any(
        slots[TYPE] != schema.types,
        "the type of a chunk is not its column's",
        expected=schema.types,
        found=slots[TYPE],
        words=_TYPE_WORDS,
    )
    places.refuse_any(
        slots[HAS_PATH] != 1,
        "the path of a chunk is not its column's",
        expected="the path in the schema",
        found=slots[HAS_PATH],
        words={0: "another one", -1: "none"},
    )


def _check_numbers(slots: Int64s, n_rows: Int64s, schema: Schema, places: _Places) -> None:
    if slots.size and slots[ENCODINGS : DATA_PAGE_OFFSET + 1].min() < 0:
        for slot, name in _REQUIRED.items():
            places.refuse_any(
                slots[slot] < 0,
                f"{name} of a chunk is negative or missing",
                expected="0 or more",
                found=slots[slot],
            )
    places.refuse_any(
        schema.is_flat & (slots[NUM_VALUES] != n_rows),
        "num_values of a chunk is not the number of rows of its row group",
        expected=n_rows,
        found=slots[NUM_VALUES],
    )
    places.refuse_any(
        slots[NUM_VALUES] < n_rows,
        "a chunk has fewer values than its row group rows",
        expected=n_rows,
        found=slots[NUM_VALUES],
    )


def _check_bytes(slots: Int64s, footer_offset: int, places: _Places) -> None:
    starts = chunk_start(slots[DATA_PAGE_OFFSET], slots[DICTIONARY_PAGE_OFFSET])
    # An empty chunk has no bytes, and writers put any offset there.
    filled = slots[NUM_VALUES] > 0
    places.refuse_any(
        filled & ((starts < FIRST_DATA_BYTE) | (starts >= footer_offset)),
        "a chunk begins outside the data",
        expected=f"a byte in [{FIRST_DATA_BYTE}, {footer_offset})",
        found=starts,
    )
    places.refuse_any(
        # Written so that it cannot overflow.
        filled & (slots[COMPRESSED_SIZE] > footer_offset - starts),
        "a chunk runs into the footer",
        expected=f"an end of at most {footer_offset}",
        found=starts + slots[COMPRESSED_SIZE],
    )


def _drop_page_indexes(slots: Int64s, footer_offset: int) -> None:
    """Make absent what cannot be there: the page index is an extra, and data are read without it."""
    for offset, length in (
        (OFFSET_INDEX_OFFSET, OFFSET_INDEX_LENGTH),
        (COLUMN_INDEX_OFFSET, COLUMN_INDEX_LENGTH),
    ):
        offsets, lengths = slots[offset], slots[length]
        absent = (offsets < FIRST_DATA_BYTE) | (lengths <= 0) | (offsets > footer_offset)
        absent |= lengths > footer_offset - offsets
        offsets[absent] = -1
        lengths[absent] = 0


def _hide(slots: Int64s, encrypted: npt.NDArray[np.bool_]) -> None:
    """Put all numbers into the form that `Chunks` promises."""
    slots[DICTIONARY_PAGE_OFFSET, slots[DICTIONARY_PAGE_OFFSET] <= 0] = -1
    slots[NULL_COUNT, slots[NULL_COUNT] < 0] = -1
    slots[CODEC, slots[CODEC] >= N_CODECS] = UNKNOWN_CODEC
    if encrypted.any():
        slots[:, encrypted] = -1
        for slot in (
            ENCODINGS,
            NUM_VALUES,
            UNCOMPRESSED_SIZE,
            COMPRESSED_SIZE,
            OFFSET_INDEX_LENGTH,
            COLUMN_INDEX_LENGTH,
        ):
            slots[slot, encrypted] = 0
