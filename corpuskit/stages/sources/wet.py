"""Plain text from web archives."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, ClassVar

from corpuskit.stage import Cost, Reject
from corpuskit.stages.sources._stream import estimate_text
from corpuskit.stages.sources._web import Finished, PageDraft, WebSource, describe
from corpuskit.stages.sources._web.http import media_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.stage import InputFile, Slice, Volume
    from corpuskit.stages.sources._web.records import ArchiveRecord


class Wet(WebSource):
    """Read Common Crawl's WET files (.warc.wet.gz): one `conversion` record is one document.

    Use it if the text of WET files is enough: all visible text of a page, navigation included. A
    file is one piece of work. The text is kept unchanged, except that a byte order mark is removed.

    Every record becomes a document, or a row of the ledger: `other_record` (another type, or no
    plain text), `invalid_utf8`, `too_long`, `no_text` (nothing but blanks), `broken_record` and
    `clipped_file` as in `warc`. A WAT file is refused: it holds no text.

    URL and date go to `origin`. A document's position, from which its id is made, is the byte
    offset of its record in the decompressed file.

    Source: ISO 28500 (WARC), conversion records; Common Crawl, "WET format".
    """

    rules: ClassVar[tuple[str, ...]] = (
        "other_record",
        "invalid_utf8",
        "too_long",
        "no_text",
        "broken_record",
        "clipped_file",
    )

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        return estimate_text(file, piece, self.max_expansion)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 150e6)

    def reads_body(self, fields: Mapping[str, str]) -> bool:
        kind = media_type(fields.get("content-type", ""))
        return fields.get("warc-type", "").lower() == "conversion" and kind in {"text/plain", ""}

    def judge(self, record: ArchiveRecord) -> PageDraft | Reject:
        kind = media_type(record.fields.get("content-type", ""))
        if not self.reads_body(record.fields):
            return Reject(record.position, "other_record", text=describe(record, kind))
        return PageDraft(record, record.body, content_type=kind)

    def finish(self, drafts: Sequence[PageDraft], max_document_bytes: int) -> list[Finished]:
        return [_finish(draft, max_document_bytes) for draft in drafts]


def _finish(draft: PageDraft, max_bytes: int) -> Finished:
    content = draft.content.removeprefix(codecs.BOM_UTF8)
    if len(content) > max_bytes:
        return Finished(b"", "too_long", len(content), max_bytes)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Finished(b"", "invalid_utf8")
    return Finished(content) if text.strip() else Finished(b"", "no_text")
