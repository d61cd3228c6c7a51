"""HTML in text columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from corpuskit.formats.batch import Utf8
from corpuskit.stage import Cost, Example, Outcome, Spans, StreamingStage
from corpuskit.stages.sources._extract import (
    CHILD_BYTES,
    PAGE_SPEED,
    Extracted,
    Extractor,
    ExtractorSettings,
    Favour,
    HtmlPage,
    check_loads,
    extract_pages,
    libraries,
)
from corpuskit.stages.sources._structure import Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stage import Known, View, Volume

PAGE = "<nav><a href=/>Home</a></nav><main><p>The river bends twice.</p></main>"


class Html(StreamingStage):
    """Replace documents that are HTML by their main text.

    Use it where JSON lines or Parquet hold whole pages; for web archives the source `warc` extracts
    by itself. A document that is not HTML becomes what a browser would show: one line. The ledger
    keeps the page itself of its sample only.

    A page above `max_page_bytes`, or on which the extractor failed, crashed, or took too much CPU
    time or memory, is dropped (`not_extracted`; the value is its size in bytes), and so is one
    without text (`no_text`). Pages are extracted as in `warc`: where resiliparse finds almost no
    main text, a page becomes all of its visible text, and the ledger records it (`all_text`).

    Source: resiliparse (Bevendorff et al. 2018) and trafilatura (Barbaresi 2021).
    """

    rules: ClassVar[tuple[str, ...]] = ("not_extracted", "no_text", "all_text")
    examples: ClassVar[tuple[Example, ...]] = (
        Example(PAGE, becomes="The river bends twice."),
        Example("<p>One page, many bytes.</p>", "not_extracted", {"max_page_bytes": 10}),
        Example("<html><script>let x = 1</script></html>", "no_text"),
        Example("<nav><a href=/>Home</a></nav>", "all_text", becomes="Home"),
    )

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
    max_page_bytes: int = Field(16 << 20, ge=1)
    """Longer pages are not extracted, in bytes."""

    def libraries(self) -> tuple[str, ...]:
        return libraries(self.extractor)

    def check(self, known: Known) -> None:
        check_loads(self.extractor)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(
            cpu_seconds=volume.text_bytes / PAGE_SPEED[self.extractor],
            start_seconds=1.0,
            resident_bytes=CHILD_BYTES[self.extractor],
        )

    def apply(self, view: View) -> Outcome:
        sizes = view.text.sizes()
        rows = np.flatnonzero(sizes <= self.max_page_bytes)
        settings = ExtractorSettings(
            self.extractor, self.main_content, self.favour, self.fast, self.comments,
            self.page_seconds, self.page_memory_mb, self.structure,
        )  # fmt: skip
        pages = [HtmlPage(view.text.row(row), "utf-8") for row in rows.tolist()]
        pages_by_row = dict(zip(rows.tolist(), extract_pages(pages, settings), strict=True))
        codes = np.array([_code(pages_by_row.get(row)) for row in range(view.num_docs)], np.uint8)
        values = np.where(codes == 1, sizes, np.nan)
        texts = [
            pages_by_row[row].text if code == 0 else view.text.row(row)
            for row, code in enumerate(codes.tolist())
        ]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        offsets.flags.writeable = False
        text = Utf8(offsets, np.frombuffer(b"".join(texts), np.uint8))
        is_all = [row for row in rows.tolist() if codes[row] == 0 and pages_by_row[row].is_all_text]
        return Outcome(codes=codes, values=values, text=text, spans=_whole_pages(is_all, sizes))


def _whole_pages(rows: list[int], sizes: NDArray[np.int64]) -> Spans:
    """Return spans that say of pages that all of their text was taken."""
    places = np.array(rows, np.int64)
    starts, codes = np.zeros(len(rows), np.int64), np.full(len(rows), 3, np.uint8)
    return Spans(places, starts, sizes[places], codes, "replace")


def _code(page: Extracted | None) -> int:
    if page is None:
        return 1
    return {"": 0, "no_text": 2}.get(page.rule, 1)
