"""fastText prediction: our kernel beside the official library, in one process and one run.

    python benchmarks/fasttext_speed.py DATA [--documents N] [--model FILE]

DATA is the folder of real texts (CORPUSKIT_SHARED_DATA). Prints MB per CPU second of both for whole
documents and for their beginnings, with no word known ("cold") and again ("warm"), and how many
labels and rounded scores differ. The second table says for how many documents a beginning gives
the label of the whole.
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

CAPS = (None, 8192, 4096, 1024)


def documents(folder: Path, name: str, num: int) -> Utf8:
    """Return documents spread evenly over the files of a corpus."""
    files = sorted((folder / name).glob("*.parquet"))
    texts = pa.concat_tables([pq.read_table(file, columns=["text"]) for file in files])["text"]
    rows = np.linspace(0, len(texts) - 1, min(num, len(texts))).astype(np.int64)
    chosen = texts.take(pa.array(rows)).cast(pa.large_string()).combine_chunks()
    return utf8(chosen if isinstance(chosen, pa.Array) else pa.concat_arrays(chosen.chunks))


def official(path: Path, texts: Utf8, cap: int | None) -> tuple[list[str], list[float], float]:
    """Return labels, scores and CPU seconds of the library, called without its wrapper."""
    model = fasttext.load_model(str(path)).f
    labels, scores = [], []
    start = time.process_time()
    for row in range(len(texts)):
        text = texts.row(row)
        if cap is not None and len(text) > cap:
            text = text[:cap].decode(errors="ignore").encode()
        found = model.predict(text.replace(b"\n", b" ") + b"\n", 1, 0.0, "strict")
        score, label = found[0] if found else (0.0, "")
        labels.append(label.removeprefix("__label__"))
        scores.append(round(score, DECIMALS))
    return labels, scores, time.process_time() - start


def compare(path: Path, texts: Utf8, corpus: str) -> None:
    """Print a line for each cap."""
    FastTextModel(path).predict(Utf8(texts.offsets[:2], texts.data))  # compile
    for cap in CAPS:
        sizes = texts.sizes() if cap is None else np.minimum(texts.sizes(), cap)
        size = sizes.sum() / 1e6
        labels, scores, theirs = official(path, texts, cap)
        model, seconds = FastTextModel(path), []
        for _ in range(2):
            start = time.process_time()
            found = model.predict(texts, max_bytes=cap)
            seconds.append(time.process_time() - start)
        names = [model.labels[rank] if rank >= 0 else "" for rank in found.ranks[:, 0]]
        differ = sum(a != b for a, b in zip(names, labels, strict=True))
        scores_differ = int((found.scores[:, 0] != np.array(scores)).sum())
        print(
            f"| {path.name} | {corpus}, {len(texts):,} | {cap or 'all'} | {size:.1f} "
            f"| {size / theirs:.1f} | {size / seconds[0]:.1f} | {size / seconds[1]:.1f} "
            f"| {theirs / seconds[0]:.1f}x / {theirs / seconds[1]:.1f}x "
            f"| {differ} / {scores_differ} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--model", type=Path, action="append", help="default: both that DATA has")
    given = parser.parse_args()
    models = given.model or [EMBEDDED_PATH, given.data / "models" / "lid.176.ftz"]
    print(
        "| model | documents | bytes | MB | fastText | cold | warm | ratio | labels / scores differ |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    corpora = {
        name: documents(given.data, name, given.documents) for name in ("bench_en", "bench_multi")
    }
    for path in models:
        for name, texts in corpora.items():
            compare(path, texts, name)
    print(
        "\n| model | documents | bytes | same label as the whole | score at least 0.65 |\n|---|---|---|---|---|"
    )
    for path in models:
        model = FastTextModel(path)
        for name, texts in corpora.items():
            whole = model.predict(texts)
            for cap in CAPS:
                found = model.predict(texts, max_bytes=cap)
                same = (found.ranks == whole.ranks).mean()
                kept = (found.scores >= 0.65).mean()
                print(f"| {path.name} | {name} | {cap or 'all'} | {same:.4f} | {kept:.4f} |")


if __name__ == "__main__":
    main()
