"""Splits texts into words by a memory of chunks: each different chunk is split once.

A chunk is text between whitespace, as str.split() has it. The memory is a hash table of
32-byte slots (low key, high key, value, position of the bytes); two slots are a cache line.
Chunks of up to 15 bytes are compared by their key, longer ones by 120 bits of hash and then byte
by byte.

A new chunk is a question. It is answered at once where each chunk is a word, else by the rules in
`english.py` or, if these cannot, by the caller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint64s, frozen
from corpuskit.kernels.hashing import load64, load_tail, same_bytes
from corpuskit.kernels.jit import inline, kernel, packed_kernel
from corpuskit.kernels.utf8 import wide_space_width
from corpuskit.kernels.words.lexicon import Lexicon, bisect_left

COUNT_BITS, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_COUNT = np.uint64(0x0FFFFFFF)
_PENDING, TOUCHY = np.uint64(1 << 63), np.uint64(1 << 62)
"""A slot's value: 32 bits first record (pending: number of the question), 28 bits count, flags."""

_FLAGS = np.uint64(60)
_NONE, _ONE, _FOUR = np.uint64(0), np.uint64(1), np.uint64(4)
_KEY_HIGH, VALUE, POSITION = np.uint64(1), np.uint64(2), np.uint64(3)
_LINE_BITS = np.uint64(3)

_BLOCK = 256
"""Chunks that are looked up together."""

_NO_ROOM, _FORBIDDEN = -1, -2


class Questions(NamedTuple):
    """What must be split: chunks, and pieces of text that cannot be split chunk by chunk.

    Attributes:
        used: (1,) int64, how many questions.
        spans: (n, 2) int64 bytes of the batch.
        slots: (n,) int64 where to write the answer; -1 for a piece of text.
    """

    used: Int64s
    spans: Int64s
    slots: Int64s


def questions(capacity: int) -> Questions:
    """Return an empty queue for `capacity` questions."""
    return Questions(
        np.zeros(1, np.int64), np.empty((capacity, 2), np.int64), np.empty(capacity, np.int64)
    )


def more_questions(queue: Questions) -> Questions:
    """Return a queue of twice the capacity with these questions if it is at least half full."""
    used, capacity = int(queue.used[0]), len(queue.slots)
    if used * 2 < capacity:
        return queue
    longer = questions(capacity * 2)
    longer.used[0] = used
    longer.spans[:used], longer.slots[:used] = queue.spans[:used], queue.slots[:used]
    return longer


class ChunkMemory:
    """Chunks and what they split into; grows with new chunks.

    Attributes:
        lexicon: where the words are.
        slots: (2 ** n * 4,) uint64.
        used: (1,) int64, chunks.
        texts: what was split as a whole -> number of the first word, how many.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.slots = _lines(1 << 12)
        self.used = np.zeros(1, np.int64)
        self.texts: dict[bytes, tuple[int, int]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory in use, that of the lexicon included; of texts only their words."""
        return self.slots.nbytes + self.lexicon.size_bytes

    def grow(self) -> None:
        """Double the table if it is half full."""
        if self.used[0] * 8 >= len(self.slots):
            slots = _lines(len(self.slots) // 4)
            _rehash(self.slots, slots)
            self.slots = slots


def _lines(num: int) -> Uint64s:
    """Return `num` pairs of empty slots, each pair in a cache line of its own."""
    space = np.zeros(num * 8 + 7, np.uint64)
    first = -(space.ctypes.data // 8) % 8
    return space[first : first + num * 8]


class Scratch(NamedTuple):
    """Memory for one batch: `offsets` and `tokens` for all texts, the others for the longest one.

    Attributes:
        offsets, tokens: the words, see `Words`.
        edges: see `split_spaces`.
        numbers: chunk of the text -> where its words begin.
        keys: of a block of chunks, see `_look_ahead`.
    """

    offsets: Int64s
    tokens: Int32s
    edges: Int32s
    numbers: Int64s
    keys: Uint64s


def scratch(begins: Int64s, ends: Int64s) -> Scratch:
    """Return memory for the words of texts; it is reserved, not written to."""
    sizes = ends - begins
    longest = int(sizes.max(initial=0))
    return Scratch(
        np.zeros(len(begins) + 1, np.int64),
        np.empty(int(sizes.sum()) + 4, np.int32),
        np.empty(longest + 2, np.int32),
        np.empty(longest // 2 + 1, np.int64),
        np.empty((3, _BLOCK + 1), np.uint64),
    )


@kernel
def _rehash(old: Uint64s, new: Uint64s) -> None:
    mask = np.uint64(len(new) - 1) >> _LINE_BITS
    for slot in range(0, len(old), 4):
        if old[slot + 1] != _NONE:
            line = mix_key(old[slot], old[slot + 1]) & mask
            pos = line << _LINE_BITS
            while new[pos + _KEY_HIGH] != _NONE:
                pos = (pos + _FOUR) & np.uint64(len(new) - 1)
            for field in range(_FOUR):
                new[pos + field] = old[np.uint64(slot) + field]


@packed_kernel
def find_words(
    first_row: int,
    begins: Int64s,
    ends: Int64s,
    data: Bytes,
    space_kinds: Bytes,
    slots: Uint64s,
    used: Int64s,
    content: Bytes,
    seams: Seams,
    scratch: Scratch,
    queue: Questions,
    forced: Int64s,
) -> int:
    """Find the words of texts from `first_row` on; return the first row that did not fit.

    Question n is the token -1 - n. O(B), 250 MB/s if all chunks are known.

    Args:
        first_row: texts before it are finished.
        begins, ends, data: the texts.
        space_kinds: SPACE_KINDS.
        slots, used: see ChunkMemory.
        content: the bytes of the lexicon.
        seams, scratch, queue: see their classes.
        forced: positions, ascending, the last beyond all texts: the piece of text around each, up
            to whitespace that is not a single space, is a question.
    """
    # Unpacked once: each access to an array in a tuple costs an atomic reference count.
    tokens, bounds, edges = scratch.tokens, scratch.offsets, scratch.edges
    numbers = scratch.numbers
    lows, highs, first_slots = scratch.keys[0], scratch.keys[1], scratch.keys[2]
    for row in range(first_row, len(begins)):
        begin, end = begins[row], ends[row]
        runs = np.uint64(split_spaces(data, begin, end, space_kinds, edges))
        next_forced = forced[bisect_left(forced, begin)]
        num, run = np.uint64(bounds[row]), np.uint64(0)
        while run < runs:
            first, last = run, min(run + np.uint64(_BLOCK), runs)
            _look_ahead(data, begin, edges, first, last, slots, lows, highs, first_slots)
            while run < last:
                start = begin + edges[run + run]
                stop = begin + edges[run + run + _ONE]
                low, high, slot = lows[run - first], highs[run - first], first_slots[run - first]
                numbers[run] = num
                # The second slot of the line if not the first, without a branch, which is hard
                # to predict.
                is_first = (slots[slot] == low) & (slots[slot + _KEY_HIGH] == high)
                slot += _NONE if is_first else _FOUR
                value = slots[slot + VALUE]
                if (
                    slots[slot] != low
                    or slots[slot + _KEY_HIGH] != high
                    or (
                        stop - start > 15
                        and (
                            value & _PENDING
                            or not same_bytes(
                                content, np.int64(slots[slot + POSITION]), data, start, stop - start
                            )
                        )
                    )
                ):
                    new_slot = _find_slot(
                        data, start, stop, low, high, slots, used, content, seams, queue
                    )
                    if new_slot == _NO_ROOM:
                        return row
                    if new_slot == _FORBIDDEN:
                        num = _ask_text(begin, end, bounds[row], tokens, queue)
                        run = last = runs
                        break
                    value = slots[np.uint64(new_slot) + VALUE]
                token = value & LOW
                run += _ONE
                if value >> _FLAGS != _NONE or next_forced < stop:
                    if next_forced < stop or (
                        value & TOUCHY
                        and is_touched(data, begin, end, start, stop, seams, np.int64(token))
                    ):
                        if queue.used[0] == len(queue.slots):
                            return row
                        line, run = _line_around(data, begin, edges, run, runs)
                        start, stop = begin + edges[line + line], begin + edges[run + run - _ONE]
                        num = _ask_text(start, stop, numbers[line], tokens, queue)
                        next_forced = forced[bisect_left(forced, stop)]
                        continue
                    if value & _PENDING:
                        tokens[num] = -1 - np.int64(token)
                        num += _ONE
                        continue
                count = (value >> COUNT_BITS) & _COUNT
                # Always four, as the count is hard to predict; what is too much is overwritten.
                for offset in range(_FOUR):
                    tokens[num + offset] = token + offset
                for offset in range(_FOUR, count):
                    tokens[num + offset] = token + offset
                num += count
        bounds[row + 1] = num
    return len(begins)


@kernel
def _look_ahead(
    data: Bytes,
    begin: int,
    edges: Int32s,
    first: np.uint64,
    last: np.uint64,
    slots: Uint64s,
    lows: Uint64s,
    highs: Uint64s,
    first_slots: Uint64s,
) -> None:
    """Fill the keys of chunks `first:last` and the slots where their search begins."""
    mask = np.uint64(len(slots) - 1) >> _LINE_BITS
    for run in range(first, last):
        start = begin + edges[run + run]
        stop = begin + edges[run + run + _ONE]
        if stop - start <= 15:
            low, high = short_key(data, start, stop)
        else:
            low, high = long_key(data, start, stop)
        lows[run - first], highs[run - first] = low, high
        first_slots[run - first] = (mix_key(low, high) & mask) << _LINE_BITS
    # Loads all lines before the first one is used, so that the cache misses overlap: twice as fast.
    sink = _NONE
    for chunk in range(last - first):
        sink ^= slots[first_slots[chunk]]
    first_slots[_BLOCK] = sink


@kernel
def _line_around(
    data: Bytes, begin: int, edges: Int32s, end: np.uint64, runs: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Return the chunks `first:last` with single spaces between them around chunk `end - 1`.

    Special cases reach over single spaces only, so this piece can be split alone.
    """
    first, last = end - _ONE, end
    while first > _NONE:
        stop = edges[first + first - _ONE]
        if edges[first + first] != stop + 1 or data[begin + stop] != 32:
            break
        first -= _ONE
    while last < runs:
        stop = edges[last + last - _ONE]
        if edges[last + last] != stop + 1 or data[begin + stop] != 32:
            break
        last += _ONE
    return first, last


@kernel
def _find_slot(
    data: Bytes,
    start: int,
    stop: int,
    low: np.uint64,
    high: np.uint64,
    slots: Uint64s,
    used: Int64s,
    content: Bytes,
    seams: Seams,
    queue: Questions,
) -> int:
    """Return the slot of a chunk, a new question if it is unknown; _NO_ROOM or _FORBIDDEN."""
    last = np.uint64(len(slots) - 1)
    slot = (mix_key(low, high) << _LINE_BITS) & last
    while slots[slot + _KEY_HIGH] != _NONE:
        if slots[slot] == low and slots[slot + _KEY_HIGH] == high:
            if stop - start <= 15:
                return int(slot)
            position = np.int64(slots[slot + POSITION])
            # The bytes of a question are in the batch.
            is_pending = slots[slot + VALUE] & _PENDING != _NONE
            if same_bytes(data if is_pending else content, position, data, start, stop - start):
                return int(slot)
        slot = (slot + _FOUR) & last
    question = queue.used[0]
    if used[0] * 8 >= len(slots) or question == len(queue.slots):
        return _NO_ROOM
    if _is_forbidden(data, start, stop, seams.forbidden):
        return _FORBIDDEN
    queue.spans[question, 0], queue.spans[question, 1] = start, stop
    queue.slots[question] = slot
    queue.used[0] = question + 1
    used[0] += 1
    slots[slot], slots[slot + _KEY_HIGH] = low, high
    slots[slot + VALUE], slots[slot + POSITION] = np.uint64(question) | _PENDING, np.uint64(start)
    return int(slot)


@kernel
def _ask_text(
    begin: int, end: int, num: int | np.int64, tokens: Int32s, queue: Questions
) -> np.uint64:
    """Make a piece of text a question, token `num`; return the number of the next token."""
    question = queue.used[0]
    queue.spans[question, 0], queue.spans[question, 1] = begin, end
    queue.slots[question] = -1
    queue.used[0] = question + 1
    tokens[num] = -1 - question
    return np.uint64(num + 1)


@kernel
def _is_forbidden(data: Bytes, start: int, stop: int, forbidden: Bytes) -> bool:
    size = len(forbidden)
    if size == 0 or stop - start < size:
        return False
    for pos in range(start, stop - size + 1):
        if data[pos] == forbidden[0] and same_bytes(forbidden, 0, data, pos, size):
            return True
    return False


# ----------------------------------------------------------------------
# Where chunks are: the whitespace scan of str.split().

_SPACE, _WORD, _WIDE = 0, 1, 2


def _space_kinds() -> Bytes:
    """Byte -> whitespace, part of a chunk, or the lead byte of a wide whitespace character."""
    table = np.full(256, _WORD, np.uint8)
    table[[9, 10, 11, 12, 13, 28, 29, 30, 31, 32]] = _SPACE
    table[[0xC2, 0xE1, 0xE2, 0xE3]] = _WIDE
    return frozen(table)


SPACE_KINDS = _space_kinds()


@kernel
def split_spaces(data: Bytes, begin: int, end: int, kinds: Bytes, edges: Int32s) -> int:
    """Fill `edges` with where chunks begin and end; return how many chunks. O(B), 1.2 GB/s.

    An edge is where the kind of a byte differs from the one before. Each byte is stored, but the
    counter moves on edges only: three times as fast as branches, which are hard to predict.

    Args:
        data, begin, end: the text.
        kinds: SPACE_KINDS.
        edges: `end - begin + 2` entries; chunk c is `edges[2 * c]:edges[2 * c + 1]`, in bytes from
            `begin`.
    """
    num = np.uint64(0)
    previous = np.uint8(_SPACE)
    pos = begin
    while pos < end:
        kind, width = kinds[data[pos]], 1
        if kind == _WIDE:
            width = wide_space_width(data, pos)
            kind = np.uint8(_WORD if width == 0 else _SPACE)
            width = max(width, 1)
        edges[num] = pos - begin
        num += np.uint64(kind ^ previous)
        previous = kind
        pos += width
    edges[num] = end - begin
    num += np.uint64(previous)
    return int(num >> np.uint64(1))


# ----------------------------------------------------------------------
# Keys of chunks: the bytes of short ones, 120 bits of hash of long ones.

_MULTIPLY = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0xD6E8FEB86659FD93),
)
_LONG = np.uint64(0xFF << 56)


@inline
def mix_key(low: np.uint64, high: np.uint64) -> np.uint64:
    """Return the hash of a key: its low bits say in which line the search begins."""
    value = (low ^ (high * _MULTIPLY[1])) * _MULTIPLY[0]
    value ^= value >> np.uint64(32)
    return (value * _MULTIPLY[2]) >> np.uint64(20)


@kernel
def long_key(data: Bytes, start: int, stop: int) -> tuple[np.uint64, np.uint64]:
    """Return 120 bits of hash of a chunk of 16 bytes and more, its high byte 255."""
    low, high = _MULTIPLY[0] ^ np.uint64(stop - start), _MULTIPLY[1]
    pos = start
    while pos < stop:
        group = load64(data, pos) if pos + 8 <= stop else load_tail(data, pos, stop)
        low = (low ^ group) * _MULTIPLY[2]
        low ^= low >> np.uint64(32)
        high = (high + group) * _MULTIPLY[0]
        high ^= high >> np.uint64(31)
        pos += 8
    low *= _MULTIPLY[1]
    return low ^ (low >> np.uint64(32)), (high >> np.uint64(8)) | _LONG


def _kept_bytes() -> Uint64s:
    """Size of a chunk -> masks of its bytes in the first and in the second group of 8."""
    masks = [(1 << 8 * size) - 1 for size in range(16)]
    return np.array([[mask & (1 << 64) - 1, mask >> 64] for mask in masks], np.uint64)


_KEPT = _kept_bytes()


@inline
def short_key(data: Bytes, start: int, stop: int) -> tuple[np.uint64, np.uint64]:
    """Return the bytes of a chunk of at most 15 bytes and, in the high byte, how many they are."""
    size = np.uint64(stop - start)
    if start + 16 <= len(data):
        low = load64(data, start) & _KEPT[size, 0]
        high = load64(data, start + 8) & _KEPT[size, 1]
    else:
        low = load_tail(data, start, min(stop, start + 8))
        high = load_tail(data, start + 8, stop)
    return low, high | size << np.uint64(56)


# ----------------------------------------------------------------------
# Special cases that a chunk loses to a longer one that reaches into its neighbour.


class Seams(NamedTuple):
    """Where a special case of a chunk loses to one that reaches into a neighbouring chunk.

    Attributes:
        firsts: (n,) int64, ascending: first words of chunks that may lose a special case.
        groups: (n,) int64: their rows of `bounds`.
        bounds: (G + 1,) int64: group g loses it to the texts `bounds[g]:bounds[g + 1]`.
        sides: (E,) uint8: 1 if the text is after the chunk, 0 before; plus 2 if a letter or
            digit beyond it would be part of the same word.
        starts, data: text e is `data[starts[e]:starts[e + 1]]`.
        forbidden: a text that holds these bytes is a question as a whole; empty for none.
    """

    firsts: Int64s
    groups: Int64s
    bounds: Int64s
    sides: Bytes
    starts: Int64s
    data: Bytes
    forbidden: Bytes


@kernel
def is_touched(
    data: Bytes, begin: int, end: int, start: int, stop: int, seams: Seams, token: int | np.int64
) -> bool:
    """Return whether the chunk whose first word is `token` loses a special case."""
    group = seams.groups[bisect_left(seams.firsts, token)]
    for entry in range(seams.bounds[group], seams.bounds[group + 1]):
        first, last = seams.starts[entry], seams.starts[entry + 1]
        if seams.sides[entry] & 1:
            step, pos, index, stop_index, limit = 1, stop, first, last, end
        else:
            step, pos, index, stop_index, limit = -1, start - 1, last - 1, first - 1, begin - 1
        if pos == limit or data[pos] != 32:
            continue
        while index != stop_index:
            if pos != limit and data[pos] == 32:
                pos += step
            if pos == limit or data[pos] != seams.data[index]:
                break
            pos += step
            index += step
        if index == stop_index and (
            not seams.sides[entry] & 2
            or pos == limit
            or not _same_word(data[pos], data[pos - step])
        ):
            return True
    return False


@kernel
def _same_word(left: int, right: int) -> bool:
    """Return whether spaCy never splits between these two bytes: two letters, two digits."""
    if 48 <= left <= 57:
        return bool(48 <= right <= 57)
    return bool(97 <= (left | 32) <= 122 and 97 <= (right | 32) <= 122)
