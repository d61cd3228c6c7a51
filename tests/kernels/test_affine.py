from __future__ import annotations

import itertools

import numpy as np
import pytest
import xxhash
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels import minhash
from corpuskit.kernels.minhash import PRIME, permutations

MASK = 2**64 - 1

sets = st.lists(st.lists(st.integers(0, MASK), max_size=9), min_size=1, max_size=4)


def flat(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    bounds = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    return bounds, np.array(list(itertools.chain(*documents)), np.uint64)


@settings(max_examples=40)
@given(sets, st.integers(1, 9), st.integers(0, 2**32 - 1), st.sampled_from([32, 64]))
def test_signatures_are_those_of_datasketch(
    documents: list[list[int]], num: int, seed: int, width: int
) -> None:
    documents = [[one % 2**width for one in document] for document in documents]
    a, b = minhash.affine_permutations(num, seed, width)
    out = np.zeros((len(documents), num), np.uint32 if width == 32 else np.uint64)
    work = minhash.sign_affine32 if width == 32 else minhash.sign_affine64
    work(*flat(documents), a, b, out)
    for row, document in enumerate(documents):
        made = MinHash(num, seed, hashfunc=int, scheme=f"affine{width}")
        made.update_batch(document)
        assert out[row].tolist() == made.hashvalues.tolist()
        assert out.dtype == made.hashvalues.dtype


@given(sets, st.integers(1, 5), st.integers(0, 9))
def test_low_halves_equal_exact_arithmetic(documents: list[list[int]], num: int, seed: int) -> None:
    documents = [document or [PRIME] for document in documents]
    a, b = permutations(num, seed)
    out = np.zeros((len(documents), num), np.uint32)
    minhash.sign_mersenne32(*flat(documents), a, b, out)
    for row, document in enumerate(documents):
        for k in range(num):
            values = [(one * int(a[k]) + int(b[k]) & MASK) % PRIME % 2**32 for one in document]
            assert out[row, k] == min(values)


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_band_keys_are_hashes_of_their_values(kind: type[np.unsignedinteger]) -> None:
    values = np.arange(24, dtype=kind).reshape(2, 12)
    keys = minhash.keys_of_bands(values.view(np.uint8), 3)
    expected = [
        [xxhash.xxh64_intdigest(part.tobytes()) for part in np.split(row, 3)] for row in values
    ]
    assert keys.tolist() == expected
