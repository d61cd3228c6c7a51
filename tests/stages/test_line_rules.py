from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.stages.rewriters.line_rules import LineRules, cut_phrases, phrase_patterns
from tests.contract.strategies import plain, texts, view
from tests.oracles import oracle_of
from tests.oracles.rewriters import _fasttext_words

LINE = "A line of prose with a good number of words in it, which stays as it is."
PAGE = "\n".join([LINE] * 5)
PARTS = (
    *("items in cart", "2 Item\u017f in CART", "Read more...", "read more abc", "Sign-in", "\n"),
    *("\u0131tems \u0130n cart", "s\u0130gn-in x", "3 likes", "1,2k views!", "2024", "ABC", "\xb2"),
    *(" ", "\u2003", "", "one", "two words", "\n\n", "\xe9t\xe9 is here", "word " * 11, LINE),
)


def row_of(text, **params):
    return plain(LineRules(**params), view([text]))[0]


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.sampled_from(PARTS), max_size=9).map("".join), max_size=4),
    variant=st.sampled_from(["dclm", "refinedweb"]),
    budget=st.sampled_from([None, 0.05, 0.5, 1]),
)
def test_texts_and_rules_equal_plain_python(documents, variant, budget):
    stage = LineRules(variant=variant, max_removed_ratio=budget)
    oracle = oracle_of(stage)
    for text, row in zip(documents, plain(stage, view(documents)), strict=True):
        rule, after = oracle(text)
        assert row["rule"] == rule
        assert rule is not None or row["text"].decode() == after


@given(documents=texts())
def test_the_text_is_what_lies_outside_of_the_spans(documents):
    stage = LineRules(max_removed_ratio=None)
    for text, row in zip(documents, plain(stage, view(documents)), strict=True):
        data, left, at = text.encode(), b"", 0
        for start, end, _, _ in row["spans"]:
            left, at = left + data[at:start], end
        assert row["rule"] or left + data[at:] == row["text"]


def test_a_page_that_loses_too_many_words_is_dropped():
    text = f"{LINE}\n3 likes"
    row = row_of(text)
    assert (row["rule"], row["spans"]) == ("too_much_removed", [])
    assert row["value"] == pytest.approx(2 / 19)
    assert row_of(text, max_removed_ratio=0.2)["rule"] is None


def test_the_variants_count_differently():
    text = f"{PAGE}\nMore about it, if you want. Read more..."
    gone = {
        variant: LineRules(variant=variant, measures=True) for variant in ("dclm", "refinedweb")
    }
    measured = {
        name: stage.apply(view([text])).measures["too_much_removed"][0]
        for name, stage in gone.items()
    }
    assert measured == {"dclm": pytest.approx(2 / 93), "refinedweb": pytest.approx(8 / 93)}


def test_dots_after_read_more_are_any_characters_for_dclm_only():
    text = f"{PAGE}\nNow read more to"
    assert row_of(text)["text"].decode() == f"{PAGE}\nNow"
    assert row_of(text, variant="refinedweb")["text"].decode() == text


def test_a_phrase_that_crosses_other_cuts_is_cut_around_them():
    text = f"{PAGE}\nMENU\nSign-in\nMENU\nGo on. Read more...\n2024\n{PAGE}"
    row = row_of(text)
    assert row["text"].decode() == f"{PAGE}\nGo on.\n{PAGE}"
    data = text.encode()
    assert [(data[a:b], rule) for a, b, rule, _ in row["spans"]] == [
        (b"MENU\n", "uppercase"),
        (b"Sign-in\n", "too_few_words"),
        (b"MENU\n", "uppercase"),
        (b" Read more...", "phrase"),
        (b"2024\n", "numeric"),
    ]


def test_phrases_are_cut_by_characters():
    patterns = phrase_patterns(is_literal=True)
    text = "\xe9 items in cart\nSign-in now Read more...\nitems in cart\nlast"
    cuts, words = cut_phrases(text, patterns, 10)
    left, at = "", 0
    for start, end, _ in cuts:
        left, at = left + text[at:start], end
    assert left + text[at:] == "\xe9\nnow\nlast"
    assert words == 11


def test_words_are_split_as_fasttext_splits_them():
    fasttext = pytest.importorskip("fasttext.FastText")
    text = "a b\x0bc\x0cd\0e\rf\n(g h- \xa0i \u2003j \xe9 \u0661 _k"
    split = [word for word in fasttext.tokenize(text) if word[0].isalnum()]
    assert _fasttext_words(text) == len(split)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["cart " * 400_000, " " * 2_000_000, "a\u0301" * 700_000])
def test_a_long_line_takes_linear_time(text):
    assert row_of(f"{text}\n1 likes")["rule"] in {"empty", "too_much_removed", None}
