"""Classifiers in memory: prediction over Arrow buffers; fastText's training by the library.

Kernels predict, with the library's own scores. It reads one line per text and splits it at white
space of ASCII; here newlines are spaces. Two quirks of the library stay: a word `</s>` ends the
text, and words that start with `__label__` are skipped.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import functools
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.kernels.arrays import frozen
from corpuskit.kernels.fasttext import SOFTMAX, best_labels, cut_texts, make_scratch, mean_rows
from corpuskit.kernels.textfeatures import MOST_WORDS, normalize
from corpuskit.stages.annotators._card import ModelCard, append_card, parse_normalization
from corpuskit.stages.annotators._fasttextfile import ENTRY_TAIL, PREFIX, read_model
from corpuskit.stages.annotators._labelled import buffers
from corpuskit.stages.annotators._languagemodel import LanguageModel
from corpuskit.stages.annotators._linear import MOST_RUN, count_texts, is_linear, read_linear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from corpuskit.formats.batch import Utf8

    Offsets = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Logits = tuple[NDArray[np.float64], NDArray[np.bool_]]


AT_ONCE = 1024
"""Texts that are predicted at a time: bounds the rows of numbers in memory."""

DECIMALS = 4
"""Scores are rounded before they are stored or compared: builds of the library differ in the last
bits."""

LOSSES = ("softmax", "hs", "ns", "ova")
"""Softmax, hierarchical softmax, negative sampling, one against all."""

FAMILIES = ("fasttext", "linear")

M_PERTURB = -6


@dataclass(frozen=True)
class Predictions:
    """The best labels of N texts, best first.

    Attributes:
        ranks: (N, k) int32 into the model's labels; -1 where there are fewer than k.
        scores: (N, k) float64, rounded to 4 decimals; 0 where there are fewer than k.
        empty: (N,) bool, whether a text has no bytes to predict from.
    """

    ranks: NDArray[np.int32]
    scores: NDArray[np.float64]
    empty: NDArray[np.bool_]


class TextClassifier(abc.ABC):
    """A classifier in memory; `open_model` gives one per file and process.

    Attributes:
        path: its file.
        labels: without a prefix.
        card: how it normalises texts, and its calibration.
        bounds: least and largest number that it predicts; None if it predicts labels.
    """

    bounds: tuple[float, float] | None = None

    def __init__(self, path: str | Path, labels: tuple[str, ...], card: ModelCard) -> None:
        self.path, self.labels, self.card = str(path), labels, card
        self._index = {name: rank for rank, name in enumerate(labels)}
        self._lock = threading.Lock()

    def predict(
        self,
        texts: Utf8,
        k: int = 1,
        *,
        max_bytes: int | None = None,
        drop_newlines: bool = False,
        strip: bool = False,
    ) -> Predictions:
        """Return the k best labels of each text.

        Args:
            texts: buffers of N texts.
            k: labels per text, at least 1.
            max_bytes: look at no more than this many bytes, cut back to a whole character.
            drop_newlines: leave newlines out, as datatrove's classifier filter does, which glues
                words together; else they are spaces.
            strip: take white space of Unicode off both ends first, as that filter does; fastText
                knows that of ASCII only, the rest becomes part of a word.

        Raises:
            DataError: the model has weights that are no numbers.
        """
        limit = -1 if max_bytes is None else max_bytes
        begins, ends = cut_texts(texts.offsets, texts.data, limit, strip)
        data = texts.data
        if drop_newlines:
            begins, ends, data = _without_newlines(begins, ends, data)
        ranks = np.full((len(texts), k), -1, np.int32)
        scores = np.zeros((len(texts), k), np.float64)
        with self._lock:
            for first in range(0, len(texts), AT_ONCE):
                rows = slice(first, first + AT_ONCE)
                normalized = normalize(begins[rows], ends[rows], data, self.card.modes)
                self._predict(*normalized, ranks[rows], scores[rows])
        return Predictions(ranks, np.round(scores, DECIMALS), begins == ends)

    def _predict(
        self,
        begins: Offsets,
        ends: Offsets,
        data: Bytes,
        ranks: NDArray[np.int32],
        scores: NDArray[np.float64],
    ) -> None:
        """Fill ranks and scores from calibrated logits; labels of equal scores are in order."""
        logits, has_known = self._logits(begins, ends, data)
        if self.bounds is not None:
            shares = np.clip(logits, *self.bounds)
        else:
            shares = self.card.probabilities(logits)
        num = min(ranks.shape[1], len(self.labels))
        order = np.argsort(-np.round(shares, DECIMALS), axis=1, kind="stable")[has_known, :num]
        ranks[has_known, :num] = order
        scores[has_known, :num] = np.take_along_axis(shares[has_known], order, axis=1)

    @abc.abstractmethod
    def _logits(self, begins: Offsets, ends: Offsets, data: Bytes) -> Logits:
        """Return (N, L) logits of normalised texts, and whether anything in each is known."""

    def logits(self, texts: Utf8) -> NDArray[np.float64]:
        """Return logits before calibration, (N, L), or numbers, of stripped texts.

        Raises:
            UsageError: the model's loss has none.
        """
        begins, ends = cut_texts(texts.offsets, texts.data, -1, True)
        with self._lock:
            return self._logits(*normalize(begins, ends, texts.data, self.card.modes))[0]

    def scores_of(self, predictions: Predictions, label: str) -> NDArray[np.float64]:
        """Return the score of one label for each text, (N,), from predictions of all labels.

        A text without a word has no predictions at all: its score is 0.

        Raises:
            UsageError: the model does not have the label.
        """
        rank = self.rank_of(label)
        return np.where(predictions.ranks == rank, predictions.scores, 0.0).sum(axis=1)  # type: ignore[no-any-return]

    def rank_of(self, label: str) -> int:
        """Return the index of `label` in `labels`.

        Raises:
            UsageError: the model does not have the label.
        """
        rank = self._index.get(label)
        if rank is None:
            raise UsageError(
                f"{self.path}: the model has no label {label!r}. {suggest(label, self.labels)}"
            )
        return rank


class FastTextModel(TextClassifier):
    """A supervised fastText model."""

    def __init__(self, path: str | Path) -> None:
        self._model = read_model(Path(path))
        labels = tuple(name.removeprefix(PREFIX) for name in self._model.labels)
        super().__init__(path, labels, self._model.card)
        self._word_cache: NDArray[np.uint32] | None = None
        self._by_windows: LanguageModel | None = None

    def _predict(
        self,
        begins: Offsets,
        ends: Offsets,
        data: Bytes,
        ranks: NDArray[np.int32],
        scores: NDArray[np.float64],
    ) -> None:
        if self.card.shifts:
            return super()._predict(begins, ends, data, ranks, scores)
        model = self._model
        is_calibrated = len(model.output.scales) > 1 and model.output.loss == SOFTMAX
        if is_calibrated and model.features.word_ngrams == 1:
            if self._by_windows is None:
                self._by_windows = LanguageModel(self.path, model, self.labels)
            is_finite = self._by_windows.predict(begins, ends, data, ranks, scores)
        else:
            hidden, counts = self._means(begins, ends, data)
            first_bad = best_labels(hidden[:, : model.dim], counts, model.output, ranks, scores)
            is_finite = first_bad < 0
        if not is_finite:
            self._fail()
        return None

    def _fail(self) -> NoReturn:
        raise DataError(
            f"{self.path}: cannot predict with it: it has weights that are no numbers. "
            "Fetch the model again."
        )

    def _means(
        self, begins: Offsets, ends: Offsets, data: Bytes
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the means of the rows of texts, (N, stride), and how many rows each has."""
        model = self._model
        scratch = make_scratch(
            model.features, int((ends - begins).max(initial=0)), self._word_cache
        )
        self._word_cache = scratch.word_cache
        hidden = np.zeros((len(begins), model.stride), np.float32)
        counts = np.zeros(len(begins), np.int64)
        mean_rows(begins, ends, data, model.features, model.matrix, scratch, hidden, counts)
        return hidden, counts

    def _logits(self, begins: Offsets, ends: Offsets, data: Bytes) -> Logits:
        model = self._model
        if model.output.loss != SOFTMAX:
            raise UsageError(f"{self.path}: only a model with the loss softmax has logits.")
        hidden, counts = self._means(begins, ends, data)
        means = hidden[:, : model.dim].astype(np.float64)
        # Label by label: a product of matrices would depend on how many texts there are.
        columns = [(means * column).sum(axis=1) for column in model.output.matrix.T]
        logits = np.stack(columns, axis=1) * model.output.norms.astype(np.float64)
        if not np.isfinite(logits).all():
            self._fail()
        return logits, counts > 0


class LinearModel(TextClassifier):
    """A linear classifier of hashed n-grams."""

    def __init__(self, path: str | Path) -> None:
        self._weights = read_linear(Path(path))
        super().__init__(path, self._weights.labels, self._weights.card)
        self.bounds = self._weights.bounds

    def _logits(self, begins: Offsets, ends: Offsets, data: Bytes) -> Logits:
        return self._weights.logits(count_texts(begins, ends, data, self._weights.grams))


def open_model(path: str | Path) -> TextClassifier:
    """Return the model at `path`, loaded once per process and again when the file has changed.

    Raises:
        UsageError: there is no such file.
        DataError: it is neither a whole, supervised fastText model nor a linear one.
    """
    resolved = Path(path).resolve()
    try:
        stat = resolved.stat()
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such model file.") from None
    return _open(str(resolved), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _open(path: str, modified_ns: int, size_bytes: int) -> TextClassifier:
    """Return the model; the arguments after the path tell versions of a file apart."""
    return LinearModel(path) if is_linear(Path(path)) else FastTextModel(path)


def _without_newlines(
    begins: NDArray[np.int64], ends: NDArray[np.int64], data: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return the texts without newlines."""
    first, last = int(begins.min(initial=0)), int(ends.max(initial=0))
    is_kept = data[first:last] != ord("\n")
    moved_to = np.concatenate(([0], np.cumsum(is_kept)))
    return moved_to[begins - first], moved_to[ends - first], frozen(data[first:last][is_kept])


@dataclass(frozen=True)
class ClassifierSettings:
    """How a classifier is trained; the names are the options of `corpuskit classifier train`.

    Raises:
        UsageError: a value is out of bounds, which fastText would answer with a crash.
    """

    dim: int = 16
    epochs: int = 5
    lr: float = 0.5
    word_ngrams: int = 1
    minn: int = 0
    maxn: int = 0
    buckets: int = 200_000
    min_count: int = 1
    loss: str = "softmax"
    threads: int = 1
    seed: int = 0
    family: str = "fasttext"
    normalize: str = "none"
    regression: bool = False

    @property
    def card(self) -> ModelCard:
        """The card of a model trained by these settings, before it is calibrated."""
        return ModelCard(parse_normalization(self.normalize))

    def __post_init__(self) -> None:
        parse_normalization(self.normalize)
        if self.family not in FAMILIES:
            raise UsageError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}.")
        if self.regression and self.family != "linear":
            raise UsageError("regression needs a linear model. Add --family linear.")
        for name, high in {"word_ngrams": MOST_WORDS, "maxn": MOST_RUN}.items():
            if self.family == "linear" and getattr(self, name) > high:
                raise UsageError(
                    f"{name} of a linear model must be at most {high}, got {getattr(self, name)}."
                )
        lowest = {"dim": 1, "epochs": 1, "word_ngrams": 1, "min_count": 1, "threads": 1}
        lowest["buckets"] = int(self.maxn > 0 or self.word_ngrams > 1)  # fastText divides by it
        for name, bound in {**lowest, "minn": 0, "maxn": self.minn, "seed": 0}.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} must be at least {bound}, got {getattr(self, name)}.")
        if self.loss not in LOSSES:
            raise UsageError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}.")
        if not 0 < self.lr <= 10:
            raise UsageError(f"lr must be above 0 and at most 10, got {self.lr}.")


class TrainedModel:
    """A model that was just trained; `quantize` makes it small, `save` writes it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels in the order of the model."""
        return tuple(name.removeprefix(PREFIX) for name in self._model.labels)

    @property
    def rows(self) -> int:
        """Rows of the input matrix: words and buckets."""
        return len(self._model.words) + int(self._model.f.getArgs().bucket)

    @classmethod
    def load(cls, path: Path) -> TrainedModel:
        """Read a model that `save` wrote, to quantize it in another way."""
        import fasttext

        return cls(fasttext.load_model(str(path)))

    def size_bytes(self, rows: int, *, is_cut: bool) -> int:
        """Return the size of the file that `quantize` would make of this many rows.

        Args:
            rows: rows that are kept, at most all.
            is_cut: whether some are left out; which ones is not known yet, so it is an estimate
                that takes each for a word, or for a run of characters if that is larger.
        """
        dim, labels = int(self._model.get_dimension()), self._model.labels
        words: list[int] = [len(word.encode()) + ENTRY_TAIL + 1 for word in self._model.words]
        names: int = sum(len(label.encode()) + ENTRY_TAIL + 1 for label in labels)
        fixed = 150 + names + 4 * dim * len(labels) + 4 * 256 * (dim + 1)
        row = (dim + 1) // 2 + 1
        if not is_cut:
            return fixed + sum(words) + rows * row
        mean = sum(words) / len(words) if words else 0
        return fixed + int(rows * (row + max(8, mean)))

    def quantize(
        self, lines: Path, settings: ClassifierSettings, *, cutoff: int, verbose: int = 0
    ) -> None:
        """Compress the model to about 9 bytes per row (17 with a cutoff).

        Args:
            lines: the training lines; read again when `cutoff` leaves something out.
            settings: those of the training; retraining takes a fifth of its learning rate.
            cutoff: keep this many rows, those of the largest norm, and retrain them; 0 keeps all.
            verbose: 2 draws fastText's own progress bar.

        Raises:
            UsageError: the model has fewer than 256 rows, too few for a product quantizer.
        """
        num_rows = min(cutoff, self.rows) if cutoff else self.rows
        if num_rows < 256:
            raise UsageError(
                f"quantize: the model would have {num_rows} rows, fewer than 256. "
                "Train without --quantize, or with more words or buckets."
            )
        self._model.quantize(
            input=str(lines),
            qnorm=True,
            cutoff=cutoff,
            retrain=cutoff > 0,
            epoch=settings.epochs,
            lr=settings.lr / 5,
            thread=settings.threads,
            verbose=verbose,
        )

    def save(self, path: Path, card: ModelCard | None = None) -> None:
        """Write the model and its card; the file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._model.save_model(str(scratch))
            if card is not None:
                append_card(scratch, card)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)


def train(lines: Path, settings: ClassifierSettings, *, verbose: int = 0) -> TrainedModel:
    """Train a classifier on lines made by `training_line`.

    The same lines and settings give the same model byte for byte when `threads` is 1; with more,
    threads write to shared weights as they come.

    Args:
        lines: one text per line; their order matters and should be random.
        settings: see `ClassifierSettings`.
        verbose: 2 draws fastText's own progress bar on standard error.

    Raises:
        DataError: there is not one word, or a weight became infinite.
    """
    import fasttext

    try:
        with _zeroed_memory():
            model = fasttext.train_supervised(
                input=str(lines),
                dim=settings.dim,
                epoch=settings.epochs,
                lr=settings.lr,
                wordNgrams=settings.word_ngrams,
                minn=settings.minn,
                maxn=settings.maxn,
                bucket=settings.buckets,
                minCount=settings.min_count,
                loss=settings.loss,
                thread=settings.threads,
                seed=settings.seed,
                verbose=verbose,
            )
    except RuntimeError as error:
        raise DataError(f"training failed: {error} Lower --lr, now {settings.lr}.") from None
    except ValueError as error:
        raise DataError(f"training failed: {error} Look at the texts and labels.") from None
    return TrainedModel(model)


def training_line(text: str, label: str, modes: int = 0) -> str:
    """Return one line of a training file, normalised as the stages will.

    Words that fastText takes for a label or for the end of the line get a space inside.

    Raises:
        DataError: the label is empty or has white space in it.
    """
    if label.split() != [label]:
        raise DataError(f"label {label!r} must be one word. Rename it.")
    if modes:
        offsets, data = buffers([text])
        text = normalize(offsets[:-1], offsets[1:], data, modes)[2].tobytes().decode()
    safe = text.replace(PREFIX, "__label __").replace("</s>", "< /s>")
    return f"{PREFIX}{label} {' '.join(safe.split())}\n"


@contextlib.contextmanager
def _zeroed_memory() -> Iterator[None]:
    """Make malloc hand out zeros (glibc).

    fastText 0.9.3 fills only thread/10 of its input matrix with random numbers (densematrix.cc,
    `uniform`) and takes the rest as malloc left it: with old content there, training ends in
    "Encountered NaN", or differs from run to run. Zeros serve as well: the output matrix starts as
    zeros, too, and the first tenth breaks the symmetry.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_PERTURB, 0xFF)
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)
