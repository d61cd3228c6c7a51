"""How losses fall with tokens and parameters, and what becomes of a difference.

The law is L = E + A / N^a + B / D^b, none of E, A, B below 0 and exponents from .03 to 3. A term is
fitted where its axis has three values; E with one term only from four on, since three values fit
any three numbers. For given exponents the law is linear, so exponents are searched on a grid that
narrows, and the rest is least squares.

Intervals resample residuals: those of all trainings, seed noise and lack of fit alike, the same
for all variants, since they share seeds. Letters: K sizes, S seeds, R resamples, P coefficients.

Sources: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, section 3.3; Efron
and Tibshirani 1993, An Introduction to the Bootstrap, section 9.4.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.ablate.verdict import mean_interval, student_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RESAMPLES = 200
NEEDED = 3  # values of an axis for a term of its own
AHEAD = 4  # times the largest size, for which losses are predicted
EXPONENTS = (0.03, 3.0)
GRIDS = (12, *(5,) * 6)
"""Points per axis of each grid; the next one spans the neighbours of the best point. At the end
exponents are known to 1 %."""


@dataclasses.dataclass(frozen=True)
class Law:
    """A law, fitted R times.

    Attributes:
        scales: (T,) the largest value of each axis that has a term.
        exponents: (R, T).
        coefficients: (R, P) of E (if it has one) and of each term at `scales`.
    """

    scales: Floats
    exponents: Floats
    coefficients: Floats

    def predict(self, values: Floats) -> Floats:
        """Return the losses at (K, T) values of the axes: (R, K)."""
        powers = (values / self.scales) ** -self.exponents[:, None]  # (R, K, T)
        has_floor = self.coefficients.shape[1] > len(self.scales)
        floor = self.coefficients[:, :1] if has_floor else 0.0
        terms: Floats = floor + np.einsum("rkt,rt->rk", powers, self.coefficients[:, has_floor:])
        return terms


def fit(values: Floats, losses: Floats, *, has_floor: bool) -> Law:
    """Fit a law to (K, T) values and (R, K) losses."""
    num, terms = len(losses), values.shape[1]
    scales = values.max(0)
    low, high = map(math.log, EXPONENTS)
    center = np.full((1, terms), (low + high) / 2)
    reach = (high - low) / 2
    rows = np.arange(num)
    for steps in GRIDS:
        offsets = np.array([*itertools.product(np.linspace(-1, 1, steps), repeat=terms)]) * reach
        logs = np.clip(center[:, None] + offsets, low, high)  # (R or 1, G, T)
        powers = (values / scales) ** -np.exp(logs)[:, :, None]  # (R or 1, G, K, T)
        ones = np.ones((*powers.shape[:-1], 1))
        design = np.concatenate((ones, powers), -1) if has_floor else powers
        solved, errors = _least_squares(design, losses)
        best = errors.argmin(1)
        center = np.broadcast_to(logs, (num, *logs.shape[1:]))[rows, best]
        reach *= 2 / (steps - 1)
    return Law(scales, np.exp(center), solved[rows, best])


def _least_squares(design: Floats, losses: Floats) -> tuple[Floats, Floats]:
    """Solve (R or 1, G, K, P) designs for (R, K) losses, with no coefficient below 0.

    Of all subsets of the coefficients whose solution is positive, the best is the solution.
    Returns (R, G, P) coefficients, and (R, G) sums of squares.
    """
    num, (grid, _, size) = len(losses), design.shape[1:]
    best = np.zeros((num, grid, size))
    least = np.broadcast_to((losses**2).sum(1)[:, None], (num, grid)).copy()
    gram = np.einsum("rgkp,rgkq->rgpq", design, design)
    moments = np.einsum("rgkp,rk->rgp", np.broadcast_to(design, (num, *design.shape[1:])), losses)
    total = (losses**2).sum(1)[:, None]
    for count in range(1, size + 1):
        for subset in map(list, itertools.combinations(range(size), count)):
            matrix = gram[..., subset, :][..., subset] + 1e-12 * np.eye(count)
            solved = np.linalg.solve(matrix, moments[..., subset][..., None])[..., 0]
            squares = total - (solved * moments[..., subset]).sum(-1)
            is_better = (solved >= 0).all(-1) & (squares < least)
            least[is_better] = squares[is_better]
            full = np.zeros((num, grid, size))
            full[..., subset] = solved
            best[is_better] = full[is_better]
    return best, least


def extrapolate(
    parameters: Floats, tokens: Floats, losses: Mapping[str, Floats],
    confidence: float,
) -> dict[str, Any] | None:  # fmt: skip
    """Fit each variant, as in ablation.json; None: no axis has three values.

    Args:
        parameters, tokens: (K,) of each size.
        losses: variant -> (K, S) bits per byte; the first is the baseline.
    """
    is_fitted, axes = _choose(np.array([parameters, tokens], np.float64).T)
    if not axes:
        return None
    values = np.array([parameters, tokens], np.float64).T[is_fitted][:, axes]
    has_floor = len(axes) > 1 or len(set(values[:, 0])) > NEEDED
    target = values.max(0) * AHEAD
    random = np.random.default_rng(0)
    laws, predicted = {}, {}
    draws = None
    for name, by_seed in losses.items():
        measured = by_seed[is_fitted]
        law = fit(values, measured.mean(1)[None], has_floor=has_floor)
        fitted = law.predict(values)[0]
        residuals = measured - fitted[:, None]
        free = law.coefficients.size + law.exponents.size
        # Residuals of a fit are smaller than the noise that it was fitted to, and few: Student.
        freedom = max(residuals.size - free, 1)
        error = 1 - confidence
        wider = student_quantile(error, freedom) / student_quantile(error, 1e6)
        residuals *= wider * math.sqrt(residuals.size / freedom)
        if draws is None:
            draws = random.integers(residuals.size, size=(RESAMPLES, *residuals.shape))
        resampled = fitted + residuals.reshape(-1)[draws].mean(2)
        laws[name] = (law, fit(values, resampled, has_floor=has_floor), residuals)
        predicted[name] = [law.predict(target[None])[:, 0] for law in laws[name][:2]]
    first = next(iter(losses))
    return {
        "axes": [("parameters", "tokens")[axis] for axis in axes],
        "sizes": np.flatnonzero(is_fitted).tolist(),
        "ahead": target.tolist(),
        "variants": {
            name: {
                **_described(law, resampled, axes, confidence),
                "residual": float(residuals.std()) / wider,
                "predicted": _interval(predicted[name], confidence),
                "difference": _interval(
                    [b - a for a, b in zip(predicted[first], predicted[name], strict=True)],
                    confidence,
                ),
            }
            for name, (law, resampled, residuals) in laws.items()
        },
    }


def _choose(values: Floats) -> tuple[NDArray[np.bool_], list[int]]:
    """Return which sizes are fitted, and on which axes; an axis without a term must not vary."""
    num = [len(set(column)) for column in values.T]
    axes = [axis for axis in (0, 1) if num[axis] >= NEEDED]
    if len(axes) == 2 and len(np.unique(values, axis=0)) < 2 * NEEDED:
        axes = [max(axes, key=lambda axis: num[axis])]
    is_fitted = np.ones(len(values), bool)
    for axis in {0, 1} - set(axes):
        is_fitted &= values[:, axis] == values[:, axis].max()
    axes = [axis for axis in axes if len(set(values[is_fitted, axis])) >= NEEDED]
    return is_fitted, axes


def _described(law: Law, resampled: Law, axes: Sequence[int], confidence: float) -> dict[str, Any]:
    """Return E, and A and a, B and b, with intervals."""
    has_floor = law.coefficients.shape[1] > len(axes)
    terms = {}
    if has_floor:
        floors = [law.coefficients[:, 0], resampled.coefficients[:, 0]]
        terms["E"] = _interval(floors, confidence)
    for term, axis in enumerate(axes):
        letter = "AB"[axis]
        exponents = [fitted.exponents[:, term] for fitted in (law, resampled)]
        terms[letter.lower()] = _interval(exponents, confidence)
        sizes = [
            f.coefficients[:, has_floor + term] * f.scales[term] ** f.exponents[:, term]
            for f in (law, resampled)
        ]
        terms[letter] = _interval(sizes, confidence)
    return terms


def _interval(values: Sequence[Floats], confidence: float) -> list[float]:
    """Return the value, and its interval: percentiles of the resamples, which are the second."""
    value, resampled = values
    ends = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return [float(value[0]), float(ends[0]), float(ends[1])]


def trend(sizes: Floats, differences: Floats, confidence: float) -> list[float] | None:
    """Return how much a difference changes per doubling of a size, and the interval.

    Each seed gives a slope over all sizes; the interval is Student's over seeds.

    Args:
        sizes: (K,) tokens or parameters.
        differences: (K, S).
    """
    logs = np.log2(sizes) - np.log2(sizes).mean()
    if not (squares := float((logs**2).sum())) or differences.shape[1] < 2:
        return None
    return [*mean_interval((logs @ differences) / squares, confidence)]
