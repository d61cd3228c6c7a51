"""fastText prediction: our kernels beside the official library, in one process and one run.

    PYTHONPATH=. python benchmarks/fasttext_speed.py DATA [--documents N]

DATA is the folder of real texts (CORPUSKIT_SHARED_DATA). Prints MB per CPU second of the library and
of ours, with no word known ("cold") and again ("warm"), for whole documents and for sentences. With
lid.176.ftz it counts labels and rounded scores that differ. With the embedded model, whose scores we
calibrate and divide among neighbours, which the library does not, only speed is compared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.batch import Utf8, utf8
from corpuskit.stages.annotators._fasttext import DECIMALS, FastTextModel
from corpuskit.stages.annotators.language import EMBEDDED_PATH

CORPORA = {
    "bench_en": "bench_en/*.parquet",
    "bench_multi": "bench_multi/*.parquet",
    "sentences of Tatoeba": "langid/tatoeba_v1.parquet",
}


def documents(folder: Path, pattern: str, num: int) -> Utf8:
    """Return documents spread evenly over the files of a corpus."""
    files = sorted(folder.glob(pattern))
    texts = pa.concat_tables([pq.read_table(file, columns=["text"]) for file in files])["text"]
    rows = np.linspace(0, len(texts) - 1, min(num, len(texts))).astype(np.int64)
    chosen = texts.take(pa.array(rows)).cast(pa.large_string()).combine_chunks()
    return utf8(chosen if isinstance(chosen, pa.Array) else pa.concat_arrays(chosen.chunks))


def official(path: Path, texts: Utf8) -> tuple[list[str], list[float], float]:
    """Return labels, scores and CPU seconds of the library, called without its wrapper."""
    model = fasttext.load_model(str(path)).f
    labels, scores = [], []
    start = time.process_time()
    for row in range(len(texts)):
        found = model.predict(texts.row(row).replace(b"\n", b" ") + b"\n", 1, 0.0, "strict")
        score, label = found[0] if found else (0.0, "")
        labels.append(label.removeprefix("__label__"))
        scores.append(round(score, DECIMALS))
    return labels, scores, time.process_time() - start


def compare(path: Path, texts: Utf8, corpus: str) -> None:
    """Print a line."""
    FastTextModel(path).predict(texts)  # compile
    size = texts.sizes().sum() / 1e6
    labels, scores, theirs = official(path, texts)
    model, seconds = FastTextModel(path), []
    for _ in range(2):
        start = time.process_time()
        found = model.predict(texts)
        seconds.append(time.process_time() - start)
    names = [model.labels[rank] if rank >= 0 else "" for rank in found.ranks[:, 0]]
    differ = sum(a != b for a, b in zip(names, labels, strict=True))
    scores_differ = int((found.scores[:, 0] != np.array(scores)).sum())
    differing = "" if path == EMBEDDED_PATH else f"{differ} / {scores_differ}"
    print(
        f"| {path.name} | {corpus}, {len(texts):,} | {size:.1f} | {size / theirs:.1f} "
        f"| {size / seconds[0]:.1f} | {size / seconds[1]:.1f} "
        f"| {theirs / seconds[0]:.1f}x / {theirs / seconds[1]:.1f}x | {differing} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int, default=1200, help="30 times as many sentences")
    given = parser.parse_args()
    print("| model | texts | MB | fastText | cold | warm | ratio | labels / scores differ |")
    print("|---|---|---|---|---|---|---|---|")
    for name, pattern in CORPORA.items():
        num = given.documents * (30 if name.startswith("sentences") else 1)
        texts = documents(given.data, pattern, num)
        for path in (EMBEDDED_PATH, given.data / "models" / "lid.176.ftz"):
            compare(path, texts, name)


if __name__ == "__main__":
    main()
