"""Calibrate the scores of a language model by length, and show how reliable they are.

    export CORPUSKIT_SHARED_DATA=...
    PYTHONPATH=. python benchmarks/langid/calibrate.py out/langid.ftz out --write   # fit, and append
    PYTHONPATH=. python benchmarks/langid/calibrate.py out/langid.ftz out           # reliability

A fastText model is trained on long lines and short ones alike, and is as sure of a word as of a
page. By how many rows (n-grams) a text has, differences of logits are multiplied by a scale, given
for 4, 8, ... 4,096 of them and in proportion between. Scales are the likeliest for the tuning part of sets.py; reliability is that of the judging part, whose sources are others. Each
language counts alike, so a score is right where any language may come; where most texts are
English, `en` is right more often than its score, and other labels less.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import sets
from scipy.optimize import minimize

from corpuskit.formats.batch import utf8
from corpuskit.kernels.fasttext import cut_texts, make_scratch, mean_rows
from corpuskit.stages.annotators._fasttext import FastTextModel
from corpuskit.stages.annotators._fasttextfile import append_calibration

NUM_PLACES = 11  # 4 to 4,096 n-grams
OUTLIERS = 1 / 300  # share of the texts whose label is taken for an accident
SMOOTH = 20.0  # how much less likely a step between neighbouring places is


def logits(model: FastTextModel, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return logits less the best one, (N, L), and how many rows each text has, (N,)."""
    view, inner = utf8(pa.array(texts, pa.large_string())), model._model
    begins, ends = cut_texts(view.offsets, view.data, -1, False)
    room = make_scratch(inner.features, int((ends - begins).max()))
    hidden = np.zeros((len(begins), inner.stride), np.float32)
    counts = np.zeros(len(begins), np.int64)
    mean_rows(begins, ends, view.data, inner.features, inner.matrix, room, hidden, counts)
    values = hidden[:, : inner.dim] @ inner.output.matrix * inner.output.norms
    return values - values.max(axis=1, keepdims=True), counts


def shares(counts: np.ndarray) -> np.ndarray:
    """Return the weight of each place for each text, (N, K): two neighbours at most."""
    places = np.clip(np.log2(np.maximum(counts, 1)) - 2, 0, NUM_PLACES - 1)
    return np.maximum(0, 1 - abs(places[:, None] - np.arange(NUM_PLACES)))


def scores(values: np.ndarray, counts: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Return the scores of all labels, as the kernel does."""
    scale = np.ones(len(values)) if scales is None else shares(counts) @ scales
    powers = np.exp(values * scale[:, None])
    return powers / powers.sum(axis=1, keepdims=True)


def fit(values: np.ndarray, counts: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the likeliest scales; one text in 300 has any label, so that none rules all others."""
    weights, num_labels = shares(counts), values.shape[1]
    of_true = values[np.arange(len(true)), true]

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        scale = np.exp(weights @ logs)
        powers = np.exp(values * scale[:, None])
        total = powers.sum(axis=1)
        chance, mean = np.exp(of_true * scale) / total, (powers * values).sum(axis=1) / total
        mixed = (1 - OUTLIERS) * chance + OUTLIERS / num_labels
        slope = weights.T @ (-(1 - OUTLIERS) * chance * (of_true - mean) / mixed * scale)
        step = np.diff(logs)
        slope[:-1] -= 2 * SMOOTH * step
        slope[1:] += 2 * SMOOTH * step
        return -np.log(mixed).sum() + SMOOTH * (step**2).sum(), slope

    found = minimize(loss, np.full(NUM_PLACES, -0.5), jac=True, method="L-BFGS-B")
    return np.exp(found.x)


def error(right: np.ndarray, score: np.ndarray) -> float:
    """Return the expected calibration error: by tenths, share that is right less mean score."""
    tenths = np.minimum((score * 10).astype(int), 9)
    gaps = [(right[tenths == t].mean() - score[tenths == t].mean(), t) for t in set(tenths)]
    return sum(abs(gap) * (tenths == t).mean() for gap, t in gaps)


def report(rows: list[sets.Row], right: np.ndarray, score: np.ndarray, title: str) -> None:
    lengths = np.array([row.length for row in rows])
    print(f"\n| {title} | texts | right | mean score | calibration error | score >= 0.65 |", end="")
    print(f" of these wrong |\n|{'---|' * 7}")
    for length in sets.LENGTHS:
        own, sure = lengths == length, score[lengths == length] >= 0.65
        cells = (right[own].mean(), score[own].mean(), error(right[own], score[own]), sure.mean())
        wrong = 1 - right[own][sure].mean()
        print(f"| {length} | {own.sum():,} |", end="")
        print("".join(f" {100 * cell:.1f} |" for cell in (*cells, wrong)))
    print(f"\n| {title}: share right by score |", end="")
    print("".join(f" {t / 10:.1f} to {t / 10 + 0.1:.1f} |" for t in range(10)))
    print(f"|{'---|' * 11}")
    tenths = np.minimum((score * 10).astype(int), 9)
    for length in sets.LENGTHS:
        print(f"| {length} |", end="")
        for tenth in range(10):
            own = right[(lengths == length) & (tenths == tenth)]
            print(f" {100 * own.mean():.0f} ({len(own):,}) |" if len(own) >= 20 else " |", end="")
        print()


def known(model: FastTextModel, folder: Path, part: str) -> tuple[list[sets.Row], tuple]:
    """Return rows of the model's languages, their logits, row counts and true ranks.

    Manuals of another folder that the model calls English are left out: many are.
    """
    labels = {name: rank for rank, name in enumerate(model.labels)}
    rows = [row for row in sets.load(folder, part) if row.label in labels]
    values, counts = logits(model, [row.text for row in rows])
    true = np.array([labels[row.label] for row in rows])
    english = (values.argmax(axis=1) == labels["en"]) & (true != labels["en"])
    stays = ~(english & np.array([row.length == "documents" for row in rows]))
    rows = [row for row, stay in zip(rows, stays, strict=True) if stay]
    return rows, (values[stays], counts[stays], true[stays])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="what texts.py wrote")
    parser.add_argument("--write", action="store_true", help="append it to the model")
    given = parser.parse_args()
    model = FastTextModel(given.model)
    scales = model._model.output.scales
    if given.write:
        scales = fit(*known(model, given.folder, "tune")[1])
        append_calibration(given.model, scales)
    print(f"scales {np.round(scales, 3).tolist()}")
    rows, (values, counts, true) = known(model, given.folder, "judge")
    right = values.argmax(axis=1) == true
    report(rows, right, scores(values, counts, None).max(axis=1), "before")
    found = FastTextModel(given.model).predict(
        utf8(pa.array([r.text for r in rows], pa.large_string()))
    )
    report(rows, found.ranks[:, 0] == true, found.scores[:, 0], "as the stage has them")


if __name__ == "__main__":
    main()
