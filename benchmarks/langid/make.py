"""Make the embedded language model from the two sets of texts, in one command.

    export CORPUSKIT_SHARED_DATA=...                     # the folder that holds langid/ and bench_en/
    PYTHONPATH=. python benchmarks/langid/make.py out    # out/langid.ftz; about 5 CPU minutes

It is what `python benchmarks/langid/texts.py out` and `corpuskit classifier train out/train.parquet
--output out/langid.ftz --dim 20 --epochs 8 --lr 0.6 --minn 1 --maxn 3 --buckets 110000 --min-count
1000000 --quantize --seed 1` do one after the other. table.py prints its figures.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

from corpuskit.stages.annotators._classifier import Shrink, train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings
from corpuskit.stages.annotators._labelled import Labelled

# No word has a row (min_count): runs of one to three characters alone, hashed to 110,000 rows.
SETTINGS = ClassifierSettings(
    dim=20, epochs=8, lr=0.6, minn=1, maxn=3, buckets=110_000, min_count=1_000_000, seed=1
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    texts = Path(__file__).with_name("texts.py")
    subprocess.run([sys.executable, str(texts), str(given.out)], check=True)
    model = given.out / "langid.ftz"
    rows = Labelled((given.out / "train.parquet",))
    train_classifier(rows, model, SETTINGS, shrink=Shrink(quantize=True), progress=print)
    print(f"{model}: sha256 {hashlib.sha256(model.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
