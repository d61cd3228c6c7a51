"""What it costs that every run counts what passes through it, and that rules always measure.

    python benchmarks/profile_cost.py [--rounds 3]

bench_en from CORPUSKIT_SHARED_DATA through five filters, and through exact_dedup alone, in this
process: CPU seconds with rules that measure and without, in turn, and the share of the CPU time
that is spent on counting (`profile/`) and on the index of ids (`ids/`). The first round warms up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))

FILTERS = [
    {"language": {"keep": ["en"], "min_score": 0.65}},
    "gopher_repetition",
    "gopher_quality",
    {"c4_quality": {"filter_no_terminal_punct": False}},
    "fineweb_quality",
]


def spent_in(kind: type, names: list[str], spent: dict[str, float]) -> None:
    """Add the CPU seconds of some methods of a class to `spent`, under the name of the class."""
    for name in names:
        method = getattr(kind, name)

        def timed(self: Any, *args: Any, method: Any = method) -> Any:
            began = time.process_time()
            try:
                return method(self, *args)
            finally:
                spent[kind.__name__] += time.process_time() - began

        setattr(kind, name, timed)


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there. Set CORPUSKIT_SHARED_DATA to a folder of real texts.")

    from corpuskit.engine import pipeline, stream
    from corpuskit.engine.plan import read_plan
    from corpuskit.engine.records import Identities, Profile
    from corpuskit.engine.status import funnel
    from tests.engine.here import launcher_here

    spent = {"Profile": 0.0, "Identities": 0.0}
    spent_in(Profile, ["passed", "applied", "write"], spent)
    spent_in(Identities, ["add", "write"], spent)
    pipeline.open_launcher = launcher_here
    measuring = stream.measuring
    with tempfile.TemporaryDirectory() as folder:
        for name, stages in (("filters", FILTERS), ("exact_dedup", ["exact_dedup"])):
            path = Path(folder, f"{name}.yaml")
            source = {"parquet": str(DATA / "bench_en/*.parquet"), "id_column": "id"}
            out = Path(folder, "run")
            given = {"output": str(out), "sources": {"en": source}, "stages": stages}
            path.write_text(yaml.safe_dump(given))
            for number in range(rounds):
                for is_measured in (True, False):
                    stream.measuring = measuring if is_measured else lambda stage: stage
                    shutil.rmtree(out, ignore_errors=True)
                    spent.update(dict.fromkeys(spent, 0.0))
                    began = time.process_time()
                    done = pipeline.run(read_plan(str(path)))
                    total = time.process_time() - began
                    rules = sum(
                        row.cpu_seconds for row in funnel(done.run) if row.stage != "language"
                    )  # fastText takes the same time in either case, give or take 2 s
                    shares = ", ".join(f"{k} {v / total:.1%}" for k, v in spent.items())
                    word = "measured" if is_measured else "not measured"
                    print(
                        f"{name} round {number}, {word}: {total:.2f} CPU s, {rules:.2f} of it in "
                        f"stages but language; {shares}", flush=True,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
