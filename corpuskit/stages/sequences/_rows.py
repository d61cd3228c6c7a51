"""Packed rows, from documents to Arrow tables; `pack` makes them, `shuffle` moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.kernels.packing import PADDING, best_fit, cut_documents, fill_rows, lay_out
from corpuskit.shards import token_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from corpuskit.stage import Volume


TOKENS_PER_BYTE = 0.31
"""Tokens in a byte of text: 0.31 of a vocabulary of 50,000 in English, 60 languages and code."""


class Documents(NamedTuple):
    """Tokenized documents of one batch: (T,) tokens; per document, (N,), tokens, bytes, key."""

    tokens: NDArray[np.generic]
    num_tokens: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    keys: NDArray[np.int64]


class Pieces(NamedTuple):
    """Documents cut to rows: (T,) tokens; per piece, (P,), tokens, key, bytes, flags."""

    tokens: NDArray[np.generic]
    lengths: NDArray[np.int64]
    keys: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    flags: NDArray[np.uint8]

    def split(self, begin: int, end: int) -> Pieces:
        """Return pieces `[begin, end)` without copying."""
        first = int(self.lengths[:begin].sum())
        last = first + int(self.lengths[begin:end].sum())
        rows = slice(begin, end)
        return Pieces(
            self.tokens[first:last],
            self.lengths[rows],
            self.keys[rows],
            self.text_bytes[rows],
            self.flags[rows],
        )


def cut(documents: Iterable[Documents], width: int, *, joined: bool) -> Iterator[Pieces]:
    """Yield each batch of documents as pieces; `joined` lets a document begin inside a row."""
    filled = 0
    for batch in documents:
        docs, lengths, sizes, flags = cut_documents(
            batch.num_tokens, batch.text_bytes, width, filled, joined
        )
        filled = (filled + len(batch.tokens)) % width
        yield Pieces(batch.tokens, lengths, batch.keys[docs], sizes, flags)


def windows(
    batches: Iterable[Pieces], window: int, width: int, *, joined: bool
) -> Iterator[Pieces]:
    """Yield the same pieces in windows that are packed alone, whatever the batches.

    A window has `window` pieces; of joined documents it has those of whole rows, so that it does
    not matter where it ends. Only the last one may have fewer, or a row that is not full.
    """
    held: list[Pieces] = []
    for batch in batches:
        held.append(batch)
        if sum(len(piece.lengths) for piece in held) < window:
            continue
        all_held = _concatenate(held)
        num_pieces = len(all_held.lengths)
        if joined:
            whole = np.flatnonzero(np.cumsum(all_held.lengths) % width == 0)
            ends = [int(whole[-1]) + 1] if len(whole) else []
        else:
            ends = list(range(window, num_pieces + 1, window))
        begin = 0
        for end in ends:
            yield all_held.split(begin, end)
            begin = end
        held = [all_held.split(begin, num_pieces)]
    if any(len(piece.lengths) for piece in held):
        yield _concatenate(held)


def _concatenate(held: list[Pieces]) -> Pieces:
    return Pieces(*(np.concatenate(columns) for columns in zip(*held, strict=True)))


def pack_window(
    pieces: Pieces, schema: pa.Schema, width: int, pad: int, *, joined: bool
) -> pa.Table:
    """Return the rows of one window.

    Args:
        pieces: of the window.
        schema: of packed token shards.
        width: tokens per row.
        pad: id behind the last document of a row.
        joined: fill row after row; otherwise best-fit decreasing.
    """
    begins = np.cumsum(pieces.lengths) - pieces.lengths
    if joined:
        places, num_rows = begins // width, -(-len(pieces.tokens) // width)
    else:
        places, num_rows = best_fit(pieces.lengths, width)
    bounds, starts, which = lay_out(places, pieces.lengths, num_rows, width)
    rows = np.empty((num_rows, width), pieces.tokens.dtype)
    fill_rows(pieces.tokens, begins, bounds, starts, which, pad, rows)
    is_pad = which < 0
    columns = [
        row_bytes(rows),
        _lists(bounds, starts),
        _lists(bounds, np.where(is_pad, -1, pieces.keys[which])),
        _lists(bounds, np.where(is_pad, 0, pieces.text_bytes[which]).astype(np.int32)),
        _lists(bounds, np.where(is_pad, PADDING, pieces.flags[which]).astype(np.uint8)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def row_bytes(rows: NDArray[np.generic]) -> pa.Array:
    """Wrap (S, width) token ids as an Arrow column of S fixed-size values, without copying."""
    width = rows.shape[1] * rows.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(rows)])


def _lists(bounds: NDArray[np.int32], values: NDArray[np.generic]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(values))


def packed_schema(given: Mapping[str, object], **footer: object) -> pa.Schema:
    """Return the schema of packed rows, from what `tokenize` and `pack` provide."""
    tokenizer, packing = given["tokenizer"], given["packing"]
    assert isinstance(tokenizer, dict), "provided by tokenize"
    assert isinstance(packing, dict), "provided by pack"
    return token_schema(
        packing["seq_len"], tokenizer["dtype"], {"tokenizer": tokenizer["hash"], **footer}
    )


def packed_size(volume: Volume) -> int:
    """Return the size of the packed rows: as it is, or as it will be about."""
    if volume.packed_bytes:
        return volume.packed_bytes
    itemsize = np.dtype(volume.given["tokenizer"]["dtype"]).itemsize
    return int(volume.text_bytes * TOKENS_PER_BYTE * itemsize * 1.02)
