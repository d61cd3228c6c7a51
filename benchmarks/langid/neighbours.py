"""Train the models that tell near neighbours apart, a linear one for each group of texts.GROUPS.

    PYTHONPATH=. python benchmarks/langid/neighbours.py out/langid.ftz out   # out/langid.near/*.linear

Runs of 2 to 5 characters and words, hashed to 32,768 buckets, learned from the texts of a group
alone: what tells Malay from Indonesian is whole words, which a model of 157 languages has no room
for. Its logits are added to those of the first model; two factors, fitted on the tuning part of
sets.py, say how much each counts.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import calibrate
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sets
from scipy.optimize import minimize
from texts import GROUPS, fragment

from corpuskit.formats.batch import utf8
from corpuskit.kernels.fasttext import cut_texts
from corpuskit.kernels.textfeatures import Counted, GramSettings, normalize
from corpuskit.stages.annotators._card import ModelCard
from corpuskit.stages.annotators._fasttext import FastTextModel
from corpuskit.stages.annotators._linear import LinearWeights, count_texts, fit_linear, write_linear

GRAMS = GramSettings(1, 2, 5, 15)
CARD = ModelCard(("lower", "punct", "digits"))
PER_LANGUAGE = 12_000  # texts, so that no language of a group rules; a few words of each beside it


def count(texts: list[str]) -> Counted:
    view = utf8(pa.array(texts, pa.large_string()))
    begins, ends = cut_texts(view.offsets, view.data, -1, True)
    return count_texts(*normalize(begins, ends, view.data, CARD.modes), GRAMS)


def train(group: tuple[str, ...], by_label: dict[str, list[str]]) -> LinearWeights:
    """Return a model of one group."""
    rng, texts, truth = random.Random(1), list[str](), list[int]()
    for rank, label in enumerate(group):
        own = by_label[label]
        for text in rng.sample(own, min(len(own), PER_LANGUAGE)):
            texts += [text, fragment(text, rng)]
            truth += [rank, rank]
    return fit_linear(count(texts), np.array(truth, float), group, GRAMS, CARD, 2)


def weigh(first: np.ndarray, second: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the likeliest factors of the logits of both models, (2,)."""

    def loss(factors: np.ndarray) -> float:
        values = factors[0] * first + factors[1] * second
        values -= values.max(axis=1, keepdims=True)
        chance = np.exp(values[np.arange(len(truth)), truth]) / np.exp(values).sum(axis=1)
        return -np.log((1 - calibrate.OUTLIERS) * chance + calibrate.OUTLIERS / 2).mean()

    return minimize(loss, np.ones(2), method="Nelder-Mead", bounds=[(0.05, 5)] * 2).x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="what texts.py wrote")
    given = parser.parse_args()
    by_label: dict[str, list[str]] = defaultdict(list)
    for row in pq.read_table(given.folder / "near.parquet").to_pylist():
        by_label[row["label"]].append(row["text"])
    model = FastTextModel(given.model)
    tuning = [row for row in sets.load_short(given.folder, "tune") if row.label in by_label]
    folder = given.model.with_suffix(".near")
    folder.mkdir(exist_ok=True)
    for group in GROUPS:
        weights = train(group, by_label)
        rows = [row for row in tuning if row.label in group]
        texts, truth = [r.text for r in rows], np.array([group.index(r.label) for r in rows])
        values, counts = calibrate.logits(model, texts)
        scales = calibrate.shares(counts) @ model._model.output.scales
        first = values[:, [model.rank_of(label) for label in group]] * scales[:, None]
        second, _ = weights.logits(count(texts))
        factors = weigh(first, second, truth)
        # Scores are the softmax of slope * (first + own logits): the second factor is in the weights.
        ratio = factors[1] / factors[0]
        table = weights.table.copy()
        table[:, 1:] *= ratio
        weights = replace(
            weights,
            table=table.astype(np.float16).astype(np.float32),
            bias=weights.bias * ratio,
            card=replace(CARD, slope=float(factors[0]), shifts=(0.0,) * len(group)),
        )
        path = folder / f"{'-'.join(group)}.linear"
        write_linear(path, weights)
        both = first + weights.logits(count(texts))[0]
        shares = [(values.argmax(axis=1) == truth).mean() for values in (first, second, both)]
        print(
            f"{path}: {path.stat().st_size:,} bytes, factors {np.round(factors, 2).tolist()}, ",
            end="",
        )
        print(f"{len(rows)} tuning texts: {', '.join(f'{share:.3f}' for share in shares)} right")


if __name__ == "__main__":
    main()
