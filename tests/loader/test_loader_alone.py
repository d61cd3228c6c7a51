"""The loader is importable, and streams, where there is nothing but NumPy and PyArrow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from loader_runs import Shards, write_plan

from corpuskit.distribution import install_command

ROOT = Path(__file__).resolve().parents[2]

STREAM = """
import sys

class OnlyTheTwo:
    '''Refuses to find what is neither ours, nor one of the two, nor Python's own.'''

    known = {"corpuskit", "numpy", "pyarrow", *sys.stdlib_module_names}

    def find_spec(self, name, path=None, target=None):
        # _sysconfigdata_<platform> is Python's own, too, under a name that differs everywhere.
        if name.partition(".")[0] not in self.known and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyTheTwo())
from corpuskit.loader import StreamingLoader

with StreamingLoader(sys.argv[1], 8) as loader:
    steps = sum(1 for _ in loader)
    found = loader.occurrences(loader.which(3)[0].documents[0].id)
    loader.load_state_dict(loader.state_dict())
print(steps, 3 in [sighting.step for sighting in found])
ours = {name for name in sys.modules if name.startswith("corpuskit.")}
print(*sorted(name for name in ours if not name.startswith("corpuskit.loader")))
try:
    StreamingLoader("s3://bucket/run", 8)
except Exception as error:
    print(error)
"""


@pytest.mark.slow
def test_it_streams_with_numpy_and_pyarrow_alone(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, [(100, {"web": 1})], folder=run_dir)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STREAM, str(run)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "12 True",
        "corpuskit.errors",
        f"s3://bucket: object storage needs the extra s3. Run: {install_command('s3')}",
    ]
