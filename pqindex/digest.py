"""Canonical JSON, and digests over records of typed arrays.

A digest is sha256 over a run of records. A record is its name in UTF-8, a zero byte, the payload's length as an
unsigned 64-bit little-endian integer, and the payload. So no two different runs of records give the same bytes,
and a reader in any language can repeat the digest from the specification (rules D1 to D4).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import rfc8785

from pqindex.arrowtypes import is_list, plain_array, type_name


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of a value (RFC 8785, the JSON Canonicalization Scheme).

    Raises
    ------
    ValueError
        If the value holds what canonical JSON cannot: NaN, an integer beyond 2**53, a key that is not text.
    """
    return rfc8785.dumps(value)


def sha256_hex(data: bytes | memoryview) -> str:
    """Return the sha256 of some bytes as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


class RecordDigest:
    """A sha256 over named records; see the module's text for the bytes of a record."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add_bytes(self, name: str, payload: bytes | memoryview) -> None:
        """Add one record."""
        view = memoryview(payload).cast("B") if len(payload) else memoryview(b"")
        self._sha.update(name.encode() + b"\0" + len(view).to_bytes(8, "little"))
        self._sha.update(view)

    def add_json(self, name: str, value: Any) -> None:
        """Add a record whose payload is the canonical JSON of a value."""
        self.add_bytes(name, canonical_json(value))

    def add_integers(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a record of integers, each as a signed 64-bit little-endian one."""
        self.add_bytes(name, np.ascontiguousarray(values, "<i8").tobytes())

    def add_array(self, name: str, array: pa.Array | pa.ChunkedArray) -> None:
        """Add the records of an Arrow array: its type's name, which values are null, and the values (rule D3).

        Encodings do not count: dictionaries are decoded, views and large offsets become plain. Null places hold
        zeros or nothing, whatever lay in their memory.
        """
        array = plain_array(array)
        self.add_bytes(f"{name}:type", type_name(array.type).encode())
        nulls = b""
        if array.null_count and not pt.is_null(array.type):
            nulls = np.asarray(pc.is_null(array).to_numpy(zero_copy_only=False), np.uint8).tobytes()
        self.add_bytes(f"{name}:nulls", nulls)
        self._add_values(name, array)

    def hexdigest(self) -> str:
        """Return the digest as 64 lower-case hex digits."""
        return self._sha.hexdigest()

    def _add_values(self, name: str, array: pa.Array) -> None:
        kind = array.type
        if pt.is_null(kind):
            self.add_integers(f"{name}:length", np.array([len(array)]))
        elif pt.is_struct(kind):
            for i, child in enumerate(array.flatten()):
                self.add_array(f"{name}.{i}", child)
        elif is_list(kind) or pt.is_fixed_size_list(kind) or pt.is_map(kind):
            self.add_integers(f"{name}:lengths", _lengths(pc.list_value_length(_as_list(array))))
            self.add_array(f"{name}.0", _as_list(array).flatten())
        elif pt.is_string(kind) or pt.is_binary(kind):
            filled = pc.fill_null(array.cast(pa.large_binary()), b"")
            self.add_integers(f"{name}:lengths", _lengths(pc.binary_length(filled)))
            offsets = np.frombuffer(filled.buffers()[1], np.int64)[
                filled.offset : filled.offset + len(filled) + 1
            ]
            data = filled.buffers()[2]
            self.add_bytes(
                f"{name}:values",
                memoryview(data)[offsets[0] : offsets[-1]] if data is not None and len(filled) else b"",
            )
        elif pt.is_boolean(kind):
            filled = pc.fill_null(array, False)
            self.add_bytes(f"{name}:values", filled.to_numpy(zero_copy_only=False).astype(np.uint8).tobytes())
        else:
            self.add_bytes(f"{name}:values", _fixed_width_bytes(array))


def _as_list(array: pa.Array) -> pa.Array:
    if pt.is_fixed_size_list(array.type):
        return array.cast(pa.list_(array.type.value_type))
    if pt.is_map(array.type):
        entries = pa.struct([pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)])
        return array.cast(pa.list_(entries))
    return array


def _lengths(lengths: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), np.int64)


def _fixed_width_bytes(array: pa.Array) -> bytes:
    """Return the values' own little-endian bytes, zeros where null."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None or not len(array):
        return bytes(width * len(array))
    raw = np.frombuffer(data, np.uint8)[array.offset * width : (array.offset + len(array)) * width].reshape(
        -1, width
    )
    if array.null_count:
        raw = raw.copy()
        raw[np.asarray(pc.is_null(array).to_numpy(zero_copy_only=False), bool)] = 0
    return raw.tobytes()


def table_digest(table: pa.Table) -> str:
    """Return the digest of a table: its columns' names in order, and each column's records (rule D4)."""
    digest = RecordDigest()
    digest.add_json("columns", table.column_names)
    digest.add_integers("n_rows", np.array([table.num_rows]))
    for i, column in enumerate(table.columns):
        digest.add_array(str(i), column)
    return digest.hexdigest()
