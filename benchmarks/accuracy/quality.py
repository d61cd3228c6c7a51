"""Judge quality classifiers on sources that they have not seen, beside TF-IDF with regression.

    export CORPUSKIT_SHARED_DATA=...                          # the folder that holds quality/
    PYTHONPATH=. python benchmarks/accuracy/quality.py --peers peers/bin/python

Prints docs/accuracy/quality.md's tables. Each source of quality_train is left out in turn: what is
learned from the others must do on it. A random split of the same rows is printed beside, to show how
much of its accuracy is knowing the sources. Then text messages: spam against ham.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from peers import ask

from corpuskit.stages.annotators._classifier import judge, roc_area, train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings, FastTextModel
from corpuskit.stages.annotators._labelled import LabelledRow, Split, is_held_out

SETTINGS = ClassifierSettings(
    dim=16, epochs=10, lr=0.3, word_ngrams=2, buckets=200_000, min_count=2
)
POSITIVE = "1"
SPLIT = Split(0.2)


def read(shared: Path) -> list[LabelledRow]:
    """Return the rows; the two halves of one site's pages are one group."""
    rows = pq.read_table(shared / "quality" / "quality_train.parquet").to_pylist()
    return [LabelledRow(r["text"], str(r["label"]), r["source"].partition("#")[0]) for r in rows]


def messages(shared: Path) -> list[LabelledRow]:
    rows = pq.read_table(shared / "quality" / "sms_spam.parquet").to_pylist()
    return [LabelledRow(r["text"], "1" if r["label"] == "ham" else "0") for r in rows]


class FastText:
    """Our command's training and prediction."""

    name = "fastText"

    def __init__(self) -> None:
        self.cpu_seconds, self.size_bytes = 0.0, 0

    def scores(self, learned: list[LabelledRow], judged: list[LabelledRow]) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m.bin")
            train_classifier(learned, path, SETTINGS)
            model = FastTextModel(path)
        start = time.process_time()
        found = judge(model, judged, POSITIVE)
        self.cpu_seconds += time.process_time() - start
        self.size_bytes += sum(len(row.text.encode()) for row in judged)
        return found.scores


class Regression:
    """TF-IDF of words and pairs of words, logistic regression (scikit-learn)."""

    name = "TF-IDF + LR"

    def __init__(self, python: str) -> None:
        self.python, self.cpu_seconds, self.size_bytes = python, 0.0, 0

    def scores(self, learned: list[LabelledRow], judged: list[LabelledRow]) -> np.ndarray:
        train = [(row.text, row.label) for row in learned]
        found = ask(self.python, "tfidf", [row.text for row in judged], train)
        self.cpu_seconds += found.cpu_seconds
        self.size_bytes += sum(len(row.text.encode()) for row in judged)
        return np.array(found.found)


def cells(judged: list[LabelledRow], scores: np.ndarray) -> list[str]:
    """Return accuracy at 0.5, F1 of the rarer label, ROC area; `-` where a label is missing."""
    truth = np.array([row.label == POSITIVE for row in judged])
    guess = scores >= 0.5
    rare = truth if truth.mean() < 0.5 else ~truth
    caught = guess if truth.mean() < 0.5 else ~guess
    area = roc_area(scores, truth)
    f1 = 2 * (rare & caught).sum() / max(rare.sum() + caught.sum(), 1)
    return [
        f"{100 * (guess == truth).mean():.1f}",
        "-" if area is None else f"{100 * f1:.1f}",
        "-" if area is None else f"{area:.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment with scikit-learn")
    given = parser.parse_args()
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    rows, sms = read(shared), messages(shared)
    tools = [FastText(), *([Regression(given.peers)] if given.peers else [])]
    groups = sorted({row.group for row in rows}, key=lambda g: -sum(r.group == g for r in rows))
    tasks = {
        "random fifth": (
            [row for row in rows if not SPLIT.holds_out(row)],
            [row for row in rows if SPLIT.holds_out(row)],
        )
    }
    for group in groups:
        tasks[f"without {group}"] = (
            [row for row in rows if row.group != group],
            [row for row in rows if row.group == group],
        )
    tasks["messages: half, judged on the other"] = (
        [row for row in sms if not is_held_out(row.text, 0.5)],
        [row for row in sms if is_held_out(row.text, 0.5)],
    )
    seen = [row for row in rows if row.group != "SMS-spam"]
    tasks["all without SMS-spam, judged on messages"] = (seen, sms)
    heads = "|".join(f"{tool.name}: accuracy|F1|ROC area" for tool in tools).replace("|", " | ")
    print(f"| learned from | judged | good | {heads} |\n|{'---|' * (3 + 3 * len(tools))}")
    means: list[list[float]] = [[] for _ in tools]
    for name, (learned, judged) in tasks.items():
        good = np.mean([row.label == POSITIVE for row in judged])
        line = [name, f"{len(judged):,}", f"{100 * good:.0f} %"]
        for tool, mean in zip(tools, means, strict=True):
            found = cells(judged, tool.scores(learned, judged))
            line += found
            if name.startswith("without"):
                mean.append(float(found[0]))
        print(f"| {' | '.join(line)} |", flush=True)
    print()
    for tool, mean in zip(tools, means, strict=True):
        rate = tool.size_bytes / 1e6 / tool.cpu_seconds
        print(f"{tool.name}: mean accuracy left out {np.mean(mean):.1f} %, {rate:.1f} MB/CPU s")


if __name__ == "__main__":
    main()
