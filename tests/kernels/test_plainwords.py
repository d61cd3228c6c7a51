from __future__ import annotations

import string

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.plainwords import plain_words

FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase, string.punctuation)
PIECES = ["a", "Ab", "AB", "\u00c9", "\u00e9", "-", "...", " ", "\n", "\x1c", "\u2003", "\u0085",
          "\0", "abcdefgh", "abcdefgH-i", "\u4e00"]  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join)), st.booleans())
def test_words_are_those_of_str_split(texts: list[str], keeps_empty: bool) -> None:
    expected = [
        [word for word in (one.translate(FOLDED) for one in text.split()) if word or keeps_empty]
        for text in texts
    ]
    bounds, hashes = plain_words(*utf8(pa.array(texts, pa.large_string())), keeps_empty=keeps_empty)
    assert bounds.tolist() == [sum(map(len, expected[:num])) for num in range(len(texts) + 1)]
    words = [word for text in expected for word in text]
    pairs = set(zip(words, hashes.tolist(), strict=True))
    assert len(pairs) == len(set(words)) == len({value for _, value in pairs})
