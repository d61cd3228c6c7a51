"""The process that turns pages into text: whatever a page does to it, the run goes on.

It reads batches of pages from standard input and answers page by page on standard output. The
kernel ends it when a page has used up its CPU time, and bounds its memory. It ends when its
standard input does, that is, with whoever started it.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from corpuskit.stages.sources._decode import decode_page

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = struct.Struct("<IQ")
"""Before a batch: the number of its pages, bytes of the settings, which come next as JSON."""
PAGE = struct.Struct("<HQ")
"""Before a page: bytes of the charset's name, bytes of the page."""
ANSWER = struct.Struct("<BQ")
"""Before an answer: what became of the page, bytes of text."""

TEXT, REPAIRED_TEXT, FAILED, NO_MEMORY, READY = range(5)

WARM_UP = "<html><body><p>Loads what is loaded on first use.</p></body></html>"

# Not all that there is: an exception that is not listed ends the process, which is noticed, too.
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
"""How resiliparse says that its parser, lexbor, got no memory."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def main() -> None:
    """Serve until standard input ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGUSR1):  # sent to the group; they mean the parent
        signal.signal(number, signal.SIG_IGN)
    opened: dict[str, tuple[Callable[[str], str | None], int]] = {}
    while batch := _read_batch(source):
        settings, pages = batch
        limits = {name: settings.pop(name) for name in ("page_seconds", "page_memory_mb")}
        key = repr(settings)
        try:
            if key not in opened:
                extract = open_extractor(settings)
                extract(WARM_UP)
                opened[key] = extract, _held()
        except ImportError as error:
            _answer(target, FAILED, str(error))
            continue
        _answer(target, READY, "")
        extract, held = opened[key]
        _limit_memory(held, limits["page_memory_mb"])
        for label, page in pages:
            # SIGPROF's default action ends the process in the middle of C code, too.
            signal.setitimer(signal.ITIMER_PROF, limits["page_seconds"])
            state, text = _extract(extract, label, page)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _answer(target, state, text)
        _limit_memory(held, None)


def open_extractor(settings: dict[str, Any]) -> Callable[[str], str | None]:
    """Return the function that takes a page and returns its text.

    Raises:
        ImportError: it is not installed.
    """
    if settings["extractor"] == "resiliparse":
        return _resiliparse(settings)
    return _trafilatura(settings)


def _resiliparse(settings: dict[str, Any]) -> Callable[[str], str | None]:
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: str) -> str | None:
        text: str = extract_plain_text(
            page,
            main_content=settings["main_content"],
            comments=settings["comments"],
            alt_texts=False,
        )
        return text

    return extract


def _trafilatura(settings: dict[str, Any]) -> Callable[[str], str | None]:
    import trafilatura

    favour, is_fast = settings["favour"], settings["fast"]

    def extract(page: str) -> str | None:
        text: str | None = trafilatura.extract(
            page,
            fast=is_fast,
            favor_precision=favour == "precision",
            favor_recall=favour == "recall",
            include_comments=settings["comments"],
        )
        return text

    return extract


def _extract(extract: Callable[[str], str | None], label: str, page: bytes) -> tuple[int, str]:
    try:
        text = (extract(decode_page(page, label)) or "").strip().removeprefix("\ufeff").strip()
    except MemoryError:
        return NO_MEMORY, ""
    except EXPECTED as error:
        if LEXBOR_NO_MEMORY in str(error):
            return NO_MEMORY, ""
        return FAILED, f"{type(error).__name__}: {error}"
    if _SURROGATES.search(text):
        return REPAIRED_TEXT, _SURROGATES.sub("\ufffd", text)
    return TEXT, text


def _held() -> int:
    """Return the address space of this process in bytes; 0 where nobody says."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: there is no limit that the kernel would keep, either
        return 0


def _limit_memory(held: int, megabytes: int | None) -> None:
    """Allow so much address space beyond what the process held; None allows all there is."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not held:
        return
    wanted = hard if megabytes is None else held + (megabytes << 20)
    is_less = hard == resource.RLIM_INFINITY or wanted < hard
    resource.setrlimit(resource.RLIMIT_AS, (wanted if is_less else hard, hard))


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


def _answer(target: BinaryIO, state: int, text: str) -> None:
    content = text.encode("utf-8", "replace")
    target.write(ANSWER.pack(state, len(content)) + content)
    target.flush()


if __name__ == "__main__":
    main()
