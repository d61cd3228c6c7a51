"""What it costs that a phase compares all it reads with the seals of the phases before.

    python benchmarks/verified_reads.py [--rounds 3]

The three sources of benchmarks/end_to_end.py from CORPUSKIT_SHARED_DATA, in this process, with
verified reads and without, in turn: CPU seconds of the whole run, and of the hashes alone while
parts are written and read. "before" is how it was: parts hashed with blake2b when they are
written, and never again. The first round warms up.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.end_to_end import DATA, pipeline  # noqa: E402 - after the path is set

if TYPE_CHECKING:
    from collections.abc import Callable

SPENT: Counter[str] = Counter()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, its CPU seconds added to SPENT."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[name] += time.process_time() - began

    return call


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there. Set CORPUSKIT_SHARED_DATA to a folder of real texts.")

    from corpuskit.engine import context
    from corpuskit.engine import pipeline as runner
    from corpuskit.engine.plan import read_plan
    from corpuskit.formats import shards, shuffle_files
    from corpuskit.stages.sequences import shuffle
    from corpuskit.storage import Stored, digest_file, open_place, store
    from tests.engine.here import launcher_here

    runner.open_launcher = launcher_here
    digest_footer, check_batch = store.digest_footer, shuffle_files.crc32

    def unverified(place: Any) -> Any:
        return open_place(Stored(place.store, place.name) if isinstance(place, Stored) else place)

    with tempfile.TemporaryDirectory() as folder:
        out, path = Path(folder, "run"), Path(folder, "p.yaml")
        path.write_text(yaml.safe_dump(pipeline(out, 1)))
        for number in range(rounds):
            for is_verified in (True, False):
                whole = timed("parts read whole", store.open_whole) if is_verified else unverified
                shards.open_whole = shuffle.open_whole = whole
                context.digest_part = timed(
                    "parts written", store.digest_part if is_verified else digest_file
                )
                store.digest_footer = context.digest_footer = timed(
                    "footers", digest_footer if is_verified else lambda _: ""
                )
                shuffle_files.crc32 = timed("batches", check_batch if is_verified else lambda _: 0)
                shutil.rmtree(out, ignore_errors=True)
                SPENT.clear()
                began = time.process_time()
                runner.run(read_plan(str(path)))
                total = time.process_time() - began
                shares = ", ".join(f"{k} {v:.3f} s" for k, v in sorted(SPENT.items()))
                word = "verified" if is_verified else "before"
                print(f"round {number}, {word}: {total:.2f} CPU s; {shares}", flush=True)


if __name__ == "__main__":
    main()
