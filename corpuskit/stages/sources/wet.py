"""Plain text from web archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from corpuskit.stage import Cost, Reject, Slice, Source
from corpuskit.stages.sources._stream import MAX_EXPANSION, estimate_text
from corpuskit.stages.sources._web import Draft, Finished, Reader, arrow_types, describe, is_wat
from corpuskit.stages.sources._web import Field as WebField
from corpuskit.stages.sources._web.http import media_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from corpuskit.stage import InputFile, SourceBatch, Volume
    from corpuskit.stages.sources._web.records import Record

MARK = b"\xef\xbb\xbf"


class Wet(Source):
    """Read Common Crawl's WET files (.warc.wet.gz): one `conversion` record is one document.

    Use it where the text of WET files will do: all visible text of a page, navigation included. A
    file is one piece of work. The text stays as it stands; a byte order mark is removed.

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

    ids: Literal["position", "record"] = "position"
    """Ids of documents: file and position, or WARC-Record-ID where there is one."""
    columns: tuple[WebField, ...] = ()
    """Columns to keep: `record_id`, `language`, `payload_digest` and other fields of the record,
    and the gzip member's `offset`."""
    max_record_bytes: int = Field(16 << 20, ge=1)
    """Longer records are passed over, in bytes."""
    strict: bool = False
    """Fail on broken records and clipped files instead of going on behind them."""
    max_expansion: int = Field(MAX_EXPANSION, ge=1)
    """A file is refused that holds more than 256 MiB and this many times its compressed size."""

    @field_validator("columns")
    @classmethod
    def _distinct(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"must not name anything twice, got {list(values)}")
        return values

    def declared(self) -> Mapping[str, pa.DataType]:
        return arrow_types(self.columns)

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        return estimate_text(file, piece, self.max_expansion)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 150e6)

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        return [Slice(0, file.size_bytes, file.size_bytes)] if file.size_bytes else []

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        reader = Reader(
            file.path,
            max_expansion=self.max_expansion,
            max_record_bytes=self.max_record_bytes,
            strict=self.strict,
            wanted=lambda fields: _is_text(fields) or is_wat(fields),
            judge=_judge,
            finish=lambda drafts: [_finish(draft, max_document_bytes) for draft in drafts],
        )
        return reader.batches(self.columns, with_ids=self.ids == "record")


def _is_text(fields: Mapping[str, str]) -> bool:
    kind = media_type(fields.get("content-type", ""))
    return fields.get("warc-type", "").lower() == "conversion" and kind in {"text/plain", ""}


def _judge(record: Record) -> Draft | Reject:
    kind = media_type(record.fields.get("content-type", ""))
    if not _is_text(record.fields):
        return Reject(record.position, "other_record", text=describe(record, kind))
    return Draft(record, record.body, content_type=kind)


def _finish(draft: Draft, most: int) -> Finished:
    content = draft.content.removeprefix(MARK)
    if len(content) > most:
        return Finished(b"", "too_long", len(content), most)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Finished(b"", "invalid_utf8")
    return Finished(content) if text.strip() else Finished(b"", "no_text")
