"""The order of rows as arithmetic: apportionment, permutation, and both ways through the plan."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_runs import expected_permutation, expected_turns

from corpuskit.loader.order import (
    MixSource,
    MixStage,
    RowOrder,
    SkipSpans,
    apportion,
    in_turn,
    permute,
    turn,
    unpermute,
)

WEIGHTS = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any)


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 200))
def test_apportionment_is_sainte_lague_row_by_row(weights: list[int], num_rows: int) -> None:
    turns = expected_turns(num_rows, weights)
    assert apportion(num_rows, weights).tolist() == [turns.count(k) for k in range(len(weights))]


@settings(deadline=None)
@given(WEIGHTS, st.integers(1, 10**15))
def test_apportionment_is_exact_at_any_size(weights: list[int], num_rows: int) -> None:
    before, after = apportion(num_rows - 1, weights), apportion(num_rows, weights)
    assert after.sum() == num_rows
    assert sorted(after - before) == [0] * (len(weights) - 1) + [1]


def test_fifty_sources_are_less_than_three_rows_off_their_shares() -> None:
    weights = np.random.default_rng(3).integers(1, 10_000, 50).tolist()
    shares = np.array(weights) / sum(weights)
    worst = max(abs(apportion(n, weights) - n * shares).max() for n in range(1, 20_000, 7))
    assert worst < 3


@settings(deadline=None)
@given(WEIGHTS, st.integers(1, 150))
def test_turn_inverts_apportionment(weights: list[int], num_rows: int) -> None:
    turns = expected_turns(num_rows, weights)
    taken = [0] * len(weights)
    for before, source in enumerate(turns):
        assert turn(source, taken[source], weights) == before
        taken[source] += 1


@pytest.mark.parametrize("size", [*range(1, 66), 127, 128, 1023, 1024])
def test_a_permutation_of_a_small_size_is_one(size: int) -> None:
    values = permute(np.arange(size), size, 0, "web", 1)
    assert sorted(values) == list(range(size))
    assert unpermute(values, size, 0, "web", 1).tolist() == list(range(size))


@settings(deadline=None)
@given(st.integers(1, 2**63 - 1), st.data())
def test_a_permutation_of_any_size_is_undone(size: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5, unique=True))
    values = permute(indices, size, 7, "books", 2)
    assert ((values >= 0) & (values < size)).all()
    assert len(set(values.tolist())) == len(indices)
    assert unpermute(values, size, 7, "books", 2).tolist() == indices


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 99), st.text(max_size=5), st.data())
def test_a_permutation_is_the_documented_one(
    size: int, seed: int, name: str, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, size - 1))
    expected = expected_permutation(index, size, seed, name, 3)
    assert permute([index], size, seed, name, 3).tolist() == [expected]


def test_batches_of_source_sorted_rows_are_mixed_as_by_chance() -> None:
    # 64 equal groups one after another, batches of 256: file order gives 250, chance gives 1.
    num_rows, groups, batch_rows = 1 << 20, 64, 256
    rows = permute(np.arange(num_rows), num_rows, 0, "web", 1)
    batches = (rows * groups // num_rows).reshape(-1, batch_rows)
    counts = np.stack([(batches == group).sum(1) for group in range(groups)], axis=1)
    due = batch_rows / groups
    chi2 = ((counts - due) ** 2 / due).sum(1) / (groups - 1)
    assert 0.95 < chi2.mean() < 1.05


def test_keys_of_different_parts_give_different_permutations() -> None:
    keys = [(0, "web", 1), (0, "web", 2), (1, "web", 1), (0, "books", 1)]
    orders = {tuple(permute(np.arange(100), 100, *key)) for key in keys}
    assert len(orders) == len(keys)


SOURCES = st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=4).map(
    lambda found: [
        MixSource(f"s{i}", rows, is_stored, first=3 * i)
        for i, (rows, is_stored) in enumerate(found)
    ]
)


@st.composite
def orders(draw: st.DrawFn) -> RowOrder:
    """Draw a small plan: sources, and stages with weights."""
    sources = draw(SOURCES)
    weights = st.tuples(*(st.integers(0, 7) for _ in sources)).filter(any)
    stages = [
        MixStage(f"stage-{i}", draw(st.integers(0, 90)), draw(weights))
        for i in range(draw(st.integers(1, 3)))
    ]
    return RowOrder(draw(st.integers(0, 9)), sources, stages)


@settings(max_examples=50, deadline=None)
@given(orders())
def test_the_way_back_undoes_the_way_there(order: RowOrder) -> None:
    found = order.rows_at(np.arange(order.num_rows))
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for counter, (source, row, epoch) in enumerate(zip(*(a.tolist() for a in found), strict=True)):
        seen.setdefault((source, row), []).append((counter, epoch))
    for source, given_source in enumerate(order.sources):
        for row in range(given_source.first + given_source.rows + 2):
            expected = sorted(seen.get((source, row), []))
            assert sorted(order.row_indices_of(source, row)) == expected


@settings(max_examples=80, deadline=None)
@given(orders(), st.data())
def test_what_was_taken_needs_no_counting(order: RowOrder, data: st.DataObject) -> None:
    counter = data.draw(st.integers(0, order.num_rows))
    sources = order.rows_at(np.arange(counter)).sources
    counted = np.bincount(sources, minlength=len(order.sources))
    assert order.taken(counter).tolist() == counted.tolist()


@settings(max_examples=80, deadline=None)
@given(orders(), st.data())
def test_rows_asked_for_alone_are_the_rows_of_the_run(order: RowOrder, data: st.DataObject) -> None:
    if not order.num_rows:
        return
    some = data.draw(st.lists(st.integers(0, order.num_rows - 1), min_size=1, max_size=20))
    run = order.rows_at(np.arange(order.num_rows))
    for whole, alone in zip(run, order.rows_at(np.array(some)), strict=True):
        assert whole[some].tolist() == alone.tolist()


@settings(max_examples=80, deadline=None)
@given(orders())
def test_every_row_comes_once_per_epoch(order: RowOrder) -> None:
    found = order.rows_at(np.arange(order.num_rows))
    times = set(zip(*(values.tolist() for values in found), strict=True))
    assert len(times) == order.num_rows
    for source, given_source in enumerate(order.sources):
        epochs = found.epochs[found.sources == source]
        whole = np.bincount(epochs)[: epochs.max()] if epochs.size else []
        assert all(count == given_source.rows for count in whole)


@settings(max_examples=60, deadline=None)
@given(orders())
def test_every_beginning_of_a_stage_has_exactly_its_share(order: RowOrder) -> None:
    found, start = order.rows_at(np.arange(order.num_rows)).sources, 0
    for stage in order.stages:
        for end in range(stage.rows + 1):
            counted = np.bincount(found[start : start + end], minlength=len(order.sources))
            assert counted.tolist() == apportion(end, stage.weights).tolist()
        start += stage.rows


def test_fifty_sources_are_within_three_rows_at_every_step() -> None:
    random = np.random.default_rng(7)
    weights = tuple(int(weight) for weight in random.integers(1, 10**6, 50))
    sources = [MixSource(f"s{k}", 1000, shuffled=True) for k in range(50)]
    order = RowOrder(0, sources, [MixStage("main", 20_000, weights)])
    found = order.rows_at(np.arange(order.num_rows)).sources
    taken = np.cumsum(found[:, None] == np.arange(50), axis=0)
    ideal = np.arange(1, 20_001)[:, None] * (np.array(weights) / sum(weights))
    assert np.abs(taken - ideal).max() < 3


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 10**18), min_size=1, max_size=4).filter(any),
    st.integers(0, 10**12),
)
def test_turns_are_exact_where_floats_are_not(weights: list[int], first: int) -> None:
    before, after = apportion(first, weights), apportion(first + 30, weights)
    sources = np.repeat(np.arange(len(weights), dtype=np.int32), after - before)
    ranks = np.concatenate([np.arange(a, b) for a, b in zip(before, after, strict=True)])
    order = in_turn(sources, ranks, weights)
    expected = [turn(int(k), int(r), weights) for k, r in zip(sources, ranks, strict=True)]
    assert [expected[i] for i in order] == list(range(first, first + 30))


@settings(max_examples=60, deadline=None)
@given(orders(), st.integers(0, 9))
def test_a_source_and_a_stage_appended_leave_earlier_rows_alone(order: RowOrder, seed: int) -> None:
    sources = [*order.sources, MixSource("new", 30, shuffled=True)]
    stages = [MixStage(s.name, s.rows, (*s.weights, 0)) for s in order.stages]
    stages.append(MixStage("more", 50, (*order.stages[0].weights, 3)))
    longer = RowOrder(order._seed, sources, stages)
    counters = np.arange(order.num_rows)
    for before, after in zip(order.rows_at(counters), longer.rows_at(counters), strict=True):
        assert before.tolist() == after.tolist()


@settings(max_examples=60, deadline=None)
@given(orders(), st.integers(1, 60))
def test_a_longer_stage_leaves_earlier_rows_alone(order: RowOrder, more: int) -> None:
    last = order.stages[-1]
    stages = [*order.stages[:-1], MixStage(last.name, last.rows + more, last.weights)]
    longer = RowOrder(order._seed, order.sources, stages)
    counters = np.arange(order.num_rows)
    for before, after in zip(order.rows_at(counters), longer.rows_at(counters), strict=True):
        assert before.tolist() == after.tolist()


def test_a_run_of_many_rows_is_as_good_as_a_short_one() -> None:
    sources = [
        MixSource("web", 3 * 10**11, shuffled=True),
        MixSource("math", 10**8, shuffled=False),
    ]
    order = RowOrder(0, sources, [MixStage("main", 10**12, (97, 3))])
    counters = np.arange(10**12 - 2048, 10**12)
    found = order.rows_at(counters)
    assert math.isclose((found.sources == 1).mean(), 0.03, abs_tol=0.001)
    for counter, source, row, epoch in zip(
        counters[::512], *(a[::512] for a in found), strict=True
    ):
        place = int(order._rank_in_epoch(int(source), int(row), int(epoch)))
        rank = int(epoch) * order.sources[source].rows + place
        assert order._row_index(int(source), rank) == counter


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=5).map(
    lambda found: [(first, first + length) for first, length in found]
)


@settings(deadline=None)
@given(SPANS, st.integers(0, 60))
def test_skipped_counters_are_passed_over_and_counted(
    spans: list[tuple[int, int]], num_rows: int
) -> None:
    skips = SkipSpans(spans, num_rows)
    kept = [t for t in range(num_rows) if not any(first <= t < end for first, end in spans)]
    assert skips.num_consumed == len(kept)
    assert skips.row_indices(np.arange(len(kept))).tolist() == kept
    for counter in range(num_rows + 1):
        assert skips.consumed_before(counter) == sum(t < counter for t in kept)
        assert skips.covers(counter) == (counter < num_rows and counter not in kept)
