from __future__ import annotations

import hashlib

import pytest
from pydantic import ValidationError

from corpuskit.stages.sequences.holdout import Holdout
from tests.contract.strategies import plain, view

TEXTS = [f"document number {number}, \xe9" for number in range(4000)]


def held(texts, **params):
    return [row["rule"] is not None for row in plain(Holdout(**params), view(texts))]


def test_the_share_is_about_the_ratio():
    assert 0.08 < sum(held(TEXTS, ratio=0.1)) / len(TEXTS) < 0.12


def test_copies_go_together():
    texts = ["same", *TEXTS[:50], "same"]
    chosen = held(texts, ratio=0.5)
    assert chosen[0] == chosen[-1]


def test_a_larger_ratio_holds_all_that_a_smaller_one_held():
    small, large = held(TEXTS, ratio=0.05), held(TEXTS, ratio=0.2)
    assert all(second for first, second in zip(small, large, strict=True) if first)


def test_another_seed_chooses_others():
    both = zip(held(TEXTS, ratio=0.5), held(TEXTS, ratio=0.5, seed=1), strict=True)
    same = sum(first == second for first, second in both)
    assert 0.45 < same / len(TEXTS) < 0.55


def test_the_choice_is_a_keyed_hash_of_the_text():
    for text, row in zip(
        TEXTS[:200], plain(Holdout(ratio=0.3, seed=7), view(TEXTS[:200])), strict=True
    ):
        key = (7).to_bytes(8, "little")
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
        share = int.from_bytes(digest, "little") / 2**64
        assert (row["rule"] == "held_out") == (share < 0.3)
        assert row["value"] == (share if share < 0.3 else "nan")


@pytest.mark.parametrize("ratio", [0, 1, -0.1])
def test_none_or_all_is_no_holdout(ratio):
    with pytest.raises(ValidationError):
        Holdout(ratio=ratio)


def test_held_out_documents_live_elsewhere():
    assert Holdout.diverts == "holdout"
