"""Finds personal data of known forms in one scan that stops at few bytes, the anchors.

An `@` may be in an e-mail address, the first `.` in an IPv4 address or a web token, the first `:`
in an IPv6 address; a run of digits may begin a number, and `_`, `-` or `I` is in each key.
tests/oracles/pii.py finds the same with `re`; tests compare the two.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Int64s, Uint64s
from corpuskit.kernels.hashing import same_bytes
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.addresses import find_email, find_ipv4, find_ipv6
from corpuskit.kernels.pii.bytes import (
    AT,
    CLASS,
    COLON,
    DASH,
    DIGIT,
    DOT,
    LABEL,
    LETTER,
    TOKEN,
    UNDERSCORE,
    digits_at,
    is_in,
)
from corpuskit.kernels.pii.numbers import CARD, IBAN, PHONE, SSN, find_number

KINDS = ("email", "ipv4", "ipv6", "phone", "credit_card", "iban", "us_ssn", "secret")

_NUMBERS = {"phone": PHONE, "credit_card": CARD, "iban": IBAN, "us_ssn": SSN}
_EMAIL, _IPV4, _IPV6, _PHONE, _CARD, _IBAN, _SSN, _SECRET = range(8)


class PiiMatches(NamedTuple):
    """Spans sorted by row, then start: (n,) each.

    Attributes:
        rows, starts, ends: int64: document, bytes from its beginning.
        kinds: uint8 into KINDS.
    """

    rows: Int64s
    starts: Int64s
    ends: Int64s
    kinds: Bytes


def find_pii(
    offsets: Int64s,
    data: Bytes,
    kinds: Collection[str] = KINDS,
    *,
    only_public: bool = True,
    min_ipv4_part: int = 64,
) -> PiiMatches:
    """Find personal data of some kinds; O(B).

    Args:
        offsets, data: the texts.
        kinds: of KINDS.
        only_public: skip IP addresses that are not globally reachable.
        min_ipv4_part: skip dotted numbers whose parts are all smaller.
    """
    anchors = np.zeros(256, np.uint8)
    marks = {"email": "@", "ipv4": ".", "ipv6": ":", "secret": "._-I"}
    for kind in kinds:
        anchors[list(marks.get(kind, "0123456789").encode())] = 1
    numbers = sum(_NUMBERS[kind] for kind in _NUMBERS if kind in kinds)
    has_ipv4, has_secret = "ipv4" in kinds, "secret" in kinds
    max_spans = int(offsets[-1] - offsets[0]) // 256 + 16
    while True:
        spans, codes = np.empty((3, max_spans), np.int64), np.empty(max_spans, np.uint8)
        num = _find(
            offsets, data, anchors, numbers, has_ipv4, has_secret, only_public, min_ipv4_part,
            spans, codes,
        )  # fmt: skip
        if num <= max_spans:
            return PiiMatches(spans[0, :num], spans[1, :num], spans[2, :num], codes[:num])
        max_spans = num


@kernel
def _next(data: Bytes, pos: int, end: int, anchors: Bytes) -> int:
    """Return where the next anchor is, `end` if there is none."""
    while pos < end and anchors[data[pos]] == 0:
        pos += 1
    return pos


@kernel
def _look(
    data: Bytes,
    begin: int,
    free: int,
    pos: int,
    end: int,
    numbers: int,
    has_ipv4: bool,
    has_secret: bool,
    only_public: bool,
    min_part: int,
    groups: Uint64s,
) -> tuple[int, int, int]:
    """Return (start, end, kind) of the personal data around the anchor at `pos`; end 0 if none."""
    byte = data[pos]
    if CLASS[byte] & DIGIT:
        start, stop, bit = find_number(data, begin, free, pos, end, numbers)
        kind = _PHONE if bit == PHONE else _CARD if bit == CARD else _IBAN if bit == IBAN else _SSN
        return start, stop, kind
    if byte == 64:
        start, stop = find_email(data, free, pos, end)
        return start, stop, _EMAIL
    if byte == 58:
        start, stop = find_ipv6(data, begin, free, pos, end, only_public, groups)
        return start, stop, _IPV6
    if byte == 46 and has_ipv4:
        start, stop = find_ipv4(data, begin, free, pos, end, only_public, min_part)
        if stop:
            return start, stop, _IPV4
    if has_secret:
        start, stop = find_secret(data, begin, free, pos, end)
        return start, stop, _SECRET
    return 0, 0, 0


@kernel
def _find(
    offsets: Int64s,
    data: Bytes,
    anchors: Bytes,
    numbers: int,
    has_ipv4: bool,
    has_secret: bool,
    only_public: bool,
    min_part: int,
    spans: Int64s,
    kinds: Bytes,
) -> int:
    """Fill `spans` (3, n) and `kinds` (n,) as far as they fit; return how many there are.

    Texts are scanned from left to right; spans do not overlap.
    """
    groups = np.zeros(8, np.uint64)
    num = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        free = begin
        pos = _next(data, begin, end, anchors)
        while pos < end:
            start, stop, kind = _look(
                data, begin, free, pos, end, numbers, has_ipv4, has_secret, only_public, min_part,
                groups,
            )  # fmt: skip
            if stop == 0:
                is_digit = CLASS[data[pos]] & DIGIT
                pos += 1
                while is_digit and pos < end and CLASS[data[pos]] & DIGIT:
                    pos += 1  # a run of digits is examined once
                pos = _next(data, pos, end, anchors)
                continue
            if num < len(kinds):
                spans[0, num], spans[1, num], spans[2, num] = row, start - begin, stop - begin
                kinds[num] = kind
            num += 1
            free = stop
            pos = _next(data, stop, end, anchors)
    return num


# ----------------------------------------------------------------------
# Keys and tokens, by the form that their issuer gives them, in bytes.
#
# Looked for at `_`, `-`, `I` and `.` only; each form has one of them at a known offset. A byte is
# read a fixed number of times: forms of one alphabet may begin only where a run of it does.
# tests/oracles/pii.py defines the same with `re`.

FORMS = (
    ("AKIA", 2, "alnum", 16, 16),  # AWS: access key
    ("ASIA", 2, "alnum", 16, 16),  # AWS: temporary access key
    ("AIza", 1, "token", 35, 35),  # Google
    ("ghp_", 3, "alnum", 36, 251),  # GitHub: personal, OAuth, user, server, refresh
    ("gho_", 3, "alnum", 36, 251),
    ("ghu_", 3, "alnum", 36, 251),
    ("ghs_", 3, "alnum", 36, 251),
    ("ghr_", 3, "alnum", 36, 251),
    ("github_pat_", 6, "word", 60, 251),
    ("npm_", 3, "alnum", 36, 36),
    ("hf_", 2, "alnum", 34, 40),  # Hugging Face
    ("sk_live_", 2, "alnum", 24, 251),  # Stripe
    ("rk_live_", 2, "alnum", 24, 251),
    ("glpat-", 5, "token", 20, 251),  # GitLab
    ("xoxa-", 4, "dashed", 24, 251),  # Slack
    ("xoxb-", 4, "dashed", 24, 251),
    ("xoxp-", 4, "dashed", 24, 251),
    ("xoxr-", 4, "dashed", 24, 251),
    ("xoxs-", 4, "dashed", 24, 251),
    ("pypi-AgE", 4, "token", 50, 251),
    ("sk-", 2, "token", 32, 251),  # OpenAI, Anthropic, OpenRouter, DeepSeek ...
)
"""Prefix, offset in it of the byte that is looked for, alphabet and size of the rest."""

LONGEST_RUN = 20
"""Letters and digits in a row of a key after `sk-`, at least, both of them: slugs have fewer."""

FEWEST_BYTES = 8
"""Distinct bytes of a key, at least: `xxxxxxxx` and `1234123412341234` are placeholders."""

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 20_000
"""Bytes between the lines that begin and end a private key."""

SMALLEST_PART = 10
"""Bytes of each of the three parts of a JSON web token."""

_ALPHABETS = {"alnum": 0, "word": 1, "dashed": 2, "token": 3}
_PREFIXES = np.array([list(form[0].encode().ljust(12, b"\0")) for form in FORMS], np.uint8)
_SHAPES = np.array(
    [(len(f[0]), f[1], _ALPHABETS[f[2]], f[3], f[4], f[0] == "sk-") for f in FORMS], np.int64
)
_BEFORE = np.zeros((256, 256), np.bool_)
for _form in FORMS:
    _BEFORE[ord(_form[0][_form[1]]), ord(_form[0][_form[1] - 1])] = True
_BEGIN = np.frombuffer(b"-----BEGIN ", np.uint8)
_KEY = np.frombuffer(b"PRIVATE KEY", np.uint8)
_END = np.frombuffer(b"-----END ", np.uint8)
_HEAD = np.frombuffer(b"eyJ", np.uint8)
_EXAMPLE = np.frombuffer(b"EXAMPLE", np.uint8)
_BLOCK = np.frombuffer(b" BLOCK", np.uint8)


@kernel
def find_secret(data: Bytes, begin: int, free: int, pos: int, end: int) -> tuple[int, int]:
    """Return the key or token whose known byte is the one at `pos`, (0, 0) if there is none."""
    byte = data[pos]
    if byte == DOT:  # most end sentences
        if (
            pos + 3 >= end
            or data[pos + 1] != _HEAD[0]
            or not _starts_with(data, pos + 1, end, _HEAD)
        ):
            return 0, 0
        return _web_token(data, free, pos, end)
    if pos == begin:
        return 0, 0
    if byte == DASH and data[pos - 1] == DASH:
        if is_in(data, pos + 1, end, LETTER) and pos - 4 >= free:
            return _block(data, pos - 4, end)
        return 0, 0
    if not _BEFORE[byte, data[pos - 1]]:
        return 0, 0
    for form in range(len(_SHAPES)):
        start = pos - _SHAPES[form, 1]
        if (
            start < free
            or data[start] != _PREFIXES[form, 0]
            or data[pos] != _PREFIXES[form, pos - start]
        ):
            continue
        if start > begin and CLASS[data[start - 1]] & TOKEN:
            continue
        body = start + _SHAPES[form, 0]
        if _starts_with(data, start, end, _PREFIXES[form, : body - start]):
            stop = _body(data, body, end, _SHAPES[form, 2], _SHAPES[form, 4])
            size = stop - body
            if size >= _SHAPES[form, 3] and _is_random(data, body, stop, _SHAPES[form, 5] == 1):
                return start, stop
    return 0, 0


@kernel
def _starts_with(data: Bytes, pos: int, end: int, text: Bytes) -> bool:
    return pos + len(text) <= end and same_bytes(data, pos, text, 0, len(text))


@kernel
def _body(data: Bytes, start: int, end: int, alphabet: int, max_bytes: int) -> int:
    """Return the end of the run at `start`; `start` itself if it is longer than `max_bytes` bytes.

    After a run of letters and digits no `_` or `-` may follow.
    """
    stop = start
    while stop < end and stop - start <= max_bytes:
        byte = data[stop]
        if not CLASS[byte] & TOKEN:
            break
        if (byte == UNDERSCORE and alphabet & 1 == 0) or (byte == DASH and alphabet < 2):
            return start
        stop += 1
    return stop if stop - start <= max_bytes else start


@kernel
def _is_random(data: Bytes, start: int, stop: int, has_run: bool) -> bool:
    """Return whether a key looks random, and not like words or a placeholder."""
    low, high, longest = np.uint64(0), np.uint64(0), 0
    digits, capitals, small, begin, has_digit, has_letter = 0, 0, 0, start, False, False
    for pos in range(start, stop):
        byte = data[pos]
        bit = np.uint64(1) << np.uint64(byte & 63)
        if byte < 64:
            low |= bit
        else:
            high |= bit
        if not CLASS[byte] & (DIGIT | LETTER):
            begin, has_digit, has_letter = pos + 1, False, False
            continue
        if CLASS[byte] & DIGIT:
            digits, has_digit = digits + 1, True
        else:
            has_letter = True
            if byte & 0x20:
                small += 1
            else:
                capitals += 1
        if has_digit and has_letter:
            longest = max(longest, pos + 1 - begin)
    if has_run and longest < LONGEST_RUN:
        return False
    if not (digits and small + capitals) and not (small and capitals):
        return False
    different = 0
    for half in (low, high):
        while half:
            half &= half - np.uint64(1)
            different += 1
    return different >= FEWEST_BYTES and not _starts_with(data, stop - 7, stop, _EXAMPLE)


@kernel
def _token_end(data: Bytes, pos: int, end: int) -> int:
    while pos < end and CLASS[data[pos]] & TOKEN:
        pos += 1
    return pos


@kernel
def _web_token(data: Bytes, free: int, pos: int, end: int) -> tuple[int, int]:
    """Return the JSON web token whose first dot is at `pos`, (0, 0) if there is none."""
    start = pos
    while start > free and CLASS[data[start - 1]] & TOKEN:
        start -= 1
    middle = _token_end(data, pos + 1, end)
    if pos - start < SMALLEST_PART or middle - pos - 1 < SMALLEST_PART:
        return 0, 0
    if not _starts_with(data, start, end, _HEAD) or middle == end or data[middle] != DOT:
        return 0, 0
    stop = _token_end(data, middle + 1, end)
    return (start, stop) if stop - middle - 1 >= SMALLEST_PART else (0, 0)


@kernel
def _label_end(data: Bytes, pos: int, end: int) -> int:
    """Return the end of capitals, digits and spaces at `pos`; at most 40 are read."""
    stop = pos
    while stop < min(end, pos + 40) and (
        data[stop] == 32 or is_in(data, stop, end, LETTER | DIGIT)
    ):
        if data[stop] >= 97:
            break
        stop += 1
    return stop


@kernel
def _dashes(data: Bytes, pos: int, end: int) -> bool:
    return _starts_with(data, pos, end, _BEGIN[:5])


@kernel
def _block(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return the private key whose first line begins at `start`, (0, 0) if there is none."""
    if not _starts_with(data, start, end, _BEGIN):
        return 0, 0
    body = _label_end(data, start + 11, end)
    if not _dashes(data, body, end):
        return 0, 0
    label = body
    if _starts_with(data, label - 6, label, _BLOCK):
        label -= 6
    if label - 11 < start + 11 or not _starts_with(data, label - 11, label, _KEY):
        return 0, 0
    body += 5
    stop, last = body, min(end, body + LARGEST_BLOCK)
    while stop < last and not (data[stop] == DASH and _dashes(data, stop, end)):
        stop += 1
    if stop - body < SMALLEST_BLOCK or not _starts_with(data, stop, end, _END):
        return 0, 0
    stop = _label_end(data, stop + 9, end)
    return (start, stop + 5) if _dashes(data, stop, end) else (0, 0)


# ----------------------------------------------------------------------
# E-mail and IPv4 addresses exactly as the expressions of datatrove's PIIFormatter match them.
#
# E-mail addresses first, then IPv4 addresses between them. One test of each `@` and each first dot
# gives the same as backtracking: an expression matches an `@` only where it has one, so each `@`
# has one stretch that may precede it and one domain; the leftmost position in that stretch where a
# word begins or ends wins. datatrove's own run over `a-a-a-a` takes time
# quadratic in its length, this does not.

_BRACKET, _BRACKET_END = b"[]"
_LAST_LETTER = 0x40000  # beyond are marks and private characters only


def find_datatrove(
    offsets: Int64s, data: Bytes, *, has_email: bool = True, has_ipv4: bool = True
) -> PiiMatches:
    """Return what the two expressions match, invalid addresses included; O(B)."""
    max_spans = int(offsets[-1] - offsets[0]) // 256 + 16
    while True:
        spans, kinds = np.empty((3, max_spans), np.int64), np.empty(max_spans, np.uint8)
        num = _find_as_datatrove(
            offsets, data, _word_characters(), has_email, has_ipv4, spans, kinds
        )
        if num <= max_spans:
            return PiiMatches(spans[0, :num], spans[1, :num], spans[2, :num], kinds[:num])
        max_spans = num


@functools.cache
def _word_characters() -> Bools:
    r"""Return which code points `\w` matches in this Python's `re`."""
    is_word = np.fromiter((chr(code).isalnum() for code in range(_LAST_LETTER)), np.bool_)
    is_word[ord("_")] = True
    return is_word


def _local_characters() -> Bools:
    table = np.zeros(256, np.bool_)
    letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    table[list(letters + b"!#$%&'*+/=?^_`{|}~-")] = True
    return table


_LOCAL = _local_characters()


@kernel
def _is_word_before(data: Bytes, begin: int, pos: int, words: Bools) -> bool:
    """Return whether a word character ends before `pos`."""
    if pos == begin:
        return False
    pos -= 1
    byte = np.int64(data[pos])
    if byte < 128:
        return bool(words[byte])
    code, shift = 0, 0
    while byte < 192 and pos > begin:
        code |= (byte & 63) << shift
        shift += 6
        pos -= 1
        byte = np.int64(data[pos])
    code |= (byte & (31 if byte < 224 else 15 if byte < 240 else 7)) << shift
    return bool(code < len(words) and words[code])


@kernel
def _email_begin(data: Bytes, begin: int, free: int, at_sign: int, words: Bools) -> int:
    """Return the leftmost start of an address with the `@` at `at_sign`, -1 if there is none."""
    leftmost, pos = -1, at_sign
    while pos > free:
        byte = data[pos - 1]
        if _LOCAL[byte]:
            pos -= 1
            if bool(words[byte]) != _is_word_before(data, begin, pos, words):
                leftmost = pos
        elif byte == DOT and pos < at_sign and data[pos] != DOT:
            pos -= 1
        else:
            break
    return leftmost


@kernel
def _email_end(data: Bytes, pos: int, end: int) -> int:
    """Return the end of the domain or literal at `pos`, 0 if there is none."""
    if pos < end and data[pos] == _BRACKET:
        return _literal_end(data, pos + 1, end)
    stop, labels = 0, 0
    while is_in(data, pos, end, LABEL) and data[pos] != DASH:
        label_end = pos
        while is_in(data, label_end, end, LABEL):
            label_end += 1
        last = label_end
        while data[last - 1] == DASH:
            last -= 1
        stop, labels = last, labels + 1
        if last < label_end or not (label_end < end and data[label_end] == DOT):
            break
        pos = label_end + 1
    return stop if labels > 1 else 0


@kernel
def _literal_end(data: Bytes, pos: int, end: int) -> int:
    """Return the end of `1.2.3.4]` or `1.2.3.tag:]` at `pos`, 0 if there is none."""
    for _ in range(3):
        size = digits_at(data, pos, end, 4)
        if not _is_octet(data, pos, size) or not (pos + size < end and data[pos + size] == DOT):
            return 0
        pos += size + 1
    label_end = pos
    while is_in(data, label_end, end, LABEL):
        label_end += 1
    if label_end == pos or label_end >= end:
        return 0
    if data[label_end] == COLON and data[label_end - 1] != DASH:
        return label_end + 2 if label_end + 1 < end and data[label_end + 1] == _BRACKET_END else 0
    size = digits_at(data, pos, end, 4)
    is_number = size == label_end - pos and _is_octet(data, pos, size)
    return label_end + 1 if is_number and data[label_end] == _BRACKET_END else 0


@kernel
def _is_octet(data: Bytes, pos: int, size: int) -> bool:
    """Return whether `size` digits at `pos` are a number up to 255, leading zeros allowed."""
    if size == 3:
        return bool((np.int64(data[pos]) * 10 + data[pos + 1]) * 10 + data[pos + 2] <= 5328 + 255)
    return size == 1 or size == 2


@kernel
def _last_octet(data: Bytes, pos: int, end: int) -> int:
    """Return how many digits at `pos` the last octet takes: the first alternative that matches."""
    size = digits_at(data, pos, end, 3)
    if size == 3 and not _is_octet(data, pos, 3):
        return 2
    return size


@kernel
def _next_address(data: Bytes, free: int, end: int) -> tuple[int, int]:
    """Return the first dotted number between `free` and `end`, (0, 0) if there is none."""
    for dot in range(free + 1, end):
        if data[dot] != DOT or not is_in(data, dot + 1, end, DIGIT):
            continue
        pos = dot + 1
        for _ in range(2):
            size = digits_at(data, pos, end, 4)
            if not _is_octet(data, pos, size) or not (pos + size < end and data[pos + size] == DOT):
                pos = 0
                break
            pos += size + 1
        last = _last_octet(data, pos, end) if pos else 0
        if last == 0:
            continue
        for size in range(3, 0, -1):
            start = dot - size
            is_run = start >= free and digits_at(data, start, dot, 3) == size
            if is_run and _is_octet(data, start, size):
                return start, pos + last
    return 0, 0


@kernel
def _next_email(data: Bytes, begin: int, free: int, end: int, words: Bools) -> tuple[int, int]:
    """Return the first e-mail address from `free` on, (end, end) if there is none."""
    for pos in range(free, end):
        if data[pos] == AT:
            stop = _email_end(data, pos + 1, end)
            if stop:
                start = _email_begin(data, begin, free, pos, words)
                if start >= 0:
                    return start, stop
    return end, end


@kernel
def _find_as_datatrove(
    offsets: Int64s,
    data: Bytes,
    words: Bools,
    has_email: bool,
    has_ipv4: bool,
    spans: Int64s,
    kinds: Bytes,
) -> int:
    """Fill `spans` (3, n) and `kinds` (n,) as far as they fit; return how many there are.

    Kind 0 is an e-mail address, 1 an IPv4 address.
    """
    num = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        free = begin
        while free < end:
            mail, after = _next_email(data, begin, free, end, words) if has_email else (end, end)
            while has_ipv4:
                start, stop = _next_address(data, free, mail)
                if stop == 0:
                    break
                if num < len(kinds):
                    spans[0, num], spans[1, num], spans[2, num] = row, start - begin, stop - begin
                    kinds[num] = 1
                num, free = num + 1, stop
            if mail < end:
                if num < len(kinds):
                    spans[0, num], spans[1, num], spans[2, num] = row, mail - begin, after - begin
                    kinds[num] = 0
                num += 1
            free = after
    return num
