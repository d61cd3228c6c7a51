"""Judge toxicity classifiers within their domain and in others, and look for biased errors.

    export CORPUSKIT_SHARED_DATA=...                         # the folder that holds toxicity/
    PYTHONPATH=. python benchmarks/accuracy/toxicity.py --peers peers/bin/python

Prints docs/accuracy/toxicity.md's tables. Classifiers learn from tweets, or from comments on
Wikipedia's talk pages, and are judged on a held-out fifth of the same, on the other set, and on
templated sentences that differ in the people they name (madlibs). Word lists need no learning.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from peers import area, ask

from corpuskit.errors import UsageError
from corpuskit.stages.annotators._classifier import (
    at_precision,
    calibrate,
    judge,
    train_classifier,
)
from corpuskit.stages.annotators._fasttext import ClassifierSettings, open_model
from corpuskit.stages.annotators._labelled import LabelledRow, Split

Score = Callable[[list[LabelledRow]], np.ndarray]
WORDS = ClassifierSettings(dim=16, epochs=10, lr=0.3, word_ngrams=2, buckets=200_000, min_count=2)
CHARS = ClassifierSettings(dim=16, epochs=10, lr=0.3, minn=3, maxn=5, buckets=200_000, min_count=2)
LINEAR = ClassifierSettings(
    family="linear", normalize="lower,punct", word_ngrams=2, minn=2, maxn=5, min_count=2
)
SPLIT = Split(0.2)
MODELS = Path(__file__).parents[2] / "corpuskit" / "models"
NAMED = 25
"""Fewest harmless sentences with a word, for the word to be looked at."""


def read(shared: Path) -> dict[str, list[LabelledRow]]:
    """Return the sets; label 1 is toxic (hate or offensive; toxic; BAD)."""
    folder = shared / "toxicity"
    tweets = pq.read_table(folder / "davidson_tweets.parquet").to_pylist()
    wiki = pq.read_table(folder / "wiki_toxicity.parquet").to_pylist()
    madlibs = pq.read_table(folder / "bias_madlibs_20k.parquet").to_pylist()
    return {
        "tweets": [LabelledRow(r["text"], str(int(r["label"] != "neither"))) for r in tweets],
        "wiki": [LabelledRow(r["text"], str(int(r["toxic"]))) for r in wiki],
        "madlibs": [LabelledRow(r["text"], str(int(r["label"] == "BAD"))) for r in madlibs],
    }


def word_list(shared: Path) -> Score:
    """Return a score: 1 where an English word of LDNOOBW stands alone in the text, as in C4."""
    table = pq.read_table(shared / "toxicity" / "ldnoobw_words.parquet").to_pylist()
    words = sorted((re.escape(r["word"]) for r in table if r["lang"] == "en"), key=len)[::-1]
    pattern = re.compile(rf"(?:\W|^)({'|'.join(words)})(?:\W|$)")
    return lambda rows: np.array([float(bool(pattern.search(r.text.lower()))) for r in rows])


def our_scores(
    learned: list[LabelledRow], settings: ClassifierSettings, auto: bool = False
) -> Score:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.bin")
        report = train_classifier(learned, path, settings, folds=3 * auto, auto=auto)
        model = open_model(path)
    if auto:
        print(f"chosen: {report.settings}", file=sys.stderr, flush=True)
    return lambda rows: judge(model, rows, "1").scores


def peer_scores(python: str, peer: str, learned: list[LabelledRow] | None = None) -> Score:
    train = [(row.text, row.label) for row in learned] if learned else None
    return lambda rows: np.array(ask(python, peer, [row.text for row in rows], train).found)


def figures(rows: list[LabelledRow], scores: np.ndarray) -> list[str]:
    """Return ROC area, and precision, recall and F1 of toxic at 0.5."""
    truth, guess = np.array([row.label == "1" for row in rows]), scores >= 0.5
    hits = (truth & guess).sum()
    precision, recall = hits / max(guess.sum(), 1), hits / max(truth.sum(), 1)
    f1 = 2 * hits / max(truth.sum() + guess.sum(), 1)
    return [area(scores, truth), *(f"{100 * value:.1f}" for value in (precision, recall, f1))]


def false_alarms(rows: list[LabelledRow], scores: np.ndarray, most: int = 8) -> str:
    """Return the words whose harmless sentences are called toxic most often, and least often."""
    by_word: dict[str, list[bool]] = defaultdict(list)
    for row, score in zip(rows, scores, strict=True):
        if row.label == "0":
            for word in set(re.findall(r"[a-z]+", row.text.lower())):
                by_word[word].append(bool(score >= 0.5))
    rates = {word: np.mean(hits) for word, hits in by_word.items() if len(hits) >= NAMED}
    ranked = sorted(rates, key=lambda word: -rates[word])
    whole = np.mean([s >= 0.5 for r, s in zip(rows, scores, strict=True) if r.label == "0"])
    listed = ", ".join(f"{word} {100 * rates[word]:.0f}" for word in ranked[:most])
    return f"{100 * whole:.0f} % of harmless sentences; by word: {listed}; least {ranked[-1]} " + (
        f"{100 * rates[ranked[-1]]:.0f}"
    )


def thresholds(
    name: str, score: Score, aside: list[LabelledRow], others: dict[str, list[LabelledRow]]
) -> None:
    """Print what becomes elsewhere of a threshold chosen for precision 0.9 on held-out rows."""
    truth = np.array([row.label == "1" for row in aside])
    scores = score(aside)
    error = calibrate(scores, truth).error
    line = f"{name}: expected calibration error {error:.3f} at home"
    try:
        found = at_precision(scores, truth, 0.9)
    except UsageError as reason:
        return print(line, reason)
    line += f"; score >= {found.min_score:.4f} has precision {found.precision:.3f} there"
    for other, rows in others.items():
        there = np.array([row.label == "1" for row in rows])
        kept = score(rows) >= found.min_score
        precision = (kept & there).sum() / max(kept.sum(), 1)
        line += f", {precision:.3f} on {other} ({100 * there.mean():.0f} % toxic)"
        line += f" with recall {(kept & there).sum() / there.sum():.3f}"
        line += f" and calibration error {calibrate(score(rows), there).error:.3f}"
    return print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="Python of an environment with the other tools")
    given = parser.parse_args()
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    sets = read(shared)
    learned = {n: [r for r in rows if not SPLIT.holds_out(r)] for n, rows in sets.items()}
    aside = {n: [r for r in rows if SPLIT.holds_out(r)] for n, rows in sets.items()}
    tools = {}
    for home in ("tweets", "wiki"):
        tools[f"fastText words, {home}", home] = our_scores(learned[home], WORDS)
        tools[f"fastText characters, {home}", home] = our_scores(learned[home], CHARS)
        tools[f"linear characters, {home}", home] = our_scores(learned[home], LINEAR)
        tools[f"chosen, {home}", home] = our_scores(learned[home], WORDS, auto=True)
        if given.peers:
            tools[f"TF-IDF + LR, {home}", home] = peer_scores(given.peers, "tfidf", learned[home])
    embedded = open_model(str(MODELS / "toxicity.model"))
    tools["embedded", ""] = lambda rows: judge(embedded, rows, "toxic").scores
    tools["LDNOOBW words", ""] = word_list(shared)
    if given.peers:
        tools["alt_profanity_check", ""] = peer_scores(given.peers, "alt_profanity_check")
    heads = [
        f"{name}: ROC area | precision | recall | F1" for name in ("tweets", "wiki", "madlibs")
    ]
    print(f"| learned from | {' | '.join(heads)} |\n|{'---|' * 13}")
    alarms = []
    for (name, home), score in tools.items():
        line = [name]
        for other in ("tweets", "wiki", "madlibs"):
            rows = sets[other] if other == "wiki" and home != "wiki" else aside[other]
            scores = score(rows)
            line += figures(rows, scores)
            if other == "madlibs":
                alarms.append(f"{name}: {false_alarms(rows, scores)}")
        print(f"| {' | '.join(line)} |", flush=True)
    print("\nmadlibs, called toxic at 0.5:\n\n" + "\n".join(f"- {line}" for line in alarms) + "\n")
    for home, other in (("tweets", "wiki"), ("wiki", "tweets")):
        score = tools[f"fastText words, {home}", home]
        there = sets[other] if other == "wiki" else aside[other]
        thresholds(f"fastText words, {home}", score, aside[home], {other: there})
    texts = sets["wiki"] * 5
    for name, home in (
        ("fastText words", "tweets"),
        ("linear characters", "tweets"),
        ("embedded", ""),
    ):
        name = f"{name}, {home}" if home else name
        start = time.process_time()
        tools[name, home](texts)
        rate = sum(len(row.text.encode()) for row in texts) / 1e6 / (time.process_time() - start)
        print(f"{name}: {rate:.1f} MB per CPU second")


if __name__ == "__main__":
    main()
