"""How surprising a text is to a model of words."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.errors import UsageError
from corpuskit.kernels.arrays import Float64s, Int64s
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Example, Known, Outcome, StreamingStage, View, Volume
from corpuskit.stages.annotators._unigrams import open_unigrams
from corpuskit.text.words import WordSplit, check_language, splitter

_KENLM = (".arpa", ".bin", ".binary", ".klm", ".arpa.gz", ".arpa.bz2")

_TINY = {"model": "sample_data/words.csv"}
_PROSE = "The old captain had repaired the lantern before the ferry left for the other side."
_NOISE = "xqzt vvrk 0x7f3a jjwq pplm zzkd qwrt"


class Perplexity(StreamingStage):
    """Measure how surprising texts are to a model of words; by default nothing is dropped.

    Use it with a table of word frequencies from texts like those you want: `corpuskit unigrams
    FILES --output words.csv`, or any file of lines `word,count`. The perplexity is 2 to the power
    of minus the mean log2 probability of a text's words, in lower case. A word that the table lacks
    has the square root of the number of its words, and 1, as its count. Text read badly from
    images, lists of codes and other languages score high, boilerplate of common words low: look at
    what scores how before you set a bound. Documents without a word have no value, and stay.

    A KenLM file (`.arpa`, `.bin`, `.binary`, `.klm`; needs `pip install kenlm`) scores texts line
    by line, with the beginning and end of a sentence; the perplexity is 10 to the power of minus
    the mean log10 probability, ends included, as in CCNet. Give the SentencePiece model that its
    training text was split by, if there was one.

    Source: Common Pile (Kandpal et al. 2025, perplexity_tagger.py): a unigram model; its cut at a
    mean of -20 is `max_perplexity: 1048576`. It splits words with BlingFire, here `words` decides.
    CCNet (Wenzek et al. 2020) for KenLM; its normalization of texts is not done here.
    """

    rules: ClassVar[tuple[str, ...]] = ("high_perplexity", "low_perplexity")
    bounds: ClassVar[Mapping[str, str]] = {
        "high_perplexity": "max_perplexity",
        "low_perplexity": "min_perplexity",
    }
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_NOISE, None, _TINY),
        Example(_PROSE, None, {**_TINY, "max_perplexity": 600}),
        Example(_NOISE, "high_perplexity", {**_TINY, "max_perplexity": 600}),
        Example("the the the the", "low_perplexity", {**_TINY, "min_perplexity": 50}),
        Example(" \n ", None, {**_TINY, "min_perplexity": 50}),
    )

    model: PathText = Field(min_length=1)
    """Path of a table of lines `word,count`, or of a KenLM file."""
    max_perplexity: float | None = Field(None, gt=0)
    """Largest perplexity; null drops nothing."""
    min_perplexity: float | None = Field(None, gt=0)
    """Least perplexity; null drops nothing."""
    words: WordSplit = "spacy"
    """How texts are split for a table."""
    language: str = "en"
    """Language of the words, for `words: spacy`."""
    sentencepiece: PathText | None = None
    """Path of the SentencePiece model whose pieces are the words of a KenLM file; null: words are
    split at whitespace."""
    lower: bool = False
    """Score texts in lower case by a KenLM file."""
    measures: bool = False
    """Also store what every rule measured, so that bounds can be tuned without another run."""

    @model_validator(mode="after")
    def _check_model(self) -> Perplexity:
        if not self._is_kenlm() and (self.sentencepiece or self.lower):
            raise ValueError("sentencepiece, lower: are for KenLM files. Leave them out.")
        return self

    def _is_kenlm(self) -> bool:
        return PurePath(self.model).name.lower().endswith(_KENLM)

    def check(self, known: Known) -> None:
        del known
        if self._is_kenlm():
            _open_kenlm(self.model, self.sentencepiece)
        else:
            check_language(self.words, self.language)
            open_unigrams(self.model)

    def files(self) -> tuple[str, ...]:
        return (self.model, *([self.sentencepiece] if self.sentencepiece else []))

    def libraries(self) -> tuple[str, ...]:
        if self._is_kenlm():
            return ("kenlm", "sentencepiece") if self.sentencepiece else ("kenlm",)
        return {"spacy": ("datatrove", "spacy"), "unicode": ("regex",)}.get(self.words, ())

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"value": pa.float64(), "words": pa.int64()}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        speed = 2e6 if self._is_kenlm() else 60e6
        return Cost(volume.text_bytes / speed, disk_bytes=10 * volume.documents)

    def apply(self, view: View) -> Outcome:
        values, counts = self._values(view)
        codes = np.zeros(view.num_docs, np.uint8)
        for code, rule in ((2, "low_perplexity"), (1, "high_perplexity")):
            if getattr(self, self.bounds[rule]) is not None:
                codes[self.fails(rule, values)] = code
        return Outcome(
            codes=codes,
            values=np.where(codes > 0, values, np.nan),
            columns={"value": pa.array(values, mask=np.isnan(values)), "words": pa.array(counts)},
            measures=dict.fromkeys(self.rules, values) if self.measures else {},
        )

    def _values(self, view: View) -> tuple[Float64s, Int64s]:
        """Return the perplexity of each document, NaN without a word, and how many words it has."""
        if self._is_kenlm():
            logs, counts = self._kenlm_sums(view)
            base = 10.0
        else:
            words = view.fact(splitter(self.words, self.language))
            logs, counts = open_unigrams(self.model).sums(words), np.diff(words.offsets)
            base = 2.0
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(counts > 0, base ** (-logs / np.maximum(counts, 1)), np.nan), counts

    def _kenlm_sums(self, view: View) -> tuple[Float64s, Int64s]:
        """Return the sum of the log10 probabilities of each document, and of how many words."""
        model, pieces = _open_kenlm(self.model, self.sentencepiece)
        logs, counts = np.zeros(view.num_docs), np.zeros(view.num_docs, np.int64)
        for row in range(view.num_docs):
            text = view.text.row(row).decode()
            for line in (text.lower() if self.lower else text).split("\n"):
                words = pieces.encode(line, out_type=str) if pieces else line.split()
                if words:
                    logs[row] += model.score(" ".join(words))
                    counts[row] += len(words) + 1
        return logs, counts


@functools.cache
def _open_kenlm(path: str, pieces: str | None) -> tuple[Any, Any]:
    """Return a KenLM model, and a SentencePiece model or None.

    Raises:
        UsageError: a library is not installed, or a file is missing or of another kind.
    """
    try:
        import kenlm
    except ImportError:
        raise UsageError("model: kenlm is not installed. Run: pip install kenlm") from None
    try:
        model = kenlm.Model(path)
    except OSError as error:
        raise UsageError(f"model: {path}: is no KenLM file: {error}".rstrip(".") + ".") from None
    if pieces is None:
        return model, None
    try:
        import sentencepiece
    except ImportError:
        raise UsageError(
            "sentencepiece: it is not installed. Run: pip install sentencepiece"
        ) from None
    try:
        return model, sentencepiece.SentencePieceProcessor(model_file=pieces)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"sentencepiece: {pieces}: is no model: {error}.") from None
