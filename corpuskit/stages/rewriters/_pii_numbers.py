"""What kernels/pii/numbers.py and phones.py find, once more with `re`: slow and plain.

All functions take a text, where it is free of spans, and the first digit of a run.
"""

from __future__ import annotations

import re

from corpuskit.kernels.pii.numbers import CARDS, IBANS
from corpuskit.kernels.pii.phones import CALLING, CUES, LINKS

Span = tuple[int, int]

_END = rb"(?![A-Za-z0-9_@]) (?![.-][0-9])"
_STRICT_END = _END + rb" (?!-[A-Za-z0-9_])"
_SSN = re.compile(
    rb"(?<![A-Za-z0-9_.+/-]) (?!000|666|9)[0-9]{3} - (?!00)[0-9]{2} - (?!0000)[0-9]{4}"
    + _STRICT_END,
    re.VERBOSE,
)
_CARD = re.compile(
    rb"""(?<![A-Za-z0-9_.+/-])
    (?: [0-9]{12,19} | [0-9]{4}-(?: [0-9]{6}-[0-9]{4,5} | [0-9]{4}-[0-9]{4}-[0-9]{4} )
      | (?<![0-9]\ )[0-9]{4}\ (?: [0-9]{6}\ [0-9]{4,5} | [0-9]{4}\ [0-9]{4}\ [0-9]{4} )
        (?!\ [0-9]) )"""
    + _STRICT_END,
    re.VERBOSE,
)
_IBAN_END = re.compile(_STRICT_END, re.VERBOSE)

_AMERICAN = rb"""(?:
    \([0-9]{3}\) [ -]? [0-9]{3} (?: [.-][0-9]{4} | \ [0-9]{4} (?P<spaced1>) )
  | [0-9]{3} - [0-9]{3} - [0-9]{4}
  | [2-9][0-9]{2} \. [2-9][0-9]{2} \. [0-9]{4}
  | [2-9][0-9]{2}\ [2-9][0-9]{2} (?: -[0-9]{4} | \ [0-9]{4} (?P<spaced2>) )
  )"""
_AFTER_ONE = re.compile(rb"[ ./-]? (?: [0-9]{10} | %b ) (?![0-9])" % _AMERICAN, re.VERBOSE)
_NATIONAL = re.compile(
    rb"(?: 1(?: -(?=[0-9]{3}-|\() | \.(?=[0-9]{3}\.|\() | \ (?=[0-9]{3}\ |\() ) )? %b (?![0-9])"
    % _AMERICAN,
    re.VERBOSE,
)
_EXTENSION = re.compile(
    rb"(?: \ ?(?:x|ext\.?)\ ?[0-9]{1,6}(?![a-z0-9_]) )?", re.VERBOSE | re.IGNORECASE
)
_PHONE_END = re.compile(_END, re.VERBOSE)
_SPACED_END = re.compile(_END + rb"(?!\ [0-9])", re.VERBOSE)
_BRACKETS = re.compile(rb"\(([0-9]{2,4})\)[ ./-]?")
_FIRST = re.compile(rb"[ ./-]?(?:\(([0-9]{1,4})\)[ ./-]?)?([0-9]+)")
_NEXT = re.compile(rb"[ ./-]?()([0-9]+)")

_GAP = rb"[ \t.:=#]{1,4}"
_CUE = re.compile(
    rb"(?<![A-Za-z0-9_])(%b)%b(?:(?:%b)%b)?\Z"
    % (CUES.encode().replace(b"\n", b" ").replace(b" ", b"|"), _GAP,
       LINKS.encode().replace(b" ", b"|"), _GAP),
    re.IGNORECASE,
)  # fmt: skip


def us_ssn(text: bytes, free: int, at: int) -> Span | None:
    """Return the social security number that begins at `at`."""
    found = _SSN.match(text, at)
    return found and found.span()


def credit_card(text: bytes, free: int, at: int) -> Span | None:
    """Return the card number that begins at `at`."""
    found = _CARD.match(text, at)
    if found is None:
        return None
    digits = [int(digit) for digit in re.findall(rb"[0-9]", found[0])]
    total = sum(digits[-1::-2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return found.span() if total % 10 == 0 and _has_issuer("".join(map(str, digits))) else None


def _has_issuer(digits: str) -> bool:
    for entry in CARDS.split():
        lengths, _, prefixes = entry.partition(":")
        low, _, high = lengths.partition("-")
        if int(low) <= len(digits) <= int(high or low):
            for prefix in prefixes.split(","):
                first, _, last = prefix.partition("-")
                if first and first <= digits[: len(first)] <= (last or first):
                    return True
    return False


def iban(text: bytes, free: int, at: int) -> Span | None:
    """Return the account number whose check digits begin at `at`."""
    start = at - 2
    if start < free or re.match(rb"[A-Za-z]{2}[0-9]{2}", text[start : at + 2]) is None:
        return None
    country = text[start:at].decode()
    form = next((one[2:] for one in IBANS.split() if one[:2] == country.upper()), None)
    if form is None or re.match(rb"[A-Za-z0-9_]", text[start - 1 : start] if start else b""):
        return None
    size = 4 + sum(int(number) for number in re.findall(r"[0-9]+", form))
    if text[at + 2 : at + 3] == b" ":
        size += (size - 1) // 4
    stop = start + size
    written = text[start:stop].decode("latin-1")
    number = written.replace(" ", "")
    grouped = " ".join(number[place : place + 4] for place in range(0, len(number), 4))
    if (
        len(written) < size
        or written not in {number, grouped}
        or _IBAN_END.match(text, stop) is None
    ):
        return None
    return (start, stop) if _is_account(number, form) else None


def _is_account(number: str, form: str) -> bool:
    if number not in {number.upper(), number.lower()}:
        return False
    classes = {"n": "[0-9]", "a": "[A-Za-z]", "c": "[A-Za-z0-9]"}
    pattern = re.sub("([0-9]+)([nac])", lambda m: f"{classes[m[2]]}{{{m[1]}}}", form)
    if re.fullmatch(pattern, number[4:]) is None:
        return False
    return int("".join(str(int(char, 36)) for char in number[4:] + number[:4])) % 97 == 1


def phone(text: bytes, free: int, at: int) -> Span | None:
    """Return the telephone number whose first digit is at `at`."""
    before, start = text[at - 1 : at] if at else b"", at
    if (before and before in b"./-_") or before.isalnum():
        return None
    if before in {b"+", b"("}:
        start = at - 1
        further = text[start - 1 : start] if start else b""
        if start < free or further.isalnum() or further in {b"_", b"+", before}:
            return None
        if before == b"+":
            return _ended(text, start, _international(text, at), _PHONE_END)
        if re.match(rb"[0-9]{1,20}\)", text[at : at + 21]) is None:
            start = at
    found = _NATIONAL.match(text, start)
    if found is not None:
        is_spaced = found["spaced1"] is not None or found["spaced2"] is not None
        end = _SPACED_END if is_spaced else _PHONE_END
        if not (is_spaced and re.search(rb"[0-9] \Z", text[max(0, start - 2) : start])):
            span = _ended(text, start, found.end(), end)
            if span is not None:
                return span
    cue = _CUE.search(text[max(0, start - 60) : start])
    if cue is None:
        return None
    return _ended(text, start, _any_groups(text, start, cue[1].lower() == b"call"), _PHONE_END)


def _ended(text: bytes, start: int, stop: int | None, end: re.Pattern[bytes]) -> Span | None:
    """Return the span with its extension, if a number may end there."""
    if stop is None:
        return None
    extension = _EXTENSION.match(text, stop)
    assert extension is not None, "an empty match is one"
    return (start, extension.end()) if end.match(text, extension.end()) else None


def _international(text: bytes, at: int) -> int | None:
    """Return the end of the number whose calling code begins at `at`."""
    run = re.match(rb"[1-9][0-9]{0,14}(?![0-9])", text[at : at + 16])
    codes = dict(entry.split(":") for entry in CALLING.split())
    code = next(
        (run[0][:size].decode() for size in (1, 2, 3) if run and run[0][:size].decode() in codes),
        "",
    )
    if run is None or not code:
        return None
    low, _, high = codes[code].partition("-")
    fewest, most, count, place = int(low), int(high or low), run.end() - len(code), at + run.end()
    if code == "1" and count == 0:
        found = _AFTER_ONE.match(text, place)
        return found and found.end()
    if code == "1" and count not in {3, 10}:
        return None
    stop = place if fewest <= count <= most else None
    pattern = _FIRST if count == 0 else _NEXT
    while count < most and (group := pattern.match(text, place)):
        count += len(group[2]) + (len(group[1]) if group[1] and group[1] != b"0" else 0)
        if count > most:
            break
        place, pattern = group.end(), _NEXT
        stop = place if count >= fewest else None
    return stop


def _any_groups(text: bytes, at: int, is_grouped: bool) -> int | None:
    """Return the end of 7 to 12 digits in groups."""
    count = groups = 0
    stop = None
    if text[at] == 40:
        brackets = _BRACKETS.match(text, at)
        if brackets is None:
            return None
        count, groups, at = len(brackets[1]), 1, brackets.end()
    while group := re.compile(rb"[0-9]+").match(text, at):
        count, groups, at = count + len(group[0]), groups + 1, group.end()
        if count > 12:
            break
        if count >= 7 and (groups > 1 or (count >= 9 and not is_grouped)):
            stop = at
        if text[at : at + 1] not in {b" ", b"-", b".", b"/"}:
            break
        at += 1
    return stop
