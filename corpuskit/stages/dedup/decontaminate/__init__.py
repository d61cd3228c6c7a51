"""Benchmark items in documents: questions, answers, passages and pieces of them.

    module   does                                                           memory
    items    reads benchmark files: JSON lines or Parquet, an item a row    all items
    index    words of items, their weights, a table of n-grams; mapped      4 kB an item
    search   n-grams lead to items, alignment scores them, thresholds judge a batch

The stage turns findings into drops, cuts or columns, batch by batch. `benchmarks` and `ngrams` are
shared with the stage `decontaminate_ngrams`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from corpuskit.formats.batch import SPAN, Utf8, span_lists
from corpuskit.kernels.arrays import Bytes, Float64s, Int64s, frozen
from corpuskit.kernels.spans import replace_spans
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Example, Outcome, Spans, StreamingStage
from corpuskit.stages.dedup.decontaminate.benchmarks import (
    SEPARATOR,
    BenchmarkStage,
    by_benchmark,
    first_of_rows,
    lists_of_rows,
)
from corpuskit.stages.dedup.decontaminate.index import Recipe, check_files, open_index
from corpuskit.stages.dedup.decontaminate.items import benchmark_files
from corpuskit.stages.dedup.decontaminate.search import (
    LEAST_PHRASE,
    PHRASE,
    RULES,
    Thresholds,
    find_items,
)

if TYPE_CHECKING:
    from corpuskit.stage import Known, View, Volume
    from corpuskit.stages.dedup.decontaminate.index import ItemIndex
    from corpuskit.stages.dedup.decontaminate.search import Findings


_PHRASE_SPAN = pa.struct([("item", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
"""A run of words that may be a common phrase: an item that has it, and bytes of the text."""

_OWN: dict[str, Any] = {"benchmarks": ("sample_data/benchmark.jsonl",)}
_QUESTION = (
    "A ferry leaves Port Amsel at noon with 48 crates of pears and loses a third of them in a "
    "storm. How many crates of pears reach the island?"
)
_SHORT = "Which metal melts in your hand?"
_ANSWER = (
    "The storm takes a third of the 48 crates, which is 16 crates. The ferry keeps 48 minus 16, so "
    "32 crates of pears reach the island."
)
_PASSAGE = (
    "The Lindow windmill was built in 1787 by two brothers who had learned their trade on the "
    "coast of Holland. It ground barley until a gale broke its northern sail in 1911."
)


class Decontaminate(BenchmarkStage, StreamingStage):
    """Find benchmark items in documents: drop the documents, cut the items out, or annotate.

    Use it on all training text, with all benchmarks that the model will be evaluated on. Items are
    matched by their words in order: case, punctuation, line breaks, accents and Unicode forms make
    no difference, inserted words little. The score of a part is the weighted share of its words
    that are found: a word of a single item weighs 1, a word of all items almost nothing. Short
    parts must be complete, longer ones reach `min_score`; a question below `min_words` counts only
    with its answer. The rule names what was found: the question with its answer after it, the
    question, a long answer, a passage, or a run of words (`chunk`). Runs of words that weigh so
    little that they may be common phrases are reported in the column `phrases`, for documents in
    which nothing else is found.

    Dropped documents name the items in the ledger (`question: mmlu/virology_test/12`), with the
    spans; `corpuskit contamination` lists them by benchmark and item. It sees one document at a
    time, so it runs within the phase of its neighbours. The index is built on first use (4 CPU s
    for 42,000 items, then kept beside the compiled kernels) and takes 4 kB of memory an item.

    Source: Brown et al. 2020 (GPT-3), appendix C, for runs of n-grams; decon (Allen Institute,
    doc/simple-details.md) for weights, thresholds that rise for short items, and answers and
    passages beside the question; differs in that n-grams only lead to an item, whose words are then
    aligned.
    """

    rules: ClassVar[tuple[str, ...]] = RULES
    bounds: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(RULES[:4], "min_score"),
        **dict.fromkeys(RULES[4:], "chunk_words"),
    }
    examples: ClassVar[tuple[Example, ...]] = (
        Example("A ferry carries pears to the island, and storms are rare.", None, _OWN),
        Example(f"Solved today. {_QUESTION}\n\n{_ANSWER}", "question_answer", _OWN),
        Example(f"{_SHORT} (Gallium does.)", "question_answer", _OWN),
        Example(f"{_SHORT} Ask a chemist.", None, _OWN),
        Example(f"* {_QUESTION.upper()} *", "question", _OWN),
        Example(f"They wrote: {_ANSWER}", "answer", _OWN),
        Example(_PASSAGE, None, {**_OWN, "chunk_words": 0}),
        Example(_PASSAGE, "passage", {**_OWN, "passages": True}),
        Example("At noon with 48 crates of pears and loses a third.", "chunk", _OWN),
        Example(
            "Noon with 48 crates of pears and loses.",
            "phrase",
            {**_OWN, "phrases": "drop", "chunk_weight": 9},
        ),
        Example(
            f"Before. {_QUESTION} After.\n" + "The rest of it stays as it is. " * 8,
            "question",
            {**_OWN, "action": "cut"},
            "Before. After.\n" + "The rest of it stays as it is. " * 8,
        ),
    )

    reference: tuple[PathText, ...] = ()
    """Files of ordinary documents, like benchmarks, texts in a column `text`: words that are common
    there weigh less, too. For benchmarks of few items, which say little about that."""
    ngram: int = Field(5, ge=2, le=32)
    """Words in a row that lead to an item; an item with every n-th word changed is not found."""
    min_score: float = Field(0.8, gt=0, le=1)
    """Least score of parts of `loose_words` words and more."""
    min_words: int = Field(8, ge=1, le=1024)
    """Parts of up to this many words must be complete; shorter questions need their answer."""
    loose_words: int = Field(24, ge=1, le=1024)
    """Words of a part from which on `min_score` applies; between, the bound falls evenly."""
    min_weight: float = Field(1.5, ge=0)
    """Least weight of the matched words: items of common words alone are not found."""
    chunk_words: int = Field(8, ge=0, le=1024)
    """Words in a row that suffice as a match (`chunk`, `phrase`); 0 is off."""
    # At 3.25 it drops 5 instead of 18 documents without items, at a recall of .17 instead of .76.
    chunk_weight: float = Field(2.0, ge=0)
    """Least weight of a `chunk` of `chunk_words` words; a longer one needs less in proportion.
    Runs that weigh less are `phrase`."""
    phrases: Literal["report", "drop", "ignore"] = "report"
    """Runs of words that may be common phrases: `report` them in the column `phrases` only, `drop`
    them as other matches (or cut, as `action` says), or `ignore` them."""
    passages: bool = False
    """Count a passage alone as a match; passages are often from texts that many documents have."""
    action: Literal["drop", "cut", "annotate"] = "drop"
    """`drop` the document, `cut` what was found, or `annotate` only: adds the column `spans`."""
    widen: Literal["no", "sentence", "line"] = "sentence"
    """Cut the whole sentences, or lines, that hold some of what was found; of sentences at most 500
    bytes before and after it."""
    min_left: int = Field(200, ge=0)
    """Documents that keep fewer bytes after a cut are dropped."""

    @model_validator(mode="after")
    def _check_words(self) -> Decontaminate:
        ngram, chunk, least = self.ngram, self.chunk_words, self.min_words
        if 0 < chunk < ngram:
            raise ValueError(
                f"chunk_words: {chunk} is below ngram {ngram}. Set it to 0 (off) or to {ngram} or "
                "more, or lower ngram."
            )
        if least < ngram:
            raise ValueError(
                f"min_words: {least} is below ngram {ngram}. Set it to {ngram} or more, or lower "
                "ngram."
            )
        if self.loose_words < least:
            raise ValueError(
                f"loose_words: {self.loose_words} is below min_words {least}. Set it to {least} or "
                "more, or lower min_words."
            )
        return self

    def check(self, known: Known) -> None:
        del known
        check_files(self._recipe())

    def files(self) -> tuple[str, ...]:
        recipe = self._recipe()
        return (*(path for _, path in recipe.files), *recipe.reference)

    def adds(self) -> Mapping[str, pa.DataType]:
        spans = {"spans": pa.list_(SPAN)} if self.action == "annotate" else {}
        phrases = {"phrases": pa.list_(_PHRASE_SPAN)} if self.phrases == "report" else {}
        return {"score": pa.float64(), "items": pa.list_(pa.string()), **phrases, **spans}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        size = sum(os.path.getsize(path) for path in self.files() if os.path.exists(path))
        return Cost(
            cpu_seconds=volume.text_bytes / 120e6, start_seconds=0.5,
            resident_bytes=50_000_000 + 35 * size,
        )  # fmt: skip

    def apply(self, view: View) -> Outcome:
        index = open_index(self._recipe())
        findings = find_items(view.text, index, self.ngram, self._thresholds())
        phrases = findings.take(findings.codes == PHRASE)
        if self.phrases != "drop":
            findings = findings.take(findings.codes != PHRASE)
        codes, values, bounds = _verdicts(findings, view.num_docs)
        columns = _columns(findings, index, view.num_docs)
        if self.phrases == "report":
            phrases = phrases.take(codes[phrases.rows] == 0)
            columns["phrases"] = _phrases(phrases, index, view.num_docs)
        reasons = _reasons(findings, codes, columns["items"])
        rows, starts, ends, kinds = merge_spans(
            findings.rows, findings.starts, findings.ends, findings.codes
        )
        if self.action == "annotate":
            columns["spans"] = span_lists(rows, starts, ends, view.num_docs)
            return Outcome(columns=columns)
        if self.action == "drop":
            spans = Spans(rows, starts, ends, codes[rows])  # all of them, whichever rule it was
            return Outcome(codes, values, reasons, bounds, spans=spans, columns=columns)
        if self.widen != "no":
            starts, ends = widen_spans(view.text, rows, starts, ends, self.widen)
            rows, starts, ends, kinds = merge_spans(rows, starts, ends, kinds)
        nothing = np.zeros(len(rows), np.uint8)  # what replaces each span: the first of [b""]
        offsets, data = replace_spans(*view.text, rows, starts, ends, nothing, [b""])
        text = Utf8(frozen(offsets), frozen(data))
        is_little = (text.sizes() < self.min_left) & (codes > 0)
        spans = Spans(rows, starts, ends, np.where(is_little[rows], codes[rows], kinds))
        return Outcome(
            np.where(is_little, codes, 0).astype(np.uint8), values, reasons, bounds, text,
            spans=spans, columns=columns,
        )  # fmt: skip

    def not_found(self) -> tuple[str, dict[str, tuple[int, int]]]:
        index = open_index(self._recipe())
        least = min(self.min_weight, LEAST_PHRASE if self.chunk_words else np.inf)
        is_found = index.is_found(least, passages=self.passages)
        return "that are too short or of common words only", by_benchmark(
            index.names.to_pylist(), is_found
        )

    def _recipe(self) -> Recipe:
        reference = tuple(path for _, path in benchmark_files(self.reference, unique=False))
        return Recipe(
            self.benchmark_files(), self.columns(), self.ngram, self.min_words, reference,
            self.chunk_words, self.passages,
        )  # fmt: skip

    def _thresholds(self) -> Thresholds:
        return Thresholds(
            self.min_score, self.min_words, self.loose_words, self.min_weight, self.chunk_words,
            self.chunk_weight, self.passages,
        )  # fmt: skip


def _verdicts(findings: Findings, num_docs: int) -> tuple[Bytes, Float64s, Float64s]:
    """Return the first rule that each document breaks, its value and its threshold; (N,) each."""
    codes = np.zeros(num_docs, np.uint8)
    values, bounds = np.full(num_docs, np.nan), np.full(num_docs, np.nan)
    rows, firsts = np.unique(findings.rows, return_index=True)
    codes[rows] = findings.codes[firsts]
    values[rows], bounds[rows] = findings.values[firsts], findings.bounds[firsts]
    return codes, values, bounds


def _columns(findings: Findings, index: ItemIndex, num_docs: int) -> dict[str, pa.Array]:
    """Return the largest score of each document, and its items, the first rule's best first."""
    scores = np.zeros(num_docs)
    np.maximum.at(scores, findings.rows, findings.scores)
    pairs = findings.rows * len(index.names) + findings.items
    firsts = np.sort(np.unique(pairs, return_index=True)[1])
    firsts = firsts[first_of_rows(findings.rows[firsts])]
    names = index.names.take(pa.array(findings.items[firsts])).cast(pa.string())
    items = lists_of_rows(findings.rows[firsts], names, num_docs)
    return {"score": pa.array(np.round(scores, 4)), "items": items}


def _phrases(phrases: Findings, index: ItemIndex, num_docs: int) -> pa.Array:
    """Return the runs of words of each document that may be common, the first `MAX_NAMED`."""
    order = np.lexsort((phrases.starts, phrases.rows))
    order = order[first_of_rows(phrases.rows[order])]
    names = index.names.take(pa.array(phrases.items[order])).cast(pa.string())
    arrays = [names, pa.array(phrases.starts[order]), pa.array(phrases.ends[order])]
    values = pa.StructArray.from_arrays(arrays, fields=list(_PHRASE_SPAN))
    return lists_of_rows(phrases.rows[order], values, num_docs)


def _reasons(findings: Findings, codes: Bytes, items: pa.ListArray) -> pa.Array:
    """Return `rule: item; item` of each document, null if it has none."""
    names = pc.binary_join(items, SEPARATOR)
    rules = pa.array([None, *RULES]).take(pa.array(codes.astype(np.int64)))
    return pc.binary_join_element_wise(rules, names, ": ")


# ---------------------------------------------------------------- spans


REACH_BYTES = 500
"""Sentences are cut at most this far before and after a match."""

_CHARACTER_BYTES = 4
"""Most bytes of a character: the end of a sentence may be the last character of the span."""

_STOPS = (".", "?", "!", "\u2026", "\uff0e")
"""End a sentence only before a space: they also occur in numbers and names."""

_LONE_STOPS = (
    "\u3002", "\uff01", "\uff1f", "\uff61",  # Chinese and Japanese
    "\u0964", "\u0965",  # Hindi, Bengali and others
    "\u061f", "\u06d4",  # Arabic, Urdu
    "\u0589", "\u0f0d", "\u104b", "\u1362", "\u1367", "\u17d4",  # hy, bo, my, am, km
    "\u203c", "\u2047", "\u2048", "\u2049",
)  # fmt: skip
"""End a sentence whatever follows."""

_CLOSING = (
    "\"", "'", ")", "]", "}", "\u2019", "\u201d", "\xbb", "\u203a", "\u3009", "\u300b",
    "\u300d", "\u300f", "\u3011", "\uff09", "\uff3d",
)  # fmt: skip
_SPACES = (" ", "\t", "\r", "\xa0", "\u3000")


def _any(characters: tuple[str, ...]) -> bytes:
    return b"(?:" + b"|".join(re.escape(character.encode()) for character in characters) + b")"


_CLOSED = _any(_CLOSING) + b"*+"
_BEFORE_SPACE = _any(_STOPS) + _CLOSED + b"(?=" + _any(_SPACES) + rb"|\n|\Z)"
_ALONE = _any(_LONE_STOPS) + _CLOSED
_END = re.compile(b"(?:" + _BEFORE_SPACE + b"|" + _ALONE + b")" + _any(_SPACES) + b"*+")
"""The end of a sentence, with the spaces after it."""


def merge_spans(
    rows: Int64s, starts: Int64s, ends: Int64s, codes: Int64s | Bytes
) -> tuple[Int64s, Int64s, Int64s, Bytes]:
    """Join spans of a text that overlap or touch; the smallest code of each stays.

    Returns:
        Rows, starts, ends and codes, sorted by row and start; empty spans are left out.
    """
    order = np.lexsort((ends, starts, rows))
    order = order[starts[order] < ends[order]]
    merged: list[list[int]] = []
    columns = (rows[order], starts[order], ends[order], codes[order])
    for row, start, end, code in zip(*(column.tolist() for column in columns), strict=True):
        if merged and merged[-1][0] == row and start <= merged[-1][2]:
            last = merged[-1]
            last[2], last[3] = max(last[2], end), min(last[3], code)
        else:
            merged.append([row, start, end, code])
    table = np.array(merged, np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.uint8)


def widen_spans(
    text: Utf8, rows: Int64s, starts: Int64s, ends: Int64s, to: Literal["sentence", "line"]
) -> tuple[Int64s, Int64s]:
    """Return spans widened to whole lines, or to sentences within their lines.

    A sentence ends with a full stop, question mark or exclamation mark, closing marks after it,
    before a space; in scripts that put no space there, without one. A span is widened by at most
    `REACH_BYTES` each way, in whole characters. A whole line is cut with its line feed.
    The time grows with the text and the number of spans, not with their product.

    Args:
        text: the texts.
        rows, starts, ends: spans as `merge_spans` returns them: sorted, none touching another.
        to: how far.
    """
    new_starts, new_ends = starts.copy(), ends.copy()
    # The last span is in the line [low, high); `seen` is how far line feeds were searched for.
    last_row, content, seen, low, high = -1, b"", 0, 0, -1
    for number, row in enumerate(rows.tolist()):
        start, end = int(starts[number]), int(ends[number])
        if row != last_row:
            content, last_row = text.row(row), row
            seen, low, high = 0, 0, -1
        feed = content.rfind(b"\n", seen, start)
        seen, low = start, low if feed < 0 else feed + 1
        if end > high:
            high = content.find(b"\n", end)
            high = len(content) if high < 0 else high
        if to == "sentence":
            new_starts[number], new_ends[number] = _sentence(content, start, end, low, high)
        else:
            new_starts[number], new_ends[number] = low, min(high + 1, len(content))
    return new_starts, new_ends


def _sentence(content: bytes, start: int, end: int, low: int, high: int) -> tuple[int, int]:
    """Return where the sentences around a span begin and end, within a line and reach."""
    low, high = max(low, start - REACH_BYTES), min(high, end + REACH_BYTES)
    while low < start and content[low] & 0xC0 == 0x80:
        low += 1
    while end < high < len(content) and content[high] & 0xC0 == 0x80:
        high -= 1
    # One byte more than is looked at: the end of what is searched counts as the end of the text.
    for match in _END.finditer(content, low, start + 1):
        if match.end() <= start:
            low = match.end()
    for match in _END.finditer(content, max(start, end - _CHARACTER_BYTES), high + 1):
        if end <= match.end() <= high:
            return low, match.end()
    return low, high
