from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.substring.winnow import gram_size, winnow

MASK = (1 << 64) - 1

symbols = st.sampled_from(["a", "ab", "abc", "abcdefgh"]).flatmap(
    lambda letters: st.text(letters, max_size=60)
)
texts_of = st.lists(
    symbols
    | st.builds(lambda s, n: s * n, st.text("ab", min_size=1, max_size=5), st.integers(0, 15)),
    max_size=5,
)
windows = st.integers(4, 20)


def find(
    texts: list[str], window: int, scopes: list[int] | None = None, *, keep_first: bool = True
):
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    offsets.flags.writeable = False
    numbers = np.array(scopes or [0] * len(texts), np.uint64)
    return winnow(offsets, data, numbers, window, keep_first=keep_first)


def mix(value: int) -> int:
    value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ (value >> 33)


def plain_hash(gram: str) -> int:
    value = 0
    for symbol in gram.encode():
        value = (value * 0x9E3779B97F4A7C15 + symbol + 1) & MASK
    equal = max(sum(gram[at] == gram[at - p] for at in range(p, len(gram))) for p in (3, 4))
    mark = equal > 6 * len(gram) // 10
    return mix(value & ~1 | mark) >> 1 | mark << 63


def plain_rows(text: str, window: int) -> list[tuple[int, int, int]]:
    """Return the hash and the place of the gram of each window, and the window."""
    size = gram_size(window)
    rows = []
    for start in range(len(text) - window + 1):
        places = range(start, start + window - size + 1)
        least = min(places, key=lambda at: (plain_hash(text[at : at + size]), -at))
        rows.append((mix(plain_hash(text[least : least + size])), least, start))
    return rows


@settings(max_examples=60)
@given(texts_of, windows)
def test_each_window_has_the_rightmost_of_its_smallest_grams(texts, window):
    rows, repeats = find(texts, window)
    found = {
        (doc, start + more): (fp, start + at)
        for fp, doc, start, at, last in zip(*(column.tolist() for column in rows), strict=True)
        for more in range(last + 1)
    }
    folded = {
        (doc, place)
        for doc, start, end in zip(*(column.tolist() for column in repeats), strict=True)
        for place in range(start, end - window + 1)
    }
    for doc, text in enumerate(texts):
        for fp, gram, start in plain_rows(text, window):
            if (doc, start) in found:
                assert found[doc, start] == (fp, gram)
            else:
                assert (doc, start) in folded


@settings(max_examples=60)
@given(texts_of, windows)
def test_what_is_folded_occurs_before_in_its_document(texts, window):
    _, repeats = find(texts, window)
    for doc, start, end in zip(*(column.tolist() for column in repeats), strict=True):
        for place in range(start, end - window + 1):
            assert texts[doc].find(texts[doc][place : place + window]) < place


@settings(max_examples=60)
@given(texts_of, windows)
def test_where_no_copy_stays_the_first_of_a_series_is_folded_and_kept(texts, window):
    rows, repeats = find(texts, window, keep_first=False)
    again, later = find(texts, window)
    assert [c.tolist() for c in rows] == [c.tolist() for c in again]
    spans = {tuple(span) for span in zip(*(column.tolist() for column in repeats), strict=True)}
    for doc, start, end in zip(*(column.tolist() for column in later), strict=True):
        assert any(d == doc and s < start and e >= end for d, s, e in spans)
    for doc, start, end in spans:
        for place in range(start, end - window + 1):
            wanted = texts[doc][place : place + window]
            assert texts[doc].find(wanted) != texts[doc].rfind(wanted)


def test_spaces_are_one_row_and_one_span():
    rows, repeats = find([" " * 500], 20)
    assert rows.starts.tolist() == [0]
    assert [column.tolist() for column in repeats] == [[0], [1], [500]]


def test_a_text_that_passes_a_chunk_of_hashes_is_as_if_hashed_at_once():
    letters = np.random.default_rng(5).choice(list("abcd"), 2500)
    text = "".join(letters)
    rows, _ = find([text], 16)
    found = [
        (fp, start + at, start + more)
        for fp, _, start, at, last in zip(*(column.tolist() for column in rows), strict=True)
        for more in range(last + 1)
    ]
    assert found == plain_rows(text, 16)


def test_scopes_have_fingerprints_of_their_own():
    text = "the quick brown fox jumps over the lazy dog"
    rows, _ = find([text, text, text], 16, [3, 3, 4])
    by_doc = [set(rows.fps[rows.docs == doc].tolist()) for doc in range(3)]
    assert by_doc[0] == by_doc[1]
    assert not by_doc[0] & by_doc[2]


def test_repetitive_grams_are_taken_last():
    rows, _ = find(["." * 40 + "the quick brown fox" + "." * 40], 30)
    grams = {
        start + at
        for start, at in zip(rows.starts.tolist(), rows.gram_offsets.tolist(), strict=True)
    }
    assert any(40 - 8 <= gram <= 59 for gram in grams)
    busy = rows.starts.astype(int) + rows.lasts + 30 > 50
    assert (rows.lasts[busy & (rows.starts < 45)].astype(int) + 1).sum() > 20


@pytest.mark.parametrize("kind", [np.uint8, np.uint32])
def test_symbols_of_any_width_have_the_same_rows(kind):
    data = np.random.default_rng(1).integers(0, 5, 400).astype(kind)
    data.flags.writeable = False
    offsets = np.array([0, 150, 150, 400])
    offsets.flags.writeable = False
    scopes = np.zeros(3, np.uint64)
    rows, _ = winnow(offsets, data, scopes, 12, keep_first=True)
    wanted, _ = winnow(offsets, data.astype(np.uint8), scopes, 12, keep_first=True)
    assert [c.tolist() for c in rows] == [c.tolist() for c in wanted]


def test_grams_leave_room_for_windows_that_16_bits_count():
    for window in (4, 5, 16, 250, 100_000, 1_000_000):
        assert 4 <= gram_size(window) <= window
        assert window - gram_size(window) + 1 <= 1 << 16
