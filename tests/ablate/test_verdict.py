"""Intervals of paired differences, and verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corpuskit.ablate.verdict import Scores, compare, student_quantile

TABLE = {  # both tails, degrees of freedom -> t, from printed tables
    (0.05, 1): 12.7062, (0.05, 2): 4.30265, (0.05, 4): 2.77645, (0.01, 2): 9.92484,
    (0.01, 4): 4.60409, (0.01, 30): 2.75000, (0.05, 120): 1.97993, (0.05, 1e6): 1.95997,
}  # fmt: skip


@pytest.mark.parametrize(("error", "freedom"), TABLE)
def test_students_quantiles_are_those_of_the_tables(error, freedom):
    assert student_quantile(error, freedom) == pytest.approx(TABLE[error, freedom], rel=2e-5)


def draw(rng, seeds=3, units=60, *, effect=0.0, seed_noise=0.01, unit_noise=0.05, domains=2):
    """Scores of two variants whose bits per byte differ by `effect`, by seeds and by units."""
    a, b = {}, {}
    of_seeds = seed_noise * rng.standard_normal((seeds, 1))
    for name in map(str, range(domains)):
        sizes = rng.lognormal(7, 1, units)
        base = 2 + 0.3 * rng.standard_normal(units)
        noise = unit_noise * rng.standard_normal((2, seeds, units))
        consistent = unit_noise * rng.standard_normal(units)
        a[name] = Scores((base + noise[0]) * sizes, sizes)
        b[name] = Scores((base + effect + consistent + of_seeds + noise[1]) * sizes, sizes)
    return a, b


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = {0.95: 0, 0.8: 0}
    num = 300
    for _ in range(num):
        a, b = draw(rng, effect=0.03)
        for confidence in covered:
            one = compare(a, b, confidence=confidence)[""]
            covered[confidence] += one.low <= 0.03 <= one.high
    # 300 draws: two standard errors are .025 and .046. They may cover more, never less.
    assert covered[0.95] / num >= 0.925
    assert covered[0.8] / num >= 0.754


def test_a_difference_that_all_seeds_and_units_share_is_found_and_has_its_sign():
    rng = np.random.default_rng(1)
    for effect in (0.1, -0.1):
        one = compare(*draw(rng, effect=effect), confidence=0.95)[""]
        assert one.is_decided
        assert math.copysign(1, one.mean) == math.copysign(1, effect)


def test_several_comparisons_share_the_error():
    a, b = draw(np.random.default_rng(2))
    alone = compare(a, b, confidence=0.95)[""]
    among_ten = compare(a, b, confidence=0.95, comparisons=10)[""]
    strict = compare(a, b, confidence=0.995)[""]
    assert among_ten.high - among_ten.low > alone.high - alone.low
    assert (among_ten.low, among_ten.high) == pytest.approx((strict.low, strict.high))


def test_equal_variants_differ_by_nothing():
    a, _ = draw(np.random.default_rng(3))
    one = compare(a, a, confidence=0.95)[""]
    assert (one.mean, one.low, one.high, one.is_decided) == (0, 0, 0, False)
    assert one.needed_seeds is None


def test_the_seeds_that_would_decide_do_decide():
    rng = np.random.default_rng(4)
    suggestions = 0
    for _ in range(50):
        a, b = draw(rng, effect=0.02, seed_noise=0.02, unit_noise=0.01)
        one = compare(a, b, confidence=0.95)[""]
        if one.needed_seeds is None:
            continue
        suggestions += 1
        assert one.needed_seeds > 3
        # As many seeds with the same mean and variance: the same pattern repeated.
        deviations = np.array(one.seeds) - one.mean
        repeats = -(-one.needed_seeds // 3)
        seeds = one.mean + np.tile(deviations, repeats)[: one.needed_seeds]
        scale = math.sqrt(one.seed_variance / seeds.var(ddof=1))
        seeds = one.mean + (seeds - seeds.mean()) * scale
        variance = one.seed_variance / one.needed_seeds + one.unit_variance
        assert abs(one.mean) > 1.96 * math.sqrt(variance)
    assert suggestions > 10


def test_units_weigh_by_their_bytes():
    sizes = np.array([1.0, 9.0])
    a = {"web": Scores(np.array([[2.0, 9.0]] * 2), sizes)}
    b = {"web": Scores(np.array([[1.0, 9.0]] * 2), sizes)}
    assert a["web"].means == pytest.approx([1.1, 1.1])
    assert compare(a, b, confidence=0.95)["web"].mean == pytest.approx(-0.1)


def test_the_tokens_that_would_decide_do_decide():
    rng = np.random.default_rng(6)
    suggestions = 0
    for _ in range(50):
        a, b = draw(rng, effect=0.02, seed_noise=0.02, unit_noise=0.01)
        one = compare(a, b, confidence=0.95)[""]
        if one.needed_tokens is None:
            continue
        suggestions += 1
        assert 1 < one.needed_tokens <= 16
        variance = one.seed_variance / one.needed_tokens / 3 + one.unit_variance
        assert abs(one.mean) > 1.96 * math.sqrt(variance)
    assert suggestions > 10
