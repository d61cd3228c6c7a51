from __future__ import annotations

import itertools
import re
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.folding import fold_texts
from corpuskit.kernels.utf8 import characters
from corpuskit.kernels.wordhash import BYTE_KINDS, word_edges, word_hashes

MASK = 2**64 - 1

TRAPS = [
    *("a", "Z", "_", "0", " ", "\n", "-", "'", "\u00e9", "\u00c9", "\u0130", "\u212a", "\u03a3"),
    *("\u03c2", "\u1e9e", "\u0301", "\u00a0", "\u2019", "\u3000", "\u4e2d", "\u3002", "\u0663"),
    *("\u00b2", "\u023a", "\U00010400", "\U0001d400", "\U0001f600", "\U000e0041", "\U0010ffff"),
    *("abcdefgh", "ABCDEFGHI", "x" * 17, "\x00", "\x7f", "\x1f"),
]

texts = st.one_of(
    st.lists(st.sampled_from(TRAPS), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


def lower(text: str) -> str:
    return text.replace("\u03a3", "\u03c3").lower()


def plain_words(text: str) -> list[str]:
    return re.findall(r"\w+", lower(text))


def plain_hash(word: str) -> int:
    groups = list(map(ord, word))
    if word.isascii():
        content = word.replace("_", "\x7f").encode()
        groups = [int.from_bytes(content[i : i + 8], "little") for i in range(0, len(content), 8)]
    value = 0
    for group in groups:
        value = plain_mix(value ^ group)
    return value


def plain_mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def hashes(data: bytes, begin: int, end: int) -> list[int]:
    size = end - begin
    words = np.empty(size // 2 + 1, np.uint64)
    edges = np.empty(size + 2, np.int32)
    buffer = np.frombuffer(data, np.uint8)
    num = word_hashes(buffer, begin, end, characters(), BYTE_KINDS, edges, words)
    return words[:num].tolist()


@given(texts, texts, texts)
def test_words_are_those_of_re_and_hash_as_said(before: str, text: str, after: str) -> None:
    data = (before + text + after).encode()
    begin = len(before.encode())
    found = hashes(data, begin, begin + len(text.encode()))
    assert found == [plain_hash(word) for word in plain_words(text)]


@given(st.lists(st.sampled_from(TRAPS), min_size=40, max_size=120).map("".join), st.integers(0, 9))
def test_edges_of_long_texts_are_where_kinds_change(text: str, begin: int) -> None:
    content = ("." * begin + text).encode()
    data = np.frombuffer(content, np.uint8)
    edges = np.empty(len(content) - begin + 2, np.int32)
    runs = word_edges(data, begin, len(content), BYTE_KINDS, edges)
    kinds = [0, *BYTE_KINDS[data[begin:]].tolist(), 0]
    assert edges[: 2 * runs].tolist() == [
        i for i, (a, b) in enumerate(itertools.pairwise(kinds)) if a != b
    ]


@pytest.mark.parametrize("offset", range(8))
def test_edges_know_every_byte_in_every_place(offset: int) -> None:
    content = b" " * offset + b"".join(bytes([code, 32]) for code in range(256))
    edges = np.empty(len(content) + 2, np.int32)
    runs = word_edges(np.frombuffer(content, np.uint8), 0, len(content), BYTE_KINDS, edges)
    found = {content[start] for start in edges[0 : 2 * runs : 2].tolist()}
    assert found == set(np.flatnonzero(BYTE_KINDS).tolist())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" .,-\u2014\u201c ", []),
        ("Don't STOP_it 4x", ["don", "t", "stop_it", "4x"]),
        ("\u4e2d\u6587\u3002\u4e2d", ["\u4e2d\u6587", "\u4e2d"]),
        ("\u0130stanbul", ["i", "stanbul"]),
        ("\u212aelvin", ["kelvin"]),
        ("\u039f\u03a3", ["\u03bf\u03c3"]),
    ],
)
def test_words_of_known_texts(text: str, words: list[str]) -> None:
    data = text.encode()
    assert hashes(data, 0, len(data)) == [plain_hash(word) for word in words]


def test_an_ascii_word_hashes_alike_beside_wide_characters() -> None:
    alone, beside = b"some_Word42", "some_Word42\u2014".encode()
    assert hashes(alone, 0, len(alone)) == hashes(beside, 0, len(beside))


@pytest.mark.slow
def test_the_table_knows_every_character() -> None:
    table = characters()
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        entry = int(table[code]) if code < len(table) else code
        wanted = "i" if code == 0x130 else lower(char)
        is_word = bool(re.match(r"\w", wanted))
        assert (entry & 0x1FFFFF, bool(entry >> 21 & 1)) == (ord(wanted), is_word), hex(code)
        assert bool(entry >> 22 & 1) == char.isspace(), hex(code)
        assert bool(entry >> 23) == (len(lower(char)) > 1), hex(code)


def fold(text: str) -> str:
    return " ".join(lower(text.replace("\u0130", "i")).split())


@given(st.lists(texts, max_size=4))
def test_folded_texts_are_lower_case_with_single_spaces(given: list[str]) -> None:
    whole = utf8(pa.array(["skipped", *given], pa.large_string()).slice(1))
    offsets, data = fold_texts(*whole)
    pieces = [data[low:high].tobytes() for low, high in itertools.pairwise(offsets)]
    assert [piece.decode() for piece in pieces] == [fold(text) for text in given]


def test_no_lower_case_is_longer_than_the_memory_set_aside() -> None:
    table = characters()
    for code in map(int, np.flatnonzero(table & 0x1FFFFF != np.arange(len(table)))):
        before, after = chr(code).encode(), chr(int(table[code]) & 0x1FFFFF).encode()
        assert 2 * len(after) <= 3 * len(before), hex(code)
