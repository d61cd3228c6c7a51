"""How many documents break a bound, as far as counts by bins can tell."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, get_args

import numpy as np

from corpuskit.engine.records import edges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stage import Stage


@dataclasses.dataclass(frozen=True)
class Bins:
    """A measure of one source, counted.

    Attributes:
        numbers: of the bins, ascending.
        documents, text_bytes: in each.
    """

    numbers: NDArray[np.int64]
    documents: NDArray[np.int64]
    text_bytes: NDArray[np.int64]


def takes_whole(stage: Stage, parameter: str | None) -> bool:
    """Return whether a parameter takes whole numbers only: what it bounds is counted."""
    field = None if parameter is None else type(stage).model_fields.get(parameter)
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return int in kinds and float not in kinds


def failing(
    numbers: NDArray[np.int64],
    documents: NDArray[np.int64],
    bound: float,
    *,
    is_min: bool,
    is_whole: bool = False,
) -> tuple[int, int]:
    """Return how many documents fail at least, and at most: the bound may lie within a bin.

    Args:
        numbers: of the bins; documents: in each.
        bound: NaN fails nothing.
        is_min: what is below fails, else what is above.
        is_whole: only whole numbers were measured.
    """
    if np.isnan(bound) or len(numbers) == 0:
        return 0, 0
    low, high = _reach(numbers, is_whole=is_whole)
    if is_min:
        sure, perhaps = high < bound, low < bound
    else:
        sure, perhaps = low > bound, high > bound
    return int(documents[sure].sum()), int(documents[perhaps].sum())


def _reach(
    numbers: NDArray[np.int64], *, is_whole: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the greatest value that each bin can hold."""
    ranges = np.array([edges(int(number)) for number in numbers])
    low, high = np.abs(ranges[:, 0]), np.abs(ranges[:, 1])
    inner, outer = np.minimum(low, high), np.maximum(low, high)
    first = np.where(numbers == 0, 0.0, np.nextafter(inner, np.inf))
    if is_whole and (np.floor(inner) + (numbers != 0) <= np.floor(outer)).all():
        first, outer = np.ceil(first), np.floor(outer)
    return np.where(numbers < 0, -outer, first), np.where(numbers < 0, -first, outer)
