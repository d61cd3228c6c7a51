"""Plain n-grams of benchmark items, as papers compare them, and what a match costs a document."""

from __future__ import annotations

import functools
import re
import string
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import Utf8, utf8
from corpuskit.kernels.overlap import fill_table, gram_hashes, known_grams, scan
from corpuskit.kernels.plainwords import plain_words
from corpuskit.kernels.wordhash import BYTE_KINDS, fold_words, folded_characters
from corpuskit.stages.dedup.decontaminate.index import Recipe, open_index
from corpuskit.stages.dedup.decontaminate.items import read_benchmarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.stages.dedup.decontaminate.items import BenchmarkColumns

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

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
        bounds, grams: (I + 1,) and (W,): n-gram that begins at each word of each item, or 0; empty
            with `chunks`.
        places, weights: with `chunks`, (G,) a word where each n-gram begins, and what words weigh.
    """

    rule: NgramRule
    ngram: int
    items: list[str]
    hashes: Hashes
    owners: Numbers
    table: tuple[Hashes, Hashes, NDArray[np.int32]]
    bounds: Numbers
    grams: Hashes
    places: Numbers
    weights: NDArray[np.float64]

    def find(self, text: Utf8) -> tuple[Numbers, Numbers, Hashes]:
        """Return the n-grams of texts that items have, in order: text, first word, n-gram."""
        if self.rule == "chunks":
            _, hits = scan(*text, folded_characters(), BYTE_KINDS, self.ngram, *self.table)
            rows, words, numbers = hits.reshape(-1, 3).T
            return rows, words, self.hashes[numbers]
        bounds, words = plain_words(*text, keeps_empty=self.rule == "janitor")
        grams = _grams(bounds, words, self.ngram)
        places = known_grams(grams, *self.table)
        rows = np.searchsorted(bounds, places, side="right") - 1
        return rows, places - bounds[rows], grams[places]

    def weigh(self, words: Numbers, hashes: Hashes) -> float:
        """Return the largest weight of a run of n-grams of one text, with `chunks`.

        A run weighs what its words do, once for each `ngram` words that it is long.

        Args:
            words, hashes: where n-grams begin, ascending, and which they are.
        """
        places, last = self.places[np.searchsorted(self.hashes, hashes)], self.ngram - 1
        heaviest = 0.0
        for run in np.split(places, np.flatnonzero(np.diff(words) != 1) + 1):
            weight = self.weights[run[0] : run[0] + last].sum() + self.weights[run + last].sum()
            heaviest = max(heaviest, float(weight) * (len(run) + last) / self.ngram)
        return heaviest

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
    _, _, rule, ngram, passages, _ = recipe
    if rule == "chunks":
        known = open_index(Recipe(*recipe[:2], 5, max(ngram, 8), (), ngram, passages))
        parts = np.searchsorted(known.parts.starts, known.run_places, side="right") - 1
        owners, weights = known.items[parts].astype(np.int64), known.parts.weights
        nothing = np.zeros(1, np.int64), np.empty(0, np.uint64)
        names, hashes, places = known.names.to_pylist(), known.runs, known.run_places
        table = _table(hashes)
        return GramIndex(rule, ngram, names, hashes, owners, table, *nothing, places, weights)
    read = read_benchmarks(recipe.files, recipe.columns)
    unique = {(one.question, one.answer, one.passage): one for one in reversed(read)}
    items = list(reversed(unique.values()))
    texts = [f"{one.passage if passages else ''}\n{one.question}\n{one.answer}" for one in items]
    bounds, words = plain_words(*utf8(pa.array(texts, pa.large_string())), keeps_empty=False)
    grams = _grams(bounds, words, ngram)
    hashes, firsts = np.unique(grams, return_index=True)
    hashes, firsts = hashes[hashes > 0], firsts[hashes > 0]
    owners = np.searchsorted(bounds, firsts, side="right") - 1
    none = np.empty(0, np.int64), np.empty(0)
    names = [one.name for one in items]
    return GramIndex(rule, ngram, names, hashes, owners, _table(hashes), bounds, grams, *none)


def _grams(bounds: Numbers, words: Hashes, ngram: int) -> Hashes:
    return gram_hashes(bounds, words, ngram, np.empty(len(words), np.int32))


def _table(hashes: Hashes) -> tuple[Hashes, Hashes, NDArray[np.int32]]:
    size = 1 << max(2 * len(hashes), 64).bit_length()
    table = np.zeros(size >> 3, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.int32)
    fill_table(hashes, *table)
    for array in table:
        array.flags.writeable = False
    return table


def word_spans(text: str, rule: NgramRule) -> Spans:
    """Return the first character and end of each word of a text, as `GramIndex.find` counts."""
    if rule != "chunks":
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        is_empty = re.compile(f"[{re.escape(string.punctuation)}]+").fullmatch
        return [s for s in spans if rule == "janitor" or not is_empty(text, *s)]
    data = np.frombuffer(text.encode(), np.uint8)
    words, joined = np.empty((2, len(data)), np.uint64)
    bounds = np.empty((2, len(data)), np.int32)
    num = fold_words(data, 0, len(data), folded_characters(), words, joined, *bounds, 0, len(data))
    places = np.flatnonzero(data & 0xC0 != 0x80)
    return [(a, b) for a, b in np.searchsorted(places, bounds[:, :num]).T.tolist()]


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
