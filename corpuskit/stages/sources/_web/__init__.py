"""What `warc` and `wet` share: from records of web archives to batches of documents."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.stage import Reject, SourceBatch
from corpuskit.stages.sources._records import BLOCK_BYTES, BLOCK_ROWS
from corpuskit.stages.sources._web.archive import Archive
from corpuskit.stages.sources._web.http import media_type
from corpuskit.stages.sources._web.records import NOT_A_RECORD, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from corpuskit.stages.sources._web.archive import Part
    from corpuskit.stages.sources._web.records import Record


Field = Literal[
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
"""Rules for what is no whole record."""


class Draft(NamedTuple):
    """A document to be.

    Attributes:
        record: where it comes from; its body is not needed any more.
        content: a page, or a text.
        label: charset of a page as its header says.
        content_type, status: of the response.
    """

    record: Record
    content: bytes
    label: str = ""
    content_type: str = ""
    status: int | None = None


class Finished(NamedTuple):
    """What became of a draft: a text in UTF-8, or a rule."""

    text: bytes
    rule: str = ""
    value: float = float("nan")
    threshold: float = float("nan")
    note: str = ""
    is_repaired: bool = False
    is_all_text: bool = False


def arrow_types(fields: Sequence[Field]) -> dict[str, pa.DataType]:
    """Return the Arrow types of columns."""
    return {name: pa.int64() if name in _NUMBERS else pa.string() for name in fields}


class Reader:
    """Reads one archive.

    Args:
        path: the file.
        parts: what to read of it; none: all.
        max_expansion, max_record_bytes, strict: as the source says.
        wanted: fields of a record -> whether its body is asked for.
        judge: record -> a draft, or why it is none.
        finish: drafts -> what becomes of each.
    """

    def __init__(
        self, path: str, *, max_expansion: int, max_record_bytes: int, strict: bool,
        parts: Sequence[Part] = (),
        wanted: Callable[[Mapping[str, str]], bool],
        judge: Callable[[Record], Draft | Reject],
        finish: Callable[[Sequence[Draft]], Sequence[Finished]],
    ) -> None:  # fmt: skip
        self.path, self.parts, self.strict = path, parts, strict
        self._limits = max_expansion, max_record_bytes
        self._wanted, self._judge, self._finish = wanted, judge, finish

    def batches(self, fields: Sequence[Field], *, with_ids: bool) -> Iterator[SourceBatch]:
        """Yield all documents and rejects of the file, in bounded batches.

        Raises:
            DataError: the file is no web archive, or (strict) not whole; names file and position.
        """
        parts: Sequence[Part | None] = self.parts or (None,)
        for part in parts:
            yield from self._part(part, fields, with_ids)

    def _part(
        self, part: Part | None, fields: Sequence[Field], with_ids: bool
    ) -> Iterator[SourceBatch]:
        max_expansion, most = self._limits
        with contextlib.closing(Archive(self.path, max_expansion, part)) as archive:
            drafts: list[Draft] = []
            rejects: list[Reject] = []
            held = taken = 0
            pieces, framing = archive.pieces(), archive.framing
            for record in read_records(pieces, self._wanted, most, archive.end, framing):
                self._check(record, archive.path)
                if part is not None:
                    record = _moved(record, part, archive.path)
                found = _broken(record, most) or self._judge(record)
                if isinstance(found, Reject):
                    rejects.append(found)
                else:
                    drafts.append(found)
                    held += len(found.content)
                if held >= BLOCK_BYTES or len(drafts) + len(rejects) >= BLOCK_ROWS:
                    size, taken = archive.consumed - taken, archive.consumed
                    yield self._batch(drafts, rejects, fields, with_ids, size)
                    drafts, rejects, held = [], [], 0
            size = archive.consumed - taken
            if drafts or rejects or size:
                yield self._batch(drafts, rejects, fields, with_ids, size)

    def _check(self, record: Record, path: str) -> None:
        """Refuse what is no archive of pages, and what is not whole if that was asked for."""
        place = f"{path}: byte {record.position}"
        if record.problem in BROKEN:
            if record.position == 0 and record.note.startswith(NOT_A_RECORD):
                raise DataError(f"{place}: no web archive: {record.note[:120]!r}. Take it out.")
            if self.strict:
                raise DataError(
                    f"{place}: {record.problem}: {record.note[:120]!r}. Fetch the file again, or "
                    "set strict: false to go on behind it."
                )
        if is_wat(record.fields) and b'"Envelope"' in record.body[:1000]:
            raise DataError(
                f"{place}: a WAT file: it holds metadata of pages, no text. Name the WARC or WET "
                "file of the same crawl."
            )

    def _batch(
        self, drafts: Sequence[Draft], rejects: list[Reject], fields: Sequence[Field],
        with_ids: bool, size: int,
    ) -> SourceBatch:  # fmt: skip
        finished = self._finish(drafts)
        kept: list[tuple[Draft, bytes]] = []
        repaired: list[int] = []
        all_text: list[int] = []
        for draft, one in zip(drafts, finished, strict=True):
            if one.rule:
                rejects.append(_reject(draft, one))
                continue
            if one.is_repaired:
                repaired.append(len(kept))
            if one.is_all_text:
                all_text.append(len(kept))
            kept.append((draft, one.text))
        records = [draft.record for draft, _ in kept]
        urls = [_bare(record.fields.get("warc-target-uri")) for record in records]
        dates = [record.fields.get("warc-date") for record in records]
        ids = [_bare(record.fields.get("warc-record-id")) for record in records]
        return SourceBatch(
            positions=np.array([record.position for record in records], np.int64),
            texts=pa.array([text.decode() for _, text in kept], pa.large_string()),
            ids=pa.array(ids, pa.string()) if with_ids else None,
            columns={
                name: pa.array([_value(draft, name) for draft, _ in kept], kind)
                for name, kind in arrow_types(fields).items()
            },
            urls=pa.array(urls, pa.string()),
            dates=pa.array(dates, pa.string()),
            rejects=tuple(sorted(rejects, key=lambda one: one.position)),
            replaced=tuple(repaired),
            noted={"all_text": tuple(all_text)},
            size_bytes=size,
        )


def _moved(record: Record, part: Part, path: str) -> Record:
    """Return a record of a part with its places in the file that the part lies in.

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


def is_wat(fields: Mapping[str, str]) -> bool:
    """Return whether a record may be one of a WAT file."""
    kind = fields.get("warc-type", "").lower()
    return kind == "metadata" and media_type(fields.get("content-type", "")) == "application/json"


def describe(record: Record, *more: object) -> str:
    """Return a record in a line, for the ledger."""
    fields = record.fields
    kind = fields.get("warc-type") or "record"
    parts = [kind, *more, _bare(fields.get("warc-target-uri")) or ""]
    return " ".join(str(part) for part in parts if part)


def _broken(record: Record, most: int) -> Reject | None:
    if not record.problem:
        return None
    text = describe(record) if record.fields else ""
    text = "\n".join(part for part in (text, record.note) if part)
    if record.problem == "too_long":
        return Reject(record.position, "too_long", record.expected_bytes, most, text)
    expected = float(record.expected_bytes) or float("nan")
    return Reject(record.position, record.problem, record.size_bytes, expected, text)


def _reject(draft: Draft, found: Finished) -> Reject:
    head = draft.content[:2000].decode("utf-8", "replace")
    text = "\n".join(part for part in (describe(draft.record), found.note, head) if part)
    return Reject(draft.record.position, found.rule, found.value, found.threshold, text)


def _value(draft: Draft, name: str) -> Any:
    if name == "offset":
        return draft.record.offset
    if name in {"content_type", "status"}:
        return getattr(draft, name) or None
    value = draft.record.fields.get(_HEADERS[name])
    return _bare(value) if name == "record_id" else value


def _bare(address: str | None) -> str | None:
    """Return an address without the angle brackets that some archives put around it."""
    return None if address is None else re.sub(r"\A<(.*)>\Z", r"\1", address, flags=re.DOTALL)
