"""Fixtures that every test may use."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]

if os.environ.get("NUMBA_DISABLE_JIT") == "1":
    # Kernels rely on unsigned wrap-around; as plain Python, NumPy scalars would warn about it.
    np.seterr(over="ignore")

# A shell that starts the tests with `&` lets them ignore Ctrl-C, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = (
    "engine/",
    "baseline/",
    "faults/",
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


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which the README was followed to its end, and what went wrong there.

    Made once for all test processes. Its runs must not be changed: copy them.
    """
    from tests.pages import Reader

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, found = shared / "clone", shared / "clone.json"
    with (shared / "clone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            folder.mkdir()
            found.write_text(json.dumps(Reader(folder, apart=True).read(ROOT / "README.md")))
    return folder, json.loads(found.read_text())
