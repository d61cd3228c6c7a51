"""A training environment that wants the loader alone needs numpy and pyarrow, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from corpuskit.loader import StreamingLoader
from tests.loader.loader_runs import write_plan, write_shards

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that an installer would get, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("corpuskit*.whl"))


@pytest.fixture(scope="module")
def light_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, this environment's numpy and pyarrow, and no more."""
    home = tmp_path_factory.mktemp("light")
    venv.create(home, with_pip=False, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    for name in ("numpy", "pyarrow"):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (site / top).symlink_to(distribution(name).locate_file(top))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return home / "bin" / "python"


def run_light(python: Path, program: str, *arguments: str) -> str:
    """Run a program isolated from this environment's paths and variables."""
    done = subprocess.run(
        [python, "-I", "-W", "error", "-c", program, *arguments],
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "corpuskit"
    here = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("corpuskit/")}
    assert packed == here


def test_only_the_loaders_needs_are_there(light_python: Path) -> None:
    program = """
import json
from importlib.metadata import distributions
print(json.dumps(sorted(found.name for found in distributions())))
"""
    assert json.loads(run_light(light_python, program)) == [
        "corpuskit-pretrain",
        "numpy",
        "pyarrow",
    ]


def test_the_wheel_streams_the_batches_of_a_full_environment(
    light_python: Path, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path / "run", {"web": 90, "books": 40})
    run = write_plan(shards, [(64, {"web": 3, "books": 1})])
    program = """
import sys
import corpuskit.loader
assert corpuskit.loader.__file__.startswith(sys.prefix), corpuskit.loader.__file__
for batch in corpuskit.loader.StreamingLoader(sys.argv[1], global_batch_rows=8):
    print(batch["tokens"].tolist())
"""
    here = [batch["tokens"].tolist() for batch in StreamingLoader(run, global_batch_rows=8)]
    lines = run_light(light_python, program, str(run)).splitlines()
    assert [json.loads(line) for line in lines] == here
    assert len(here) == 8
