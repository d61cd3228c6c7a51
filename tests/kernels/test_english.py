# ruff: noqa: E501
"""spaCy's own tokenizer is the plain twin: each chunk that the kernel answers, it answers alike."""

from __future__ import annotations

import functools
import itertools
import random
import re

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.words import english
from corpuskit.kernels.words.english import is_url
from corpuskit.kernels.words.english import split_scratch as room_of
from corpuskit.text.spacy import language_facts, pipeline

PARTS = [
    *"abcXYZ019.,:;!?()[]{}<>_#*&'\"`%=+-~/|^@\\$\x00\x7f",
    *("'s", "'S", "n't", "..", "...", "--", "---", "U.S.", "Mr.", "cannot", "gonna", "Im", "dont"),
    *("a.m.", "km", "m/s", "mbar", "3rd", ":)", "=D", "o.O", "St.", "e.g.", "8am", "10a.m.", "He's"),
    *("US$", "C$", "A$", "http://", "www.", "x.com", ".org", ":8080", "/p?q#r", "192.168.1.1"),
    *("8.8.8.8", "255", "user@", "mailto:", "ftp://", "-a-", "_b_", "\u2019s", "\u2019", "\u201c"),
    *("\u201d", "\u2014", "\u2014\u2014", "\u2013", "\u2026", "\u2026\u2026", "\u00b0", "\u00b0C."),
    *("\u00e9", "\u00c9", "\u00b5m", "\u00b2", "\u043a\u043c", "\u20ac", "\u00a3", "\u4e2d", "\u3002"),
    *("\u0663", "\u0301", "\u00ac", "\u00a1", "\U0001f600", "\U00020100", "\u30fb", "\u2192", "\ufffd"),
]  # fmt: skip
HOSTS = [
    *"aZ09.-_:/?#@",
    "com",
    "org",
    "co.uk",
    "://",
    "http",
    "10.",
    "172.16.",
    "1.2.3.4",
    "a" * 63,
]

chunks = st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join)
hosts = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=8).map("".join)


def kernel_words(chunk, code):
    """The words of a chunk, or None where spaCy is to be asked."""
    facts, data = language_facts(code), np.frombuffer(f"..{chunk}".encode(), np.uint8)
    assert facts.has_rules
    room = room_of(len(data))
    num = english.split_chunk(data, 2, len(data), facts.rules, room)
    ends = [0, *room.ends[:num].tolist()]
    text = chunk.encode()
    return None if num < 0 else [text[a:b].decode() for a, b in itertools.pairwise(ends)]


@functools.cache
def opened(code):
    return spacy.blank(code)


def spacy_words(given_chunks, code):
    """The words of chunks by spaCy itself; a line feed is a word that no special case crosses."""
    with opened(code).memory_zone():
        tokens = [token.text for token in opened(code).tokenizer("\n".join(given_chunks) + "\n")]
    breaks = [-1, *(at for at, token in enumerate(tokens) if token == "\n")]
    return [tokens[a + 1 : b] for a, b in itertools.pairwise(breaks)]


def plain_words(given_chunks, code):
    """The words of chunks by the patterns that were read off spaCy."""
    found = pipeline(code).split(given_chunks)
    words = [found.data[a:b].tobytes().decode() for a, b in zip(found.starts, found.ends, strict=True)]  # fmt: skip
    ends = np.cumsum(found.counts)
    return [words[end - num : end] for end, num in zip(ends, found.counts, strict=True)]


def differences(given_chunks, code):
    theirs, plain = spacy_words(given_chunks, code), plain_words(given_chunks, code)
    mine = [None] * len(given_chunks)
    if language_facts(code).has_rules:
        mine = [kernel_words(chunk, code) for chunk in given_chunks]
    found = zip(mine, plain, theirs, strict=True)
    return [(m, p, t) for m, p, t in found if p != t or (m is not None and m != t)]


@pytest.mark.parametrize("code", ["en", "xx"])
def test_pairs_of_parts_split_as_spacy_splits_them(code):
    parts = PARTS[::2]
    given_chunks = [a + b for a in parts for b in parts[:: 5 if code == "en" else 15]]
    assert differences(given_chunks, code) == []


@settings(max_examples=60)
@given(st.lists(st.one_of(chunks, hosts), min_size=1, max_size=6))
def test_chunks_split_as_spacy_splits_them(given_chunks):
    assert differences(given_chunks, "en") == []


@pytest.mark.slow
@pytest.mark.parametrize("code", ["en", "xx", "tn", "fr", "de", "hu", "tr", "bn"])
def test_thousands_of_adversarial_chunks_split_as_spacy_splits_them(code):
    chance = random.Random(code)
    given_chunks = []
    for _ in range(10_000 if language_facts(code).has_rules else 4_000):
        parts = HOSTS if chance.random() < 0.2 else PARTS
        given_chunks.append("".join(chance.choices(parts, k=chance.randrange(1, 9))))
    for at in range(0, len(given_chunks), 5000):
        assert differences(given_chunks[at : at + 5000], code) == []


@pytest.mark.parametrize(
    "chunk",
    [
        "word", "word,", "(word)", "don't", "(don't)", "it's.", "5km", "US$5", "5US$", "100%", "+1",
        "U.S.", "e.g.,", "https://a.org/b?c=d#e", "x@y.com", "a.b/c", "well-known", "1990-2000",
        "3-d", "and/or", "\u201cquoted\u201d", "caf\u00e9s,", "dash\u2014dash", "\u20ac5", "1.2.3.4:80",
    ],
)  # fmt: skip
def test_ordinary_chunks_are_not_asked_for(chunk):
    assert kernel_words(chunk, "en") == spacy_words([chunk], "en")[0]


@pytest.mark.parametrize("chunk", ["foo:)", "5\u00b5m", "\u0663", "\U00020100"])
def test_what_the_kernel_does_not_know_is_asked_for(chunk):
    assert kernel_words(chunk, "en") is None


@given(hosts)
def test_urls_are_those_of_spacys_pattern(text):
    from spacy.lang.tokenizer_exceptions import URL_PATTERN

    rules = language_facts("en").rules
    data = np.frombuffer(text.encode(), np.uint8)
    room = room_of(len(data))
    num = english._decode(data, 0, len(data), rules.classes, room)
    found = is_url(room.codes, room.bits, 0, num)
    assert bool(found) == bool(re.match(f"(?u){URL_PATTERN}", text))


def test_a_megabyte_of_brackets_takes_linear_time():
    size = 1_000_000 if english.split_chunk.__class__.__name__ != "function" else 2000
    data = np.frombuffer(b"(" * size, np.uint8)
    room = room_of(size)
    assert english.split_chunk(data, 0, size, language_facts("en").rules, room) == size
