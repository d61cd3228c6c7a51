"""Read damaged files: `python -m tests.fuzz --num 2000`, or one with `--format warc --seed N`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.soak import say
from tests.fuzz.formats import FORMATS
from tests.fuzz.runner import EXPECTED, fuzz, judge, serve


def main() -> int:
    """Read the arguments; exit code 1 if there was any finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--format", nargs="*", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--seed", type=int, help="judge this one and say what happens")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--num", type=int, default=500, help="how many cases of each format")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]), int(given.serve[2]))
        return 0
    if given.seed is not None:
        with tempfile.TemporaryDirectory() as folder:
            say("\n".join(map(str, judge(given.format[0], given.seed, Path(folder)))))
        return 0
    is_bad = False
    say("| format | cases | read | refused | aborted by Arrow | findings | most CPU s | most MiB |")
    say("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in given.format:
        verdicts = fuzz(name, given.first, given.num)
        counts = [sum(one.outcome == kind for one in verdicts) for kind in EXPECTED]
        bad = [one for one in verdicts if one.is_bad]
        say(
            f"| {name} | {len(verdicts)} | {counts[0]} | {counts[1]} | {counts[2]} | {len(bad)} "
            f"| {max(one.seconds for one in verdicts):.2f} "
            f"| {max(one.grown_bytes for one in verdicts) >> 20} |"
        )
        for one in bad:
            say(f"    seed {one.seed}: {one.outcome}\n{one.detail}")
        is_bad = is_bad or bool(bad)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
