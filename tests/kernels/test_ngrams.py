from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.ngrams import JoinedWords, hash_ngrams, join_words, lower_words
from corpuskit.kernels.words.lexicon import Lexicon
from tests.kernels.test_wordhash import plain_words, texts


def column(given: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Texts that don't begin where their buffer begins."""
    return utf8(pa.array(["before", *given], pa.large_string()).slice(1))


def words_of(joined: JoinedWords) -> list[list[str]]:
    data = joined.data.tobytes()
    found = [data[a : b - 1].decode() for a, b in itertools.pairwise(joined.starts.tolist())]
    assert all(data[end - 1] == 32 for end in joined.starts[1:].tolist())
    return [found[a:b] for a, b in itertools.pairwise(joined.bounds.tolist())]


def join(words: list[list[str]]) -> JoinedWords:
    """Words of texts by way of a lexicon."""
    lexicon = Lexicon()
    flat = list(itertools.chain(*words))
    lexicon.append(flat)
    bounds = np.cumsum([0, *map(len, words)]).astype(np.int64)
    tokens = np.arange(len(flat), dtype=np.int32)
    return JoinedWords(bounds, *join_words(bounds, tokens, lexicon.starts, lexicon.data))


@given(st.lists(texts, max_size=4))
def test_lower_words_are_those_of_re(given: list[str]) -> None:
    assert words_of(lower_words(*column(given))) == [plain_words(text) for text in given]


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=5)))
def test_joined_words_are_those_of_the_lexicon(words: list[list[str]]) -> None:
    assert words_of(join(words)) == words


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.sampled_from(["a", "bc", "\u00e9t\u00e9", "x" * 20]), max_size=7)),
    st.integers(1, 6),
    st.sampled_from([("sha1", 32), ("sha1", 64), ("xxhash", 32), ("xxhash", 64)]),
    st.booleans(),
)
def test_ngrams_are_hashed_as_bytes_joined_by_spaces(
    words: list[list[str]], ngram: int, how: tuple[str, int], keeps_short: bool
) -> None:
    functions = {
        ("sha1", 32): lambda x: int.from_bytes(hashlib.sha1(x).digest()[:4], "little"),
        ("sha1", 64): lambda x: int.from_bytes(hashlib.sha1(x).digest()[:8], "little"),
        ("xxhash", 32): xxhash.xxh32_intdigest,
        ("xxhash", 64): xxhash.xxh64_intdigest,
    }
    bounds, hashes = hash_ngrams(join(words), ngram, *how, keeps_short=keeps_short)
    expected = []
    for text in words:
        width = min(ngram, len(text)) if keeps_short else ngram
        starts = range(len(text) - width + 1) if width else []
        grams = [" ".join(text[start : start + width]).encode() for start in starts]
        expected.append([functions[how](gram) for gram in grams])
    found = [hashes[a:b].tolist() for a, b in itertools.pairwise(bounds.tolist())]
    assert found == expected


@pytest.mark.parametrize(("num_words", "short", "whole"), [(0, 0, 0), (1, 1, 0), (5, 1, 1)])
def test_a_text_of_few_words_has_one_ngram_or_none(num_words: int, short: int, whole: int) -> None:
    words = join([["w"] * num_words])
    for keeps_short, num in ((True, short), (False, whole)):
        assert len(hash_ngrams(words, 5, "xxhash", 64, keeps_short=keeps_short)[1]) == num
