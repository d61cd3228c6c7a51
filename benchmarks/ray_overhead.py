"""What a task costs on top of its work: the same small tasks in the local pool and on Ray.

    python benchmarks/ray_overhead.py [--tasks 1000] [--cpus 2]

Every task is one JSONL file of one short document: what is measured is launching and committing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.executors.local import Pool
from corpuskit.engine.executors.ray import RayLauncher
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from corpuskit.engine.executors import Launcher


class Clock(RunCallbacks):
    """Notes when the first and the last task of the first phase ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def task_ends(self, event: str, fields: dict[str, object]) -> None:
        self.ends.append(time.perf_counter())


def measure(folder: Path, kind: str, launcher: Launcher) -> None:
    pipeline = {
        "output": str(folder / kind),
        "sources": {"web": {"jsonl": str(folder / "in" / "*.jsonl")}},
        "stages": ["gopher_quality"],
    }
    path = folder / f"{kind}.yaml"
    path.write_text(json.dumps(pipeline))
    clock, began = Clock(), time.perf_counter()
    run(read_plan(path), clock, launcher=launcher)
    ended = time.perf_counter()
    rest = clock.ends[-1] - clock.ends[0]
    print(
        f"{kind:6} {len(clock.ends)} tasks: first after {clock.ends[0] - began:.1f} s, then "
        f"{1000 * rest / (len(clock.ends) - 1):.1f} ms each; whole run {ended - began:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for number in range(options.tasks):
            document = {"text": f"A short document, the one with the number {number}."}
            (folder / "in" / f"{number:06d}.jsonl").write_text(json.dumps(document) + "\n")
        for kind in ("local", "ray"):
            store = open_store(str(folder / kind))
            if kind == "local":
                measure(folder, kind, Pool(store, options.cpus, 1))
            else:
                measure(folder, kind, RayLauncher(store, workers=options.cpus))


if __name__ == "__main__":
    main()
