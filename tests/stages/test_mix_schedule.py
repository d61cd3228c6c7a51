"""The arithmetic of schedules alone: weights that are computed, budgets, caps, what is advised."""

from __future__ import annotations

import dataclasses
import decimal
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.order import apportion
from corpuskit.stages.mixing._schedule import (
    StageRequest,
    Supply,
    epoch_rows,
    make_schedule,
    num_tokens,
    problem_of,
    rows_of,
    spread_evenly,
    temper,
)

NAMES = ("web", "books", "code", "math")


def supplies(rows, caps=None):
    caps = caps or [1.0] * len(rows)
    return [Supply(name, n, cap) for name, n, cap in zip(NAMES, rows, caps, strict=False)]


def turns(num_rows, weights):
    """Which source gives each row: the one that is due first, the plain way."""
    taken, order = [0] * len(weights), []
    for _ in range(num_rows):
        due = {k: Fraction(2 * taken[k] + 1, w) for k, w in enumerate(weights) if w}
        source = min(due, key=lambda k: (due[k], k))
        taken[source] += 1
        order.append(source)
    return order


def counts(order, num):
    return [order.count(k) for k in range(num)]


def first_lack(stages, caps, limits):
    """Walk through a run row by row; return (stage, source, rows of the stage before it)."""
    taken = [0] * len(caps)
    for number, (size, weights) in enumerate(stages):
        here = [0] * len(caps)
        for row, source in enumerate(turns(size, weights)):
            taken[source] += 1
            here[source] += 1
            if taken[source] > caps[source] or here[source] > limits[number][source]:
                return number, source, row
    return None


ROWS = st.lists(st.integers(1, 40), min_size=1, max_size=4)
CAPS = st.lists(st.sampled_from([0.5, 1.0, 1.1, 3.0]), min_size=4, max_size=4)
WEIGHTS = st.lists(st.integers(1, 9), min_size=4, max_size=4)


def weigh(weights, num):
    return dict(zip(NAMES[:num], weights, strict=False))


# ---------------------------------------------------------------- caps


@settings(deadline=None, max_examples=60)
@given(ROWS, CAPS, st.lists(st.tuples(st.integers(1, 60), WEIGHTS), min_size=1, max_size=3))
def test_a_shortage_is_where_a_walk_through_the_run_meets_it(rows, caps, asked):
    num = len(rows)
    requests = [
        StageRequest(str(i), rows=size, weights=weigh(weights, num), max_epochs=2.0)
        for i, (size, weights) in enumerate(asked)
    ]
    made = make_schedule(supplies(rows, caps), requests)
    limits = [
        min(epoch_rows(cap, n), epoch_rows(2.0, n)) for cap, n in zip(caps, rows, strict=False)
    ]
    met = first_lack(
        [(size, weights[:num]) for size, weights in asked],
        [epoch_rows(cap, n) for cap, n in zip(caps, rows, strict=False)], [limits] * len(asked),
    )  # fmt: skip
    assert [list(stage.counts) for stage in made.stages] == [
        counts(turns(size, weights[:num]), num) for size, weights in asked
    ]
    assert made.is_possible == (met is None)
    if met is not None:
        stage, source, _ = met
        assert (stage, source) in {(one.stage, one.source) for one in made.shortages}
        assert stage == min(one.stage for one in made.shortages)


@settings(deadline=None, max_examples=60)
@given(ROWS, CAPS, WEIGHTS, st.integers(1, 200))
def test_the_advised_length_fits_and_a_row_more_does_not(rows, caps, weights, size):
    num = len(rows)
    request = StageRequest("main", ratio=1, weights=weigh(weights, num))
    known = supplies(rows, caps)
    try:
        made = make_schedule(known, [request], size)
    except DataError:
        return  # the caps leave no row at all
    text = problem_of(made, 8)
    if made.is_possible:
        assert text == ""
        return
    found = re.search(r"Set rows to ([\d,]+) or less \(tokens to ([\d,]+)\)", text)
    if found is None:
        assert "max_epochs for" in text
        assert not make_schedule(known, [request], 1).is_possible
        return
    fits, tokens = (int(one.replace(",", "")) for one in found.groups())
    assert tokens == 8 * fits
    assert make_schedule(known, [request], fits).is_possible
    assert not make_schedule(known, [request], fits + 1).is_possible
    used_up = re.search(r"used up after ([\d,]+) of", text)
    assert turns(size, weights[:num])[int(used_up[1].replace(",", ""))] == next(
        k for k, one in enumerate(known) if f"rows of {one.name!r}" in text
    )


@settings(deadline=None, max_examples=60)
@given(ROWS, WEIGHTS, st.integers(1, 120))
def test_advised_weights_and_epochs_fit(rows, weights, size):
    num = len(rows)
    request = StageRequest("main", ratio=1, weights=weigh(weights, num))
    text = problem_of(make_schedule(supplies(rows), [request], size), 1)
    name = re.search(r"rows of '(\w+)'", text)
    if found := re.search(r"its weight to (\d+) or less", text):
        changed = {**request.weights, name[1]: int(found[1])}
        again = StageRequest("main", ratio=1, weights=changed)
        assert make_schedule(supplies(rows), [again], size).is_possible
    if text:
        epochs = float(re.search(r"max_epochs for '\w+' to ([\d.]+) or more", text)[1])
        caps = [epochs if one == name[1] else 1e9 for one in NAMES[:num]]
        assert make_schedule(supplies(rows, caps), [request], size).is_possible


@settings(deadline=None, max_examples=40)
@given(ROWS, CAPS, WEIGHTS, WEIGHTS, st.integers(1, 5), st.integers(1, 5))
def test_without_a_length_the_run_is_the_longest_that_a_walk_finds(rows, caps, one, two, a, b):
    num = len(rows)
    known = supplies(rows, caps)
    requests = [
        StageRequest("one", ratio=a, weights=weigh(one, num)),
        StageRequest("two", ratio=b, weights=weigh(two, num)),
    ]
    limits = [supply.cap for supply in known]

    def fits(total):
        sizes = apportion(total, [a, b]).tolist()
        stages = [(sizes[0], one[:num]), (sizes[1], two[:num])]
        return first_lack(stages, limits, [limits, limits]) is None

    longest = 0
    while fits(longest + 1):
        longest += 1
    if longest:
        made = make_schedule(known, requests)
        assert sum(stage.rows for stage in made.stages) == longest
    else:
        with pytest.raises(DataError, match="max_epochs leaves no row"):
            make_schedule(known, requests)


def test_the_cap_of_a_stage_holds_besides_that_of_the_run():
    known = supplies([100, 10], [1.0, 4.0])
    requests = [
        StageRequest("warm", rows=50, weights={"web": 1}),
        StageRequest("anneal", rows=40, weights={"web": 1, "books": 1}, max_epochs={"books": 1.5}),
    ]
    text = problem_of(make_schedule(known, requests), 2)
    assert text == (
        "mix: stage 'anneal' takes 20 rows of 'books', 2.00 epochs, but max_epochs of stage "
        "'anneal' 1.5 allows 15 (it has 10). They are used up after 31 of the 40 rows of stage "
        "'anneal'. Set rows of stage 'anneal' to 31 or less (tokens to 62), or max_epochs of stage "
        "'anneal' for 'books' to 2.0 or more."
    )


def test_the_advised_length_of_a_stage_leaves_enough_for_those_behind_it():
    known = supplies([1000, 75])
    main = StageRequest("main", rows=300, weights={"web": 2, "books": 1})
    anneal = StageRequest("anneal", rows=60, weights={"web": 1, "books": 1})
    text = problem_of(make_schedule(known, [main, anneal]), 1)
    fits = int(re.search(r"Set rows of stage 'main' to (\d+) or less", text)[1])
    for rows, is_possible in ((fits, True), (fits + 1, False)):
        shorter = dataclasses.replace(main, rows=rows)
        assert make_schedule(known, [shorter, anneal]).is_possible == is_possible


def test_what_all_stages_before_have_taken_is_gone():
    requests = [StageRequest(str(i), rows=4, weights={"web": 1}) for i in range(3)]
    (one,) = make_schedule(supplies([10]), requests).shortages
    assert (one.stage, one.rows, one.max_rows, one.is_own) == (2, 4, 2, False)


def test_a_run_of_open_length_ends_at_the_cap_of_a_stage():
    requests = [
        StageRequest("main", ratio=2, weights={"web": 1}),
        StageRequest("anneal", ratio=1, weights={"books": 1}, max_epochs=0.5),
    ]
    made = make_schedule(supplies([100, 20]), requests)
    assert [stage.rows for stage in made.stages] == [21, 10]


def test_epochs_are_the_decimals_that_were_written():
    assert [epoch_rows(0.29, 100), epoch_rows(1.1, 10), epoch_rows(1.15, 100)] == [29, 11, 115]


def test_all_sources_that_run_out_are_named():
    request = StageRequest("main", ratio=1, weights={"web": 1, "books": 1, "code": 1})
    text = problem_of(make_schedule(supplies([90, 10, 20]), [request], 90), 1)
    assert "takes 30 rows of 'books', 3.00 epochs" in text
    assert text.endswith("Also too often: 'code' (in stage 'main').")


# ---------------------------------------------------------------- temperature


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=8), st.floats(1.001, 100))
def test_tempered_weights_are_the_powers_of_the_rows(rows, temperature):
    powers = np.array(rows, float) ** (1 / temperature)
    expected = 1e9 * powers / powers.sum()
    assert np.allclose(temper(rows, temperature), expected, rtol=1e-6, atol=1)


@pytest.mark.parametrize("temperature", [1, 1.0])
def test_temperature_one_is_the_rows(temperature):
    assert temper([812, 1, 33], temperature) == [812, 1, 33]


def test_tempered_weights_do_not_depend_on_the_machine():
    before = temper([1000, 100, 40], 3.33)
    with decimal.localcontext(decimal.Context(prec=4, rounding=decimal.ROUND_UP)):
        assert temper([1000, 100, 40], 3.33) == before
    assert before == [531574534, 266234214, 202191252]


def test_a_great_temperature_is_even():
    assert max(temper([10**9, 1, 10**4], 1000)) < 1.02 * 10**9 / 3


# ---------------------------------------------------------------- UniMax


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 300))
def test_unimax_fills_sources_like_water(limits, budget):
    """Row by row, whoever has given least and still has rows gives the next."""
    level = [0] * len(limits)
    for _ in range(budget):
        able = [k for k, limit in enumerate(limits) if level[k] < limit]
        if able:
            level[min(able, key=lambda k: level[k])] += 1
    found = spread_evenly(budget, limits)
    assert sum(found) == min(budget, sum(limits))
    # Who gets what can't be divided is a convention: the larger sources.
    assert sorted(found) == sorted(level)
    assert all(count <= limit for count, limit in zip(found, limits, strict=True))


def test_unimax_is_that_of_the_paper():
    # Three sources of 10, 100 and 1000 rows, one epoch, 300 rows: 10, 100 and what is left.
    assert spread_evenly(300, [10, 1000, 100]) == [10, 190, 100]
    assert spread_evenly(60, [10, 1000, 100]) == [10, 25, 25]


@settings(deadline=None, max_examples=60)
@given(ROWS, CAPS, st.integers(1, 150))
def test_a_unimax_run_takes_what_was_spread_or_says_what_fits(rows, caps, size):
    known = supplies(rows, caps)
    request = StageRequest("main", ratio=1, weights="unimax")
    made = make_schedule(known, [request], size)
    limits = [supply.cap for supply in known]
    assert made.is_possible == (sum(limits) >= size)
    if made.is_possible:
        assert list(made.stages[0].counts) == spread_evenly(size, limits)
        assert made.stages[0].weights == made.stages[0].counts
    else:
        text = problem_of(made, 16)
        most = sum(limits)
        assert f"max_epochs leaves it {most:,} (" in text
        assert (f"set rows to {most:,} or less (tokens to {16 * most:,})" in text) == (most > 0)


def test_unimax_shares_what_weights_that_are_given_leave():
    known = supplies([100, 20, 20])
    warm = StageRequest("warm", rows=60, weights="unimax")
    anneal = StageRequest("anneal", rows=20, weights={"books": 1, "code": 1})
    made = make_schedule(known, [warm, anneal])
    assert [stage.counts for stage in made.stages] == [(40, 10, 10), (0, 10, 10)]
    assert made.is_possible


def test_a_stage_that_takes_too_much_is_blamed_before_unimax_behind_it():
    known = supplies([100, 20])
    warm = StageRequest("warm", rows=60, weights={"web": 1, "books": 1})
    anneal = StageRequest("anneal", rows=20, weights="unimax", sources=["books"])
    assert "takes 50 rows of 'books'" in problem_of(make_schedule(known, [warm, anneal]), 1)
    fits = dataclasses.replace(warm, rows=20)
    text = problem_of(make_schedule(known, [fits, anneal]), 1)
    assert text.startswith("mix: stage 'anneal' takes 20 rows, but max_epochs leaves it 10 (books")
    assert text.endswith("set rows of stage 'anneal' to 10 or less (tokens to 10).")


def test_unimax_of_some_sources_leaves_the_others_alone():
    request = StageRequest("main", ratio=1, weights="unimax", sources=["books", "code"])
    made = make_schedule(supplies([100, 20, 20]), [request], 30)
    assert made.stages[0].counts == (0, 15, 15)


def test_proportional_weights_of_some_sources_are_their_rows():
    request = StageRequest("main", ratio=1, sources=["web", "code"])
    made = make_schedule(supplies([100, 20, 50]), [request])
    assert made.stages[0].weights == (100, 0, 50)
    assert made.stages[0].rows == 150


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [(1, 1), (10**15, 10**15), ("2K", 2000), ("1.5B", 1_500_000_000), ("15T", 15 * 10**12),
     ("0.0005M", 500)],
)  # fmt: skip
def test_a_budget_may_be_written_short(budget, tokens):
    assert num_tokens(budget) == tokens


def test_a_budget_is_whole_rows():
    assert [rows_of(tokens, 128, "mix.tokens") for tokens in (128, 255, 256)] == [1, 1, 2]


def test_a_budget_of_less_than_a_row_is_refused():
    with pytest.raises(UsageError, match=r"mix.tokens: 127 tokens are less than a row.* 128"):
        rows_of(127, 128, "mix.tokens")


# ---------------------------------------------------------------- exactness of a schedule


def test_fifty_sources_in_three_stages_are_less_than_three_rows_off():
    """At any row of any stage."""
    random = np.random.default_rng(11)
    rows = random.integers(1000, 9000, 50).tolist()
    known = [Supply(f"s{k}", n, 1e6) for k, n in enumerate(rows)]
    given_weights = {f"s{k}": int(w) for k, w in enumerate(random.integers(1, 9999, 50))}
    made = make_schedule(
        known,
        [
            StageRequest("warm", rows=9_001, weights=given_weights),
            StageRequest("main", rows=12_345, temperature=3.33),
            StageRequest("anneal", rows=5_000, weights="unimax"),
        ],
    )
    for stage in made.stages:
        shares = np.array(stage.weights) / sum(stage.weights)
        for row in [*range(1, stage.rows, 97), stage.rows]:
            off = np.abs(apportion(row, stage.weights) - row * shares).max()
            assert off < 3
        assert apportion(stage.rows, stage.weights).tolist() == list(stage.counts)
