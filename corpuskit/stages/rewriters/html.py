"""HTML in text columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import join_bytes
from corpuskit.stage import Cost, Example, Outcome, Spans, StreamingStage
from corpuskit.stages.sources._extract import (
    CHILD_BYTES,
    PAGE_SPEED,
    Extracted,
    ExtractorParameters,
    HtmlPage,
    check_loads,
    extract_pages,
)

if TYPE_CHECKING:
    from corpuskit.stage import Known, View, Volume

PAGE = "<nav><a href=/>Home</a></nav><main><p>The river bends twice.</p></main>"


class Html(ExtractorParameters, StreamingStage):
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

    max_page_bytes: int = Field(16 << 20, ge=1)
    """Longer pages are not extracted, in bytes."""

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
        pages = [HtmlPage(view.text.row(row), "utf-8") for row in rows.tolist()]
        extracted = extract_pages(pages, self.extractor_settings())
        pages_by_row = dict(zip(rows.tolist(), extracted, strict=True))
        codes = np.array([_code(pages_by_row.get(row)) for row in range(view.num_docs)], np.uint8)
        values = np.where(codes == 1, sizes, np.nan)
        texts = [
            pages_by_row[row].text if code == 0 else view.text.row(row)
            for row, code in enumerate(codes.tolist())
        ]
        text = Utf8(*join_bytes(texts))
        is_all = [page.is_all_text for page in extracted]
        all_rows = rows[np.array(is_all, np.bool_) & (codes[rows] == 0)]
        starts, all_codes = np.zeros(len(all_rows), np.int64), np.full(len(all_rows), 3, np.uint8)
        spans = Spans(all_rows, starts, sizes[all_rows], all_codes, "replace")
        return Outcome(codes=codes, values=values, text=text, spans=spans)


def _code(page: Extracted | None) -> int:
    if page is None:
        return 1
    return {"": 0, "no_text": 2}.get(page.rule, 1)
