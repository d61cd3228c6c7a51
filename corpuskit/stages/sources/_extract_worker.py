"""The child process that extracts text from pages, so that no page can end a run.

It reads batches of pages from standard input and answers page by page on standard output. The
kernel ends it when a page has used up its CPU time, and bounds its memory. It ends when its
standard input does, that is, with its parent.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
import resource
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

    Extract = Callable[[str], tuple[str, bool]]
    """A page -> its text, and whether that is all text because no main text was found."""


BATCH = struct.Struct("<IQ")
"""Before a batch: the number of its pages, bytes of the settings, which come next as JSON."""
PAGE = struct.Struct("<HQ")
"""Before a page: bytes of the charset's name, bytes of the page."""
ANSWER = struct.Struct("<BBdQ")
"""Before an answer: state (such as TEXT), flags (REPAIRED, ALL_TEXT), CPU seconds of the process so
far, bytes of text."""

TEXT, FAILED, NO_MEMORY, READY = range(4)
REPAIRED, ALL_TEXT = 1, 2

MAIN_SHARE, MAIN_CHARACTERS = 0.05, 200
"""A main text below both, as share of all visible text and in characters, is replaced by all text:
7 of 450 pages, and F1 rises from 0.870 to 0.872; with a bound of 15 % it falls."""

WARM_UP = "<html><body><p>Loads what is loaded on first use.</p></body></html>"

# Any other exception ends the process, and the parent reports a crash.
EXPECTED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

LEXBOR_NO_MEMORY = "(Error 2)"
"""resiliparse's error when its parser, lexbor, gets no memory."""

PRE_TAG = re.compile(r"<(/?)pre\b")

_SURROGATES = re.compile("[\ud800-\udfff]")


def main() -> None:
    """Serve until standard input ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGUSR1):  # sent to the group; they mean the parent
        signal.signal(number, signal.SIG_IGN)
    extractors: dict[str, tuple[Extract, int]] = {}
    while batch := _read_batch(source):
        settings, pages = batch
        limits = {name: settings.pop(name) for name in ("page_seconds", "page_memory_mb")}
        key = repr(settings)
        try:
            if key not in extractors:
                extract = open_extractor(settings)
                extract(WARM_UP)
                extractors[key] = extract, _memory_bytes()
        except ImportError as error:
            _answer(target, FAILED, 0, str(error))
            continue
        _answer(target, READY, 0, "")
        extract, memory_bytes = extractors[key]
        _limit_memory(memory_bytes, limits["page_memory_mb"])
        for label, page in pages:
            # CPU time: wall time would depend on the load of the machine. SIGPROF's default action
            # ends C code, too, where 200,000 nested <div> keep resiliparse for more than 5 s.
            signal.setitimer(signal.ITIMER_PROF, limits["page_seconds"])
            answer = _extract(extract, label, page)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _answer(target, *answer)
        _limit_memory(memory_bytes, None)


def open_extractor(settings: dict[str, Any]) -> Extract:
    """Return the function that extracts a page by these settings.

    Raises:
        ImportError: it is not installed.
    """
    extractor = settings["extractor"]
    if extractor == "mixed" and not settings["main_content"]:
        extractor = "resiliparse"
    opener = {"mixed": _mixed, "trafilatura": _trafilatura, "resiliparse": _resiliparse}[extractor]
    return _structured(opener(settings), settings) if settings["structure"] else opener(settings)


def _structured(extract: Extract, settings: dict[str, Any]) -> Extract:
    from corpuskit.stages.sources._structure import Marks

    def extract_structured(page: str) -> tuple[str, bool]:
        marks = Marks(page, settings["structure"])
        text, is_all = extract(marks.page)
        return _stripped(marks.with_markdown(text)), is_all

    return extract_structured


def _mixed(settings: dict[str, Any]) -> Extract:
    from corpuskit.stages.sources._containers import container_text

    resiliparse, trafilatura = _resiliparse(settings), _trafilatura(settings)

    def extract(page: str) -> tuple[str, bool]:
        text = container_text(page, settings["comments"])
        if text is None:
            text, _ = trafilatura(page)
        text = _stripped(text)
        return (text, False) if text else resiliparse(page)

    return extract


def _resiliparse(settings: dict[str, Any]) -> Extract:
    from resiliparse.extract.html2text import extract_plain_text

    main_content, comments = settings["main_content"], settings["comments"]

    def text_of(page: str, main_content: bool) -> str:
        text: str = extract_plain_text(
            page, main_content=main_content, comments=comments, alt_texts=False
        )
        return _stripped(text)

    def extract(page: str) -> tuple[str, bool]:
        text = text_of(page, main_content)
        if not main_content or len(text) >= MAIN_CHARACTERS:
            return text, False
        all_text = text_of(page, False)
        is_lost = len(text) < MAIN_SHARE * len(all_text)
        return (all_text, True) if is_lost else (text, False)

    return extract


def _trafilatura(settings: dict[str, Any]) -> Extract:
    import trafilatura

    favour, is_fast = settings["favour"], settings["fast"]

    def extract(page: str) -> tuple[str, bool]:
        if "code" in settings["structure"]:  # it leaves out much of <pre>; marks restore its lines
            page = PRE_TAG.sub(r"<\1p", page)
        text: str | None = trafilatura.extract(
            page,
            fast=is_fast,
            favor_precision=favour == "precision",
            favor_recall=favour == "recall",
            include_comments=settings["comments"],
        )
        return _stripped(text or ""), False

    return extract


def _extract(extract: Extract, label: str, page: bytes) -> tuple[int, int, str]:
    try:
        text, is_all = extract(decode_page(page, label))
    except MemoryError:
        return NO_MEMORY, 0, ""
    except EXPECTED as error:
        if LEXBOR_NO_MEMORY in str(error):
            return NO_MEMORY, 0, ""
        return FAILED, 0, f"{type(error).__name__}: {error}"
    flags = ALL_TEXT if is_all else 0
    if _SURROGATES.search(text):
        return TEXT, flags | REPAIRED, _SURROGATES.sub("\ufffd", text)
    return TEXT, flags, text


def _stripped(text: str) -> str:
    return text.strip().removeprefix("\ufeff").strip()


def _memory_bytes() -> int:
    """Return the address space of this process in bytes; 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux, where the kernel would not keep the limit either
        return 0


def _limit_memory(used_bytes: int, megabytes: int | None) -> None:
    """Allow this much address space beyond `used_bytes`; None allows all there is."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not used_bytes:
        return
    limit = hard if megabytes is None else used_bytes + (megabytes << 20)
    is_less = hard == resource.RLIM_INFINITY or limit < hard
    resource.setrlimit(resource.RLIMIT_AS, (limit if is_less else hard, hard))


def _read_batch(source: BinaryIO) -> tuple[dict[str, Any], list[tuple[str, bytes]]] | None:
    head = source.read(BATCH.size)
    if len(head) < BATCH.size:
        return None
    num, size = BATCH.unpack(head)
    settings = json.loads(source.read(size))
    pages = []
    for _ in range(num):
        label, size = PAGE.unpack(source.read(PAGE.size))
        pages.append((source.read(label).decode("ascii"), source.read(size)))
    return settings, pages


def _answer(target: BinaryIO, state: int, flags: int, text: str) -> None:
    content = text.encode("utf-8", "replace")
    target.write(ANSWER.pack(state, flags, time.process_time(), len(content)) + content)
    target.flush()


# ---------------------------------------------------------------- character encodings


MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

MAX_BROKEN = 0.1
"""UTF-8 with at most this share of broken characters beyond ASCII is UTF-8; Latin-1 read as UTF-8
has 0.9 and more of them, Shift JIS 0.7."""


def decode_page(page: bytes, label: str) -> str:
    """Decode a page by its byte order mark, as UTF-8 if valid, by header, <meta>, or statistics.

    Args:
        page: its bytes.
        label: charset of the HTTP header, may be empty.

    Source: WHATWG HTML, 13.2.3.2, "determining the character encoding", with two differences: valid
    UTF-8 is UTF-8 whatever the header says, and an encoding that does not fit the bytes is skipped
    if another one does. The statistics are resiliparse's.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    for mark, name in MARKS:
        if page.startswith(mark):
            return page[len(mark) :].decode(name, "replace")
    if not page.isascii() and (text := _as_utf8(page)) is not None:
        return text
    claimed = map_encoding_to_html5(label, False) if label else None
    declared = detect_encoding(page, from_html_meta=True)
    guesses = [claimed, declared, detect_encoding(page), "utf-8"]
    for name in (guess for guess in guesses if guess):
        try:
            return page.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    return page.decode(_first_supported(guesses), "replace")


def _as_utf8(page: bytes) -> str | None:
    """Return a page decoded as UTF-8, None if it is in another encoding.

    A last character that is cut is left out: crawlers cut pages at a number of bytes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")
    try:
        return decoder("strict").decode(page)
    except UnicodeDecodeError:
        text = decoder("replace").decode(page)
    broken = text.count("\ufffd")
    non_ascii = len(text) - len(text.encode("ascii", "ignore"))
    return text if broken <= MAX_BROKEN * non_ascii else None


def _first_supported(names: list[str | None]) -> str:
    for name in names:
        try:
            return codecs.lookup(name or "").name
        except LookupError:
            continue
    return "utf-8"


if __name__ == "__main__":
    main()
