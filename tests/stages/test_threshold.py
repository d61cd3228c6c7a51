from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from corpuskit.errors import DataError
from corpuskit.stage import View
from corpuskit.stages.filters.threshold import Threshold


def apply(values, *, groups=None, **params):
    stage = Threshold(column="score", by=None if groups is None else "lang", **params)
    columns = {"score": values if isinstance(values, pa.Array) else pa.array(values)}
    if groups is not None:
        columns["lang"] = pa.array(groups, pa.string())
    outcome = stage.apply(View(pa.record_batch(columns)))
    return [stage.rules[code - 1] if code else None for code in outcome.codes], outcome


def test_bounds_themselves_are_kept():
    found, _ = apply([0.4, 0.5, 0.7, 0.8], min=0.5, max=0.7)
    assert found == ["below_min", None, None, "above_max"]


def test_the_ledger_has_value_and_bound():
    _, outcome = apply([1, 9], min=2, max=8)
    assert (outcome.values.tolist(), outcome.bounds.tolist()) == ([1, 9], [2, 8])


@pytest.mark.parametrize("values", [[None, 1.0], [float("nan"), 1.0], ["x", "1"], [" ", "1"]])
def test_what_has_no_value_is_kept_or_dropped(values):
    assert apply(values, min=0.5)[0] == [None, None]
    assert apply(values, min=0.5, missing="drop")[0] == ["missing", None]


@pytest.mark.parametrize("text", ["3", "+3.", " .3e1 ", "30E-1"])
def test_strings_are_read_as_numbers(text):
    assert apply(["2.9", text], min=3)[0] == ["below_min", None]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.bool_()])
def test_columns_of_any_number_do(kind):
    assert apply(pa.array([0, 1]).cast(kind), min=1)[0] == ["below_min", None]


def test_a_column_of_lists_is_refused():
    with pytest.raises(DataError, match="column 'score' has type list<item: int64>"):
        apply([[1]], min=1)


def test_groups_have_bounds_of_their_own():
    limits = {"de": (0.8, None), "fr": (None, 0.2)}
    found, outcome = apply(
        [0.6, 0.6, 0.6, 0.6], groups=["en", "de", "fr", None], min=0.5, limits=limits
    )
    assert found == [None, "below_min", "above_max", None]
    assert outcome.bounds[1:3].tolist() == [0.8, 0.2]


def test_measures_and_bounds_give_the_decision():
    values = [0.1, 0.6, 0.9, None]
    found, outcome = apply(values, min=0.5, max=0.7, missing="drop", measures=True)
    stage = Threshold(column="score", min=0.5, max=0.7, missing="drop")
    broken = {rule: stage.fails(rule, measured) for rule, measured in outcome.measures.items()}
    assert [next((r for r in stage.rules if broken[r][row]), None) for row in range(4)] == found


def test_missing_values_alone_may_be_dropped():
    assert apply([-np.inf, np.inf, None], missing="drop")[0] == [None, None, "missing"]


def test_bounds_by_a_column_of_no_strings_are_refused():
    given = View(pa.record_batch({"score": pa.array([1.0]), "group": pa.array([["x"]])}))
    with pytest.raises(DataError, match="'group' has type list"):
        Threshold(column="score", by="group", limits={"x": (0, 1)}).apply(given)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min": 2, "max": 1}, "min 2.0 must not be greater than max 1.0"),
        ({"by": "source", "limits": {"web": (2, 1)}}, "limits of 'web'"),
        ({"limits": {"web": (1, 2)}}, "there is no `by`"),
        ({}, "must have min, max or limits"),
        ({"min": float("nan")}, "must be numbers, not NaN"),
        ({"by": "source", "limits": {"web": (None, float("nan"))}}, "limits of 'web': .*NaN"),
        ({"by": "source", "limits": {"web": (1, 2)}, "measures": True}, "cannot be tuned"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ValidationError, match=message):
        Threshold(column="score", **params)
