"""Distributions: bins, thresholds and the documents that fail."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.engine.records import bins
from corpuskit.inspect.report.distributions import MAX_BINS, failing, histogram

VALUES = st.lists(
    st.one_of(st.floats(0, 2), st.integers(0, 100_000).map(float), st.floats(-5, 1e9)), min_size=1
)


def binned(values: list[float]) -> Counter:
    return Counter(bins(np.array(values)).tolist())


@given(
    st.lists(st.sampled_from([0.0, 0.005, 0.07, 0.5, 1.0, 2.0, 3.0, 7.3, 50.0, -2.0, 1e9])),
    st.sampled_from([0.0, 0.07, 0.072, 1.0, 2.0, 3.0, 7.0, 50.0, -2.0]),
    st.booleans(),
    st.booleans(),
)
def test_bins_say_between_which_numbers_a_rule_fails(values, threshold, is_min, is_whole):
    known = [v for v in values if not is_whole or v == int(v)]
    least, most = failing(binned(known), threshold, is_min=is_min, is_whole=is_whole)
    truth = sum(v < threshold if is_min else v > threshold for v in known)
    assert least <= truth <= most
    if is_whole and all(abs(v) <= 16 for v in known):
        assert least == most


@given(VALUES, st.one_of(st.none(), st.floats(0, 1000)))
def test_merged_bins_hold_the_same_documents(values, threshold):
    edges, sources = histogram({"web": binned(values)}, threshold)
    assert sum(sources["web"]) == len(values)
    lows = [low for low, _ in edges]
    assert lows == sorted(lows)


def test_a_histogram_of_many_bins_is_merged_but_for_the_threshold():
    values = np.geomspace(0.001, 1e12, 5000)
    edges, _ = histogram({"web": binned(values.tolist())}, 50.0)
    assert len(edges) <= MAX_BINS + 3
    [bound] = [(low, high) for low, high in edges if low < 50 <= high]
    assert bound[1] - bound[0] < 50 * 0.05


def test_the_rest_of_the_numbers_has_no_upper_edge():
    edges, _ = histogram({"web": binned([1e30])})
    assert edges[0][1] is None


@pytest.mark.slow
def test_every_measure_has_its_bound_and_the_documents_that_break_it(facts):
    items = {one["name"]: one for one in facts["measures"]["items"]}
    short = items["gopher_short_doc"]
    assert (short["parameter"], short["threshold"], short["fails"]) == ("min_words", 30.0, "below")
    for one in items.values():
        total = sum(map(sum, one["sources"].values())) + sum(one["missing"].values())
        assert total == one["seen"]
        if one["fails"]:
            assert one["failing"]["ledger"] <= one["failing"]["at_most"]


@pytest.mark.slow
def test_the_first_rule_drops_all_that_break_it(facts):
    [short] = [one for one in facts["measures"]["items"] if one["name"] == "gopher_short_doc"]
    low, high = short["failing"]["at_least"], short["failing"]["at_most"]
    assert low <= short["failing"]["ledger"] <= high


@pytest.mark.slow
def test_phases_have_their_cost_and_their_files(facts, done):
    phases = {one["phase"]: one for one in facts["resources"]["phases"]}
    first = phases["gopher_quality"]
    assert first["labels"] == ["holdout", "unicode", "gopher_quality"]
    assert first["cpu_seconds"] > 0
    assert first["units"] == first["units_done"] > 1
    assert first["elapsed_seconds"] > 0.95 * first["task_wall_seconds"]  # one after another here
    size = sum(path.stat().st_size for path in done.out.glob("ledger/*.parquet"))
    disk = {one["role"]: one["size_bytes"] for one in facts["resources"]["disk"]}
    assert disk["ledger"] == size


@pytest.mark.slow
def test_provenance_has_every_phase_and_the_plan_every_stage(facts):
    provenance, plan = facts["provenance"], facts["plan"]
    assert all(one["is_current"] for one in provenance["phases"])
    assert provenance["versions"]["here"]["pyarrow"]
    assert provenance["plan_hash"]
    assert [one["label"] for one in plan["stages"]][:2] == ["holdout", "unicode"]
    assert plan["stages"][2]["changed"] == {"words": "whitespace", "min_words": 30}
    assert {one["label"]: one["num_files"] for one in plan["sources"]} == {
        "web": 2, "books": 1, "news": 1
    }  # fmt: skip
