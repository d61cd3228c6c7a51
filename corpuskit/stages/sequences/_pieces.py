"""SentencePiece BPE as a tokenizer.json with the same ids, for models where that can be proven.

SentencePiece merges the neighbours whose piece has the highest score, the leftmost of equal ones,
so kernels/merges.py applies: one merge for each piece. A tokenizer.json can't have merges of equal
rank, so pieces with equal scores need an argument of their own (`ties_hold`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.stages.sequences._ranks import added_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.stages.sequences._sentencepiece import Model, Piece

SPACE = "\u2581"
RUNS = 4
"""Runs up to so many times the longest tied piece are tried."""

MAX_RUN = 64
"""Longer tied pieces are not tried, which takes their length to the power of four; Mistral's have
15 spaces."""


def merge_order(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces in the order of their merges: of equal scores the longest first."""
    return sorted(pieces, key=lambda piece: (-piece.score, -len(piece.content)))


def last_halves(ordered: Sequence[Piece]) -> list[int]:
    """Return where the second half of each piece begins, in bytes, as kernels.merges has it."""
    from corpuskit.kernels.merges import last_merges
    from corpuskit.kernels.stringset import make_table

    scores = np.array([-piece.score for piece in ordered])
    _, priority = np.unique(scores, return_inverse=True)
    table = make_table([piece.content.encode() for piece in ordered])
    halves: list[int] = last_merges(table, priority.astype(np.int64), True).tolist()
    return halves


def ties_hold(ordered: Sequence[Piece], halves: Sequence[int]) -> bool:
    """Return whether ranking equal scores by length merges every text as the leftmost first does.

    It does if nothing ties. It may if what ties are runs of one character (of spaces, in Mistral's
    models) that merge after everything else and are in no other piece: then texts differ in the
    lengths of runs only, and those are tried.
    """
    counts: dict[float, list[int]] = {}
    for place, piece in enumerate(ordered):
        if len(piece.content) > 1:
            counts.setdefault(piece.score, []).append(place)
    tied = {score: places for score, places in counts.items() if len(places) > 1}
    if not tied:
        return True
    (places,) = tied.values() if len(tied) == 1 else ([],)
    runs = [ordered[place].content for place in places]
    chars = set("".join(runs))
    if len(chars) != 1 or min(counts) not in tied:
        return False
    pair = next(iter(chars)) * 2
    if any(pair in piece.content and piece.content not in runs for piece in ordered):
        return False
    if max(map(len, runs)) > MAX_RUN:
        return False
    size = len(next(iter(chars)).encode())
    made = {len(ordered[place].content): halves[place] // size for place in places}
    return all(
        _leftmost(length, made) == _by_length(length, made)
        for length in range(2, RUNS * max(made) + 1)
    )


def _leftmost(length: int, made: Mapping[int, int]) -> list[int]:
    parts = [1] * length
    while True:
        sums = [a + b for a, b in itertools.pairwise(parts)]
        place = next((place for place, total in enumerate(sums) if total in made), None)
        if place is None:
            return parts
        parts[place : place + 2] = [sums[place]]


def _by_length(length: int, made: Mapping[int, int]) -> list[int]:
    parts = [1] * length
    while True:
        pairs = itertools.pairwise(parts)
        sums = [a + b if made.get(a + b) == a else 0 for a, b in pairs]
        if not any(sums):
            return parts
        place = sums.index(max(sums))
        parts[place : place + 2] = [sums[place]]


def bpe_fields(model: Model, ordered: Sequence[Piece], halves: Sequence[int]) -> dict[str, Any]:
    """Return the content of a tokenizer.json."""
    merges = [
        [token[:half].decode(), token[half:].decode()]
        for token, half in zip((piece.content.encode() for piece in ordered), halves, strict=True)
        if half > 0
    ]
    to_space = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    from_space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders: list[dict[str, Any]] = [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    prefix: list[dict[str, Any]] = []
    if model.dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        prefix.append({"type": "Prepend", "prepend": SPACE})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(model.specials()),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, from_space]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": model.unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": model.vocabulary(),
            "merges": merges,
        },
    }
