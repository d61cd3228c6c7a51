"""How records of web archives begin: WARC, and ARC, which came before it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEADER_BYTES = 1 << 16
"""A longer header is none."""


class Framing(NamedTuple):
    """How the records of an archive begin.

    Attributes:
        starts: bytes -> whether they begin with a record.
        may_start: bytes -> the same, but what they are too few to decide counts as one.
        read_header: bytes -> where the header that they begin with ends, None if it does not, and
            its fields: those of WARC, names in lower case.
        next: finds the line feed in front of a line that begins a record.
        next_or_cut: the same, or in front of one that the end of the bytes cuts off.
        head_bytes: so many bytes are enough to tell.
        line_bytes: the longest such line, its line feeds included.
        is_nested: a header may hold lines that begin other records.
    """

    starts: Callable[[bytes], bool]
    may_start: Callable[[bytes], bool]
    read_header: Callable[[bytes], tuple[int | None, Mapping[str, str]]]
    next: re.Pattern[bytes]
    next_or_cut: re.Pattern[bytes]
    head_bytes: int
    line_bytes: int
    is_nested: bool


# ---------------------------------------------------------------- WARC

START = b"WARC/"
"""How every record starts."""

VERSION = re.compile(rb"WARC/\d{1,2}\.\d{1,2}[ \t]*\r?\n")
_BLANK = re.compile(rb"\r?\n\r?\n")


def _read_warc_header(window: bytes) -> tuple[int | None, Mapping[str, str]]:
    end = _BLANK.search(window)
    return (None, {}) if end is None else (end.end(), parse_fields(window[: end.start()]))


def parse_fields(header: bytes) -> dict[str, str]:
    """Return the fields of a header, names in lower case; the first of equal names counts.

    Source: RFC 9112, section 5; lines that begin with a blank belong to the one before.
    """
    fields: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in header.decode("utf-8", "replace").split("\n"):
        if line[:1] in {" ", "\t"}:
            if lines is not None:
                lines.append(line.strip())
            continue
        name, colon, value = line.partition(":")
        if colon and name and not name[0].isspace():
            lines = [value.strip()]
            fields.setdefault(name.rstrip(" \t").lower(), lines)
    return {name: " ".join(lines) for name, lines in fields.items()}


WARC = Framing(
    starts=lambda head: VERSION.match(head) is not None,
    may_start=lambda head: START.startswith(head[: len(START)]),
    read_header=_read_warc_header,
    next=re.compile(rb"\n" + VERSION.pattern),
    next_or_cut=re.compile(rb"\nWARC/(?:\d{1,2}\.\d{1,2}[ \t]*\r?\n|[^\n]{0,9}\Z)"),
    head_bytes=len(START),
    line_bytes=32,
    is_nested=True,
)


# ---------------------------------------------------------------- ARC

_LINE = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9+.\-]{0,30}:[^\r\n]{0,4096}?) (?P<ip>[0-9A-Fa-f.:\-]{1,45}) "
    rb"(?P<date>\d{8,17}) (?P<type>[^\r\n ]{0,256}) (?:[^\r\n]{0,2048} )?(?P<length>\d{1,15})"
    rb"[ \t]*\r?\n"
)
"""Fields of version 1; version 2 has five more in front of the length. URLs may have blanks."""

LINE_BYTES = 1 << 13

_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]{0,30}(?::[^\r\n]*)?\Z")

DESCRIPTION = "filedesc:"
"""How the URL of a file's first record begins, which describes the file."""


def _read_arc_header(window: bytes) -> tuple[int | None, Mapping[str, str]]:
    """Return the fields of a record as WARC calls them.

    A response that came by HTTP is called so; what is of another protocol keeps its type.
    """
    line = _LINE.match(window)
    if line is None:
        return None, {}
    url, ip, date, kind, length = (part.decode("utf-8", "replace") for part in line.groups())
    is_http = url[:6].lower().startswith(("http:", "https:"))
    return line.end(), {
        "warc-type": "warcinfo" if url.startswith(DESCRIPTION) else "response",
        "warc-target-uri": url,
        "warc-ip-address": ip,
        "warc-date": _iso(date),
        "content-type": "application/http; msgtype=response" if is_http else kind,
        "content-length": length,
    }


def _iso(date: str) -> str:
    """Return a date of 14 digits as WARC writes it."""
    if len(date) != 14:
        return date
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:]}Z"


def _may_start_arc(head: bytes) -> bool:
    is_cut = len(head) < LINE_BYTES and (not head or _SCHEME.match(head) is not None)
    return is_cut or _LINE.match(head) is not None


ARC = Framing(
    starts=lambda head: _LINE.match(head) is not None,
    may_start=_may_start_arc,
    read_header=_read_arc_header,
    next=re.compile(rb"\n" + _LINE.pattern),
    next_or_cut=re.compile(rb"\n" + _LINE.pattern),
    head_bytes=LINE_BYTES,
    line_bytes=LINE_BYTES,
    is_nested=False,
)
"""Source: Burner and Kahle, "Arc File Format", version 1 and 2 (Internet Archive, 1996)."""


def framing_of(name: str) -> Framing:
    """Return how records begin in a file of this name: ARC in .arc and .arc.gz, else WARC."""
    bare = name.lower().removesuffix(".gz").removesuffix(".zst")
    return ARC if bare.endswith(".arc") else WARC
