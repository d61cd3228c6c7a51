"""spaCy's rules for splitting an English chunk, as a kernel that splits it or says "ask spaCy".

A chunk is text between whitespace. spaCy takes prefixes and suffixes off it until a special case is
left or there is nothing to take off, splits the rest at infixes unless it is a URL, and then looks
for special cases in the tokens. Classes of characters and special cases are spaCy's own, given as
`Rules`. The patterns are written down here: the caller has to check that spaCy's are those for
which this was proven (spaCy 3.8, `text/spacy.py`). The patterns of languages without rules of
their own ("xx") differ in one bit, `Rules.digit_hyphens`.

Positions count characters from the beginning of the chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import char_width, code_point


@kernel
def split_chunk(data: Bytes, start: int, stop: int, rules: Rules, scratch: SplitScratch) -> int:
    """Fill `scratch.ends` with where tokens end; return how many, -1 to ask spaCy.

    The ends are bytes from `start`. O(B), 0.3 us for a chunk of common length.

    Args:
        data, start, stop: the chunk.
        rules, scratch: see their classes.
    """
    num = _decode(data, start, stop, rules.classes, scratch)
    if num < 0:
        return -1
    count = _split_affixes(num, rules, scratch)
    if _has_match(count, rules, scratch):
        return -1
    ends, positions = scratch.ends, scratch.positions
    for token in range(count):
        ends[token] = positions[ends[token]] - start
    return count


@kernel
def _decode(
    data: Bytes, start: int, stop: int, classes: NDArray[np.uint16], scratch: SplitScratch
) -> int:
    """Fill codes, bits, positions; return how many characters, -1 to ask spaCy."""
    codes, kinds, positions = scratch.codes, scratch.bits, scratch.positions
    num = 0
    all_bits = 0
    pos = start
    while pos < stop:
        code = np.int64(data[pos])
        width = 1
        if code >= 0x80:
            code = code_point(data, pos)
            width = char_width(data[pos])
        if code >= NUM_CODES:
            return -1
        bits = np.int64(classes[code])
        all_bits |= bits
        codes[num], kinds[num], positions[num] = code, bits, pos
        num += 1
        pos += width
    positions[num] = stop
    return -1 if all_bits & ASK or (all_bits & UNIT and all_bits & DIGIT) else num


@kernel
def _split_affixes(num: int, rules: Rules, scratch: SplitScratch) -> int:
    """Fill `scratch.ends`; return how many. As spaCy's _split_affixes and _attach_tokens."""
    # Unpacked once: each access to an array in a tuple costs an atomic reference count.
    codes, bits, ends, tails = scratch.codes, scratch.bits, scratch.ends, scratch.tails
    table, starts, texts, longest = rules.table, rules.starts, rules.codes, rules.longest
    piece_starts, pieces = rules.piece_starts, rules.pieces
    begin, end, count, num_tails, previous_size = 0, num, 0, 0, -1
    special = -1
    while special < 0 and end > begin and end - begin != previous_size:
        previous_size = end - begin
        front = back = trial = 0
        # Special cases: the whole, what follows the prefix, what is before the suffix.
        while trial < 3 and special < 0:
            if trial == 1:
                front = _prefix_length(codes, bits, begin, end)
            elif trial == 2:
                back = _suffix_length(codes, bits, begin + front, end)
            if trial == 0 or (front > 0 if trial == 1 else back > 0):
                first = begin + front if trial == 1 else begin
                special = find_special(codes, first, end - back, table, starts, texts, longest)
            trial += 1
        # A special case after the prefix: no suffix was looked for. One before the suffix: the
        # prefix is a part of it.
        if front > 0 and not (special >= 0 and trial == 3):
            begin += front
            ends[count] = begin
            count += 1
        if back > 0:
            end -= back
            tails[num_tails] = end
            num_tails += 1
    if end > begin:
        if special >= 0:
            for piece in range(piece_starts[special], piece_starts[special + 1]):
                begin += pieces[piece]
                ends[count] = begin
                count += 1
        elif is_url(codes, bits, begin, end):
            ends[count] = end
            count += 1
        else:
            count = _split_infixes(codes, bits, begin, end, rules.digit_hyphens, ends, count)
    for tail in range(num_tails - 1, -1, -1):
        ends[count] = tails[tail - 1] if tail > 0 else num
        count += 1
    return count


@kernel
def _is_digit(bits: Int32s, pos: int, begin: int) -> bool:
    return bool(pos >= begin and bits[pos] & DIGIT)


@kernel
def _dots(codes: Int32s, pos: int, end: int) -> int:
    length = 0
    while pos + length < end and codes[pos + length] == 46:
        length += 1
    return length


@kernel
def _prefix_length(codes: Int32s, bits: Int32s, begin: int, end: int) -> int:
    """Return how many characters the prefix pattern takes off the front."""
    if bits[begin] & PREFIX:
        return 1
    code = codes[begin]
    following = codes[begin + 1] if begin + 1 < end else 0
    if code == 46:  # ..
        return _dots(codes, begin, end) if following == 46 else 0
    if code == 43:  # + but not +1
        return 0 if 48 <= following <= 57 else 1
    if following == 36 and (code == 65 or code == 67):  # A$ C$
        return 2
    if code == 85 and following == 83 and begin + 2 < end and codes[begin + 2] == 36:  # US$
        return 3
    return 0


@kernel
def _suffix_length(codes: Int32s, bits: Int32s, begin: int, end: int) -> int:
    """Return how many characters the suffix pattern takes off the back: the most it can."""
    if end <= begin:
        return 0
    last = codes[end - 1]
    if end - 2 >= begin:
        second = codes[end - 2]
        if (last == 115 or last == 83) and (second == 39 or second == 0x2019):  # 's
            return 2
        if last == 0x2026 and second == 0x2026:
            return 2
        if last == 46 and second == 46:
            length = 2
            while end - length > begin and codes[end - length - 1] == 46:
                length += 1
            return length
        if last == 36:
            if second == 83 and end - 3 >= begin and codes[end - 3] == 85:  # 5US$
                if _is_digit(bits, end - 4, begin):
                    return 3
            elif (second == 65 or second == 67) and _is_digit(bits, end - 3, begin):
                return 2
        if last == 46:
            if bits[end - 2] & DOTTED:
                return 1
            if end - 3 >= begin:
                third = end - 3
                if bits[end - 2] & UPPER and bits[third] & UPPER:
                    return 1
                if codes[third] == 0xB0 and (second == 67 or second == 70 or second == 75):
                    return 1
        if (last == 43 or bits[end - 1] & CURRENCY) and bits[end - 2] & DIGIT:
            return 1
        length = _unit_length(codes, bits, begin, end)
        if length > 0:
            return length
    return 1 if bits[end - 1] & SUFFIX else 0


@kernel
def _unit_length(codes: Int32s, bits: Int32s, begin: int, end: int) -> int:
    """Return the characters of a unit of measurement after a digit, 0 if there is none."""
    length = 1
    while length <= 4 and end - length > begin and not bits[end - length - 1] & DIGIT:
        length += 1
    if length > 4 or end - length <= begin:
        return 0
    pos = end - length
    packed = np.int64(1)
    for char in range(length):
        if codes[pos + char] > 127:
            return 0
        packed = packed << 8 | np.int64(codes[pos + char])
    for unit in _UNITS:
        if packed == unit:
            return length
    return 0


_UNITS = tuple(
    int.from_bytes(b"\1" + unit.encode(), "big")
    for unit in (
        *("km", "m", "dm", "cm", "mm", "ha", "nm", "yd", "in", "ft", "kg", "g", "mg", "t", "lb"),
        *("oz", "m/s", "km/h", "kmh", "mph", "hPa", "Pa", "mbar", "mb", "MB", "kb", "KB", "gb"),
        *("GB", "tb", "TB", "T", "G", "M", "K", "%"),
    )
)


@kernel
def _split_infixes(
    codes: Int32s, bits: Int32s, begin: int, end: int, digit_hyphens: int, ends: Int32s, count: int
) -> int:
    """Append the tokens of what is left in the middle; return the new count."""
    start = pos = begin
    while pos < end:
        length = _infix_length(codes, bits, begin, pos, end, digit_hyphens)
        if length == 0:
            pos += 1
            continue
        if pos > begin:
            if pos != start:
                ends[count] = pos
                count += 1
            start = pos + length
            ends[count] = start
            count += 1
        pos += length
    if start < end:
        ends[count] = end
        count += 1
    return count


@kernel
def _infix_length(
    codes: Int32s, bits: Int32s, begin: int, pos: int, end: int, digit_hyphens: int
) -> int:
    """Return how many characters the infix pattern matches at `pos`."""
    code = codes[pos]
    if bits[pos] & BREAK:
        return 1
    if bits[pos] & LETTER:
        return 0
    if code == 46:
        length = _dots(codes, pos, end)
        if length > 1:
            return length
    if pos == begin or pos + 1 >= end:
        return 0
    left, right = bits[pos - 1], bits[pos + 1]
    if code == 46:
        return int(bool(left & (LOWER | QUOTE)) and bool(right & (UPPER | QUOTE)))
    is_sign = code == 43 or code == 45 or code == 42 or code == 94  # + - * ^
    if is_sign and left & DIGIT and (right & DIGIT or codes[pos + 1] == 45):
        return 1
    if code == 44:
        return int(bool(left & LETTER) and bool(right & LETTER))
    if code == 45 or code == 126 or code == 0x2013 or code == 0x2014:  # - ~ and dashes
        if left & LETTER or (digit_hyphens and left & DIGIT):
            return _hyphens_length(codes, bits, pos, end)
        return 0
    if code == 58 or code == 60 or code == 61 or code == 62 or code == 47:  # : < = > /
        return int(bool(left & (LETTER | DIGIT)) and bool(right & LETTER))
    return 0


@kernel
def _hyphens_length(codes: Int32s, bits: Int32s, pos: int, end: int) -> int:
    """Return how many of the hyphens at `pos` precede a letter: - -- --- and dashes."""
    code = codes[pos]
    max_hyphens = 3 if code == 45 else 2 if code == 0x2014 else 1
    for length in range(1, max_hyphens + 1):
        if pos + length >= end:
            return 0
        if bits[pos + length] & LETTER:
            return length
        if codes[pos + length] != code:
            return 0
    return 0


@kernel
def _has_match(count: int, rules: Rules, scratch: SplitScratch) -> bool:
    """Return whether neighbouring tokens spell a special case that has other tokens."""
    codes, ends = scratch.codes, scratch.ends
    table, starts, texts, longest = rules.table, rules.starts, rules.codes, rules.longest
    matched, piece_starts, pieces = rules.matched, rules.piece_starts, rules.pieces
    begin = np.int64(0)
    for first in range(count - 1):
        for last in range(first + 1, count):
            end = np.int64(ends[last])
            if end - begin > longest:
                break
            number = find_special(codes, begin, end, table, starts, texts, longest)
            if number < 0 or not matched[number]:
                continue
            piece, stop = piece_starts[number], piece_starts[number + 1]
            if stop - piece != last - first + 1:
                return True
            pos = begin
            for token in range(first, last + 1):
                pos += pieces[piece + token - first]
                if ends[token] != pos:
                    return True
        begin = np.int64(ends[first])
    return False


# ----------------------------------------------------------------------
# Classes of characters and special cases of spaCy's tokenizers, as arrays.

LETTER, LOWER, UPPER, DIGIT, QUOTE, DOTTED, PREFIX, SUFFIX = (1 << bit for bit in range(8))
BREAK, HOST, SCHEME, CURRENCY, UNIT, ASK = (1 << bit for bit in range(8, 14))
"""Bits of a character: letter, lower-case and upper-case letter of spaCy's patterns (both in
scripts without case); 0-9; quotation mark; a final full stop after it is a word of its own; it is a
word of its own at the beginning, at the end, anywhere; part of a host name, of a URL's scheme;
currency sign; in a unit that is not ASCII; in a pattern that is not written down here."""

NUM_CODES = 0x20000
"""A chunk with a character beyond is left to spaCy."""


class Rules(NamedTuple):
    """What spaCy's language data says, as arrays; all read-only.

    Attributes:
        classes: (NUM_CODES,) uint16, bits as above.
        table: (2 ** n,) int32: hash -> number of a special case + 1, 0 where there is none.
        starts, codes: special case s is the characters `codes[starts[s]:starts[s + 1]]`.
        piece_starts, pieces: its tokens have `pieces[piece_starts[s]:piece_starts[s + 1]]`
            characters.
        matched: (S,) uint8: whether it is also looked for among tokens.
        longest: characters of the longest special case.
        digit_hyphens: 1 if a hyphen between a digit and a letter separates.
    """

    classes: NDArray[np.uint16]
    table: Int32s
    starts: Int32s
    codes: Int32s
    piece_starts: Int32s
    pieces: Int32s
    matched: Bytes
    longest: int
    digit_hyphens: int


class SplitScratch(NamedTuple):
    """Scratch for chunks of at most n characters.

    Attributes:
        codes, bits, positions: (n + 1,) the characters, their classes, their bytes in the texts.
        ends, tails: (n + 1,) where tokens end; the beginnings of suffixes.
    """

    codes: Int32s
    bits: Int32s
    positions: Int64s
    ends: Int32s
    tails: Int32s


def split_scratch(size: int) -> SplitScratch:
    """Return scratch for chunks of at most `size` bytes."""
    narrow = [np.empty(size + 1, np.int32) for _ in range(4)]
    return SplitScratch(narrow[0], narrow[1], np.empty(size + 1, np.int64), narrow[2], narrow[3])


def rules(
    classes: NDArray[np.uint16],
    specials: dict[str, list[str]],
    matched: frozenset[str],
    digit_hyphens: bool,
) -> Rules:
    """Build Rules; `specials` is text -> its tokens."""
    texts = list(specials)
    size = 1 << max(4, (4 * len(texts)).bit_length())
    table = np.zeros(size, np.int32)
    codes = [np.array(list(map(ord, text)), np.int32) for text in texts]
    # Runs once per installation: not worth compiling for calls from Python.
    hashed = getattr(hash_chars, "py_func", hash_chars)
    for number, text in enumerate(codes, start=1):
        slot = hashed(text, 0, len(text)) & (size - 1)
        while table[slot]:
            slot = (slot + 1) & (size - 1)
        table[slot] = number
    pieces = [list(map(len, specials[text])) for text in texts]
    compiled = Rules(
        classes,
        table,
        np.cumsum([0, *map(len, texts)], dtype=np.int32),
        np.concatenate([np.zeros(0, np.int32), *codes]),
        np.cumsum([0, *map(len, pieces)], dtype=np.int32),
        np.array([length for some in pieces for length in some], np.int32),
        np.array([text in matched for text in texts], np.uint8),
        max(map(len, texts), default=0),
        int(digit_hyphens),
    )
    for array in compiled[:-2]:
        array.flags.writeable = False
    return compiled


@kernel
def hash_chars(codes: Int32s, begin: int | np.int64, end: int | np.int64) -> int:
    """Return a hash of some characters."""
    value = np.int64(end - begin)
    for pos in range(begin, end):
        value = (value * np.int64(31) + codes[pos]) & np.int64(0xFFFFFFFFFFFF)
    return int(value ^ (value >> np.int64(15)))


@kernel
def find_special(
    codes: Int32s,
    begin: int | np.int64,
    end: int | np.int64,
    table: Int32s,
    starts: Int32s,
    texts: Int32s,
    longest: int,
) -> int:
    """Return the number of the special case that the characters spell, -1 if none; see Rules."""
    length = end - begin
    if length > longest or length <= 0:
        return -1
    mask = len(table) - 1
    slot = hash_chars(codes, begin, end) & mask
    while table[slot] != 0:
        number = np.int64(table[slot]) - 1
        first = starts[number]
        if starts[number + 1] - first == length:
            equal = 0
            while equal < length and codes[begin + equal] == texts[first + equal]:
                equal += 1
            if equal == length:
                return int(number)
        slot = (slot + 1) & mask
    return -1


NO_RULES = rules(np.zeros(NUM_CODES, np.uint16), {}, frozenset(), digit_hyphens=False)


# ----------------------------------------------------------------------
# spaCy's pattern of URLs: scheme, user, host name or address, port, path.


@kernel
def is_url(codes: Int32s, bits: Int32s, begin: int, end: int) -> bool:
    """Return whether spaCy's URL pattern matches: scheme, user, host or address, port, path."""
    dots = 0
    for pos in range(begin, end):
        dots += codes[pos] == 46
    if dots == 0:
        return False
    pos = begin
    while pos < end and bits[pos] & SCHEME:
        pos += 1
    host = -1
    if (
        pos - begin >= 2
        and pos + 3 < end
        and codes[pos] == 58
        and codes[pos + 1] == 47
        and codes[pos + 2] == 47
    ):
        host = pos + 3
    for pos in range(begin, end):
        is_behind_user = pos > begin + 1 and codes[pos - 1] == 64
        if (pos in (begin, host) or is_behind_user) and _is_host(codes, bits, pos, end):
            return True
    return False


@kernel
def _is_host(codes: Int32s, bits: Int32s, begin: int, end: int) -> bool:
    """Return whether a host name or an address, a port and a path fill `begin:end`."""
    pos = _host_end(codes, bits, begin, end)
    if pos < 0:
        pos = _address_end(codes, bits, begin, end)
    if pos < 0:
        return False
    if pos < end and codes[pos] == 58:
        port = pos + 1
        while port < end and port - pos <= 6 and bits[port] & DIGIT:
            port += 1
        if port - pos < 3 or port - pos > 6:
            return False
        pos = port
    return bool(pos == end or codes[pos] == 47 or codes[pos] == 63 or codes[pos] == 35)


@kernel
def _host_end(codes: Int32s, bits: Int32s, begin: int, end: int) -> int:
    """Return where a host name ends, -1 if there is none: labels, and small letters at last."""
    label = pos = begin
    labels = 0
    letters = True
    while True:
        if pos < end and (bits[pos] & HOST or codes[pos] == 45 or codes[pos] == 95):
            letters = letters and bool(bits[pos] & LOWER)
            pos += 1
            continue
        if pos < end and codes[pos] == 46:
            if (
                pos == label
                or pos - label > 64
                or not bits[label] & HOST
                or not bits[pos - 1] & HOST
            ):
                return -1
            labels += 1
            letters = True
            pos += 1
            label = pos
            continue
        if labels > 0 and letters and 2 <= pos - label <= 63:
            return pos
        return -1


@kernel
def _address_end(codes: Int32s, bits: Int32s, begin: int, end: int) -> int:
    """Return where an IPv4 address ends, -1 if there is none or it is a private one."""
    pos = begin
    first = second = 0
    for group in range(4):
        if group > 0:
            if pos >= end or codes[pos] != 46:
                return -1
            pos += 1
        start, value = pos, 0
        while pos < end and pos - start < 3 and bits[pos] & DIGIT:
            value = value * 10 + (codes[pos] - 48)
            pos += 1
        length = pos - start
        if length == 0 or (pos < end and bits[pos] & DIGIT):
            return -1
        if length == 3 and value < 100:
            return -1
        if (group == 0 or group == 3) and codes[start] == 48:
            return -1
        if value > (223 if group == 0 else 254 if group == 3 else 255):
            return -1
        if group == 0:
            first = value
        elif group == 1:
            second = value
    if first == 10 or first == 127:
        return -1
    if (first == 169 and second == 254) or (first == 192 and second == 168):
        return -1
    if first == 172 and 16 <= second <= 31:
        return -1
    return pos
