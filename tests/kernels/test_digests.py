from __future__ import annotations

import hashlib

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.ngrams import LANES, sha1_each, xxh32

EDGES = [0, 1, 3, 4, 15, 16, 17, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128]


def sha1_of(messages: list[bytes]) -> list[int]:
    data = np.frombuffer(b"".join(messages) + b"?", np.uint8)
    ends = np.cumsum([len(message) for message in messages]).astype(np.int64)
    begins = ends - np.array([len(message) for message in messages], np.int64)
    out = np.empty(len(messages), np.uint64)
    sha1_each(data, begins, ends, out)
    return out.tolist()


def plain_sha1(message: bytes) -> int:
    return int.from_bytes(hashlib.sha1(message).digest()[:8], "little")


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=130), min_size=1, max_size=LANES + 2))
def test_sha1_equals_the_reference(messages: list[bytes]) -> None:
    assert sha1_of(messages) == [plain_sha1(message) for message in messages]


def test_messages_of_other_lengths_do_not_disturb_their_neighbours() -> None:
    messages = [bytes([size]) * size for size in EDGES]
    assert sha1_of(messages) == [plain_sha1(message) for message in messages]


@given(st.binary(max_size=70), st.integers(0, 9))
def test_xxh32_equals_the_reference(content: bytes, before: int) -> None:
    data = np.frombuffer(b"x" * before + content + b"y", np.uint8)
    ours = xxh32(data, before, before + len(content))
    assert int(ours) == xxhash.xxh32_intdigest(content)


@pytest.mark.parametrize("size", EDGES)
def test_xxh32_at_the_edges_of_its_blocks(size: int) -> None:
    content = bytes(range(200))[:size]
    data = np.frombuffer(content + b"z", np.uint8)
    assert int(xxh32(data, 0, size)) == xxhash.xxh32_intdigest(content)
