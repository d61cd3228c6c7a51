"""Fixtures that every test may use."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[1]

if os.environ.get("NUMBA_DISABLE_JIT") == "1":
    # Kernels rely on unsigned wrap-around; as plain Python, NumPy scalars would warn about it.
    np.seterr(over="ignore")

# A shell that starts the tests with `&` lets them ignore Ctrl-C, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = (
    "ablate/test_ablate.py",
    "ablate/test_canaries.py",
    "ablate/test_mixture.py",
    "ablate/test_scaling.py",
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
"""Below tests/: what starts processes, trains, gathers files or makes bombs; no unit tests."""


FIRST = (("slurm/",), ("engine/test_ray.py", "storage/"), ("faults/", "train/"))
"""Below tests/: what starts clusters, servers and benches. Each group is the first work of another
test process, so that what it starts is started once, and nobody waits for the longest at the end.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collections; later ones do not search what that imported.

    They take 2.6 of 16 CPU s of each test process, and .5 s each later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # modules and tests stay
        gc.enable()


def place_of(item: pytest.Item) -> str:
    """Return where a test is, below tests/."""
    return item.path.relative_to(ROOT / "tests").as_posix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is no part of the unit suite as slow; begin with what takes longest to set up."""
    for item in items:
        if place_of(item).startswith(PROCESSES):
            item.add_marker(pytest.mark.slow)
    items[:] = spread(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def spread(items: list[pytest.Item], num_workers: int) -> list[pytest.Item]:
    """Return the tests in the order in which `--dist worksteal` does as FIRST says.

    It hands each process an equal run of the list, and later the end of the longest run left. So
    files with slow tests come first in each run: at the end only brief tests are left to share.
    """
    if num_workers == 1:
        return items
    heads: list[list[pytest.Item]] = [[] for _ in range(num_workers)]
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    long, brief = [], []
    for item in items:
        numbers = [n for n, group in enumerate(FIRST) if place_of(item).startswith(group)]
        rest = long if item.path in slow_files else brief
        (heads[numbers[0] % num_workers] if numbers else rest).append(item)
    ordered = []
    for left, head in zip(range(num_workers, 0, -1), heads, strict=True):
        size, num_long = (len(items) - len(ordered)) // left, len(long) // left
        num_brief = max(0, size - len(head) - num_long)
        ordered += [*head, *long[:num_long], *brief[:num_brief]]
        del long[:num_long], brief[:num_brief]
    return [*ordered, *brief]


def shared_folder() -> Path:
    """Return where real data is looked for: it is not part of the project, and may be absent."""
    folder = os.environ.get("CORPUSKIT_SHARED_DATA")
    return Path(folder) if folder else ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data, or skip."""
    folder = shared_folder()
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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running S3 server; skips where the extra `s3` or moto is missing."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    from tests.s3_server import S3Server

    server = S3Server().start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server without faults, named by the environment."""
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    s3_server.calm()
    yield s3_server
    s3_server.calm()
