"""The order of rows: integer arithmetic over the mix plan; nothing is read or stored.

The rows of a run have indices in [0, T). `RowOrder` maps them to rows of sources and back. It
consists of apportionment (`apportion`, `turn`) and keyed permutations (`permute`, `unpermute`),
which the writer of a plan also uses. docs/formats.md (Order) is the contract. Letters: K sources, M
row indices.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    U64 = NDArray[np.uint64]

BLOCK_ROWS = 1024  # whose turns are computed at a time; no result depends on it
ROUNDS = 6
_SHIFT = np.uint64(33)
_HALF = np.uint64(32)
_MULTIPLY_1 = np.uint64(0xFF51AFD7ED558CCD)
_MULTIPLY_2 = np.uint64(0xC4CEB9FE1A85EC53)


def apportion(num_rows: int, weights: Sequence[int]) -> NDArray[np.int64]:
    """Return how many of the first `num_rows` rows each source gives: (K,) int64.

    Sainte-Lague: row j of source k is due at (2j + 1) / weight_k, ties go to the source that comes
    first. Exact for integers of any size: the counts sum to `num_rows`, never fall as it grows, and
    are less than 3 rows off the ideal shares of 50 sources.
    """
    total, strides = _strides(tuple(weights))
    # The rows due up to 2n / W are a prefix of the order, and at most K / 2 more or fewer than n.
    counts = [(2 * num_rows * weight + total) // (2 * total) for weight in weights]
    excess = sum(counts) - num_rows
    for _ in range(excess):
        giving = (k for k in range(len(counts)) if counts[k])
        counts[max(giving, key=lambda k: ((2 * counts[k] - 1) * strides[k], k))] -= 1
    for _ in range(-excess):
        able = (k for k in range(len(counts)) if strides[k])
        counts[min(able, key=lambda k: ((2 * counts[k] + 1) * strides[k], k))] += 1
    return np.array(counts, np.int64)


def turn(source: int, rank: int, weights: Sequence[int]) -> int:
    """Return how many rows, of all sources, come before row `rank` (from 0) of `source`.

    The inverse of `apportion`: `apportion(n, weights)[source] > rank` exactly for n > the answer.
    """
    before = 0
    for k, weight in enumerate(weights):
        # How many j have 2j + 1 below a / b; a source that comes first also has the equal one.
        a, b = (2 * rank + 1) * weight, weights[source]
        before += (a // b + 1) // 2 if k < source else -(-a // b) // 2
    return before


def in_turn(
    sources: NDArray[np.int32], ranks: NDArray[np.int64], weights: Sequence[int]
) -> NDArray[np.int64]:
    """Return the indices that sort rows by their turns: (M,) int64.

    Args:
        sources: (M,) ascending.
        ranks: (M,) of each row within its source and stage, ascending within a source.
        weights: of the stage, one per source.
    """
    midpoints = (2.0 * ranks + 1.0) / np.array(weights, np.float64)[sources]
    order = np.argsort(midpoints, kind="stable")
    # The relative error of a float is at most 2^-52: midpoints closer to each other than 2^-50 are
    # compared exactly. Ties go to the source that comes first.
    sorted_due = midpoints[order]
    close = np.diff(sorted_due) <= sorted_due[1:] * 2.0**-50
    edges = np.flatnonzero(np.diff(np.concatenate([[False], close, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        close_rows = order[first : last + 1].tolist()
        close_rows.sort(key=lambda i: _due(int(sources[i]), int(ranks[i]), weights))
        order[first : last + 1] = close_rows
    return order


def _due(source: int, rank: int, weights: Sequence[int]) -> tuple[Fraction, int]:
    return Fraction(2 * rank + 1, weights[source]), source


@functools.lru_cache(maxsize=256)
def _strides(weights: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the sum of the weights, and per source an integer in proportion to 1 / weight."""
    scale = math.lcm(*(weight for weight in weights if weight))
    return sum(weights), tuple(scale // weight if weight else 0 for weight in weights)


def round_keys(*key_parts: int | str) -> U64:
    """Return the (6,) round keys of a permutation: blake2b-384 of the parts as compact JSON."""
    text = json.dumps(key_parts, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def sides(size: int) -> tuple[int, int]:
    """Return (a, b): the near-square with a * b >= size that the Feistel rounds work on."""
    a = math.isqrt(size - 1) + 1 if size > 1 else 1
    return a, -(-size // a)


def permute(indices: ArrayLike, size: int, *key_parts: int | str) -> NDArray[np.int64]:
    """Return where the keyed permutation of [0, size) sends each of `indices`.

    Cycle-walking Feistel, 6 rounds with the 64-bit finaliser of MurmurHash3; 1 <= size < 2**63.
    """
    return _permute(indices, size, key_parts, _forward)


def unpermute(values: ArrayLike, size: int, *key_parts: int | str) -> NDArray[np.int64]:
    """Return the indices that `permute`, with the same size and key, sends to `values`."""
    return _permute(values, size, key_parts, _backward)


def _permute(
    indices: ArrayLike,
    size: int,
    key_parts: tuple[int | str, ...],
    rounds: Callable[[U64, U64, U64, U64], U64],
) -> NDArray[np.int64]:
    x = np.atleast_1d(np.asarray(indices, np.int64))
    assert not x.size or (x.min() >= 0 and x.max() < size), f"index outside [0, {size})"
    # Arrays of one element, not scalars: NumPy warns of wrap-around in scalars only.
    shape = np.array([[size, *sides(size)]], np.uint64).T
    return _walk(x.astype(np.uint64), shape, round_keys(*key_parts)[:, None], rounds)


def _walk(
    x: U64, shape: U64, keys: U64, rounds: Callable[[U64, U64, U64, U64], U64]
) -> NDArray[np.int64]:
    """Apply the rounds until every value is inside its size again.

    Args:
        x: (M,) values.
        shape: (3, M) or (3, 1): size, a and b of each value's permutation.
        keys: (6, M) or (6, 1).
        rounds: `_forward` or `_backward`.
    """
    x = rounds(x, shape[1], shape[2], keys)
    outside = np.flatnonzero(x >= shape[0])
    while outside.size:
        # Fewer than one value in `a` walks on, so these arrays are small.
        shape_of = shape if shape.shape[1] == 1 else shape[:, outside]
        keys_of = keys if keys.shape[1] == 1 else keys[:, outside]
        walked = rounds(x[outside], shape_of[1], shape_of[2], keys_of)
        x[outside] = walked
        outside = outside[walked >= shape_of[0]]
    return x.view(np.int64)


def _forward(x: U64, a: U64, b: U64, keys: U64) -> U64:
    high, low = np.divmod(x, b)
    for number in range(0, ROUNDS, 2):
        high += _scramble(low ^ keys[number], a)
        high = np.minimum(high, high - a)  # modulo a: a difference below zero wraps to a huge value
        low += _scramble(high ^ keys[number + 1], b)
        low = np.minimum(low, low - b)
    return high * b + low


def _backward(x: U64, a: U64, b: U64, keys: U64) -> U64:
    high, low = np.divmod(x, b)
    for number in range(ROUNDS - 2, -2, -2):
        low -= _scramble(high ^ keys[number + 1], b)
        low = np.minimum(low, low + b)
        high -= _scramble(low ^ keys[number], a)
        high = np.minimum(high, high + a)
    return high * b + low


def _scramble(x: U64, bound: U64) -> U64:
    """Return the finaliser's upper 32 bits scaled to [0, bound), overwriting `x`."""
    x ^= x >> _SHIFT
    x *= _MULTIPLY_1
    x ^= x >> _SHIFT
    x *= _MULTIPLY_2
    # The finaliser's last step, x ^= x >> 33, does not touch the upper 32 bits.
    x >>= _HALF
    x *= bound  # a multiplication instead of a remainder: a division costs five times as much
    x >>= _HALF
    return x


@dataclass(frozen=True, slots=True)
class MixSource:
    """A source of the order: `rows` rows from row `first` on.

    `shuffled`: stored in random order, so the first epoch reads it as stored. `first` is above 0
    only in a mixture search.
    """

    name: str
    rows: int
    shuffled: bool
    first: int = 0


@dataclass(frozen=True, slots=True)
class MixStage:
    """A stretch of the run with constant weights, one integer per source of the plan."""

    name: str
    rows: int
    weights: tuple[int, ...]


class SourceRows(NamedTuple):
    """Source, row within the source, and epoch of the source, for M row indices: (M,) each."""

    sources: NDArray[np.int32]
    rows: NDArray[np.int64]
    epochs: NDArray[np.int64]


class _TurnBlock(NamedTuple):
    start: int  # row index of its first row
    sources: NDArray[np.int32]
    taken: NDArray[np.int64]  # how many rows the run took from the source before


class RowOrder:
    """The order of a run: row indices to rows of sources and back, each in O(K) operations.

    Within a stage the sources take turns by Sainte-Lague, so for every n, the first n rows of the
    stage have as many rows of each source as `apportion` returns. A source gives its rows in stored
    order, or in that of the epoch's permutation.
    """

    def __init__(self, seed: int, sources: Sequence[MixSource], stages: Sequence[MixStage]) -> None:
        self.sources, self.stages = tuple(sources), tuple(stages)
        self._seed = seed
        self._starts = [0, *itertools.accumulate(stage.rows for stage in stages)]
        self.num_rows = self._starts[-1]
        blocks = (-(-stage.rows // BLOCK_ROWS) for stage in stages)
        self._first_block = [0, *itertools.accumulate(blocks)]
        counts = [self._share(i, stage.rows)[None] for i, stage in enumerate(stages)]
        zero = np.zeros((1, len(sources)), np.int64)
        # (stages + 1, K) rows of each source that the stages before take
        self._offsets: NDArray[np.int64] = np.cumsum(np.concatenate([zero, *counts]), axis=0)
        self._sizes = np.array([max(1, source.rows) for source in sources], np.int64)
        self._firsts = np.array([source.first for source in sources], np.int64)
        self._shuffled = np.array([source.shuffled for source in sources], np.bool_)
        self._shapes = np.array([(n, *sides(int(n))) for n in self._sizes], np.uint64).T
        self._block = functools.lru_cache(maxsize=256)(self._build_block)
        self._boundary = functools.lru_cache(maxsize=64)(self._share)
        self._epoch_keys = functools.lru_cache(maxsize=1024)(self._build_epoch_keys)

    def rows_at(self, row_indices: NDArray[np.int64]) -> SourceRows:
        """Return the source, row and epoch of each row index in [0, num_rows)."""
        numbers = self._block_numbers(row_indices)
        first, last = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, -1)
        present = range(first, last + 1) if last - first < 64 else np.unique(numbers).tolist()
        blocks = [self._block(number) for number in present]
        if not blocks:
            none = np.zeros(0, np.int64)
            return SourceRows(none.astype(np.int32), none, none)
        block_of = np.searchsorted(np.array(present), numbers)
        # Where each block's rows begin in the arrays below, minus its first row index.
        lengths = [len(block.sources) for block in blocks]
        firsts = np.cumsum([0, *lengths[:-1]]) - np.array([block.start for block in blocks])
        positions = row_indices + firsts[block_of]
        sources = np.concatenate([block.sources for block in blocks])[positions]
        num_taken = np.concatenate([block.taken for block in blocks])[positions]
        epochs, rows = np.divmod(num_taken, self._sizes[sources])
        self._permute_epochs(sources, epochs, rows)
        rows += self._firsts[sources]
        return SourceRows(sources, rows, epochs)

    def taken(self, row_index: int) -> NDArray[np.int64]:
        """Return how many rows of each source the first `row_index` rows take: (K,) int64."""
        stage = int(np.searchsorted(self._starts, row_index, side="right")) - 1
        counts: NDArray[np.int64] = self._offsets[min(stage, len(self.stages))].copy()
        if stage < len(self.stages):
            counts += self._share(stage, row_index - self._starts[stage])
        return counts

    def row_indices_of(self, source: int, row: int) -> list[tuple[int, int]]:
        """Return (row index, epoch) of every time the run takes `row` of `source`, in order."""
        size, total = int(self._sizes[source]), int(self._offsets[-1][source])
        row -= self.sources[source].first
        if not 0 <= row < size:
            return []
        return [
            (self._row_index(source, epoch * size + rank), epoch)
            for epoch in range(-(-total // size))
            if epoch * size + (rank := self._rank_in_epoch(source, row, epoch)) < total
        ]

    def is_permuted(self, sources: SourceRows) -> NDArray[np.bool_]:
        """Return which of these rows are read out of stored order."""
        permuted: NDArray[np.bool_] = (sources.epochs > 0) | ~self._shuffled[sources.sources]
        return permuted

    def _share(self, stage: int, num_rows: int) -> NDArray[np.int64]:
        if not num_rows:
            return np.zeros(len(self.sources), np.int64)
        return apportion(num_rows, self.stages[stage].weights)

    def _block_numbers(self, row_indices: NDArray[np.int64]) -> NDArray[np.int64]:
        stages = np.searchsorted(self._starts, row_indices, side="right") - 1
        rows_in_stage = row_indices - np.array(self._starts)[stages]
        numbers: NDArray[np.int64] = rows_in_stage // BLOCK_ROWS
        numbers += np.array(self._first_block)[stages]
        return numbers

    def _build_block(self, number: int) -> _TurnBlock:
        stage = int(np.searchsorted(self._first_block, number, side="right")) - 1
        first = (number - self._first_block[stage]) * BLOCK_ROWS
        end = min(first + BLOCK_ROWS, self.stages[stage].rows)
        before, after = self._boundary(stage, first), self._boundary(stage, end)
        counts = after - before
        sources = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ranks = np.arange(end - first) - np.repeat(np.cumsum(counts) - after, counts)
        order = in_turn(sources, ranks, self.stages[stage].weights)
        sources, ranks = sources[order], ranks[order]
        return _TurnBlock(
            self._starts[stage] + first, sources, ranks + self._offsets[stage][sources]
        )

    def _build_epoch_keys(self, source: int, epoch: int) -> U64:
        return round_keys(self._seed, self.sources[source].name, epoch)

    def _permute_epochs(
        self, sources: NDArray[np.int32], epochs: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """Permute, in place, the rows of epochs that are not read as stored."""
        permuted = np.flatnonzero((epochs > 0) | ~self._shuffled[sources])
        if not permuted.size:
            return
        pairs = epochs[permuted] * len(self.sources) + sources[permuted]
        distinct, pair_of = np.unique(pairs, return_inverse=True)
        pairs_of = [divmod(pair, len(self.sources)) for pair in distinct.tolist()]
        keys = np.stack([self._epoch_keys(source, epoch) for epoch, source in pairs_of], axis=1)
        shape = self._shapes[:, sources[permuted]]
        rows[permuted] = _walk(rows[permuted].astype(np.uint64), shape, keys[:, pair_of], _forward)

    def _rank_in_epoch(self, source: int, row: int, epoch: int) -> int:
        if epoch == 0 and self._shuffled[source]:
            return row
        mix_source = self.sources[source]
        return int(unpermute(row, mix_source.rows, self._seed, mix_source.name, epoch)[0])

    def _row_index(self, source: int, rank: int) -> int:
        stage = int(np.searchsorted(self._offsets[:, source], rank, side="right")) - 1
        rank_in_stage = rank - int(self._offsets[stage, source])
        return self._starts[stage] + turn(source, rank_in_stage, self.stages[stage].weights)


class SkipSpans:
    """Spans of rows of the run that are skipped; all others are consumed."""

    def __init__(self, spans: Sequence[tuple[int, int]], num_rows: int) -> None:
        merged: list[list[int]] = []
        for first, end in sorted((first, min(end, num_rows)) for first, end in spans):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            elif first < end:
                merged.append([first, end])
        self.spans = tuple((first, end) for first, end in merged)
        lengths = np.array([end - first for first, end in merged], np.int64)
        self._passed = np.concatenate([[0], np.cumsum(lengths)])
        firsts = np.array([first for first, _ in merged], np.int64)
        self._edges = firsts - self._passed[:-1]
        self.num_consumed = num_rows - int(self._passed[-1])

    def row_indices(self, consumed: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row index of the n-th consumed row, for each n."""
        spans = np.searchsorted(self._edges, consumed, side="right")
        row_indices: NDArray[np.int64] = consumed + self._passed[spans]
        return row_indices

    def consumed_before(self, row_index: int) -> int:
        """Return how many of the first `row_index` rows are consumed."""
        return row_index - sum(min(end, row_index) - first for first, end in self.before(row_index))

    def before(self, row_index: int) -> list[tuple[int, int]]:
        """Return the spans that begin before `row_index`, cut at it."""
        return [(first, min(end, row_index)) for first, end in self.spans if first < row_index]

    def covers(self, row_index: int) -> bool:
        """Return whether the row at `row_index` is skipped."""
        return any(first <= row_index < end for first, end in self.spans)
