"""Payment card, bank account (IBAN), US social security and telephone numbers, in bytes.

All are looked for where a run of digits begins, and none is longer than 70 bytes, so that time is
linear in the text whatever it holds. stages/rewriters/_pii_reference.py says the same with `re`.
"""

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
)
from corpuskit.kernels.pii.phones import find_phone, is_bracket

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]

PHONE, CARD, IBAN, SSN = 1, 2, 4, 8
"""Bits of the kinds to look for, and what `find_number` returns."""

CARDS = """14:300-305,3095,38-39 14-19:36 15:34,37,1800,2131 16:4,51-55,2221-2720 19:4
16-19:6011,62,644-649,65,81,3528-3589 12-19:5018,5020,5038,5893,6304,6759,6761-6763"""
"""Digits of a card: what it may begin with (ISO/IEC 7812 issuers, as listed in Wikipedia's "Payment
card number").

Visa's cards of 13 digits are none: there are no more of them, but article numbers (EAN) of that
form on every shop's page, and one in ten passes the check digit.
"""

CARD_CUES = """card cards credit debit visa mastercard maestro amex unionpay jcb diners discover
pan cc carte carta tarjeta karte kreditkarte"""
"""A number on end of other than 15 or 16 digits needs one of these words before it, unless it
begins with the four digits of an issuer that has no others.

One of 80 integers of 19 digits begins with 4 and passes the check digit (so do hashes, identifiers
and tests of 64-bit code), and one of 250 of 14; nearly all cards have 15 or 16 digits.
"""

CARD_REACH = 48
"""Bytes before the number in which such a word may stand."""

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

_SPACE, _DASH, _PLUS, _CLOSE = b" -+)"


def _ranges(text: str) -> Numbers:
    """Return (n, 5) int64: fewest and most digits, and in each row the prefixes.

    First and last prefix have six digits; the last column is 1 if it is one prefix of four.
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


def _forms(text: str) -> tuple[Numbers, Bytes]:
    """Return where the form of a country begins and ends, (676, 2), and the class of each place."""
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
_FORMS, _PLACES = _forms(IBANS)


@kernel
def find_number(
    data: Bytes, begin: int, free: int, at: int, end: int, kinds: int
) -> tuple[int, int, int]:
    """Return (start, end, kind) of the number whose first digits are at `at`; kind 0 if none.

    Args:
        data: text, from `begin` to `end`.
        begin, free, end: where the text begins, where no span is yet, where it ends.
        at: the first digit of a run.
        kinds: bits to look for.
    """
    before = data[at - 1] if at > begin else np.uint8(_SPACE)
    if CLASS[before] & LETTER:
        stop = _iban(data, begin, at - 2, end) if kinds & IBAN and at - 2 >= free else 0
        return (at - 2, stop, IBAN) if stop else (0, 0, 0)
    run = digits_at(data, at, end, 20)
    after = data[at + run] if at + run < end else np.uint8(_SPACE)
    if run < 7 and before != _PLUS:  # most numbers are years, versions, items of lists
        beyond = at + run + 1
        goes_on = CLASS[after] & SEPARATOR and is_in(data, beyond, end, DIGIT)
        if not goes_on and after != _CLOSE and not is_bracket(data, beyond, end):
            return 0, 0, 0
    if CLASS[before] & (WORD | SEPARATOR) and before != _SPACE:
        return 0, 0, 0
    if kinds & SSN and run == 3 and after == _DASH and before != _PLUS:
        stop = _social(data, at, end)
        if stop:
            return at, stop, SSN
    if kinds & CARD and (run >= 12 or run == 4) and before != _PLUS:
        stop = _card(data, begin, at, end, run)
        if stop:
            return at, stop, CARD
    if kinds & PHONE:
        start, stop = find_phone(data, begin, free, at, end, run)
        if stop:
            return start, stop, PHONE
    return 0, 0, 0


@kernel
def _social(data: Bytes, at: int, end: int) -> int:
    """Return the end of `ddd-dd-dddd` at `at` if it can have been given to somebody, else 0."""
    if digits_at(data, at + 4, end, 3) != 2 or digits_at(data, at + 7, end, 5) != 4:
        return 0
    if data[at + 6] != _DASH or not may_end(data, at + 11, end, False, True):
        return 0
    area = (np.int64(data[at]) * 10 + data[at + 1]) * 10 + data[at + 2] - 5328
    group = np.int64(data[at + 4]) * 10 + data[at + 5] - 528
    is_zero = True
    for place in range(at + 7, at + 11):
        is_zero &= data[place] == 48
    return 0 if area == 0 or area == 666 or area >= 900 or group == 0 or is_zero else at + 11


@kernel
def _grouped(data: Bytes, at: int, end: int) -> int:
    """Return the end of digits in groups of 4-4-4-4, 4-6-5 or 4-6-4 at `at`, 0 if none are."""
    if at + 4 >= end or (data[at + 4] != _SPACE and data[at + 4] != _DASH):
        return 0
    mark = data[at + 4]
    if is_group(data, at + 4, end, mark, 6):
        for size in range(5, 3, -1):
            if is_group(data, at + 11, end, mark, size):
                return at + 12 + size
    for place in range(at + 4, at + 15, 5):
        if not is_group(data, place, end, mark, 4):
            return 0
    return at + 19


@kernel
def _card(data: Bytes, begin: int, at: int, end: int, run: int) -> int:
    """Return the end of the card number at `at`, on end or in groups; 0 if there is none."""
    stop, is_spaced = at + run, False
    if run == 4:
        stop = _grouped(data, at, end)
        is_spaced = stop > 0 and data[at + 4] == _SPACE
        run = stop - at - (3 if stop - at == 19 else 2)
        if is_spaced and follows_digit(data, begin, at):
            return 0
    if stop == 0 or run > 19 or not may_end(data, stop, end, is_spaced, True):
        return 0
    prefix, seen, total = 0, 0, 0
    for place in range(at, stop):
        if CLASS[data[place]] & DIGIT:
            digit = np.int64(data[place]) - 48
            if seen < 6:
                prefix = prefix * 10 + digit
            if (run - seen) % 2 == 0:
                digit = 2 * digit - 9 * (digit > 4)
            total += digit
            seen += 1
    if total % 10 != 0:
        return 0
    for row in range(len(_CARDS)):
        is_long = _CARDS[row, 0] <= run <= _CARDS[row, 1]
        if is_long and _CARDS[row, 2] <= prefix <= _CARDS[row, 3]:
            if stop - at > run or run == 15 or run == 16 or _CARDS[row, 4]:
                return stop
            return stop if _has_card_cue(data, begin, at) else 0
    return 0


@kernel
def _has_card_cue(data: Bytes, begin: int, at: int) -> bool:
    """Return whether one of CARD_CUES stands in the bytes before `at`."""
    place = max(begin, at - CARD_REACH)
    while place < at:
        word, size = np.uint64(0), np.uint64(0)
        while place < at and CLASS[data[place]] & LETTER:
            word = word << np.uint64(8) | np.uint64(data[place] | 0x20)
            place, size = place + 1, size + np.uint64(1)
        word = word << np.uint64(8) | size
        for cue in _CARD_CUES:
            if word == cue:
                return True
        place += 1
    return False


@kernel
def _iban(data: Bytes, begin: int, at: int, end: int) -> int:
    """Return the end of the account number whose country is at `at`, 0 if there is none.

    In groups of four or without any; letters are all capital or all small.
    """
    if not is_in(data, at, end, LETTER) or digits_at(data, at + 2, end, 2) != 2:
        return 0
    if at > begin and CLASS[data[at - 1]] & WORD:
        return 0
    case = data[at] & 0x20
    if data[at + 1] & 0x20 != case:
        return 0
    country = np.int64((data[at] & 0x1F) - 1) * 26 + np.int64((data[at + 1] & 0x1F) - 1)
    first, last = _FORMS[country, 0], _FORMS[country, 1]
    place, value = at + 4, 0
    is_spaced = place < end and data[place] == _SPACE
    for index in range(last - first):
        if is_spaced and index % 4 == 0:
            if not (place < end and data[place] == _SPACE):
                return 0
            place += 1
        if not is_in(data, place, end, _PLACES[first + index]):
            return 0
        byte = data[place]
        if CLASS[byte] & DIGIT:
            value = (value * 10 + np.int64(byte) - 48) % 97
        elif byte & 0x20 == case:
            value = (value * 100 + np.int64(byte & 0x1F) + 9) % 97
        else:
            return 0
        place += 1
    if first == last or not may_end(data, place, end, False, True):
        return 0
    for letter in range(at, at + 2):
        value = (value * 100 + np.int64(data[letter] & 0x1F) + 9) % 97
    for digit in range(at + 2, at + 4):
        value = (value * 10 + np.int64(data[digit]) - 48) % 97
    return place if value == 1 else 0
