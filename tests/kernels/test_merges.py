"""Merges that are made of an order of tokens give what the order gives."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.merges import last_merges
from corpuskit.kernels.stringset import make_table


def merge(parts, priority):
    """Merge neighbours, the lowest priority first, the leftmost first; as tiktoken does."""
    history = [list(parts)]
    while True:
        pairs = [
            (priority[a + b], place)
            for place, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in priority
        ]
        if not pairs:
            return history
        place = min(pairs)[1]
        parts = [*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]]
        history.append(parts)


def merge_pairs(parts, ranks):
    """Merge neighbours by a list of pairs, as Hugging Face tokenizers does."""
    while True:
        pairs = [
            (ranks[pair], place)
            for place, pair in enumerate(itertools.pairwise(parts))
            if pair in ranks
        ]
        if not pairs:
            return parts
        place = min(pairs)[1]
        parts = [*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]]


def characters(text, by_char):
    if by_char:
        return [char.encode() for char in text]
    data = text.encode()
    return [data[at : at + 1] for at in range(len(data))]


def found_halves(tokens, priority, by_char):
    table = make_table(tokens)
    return last_merges(table, np.array(priority, np.int64), by_char).tolist()


# Two letters and runs of them: tokens with many splits, and tokens that nothing makes.
words = st.text(alphabet="aab\u00e9", min_size=2, max_size=7)
vocabularies = st.lists(words, max_size=14, unique=True)


@given(vocabularies, st.booleans(), st.data())
def test_a_token_is_made_as_its_own_bytes_merge(tokens, by_char, data):
    tokens = [token.encode() for token in tokens]
    order = data.draw(st.permutations(range(len(tokens))))
    priority = {token: order[place] for place, token in enumerate(tokens)}
    found = found_halves(tokens, order, by_char)
    for token, half in zip(tokens, found, strict=True):
        history = merge(characters(token.decode(), by_char), priority)
        if len(history[-1]) > 1:
            assert half == -1
        elif len(history) > 1:
            assert half == len(history[-2][0])
        else:
            assert half == 0


@given(vocabularies, st.booleans(), st.lists(st.text("aab\u00e9", max_size=12), max_size=8))
def test_one_pair_per_token_gives_what_the_order_gives(tokens, by_char, texts):
    tokens = [token.encode() for token in tokens]
    priority = {token: place for place, token in enumerate(tokens)}
    halves = found_halves(tokens, range(len(tokens)), by_char)
    ranks = {
        (token[:half], token[half:]): place
        for place, (token, half) in enumerate(zip(tokens, halves, strict=True))
        if half > 0
    }
    for text in texts:
        parts = characters(text, by_char)
        assert merge_pairs(parts, ranks) == merge(parts, priority)[-1]


def test_a_token_without_priority_takes_no_part():
    tokens = [b"ab", b"abc", b"bc"]
    assert found_halves(tokens, [0, 1, 2], by_char=False) == [1, 2, 1]
    assert found_halves(tokens, [-1, 1, 2], by_char=False) == [-1, 1, 1]


def test_what_no_merging_makes_is_told():
    # Of "aab" the bytes "ab" merge first, and "a" + "ab" is not a token that can be made.
    assert found_halves([b"ab", b"aa", b"aabb"], [0, 1, 2], by_char=False) == [1, 1, -1]
