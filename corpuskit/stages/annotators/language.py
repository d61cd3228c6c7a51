"""Language of documents, by a fastText model."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.errors import DataError, UsageError, listing
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Example, Outcome, StreamingStage
from corpuskit.stages.annotators import _fasttextfile
from corpuskit.stages.annotators._fasttext import open_model
from corpuskit.stages.annotators._fasttextfile import PREFIX, resident_bytes
from corpuskit.stages.annotators._languagemodel import near_files
from corpuskit.stages.filters._languages import content_of, file_of, files_in, is_pattern
from corpuskit.text.languages import hint, labels_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from corpuskit.stage import Known, View, Volume
    from corpuskit.stages.annotators._fasttext import Predictions, TextClassifier

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parents[2] / "models" / "langid.ftz"
UNDETERMINED = "und"
"""Label of a text whose language is not clear; of one in which the model knows nothing the score
is 0."""
UND_BELOW = 0.5
"""Least score of a label of the embedded model: below it, another language is as likely."""

# The labels of the embedded model, here so that plans are checked without opening it.
LANGUAGES = frozenset(
    """af als am ar arz ast az azb bcl be bg bh bn bo br bs ca cbk ceb co cs cv cy da de dsb dv el
    en eo es et eu fa fi fo fr fy ga gd gl gn gu gv ha he hi hr hsb ht hu hy ia id ig ilo io is
    it ja jv ka kk km kn ko ku kw ky la lb lg ln lo lt lv mai mg mhr mi min mk ml mn mr ms mt
    mwl my nah nds ne nl nn no ny oc om os pa pam pl pms pnb ps pt qu rm rn ro ru rw sa sah sc
    se si sk sl sm sn so sq sr st su sv sw ta te tg th ti tk tl tn to tr ts tt tyv ug uk ur uz
    vec vep vi wa war wo xh yi yo yue zh zu""".split()
)

_ENGLISH = "The committee will meet again in the spring, when the results of the survey are known."
_FRENCH = "Le conseil se reunira de nouveau au printemps, quand les resultats seront connus."


class Language(StreamingStage):
    """Name the language of each document, drop other languages and uncertain ones.

    Use it first on web text: the rules that follow are made for one language. A document has one
    label, the model's best, and a score between 0 and 1. Scores of the embedded model (trained on
    openly licensed text; docs/langid.md has its accuracy and weaknesses) are calibrated: of texts
    with a score of 0.8, short or long, about 80 % have that label; and it is no more than the share
    of the text that is not clearly in another language, so a text that is half English and half
    German is dropped by the default. Scores of other models are not calibrated, and mostly too high
    for short texts. The embedded model and lid.176 use the same labels: ISO 639-1 where it has the
    language, else those of Wikipedia. GlotLID's and OpenLID's are like `hun_Latn`. Parameters may
    name a language by any of its codes (docs/languages.md). Newlines count as spaces.

    `accept: datatrove` decides as datatrove does: any listed language whose score is above (not at)
    its minimum keeps a document, even if it is not the best. With minima of 0.5 and more, the two
    differ only where score and minimum are equal.

    Source: as in FineWeb (Penedo et al. 2024, section 3.2: fastText, 0.65) and FineWeb2 (minimum
    per language); with `accept: datatrove` equals datatrove 0.10.1's LanguageFilter given the same
    model and scores rounded to 4 decimals. It raises ValueError where the model knows nothing in a
    text; here that text is `und` with score 0.
    """

    rules: ClassVar[tuple[str, ...]] = ("language", "score")
    bounds: ClassVar[Mapping[str, str]] = {"score": "min_score"}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_ENGLISH),
        Example(_ENGLISH, None, {"keep": ("en", "de")}),
        Example(_FRENCH, "language", {"keep": ("en",)}),
        Example("", "score"),
    )

    keep: tuple[str, ...] | None = Field(None, min_length=1)
    """Codes of the languages to keep, as in [en, de]; null keeps all."""
    min_score: float = Field(0.65, ge=0, le=1)
    """Least score of the language; 0 keeps all."""
    min_scores: dict[str, Annotated[float, Field(ge=0, le=1)]] | PathText | None = None
    """Least scores by language, as in {de: 0.821}, a JSON file of them, or a folder of FineWeb2's
    files (or a pattern such as configs/{language}.yml), for `language_score`; others: min_score."""
    accept: Literal["best", "datatrove"] = "best"
    """What keeps a document: its best language, or any listed one that scores above its minimum."""
    model: PathText = Field(EMBEDDED, min_length=1)
    """`embedded`, or the path of a fastText model (.bin or .ftz) such as lid.176."""
    max_bytes: int | None = Field(None, ge=16)
    """Look only at this many bytes from the beginning, for speed; null looks at the whole text, of
    which the embedded model reads 16 KB in 64 pieces if it is longer."""
    und_below: float | None = Field(None, ge=0, le=1)
    """Documents that score less are labelled `und`, whether they stay or not; `score` stays that of
    the best guess. Null is 0.5 for the embedded model, and 0 for others, which are not calibrated.
    """
    top_k: int = Field(1, ge=1, le=10)
    """Above 1, also store lists of this many labels and scores, best first."""
    measures: bool = False
    """Also store what every rule measured, so that bounds can be tuned without another run."""

    @model_validator(mode="after")
    def _check_measures(self) -> Language:
        if self.measures and (self.min_scores is not None or self.accept == "datatrove"):
            raise ValueError(
                "measures: bounds can be tuned where one minimum decides. "
                "Leave out min_scores and accept: datatrove."
            )
        return self

    def threshold(self, rule: str) -> float:
        """Return the bound of a rule, NaN if it depends on the language."""
        return float("nan") if self.min_scores is not None else super().threshold(rule)

    def check(self, known: Known) -> None:
        del known
        labels, given = self._labels(), self.min_scores
        if isinstance(given, str) and is_pattern(given) and not self._score_files(labels):
            files = listing(files_in(given, "min_scores"))
            raise UsageError(f"min_scores: {given} has no file for what is kept. It has {files}.")
        self._kept_labels(labels)
        self._bounds(labels)

    def _labels(self) -> frozenset[str]:
        if self.model == EMBEDDED:
            return LANGUAGES
        return frozenset(name.removeprefix(PREFIX) for name in _fasttextfile.labels_of(self._path))

    def _kept_labels(self, labels: Collection[str]) -> list[str]:
        """Return the labels that the codes in `keep` mean."""
        return sorted({label for c in self.keep or () for label in self._meant("keep", c, labels)})

    def _meant(self, parameter: str, code: str, labels: Collection[str]) -> tuple[str, ...]:
        """Return the labels of the model that a code means.

        Raises:
            UsageError: there is none.
        """
        if not (matches := labels_of(code, labels)):
            model = "embedded model" if self.model == EMBEDDED else f"model {self.model}"
            raise UsageError(f"{parameter}: the {model} has no {code!r}. {hint(code, labels)}")
        return matches

    def values(self) -> Mapping[str, frozenset[str]]:
        """Return the labels of documents that stay.

        With `accept: datatrove` and a minimum below 0.5 a document may stay for a label that is not
        its best; and as `und` if a minimum is less than what a label takes.
        """
        labels = self._labels()
        lowest = min([self.min_score, *self._bounds(labels).values()])
        is_best = self.accept == "best" or lowest >= 0.5
        kept = frozenset(self._kept_labels(labels)) if self.keep and is_best else labels
        keeps_empty = lowest <= 0 and not (self.keep and is_best)
        may_be_und = keeps_empty or lowest < self._und
        return {"label": kept | ({UNDETERMINED} if may_be_und else frozenset())}

    def files(self) -> tuple[str, ...]:
        given = [self.min_scores] if isinstance(self.min_scores, str) else []
        if given and is_pattern(given[0]):
            given = sorted(set(map(str, self._score_files(self._labels()).values())))
        return (str(self._path), *map(str, near_files(self._path)), *given)

    def adds(self) -> Mapping[str, pa.DataType]:
        best = {"label": pa.string(), "score": pa.float64()}
        if self.top_k == 1:
            return best
        return best | {"labels": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        scored_bytes = volume.text_bytes
        if self.max_bytes is not None:
            scored_bytes = min(scored_bytes, volume.documents * self.max_bytes)
        columns = volume.documents * 8 * self.top_k
        resident = sum(map(resident_bytes, (self._path, *near_files(self._path))))
        return Cost(cpu_seconds=scored_bytes / 50e6, resident_bytes=resident, disk_bytes=columns)

    def apply(self, view: View) -> Outcome:
        model = open_model(self._path)
        min_scores = self._min_scores(model)
        others = self.accept == "datatrove" and self.keep is not None
        num = max(len(model.labels) if others else 1, self.top_k)
        predictions = model.predict(view.text, num, max_bytes=self.max_bytes)
        best, scores = predictions.ranks[:, 0], np.ascontiguousarray(predictions.scores[:, 0])
        listed = np.ones(view.num_docs, np.bool_)
        if self.keep is not None:
            listed = np.isin(best, list(map(model.rank_of, self._kept_labels(model.labels))))
        kept = self._kept(model, predictions, min_scores)
        codes = np.where(kept, 0, np.where(listed, 2, 1)).astype(np.uint8)
        shown = np.where(scores < self._und, -1, best).astype(np.int32)
        columns = {"label": _names(model, shown), "score": pa.array(scores)}
        if self.top_k > 1:
            columns |= _lists(
                model, predictions.ranks[:, : self.top_k], predictions.scores[:, : self.top_k]
            )
        measures = {"language": (~listed).astype(np.float64), "score": scores}
        return Outcome(
            codes=codes,
            values=np.where(codes == 2, scores, np.nan),
            columns=columns,
            measures=measures if self.measures else {},
        )

    def _kept(
        self, model: TextClassifier, predictions: Predictions, min_scores: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return which documents stay."""
        strict = self.accept == "datatrove"
        ranks = predictions.ranks if strict and self.keep is not None else predictions.ranks[:, :1]
        scores = predictions.scores[:, : ranks.shape[1]]
        passes = scores > min_scores[ranks] if strict else scores >= min_scores[ranks]
        if self.keep is not None:
            passes &= np.isin(ranks, list(map(model.rank_of, self._kept_labels(model.labels))))
        return np.asarray(passes.any(axis=1), np.bool_)

    def _min_scores(self, model: TextClassifier) -> NDArray[np.float64]:
        """Return the least score of each label of the model, that of `und` last."""
        min_scores = np.full(len(model.labels) + 1, self.min_score)
        for label, bound in self._bounds(model.labels).items():
            min_scores[model.rank_of(label)] = bound
        return min_scores

    def _bounds(self, labels: Collection[str]) -> Mapping[str, float]:
        """Return label -> least score, of those that have one of their own."""
        if files := self._score_files(labels):
            scores = {
                label: content_of(path).get("language_score") for label, path in files.items()
            }
            return {k: _checked(v, str(files[k])) for k, v in scores.items() if v is not None}
        codes, bounds = self._given_bounds(), dict[str, float]()
        for code, bound in codes.items():
            meant = self._meant("min_scores", code, labels)
            for label in meant:
                if len(meant) > 1 and label in codes:
                    continue  # the bound of the label itself wins over that of a code for several
                if label in bounds:
                    problem = f"min_scores: {code!r} and another code are both the label {label!r}."
                    raise UsageError(f"{problem} Remove one.")
                bounds[label] = bound
        return bounds

    def _score_files(self, labels: Collection[str]) -> Mapping[str, Path]:
        """Return label -> file that gives its least score, of labels that may be kept."""
        given = self.min_scores
        if not isinstance(given, str) or not is_pattern(given):
            return {}
        if self.keep and self.accept == "best":
            labels = self._kept_labels(labels)
        return {label: path for label in labels if (path := file_of(given, label)) is not None}

    def _given_bounds(self) -> Mapping[str, float]:
        """Return code -> least score, as the user wrote them."""
        given = self.min_scores
        if not isinstance(given, str):
            return given or {}
        if is_pattern(given):
            return {}
        try:
            stat = Path(given).stat()
        except FileNotFoundError:
            raise UsageError(
                f"min_scores: {given}: there is no such file. Check the path."
            ) from None
        return _read_bounds(given, stat.st_mtime_ns, stat.st_size)

    @property
    def _und(self) -> float:
        """Score that a label takes."""
        if self.und_below is None:
            return UND_BELOW if self.model == EMBEDDED else 0.0
        return self.und_below

    @property
    def _path(self) -> Path:
        return EMBEDDED_PATH if self.model == EMBEDDED else Path(self.model)


@functools.lru_cache(maxsize=8)
def _read_bounds(path: str, modified: int, size_bytes: int) -> Mapping[str, float]:
    """Read least scores by language; the last two arguments tell versions of the file apart.

    Raises:
        UsageError: it cannot be read.
        DataError: it does not hold a JSON object of numbers between 0 and 1.
    """
    try:
        bounds = json.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"min_scores: {path}: cannot be read: {reason}. Check the path.") from None
    except (ValueError, RecursionError) as error:
        problem = f"{path}: is not JSON: {error}."
        raise DataError(f'min_scores: {problem} Write {{"de": 0.821}}.') from None
    for value in bounds.values() if isinstance(bounds, dict) else [None]:
        _checked(value, path)
    return bounds  # type: ignore[no-any-return]


def _checked(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise DataError(
            f"min_scores: {path}: must map languages to scores from 0 to 1, has {value!r}. "
            'Write {"de": 0.821}.'
        )
    return value


def _names(model: TextClassifier, ranks: NDArray[np.int32]) -> pa.Array:
    """Return the labels at `ranks`; rank -1 is `und`."""
    return pa.array([*model.labels, UNDETERMINED]).take(pa.array(ranks % (len(model.labels) + 1)))


def _lists(
    model: TextClassifier, ranks: NDArray[np.int32], scores: NDArray[np.float64]
) -> dict[str, pa.Array]:
    """Return the columns of the k best; a model with fewer labels gives shorter lists."""
    present = ranks >= 0
    offsets = pa.array(np.concatenate(([0], np.cumsum(present.sum(axis=1)))).astype(np.int32))
    return {
        "labels": pa.ListArray.from_arrays(offsets, _names(model, ranks[present])),
        "scores": pa.ListArray.from_arrays(offsets, pa.array(scores[present])),
    }
