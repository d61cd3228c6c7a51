"""Which characters the bytes of a page stand for."""

from __future__ import annotations

import codecs

MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

MAX_BROKEN = 0.1
"""UTF-8 with at most this share of broken characters beyond ASCII is UTF-8; Latin-1 read as UTF-8
has 0.9 and more of them, Shift JIS 0.7."""


def decode_page(page: bytes, label: str) -> str:
    """Return a page as text: by its mark, as UTF-8 if it is, by header, by itself, by statistics.

    Args:
        page: as it came.
        label: charset of the HTTP header, may be empty.

    Source: WHATWG HTML, 13.2.3.2, "determining the character encoding"; other than there, bytes
    that are UTF-8 are UTF-8 whatever the header says, and an encoding that does not fit the bytes
    is passed over if another one does. The statistics are resiliparse's.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, name in MARKS:
        if page.startswith(mark):
            return page[len(mark) :].decode(name, "replace")
    if not page.isascii() and (text := _as_utf8(page)) is not None:
        return text
    claimed = map_encoding_to_html5(label, False) if label else None
    named = detect_encoding(page, from_html_meta=True)
    guesses = [claimed, named, detect_encoding(page), "utf-8"]
    for name in (guess for guess in guesses if guess):
        try:
            return page.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    return page.decode(_first_known(guesses), "replace")


def _as_utf8(page: bytes) -> str | None:
    """Return a page as UTF-8, None if it is in another encoding; a cut last character is left out.

    Crawlers cut pages at a number of bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")
    try:
        return decoder("strict").decode(page)
    except UnicodeDecodeError:
        text = decoder("replace").decode(page)
    broken = text.count("\ufffd")
    beyond = len(text) - len(text.encode("ascii", "ignore"))
    return text if broken <= MAX_BROKEN * beyond else None


def _first_known(names: list[str | None]) -> str:
    for name in names:
        try:
            return codecs.lookup(name or "").name
        except LookupError:
            continue
    return "utf-8"
