"""Quality of documents, by a classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.stage import Example, Outcome, View
from corpuskit.stages.annotators._scoring import LabelText, ScoringStage, best_labels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.kernels.arrays import Bools, Float64s
    from corpuskit.stages.annotators._fasttext import Predictions, TextClassifier

Bounds = Annotated[dict[LabelText, Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)]

_TINY = {"model": "sample_data/quality.ftz", "label": "prose"}
_PROSE = "The old captain had repaired the lantern before the ferry left for the other side."
_MENU = "Home | Products | Contact | Login | Register | Privacy policy | Terms of use | Sitemap"


class Quality(ScoringStage):
    """Score documents with a classifier, and drop those that score low.

    Use it after the heuristic rules. The embedded model tells English prose from menus, notices,
    offers and lists, and knows nothing of what is well written or educational: docs/accuracy/
    quality.md has its figures. For that, train a model on texts like those you want more of
    (positive) and on your own crawl (negative): `corpuskit classifier train`. Without `min_score`,
    `keep_labels` and `remove_labels` the stage only annotates. `corpuskit classifier eval` finds a
    `min_score` for the share of documents or for the precision that you want.

    The score is the probability of `label`, even if another label is more likely, rounded to 4
    decimals before it is stored or compared; of a model of numbers (`--regression`) it is the
    number, as in `label: score, min_score: 3`. White space at both ends is ignored. Texts are
    normalised, and scores calibrated, as the model's file says.

    Source: datatrove 0.10.1's FastTextClassifierFilter on whole documents; given `newlines: drop`
    decisions are equal, and a text of white space alone is dropped. There a newline is deleted by
    default, which glues two words together; here it becomes a space, as models trained on one line
    per text expect. There a filter without lists raises TypeError; here it annotates. DCLM's filter
    (Li et al. 2024) is `min_score: 0.018112` on `hq`.
    """

    embedded: ClassVar[str] = "quality.model"
    rules: ClassVar[tuple[str, ...]] = ("empty", "score", "keep_labels", "remove_labels")
    bounds: ClassVar[Mapping[str, str]] = {"score": "min_score"}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_PROSE, None, _TINY),
        Example(_PROSE, None, {**_TINY, "min_score": 0.5}),
        Example(_MENU, "score", {**_TINY, "min_score": 0.5}),
        Example(_MENU, "keep_labels", {**_TINY, "keep_labels": {"prose": 0.5}}),
        Example(_MENU, "remove_labels", {**_TINY, "remove_labels": {"other": 0.5}}),
        Example(" \n ", "empty", {**_TINY, "min_score": 0}),
    )

    label: LabelText = Field("prose", min_length=1)
    """Label whose probability is the score, without `__label__`; `score` of a model of numbers."""
    min_score: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Least score; null drops nothing. Above 1 only for a model of numbers."""
    keep_labels: Bounds | None = None
    """Keep a document if one of these labels has at least this score, as in {math: 0.9}."""
    remove_labels: Bounds | None = None
    """Drop a document if one of these labels has at least this score."""

    def named_labels(self) -> list[tuple[str, str]]:
        lists = {"keep_labels": self.keep_labels, "remove_labels": self.remove_labels}
        list_labels = [(name, label) for name, bounds in lists.items() for label in bounds or ()]
        return [*super().named_labels(), *list_labels]

    def apply(self, view: View) -> Outcome:
        model, predictions, scores = self.score(view.text)
        fails = self._fails(model, predictions, scores)
        codes = np.zeros(view.num_docs, np.uint8)
        for code, rule in enumerate(self.rules, start=1):
            codes[fails[rule] & (codes == 0)] = code
        # 1 where a rule without one bound fails or, for `empty`, would fail in a filter.
        measured = {rule: failed.astype(np.float64) for rule, failed in fails.items()}
        measured |= {"empty": predictions.empty.astype(np.float64), "score": scores}
        return Outcome(
            codes=codes,
            values=np.where(codes == 2, scores, np.nan),
            columns={"score": pa.array(scores), "label": best_labels(model, predictions)},
            measures=measured if self.measures else {},
        )

    def fails(self, rule: str, values: Float64s) -> Bools:
        """Return which measured values break a rule; an empty text only breaks one of a filter."""
        if rule == "empty" and not self._filters():
            return np.zeros(len(values), np.bool_)
        return super().fails(rule, values)

    def _filters(self) -> bool:
        """Return whether any document can go."""
        bounds = (self.min_score, self.keep_labels, self.remove_labels)
        return any(bound is not None for bound in bounds)

    def _fails(
        self, model: TextClassifier, predictions: Predictions, scores: Float64s
    ) -> dict[str, Bools]:
        """Return for each rule which documents break it."""

        def reaches_any(bounds: Mapping[str, float]) -> Bools:
            """Return which documents have one of the labels with at least its score."""
            reaches = [model.scores_of(predictions, label) >= low for label, low in bounds.items()]
            return np.logical_or.reduce(reaches)  # type: ignore[no-any-return]

        none = np.zeros(len(scores), np.bool_)
        return {
            "empty": predictions.empty if self._filters() else none,
            "score": none if self.min_score is None else scores < self.min_score,
            "keep_labels": ~reaches_any(self.keep_labels) if self.keep_labels else none,
            "remove_labels": reaches_any(self.remove_labels) if self.remove_labels else none,
        }
