"""C4's line rules and document rules."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import Bytes, Float64s, Int64s, join_bytes
from corpuskit.kernels.filters.c4 import (
    RULES,
    UNKNOWN,
    LineDraft,
    LineTests,
    count_breaks,
    rewrite_lines,
    sentence_edges,
    strip_texts,
)
from corpuskit.kernels.words.lexicon import Words
from corpuskit.stage import Example, Outcome, Spans, StreamingStage, View
from corpuskit.text.words import check_language, splitter

_BREAKS_SPACY = b"IS_ALPHA"
_TOO_FEW = np.uint8(1 + RULES.index("too_few_sentences"))

_FIVE = (
    "One sentence is here. Here is a second one. A third follows it. And a fourth? A fifth ends it!"
)


class C4Quality(StreamingStage):
    r"""Keep lines that read like sentences, then drop documents with too few of them.

    Lines (str.splitlines) are tested in the order of the rules below. `lorem ipsum` and a curly
    bracket drop the whole document, but only in a line that passed the tests before them. The
    remaining lines are joined with \n and stripped; the spaces around a citation stay. With
    `min_num_sentences: null` a text may become empty, as in the reference.

    Sentences are those of spaCy's sentencizer in `language`, counted line by line; for languages
    without one set `min_num_sentences: null`. Later stages with `words: spacy` reuse the words of
    the new text.

    Cut lines and citations become spans in the ledger, each under the rule that cut it. White space
    around lines, and changed line ends, are spans of `whitespace`, unless they touch another cut,
    which then includes them. So the new text is the old one without the spans, joined with \n where
    a span has the line end. Dropped documents have no spans.

    Source: Raffel et al. 2020 (C4), section 2.2; equals datatrove 0.10.1's C4QualityFilter, the
    rewritten text byte for byte; rules have the names of its reasons and statistics. There
    `min_num_sentences`, `min_words_per_line` and `max_word_length` of -1 are `null` here. One of
    its quirks is kept: spaCy fails on the word IS_ALPHA, so the reference counts without it.
    """

    rules: ClassVar[tuple[str, ...]] = RULES
    bounds: ClassVar[Mapping[str, str]] = {
        "too_few_sentences": "min_num_sentences",
        "too_long_word": "max_word_length",
        "too_few_words": "min_words_per_line",
    }
    text_speed: ClassVar[float] = 100e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_FIVE),
        Example(f"{_FIVE}\nLorem ipsum dolor sit amet.", "lorem_ipsum"),
        Example(f"{_FIVE}\nA body of code {{}} is here.", "curly_bracket"),
        Example("One sentence is not enough.", "too_few_sentences"),
        Example(f"{_FIVE}\n{'x' * 1001} is a word.", "too_long_word", {}, _FIVE),
        Example(f"Home > Products\n{_FIVE}", "no_terminal_punc", {}, _FIVE),
        Example(f"{_FIVE}\nRead more.", "too_few_words", {}, _FIVE),
        Example(f"{_FIVE}\nPlease turn on Javascript.", "javascript", {}, _FIVE),
        Example(f"{_FIVE}\nThis site uses cookies.", "policy", {}, _FIVE),
        Example(f"It is so.[12] {_FIVE}", "citation", {}, f"It is so. {_FIVE}"),
        Example(f"  {_FIVE}\n", "whitespace", {}, _FIVE),
        Example("Too short. By far.", None, {"min_num_sentences": None}),
        Example(f"{_FIVE} Nobody ends", "no_terminal_punc", {"split_paragraph": False}, _FIVE),
    )

    split_paragraph: bool = True
    """Test lines; false: test sentences, and join those that stay with a space."""
    remove_citations: bool = True
    """Cut `[1]`, `[]`, `[edit]` and `[citation needed]`."""
    filter_no_terminal_punct: bool = True
    """Cut lines that do not end in one of . ? ! " ' or that end in three dots."""
    min_num_sentences: int | None = Field(5, ge=0)
    """Fewest sentences in the lines that stay."""
    min_words_per_line: int | None = Field(3, ge=0)
    """Cut lines with fewer words, split at whitespace."""
    max_word_length: int | None = Field(1000, ge=0)
    """Cut lines with a longer word, in characters, split at whitespace."""
    filter_lorem_ipsum: bool = True
    """Drop documents with "lorem ipsum", in any case."""
    filter_javascript: bool = True
    """Cut lines with "javascript", in any case."""
    filter_curly_bracket: bool = True
    """Drop documents with an opening curly bracket."""
    filter_policy: bool = True
    """Cut lines about terms of use, privacy and cookies: six phrases, in any case."""
    language: str = "en"
    """Language whose rules split words, and whose marks end sentences."""
    measures: bool = False
    """Also store what every document rule measured, so that bounds can be tuned without a run."""

    @model_validator(mode="after")
    def _check_language(self) -> C4Quality:
        if self._needs_words():
            check_language("spacy", self.language, by_chunk=True)
        return self

    def _needs_words(self) -> bool:
        return self.min_num_sentences is not None or not self.split_paragraph

    def libraries(self) -> tuple[str, ...]:
        return ("datatrove", "spacy") if self._needs_words() else ()

    def apply(self, view: View) -> Outcome:
        draft = self._draft(view)
        codes, facts = draft.codes, {}
        num_sentences = np.full(view.num_docs, np.nan)
        offsets, data = strip_texts(draft.offsets, draft.data)
        if self.min_num_sentences is not None:
            num_sentences = draft.num_lines.astype(np.float64)
            if self.split_paragraph:
                split = splitter("spacy", self.language)
                words = split(draft.offsets, draft.data)
                facts[split] = words  # stripping took whitespace only: the words are the same
                breaks = count_breaks(draft.offsets, draft.data, words)
                self._count_by_line(draft, breaks)
                num_sentences += breaks
            num_sentences[codes != 0] = np.nan
            codes[num_sentences < self.min_num_sentences] = _TOO_FEW
        keep = codes[draft.rows] == 0
        cuts = (draft.rows[keep], draft.starts[keep], draft.ends[keep], draft.cut_codes[keep])
        return Outcome(
            codes=codes,
            values=np.where(codes == _TOO_FEW, num_sentences, np.nan),
            text=Utf8(offsets, data),
            facts=facts,
            spans=Spans(*cuts, "cut"),
            measures=self._measures(codes, num_sentences) if self.measures else {},
        )

    def _draft(self, view: View) -> LineDraft:
        """Return what the line rules leave."""
        offsets, data = view.text
        sentences = None
        if not self.split_paragraph:
            words = view.fact(splitter("spacy", self.language))
            sentences = self._with_unknown_edges(view.text, *sentence_edges(offsets, data, words))
        tests = LineTests(
            max_word_length=-1 if self.max_word_length is None else self.max_word_length,
            min_words=self.min_words_per_line or 0,
            remove_citations=self.remove_citations,
            terminal_punct=self.filter_no_terminal_punct,
            lorem_ipsum=self.filter_lorem_ipsum,
            javascript=self.filter_javascript,
            curly_bracket=self.filter_curly_bracket,
            policy=self.filter_policy,
        )
        return rewrite_lines(offsets, data, tests, sentences)

    def _count_by_line(self, draft: LineDraft, breaks: Int64s) -> None:
        """Count the documents that hold the word IS_ALPHA, as the reference does: line by line.

        Its tokenizer fails on that word; it then takes it out of the line and tries again.
        """
        for row in np.flatnonzero(breaks == UNKNOWN):
            text = draft.data[draft.offsets[row] : draft.offsets[row + 1]].tobytes()
            breaks[row] = 0
            for line in text.split(b"\n"):
                count = count_breaks(*self._split(line))[0]
                if count == UNKNOWN:
                    count = count_breaks(*self._split(line.replace(_BREAKS_SPACY, b"")))[0]
                breaks[row] += count

    def _with_unknown_edges(
        self, text: Utf8, bounds: Int64s, edges: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Add the sentences of documents that hold the word IS_ALPHA, as the reference does.

        It looks for them in the text without that word, and cuts the whole text at these positions.
        """
        unknown = np.flatnonzero(edges[bounds[:-1]] == UNKNOWN)
        if len(unknown) == 0:
            return bounds, edges
        by_row = [edges[a:b] for a, b in itertools.pairwise(bounds)]
        for row in unknown.tolist():
            content = text.row(row)
            offsets, data, words = self._split(content.replace(_BREAKS_SPACY, b""))
            count, row_edges = sentence_edges(offsets, data, words)
            chars = np.searchsorted(_char_starts(data), row_edges[: count[1] - 1])
            starts = _char_starts(np.frombuffer(content, np.uint8))
            by_row[row] = np.append(starts[chars], len(content))
        sizes = [len(row_edges) for row_edges in by_row]
        return np.cumsum([0, *sizes], dtype=np.int64), np.concatenate(by_row)

    def _split(self, text: bytes) -> tuple[Int64s, Bytes, Words]:
        """Return one text as buffers, and its words."""
        offsets, data = join_bytes([text], b"\0")
        return offsets, data, splitter("spacy", self.language)(offsets, data)

    def _measures(self, codes: Bytes, num_sentences: Float64s) -> dict[str, Any]:
        """Return what each rule measured; NaN where an earlier one dropped the document."""
        measured = {
            rule: (codes == code).astype(np.float64)
            for code, rule in enumerate(RULES[: _TOO_FEW - 1], start=1)
        }
        if self.min_num_sentences is not None:
            measured["too_few_sentences"] = num_sentences
        return measured


def _char_starts(data: Bytes) -> Int64s:
    return np.flatnonzero(data & 0xC0 != 0x80)
