"""Play random fault schedules: `python -m tests.faults --num 2000`, or one with `--seed N`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tests.faults.bench import Bench, ReferringBench
from tests.faults.soak import open_range, say, soak

if TYPE_CHECKING:
    from tests.faults.runner import Outcome


def report(total: Outcome) -> None:
    """Print what went wrong, and what came of it."""
    for kind, num in sorted(total.fired.items()):
        say(f"{num:8,}  {kind}")
    say(f"{total.runs:8,}  runs of the pipeline")
    say(f"{total.orphans:8,}  files of late zombies, deleted by the next run")
    say(f"{total.partial:8,}  partial files accepted")
    say(f"{len(total.problems):8,}  problems (0 is what is wanted)")
    if total.problems:
        say("replay one with: python -m tests.faults --seed N")


def main() -> int:
    """Read the arguments; exit code 1 if there was any problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and say what happens")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--num", type=int, default=2000, help="how many schedules")
    parser.add_argument(
        "--histories", action="store_true", help="edit sources and their files between runs"
    )
    parser.add_argument(
        "--referring", action="store_true", help="texts stay in Parquet files of the input"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    kind = ReferringBench if given.referring else Bench
    if given.seed is None:
        total = soak(given.first, given.num, given.jobs, given.histories, kind)
    else:
        home = open_range(kind)
        home.trace = say
        total = home.play(home.draw(given.seed, is_history=given.histories))
    report(total)
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
