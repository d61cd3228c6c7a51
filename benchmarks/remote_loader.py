"""The loader over a slow object store: does read-ahead hide it, and how often is a byte fetched?

    python benchmarks/remote_loader.py [--delay-ms 80] [--step-ms 20]

Starts an S3 server of its own on the loopback (tests/s3_server.py, moto in memory) that waits before
it answers a request. One rank takes the steps of a run, each followed by a pause in the place of
training; printed is what it waited for. Then the ranks of a machine read a run together, with and
without a cache; printed is how often each stored byte was fetched.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from corpuskit.loader import StreamingLoader  # noqa: E402 - may lie beside, not installed
from corpuskit.storage import open_store  # noqa: E402
from tests.loader.loader_runs import write_plan, write_shards  # noqa: E402
from tests.s3_server import Fault, S3Server  # noqa: E402

SEQ_LEN, BATCH = 2048, 64
ROWS = {"web": 5120, "books": 2048, "code": 1024}

# ruff: noqa: ANN201


def main() -> None:
    """Make a run, put it into a store that is slow, and read it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--delay-ms", type=float, default=80.0)
    parser.add_argument("--step-ms", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, stored = make_run(Path(folder) / "run")
        server = S3Server().start()
        try:
            os.environ.update(server.env)
            address = f"{server.make_bucket('bench')}/run"
            store = open_store(address)
            for path in run.rglob("*"):
                if path.is_file():
                    store.put(path.relative_to(run).as_posix(), path.read_bytes())
            slow = Fault("hang", "GET", num=1_000_000, seconds=given.delay_ms / 1000)
            server.order(slow)
            print(f"{stored / 1e6:.0f} MB in parts, {given.delay_ms:g} ms a request,", end=" ")
            print(f"steps of {BATCH * SEQ_LEN:,} tokens and {given.step_ms:g} ms\n")
            print("threads  open ms  first ms  wait ms p50  p99  max  requests  CPU s")
            for threads in (1, 2, 4, 8, 16):
                wait(address, threads, given.step_ms / 1000)
            server.calm()
            print("\nranks  cache  fetched / stored  requests  row groups from the cache")
            for ranks in (1, 2, 4, 8):
                for is_cached in (False, True):
                    share(address, ranks, stored, Path(folder, f"{ranks}") if is_cached else None)
        finally:
            server.stop()


def make_run(folder: Path):
    shards = write_shards(folder, ROWS, seq_len=SEQ_LEN, part_rows=1024)
    total = sum(ROWS.values())
    run = write_plan(shards, [(total, {name: rows // 1024 for name, rows in ROWS.items()})])
    return run, sum(part["size_bytes"] for part in shards.index)


def wait(address: str, threads: int, step_seconds: float) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    # Windows of 2,048 rows, so that there are several.
    with StreamingLoader(
        address, BATCH, reader_threads=threads, read_ahead_bytes=2 * 2048 * (SEQ_LEN + 1) * 2
    ) as loader:
        ready = time.perf_counter()
        waits = []
        batches = iter(loader)
        for _ in range(loader.num_steps):
            asked = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - asked)
            time.sleep(step_seconds)
        counts = loader.read_counts
    first, rest = waits[0] * 1000, np.array(waits[1:]) * 1000
    print(
        f"{threads:7}  {(ready - began) * 1000:7.0f}  {first:8.0f}  {np.median(rest):11.1f}"
        f"  {np.quantile(rest, 0.99):3.0f}  {rest.max():3.0f}  {counts.requests:8}"
        f"  {time.process_time() - cpu:5.2f}"
    )


def share(address: str, ranks: int, stored: int, cache: Path | None) -> None:
    counts = []

    def read(rank: int) -> None:
        with StreamingLoader(address, BATCH, rank, ranks, cache_dir=cache) as loader:
            for _ in loader:
                pass
            counts.append(loader.read_counts)

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"{ranks:5}  {'yes' if cache else 'no':5}"
        f"  {sum(one.fetched_bytes for one in counts) / stored:16.2f}"
        f"  {sum(one.requests for one in counts):8}  {sum(one.cache_hits for one in counts):25}"
    )


if __name__ == "__main__":
    main()
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
