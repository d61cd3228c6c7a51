"""Plain n-grams of benchmark items, as papers compare them, and what a match costs a document."""

from __future__ import annotations

import functools
import re
import string
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import Utf8, utf8
from corpuskit.kernels.overlap import fill_table, gram_hashes, known_grams
from corpuskit.kernels.plainwords import MARK, marked_words, plain_words
from corpuskit.kernels.wordhash import fold_words, folded_characters
from corpuskit.stages.dedup.decontaminate.index import word_weights
from corpuskit.stages.dedup.decontaminate.items import read_benchmarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.stages.dedup.decontaminate.items import BenchmarkColumns

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]
    Weights = NDArray[np.float64]

NgramRule = Literal["gpt3", "janitor", "llama3", "chunks"]

Spans = list[tuple[int, int]]


class GramRecipe(NamedTuple):
    """What an index is made of; `stamps` tell versions of the files apart."""

    files: tuple[tuple[str, str], ...]
    columns: BenchmarkColumns
    rule: NgramRule
    ngram: int
    passages: bool
    stamps: tuple[tuple[int, int], ...]


class GramIndex(NamedTuple):
    """The n-grams of benchmark items; all arrays are read-only.

    Attributes:
        rule, ngram: as in the recipe.
        items: I names.
        hashes, owners: (G,) all different n-grams, ascending, and the first item that has each.
        table: bitmap, slots and numbers of `kernels.overlap.Grams`.
        bounds, grams: (I + 1,) and (W,): n-gram that begins at each word of each item, or 0.
        weights, lasts: (G,) of the words of each n-gram, and of its last one; empty but for chunks.
    """

    rule: NgramRule
    ngram: int
    items: list[str]
    hashes: Hashes
    owners: Numbers
    table: tuple[Hashes, Hashes, NDArray[np.int32]]
    bounds: Numbers
    grams: Hashes
    weights: Weights
    lasts: Weights

    def find(self, text: Utf8) -> tuple[Numbers, Numbers, Hashes]:
        """Return the n-grams of texts that items have, in order: text, first word, n-gram."""
        bounds, words, _ = _split(text, self.rule, keeps_empty=self.rule == "janitor")
        grams = _grams(bounds, words, self.ngram)
        places = known_grams(grams, *self.table)
        rows = np.searchsorted(bounds, places, side="right") - 1
        return rows, places - bounds[rows], grams[places]

    def shares(self, found: Hashes) -> NDArray[np.float64]:
        """Return the share of each item's words that n-grams cover, (I,)."""
        places = np.flatnonzero(np.isin(self.grams, found) & (self.grams > 0))
        steps = np.bincount(places, minlength=len(self.grams) + self.ngram).astype(np.int64)
        steps[self.ngram :] -= np.bincount(places, minlength=len(self.grams))
        covered = np.append(0, np.cumsum(np.cumsum(steps[: len(self.grams)]) > 0))
        words = np.maximum(np.diff(self.bounds), 1)
        shares: NDArray[np.float64] = np.diff(covered[self.bounds]) / words
        return shares


@functools.lru_cache(maxsize=4)
def open_grams(recipe: GramRecipe) -> GramIndex:
    """Return the n-grams of some benchmarks, built once per process: 2 CPU s for 42,000 items.

    Raises:
        UsageError: a file cannot be read, or holds no items.
    """
    names, texts, bounds, words, is_mark = _read(recipe)
    grams = _grams(bounds, words, recipe.ngram)
    hashes, firsts = np.unique(grams, return_index=True)
    hashes, firsts = hashes[hashes > 0], firsts[hashes > 0]
    size = 1 << max(2 * len(hashes), 64).bit_length()
    table = np.zeros(size >> 3, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.int32)
    fill_table(hashes, *table)
    for array in table:
        array.flags.writeable = False
    owners = np.searchsorted(bounds, firsts, side="right") - 1
    weights = lasts = np.empty(0)
    if is_mark is not None:
        worth = np.zeros(len(words))
        worth[~is_mark] = word_weights(texts)
        sums = np.append(0.0, np.cumsum(worth))  # exact: they are multiples of `index.GRAIN`
        ends = firsts + recipe.ngram
        weights, lasts = sums[ends] - sums[firsts], sums[ends] - sums[ends - 1]
    return GramIndex(
        recipe.rule, recipe.ngram, names, hashes, owners, table, bounds, grams, weights, lasts
    )


@functools.lru_cache(maxsize=4)
def item_words(recipe: GramRecipe) -> tuple[list[str], Numbers]:
    """Return the names of the different items, and how many words each has that are compared.

    Raises:
        UsageError: as `open_grams`.
    """
    names, _, bounds, *_ = _read(recipe)
    return names, np.diff(bounds)


def _read(
    recipe: GramRecipe,
) -> tuple[list[str], list[str], Numbers, Hashes, NDArray[np.bool_] | None]:
    """Return names and texts of the different items, and their words as `_split` does."""
    read = read_benchmarks(recipe.files, recipe.columns)
    unique = {(one.question, one.answer, one.passage): one for one in reversed(read)}
    items = list(reversed(unique.values()))
    passages = [one.passage if recipe.passages else "" for one in items]
    texts = [f"{p}\n{one.question}\n{one.answer}" for p, one in zip(passages, items, strict=True)]
    text = utf8(pa.array(texts, pa.large_string()))
    return [one.name for one in items], texts, *_split(text, recipe.rule)


def _split(
    text: Utf8, rule: NgramRule, *, keeps_empty: bool = False
) -> tuple[Numbers, Hashes, NDArray[np.bool_] | None]:
    """Return where the words of texts begin, (N + 1,), their hashes and which are marks, (W,)."""
    if rule == "chunks":
        return marked_words(*text)
    return *plain_words(*text, keeps_empty=keeps_empty), None


def _grams(bounds: Numbers, words: Hashes, ngram: int) -> Hashes:
    return gram_hashes(bounds, words, ngram, np.empty(len(words), np.int32))


_MARKS = re.compile(rf"(?<!\S)[{re.escape(MARK)}]+(?!\S)")


def word_spans(text: str, rule: NgramRule) -> Spans:
    """Return the first character and end of each word of a text, as `GramIndex.find` counts."""
    if rule != "chunks":
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        is_empty = re.compile(f"[{re.escape(string.punctuation)}]+").fullmatch
        return [s for s in spans if rule == "janitor" or not is_empty(text, *s)]
    data = np.frombuffer(text.encode(), np.uint8)
    words, joined = np.empty((2, len(data)), np.uint64)
    bounds, size = np.empty((2, len(data)), np.int32), len(data)
    table = folded_characters()
    num = fold_words(data, 0, size, table, words, joined, bounds[0], bounds[1], 0, size)
    places = np.flatnonzero(data & 0xC0 != 0x80)
    spans = [(a, b) for a, b in np.searchsorted(places, bounds[:, :num]).T.tolist()]
    return sorted([*spans, *(match.span() for match in _MARKS.finditer(text))])


class Cutting(NamedTuple):
    """Characters cut around a match, fewest of a piece that stays, most pieces, or matches."""

    window: int
    min_piece: int
    max_pieces: int


def janitor_pieces(num: int, spans: Sequence[tuple[int, int]], by: Cutting) -> tuple[Spans, int]:
    """Return what lm_eval's `Janitor.clean` leaves of `num` characters, and what it counts.

    It counts n-grams, overlapping ones each; of all windows but the last the last character stays.

    Args:
        num: characters.
        spans: first character and end of the n-grams that match, in order.
        by: how much is cut.
    """
    kept, after, last = [], 0, -1
    for start, end in spans:
        first, last = max(0, start - by.window), min(num, end - 1 + by.window)
        if first - after > by.min_piece:
            kept.append((after, first))
        after = last
    if last < num - by.min_piece:
        kept.append((last + 1, num))
    return kept, len(spans)


def gpt3_pieces(num: int, spans: Sequence[tuple[int, int]], by: Cutting) -> tuple[Spans, int]:
    """Return the same by the paper's words: all pieces count, short ones, too."""
    pieces, after = [], 0
    for start, end in spans:
        if start - by.window > after:
            pieces.append((after, start - by.window))
        after = max(after, end + by.window)
    if after < num:
        pieces.append((after, num))
    return [(first, end) for first, end in pieces if end - first >= by.min_piece], len(pieces)
