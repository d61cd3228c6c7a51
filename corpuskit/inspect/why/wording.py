"""What ledger rows and measured values mean, as JSON values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpuskit.inspect.why.keyed import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.stage import Stage

Word = Literal[
    "kept", "dropped", "held out", "cut", "replaced", "not reached", "not yet", "not run"
]
"""What a stage said: `not yet`: its phase is not finished; `not run`: it is not in the plan of this
run (`--until`)."""

MARGIN = 60
"""Bytes shown on both sides of a span."""

MAX_EXCERPTS = 5
MAX_SPAN = 300


def meaning_of(stage: Stage, reason: str) -> dict[str, Any]:
    """Return the parameter that bounds a rule, its value and its description.

    Args:
        reason: a rule, and behind a colon details, as the ledger has it.
    """
    parameter = stage.bounds.get(reason.partition(": ")[0])
    if parameter is None:
        return {"parameter": None, "meaning": None}
    return {"parameter": parameter, "meaning": _descriptions(type(stage)).get(parameter)}


@functools.cache
def _descriptions(stage: type[Stage]) -> dict[str, str]:
    """Return what is said of each parameter of a stage, on one line."""
    properties = stage.model_json_schema().get("properties", {})
    told = {name: " ".join(str(one.get("description", "")).split())
            for name, one in properties.items()}  # fmt: skip
    return {name: text for name, text in told.items() if text}


def bounds_of(stage: Stage, values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return measured values with the bounds of their rules, in the order of the rules.

    `fails` says whether the value breaks its bound: later rules were not asked where one does.
    """
    order = {rule: place for place, rule in enumerate(stage.rules)}
    found = []
    for rule in sorted(values, key=lambda name: order.get(name, len(order))):
        value = values[rule]
        number = float("nan") if value is None else float(value)
        fails = rule in order and bool(stage.fails(rule, np.array([number]))[0])
        limit = stage.threshold(rule)
        found.append(
            {
                "rule": rule,
                "value": number if number == number else None,
                "threshold": limit if limit == limit else None,
                **meaning_of(stage, rule),
                "fails": fails,
            }
        )
    return [{name: plain(value) for name, value in one.items()} for one in found]


def excerpts(text: str, spans: Sequence[tuple[int, int]]) -> list[dict[str, str]]:
    """Return the first spans of a text, with what stands around them."""
    data, found = text.encode(), []
    for start, end in spans[:MAX_EXCERPTS]:
        inside = data[start:end]
        if len(inside) > MAX_SPAN:
            inside = inside[: MAX_SPAN // 2] + b" ... " + inside[-MAX_SPAN // 2 :]
        pieces = (data[max(start - MARGIN, 0) : start], inside, data[end : end + MARGIN])
        before, within, after = (piece.decode(errors="ignore") for piece in pieces)
        found.append({"before": before, "span": within, "after": after})
    return found
