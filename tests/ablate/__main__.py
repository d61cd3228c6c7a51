"""How often verdicts are right: `python -m tests.ablate --num 100 --harm none shuffled`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.ablate.trials import HARMS, ablate, write_trial


def main() -> None:
    """Run trials; print each verdict and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--harm", nargs="+", choices=HARMS, default=HARMS)
    parser.add_argument("--tokens", default="100K")
    parser.add_argument("--seeds", default="5")
    asked = parser.parse_args()
    for harm in asked.harm:
        counts = {"worse": 0, "better": 0, "undecided": 0}
        begun, again = time.process_time(), 0.0
        for seed in range(asked.first, asked.first + asked.num):
            with tempfile.TemporaryDirectory() as folder:
                arguments = write_trial(Path(folder), seed, harm)
                arguments += ["--tokens", asked.tokens, "--seeds", asked.seeds]
                results = ablate(arguments)
                finished = time.process_time()
                ablate(arguments)  # corpora and trainings are there: what the command itself costs
                again += time.process_time() - finished
            one = results["sizes"]["tiny"]["differences"][0]["bits_per_byte"][""]
            verdict = "undecided"
            if one["is_decided"]:
                verdict = "worse" if one["mean"] > 0 else "better"
            counts[verdict] += 1
            print(f"{harm} {seed}: {one['mean']:+.4f} [{one['low']:+.4f}, {one['high']:+.4f}] "
                  f"{verdict}", flush=True)  # fmt: skip
        spent = (time.process_time() - begun - again) / asked.num
        print(f"{harm}: {counts}, {spent:.1f} CPU s a trial, of a finished study "
              f"{again / asked.num:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
