"""MADLAD-400's rules about sentences, those that Dolma 3 uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from corpuskit.kernels.arrays import Bools, Float64s
from corpuskit.kernels.filters.madlad import (
    count_sentences,
    find_cursed,
    find_lists,
    split_sentences,
)
from corpuskit.stage import Example, View
from corpuskit.stages.filters._measured import MeasuredFilter, Rule
from corpuskit.text.words import splitter

CURSED = (
    *(" \u2116", "\ufffd" * 3, "\\|\\s*$", " nr\\.$", "aute irure dolor ", " sunt in culpa qui "),
    *("orem ipsum ", " quis nostrud ", " adipisicing ", " dolore eu ", " cupidatat "),
    *("autem vel eum", "wisi enim ad", " sex ", " porn ", "\u9ec4\u8272\u7535\u5f71", "mp3"),
    *("ownload", "Vol\\.", " Ep\\.", "Episode", " \u0433\\.\\s*$", " \u043a\u0433\\.\\s*$"),
    *(" \u0448\u0442\\.", "Develop", "Facebook", " crusher ", " xxx "),
)
"""MADLAD-400's list, letter for letter; its last four entries, expressions, are in the kernel."""

_FIVE = "This is a sentence. Here is another one! And a third? Then a fourth. And the last one.\n"


class MadladQuality(MeasuredFilter):
    r"""Drop documents in which too many sentences are lists of names, or advertise.

    A sentence ends with [.!?] before white space. It is questionable if it has at least 12 words
    and more than half of them begin with a capital (rule 2), or holds an entry of a list, such as
    `Facebook`, `ownload`, parts of lorem ipsum, or letters spaced out (rule 5). Words are those of
    UAX #29 with a letter or digit. A share equal to its bound is too large. Rules 1, 3 and 4
    (language, length and technical characters of sentences) are left out, as in Dolma 3.

    Entries with a backslash are compared letter for letter, as the reference does, so they match
    next to nothing; MADLAD's card gives them as expressions.

    Source: Kudugunta et al. 2023 (MADLAD-400), section 2.4 and dataset card; Dolma 3 (Ai2 2025):
    allenai/datamap-rs at f6c295a1, madlad400_sentence_annotator with `rules_to_include: [2, 5]`
    and madlad400_rule_filter with `remove_too_short: true`, `rules_to_remove: [[2, 5]]`.
    """

    table: ClassVar[tuple[Rule, ...]] = (
        Rule("too_few_sentences", below="min_sentences"),
        Rule("too_many_questionable", above="max_questionable_ratio"),
    )
    text_speed: ClassVar[float] = 40e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_FIVE),
        Example("Only one sentence. And a second.", "too_few_sentences"),
        Example(f"{_FIVE}Free Download of the Episode.", None),
        Example(f"{_FIVE}Find us on Facebook. Download it now.", "too_many_questionable"),
        Example(
            f"{_FIVE}{'Anna Berg and Carl Dahl, ' * 4}all. W i t h s p a c e s b e t w e e n.",
            "too_many_questionable",
        ),
    )

    min_sentences: int | None = Field(5, ge=0)
    """Fewest sentences."""
    max_questionable_ratio: float | None = Field(0.2, ge=0, le=1)
    """Drop a document if the share of questionable sentences is at least this."""
    max_capitalised_ratio: float = Field(0.5, ge=0, le=1)
    """Largest share of capitalised words in a sentence."""
    min_case_words: int = Field(12, ge=0)
    """A sentence of fewer words is no list."""
    cursed: tuple[str, ...] = CURSED
    """What makes a sentence questionable; capitals count."""

    def libraries(self) -> tuple[str, ...]:
        return ("regex",)

    def fails(self, rule: str, values: Float64s) -> Bools:
        """Return which measured values break a rule; a share that equals its bound does, too."""
        if rule == "too_many_questionable":
            return values >= self.threshold(rule)
        return super().fails(rule, values)

    def measure(self, view: View) -> Mapping[str, Float64s]:
        data = view.text.data
        sentences = view.fact(split_sentences)
        words = splitter("unicode")(sentences.bounds, data)
        flagged = find_lists(words, self.min_case_words, self.max_capitalised_ratio)
        flagged |= find_cursed(sentences, data, self.cursed)
        num, questionable = count_sentences(*sentences, data, flagged)
        ratio = np.full(view.num_docs, np.nan)
        np.divide(questionable, num, out=ratio, where=num > 0)
        return {"too_few_sentences": num.astype(np.float64), "too_many_questionable": ratio}
