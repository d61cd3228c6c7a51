"""The sole importer of fastText: prediction over Arrow buffers, training, quantizing.

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
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.errors import DataError, UsageError, reason_of, suggest

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


class FastTextModel:
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

    def scores_of(self, predictions: Predictions, label: str) -> NDArray[np.float64]:
        """Return the score of one label for each text, (N,), from predictions of all labels.

        A text without a word has no predictions at all: its score is 0.

        Raises:
            UsageError: the model does not have the label.
        """
        rank = self.rank_of(label)
        return np.where(predictions.ranks == rank, predictions.scores, 0.0).sum(axis=1)  # type: ignore[no-any-return]

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


def open_model(path: str | Path) -> FastTextModel:
    """Return the model at `path`, loaded once per process and again when the file has changed.

    Raises:
        UsageError: there is no such file.
        DataError: it is not a whole, supervised fastText model.
    """
    place = Path(path).resolve()
    try:
        stat = place.stat()
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such model file.") from None
    return _open(str(place), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _open(path: str, modified_ns: int, size_bytes: int) -> FastTextModel:
    """Return the model; the arguments after the path tell versions of a file apart."""
    return FastTextModel(path)


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


def train(lines: Path, settings: ClassifierSettings, *, verbose: int = 0) -> Trained:
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


# ----------------------------------------------------------------------
# Walk through a fastText model file, to find a broken one before the library reads it.
#
# fastText does not look whether its reads succeed: cut off in the dictionary it reads for ever, cut
# off in the weights it predicts from what memory held. Nor whether sizes agree: where they do not
# it reads and writes beyond its arrays. Sizes are compared here, weights not touched: a dictionary
# of 2 million words takes 0.07 CPU seconds, and labels are known without the model.
#
# Source: fastText 0.9.3, `save` of args.cc, dictionary.cc, matrix and productquantizer.cc.

MAGIC = 793712314
NEWEST = 12
SUPERVISED = 3
ENTRY_TAIL = 9
"""Bytes of a dictionary entry behind its word and NUL: count and type."""

_WORD = rb"[^\0]*+\0.{8}\0"
_SOME = 4096
_WORDS = re.compile(rb"(?s:%s){%d}+" % (_WORD, _SOME))
_LABEL = re.compile(rb"(?s)([^\0]*+)\0(.{8})\x01")

ARGUMENTS = struct.Struct("<12id")
COUNTS = struct.Struct("<iiiqq")
"""Entries, words and labels; tokens of the training text; pruned rows, -1 if nothing was pruned."""

MOST = {"dim": 1 << 14, "word_ngrams": 100, "minn": 100, "maxn": 100}
"""Larger ones are no model's, but a file that lies."""

MOST_COUNTS = 10**15
"""Where the tree of hierarchical softmax takes the count of a label for no label."""


class Header(NamedTuple):
    """What decides how large the rest of a model is, and how labels are found."""

    dim: int
    word_ngrams: int
    loss: int
    kind: int
    bucket: int
    minn: int
    maxn: int


def labels_of(path: str | Path) -> tuple[str, ...]:
    """Return the labels of a model in its order, as they stand in it; remembered while it stays.

    Raises:
        UsageError: there is no such file.
        DataError: it is not a whole, supervised fastText model.
    """
    place = Path(path)
    try:
        stat = place.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"model: {path} cannot be read: {reason}. Check the path.") from None
    return _labels_of(place, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=16)
def _labels_of(path: Path, modified_ns: int, size_bytes: int) -> tuple[str, ...]:
    return check_model_file(path)


def check_model_file(path: Path) -> tuple[str, ...]:
    """Make sure that a file is a whole, supervised fastText model; return its labels.

    Raises:
        DataError: it is another kind of file, cut off, or holds word vectors only.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            supervised, labels, end, size = _walk(content)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        # Nothing to map, no model, or a field beyond the end.
        raise DataError(
            f"{path}: is not a whole fastText model: {reason_of(error)}. "
            "Give a .bin or .ftz file, or fetch it again."
        ) from None
    if not supervised:
        raise DataError(f"{path}: is a fastText model without labels. Give a supervised one.")
    if end != size:
        raise DataError(
            f"{path}: has {size:,} bytes, a fastText model with its header has {end:,}. "
            "Fetch it again."
        )
    return labels


def _walk(content: mmap.mmap) -> tuple[bool, tuple[str, ...], int, int]:
    """Return whether the model is supervised, its labels, where it and the file end."""
    magic, version = struct.unpack_from("<ii", content, 0)
    if magic != MAGIC or version > NEWEST:
        raise ValueError("another kind of file")
    values = ARGUMENTS.unpack_from(content, 8)
    header = Header(values[0], *values[5:11])
    if header.kind != SUPERVISED:
        return False, (), 0, len(content)
    _check_header(header)
    entries, words, num_labels, _, pruned = COUNTS.unpack_from(content, 64)
    if min(words, num_labels) < 0 or entries != words + num_labels or pruned < -1 or not num_labels:
        raise ValueError(f"it says {entries} entries, {words} words, {num_labels} labels")
    labels, place = _labels(content, _words_end(content, 92, words), num_labels)
    rows = words + (header.bucket if pruned < 0 else pruned)
    _check_pruned(content, place, pruned)
    place += 8 * max(pruned, 0)
    quantized, place = content[place : place + 1] == b"\1", place + 1
    if pruned >= 0 and not quantized:
        raise ValueError("it is pruned, but not quantized")
    place = _matrix_end(content, place, quantized, rows, header.dim)
    output_quantized, place = content[place : place + 1] == b"\1", place + 1
    place = _matrix_end(content, place, quantized and output_quantized, num_labels, header.dim)
    return True, labels, place, len(content)


def _check_header(header: Header) -> None:
    for name, most in MOST.items():
        value = getattr(header, name)
        if not (name in {"dim", "word_ngrams"}) <= value <= most:
            raise ValueError(f"{name} is {value}")
    if header.bucket < 0 or not 1 <= header.loss <= 4:
        raise ValueError(f"bucket is {header.bucket}, loss {header.loss}")
    if header.bucket == 0 and (header.maxn > 0 or header.word_ngrams > 1):
        raise ValueError("bucket is 0, by which it divides")


def _labels(content: mmap.mmap, place: int, num: int) -> tuple[tuple[str, ...], int]:
    """Return the labels, which follow the words, and where the dictionary ends."""
    labels, counted = [], 0
    for number in range(num):
        entry = _LABEL.match(content, place)
        if entry is None:
            raise ValueError(f"label {number} of the dictionary is no label, or cut off")
        (count,) = struct.unpack("<q", entry[2])
        counted += count
        if count < 0 or counted >= MOST_COUNTS:
            raise ValueError(f"label {number} has the count {count}")
        labels.append(entry[1].decode())
        place = entry.end()
    return tuple(labels), place


def _words_end(content: mmap.mmap, place: int, number: int) -> int:
    """Return where so many words of the dictionary end that begin at `place`."""
    while number > 0:
        at_once = min(_SOME, number)
        pattern = _WORDS if at_once == _SOME else re.compile(rb"(?s:%s){%d}+" % (_WORD, at_once))
        entries = pattern.match(content, place)
        if entries is None:
            raise ValueError("an entry of the dictionary is no word, or cut off")
        place, number = entries.end(), number - at_once
    return place


def _check_pruned(content: mmap.mmap, place: int, pruned: int) -> None:
    if pruned > 0:
        pairs = np.frombuffer(content[place : place + 8 * pruned], "<i4").reshape(-1, 2)
        if len(pairs) < pruned or pairs[:, 1].min() < 0 or pairs[:, 1].max() >= pruned:
            raise ValueError("n-grams are mapped to rows that there are not")


def _matrix_end(content: mmap.mmap, place: int, quantized: bool, rows: int, dim: int) -> int:
    """Return where the matrix that begins at `place` ends."""
    if not quantized:
        shape = struct.unpack_from("<qq", content, place)
        _check_shape(shape, (rows, dim))
        return place + 16 + 4 * rows * dim
    with_norms, *shape, codes = struct.unpack_from("<?qqi", content, place)
    _check_shape(tuple(shape), (rows, dim))
    place, parts = _quantizer_end(content, place + 21 + max(codes, 0), dim)
    _check_shape((codes,), (rows * parts,))
    return _quantizer_end(content, place + rows, 1)[0] if with_norms else place


def _quantizer_end(content: mmap.mmap, place: int, dim: int) -> tuple[int, int]:
    """Return where the codebook that begins at `place` ends, and the codes of a row.

    It has 256 centroids for each of the parts that a row is cut into.
    """
    width, parts, size, last = struct.unpack_from("<iiii", content, place)
    _check_shape((width,), (dim,))
    if size <= 0 or parts != -(-dim // size) or last != (dim % size or size):
        raise ValueError(f"a row of {dim} numbers is cut into {parts} parts of {size}, last {last}")
    return place + 16 + 4 * 256 * dim, parts


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"a matrix is said to have {shape}, and must have {expected}")
