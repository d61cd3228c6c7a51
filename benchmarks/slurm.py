"""Thousands of tasks on a real Slurm: what does the cluster add, and do the bytes stay the same?

    python benchmarks/slurm.py [--tasks 5000] [--slots 4] [--workers 2] [--nodes 2]

Makes a Slurm cluster on this machine (root, `apt-get install slurm-wlm munge`) whose MaxArraySize
is Slurm's default, 1001, and runs a filter over as many cells of a kilobyte as there are tasks: there
and in the local executor. Nearly all of it is what a task costs beside its work, so the two are
compared in seconds per task, and in the files that they write.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from end_to_end import ROOT

sys.path.insert(0, str(ROOT))
from tests.slurm.cluster import Cluster, missing

CELL_BYTES = 1024
WORDS = "the of and to that with have be river stone market winter letter garden engine".split()


def write_input(path: Path, num: int) -> None:
    """Write documents of a cell's size, one per cell."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(num):
            document = {"id": f"d{number:08d}", "text": ""}
            room = CELL_BYTES - 1 - len(json.dumps(document))
            document["text"] = " ".join(rng.choices(WORDS, k=400))[:room]
            file.write(json.dumps(document) + "\n")


def pipeline(folder: Path, given: argparse.Namespace) -> Path:
    path = folder / "p.yaml"
    content = {
        "output": str(folder / "out"),
        "cell_bytes": CELL_BYTES,
        "sources": {"web": {"jsonl": str(folder / "in.jsonl"), "id_column": "id"}},
        "stages": [{"gopher_quality": {"words": "whitespace"}}],
        "executor": {
            "workers": given.workers, "tasks": given.tasks, "slurm": {"slots": given.slots},
        },
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run(path: Path, environment: dict[str, str], *more: str) -> float:
    """Run the pipeline; return the seconds."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(path), *more], check=True,
        stdout=subprocess.DEVNULL, env={**environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return time.perf_counter() - begun


def tree(folder: Path) -> dict[str, str]:
    paths = [path for name in ("documents", "ledger") for path in (folder / name).rglob("*")]
    return {
        path.relative_to(folder).as_posix(): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("tasks", 5000), ("slots", 4), ("workers", 2), ("nodes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if why := missing():
        parser.error(why)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cpus = -(-given.slots // given.nodes) * given.workers
    cluster = Cluster(folder / "cluster", nodes=given.nodes, cpus=cpus, max_array=1001)
    try:
        write_input(folder / "in.jsonl", given.tasks)
        path = pipeline(folder, given)
        begun = time.perf_counter()
        cluster.up()
        print(
            f"cluster of {given.nodes} nodes, {cpus} CPUs each: up in {time.perf_counter() - begun:.1f} s"
        )
        there = run(path, cluster.environment, "--executor", "slurm", "--wait")
        manifests = len(list((folder / "out" / "manifests").rglob("*.json")))
        print(
            f"slurm: {given.tasks} tasks in {given.slots} slots of {given.workers} workers: {there:.1f} s, "
            f"{1e3 * there / given.tasks:.1f} ms per task, {manifests} manifests and seals"
        )
        local = [
            "--set",
            f"output={folder / 'local'}",
            "--workers",
            str(given.slots * given.workers),
        ]
        here = run(path, dict(os.environ), *local)
        print(
            f"local: {given.tasks} tasks, {given.slots * given.workers} workers: {here:.1f} s; slurm/local {there / here:.2f}"
        )
        same = tree(folder / "out") == tree(folder / "local")
        print(
            f"{len(tree(folder / 'out'))} files, {'the same bytes' if same else 'DIFFERENT bytes'}"
        )
        sys.exit(not same)
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
