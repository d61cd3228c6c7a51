"""The card of a classifier's file: how texts are normalised, and a calibration.

In a fastText model it follows the last matrix, where the library stops reading: it loads such a
file, but applies neither.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corpuskit.errors import UsageError, suggest
from corpuskit.kernels.arrays import Float64s, Int64s
from corpuskit.kernels.textfeatures import DIGITS, LOWER, PUNCTUATION

NORMALIZATIONS = {"lower": LOWER, "punct": PUNCTUATION, "digits": DIGITS}
"""Lower case; punctuation and symbols as words of their own; each digit as 0."""

_END = b"corpuskit-card"
_LENGTH = struct.Struct("<I")
STEPS = 50
"""Newton steps of a calibration; it takes about 8."""
LEAST_SLOPE = 0.1
"""Where held-out groups have one label each, logits may say nothing of labels: the fitted slope is
then 0 or negative, and scores would be equal or reversed."""


@dataclass(frozen=True)
class ModelCard:
    """The normalisation and calibration of a classifier.

    Attributes:
        normalize: names among NORMALIZATIONS.
        slope, shifts: of a calibration: the softmax of slope * logit + shift, with a shift for each
            label, is the score; without shifts scores are the model's own.
    """

    normalize: tuple[str, ...] = ()
    slope: float = 1.0
    shifts: tuple[float, ...] = ()

    @property
    def modes(self) -> int:
        """The normalisation as `normalize` of the kernels takes it."""
        return sum(NORMALIZATIONS[name] for name in self.normalize)

    def probabilities(self, logits: Float64s) -> Float64s:
        """Return the scores of N texts and L labels, (N, L)."""
        values = self.slope * logits + np.array(self.shifts or 0.0)
        return _softmax(values)

    def to_dict(self) -> dict[str, Any]:
        return {"normalize": self.normalize, "slope": self.slope, "shifts": self.shifts}

    @classmethod
    def from_dict(cls, fields: Any, labels: int) -> ModelCard:
        """Check and return what `to_dict` gave.

        Raises:
            ValueError: it is no card of a model with this many labels.
        """
        try:
            card = cls(
                tuple(map(str, fields["normalize"])),
                float(fields["slope"]),
                tuple(map(float, fields["shifts"])),
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"its card is broken: {error}") from None
        numbers = (card.slope, *card.shifts)
        if (
            not set(card.normalize) <= NORMALIZATIONS.keys()
            or len(set(card.normalize)) < len(card.normalize)
            or not all(map(math.isfinite, numbers))
            or len(card.shifts) not in {0, labels}
        ):
            raise ValueError("its card was written by another version of corpuskit, or is broken")
        return card


def parse_normalization(text: str) -> tuple[str, ...]:
    """Return the names in `lower,punct`; `none` or nothing is none.

    Raises:
        UsageError: a name is not known.
    """
    names = [name.strip() for name in text.split(",") if name.strip() not in {"", "none"}]
    for name in names:
        if name not in NORMALIZATIONS:
            raise UsageError(f"normalize: {name!r} is unknown. {suggest(name, NORMALIZATIONS)}")
    return tuple(name for name in NORMALIZATIONS if name in names)


def append_card(path: Path, card: ModelCard) -> None:
    """Append a card to a fastText model, unless it is the default one."""
    if card != ModelCard():
        content = json.dumps(card.to_dict()).encode()
        with path.open("ab") as file:
            file.write(content + _LENGTH.pack(len(content)) + _END)


def read_card(content: Any, end: int, labels: int) -> tuple[ModelCard, int]:
    """Return the card after a fastText model that ends at `end`, and where that ends.

    Raises:
        ValueError: there is a broken one.
    """
    tail = len(content) - len(_END) - _LENGTH.size
    if tail < end or content[len(content) - len(_END) :] != _END:
        return ModelCard(), end
    if end + _LENGTH.unpack_from(content, tail)[0] != tail:
        return ModelCard(), end
    return ModelCard.from_dict(json.loads(content[end:tail]), labels), len(content)


def fit_calibration(logits: Float64s, truth: Int64s) -> tuple[float, tuple[float, ...]]:
    """Return slope and shifts of the likeliest calibration of N texts that were not learned from.

    Targets are smoothed as Platt's, so that a slope stays finite where all are right; it is at
    least LEAST_SLOPE.

    Source: Platt 1999; for several labels bias-corrected temperature scaling, Alexandari et al.
    2020.

    Args:
        logits: (N, L).
        truth: (N,) the right label.
    """
    num, labels = logits.shape
    counts = np.bincount(truth, minlength=labels)
    targets = np.repeat(1 / (num - counts[truth] + 2.0)[:, np.newaxis], labels, axis=1)
    targets /= max(labels - 1, 1)
    targets[np.arange(num), truth] = 1 - targets.sum(axis=1) + targets[np.arange(num), truth]
    scale = max(float(logits.std()), 1e-9)
    design = np.zeros((num, labels, labels))
    design[:, :, 0] = logits / scale
    for label in range(1, labels):
        design[:, label, label] = 1
    theta = _likeliest(design, targets, np.eye(labels, 1)[:, 0], first=0)
    if theta[0] < LEAST_SLOPE * scale:
        theta[0] = LEAST_SLOPE * scale
        theta = _likeliest(design, targets, theta, first=1)
    return float(theta[0] / scale), (0.0, *map(float, theta[1:]))


def _likeliest(design: Float64s, targets: Float64s, theta: Float64s, first: int) -> Float64s:
    """Return the parameters of the least cross-entropy, those before `first` as given; Newton."""
    theta, free = theta.copy(), design[:, :, first:]
    for _ in range(STEPS):
        shares = _softmax(design @ theta)
        gradient = np.einsum("nlp,nl->p", free, shares - targets)
        mean = np.einsum("nlp,nl->np", free, shares)
        hessian = np.einsum("nlp,nl,nlq->pq", free, shares, free) - mean.T @ mean
        step = np.linalg.solve(hessian + 1e-6 * np.eye(len(gradient)), gradient)
        step *= min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        theta[first:] -= step
        if np.abs(step).max() < 1e-8:
            break
    return theta


def _softmax(values: Float64s) -> Float64s:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]
