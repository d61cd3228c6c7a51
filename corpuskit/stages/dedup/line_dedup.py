"""Repeated lines, paragraphs and sentences, by hash.

A unit is a line, paragraph or sentence; a segment is what is compared: `window` units in a row.

pass                   reads                  writes                             memory
hash (cells)           documents              `units`: hash, count               80 bytes a segment
count (hash ranges)    `units` of all cells   `repeated`: for each cell          120 bytes a row
apply (cells)          `repeated`, documents  sidecar, ledger
deal, route: see `_segments`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.errors import UsageError
from corpuskit.formats.batch import ByteSpans, numbers
from corpuskit.kernels.arrays import Bools, Bytes, Int32s, Int64s, Uint32s, Uint64s, frozen
from corpuskit.kernels.filters.c4 import sentence_edges, sentence_spans
from corpuskit.kernels.lines import (
    case_digits_table,
    ccnet_table,
    count_units,
    cut_units,
    find_repeated,
    find_units,
    fold_units,
    hash_units,
    index_hashes,
)
from corpuskit.kernels.ngrams import join_words
from corpuskit.kernels.unionfind import first_of_group
from corpuskit.stage import Cost, PassContext, View, Volume
from corpuskit.stages.dedup._segments import SegmentOutcome, SegmentStage, Shuffled, cell_priorities
from corpuskit.text.simplify import simplify_texts
from corpuskit.text.words import check_language, splitter

_COLLISIONS = "units_with_equal_first_hashes"
"""Counter of different segments of one cell whose first 64 bits are equal: odds of 3e-8 per million
segments. Where there are none, `apply` need not compare the other 32 bits."""

_SEGMENT_BYTES = {"line": 120, "paragraph": 300, "sentence": 100}
"""Bytes of text per different segment of a cell of 64 MB, where all have 20 bytes at least."""

SegmentKind = Literal["line", "paragraph", "sentence"]
Normalize = Literal["none", "case_digits", "ccnet", "simplify"]

WAITING_SEGMENTS = 1 << 20
"""Segments of a cell that wait to be counted: 16 bytes each, and 40 while they are counted."""


class LineDedup(SegmentStage):
    r"""Cut lines, paragraphs or sentences that occur in many documents: menus, notices, headers.

    A line ends with \n or \r\n only (not U+2028); a paragraph is a run of lines between blank ones.
    Units shorter than `min_bytes` never count as repeated: in technical English half of all lines
    are repeats, most of them a word or a bracket.

    The other units are joined as they were. Where units were cut between two that stay, one
    separator stays, the longer of the first and the last, so no blank lines pile up. A text ends
    with a newline if it did before.

    With the defaults, a line in 6 documents or more is cut from all but the first. `min_count: 2`
    is classical line deduplication; with `normalize: ccnet` and `keep: none` it is CCNet's within
    each of its shards. `scope` can be any column, also `id`: then lines are compared within one
    document (with `count: occurrences`).

    With `window: 3` runs of three units are compared, and what is cut is each unit of a repeated
    run: `{unit: sentence, window: 3, normalize: simplify, min_count: 2, count: occurrences,
    min_bytes: 1, min_words: 1, min_document: 0, min_units: 3}` is C4's rule as datatrove has it.

    Units are compared by 96 bits of two XXH64: among 1e12 different units a false pair has odds of
    6e-6 (with 64 bits there would be 27,000). Adds `repeated_units`, the number of a document's
    repeated units without those that stay, and `repeated_ratio`, their share of the bytes of all
    its units.

    Source: CCNet (Wenzek et al. 2020), section 3.1; Llama 3 (2024), section 3.1.1, for a threshold
    of 6 (occurrences there); Dolma (Soldaini et al. 2024) keeps the first and cuts what a Bloom
    filter takes for known, so its result depends on the order of reading. Raffel et al. 2020 (C4),
    section 2.2, for spans of three sentences: datatrove 0.10.1's SentenceDedup cuts the same ones,
    but joins what is left without looking at line ends, and counts sentences once more in that.
    """

    rules = ("repeated_line", "mostly_repeated", "too_little_left", "too_few_left")
    bounds: ClassVar[Mapping[str, str]] = {
        "mostly_repeated": "max_ratio",
        "too_little_left": "min_document",
        "too_few_left": "min_units",
    }
    hash_output = Shuffled(
        "units",
        pa.schema([("hash", pa.uint64()), ("hash_low", pa.uint32()), ("count", pa.uint32())]),
        row_bytes=120,  # 71 where a third are repeated, more where all are
    )
    # What goes back to each cell with a repeated segment; is_home: it has the first, which stays.
    count_output = Shuffled(
        "repeated",
        pa.schema(
            [
                ("cell", pa.int64()),
                ("hash", pa.uint64()),
                ("hash_low", pa.uint32()),
                ("is_home", pa.bool_()),
            ]
        ),
        row_bytes=100,
    )

    unit: SegmentKind = "line"
    """What is compared: each line that is not blank, each run of such lines, or each sentence
    (spaCy's sentencizer in `language`)."""
    window: int = Field(1, ge=1, le=64)
    """Units in a row that are compared together."""
    normalize: Normalize = "none"
    """Compare bytes as they are, in lower case without digits and with single spaces, as CCNet, or
    as datatrove (`simplify`: lower case, numbers as 0, no punctuation, no accents)."""
    language: str = "en"
    """Language of the sentences."""
    min_bytes: int = Field(20, ge=1)
    """Units (with `window`, runs of units) that have fewer bytes, as compared, are never
    repeated."""
    min_words: int = Field(0, ge=0)
    """Those with fewer words are never repeated; words are separated by whitespace."""
    min_count: int = Field(6, ge=2, le=1 << 31)
    """Occurrences from which on a unit is repeated."""
    count: Literal["documents", "occurrences"] = "documents"
    """What counts: documents that have the unit, however often, or all its occurrences."""
    keep: Literal["first", "none"] = "first"
    """What stays of a repeated unit: all occurrences in the first document (with
    `count: occurrences` only the first one), or nothing."""
    prefer: tuple[str, ...] = Field((), max_length=250)
    """Sources whose documents count as first, the most preferred one first; then reading order."""
    scope: str = "global"
    """Within which documents units are compared: all, or those with one value of a column."""
    action: Literal["cut", "annotate"] = "cut"
    """Cut what is repeated, or only measure it."""
    min_document: int = Field(200, ge=0)
    """Drop documents that have fewer bytes left after something was cut."""
    min_units: int = Field(0, ge=0)
    """Drop documents that have fewer units left after something was cut."""
    max_ratio: float | None = Field(None, ge=0, le=1)
    """Drop documents with a larger `repeated_ratio` than this; null drops none."""

    @model_validator(mode="after")
    def _check_language(self) -> LineDedup:
        if self.unit == "sentence":
            try:
                check_language("spacy", self.language)
            except UsageError as error:
                why = str(error).partition(". ")[0]
                raise UsageError(f"{why}. Use unit: line or paragraph.") from None
        return self

    def libraries(self) -> tuple[str, ...]:
        regex = ("regex",) if self.normalize == "simplify" else ()
        return (*regex, *(("datatrove", "spacy") if self.unit == "sentence" else ()))

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"repeated_units": pa.int32(), "repeated_ratio": pa.float64()}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        each_bytes = _SEGMENT_BYTES[self.unit]
        segments, in_cell = volume.text_bytes // each_bytes, volume.cell_bytes // each_bytes
        repeated = segments // 4
        cpu = volume.text_bytes / (200e6 if self.normalize == "none" else 120e6)
        if self.unit == "sentence":
            cpu += volume.text_bytes / 45e6
        if pass_name == "hash":
            memory = 80 * min(in_cell + WAITING_SEGMENTS, 2 * in_cell)
            return Cost(cpu, unit_bytes=memory, disk_bytes=16 * segments)
        if pass_name != "apply":
            return self.cost_of_exchange(volume, pass_name, segments, repeated, rate=6e6, disk=20)
        # A sidecar, and rows of the ledger with spans.
        disk = 60 * volume.documents + 20 * repeated
        return Cost(cpu, unit_bytes=60 * in_cell // 4, disk_bytes=disk)

    def hash_cell(self, context: PassContext) -> None:
        """Write the hashes of a cell's segments and the count of each."""
        tally = SegmentTally(self._limits, by_document=self.count == "documents")
        for view in context.read("text", *self.needs()):
            tally.add(self._segments(view))
        high, low, counts = tally.totals()
        if num_collisions := np.count_nonzero(high[1:] == high[:-1]):
            context.count(_COLLISIONS, int(num_collisions))
        columns = {"hash": high, "hash_low": low, "count": counts}
        context.write_shuffle("units", columns, is_sorted=True)

    def count_range(self, context: PassContext) -> None:
        """Find the segments of a hash range that are repeated, and the cell that has the first."""
        parts = context.parts("hash/units")
        rows, cells, is_dealt = self.read_range(context)
        high, low = numbers(rows.column("hash")), numbers(rows.column("hash_low"))
        priorities = frozen(cell_priorities(parts, self.prefer)[cells])
        first = first_of_group(high, frozen(low.astype(np.uint64)), priorities)
        totals = np.bincount(first, weights=numbers(rows.column("count")), minlength=len(first))
        repeated = np.flatnonzero(totals[first] >= self.min_count)
        is_first = first[repeated] == repeated
        context.count("repeated_units", int(is_first.sum()))
        columns = {
            "cell": np.array([part.unit for part in parts], np.int64)[cells[repeated]],
            "hash": high[repeated],
            "hash_low": low[repeated],
            "is_home": is_first & (self.keep == "first"),
        }
        context.write_shuffle("repeated", columns, is_sorted=not is_dealt)

    def outcomes(self, context: PassContext) -> Iterator[tuple[View, SegmentOutcome]]:
        rows = self.read_counted(context).combine_chunks()
        if rows.num_rows == 0:
            return
        repeated = Repeated(
            numbers(rows.column("hash")),
            numbers(rows.column("hash_low")),
            numbers(rows.column("is_home")),
            self._limits,
            by_document=self.count == "documents",
            is_clear=not context.counters("hash").get(_COLLISIONS),
        )
        for view in context.read(*dict.fromkeys(["id", "source", "text", *self.needs()])):
            segments = self._segments(view)
            is_cut = segments.cut(repeated.find(segments))
            docs, starts, ends = segments.units
            *spans, sums = cut_units(*view.text, docs, starts, ends, is_cut)
            num_cut, ratios = sums[:, 0], sums[:, 1] / np.maximum(sums[:, 2], 1)
            bytes_left = view.text.sizes() - sums[:, 3]
            units_left = np.bincount(docs, minlength=view.num_docs) - num_cut
            codes = np.zeros(view.num_docs, np.uint8)
            codes[(num_cut > 0) & (units_left < self.min_units)] = 4
            codes[(num_cut > 0) & (bytes_left < self.min_document)] = 3
            if self.max_ratio is not None:
                codes[ratios > self.max_ratio] = 2
            yield (
                view,
                SegmentOutcome(
                    {"repeated_units": num_cut, "repeated_ratio": ratios},
                    codes,
                    num_cut,
                    ByteSpans(*spans),
                    np.stack([num_cut, ratios, bytes_left, units_left]),
                ),
            )

    @property
    def _limits(self) -> SegmentLimits:
        return SegmentLimits(self.min_bytes, self.min_words)

    def _segments(self, view: View) -> TextSegments:
        return find_segments(
            view, self.unit, self.normalize, self.scopes(view), self.window, self.language
        )


Units = tuple["Int32s", "Int64s", "Int64s"]
"""Documents in the batch, ascending; starts and ends in the buffer of the texts. (U,) each."""


class TextSegments(NamedTuple):
    """Segments of N documents; arrays have one entry per segment, unless they say otherwise.

    Attributes:
        docs: document in the batch, ascending.
        compared: what is compared: a buffer of bytes, starts and ends.
        scopes: (N,) numbers of the documents' scopes.
        units: all units, also those in no segment.
        firsts: the first unit of each segment; `window`: how many it has.
    """

    docs: Int32s
    compared: tuple[Bytes, Int64s, Int64s]
    scopes: Uint64s
    units: Units
    firsts: Int64s
    window: int

    def cut(self, is_cut: Bools) -> Bools:
        """Return which units are in a segment that is cut."""
        if self.window == 1:
            return is_cut
        unit_is_cut = np.zeros(len(self.units[0]), np.bool_)
        for offset in range(self.window):
            unit_is_cut[self.firsts[is_cut] + offset] = True
        return unit_is_cut


def find_segments(
    view: View,
    kind: SegmentKind,
    normalize: Normalize,
    scopes: Uint64s,
    window: int = 1,
    language: str = "en",
) -> TextSegments:
    """Return the segments of the documents in a view."""
    offsets, data = view.text
    if kind == "sentence":
        words = view.fact(splitter("spacy", language))
        docs, starts, ends = sentence_spans(offsets, data, *sentence_edges(offsets, data, words))
    else:
        docs, starts, ends = find_units(offsets, data, kind == "paragraph")
    compared = (data, starts, ends)
    if normalize == "simplify":
        # What lies between two units is whitespace, which is left out.
        tiles = np.append(starts, ends[-1:] if len(ends) else offsets[:1])
        bounds, simple = simplify_texts(frozen(tiles), data)
        compared = (simple, bounds[:-1], bounds[1:])
    elif normalize != "none":
        table = ccnet_table() if normalize == "ccnet" else case_digits_table()
        compared = fold_units(data, starts, ends, table)
    units = (docs, starts, ends)
    firsts = np.arange(len(docs))
    if window == 1:
        return TextSegments(docs, compared, scopes, units, firsts, window)
    if normalize != "none":
        compared = _joined(*compared)
    last = len(docs) - window + 1
    firsts = np.flatnonzero(docs[: max(last, 0)] == docs[window - 1 :])
    runs = (compared[0], frozen(compared[1][firsts]), frozen(compared[2][firsts + window - 1]))
    return TextSegments(frozen(docs[firsts]), runs, scopes, units, firsts, window)


def _joined(data: Bytes, starts: Int64s, ends: Int64s) -> tuple[Bytes, Int64s, Int64s]:
    """Return units with a space between any two, so that a window of them is a range of bytes."""
    bounds = np.append(starts, ends[-1:] if len(ends) else 0).astype(np.int64)
    slack = np.concatenate([data, np.zeros(8, np.uint8)])
    text_bounds = np.array([0, len(starts)])
    numbered = np.arange(len(starts), dtype=np.int32)
    edges, data_out = join_words(*map(frozen, (text_bounds, numbered, bounds, slack)))
    return frozen(data_out), frozen(edges[:-1].copy()), frozen(edges[1:] - 1)


class SegmentLimits(NamedTuple):
    """Least bytes and words of a segment, as compared, that can be repeated."""

    min_bytes: int
    min_words: int


class SegmentTally:
    """Counts the segments of a cell; memory grows with the number of different ones.

    Args:
        by_document: a segment counts once in a document.
        max_segments: different segments; of more, a share that hashes choose is counted.

    Attributes:
        share: of all segments.
    """

    def __init__(
        self, limits: SegmentLimits, *, by_document: bool, max_segments: int | None = None
    ) -> None:
        self._limits, self._by_document, self._max_segments = limits, by_document, max_segments
        self.share = 1.0
        self._high = [np.empty(0, np.uint64)]
        self._low = [np.empty(0, np.uint32)]
        self._docs = [np.empty(0, np.int32)]
        self._counts = np.empty(0, np.uint32)
        self._waiting = self._num_docs = 0

    def add(self, segments: TextSegments) -> None:
        """Count the segments of a batch."""
        high, low, docs = hash_units(
            *segments.compared, segments.docs, segments.scopes, *self._limits
        )
        if self.share < 1:
            is_sampled = low < self.share * 2**32
            high, low, docs = high[is_sampled], low[is_sampled], docs[is_sampled]
        self._high.append(high)
        self._low.append(low)
        self._docs.append(docs + np.int32(self._num_docs))
        self._num_docs += len(segments.scopes)
        self._waiting += len(high)
        if self._waiting > WAITING_SEGMENTS:
            self.totals()

    def totals(self) -> tuple[Uint64s, Uint32s, Uint32s]:
        """Return the hashes of all different segments, sorted, and the count of each."""
        counts = np.ones(sum(map(len, self._high)), np.uint32)
        counts[: len(self._counts)] = self._counts
        high, low, self._counts = count_units(
            np.concatenate(self._high),
            np.concatenate(self._low),
            np.concatenate(self._docs),
            counts,
            self._by_document,
        )
        while self._max_segments is not None and len(high) > self._max_segments:
            self.share /= 2
            is_sampled = low < self.share * 2**32
            high, low, self._counts = high[is_sampled], low[is_sampled], self._counts[is_sampled]
        # What was counted takes part in the next count as segments of a document of its own.
        self._high, self._low = [high], [low]
        self._docs = [np.full(len(high), -1, np.int32)]
        self._waiting = 0
        return high, low, self._counts


class Repeated:
    """The repeated segments of a cell; remembers which documents keep them, batch after batch.

    Args:
        high, low: (K,) their hashes.
        is_home: (K,) whether the first occurrence stays, and is in this cell.
        by_document: the whole first document keeps its occurrences.
        is_clear: `high` alone is unique in the cell.
    """

    def __init__(
        self,
        high: Uint64s,
        low: Uint32s,
        is_home: Bools,
        limits: SegmentLimits,
        *,
        by_document: bool,
        is_clear: bool,
    ) -> None:
        self._high, self._low, self._limits = high, low, limits
        self._by_document, self._is_clear = by_document, is_clear
        self._table = index_hashes(high)
        # As `find_repeated` has them: the first occurrence to come stays, or none does.
        self._holders = np.where(is_home, np.int64(-1), np.int64(-2))
        self._num_docs = 0

    def find(self, segments: TextSegments) -> Bools:
        """Return which segments of the next batch are repeated and do not stay."""
        is_repeated = find_repeated(
            *segments.compared, segments.docs, segments.scopes, *self._limits,
            self._high, self._low, self._table, self._holders, self._num_docs, self._by_document,
            not self._is_clear,
        )  # fmt: skip
        self._num_docs += len(segments.scopes)
        return is_repeated
