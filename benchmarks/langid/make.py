"""Make the embedded language model from its texts, in one command.

    export CORPUSKIT_SHARED_DATA=...   # the folder that holds langid/ and bench_en/
    PYTHONPATH=. python benchmarks/langid/make.py out packages   # out/langid.ftz, out/langid.near/; 8 CPU minutes

Texts come first (texts.py; translations.py tells what packages are), then training, in one thread,
quantization and calibration (calibrate.py), then the models of neighbours (neighbours.py). The same
packages give the same files, byte for byte; with `--lines 20000` two runs show it in a minute. Those
of the shipped model are in packages.sha256; Debian replaces Firefox's with each release; the old are
at snapshot.debian.org.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from corpuskit.stages.annotators._fasttext import ClassifierSettings, train, training_line

# No word has a row (min_count): runs of one to four characters alone, hashed to 250,000 rows.
SETTINGS = ClassifierSettings(
    dim=16, epochs=6, lr=1.0, minn=1, maxn=4, buckets=250_000, min_count=1_000_000, seed=1
)


def check_packages(packages: Path) -> None:
    """Print which packages are not those that the shipped model was made from."""
    for line in Path(__file__).with_name("packages.sha256").read_text().splitlines():
        digest, name = line.split()
        path = packages / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            print(f"{path}: not the file of packages.sha256. The model will be another one.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--lines", type=int, help="train on so many lines only")
    given = parser.parse_args()
    here = Path(__file__).parent
    if not (given.out / "train.parquet").exists():
        check_packages(given.packages)
        subprocess.run([sys.executable, here / "texts.py", given.out, given.packages], check=True)
    rows = pq.read_table(given.out / "train.parquet").to_pylist()
    random.Random(1).shuffle(rows)
    lines, path = given.out / "train.txt", given.out / "langid.ftz"
    with lines.open("w") as file:
        file.writelines(training_line(row["text"], row["label"]) for row in rows[: given.lines])
    model = train(lines, SETTINGS)
    model.quantize(lines, SETTINGS, cutoff=0)
    model.save(path)
    command = [sys.executable, here / "calibrate.py", path, given.out, "--write"]
    subprocess.run(command, check=True)
    subprocess.run([sys.executable, here / "neighbours.py", path, given.out], check=True)
    for made in (path, *sorted(path.with_suffix(".near").iterdir())):
        print(f"{made}: sha256 {hashlib.sha256(made.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
