"""Payment card, bank account (IBAN), US social security and telephone numbers, in bytes.

Each is searched at the beginning of a run of digits, and none is longer than 70 bytes, so time is
linear in any text. tests/oracles/pii.py defines the same numbers with `re`.
"""

from __future__ import annotations

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.bytes import (
    CLASS,
    CLOSE,
    COLON,
    COMMA,
    DASH,
    DIGIT,
    DOT,
    LETTER,
    OPEN,
    PLUS,
    SEPARATOR,
    SLASH,
    SPACE,
    WORD,
    digits_at,
    follows_digit,
    is_group,
    is_in,
    may_end,
    packed,
    word_before,
)

PHONE, CARD, IBAN, SSN = 1, 2, 4, 8
"""Bits of the kinds to look for, and what `find_number` returns."""

CARDS = """14:300-305,3095,38-39 14-19:36 15:34,37,1800,2131 16:4,51-55,2221-2720 19:4
16-19:6011,62,644-649,65,81,3528-3589 12-19:5018,5020,5038,5893,6304,6759,6761-6763"""
"""Digits of a card: what it may begin with (ISO/IEC 7812 issuers, as listed in Wikipedia's "Payment
card number").

Visa's cards of 13 digits do not count: they are no longer issued, but pages of shops have article
numbers (EAN) of that form, and one in ten passes the check digit.
"""

CARD_CUES = """card cards credit debit visa mastercard maestro amex unionpay jcb diners discover
pan cc carte carta tarjeta karte kreditkarte"""
"""A number without separators that has neither 15 nor 16 digits needs one of these words before it,
unless it begins with the four digits of an issuer that has no others.

One of 80 integers of 19 digits begins with 4 and passes the check digit (so do hashes, identifiers
and tests of 64-bit code), and one of 250 of 14; nearly all cards have 15 or 16 digits.
"""

CARD_REACH = 48
"""Bytes before the number that are searched for such a word."""

IBANS = """AD8n12c AE19n AL8n16c AT16n AZ4a20c BA16n BE12n BG4a6n8c BH4a14c BI23n BR23n1a1c
BY4c4n16c CH5n12c CR18n CY8n16c CZ20n DE18n DJ23n DK14n DO4c20n EE16n EG25n ES20n FI14n FK2a12n
FO14n FR10n11c2n GB4a14n GE2a16n GI4a15c GL14n GR7n16c GT24c HN4a20n HR17n HU24n IE4a14n IL19n
IQ4a15n
IS22n IT1a10n12c JO4a4n18c KW4a22c KZ3n13c LB4n20c LC4a24c LI5n12c LT16n LU3n13c LV4a13c LY21n
MC10n11c2n MD20c ME18n MK3n10c2n MN16n MR23n MT4a5n18c MU4a19n3a NI4a20n NL4a10n NO11n OM3n16c
PK4a16c PL24n PS4a21c PT21n QA4a21c RO4a16c RS18n RU14n15c SA2n18c SC4a20n3a SD14n SE20n SI15n
SK20n SM1a10n12c SO19n ST21n SV4a20n TL19n TN20n TR6n16c UA6n19c VA18n VG4a16n XK16n YE4a4n18c"""
"""Country and form of the account number: digits (n), letters (a) or either (c). SWIFT's registry
of IBAN formats, release 101; what follows the check digits, neighbours of one class added up."""


def _ranges(text: str) -> Int64s:
    """Return (n, 5) int64: fewest and most digits, first and last prefix, padded to six digits.

    The last column is 1 if there is one prefix, of four digits.
    """
    rows = []
    for entry in text.split():
        lengths, _, prefixes = entry.partition(":")
        low, _, high = lengths.partition("-")
        for prefix in prefixes.split(","):
            first, _, last = prefix.partition("-")
            if first:
                span = (int(first.ljust(6, "0")), int((last or first).ljust(6, "9")))
                rows.append((int(low), int(high or low), *span, not last and len(first) == 4))
    return np.array(rows, np.int64)


def _forms(text: str) -> tuple[Int64s, Bytes]:
    """Return where the form of a country begins and ends, (676, 2), and classes of characters."""
    bounds, classes = np.zeros((26 * 26, 2), np.int64), bytearray()
    for entry in text.split():
        country, form, begin = entry[:2], entry[2:], len(classes)
        number = ""
        for char in form:
            if char.isdecimal():
                number += char
            else:
                classes += bytes([{"n": DIGIT, "a": LETTER, "c": DIGIT | LETTER}[char]]) * int(
                    number
                )
                number = ""
        bounds[(ord(country[0]) - 65) * 26 + ord(country[1]) - 65] = begin, len(classes)
    return bounds, np.frombuffer(bytes(classes), np.uint8)


_CARDS, _CARD_CUES = _ranges(CARDS), packed(CARD_CUES)
_FORMS, _FORM_CLASSES = _forms(IBANS)


@kernel
def find_number(
    data: Bytes, begin: int, free: int, pos: int, end: int, kinds: int
) -> tuple[int, int, int]:
    """Return (start, end, kind) of the number whose first digits are at `pos`; kind 0 if none.

    Args:
        data: text, from `begin` to `end`.
        begin, free, end: where the text begins, where the last span ends, where the text ends.
        pos: the first digit of a run.
        kinds: bits to look for.
    """
    before = data[pos - 1] if pos > begin else np.uint8(SPACE)
    if CLASS[before] & LETTER:
        stop = _iban(data, begin, pos - 2, end) if kinds & IBAN and pos - 2 >= free else 0
        return (pos - 2, stop, IBAN) if stop else (0, 0, 0)
    run = digits_at(data, pos, end, 20)
    after = data[pos + run] if pos + run < end else np.uint8(SPACE)
    if run < 7 and before != PLUS:  # fast exit: most numbers are years, versions, items of lists
        next_at = pos + run + 1
        goes_on = CLASS[after] & SEPARATOR and is_in(data, next_at, end, DIGIT)
        if not goes_on and after != CLOSE and not is_bracket(data, next_at, end):
            return 0, 0, 0
    if CLASS[before] & (WORD | SEPARATOR) and before != SPACE:
        return 0, 0, 0
    if kinds & SSN and run == 3 and after == DASH and before != PLUS:
        stop = _social(data, pos, end)
        if stop:
            return pos, stop, SSN
    if kinds & CARD and (run >= 12 or run == 4) and before != PLUS:
        stop = _card(data, begin, pos, end, run)
        if stop:
            return pos, stop, CARD
    if kinds & PHONE:
        start, stop = find_phone(data, begin, free, pos, end, run)
        if stop:
            return start, stop, PHONE
    return 0, 0, 0


@kernel
def _social(data: Bytes, start: int, end: int) -> int:
    """Return the end of `ddd-dd-dddd` at `start` if it may be an assigned number, else 0."""
    if digits_at(data, start + 4, end, 3) != 2 or digits_at(data, start + 7, end, 5) != 4:
        return 0
    if data[start + 6] != DASH or not may_end(data, start + 11, end, False, True):
        return 0
    area = (np.int64(data[start]) * 10 + data[start + 1]) * 10 + data[start + 2] - 5328
    group = np.int64(data[start + 4]) * 10 + data[start + 5] - 528
    is_zero = True
    for pos in range(start + 7, start + 11):
        is_zero &= data[pos] == 48
    return 0 if area == 0 or area == 666 or area >= 900 or group == 0 or is_zero else start + 11


@kernel
def _grouped(data: Bytes, start: int, end: int) -> int:
    """Return the end of digits in groups of 4-4-4-4, 4-6-5 or 4-6-4 at `start`, 0 if none are."""
    if start + 4 >= end or (data[start + 4] != SPACE and data[start + 4] != DASH):
        return 0
    mark = data[start + 4]
    if is_group(data, start + 4, end, mark, 6):
        for size in range(5, 3, -1):
            if is_group(data, start + 11, end, mark, size):
                return start + 12 + size
    for pos in range(start + 4, start + 15, 5):
        if not is_group(data, pos, end, mark, 4):
            return 0
    return start + 19


@kernel
def _card(data: Bytes, begin: int, start: int, end: int, run: int) -> int:
    """Return the end of the card number at `start`, with or without groups; 0 if there is none."""
    stop, is_spaced = start + run, False
    if run == 4:
        stop = _grouped(data, start, end)
        is_spaced = stop > 0 and data[start + 4] == SPACE
        run = stop - start - (3 if stop - start == 19 else 2)
        if is_spaced and follows_digit(data, begin, start):
            return 0
    if stop == 0 or run > 19 or not may_end(data, stop, end, is_spaced, True):
        return 0
    prefix, num_digits, total = 0, 0, 0
    for pos in range(start, stop):
        if CLASS[data[pos]] & DIGIT:
            digit = np.int64(data[pos]) - 48
            if num_digits < 6:
                prefix = prefix * 10 + digit
            if (run - num_digits) % 2 == 0:
                digit = 2 * digit - 9 * (digit > 4)
            total += digit
            num_digits += 1
    if total % 10 != 0:
        return 0
    for row in range(len(_CARDS)):
        is_long = _CARDS[row, 0] <= run <= _CARDS[row, 1]
        if is_long and _CARDS[row, 2] <= prefix <= _CARDS[row, 3]:
            if stop - start > run or run == 15 or run == 16 or _CARDS[row, 4]:
                return stop
            return stop if _has_card_cue(data, begin, start) else 0
    return 0


@kernel
def _has_card_cue(data: Bytes, begin: int, end: int) -> bool:
    """Return whether one of CARD_CUES is in the bytes before `end`."""
    pos = max(begin, end - CARD_REACH)
    while pos < end:
        word, size = np.uint64(0), np.uint64(0)
        while pos < end and CLASS[data[pos]] & LETTER:
            word = word << np.uint64(8) | np.uint64(data[pos] | 0x20)
            pos, size = pos + 1, size + np.uint64(1)
        word = word << np.uint64(8) | size
        for cue in _CARD_CUES:
            if word == cue:
                return True
        pos += 1
    return False


@kernel
def _iban(data: Bytes, begin: int, start: int, end: int) -> int:
    """Return the end of the account number whose country is at `start`, 0 if there is none.

    In groups of four or without any; letters are all capital or all small.
    """
    if not is_in(data, start, end, LETTER) or digits_at(data, start + 2, end, 2) != 2:
        return 0
    if start > begin and CLASS[data[start - 1]] & WORD:
        return 0
    case = data[start] & 0x20
    if data[start + 1] & 0x20 != case:
        return 0
    country = np.int64((data[start] & 0x1F) - 1) * 26 + np.int64((data[start + 1] & 0x1F) - 1)
    first, last = _FORMS[country, 0], _FORMS[country, 1]
    pos, value = start + 4, 0
    is_spaced = pos < end and data[pos] == SPACE
    for index in range(last - first):
        if is_spaced and index % 4 == 0:
            if not (pos < end and data[pos] == SPACE):
                return 0
            pos += 1
        if not is_in(data, pos, end, _FORM_CLASSES[first + index]):
            return 0
        byte = data[pos]
        if CLASS[byte] & DIGIT:
            value = (value * 10 + np.int64(byte) - 48) % 97
        elif byte & 0x20 == case:
            value = (value * 100 + np.int64(byte & 0x1F) + 9) % 97
        else:
            return 0
        pos += 1
    if first == last or not may_end(data, pos, end, False, True):
        return 0
    for letter in range(start, start + 2):
        value = (value * 100 + np.int64(data[letter] & 0x1F) + 9) % 97
    for digit in range(start + 2, start + 4):
        value = (value * 10 + np.int64(data[digit]) - 48) % 97
    return pos if value == 1 else 0


# ----------------------------------------------------------------------
# Telephone numbers, in bytes; tests/oracles/pii.py defines the same with `re`.

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
"""How many of the last cues are weak: they also precede counts, sizes and versions. The number
after them must be grouped, and begin as a telephone number does or end its clause. `mobile:` and
`cell:` are strong."""

LINKS = "number no nr is at me us on"
"""Allowed between such a word and the number."""

FOLLOWERS = "or and for to at on now today tonight tomorrow before after between from if when ext"
"""Words that may follow a number that ends its clause; `people` after `call 12 34 567` may not."""

GAP = b" \t.:=#"
"""At most four of these bytes may be around them."""

ENDS = b"\n\r,;!?)]}>'\"`<|*"
"""Bytes after a number that end its clause; so does a dot, dash or slash before no digit."""

_NONE, _STRONG, _LOOSE = 0, 1, 2  # what precedes a number: nothing, a strong cue, a weak one


def _codes(text: str) -> Int64s:
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
def find_phone(data: Bytes, begin: int, free: int, pos: int, end: int, run: int) -> tuple[int, int]:
    """Return the telephone number whose first `run` digits are at `pos`, (0, 0) if none is."""
    before = data[pos - 1] if pos > begin else np.uint8(SPACE)
    start = pos
    if before in (PLUS, OPEN):
        start = pos - 1
        if start < free or (start > begin and CLASS[data[start - 1]] & WORD):
            return 0, 0
        if start > begin and (data[start - 1] == before or data[start - 1] == PLUS):
            return 0, 0
        if before == OPEN and not (pos + run < end and data[pos + run] == CLOSE):
            start = pos
    if before == PLUS:
        stop = _international(data, pos, end, run)
        if stop == 0 or (run == 4 and begins_date(data, pos, end, True)):
            return 0, 0
        if _is_decimal(data, pos, stop) and _cue(data, begin, start) == _NONE:
            return 0, 0
        last = _extension(data, stop, end)
        return (start, last) if may_end(data, last, end, False, False) else (0, 0)
    stop, first = _american(data, start, end), start
    if stop == 0 and run == 1 and data[pos] == 49 and pos + 1 < end and start == pos:
        mark = data[pos + 1]
        if CLASS[mark] & SEPARATOR and mark != SLASH:
            stop, first = _american(data, pos + 2, end), pos + 2
            if stop and data[first] != OPEN and data[pos + 5] != mark:
                stop = 0
    is_spaced = stop > 0 and data[stop - 5] == SPACE
    if is_spaced and data[first] != OPEN and _cue(data, begin, start) == _NONE:
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
def _value(data: Bytes, start: int, size: int) -> int:
    value = 0
    for pos in range(start, start + size):
        value = value * 10 + np.int64(data[pos]) - 48
    return value


@kernel
def begins_date(data: Bytes, start: int, end: int, has_spaces: bool) -> bool:
    """Return whether a date or a range of years begins at `start`; `has_spaces` allows spaces.

    2021-03-25, 3/25/2021 with spaces, dots, dashes or slashes; 20210325; 25.03.21 if no further
    group follows; 1990-1995. With spaces a year must be from 1900 to 2099.
    """
    size = digits_at(data, start, end, 9)
    if size == 8:
        year, month, day = (
            _value(data, start, 4),
            _value(data, start + 4, 2),
            _value(data, start + 6, 2),
        )
        return 1900 <= year < 2100 and _is_day(month, day)
    if not (size == 4 or 0 < size < 3) or not is_in(data, start + size, end, SEPARATOR):
        return False
    mark = data[start + size]
    if mark == SPACE and not has_spaces:
        return False
    low, high = (1900, 2100) if mark == SPACE else (1000, 2200)
    second = start + size + 1
    middle = digits_at(data, second, end, 5)
    if size == 4 and middle == 4 and mark != DOT:
        return low <= _value(data, start, 4) <= _value(data, second, 4) < high
    if middle == 0 or middle > 2:
        return False
    third = second + middle + 1
    last = digits_at(data, third, end, 5)
    if last == 0 or data[third - 1] != mark:
        return False
    first_value, second_value, third_value = (
        _value(data, start, size),
        _value(data, second, middle),
        _value(data, third, last),
    )
    if size == 4:
        return last <= 2 and low <= first_value < high and _is_day(second_value, third_value)
    if not (_is_day(first_value, second_value) or _is_day(second_value, first_value)):
        return False
    if last == 4:
        return low <= third_value < high
    goes_on = third + last < end and data[third + last] == mark
    return last == 2 and not (goes_on and is_in(data, third + last + 1, end, DIGIT))


@kernel
def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


@kernel
def _is_decimal(data: Bytes, start: int, stop: int) -> bool:
    """Return whether all bytes from `start` to `stop` are digits, except one dot."""
    dots = 0
    for pos in range(start, stop):
        dots += data[pos] == DOT
        if data[pos] != DOT and not CLASS[data[pos]] & DIGIT:
            return False
    return dots == 1


@kernel
def _american(data: Bytes, pos: int, end: int) -> int:
    """Return the end of `(ddd) ddd-dddd`, `ddd-ddd-dddd` and the like at `pos`, 0 if there is none.

    Without brackets and dashes, area and exchange must not begin with 0 or 1 (North American plan).
    """
    if pos < end and data[pos] == OPEN:
        if digits_at(data, pos + 1, end, 4) != 3 or not (pos + 4 < end and data[pos + 4] == CLOSE):
            return 0
        pos += 5
        if pos < end and (data[pos] == SPACE or data[pos] == DASH):
            pos += 1
        if digits_at(data, pos, end, 4) != 3 or pos + 3 >= end:
            return 0
        mark = data[pos + 3]
    else:
        if digits_at(data, pos, end, 4) != 3 or pos + 3 >= end:
            return 0
        first = data[pos + 3]
        if not is_group(data, pos + 3, end, first, 3) or pos + 7 >= end:
            return 0
        mark = data[pos + 7]
        if mark != first and not (mark == DASH and first == SPACE):
            return 0
        if first != DASH and (data[pos] < 50 or data[pos + 4] < 50):
            return 0
        pos += 4
    if not CLASS[mark] & SEPARATOR or mark == SLASH:
        return 0
    return pos + 8 if is_group(data, pos + 3, end, mark, 4) else 0


@kernel
def _international(data: Bytes, start: int, end: int, run: int) -> int:
    """Return the end of the number after a plus, 0 if there is none.

    Groups are added while the calling code allows as many digits; `(0)` does not count.
    """
    code, size = 0, 0
    while size < min(run, 3) and _CALLING[code, 1] == 0:
        code = code * 10 + np.int64(data[start + size]) - 48
        size += 1
    low, high = _CALLING[code, 0], _CALLING[code, 1]
    if high == 0 or data[start] == 48 or run > 15:
        return 0
    count, pos = run - size, start + run
    if code == 1 and count == 0:
        if pos < end and CLASS[data[pos]] & SEPARATOR:
            pos += 1
        return pos + 10 if digits_at(data, pos, end, 11) == 10 else _american(data, pos, end)
    if code == 1 and count != 3 and count != 10:
        return 0  # +192.168.10.100
    stop = pos if low <= count <= high else 0
    is_first, marks, has_dots = count == 0, 0, False
    while count < high and pos < end:
        if CLASS[data[pos]] & SEPARATOR:
            is_dot = data[pos] == DOT
            if marks > 1 and is_dot != has_dots:
                break  # +33.5 12.75 44.5
            marks, has_dots = marks + 1, is_dot
            pos += 1
        if is_first and is_bracket(data, pos, end):
            size = digits_at(data, pos + 1, end, 5)
            if size == 5 or not (pos + 1 + size < end and data[pos + 1 + size] == CLOSE):
                break
            count += 0 if size == 1 and data[pos + 1] == 48 else size
            pos += size + 2
            if pos < end and CLASS[data[pos]] & SEPARATOR:
                pos += 1
            marks = 0
        is_first = False
        size = digits_at(data, pos, end, 16)
        count, pos = count + size, pos + size
        if size == 0 or count > high:
            break
        stop = pos if count >= low else 0
    return stop


@kernel
def is_bracket(data: Bytes, pos: int, end: int) -> bool:
    """Return whether an opening bracket and a digit are at `pos`."""
    return pos < end and data[pos] == OPEN and is_in(data, pos + 1, end, DIGIT)


@kernel
def _any_groups(data: Bytes, pos: int, end: int, is_weak: bool) -> tuple[int, bool]:
    """Return the end of 7 to 12 digits in groups at `pos`, 0 if there are none, and a doubt.

    The doubt: they are a count unless they end their clause. The first group may be in brackets.
    Without groups there must be 9 digits, and `is_weak` requires groups. A slash may only follow an
    area code; dots do not mix with other marks. At most one group has one digit; the last may, but
    only after a dash and an area code (030 1234-0): lists, scores and ISBN have such groups.
    """
    begin, shape = pos, 0
    has_area = data[pos] == OPEN
    if has_area:
        shape = digits_at(data, pos + 1, end, 5)
        if shape < 2 or shape > 4:
            return 0, False
        pos += shape + 2
        if pos < end and CLASS[data[pos]] & SEPARATOR:
            pos += 1
    elif begins_date(data, pos, end, True):
        return 0, False
    size = digits_at(data, pos, end, 13)
    has_area |= (
        size > 1 and data[pos] == 48 and (data[pos + 1] != 48 or (size > 2 and data[pos + 2] != 48))
    )
    first, count = pos + size, shape
    stop, is_count, singles, mark, has_dots = 0, False, 0, np.uint8(0), False
    while True:
        size = digits_at(data, pos, end, 13)
        count, singles, shape = count + size, singles + (size == 1), shape * 16 + size
        pos += size
        if size == 0 or count > 12 or singles > 1:
            break
        is_long = count >= 7 and (shape > 15 or (count >= 9 and not is_weak))
        is_long &= size > 1 or (has_area and mark == DASH)
        if is_long and _fits(data, begin, pos, end, shape, has_area, is_weak, has_dots, mark):
            is_threes = shape == 0x233 or shape == 0x333 or shape == 0x2333 or shape == 0x3333
            stop, is_count = pos, not has_area and (is_weak or is_threes)
        if not (pos < end and CLASS[data[pos]] & SEPARATOR):
            break
        mark = data[pos]
        if pos > first:
            if mark == SLASH or (mark == DOT) != has_dots:
                break
        elif mark == SLASH and shape != 3 and not has_area:
            break
        has_dots = mark == DOT
        pos += 1
        if begins_date(data, pos, end, False):
            break
    return stop, is_count


@kernel
def _fits(
    data: Bytes,
    begin: int,
    pos: int,
    end: int,
    shape: int,
    has_area: bool,
    is_weak: bool,
    has_dots: bool,
    mark: np.uint8,
) -> bool:
    """Return whether groups from `begin` to `pos` can be a telephone number.

    `shape` has the size of a group in each hexadecimal digit. There are four pairs, or five with an
    area code, not more: dumps are written in pairs. With dots and without an area code: 3.3.3 or
    3.3.4; others are versions, addresses, decimals and counts. 1 234 567 and 12 345 678,90 are
    counts, 10000-20000 and, after a weak cue, 1000-2000 ranges. After a weak cue groups have 2 to 4
    digits, or there are two, the second with 6 to 8.
    """
    goes_on = pos + 1 < end and CLASS[data[pos + 1]] & DIGIT != 0
    if shape == 0x2222 or shape == 0x22222 or shape == 0x222222:
        is_full = shape == 0x22222 if has_area else shape == 0x2222 and data[begin] > 49
        is_last = not (goes_on and CLASS[data[pos]] & SEPARATOR)
        return is_full and is_last and (has_area or not (has_dots and is_weak))
    if goes_on and (data[pos] == COLON or (data[pos] == COMMA and not has_area)):
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
    if is_pair and shape == size and mark == DASH and _rises(data, begin, size):
        return size == 4 and not is_weak
    is_even &= 2 <= shape <= 4
    is_usual = is_even or (is_pair and 2 <= shape <= 4 and 6 <= size <= 8)
    is_possible = begin + shape == pos or (shape <= 5 and not (is_pair and shape == 1))
    return is_usual or (is_possible and not is_weak)


@kernel
def _rises(data: Bytes, pos: int, size: int) -> bool:
    """Return whether the second of two numbers of `size` digits, a byte apart, is the larger."""
    return _value(data, pos, size) < _value(data, pos + size + 1, size)


@kernel
def _ends_clause(data: Bytes, pos: int, end: int) -> bool:
    """Return whether a clause ends at `pos`, or goes on with one of FOLLOWERS or CUES."""
    if pos >= end or _IS_END[data[pos]]:
        return True
    if data[pos] == DOT or data[pos] == DASH or data[pos] == SLASH:
        return not is_in(data, pos + 1, end, DIGIT)
    if data[pos] != SPACE:
        return False
    pos += 1
    if pos >= end or _IS_END[data[pos]] or data[pos] == OPEN or data[pos] == DASH:
        return True
    word, size = np.uint64(0), 0
    while size < 12 and is_in(data, pos + size, end, LETTER):
        word = word << np.uint64(8) | np.uint64(data[pos + size] | 0x20)
        size += 1
    word = (word << np.uint64(8)) | np.uint64(size)
    for follower in _FOLLOWERS:
        if word == follower:
            return not is_in(data, pos + size, end, WORD)
    return False


@kernel
def _extension(data: Bytes, start: int, end: int) -> int:
    """Return the end of `x123` or `ext. 123` at `start`, or `start`."""
    pos = start + 1 if start < end and data[start] == SPACE else start
    if pos < end and data[pos] | 0x20 == 120:
        pos += 1
    elif pos + 2 < end and data[pos] | 0x20 == 101:
        if data[pos + 1] | 0x20 != 120 or data[pos + 2] | 0x20 != 116:
            return start
        pos += 3
        if pos < end and data[pos] == DOT:
            pos += 1
    else:
        return start
    if pos < end and data[pos] == SPACE:
        pos += 1
    size = digits_at(data, pos, end, 7)
    if size == 0 or size == 7 or is_in(data, pos + size, end, WORD):
        return start
    return pos + size


@kernel
def _cue(data: Bytes, begin: int, pos: int) -> int:
    """Return the kind of cue before `pos`: _NONE, _STRONG or _LOOSE."""
    is_marked = False
    for step in range(2):
        gap = 0
        while gap < 4 and pos > begin and _IS_GAP[data[pos - 1]]:
            pos, gap = pos - 1, gap + 1
            is_marked |= data[pos] == 58 or data[pos] == 35
        pos, word = word_before(data, begin, pos)
        if gap == 0 or word == 0 or (pos > begin and CLASS[data[pos - 1]] & WORD):
            return _NONE
        for cue in range(len(_CUES)):
            if word == _CUES[cue]:
                is_weak = cue == _CALL or (cue >= _WEAK and not is_marked)
                return _LOOSE if is_weak else _STRONG
        is_link = False
        for link in _LINKS:
            is_link |= word == link
        if step or not is_link:
            break
        is_marked |= word == _LINKS[0] or word == _LINKS[1] or word == _LINKS[2]
    return _NONE
