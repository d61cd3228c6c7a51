"""Kill the real pipeline again and again, then let it finish: the same bytes?

    python benchmarks/kills.py [--times 20] [--seed 0]

Runs benchmarks/end_to_end.py's pipeline once undisturbed, then in another directory with a SIGKILL
to a random worker and shortly after to the whole process group, `--times` times at random moments;
after four of them it runs to the end, and a fresh directory is taken. Compares every file of documents/, tokens/, mix/ and ledger/. Also shows what an
edit costs: the phases that run again, and the seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from end_to_end import DATA, ROOT, children_cpu, pipeline

ROUND = 4
"""Kills per run: a fresh directory after as many."""


def tree(folder: Path) -> dict[str, str]:
    found = {}
    for name in ("documents", "tokens", "mix", "ledger"):
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
                found[path.relative_to(folder).as_posix()] = digest
    return found


def start(path: Path, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "corpuskit", "run", str(path), *more], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def kill(path: Path, rng: random.Random, longest: float) -> tuple[float, float]:
    """Kill a worker, then the group; return after how many seconds each."""
    process = start(path)
    first, second = rng.uniform(0.5, longest), rng.uniform(0.0, 1.5)
    time.sleep(first)
    found = subprocess.run(
        ["pgrep", "-P", str(process.pid)], text=True, capture_output=True, check=False
    )
    if pids := found.stdout.split():
        os.kill(int(rng.choice(pids)), signal.SIGKILL)
    time.sleep(second)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return first, first + second


def finish(path: Path, *more: str) -> tuple[float, float, list[str]]:
    """Run to the end; return CPU seconds, wall seconds and the phases that were not reused."""
    cpu, wall = children_cpu(), time.perf_counter()
    process = start(path, *more)
    printed, _ = process.communicate()
    if process.returncode:
        sys.exit(printed)
    phases = [line.split(":")[0] for line in printed.splitlines() if " units in " in line]
    return children_cpu() - cpu, time.perf_counter() - wall, phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {}
        for label in ("calm", "killed"):
            paths[label] = folder / f"{label}.yaml"
            content = {"name": "real", **pipeline(folder / label, 2)}
            content["stages"][2]["gopher_quality"]["materialize"] = True
            content["cell_bytes"] = 8 << 20  # tasks of half a second: kills reach every phase
            paths[label].write_text(yaml.safe_dump(content, sort_keys=False))
        cpu, wall, _ = finish(paths["calm"])
        print(f"undisturbed: {cpu:.1f} CPU s, {wall:.1f} s wall")
        is_same = True
        for number in range(options.times):
            if number % ROUND == 0:
                shutil.rmtree(folder / "killed", ignore_errors=True)
            worker, group = kill(paths["killed"], rng, 5.0)
            seals = len(list((folder / "killed" / "manifests").glob("*/seal.json")))
            print(
                f"kill {number + 1:2}: a worker at {worker:.1f} s, all at {group:.1f} s; {seals} phases sealed"
            )
            if (number + 1) % ROUND == 0 or number + 1 == options.times:
                cpu, wall, phases = finish(paths["killed"])
                calm, killed = tree(folder / "calm"), tree(folder / "killed")
                is_same = is_same and calm == killed
                verdict = "identical" if calm == killed else "DIFFERENT"
                print(
                    f"to the end: {cpu:.1f} CPU s, {wall:.1f} s wall, {len(phases)} phases run; {len(calm)} files {verdict}"
                )
        edits(paths["calm"])
        sys.exit(not is_same)


def edits(path: Path) -> None:
    """Show what a few edits cost on a finished run."""
    for edit in (
        "pack.seq_len=1024",
        "pii.min_ipv4_part=0",
        "minhash_dedup.bands=10",
        "gopher_quality.min_words=60",
        "holdout.ratio=0.01",
    ):
        plan = subprocess.run(
            [sys.executable, "-m", "corpuskit", "plan", str(path), "--set", edit, "--json"], cwd=ROOT,
            text=True, capture_output=True, check=True,
        )  # fmt: skip
        states = {row["phase"]: row["state"] for row in json.loads(plan.stdout)}
        reused = sum(state == "reuse" for state in states.values())
        cpu, wall, phases = finish(path, "--set", edit)
        print(
            f"--set {edit}: plan reuses {reused} of {len(states)}; ran {len(phases)} phases from {phases[0]}, {cpu:.1f} CPU s, {wall:.1f} s wall"
        )
        finish(path)


if __name__ == "__main__":
    main()
