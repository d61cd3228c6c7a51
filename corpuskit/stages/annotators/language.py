"""Language of documents, by a fastText model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.errors import suggest
from corpuskit.stage import Cost, Example, Outcome, StreamingStage
from corpuskit.stages.annotators._fasttext import DECIMALS, PREFIX, open_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from corpuskit.stage import View, Volume
    from corpuskit.stages.annotators._fasttext import Model

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parents[2] / "models" / "langid.ftz"
UNDETERMINED = "und"
"""Label of a text in which the model knows no feature at all; its score is 0."""

# The labels of the embedded model, here so that a wrong code is found before anything runs.
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
    label, the model's best, and a score between 0 and 1. The embedded model (1 MB, trained on
    openly licensed text; docs/langid.md has its accuracy and weaknesses) and lid.176 use the same
    codes: ISO 639-1 where it has the language, else those of Wikipedia. Newlines count as spaces.

    Source: as in FineWeb (Penedo et al. 2024, section 3.2: fastText, 0.65), datatrove 0.10.1's
    LanguageFilter with lid.176. There a score must be greater than the threshold, here it may be
    equal, and it is rounded to 4 decimals first; and there any listed language above the threshold
    keeps a document, here it must be the best one, which differs for thresholds below 0.5 only.
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
    model: str = Field(EMBEDDED, min_length=1)
    """`embedded`, or the path of a fastText model (.bin or .ftz) such as lid.176."""
    max_bytes: int | None = Field(None, ge=16)
    """Look only at this many bytes from the beginning, for speed; null looks at the whole text."""
    top_k: int = Field(1, ge=1, le=10)
    """Above 1, also store lists of this many labels and scores, best first."""

    @model_validator(mode="after")
    def _check_keep(self) -> Language:
        unknown = set(self.keep or ()) - LANGUAGES if self.model == EMBEDDED else ()
        for code in sorted(unknown):
            raise ValueError(
                f"keep: the embedded model has no {code!r}. {suggest(code, LANGUAGES)}"
            )
        return self

    def files(self) -> tuple[str, ...]:
        return (str(self._path),)

    def libraries(self) -> tuple[str, ...]:
        return ("fasttext",)

    def adds(self) -> Mapping[str, pa.DataType]:
        best = {"label": pa.string(), "score": pa.float64()}
        if self.top_k == 1:
            return best
        return best | {"labels": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        seen = volume.text_bytes
        if self.max_bytes is not None:
            seen = min(seen, volume.documents * self.max_bytes)
        model = self._path.stat().st_size if self._path.exists() else 0
        columns = volume.documents * 8 * self.top_k
        return Cost(cpu_seconds=seen / 15e6, resident_bytes=2 * model, disk_bytes=columns)

    def apply(self, view: View) -> Outcome:
        model = open_model(self._path)
        found = model.predict(view.text, self.top_k, max_bytes=self.max_bytes)
        best, scores = found.ranks[:, 0], np.ascontiguousarray(found.scores[:, 0])
        codes = np.zeros(view.num_docs, np.uint8)
        codes[scores < self.min_score] = 2
        if self.keep is not None:
            wanted = [model.rank_of(code) for code in self.keep]
            codes[~np.isin(best, wanted)] = 1
        columns = {"label": _names(model, best), "score": pa.array(scores)}
        if self.top_k > 1:
            columns |= _lists(model, found.ranks, found.scores)
        return Outcome(codes=codes, values=np.where(codes == 2, scores, np.nan), columns=columns)

    @property
    def _path(self) -> Path:
        return EMBEDDED_PATH if self.model == EMBEDDED else Path(self.model)

    def oracle(self) -> Callable[[str], tuple[str | None, str]]:
        import fasttext

        model = fasttext.load_model(str(self._path))

        def decide(text: str) -> tuple[str | None, str]:
            seen = text.encode()[: self.max_bytes].decode("utf-8", "ignore")
            labels, scores = model.predict([seen.replace("\n", " ")], k=1)
            label = labels[0][0].removeprefix(PREFIX) if labels[0] else UNDETERMINED
            score = round(float(scores[0][0]), DECIMALS) if labels[0] else 0.0
            if self.keep is not None and label not in self.keep:
                return "language", text
            return ("score" if score < self.min_score else None), text

        return decide


def _names(model: Model, ranks: NDArray[np.int32]) -> pa.Array:
    """Return the labels at `ranks`; rank -1 is `und`."""
    return pa.array([*model.labels, UNDETERMINED]).take(pa.array(ranks % (len(model.labels) + 1)))


def _lists(
    model: Model, ranks: NDArray[np.int32], scores: NDArray[np.float64]
) -> dict[str, pa.Array]:
    """Return the columns of the k best; a model with fewer labels gives shorter lists."""
    present = ranks >= 0
    offsets = pa.array(np.concatenate(([0], np.cumsum(present.sum(axis=1)))).astype(np.int32))
    return {
        "labels": pa.ListArray.from_arrays(offsets, _names(model, ranks[present])),
        "scores": pa.ListArray.from_arrays(offsets, pa.array(scores[present])),
    }
