from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.stages.filters.gopher_repetition import GopherRepetition
from tests.contract.strategies import PIECES, WORLD, plain, reload, rules, view
from tests.oracles import oracle_of

OFF = {
    "max_dup_paragraphs_ratio": None,
    "max_dup_paragraph_chars_ratio": None,
    "max_dup_lines_ratio": None,
    "max_dup_line_chars_ratio": None,
    "max_top_ngram_ratios": {},
    "max_dup_ngram_ratios": {},
}
VARIANTS = ("datatrove", "dolma", "dclm")
RATIOS = st.dictionaries(st.integers(1, 10), st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5, 0.9]))


def rule_of(text, **params):
    return plain(GopherRepetition(**params), view([text]))[0]["rule"]


def differing(stage, documents):
    oracle = oracle_of(stage)
    found = rules(stage, stage.apply(view(documents)), len(documents))
    expected = [oracle(text)[0] for text in documents]
    return [
        (text, *pair)
        for text, *pair in zip(documents, found, expected, strict=True)
        if pair[0] != pair[1]
    ]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "params",
    [
        {"max_top_ngram_ratios": {1: 0.5, 2: 0.6, 3: 0.75}},
        {"max_dup_ngram_ratios": {1: 0.25, 2: 0.4}},
        {"max_dup_ngram_ratios": {1: 0}},
    ],
)
def test_runs_of_words_decide_as_the_reference_on_every_small_text(variant, params):
    stage = GopherRepetition(**{**OFF, **params}, words="spacy", variant=variant)
    assert differing(stage, WORLD[:: 1 if variant == "datatrove" else 3]) == []


@given(
    documents=st.lists(
        st.lists(st.sampled_from([*PIECES, "a", "b", "ab", " ", " ", "\n"]), max_size=30)
        .map(" ".join), max_size=4,
    ),
    tops=RATIOS,
    dups=RATIOS,
    variant=st.sampled_from(VARIANTS),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_runs_of_any_length_decide_as_the_reference(documents, tops, dups, variant):
    params = {**OFF, "max_top_ngram_ratios": tops, "max_dup_ngram_ratios": dups}
    assert differing(GopherRepetition(**params, variant=variant), documents) == []


def test_two_words_alone_are_a_frequent_pair():
    assert rule_of("a b") == "top_2_gram"


def test_newlines_at_both_ends_are_a_repeated_line():
    assert rule_of("\na\n", max_dup_paragraphs_ratio=None) == "dup_line_frac"
    assert rule_of("a\n", **{**OFF, "max_dup_lines_ratio": 0.1}) is None


def test_words_written_together_may_be_alike():
    text = "ab c xx a bc yy zz"
    assert rule_of(text, **{**OFF, "max_dup_ngram_ratios": {2: 0.1}}) == "duplicated_2_n_grams"
    assert rule_of(text, **{**OFF, "max_top_ngram_ratios": {2: 0.4}}) is None


def test_a_mapping_is_what_counts_and_its_order_does_not():
    pairs = GopherRepetition(max_dup_ngram_ratios=[[7, 0.2], [5, 0.1]])
    assert list(pairs.max_dup_ngram_ratios.items()) == [(5, 0.1), (7, 0.2)]
    assert pairs == GopherRepetition(max_dup_ngram_ratios={5: 0.1, 7: 0.2})
    assert reload(pairs) == pairs
    assert pairs.threshold("duplicated_7_n_grams") == 0.2
    assert math.isnan(pairs.threshold("duplicated_6_n_grams"))
    assert pairs.threshold("top_2_gram") == 0.2


@pytest.mark.parametrize("ratios", [{0: 0.1}, {11: 0.1}, {2: -0.1}, {"two": 0.1}])
def test_runs_have_1_to_10_words(ratios):
    with pytest.raises(ValidationError):
        GopherRepetition(max_top_ngram_ratios=ratios)


@pytest.mark.parametrize("name", list(OFF)[:4])
def test_an_upper_bound_of_zero_is_refused(name):
    # The reference takes 0 for "off", which is the opposite of what it says.
    with pytest.raises(ValidationError):
        GopherRepetition(**{name: 0})


def test_measures_are_those_of_the_lengths_named():
    stage = GopherRepetition(measures=True, max_top_ngram_ratios={2: None}, max_dup_ngram_ratios={})
    outcome = stage.apply(view(["a b a b", ""]))
    assert list(outcome.measures) == [*GopherRepetition.rules[:5], "top_2_gram"]
    assert outcome.measures["top_2_gram"].tolist()[0] == 6 / 7
    assert rules(stage, outcome, 2) == [None, "empty"]


def test_the_value_is_what_the_failing_rule_measured():
    row = plain(GopherRepetition(), view(["one\ntwo\none\none"]))[0]
    assert (row["rule"], row["value"]) == ("dup_line_frac", 0.5)


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_a_variant_has_words_of_its_own(variant):
    with pytest.raises(ValidationError, match="own way"):
        GopherRepetition(variant=variant, words="unicode")


@pytest.mark.slow
def test_long_texts_of_one_thing():
    documents = ["word " * 200_000, " " * 10**6, "\u0301" * 200_000, "\n" * 10**6, "a\n" * 10**5]
    stage = GopherRepetition(**{**OFF, "max_top_ngram_ratios": {2: 0.2}})
    found = rules(stage, stage.apply(view(documents)), 5)
    assert found == ["top_2_gram", None, None, None, "top_2_gram"]
    assert rules(GopherRepetition(), GopherRepetition().apply(view(documents)), 5)[3:] == [
        "dup_line_frac",
        "dup_line_frac",
    ]
