"""Documents, lines or paragraphs (units) most of whose n-grams occur in earlier text.

pass                   reads              writes                                  memory
hash (cells)           documents          `ngrams`: hash, first unit, how often   40 bytes an n-gram
                                          `repeats`: unit, count
count (hash ranges)    `ngrams`           `seen`: cell, unit, count               80 bytes a row
apply (cells)          `repeats`, `seen`, sidecar, ledger                         40 bytes a unit
                       documents
deal, route: see `_segments`

Units of a cell are numbered in the order of reading. A cell sends each of its n-grams once, with
the first unit that has it; it counts itself what its later units repeat. What comes back is how
many n-grams of a unit occur in earlier cells. So a pass holds the n-grams of its own range only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.formats.batch import ByteSpans, numbers
from corpuskit.kernels.arrays import Int32s, Int64s, Uint64s, frozen
from corpuskit.kernels.lines import cut_units, find_units
from corpuskit.kernels.unionfind import first_of_group
from corpuskit.kernels.words.boundaries import group_ngrams, unit_ngrams
from corpuskit.stage import Cost, PassContext, View, Volume
from corpuskit.stages._routing import read_own_rows
from corpuskit.stages.dedup._segments import SegmentOutcome, SegmentStage, Shuffled, cell_priorities
from corpuskit.text.words import boundary_classes

_REPEATS = pa.schema([("unit", pa.int64()), ("count", pa.int64())])
"""How many n-grams of a unit occur in earlier units of its cell."""

_NGRAM_BYTES = 5
"""Bytes of text per n-gram: of English 4.4, of twelve languages 5.1, of source code 5.1."""


class OverlapDedup(SegmentStage):
    r"""Drop documents, or cut lines or paragraphs, most of whose n-grams occur in earlier text.

    An n-gram is *seen* if it occurs in an earlier unit: of another document, or with `unit: line`
    or `paragraph` of the same one. Earlier is by `prefer`, then in reading order: order of sources,
    files, documents. Of the n-grams of a unit, repeats included, the share that is seen is its
    overlap; a unit above `max_overlap` goes. So the first occurrence always stays, and the outcome
    is the same for any number of workers. Words are those of Unicode (UAX #29) as they are written;
    punctuation counts, whitespace doesn't. Units of fewer words than `ngram` have no n-grams.

    It counts what occurs in any earlier unit, bff only in those that it kept, and in what its Bloom
    filter takes for known (1 % of n-grams). So a text here also goes if most of it is in documents
    that go themselves, and its answer depends on the order in which threads come, this one not.
    N-grams are compared by 64-bit hashes: among 1e12 different ones each is taken for another with
    odds of 5e-8, which moves the overlap of a unit by less than one n-gram in 1e7.

    Scratch disk is 13 bytes for each different n-gram of a cell: 2 to 3 bytes per byte of text. Use
    `minhash_dedup` for near duplicates of whole documents; this also finds documents put together
    from several others. Adds `overlap`, the share of a document's n-grams that are seen.

    Source: bff (Groeneveld 2023) as used by DCLM (Li et al. 2024: 13-grams, 0.8, its paragraphs are
    `unit: line`, its old-both sets `max_document_overlap`, too) and by Dolma's deduper in Common
    Pile (Kandpal et al. 2025: 20-grams of documents, at least 0.9).
    """

    rules = ("overlap", "document_overlap", "too_little_left")
    bounds: ClassVar[Mapping[str, str]] = {
        "overlap": "max_overlap",
        "document_overlap": "max_document_overlap",
        "too_little_left": "min_document",
    }
    # An n-gram of a cell, its first unit there, and how often it is in that (255 at most; what is
    # beyond has rows of its own).
    hash_output = Shuffled(
        "ngrams",
        pa.schema([("hash", pa.uint64()), ("unit", pa.uint32()), ("times", pa.uint8())]),
        row_bytes=80,
    )
    # How many other n-grams of a unit than those in `repeats` occur in earlier cells.
    count_output = Shuffled(
        "seen",
        pa.schema([("cell", pa.int64()), ("unit", pa.uint32()), ("count", pa.int64())]),
        row_bytes=60,
    )

    unit: Literal["document", "line", "paragraph"] = "document"
    """What goes as a whole: documents, lines that are not blank, or runs of such lines."""
    ngram: int = Field(13, ge=1, le=64)
    """Words of an n-gram."""
    min_words: int | None = Field(None, ge=1, le=64)
    """Units of fewer words than `ngram` but at least as many as this are one n-gram; null: `ngram`.
    """
    max_overlap: float = Field(0.8, ge=0, le=1)
    """Largest share of a unit's n-grams that may be seen."""
    max_document_overlap: float | None = Field(None, ge=0, le=1)
    """With `unit: line` or `paragraph`: drop documents with a larger share of the n-grams of all
    their units than this; null drops none."""
    min_document: int = Field(1, ge=0)
    """Drop documents whose units have fewer bytes left after something was cut."""
    prefer: tuple[str, ...] = Field((), max_length=250)
    """Sources whose documents come first, most preferred at the front; then in reading order."""
    scope: str = "global"
    """Within which documents n-grams are compared: all, or those with one value of a column."""
    action: Literal["remove", "annotate"] = "remove"
    """Drop and cut, or only measure."""

    @model_validator(mode="after")
    def _check_words(self) -> OverlapDedup:
        if self.min_words is not None and self.min_words > self.ngram:
            raise ValueError(f"min_words: {self.min_words} is above ngram {self.ngram}.")
        if self.unit == "document" and self.max_document_overlap is not None:
            raise ValueError("max_document_overlap: needs unit: line or paragraph. Leave it out.")
        return self

    def libraries(self) -> tuple[str, ...]:
        return ("regex",)

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"overlap": pa.float64()}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        rows, in_cell = volume.text_bytes // _NGRAM_BYTES, volume.cell_bytes // _NGRAM_BYTES
        disk, shared = 13 * rows, volume.documents * (1 if self.unit == "document" else 10)
        if pass_name == "hash":
            cpu = volume.text_bytes / 85e6 + rows / 20e6
            return Cost(cpu, unit_bytes=40 * in_cell, disk_bytes=disk)
        if pass_name != "apply":
            return self.cost_of_exchange(volume, pass_name, rows, shared, rate=10e6, disk=17)
        memory = 30 * in_cell // 20
        return Cost(volume.text_bytes / 300e6, unit_bytes=memory, disk_bytes=17 * volume.documents)

    def hash_cell(self, context: PassContext) -> None:
        """Write the n-grams of a cell, and what its units repeat of earlier ones."""
        sizes, hashes = [np.zeros(1, np.int64)], [np.empty(0, np.uint64)]
        for view in context.read("text", *self.needs()):
            bounds, batch = self._ngrams(view, self._units(view))
            sizes.append(np.diff(bounds))
            hashes.append(batch.copy())  # `batch` has room for a word a byte
        offsets, ngrams = frozen(np.cumsum(np.concatenate(sizes))), frozen(np.concatenate(hashes))
        del hashes
        context.count("ngrams", len(ngrams))
        *columns, repeated = group_ngrams(offsets, ngrams)
        columns_by_name = dict(zip(self.hash_output.schema.names, columns, strict=True))
        context.write_shuffle("ngrams", columns_by_name, is_sorted=True)
        units = np.flatnonzero(repeated)
        context.write_shuffle("repeats", {"unit": units, "count": repeated[units]}, is_sorted=True)

    def count_range(self, context: PassContext) -> None:
        """Count the n-grams of a hash range that each unit has and an earlier cell has, too."""
        parts = context.parts("hash/ngrams")
        rows, cells, _ = self.read_range(context)
        hashes = frozen(numbers(rows.column("hash")))
        priorities = frozen(cell_priorities(parts, self.prefer)[cells])
        first = first_of_group(hashes, hashes, priorities)
        later = np.flatnonzero(priorities[first] < priorities)
        context.count("seen_ngrams", len(later))
        # The index of the cell, not its number, which has up to 36 bits.
        units = cells[later].astype(np.int64) << 32 | numbers(rows.column("unit"))[later]
        units, unit_of_row = np.unique(units, return_inverse=True)
        times = np.bincount(unit_of_row, numbers(rows.column("times"))[later], len(units))
        columns = {
            "cell": np.array([part.unit for part in parts], np.int64)[units >> 32],
            "unit": (units & 0xFFFFFFFF).astype(np.uint32),
            "count": times.astype(np.int64),
        }
        context.write_shuffle("seen", columns, is_sorted=True)

    def outcomes(self, context: PassContext) -> Iterator[tuple[View, SegmentOutcome]]:
        counts, first = self._counts(context), 0
        if len(counts) == 0:
            return
        for view in context.read(*dict.fromkeys(["id", "source", "text", *self.needs()])):
            units = self._units(view)
            num, hits = len(units.docs), np.zeros(len(units.docs), np.int64)
            batch_counts = counts[first : first + num]
            hits[: len(batch_counts)] = batch_counts
            first += num
            # Documents without an n-gram of an earlier unit need no totals.
            has_hits = np.bincount(units.docs, hits, view.num_docs) > 0
            rows = np.flatnonzero(has_hits[units.docs])
            totals = np.zeros(num, np.int64)
            if len(rows):
                subset = _Units.of(units.docs[rows], units.starts[rows], units.ends[rows])
                totals[rows] = np.diff(self._ngrams(view, subset)[0])
            yield view, self._measure(view, units, hits, totals)

    def _measure(self, view: View, units: _Units, hits: Int64s, totals: Int64s) -> SegmentOutcome:
        sums = np.bincount(units.docs, totals, view.num_docs)
        shares = np.bincount(units.docs, hits, view.num_docs) / np.maximum(sums, 1)
        columns = {"overlap": shares}
        if self.unit == "document":
            nothing, sizes = np.zeros(view.num_docs, np.int64), view.text.sizes()
            codes = (shares > self.max_overlap).astype(np.uint8)
            measured = np.stack([shares, shares, sizes])
            return SegmentOutcome(columns, codes, nothing, ByteSpans.empty(), measured)
        is_cut = frozen(hits / np.maximum(totals, 1) > self.max_overlap)
        *spans, sums_of_cuts = cut_units(*view.text, units.docs, units.starts, units.ends, is_cut)
        num_cut, bytes_left = sums_of_cuts[:, 0], sums_of_cuts[:, 2] - sums_of_cuts[:, 1]
        codes = np.zeros(view.num_docs, np.uint8)
        codes[(num_cut > 0) & (bytes_left < self.min_document)] = 3
        if self.max_document_overlap is not None:
            codes[shares > self.max_document_overlap] = 2
        measured = np.stack([num_cut.astype(np.float64), shares, bytes_left])
        return SegmentOutcome(columns, codes, num_cut, ByteSpans(*spans), measured)

    def _counts(self, context: PassContext) -> Int64s:
        """Return how many n-grams of each unit occur earlier, up to the last such unit."""
        repeats = read_own_rows(context, "hash/repeats", _REPEATS)
        tables = [self.read_counted(context), repeats]
        units = np.concatenate([numbers(t.column("unit")).astype(np.int64) for t in tables])
        counts = np.concatenate([numbers(t.column("count")) for t in tables])
        return np.bincount(units, counts).astype(np.int64)

    def _units(self, view: View) -> _Units:
        offsets, data = view.text
        if self.unit == "document":
            docs = np.arange(view.num_docs, dtype=np.int32)
            return _Units.of(docs, offsets[:-1], offsets[1:])
        return _Units.of(*find_units(offsets, data, self.unit == "paragraph"))

    def _ngrams(self, view: View, units: _Units) -> tuple[Int64s, Uint64s]:
        """Return the n-grams of units: offsets, hashes."""
        scopes = frozen(self.scopes(view)[units.docs])
        min_words = self.ngram if self.min_words is None else self.min_words
        return unit_ngrams(
            view.text.data, units.starts, units.ends, scopes, boundary_classes(), self.ngram,
            min_words,
        )  # fmt: skip


class _Units(NamedTuple):
    """Units of a batch: document, start and end in the buffer of the texts; all (U,)."""

    docs: Int32s
    starts: Int64s
    ends: Int64s

    @classmethod
    def of(cls, docs: Int32s, starts: Int64s, ends: Int64s) -> _Units:
        """Return units as kernels take them."""
        return cls(frozen(docs), frozen(starts), frozen(ends))
