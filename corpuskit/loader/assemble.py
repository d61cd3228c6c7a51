"""Stored rows to what a model takes: inputs, labels, positions and segment boundaries.

Rows of several steps are assembled together and handed out as views: a call of NumPy costs as much
as thousands of tokens. Letters: S rows, L = seq_len.
"""

from __future__ import annotations

import functools
import math
import weakref
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Batch = dict[str, NDArray[np.int32] | NDArray[np.int64] | int]

T = TypeVar("T", bound=np.generic)

IGNORED = -100  # the label that torch's cross entropy leaves out by default
SLAB_TOKENS = 1 << 16  # positions are made in pieces whose temporaries stay in the L2 cache
_MAX_SPARE = 2


class Memory:
    """Hands out arrays, and takes the memory of one back when nothing looks at it any more.

    Fresh pages cost more than everything that is written to them: 3 ns per token, as against 1.
    """

    def __init__(self) -> None:
        self._spare: list[memoryview] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[T]) -> NDArray[T]:
        """Return an array with undefined values."""
        size_bytes = dtype.itemsize * math.prod(shape)
        spare = self._spare.pop() if self._spare else None
        if spare is None or len(spare) < size_bytes:
            spare = np.empty(size_bytes, np.uint8).data
        # Every view refers to this array and not to what is below it: a memoryview ends the chain.
        array = np.frombuffer(spare, dtype, math.prod(shape))
        weakref.finalize(array, self._give_back, spare).atexit = False
        return array.reshape(shape)

    def _give_back(self, memory: memoryview) -> None:
        if len(self._spare) < _MAX_SPARE:
            self._spare.append(memory)


class Assembled:
    """Rows made into arrays; `batch` cuts a batch out of them.

    A label is the next stored token, but -100 where that belongs to another segment or is padding.
    A padded tail is a segment of its own.

    Args:
        memory: where to take the large arrays from.
        stored: (S, L + 1) tokens.
        starts: first token of each segment of each row, ascending from 0.
        pads: (S,) first token of the padded tail; L + 1 without one.
        others: (S,) arrays to hand out with the rows.
    """

    def __init__(
        self,
        memory: Memory,
        stored: NDArray[np.unsignedinteger],
        starts: Sequence[NDArray[np.int32]],
        pads: NDArray[np.int32],
        **others: NDArray[np.int32] | NDArray[np.int64],
    ) -> None:
        num_rows, length = stored.shape[0], stored.shape[1] - 1
        self._tokens, self._labels, self._positions = memory.take(
            (3, num_rows, length), np.dtype(np.int32)
        )
        self._others = others
        self._tokens[:] = stored[:, :-1]
        self._labels[:] = stored[:, 1:]
        within = np.concatenate(starts)
        counts = np.fromiter(map(len, starts), np.intp, num_rows)
        begins = within + np.repeat(np.arange(num_rows, dtype=np.int32) * length, counts)
        self._labels.reshape(-1)[begins[within > 0] - 1] = IGNORED
        for row in np.flatnonzero(pads < length).tolist():
            self._labels[row, pads[row] :] = IGNORED
        # A segment that starts at token L is only ever a label, and none: it begins no input.
        self._bounds = np.append(begins[within < length], np.int32(num_rows * length))
        self._firsts = np.searchsorted(self._bounds, np.arange(num_rows + 1) * length)
        step = max(1, SLAB_TOKENS // length)
        for first in range(0, num_rows, step):
            self._number(first, min(num_rows, first + step))

    def batch(self, first: int, end: int) -> Batch:
        """Return rows [first, end) as views."""
        bounds = self._bounds_of(first, end)
        return {
            "tokens": self._tokens[first:end],
            "labels": self._labels[first:end],
            "position_ids": self._positions[first:end],
            "cu_seqlens": bounds,
            "max_seqlen": int(np.diff(bounds).max()),
            **{name: values[first:end] for name, values in self._others.items()},
        }

    def _bounds_of(self, first: int, end: int) -> NDArray[np.int32]:
        """Return where segments begin, and the last ends, counted from row `first`."""
        bounds: NDArray[np.int32] = self._bounds[self._firsts[first] : self._firsts[end] + 1]
        return bounds - np.int32(first * self._tokens.shape[1])

    def _number(self, first: int, end: int) -> None:
        """Write the positions of rows [first, end): how far each input is into its segment."""
        bounds = self._bounds_of(first, end)
        begins = np.repeat(bounds[:-1], np.diff(bounds))
        np.subtract(_ramp(len(begins)), begins, out=self._positions[first:end].reshape(-1))


@functools.lru_cache(maxsize=4)
def _ramp(length: int) -> NDArray[np.int32]:
    return np.arange(length, dtype=np.int32)
