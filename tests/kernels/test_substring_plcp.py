from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.substring.spans import flag_all, flag_later, link_windows

corpora = st.lists(st.text("ab", max_size=20) | st.text("abc", max_size=9), min_size=1, max_size=5)


def lay_out(texts: list[str], kind: type = np.uint8) -> tuple[np.ndarray, np.ndarray]:
    symbols = np.frombuffer("".join(text + "\x7f" for text in texts).encode(), np.uint8)
    offsets = np.append(0, np.cumsum([len(text) + 1 for text in texts]))
    return symbols.astype(kind), offsets


def suffix_array(symbols: np.ndarray, kind: type = np.int32) -> np.ndarray:
    whole = symbols.tolist()
    return np.array(sorted(range(len(whole)), key=lambda at: whole[at:]), kind)


def plain_flags(texts: list[str], window: int, keep: str) -> list[int]:
    """Flag windows that occur twice, all or all but the first."""
    places: dict[str, list[int]] = {}
    at = 0
    for text in texts:
        for start in range(len(text) - window + 1):
            places.setdefault(text[start : start + window], []).append(at + start)
        at += len(text) + 1
    flags = [0] * at
    for found in places.values():
        for place in found if keep == "none" and len(found) > 1 else found[1:]:
            flags[place] = 1
    return flags


@settings(max_examples=60)
@given(corpora, st.integers(1, 6))
def test_flags_equal_a_dictionary(texts: list[str], window: int) -> None:
    symbols, offsets = lay_out(texts)
    order = suffix_array(symbols)
    for settle, keep in ((flag_later, "first"), (flag_all, "none")):
        flags = link_windows(symbols, offsets, order, window)
        settle(flags, order)
        assert flags.tolist() == plain_flags(texts, window, keep)


@pytest.mark.slow
def test_ids_and_wide_suffix_arrays_give_the_same_flags() -> None:
    texts = ["abcabcab", "", "xabcab", "bcabc"]
    narrow = link_windows(*lay_out(texts), suffix_array(lay_out(texts)[0]), 4)
    symbols, offsets = lay_out(texts, np.uint32)
    wide = link_windows(symbols, offsets, suffix_array(symbols, np.int64), 4)
    assert narrow.tolist() == wide.tolist()
    assert narrow.any()


def test_of_equal_windows_all_but_one_are_linked() -> None:
    symbols, offsets = lay_out(["abab", "abab", "ab"])
    links = link_windows(symbols, offsets, suffix_array(symbols), 4)
    assert links.sum() == 1
