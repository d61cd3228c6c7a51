"""How often verdicts are right: `python -m tests.ablate --num 100 --harm none shuffled`."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.ablate.trials import HARMS, ablate, write_trial


def main() -> None:
    """Run trials; print each verdict and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--harm", nargs="+", choices=HARMS, default=["none", "shuffled"])
    parser.add_argument("--tokens", default="100K")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seeds", default="5")
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=1)
    asked = parser.parse_args()
    counts = {harm: {"worse": 0, "better": 0, "undecided": 0} for harm in asked.harm}
    for seed in range(asked.first, asked.first + asked.num):
        with tempfile.TemporaryDirectory() as folder:
            for harm in asked.harm:  # the trainings of the first half are those of all harms
                begun = time.process_time()
                arguments = write_trial(
                    Path(folder), seed, harm, most=asked.documents, epochs=asked.epochs,
                    rows=asked.rows,
                )  # fmt: skip
                arguments += ["--tokens", asked.tokens, "--seeds", asked.seeds]
                results = ablate(arguments)
                spent = time.process_time() - begun
                begun = time.process_time()
                ablate(arguments)  # corpora and trainings are there: what the command itself costs
                again = time.process_time() - begun
                one = results["sizes"]["tiny"]["differences"][0]["bits_per_byte"][""]
                verdict = "undecided"
                if one["is_decided"]:
                    verdict = "worse" if one["mean"] > 0 else "better"
                counts[harm][verdict] += 1
                facts = {key: one[key] for key in ("seeds", "unit_variance", "low", "high")}
                print(f"{harm} {seed}: {one['mean']:+.4f} {verdict}, {spent:.1f} CPU s, "
                      f"finished {again:.2f}", json.dumps(facts), flush=True)  # fmt: skip
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
