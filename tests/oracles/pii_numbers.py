"""What kernels/pii/numbers.py finds, once more with `re`: slow and plain.

All functions take a text, where it is free of spans, and the first digit of a run.
"""

from __future__ import annotations

import re

from corpuskit.kernels.pii.numbers import (
    CALLING,
    CARD_CUES,
    CARD_REACH,
    CARDS,
    CUES,
    ENDS,
    FOLLOWERS,
    IBANS,
    LINKS,
    NUM_WEAK,
)

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
    rb"(?<![A-Za-z0-9_])(%b)(%b(?:(?:%b)%b)?)\Z"
    % ("|".join(CUES.split()).encode(), _GAP, "|".join(LINKS.split()).encode(), _GAP),
    re.IGNORECASE,
)
_MARKED = re.compile(rb"[:#]|\b(?:number|no|nr)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(
    rb"\Z|[%b]|[./-](?![0-9])|\ (?:\Z|[%b(-]|(?:%b)(?![A-Za-z0-9_]))"
    % (re.escape(ENDS), re.escape(ENDS), "|".join((FOLLOWERS + " " + CUES).split()).encode()),
    re.IGNORECASE,
)
_DATE = re.compile(
    rb"""(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?![0-9])
    | (?P<year1>[0-9]{4})([ ./-])(?P<month1>[0-9]{1,2})\5(?P<day1>[0-9]{1,2})(?![0-9])
    | (?P<a>[0-9]{1,2})([ ./-])(?P<b>[0-9]{1,2})\9
      (?: (?P<year2>[0-9]{4})(?![0-9]) | [0-9]{2} (?![0-9]) (?!\9[0-9]) )
    | (?P<from>[0-9]{4})[ /-](?P<to>[0-9]{4})(?![0-9])""",
    re.VERBOSE,
)


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
    issuer = _issuer("".join(map(str, digits)))
    if total % 10 or not issuer:
        return None
    before = re.findall(rb"[a-z]+", text[max(0, at - CARD_REACH) : at].lower())
    has_cue = any(word.decode() in CARD_CUES.split() for word in before)
    is_grouped = len(found[0]) > len(digits)
    is_sure = is_grouped or len(digits) in {15, 16} or issuer == "exact" or has_cue
    return found.span() if is_sure else None


def _issuer(digits: str) -> str:
    """Return how much the first digits say about who issued the card; nothing if nobody did."""
    for entry in CARDS.split():
        lengths, _, prefixes = entry.partition(":")
        low, _, high = lengths.partition("-")
        if int(low) <= len(digits) <= int(high or low):
            for prefix in prefixes.split(","):
                first, _, last = prefix.partition("-")
                if first and first <= digits[: len(first)] <= (last or first):
                    return "exact" if len(first) == 4 and not last else "wide"
    return ""


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
            return _after_plus(text, at)
        if re.match(rb"[0-9]{1,20}\)", text[at : at + 21]) is None:
            start = at
    found = _NATIONAL.match(text, start)
    if found is not None:
        is_spaced = found["spaced1"] is not None or found["spaced2"] is not None
        if found["spaced2"] is not None and not _cue(text, start):
            return None
        end = _SPACED_END if is_spaced else _PHONE_END
        if not (is_spaced and re.search(rb"[0-9] \Z", text[max(0, start - 2) : start])):
            span = _ended(text, start, found.end(), end)
            if span is not None:
                return span
    return _after_cue(text, start)


def _after_plus(text: bytes, at: int) -> Span | None:
    """Return the number after a plus whose first digit is at `at`."""
    stop = _international(text, at)
    if re.match(rb"[0-9]{4}(?![0-9])", text[at:]) and _begins_date(text, at):
        return None
    if stop and re.fullmatch(rb"[0-9]+\.[0-9]+", text[at:stop]) and not _cue(text, at - 1):
        return None
    return _ended(text, at - 1, stop, _PHONE_END)


def _after_cue(text: bytes, start: int) -> Span | None:
    """Return the number at `start` that a word before it announces."""
    cue = _cue(text, start)
    stop, is_count = _any_groups(text, start, is_weak=cue == "weak") if cue else (None, False)
    span = _ended(text, start, stop, _PHONE_END)
    if span is not None and is_count and span[1] == stop and not _CLAUSE_END.match(text, stop):
        return None
    return span


def _cue(text: bytes, at: int) -> str:
    """Return `weak`, `strong` or nothing."""
    found = _CUE.search(text[max(0, at - 60) : at])
    if found is None:
        return ""
    word, weak = found[1].decode().lower(), CUES.split()[-NUM_WEAK:]
    is_weak = word == "call" or (word in weak and _MARKED.search(found[2]) is None)
    return "weak" if is_weak else "strong"


def _begins_date(text: bytes, at: int) -> bool:
    """Return whether a date or a range of years begins at `at`."""
    date = _DATE.match(text, at)
    if date is None:
        return False
    part = {key: int(value) for key, value in date.groupdict().items() if value is not None}
    low, high = (1900, 2100) if b" " in date[0] else (1000, 2200)
    if "year" in part:
        return 1900 <= part["year"] < 2100 and _is_day(part["month"], part["day"])
    if "year1" in part:
        return low <= part["year1"] < high and _is_day(part["month1"], part["day1"])
    if "from" in part:
        return low <= part["from"] <= part["to"] < high
    if not (_is_day(part["a"], part["b"]) or _is_day(part["b"], part["a"])):
        return False
    return "year2" not in part or low <= part["year2"] < high


def _is_day(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


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
    pattern, marks = (_FIRST if count == 0 else _NEXT), b""
    while count < most and (group := pattern.match(text, place)):
        marks = b"" if group[1] else marks + re.sub(rb"[0-9]", b"", group[0])
        if 0 < marks[1:].count(b".") < len(marks) - 1:
            break
        count += len(group[2]) + (len(group[1]) if group[1] and group[1] != b"0" else 0)
        if count > most:
            break
        place, pattern = group.end(), _NEXT
        stop = place if count >= fewest else None
    return stop


def _any_groups(text: bytes, at: int, *, is_weak: bool) -> tuple[int | None, bool]:
    """Return the end of 7 to 12 digits in groups, and whether they may be a count."""
    brackets, begin = _BRACKETS.match(text, at), at
    groups: list[bytes] = []
    if text[at] == 40:
        if brackets is None:
            return None, False
        groups, at = [brackets[1]], brackets.end()
    elif _begins_date(text, at):
        return None, False
    has_area = bool(groups) or re.match(rb"0[1-9]|00[1-9]", text[at:]) is not None
    marks, singles, stop, is_count = b"", 0, None, False
    while group := re.compile(rb"[0-9]+").match(text, at):
        groups.append(group[0])
        at, count, singles = group.end(), sum(map(len, groups)), singles + (len(group[0]) == 1)
        if count > 12 or singles > 1:
            break
        is_long = count >= 7 and (len(groups) > 1 or (count >= 9 and not is_weak))
        may_stop = len(group[0]) > 1 or (has_area and marks.endswith(b"-"))
        if is_long and may_stop and _fits(text, begin, at, groups, marks, has_area, is_weak):
            shape = _shape(groups)
            is_threes = shape in {"2.3.3", "3.3.3", "2.3.3.3", "3.3.3.3"}
            stop, is_count = at, not has_area and (is_weak or is_threes)
        if not _goes_on(text, at, groups, marks, has_area):
            break
        marks, at = marks + text[at : at + 1], at + 1
    return stop, is_count


def _goes_on(text: bytes, at: int, groups: list[bytes], marks: bytes, has_area: bool) -> bool:
    """Return whether another group may follow the one that ends at `at`."""
    mark = text[at : at + 1]
    if mark not in {b" ", b"-", b".", b"/"}:
        return False
    if marks and (mark == b"/" or (mark == b".") != (marks[:1] == b".")):
        return False
    if mark == b"/" and not marks and _shape(groups) != "3" and not has_area:
        return False
    is_spaced = re.match(rb"[0-9]{1,4} ", text[at + 1 :]) is not None
    return is_spaced or not _begins_date(text, at + 1)


def _shape(groups: list[bytes]) -> str:
    return ".".join(str(len(digits)) for digits in groups)


def _fits(
    text: bytes,
    begin: int,
    at: int,
    groups: list[bytes],
    marks: bytes,
    has_area: bool,
    is_weak: bool,
) -> bool:
    """Return whether groups from `begin` to `at` can be a telephone number."""
    shape, has_dots = _shape(groups), marks[:1] == b"."
    if re.fullmatch(r"2(\.2){3,5}", shape):
        if re.match(rb"[ ./-][0-9]", text[at:]):
            return False
        if has_area:
            return len(groups) == 5
        return len(groups) == 4 and text[begin : begin + 1] >= b"2" and not (has_dots and is_weak)
    if re.match(rb":[0-9]" if has_area else rb"[,:][0-9]", text[at:]):
        return False
    if has_area:
        return not (has_dots and shape == "3.3.3.3")
    if re.match(rb"0[0-9]{2}", text[begin:]) or shape in {"1.3.3", "1.3.3.3"}:
        return False
    if has_dots:
        return not is_weak and shape in {"3.3.3", "3.3.4"}
    if marks == b"-" and len(groups[0]) == len(groups[1]) and groups[0] < groups[1]:
        return len(groups[0]) == 4 and not is_weak
    if re.fullmatch(r"[2-4](\.[2-4])+|[2-4]\.[6-8]", shape):
        return True
    return not is_weak and re.fullmatch(r"[0-9]+|[2-5]\..*|1\..*\..*", shape) is not None
