"""Web archives."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.stage import Cost, Reject, Slice
from corpuskit.stages.sources._extract import (
    CHILD_BYTES,
    RULES,
    Extracted,
    ExtractorParameters,
    HtmlPage,
    check_loads,
    extract_pages,
)
from corpuskit.stages.sources._stream import compression
from corpuskit.stages.sources._web import Finished, PageDraft, WebSource, describe
from corpuskit.stages.sources._web.archive import is_wacz, read_parts
from corpuskit.stages.sources._web.http import (
    BrokenBodyError,
    Response,
    TooMuchError,
    binary_kind,
    charset,
    decode_body,
    media_type,
    parse_response,
)
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.stage import InputFile, Known, Volume
    from corpuskit.stages.sources._web.records import ArchiveRecord

TEXT_RATIO = 0.15
"""Bytes of main text per byte of a .warc.gz file: 0.14 for two Common Crawl files and 0.10 to 0.16
for other crawls."""

TEXT_SPEED = {"resiliparse": 1.5e6, "mixed": 0.45e6, "trafilatura": 0.15e6}
"""Bytes of text per CPU second."""


class Warc(ExtractorParameters, WebSource):
    """Read web archives (.warc, .warc.gz, .warc.zst) and take the main text out of their pages.

    ARC files (.arc, .arc.gz) and the WARC files in WACZ files (.wacz) are read too.

    Use it for Common Crawl's WARC files and crawls of your own. A file is one piece of work, which
    for Common Crawl's (1 GB) is one to two CPU minutes with resiliparse and 15 to 20 with
    trafilatura; docs/accuracy/extraction.md compares their texts.

    Every record becomes a document or a row of the ledger: `other_record` (requests, metadata,
    revisits), `bad_status`, `not_html`, `broken_http` (not an HTTP response, or it cannot be
    decoded), `too_long` (over `max_record_bytes`, or its text over `max_document_bytes`),
    `no_text`, `extraction_failed`, `extraction_timeout` (CPU time), `extraction_memory` or
    `extraction_crash`. If a record or its gzip member is broken (`broken_record`), reading
    continues with the next one; a file that ends early has one row for the rest (`clipped_file`).
    With `strict` both fail the task.

    Where resiliparse finds almost no main text (under 200 characters and 5 % of the visible text),
    a page becomes all of its visible text, navigation included, with a row in the ledger
    (`all_text`): 7 of 450 pages of trafilatura's evaluation set.

    Pages are extracted in a separate process, which the kernel ends when a page has used up its CPU
    time. If extraction of a page crashes or runs out of memory, it is retried once in a new
    process. Trafilatura reports lack of memory as an empty page.

    URL and date go to `origin`. A document's position, from which its id is made, is the byte
    offset of its record in the decompressed file; in a WACZ file the offset in the WARC file, after
    a number that grows from file to file.

    Source: ISO 28500 (WARC 1.0 and 1.1; also 0.18); "Arc File Format" 1 and 2 (Internet Archive
    1996); WACZ 1.1.1 (Webrecorder); RFC 9112 (HTTP); main text by resiliparse (Bevendorff et al.
    2018) and trafilatura (Barbaresi 2021).
    """

    rules: ClassVar[tuple[str, ...]] = (
        "other_record",
        "bad_status",
        "not_html",
        "broken_http",
        "too_long",
        "broken_record",
        "clipped_file",
        *RULES,
        "lone_surrogate",
        "all_text",
    )
    bounds: ClassVar[Mapping[str, str]] = {"extraction_timeout": "page_seconds"}

    records: tuple[Literal["response", "resource"], ...] = Field(("response",), min_length=1)
    """Types of records that are pages; `resource` records come without HTTP."""
    statuses: tuple[int, ...] = Field((200,), min_length=1)
    """HTTP status codes of pages."""
    content_types: tuple[str, ...] = Field(("text/html", "application/xhtml+xml"), min_length=1)
    """Content types of pages; without one, a page that begins as HTML does is HTML. PDF, images,
    zip and gzip (twice), by their first bytes, are no pages, nor what the crawler identified so."""

    def libraries(self) -> tuple[str, ...]:
        return (*super().libraries(), "brotli")

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        is_packed = file.name.lower().endswith((".gz", ".zst", ".wacz"))
        return int(piece.size_bytes * (TEXT_RATIO if is_packed else TEXT_RATIO / 5)), False

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(
            cpu_seconds=volume.text_bytes / TEXT_SPEED[self.extractor],
            resident_bytes=CHILD_BYTES[self.extractor],
        )

    def check(self, known: Known) -> None:
        check_loads(self.extractor)
        if importlib.util.find_spec("brotli") is None:
            raise UsageError(
                "warc: brotli is not installed, and many pages are compressed by it. Run: "
                f"{install_command('html')}"
            )

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        if not is_wacz(file.path):
            if not is_remote(file.path):  # in a store it would take a request for each file
                compression(file.path)
            return super().slices(file, target_bytes)
        parts = read_parts(file.path)
        bounds = [0, *(part.header for part in parts[1:]), file.size_bytes]
        sizes = [part.end - part.begin for part in parts]
        return list(map(Slice, bounds, bounds[1:], sizes))

    def reads_body(self, fields: Mapping[str, str]) -> bool:
        return fields.get("warc-type", "").lower() in self.records

    def judge(self, record: ArchiveRecord) -> PageDraft | Reject:
        kind = record.fields.get("warc-type", "").lower()
        if kind not in self.records:
            return Reject(record.position, "other_record", text=describe(record))
        content_type = record.fields.get("content-type", "")
        is_http = media_type(content_type) in {"application/http", ""}
        if kind == "response" and not is_http:
            return Reject(record.position, "not_html", text=describe(record, content_type))
        if kind == "resource":
            response: Response | None = Response(0, {"content-type": content_type}, record.body)
        else:
            response = parse_response(record.body)
        if response is None:
            return Reject(record.position, "broken_http", text=describe(record))
        if kind == "response" and response.status not in self.statuses:
            text = describe(record, response.status)
            return Reject(record.position, "bad_status", response.status, text=text)
        return self._page(record, response)

    def _page(self, record: ArchiveRecord, response: Response) -> PageDraft | Reject:
        content_type = response.fields.get("content-type", "")
        identified = record.fields.get("warc-identified-payload-type", "")
        kind = media_type(content_type) or media_type(identified)
        if (kind and kind not in self.content_types) or self._is_binary(media_type(identified)):
            text = describe(record, kind, media_type(identified))
            return Reject(record.position, "not_html", text=text)
        try:
            body = decode_body(response, self.max_record_bytes)
        except TooMuchError:
            return Reject(
                record.position, "too_long", threshold=self.max_record_bytes, text=describe(record)
            )
        except BrokenBodyError as error:
            return Reject(record.position, "broken_http", text=f"{describe(record)}\n{error}")
        binary = binary_kind(body)
        if binary or not (kind or _begins_as_html(body)):
            return Reject(record.position, "not_html", text=describe(record, kind, binary))
        return PageDraft(record, body, charset(content_type), kind, response.status)

    def _is_binary(self, identified: str) -> bool:
        """Return whether the type that the crawler identified is neither text nor markup."""
        group, _, kind = identified.partition("/")
        is_markup_or_unknown = kind.endswith("xml") or kind in {"", "octet-stream", "x-empty"}
        return (
            group in {"application", "audio", "font", "image", "model", "video"}
            and not is_markup_or_unknown
            and identified not in self.content_types
        )

    def finish(self, drafts: Sequence[PageDraft], max_document_bytes: int) -> list[Finished]:
        pages = [HtmlPage(draft.content, draft.label) for draft in drafts]
        extracted = extract_pages(pages, self.extractor_settings())
        return [self._finished(page, max_document_bytes) for page in extracted]

    def _finished(self, page: Extracted, max_bytes: int) -> Finished:
        nan = float("nan")
        if len(page.text) > max_bytes:
            return Finished(b"", "too_long", len(page.text), max_bytes)
        threshold = self.page_seconds if page.rule == "extraction_timeout" else nan
        return Finished(
            page.text, page.rule, nan, threshold, page.note, page.is_repaired, page.is_all_text
        )


def _begins_as_html(body: bytes) -> bool:
    head = body[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype html", b"<html"))
