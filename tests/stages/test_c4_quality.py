from __future__ import annotations

import numpy as np
import pytest

from corpuskit.errors import UsageError
from corpuskit.stages.filters.c4_quality import C4Quality
from corpuskit.stages.filters.fineweb_quality import FinewebQuality
from corpuskit.text.words import splitter
from tests.contract.strategies import plain, rules, texts_after, view
from tests.oracles import oracle_of

FIVE = "One is here. A second is here. Third is here too. And a fourth? A fifth ends it!"
LINES = {"min_num_sentences": None}  # rules of lines only: no words are needed


def row_of(text, **params):
    return plain(C4Quality(**params), view([text]))[0]


def cuts_of(text, **params):
    data = text.encode()
    return [
        (data[start:end].decode(), rule) for start, end, rule, _ in row_of(text, **params)["spans"]
    ]


def test_lines_that_stay_are_joined_and_stripped():
    text = "Menu\r\n  It is as it is. \u2028\nRead more\nSo it was then.\n\n"
    assert row_of(text, **LINES)["text"].decode() == "It is as it is.\nSo it was then."


def test_a_citation_leaves_its_spaces_behind():
    text = "It is [1] so here [edit] and there."
    assert row_of(text, **LINES)["text"] == b"It is  so here  and there."


def test_an_empty_text_passes_where_sentences_do_not_count():
    assert row_of("Menu", **LINES) == {
        "rule": None,
        "text": b"",
        "value": "nan",
        "spans": [(0, 4, "no_terminal_punc", "cut")],
    }


def test_each_line_is_cut_under_its_rule():
    text = f"Home > Products\nIt is so.[1]\n{'x' * 1001} it is.\nTurn on javascript now.\nEnd."
    assert cuts_of(text, **LINES) == [
        ("Home > Products\n", "no_terminal_punc"),
        ("[1]\n", "citation"),
        (f"{'x' * 1001} it is.\n", "too_long_word"),
        ("Turn on javascript now.\n", "javascript"),
        ("End.", "too_few_words"),
    ]


def test_space_around_lines_goes_with_the_cut_it_touches():
    assert cuts_of("  It is so.\n\tAnd so on.", **LINES) == [
        ("  ", "whitespace"),
        ("\t", "whitespace"),
    ]
    assert cuts_of("It is so. \nMenu\n  And so on.\n", **LINES) == [
        (" \nMenu\n  ", "no_terminal_punc"),
        ("\n", "whitespace"),
    ]


def test_a_dropped_document_has_no_spans():
    row = row_of("It is so here.\n{\nLorem ipsum is here.", **LINES)
    assert (row["rule"], row["spans"]) == ("lorem_ipsum", [])


def test_a_curly_bracket_counts_only_in_a_line_that_would_stay():
    assert row_of("if (x) {\nIt is so here.", **LINES)["rule"] is None
    everything = {**LINES, "filter_no_terminal_punct": False}
    assert row_of("if (x) {\nIt is so here.", **everything)["rule"] == "curly_bracket"


def test_a_language_without_sentences_is_refused_unless_they_do_not_count():
    with pytest.raises((UsageError, ValueError)):
        C4Quality(language="nowhere")
    assert C4Quality(language="nowhere", **LINES).libraries() == ()


@pytest.mark.slow
def test_the_number_of_sentences_is_measured():
    stage = C4Quality(measures=True)
    outcome = stage.apply(view([FIVE, "One is here. Two are here.", "Lorem ipsum is here."]))
    assert rules(stage, outcome, 3) == [None, "too_few_sentences", "lorem_ipsum"]
    assert outcome.values.tolist()[1] == 2
    assert repr(outcome.measures["too_few_sentences"].tolist()) == "[5.0, 2.0, nan]"
    assert outcome.measures["lorem_ipsum"].tolist() == [0, 0, 1]


@pytest.mark.slow
def test_words_handed_on_are_those_of_the_new_text():
    documents = [f"Menu\n{FIVE} \n[1] It is  so.[2]\n", "Menu", "", f"{FIVE}\n\u2003{FIVE}"]
    given = view(documents)
    outcome = C4Quality(filter_no_terminal_punct=False).apply(given)
    changed = given.with_text(outcome.text, outcome.facts)
    (split,) = outcome.facts
    assert split is splitter("spacy", "en")
    known, fresh = changed.fact(split), split(*changed.text)
    assert known.offsets.tolist() == fresh.offsets.tolist()
    assert np.array_equal(known.tokens, fresh.tokens)
    again = plain(FinewebQuality(), view([text.decode() for text in texts_after(given, outcome)]))
    assert plain(FinewebQuality(), changed) == again


@pytest.mark.slow
@pytest.mark.parametrize("split_paragraph", [True, False])
def test_a_word_that_breaks_spacy_is_left_out_as_in_the_reference(split_paragraph):
    texts = [
        "So it is. IS_ALPHA is it.\nThe (IS_ALPHA). \xe9 A. And xIS_ALPHA is. So it goes.",
        "IS_ALPHA",
        "\u65e5\u672c IS_ALPHA. \u8a9e is it so. And it is so.",
    ]
    for least in range(1, 7):
        stage = C4Quality(split_paragraph=split_paragraph, min_num_sentences=least)
        oracle = oracle_of(stage)
        for text, row in zip(texts, plain(stage, view(texts)), strict=True):
            rule, after = oracle(text)
            assert (row["rule"], row["text"].decode() if rule is None else after) == (rule, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["word " * 400_000, " " * 2_000_000, "a\u0301" * 700_000, "[1" * 1_000_000, "[1]" * 700_000],
)
def test_a_long_line_takes_linear_time(text):
    # Quadratic time would not end within the test's limit.
    row = row_of(text, filter_no_terminal_punct=False, max_word_length=None)
    assert row["rule"] == "too_few_sentences"
