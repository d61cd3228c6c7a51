from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.overlap import align, fill_table, gather, gram_hashes, scan
from corpuskit.kernels.wordhash import BYTE_KINDS, fold_all, folded_characters

if TYPE_CHECKING:
    from collections.abc import Iterator


SKIP = 2.0**-6
VOCABULARY = ("a", "b", "ab", "aab", "c")

sentences = st.lists(st.sampled_from(VOCABULARY), max_size=9)
few = settings(max_examples=40)


def frozen(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    for array in arrays:
        array.flags.writeable = False
    return arrays


def words_of(texts: list[list[str]]) -> tuple[np.ndarray, ...]:
    parts = utf8(pa.array([" ".join(text) for text in texts], pa.large_string()))
    return frozen(*fold_all(*parts, folded_characters()))


def plain_gather(rows: list[tuple[int, int, int]], length: int, ngram: int, gap: int) -> list:
    """Return stretches of (key, text, place) as lists of rows."""
    stretches: list[list[tuple[int, int, int]]] = []
    for row in rows:
        last = stretches[-1] if stretches else None
        if (
            last is not None
            and last[-1][0] == row[0]
            and row[1] - last[-1][1] <= gap
            and row[1] - last[0][1] <= length + gap
        ):
            last.append(row)
        else:
            stretches.append([row])
    return stretches


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 5)), max_size=20),
    st.integers(0, 6),
)
@few
def test_ngrams_near_each_other_make_a_stretch(rows: list[tuple[int, int, int]], gap: int) -> None:
    ngram, length = 3, 8
    rows = sorted(rows)
    weights = np.arange(1.0, length + 1)
    starts = np.array([0, length])
    frozen(starts, weights)
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    parts = np.zeros(len(rows), np.int32)
    groups, sums = gather(
        columns[0].copy(), columns[1].astype(np.int32), parts, columns[2].astype(np.int32),
        starts, weights, ngram, gap,
    )  # fmt: skip
    expected = plain_gather(rows, length, ngram, gap)
    firsts = np.cumsum([0, *map(len, expected)])[:-1].tolist()
    assert groups.tolist() == [
        [first, len(one)] for first, one in zip(firsts, expected, strict=True)
    ]
    assert all(total == weights.sum() for total in sums[:, 1])
    for one, (covered, _) in zip(expected, sums.tolist(), strict=True):
        places = {place + at for _, _, place in one for at in range(ngram)}
        assert covered <= sum(weights[place] for place in places)
        assert covered >= max(weights[place : place + ngram].sum() for _, _, place in one)


def alignments(
    part: list[str], text: list[str], row: int = 0, at: int = 0
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yield all ways to take words of both in order: (row, words of the part, at, of the text)."""
    yield []
    for i, j in itertools.product(range(row, len(part)), range(at, len(text))):
        for rows, places in ((1, 1), (2, 1), (1, 2)):
            if i + rows > len(part) or j + places > len(text):
                continue
            if "".join(part[i : i + rows]) == "".join(text[j : j + places]):
                for rest in alignments(part, text, i + rows, j + places):
                    yield [(i, rows, j, places), *rest]


@given(
    st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4),
    st.lists(st.sampled_from(VOCABULARY), max_size=5),
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
)
@few
def test_an_alignment_is_one_of_the_best_there_are(
    part: list[str], text: list[str], numbers: list[int]
) -> None:
    weights = [number / 64 for number in numbers][: len(part)]
    best: dict[float, set[tuple[float, int, int]]] = {}
    for one in alignments(part, text):
        found = sum(weights[i] for row, rows, _, _ in one for i in range(row, row + rows))
        first, last = (one[0][2], one[-1][2] + one[-1][3]) if one else (0, 0)
        passed = last - first - sum(places for _, _, _, places in one)
        best.setdefault(found - SKIP * passed, set()).add((found, first, last))
    (found, first, last), _ = aligned(part, text, weights)
    if max(best) == 0:
        assert found == 0
    else:
        assert (found, first, last) in best[max(best)]


def aligned(
    part: list[str], text: list[str], weights: list[float]
) -> tuple[tuple[float, int, int], list[int]]:
    """Return what was found from which word on to which, and all numbers."""
    starts, words, joined, _ = words_of([part])
    _, given_words, *_ = words_of([text])
    window = np.array([[0, 0, 0, len(given_words)]])
    documents = utf8(pa.array([" ".join(text)], pa.large_string()))
    (worth,) = frozen(np.array(weights))
    found, sums = align(
        *documents, folded_characters(), BYTE_KINDS, window, starts, words, joined, worth, SKIP
    )
    numbers = found[0].tolist()
    return (float(sums[0]), numbers[0], numbers[1]), numbers


def test_an_alignment_says_where_it_is() -> None:
    part = "why do matadors wave red capes".split()
    text = "so , why do they say matadors wave red and capes at all".split()
    (found, first, last), numbers = aligned(part, text, [0.25, 0.125, 1.0, 0.5, 0.5, 1.0])
    assert (found, first, last) == (3.375, 1, 10)  # the comma is no word
    content = " ".join(text)
    assert content[numbers[2] : numbers[3]] == "why do they say matadors wave red and capes"


def test_words_far_away_are_not_taken_along() -> None:
    text = ["the", *["x"] * 60, "rare", "word"]
    (_, first, last), _ = aligned(["the", "rare", "word"], text, [0.25, 1.0, 1.0])
    assert (first, last) == (61, 63)


def test_a_window_is_all_that_is_looked_at() -> None:
    starts, words, joined, _ = words_of([["a", "b"]])
    documents = utf8(pa.array(["c", "a b c a b"], pa.large_string()))
    windows = np.array([[0, 0, 0, 0], [1, 0, 1, 3], [1, 0, 2, 5]])
    (worth,) = frozen(np.array([1.0, 1.0]))
    found, sums = align(
        *documents, folded_characters(), BYTE_KINDS, windows, starts, words, joined, worth, SKIP
    )
    assert found.tolist() == [[0, 0, 0, 0], [1, 2, 2, 3], [3, 5, 6, 9]]
    assert sums.tolist() == [0, 1, 2]


few_words = settings(max_examples=40)


def grams_of(text: list[str], ngram: int) -> list[tuple[str, ...]]:
    return [tuple(text[at : at + ngram]) for at in range(len(text) - ngram + 1)]


@given(
    st.lists(sentences, min_size=1, max_size=4), st.lists(sentences, max_size=4), st.integers(2, 4)
)
@few_words
def test_a_scan_finds_each_ngram_that_is_known(
    known: list[list[str]], texts: list[list[str]], ngram: int
) -> None:
    starts, words, *_ = words_of(known)
    parts = np.empty(len(words), np.int32)
    hashes = gram_hashes(starts, words, ngram, parts)
    expected = [gram for text in known for gram in grams_of(text, ngram)]
    assert len(set(hashes[hashes != 0].tolist())) == len(set(expected))
    assert parts.tolist() == [at for at, text in enumerate(known) for _ in text]
    values = np.unique(hashes[hashes != 0])
    bitmap, slots = np.zeros(1, np.uint64), np.zeros(256, np.uint64)
    numbers = np.zeros(256, np.int32)
    fill_table(values, bitmap, slots, numbers)
    frozen(bitmap, slots, numbers)
    given_texts = utf8(pa.array([" ".join(text) for text in texts], pa.large_string()))
    counts, found = scan(
        *given_texts, folded_characters(), BYTE_KINDS, ngram, bitmap, slots, numbers
    )
    assert counts.tolist() == [len(text) for text in texts]
    which = dict(zip(expected, hashes[hashes != 0].tolist(), strict=True))
    numbered = {value: number for number, value in enumerate(values.tolist())}
    assert found.reshape(-1, 3).tolist() == [
        [row, at, numbered[which[gram]]]
        for row, text in enumerate(texts)
        for at, gram in enumerate(grams_of(text, ngram))
        if gram in which
    ]


def test_more_ngrams_than_there_was_room_for_are_all_found() -> None:
    starts, words, *_ = words_of([["a", "b"]])
    values = gram_hashes(starts, words, 2, np.empty(2, np.int32))[:1]
    bitmap, slots, numbers = np.zeros(1, np.uint64), np.zeros(8, np.uint64), np.zeros(8, np.int32)
    fill_table(values, bitmap, slots, numbers)
    frozen(bitmap, slots, numbers)
    text = utf8(pa.array(["a b " * 5000], pa.large_string()))
    _, found = scan(*text, folded_characters(), BYTE_KINDS, 2, bitmap, slots, numbers)
    assert found.reshape(-1, 3)[:, 1].tolist() == list(range(0, 10_000, 2))
