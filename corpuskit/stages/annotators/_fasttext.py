"""The one door to fastText: prediction over Arrow buffers, training, quantizing.

fastText reads one line per text and splits it at white space of ASCII. A newline would end the
text, so newlines become spaces on the way in. Two quirks of the library stay, so that predictions
equal its own: a word `</s>` ends the text, and words that start with `__label__` are skipped.
`_FastText.predict` breaks with NumPy 2, so the inner object is called. The cost is linear in bytes,
and the binding is under 1 % of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import DataError, UsageError, reason_of, suggest
from corpuskit.stages.annotators._fasttext_file import ENTRY_TAIL, check_model_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from corpuskit.formats.batch import Utf8

PREFIX = "__label__"
DECIMALS = 4
"""Scores are rounded before they are stored or compared: builds differ in the last bits."""

LOSSES = ("softmax", "hs", "ns", "ova")
"""Softmax, hierarchical softmax, negative sampling, one against all."""

M_PERTURB = -6


@dataclass(frozen=True)
class Predictions:
    """The best labels of N texts, best first.

    Attributes:
        ranks: (N, k) int32 into the model's labels; -1 where there are fewer than k.
        scores: (N, k) float64, rounded to 4 decimals; 0 where there are fewer than k.
        empty: (N,) bool, whether nothing at all was left to look at.
    """

    ranks: NDArray[np.int32]
    scores: NDArray[np.float64]
    empty: NDArray[np.bool_]


class Model:
    """A supervised fastText model in memory; `open_model` gives one per file and process."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._inner = _load(self.path)
        try:
            names = self._inner.getLabels("strict")[0]
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}: a label is not UTF-8: {reason_of(error)}. Fetch the model again."
            ) from None
        self.labels = tuple(name.removeprefix(PREFIX) for name in names)
        self._index = {name: rank for rank, name in enumerate(names)}  # as the file has them

    def predict(
        self,
        texts: Utf8,
        k: int = 1,
        *,
        max_bytes: int | None = None,
        newlines: bytes = b" ",
        strip: bool = False,
    ) -> Predictions:
        """Return the k best labels of each text.

        Args:
            texts: buffers of N texts.
            k: labels per text, at least 1.
            max_bytes: look at no more than this many bytes, cut back to a whole character.
            newlines: what stands for a newline; datatrove's classifier filter uses nothing,
                which glues words together.
            strip: take white space of Unicode off both ends first, as that filter does; fastText
                knows that of ASCII only, the rest becomes part of a word.
        """
        ranks = np.full((len(texts), k), -1, np.int32)
        scores = np.zeros((len(texts), k), np.float64)
        empty = np.zeros(len(texts), np.bool_)
        for row, line in enumerate(_lines(texts, max_bytes, newlines, strip)):
            empty[row] = len(line) == 1
            for place, (score, label) in enumerate(self._best(line, k)):
                ranks[row, place] = self._index[label]
                scores[row, place] = score
        return Predictions(ranks, np.round(scores, DECIMALS), empty)

    def _best(self, line: bytes, k: int) -> list[tuple[float, str]]:
        try:
            best: list[tuple[float, str]] = self._inner.predict(line, k, 0.0, "strict")
        except (RuntimeError, UnicodeDecodeError) as error:  # weights that are no numbers; labels
            raise DataError(
                f"{self.path}: fastText cannot predict with it: {reason_of(error)}. "
                "Fetch the model again."
            ) from None
        return best

    def scores_of(self, found: Predictions, label: str) -> NDArray[np.float64]:
        """Return the score of one label for each text, (N,), from predictions of all labels.

        A text without a word has no predictions at all: its score is 0.

        Raises:
            UsageError: the model does not have the label.
        """
        rank = self.rank_of(label)
        return np.where(found.ranks == rank, found.scores, 0.0).sum(axis=1)  # type: ignore[no-any-return]

    def rank_of(self, label: str) -> int:
        """Return the place of `label` in `labels`.

        Raises:
            UsageError: the model does not have the label.
        """
        rank = self._index.get(PREFIX + label)
        if rank is None:
            raise UsageError(
                f"{self.path}: the model has no label {label!r}. {suggest(label, self.labels)}"
            )
        return rank


def open_model(path: str | Path) -> Model:
    """Return the model at `path`, loaded once per process and again when the file has changed.

    Raises:
        UsageError: there is no such file.
        DataError: it is not a whole, supervised fastText model.
    """
    place = Path(path).resolve()
    try:
        found = place.stat()
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such model file.") from None
    return _open(str(place), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=4)
def _open(path: str, modified_ns: int, size_bytes: int) -> Model:
    """Return the model; the arguments after the path tell versions of a file apart."""
    return Model(path)


def _load(path: str) -> Any:
    import fasttext

    check_model_file(Path(path))
    try:
        return fasttext.load_model(path).f
    except (ValueError, RuntimeError, MemoryError) as error:
        raise DataError(
            f"{path}: fastText refuses it: {reason_of(error)}. Fetch the model again."
        ) from None


def _lines(texts: Utf8, max_bytes: int | None, newlines: bytes, strip: bool) -> Iterator[bytes]:
    """Yield each text as the one line that fastText expects."""
    offsets, data = texts
    for row in range(len(texts)):
        start, end = int(offsets[row]), int(offsets[row + 1])
        if max_bytes is not None and end - start > max_bytes:
            end = start + max_bytes
            while end > start and data[end] & 0xC0 == 0x80:
                end -= 1
        text = data[start:end].tobytes()
        if strip:
            text = _strip(text)
        yield text.replace(b"\n", newlines) + b"\n"


def _strip(text: bytes) -> bytes:
    """Return the text without white space at its ends, as `str.strip` would.

    Bytes are stripped of white space of ASCII alone, so where something else stands at an end the
    text is decoded.
    """
    text = text.strip()
    if text and (_may_be_space(text[0]) or _may_be_space(text[-1])):
        return text.decode("utf-8").strip().encode()
    return text


def _may_be_space(byte: int) -> bool:
    return byte >= 0x80 or 0x1C <= byte <= 0x1F


@dataclass(frozen=True)
class Settings:
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

    def __post_init__(self) -> None:
        least = {"dim": 1, "epochs": 1, "word_ngrams": 1, "min_count": 1, "threads": 1}
        least["buckets"] = int(self.maxn > 0 or self.word_ngrams > 1)  # fastText divides by it
        for name, bound in {**least, "minn": 0, "maxn": self.minn, "seed": 0}.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} must be at least {bound}, got {getattr(self, name)}.")
        if self.loss not in LOSSES:
            raise UsageError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}.")
        if not 0 < self.lr <= 10:
            raise UsageError(f"lr must be above 0 and at most 10, got {self.lr}.")


class Trained:
    """A model that was just trained; `quantize` makes it small, `save` writes it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def rows(self) -> int:
        """Rows of the input matrix: words and buckets."""
        return len(self._model.words) + int(self._model.f.getArgs().bucket)

    @classmethod
    def load(cls, path: Path) -> Trained:
        """Read a model that `save` wrote, to quantize it in another way."""
        import fasttext

        return cls(fasttext.load_model(str(path)))

    def size_bytes(self, rows: int, *, cut: bool) -> int:
        """Return the size of the file that `quantize` would make of this many rows.

        Args:
            rows: rows that are kept, at most all.
            cut: whether some are left out; which ones is not known before, so it is an estimate
                that takes each for a word, or for a run of characters if that is larger.
        """
        dim, labels = int(self._model.get_dimension()), self._model.labels
        words: list[int] = [len(word.encode()) + ENTRY_TAIL + 1 for word in self._model.words]
        names: int = sum(len(label.encode()) + ENTRY_TAIL + 1 for label in labels)
        fixed = 150 + names + 4 * dim * len(labels) + 4 * 256 * (dim + 1)
        row = (dim + 1) // 2 + 1
        if not cut:
            return fixed + sum(words) + rows * row
        mean = sum(words) / len(words) if words else 0
        return fixed + int(rows * (row + max(8, mean)))

    def quantize(self, lines: Path, settings: Settings, *, cutoff: int, verbose: int = 0) -> None:
        """Compress the model to about 9 bytes per row (17 with a cutoff).

        Args:
            lines: the training lines; read again when `cutoff` leaves something out.
            settings: those of the training; retraining takes a fifth of its learning rate.
            cutoff: keep this many rows, those of the largest norm, and retrain them; 0 keeps all.
            verbose: 2 draws fastText's own progress bar.

        Raises:
            UsageError: the model has fewer than 256 rows, too few for a product quantizer.
        """
        kept = min(cutoff, self.rows) if cutoff else self.rows
        if kept < 256:
            raise UsageError(
                f"quantize: the model would have {kept} rows, fewer than 256. "
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

    def save(self, path: Path) -> None:
        """Write the model; the file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._model.save_model(str(scratch))
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)


def train(lines: Path, settings: Settings, *, verbose: int = 0) -> Trained:
    """Train a classifier on lines made by `training_line`.

    The same lines and settings give the same model byte for byte when `threads` is 1; with more,
    threads write to shared weights as they come.

    Args:
        lines: one text per line; their order matters and should be random.
        settings: see `Settings`.
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
    return Trained(model)


def training_line(text: str, label: str) -> str:
    """Return one line of a training file.

    What fastText would take for a label or for the end of the line is broken up.

    Raises:
        DataError: the label is empty or has white space in it.
    """
    if label.split() != [label]:
        raise DataError(f"label {label!r} must be one word. Rename it.")
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
