"""The references of the Gopher filters.

For `datatrove` its own filters; for `dolma` and `dclm`, which are no packages that others can
install beside ours, plain Python written from their algorithms: dolma 1.2.1, taggers/gopher.py
(get_attributes), and mlfoundations/dclm at c7ed275, baselines/mappers/filters/content_filters.py.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from corpuskit.stages.filters._languages import UNKNOWN
from tests.oracles.words import reference_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from corpuskit.stages.filters.gopher_quality import GopherQuality
    from corpuskit.stages.filters.gopher_repetition import GopherRepetition

    Decide = Callable[[str], tuple[str | None, str]]
    Measure = Callable[[str], Mapping[str, float]]


def repetition(stage: GopherRepetition) -> Decide:
    """Return text -> (reason or None, text) of the variant the stage follows."""
    if stage.per_language is not None and stage.unknown_language == "drop":
        return lambda text: (UNKNOWN, text)  # a text alone has no language
    if stage.variant == "datatrove":
        return _datatrove_repetition(stage)
    words: Callable[[str], list[str]]
    if stage.variant == "dclm":
        tokenizer = reference_words("unicode")

        def words(text: str) -> list[str]:
            return [word for word in tokenizer.word_tokenize(text) if word[0].isalnum()]

        return _by_bounds(stage, lambda text: dclm_repetition(text, words(text)))
    return _by_bounds(stage, dolma_repetition)


def quality(stage: GopherQuality) -> Decide:
    """Return text -> (reason or None, text) of the variant the stage follows."""
    if stage.per_language is not None and stage.unknown_language == "drop":
        return lambda text: (UNKNOWN, text)  # a text alone has no language
    if stage.variant == "datatrove":
        return _datatrove_quality(stage)
    measure = dolma_quality if stage.variant == "dolma" else dclm_quality
    return _by_bounds(stage, lambda text: measure(text, stage.stop_words))


def _by_bounds(stage: GopherQuality | GopherRepetition, measure: Measure) -> Decide:
    """Decide from measures as the stage's bounds say."""

    def decide(text: str) -> tuple[str | None, str]:
        found = measure(text)
        for rule in stage.rules:
            if rule == "empty" and found.get(rule):
                return rule, text
            bound, value = stage.threshold(rule), found.get(rule, float("nan"))
            low = stage.bounds.get(rule, "").startswith("min_")
            if value < bound if low else value > bound:
                return rule, text
        return None, text

    return decide


def _datatrove_repetition(stage: GopherRepetition) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import GopherRepetitionFilter

    def pairs(ratios: Mapping[int, float | None]) -> tuple[tuple[int, float], ...]:
        return tuple((n, ratio) for n, ratio in ratios.items() if ratio is not None)

    reference = GopherRepetitionFilter(
        dup_line_frac=stage.max_dup_lines_ratio,
        dup_para_frac=stage.max_dup_paragraphs_ratio,
        dup_line_char_frac=stage.max_dup_line_chars_ratio,
        dup_para_char_frac=stage.max_dup_paragraph_chars_ratio,
        top_n_grams=pairs(stage.max_top_ngram_ratios),
        dup_n_grams=pairs(stage.max_dup_ngram_ratios),
        language=reference_words(stage.words, stage.language),
    )

    def decide(text: str) -> tuple[str | None, str]:
        kept = reference.filter(Document(text=text, id=""))
        return (None if kept is True else kept[1]), text

    return decide


def _datatrove_quality(stage: GopherQuality) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import GopherQualityFilter

    given = {
        "min_doc_words": stage.min_words,
        "max_doc_words": stage.max_words,
        "min_avg_word_length": stage.min_mean_word_length,
        "max_avg_word_length": stage.max_mean_word_length,
        "min_stop_words": stage.min_stop_words,
        "stop_words": list(stage.stop_words),
        "language": reference_words(stage.words, stage.language),
    }
    ratios = {
        "max_symbol_word_ratio": stage.max_symbol_ratio,
        "max_bullet_lines_ratio": stage.max_bullet_lines_ratio,
        "max_ellipsis_lines_ratio": stage.max_ellipsis_lines_ratio,
        "max_non_alpha_words_ratio": stage.min_alpha_words_ratio,
    }
    whole = GopherQualityFilter(**given, **ratios)
    # Where it would divide by zero, the reference with those rules off.
    wordless = GopherQualityFilter(**given, **dict.fromkeys(ratios))

    def decide(text: str) -> tuple[str | None, str]:
        reference = whole if text.strip() else wordless
        with warnings.catch_warnings():  # mean of no words
            warnings.simplefilter("ignore", RuntimeWarning)
            kept = reference.filter(Document(text=text, id=""))
        return (None if kept is True else kept[1]), text

    return decide


def _ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[first:] for first in range(n)), strict=False))


def _chars(words: Sequence[str]) -> int:
    return sum(map(len, words))


def dolma_repetition(text: str) -> dict[str, float]:
    """Measure repetition as dolma's gopher_v1 tagger; rules as the stage names them."""
    words, lines = text.split(), Counter(text.split("\n"))
    total = _chars(words)
    found: dict[str, float] = {}
    copied = {line: count for line, count in lines.items() if count > 1}
    found["dup_line_frac"] = sum(copied.values()) / lines.total()
    chars = sum(len(line) * count for line, count in copied.items())
    found["dup_line_char_frac"] = chars / max(total, 1)
    for n in range(1, 11):
        counts = Counter(_ngrams(words, n))
        if counts:
            most, count = counts.most_common(1)[0]
            found[f"top_{n}_gram"] = count * _chars(most) / max(total, 1)
            dup = sum(count * _chars(run) for run, count in counts.items() if count > 1)
            whole = sum(count * _chars(run) for run, count in counts.items())
            found[f"duplicated_{n}_n_grams"] = dup / max(whole, 1)
    return found


def dclm_repetition(text: str, words: Sequence[str]) -> dict[str, float]:
    """Measure repetition as DCLM's repetition_filter; `words` begin with letters or digits."""
    found: dict[str, float] = {}
    for name, mark in (("line", "\n"), ("para", "\n\n")):
        segments = [part.strip() for part in re.split(mark, text) if part.strip()]
        if not segments:
            return {"empty": 1.0}
        copied = {part: count for part, count in Counter(segments).items() if count > 1}
        found[f"dup_{name}_frac"] = sum(copied.values()) / len(segments)
        chars = sum(len(part) * count for part, count in copied.items())
        found[f"dup_{name}_char_frac"] = chars / _chars(segments)
    for n in range(1, 11):
        runs = _ngrams(words, n)
        counts = Counter(runs)
        if not runs or max(counts.values()) == 1:
            continue
        most = max(counts.values())
        longest = max(_chars(run) for run, count in counts.items() if count == most)
        found[f"top_{n}_gram"] = longest * most / _chars(words)
        places = {at + k for at, run in enumerate(runs) if counts[run] > 1 for k in range(n)}
        covered = sum(len(words[at]) for at in places)
        found[f"duplicated_{n}_n_grams"] = covered / _chars(words)
    return found


def dolma_quality(text: str, stop_words: Sequence[str]) -> dict[str, float]:
    """Measure quality as dolma's gopher_v1 tagger; rules as the stage names them."""
    words, lines = text.split(), text.split("\n")
    num = max(len(words), 1)
    length = float(median(map(len, words))) if words else 0.0
    return {
        "gopher_short_doc": len(words),
        "gopher_long_doc": len(words),
        "gopher_below_avg_threshold": length,
        "gopher_above_avg_threshold": length,
        "gopher_too_many_hashes": sum("#" in w or "\u2026" in w for w in words) / num,
        "gopher_too_many_bullets": sum(x.startswith(("*", "-")) for x in lines) / len(lines),
        "gopher_too_many_end_ellipsis": sum(x.endswith("\u2026") for x in lines) / len(lines),
        "gopher_below_alpha_threshold": sum(any(map(str.isalpha, w)) for w in words) / num,
        "gopher_enough_stop_words": sum(word in stop_words for word in words),
    }


def dclm_quality(text: str, stop_words: Sequence[str]) -> dict[str, float]:
    """Measure quality as DCLM's filters; a text without words fails where a page is refused."""
    words = text.split()
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    # fastText's own split, whose </s> for each newline begins with no letter.
    counted = sum(word[0].isalnum() for word in re.split("[ \n\r\t\v\f\0]+", text) if word)
    symbols = sum(map(text.count, ("#", "...", ". . .", "\u2026")))
    length = _chars(words) / len(words) if words else 0.0
    bullets = ("\u25cf", "\u2022", "*", "-")
    ends = ("...", ". . .", "\u2026")
    return {
        "gopher_short_doc": counted,
        "gopher_long_doc": counted,
        "gopher_below_avg_threshold": length,
        "gopher_above_avg_threshold": length,
        "gopher_too_many_hashes": symbols / len(words) if words else float("inf"),
        "gopher_too_many_bullets": sum(x.startswith(bullets) for x in lines) / max(len(lines), 1),
        "gopher_too_many_end_ellipsis": sum(x.endswith(ends) for x in lines) / max(len(lines), 1),
        "gopher_below_alpha_threshold": sum(any(map(str.isalpha, w)) for w in words)
        / max(len(words), 1),
        "gopher_enough_stop_words": sum(word.lower() in stop_words for word in words),
    }
