from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.wordgrams import fill_table, gram_hashes, scan
from corpuskit.kernels.wordhash import BYTE_KINDS, folded_characters
from tests.kernels.test_overlap import frozen, sentences, words_of

few = settings(max_examples=40)


def grams_of(text: list[str], ngram: int) -> list[tuple[str, ...]]:
    return [tuple(text[at : at + ngram]) for at in range(len(text) - ngram + 1)]


@given(
    st.lists(sentences, min_size=1, max_size=4), st.lists(sentences, max_size=4), st.integers(2, 4)
)
@few
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
