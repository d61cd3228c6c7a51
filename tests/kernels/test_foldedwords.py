from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.wordhash import (
    BYTE_KINDS,
    fold_all,
    fold_words,
    folded_characters,
    hash_words,
)
from tests.kernels.test_wordhash import TRAPS, plain_hash, plain_words

ALONE = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
TRAPS = [
    *TRAPS,
    *("\u00ad", "\u200b", "\ufb01", "\uff21", "\u2122", "\u00bd", "e\u0301", "\u0e01\u0e34"),
    *(
        "\u4e2d\u6587",
        "\u3400",
        "\u1000",
        "\u304b\u3099",
        "\u304c",
        "\ud55c",
        "\u0152",
        "\U0001d7d9",
    ),
]

texts = st.one_of(
    st.lists(st.sampled_from(TRAPS), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def plain_folded(text: str) -> list[str]:
    """Return words as the module says they are, one character after the other."""
    words, word = [], ""
    for char in text:
        letters = [
            part.replace("\u0130", "i").lower()
            for part in unicodedata.normalize("NFKD", char)
            if plain_words(part) and not unicodedata.combining(part)
        ][:3]
        is_passed = char in "\u00ad\u200b\u200c\u200d\u2060\ufeff" or (
            not letters and unicodedata.category(char) in {"Mn", "Me"}
        )
        if is_passed:
            continue
        alone = bool(letters) and any(first <= ord(char) <= last for first, last in ALONE)
        if word and (alone or not letters):
            words.append(word)
            word = ""
        word += "".join(letters)
        if alone:
            words.append(word)
            word = ""
    return [*words, word] if word else words


def folded(text: str) -> tuple[list[int], list[int], list[str]]:
    """Return hashes, those joined with the word before, and the words as they stand."""
    data = np.frombuffer(text.encode() or b"\0", np.uint8)
    size = len(text.encode())
    words, joined = np.empty(size + 1, np.uint64), np.empty(size + 1, np.uint64)
    starts, ends = np.empty(size + 1, np.int32), np.empty(size + 1, np.int32)
    num = fold_words(
        data, 0, size, folded_characters(), words, joined, starts, ends, 0, size + 1
    )  # fmt: skip
    spans = zip(starts[:num].tolist(), ends[:num].tolist(), strict=True)
    return (
        words[:num].tolist(),
        joined[:num].tolist(),
        [data[start:end].tobytes().decode() for start, end in spans],
    )


@given(texts)
def test_words_are_folded_as_said_and_hash_as_said(text: str) -> None:
    hashes, joined, _ = folded(text)
    words = plain_folded(text)
    assert hashes == [plain_hash(word) for word in words]
    assert joined == [plain_hash(a + b) for a, b in zip(["", *words], words, strict=False)]


@given(texts, texts, texts)
def test_the_fast_way_finds_the_same_words(before: str, text: str, after: str) -> None:
    data = np.frombuffer((before + text + after).encode() or b"\0", np.uint8)
    begin, size = len(before.encode()), len(text.encode())
    words, starts = np.empty(size + 1, np.uint64), np.empty(size + 1, np.int32)
    edges = np.empty(size + 2, np.int32)
    table = folded_characters()
    num = hash_words(data, begin, begin + size, table, BYTE_KINDS, edges, words, starts)
    hashes, _, shown = folded(text)
    assert words[:num].tolist() == hashes
    content = text.encode()
    assert all(
        content[start:].startswith(word.encode())
        for start, word in zip(starts[:num].tolist(), shown, strict=True)
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Caf\u00e9", "cafe\u0301"),
        ("\uff26\uff55\uff4c\uff4c", "full"),
        ("e\ufb03cient", "EFFICIENT"),
        ("soft\u00adly", "softly"),
        ("na\u00efve", "naive"),
        ("\u210c", "h"),
    ],
)
def test_ways_to_write_a_word_are_one(one: str, other: str) -> None:
    assert folded(one)[0] == folded(other)[0]


def test_scripts_without_spaces_are_one_word_a_character() -> None:
    assert folded("\u4e2d\u6587abc")[2] == ["\u4e2d", "\u6587", "abc"]


def test_a_window_of_a_text_may_be_filled_in() -> None:
    data = np.frombuffer(b"one two three", np.uint8)
    words, joined = np.zeros(5, np.uint64), np.zeros(5, np.uint64)
    starts, ends = np.zeros(5, np.int32), np.zeros(5, np.int32)
    table = folded_characters()
    assert fold_words(data, 0, 13, table, words, joined, starts, ends, 2, 4) == 4
    assert starts.tolist() == [0, 0, 0, 4, 0]
    assert ends.tolist() == [0, 0, 3, 7, 0]


@given(st.lists(texts, max_size=4))
def test_all_texts_at_once_are_each_by_itself(given_texts: list[str]) -> None:
    parts = utf8(pa.array(given_texts, pa.large_string()))
    bounds, words, joined, sizes = fold_all(*parts, folded_characters())
    expected = [folded(text) for text in given_texts]
    assert np.diff(bounds).tolist() == [len(one[0]) for one in expected]
    assert words.tolist() == [value for one in expected for value in one[0]]
    assert joined.tolist() == [value for one in expected for value in one[1]]
    assert sizes.tolist() == [len(word.encode()) for one in expected for word in one[2]]
