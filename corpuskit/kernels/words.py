"""Words as str.split() finds them, as a table that all stages of a fused phase share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import wide_space_width

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class WordTable:
    """Where the words of N documents are; 8 bytes a word.

    Attributes:
        offsets: (N + 1,) int64: the words of document i are `offsets[i]:offsets[i + 1]`.
        edges: (2 W,) int32 in bytes from the beginning of the word's document: word w is
            `edges[2 * w]:edges[2 * w + 1]`.
    """

    offsets: NDArray[np.int64]
    edges: NDArray[np.int32]

    def select(self, rows: NDArray[np.int64]) -> WordTable:
        """Return the table of some documents."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        words = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return WordTable(offsets, self.edges.reshape(-1, 2)[words].ravel())


def whitespace_words(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> WordTable:
    """Split texts as str.split() does; `view.fact(whitespace_words)` splits once for all stages."""
    # The most edges there can be. Memory is used as it is written to, so the unused end is free.
    edges = np.empty(int(offsets[-1] - offsets[0]) + 2 * len(offsets), np.int32)
    words = _split(offsets, data, _KINDS, edges)
    return WordTable(words, edges[: 2 * int(words[-1])])


_SPACE, _WORD, _WIDE = 0, 1, 2


def _kinds() -> NDArray[np.uint8]:
    """Byte -> whitespace, part of a word, or the lead byte of a wide whitespace character."""
    table = np.full(256, _WORD, np.uint8)
    table[[9, 10, 11, 12, 13, 28, 29, 30, 31, 32]] = _SPACE
    table[[0xC2, 0xE1, 0xE2, 0xE3]] = _WIDE
    table.flags.writeable = False
    return table


_KINDS = _kinds()


@kernel
def _split(
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    kinds: NDArray[np.uint8],
    edges: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Fill `edges`, return word offsets. O(B), allocates 8 N bytes.

    An edge is where a byte's kind differs from the one before. Each byte is stored, edge or not,
    and the counter moves only on edges: three times faster than branches nobody can predict.
    """
    words = np.zeros(len(offsets), np.int64)
    num = np.uint64(0)
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        before = np.uint8(_SPACE)
        at = begin
        while at < end:
            kind, width = kinds[data[at]], 1
            if kind == _WIDE:
                width = wide_space_width(data, at)
                kind = np.uint8(_WORD if width == 0 else _SPACE)
                width = max(width, 1)
            edges[num] = at - begin
            num += np.uint64(kind ^ before)
            before = kind
            at += width
        edges[num] = end - begin
        num += np.uint64(before)
        words[row + 1] = num >> np.uint64(1)
    return words
