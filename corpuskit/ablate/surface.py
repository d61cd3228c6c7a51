"""How losses depend on the shares of a mixture: a law, what corrects it, and where it is lowest.

The law is L = c + exp(shares @ t). It is monotone in each share, so it cannot bend where repetition
begins to cost; a Gaussian process over square roots of shares, in which the first percents of a
source count most, adds what it leaves. Cross-validation decides how much of that, or none.

Letters: N runs, K sources, M mixtures that are asked for. A mixture sums to 1.

Sources: Ye et al. 2024, Data Mixing Laws; Rasmussen and Williams 2006, chapter 2.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CORRECTIONS = [
    None,
    *((length, noise) for length in (0.25, 0.5, 1.0) for noise in (0.03, 0.3, 3.0)),
]
"""Length and noise of the Gaussian process; None: the law alone."""

DEPTHS = np.geomspace(0.03, 30, 25)
"""How far below the least loss c may be, in ranges of the losses."""

NEARER = np.geomspace(0.75, 1.33, 13)
"""Factors of the best depth that are tried next; they reach its neighbours in DEPTHS."""

FOLDS = 10
RIDGE = 1e-4  # of the law: keeps slopes of sources that few runs have within reason


@dataclasses.dataclass(frozen=True)
class Surface:
    """A fitted loss.

    Attributes:
        floor, slopes: c, and t (K,) of the law.
        points: (N, K) square roots of the shares of the runs.
        pulls: (N,) how much each run corrects the law near it.
        length: how far away.
    """

    floor: float
    slopes: Floats
    points: Floats
    pulls: Floats
    length: float

    def __call__(self, shares: Floats) -> Floats:
        """Return the loss of each mixture: (M, K) -> (M,)."""
        losses: Floats = self.floor + np.exp(shares @ self.slopes)
        if len(self.points):
            losses += _kernel(np.sqrt(shares), self.points, self.length) @ self.pulls
        return losses


def fit(shares: Floats, losses: Floats, correction: tuple[float, float] | None) -> Surface:
    """Fit a surface to runs: (N, K) and (N,).

    For each c, log(L - c) is linear in the shares; weights of (L - c) ** 2 make its errors those of
    L. Of values of c from .03 to 30 ranges below the least loss, the one with the least squares of
    L is taken.
    """
    span = max(float(np.ptp(losses)), 1e-9)
    depths = DEPTHS
    for _ in range(2):
        floors = losses.min() - span * depths
        above = losses[None] - floors[:, None]  # (C, N)
        left = np.einsum("cn,ni,nj->cij", above**2, shares, shares)
        left += RIDGE * np.trace(left, axis1=1, axis2=2)[:, None, None] * np.eye(shares.shape[1])
        # Around a mean, so that what is not known of a source is that it is like the others.
        means = (above**2 * np.log(above)).sum(1) / (above**2).sum(1)
        right = np.einsum("cn,ni->ci", above**2 * (np.log(above) - means[:, None]), shares)
        slopes = np.linalg.solve(left, right[..., None])[..., 0] + means[:, None]
        errors = losses[None] - floors[:, None] - np.exp(slopes @ shares.T)
        best = int((errors**2).sum(1).argmin())
        depths = depths[best] * NEARER
    points, pulls, length = np.zeros((0, shares.shape[1])), np.zeros(0), 1.0
    if correction is not None:
        length, noise = correction
        points = np.sqrt(shares)
        kernel = _kernel(points, points, length) + noise * np.eye(len(points))
        pulls = np.linalg.solve(kernel, errors[best])
    return Surface(float(floors[best]), slopes[best], points, pulls, length)


def _kernel(a: Floats, b: Floats, length: float) -> Floats:
    squares = ((a[:, None] - b[None]) ** 2).sum(-1)
    kernel: Floats = np.exp(squares / (-2 * length**2))
    return kernel


def choose(shares: Floats, losses: Floats) -> tuple[float, float] | None:
    """Return the correction that predicts best what it was not fitted to."""
    errors = [
        sum(
            float(((fit(shares[~out], losses[~out], pair)(shares[out]) - losses[out]) ** 2).sum())
            for out in _folds(len(losses))
        )
        for pair in CORRECTIONS
    ]
    # A correction has to gain 5 %: it would follow noise.
    return CORRECTIONS[int(np.argmin([errors[0] * 0.95, *errors[1:]]))]


def predicted_unseen(shares: Floats, losses: Floats) -> Floats:
    """Return what each run is predicted by fits, choices included, that did not see it: (N,)."""
    predictions = np.zeros(len(losses))
    for out in _folds(len(losses)):
        x, y = shares[~out], losses[~out]
        predictions[out] = fit(x, y, choose(x, y))(shares[out])
    return predictions


def _folds(num: int) -> list[NDArray[np.bool_]]:
    rows = np.arange(num)
    return [rows % FOLDS == fold for fold in range(min(FOLDS, num))]


def lowest(
    objective: Callable[[Floats], Floats], starts: Floats, low: Floats, high: Floats
) -> Floats:
    """Return the mixture with the least objective between bounds: (K,).

    From each start, the best exchange between two sources is made as long as one helps, by steps
    that halve from a tenth to 1/2560: for a smooth objective that is a minimum.
    """
    num = starts.shape[1]
    source, sink = np.nonzero(~np.eye(num, dtype=bool))
    best: Floats = starts[0]
    least = np.inf
    for start in starts:
        mix, value = start, float(objective(start[None])[0])
        for step in 0.1 * 0.5 ** np.arange(9):
            for _ in range(1000):
                room = np.minimum(mix[source] - low[source], high[sink] - mix[sink])
                amount = np.clip(room, 0, step)
                trials = np.repeat(mix[None], len(source), 0)
                trials[np.arange(len(source)), source] -= amount
                trials[np.arange(len(source)), sink] += amount
                values = objective(np.maximum(trials, 0))
                if not len(values) or values.min() >= value - 1e-12:
                    break
                mix, value = np.maximum(trials[values.argmin()], 0), float(values.min())
        if value < least:
            best, least = mix, value
    return best


def draw_shares(number: int, natural: Floats, low: Floats, high: Floats) -> Floats:
    """Return the mixture of a numbered run, between bounds: (K,).

    Dirichlet, around natural shares and equal ones by turns, and from nearly those to nearly one
    source alone.
    """
    center = natural if number % 2 == 0 else np.full(len(natural), 1 / len(natural))
    return _draw(number, center, (0.5 * len(natural), 8 * len(natural)), low, high)


def draw_near(number: int, center: Floats, low: Floats, high: Floats) -> Floats:
    """Return a mixture near another, for a numbered run: shares of .5 change by some .07 to .15."""
    return _draw(number, center, (10, 50), low, high)


def _draw(
    number: int, center: Floats, strengths: tuple[float, float], low: Floats, high: Floats
) -> Floats:
    random = np.random.default_rng([number, len(center)])
    weakest, strongest = strengths
    strength = math.exp(random.uniform(math.log(weakest), math.log(strongest)))
    return clip_shares(random.dirichlet(np.maximum(strength * center, 0.05)), low, high)


def clip_shares(shares: Floats, low: Floats, high: Floats) -> Floats:
    """Scale shares, cut at the bounds, so that they sum to 1; sums of bounds are around 1."""
    shares = np.maximum(shares, 1e-9)
    small, large = 1e-12, 1e12
    for _ in range(200):
        scale = (small * large) ** 0.5
        total = np.clip(scale * shares, low, high).sum()
        small, large = (scale, large) if total < 1 else (small, scale)
    inside: Floats = np.clip(large * shares, low, high)
    return inside


def in_parts(shares: Floats, high: Floats, parts: int) -> list[int]:
    """Round to integers that sum to `parts`; none above its bound where the bounds leave room."""
    floors = np.floor(shares * parts + 1e-9).astype(int)
    room = floors + 1 <= high * parts + 1e-9
    order: Sequence[int] = np.lexsort((-(shares * parts - floors), ~room)).tolist()
    for k in order[: parts - int(floors.sum())]:
        floors[k] += 1
    return [int(floor) for floor in floors]
