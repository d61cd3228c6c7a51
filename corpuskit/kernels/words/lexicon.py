"""Words as numbers of a lexicon: the shape in which all stages see words.

A lexicon is a table of word records that only grows; a record is computed once, however often the
word occurs. A word may have several records: one for each whitespace-separated chunk it occurs in.
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from corpuskit.kernels.arrays import AnyArray, Bytes, Int32s, Int64s, Uint64s, frozen, join_bytes
from corpuskit.kernels.hashing import same_bytes
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.utf8 import NUM_CODES, PUNCTUATION, TERMINAL, char_width, code_point

SOLID, ALPHA, SENTENCE_END, PUNCT = 1, 2, 4, 8
"""Bits of a record's kinds: it has a character that is not a symbol; it has a letter; it is a mark
that ends a sentence for spaCy's sentencizer; it is punctuation (Unicode category P) alone."""

PRIME = (1 << 61) - 1
BASE = 0x1234567890ABCDF
"""The hash of bytes b0 b1 .. bn is ((b0 * BASE + b1) * BASE ..) + bn mod PRIME, so that the hash of
two words written together is `hash_a * power_b + hash_b`, where `power` is BASE ** bytes."""

_PRIME = np.uint64(PRIME)
_LOW_32, _LOW_29 = np.uint64(0xFFFFFFFF), np.uint64(0x1FFFFFFF)

SLACK = 16
"""Bytes after the last record that a kernel may read."""


class Records(NamedTuple):
    """The arrays of a lexicon, unused capacity included, as kernels fill them.

    Attributes:
        used: (2,) int64, records and bytes in use.
        starts, data, chars, kinds, hashes, powers: as in Lexicon.
        char_kinds: see `char_kinds`.
    """

    used: Int64s
    starts: Int64s
    data: Bytes
    chars: Int32s
    kinds: Bytes
    hashes: Uint64s
    powers: Uint64s
    char_kinds: Bytes


class Lexicon:
    """Word records, T of them. Append-only: a number once given keeps its meaning.

    The arrays are read-only views of the current records; get new ones after you added words.

    Attributes:
        starts: (T + 1,) int64: record t is `data[starts[t]:starts[t + 1]]`.
        data: (B + 16,) uint8.
        chars: (T,) int32, code points.
        kinds: (T,) uint8, bits as above.
        hashes, powers: (T,) uint64, see BASE.
    """

    def __init__(self, kinds_of_chars: Bytes | None = None) -> None:
        self.records = Records(
            np.zeros(2, np.int64),
            np.zeros(1, np.int64),
            np.zeros(SLACK, np.uint8),
            np.zeros(0, np.int32),
            np.zeros(0, np.uint8),
            np.zeros(0, np.uint64),
            np.zeros(0, np.uint64),
            char_kinds() if kinds_of_chars is None else kinds_of_chars,
        )
        self._marks: dict[tuple[str, ...], tuple[Bytes, int]] = {}

    def __len__(self) -> int:
        return int(self.records.used[0])

    @property
    def size_bytes(self) -> int:
        """Memory in use; unused capacity is address space only."""
        return int(self.records.used[0] * 29 + self.records.used[1])

    @property
    def starts(self) -> Int64s:
        return frozen(self.records.starts[: len(self) + 1])

    @property
    def data(self) -> Bytes:
        return frozen(self.records.data[: self.records.used[1] + SLACK])

    @property
    def kinds(self) -> Bytes:
        return frozen(self.records.kinds[: len(self)])

    @property
    def chars(self) -> Int32s:
        return frozen(self.records.chars[: len(self)])

    @property
    def hashes(self) -> Uint64s:
        return frozen(self.records.hashes[: len(self)])

    @property
    def powers(self) -> Uint64s:
        return frozen(self.records.powers[: len(self)])

    def marks(self, words: tuple[str, ...]) -> Bytes:
        """Return (T,) uint8: k + 1 where a record is the k-th of at most 255 different words.

        The result for these words is cached; only new records are examined.
        """
        marks, old = self._marks.get(words, (np.zeros(0, np.uint8), 0))
        size = len(self)
        if size > len(marks):
            marks = np.concatenate([marks[:old], np.zeros(size + size // 2 - old, np.uint8)])
        if size > old:
            numbers, hashes, starts, content = _sorted_words(words)
            _mark(self.records, numbers, hashes, starts, content, marks, old, size)
        self._marks[words] = marks, size
        return frozen(marks[:size])

    def reserve(self, num_records: int, size_bytes: int) -> None:
        """Reserve memory for more records and their bytes, without writing to it."""
        records = self.records
        num, size = (int(used) for used in records.used)
        if num + num_records > len(records.chars):
            capacity = num_records + max(num * 2, 1 << 12)
            arrays = [_longer(array, num, capacity) for array in (records.chars, *records[4:7])]
            self.records = records = records._replace(
                starts=_longer(records.starts, num + 1, capacity + 1),
                **dict(zip(("chars", "kinds", "hashes", "powers"), arrays, strict=True)),
            )
        if size + size_bytes + SLACK > len(records.data):
            capacity = size_bytes + SLACK + max(size * 2, 1 << 14)
            self.records = records._replace(data=_longer(records.data, size, capacity))

    def append(self, words: Sequence[str]) -> int:
        """Add records, return the number of the first."""
        bounds, content = join_bytes([word.encode() for word in words], b"\0")
        return self.append_pieces(content, bounds[:-1], bounds[1:])

    def append_pieces(self, data: Bytes, starts: Int64s, ends: Int64s) -> int:
        """Add the words `data[starts[i]:ends[i]]`; return the number of the first."""
        first = len(self)
        self.reserve(len(starts), int((ends - starts).sum()))
        _append_all(self.records, frozen(data), frozen(starts), frozen(ends))
        return first


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of N documents.

    Attributes:
        offsets: (N + 1,) int64: the words of document i are `tokens[offsets[i]:offsets[i + 1]]`.
        tokens: (W,) int32, numbers of records.
        lexicon: what the numbers mean.
    """

    offsets: Int64s
    tokens: Int32s
    lexicon: Lexicon

    def select(self, rows: Int64s) -> Words:
        """Return the words of some documents."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        tokens = np.empty(int(offsets[-1]), np.int32)
        _copy_rows(self.offsets, self.tokens, frozen(rows[:]), offsets, tokens)
        return Words(frozen(offsets), frozen(tokens), self.lexicon)


_SYMBOLS = PUNCTUATION | TERMINAL


@functools.cache
def char_kinds(sentence_ends: frozenset[str] = frozenset()) -> Bytes:
    """Tabulate the kinds of characters, (262144,) uint8; built on first use (20 ms) and kept."""
    table = np.full(NUM_CODES, SOLID, np.uint8)
    table[_codes(_SYMBOLS)] = 0
    chars = np.arange(NUM_CODES, dtype=np.uint32).view("<U1")
    table[np.strings.isalpha(chars)] |= ALPHA
    symbols = np.flatnonzero(~np.strings.isalnum(chars)).tolist()
    table[[code for code in symbols if unicodedata.category(chr(code))[0] == "P"]] |= PUNCT
    table[_codes(sentence_ends)] |= SENTENCE_END
    return frozen(table)


def _codes(chars: Iterable[str]) -> list[int]:
    return [ord(char) for char in chars if ord(char) < NUM_CODES]


def _longer(array: AnyArray, used: int, capacity: int) -> AnyArray:
    longer = np.empty(capacity, array.dtype)
    longer[:used] = array[:used]
    return longer


def _sorted_words(words: tuple[str, ...]) -> tuple[AnyArray, ...]:
    """Return numbers, hashes (ascending), starts and data of words."""
    lexicon = Lexicon()
    lexicon.append(words)
    order = np.argsort(lexicon.hashes, kind="stable")
    return frozen(order), frozen(lexicon.hashes[order]), lexicon.starts, lexicon.data


@inline
def folded(value: np.uint64) -> np.uint64:
    """Return value mod PRIME, of a value below twice that."""
    return min(value, value - _PRIME)


@inline
def product(left: np.uint64, right: np.uint64) -> np.uint64:
    """Return left * right mod PRIME, of values below it; compiles to vector instructions."""
    high, low = left >> np.uint64(32), left & _LOW_32
    right_high, right_low = right >> np.uint64(32), right & _LOW_32
    middle = high * right_low + low * right_high
    lowest = low * right_low
    # As 2**61 is 1, 2**64 is 8, and 2**32 times the middle its low 29 bits shifted, and the rest.
    total = (high * right_high << np.uint64(3)) + (middle >> np.uint64(29))
    total += ((middle & _LOW_29) << np.uint64(32)) + (lowest & _PRIME) + (lowest >> np.uint64(61))
    return folded((total & _PRIME) + (total >> np.uint64(61)))


@kernel
def append_record(records: Records, data: Bytes, start: int, stop: int) -> None:
    """Append the word `data[start:stop]` to reserved memory. O(bytes), about 10 ns each."""
    # Unpacked once: each access to an array in a tuple costs an atomic reference count.
    used, content, char_kinds = records.used, records.data, records.char_kinds
    number, size = used[0], used[1]
    value, power = np.uint64(0), np.uint64(1)
    chars = all_kinds = 0
    common_kinds = PUNCT
    pos = start
    while pos < stop:
        code = code_point(data, pos)
        kinds = np.int64(SOLID)
        if code < len(char_kinds):
            kinds = np.int64(char_kinds[code])
        all_kinds |= kinds
        common_kinds &= kinds
        chars += 1
        stop_byte = pos + char_width(data[pos])
        while pos < stop_byte:
            byte = data[pos]
            content[size] = byte
            size += 1
            value = folded(product(value, np.uint64(BASE)) + np.uint64(byte))
            power = product(power, np.uint64(BASE))
            pos += 1
    if chars > 1:
        all_kinds &= ~SENTENCE_END
    records.kinds[number] = (all_kinds & (SOLID | ALPHA | SENTENCE_END)) | common_kinds
    records.chars[number] = chars
    records.hashes[number] = value
    records.powers[number] = power
    records.starts[number + 1] = size
    used[0] = number + 1
    used[1] = size


@kernel
def _append_all(records: Records, data: Bytes, starts: Int64s, ends: Int64s) -> None:
    for word in range(len(starts)):
        append_record(records, data, starts[word], ends[word])


@kernel
def bisect_left(values: AnyArray, value: Any) -> int:
    """Return the position of the first of ascending values that is not below `value`.

    As np.searchsorted, which takes 0.4 s to compile, and 0.15 s to load.
    """
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _mark(
    records: Records,
    numbers: Int64s,
    hashes: Uint64s,
    starts: Int64s,
    data: Bytes,
    marks: Bytes,
    old: int,
    size: int,
) -> None:
    """Set the marks of records `old:size`. O(T log K) for K words."""
    for record in range(old, size):
        begin, end = records.starts[record], records.starts[record + 1]
        index = bisect_left(hashes, records.hashes[record])
        marks[record] = 0
        while index < len(hashes) and hashes[index] == records.hashes[record]:
            number = numbers[index]
            first = starts[number]
            if starts[number + 1] - first == end - begin and same_bytes(
                data, first, records.data, begin, end - begin
            ):
                marks[record] = number + 1
            index += 1


@kernel
def _copy_rows(starts: Int64s, tokens: Int32s, rows: Int64s, offsets: Int64s, out: Int32s) -> None:
    for index in range(len(rows)):
        first = starts[rows[index]]
        out[offsets[index] : offsets[index + 1]] = tokens[
            first : first + offsets[index + 1] - offsets[index]
        ]
