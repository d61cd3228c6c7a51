"""Telephone numbers, in bytes; stages/rewriters/_pii_reference.py says the same with `re`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.bytes import (
    CLASS,
    DIGIT,
    LETTER,
    SEPARATOR,
    WORD,
    digits_at,
    follows_digit,
    is_group,
    is_in,
    may_end,
    packed,
    word_before,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]

CALLING = """1:10 7:10 20:8-10 27:9-10 30:10-12 31:9-11 32:8-9 33:9 34:9 36:8-9 39:7-11 40:9 41:9-12
43:7-13 44:9-10 45:8 46:7-10 47:8 48:9-10 49:7-12 51:8-9 52:10 53:7-10 54:10-11 55:10-11 56:9-11
57:8-11 58:10 60:8-10 61:8-10 62:7-12 63:8-11 64:7-10 65:8-11 66:8-10 81:9-11 82:8-11 84:7-10
86:8-12 90:10 91:10 92:8-12 93:9 94:9 95:7-10 98:10 211:9 212:9 213:8-9 216:8 218:9 220:7-9 221:9
222:8 223:8 224:8-9 225:10 226:8 227:8 228:8 229:8-10 230:7-10 231:7-9 232:8 233:8-9 234:8-11
235:8 236:8 237:8-9 238:7 239:7 240:9 241:7-8 242:9 243:7-10 244:9 245:7-9 246:7 248:7 249:9 250:8-9
251:9 252:7-9 253:8 254:7-10 255:9 256:9 257:8 258:8-9 260:9 261:9 262:9 263:7-10 264:8-9 265:7-9
266:8 267:7-10 268:8-9 269:7 291:7 297:7 350:8 351:9 352:7-11 353:7-10 354:7-9 355:8-9 356:8
357:8 358:7-12 359:7-9 370:8 371:8 372:7-8 373:8 374:8 375:9-11 376:7-9 377:8-9 378:8-10 380:9
381:7-12 382:8-9 383:8-9 385:8-9 386:8 387:8-9 389:8 420:9 421:9 423:7-9 501:7 502:8 503:8 504:8
505:8 506:8 507:7-8 509:8 590:9 591:8-9 592:7 593:8-9 594:9 595:7-9 596:9 597:7 598:8 599:7-8
673:7 674:7 675:7-8 676:7 677:7 678:7 679:7 680:7 683:7 685:7 686:8 687:7 689:8 691:7
692:7 800:8 850:8-10 852:8-9 853:8
855:8-9 856:8-10 870:9 880:8-10 886:8-10 960:7 961:7-8 962:8-9 963:8-9 964:8-10 965:7-8 966:9
967:7-9 968:8 970:8-9 971:8-9 972:8-9 973:8 974:8 975:7-8 976:8-10 977:8-10 992:9 993:8 994:9 995:9
996:9 998:9"""
"""Calling code and digits after it (ITU-T E.164; lengths as in Google's libphonenumber, without
short codes and the rarest lengths)."""

CUES = """phone telephone tel fax telefax whatsapp telefon telefono telefone telefoon
mobile cell call"""
"""Words before a number that announce a telephone number."""

NUM_WEAK = 3
"""The last of them also stand before counts, sizes and versions. What follows them must be grouped,
and begin as a telephone number does or end its clause. `mobile:` and `cell:` are strong."""

LINKS = "number no nr is at me us on"
"""What may stand between such a word and the number."""

FOLLOWERS = "or and for to at on now today tonight tomorrow before after between from if when ext"
"""Words that may follow a number that ends its clause; `people` after `call 12 34 567` may not."""

GAP = b" \t.:=#"
"""What may stand around them, at most four of these bytes."""

ENDS = b"\n\r,;!?)]}>'\"`<|*"
"""What ends a clause right after a number; so does a dot, dash or slash with no digit after it."""

_SPACE, _DASH, _DOT, _SLASH, _PLUS, _OPEN, _CLOSE, _COMMA, _COLON = b" -./+(),:"
_NONE, _STRONG, _LOOSE = 0, 1, 2  # what stands before a number: nothing, a strong cue, a weak one


def _codes(text: str) -> Numbers:
    """Return (1000, 2) int64: fewest and most digits after a calling code, 0 if there is none."""
    table = np.zeros((1000, 2), np.int64)
    for entry in text.split():
        code, _, lengths = entry.partition(":")
        low, _, high = lengths.partition("-")
        table[int(code)] = int(low), int(high or low)
    return table


_CALLING = _codes(CALLING)
_CUES, _LINKS = packed(CUES), packed(LINKS)
_FOLLOWERS = np.concatenate((packed(FOLLOWERS), _CUES))
_WEAK, _CALL = len(_CUES) - NUM_WEAK, len(_CUES) - 1
_IS_GAP, _IS_END = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_IS_GAP[list(GAP)], _IS_END[list(ENDS)] = True, True


@kernel
def find_phone(data: Bytes, begin: int, free: int, at: int, end: int, run: int) -> tuple[int, int]:
    """Return the telephone number whose first `run` digits are at `at`, (0, 0) if there is none."""
    before = data[at - 1] if at > begin else np.uint8(_SPACE)
    start = at
    if before in (_PLUS, _OPEN):
        start = at - 1
        if start < free or (start > begin and CLASS[data[start - 1]] & WORD):
            return 0, 0
        if start > begin and (data[start - 1] == before or data[start - 1] == _PLUS):
            return 0, 0
        if before == _OPEN and not (at + run < end and data[at + run] == _CLOSE):
            start = at
    if before == _PLUS:
        stop = _international(data, at, end, run)
        if stop == 0 or (run == 4 and begins_date(data, at, end, True)):
            return 0, 0
        if _is_decimal(data, at, stop) and _cue(data, begin, start) == _NONE:
            return 0, 0
        last = _extension(data, stop, end)
        return (start, last) if may_end(data, last, end, False, False) else (0, 0)
    stop, first = _american(data, start, end), start
    if stop == 0 and run == 1 and data[at] == 49 and at + 1 < end and start == at:
        mark = data[at + 1]
        if CLASS[mark] & SEPARATOR and mark != _SLASH:
            stop, first = _american(data, at + 2, end), at + 2
            if stop and data[first] != _OPEN and data[at + 5] != mark:
                stop = 0
    is_spaced = stop > 0 and data[stop - 5] == _SPACE
    if is_spaced and data[first] != _OPEN and _cue(data, begin, start) == _NONE:
        return 0, 0  # 256 512 1024
    if stop and not (is_spaced and follows_digit(data, begin, start)):
        last = _extension(data, stop, end)
        if may_end(data, last, end, is_spaced, False):
            return start, last
    cue = _cue(data, begin, start)
    if cue == _NONE:
        return 0, 0
    stop, is_count = _any_groups(data, start, end, cue == _LOOSE)
    if stop == 0:
        return 0, 0
    last = _extension(data, stop, end)
    if is_count and last == stop and not _ends_clause(data, stop, end):
        return 0, 0
    return (start, last) if may_end(data, last, end, False, False) else (0, 0)


@kernel
def _value(data: Bytes, at: int, size: int) -> int:
    """Return the number of `size` digits at `at`."""
    value = 0
    for place in range(at, at + size):
        value = value * 10 + np.int64(data[place]) - 48
    return value


@kernel
def begins_date(data: Bytes, at: int, end: int, has_spaces: bool) -> bool:
    """Return whether a date or a range of years begins at `at`; spaces are in it on request.

    2021-03-25, 3/25/2021, 25. with spaces, dots, dashes or slashes; 20210325; 25.03.21 if nothing
    goes on in the same way; 1990-1995. Between spaces only years from 1900 to 2099 are ones.
    """
    size = digits_at(data, at, end, 9)
    if size == 8:
        year, month, day = _value(data, at, 4), _value(data, at + 4, 2), _value(data, at + 6, 2)
        return 1900 <= year < 2100 and _is_day(month, day)
    if not (size == 4 or 0 < size < 3) or not is_in(data, at + size, end, SEPARATOR):
        return False
    mark = data[at + size]
    if mark == _SPACE and not has_spaces:
        return False
    low, high = (1900, 2100) if mark == _SPACE else (1000, 2200)
    second = at + size + 1
    middle = digits_at(data, second, end, 5)
    if size == 4 and middle == 4 and mark != _DOT:
        return low <= _value(data, at, 4) <= _value(data, second, 4) < high
    if middle == 0 or middle > 2:
        return False
    third = second + middle + 1
    last = digits_at(data, third, end, 5)
    if last == 0 or data[third - 1] != mark:
        return False
    one, two, three = (
        _value(data, at, size),
        _value(data, second, middle),
        _value(data, third, last),
    )
    if size == 4:
        return last <= 2 and low <= one < high and _is_day(two, three)
    if not (_is_day(one, two) or _is_day(two, one)):
        return False
    if last == 4:
        return low <= three < high
    goes_on = third + last < end and data[third + last] == mark
    return last == 2 and not (goes_on and is_in(data, third + last + 1, end, DIGIT))


@kernel
def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


@kernel
def _is_decimal(data: Bytes, at: int, stop: int) -> bool:
    """Return whether all between `at` and `stop` is digits but for one dot."""
    dots = 0
    for place in range(at, stop):
        dots += data[place] == _DOT
        if data[place] != _DOT and not CLASS[data[place]] & DIGIT:
            return False
    return dots == 1


@kernel
def _american(data: Bytes, at: int, end: int) -> int:
    """Return the end of `(ddd) ddd-dddd`, `ddd-ddd-dddd` and the like at `at`, 0 if there is none.

    Without brackets and dashes area and exchange must be ones of the North American plan.
    """
    if at < end and data[at] == _OPEN:
        if digits_at(data, at + 1, end, 4) != 3 or not (at + 4 < end and data[at + 4] == _CLOSE):
            return 0
        at += 5
        if at < end and (data[at] == _SPACE or data[at] == _DASH):
            at += 1
        if digits_at(data, at, end, 4) != 3 or at + 3 >= end:
            return 0
        mark = data[at + 3]
    else:
        if digits_at(data, at, end, 4) != 3 or at + 3 >= end:
            return 0
        first = data[at + 3]
        if not is_group(data, at + 3, end, first, 3) or at + 7 >= end:
            return 0
        mark = data[at + 7]
        if mark != first and not (mark == _DASH and first == _SPACE):
            return 0
        if first != _DASH and (data[at] < 50 or data[at + 4] < 50):
            return 0
        at += 4
    if not CLASS[mark] & SEPARATOR or mark == _SLASH:
        return 0
    return at + 8 if is_group(data, at + 3, end, mark, 4) else 0


@kernel
def _international(data: Bytes, at: int, end: int, run: int) -> int:
    """Return the end of the number after a plus, 0 if there is none.

    Groups are taken while their digits are no more than the calling code allows; `(0)` is none.
    """
    code, size = 0, 0
    while size < min(run, 3) and _CALLING[code, 1] == 0:
        code = code * 10 + np.int64(data[at + size]) - 48
        size += 1
    low, high = _CALLING[code, 0], _CALLING[code, 1]
    if high == 0 or data[at] == 48 or run > 15:
        return 0
    count, place = run - size, at + run
    if code == 1 and count == 0:
        if place < end and CLASS[data[place]] & SEPARATOR:
            place += 1
        return place + 10 if digits_at(data, place, end, 11) == 10 else _american(data, place, end)
    if code == 1 and count != 3 and count != 10:
        return 0  # +192.168.10.100
    stop = place if low <= count <= high else 0
    is_first, marks, has_dots = count == 0, 0, False
    while count < high and place < end:
        if CLASS[data[place]] & SEPARATOR:
            is_dot = data[place] == _DOT
            if marks > 1 and is_dot != has_dots:
                break  # +33.5 12.75 44.5
            marks, has_dots = marks + 1, is_dot
            place += 1
        if is_first and is_bracket(data, place, end):
            size = digits_at(data, place + 1, end, 5)
            if size == 5 or not (place + 1 + size < end and data[place + 1 + size] == _CLOSE):
                break
            count += 0 if size == 1 and data[place + 1] == 48 else size
            place += size + 2
            if place < end and CLASS[data[place]] & SEPARATOR:
                place += 1
            marks = 0
        is_first = False
        size = digits_at(data, place, end, 16)
        count, place = count + size, place + size
        if size == 0 or count > high:
            break
        stop = place if count >= low else 0
    return stop


@kernel
def is_bracket(data: Bytes, at: int, end: int) -> bool:
    """Return whether an opening bracket and a digit stand at `at`."""
    return at < end and data[at] == _OPEN and is_in(data, at + 1, end, DIGIT)


@kernel
def _any_groups(data: Bytes, at: int, end: int, is_weak: bool) -> tuple[int, bool]:
    """Return the end of 7 to 12 digits in groups at `at`, 0 if there are none, and a doubt.

    The doubt: they are a count unless they end their clause. The first group may be in brackets.
    All on end they must be 9, or not at all if `is_weak`. A slash stands after an area code only;
    dots do not mix with other marks; at most one group is of one digit, and the last only after a
    dash and an area code (030 1234-0): lists, scores and ISBN have such groups.
    """
    begin, shape = at, 0
    has_area = data[at] == _OPEN
    if has_area:
        shape = digits_at(data, at + 1, end, 5)
        if shape < 2 or shape > 4:
            return 0, False
        at += shape + 2
        if at < end and CLASS[data[at]] & SEPARATOR:
            at += 1
    elif begins_date(data, at, end, True):
        return 0, False
    size = digits_at(data, at, end, 13)
    has_area |= (
        size > 1 and data[at] == 48 and (data[at + 1] != 48 or (size > 2 and data[at + 2] != 48))
    )
    first, count = at + size, shape
    stop, is_count, singles, mark, has_dots = 0, False, 0, np.uint8(0), False
    while True:
        size = digits_at(data, at, end, 13)
        count, singles, shape = count + size, singles + (size == 1), shape * 16 + size
        at += size
        if size == 0 or count > 12 or singles > 1:
            break
        is_long = count >= 7 and (shape > 15 or (count >= 9 and not is_weak))
        is_long &= size > 1 or (has_area and mark == _DASH)
        if is_long and _fits(data, begin, at, end, shape, has_area, is_weak, has_dots, mark):
            is_threes = shape == 0x233 or shape == 0x333 or shape == 0x2333 or shape == 0x3333
            stop, is_count = at, not has_area and (is_weak or is_threes)
        if not (at < end and CLASS[data[at]] & SEPARATOR):
            break
        mark = data[at]
        if at > first:
            if mark == _SLASH or (mark == _DOT) != has_dots:
                break
        elif mark == _SLASH and shape != 3 and not has_area:
            break
        has_dots = mark == _DOT
        at += 1
        if begins_date(data, at, end, False):
            break
    return stop, is_count


@kernel
def _fits(
    data: Bytes,
    begin: int,
    at: int,
    end: int,
    shape: int,
    has_area: bool,
    is_weak: bool,
    has_dots: bool,
    mark: np.uint8,
) -> bool:
    """Return whether groups from `begin` to `at` can be a telephone number.

    `shape` has the size of a group in each hexadecimal digit. Pairs are four, or five with an area
    code, and not more: dumps are written in pairs. With dots and without an area code: 3.3.3 or
    3.3.4; others are versions, addresses, decimals and counts. 1 234 567 and 12 345 678,90 are
    counts, 10000-20000 and, after a weak cue, 1000-2000 ranges. After a weak cue groups have 2 to 4
    digits, or are two of which the second has 6 to 8.
    """
    goes_on = at + 1 < end and CLASS[data[at + 1]] & DIGIT != 0
    if shape == 0x2222 or shape == 0x22222 or shape == 0x222222:
        is_full = shape == 0x22222 if has_area else shape == 0x2222 and data[begin] > 49
        is_last = not (goes_on and CLASS[data[at]] & SEPARATOR)
        return is_full and is_last and (has_area or not (has_dots and is_weak))
    if goes_on and (data[at] == _COLON or (data[at] == _COMMA and not has_area)):
        return False
    if has_area:
        return not (has_dots and shape == 0x3333)
    if data[begin] == 48 and CLASS[data[begin + 1]] & CLASS[data[begin + 2]] & DIGIT:
        return False  # 0000 0200 0006
    if has_dots:
        return not is_weak and (shape == 0x333 or shape == 0x334)
    if shape == 0x133 or shape == 0x1333:
        return False
    is_pair, size, is_even = shape < 0x100, shape & 15, True
    while shape > 15:
        is_even &= 2 <= shape & 15 <= 4
        shape >>= 4
    if is_pair and shape == size and mark == _DASH and _rises(data, begin, size):
        return size == 4 and not is_weak
    is_even &= 2 <= shape <= 4
    is_usual = is_even or (is_pair and 2 <= shape <= 4 and 6 <= size <= 8)
    is_possible = begin + shape == at or (shape <= 5 and not (is_pair and shape == 1))
    return is_usual or (is_possible and not is_weak)


@kernel
def _rises(data: Bytes, at: int, size: int) -> bool:
    """Return whether the second of two numbers of `size` digits, a byte apart, is the larger."""
    return _value(data, at, size) < _value(data, at + size + 1, size)


@kernel
def _ends_clause(data: Bytes, at: int, end: int) -> bool:
    """Return whether a clause ends at `at`, or goes on with one of FOLLOWERS or CUES."""
    if at >= end or _IS_END[data[at]]:
        return True
    if data[at] == _DOT or data[at] == _DASH or data[at] == _SLASH:
        return not is_in(data, at + 1, end, DIGIT)
    if data[at] != _SPACE:
        return False
    at += 1
    if at >= end or _IS_END[data[at]] or data[at] == _OPEN or data[at] == _DASH:
        return True
    word, size = np.uint64(0), 0
    while size < 12 and is_in(data, at + size, end, LETTER):
        word = word << np.uint64(8) | np.uint64(data[at + size] | 0x20)
        size += 1
    word = (word << np.uint64(8)) | np.uint64(size)
    for follower in _FOLLOWERS:
        if word == follower:
            return not is_in(data, at + size, end, WORD)
    return False


@kernel
def _extension(data: Bytes, at: int, end: int) -> int:
    """Return the end of `x123` or `ext. 123` at `at`, or `at`."""
    place = at + 1 if at < end and data[at] == _SPACE else at
    if place < end and data[place] | 0x20 == 120:
        place += 1
    elif place + 2 < end and data[place] | 0x20 == 101:
        if data[place + 1] | 0x20 != 120 or data[place + 2] | 0x20 != 116:
            return at
        place += 3
        if place < end and data[place] == _DOT:
            place += 1
    else:
        return at
    if place < end and data[place] == _SPACE:
        place += 1
    size = digits_at(data, place, end, 7)
    if size == 0 or size == 7 or is_in(data, place + size, end, WORD):
        return at
    return place + size


@kernel
def _cue(data: Bytes, begin: int, at: int) -> int:
    """Return how strongly the word before `at` announces a telephone number."""
    is_marked = False
    for step in range(2):
        gap = 0
        while gap < 4 and at > begin and _IS_GAP[data[at - 1]]:
            at, gap = at - 1, gap + 1
            is_marked |= data[at] == 58 or data[at] == 35
        at, word = word_before(data, begin, at)
        if gap == 0 or word == 0 or (at > begin and CLASS[data[at - 1]] & WORD):
            return _NONE
        for place in range(len(_CUES)):
            if word == _CUES[place]:
                is_weak = place == _CALL or (place >= _WEAK and not is_marked)
                return _LOOSE if is_weak else _STRONG
        is_link = False
        for link in _LINKS:
            is_link |= word == link
        if step or not is_link:
            break
        is_marked |= word == _LINKS[0] or word == _LINKS[1] or word == _LINKS[2]
    return _NONE
