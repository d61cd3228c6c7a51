from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.hashing import hash_texts, mix64, xxh64
from corpuskit.kernels.jit import kernel

MASK = 2**64 - 1


def buffer(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


@given(st.binary(max_size=100), st.integers(0, MASK))
def test_xxh64_equals_the_reference(content: bytes, seed: int) -> None:
    ours = xxh64(buffer(content), 0, len(content), np.uint64(seed))
    assert int(ours) == xxhash.xxh64_intdigest(content, seed=seed)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 31, 32, 33, 63, 64, 1000])
def test_xxh64_of_a_range_ignores_what_is_around_it(size: int) -> None:
    content = bytes(range(256)) * 5
    ours = xxh64(buffer(content), 17, 17 + size, np.uint64(0))
    assert int(ours) == xxhash.xxh64_intdigest(content[17 : 17 + size])


def test_texts_of_a_slice_hash_as_the_whole() -> None:
    texts = pa.array(["", "a", "hello world", "\u00e9" * 40, "a"], pa.large_string())
    high, low = hash_texts(*utf8(texts))
    part_high, part_low = hash_texts(*utf8(texts.slice(2, 2)))
    assert part_high.tolist() == high[2:4].tolist()
    assert part_low.tolist() == low[2:4].tolist()


def test_the_two_halves_are_hashes_under_two_seeds() -> None:
    texts = ["", "a", "hello world", "x" * 99]
    high, low = hash_texts(*utf8(pa.array(texts, pa.large_string())))
    assert high.tolist() == [xxhash.xxh64_intdigest(text) for text in texts]
    assert low.tolist() == [xxhash.xxh64_intdigest(t, seed=0x5851F42D4C957F2D) for t in texts]


@kernel
def _mix(value: np.uint64) -> np.uint64:
    return mix64(value)


def test_mix64_is_the_finaliser_of_murmurhash3() -> None:
    # From the loop `h = fmix64(h + 1)` of MurmurHash3.cpp.
    values = [0, 1, 2, 0xDEADBEEF, MASK]
    assert [int(_mix(np.uint64(value))) for value in values] == [plain_mix(v) for v in values]
    assert plain_mix(1) == 0xB456BCFC34C2CB2C


def plain_mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33
