"""Web archives."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.stage import Cost, Reject, Slice, Source
from corpuskit.stages.sources._extract import (
    CHILD_BYTES,
    RULES,
    Extractor,
    Favour,
    Page,
    Settings,
    check_loads,
    extract_pages,
    libraries,
)
from corpuskit.stages.sources._stream import MAX_EXPANSION, compression
from corpuskit.stages.sources._web import Draft, Finished, Reader, arrow_types, describe, is_wat
from corpuskit.stages.sources._web import Field as WebField
from corpuskit.stages.sources._web.archive import is_wacz, read_parts
from corpuskit.stages.sources._web.http import (
    BrokenBodyError,
    Response,
    TooMuchError,
    charset,
    decode_body,
    magic,
    media_type,
    parse_response,
)
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from corpuskit.stage import InputFile, Known, SourceBatch, Volume
    from corpuskit.stages.sources._web.records import Record

TEXT_RATIO = 0.15
"""Bytes of main text per byte of a .warc.gz file: 0.14 for two Common Crawl files and 0.10 to 0.16
for other crawls."""

TEXT_SPEED = {"resiliparse": 1.5e6, "trafilatura": 0.15e6}
"""Bytes of text per CPU second."""


class Warc(Source):
    """Read web archives (.warc, .warc.gz, .warc.zst) and take the main text out of their pages.

    ARC files (.arc, .arc.gz) are read as well, and the WARC files in WACZ files (.wacz), each of
    which is a piece of work.

    Use it for Common Crawl's WARC files and crawls of your own. A file is one piece of work, which
    for Common Crawl's (1 GB) is one to two CPU minutes with resiliparse and 15 to 20 with
    trafilatura; docs/accuracy/extraction.md says what their texts are worth.

    Every record becomes a document, or a row of the ledger: because it is of another type
    (`other_record`: requests, metadata, revisits), has another status (`bad_status`) or content
    type (`not_html`), is no HTTP response or cannot be decoded (`broken_http`), is over
    `max_record_bytes`, or its text over `max_document_bytes` (`too_long`), holds no text
    (`no_text`), or the extractor gave up (`extraction_failed`), took too much CPU time
    (`extraction_timeout`), memory (`extraction_memory`) or died of it (`extraction_crash`). Where a
    record or its gzip member is broken (`broken_record`), reading goes on with the next one; what a
    file that ends early lacks is one row (`clipped_file`). With `strict` both fail the task.

    Where resiliparse finds next to no main text (under 200 characters and 5 % of the visible text),
    a page becomes all of its visible text, navigation included, and a row of the ledger says so
    (`all_text`): 7 of 450 pages of trafilatura's evaluation set.

    Pages are extracted in a process of their own, which the kernel ends when a page has used up its
    CPU time. A page over which it died, or found no memory, is tried once more in a new one, so
    that pages before it have no say. Trafilatura takes want of memory for an empty page.

    URL and date go to `origin`. A document's position, from which its id is made, is the byte
    offset of its record in the decompressed file; in a WACZ file that of the WARC file in it,
    behind a number that is larger for every next one.

    Source: ISO 28500 (WARC 1.0 and 1.1; 0.18 is read, too); "Arc File Format" 1 and 2 (Internet
    Archive 1996); WACZ 1.1.1 (Webrecorder); RFC 9112 (HTTP); resiliparse
    (Bevendorff et al. 2018) and trafilatura (Barbaresi 2021) take the text out.
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

    extractor: Extractor = "resiliparse"
    """`resiliparse`, or `trafilatura`: 12 times slower, better at leaving navigation out."""
    main_content: bool = True
    """For resiliparse: leave out navigation, headers and footers; else all visible text."""
    favour: Favour = "balanced"
    """For trafilatura: `precision` (less text), `recall` (more text), or `balanced`."""
    fast: bool = False
    """For trafilatura: do not compare with other methods where the text seems short."""
    comments: bool = False
    """Keep what readers wrote below an article."""
    records: tuple[Literal["response", "resource"], ...] = Field(("response",), min_length=1)
    """Types of records that are pages; `resource` records come without HTTP."""
    statuses: tuple[int, ...] = Field((200,), min_length=1)
    """HTTP status codes of pages."""
    content_types: tuple[str, ...] = Field(("text/html", "application/xhtml+xml"), min_length=1)
    """Content types of pages; without one, a page that begins as HTML does is HTML. What begins as
    PDF, an image, zip or gzip (twice) is none, nor what the crawler identified as another type."""
    ids: Literal["position", "record"] = "position"
    """Ids of documents: file and position, or WARC-Record-ID where there is one."""
    columns: tuple[WebField, ...] = ()
    """Columns to keep: fields of record (`record_id`, `language`, `ip`, `truncated`,
    `payload_digest`) and response (`content_type`, `status`), and the gzip member's `offset`."""
    page_seconds: float = Field(10.0, ge=0.01, le=3600)
    """CPU seconds that a page may take; a usual one takes 0.002 (resiliparse) or 0.03."""
    page_memory_mb: int = Field(1024, ge=64)
    """Memory that the extractor may take besides what it starts with, in MiB; Linux only."""
    max_record_bytes: int = Field(16 << 20, ge=1)
    """Longer records, or pages when decoded, are passed over, in bytes."""
    strict: bool = False
    """Fail on broken records and clipped files instead of going on behind them."""
    max_expansion: int = Field(MAX_EXPANSION, ge=1)
    """A file is refused that holds more than 256 MiB and this many times its compressed size."""

    @field_validator("columns", "records", "statuses", "content_types")
    @classmethod
    def _distinct(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"must not name anything twice, got {list(values)}")
        return values

    def declared(self) -> Mapping[str, pa.DataType]:
        return arrow_types(self.columns)

    def libraries(self) -> tuple[str, ...]:
        return (*libraries(self.extractor), "brotli", "zstandard")

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
            if not is_remote(file.path):  # there, a request for each file
                compression(file.path)
            return [Slice(0, file.size_bytes, file.size_bytes)] if file.size_bytes else []
        parts = read_parts(file.path)
        bounds = [0, *(part.header for part in parts[1:]), file.size_bytes]
        sizes = [part.end - part.begin for part in parts]
        return list(map(Slice, bounds, bounds[1:], sizes))

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        parts = read_parts(file.path) if is_wacz(file.path) else []
        reader = Reader(
            file.path,
            parts=[part for part in parts if piece.begin <= part.header < piece.end],
            max_expansion=self.max_expansion,
            max_record_bytes=self.max_record_bytes,
            strict=self.strict,
            wanted=lambda fields: (
                fields.get("warc-type", "").lower() in self.records or is_wat(fields)
            ),
            judge=self._judge,
            finish=lambda drafts: self._finish(drafts, max_document_bytes),
        )
        return reader.batches(self.columns, with_ids=self.ids == "record")

    def _judge(self, record: Record) -> Draft | Reject:
        """Return the page of a record, or why it has none."""
        kind = record.fields.get("warc-type", "").lower()
        if kind not in self.records:
            return Reject(record.position, "other_record", text=describe(record))
        given = record.fields.get("content-type", "")
        is_http = media_type(given) in {"application/http", ""}
        if kind == "response" and not is_http:
            return Reject(record.position, "not_html", text=describe(record, given))
        if kind == "resource":
            response: Response | None = Response(0, {"content-type": given}, record.body)
        else:
            response = parse_response(record.body)
        if response is None:
            return Reject(record.position, "broken_http", text=describe(record))
        if kind == "response" and response.status not in self.statuses:
            text = describe(record, response.status)
            return Reject(record.position, "bad_status", response.status, text=text)
        return self._page(record, response)

    def _page(self, record: Record, response: Response) -> Draft | Reject:
        given = response.fields.get("content-type", "")
        identified = record.fields.get("warc-identified-payload-type", "")
        kind = media_type(given) or media_type(identified)
        if (kind and kind not in self.content_types) or self._is_vetoed(media_type(identified)):
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
        found = magic(body)
        if found or not (kind or _begins_as_html(body)):
            return Reject(record.position, "not_html", text=describe(record, kind, found))
        return Draft(record, body, charset(given), kind, response.status)

    def _is_vetoed(self, identified: str) -> bool:
        """Return whether a crawler found content that is neither text nor markup."""
        group, _, kind = identified.partition("/")
        is_open = kind.endswith("xml") or kind in {"", "octet-stream", "x-empty"}
        return (
            group in {"application", "audio", "font", "image", "model", "video"}
            and not is_open
            and identified not in self.content_types
        )

    def _finish(self, drafts: Sequence[Draft], most: int) -> list[Finished]:
        settings = Settings(
            self.extractor, self.main_content, self.favour, self.fast, self.comments,
            self.page_seconds, self.page_memory_mb,
        )  # fmt: skip
        pages = [Page(draft.content, draft.label) for draft in drafts]
        bounds = {"extraction_timeout": self.page_seconds}
        found = []
        for one in extract_pages(pages, settings):
            if len(one.text) > most:
                found.append(Finished(b"", "too_long", len(one.text), most))
            else:
                bound = bounds.get(one.rule, float("nan"))
                state = one.note, one.is_repaired, one.is_all_text
                found.append(Finished(one.text, one.rule, float("nan"), bound, *state))
        return found


def _begins_as_html(body: bytes) -> bool:
    head = body[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype html", b"<html"))
