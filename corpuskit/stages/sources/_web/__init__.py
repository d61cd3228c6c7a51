"""What `warc` and `wet` share: from records of web archives to batches of documents.

module     gives                                                       memory
archive    decompressed pieces of a file, member by member             one piece
records    records with their bodies, whole or with what is wrong      a record
http       the response in a record: status, fields, decoded body      a page
WebSource  drafts of documents (`judge`), finished in batches          BLOCK_BYTES
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from corpuskit.errors import DataError
from corpuskit.stage import Reject, Slice, Source, SourceBatch
from corpuskit.stages.sources._records import BLOCK_BYTES, BLOCK_ROWS
from corpuskit.stages.sources._stream import MAX_EXPANSION, refuse_no_bytes
from corpuskit.stages.sources._web.archive import Archive, is_wacz, read_parts
from corpuskit.stages.sources._web.http import media_type
from corpuskit.stages.sources._web.records import NOT_A_RECORD, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corpuskit.stage import InputFile
    from corpuskit.stages.sources._web.archive import ArchivePart
    from corpuskit.stages.sources._web.records import ArchiveRecord


WebField = Literal[
    "record_id", "content_type", "status", "language", "ip", "truncated", "payload_digest", "offset"
]
"""`record_id`, `language` (found by the crawler), `ip`, `truncated` (why), `payload_digest`: fields
of the record; `content_type`, `status`: of the response; `offset`: where the record's gzip member
begins in the file, as indexes of archives say it."""

_HEADERS = {
    "record_id": "warc-record-id",
    "language": "warc-identified-content-language",
    "ip": "warc-ip-address",
    "truncated": "warc-truncated",
    "payload_digest": "warc-payload-digest",
}
_NUMBERS = {"status", "offset"}

BROKEN = ("broken_record", "clipped_file")
"""Rules for records that are not whole."""


class PageDraft(NamedTuple):
    """A page or text that `finish` may make a document of.

    Attributes:
        record: where it comes from.
        content: a page, or a text.
        label: charset that the header of a page names.
        content_type, status: of the response.
    """

    record: ArchiveRecord
    content: bytes
    label: str = ""
    content_type: str = ""
    status: int | None = None


class Finished(NamedTuple):
    """The outcome of a draft: a text in UTF-8, or the rule that it breaks."""

    text: bytes
    rule: str = ""
    value: float = float("nan")
    threshold: float = float("nan")
    note: str = ""
    is_repaired: bool = False
    is_all_text: bool = False


class WebSource(Source):
    """Base of sources that read web archives, record by record.

    Source: none.
    """

    ids: Literal["position", "record"] = "position"
    """Ids of documents: file and position, or WARC-Record-ID where there is one."""
    columns: tuple[WebField, ...] = ()
    """Columns to keep: fields of record (`record_id`, `language`, `ip`, `truncated`,
    `payload_digest`) and response (`content_type`, `status`; none in WET files), and the gzip
    member's `offset`."""
    max_record_bytes: int = Field(16 << 20, ge=1)
    """Longer records, or pages when decoded, are skipped, in bytes."""
    strict: bool = False
    """Fail on broken records and clipped files instead of continuing after them."""
    max_expansion: int = Field(MAX_EXPANSION, ge=1)
    """A file is refused that holds more than 256 MiB and this many times its compressed size."""

    @field_validator("columns", "records", "statuses", "content_types", check_fields=False)
    @classmethod
    def _distinct(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"must not name anything twice, got {list(values)}")
        return values

    @abstractmethod
    def reads_body(self, fields: Mapping[str, str]) -> bool:
        """Return whether the body of a record with these fields is read."""

    @abstractmethod
    def judge(self, record: ArchiveRecord) -> PageDraft | Reject:
        """Return the page or text of a record, or why it has none."""

    @abstractmethod
    def finish(self, drafts: Sequence[PageDraft], max_document_bytes: int) -> Sequence[Finished]:
        """Return the outcome of each draft."""

    def declared(self) -> Mapping[str, pa.DataType]:
        return {name: pa.int64() if name in _NUMBERS else pa.string() for name in self.columns}

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        if not file.size_bytes:
            refuse_no_bytes(file.path)
            return []
        return [Slice(0, file.size_bytes, file.size_bytes)]

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        """Yield all documents and rejects of a slice, in bounded batches.

        Raises:
            DataError: the file is not a web archive, or (strict) not whole; names file and byte.
        """
        parts: Sequence[ArchivePart | None] = (None,)
        if is_wacz(file.path):
            parts = [p for p in read_parts(file.path) if piece.begin <= p.header < piece.end]
        for part in parts:
            yield from self._read(file.path, part, max_document_bytes)

    def _read(self, path: str, part: ArchivePart | None, max_bytes: int) -> Iterator[SourceBatch]:
        with contextlib.closing(Archive(path, self.max_expansion, part)) as archive:
            drafts: list[PageDraft] = []
            rejects: list[Reject] = []
            content_bytes = consumed = 0
            records = read_records(
                archive.pieces(), lambda fields: self.reads_body(fields) or _is_wat(fields),
                self.max_record_bytes, archive.end, archive.framing,
            )  # fmt: skip
            for record in records:
                self._check(record, archive.path)
                if part is not None:
                    record = _in_wacz(record, part, archive.path)
                outcome = _broken(record, self.max_record_bytes) or self.judge(record)
                if isinstance(outcome, Reject):
                    rejects.append(dataclasses.replace(outcome, id=self._id_of(record)))
                else:
                    drafts.append(outcome)
                    content_bytes += len(outcome.content)
                if content_bytes >= BLOCK_BYTES or len(drafts) + len(rejects) >= BLOCK_ROWS:
                    size, consumed = archive.consumed - consumed, archive.consumed
                    yield self._batch(drafts, rejects, size, max_bytes)
                    drafts, rejects, content_bytes = [], [], 0
            size = archive.consumed - consumed
            if drafts or rejects or size:
                yield self._batch(drafts, rejects, size, max_bytes)

    def _id_of(self, record: ArchiveRecord) -> str | None:
        is_own = self.ids == "record"
        return _bare(record.fields.get("warc-record-id")) if is_own else None

    def _check(self, record: ArchiveRecord, path: str) -> None:
        """Refuse files that are not archives of pages, and with `strict` broken records."""
        location = f"{path}: byte {record.position}"
        if record.problem in BROKEN:
            if record.position == 0 and record.note.startswith(NOT_A_RECORD):
                problem = f"not a web archive: {record.note[:120]!r}"
                raise DataError(f"{location}: {problem}. Take it out.")
            if self.strict:
                raise DataError(
                    f"{location}: {record.problem}: {record.note[:120]!r}. Fetch the file again, "
                    "or set strict: false to continue after it."
                )
        if _is_wat(record.fields) and b'"Envelope"' in record.body[:1000]:
            raise DataError(
                f"{location}: a WAT file: it holds metadata of pages, no text. Name the WARC or "
                "WET file of the same crawl."
            )

    def _batch(
        self, drafts: Sequence[PageDraft], rejects: list[Reject], size: int, max_bytes: int
    ) -> SourceBatch:
        finished = self.finish(drafts, max_bytes)
        accepted: list[tuple[PageDraft, bytes]] = []
        repaired_rows: list[int] = []
        all_text: list[int] = []
        for draft, outcome in zip(drafts, finished, strict=True):
            if outcome.rule:
                reject = _reject(draft, outcome)
                rejects.append(dataclasses.replace(reject, id=self._id_of(draft.record)))
                continue
            if outcome.is_repaired:
                repaired_rows.append(len(accepted))
            if outcome.is_all_text:
                all_text.append(len(accepted))
            accepted.append((draft, outcome.text))
        records = [draft.record for draft, _ in accepted]
        urls = [_bare(record.fields.get("warc-target-uri")) for record in records]
        dates = [record.fields.get("warc-date") for record in records]
        ids = list(map(self._id_of, records))
        return SourceBatch(
            positions=np.array([record.position for record in records], np.int64),
            texts=pa.array([text.decode() for _, text in accepted], pa.large_string()),
            ids=pa.array(ids, pa.string()),
            columns={
                name: pa.array([_value(draft, name) for draft, _ in accepted], kind)
                for name, kind in self.declared().items()
            },
            urls=pa.array(urls, pa.string()),
            dates=pa.array(dates, pa.string()),
            rejects=tuple(sorted(rejects, key=lambda reject: reject.position)),
            replaced=tuple(repaired_rows),
            noted={"all_text": tuple(all_text)},
            size_bytes=size,
        )


def _in_wacz(record: ArchiveRecord, part: ArchivePart, path: str) -> ArchiveRecord:
    """Return a record of a part with its position and offset in the WACZ file.

    Raises:
        DataError: the part expands so far that its position could be that of another record.
    """
    position = part.first + record.position
    if position >= part.last:
        raise DataError(
            f"{path}: byte {record.position}: {part.end - part.begin:,} bytes hold more than keys "
            "can tell apart. Unpack the file, and name the WARC files in it."
        )
    offset = None if record.offset is None else part.begin + record.offset
    return dataclasses.replace(record, position=position, offset=offset)


def _is_wat(fields: Mapping[str, str]) -> bool:
    """Return whether a record may be one of a WAT file."""
    kind = fields.get("warc-type", "").lower()
    return kind == "metadata" and media_type(fields.get("content-type", "")) == "application/json"


def describe(record: ArchiveRecord, *details: object) -> str:
    """Return a line that describes a record in the ledger."""
    fields = record.fields
    kind = fields.get("warc-type") or "record"
    words = [kind, *details, _bare(fields.get("warc-target-uri")) or ""]
    return " ".join(str(word) for word in words if word)


def _broken(record: ArchiveRecord, max_bytes: int) -> Reject | None:
    if not record.problem:
        return None
    text = describe(record) if record.fields else ""
    text = "\n".join(line for line in (text, record.note) if line)
    if record.problem == "too_long":
        return Reject(record.position, "too_long", record.expected_bytes, max_bytes, text)
    expected = float(record.expected_bytes) or float("nan")
    return Reject(record.position, record.problem, record.size_bytes, expected, text)


def _reject(draft: PageDraft, outcome: Finished) -> Reject:
    head = draft.content[:2000].decode("utf-8", "replace")
    text = "\n".join(line for line in (describe(draft.record), outcome.note, head) if line)
    return Reject(draft.record.position, outcome.rule, outcome.value, outcome.threshold, text)


def _value(draft: PageDraft, name: str) -> Any:
    if name == "offset":
        return draft.record.offset
    if name in {"content_type", "status"}:
        return getattr(draft, name) or None
    value = draft.record.fields.get(_HEADERS[name])
    return _bare(value) if name == "record_id" else value


def _bare(address: str | None) -> str | None:
    """Return an address without the angle brackets that some archives put around it."""
    return None if address is None else re.sub(r"\A<(.*)>\Z", r"\1", address, flags=re.DOTALL)
