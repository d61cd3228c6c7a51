"""JSON lines."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.formats.batch import utf8
from corpuskit.stage import Cost, Reject, Source, SourceBatch
from corpuskit.stages.sources._columns import DeclaredColumns, arrow_types
from corpuskit.stages.sources._findings import Findings, pick
from corpuskit.stages.sources._first_lines import LABEL, TEXT, TYPES, Wanted, check_members
from corpuskit.stages.sources._json import BLANK, ODD
from corpuskit.stages.sources._members import INVALID, Members
from corpuskit.stages.sources._records import HEAD_BYTES, LINES, cut_file, read_blocks
from corpuskit.stages.sources._scan import BOOL, NESTED, STRING
from corpuskit.stages.sources._sizes import estimate_text
from corpuskit.stages.sources._stream import MAX_EXPANSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.stage import InputFile, Slice, Volume
    from corpuskit.stages.sources._records import Block

LINE_FACTOR, LINE_SLACK = 3, 1 << 20
"""A line may have this many times the bytes of the longest document, and this much more."""


class Jsonl(Source):
    """Read JSON lines, plain, .gz or .zst: one object per line, one member of it is the text.

    Use it for web crawls and dataset exports. Plain files are cut into byte ranges that are read in
    parallel; a compressed file is one piece of work, so prefer files of about 100 MB.

    A line becomes no document, but a row of the ledger, when it is not UTF-8 (`invalid_utf8`), not
    a JSON object, or one nested deeper than 60 levels (`bad_json`), when the text is missing or no
    string (`bad_text`), when the text has more than `max_document_bytes` or the line more than
    three times as many and 1 MiB (`too_long`), and when the value of a declared column has another
    type than declared (`bad_column`). Missing values and null are null; an integer is a float64,
    too; ids, URLs and dates may be numbers. Lone surrogates become U+FFFD (`lone_surrogate`, kept).
    Blank lines are passed over, byte order marks removed. The other members are kept as they are
    written; in lines that only Python's json module reads (NaN, equal names, escaped names), NaN
    and infinities become null. A member that a parameter names, but none of the first lines has as
    it should be, is refused when the plan is made.

    Source: RFC 8259 (JSON), jsonlines.org; RFC 1952 (gzip) and RFC 8878 (zstd), several members or
    frames per file included.
    """

    rules: ClassVar[tuple[str, ...]] = (
        "bad_json",
        "bad_text",
        "bad_column",
        "invalid_utf8",
        "too_long",
        "lone_surrogate",
    )

    text_column: str = "text"
    """Member that holds the text."""
    id_column: str | None = None
    """Member that holds the document's id; file and byte offset when absent."""
    url_column: str | None = None
    """Member that holds the URL."""
    date_column: str | None = None
    """Member that holds the date."""
    columns: DeclaredColumns = Field(default_factory=dict)
    """Members that become columns: name to string, int64, float64 or bool."""
    extra: bool = True
    """Keep all other members as one JSON object in the column `extra`."""
    max_expansion: int = Field(MAX_EXPANSION, ge=1)
    """A file is refused that holds more than 256 MiB and this many times its compressed size."""

    def declared(self) -> Mapping[str, pa.DataType]:
        return arrow_types(self.columns)

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        return estimate_text(file, piece, self.max_expansion)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 300e6)

    def check_files(self, paths: Sequence[str]) -> None:
        labels = {"id_column": self.id_column, "url_column": self.url_column}
        labels["date_column"] = self.date_column
        wanted = {name: Wanted(role, *LABEL) for role, name in labels.items() if name is not None}
        wanted |= {name: Wanted("columns", *TYPES[kind]) for name, kind in self.columns.items()}
        check_members(paths, {**wanted, self.text_column: Wanted("text_column", *TEXT)})

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        return cut_file(file, target_bytes)

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        return self.read_keyed([(dataclasses.replace(file, ordinal=0), piece)], max_document_bytes)

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        limit = LINE_FACTOR * max_document_bytes + LINE_SLACK
        for block in read_blocks(pieces, limit, LINES, self.max_expansion):
            yield self._batch(block, max_document_bytes)

    def _batch(self, block: Block, most: int) -> SourceBatch:
        labels = (self.id_column, self.url_column, self.date_column)
        given = [self.text_column, *(name for name in labels if name), *self.columns]
        names = list(dict.fromkeys(given))
        members = Members(block, names, with_extra=self.extra)
        found = Findings(self.rules, len(block))
        found.mark(None, members.states == BLANK)
        found.mark("invalid_utf8", members.states == INVALID)
        found.mark("bad_json", members.states == ODD)
        texts = members.texts()
        sizes = utf8(texts).sizes()
        found.mark("bad_text", members.kinds(0) != STRING)
        found.mark("too_long", sizes > most)
        columns: dict[str, pa.Array] = {}
        for name, kind in self.declared().items():
            columns[name], is_bad = members.typed(names.index(name), kind)
            found.mark("bad_column", is_bad)
        written: list[pa.Array | None] = [None, None, None]
        for place, label in enumerate(labels):
            if label:
                slot = names.index(label)
                written[place] = members.strings(slot).cast(pa.string())
                found.mark("bad_column", np.isin(members.kinds(slot), (BOOL, NESTED)))
        kept = found.codes == 0
        rows = pa.array(np.flatnonzero(kept))
        ids, urls, dates = (pick(array, rows, len(block)) for array in written)
        return SourceBatch(
            positions=block.positions[kept],
            texts=pick(texts, rows, len(block)),
            ids=ids,
            columns={name: pick(array, rows, len(block)) for name, array in columns.items()},
            urls=urls,
            dates=dates,
            extra=pick(members.extra(), rows, len(block)) if self.extra else None,
            rejects=tuple(_rejects(block, found, texts, sizes, most)),
            replaced=tuple(np.flatnonzero(members.replaced[kept]).tolist()),
            size_bytes=block.size_bytes,
        )


def _rejects(
    block: Block, found: Findings, texts: pa.Array, sizes: NDArray[np.int64], most: int
) -> Iterator[Reject]:
    for long in block.too_long:
        yield Reject(long.position, "too_long", long.size_bytes, most, long.head)
    for row, rule in found.rows():
        position = int(block.positions[row])
        if rule == "too_long":
            head = utf8(texts).row(row)[:HEAD_BYTES].decode("utf-8", "ignore")
            yield Reject(position, rule, float(sizes[row]), most, head)
        elif rule == "bad_column":
            yield Reject(position, rule, text=texts[row].as_py())
        else:
            yield Reject(
                position, rule, text=block.row(row)[:HEAD_BYTES].decode("utf-8", "replace")
            )
