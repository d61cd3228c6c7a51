"""Which stretches of texts resemble which parts of benchmark items."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.overlap import align, gather
from corpuskit.kernels.wordgrams import scan
from corpuskit.kernels.wordhash import BYTE_KINDS, folded_characters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.formats.batch import Utf8
    from corpuskit.stages.dedup._contamination import Index

    Numbers = NDArray[np.int64]
    Floats = NDArray[np.float64]

SKIP = 2.0**-6
"""What a word of the text costs that an alignment passes over, where a word of one item alone is
worth 1; exact, as weights are."""

MAX_GAP = 16
"""Most words between the beginnings of two n-grams of one stretch."""

MAX_REPEATS = 64
"""So many times is the same n-gram of one text looked at."""

_SLACK = 8


@dataclasses.dataclass(frozen=True)
class Stretches:
    """Alignments of texts with parts, sorted by text.

    Attributes:
        rows, parts: (n,) text and part.
        firsts, lasts: (n,) words of the text, first and end.
        starts, ends: (n,) the same in bytes from the beginning of the text.
        scores: (n,) share of the weight of the part's words that was found, in order.
        runs, run_weights: (n,) words of the longest run without a gap, and their weight.
        run_starts, run_ends: (n,) bytes of that run.
    """

    rows: Numbers
    parts: Numbers
    firsts: Numbers
    lasts: Numbers
    starts: Numbers
    ends: Numbers
    scores: Floats
    runs: Numbers
    run_weights: Floats
    run_starts: Numbers
    run_ends: Numbers

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Stretches:
        """Return some of them."""
        return Stretches(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


def find_stretches(
    text: Utf8, index: Index, ngram: int, *, min_share: float, min_run: int
) -> tuple[Stretches, Numbers]:
    """Return what resembles items, and the words of each text.

    Args:
        text: the texts.
        index: of the items.
        ngram: words of the index's n-grams.
        min_share: of a part's words, that n-grams must cover for the stretch to be looked at.
        min_run: or so many words in a row.
    """
    table = folded_characters()
    grams = index.grams
    counts, found = scan(
        text.offsets, text.data, table, BYTE_KINDS, ngram, grams.bitmap, grams.slots, grams.numbers
    )
    windows = _windows(found.reshape(-1, 3), counts, index, ngram, min_share, min_run)
    return measure(text, windows, index), counts


def measure(text: Utf8, windows: Numbers, index: Index) -> Stretches:
    """Align windows of texts with parts.

    Args:
        text: the texts.
        windows: (n, 4): text, part, first word and end; sorted by text.
        index: of the parts.
    """
    parts = index.parts
    found, sums = align(
        text.offsets, text.data, folded_characters(), BYTE_KINDS, windows,
        parts.starts, parts.words, parts.joined, parts.weights, SKIP,
    )  # fmt: skip
    scores = sums[:, 0] / index.totals[windows[:, 1]]
    return Stretches(
        windows[:, 0], windows[:, 1], found[:, 0], found[:, 1], found[:, 2], found[:, 3],
        np.minimum(scores, 1.0), found[:, 5], sums[:, 1], found[:, 6], found[:, 7],
    )  # fmt: skip


def _windows(
    found: Numbers, counts: Numbers, index: Index, ngram: int, min_share: float, min_run: int
) -> Numbers:
    """Return windows of texts that are worth a closer look."""
    found = found[_rank(found) < MAX_REPEATS]
    starts = index.grams.starts
    sizes = np.diff(starts)[found[:, 2]]
    ends = np.cumsum(sizes)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(
        starts[found[:, 2]] - (ends - sizes), sizes
    )
    rows, texts = np.repeat(found[:, 0], sizes), np.repeat(found[:, 1], sizes)
    parts, places = index.gram_parts[places], index.gram_places[places]
    keys = rows * len(index.kinds) + parts
    order = np.argsort(keys, kind="stable")
    keys, texts, parts, places = keys[order], texts[order], parts[order], places[order]
    groups, sums = gather(
        keys, texts.astype(np.int32), parts, places, index.parts.starts, index.parts.weights, ngram,
        MAX_GAP,
    )  # fmt: skip
    groups = groups[(sums[:, 0] >= min_share * sums[:, 1]) | (groups[:, 3] >= min_run)]
    firsts = groups[:, 0]
    lasts = firsts + groups[:, 1] - 1
    length = index.lengths[parts[firsts]]
    slack = _SLACK + length // 4
    row = rows[order][firsts]
    low = np.maximum(texts[firsts] - places[firsts] - slack, 0)
    high = np.minimum(texts[lasts] + (length - places[lasts]) + slack, counts[row])
    return np.stack([row, parts[firsts].astype(np.int64), low, high], axis=1)


def _rank(found: Numbers) -> Numbers:
    """Return how many times an n-gram was found before in the same text."""
    keys = found[:, 0] << 32 | found[:, 2]
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[order][1:] != keys[order][:-1]
    at = np.arange(len(keys))
    ranks = np.empty(len(keys), np.int64)
    ranks[order] = at - np.maximum.accumulate(np.where(is_first, at, 0))
    return ranks
