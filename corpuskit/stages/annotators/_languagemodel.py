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
    best_labels,
    cut_windows,
    join_windows,
    other_shares,
    scratch,
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
"""Share of a group's score that goes to other labels than its best, from which neighbours are
asked: it is less in nearly all whole documents, which lose no time."""

NEAR_BYTES = 4096
"""Bytes from the beginning of a text that the neighbours' model looks at."""


@dataclass(frozen=True)
class Neighbours:
    """A group of near languages and what tells them apart.

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
    """What a calibrated model predicts with; used by one thread at a time.

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
        self._known: NDArray[np.uint32] | None = None
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
        alone = self._group_of < 0
        self._families = np.where(alone, len(self._groups) + np.arange(len(labels)), self._group_of)
        self._families = self._families.astype(np.int32)

    def predict(
        self, begins: Offsets, ends: Offsets, data: Bytes, ranks: Ranks, scores: Doubles
    ) -> bool:
        """Fill the best labels of N texts and their scores, (N, k); say whether all are numbers."""
        model = self._model
        windows = cut_windows(begins, ends, data)
        starts, stops, firsts = windows
        room = scratch(model.features, int((stops - starts).max(initial=0)))
        self._known = sum_scratch(model.stride, self._known)
        sums = np.zeros((len(starts), model.stride), np.float32)
        counts = np.zeros(len(starts), np.int64)
        given = (starts, stops, data, model.features, model.matrix, room, self._known)
        sum_windows(*given, sums, counts)
        end = model.features.end_row
        last = model.matrix[end * model.stride : (end + 1) * model.stride if end >= 0 else 0]
        hidden = np.zeros((len(begins), model.stride), np.float32)
        nums = np.zeros(len(begins), np.int64)
        join_windows(firsts, sums, counts, last, hidden, nums)
        means = hidden[:, : model.dim]
        if best_labels(means, nums, model.output, ranks, scores) >= 0:
            return False
        for group, near in enumerate(self._groups):
            asked = np.flatnonzero((ranks[:, 0] >= 0) & (self._group_of[ranks[:, 0]] == group))
            self._divide(near, asked, begins, ends, data, means, nums, ranks, scores)
        best = np.ascontiguousarray(ranks[:, 0])
        some = sums[:, : model.dim]
        rest = (some, counts, model.output, self._families, best)
        most = 1 - other_shares(firsts, starts, stops, data, *rest)
        top = np.maximum(scores[:, 0], 1e-9)
        scores *= (np.minimum(top, most) / top)[:, np.newaxis]
        return True

    def _divide(
        self,
        near: Neighbours,
        asked: Offsets,
        begins: Offsets,
        ends: Offsets,
        data: Bytes,
        means: NDArray[np.float32],
        nums: Offsets,
        ranks: Ranks,
        scores: Doubles,
    ) -> None:
        """Divide the score of a group among its labels, for the texts `asked` of."""
        labels, output = len(self._group_of), self._model.output
        places = np.zeros((len(asked), labels), np.int32)
        values = np.zeros((len(asked), labels))
        best_labels(np.ascontiguousarray(means[asked]), nums[asked], output, places, values)
        chances = np.zeros((len(asked), labels))
        np.put_along_axis(chances, places, values, axis=1)
        own = chances[:, near.ranks]
        in_question = own.max(axis=1) < (1 - IN_QUESTION) * own.sum(axis=1)
        asked, chances, own = asked[in_question], chances[in_question], own[in_question]
        card, limits = near.weights.card, _beginnings(begins[asked], ends[asked], data)
        rows = count_texts(*normalize(begins[asked], limits, data, card.modes), near.weights.grams)
        logits, _ = near.weights.logits(rows)
        total = own.sum(axis=1, keepdims=True)
        chances[:, near.ranks] = total * card.probabilities(np.log(np.maximum(own, 1e-30)) + logits)
        order = np.argsort(-chances, axis=1, kind="stable")[:, : ranks.shape[1]]
        ranks[asked, : order.shape[1]] = order
        scores[asked, : order.shape[1]] = np.take_along_axis(chances, order, axis=1)


def _beginnings(begins: Offsets, ends: Offsets, data: Bytes) -> Offsets:
    """Return where the first NEAR_BYTES of texts end, cut back to a whole character."""
    limits = np.minimum(ends, begins + NEAR_BYTES)
    for _ in range(3):
        limits -= (limits < ends) & (data[np.minimum(limits, len(data) - 1)] & 0xC0 == 0x80)
    return limits
