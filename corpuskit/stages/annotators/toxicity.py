"""Toxicity of documents, by a fastText classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.stage import Example, Outcome
from corpuskit.stages.annotators._scoring import ScoringStage, best_labels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.stage import View

_TINY = {"model": "sample_data/toxicity.ftz"}
_KIND = "Thank you for the careful review, I have changed the second paragraph as you asked."
_RUDE = "Shut up, you stupid idiot, nobody wants to read your pathetic garbage."


class Toxicity(ScoringStage):
    """Score documents with a fastText toxicity classifier; by default nothing is dropped.

    Use it to store a score per document, look at what scores high, and only then set `max_score`
    (drop above) or `min_score` (drop below, to collect examples). No model comes with corpuskit:
    train one with `corpuskit classifier train` on labelled texts of the kind that you will score.
    Such a model knows words, not meaning. Trained on tweets it is little better than chance on
    other texts, and sentences that name a group of people score higher than they should:
    docs/accuracy/toxicity.md has the figures. Word lists are `bad_words`.

    The score is the probability of `label`, rounded to 4 decimals before it is stored or compared.
    White space at both ends is ignored.

    Source: as Dolma's toxicity taggers (Soldaini et al. 2024: fastText trained on Jigsaw's
    comments, sentence by sentence); here whole documents, scores equal to official fastText's.
    """

    rules: ClassVar[tuple[str, ...]] = ("toxic", "not_toxic")
    bounds: ClassVar[Mapping[str, str]] = {"toxic": "max_score", "not_toxic": "min_score"}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_RUDE, None, _TINY),
        Example(_KIND, None, {**_TINY, "max_score": 0.5}),
        Example(_RUDE, "toxic", {**_TINY, "max_score": 0.5}),
        Example(_KIND, "not_toxic", {**_TINY, "min_score": 0.5}),
    )

    label: str = Field("toxic", min_length=1)
    """Label whose probability is the score, without `__label__`."""
    min_score: float | None = Field(None, ge=0, le=1)
    """Least score, to keep what is toxic; null drops nothing."""
    max_score: float | None = Field(None, ge=0, le=1)
    """Largest score; null drops nothing."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Toxicity:
        if None not in (self.min_score, self.max_score) and self.min_score > self.max_score:  # type: ignore[operator]
            raise ValueError(f"min_score: {self.min_score} is above max_score {self.max_score}.")
        return self

    def apply(self, view: View) -> Outcome:
        model, predictions, scores = self.score(view)
        codes = np.zeros(view.num_docs, np.uint8)
        if self.min_score is not None:
            codes[scores < self.min_score] = 2
        if self.max_score is not None:
            codes[scores > self.max_score] = 1
        return Outcome(
            codes=codes,
            values=np.where(codes > 0, scores, np.nan),
            columns={"score": pa.array(scores), "label": best_labels(model, predictions)},
            measures=dict.fromkeys(self.rules, scores) if self.measures else {},
        )
