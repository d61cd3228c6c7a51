"""Keys and tokens that open something, by the form their issuer gives them, in bytes.

Looked for at `_`, `-`, `I` and `.` only; each form has one of them at a known place. A byte is
looked at a fixed number of times: forms of one alphabet may begin only where a run of it does.
stages/rewriters/_pii_reference.py says the same with `re`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.pii.bytes import CLASS, DIGIT, LETTER, TOKEN, is_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]

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
"""Prefix, where in it the byte is at which we look, alphabet and size of the rest."""

LONGEST_RUN = 20
"""What follows `sk-` has as many letters and digits on end, with both: no slug of words has."""

FEWEST_BYTES = 8
"""Different bytes in a key; `xxxxxxxx` and `1234123412341234` are none."""

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 20_000
"""Bytes between the lines that begin and end a private key."""

SMALLEST_PART = 10
"""Bytes of each of the three parts of a JSON web token."""

_UNDERSCORE, _DASH, _DOT = b"_-."
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
def find_secret(data: Bytes, begin: int, free: int, at: int, end: int) -> tuple[int, int]:
    """Return the key or token that has the byte at `at` at its known place, (0, 0) if none has."""
    byte = data[at]
    if byte == _DOT:  # most end sentences
        if at + 3 >= end or data[at + 1] != _HEAD[0] or not _stands(data, at + 1, end, _HEAD):
            return 0, 0
        return _web_token(data, free, at, end)
    if at == begin:
        return 0, 0
    if byte == _DASH and data[at - 1] == _DASH:
        if is_in(data, at + 1, end, LETTER) and at - 4 >= free:
            return _block(data, at - 4, end)
        return 0, 0
    if not _BEFORE[byte, data[at - 1]]:
        return 0, 0
    for form in range(len(_SHAPES)):
        start = at - _SHAPES[form, 1]
        if (
            start < free
            or data[start] != _PREFIXES[form, 0]
            or data[at] != _PREFIXES[form, at - start]
        ):
            continue
        if start > begin and CLASS[data[start - 1]] & TOKEN:
            continue
        body = start + _SHAPES[form, 0]
        if _stands(data, start, end, _PREFIXES[form, : body - start]):
            stop = _body(data, body, end, _SHAPES[form, 2], _SHAPES[form, 4])
            size = stop - body
            if size >= _SHAPES[form, 3] and _is_random(data, body, stop, _SHAPES[form, 5] == 1):
                return start, stop
    return 0, 0


@kernel
def _stands(data: Bytes, at: int, end: int, text: Bytes) -> bool:
    """Return whether a text stands at `at`."""
    if at + len(text) > end:
        return False
    place = 0
    while place < len(text) and data[at + place] == text[place]:
        place += 1
    return place == len(text)


@kernel
def _body(data: Bytes, at: int, end: int, alphabet: int, most: int) -> int:
    """Return the end of the run at `at`; `at` itself if it is longer than `most` bytes.

    A run of letters and digits must not go on with `_` or `-`, either.
    """
    stop = at
    while stop < end and stop - at <= most:
        byte = data[stop]
        if not CLASS[byte] & TOKEN:
            break
        if (byte == _UNDERSCORE and alphabet & 1 == 0) or (byte == _DASH and alphabet < 2):
            return at
        stop += 1
    return stop if stop - at <= most else at


@kernel
def _is_random(data: Bytes, at: int, stop: int, has_run: bool) -> bool:
    """Return whether a key looks drawn at random, and not like words or a placeholder."""
    low, high, longest = np.uint64(0), np.uint64(0), 0
    digits, capitals, small, begin, has_digit, has_letter = 0, 0, 0, at, False, False
    for place in range(at, stop):
        byte = data[place]
        bit = np.uint64(1) << np.uint64(byte & 63)
        if byte < 64:
            low |= bit
        else:
            high |= bit
        if not CLASS[byte] & (DIGIT | LETTER):
            begin, has_digit, has_letter = place + 1, False, False
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
            longest = max(longest, place + 1 - begin)
    if has_run and longest < LONGEST_RUN:
        return False
    if not (digits and small + capitals) and not (small and capitals):
        return False
    different = 0
    for half in (low, high):
        while half:
            half &= half - np.uint64(1)
            different += 1
    return different >= FEWEST_BYTES and not _stands(data, stop - 7, stop, _EXAMPLE)


@kernel
def _token_end(data: Bytes, at: int, end: int) -> int:
    while at < end and CLASS[data[at]] & TOKEN:
        at += 1
    return at


@kernel
def _web_token(data: Bytes, free: int, at: int, end: int) -> tuple[int, int]:
    """Return the JSON web token whose first dot is at `at`, (0, 0) if there is none."""
    start = at
    while start > free and CLASS[data[start - 1]] & TOKEN:
        start -= 1
    middle = _token_end(data, at + 1, end)
    if at - start < SMALLEST_PART or middle - at - 1 < SMALLEST_PART:
        return 0, 0
    if not _stands(data, start, end, _HEAD) or middle == end or data[middle] != _DOT:
        return 0, 0
    stop = _token_end(data, middle + 1, end)
    return (start, stop) if stop - middle - 1 >= SMALLEST_PART else (0, 0)


@kernel
def _label_end(data: Bytes, at: int, end: int) -> int:
    """Return the end of capitals, digits and spaces at `at`; at most 40 are read."""
    stop = at
    while stop < min(end, at + 40) and (data[stop] == 32 or is_in(data, stop, end, LETTER | DIGIT)):
        if data[stop] >= 97:
            break
        stop += 1
    return stop


@kernel
def _dashes(data: Bytes, at: int, end: int) -> bool:
    """Return whether five dashes stand at `at`."""
    return _stands(data, at, end, _BEGIN[:5])


@kernel
def _block(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return the private key whose first line begins at `start`, (0, 0) if there is none."""
    if not _stands(data, start, end, _BEGIN):
        return 0, 0
    body = _label_end(data, start + 11, end)
    if not _dashes(data, body, end):
        return 0, 0
    label = body
    if _stands(data, label - 6, label, _BLOCK):
        label -= 6
    if label - 11 < start + 11 or not _stands(data, label - 11, label, _KEY):
        return 0, 0
    body += 5
    stop, last = body, min(end, body + LARGEST_BLOCK)
    while stop < last and not (data[stop] == _DASH and _dashes(data, stop, end)):
        stop += 1
    if stop - body < SMALLEST_BLOCK or not _stands(data, stop, end, _END):
        return 0, 0
    stop = _label_end(data, stop + 9, end)
    return (start, stop + 5) if _dashes(data, stop, end) else (0, 0)
