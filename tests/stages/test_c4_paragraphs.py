from __future__ import annotations

from corpuskit.stages.filters.c4_paragraphs import C4Paragraphs
from tests.contract.strategies import plain, view


def test_a_line_of_just_enough_characters_is_long():
    stage = C4Paragraphs(min_paragraphs=1, min_paragraph_chars=4)
    found = plain(stage, view(["\xe9\xe9\xe9\xe9", "\xe9\xe9\xe9", "a\nbcd\nefgh"]))
    assert [row["rule"] for row in found] == [None, "too_few_paragraphs", None]
    assert found[1]["value"] == 0


def test_the_number_of_long_lines_is_measured():
    outcome = C4Paragraphs(min_paragraph_chars=2, measures=True).apply(view(["ab\nc\nde"]))
    assert outcome.measures["too_few_paragraphs"].tolist() == [2]
