from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from corpuskit.errors import UsageError
from corpuskit.stages.filters.gopher_quality import GopherQuality
from tests.contract.strategies import plain, view

PROSE = "The cat sat with the dog that we have and looked to the end of the road. "
RATIOS = ("max_symbol_ratio", "max_bullet_lines_ratio", "max_ellipsis_lines_ratio")


def rule_of(text, **params):
    stage = GopherQuality(**params)
    return plain(stage, view([text]))[0]["rule"]


def test_a_text_without_words_breaks_only_rules_that_count():
    assert rule_of("", min_words=None) == "gopher_enough_stop_words"
    assert rule_of("\n\n", min_words=None, min_stop_words=None) is None


def test_the_value_of_the_failing_rule_is_what_it_measured():
    stage = GopherQuality()
    row = plain(stage, view(["five words and a - dash"]))[0]
    assert (row["rule"], row["value"]) == ("gopher_short_doc", 5)
    assert stage.threshold("gopher_short_doc") == 50


def test_a_kept_document_has_no_value():
    assert plain(GopherQuality(), view([PROSE * 4]))[0]["value"] == "nan"


def test_a_rule_that_is_off_has_no_threshold():
    assert np.isnan(GopherQuality(min_words=None).threshold("gopher_short_doc"))


def test_measures_of_all_rules_on_request():
    stage = GopherQuality(measures=True)
    outcome = stage.apply(view([PROSE * 4, "one", ""]))
    assert set(outcome.measures) == set(GopherQuality.bounds)
    assert outcome.measures["gopher_short_doc"].tolist() == [68, 1, 0]
    assert GopherQuality().apply(view([PROSE])).measures == {}


@pytest.mark.parametrize("name", RATIOS)
def test_an_upper_bound_of_zero_is_refused(name):
    # The reference takes 0 for "off", which is the opposite of what it says.
    with pytest.raises(ValidationError):
        GopherQuality(**{name: 0})


@pytest.mark.parametrize("word", ["", "two words", " the", "the\u3000"])
def test_a_stop_word_is_one_word(word):
    with pytest.raises(ValidationError, match="one word"):
        GopherQuality(stop_words=("the", word))


def test_how_words_are_split_is_a_choice():
    # A word of one letter and a full stop: spaCy splits the mark off, and it has no letter.
    text = "x. y. z. u."
    loose = {"min_words": None, "min_mean_word_length": None, "min_stop_words": None}
    assert rule_of(text, **loose, words="whitespace") is None
    assert rule_of("ab. cd. ef. gh.", **loose) == "gopher_below_alpha_threshold"
    assert rule_of(text, **loose, words="unicode") == "gopher_below_alpha_threshold"


def test_a_language_that_spacy_does_not_split_is_refused():
    with pytest.raises((ValidationError, UsageError)):
        GopherQuality(language="xx-nowhere")
    assert GopherQuality(language="de").language == "de"


@pytest.mark.parametrize("variant", ["dolma", "dclm"])
def test_a_variant_has_words_of_its_own(variant):
    with pytest.raises(ValidationError, match="own way"):
        GopherQuality(variant=variant, words="whitespace")
    with pytest.raises(ValidationError, match="own way"):
        GopherQuality(variant=variant, language="de")


def test_dclm_knows_stop_words_of_ascii_only():
    with pytest.raises(ValidationError, match="ASCII"):
        GopherQuality(variant="dclm", stop_words=("f\xfcr",))


def test_variants_count_stop_words_in_their_own_way():
    text = "The road, the road and THE end of home"
    off = dict.fromkeys(set(GopherQuality.bounds.values()) - {"min_stop_words"})
    counts = {}
    for variant in ("datatrove", "dolma", "dclm"):
        stage = GopherQuality(variant=variant, measures=True, **off)
        measured = stage.apply(view([text])).measures["gopher_enough_stop_words"]
        counts[variant] = measured.tolist()
    assert counts == {"datatrove": [3], "dolma": [3], "dclm": [5]}
    repeated = GopherQuality(variant="dolma", measures=True, **off).apply(view(["the the the"]))
    assert repeated.measures["gopher_enough_stop_words"].tolist() == [3]


def test_a_stop_word_given_twice_counts_once():
    text = "the road and the end"
    assert rule_of(text, min_words=1, stop_words=("the", "the", "of")) == "gopher_enough_stop_words"
