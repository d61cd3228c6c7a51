"""Which items a text holds.

N-grams lead to windows of the text and parts of items (`_windows`); an alignment of each gives a
stretch and its score (`align_windows`); thresholds decide which stretches count (`find_items`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.overlap import align, gather, scan, shared_runs
from corpuskit.kernels.wordhash import BYTE_KINDS, folded_characters
from corpuskit.stages.dedup.decontaminate.index import ANSWER, BOTH, PASSAGE, QUESTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from corpuskit.formats.batch import Utf8
    from corpuskit.kernels.arrays import AnyArray, Bools, Float64s, Int64s
    from corpuskit.stages.dedup.decontaminate.index import ItemIndex


RULES = ("question_answer", "question", "answer", "passage", "chunk", "phrase")
WITH_ANSWER, ALONE, LONE_ANSWER, LONE_PASSAGE, CHUNK, PHRASE = range(1, 7)
"""Codes of the rules."""

_LEAST_BESIDE = 0.8
"""Least score of an answer or a passage near its question."""

_LEAST_SHARE = 0.4
"""Stretches whose n-grams cover less of a part are not aligned with it."""

_LEAST_QUESTION = 0.5
"""Least score of a question whose answer is searched for."""

LEAST_PHRASE = 1.0
"""Least weight of a run of words: of 16,632 documents without items 170 have one of any weight, 48
of this ("1 2 3 4 5 6 7 8" weighs less); of 8-word runs of items 0.5 % weigh less."""

_NEAR = 40
"""Words besides its own length within which an answer or passage counts as beside the question."""


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """What counts as a match; the parameters of the stage say more.

    Attributes:
        min_score: least score of a part of `loose_words` words or more.
        min_words: parts of at most this many words must be complete.
        min_weight: least weight of the matched words.
        chunk_words, chunk_weight: least run of words, and its weight; longer runs need less.
            0 words: never.
        passages: whether a passage alone counts.
    """

    min_score: float
    min_words: int
    loose_words: int
    min_weight: float
    chunk_words: int
    chunk_weight: float
    passages: bool

    def of(self, lengths: Int64s) -> Float64s:
        """Return the least scores of parts, by their words."""
        steps = max(self.loose_words - self.min_words, 1)
        looseness = np.clip((lengths - self.min_words) / steps, 0, 1)
        scores: Float64s = 1 - (1 - self.min_score) * looseness
        return scores


@dataclasses.dataclass(frozen=True)
class Findings:
    """Items that texts hold, sorted by text, rule, score, item.

    Attributes:
        rows, codes, items: (n,) text, rule and item.
        scores: (n,) share of the item that is there.
        values, bounds: (n,) what the rule measured, and its threshold.
        starts, ends: (n,) bytes of the text.
    """

    rows: Int64s
    codes: Int64s
    items: Int64s
    scores: Float64s
    values: Float64s
    bounds: Float64s
    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Bools) -> Findings:
        """Return some of them."""
        return Findings(*(column[rows] for column in _columns(self)))


def find_items(text: Utf8, index: ItemIndex, ngram: int, thresholds: Thresholds) -> Findings:
    """Return the items that texts hold."""
    table, grams = folded_characters(), index.grams
    counts, hits = scan(
        text.offsets, text.data, table, BYTE_KINDS, ngram, grams.bitmap, grams.slots, grams.numbers
    )
    hits = hits.reshape(-1, 3)
    share = min(_LEAST_SHARE, thresholds.min_score)
    stretches = align_windows(text, _windows(hits, counts, index, ngram, share), index)
    kinds = index.kinds[stretches.parts]
    parts = [
        _questions(text, stretches.take(kinds == QUESTION), counts, index, thresholds),
        _alone(stretches.take(kinds == BOTH), index, thresholds, WITH_ANSWER),
        _alone(stretches.take(kinds == ANSWER), index, thresholds, LONE_ANSWER),
    ]
    if thresholds.passages:
        parts.append(_alone(stretches.take(kinds == PASSAGE), index, thresholds, LONE_PASSAGE))
    if thresholds.chunk_words:
        parts.append(_chunks(text, hits, index, ngram, thresholds))
    columns = [np.concatenate(column) for column in zip(*map(_columns, parts), strict=True)]
    findings = Findings(*columns)
    order = np.lexsort(
        (findings.starts, findings.items, -findings.scores, findings.codes, findings.rows)
    )
    return Findings(*(column[order] for column in columns))


def _columns(findings: Findings) -> Iterator[AnyArray]:
    return (getattr(findings, field.name) for field in dataclasses.fields(findings))


def _alone(stretches: Stretches, index: ItemIndex, thresholds: Thresholds, code: int) -> Findings:
    """Judge parts by themselves."""
    least = thresholds.of(index.lengths[stretches.parts])
    weights = stretches.scores * index.totals[stretches.parts]
    hit = (stretches.scores >= least) & (weights >= thresholds.min_weight)
    hits, least = stretches.take(hit), least[hit]
    return Findings(
        hits.rows, np.full(len(hits), code), _items(hits, index), hits.scores, hits.scores, least,
        hits.starts, hits.ends,
    )  # fmt: skip


def _chunks(
    text: Utf8, hits: Int64s, index: ItemIndex, ngram: int, thresholds: Thresholds
) -> Findings:
    """Judge runs of words that an item has in a row, which suffice by themselves if they weigh.

    A run of `chunk_words` words needs the weight `chunk_weight`, one twice as long half of it: of
    runs from documents without items, the longer ones are numbers and phrases.
    """
    # A run of `chunk_words` words needs an n-gram at each word but the last ones of the run.
    more = thresholds.chunk_words - ngram
    last = hits[more:]
    first = hits[: len(last)]
    is_run = (last[:, 0] == first[:, 0]) & (last[:, 1] == first[:, 1] + more)
    runs, weights = shared_runs(
        text.offsets, text.data, folded_characters(), first[is_run, :2],
        thresholds.chunk_words, index.runs, index.run_words, index.parts.weights,
    )  # fmt: skip
    is_named = weights >= LEAST_PHRASE
    runs, weights = runs[is_named], weights[is_named]
    rows, words, starts, ends, item_words = runs.T
    parts = np.searchsorted(index.parts.starts, item_words, side="right") - 1
    is_rare = weights * words >= thresholds.chunk_weight * thresholds.chunk_words
    return Findings(
        rows, np.where(is_rare, CHUNK, PHRASE), index.items[parts].astype(np.int64),
        np.minimum(weights / index.totals[parts], 1.0), words.astype(np.float64),
        np.full(len(rows), float(thresholds.chunk_words)), starts, ends,
    )  # fmt: skip


def _questions(
    text: Utf8, stretches: Stretches, counts: Int64s, index: ItemIndex, thresholds: Thresholds
) -> Findings:
    """Judge questions, with the answer after and the passage before them if they are there."""
    stretches = stretches.take(stretches.scores >= min(_LEAST_QUESTION, thresholds.min_score))
    after = np.stack([stretches.lasts, counts[stretches.rows]], axis=1)
    before = np.stack([np.zeros(len(stretches), np.int64), stretches.firsts], axis=1)
    answer, is_answer = _beside(text, stretches, after, ANSWER, index)
    passage, is_passage = _beside(text, stretches, before, PASSAGE, index)
    lengths = (
        index.lengths[stretches.parts] + is_answer * answer.lengths + is_passage * passage.lengths
    )
    both = np.where(
        is_passage, 0.7 * stretches.scores + 0.1 * passage.scores, 0.75 * stretches.scores
    )
    both += np.where(is_passage, 0.2, 0.25) * answer.scores
    with_passage = 0.85 * stretches.scores + 0.15 * passage.scores
    scores = np.maximum(stretches.scores, np.where(is_answer, both, 0))
    scores = np.maximum(scores, np.where(is_passage & ~is_answer, with_passage, 0))
    least = thresholds.of(lengths)
    weights = stretches.scores * index.totals[stretches.parts]
    hit = (scores >= least) & (weights >= thresholds.min_weight)
    columns = (
        stretches.rows, np.where(is_answer, WITH_ANSWER, ALONE), _items(stretches, index), scores,
        scores, least, stretches.starts, stretches.ends,
    )  # fmt: skip
    pieces = [[column[hit] for column in columns]]
    for beside, is_beside in ((answer, hit & is_answer), (passage, hit & is_passage)):
        rows = [column[is_beside] for column in columns[:-2]]
        pieces.append([*rows, beside.starts[is_beside], beside.ends[is_beside]])
    return Findings(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


@dataclasses.dataclass(frozen=True)
class _Beside:
    """A part near each question; zeros if there is none."""

    lengths: Int64s
    scores: Float64s
    starts: Int64s
    ends: Int64s


def _beside(
    text: Utf8, stretches: Stretches, ranges: Int64s, kind: int, index: ItemIndex
) -> tuple[_Beside, Bools]:
    """Search for another part of the items near their questions.

    Args:
        ranges: (n, 2) words of the text where it may be: after the question, or before it.
        kind: ANSWER is searched for near the beginning of a range, PASSAGE near its end.

    Returns:
        The parts, and which of them count.
    """
    parts = index.parts_of[index.items[stretches.parts], kind]
    has = parts >= 0
    lengths = np.where(has, index.lengths[parts], 0)
    reach = lengths + lengths // 2 + _NEAR
    low, high = ranges.T
    if kind == ANSWER:
        high = np.minimum(high, low + reach)
    else:
        low = np.maximum(low, high - reach)
    windows = np.stack([stretches.rows, parts, low, high], axis=1)[has]
    near = align_windows(text, windows, index)
    scores = np.zeros(len(stretches))
    spans = np.zeros((2, len(stretches)), np.int64)
    scores[has], spans[0, has], spans[1, has] = near.scores, near.starts, near.ends
    return _Beside(lengths, scores, spans[0], spans[1]), scores >= _LEAST_BESIDE


def _items(stretches: Stretches, index: ItemIndex) -> Int64s:
    return index.items[stretches.parts].astype(np.int64)


# ---------------------------------------------------------------- stretches of texts


SKIP = 2.0**-6
"""Cost of a word of the text that an alignment skips; a word of a single item weighs 1. A power of
two, so that sums with weights stay exact."""

MAX_GAP = 16
"""Most words between the beginnings of two n-grams of one stretch."""

MAX_REPEATS = 64
"""Most occurrences of one n-gram in a text that are considered."""

_SLACK = 8
"""Words by which a window is longer than the part on each side, besides a quarter of the part."""


@dataclasses.dataclass(frozen=True)
class Stretches:
    """Alignments of texts with parts, sorted by text.

    Attributes:
        rows, parts: (n,) text and part.
        firsts, lasts: (n,) words of the text, first and end.
        starts, ends: (n,) the same in bytes from the beginning of the text.
        scores: (n,) share of the weight of the part's words that is there, in order.
    """

    rows: Int64s
    parts: Int64s
    firsts: Int64s
    lasts: Int64s
    starts: Int64s
    ends: Int64s
    scores: Float64s

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: NDArray[np.intp] | Bools) -> Stretches:
        """Return some of them."""
        return Stretches(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


def align_windows(text: Utf8, windows: Int64s, index: ItemIndex) -> Stretches:
    """Align windows of texts with parts.

    Args:
        text: the texts.
        windows: (n, 4): text, part, first word and end; sorted by text.
        index: of the parts.
    """
    parts = index.parts
    aligned, sums = align(
        text.offsets, text.data, folded_characters(), BYTE_KINDS, windows,
        parts.starts, parts.words, parts.joined, parts.weights, SKIP,
    )  # fmt: skip
    scores = np.minimum(sums / index.totals[windows[:, 1]], 1.0)
    firsts, lasts, starts, ends = aligned.T
    return Stretches(windows[:, 0], windows[:, 1], firsts, lasts, starts, ends, scores)


def _windows(
    hits: Int64s, counts: Int64s, index: ItemIndex, ngram: int, min_share: float
) -> Int64s:
    """Return windows of texts that are worth aligning.

    Args:
        hits: (n, 3) text, word and number of the n-grams that texts share with parts.
        counts: words of each text.
        ngram: words of an n-gram.
        min_share: of the weight of a part's words, that n-grams must cover.
    """
    hits = hits[_rank(hits) < MAX_REPEATS]
    starts = index.grams.starts
    sizes = np.diff(starts)[hits[:, 2]]
    ends = np.cumsum(sizes)
    # Each hit leads to all occurrences of its n-gram in parts.
    occurrences = np.arange(ends[-1] if len(ends) else 0) + np.repeat(
        starts[hits[:, 2]] - (ends - sizes), sizes
    )
    rows, text_words = np.repeat(hits[:, 0], sizes), np.repeat(hits[:, 1], sizes)
    parts, part_words = index.gram_parts[occurrences], index.gram_words[occurrences]
    keys = rows * len(index.kinds) + parts
    order = np.argsort(keys, kind="stable")
    keys, text_words = keys[order], text_words[order]
    parts, part_words = parts[order], part_words[order]
    groups, sums = gather(
        keys, text_words.astype(np.int32), parts, part_words, index.parts.starts,
        index.parts.weights, ngram, MAX_GAP,
    )  # fmt: skip
    groups = groups[sums[:, 0] >= min_share * sums[:, 1]]
    firsts = groups[:, 0]
    lasts = firsts + groups[:, 1] - 1
    length = index.lengths[parts[firsts]]
    slack = _SLACK + length // 4
    row = rows[order][firsts]
    low = np.maximum(text_words[firsts] - part_words[firsts] - slack, 0)
    high = np.minimum(text_words[lasts] + (length - part_words[lasts]) + slack, counts[row])
    return np.stack([row, parts[firsts].astype(np.int64), low, high], axis=1)


def _rank(hits: Int64s) -> Int64s:
    """Return how often each n-gram occurred before in the same text."""
    keys = hits[:, 0] << 32 | hits[:, 2]
    order = np.argsort(keys, kind="stable")
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[order][1:] != keys[order][:-1]
    positions = np.arange(len(keys))
    ranks = np.empty(len(keys), np.int64)
    ranks[order] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    return ranks
