"""The reference of `pii`: what its kernels find, once more with `re`, slow and plain."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any

from corpuskit.kernels.pii import scan
from corpuskit.kernels.pii.scan import KINDS
from corpuskit.stages.rewriters.pii import DATATROVE
from tests.oracles.pii_addresses import email, ipv4, ipv6
from tests.oracles.pii_numbers import credit_card, iban, phone, us_ssn

if TYPE_CHECKING:
    from collections.abc import Collection

    from corpuskit.stages.rewriters.pii import Pii
    from tests.oracles import Decide

Span = tuple[int, int]

_ANCHOR = re.compile(rb"[@.:_I-]|(?<![0-9])[0-9]")
_TOKEN = rb"[A-Za-z0-9_-]"
_TOKENS = (string.ascii_letters + string.digits + "_-").encode()
_BODIES = {
    "alnum": re.compile(rb"[A-Za-z0-9]*(?!%b)" % _TOKEN),
    "word": re.compile(rb"[A-Za-z0-9_]*(?!%b)" % _TOKEN),
    "dashed": re.compile(rb"[A-Za-z0-9-]*(?!%b)" % _TOKEN),
    "token": re.compile(rb"%b*" % _TOKEN),
}
_WEB_TOKEN = re.compile(
    rb"eyJ%b{%d,}\.(?=eyJ)%b{%d,}\.%b{%d,}"
    % (_TOKEN, scan.SMALLEST_PART - 3, *(_TOKEN, scan.SMALLEST_PART) * 2)
)
_BLOCK = re.compile(
    rb"""-----BEGIN\ (?=[A-Z0-9 ]{11,40}-----)[A-Z0-9 ]*PRIVATE\ KEY(?:\ BLOCK)?-----
    (?: (?!-----). ){%d,%d} -----END\ [A-Z0-9 ]{0,40}-----"""
    % (scan.SMALLEST_BLOCK, scan.LARGEST_BLOCK),
    re.VERBOSE | re.DOTALL,
)


def pii(stage: Pii) -> Decide:
    def find(text: str) -> list[tuple[int, int, str]]:
        if stage.mode == "datatrove":
            return find_as_datatrove(text, stage.kinds, only_public=stage.only_public_ips)
        return find_spans(
            text.encode(),
            stage.kinds,
            only_public=stage.only_public_ips,
            min_ipv4_part=stage.min_ipv4_part,
        )

    def rewrite(text: str) -> tuple[str | None, str]:
        data, at, seen, output = text.encode(), 0, dict.fromkeys(KINDS, 0), b""
        for start, end, kind in find(text):
            output += data[at:start] + _piece(stage, kind, end - start, seen[kind])
            seen[kind] += 1
            at = end
        dropped = [kind for kind in KINDS if seen[kind] and stage._action(kind) == "drop"]
        return (dropped[0] if dropped else None), (output + data[at:]).decode()

    if stage.mode == "datatrove" and set(map(stage._action, DATATROVE)) == {"replace"}:
        return lambda text: (None, format_as_datatrove(text, stage))
    return rewrite


def _piece(stage: Pii, kind: str, size: int, turn: int) -> bytes:
    """Return what one span becomes."""
    options = stage._stand_ins(kind)
    return {
        "replace": options[turn % len(options)],
        "mask": stage.mask_character * size,
        "tag": f"<{kind.upper()}>",
        "drop": "",
    }[stage._action(kind)].encode()


def find_spans(
    text: bytes, kinds: Collection[str], *, only_public: bool, min_ipv4_part: int
) -> list[tuple[int, int, str]]:
    """Return (start, end, kind) of the personal data in a text, from left to right."""
    found: list[tuple[int, int, str]] = []
    free = 0
    for mark in _ANCHOR.finditer(text):
        at, span, kind = mark.start(), None, ""
        if at < free:
            continue
        if mark[0] == b"@" and "email" in kinds:
            span, kind = email(text, free, at), "email"
        elif mark[0] == b":" and "ipv6" in kinds:
            span, kind = ipv6(text, free, at, only_public=only_public), "ipv6"
        elif mark[0].isdigit():
            span, kind = _number(text, free, at, kinds)
        elif mark[0] == b"." and "ipv4" in kinds:
            span = ipv4(text, free, at, only_public=only_public, min_part=min_ipv4_part)
            kind = "ipv4"
        if span is None and mark[0] in b"._-I" and "secret" in kinds:
            span, kind = _secret(text, free, at), "secret"
        if span is not None:
            found.append((*span, kind))
            free = span[1]
    return found


def _number(text: bytes, free: int, at: int, kinds: Collection[str]) -> tuple[Span | None, str]:
    for kind, find in (
        ("iban", iban),
        ("us_ssn", us_ssn),
        ("credit_card", credit_card),
        ("phone", phone),
    ):
        if kind in kinds and (span := find(text, free, at)) is not None:
            return span, kind
    return None, ""


def _secret(text: bytes, free: int, at: int) -> Span | None:
    if text[at : at + 1] == b".":
        return _web_token(text, free, at)
    if text[at - 4 : at + 1] == b"-----" and at - 4 >= free:
        block = _BLOCK.match(text, at - 4)
        return block and block.span()
    for prefix, place, alphabet, fewest, most in scan.FORMS:
        start, body = at - place, at - place + len(prefix)
        if start < free or text[start:body] != prefix.encode():
            continue
        if re.match(_TOKEN, text[start - 1 : start]) and start > 0:
            continue
        run = _BODIES[alphabet].match(text, body)
        if run is not None and fewest <= len(run[0]) <= most:
            parts = re.split(rb"[_-]", run[0]) if prefix == "sk-" else [run[0]]
            if _is_random(run[0]) and (prefix != "sk-" or any(map(_is_long, parts))):
                return start, run.end()
    return None


def _is_random(key: bytes) -> bool:
    has_digit, has_letter = re.search(rb"[0-9]", key), re.search(rb"[A-Za-z]", key)
    if not (has_digit and has_letter) and not (key != key.upper() and key != key.lower()):
        return False
    return len(set(key)) >= scan.FEWEST_BYTES and not key.endswith(b"EXAMPLE")


def _is_long(part: bytes) -> bool:
    both = re.search(rb"[0-9]", part) and re.search(rb"[A-Za-z]", part)
    return len(part) >= scan.LONGEST_RUN and both is not None


def _web_token(text: bytes, free: int, at: int) -> Span | None:
    if text[at + 1 : at + 4] != b"eyJ":
        return None
    start = free + len(text[free:at].rstrip(_TOKENS))
    token = _WEB_TOKEN.match(text, start)
    return token.span() if token is not None and token[0].index(b".") == at - start else None


def find_as_datatrove(
    text: str, kinds: Collection[str], *, only_public: bool | None
) -> list[tuple[int, int, str]]:
    """Return (start, end, kind) in bytes of what the expressions of datatrove's formatter match.

    Addresses that are not valid count if `only_public` is None.
    """
    formatter = _formatter(only_remove_public_ips=bool(only_public))
    validator = formatter.ip_replacer.validator
    found: list[tuple[int, int, str]] = []

    def add_addresses(begin: int, end: int) -> None:
        if "ipv4" in kinds:
            matches = formatter.ip_replacer.regex.finditer(text[begin:end])
            valid = (m for m in matches if only_public is None or validator(m[0]))
            found.extend((begin + m.start(), begin + m.end(), "ipv4") for m in valid)

    free = 0
    for match in formatter.emails_replacer.regex.finditer(text) if "email" in kinds else ():
        add_addresses(free, match.start())
        found.append((*match.span(), "email"))
        free = match.end()
    add_addresses(free, len(text))
    return [(len(text[:a].encode()), len(text[:b].encode()), kind) for a, b, kind in found]


def format_as_datatrove(text: str, stage: Pii) -> str:
    """Return the text from a PIIFormatter that has seen no other."""
    formatter = _formatter(
        remove_emails="email" in stage.kinds,
        remove_ips="ipv4" in stage.kinds,
        only_remove_public_ips=stage.only_public_ips,
        email_replacement=stage._stand_ins("email"),
        ip_replacement=stage._stand_ins("ipv4"),
    )
    return str(formatter.format(text))


def _formatter(**options: Any) -> Any:
    from datatrove.pipeline.formatters import PIIFormatter

    return PIIFormatter(**options)
