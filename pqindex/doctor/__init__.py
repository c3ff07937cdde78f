"""What a layout costs, and what to change: a report from the index alone.

Here belongs arithmetic on places: amplification, straddling, footers, codecs, and what an epoch will ask of the files.
Never here: reading a value of the source, and rewriting it.
"""

from pqindex.doctor.examine import examine
from pqindex.doctor.facts import ChunkFacts, facts_of_footers, facts_of_index
from pqindex.doctor.glance import glance
from pqindex.doctor.report import (
    Advice,
    Amplification,
    ColumnLayout,
    Epoch,
    Footers,
    Largest,
    LayoutReport,
    PageFacts,
    Placement,
    Spread,
    StorageShare,
    size_text,
)

__all__ = [
    "Advice",
    "Amplification",
    "ChunkFacts",
    "ColumnLayout",
    "Epoch",
    "Footers",
    "Largest",
    "LayoutReport",
    "PageFacts",
    "Placement",
    "Spread",
    "StorageShare",
    "examine",
    "facts_of_footers",
    "facts_of_index",
    "glance",
    "size_text",
]
