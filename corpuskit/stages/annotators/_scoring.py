"""What `quality` and `toxicity` share: a classifier whose score becomes a column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field

from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import Float64s
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Known, StreamingStage, Volume
from corpuskit.stages.annotators._fasttext import Predictions, TextClassifier, open_model
from corpuskit.stages.annotators._fasttextfile import PREFIX, bounds_of, labels_of, resident_bytes

LabelText = Annotated[
    str, BeforeValidator(lambda label: str(label) if type(label) is int else label)
]
"""Labels are text; a label 1 need not be quoted."""

EMBEDDED = "embedded"

BYTES_PER_SECOND = 50e6
"""Text that one core scores by a model that fits its cache."""


class ScoringStage(StreamingStage):
    """A stage that scores documents by one label of a classifier."""

    embedded: ClassVar[str]
    """File of the model that comes with corpuskit, in corpuskit/models."""

    model: PathText = Field(EMBEDDED, min_length=1)
    """`embedded` (English), or the path of a classifier that `corpuskit classifier train` wrote, or
    of fastText (.bin, .ftz)."""
    label: LabelText = Field(min_length=1)
    """Label whose probability is the score, without `__label__`; `score` of a model of numbers."""
    max_bytes: int | None = Field(None, ge=16)
    """Look only at this many bytes from the beginning, for speed; null looks at the whole text."""
    newlines: Literal["space", "drop"] = "space"
    """What replaces a newline; `drop` glues two words together, as datatrove's filter does."""
    measures: bool = False
    """Also store what every rule measured, so that bounds can be tuned without another run."""

    @property
    def _path(self) -> str:
        if self.model != EMBEDDED:
            return self.model
        return str(Path(__file__).parents[2] / "models" / self.embedded)

    def check(self, known: Known) -> None:
        del known
        labels = [name.removeprefix(PREFIX) for name in labels_of(self._path)]
        for parameter, label in self.named_labels():
            if label not in labels:
                hint = suggest(label, labels)
                raise UsageError(f"{parameter}: the model {self.model} has no {label!r}. {hint}")
        low, high = bounds_of(self._path)
        for rule, parameter in self.bounds.items():
            bound = self.threshold(rule)
            if bound > high:
                raise UsageError(
                    f"{parameter}: {bound:g} is above {high:g}, the largest score of the model "
                    f"{self.model}. Give {low:g} to {high:g}."
                )

    def named_labels(self) -> list[tuple[str, str]]:
        """Return the labels that parameters name, each with the parameter."""
        return [("label", self.label)]

    def values(self) -> Mapping[str, frozenset[str]]:
        return {"label": frozenset(name.removeprefix(PREFIX) for name in labels_of(self._path))}

    def files(self) -> tuple[str, ...]:
        return (self._path,)

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"score": pa.float64(), "label": pa.string()}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        scored_bytes = volume.text_bytes
        if self.max_bytes is not None:
            scored_bytes = min(scored_bytes, volume.documents * self.max_bytes)
        return Cost(
            cpu_seconds=scored_bytes / BYTES_PER_SECOND,
            resident_bytes=resident_bytes(self._path),
            disk_bytes=volume.documents * 10,
        )

    def score(self, text: Utf8) -> tuple[TextClassifier, Predictions, Float64s]:
        """Return the model, its predictions of all labels, and the score of each text.

        Raises:
            UsageError: the model is missing or does not have the label.
            DataError: the model is not a whole one.
        """
        model = open_model(self._path)
        predictions = model.predict(
            text,
            len(model.labels),
            max_bytes=self.max_bytes,
            drop_newlines=self.newlines == "drop",
            strip=True,
        )
        return model, predictions, model.scores_of(predictions, self.label)


def best_labels(model: TextClassifier, predictions: Predictions) -> pa.Array:
    """Return the best label of each document; null where the model knows no word of it."""
    ranks = predictions.ranks[:, 0]
    return pa.array(model.labels, pa.string()).take(pa.array(ranks, mask=ranks < 0))
