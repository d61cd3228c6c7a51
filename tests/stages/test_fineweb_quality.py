from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from corpuskit.stages.filters.fineweb_quality import FinewebQuality
from tests.contract.strategies import plain, rules, view

LINE = "A line of prose that is long enough not to be short."


def row_of(text, **params):
    return plain(FinewebQuality(words="whitespace", **params), view([text]))[0]


def test_the_value_of_the_failing_rule_is_what_it_measured():
    row = row_of("Home\nProducts\nAbout\n" + LINE, min_line_punct_ratio=0.3)
    assert (row["rule"], row["value"]) == ("line_punct_ratio", 0.25)


@pytest.mark.parametrize("end", [" ", "\r", "\u3000"])
def test_whitespace_hides_the_end_of_a_line(end):
    assert row_of(LINE)["rule"] is None
    assert row_of(LINE + end)["rule"] == "line_punct_ratio"


def test_a_page_without_any_stop_character_may_pass():
    assert row_of(LINE[:-1], keep_unpunctuated=True)["rule"] is None
    text = "\n".join([LINE, *(f"{LINE} {number}" for number in range(9))])
    assert row_of(text, keep_unpunctuated=True)["rule"] == "line_punct_ratio"


def test_a_rule_that_is_off_needs_no_words():
    stage = FinewebQuality(max_newline_ratio=None, language="nowhere")
    assert plain(stage, view([LINE]))[0]["rule"] is None


@pytest.mark.parametrize("chars", [("",), ("..",), ("!", "?!")])
def test_a_stop_character_is_one_character(chars):
    with pytest.raises(ValidationError, match="one character"):
        FinewebQuality(stop_chars=chars)


def test_bounds_may_differ_by_language(tmp_path):
    (tmp_path / "de.yml").write_text("line_punct_thr: 0.0\nshort_line_thr: 1\nnew_line_ratio: 9\n")
    (tmp_path / "en.yml").write_text("line_punct_thr: 0.9\n")
    texts = ["kurz\nund ohne Punkt", LINE, f"{LINE}\nno mark", LINE]
    labels = pa.array(["de", "en", "en", None], pa.string())
    given = view(texts).with_columns({"language.label": labels})
    stage = FinewebQuality(per_language=str(tmp_path), words="whitespace", unknown_language="drop")
    outcome = stage.apply(given)
    assert rules(stage, outcome, 4) == [None, None, "line_punct_ratio", "unknown_language"]
    assert outcome.bounds.tolist()[2] == 0.9
