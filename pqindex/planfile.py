"""Read plans as memory-mapped files, so that the processes of a machine share one copy.

A plan is one Arrow IPC batch of one row, a list column an array, in a cache folder of the user: bounded in number, safe
to remove at any time. A process that finds its plan gone resolves it again where it can.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pqindex import caches, storage
from pqindex.documents import schema_from_json, schema_to_json
from pqindex.errors import NotFoundError
from pqindex.places import empty_columns
from pqindex.readplan import PAGE_FACTS, PLACE_FACTS, ReadPlan

_HEADER_KEY = b"pqindex.read_plan"
_MAX_CACHED_PLANS = 64


def plan_path(digest: str) -> str:
    """Return where the plan of this digest is shared on this machine."""
    return os.path.join(caches.cache_folder("plans"), f"{digest}.arrow")


def share(plan: ReadPlan) -> str:
    """Write a plan where other processes of this user find it, once, and return the path."""
    path = plan_path(plan.digest)
    if storage.size_of(path) is None:
        caches.keep_newest(os.path.dirname(path), _MAX_CACHED_PLANS - 1)
        with storage.writing(path, overwrite=True) as file:
            _write(plan, file)
    return path


def open_plan(path: str, origin: tuple[Callable[..., ReadPlan], tuple[Any, ...]] | None = None) -> ReadPlan:
    """Map a shared plan; where it is gone, resolve it again.

    Raises
    ------
    NotFoundError
        If it is gone and cannot be resolved again.
    """
    if storage.size_of(path) is not None:
        return _read(path, origin)
    if origin is None:
        raise NotFoundError(
            f"the read plan is gone from the cache: {path}",
            hint="pin the selection and make the dataset from the manifest",
            path=path,
        )
    function, arguments = origin
    return function(*arguments)


_ARRAYS = (
    "row_counts",
    "segment_stops",
    "group_of_segment",
    "row_start",
    "row_stop",
    "group_n_rows",
    "chunk_stops",
    "left",
    "page_stops",
    "schema_of_file",
    "group_file",
    "group_row_group",
)


def _write(plan: ReadPlan, file: Any) -> None:
    """Write a plan as one Arrow IPC batch of one row, a list column an array, so that a mapping copies nothing."""
    header = {
        "digest": plan.digest,
        "selection_digest": plan.selection_digest,
        "root": plan.root,
        "staleness": plan.staleness,
        "schema": base64.b64encode(plan.schema.serialize()).decode(),
        "schemas": [schema_to_json(record) for record in plan.schemas],
    }
    arrays: dict[str, pa.Array] = {name: pa.array(getattr(plan, name)) for name in _ARRAYS}
    arrays["footprints"] = pa.array(plan.footprints.ravel())
    arrays["paths"] = plan.paths
    arrays["seq_ids"] = plan.seq_ids
    arrays.update({f"chunks.{name}": pa.array(values) for name, values in plan.chunks.items()})
    arrays.update({f"pages.{name}": pa.array(values) for name, values in plan.pages.items()})
    for i, column in enumerate(plan.extra.columns):
        arrays[f"extra.{i}.{plan.extra.column_names[i]}"] = column.combine_chunks()
    lists = {
        name: pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
        for name, values in arrays.items()
    }
    batch = pa.RecordBatch.from_arrays(list(lists.values()), names=list(lists))
    schema = batch.schema.with_metadata({_HEADER_KEY: json.dumps(header).encode()})
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def _read(path: str, origin: tuple[Callable[..., ReadPlan], tuple[Any, ...]] | None) -> ReadPlan:
    batch = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
    header = json.loads(batch.schema.metadata[_HEADER_KEY])
    arrays = {name: column.values for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    numpy_arrays = {name: arrays[name].to_numpy(zero_copy_only=True) for name in _ARRAYS}
    extra = {name.split(".", 2)[2]: values for name, values in arrays.items() if name.startswith("extra.")}

    return ReadPlan(
        digest=header["digest"],
        selection_digest=header["selection_digest"],
        root=header["root"],
        staleness=header["staleness"],
        schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(header["schema"]))),
        schemas=tuple(schema_from_json(value) for value in header["schemas"]),
        paths=arrays["paths"],
        seq_ids=arrays["seq_ids"],
        footprints=arrays["footprints"].to_numpy(zero_copy_only=True).reshape(-1, 4),
        chunks={name: arrays[f"chunks.{name}"].to_numpy(zero_copy_only=True) for name in PLACE_FACTS},
        pages={name: arrays[f"pages.{name}"].to_numpy(zero_copy_only=True) for name in PAGE_FACTS},
        extra=pa.table(extra) if extra else empty_columns(len(arrays["seq_ids"])),
        origin=origin,
        **numpy_arrays,
    )
