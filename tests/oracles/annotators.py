"""The references of the annotators: fastText's own prediction, shaped as datatrove calls it."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import utf8
from corpuskit.stages.annotators._fasttext import DECIMALS, LinearModel
from corpuskit.stages.annotators._fasttextfile import PREFIX
from corpuskit.stages.annotators._languagemodel import IN_QUESTION, NEAR_BYTES, near_files
from corpuskit.stages.annotators._linear import is_linear, read_linear
from corpuskit.stages.annotators.language import UNDETERMINED
from tests.oracles.words import reference_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from corpuskit.stages.annotators.language import Language
    from corpuskit.stages.annotators.perplexity import Perplexity
    from corpuskit.stages.annotators.quality import Quality
    from corpuskit.stages.annotators.toxicity import Toxicity
    from tests.oracles import Decide


NEWLINES = {"space": " ", "drop": ""}


class Official:
    """What `fasttext.load_model` gives, with `predict(str)` working under NumPy 2.

    The library's own wrapper adds the newline, calls the inner object, and fails when it makes an
    array of the result (`copy=False`); here the same is done without that argument. Scores are
    rounded, as ours are before they are compared. Of a calibrated model the library gives the mean
    of the rows of each window; the rest is done here, in double precision.
    """

    def __init__(self, path: str) -> None:
        import fasttext

        # A stage is compared with other bounds on the same texts, up to 57 times.
        self.predict = functools.lru_cache(1 << 14)(self._predict)
        self._inner = fasttext.load_model(path).f
        self.labels: list[str] = list(self._inner.getLabels("strict")[0])
        content = Path(path).read_bytes()
        self._scales = None
        if content.endswith(b"corpuskit-lengths"):
            num, size = int.from_bytes(content[-21:-17], "little"), self._inner.getArgs().dim
            end = len(content) - 21 - 4 * num
            self._scales = np.frombuffer(content[end:-21], "<f4")
            weights = np.frombuffer(content[end - 4 * size * len(self.labels) : end], "<f4")
            self._weights = weights.reshape(-1, size).astype(np.float64)
            self._groups = [LinearModel(file) for file in near_files(path)]
            self._vector = functools.partial(fasttext.FastText.fasttext.Vector, size)

    def _predict(self, text: str, k: int = 1) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Return the k best labels (-1: all) and their scores, best first.

        Raises:
            ValueError: the text has a newline, as in the library.
        """
        if "\n" in text:
            raise ValueError("predict processes one line at a time (remove '\\n')")
        if self._scales is not None:
            return self._calibrated(text, k)
        found = self._inner.predict(text + "\n", k, 0.0, "strict")
        scores = np.array([score for score, _ in found], np.float64)
        return tuple(label for _, label in found), np.round(scores, DECIMALS)

    def _sum(self, text: bytes) -> tuple[NDArray[np.float64], int]:
        """Return the sum of the rows of a window and how many they are, without the last one."""
        words = [
            word for word in re.split(r"[ \n\r\t\v\f\0]+", text.decode("utf-8", "replace")) if word
        ]
        words = words[: words.index("</s>")] if "</s>" in words else words
        words = [w for w in words if not w.startswith(PREFIX)]
        rows = sum(len(self._inner.getSubwords(word, "strict")[1]) for word in words)
        return self._mean(" ".join(words)) * (rows + 1) - self._mean(""), rows

    def _mean(self, text: str) -> NDArray[np.float64]:
        mean = self._vector()
        self._inner.getSentenceVector(mean, text + "\n")
        return np.array(mean, np.float64)

    def _calibrated(self, text: str, k: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        windows = cut_windows(text.encode())
        sums = [self._sum(window) for window in windows]
        rows = sum(num for _, num in sums) + 1
        if rows < 2:
            return (), np.zeros(0)
        total = sum((part for part, _ in sums), self._mean(""))
        scores = self._softmax(total / rows, rows)
        best = self.labels[scores.argmax()].removeprefix(PREFIX)
        group = next((group for group in self._groups if best in group.labels), None)
        families = np.arange(len(self.labels))
        if group is not None:
            places = [self.labels.index(f"{PREFIX}{label}") for label in group.labels]
            own = scores[places]
            families[places] = places[0]
            if own.max() < (1 - IN_QUESTION) * own.sum():
                start = text.encode()[:NEAR_BYTES].decode("utf-8", "ignore")
                logits = group.logits(utf8(pa.array([start], pa.large_string())))
                scores[places] = own.sum() * group.card.probabilities(np.log(own) + logits)[0]
        scores += 1e-5  # which the library adds, too
        order = np.argsort(-scores, kind="stable")
        family = families == families[order[0]]
        other = sum(
            len(window)
            for window, (part, num) in zip(windows, sums, strict=True)
            if num and is_prose(window) and self._odds(part / num, num, family) > 3
        )
        if len(windows) > 1:
            best = scores[order[0]]
            scores *= min(best, 1 - other / sum(map(len, windows))) / best
        order = order[: k if k > 0 else None]
        return tuple(self.labels[rank] for rank in order), np.round(scores[order], DECIMALS)

    def _softmax(self, mean: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
        powers = self._weights @ mean
        powers = np.exp((powers - powers.max()) * self._scale(rows))
        return powers / powers.sum()  # type: ignore[no-any-return]

    def _scale(self, rows: int) -> float:
        return float(np.interp(np.log2(rows) - 2, range(len(self._scales)), self._scales))

    def _odds(self, mean: NDArray[np.float64], rows: int, own: NDArray[np.bool_]) -> float:
        logits = self._weights @ mean * self._scale(rows)
        return float(logits.max() - logits[own].max())


SPACES = b" \n\r\t\v\f\0"


def is_prose(window: bytes) -> bool:
    """Say whether seven in ten bytes other than white space are letters, or beyond ASCII."""
    marks = [byte for byte in window if byte not in SPACES]
    return sum(byte >= 128 or chr(byte).isalpha() for byte in marks) >= 0.7 * len(marks)


def cut_windows(text: bytes) -> list[bytes]:
    """Cut a text of up to 16 KB at white space, as the stage's docs say."""
    assert len(text) <= 16384, "of longer texts windows are drawn; no oracle needs them"
    size = min(256, max(64, len(text) // 8))
    windows, rest = [], text
    while True:
        stop = min(size, len(rest))
        while stop < len(rest) and rest[stop] not in SPACES:
            stop += 1
        if len(rest) - stop < size // 2 or len(text) < 128:
            return [*windows, rest]
        windows.append(rest[:stop])
        rest = rest[stop:]


def normalized_plainly(text, modes):
    """Return what the kernel writes, by Python's own tables, character by character."""
    written = []
    for char in text:
        if modes & 2 and unicodedata.category(char)[0] in "PS":
            written.append(f" {char} ")
        elif modes & 4 and char.isdecimal():
            written.append("0")
        elif char.isspace() and ord(char) > 127:
            written.append(" ")
        elif modes & 1:
            written.append({"\u0130": "i", "\u03a3": "\u03c3"}.get(char, char.lower()))
        else:
            written.append(char)
    return "".join(written)


def hashed_plainly(text, grams):  # noqa: C901 - the definition, in one place
    """Return bucket -> weight of a text, with Python's integers."""
    mask = 2**64 - 1

    def mixed(value):
        value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & mask
        value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & mask
        return value ^ value >> 33

    def hashed(raw, value):
        for byte in raw:
            value = (value ^ byte) * 0x100000001B3 & mask
        return value

    seed, run_seed = 0xCBF29CE484222325, 0x9E3779B97F4A7C15
    words = "".join(" " if ord(char) <= 32 else char for char in text).split(" ")
    words = [word for word in words if word]
    counts = Counter()
    for first in range(len(words)):
        for length in range(1, min(grams.words, len(words) - first) + 1):
            values = [mixed(hashed(w.encode(), seed)) for w in words[first : first + length]]
            run = values[0]
            for place, value in enumerate(values[1:], 2):
                run = ((run ^ value) * run_seed + place) & mask
            counts[mixed(run) >> 64 - grams.bits] += 1
    for word in words if grams.maxn else ():
        letters = f"<{word}>"
        for first in range(len(letters)):
            for width in range(grams.minn, grams.maxn + 1):
                is_bracket = width == 1 and first in {0, len(letters) - 1}
                if first + width <= len(letters) and not is_bracket:
                    raw = letters[first : first + width].encode()
                    counts[mixed(hashed(raw, run_seed)) >> 64 - grams.bits] += 1
    return {bucket: np.float32(1 + math.log(count)) for bucket, count in counts.items()}


class PlainLinear:
    """A linear model of ours, shaped as `Official`, in plain Python."""

    def __init__(self, path: str) -> None:
        self._weights = read_linear(Path(path))
        self.labels = [PREFIX + label for label in self._weights.labels]

    def predict(self, text: str, k: int = 1) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Return the k best labels (-1: all) and their scores, 0 if no n-gram is known."""
        weights = self._weights
        pairs = hashed_plainly(normalized_plainly(text, weights.card.modes), weights.grams).items()
        length = math.sqrt(sum((weight * weights.table[b, 0]) ** 2 for b, weight in pairs))
        if not length:
            return tuple(self.labels), np.zeros(len(self.labels))
        logit = sum(weight * weights.table[b, 1] for b, weight in pairs) / length + weights.bias[0]
        scores = np.round(weights.card.probabilities(np.array([[0.0, logit]]))[0], DECIMALS)
        order = np.argsort(-scores, kind="stable")[: None if k == -1 else k]
        return tuple(self.labels[rank] for rank in order), scores[order]


@functools.lru_cache(maxsize=4)
def open_official(path: str) -> Official | PlainLinear:
    """Return the model at `path`, loaded once per process."""
    return PlainLinear(path) if is_linear(Path(path)) else Official(path)


def reference(cls: type[Any], *args: Any, **params: Any) -> Any:
    """Return a datatrove filter without its check that fastText is of one certain distribution.

    datatrove asks for the distribution `fasttext-numpy2-wheel` and refuses the official one, which
    has the same module.
    """
    made = object.__new__(cls)
    made.__init__(*args, **params)
    return made


def beginning(text: str, max_bytes: int | None) -> str:
    """Return what a stage with `max_bytes` looks at: whole characters of the first bytes."""
    return text if max_bytes is None else text.encode()[:max_bytes].decode("utf-8", "ignore")


def language(stage: Language) -> Decide:
    official = open_official(str(stage._path))
    bounds = stage._bounds(stage._labels())
    kept = _datatrove(stage, official) if stage.accept == "datatrove" else None

    def decide(text: str) -> tuple[str | None, str]:
        seen = beginning(text, stage.max_bytes)
        labels, scores = official.predict(seen.replace("\n", " "))
        label = labels[0].removeprefix(PREFIX) if labels else UNDETERMINED
        score = float(scores[0]) if labels else 0.0
        listed = stage.keep is None or label in stage.keep
        if kept is not None and labels:
            stays = kept(seen)
        else:
            enough = score >= bounds.get(label, stage.min_score)
            stays = listed and (enough if kept is None else score > stage.min_score)
        if stays:
            return None, text
        return ("score" if listed else "language"), text

    return decide


def _datatrove(stage: Language, official: Any) -> Callable[[str], bool]:
    """Return datatrove's decision, by one filter per listed language, since minima differ."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import LanguageFilter

    bounds = stage._bounds(stage._labels())

    def keeps(code: str, bound: float, text: str) -> bool:
        filtering = reference(LanguageFilter, stage.keep and [code], language_threshold=bound)
        filtering.model._model = official
        return bool(filtering.filter(Document(text=text, id="")))

    def kept(text: str) -> bool:
        best = official.predict(text.replace("\n", " "))[0][0].removeprefix(PREFIX)
        listed = stage.keep or (best,)
        return any(keeps(code, bounds.get(code, stage.min_score), text) for code in listed)

    return kept


def perplexity(stage: Perplexity) -> Decide:
    """Common Pile's UnigramPerplexityPredictor, with the words that the stage names."""
    split = reference_words(stage.words, stage.language)
    rows = (
        line.strip().rpartition(",") for line in Path(stage.model).read_text("utf-8").split("\n")
    )
    counts = {word: int(count) for word, _, count in rows if count.isnumeric()}
    total = np.log2(sum(counts.values()))
    unknown = np.log2(np.sqrt(len(counts)) + 1) - total

    def decide(text: str) -> tuple[str | None, str]:
        words = [word.lower() for word in split.word_tokenize(text)]
        logs = [np.log2(counts[word]) - total if word in counts else unknown for word in words]
        value = 2 ** -(sum(logs) / len(words)) if words else None
        if value is not None and stage.max_perplexity and value > stage.max_perplexity:
            return "high_perplexity", text
        if value is not None and stage.min_perplexity and value < stage.min_perplexity:
            return "low_perplexity", text
        return None, text

    return decide


def quality(stage: Quality) -> Decide:
    from datatrove.data import Document
    from datatrove.pipeline.filters import FastTextClassifierFilter

    official = open_official(stage._path)
    given = {
        "score": ("keep_labels", {stage.label: stage.min_score}),
        "keep_labels": ("keep_labels", stage.keep_labels),
        "remove_labels": ("remove_labels", stage.remove_labels),
    }
    filters = {}
    for rule, (kind, bounds) in given.items():
        if bounds and None not in bounds.values():
            filters[rule] = reference(
                FastTextClassifierFilter,
                stage._path,
                **{kind: list(bounds.items())},
                save_labels_in_metadata=False,
                newline_replacement=NEWLINES[stage.newlines],
            )
            filters[rule]._model = official

    def decide(text: str) -> tuple[str | None, str]:
        seen = beginning(text, stage.max_bytes)
        if filters and not seen.strip():
            return "empty", text  # the reference keeps none of them, and gives no reason
        for rule, one in filters.items():
            if not one.filter(Document(text=seen, id="")):
                return rule, text
        return None, text

    return decide


def toxicity(stage: Toxicity) -> Decide:
    from tests.kernels.test_lines import plain_left  # which imports the oracles

    official = open_official(stage._path)
    newline = NEWLINES[stage.newlines]

    def score_of(text: str) -> float:
        seen = beginning(text, stage.max_bytes).strip().replace("\n", newline)
        scores = dict(zip(*official.predict(seen, -1), strict=True))
        return float(scores.get(PREFIX + stage.label, 0))

    def without_sentences(text: str) -> str:
        found = reference_words("spacy", stage.language).span_tokenize(text)
        pieces = [(begin, text[begin:end]) for begin, end in found if text[begin:end].strip()]
        begins = [begin + len(piece) - len(piece.lstrip()) for begin, piece in pieces]
        spans = [
            (begin, begin + len(piece.strip()))
            for begin, (_, piece) in zip(begins, pieces, strict=True)
        ]
        is_cut = [score_of(text[begin:end]) >= stage.cut_score for begin, end in spans]
        units = [(len(text[:begin].encode()), len(text[:end].encode())) for begin, end in spans]
        return plain_left(text.encode(), units, is_cut).decode()

    def decide(text: str) -> tuple[str | None, str]:
        score = score_of(text)
        if stage.max_score is not None and score > stage.max_score:
            return "toxic", text
        if stage.min_score is not None and score < stage.min_score:
            return "not_toxic", text
        return None, text if stage.cut_score is None else without_sentences(text)

    return decide
