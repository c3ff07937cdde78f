"""The contenders, by name: what they are called, where their adapter is, and what must be installed for them.

Adapters are imported in the processes that run them only, so that no library disturbs another.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.adapters.base import Adapter

RAW = "raw"
"""The floor, to which all ratios are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What is known of an adapter without importing it.

    `kind` says what becomes of the data: read "in place", or "converted" first. `packages` are distributions.
    """

    name: str
    label: str
    kind: str
    module: str
    cls: str
    packages: tuple[str, ...] = ()

    def versions(self) -> dict[str, str | None]:
        """Return the versions of its packages; None for one that is not installed."""
        found: dict[str, str | None] = {}
        for package in self.packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = None
        return found

    def load(self) -> type[Adapter]:
        """Import the adapter and what it needs."""
        adapter: type[Adapter] = getattr(
            importlib.import_module(f"benchmarks.adapters.{self.module}"), self.cls
        )
        return adapter


def _contender(name: str, label: str, kind: str, where: str, *packages: str) -> Contender:
    module, cls = where.split(":")
    return Contender(name=name, label=label, kind=kind, module=module, cls=cls, packages=packages)


CONTENDERS = {
    contender.name: contender
    for contender in (
        _contender(RAW, "raw PyArrow, every file open", "in place", "raw:Raw", "pyarrow"),
        _contender("dataset", "**pqindex** `SequenceDataset`", "in place", "ours:OurDataset", "pqindex"),
        _contender("reader", "**pqindex** `Reader` + stack", "in place", "ours:OurReader", "pqindex"),
        _contender(
            "bare-reader",
            "**pqindex** `Reader`, no decoded groups kept",
            "in place",
            "ours:BareReader",
            "pqindex",
        ),
        _contender("lru", "PyArrow, 128 handles", "in place", "raw:Handles", "pyarrow"),
        _contender(
            "indexed-parquet",
            "indexed-parquet-dataset",
            "in place",
            "indexed_parquet:IndexedParquet",
            "indexed-parquet-dataset",
        ),
        _contender(
            "litdata-parquet",
            "LitData, Parquet",
            "in place",
            "litdata_parquet:LitParquet",
            "litdata",
            "polars",
        ),
        _contender(
            "hf-streaming", "Hugging Face, streaming", "in place", "hf_streaming:HFStreaming", "datasets"
        ),
        _contender("duckdb", "DuckDB, point queries", "in place", "points:Points", "duckdb"),
        _contender("hf-arrow", "Hugging Face, Arrow", "converted", "hf_arrow:HFArrow", "datasets"),
        _contender("mds", "MosaicML MDS", "converted", "mds:MDS", "mosaicml-streaming"),
        _contender("litdata", "LitData, optimised", "converted", "litdata_optimized:LitOptimized", "litdata"),
        _contender("lance", "Lance", "converted", "lance_rows:LanceRows", "pylance"),
        _contender("webdataset", "WebDataset", "converted", "tars:Tars", "webdataset"),
        _contender("memmap", "numpy memmap (the bound)", "converted", "memmap:Memmap", "numpy"),
    )
}

CACHED = {
    contender.name: contender
    for contender in (
        _contender("dataset-disk", '**pqindex** `cache="disk"`', "in place", "ours:DiskCached", "pqindex"),
        _contender(
            "dataset-memory", '**pqindex** `cache="memory"`', "in place", "ours:MemoryCached", "pqindex"
        ),
    )
}
"""What is faster from its second epoch on: measured by `benchmarks.epochs` alone."""

EVERYONE = CONTENDERS | CACHED
