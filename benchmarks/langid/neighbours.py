"""Train the models that tell near neighbours apart, a linear one for each group of texts.GROUPS.

    PYTHONPATH=. python benchmarks/langid/neighbours.py out/langid.ftz out   # out/langid.near/*.linear

Runs of 2 to 5 characters and words, hashed to 32,768 buckets, learned from the texts of a group
alone: what tells Malay from Indonesian is whole words, which a model of 157 languages has no room
for. Its logits are added to those of the first model; two factors, fitted for all groups together
on the tuning part of sets.py, say how much each counts. Factors for each group followed a few dozen
messages: those of Django in Croatian, of which most would do in Bosnian, left its model without a
say.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRAMS = GramSettings(1, 2, 5, 15)
CARD = ModelCard(("lower", "punct", "digits"))
PER_LANGUAGE = 24_000  # texts at most, with a few words of each beside it


def count(texts: list[str]) -> Counted:
    view = utf8(pa.array(texts, pa.large_string()))
    begins, ends = cut_texts(view.offsets, view.data, -1, True)
    return count_texts(*normalize(begins, ends, view.data, CARD.modes), GRAMS)


@dataclass(frozen=True)
class Group:
    """Neighbours, what tells them apart, and the tuning texts of these languages.

    Attributes:
        first: (N, L) logits of the first model, scaled by length.
        second: (N, L) logits of `weights`.
        truth: (N,) places of the languages in `labels`.
    """

    labels: tuple[str, ...]
    weights: LinearWeights
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    truth: NDArray[np.int64]


def train(labels: tuple[str, ...], by_label: dict[str, list[str]]) -> LinearWeights:
    """Return a model of one group, which expects its languages as often as they have texts: Spanish
    most, as it is met. Made to expect each as often, it called 7 % of Spanish sentences Galician."""
    rng, texts, truth = random.Random(1), list[str](), list[int]()
    for rank, label in enumerate(labels):
        own = by_label[label]
        for text in rng.sample(own, min(len(own), PER_LANGUAGE)):
            texts += [text, fragment(text, rng)]
            truth += [rank, rank]
    return fit_linear(count(texts), np.array(truth, float), labels, GRAMS, CARD, 2)


def measure(
    labels: tuple[str, ...],
    weights: LinearWeights,
    model: FastTextModel,
    tuning: list[sets.Row],
) -> Group:
    rows = [row for row in tuning if row.label in labels]
    texts, truth = [r.text for r in rows], np.array([labels.index(r.label) for r in rows])
    values, counts = calibrate.logits(model, texts)
    scales = calibrate.shares(counts) @ model._model.output.scales
    first = values[:, [model.rank_of(label) for label in labels]] * scales[:, None]
    return Group(labels, weights, first, weights.logits(count(texts))[0], truth)


def weigh(groups: list[Group]) -> NDArray[np.float64]:
    """Return the likeliest factors of the logits of both models, (2,)."""

    def loss(factors: NDArray[np.float64]) -> float:
        total = 0.0
        for group in groups:
            values = factors[0] * group.first + factors[1] * group.second
            values -= values.max(axis=1, keepdims=True)
            of_true = values[np.arange(len(values)), group.truth]
            chance = np.exp(of_true) / np.exp(values).sum(axis=1)
            mixed = (1 - calibrate.OUTLIERS) * chance + calibrate.OUTLIERS / 2
            total -= float(np.log(mixed).sum())
        return total

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
    groups = [measure(labels, train(labels, by_label), model, tuning) for labels in GROUPS]
    factors = weigh(groups)
    # Scores are the softmax of slope * (first + own logits): the second factor is in the weights.
    ratio = factors[1] / factors[0]
    print(f"factors {np.round(factors, 2).tolist()}")
    for group in groups:
        table = group.weights.table.copy()
        table[:, 1:] *= ratio
        weights = replace(
            group.weights,
            table=table.astype(np.float16).astype(np.float32),
            bias=group.weights.bias * ratio,
            card=replace(CARD, slope=float(factors[0]), shifts=(0.0,) * len(group.labels)),
        )
        path = folder / f"{'-'.join(group.labels)}.linear"
        write_linear(path, weights)
        both = group.first + ratio * group.second
        shares = [
            (values.argmax(axis=1) == group.truth).mean()
            for values in (group.first, group.second, both)
        ]
        print(f"{path}: {path.stat().st_size:,} bytes, {len(group.truth)} tuning texts: ", end="")
        print(f"{', '.join(f'{share:.3f}' for share in shares)} right")


if __name__ == "__main__":
    main()
