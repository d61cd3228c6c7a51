"""The runs whose outputs are recorded: all of `pipelines/`, and three sources of real text."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import yaml

from tests.conftest import ROOT
from tests.engine.here import command_line
from tests.pages import Reader
from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUICKSTART, TRAINING = "pipelines/quickstart.yaml", "pipelines/train_quickstart.yaml"
PIPELINES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("pipelines/**/*.yaml"))
SMALL = [name for name in PIPELINES if name not in (QUICKSTART, TRAINING)]
THREE_SOURCES, FIRST_FILES = "three sources", "three sources, the first file of each"


def small_runs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run the pipelines on sample_data/ in this process; yield the file and its run directory."""
    Reader(folder).settle()
    _call(folder, str(ROOT / "sample_data" / "inputs.py"))
    for name in SMALL:  # sorted: guide/tokens.yaml reads what guide/crawl.yaml writes
        done = command_line(folder, ["run", name, "--quiet"])
        assert done.returncode == 0, done.stderr
        yield name, folder / yaml.safe_load((ROOT / name).read_text("utf-8"))["output"]


def quickstart_runs(folder: Path) -> tuple[Path, Path]:
    """Run the quickstart and train on it; return their folders."""
    Reader(folder).settle()
    _call(folder, "-m", "corpuskit", "run", QUICKSTART)
    _call(folder, "-m", "corpuskit", "train", TRAINING)
    return folder / "runs" / "quickstart", folder / "runs" / "quickstart-train"


def three_sources(folder: Path, name: str) -> Path:
    """Run the pipeline of benchmarks/end_to_end.py; return its run directory.

    Args:
        name: THREE_SOURCES for all 222 MB; FIRST_FILES for 91 MB, at 40 % of the time.
    """
    from benchmarks.end_to_end import pipeline

    content = pipeline(folder / "run", workers=1)
    if name == FIRST_FILES:
        for source in ("web", "multi"):
            pattern = content["sources"][source]["parquet"]
            content["sources"][source]["parquet"] = pattern.replace("*", "*-00000-of-*")
    (folder / "three.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    _call(folder, "-m", "corpuskit", "run", "three.yaml", "--quiet")
    return folder / "run"


def _call(folder: Path, *arguments: str) -> None:
    """Run this interpreter in a folder, with the corpuskit of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True,
        capture_output=True, check=False, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
