"""Word frequencies: counted in texts, written as a table, read as log probabilities."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.kernels.arrays import Float64s
from corpuskit.kernels.words.lexicon import Lexicon, Words
from corpuskit.stages.annotators._labelled import BATCH, buffers
from corpuskit.text.words import WordSplit, splitter


class Unigrams:
    """The words of a table with their log2 probabilities; `open_unigrams` gives one per file.

    A word that the table lacks has the square root of the number of its words, and 1, as its count.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        total = math.log2(sum(counts.values()))
        self._log_probabilities = {word: math.log2(count) - total for word, count in counts.items()}
        self._unknown = math.log2(math.sqrt(len(counts)) + 1) - total
        self._lexicon: Lexicon | None = None
        self._values = np.empty(0)

    def sums(self, words: Words) -> Float64s:
        """Return the sum of the log2 probabilities of each text's words, (N,), in lower case."""
        lexicon = words.lexicon
        if lexicon is not self._lexicon:
            self._lexicon, self._values = lexicon, np.empty(0)
        values = [
            self._log_probabilities.get(word, self._unknown)
            for word in lower_records(lexicon, len(self._values))
        ]
        self._values = np.concatenate([self._values, values])
        counts = np.diff(words.offsets)
        rows = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(rows, self._values[words.tokens], len(counts)).astype(np.float64)


def lower_records(lexicon: Lexicon, first: int) -> list[str]:
    """Return the words of a lexicon from number `first` on, in lower case."""
    bounds = lexicon.starts[first:].tolist()
    data = lexicon.data[bounds[0] : bounds[-1]].tobytes()
    return [
        data[begin - bounds[0] : end - bounds[0]].decode().lower()
        for begin, end in itertools.pairwise(bounds)
    ]


@functools.cache
def open_unigrams(path: str) -> Unigrams:
    """Return the table of a file of lines `word,count`, as `corpuskit unigrams` writes it.

    Lines whose count is not a number, such as a heading, are skipped.

    Raises:
        UsageError: there is no such file.
        DataError: it is no such table.
    """
    counts: dict[str, int] = {}
    try:
        with Path(path).open(encoding="utf-8") as file:
            for line in file:
                word, _, count = line.strip().rpartition(",")
                if word and count.isascii() and count.isdigit() and int(count):
                    counts[word] = int(count)
    except OSError as error:
        raise UsageError(f"model: {path}: {error.strerror}. Name a file.") from None
    except UnicodeDecodeError:
        counts = {}
    if not counts:
        raise DataError(
            f"{path}: no line is `word,count`. Name a table of word frequencies, as `corpuskit "
            "unigrams` writes it, or a KenLM file (.arpa, .bin, .binary, .klm)."
        )
    return Unigrams(counts)


def count_words(texts: Iterable[str], words: WordSplit, language: str) -> Counter[str]:
    """Return how often each word occurs in texts, in lower case."""
    split, counts, batch = splitter(words, language), Counter[str](), list[str]()

    def add() -> None:
        split_words = split(*buffers(batch))
        names = lower_records(split_words.lexicon, 0)
        sums = np.bincount(split_words.tokens, minlength=1)
        for number in np.flatnonzero(sums).tolist():
            counts[names[number]] += int(sums[number])
        batch.clear()

    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            add()
    if batch:
        add()
    return counts
