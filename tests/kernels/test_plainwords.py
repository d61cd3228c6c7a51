from __future__ import annotations

import string

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.plainwords import marked_words, plain_words
from tests.kernels.test_foldedwords import TRAPS, folded
from tests.kernels.test_wordhash import plain_hash, plain_mix

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


MARKS = ["--", "==", "_", "__", "a.", ".a", "'", "\u2013", "\x1c", "\u2003", "\u3000", "\u00ad="]


def plain_marked(text: str) -> list[tuple[int, bool]]:
    """Return hashes of words and marks, and which are marks, chunk by chunk."""
    found = []
    for chunk in text.split():
        if set(chunk) <= set(string.punctuation) - {"_"}:
            value = 0
            for char in chunk:
                value = plain_mix(value ^ ord(char))
            found.append((value, True))
        else:
            found += [(one, False) for one in folded(chunk)[0]]
    return found


@given(st.lists(st.lists(st.sampled_from([*TRAPS, *MARKS, *" \n="]), max_size=14), max_size=4),
       st.sampled_from(["", " "]))  # fmt: skip
def test_marks_are_words_among_folded_ones(pieces: list[list[str]], space: str) -> None:
    texts = [space.join(one) for one in pieces]
    bounds, words, marks = marked_words(*utf8(pa.array(texts, pa.large_string())))
    for text, begin, end in zip(texts, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        pairs = zip(words[begin:end].tolist(), marks[begin:end].tolist(), strict=True)
        assert list(pairs) == plain_marked(text)


def test_short_words_need_no_more_room_than_there_is() -> None:
    texts = ["\u4e2da" * 50, "a " * 50 + "a", "= " * 50 + "=", "\u0e01" * 99, "", "a"]
    bounds, words, marks = marked_words(*utf8(pa.array(texts, pa.large_string())))
    assert bounds.tolist() == [0, 100, 151, 202, 301, 301, 302]
    assert marks.sum() == 51
    assert words[0] == plain_hash("\u4e2d")
