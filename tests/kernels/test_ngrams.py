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
from corpuskit.kernels.ngrams import (
    LANES,
    JoinedWords,
    hash_ngrams,
    join_words,
    lower_words,
    sha1_each,
    xxh32,
)
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


EDGES = [0, 1, 3, 4, 15, 16, 17, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128]


def sha1_of(messages: list[bytes]) -> list[int]:
    data = np.frombuffer(b"".join(messages) + b"?", np.uint8)
    ends = np.cumsum([len(message) for message in messages]).astype(np.int64)
    begins = ends - np.array([len(message) for message in messages], np.int64)
    out = np.empty(len(messages), np.uint64)
    sha1_each(data, begins, ends, out)
    return out.tolist()


def plain_sha1(message: bytes) -> int:
    return int.from_bytes(hashlib.sha1(message).digest()[:8], "little")


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=130), min_size=1, max_size=LANES + 2))
def test_sha1_equals_the_reference(messages: list[bytes]) -> None:
    assert sha1_of(messages) == [plain_sha1(message) for message in messages]


def test_messages_of_other_lengths_do_not_disturb_their_neighbours() -> None:
    messages = [bytes([size]) * size for size in EDGES]
    assert sha1_of(messages) == [plain_sha1(message) for message in messages]


@given(st.binary(max_size=70), st.integers(0, 9))
def test_xxh32_equals_the_reference(content: bytes, before: int) -> None:
    data = np.frombuffer(b"x" * before + content + b"y", np.uint8)
    ours = xxh32(data, before, before + len(content))
    assert int(ours) == xxhash.xxh32_intdigest(content)


@pytest.mark.parametrize("size", EDGES)
def test_xxh32_at_the_edges_of_its_blocks(size: int) -> None:
    content = bytes(range(200))[:size]
    data = np.frombuffer(content + b"z", np.uint8)
    assert int(xxh32(data, 0, size)) == xxhash.xxh32_intdigest(content)
