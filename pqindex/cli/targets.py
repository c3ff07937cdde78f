"""Words on the command line that may name an index or a manifest."""

from __future__ import annotations

import os

import pqindex
from pqindex.errors import NotFoundError


def open_target(path: str, *, root: str | None) -> pqindex.Index | pqindex.Manifest:
    """Open a folder as an index and a file as a manifest.

    Raises
    ------
    NotFoundError
        If there is neither.
    """
    if os.path.isdir(path):
        return pqindex.open(path, root=root, staleness="ignore")
    if os.path.exists(path):
        return pqindex.load_manifest(path, root=root)
    raise NotFoundError(f"neither an index nor a manifest is there: {path}", hint="check the path", path=path)
