"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]

if os.environ.get("NUMBA_DISABLE_JIT") == "1":
    # Kernels rely on unsigned wrap-around; as plain Python, NumPy scalars would warn about it.
    np.seterr(over="ignore")


PROCESSES = (
    "faults/",
    "run/",
    "security/",
    "slurm/",
    "storage/",
    "train/",
    "test_one_file_stage.py",
    "test_docs.py",
    "test_sample_gather.py",
)
"""Below tests/: what starts processes, gathers files or makes bombs; no part of the unit suite."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is no part of the unit suite as slow."""
    for item in items:
        place = item.path.relative_to(ROOT / "tests").as_posix()
        if place.startswith(PROCESSES):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data, or skip: it is not part of the project."""
    given = os.environ.get("CORPUSKIT_SHARED_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not (folder / "README.md").exists():
        pytest.skip(f"no real data at {folder}: set CORPUSKIT_SHARED_DATA")
    return folder
