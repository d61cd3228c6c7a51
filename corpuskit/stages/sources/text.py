"""Plain text."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.formats.batch import POSITION_BITS, large_strings
from corpuskit.stage import InputFile, Reject, Slice, Source, SourceBatch
from corpuskit.stages.sources._columns import BrokenRules, not_utf8
from corpuskit.stages.sources._records import (
    HEAD_BYTES,
    LINES,
    PARAGRAPHS,
    RecordBlock,
    cut_file,
    gather_records,
    join_blocks,
    read_blocks,
    trim_records,
)
from corpuskit.stages.sources._stream import MAX_EXPANSION, InputStream, estimate_text

SKIP_BYTES = 4 << 20
"""Read at once of a file that is too long, to count its bytes."""


class Text(Source):
    """Read plain text files, also .gz and .zst: a document is a file, a paragraph or a line.

    Paragraphs are runs of lines that are not blank; line ends inside a paragraph stay, the last one
    is removed, as is that of a line. Blank lines and empty files are skipped. Plain files that are
    read line by line are cut into byte ranges; any other file is one piece of work.

    A document that is not UTF-8 (`invalid_utf8`) or has more than `max_document_bytes`
    (`too_long`) becomes a row of the ledger. A byte order mark at the start is removed.

    Source: RFC 3629 (UTF-8); RFC 1952 (gzip) and RFC 8878 (zstd), several members or frames per
    file included.
    """

    text_speed: ClassVar[float] = 500e6
    rules: ClassVar[tuple[str, ...]] = ("invalid_utf8", "too_long")

    per: Literal["file", "paragraph", "line"] = "file"
    """What a document is."""
    max_expansion: int = Field(MAX_EXPANSION, ge=1)
    """A file is refused that holds more than 256 MiB and this many times its compressed size."""

    def declared(self) -> Mapping[str, pa.DataType]:
        return {}

    def origins(self) -> tuple[str, ...]:
        return ()

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        return estimate_text(file, piece, self.max_expansion)

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        return cut_file(file, target_bytes, splittable=self.per == "line")

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        return self.read_keyed([(dataclasses.replace(file, ordinal=0), piece)], max_document_bytes)

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        if self.per == "file":
            files = (_read(file, max_document_bytes, self.max_expansion) for file, _ in pieces)
            for block in join_blocks(files):
                yield _batch(block, max_document_bytes, is_line=False)
            return
        # A byte order mark does not count, and a carriage return is no part of the line; one byte
        # more, so that a document that is just too long is measured without them.
        limit = max_document_bytes + len(codecs.BOM_UTF8) + 2
        cutter = LINES if self.per == "line" else PARAGRAPHS
        for block in read_blocks(pieces, limit, cutter, self.max_expansion):
            yield _batch(block, max_document_bytes, is_line=self.per == "line")


def _read(file: InputFile, max_bytes: int, max_expansion: int) -> RecordBlock:
    """Read a file as one document, in memory bounded by the longest one allowed."""
    with InputStream(file.path, max_expansion=max_expansion) as stream:
        content = stream.read(max_bytes + len(codecs.BOM_UTF8) + 1)
        size = len(content)
        while chunk := stream.read(SKIP_BYTES):
            size += len(chunk)
        data = np.frombuffer(content, np.uint8)
        starts, ends = np.zeros(1, np.int64), np.array([size], np.int64)
        return RecordBlock(
            starts + (file.ordinal << POSITION_BITS), data, starts, ends, (), stream.consumed
        )


def _batch(block: RecordBlock, limit: int, *, is_line: bool) -> SourceBatch:
    """Make a document of each record that is not blank."""
    starts, ends = block.starts.copy(), block.ends.copy()
    trim_records(block.data, starts, ends, is_line)
    sizes = ends - starts
    broken = BrokenRules(("invalid_utf8", "too_long"), len(block))
    broken.mark("too_long", sizes > limit)
    broken.mark(None, sizes == 0)
    broken.mark("invalid_utf8", not_utf8(block.data, starts, ends))
    rejects = [Reject(x.position, "too_long", x.size_bytes, limit, x.head) for x in block.too_long]
    for row, rule in broken.rows():
        head = block.row(row)[:HEAD_BYTES].decode("utf-8", "replace")
        position = int(block.positions[row])
        if rule == "too_long":
            rejects.append(Reject(position, rule, float(sizes[row]), limit, head))
        else:
            rejects.append(Reject(position, rule, text=head))
    is_kept = broken.codes == 0
    return SourceBatch(
        positions=block.positions[is_kept],
        texts=large_strings(*gather_records(block.data, starts[is_kept], ends[is_kept])),
        rejects=tuple(rejects),
        size_bytes=block.size_bytes,
    )
