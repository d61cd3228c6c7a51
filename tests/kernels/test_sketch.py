from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.minhash import HASH_BITS, sketch, sketch_texts
from tests.kernels.test_minhash import RADIX
from tests.kernels.test_wordhash import MASK, plain_hash, plain_mix, plain_words, texts

GOLDEN = 0x9E3779B97F4A7C15
TRIALS = 20 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 1000

numbers = st.integers(0, MASK)


def plain_sketch(shingles: list[int], salt: int, width: int) -> list[int]:
    places: dict[int, int] = {}
    for turn in range(2 * width):
        for value in (plain_mix(one + salt + turn * GOLDEN & MASK) for one in shingles):
            place = (value >> 32) * width >> 32 if turn < width else turn - width
            places[place] = min(places.get(place, MASK), turn << HASH_BITS | value % 2**HASH_BITS)
        if len(places) == width:
            break
    return [places[place] for place in range(width)]


def signature(shingles: np.ndarray, salt: int, width: int) -> np.ndarray:
    out = np.empty(width, np.uint64)
    sketch(shingles, len(shingles), np.uint64(salt), out)
    return out


@settings(max_examples=60)
@given(st.lists(numbers, min_size=1, max_size=12), numbers, st.integers(1, 9))
def test_sketches_equal_plain_python(shingles: list[int], salt: int, width: int) -> None:
    found = signature(np.array(shingles, np.uint64), salt, width)
    assert found.tolist() == plain_sketch(shingles, salt, width)


@given(st.lists(numbers, min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_order_and_repeats_of_shingles_do_not_matter(shingles: list[int], random) -> None:
    other = shingles + random.choices(shingles, k=3)
    random.shuffle(other)
    one = signature(np.array(shingles, np.uint64), 5, 8)
    assert one.tolist() == signature(np.array(other, np.uint64), 5, 8).tolist()


@settings(max_examples=40)
@given(st.lists(texts, max_size=3), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_band_keys_equal_plain_python(given: list[str], ngram: int, bands: int, rows: int) -> None:
    column = utf8(pa.array(["before", *given], pa.large_string()).slice(1))
    keys, signed, values = sketch_texts(
        *column, ngram=ngram, bands=bands, rows=rows, seed=3, values=True
    )
    assert values is not None
    for row, text in enumerate(given):
        words = [plain_hash(word) for word in plain_words(text)]
        assert signed[row] == bool(words)
        if not words:
            continue
        width = min(ngram, len(words))
        grams = [words[i : i + width] for i in range(len(words) - width + 1)]
        shingles = [sum(w * RADIX**i for i, w in enumerate(reversed(g))) & MASK for g in grams]
        expected = plain_sketch(shingles, 3 * GOLDEN & MASK, bands * rows)
        assert values[row].tolist() == expected
        content, size = np.array(expected, "<u8").tobytes(), 8 * rows
        hashed = [
            xxhash.xxh64_intdigest(content[i : i + size]) for i in range(0, len(content), size)
        ]
        assert keys[row].tolist() == hashed


def test_keys_are_the_same_with_and_without_values() -> None:
    column = utf8(pa.array(["a b c d e f", "", "g"], pa.large_string()))
    how = {"ngram": 2, "bands": 2, "rows": 2, "seed": 1}
    with_values, without = sketch_texts(*column, **how, values=True), sketch_texts(*column, **how)
    assert with_values[0].tolist() == without[0].tolist()
    assert without[2] is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 400])
@pytest.mark.parametrize("jaccard", [0.6, 0.75, 0.85])
def test_bands_agree_as_often_as_theory_says(size: int, jaccard: float) -> None:
    bands, rows = 14, 8
    random = np.random.default_rng(11)
    shared = round(2 * size * jaccard / (1 + jaccard))
    union = 2 * size - shared
    hits = same = 0.0
    for _ in range(TRIALS):
        shingles = random.integers(0, 2**64, union, dtype=np.uint64)
        equal = signature(shingles[:size], 1, 112) == signature(shingles[union - size :], 1, 112)
        hits += bool(equal.reshape(bands, rows).all(axis=1).any())
        same += equal.mean()
    true = shared / union
    theory = 1 - (1 - true**rows) ** bands
    # Places of one round hold different shingles, which makes the curve a little steeper than of
    # independent ones: at most 0.03 in sets of 20, 0.01 in sets of 400.
    error = (theory * (1 - theory) / TRIALS) ** 0.5
    assert abs(hits / TRIALS - theory) < 3 * error + 0.6 / size + 1 / TRIALS
    assert abs(same / TRIALS - true) < 4 * (true * (1 - true) / (112 * TRIALS)) ** 0.5


def test_another_seed_gives_another_signature() -> None:
    shingles = np.arange(500, dtype=np.uint64)
    one, other = signature(shingles, GOLDEN, 16), signature(shingles, 2 * GOLDEN & MASK, 16)
    assert (one != other).all()
