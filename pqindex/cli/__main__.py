"""The command line for ``python -m pqindex.cli``."""

from __future__ import annotations

import sys

from pqindex.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
