"""Judge quality classifiers on sources that they have not seen, beside TF-IDF with regression.

    export CORPUSKIT_SHARED_DATA=...                          # the folder that holds quality/
    PYTHONPATH=. python benchmarks/accuracy/quality.py --peers peers/bin/python

Prints docs/accuracy/quality.md's table of ROC areas, with 95 % intervals (bootstrap of the texts
judged). Web pages: all rows of quality_train but those of one collection are learned from. Messages,
manuals and news against spam: learned from all but its spam messages. What is chosen is chosen on
held-out groups of what is learned from.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from peers import area, ask

from corpuskit.stages.annotators._classifier import judge, train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings, open_model
from corpuskit.stages.annotators._labelled import LabelledRow, Split

PLAIN = ClassifierSettings(dim=16, epochs=10, lr=0.3, word_ngrams=2, buckets=200_000, min_count=2)
NORMAL = dataclasses.replace(PLAIN, normalize="lower,punct")
LINEAR = dataclasses.replace(NORMAL, family="linear")
POSITIVE = "1"
MODELS = Path(__file__).parents[2] / "corpuskit" / "models"


def read(shared: Path) -> list[LabelledRow]:
    """Return the rows; the two halves of one site's pages are one group."""
    rows = pq.read_table(shared / "quality" / "quality_train.parquet").to_pylist()
    return [LabelledRow(r["text"], str(r["label"]), r["source"].partition("#")[0]) for r in rows]


def messages(shared: Path) -> list[LabelledRow]:
    rows = pq.read_table(shared / "quality" / "sms_spam.parquet").to_pylist()
    return [LabelledRow(r["text"], "1" if r["label"] == "ham" else "0") for r in rows]


def others(shared: Path) -> dict[str, list[LabelledRow]]:
    """Return manuals and news, each with the spam messages."""
    files = ("bench_en/bench_en-00000-of-00004", "neardup/plagiarism_articles")
    manuals, news = (pq.read_table(shared / f"{name}.parquet").to_pylist() for name in files)
    manuals = [row for row in manuals if row["source"].startswith("debian:manpages")]
    spam = [row for row in messages(shared) if row.label == "0"]
    return {
        name: [*spam, *(LabelledRow(row["text"][:3000], "1") for row in rows[:500])]
        for name, rows in (("manuals", manuals), ("news", news))
    }


def judge_embedded(shared: Path) -> None:
    """Print how well the embedded model does on texts that it has not learned from."""
    model = open_model(str(MODELS / "quality.model"))
    table = pq.read_table(shared / "quality" / "quality_train.parquet").to_pylist()
    sets = {"messages": messages(shared), **others(shared)}
    for group in ("adbar", "mozilla"):
        for name, languages in (
            ("English", {"en"}),
            ("other", {r["lang"] for r in table} - {"en"}),
        ):
            sets[f"{group}, {name}"] = [
                LabelledRow(row["text"], str(row["label"]))
                for row in table
                if row["source"].startswith(group) and row["lang"] in languages
            ]
    print("| judged | texts | embedded | words per line | good below .5 | bad below .5 |")
    print(f"|{'---|' * 6}")
    for name, rows in sets.items():
        truth = np.array([row.label == "1" for row in rows])
        scores = judge(model, rows, "prose").scores
        lines = [[line for line in row.text.split("\n") if line.strip()] for row in rows]
        plain = np.array([np.mean([len(line.split()) for line in some]) for some in lines])
        shares = [f"{100 * (scores[some] < 0.5).mean():.0f} %" for some in (truth, ~truth)]
        areas = [area(scores, truth), area(plain, truth)]
        print(f"| {name} | {len(rows):,} | {' | '.join(areas + shares)} |")


class Ours:
    """Our command's training and prediction."""

    def __init__(self, name: str, settings: ClassifierSettings, auto: bool = False) -> None:
        self.name, self.settings, self.auto = name, settings, auto
        self.cpu_seconds, self.size_bytes = 0.0, 0

    def scores(self, learned: list[LabelledRow], *sets: list[LabelledRow]) -> list[np.ndarray]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m")
            report = train_classifier(
                learned, path, self.settings, split=Split(by_group=True), auto=self.auto,
                folds=3 * self.auto, positive=POSITIVE,
            )  # fmt: skip
            model = open_model(path)
            if self.auto:
                print(f"chosen: {report.settings}", file=sys.stderr, flush=True)
            judge(model, learned[:1], POSITIVE)  # compile
            start = time.process_time()
            found = [judge(model, rows, POSITIVE).scores for rows in sets]
        self.cpu_seconds += time.process_time() - start
        self.size_bytes += sum(len(row.text.encode()) for rows in sets for row in rows)
        return found


class Regression:
    """TF-IDF of words and pairs of words, logistic regression (scikit-learn)."""

    name = "TF-IDF + LR"

    def __init__(self, python: str) -> None:
        self.python, self.cpu_seconds, self.size_bytes = python, 0.0, 0

    def scores(self, learned: list[LabelledRow], *sets: list[LabelledRow]) -> list[np.ndarray]:
        train = [(row.text, row.label) for row in learned]
        texts = [row.text for rows in sets for row in rows]
        answer = ask(self.python, "tfidf", texts, train)
        self.cpu_seconds += answer.cpu_seconds
        self.size_bytes += sum(len(text.encode()) for text in texts)
        cuts = np.cumsum([len(rows) for rows in sets])[:-1]
        return np.split(np.array(answer.found), cuts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment with scikit-learn")
    parser.add_argument("--auto", action="store_true", help="Also what --auto chooses: 15 CPU min")
    parser.add_argument("--embedded", action="store_true", help="Judge the embedded model alone")
    given = parser.parse_args()
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    if given.embedded:
        judge_embedded(shared)
        return
    rows, sms = read(shared), messages(shared)
    tools = [
        Ours("fastText", PLAIN),
        Ours("fastText, lower,punct", NORMAL),
        Ours("linear, lower,punct", LINEAR),
        *([Ours("chosen", PLAIN, auto=True)] if given.auto else []),
        *([Regression(given.peers)] if given.peers else []),
    ]
    tasks = [
        (
            [row for row in rows if row.group != group],
            {f"web pages of {group}": [row for row in rows if row.group == group]},
        )
        for group in ("adbar/trafilatura", "mozilla/readability")
    ]
    unseen = {f"{name} against spam": some for name, some in others(shared).items()}
    tasks += [
        (
            [row for row in rows if row.group != "SMS-spam"],
            {"messages, ham against spam": sms, **unseen},
        ),
    ]
    print(f"| judged | texts | {' | '.join(tool.name for tool in tools)} |")
    print(f"|{'---|' * (2 + len(tools))}")
    for learned, sets in tasks:
        found = [tool.scores(learned, *sets.values()) for tool in tools]
        for place, (name, judged) in enumerate(sets.items()):
            truth = np.array([row.label == POSITIVE for row in judged])
            areas = [area(scores[place], truth) for scores in found]
            print(f"| {name} | {len(judged):,} | {' | '.join(areas)} |", flush=True)
    for tool in tools:
        print(f"{tool.name}: {tool.size_bytes / 1e6 / tool.cpu_seconds:.1f} MB/CPU s")


if __name__ == "__main__":
    main()
