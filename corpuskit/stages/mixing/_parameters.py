"""Types of what `mix` is told: weights, budgets, caps, and the stages of a schedule."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, WrapValidator, model_validator

from corpuskit.errors import suggest
from corpuskit.stage import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BUDGET = r"^[0-9]+(\.[0-9]+)?[KMBT]$"
_METHODS = ("proportional", "unimax")


def _check_weights(value: Any, check: Callable[[Any], Any]) -> Any:
    """Say what is wrong with weights in one sentence; of a union pydantic says one per member."""
    if isinstance(value, str) and value not in _METHODS:
        hint = suggest(value, _METHODS)
        raise ValueError(f"{value!r} is no way to compute weights. {hint}")
    for name, weight in value.items() if isinstance(value, dict) else ():
        if not isinstance(weight, int) or isinstance(weight, bool) or weight < 1:
            raise ValueError(
                f"the weight of {name!r} must be an integer of at least 1, got {weight!r}. "
                "Multiply all weights by the same number, or leave the source out."
            )
    if not isinstance(value, str | dict | None) or value == {}:
        raise ValueError("must be source -> integer, 'proportional' or 'unimax'")
    return check(value)


def _check_budget(value: Any, check: Callable[[Any], Any]) -> Any:
    """Say what a budget looks like."""
    if isinstance(value, str):
        is_budget = bool(re.match(_BUDGET, value)) and num_tokens(value) > 0
    else:
        is_budget = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value is not None and not is_budget:
        raise ValueError("must be a number of tokens, as in 10_000_000, 500M or 1.5B")
    return check(value)


def _check_epochs(value: Any, check: Callable[[Any], Any]) -> Any:
    """Say which of the caps is wrong."""
    if isinstance(value, dict):
        for name, cap in value.items():
            if not _is_cap(cap):
                raise ValueError(f"that of {name!r} must be a number above 0, got {cap!r}.")
    elif value is not None and not _is_cap(value):
        raise ValueError("must be a number above 0, or source -> number")
    return check(value)


def _is_cap(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < float("inf")  # type: ignore[operator]


GivenWeights = dict[str, Annotated[int, Field(ge=1)]]
Weights = Annotated[
    GivenWeights | Literal["proportional", "unimax"] | None, WrapValidator(_check_weights)
]
Budget = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=_BUDGET)] | None,
    WrapValidator(_check_budget),
]
Cap = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epochs = Annotated[Cap | dict[str, Cap], WrapValidator(_check_epochs)]
StageEpochs = Annotated[Cap | dict[str, Cap] | None, WrapValidator(_check_epochs)]
Temperature = Annotated[float, Field(ge=1, le=1000)]


def num_tokens(budget: int | str) -> int:
    """Return the tokens of a budget: an integer, or a decimal number with K, M, B or T."""
    if isinstance(budget, int):
        return budget
    return int(Fraction(budget[:-1]) * UNITS[budget[-1]])


def check_weighing(
    weights: Weights, temperature: float | None, sources: tuple[str, ...] | None = None
) -> None:
    """Check that only one thing decides the weights.

    Raises:
        ValueError: two do.
    """
    if temperature is not None and weights not in (None, "proportional"):
        what = "unimax" if weights == "unimax" else "weights that are given"
        raise ValueError(
            f"temperature computes weights from rows, it can't go with {what}. Remove one of them."
        )
    if sources is not None and isinstance(weights, dict):
        raise ValueError("sources can't go with weights that are given: they name theirs.")


class StageWeights(Parameters):
    """A stretch of the run with its own weights."""

    name: str
    """What reports call it."""
    weights: Weights = None
    """As for the run; a source left out gives none."""
    temperature: Temperature | None = None
    """As for the run."""
    sources: tuple[str, ...] | None = Field(None, min_length=1)
    """Those that computed weights cover; null takes all."""
    max_epochs: StageEpochs = None
    """How often this stage may take a source's rows; the cap of the run holds besides."""
    rows: int | None = Field(None, ge=1)
    """Packed rows; all stages have `rows` or `tokens`, or all have `ratio`."""
    tokens: Budget = None
    """Instead of `rows`: tokens to train on, as for the run."""
    ratio: int | None = Field(None, ge=1)
    """Integer share of all rows of the run."""

    @model_validator(mode="after")
    def _has_one_size(self) -> StageWeights:
        if sum(size is not None for size in (self.rows, self.tokens, self.ratio)) != 1:
            raise ValueError(f"stage {self.name!r} must have one of rows, tokens and ratio")
        try:
            check_weighing(self.weights, self.temperature, self.sources)
        except ValueError as error:
            raise ValueError(f"stage {self.name!r}: {error}") from None
        return self
