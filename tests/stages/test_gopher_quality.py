from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from corpuskit.stages.filters.gopher_quality import GopherQuality
from tests.contract.strategies import plain, rules, view

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
    assert set(outcome.measures) == set(GopherQuality.rules)
    assert outcome.measures["gopher_short_doc"].tolist() == [68, 1, 0]
    assert GopherQuality().apply(view([PROSE])).measures == {}


def test_measures_and_bounds_alone_give_the_decision():
    stage = GopherQuality(measures=True, min_words=3)
    documents = [PROSE, "one", "", "- a\n- the of\n- b c", "# the # of", "12 13 14 of the"]
    outcome = stage.apply(view(documents))
    for row, rule in enumerate(rules(stage, outcome, len(documents))):
        broken = []
        for name, values in outcome.measures.items():
            low = GopherQuality.bounds[name].startswith("min_")
            bound = stage.threshold(name)
            broken += [name] * bool(values[row] < bound if low else values[row] > bound)
        assert rule == (broken[0] if broken else None)


@pytest.mark.parametrize("name", RATIOS)
def test_an_upper_bound_of_zero_is_refused(name):
    # The reference takes 0 for "off", which is the opposite of what it says.
    with pytest.raises(ValidationError):
        GopherQuality(**{name: 0})


@pytest.mark.parametrize("word", ["", "two words", " the", "the\u3000"])
def test_a_stop_word_is_one_word(word):
    with pytest.raises(ValidationError, match="one word"):
        GopherQuality(stop_words=("the", word))


def test_the_way_to_split_words_is_named():
    with pytest.raises(ValidationError):
        GopherQuality(words="spacy")


def test_a_stop_word_given_twice_counts_once():
    text = "the road and the end"
    assert rule_of(text, min_words=1, stop_words=("the", "the", "of")) == "gopher_enough_stop_words"


def reference_rules(stage, texts):
    oracle = stage.oracle()
    return [oracle(text)[0] for text in texts]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["bench_en", "bench_multi"])
def test_decisions_and_reasons_equal_the_reference_on_real_texts(shared_data, corpus):
    files = sorted((shared_data / corpus).glob("*.parquet"))
    texts = pa.concat_tables([pq.read_table(file, columns=["text"]) for file in files])["text"]
    if corpus == "bench_multi":
        texts = texts.take(np.arange(0, len(texts), 3))
    texts = texts.to_pylist()
    loose = GopherQuality(min_words=5, min_stop_words=1, min_alpha_words_ratio=0.6)
    for stage, step in ((GopherQuality(), 1), (loose, 7)):
        chosen = texts[::step]
        found = rules(stage, stage.apply(view(chosen)), len(chosen))
        assert found == reference_rules(stage, chosen)
        assert len(set(found)) >= 5, "the texts do not exercise the rules"
