"""Word boundaries, and the n-grams of the words between them, as plain Python has them."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import regex
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.arrays import frozen
from corpuskit.kernels.words.boundaries import (
    CLASSES,
    group_ngrams,
    hash_boundary_words,
    unit_ngrams,
)
from corpuskit.text.words import boundary_classes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ODD = (
    "ab1_ '\".,:;\r\n\t-\u00a0\u05d0\u30a2\u0301\u200d\u00ad\u2139\u3042\u4e2d\u0e01\u2003\u0085"
    "\u2028\u0661\u066b\ufe0f\u202f\U0001f468\U0001f3fb\U0001f1e6\U000e0020"
)
texts = st.one_of(st.text(ODD, max_size=12), st.text(st.characters(codec="utf-8"), max_size=12))
LETTERS, NEWLINES = {"ALetter", "HL"}, {"CR", "LF", "Newline"}
PASSED = {"Extend", "Format", "ZWJ"}


@functools.cache
def class_of(char: str) -> str:
    names = (name for name in CLASSES[1:] if regex.match(rf"\p{{WB={name}}}", char))
    return next(names, "Other")


def plain_words(text: str) -> list[str]:
    """Split by the rules of UAX #29 as they are written, one after the other."""
    kinds = [class_of(char) for char in text]
    words, start = [], 0
    for at in range(1, len(text) + 1):
        if at == len(text) or has_boundary(text, kinds, at):
            words.append(text[start:at])
            start = at
    return [word for word in words if word.strip()]


def has_boundary(text: str, kinds: list[str], at: int) -> bool:
    before, here = kinds[at - 1], kinds[at]
    if (before, here) == ("CR", "LF"):  # WB3
        return False
    if before in NEWLINES or here in NEWLINES:  # WB3a, WB3b
        return True
    if before == "ZWJ" and regex.match(r"\p{ExtPict}", text[at]):  # WB3c
        return False
    if before == here == "WSegSpace":  # WB3d
        return False
    if here in PASSED:  # WB4
        return False
    bases = [
        (place, kind)
        for place, kind in enumerate(kinds)
        if kind not in PASSED or place == 0 or kinds[place - 1] in NEWLINES
    ]
    left = [kind for place, kind in bases if place < at]
    right = [kind for place, kind in bases if place > at]
    b1, b2, after = left[-1], (["", *left])[-2], ([*right, ""])[0]
    middle, number = {"MidLetter", "MB", "SQ"}, {"MN", "MB", "SQ"}
    joined = (
        (b1 in LETTERS and here in LETTERS)  # WB5
        or (b1 in LETTERS and here in middle and after in LETTERS)  # WB6
        or (b2 in LETTERS and b1 in middle and here in LETTERS)  # WB7
        or (b1 == "HL" and here == "SQ")  # WB7a
        or (b1 == "HL" and here == "DQ" and after == "HL")  # WB7b
        or (b2 == "HL" and b1 == "DQ" and here == "HL")  # WB7c
        or (b1 == "NU" and here == "NU")  # WB8
        or (b1 in LETTERS and here == "NU")  # WB9
        or (b1 == "NU" and here in LETTERS)  # WB10
        or (b2 == "NU" and b1 in number and here == "NU")  # WB11
        or (b1 == "NU" and here in number and after == "NU")  # WB12
        or (b1 == "Katakana" and here == "Katakana")  # WB13
        or (b1 in {*LETTERS, "NU", "Katakana", "EX"} and here == "EX")  # WB13a
        or (b1 == "EX" and here in {*LETTERS, "NU", "Katakana"})  # WB13b
    )
    regionals = len(list(itertools.takewhile(lambda kind: kind == "RI", reversed(left))))
    return not (joined or (here == "RI" and regionals % 2 == 1))  # WB15, WB16, WB999


def hashes_of(words: Sequence[str]) -> list[int]:
    return [xxhash.xxh64_intdigest(word.encode()) for word in words]


def words_of(text: str) -> list[int]:
    data = frozen(np.frombuffer(text.encode(), np.uint8))
    words = np.zeros(len(data) + 1, np.uint64)
    return words[: hash_boundary_words(data, 0, len(data), boundary_classes(), words)].tolist()


@settings(max_examples=120)
@given(texts)
def test_words_are_those_of_the_rules(text: str) -> None:
    assert words_of(text) == hashes_of(plain_words(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("can't stop. 3.5% of 1,000", ["can't", "stop", ".", "3.5", "%", "of", "1,000"]),
        ("a\u0301b  c\u200d", ["a\u0301b", "c\u200d"]),
        ("\U0001f1e6\U0001f1e7\U0001f1e6", ["\U0001f1e6\U0001f1e7", "\U0001f1e6"]),
        ("\U0001f468\u200d\U0001f469", ["\U0001f468\u200d\U0001f469"]),
        ("\u65e5\u672c\u30c6\u30b9\u30c8", ["\u65e5", "\u672c", "\u30c6\u30b9\u30c8"]),
        (" \t\r\n\u00a0", []),
    ],
)
def test_words_of_known_texts(text: str, words: list[str]) -> None:
    assert words_of(text) == hashes_of(words)


@pytest.mark.real
def test_words_of_real_texts_are_those_of_the_rules(shared_data: Path) -> None:
    path = sorted((shared_data / "bench_multi").glob("*.parquet"))[0]
    for text in pq.read_table(path, columns=["text"])["text"].to_pylist()[:400:20]:
        assert words_of(text[:1000]) == hashes_of(plain_words(text[:1000]))


def grams(words: list[str], ngram: int, least: int) -> list[tuple[str, ...]]:
    if len(words) < ngram:
        return [tuple(words)] if len(words) >= least else []
    return [tuple(words[at : at + ngram]) for at in range(len(words) - ngram + 1)]


@settings(max_examples=60)
@given(st.lists(st.text("ab .", max_size=14), max_size=6), st.integers(1, 4), st.integers(1, 4))
def test_ngrams_are_equal_where_their_words_and_scopes_are(
    given: list[str], ngram: int, least: int
) -> None:
    least = min(least, ngram)
    text = utf8(pa.array(["x", *given], pa.large_string()).slice(1))
    scopes = [number % 2 for number in range(len(given))]
    bounds, hashes = unit_ngrams(
        text.data, text.offsets[:-1], text.offsets[1:], frozen(np.array(scopes, np.uint64)),
        boundary_classes(), ngram, least,
    )  # fmt: skip
    plain = [
        [(scope, gram) for gram in grams(plain_words(one), ngram, least)]
        for scope, one in zip(scopes, given, strict=True)
    ]
    assert np.diff(bounds).tolist() == [len(row) for row in plain]
    flat = list(itertools.chain(*plain))
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes))


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 40), max_size=20), max_size=12), st.booleans())
def test_groups_are_those_of_a_dictionary(units: list[list[int]], spread: bool) -> None:
    if units and spread:
        units[0] += [7] * 600
    known = [[value * 0x9E3779B97F4A7C15 % 2**64 for value in unit] for unit in units]
    flat = frozen(np.array(list(itertools.chain(*known)), np.uint64))
    bounds = frozen(np.cumsum([0, *map(len, known)]).astype(np.int64))
    hashes, owners, times, seen = group_ngrams(bounds, flat)
    first: dict[int, int] = {}
    repeats = [0] * len(known)
    counts: collections.Counter[int] = collections.Counter()
    for unit, values in enumerate(known):
        for value in values:
            if first.setdefault(value, unit) == unit:
                counts[value] += 1
            else:
                repeats[unit] += 1
    assert seen.tolist() == repeats
    assert hashes.tolist() == sorted(hashes.tolist())
    summed: collections.Counter[int] = collections.Counter()
    for value, owner, time in zip(hashes.tolist(), owners.tolist(), times.tolist(), strict=True):
        assert owner == first[value]
        summed[value] += time
    assert summed == counts


def test_groups_of_very_many_ngrams_are_sorted() -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 60_000, np.uint64)
    values[1::3] = values[0]
    bounds = frozen(np.array([0, 20_000, 60_000]))
    hashes, _, times, seen = group_ngrams(bounds, frozen(values))
    assert (np.diff(hashes.astype(object)) >= 0).all()
    assert set(hashes.tolist()) == set(values.tolist())
    assert int(times.sum()) + int(seen.sum()) == 60_000
