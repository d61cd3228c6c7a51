"""Token ids to rows of equal length."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import write_token_tables
from corpuskit.kernels.arrays import Int64s
from corpuskit.kernels.packing import CONTINUES, GOES_ON
from corpuskit.stage import CellStage, Cost, Known, Parameters, UnitContext, View, Volume
from corpuskit.stages._numbers import check_numbers, to_numbers
from corpuskit.stages.sequences._rows import (
    PackedDocuments,
    RowWindow,
    copy_groups,
    cut_pieces,
    pack_windows,
    packed_schema,
    packed_size,
    row_tables,
)

FOLDER = "work/pack"

Edge = Annotated[float, Field(allow_inf_nan=False)]


class Bands(Parameters):
    """Ranges of a column's values that share no row."""

    column: str = Field(min_length=1)
    """Column of numbers, as in `percentile.rank`; an annotation or a declared column."""
    edges: tuple[Edge, ...] = Field(min_length=1, max_length=255)
    """Where the second band begins, the third and so on; a document on an edge is above it."""
    missing: Literal["first", "last"] = "first"
    """The band of documents that have no value."""

    @field_validator("edges")
    @classmethod
    def _ascend(cls, edges: tuple[float, ...]) -> tuple[float, ...]:
        if any(low >= high for low, high in pairwise(edges)):
            raise ValueError("must ascend")
        return edges

    def of(self, view: View) -> Int64s:
        """Return the band of each document, (N,), from 0."""
        values = to_numbers(view.column(self.column), self.column)
        bands = np.searchsorted(self.edges, values, side="right").astype(np.int64)
        bands[np.isnan(values)] = 0 if self.missing == "first" else len(self.edges)
        return bands


class Pack(CellStage):
    """Lay the documents of each cell into rows of `seq_len` + 1 tokens, each token exactly once.

    `best_fit` cuts only documents that are longer than a row, at a cost of less than 0.1 % padding;
    `concat` cuts wherever a row ends, and pads only the last row of a cell. Rows correlate with
    document length afterwards: `shuffle` them. A row has one token more than a step trains on, so
    that each of `seq_len` positions has a next token. Holds the token ids of a cell in memory.

    After `upsample` a document is packed as often as it says; no row holds it twice. With `bands`,
    rows hold documents of one band each, for `shuffle: {order: bands}`: a curriculum.

    Source: Ding et al. 2024, Fewer Truncations Improve Language Modeling (best-fit packing); works
    in windows of pieces instead of on the whole corpus (16,384 pieces lose 0.02-0.04 %).
    """

    seq_len: int = Field(2048, ge=1, le=1 << 24)
    """Tokens that a row trains on; one more is stored."""
    method: Literal["best_fit", "concat"] = "best_fit"
    """`best_fit` keeps documents whole where they fit, `concat` fills row after row."""
    window: int = Field(16384, ge=1)
    """Pieces of documents that are packed together (best_fit)."""
    bands: Bands | None = None
    """Ranges that share no row: a column, the edges between them, and `missing`: first or last."""

    def needs(self) -> tuple[str, ...]:
        return ("tokenize.tokens", *(() if self.bands is None else (self.bands.column,)))

    def check(self, known: Known) -> None:
        if self.bands is not None:
            check_numbers(known, "bands", self.bands.column)

    def provides(self, provided: Mapping[str, Any]) -> Mapping[str, Any]:
        packing: dict[str, Any] = {"seq_len": self.seq_len, "method": self.method}
        if self.bands is not None:
            packing["bands"] = len(self.bands.edges) + 1
        return {"packing": packing}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        """Return what packing needs: ids of a cell twice, put together; rows of a window."""
        size = packed_size(volume)
        itemsize = np.dtype(volume.given["tokenizer"]["dtype"]).itemsize
        ids = 5 * itemsize * volume.cell_bytes // 12  # a token in 2.4 bytes
        row = (self.seq_len + 1) * itemsize
        window = min(self.window * row, ids + row)
        return Cost(
            cpu_seconds=volume.text_bytes / 400e6,
            unit_bytes=2 * ids + window + 500 * volume.cell_documents,
            disk_bytes=size + 100 * volume.documents,
        )

    def collect(self, views: Iterator[View], context: UnitContext) -> None:
        documents = self._read(views, context)
        if documents is None:
            return
        source = context.unit.source
        counts = Counter(documents=len(documents.keys))
        for band in range(1 if self.bands is None else len(self.bands.edges) + 1):
            windows = list(self._windows(documents, band, counts))
            rows = sum(window.num_rows for window in windows)
            padding = rows * (self.seq_len + 1) - sum(int(w.pieces.lengths.sum()) for w in windows)
            counts.update(rows=rows, padding=padding)
            if self.bands is not None:
                counts.update({f"band_rows/{band}": rows, f"band_padding/{band}": padding})
            if rows:
                self._write(context, windows, documents, band)
        for name, value in sorted(counts.items()):
            context.count(f"{name}/{source}", value)

    def _read(self, views: Iterator[View], context: UnitContext) -> PackedDocuments | None:
        """Return the documents of a cell, and write what finds them by key and id."""
        dtype = np.dtype(context.given["tokenizer"]["dtype"])
        repeats = context.given.get("upsample", {}).get("columns", ())
        batches: list[PackedDocuments] = []
        ids: list[pa.Array] = []
        for view in views:
            lists = view.column("tokenize.tokens")
            offsets = lists.offsets.to_numpy()
            copies = np.ones(view.num_docs, np.int32)
            for name in repeats:
                copies *= numbers(view.column(name))
            bands = np.zeros(view.num_docs, np.int64) if self.bands is None else self.bands.of(view)
            # A copy, in the type of the rows: the batch goes, and with uint16 half the memory.
            tokens = lists.values.to_numpy()[offsets[0] : offsets[-1]].astype(dtype)
            sizes = view.text.sizes()
            batches.append(
                PackedDocuments(tokens, np.diff(offsets), sizes, view.keys, copies, bands)
            )
            ids.append(view.column("id"))
        if not batches:
            return None
        documents = PackedDocuments.concatenate(batches)
        _write_ids(context, documents.keys, pa.concat_arrays(ids))
        return documents

    def _windows(
        self, documents: PackedDocuments, band: int, counts: Counter[str]
    ) -> Iterator[RowWindow]:
        """Yield the windows of a band, copy after copy."""
        width, joined = self.seq_len + 1, self.method == "concat"
        for group in copy_groups(documents, band):
            pieces = cut_pieces(documents, group, width, joined=joined)
            is_cut = pieces.flags & (CONTINUES | GOES_ON) == GOES_ON
            lengths = documents.num_tokens[group]
            counts.update(
                copies=len(group),
                tokens=int(lengths.sum()),
                text_bytes=int(documents.text_bytes[group].sum()),
                cut_documents=int(is_cut.sum()),
                cut_fitting=int((documents.num_tokens[pieces.docs[is_cut]] <= width).sum()),
            )
            yield from pack_windows(pieces, self.window, width, joined=joined)

    def _write(
        self, context: UnitContext, windows: list[RowWindow], documents: PackedDocuments, band: int
    ) -> None:
        """Write the rows of a band as one part; its `first` and `last` say which band."""
        source, provided = context.unit.source, context.given
        facts: dict[str, Any] = {} if self.bands is None else {"first": band, "last": band}
        footer = {} if self.bands is None else {"band": band}
        schema = packed_schema(provided, source=source, shuffled=False, **footer)
        pad, width = provided["tokenizer"]["pad"], self.seq_len + 1
        context.write_part(
            "packed",
            FOLDER,
            lambda path: write_token_tables(
                path, schema, row_tables(windows, documents, schema, width, pad)
            ),
            source=source,
            rows=sum(window.num_rows for window in windows),
            **facts,
        )


def _write_ids(context: UnitContext, keys: Int64s, ids: pa.Array) -> None:
    """Write the runs `ids` and `id_hashes` (docs/formats.md, mix plan)."""
    empty = hashlib.blake2b(digest_size=8)
    digests = []
    for name in ids.cast(pa.binary()).to_pylist():
        hasher = empty.copy()  # three fifths of the time of a new one
        hasher.update(name)
        digests.append(hasher.digest())
    context.write_shuffle("ids", {"key": keys, "id": ids})
    context.write_shuffle(
        "id_hashes", {"id_hash": np.frombuffer(b"".join(digests), "<u8"), "key": keys}
    )
