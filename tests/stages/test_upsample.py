"""Upsampling gives each document as many copies as its curve says, by the document alone."""

from __future__ import annotations

import bisect
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.errors import UsageError
from corpuskit.formats.batch import make_keys
from corpuskit.formats.ledger import sampled
from corpuskit.stage import Known, View
from corpuskit.stages.mixing.upsample import QualityCurve, Upsample, integral, power_exponential

finite = st.floats(-100, 100)


def view(values, sources=None, first=0):
    positions = np.arange(first, first + len(values))
    return View(
        pa.record_batch(
            {
                "key": pa.array(make_keys(0, positions)),
                "source": pa.array(sources or ["web"] * len(values), pa.string()),
                "q.score": pa.array(values, pa.float64()),
            }
        )
    )


def copies(stage, values, **options):
    return stage.apply(view(values, **options)).columns["copies"].to_pylist()


def curve(*points, **options):
    return Upsample(column="q.score", points=points, **options)


@given(size=st.integers(1, 3000))
def test_fineweb2_repeats_by_the_published_table(size):
    weights = {1: 1, 2: 2, 3: 3, 5: 5, 100: 8, 1000: 1}
    limits = sorted(weights)
    expected = weights[limits[bisect.bisect_right(limits, size) - 1]]
    assert copies(Upsample(column="q.score", preset="fineweb2"), [size]) == [expected]


@given(
    xs=st.lists(finite, min_size=1, max_size=6, unique=True).map(sorted),
    data=st.data(),
    value=finite,
)
def test_step_and_linear_equal_plain_python(xs, data, value):
    factors = data.draw(st.lists(st.integers(0, 9), min_size=len(xs), max_size=len(xs)))
    points = list(zip(xs, factors, strict=True))
    step = [factor for x, factor in points if x <= value] or factors[:1]
    assert curve(*points)._factors(np.array([value])).tolist() == [step[-1]]
    line = [factors[0]] if value <= xs[0] else factors[-1:]
    for (x0, f0), (x1, f1) in itertools.pairwise(points):
        if x0 <= value < x1:
            line = [f0 + (f1 - f0) * (value - x0) / (x1 - x0)]
    found = curve(*points, interpolation="linear")._factors(np.array([value]))
    assert found.tolist() == pytest.approx(line, abs=1e-9)


def test_a_fraction_is_its_share_of_the_documents():
    found = np.array(copies(curve([0, 2.3]), [0.0] * 20_000))
    assert set(found) == {2, 3}
    assert abs((found == 3).mean() - 0.3) < 4 * (0.3 * 0.7 / 20_000) ** 0.5


@settings(deadline=None)
@given(cut=st.integers(0, 50), seed=st.integers(0, 2**64 - 1))
def test_the_batch_does_not_matter(cut, seed):
    values = np.linspace(0, 1, 50).tolist()
    stage = curve([0, 0.4], [0.5, 1.5], seed=seed)
    halves = copies(stage, values[:cut]) + copies(stage, values[cut:], first=cut)
    assert halves == copies(stage, values)


def test_a_larger_factor_never_gives_fewer_copies():
    values = [0.0] * 2000
    few, many = (np.array(copies(curve([0, factor]), values)) for factor in (0.7, 1.4))
    assert (few <= many).all()


def test_another_seed_chooses_others():
    one, two = (copies(curve([0, 0.5], seed=seed), [0.0] * 200) for seed in (0, 1))
    assert one != two


def test_what_the_ledger_samples_is_dropped_as_often_as_others():
    keys = make_keys(0, np.arange(1_000_000))
    chosen = np.flatnonzero(sampled(keys, 0))
    dropped = np.array(copies(curve([0, 0.5]), [0.0] * (int(chosen.max()) + 1)))[chosen] == 0
    assert abs(dropped.mean() - 0.5) < 4 * 0.5 / len(chosen) ** 0.5


def test_documents_without_copies_are_dropped_with_value_and_factor():
    outcome = curve([0, 0.0], [0.5, 1]).apply(view([0.25, 0.75]))
    assert outcome.codes.tolist() == [1, 0]
    assert (outcome.values[0], outcome.bounds[0]) == (0.25, 0.0)


def test_documents_without_a_value_have_a_factor_of_their_own():
    values = [None, float("nan"), 0.5]
    assert copies(curve([0, 3]), values) == [1, 1, 3]
    assert copies(curve([0, 3], missing=0), values) == [0, 0, 3]


def test_other_sources_are_left_alone():
    stage = curve([0, 3], sources=["books"])
    assert copies(stage, [1, 1], sources=["web", "books"]) == [1, 3]


def test_a_source_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match=r"no source 'book'\. Did you mean 'books'"):
        curve([0, 3], sources=["book"]).check(Known(("web", "books")))


def test_a_second_stage_multiplies():
    given = curve([0, 2]).provides({})
    again = Upsample(column="q.score", curve={"mean": 1.5}).provides(given)["upsample"]
    assert again["columns"] == ["upsample.copies", "upsample_2.copies"]
    assert again["factor"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "one of points, preset and curve"),
        ({"points": [[0, 1]], "preset": "dolma3"}, "one of points, preset and curve"),
        ({"points": [[1, 1], [0, 2]]}, "values must ascend"),
        ({"points": [[0, 101]]}, "less than or equal to 100"),
        ({"preset": "dolma3", "interpolation": "linear"}, "only points can be linear"),
        ({"curve": {"mean": 4.3}}, "needs a factor of at least 7.24, above max_factor 7"),
    ],
)
def test_wrong_parameters_say_what_is_wrong(params, message):
    with pytest.raises(ValidationError, match=message):
        Upsample(column="q.score", **params)


def fit_in_python(discard, most, mean, buckets):
    """The published search, with integrals by rectangles."""
    end = 1 - int(discard * buckets + 1e-9) / buckets
    x = (np.arange(200_000) + 0.5) / 200_000 * end

    def factors(power, rate):
        y = x**power * np.exp(rate * x)
        y *= mean / (y.mean() * end)
        kept = round(end * buckets)
        return np.append(np.zeros(buckets - kept), y.reshape(kept, -1).mean(axis=1))

    power = max(p for p in np.linspace(0.01, 2, 20) if factors(p, 0)[-1] <= most + 1e-6)
    rate = max(r for r in np.linspace(0, 2, 401) if factors(power, r)[-1] <= most + 1e-6)
    return factors(power, rate)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.5, 1.0, 2.5, 4.0])
def test_the_curve_of_dolma3_is_the_published_one(mean):
    found = [factor for _, factor in power_exponential(0.4, 7, mean, 16)]
    assert found == pytest.approx(fit_in_python(0.4, 7, mean, 16), abs=0.02)


def test_the_integral_is_that_of_the_published_example():
    # allenai/dolma3, mixing_dashboard.ipynb: p 2, lambda 0.2, integral 2 over [0, 2/3]: this C.
    assert 2 / integral(2.0, 0.19999999403953553, 2 / 3) == pytest.approx(18.316896325718783)


@settings(deadline=None, max_examples=40)
@given(
    discard=st.floats(0, 0.9),
    most=st.floats(1.5, 20),
    mean=st.floats(0.05, 3),
    buckets=st.integers(2, 60),
)
def test_a_curve_keeps_its_mean_its_bound_and_its_order(discard, most, mean, buckets):
    try:
        points = power_exponential(discard, most, mean, buckets)
    except ValueError:
        assert mean / (1 - int(discard * buckets) / buckets) > 0.99 * most
        return
    factors = [factor for _, factor in points]
    assert sum(factors) / buckets == pytest.approx(mean, rel=1e-6)
    assert factors == sorted(factors)
    assert factors[-1] <= most * (1 + 1e-5)
    assert all(factor == 0 for x, factor in points if x + 1 / buckets <= discard)


def test_ranks_at_a_bucket_have_the_factor_of_that_bucket():
    stage = Upsample(column="q.score", preset="dolma3")
    ranks = [number / 20 for number in range(20)]
    assert stage._factors(np.array(ranks)).tolist() == [f for _, f in QualityCurve().points()]
