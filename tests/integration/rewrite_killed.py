"""Rewrite an index and die at a step of it; run as a child process by its test.

Arguments: the index, the folder to make, which steps count, and the step to die at; 0 to live and print how many there
are. Steps are the calls that change the disk (``disk``), or all calls of C functions (``any``).
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import pqindex

FILE_SIZE = 6000
DISK = {
    "fsync",
    "link",
    "mkdir",
    "open",
    "rename",
    "replace",
    "rmdir",
    "unlink",
    "write",
    "flush",
    "ftruncate",
}


def main() -> None:
    """Rewrite, counting steps."""
    index, out, kind, at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    selection = pqindex.open(index).select()
    seen = 0

    def step(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal seen
        if event == "c_call" and (kind == "any" or function.__name__ in DISK):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(step)
    selection.rewrite(out, file_size=FILE_SIZE)
    sys.setprofile(None)
    print(seen)  # noqa: T201


if __name__ == "__main__":
    main()
