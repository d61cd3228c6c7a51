"""The references of the filters beside Gopher's: datatrove's own classes."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import xxhash

from corpuskit.stages.filters import bad_words as bad_words_stage
from corpuskit.stages.filters._languages import UNKNOWN
from corpuskit.stages.filters._lists import read_entries
from corpuskit.stages.filters.datatrove import find_step, make_step
from tests.oracles.words import reference_words

if TYPE_CHECKING:
    from corpuskit.stages.filters.bad_words import BadWords
    from corpuskit.stages.filters.c4_paragraphs import C4Paragraphs
    from corpuskit.stages.filters.c4_quality import C4Quality
    from corpuskit.stages.filters.datatrove import Datatrove
    from corpuskit.stages.filters.fineweb_quality import FinewebQuality
    from tests.oracles import Decide


def bad_words(stage: BadWords) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import C4BadWordsFilter

    path = stage._paths.get(stage.language)
    allowed = bad_words_stage._ALLOWED if stage.allowlist == "c4" else frozenset()
    found = {*(read_entries(path) if path else ()), *stage.entries} - allowed
    either = "|".join(re.escape(word) for word in found)
    whole = stage.language not in bad_words_stage._UNSPACED
    reference = C4BadWordsFilter(default_language=stage.language)
    # As it makes the pattern of a list, which it would download.
    reference._badwords_regex[stage.language] = re.compile(
        rf"(?:\W|^)({either})(?:\W|$)" if whole else either
    )
    places = re.compile(rf"(?<!\w)(?=(?:{either})(?!\w))" if whole else f"(?={either})")

    def decide(text: str) -> tuple[str | None, str]:
        if stage.max_count == 0:
            kept = reference.filter(Document(text=text, id=""))
            rule = None if kept is True else kept[1]
        else:
            num = sum(1 for _ in places.finditer(text.lower()))
            rule = (
                bad_words_stage._RULE
                if stage.max_count is not None and num > stage.max_count
                else None
            )
        share = (xxhash.xxh64_intdigest(text.encode(), stage.seed) >> 11) * 2.0**-53
        return (None if share < stage.keep_fraction else rule), text

    return decide


def c4_paragraphs(stage: C4Paragraphs) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import C4ParagraphFilter

    reference = C4ParagraphFilter()
    reference.min_paragraph_len = stage.min_paragraph_chars

    def decide(text: str) -> tuple[str | None, str]:
        if stage.min_paragraphs == reference.min_paragraphs:
            kept = reference.filter(Document(text=text, id="")) is True
        else:  # it looks at three lines, whatever their number should be
            lengths = [len(line) for line in text.split("\n")]
            long = [size for size in lengths if size >= stage.min_paragraph_chars]
            kept = len(long) >= stage.min_paragraphs
        return (None if kept else "too_few_paragraphs"), text

    return decide


def c4_quality(stage: C4Quality) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import C4QualityFilter

    def bound(value: int | None) -> int:
        return -1 if value is None else value

    reference = C4QualityFilter(
        split_paragraph=stage.split_paragraph,
        remove_citations=stage.remove_citations,
        filter_no_terminal_punct=stage.filter_no_terminal_punct,
        min_num_sentences=bound(stage.min_num_sentences),
        min_words_per_line=bound(stage.min_words_per_line),
        max_word_length=bound(stage.max_word_length),
        filter_lorem_ipsum=stage.filter_lorem_ipsum,
        filter_javascript=stage.filter_javascript,
        filter_curly_bracket=stage.filter_curly_bracket,
        filter_policy=stage.filter_policy,
        language=reference_words("spacy", stage.language) if stage._needs_words() else "en",
    )

    def decide(text: str) -> tuple[str | None, str]:
        document = Document(text=text, id="")
        kept = reference.filter(document)
        return (None if kept is True else kept[1]), document.text

    return decide


def datatrove(stage: Datatrove) -> Decide:
    from datatrove.data import Document

    step = find_step(stage.step)

    def decide(text: str) -> tuple[str | None, str]:
        document = Document(text=text, id="")
        try:
            kept = list(make_step(step, stage.params).run(iter([document])))
        except (IndexError, TypeError, ZeroDivisionError):
            return "error", text
        return (None, kept[0].text) if kept else ("dropped", text)

    return decide


def fineweb_quality(stage: FinewebQuality) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import FineWebQualityFilter

    if stage.per_language is not None and stage.unknown_language == "drop":
        return lambda text: (UNKNOWN, text)  # a text alone has no language

    def bound(value: float | None, off: float) -> float:
        return off if value is None else value

    reference = FineWebQualityFilter(
        line_punct_thr=bound(stage.min_line_punct_ratio, -math.inf),
        line_punct_exclude_zero=stage.keep_unpunctuated,
        stop_chars=stage.stop_chars,
        short_line_thr=bound(stage.max_short_line_ratio, math.inf),
        short_line_length=stage.short_line_chars,
        char_duplicates_ratio=bound(stage.max_char_dup_ratio, math.inf),
        new_line_ratio=bound(stage.max_newline_ratio, math.inf),
        language=reference_words(stage.words, stage.language),
    )

    def decide(text: str) -> tuple[str | None, str]:
        num_lines = sum(line.strip() != "" for line in text.split("\n"))
        if num_lines < stage.min_lines:
            return "empty", text
        if num_lines == 0:  # it would drop what min_lines of 0 keeps
            return None, text
        try:
            kept = reference.filter(Document(text=text, id=""))
        except ZeroDivisionError:  # no words
            return None, text
        return (None if kept is True else kept[1]), text

    return decide
