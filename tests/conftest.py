"""What every test may use: the real data, and Hypothesis without a clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent

# The machine that runs this may be busy: an example that takes long is no fault of the code.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In CI the examples are the same every time, so that a red run means a change and not a draw.
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real Parquet files: ``$PQINDEX_SHARED``, or ``shared`` beside the repository."""
    folder = Path(os.environ.get("PQINDEX_SHARED") or REPOSITORY.parent / "shared")
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data: neither $PQINDEX_SHARED nor {folder}/data is there")
    return folder
