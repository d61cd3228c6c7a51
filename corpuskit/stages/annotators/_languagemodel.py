"""How a fastText model whose scores are calibrated by length names the language of texts.

Three steps, with kernels for each:

1. A text is cut into windows; the mean of their rows gives its labels. Of a text of more than 16 KB
   64 windows are read, spread evenly.
2. Where the best label has near neighbours, and one of them is not out of the question, a linear
   model of these few languages, in the folder `NAME.near` beside `NAME.ftz`, divides their scores.
3. A score is no more than the share of the text that is not clearly in another language.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import DataError
from corpuskit.kernels.fasttext import (
    cut_windows,
    join_windows,
    label_values,
    make_scratch,
    other_shares,
    rank_values,
    sum_scratch,
    sum_windows,
)
from corpuskit.kernels.textfeatures import normalize
from corpuskit.stages.annotators._linear import LinearWeights, count_texts, read_linear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stages.annotators._fasttextfile import Model

    Offsets = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Ranks = NDArray[np.int32]
    Doubles = NDArray[np.float64]

IN_QUESTION = 1e-3
"""The neighbours' model runs if labels other than the best have more than this share of a group's
score; nearly all whole documents have less, and cost no time."""

NEAR_BYTES = 4096
"""Bytes from the beginning of a text that the neighbours' model reads."""


@dataclass(frozen=True)
class Neighbours:
    """A group of similar languages, and the model that distinguishes them.

    Attributes:
        ranks: (G,) of its labels in the first model.
        weights: a linear model of these labels, in that order.
    """

    ranks: Ranks
    weights: LinearWeights


def near_files(path: str | Path) -> tuple[Path, ...]:
    """Return the files of the groups of neighbours that belong to the model at `path`."""
    return tuple(sorted(Path(path).with_suffix(".near").glob("*.linear")))


class LanguageModel:
    """A calibrated model with those of its neighbours; for one thread at a time.

    Args:
        path: of the model.
        model: read from there.
        labels: its labels, without prefix.

    Raises:
        DataError: a file of neighbours is broken, or has a label that the model lacks.
    """

    def __init__(self, path: str | Path, model: Model, labels: tuple[str, ...]) -> None:
        self._model = model
        self._groups: list[Neighbours] = []
        self._group_of = -np.ones(len(labels), np.int32)
        self._sum_cache: NDArray[np.uint32] | None = None
        for file in near_files(path):
            weights = read_linear(file)
            if missing := sorted(set(weights.labels) - set(labels)):
                raise DataError(
                    f"{file}: tells {missing[0]!r} from its neighbours, which {path} lacks. "
                    "Remove the file."
                )
            ranks = np.array([labels.index(label) for label in weights.labels], np.int32)
            self._group_of[ranks] = len(self._groups)
            self._groups.append(Neighbours(ranks, weights))
        lone = self._group_of < 0
        self._families = np.where(lone, len(self._groups) + np.arange(len(labels)), self._group_of)
        self._families = self._families.astype(np.int32)

    def predict(
        self, begins: Offsets, ends: Offsets, data: Bytes, ranks: Ranks, scores: Doubles
    ) -> bool:
        """Fill the best labels of N texts and their scores, (N, k); say whether all are numbers."""
        model = self._model
        windows = cut_windows(begins, ends, data)
        starts, stops, firsts = windows
        scratch = make_scratch(model.features, int((stops - starts).max(initial=0)))
        self._sum_cache = sum_scratch(model.stride, self._sum_cache)
        sums = np.zeros((len(starts), model.stride), np.float32)
        counts = np.zeros(len(starts), np.int64)
        text_windows = (starts, stops, data, model.features, model.matrix, scratch, self._sum_cache)
        sum_windows(*text_windows, sums, counts)
        end = model.features.end_row
        last = model.matrix[end * model.stride : (end + 1) * model.stride if end >= 0 else 0]
        hidden = np.zeros((len(begins), model.stride), np.float32)
        nums = np.zeros(len(begins), np.int64)
        join_windows(firsts, sums, counts, last, hidden, nums)
        values = np.zeros((len(begins), len(self._group_of)), np.float32)
        if not label_values(hidden[:, : model.dim], nums, model.output, values):
            return False
        best = values.argmax(axis=1)
        for k, group in enumerate(self._groups):
            _divide(group, np.flatnonzero(self._group_of[best] == k), begins, ends, data, values)
        rank_values(values, nums, ranks, scores)
        window_sums, best = sums[:, : model.dim], np.ascontiguousarray(ranks[:, 0])
        arguments = (window_sums, counts, model.output, self._families, best)
        largest = 1 - other_shares(firsts, starts, stops, data, *arguments)
        top = np.maximum(scores[:, 0], 1e-9)
        scores *= (np.minimum(top, largest) / top)[:, np.newaxis]
        return True


def _divide(
    group: Neighbours,
    rows: Offsets,
    begins: Offsets,
    ends: Offsets,
    data: Bytes,
    values: NDArray[np.float32],
) -> None:
    """Divide what a group scores among its labels, for the texts of `rows`."""
    scores = values[rows[:, np.newaxis], group.ranks].astype(np.float64)
    in_question = scores.max(axis=1, initial=0) < (1 - IN_QUESTION) * scores.sum(axis=1)
    rows, scores = rows[in_question], scores[in_question]
    card, limits = group.weights.card, _beginnings(begins[rows], ends[rows], data)
    ngrams = count_texts(*normalize(begins[rows], limits, data, card.modes), group.weights.grams)
    logits, _ = group.weights.logits(ngrams)
    shares = card.probabilities(np.log(np.maximum(scores, 1e-30)) + logits)
    values[rows[:, np.newaxis], group.ranks] = scores.sum(axis=1, keepdims=True) * shares


def _beginnings(begins: Offsets, ends: Offsets, data: Bytes) -> Offsets:
    """Return where the first NEAR_BYTES of texts end, cut back to a whole character."""
    limits = np.minimum(ends, begins + NEAR_BYTES)
    if (is_cut := np.flatnonzero(limits < ends)).size:
        for _ in range(3):
            limits[is_cut] -= data[limits[is_cut]] & 0xC0 == 0x80
    return limits
