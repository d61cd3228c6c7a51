"""Packed rows, from documents to Arrow tables; `pack` makes them, `shuffle` moves them.

The documents of a band are packed in groups, in which each occurs at most once (`copy_groups`).
They are cut to pieces that fit a row (`cut_pieces`). Each window of pieces is packed by itself
(`pack_windows`), and its rows are filled when they are written (`row_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from corpuskit.formats.shards import token_schema
from corpuskit.kernels.arrays import Bytes, Int32s, Int64s
from corpuskit.kernels.packing import PADDING, best_fit, cut_documents, fill_rows, lay_out
from corpuskit.stage import Volume

TOKENS_PER_BYTE = 0.31
"""Tokens in a byte of text: 0.31 of a vocabulary of 50,000 in English, 60 languages and code."""


class PackedDocuments(NamedTuple):
    """Tokenized documents of a cell.

    Attributes:
        tokens: (T,) of all documents, in the type of the rows.
        num_tokens, text_bytes, keys: (N,) of each document.
        copies: (N,) how often each is packed.
        bands: (N,) which of the bands that share no row it belongs to.
    """

    tokens: NDArray[np.generic]
    num_tokens: Int64s
    text_bytes: Int64s
    keys: Int64s
    copies: Int32s
    bands: Int64s

    @classmethod
    def concatenate(cls, batches: Sequence[PackedDocuments]) -> PackedDocuments:
        """Return the documents of some batches."""
        return cls(*(np.concatenate(columns) for columns in zip(*batches, strict=True)))


class DocumentPieces(NamedTuple):
    """Documents cut to rows; per piece, (P,).

    Attributes:
        docs: the document.
        begins, lengths: its first token among those of the cell, and how many.
        text_bytes: of the text that it stands for.
        flags: of packed token shards.
    """

    docs: Int64s
    begins: Int64s
    lengths: Int64s
    text_bytes: Int64s
    flags: Bytes

    def part(self, begin: int, end: int) -> DocumentPieces:
        """Return pieces `[begin, end)` without copying."""
        docs, begins, lengths, text_bytes, flags = self
        rows = slice(begin, end)
        return DocumentPieces(
            docs[rows], begins[rows], lengths[rows], text_bytes[rows], flags[rows]
        )


class RowWindow(NamedTuple):
    """Pieces that are packed together, and the row of each among the window's `num_rows`, (P,)."""

    pieces: DocumentPieces
    rows: Int64s
    num_rows: int


def copy_groups(documents: PackedDocuments, band: int) -> Iterator[Int64s]:
    """Yield which documents of a band are packed together: those with a first copy, a second..."""
    documents_left = np.flatnonzero((documents.bands == band) & (documents.copies > 0))
    for copy in range(int(documents.copies[documents_left].max(initial=0))):
        documents_left = documents_left[documents.copies[documents_left] > copy]
        yield documents_left


def cut_pieces(
    documents: PackedDocuments, rows: Int64s, width: int, *, joined: bool
) -> DocumentPieces:
    """Return documents as pieces that fit a row; `joined` lets one begin where another ends."""
    lengths = documents.num_tokens[rows]
    docs, sizes, text_bytes, flags = cut_documents(
        lengths, documents.text_bytes[rows], width, 0, joined
    )
    first_tokens = np.cumsum(documents.num_tokens)[rows] - lengths
    # Where a piece begins in its document: tokens of the group before it, less those before that.
    begins = (np.cumsum(sizes) - sizes) - (np.cumsum(lengths) - lengths)[docs]
    return DocumentPieces(rows[docs], first_tokens[docs] + begins, sizes, text_bytes, flags)


def pack_windows(
    pieces: DocumentPieces, window: int, width: int, *, joined: bool
) -> Iterator[RowWindow]:
    """Yield pieces in windows, with the rows they go to.

    A window has `window` pieces, the last one fewer. With `joined` it ends where a row ends, so
    rows do not depend on `window`.
    """
    num_pieces = len(pieces.lengths)
    bounds = np.append(np.arange(0, num_pieces, window), num_pieces)
    if joined:
        rows = (np.cumsum(pieces.lengths) - pieces.lengths) // width
        starts = np.append(np.flatnonzero(np.diff(rows, prepend=-1)), num_pieces)
        bounds = np.unique(starts[np.searchsorted(starts, bounds)])
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        window_pieces = pieces.part(begin, end)
        if joined:
            yield RowWindow(
                window_pieces, rows[begin:end] - rows[begin], int(rows[end - 1] - rows[begin]) + 1
            )
        else:
            yield RowWindow(window_pieces, *best_fit(window_pieces.lengths, width))


def _fill(
    window: RowWindow,
    documents: PackedDocuments,
    schema: pa.Schema,
    pad: int,
    rows: NDArray[np.generic],
) -> pa.Table:
    """Return the rows of a window.

    Args:
        window: of pieces of these documents.
        documents: of the cell.
        schema: of packed token shards.
        pad: id after the last document of a row.
        rows: (num_rows or more, width) array that is overwritten: the memory of the table.
    """
    pieces, rows = window.pieces, rows[: window.num_rows]
    bounds, starts, index = lay_out(window.rows, pieces.lengths, window.num_rows, rows.shape[1])
    fill_rows(documents.tokens, pieces.begins, pieces.lengths, bounds, starts, index, pad, rows)
    is_pad = index < 0
    columns = [
        row_bytes(rows),
        _lists(bounds, starts),
        _lists(bounds, np.where(is_pad, -1, documents.keys[pieces.docs[index]])),
        _lists(bounds, np.where(is_pad, 0, pieces.text_bytes[index]).astype(np.int32)),
        _lists(bounds, np.where(is_pad, PADDING, pieces.flags[index]).astype(np.uint8)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def row_tables(
    windows: Sequence[RowWindow],
    documents: PackedDocuments,
    schema: pa.Schema,
    width: int,
    pad: int,
) -> Iterator[pa.Table]:
    """Yield the rows of windows; each table overwrites the one before it."""
    # New memory for each window would cost as much as filling it.
    max_rows = max((window.num_rows for window in windows), default=0)
    rows = np.empty((max_rows, width), documents.tokens.dtype)
    for window in windows:
        yield _fill(window, documents, schema, pad, rows)


def row_bytes(rows: NDArray[np.generic]) -> pa.Array:
    """Wrap (S, width) token ids as an Arrow column of S fixed-size values, without copying."""
    width = rows.shape[1] * rows.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(rows)])


def _lists(bounds: Int32s, values: NDArray[np.generic]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(values))


def packed_schema(provided: Mapping[str, object], **footer: object) -> pa.Schema:
    """Return the schema of packed rows, from what `tokenize` and `pack` provide."""
    tokenizer, packing = provided["tokenizer"], provided["packing"]
    assert isinstance(tokenizer, dict), "provided by tokenize"
    assert isinstance(packing, dict), "provided by pack"
    return token_schema(
        packing["seq_len"], tokenizer["dtype"], {"tokenizer": tokenizer["hash"], **footer}
    )


def packed_size(volume: Volume) -> int:
    """Return the size of the packed rows: known, or estimated."""
    if volume.packed_bytes:
        return volume.packed_bytes
    itemsize = np.dtype(volume.given["tokenizer"]["dtype"]).itemsize
    repeats = float(volume.given.get("upsample", {}).get("factor", 1.0))
    return int(volume.text_bytes * TOKENS_PER_BYTE * itemsize * 1.02 * max(repeats, 1.0))
