"""Plain n-grams of benchmark items, as papers compare them, and what is cut around a match."""

from __future__ import annotations

import functools
import re
import string
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import Utf8, utf8
from corpuskit.kernels.overlap import gram_hashes, known_grams
from corpuskit.kernels.plainwords import MARK, marked_words, plain_words
from corpuskit.kernels.wordhash import fold_words, folded_characters
from corpuskit.stages.dedup.decontaminate.index import make_table, word_weights
from corpuskit.stages.dedup.decontaminate.items import distinct_items, read_benchmarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.kernels.arrays import Bools, Float64s, Int32s, Int64s, Uint64s
    from corpuskit.stages.dedup.decontaminate.items import BenchmarkColumns


NgramRule = Literal["gpt3", "janitor", "llama3", "chunks"]

CharSpans = list[tuple[int, int]]


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
        weights, last_weights: (G,) of all words of an n-gram, and of its last word; empty unless
            the rule is `chunks`.
    """

    rule: NgramRule
    ngram: int
    items: list[str]
    hashes: Uint64s
    owners: Int64s
    table: tuple[Uint64s, Uint64s, Int32s]
    bounds: Int64s
    grams: Uint64s
    weights: Float64s
    last_weights: Float64s

    def find(self, text: Utf8) -> tuple[Int64s, Int64s, Uint64s]:
        """Return the n-grams of texts that items have, in order: text, first word, n-gram."""
        bounds, words, _ = _split(text, self.rule, keeps_empty=self.rule == "janitor")
        grams = _grams(bounds, words, self.ngram)
        matches = known_grams(grams, *self.table)
        rows = np.searchsorted(bounds, matches, side="right") - 1
        return rows, matches - bounds[rows], grams[matches]

    def shares(self, grams: Uint64s) -> Float64s:
        """Return the share of each item's words that some n-grams cover, (I,)."""
        begins = np.flatnonzero(np.isin(self.grams, grams) & (self.grams > 0))
        # +1 where an n-gram begins, -1 after its end: the running sum is above 0 where words are
        # covered.
        steps = np.bincount(begins, minlength=len(self.grams) + self.ngram).astype(np.int64)
        steps[self.ngram :] -= np.bincount(begins, minlength=len(self.grams))
        covered = np.append(0, np.cumsum(np.cumsum(steps[: len(self.grams)]) > 0))
        words = np.maximum(np.diff(self.bounds), 1)
        shares: Float64s = np.diff(covered[self.bounds]) / words
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
    table = make_table(hashes)
    for array in table:
        array.flags.writeable = False
    owners = np.searchsorted(bounds, firsts, side="right") - 1
    weights = last_weights = np.empty(0)
    if is_mark is not None:
        weights_of_words = np.zeros(len(words))
        weights_of_words[~is_mark] = word_weights(texts)
        # Exact: weights are multiples of `index.GRAIN`.
        sums = np.append(0.0, np.cumsum(weights_of_words))
        ends = firsts + recipe.ngram
        weights, last_weights = sums[ends] - sums[firsts], sums[ends] - sums[ends - 1]
    return GramIndex(
        recipe.rule, recipe.ngram, names, hashes, owners, table, bounds, grams, weights,
        last_weights,
    )  # fmt: skip


@functools.lru_cache(maxsize=4)
def item_words(recipe: GramRecipe) -> tuple[list[str], Int64s]:
    """Return the names of the different items, and how many words each has that are compared.

    Raises:
        UsageError: as `open_grams`.
    """
    names, _, bounds, *_ = _read(recipe)
    return names, np.diff(bounds)


def _read(
    recipe: GramRecipe,
) -> tuple[list[str], list[str], Int64s, Uint64s, Bools | None]:
    """Return names and texts of the different items, and their words as `_split` does."""
    items = distinct_items(read_benchmarks(recipe.files, recipe.columns))
    texts = [
        f"{item.passage if recipe.passages else ''}\n{item.question}\n{item.answer}"
        for item in items
    ]
    text = utf8(pa.array(texts, pa.large_string()))
    return [item.name for item in items], texts, *_split(text, recipe.rule)


def _split(
    text: Utf8, rule: NgramRule, *, keeps_empty: bool = False
) -> tuple[Int64s, Uint64s, Bools | None]:
    """Return the bounds of the words of texts, (N + 1,), their hashes and which are marks, (W,)."""
    if rule == "chunks":
        return marked_words(*text)
    return *plain_words(*text, keeps_empty=keeps_empty), None


def _grams(bounds: Int64s, words: Uint64s, ngram: int) -> Uint64s:
    return gram_hashes(bounds, words, ngram, np.empty(len(words), np.int32))


_MARKS = re.compile(rf"(?<!\S)[{re.escape(MARK)}]+(?!\S)")


def word_spans(text: str, rule: NgramRule) -> CharSpans:
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
    char_starts = np.flatnonzero(data & 0xC0 != 0x80)  # in bytes
    spans = [(a, b) for a, b in np.searchsorted(char_starts, bounds[:, :num]).T.tolist()]
    return sorted([*spans, *(match.span() for match in _MARKS.finditer(text))])


def janitor_pieces(
    num: int, spans: Sequence[tuple[int, int]], window: int, min_piece: int
) -> tuple[CharSpans, int]:
    """Return what lm_eval's `Janitor.clean` leaves of `num` characters, and what it counts.

    It counts n-grams, overlapping ones each; of all windows but the last the last character stays.

    Args:
        num: characters.
        spans: first character and end of the n-grams that match, in order.
        window: characters that are cut before and after an n-gram.
        min_piece: fewest characters of a piece that stays.
    """
    kept, after, last = [], 0, -1
    for start, end in spans:
        first, last = max(0, start - window), min(num, end - 1 + window)
        if first - after > min_piece:
            kept.append((after, first))
        after = last
    if last < num - min_piece:
        kept.append((last + 1, num))
    return kept, len(spans)


def gpt3_pieces(
    num: int, spans: Sequence[tuple[int, int]], window: int, min_piece: int
) -> tuple[CharSpans, int]:
    """Return the same by the words of the paper, which counts pieces, also short ones."""
    pieces, after = [], 0
    for start, end in spans:
        if start - window > after:
            pieces.append((after, start - window))
        after = max(after, end + window)
    if after < num:
        pieces.append((after, num))
    return [(first, end) for first, end in pieces if end - first >= min_piece], len(pieces)
