"""The package itself: its names, and what it says where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

import pqindex.torch


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names():
    assert pqindex.torch.__all__ == sorted(pqindex.torch.__all__)
    promised = {
        "BatchPlan",
        "Cast",
        "Compose",
        "Map",
        "Normalize",
        "Rename",
        "SequenceDataset",
        "SequenceLoader",
        "SequenceStream",
        "WindowDataset",
        "check_resumable",
        "collate_nested",
        "collate_packed",
        "collate_padded",
    }
    assert promised <= set(pqindex.torch.__all__)
    assert all(hasattr(pqindex.torch, name) for name in pqindex.torch.__all__)


def test_without_torch_the_error_says_how_to_install_it():
    said = run(
        "import sys; sys.modules['torch'] = None\n"
        "import pqindex\n"
        "try:\n"
        "    import pqindex.torch\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error, error.reason)\n"
    )
    assert said == (
        "MissingDependencyError pqindex.torch needs torch, which is not installed. "
        "Hint: pip install pqindex[torch] missing-dependency"
    )


def test_a_broken_torch_is_not_called_missing():
    said = run(
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError('no libtorch', name='libtorch')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "try:\n"
        "    import pqindex.torch\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    assert said == "ModuleNotFoundError no libtorch"
