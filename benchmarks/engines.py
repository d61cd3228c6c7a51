"""The same plan on every engine: local workers, a real Slurm, a real Ray, and S3 addresses.

    python benchmarks/engines.py [--pipeline quickstart|real] [--only local s3 slurm ray]

Runs the quickstart (sample_data/) or the three real sources of CORPUSKIT_SHARED_DATA on each engine and
compares every file of documents/, tokens/, mix/, ledger/ and holdout/ with those of the local run, byte
for byte. Slurm is one machine with two virtual nodes (Debian's slurm-wlm and munge, as root); S3 is moto's
server on the loopback, a slow Python program, so its wall time says nothing about S3.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.end_to_end import DATA, pipeline  # noqa: E402
from tests.s3_server import S3Server  # noqa: E402
from tests.slurm.cluster import Cluster, missing  # noqa: E402

FOLDERS = ("documents", "tokens", "mix", "ledger", "holdout")
BUCKET = "corpus"


def plan_of(name: str, output: str) -> dict[str, Any]:
    """Return the pipeline with local inputs."""
    if name == "real":
        return {**pipeline(Path(), 2), "output": output}
    return {
        **yaml.safe_load((ROOT / "pipelines" / "quickstart.yaml").read_text()),
        "output": output,
    }


def run(plan: dict[str, Any], folder: Path, *options: str, **environment: str) -> float:
    """Run a plan; return the wall seconds."""
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(path), *options], cwd=ROOT, text=True,
        capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    if done.returncode:
        for log in sorted(Path(plan["output"]).glob("logs/*.log")):
            print(f"--- {log.name}\n{log.read_text()[-2000:]}")
        sys.exit(f"{options}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - began


def digests(address: str) -> dict[str, str]:
    """Return name -> hash of every file that a user keeps."""
    from corpuskit.storage import open_store

    store = open_store(address)
    names = [name for folder in FOLDERS for name in store.list(folder)]
    return {name: hashlib.blake2b(store.read(name)).hexdigest() for name in names}


def to_s3(plan: dict[str, Any], base: str) -> dict[str, Any]:
    """Upload the inputs of a plan; return the plan with addresses instead of paths."""
    from corpuskit.storage import open_store

    store = open_store(base)
    sources = {}
    for name, source in plan["sources"].items():
        kind = next(key for key in source if key in ("jsonl", "parquet", "text"))
        pattern = Path(source[kind])
        for path in (ROOT / pattern.parent).glob(pattern.name):
            store.put(f"in/{name}/{path.name}", path.read_bytes())
        sources[name] = {**source, kind: f"{base}/in/{name}/{pattern.name}"}
    return {**plan, "sources": sources}


def on_s3(name: str, folder: Path) -> tuple[float, dict[str, str]]:
    """Run with inputs, output and run directory in object storage."""
    server = S3Server().start()
    try:
        os.environ.update(server.env)
        server.make_bucket(BUCKET)
        plan = to_s3(plan_of(name, f"s3://{BUCKET}/run"), f"s3://{BUCKET}/corpus")
        server.requests()
        seconds = run(plan, folder)
        print(f"{'':8} {len(server.requests()):,} requests to S3")
        return seconds, digests(f"s3://{BUCKET}/run")
    finally:
        server.stop()
        for variable in server.env:
            os.environ.pop(variable, None)


def on_slurm(name: str, folder: Path) -> tuple[float, dict[str, str]]:
    """Run as job arrays on two virtual nodes."""
    cluster = Cluster(folder / "slurm")
    cluster.up()
    try:
        options = ("--executor", "slurm", "--wait", "--set", "executor.slurm.slots=2")
        plan = plan_of(name, str(folder / "on-slurm"))
        seconds = run(plan, folder, *options, "--workers", "1", **cluster.environment)
        return seconds, digests(str(folder / "on-slurm"))
    finally:
        cluster.down()


def on_ray(name: str, folder: Path) -> tuple[float, dict[str, str]]:
    """Run as plain Ray tasks on a Ray of this machine."""
    seconds = run(plan_of(name, str(folder / "on-ray")), folder, "--executor", "ray")
    return seconds, digests(str(folder / "on-ray"))


def on_local(name: str, folder: Path) -> tuple[float, dict[str, str]]:
    """Run with two worker processes."""
    return run(plan_of(name, str(folder / "local")), folder), digests(str(folder / "local"))


ENGINES = {"local": on_local, "s3": on_s3, "slurm": on_slurm, "ray": on_ray}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", choices=["quickstart", "real"], default="quickstart")
    parser.add_argument("--only", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    options = parser.parse_args()
    if options.pipeline == "real" and not DATA.exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    expected: dict[str, str] = {}
    is_same = True
    for engine in ["local", *(name for name in options.only if name != "local")]:
        if engine == "slurm" and missing():
            print(f"slurm: left out, {missing()}")
            continue
        with tempfile.TemporaryDirectory(prefix="ck-") as name:
            seconds, found = ENGINES[engine](options.pipeline, Path(name))
        expected = expected or found
        different = {n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)}
        is_same = is_same and not different
        print(
            f"{engine:8} {seconds:8.1f} s wall, {len(found)} files, {len(different)} differ from local"
        )
    sys.exit(0 if is_same else 1)


if __name__ == "__main__":
    main()
