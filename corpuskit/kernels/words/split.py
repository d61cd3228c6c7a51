"""Texts to words through a memory of chunks: what a chunk splits into is worked out once.

A chunk is what stands between whitespace, as str.split() sees it. The memory is a hash table of
32-byte slots (low key, high key, value, place of the bytes): chunks of up to 15 bytes are compared
by their key, longer ones by 120 bits of hash and then byte by byte.

Who is to split a new chunk: nobody (a chunk is a word), the rules in `english.py`, or the caller,
who gets what the kernel could not answer as a list, resolves it, and calls again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.words.english import split_chunk
from corpuskit.kernels.words.keys import long_key, mix_key, short_key
from corpuskit.kernels.words.lexicon import Lexicon, Records, append_record, same_bytes
from corpuskit.kernels.words.scan import split_spaces
from corpuskit.kernels.words.seams import Seams, is_touched
from corpuskit.kernels.words.specials import Room, Rules, room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

WHOLE, ASK, RULES = 0, 1, 2
"""Who splits a new chunk: it is a word; the caller; the rules, and the caller if they can't."""

_COUNT_BITS, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_COUNT = np.uint64(0x0FFFFFFF)
_PENDING, _TOUCHY = np.uint64(1 << 63), np.uint64(1 << 62)
"""A slot's value: 32 bits first record (pending: number of the question), 28 bits count, flags."""

_NONE, _FOUR = np.uint64(0), np.uint64(4)


class Questions(NamedTuple):
    """What the caller must split: chunks, and texts as a whole.

    Attributes:
        used: (2,) int64, how many questions, how many places.
        spans: (n, 2) int64 bytes of the batch.
        slots: (n,) int64 where to write the answer; -1 for a piece of text.
        places: (m, 4) int64, in `used[1]`: question, row, and bytes of the chunk, for each place
            where a chunk that was asked for has a neighbour one space away.
    """

    used: Offsets
    spans: NDArray[np.int64]
    slots: Offsets
    places: NDArray[np.int64]


class Memory:
    """Chunks and what they split into; grows with what it is asked.

    Attributes:
        lexicon: where the words are.
        slots: (2 ** n, 4) uint64.
        used: (1,) int64, chunks.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.slots = np.zeros((1 << 12, 4), np.uint64)
        self.used = np.zeros(1, np.int64)

    @property
    def size_bytes(self) -> int:
        """Memory in use, that of the lexicon included."""
        return self.slots.nbytes + self.lexicon.size_bytes

    def grow(self, size_bytes: int) -> None:
        """Make room for new chunks of altogether so many bytes, or a part of them."""
        self.lexicon.reserve(size_bytes + 1, size_bytes + 1)
        if self.used[0] * 8 > len(self.slots) * 4:
            slots = np.zeros((len(self.slots) * 2, 4), np.uint64)
            _rehash(self.slots, slots)
            self.slots = slots


def questions(offsets: Offsets) -> Questions:
    """Return room for all questions of texts: one for two bytes, and each text as a whole."""
    # 256 different chunks may be of one byte and stand in texts of their own.
    most = int(offsets[-1] - offsets[0]) // 2 + len(offsets) + 256
    rows = [np.empty((most, width), np.int64) for width in (2, 4)]
    return Questions(np.zeros(2, np.int64), rows[0], np.empty(most, np.int64), rows[1])


class Scratch(NamedTuple):
    """Room of one batch: see `Words`; `edges` and `room` for the longest text."""

    offsets: Offsets
    tokens: NDArray[np.int32]
    edges: NDArray[np.int32]
    room: Room


def scratch(offsets: Offsets) -> Scratch:
    """Return room for the words of texts; not written to before it is used."""
    longest = int(np.diff(offsets).max(initial=0))
    size = int(offsets[-1] - offsets[0])
    return Scratch(
        np.zeros(len(offsets), np.int64),
        np.empty(size + 4, np.int32),
        np.empty(longest + 2, np.int32),
        room(longest),
    )


@kernel
def _rehash(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    mask = np.uint64(len(new) - 1)
    for slot in range(len(old)):
        if old[slot, 1] != _NONE:
            place = mix_key(old[slot, 0], old[slot, 1]) & mask
            while new[place, 1] != _NONE:
                place = (place + np.uint64(1)) & mask
            for field in range(4):
                new[place, field] = old[slot, field]


@kernel
def find_words(
    first_row: int,
    offsets: Offsets,
    data: Bytes,
    space_kinds: Bytes,
    slots: NDArray[np.uint64],
    used: Offsets,
    records: Records,
    who: int,
    rules: Rules,
    seams: Seams,
    scratch: Scratch,
    asked: Questions,
    forced: Offsets,
) -> int:
    """Find the words of texts from `first_row` on; return the first row not done for want of room.

    A question n leaves the token -1 - n. O(B), 250 MB/s if all chunks are known.

    Args:
        first_row: texts before it are done.
        offsets, data: the texts.
        space_kinds: SPACE_KINDS.
        slots, used, records: see Memory and Lexicon.
        who, rules: who splits new chunks.
        seams, scratch, asked: as they say.
        forced: bytes, ascending, the last beyond all texts: what stands there between two
            whitespaces that are not single spaces is a question as a whole.
    """
    mask = np.uint64(len(slots) - 1)
    # Out of the tuples at once: each look at an array in a tuple costs an atomic count of uses.
    tokens, bounds, at_edges = scratch.tokens, scratch.offsets, scratch.edges
    next_forced = np.searchsorted(forced, offsets[first_row])
    for row in range(first_row, len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        runs = split_spaces(data, begin, end, space_kinds, at_edges)
        num = line_num = np.uint64(bounds[row])
        run = line = 0
        stop = begin - 2
        while run < runs:
            start = begin + at_edges[2 * run]
            if start != stop + 1 or data[stop] != 32:
                line, line_num = run, num
            stop = begin + at_edges[2 * run + 1]
            run += 1
            while forced[next_forced] < start:
                next_forced += 1
            if stop - start <= 15:
                low, high = short_key(data, start, stop)
            else:
                low, high = long_key(data, start, stop)
            place = mix_key(low, high) & mask
            while slots[place, 1] != _NONE and not (
                slots[place, 0] == low
                and slots[place, 1] == high
                and (stop - start <= 15 or _is_same(slots, place, records, data, start, stop))
            ):
                place = (place + np.uint64(1)) & mask
            if slots[place, 1] == _NONE:
                if _is_forbidden(data, start, stop, seams.forbidden):
                    num = _ask_text(begin, end, bounds[row], tokens, asked)
                    break
                if not _has_room(slots, used, records, stop - start):
                    return row
                slots[place, 0], slots[place, 1] = low, high
                used[0] += 1
                slots[place, 2] = _learn(
                    data, start, stop, who, rules, records, scratch.room, asked, place
                )
                if slots[place, 2] & _PENDING:
                    slots[place, 3] = np.uint64(start)
                else:
                    slots[place, 3] = records.starts[slots[place, 2] & _LOW]
            value = slots[place, 2]
            token = np.uint64(value & _LOW)
            if value & _PENDING and forced[next_forced] >= stop:
                tokens[num] = -1 - np.int64(token)
                num += np.uint64(1)
                _note_place(np.int64(token), row, data, begin, end, start, stop, asked)
                continue
            if forced[next_forced] < stop or (
                value & _TOUCHY
                and is_touched(data, begin, end, start, stop, seams, np.int64(token))
            ):
                # Special cases reach over single spaces only: the text between others is enough.
                while run < runs and at_edges[2 * run] == stop + 1 - begin and data[stop] == 32:
                    stop = begin + at_edges[2 * run + 1]
                    run += 1
                num = _ask_text(begin + at_edges[2 * line], stop, line_num, tokens, asked)
                continue
            count = (value >> _COUNT_BITS) & _COUNT
            # Four at a time, needed or not: how many there are is hard to predict.
            for more in range(_FOUR):
                tokens[num + more] = token + more
            for more in range(_FOUR, count):
                tokens[num + more] = token + more
            num += count
        bounds[row + 1] = num
    return len(offsets) - 1


@kernel
def _is_same(
    slots: NDArray[np.uint64],
    place: int | np.uint64,
    records: Records,
    data: Bytes,
    start: int,
    stop: int,
) -> bool:
    """Return whether a long chunk is the one of the slot, which is in the batch while pending."""
    at = np.int64(slots[place, 3])
    if slots[place, 2] & _PENDING:
        return same_bytes(data, at, data, start, stop)
    return same_bytes(records.data, at, data, start, stop)


@kernel
def _has_room(slots: NDArray[np.uint64], used: Offsets, records: Records, size: int) -> bool:
    return bool(
        used[0] * 8 < len(slots) * 5
        and records.used[0] + size < len(records.chars)
        and records.used[1] + size + 16 < len(records.data)
    )


@kernel
def _learn(
    data: Bytes,
    start: int,
    stop: int,
    who: int,
    rules: Rules,
    records: Records,
    room: Room,
    asked: Questions,
    place: int | np.uint64,
) -> np.uint64:
    """Split a new chunk, append its words; return the value of its slot."""
    first = records.used[0]
    if who == WHOLE:
        append_record(records, data, start, stop)
        return np.uint64(first) | (np.uint64(1) << _COUNT_BITS)
    count = split_chunk(data, start, stop, rules, room) if who == RULES else -1
    if count < 0:
        question = asked.used[0]
        asked.spans[question, 0], asked.spans[question, 1] = start, stop
        asked.slots[question] = place
        asked.used[0] = question + 1
        return np.uint64(question) | _PENDING
    at, ends = start, room.ends
    for word in range(count):
        append_record(records, data, at, start + ends[word])
        at = start + ends[word]
    return np.uint64(first) | (np.uint64(count) << _COUNT_BITS)


@kernel
def _ask_text(
    begin: int, end: int, num: int | np.uint64, tokens: NDArray[np.int32], asked: Questions
) -> np.uint64:
    """Make a piece of text a question as a whole, token `num`; return the number behind it."""
    question = asked.used[0]
    asked.spans[question, 0], asked.spans[question, 1] = begin, end
    asked.slots[question] = -1
    asked.used[0] = question + 1
    tokens[num] = -1 - question
    return np.uint64(num + 1)


@kernel
def _is_forbidden(data: Bytes, start: int, stop: int, forbidden: Bytes) -> bool:
    size = len(forbidden)
    if size == 0 or stop - start < size:
        return False
    for at in range(start, stop - size + 1):
        if data[at] == forbidden[0] and same_bytes(forbidden, 0, data, at, at + size):
            return True
    return False


@kernel
def _note_place(
    question: int | np.int64, row: int, data: Bytes, begin: int, end: int, start: int, stop: int,
    asked: Questions,
) -> None:  # fmt: skip
    """Note where a chunk without an answer stands, if one space away from another chunk."""
    if (start > begin and data[start - 1] == 32) or (stop < end and data[stop] == 32):
        num = asked.used[1]
        places = asked.places
        places[num, 0], places[num, 1] = question, row
        places[num, 2], places[num, 3] = start, stop
        asked.used[1] = num + 1


@kernel
def answer(
    slots: NDArray[np.uint64],
    records: Records,
    asked: Questions,
    first_question: int,
    firsts: Offsets,
    counts: Offsets,
    touchy: Bytes,
) -> None:
    """Write answers into the slots of questions from `first_question` on."""
    for question in range(first_question, asked.used[0]):
        place = asked.slots[question]
        if place >= 0:
            value = np.uint64(firsts[question]) | (np.uint64(counts[question]) << _COUNT_BITS)
            slots[place, 2] = value | (_TOUCHY if touchy[question] else np.uint64(0))
            slots[place, 3] = records.starts[firsts[question]]


@kernel
def _expanded(offsets: Offsets, tokens: NDArray[np.int32], counts: Offsets) -> Offsets:
    """Return the offsets of words when all questions are answered."""
    made = np.zeros(len(offsets), np.int64)
    num = np.int64(0)
    for row in range(len(offsets) - 1):
        for at in range(offsets[row], offsets[row + 1]):
            token = tokens[at]
            num += 1 if token >= 0 else counts[-1 - token]
        made[row + 1] = num
    return made


@kernel
def _expand(
    offsets: Offsets,
    tokens: NDArray[np.int32],
    firsts: Offsets,
    counts: Offsets,
    out: NDArray[np.int32],
) -> None:
    num = 0
    for at in range(offsets[-1]):
        token = tokens[at]
        if token >= 0:
            out[num] = token
            num += 1
            continue
        question = -1 - token
        for more in range(counts[question]):
            out[num] = firsts[question] + more
            num += 1


def expand(
    offsets: Offsets, tokens: NDArray[np.int32], firsts: Offsets, counts: Offsets
) -> tuple[Offsets, NDArray[np.int32]]:
    """Return offsets and tokens with the answers in place of the questions."""
    made = _expanded(offsets, tokens, counts)
    out = np.empty(int(made[-1]), np.int32)
    _expand(offsets, tokens, firsts, counts, out)
    return made, out


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view
