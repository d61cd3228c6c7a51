"""Toxicity of documents, by a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import Bytes, frozen
from corpuskit.kernels.filters.c4 import sentence_edges, sentence_spans
from corpuskit.kernels.lines import cut_units
from corpuskit.kernels.spans import replace_spans
from corpuskit.stage import Example, Outcome, Spans, View
from corpuskit.stages.annotators._scoring import LabelText, ScoringStage, best_labels
from corpuskit.text.words import check_language, splitter

_TINY = {"model": "sample_data/toxicity.ftz"}
_KIND = "Thank you for the careful review, I have changed the second paragraph as you asked."
_RUDE = "Shut up, you stupid idiot, nobody wants to read your pathetic garbage."


class Toxicity(ScoringStage):
    """Score documents with a toxicity classifier; by default nothing is dropped.

    Use it to store a score per document, look at what scores high, and only then set `max_score`
    (drop above) or `min_score` (drop below, to collect examples). The embedded model is
    alt-profanity-check's for English: it knows words, not meaning, and was made for single
    comments, so a rude sentence in a long text moves the score little; `cut_score` scores
    sentences. Sentences that name a group of people score higher than they should:
    docs/accuracy/toxicity.md has the figures. With labelled texts of the kind that you will score,
    `corpuskit classifier train` makes a model of your own. Word lists are `bad_words`.

    The score is the probability of `label`, rounded to 4 decimals before it is stored or compared.
    White space at both ends is ignored. With `cut_score` sentences are scored, too, and cut; the
    column and the other bounds are about the whole document as it was.

    Source: as Dolma's toxicity taggers (Soldaini et al. 2024: fastText trained on Jigsaw's
    comments, sentence by sentence), whose sentences at 0.1 and more Common Pile (Kandpal et al.
    2025) cuts; scores equal official fastText's. Their sentences are BlingFire's.
    """

    embedded: ClassVar[str] = "toxicity.model"
    rules: ClassVar[tuple[str, ...]] = ("toxic", "not_toxic", "toxic_sentence")
    bounds: ClassVar[Mapping[str, str]] = {
        "toxic": "max_score",
        "not_toxic": "min_score",
        "toxic_sentence": "cut_score",
    }
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_RUDE, None, _TINY),
        Example(_KIND, None, {**_TINY, "max_score": 0.5}),
        Example(_RUDE, "toxic", {**_TINY, "max_score": 0.5}),
        Example(_KIND, "not_toxic", {**_TINY, "min_score": 0.5}),
        Example(f"{_KIND} {_RUDE}\n", "toxic_sentence", {**_TINY, "cut_score": 0.5}, _KIND),
    )

    label: LabelText = Field("toxic", min_length=1)
    """Label whose probability is the score, without `__label__`."""
    min_score: float | None = Field(None, ge=0, le=1)
    """Least score, to keep what is toxic; null drops nothing."""
    max_score: float | None = Field(None, ge=0, le=1)
    """Largest score; null drops nothing."""
    cut_score: float | None = Field(None, ge=0, le=1)
    """Cut sentences with this score and more (spaCy's sentencizer); null cuts none."""
    language: str = "en"
    """Language of the sentences."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Toxicity:
        if None not in (self.min_score, self.max_score) and self.min_score > self.max_score:  # type: ignore[operator]
            raise ValueError(f"min_score: {self.min_score} is above max_score {self.max_score}.")
        if self.cut_score is not None:
            check_language("spacy", self.language)
        return self

    def libraries(self) -> tuple[str, ...]:
        return () if self.cut_score is None else ("datatrove", "spacy")

    def apply(self, view: View) -> Outcome:
        model, predictions, scores = self.score(view.text)
        codes = np.zeros(view.num_docs, np.uint8)
        if self.min_score is not None:
            codes[scores < self.min_score] = 2
        if self.max_score is not None:
            codes[scores > self.max_score] = 1
        bound = self.cut_score
        text, spans = (None, None) if bound is None else self._cut(view, codes, bound)
        return Outcome(
            codes=codes,
            text=text,
            spans=spans,
            values=np.where(codes > 0, scores, np.nan),
            columns={"score": pa.array(scores), "label": best_labels(model, predictions)},
            measures=dict.fromkeys(self.rules[:2], scores) if self.measures else {},
        )

    def _cut(self, view: View, codes: Bytes, bound: float) -> tuple[Utf8, Spans]:
        """Return the texts without sentences that score `bound` and more, and what was cut."""
        offsets, data = view.text
        words = view.fact(splitter("spacy", self.language))
        docs, starts, ends = sentence_spans(offsets, data, *sentence_edges(offsets, data, words))
        # What lies between two sentences is whitespace, which `score` leaves out.
        edges = frozen(np.append(starts, ends[-1:] if len(ends) else offsets[:1]))
        is_cut = self.score(Utf8(edges, data))[2] >= bound
        rows, begins, stops, _ = cut_units(offsets, data, docs, starts, ends, is_cut)
        codes_of_spans = np.full(len(rows), 3, np.uint8)
        nothing = np.zeros(len(rows), np.uint8)
        cut_texts = replace_spans(offsets, data, rows, begins, stops, nothing, [b""])
        is_kept = codes[rows] == 0
        spans = Spans(rows[is_kept], begins[is_kept], stops[is_kept], codes_of_spans[is_kept])
        return Utf8(*cut_texts), spans
