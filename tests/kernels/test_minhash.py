from __future__ import annotations

import itertools
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.minhash import (
    PRIME,
    distinct_shingles,
    permutations,
    shingle_hashes,
    smallest,
)
from tests.kernels.test_wordhash import plain_hash, plain_mix, plain_words, texts

MASK = 2**64 - 1
RADIX = 0x9E3779B97F4A7C13
TRIALS = 20 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 1500

hashes = st.integers(0, MASK)


def plain_shingles(words: list[int], ngram: int) -> list[int]:
    ngram = min(ngram, len(words))
    grams = [words[i : i + ngram] for i in range(len(words) - ngram + 1)] if words else []
    return [
        plain_mix(sum(w * RADIX**i for i, w in enumerate(reversed(gram))) & MASK) for gram in grams
    ]


def plain_smallest(shingles: list[int], a: list[int], b: list[int]) -> list[int]:
    return [
        min((s * ak + bk & MASK) % PRIME for s in shingles) for ak, bk in zip(a, b, strict=True)
    ]


@given(st.lists(hashes, max_size=12), st.integers(1, 7))
def test_shingles_equal_their_definition(words: list[int], ngram: int) -> None:
    buffer = np.array(words, np.uint64)
    num = shingle_hashes(buffer, len(words), ngram) if words else 0
    assert buffer[:num].tolist() == plain_shingles(words, ngram)


@given(st.lists(hashes, min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 9))
def test_signatures_equal_exact_arithmetic(shingles: list[int], num: int, seed: int) -> None:
    a, b = permutations(num, seed)
    out = np.empty(num, np.uint64)
    smallest(np.array(shingles, np.uint64), len(shingles), a, b, out)
    assert out.tolist() == plain_smallest(shingles, a.tolist(), b.tolist())


EDGES = [q * 2**61 + r for q in range(8) for r in (0, 1, 2, 6, 7, 2**61 - 9, 2**61 - 2, 2**61 - 1)]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("others", [[], [5], [2**61 - 4] * 9])
def test_remainders_around_multiples_of_the_prime_are_exact(edge: int, others: list[int]) -> None:
    a, b = [1, 1], [0, 3]
    shingles = [edge, *others]
    out = np.empty(2, np.uint64)
    smallest(
        np.array(shingles, np.uint64), len(shingles), np.array(a, np.uint64),
        np.array(b, np.uint64), out,
    )  # fmt: skip
    assert out.tolist() == plain_smallest(shingles, a, b)


def test_permutations_are_those_of_datatrove() -> None:
    dedup = pytest.importorskip("datatrove.pipeline.dedup.minhash")
    step = dedup.MinhashDedupSignature("unused", dedup.MinhashConfig(seed=5))
    a, b = permutations(14 * 8, 5)
    assert (step.parameters[0] == a).all()
    assert (step.parameters[1] == b).all()


@given(st.lists(texts, max_size=4), st.integers(1, 6))
def test_distinct_shingles_equal_plain_python(given: list[str], ngram: int) -> None:
    column = utf8(pa.array(["before", *given], pa.large_string()).slice(1))
    offsets, found = distinct_shingles(*column, ngram=ngram)
    expected = [plain_shingles([plain_hash(w) for w in plain_words(t)], ngram) for t in given]
    rows = [found[a:b].tolist() for a, b in itertools.pairwise(offsets.tolist())]
    assert rows == [sorted(set(one)) for one in expected]


@pytest.mark.parametrize(("num_words", "num_shingles"), [(1, 1), (4, 1), (5, 1), (6, 2), (20, 16)])
def test_a_short_text_has_one_shingle(num_words: int, num_shingles: int) -> None:
    words = np.arange(1, num_words + 1, dtype=np.uint64)
    assert shingle_hashes(words, num_words, 5) == num_shingles


def test_swapped_words_make_other_shingles() -> None:
    pool = np.array([plain_hash(f"w{i}") for i in range(40)], np.uint64)
    seen = set()
    for i in range(40):
        for j in range(40):
            pair = np.array([pool[i], pool[j]], np.uint64)
            shingle_hashes(pair, 2, 2)
            seen.add(int(pair[0]))
    assert len(seen) == 40 * 40


@pytest.mark.slow
@pytest.mark.parametrize("jaccard", [0.5, 0.6, 0.7, 0.75, 0.8, 0.9])
def test_bands_agree_as_often_as_theory_says(jaccard: float) -> None:
    bands, rows, size = 14, 8, 120
    a, b = permutations(bands * rows, 1)
    random = np.random.default_rng(7)
    shared = round(2 * size * jaccard / (1 + jaccard))
    union = 2 * size - shared
    one, other = np.empty(bands * rows, np.uint64), np.empty(bands * rows, np.uint64)
    hits = 0
    for _ in range(TRIALS):
        shingles = random.integers(0, 2**64, union, dtype=np.uint64)
        smallest(shingles[:size].copy(), size, a, b, one)
        smallest(shingles[union - size :].copy(), size, a, b, other)
        hits += bool((one == other).reshape(bands, rows).all(axis=1).any())
    theory = 1 - (1 - (shared / union) ** rows) ** bands
    error = (theory * (1 - theory) / TRIALS) ** 0.5
    assert abs(hits / TRIALS - theory) < 4 * error + 1 / TRIALS
