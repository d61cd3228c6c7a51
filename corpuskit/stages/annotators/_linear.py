"""Linear classifiers of hashed n-grams: trained, written, read.

Logistic regression, or ridge regression for numbers, of TF-IDF weights whose rows have length 1.
The loss is convex, so that rows in any order give the same model, and there is no learning rate.

A file: MAGIC, the length of a header, the header as JSON, and compressed float16 numbers, for each
bucket the inverse document frequency and the weights.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corpuskit.errors import DataError, UsageError, reason_of
from corpuskit.kernels.arrays import Bools, Bytes, Float32s, Float64s, Int64s
from corpuskit.kernels.textfeatures import (
    MOST_WORDS,
    Counted,
    GramSettings,
    count_grams,
    score_rows,
)
from corpuskit.stages.annotators._card import ModelCard

MAGIC = b"corpuskit-linear-1\n"
LENGTH = struct.Struct("<I")
MOST_BITS, MOST_RUN, MOST_BYTES = 24, 16, 1 << 30
NUMBER = "score"
"""The label of a model that predicts a number."""

STRENGTH = 10.0
"""Inverse of the penalty on weights, scikit-learn's C."""

CHUNK_BYTES = 1_000_000
"""Text that is counted at a time."""


@dataclass(frozen=True)
class LinearWeights:
    """A linear classifier.

    Attributes:
        labels: L names; `score` alone if it predicts a number.
        grams: what is counted.
        table: (buckets, 1 + C) float32, see `score_rows`; C is 1 for up to two labels, else L.
        bias: (C,).
        bounds: least and largest number learned from; None if it predicts labels.
        card: normalisation and calibration.
    """

    labels: tuple[str, ...]
    grams: GramSettings
    table: Float32s
    bias: Float64s
    bounds: tuple[float, float] | None
    card: ModelCard

    def logits(self, rows: Counted) -> tuple[Float64s, Bools]:
        """Return (N, L) logits, or numbers, and which of N texts have a known n-gram."""
        logits = np.zeros((len(rows.bounds) - 1, len(self.bias)))
        has_known = score_rows(rows, self.table, self.bias, logits)
        if len(self.labels) == 2:
            logits = np.hstack([np.zeros_like(logits), logits])
        return logits, has_known


def count_texts(begins: Int64s, ends: Int64s, data: Bytes, grams: GramSettings) -> Counted:
    """Count the n-grams of N normalised texts, chunk by chunk; memory is that of the result."""
    cuts = np.flatnonzero(np.diff(np.cumsum(ends - begins) // CHUNK_BYTES)) + 1
    pairs = zip(np.split(begins, cuts), np.split(ends, cuts), strict=True)
    return concatenate([count_grams(*pair, data, grams) for pair in pairs])


def concatenate(counts: list[Counted]) -> Counted:
    """Concatenate the rows of several counts."""
    sizes = [np.diff(count.bounds) for count in counts]
    return Counted(
        np.concatenate([[0], np.cumsum(np.concatenate(sizes))]),
        np.concatenate([count.buckets for count in counts]),
        np.concatenate([count.weights for count in counts]),
    )


def bits_of(buckets: int, outputs: int, max_bytes: int) -> int:
    """Return the bits of a bucket's number for which a model fits into `max_bytes`; 0: no limit.

    Raises:
        UsageError: it would be too small for any model.
    """
    bits = min(max((buckets - 1).bit_length(), 10), MOST_BITS)
    while max_bytes and bits >= 10 and 4000 + (2 * (1 + outputs) << bits) > max_bytes:
        bits -= 1
    if bits < 10:
        raise UsageError(
            f"max-size {max_bytes:,} bytes is too small for a linear model. Give more."
        )
    return bits


def fit_linear(
    rows: Counted,
    truth: Float64s,
    labels: tuple[str, ...],
    grams: GramSettings,
    card: ModelCard,
    min_count: int,
) -> LinearWeights:
    """Learn from N rows.

    Args:
        truth: (N,) indices into `labels`, or numbers where the one label is NUMBER.
        min_count: n-grams in fewer texts are ignored.

    Raises:
        DataError: no n-gram is frequent enough.
    """
    from scipy import sparse

    shape = (len(rows.bounds) - 1, 1 << grams.bits)
    matrix = sparse.csr_matrix((rows.weights, rows.buckets, rows.bounds), shape)
    frequencies = np.bincount(matrix.indices, minlength=shape[1])
    columns = np.flatnonzero(frequencies >= min_count)
    if not len(columns):
        raise DataError(f"texts: no n-gram occurs in {min_count} of them. Lower --min-count.")
    idf = (np.log((1 + len(truth)) / (1 + frequencies[columns])) + 1).astype(np.float16)
    matrix = matrix[:, columns] @ sparse.diags(idf.astype(np.float64))
    # Rows of length 1 make scores nearly independent of the length of texts.
    lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1)).A1
    matrix = sparse.diags(1 / np.maximum(lengths, 1e-30)) @ matrix
    is_number = labels == (NUMBER,)
    if is_number:
        targets = truth[:, np.newaxis]
    else:  # one column separates two labels
        first = 1 if len(labels) == 2 else 0
        targets = (truth[:, np.newaxis] == np.arange(first, len(labels))).astype(np.float64)
    theta = _minimise(matrix.tocsr(), targets, is_number)
    table = np.zeros((shape[1], 1 + targets.shape[1]), np.float16)
    table[columns, 0] = idf
    table[columns, 1:] = theta[:-1] * idf[:, np.newaxis]
    if not np.isfinite(table).all():
        raise DataError(
            f"labels: numbers up to {np.abs(truth).max():g} are too large. Divide them."
        )
    bounds = (float(truth.min()), float(truth.max())) if is_number else None
    return LinearWeights(labels, grams, table.astype(np.float32), theta[-1], bounds, card)


def _minimise(matrix: Any, targets: Float64s, is_number: bool) -> Float64s:
    """Return the weights of the columns of a sparse matrix and, last, the bias: (F + 1, C)."""
    from scipy import optimize, special

    shape = (matrix.shape[1] + 1, targets.shape[1])
    transposed = matrix.T.tocsr()
    # The loss of numbers is scaled by their variance, so that STRENGTH suits any unit.
    scale = float(targets.var()) or 1.0 if is_number else 1.0

    def loss(flat: Float64s) -> tuple[float, Float64s]:
        theta = flat.reshape(shape)
        values = matrix @ theta[:-1] + theta[-1]
        if is_number:
            errors = (values - targets) / scale
            total = 0.5 * scale * (errors**2).sum()
        elif shape[1] == 1:
            errors = special.expit(values) - targets
            total = (np.logaddexp(0, values) - targets * values).sum()
        else:
            tops = special.logsumexp(values, axis=1, keepdims=True)
            errors = np.exp(values - tops) - targets
            total = tops.sum() - (targets * values).sum()
        gradient = np.vstack([transposed @ errors, errors.sum(axis=0)])
        gradient[:-1] += theta[:-1] / STRENGTH
        penalty = (theta[:-1] ** 2).sum() / (2 * STRENGTH)
        return float(total + penalty), gradient.ravel()

    start = np.zeros(shape)
    start[-1] = targets.mean(axis=0) if is_number else 0
    options = {"maxiter": 100, "ftol": 1e-6}
    result = optimize.minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(result.x, np.float64).reshape(shape)


def write_linear(path: Path, model: LinearWeights) -> None:
    header = {
        "labels": model.labels,
        "grams": model.grams,
        "bias": model.bias.tolist(),
        "bounds": model.bounds,
        "card": model.card.to_dict(),
    }
    content = json.dumps(header).encode()
    numbers = zlib.compress(model.table.astype("<f2").tobytes(), 9)
    path.write_bytes(MAGIC + LENGTH.pack(len(content)) + content + numbers)


def is_linear(path: Path) -> bool:
    """Say whether a file begins as a linear model."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_linear(path: Path) -> LinearWeights:
    """Read a linear model.

    Raises:
        DataError: it is cut off or broken.
    """
    content = path.read_bytes()
    try:
        (length,) = LENGTH.unpack_from(content, len(MAGIC))
        begin = len(MAGIC) + LENGTH.size
        header = json.loads(content[begin : begin + length])
        labels, grams = tuple(map(str, header["labels"])), GramSettings(*map(int, header["grams"]))
        bias = np.array(header["bias"], np.float64)
        bounds = header["bounds"] and tuple(map(float, header["bounds"]))
        outputs = 1 if len(labels) <= 2 else len(labels)
        if (
            not labels
            or bias.shape != (outputs,)
            or (bounds is None) != (len(labels) > 1)
            or (bounds is not None and (len(bounds) != 2 or not np.isfinite(bounds).all()))
            or not 10 <= grams.bits <= MOST_BITS
            or not 0 <= grams.words <= MOST_WORDS
            or not 0 <= grams.maxn <= MOST_RUN
            or not 1 <= grams.minn <= max(grams.maxn, 1)
            or (2 * (1 + outputs) << grams.bits) > MOST_BYTES
        ):
            raise ValueError("its header does not agree with itself")
        size = 2 * (1 + outputs) << grams.bits
        unpacker = zlib.decompressobj()
        numbers = unpacker.decompress(content[begin + length :], size + 1)
        if len(numbers) != size or not unpacker.eof:
            raise ValueError(f"its weights take {len(numbers):,} bytes, and must take {size:,}")
        table = np.frombuffer(numbers, "<f2").reshape(-1, 1 + outputs).astype(np.float32)
        if not np.isfinite(table).all() or not np.isfinite(bias).all():
            raise ValueError("it has weights that are no numbers")
        card = ModelCard.from_dict(header["card"], len(labels))
    except (
        ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error, zlib.error,
    ) as error:  # fmt: skip
        raise DataError(
            f"{path}: is not a whole linear model: {reason_of(error)}. Fetch it again."
        ) from None
    return LinearWeights(labels, grams, table, bias, bounds, card)
