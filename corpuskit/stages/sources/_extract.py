"""Main text of HTML pages, extracted in a child process that may be ended at any page."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from corpuskit.closure import PACKAGE
from corpuskit.cpu import note_ended, note_running
from corpuskit.distribution import install_command
from corpuskit.errors import CorpuskitError, UsageError, reason_of
from corpuskit.stage import Parameters
from corpuskit.stages.sources._extract_worker import (
    ALL_TEXT,
    ANSWER,
    BATCH,
    FAILED,
    NO_MEMORY,
    PAGE,
    READY,
    REPAIRED,
)
from corpuskit.stages.sources._structure import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES = (
    "extraction_failed",
    "extraction_timeout",
    "extraction_memory",
    "extraction_crash",
    "no_text",
)

RECYCLE_PAGES = {"resiliparse": 20_000, "mixed": 8_000, "trafilatura": 2_000}
"""Pages after which a new process takes over: trafilatura's memory grows with every page."""

PAGE_SPEED = {"resiliparse": 50e6, "mixed": 12e6, "trafilatura": 4e6}
"""Bytes of HTML per CPU second."""

CHILD_BYTES = {"resiliparse": 60_000_000, "mixed": 150_000_000, "trafilatura": 150_000_000}
"""Memory of the process that extracts."""

WORKER = "corpuskit.stages.sources._extract_worker"

SILENCE_SECONDS = 900
"""If no answer comes for this long, the extractor hangs, though not for lack of CPU time."""

Extractor = Literal["resiliparse", "mixed", "trafilatura"]
Favour = Literal["balanced", "precision", "recall"]


class ExtractorSettings(NamedTuple):
    """How to extract: `ExtractorParameters` explains the fields."""

    extractor: Extractor = "resiliparse"
    main_content: bool = True
    favour: Favour = "balanced"
    fast: bool = False
    comments: bool = False
    page_seconds: float = 10.0
    page_memory_mb: int = 1024
    structure: tuple[Part, ...] = ()


class ExtractorParameters(Parameters):
    """The parameters of stages that extract text from pages."""

    extractor: Extractor = "resiliparse"
    """`resiliparse`; `trafilatura`, 12 times slower, leaves out more navigation; `mixed`, 4 times
    slower, is resiliparse where templates or prose make that safe, else trafilatura."""
    main_content: bool = True
    """Leave out navigation, headers and footers; else all visible text. Not for trafilatura."""
    favour: Favour = "balanced"
    """Of trafilatura: `precision` (less text), `recall` (more text), or `balanced`."""
    fast: bool = False
    """Of trafilatura: do not compare with other methods where the text seems short."""
    comments: bool = False
    """Keep what readers wrote below an article."""
    structure: tuple[Part, ...] = ()
    """Parts that keep their form, as Markdown: `headings`, `lists`, `tables`, `code` (blocks, with
    their language), `formulas` (LaTeX between `$` or `$$`)."""
    page_seconds: float = Field(10.0, ge=0.01, le=3600)
    """CPU seconds that a page may take; a usual one takes 0.002 (resiliparse) or 0.03."""
    page_memory_mb: int = Field(1024, ge=64)
    """Memory that the extractor may take besides what it starts with, in MiB; Linux only."""

    def libraries(self) -> tuple[str, ...]:
        others = () if self.extractor == "resiliparse" else ("trafilatura", "lxml", "justext")
        return ("resiliparse", *others)

    def extractor_settings(self) -> ExtractorSettings:
        return ExtractorSettings(*(getattr(self, name) for name in ExtractorSettings._fields))


class HtmlPage(NamedTuple):
    """The bytes of a page, and the charset that its header names."""

    content: bytes
    label: str = ""


class Extracted(NamedTuple):
    """The outcome of a page.

    Attributes:
        rule: why it was not extracted, of RULES; empty if it was.
        text: its text; UTF-8.
        note: what went wrong, for people.
        is_repaired: lone surrogates were replaced.
        is_all_text: no main text was recognised, so `text` is all visible text.
    """

    rule: str
    text: bytes = b""
    note: str = ""
    is_repaired: bool = False
    is_all_text: bool = False


def extract_pages(pages: Sequence[HtmlPage], settings: ExtractorSettings) -> list[Extracted]:
    """Return the outcome of each page, which does not depend on the pages before it.

    Raises:
        UsageError: the extractor is not installed.
    """
    return _service(os.getpid()).extract(pages, settings) if pages else []


@functools.lru_cache(maxsize=1)
def _service(process: int) -> _Service:
    """Return the extractor of this process: a fork must not use its parent's."""
    return _Service()


class _Service:
    """A child process that extracts; replaced when it dies, or after RECYCLE_PAGES."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes], int], _Service] | None = None
        self._done, self._is_new = 0, True

    def extract(self, pages: Sequence[HtmlPage], settings: ExtractorSettings) -> list[Extracted]:
        outcomes: list[Extracted] = []
        while len(outcomes) < len(pages):
            if self._child is None or self._done >= RECYCLE_PAGES[settings.extractor]:
                self._start()
            answers = self._serve(pages[len(outcomes) :], settings)
            outcomes += answers
            if len(outcomes) < len(pages):
                outcomes.append(self._retry(pages[len(outcomes)], settings))
        return outcomes

    def _retry(self, page: HtmlPage, settings: ExtractorSettings) -> Extracted:
        """Return the outcome of a page that ended the process, or for which memory was lacking.

        Such a page is retried in a new process, where earlier pages have taken no memory; not if it
        ran out of time, which is measured page by page.
        """
        if not self._is_out_of_time():
            self._start()
            answers = self._serve([page], settings)
            if answers:
                return answers[0]
        if self._is_out_of_time():
            outcome = Extracted("extraction_timeout", note="out of CPU time")
        elif self._exit_code() is None:
            outcome = Extracted("extraction_memory", note="out of memory")
        else:
            code = self._exit_code() or 0
            reason = f"signal {-code}" if code < 0 else f"exit code {code}"
            outcome = Extracted("extraction_crash", note=f"the extractor died: {reason}")
        self._stop()
        return outcome

    def _is_out_of_time(self) -> bool:
        return self._exit_code() == -signal.SIGPROF

    def _exit_code(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def _serve(self, pages: Sequence[HtmlPage], settings: ExtractorSettings) -> list[Extracted]:
        """Send pages; return the answers up to the first that is missing or lacked memory."""
        encoded = json.dumps(settings._asdict()).encode()
        request = [BATCH.pack(len(pages), len(encoded)), encoded]
        outcomes: list[Extracted] = []
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            for page in pages:
                label = page.label.encode("ascii", "ignore")[:64]
                request += [PAGE.pack(len(label), len(page.content)), label, page.content]
            _write(self._child.stdin.fileno(), b"".join(request))
            state, _, reason = self._answer()
            self._is_new = False
            if state != READY:
                raise _missing(settings.extractor, reason.decode())
            for _ in pages:
                state, flags, text = self._answer()
                if state == NO_MEMORY:
                    break
                outcomes.append(_extracted(state, flags, text))
        except (BrokenPipeError, EOFError):
            code = self._child.wait()
            if self._is_new:  # it died before it read a page
                raise CorpuskitError(
                    f"the extractor of pages cannot be started: exit code {code}. Run "
                    f"{sys.executable} -m {WORKER} to see why."
                ) from None
        self._done += len(outcomes)
        return outcomes

    def _answer(self) -> tuple[int, int, bytes]:
        assert self._child is not None
        state, flags, seconds, size = ANSWER.unpack(self._read(ANSWER.size))
        note_running(self._child.pid, seconds)
        return state, flags, self._read(size)

    def _read(self, size: int) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        file, pieces = self._child.stdout.fileno(), []
        while size:
            if not select.select([file], [], [], SILENCE_SECONDS)[0]:
                self._stop()
                raise CorpuskitError(
                    f"the extractor of pages gives no answer for {SILENCE_SECONDS} s, and that not "
                    "for want of CPU time. Look at the machine, then run again."
                )
            piece = os.read(file, size)
            if not piece:
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _start(self) -> None:
        """Start a process; end the one before."""
        self._stop()
        # The same corpuskit as here, however it came to be importable.
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            bufsize=0, env=environment, pipesize=1 << 20,
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._child, os.getpid())
        self._done, self._is_new = 0, True

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._child = self._end = None


def _end(child: subprocess.Popen[bytes], owner: int) -> None:
    """End a process and reap it, unless this process is a fork of its owner."""
    if os.getpid() != owner:
        return
    child.kill()
    child.wait()
    note_ended(child.pid)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _write(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _extracted(state: int, flags: int, text: bytes) -> Extracted:
    if state == FAILED:
        return Extracted("extraction_failed", note=text.decode())
    if not text:
        return Extracted("no_text")
    return Extracted(
        "", text, is_repaired=bool(flags & REPAIRED), is_all_text=bool(flags & ALL_TEXT)
    )


def _missing(extractor: str, reason: str) -> UsageError:
    return UsageError(
        f"extractor {extractor}: cannot be loaded: {reason_of(reason)}. "
        f"Run: {install_command('html')}"
    )


def check_loads(extractor: Extractor) -> None:
    """Raise UsageError if the extractor cannot be loaded; 0.05 CPU s, for trafilatura 0.7.

    Finding its modules is not enough: lxml 5.2 moved one to another distribution, lxml_html_clean,
    which pip 23.2 leaves out.
    """
    for name in ("resiliparse",) if extractor == "resiliparse" else ("resiliparse", "trafilatura"):
        if importlib.util.find_spec(name) is None:
            raise _missing(extractor, f"{name} is not installed")
    _Service().extract([HtmlPage(b"<p>Loads.</p>")], ExtractorSettings(extractor))
