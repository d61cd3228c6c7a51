"""What substring_dedup compares: the symbols of documents, bytes or token ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from corpuskit.kernels.arrays import Bytes, Int64s, Uint32s, Uint64s, frozen
from corpuskit.paths import PathText
from corpuskit.stage import Parameters, PassContext, View
from corpuskit.stages.dedup._keep import (
    GLOBAL,
    MAX_SOURCES,
    keep_columns,
    scope_columns,
    scope_hashes,
    source_ranks,
)

ENCODED_PER_SECOND = 2.2e6
"""Text bytes that Hugging Face tokenizers encode in a CPU second."""

_MIN_BYTES = 250  # about the 50 tokens of English of Lee et al. 2022


class SubstringParameters(Parameters):
    """Parameters that decide which spans are repeated."""

    min_bytes: int | None = Field(None, ge=10, le=100_000)
    """Least length of a repeated span, in bytes; 250 if `min_tokens` is not set either. For 100
    bytes of English, scripts of three bytes a letter need 300."""
    min_tokens: int | None = Field(None, ge=4, le=25_000)
    """Least length in token ids of `tokenizer`, instead; encoding takes longer than all else."""
    tokenizer: PathText | None = None
    """Path of a tokenizer.json, for `min_tokens`: spans are equal when their ids are."""
    keep: Literal["first", "whole", "none"] = "first"
    """Which copy stays: the first one, or none. With `first`, a first copy that overlaps a later
    copy of something else loses what they share. `whole` cuts nothing that is in a first copy, so
    that every repeated window stays in one piece somewhere, if `min_fragment` and `min_document`
    are no more than `min_bytes`; it cuts about a tenth less."""
    prefer: tuple[str, ...] = Field((), max_length=MAX_SOURCES)
    """Sources whose copies count as earlier than those of others, the most preferred first."""
    scope: str = GLOBAL
    """Look for repeats among all documents, or only among those with the same value in a column of
    strings: source, language.label, or a declared one such as dump."""

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if self.min_bytes is not None and self.min_tokens is not None:
            raise ValueError("set min_bytes or min_tokens, not both")
        if (self.min_tokens is None) != (self.tokenizer is None):
            raise ValueError("min_tokens and tokenizer need each other")
        return self

    @property
    def window(self) -> int:
        """Return the symbols of a window: bytes, or token ids."""
        return self.min_tokens or self.min_bytes or _MIN_BYTES


class Symbols(NamedTuple):
    """Documents as symbols: those of document i are `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        keys: (N,) ascending.
        offsets: (N + 1,) int64 into values; does not start at zero for a slice. Read-only.
        values: (T,) uint8 bytes of valid UTF-8, or uint32 token ids. Read-only.
        scopes: (N,) uint64; windows are compared among documents with the same number.
        ranks: (N,) uint8 index of the source in `prefer`: of two positions that of the smaller
            (rank, key, offset) is the first.
    """

    keys: Int64s
    offsets: Int64s
    values: Bytes | Uint32s
    scopes: Uint64s
    ranks: Bytes


def symbol_type(search: SubstringParameters) -> type[np.uint8 | np.uint32]:
    """Return the type of `Symbols.values`."""
    return np.uint8 if search.tokenizer is None else np.uint32


def columns_of(search: SubstringParameters) -> tuple[str, ...]:
    """Return the columns that decide which documents and copies are compared, besides the text."""
    return (*scope_columns(search.scope), *keep_columns("first", search.prefer))


def read_symbols(search: SubstringParameters, context: PassContext) -> Iterator[Symbols]:
    """Yield the documents of a cell that are still alive, batch by batch."""
    for view in context.read(*dict.fromkeys(["text", *columns_of(search)])):
        offsets, values = _symbols_of(search, view)
        ranks = source_ranks(view, search.prefer).astype(np.uint8)
        yield Symbols(view.keys, offsets, values, scope_hashes(view, search.scope), ranks)


def _symbols_of(search: SubstringParameters, view: View) -> tuple[Int64s, Bytes | Uint32s]:
    """Return offsets (N + 1,) and values as in `Symbols`."""
    if search.tokenizer is None:
        return view.text
    from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec
    from corpuskit.stages.sequences.tokenize.engines import open_engine

    encoded = open_engine(TokenizerSpec(search.tokenizer)).encode(view.column("text"))
    return frozen(encoded.offsets), frozen(encoded.ids)


def byte_spans(
    search: SubstringParameters, view: View, rows: Int64s, starts: Int64s, ends: Int64s
) -> tuple[Int64s, Int64s]:
    """Return spans of symbols as spans of bytes of the texts; no more than those symbols cover.

    Args:
        rows: (S,) documents in the view; ascending.
        starts, ends: (S,) in symbols.
    """
    if search.tokenizer is None or len(rows) == 0:
        return starts, ends
    from corpuskit.stages.sequences.tokenize.engines import token_edges

    byte_starts, byte_ends = np.empty_like(starts), np.empty_like(ends)
    documents, firsts = np.unique(rows, return_index=True)
    bounds = np.append(firsts, len(rows))
    texts = view.column("text")
    for index, row in enumerate(documents.tolist()):
        span_rows = slice(bounds[index], bounds[index + 1])
        begins, stops = token_edges(search.tokenizer, texts[row].as_py())
        # A character that is shared with the token before or after belongs to neither.
        min_begins = np.append(0, stops[:-1])
        max_stops = np.append(begins[1:], stops[-1])
        byte_starts[span_rows] = np.maximum(begins, min_begins)[starts[span_rows]]
        byte_ends[span_rows] = np.minimum(stops, max_stops)[ends[span_rows] - 1]
    return byte_starts, np.maximum(byte_starts, byte_ends)


class DocumentSpans(NamedTuple):
    """Repeated spans, before any trimming: by key, then start; disjoint, none touch.

    The union of `[p, p + L)` over the flagged windows `p` of each document.

    Attributes:
        keys: (S,) of their documents.
        starts, ends: (S,) in symbols of the document (bytes of its text, or tokens).
    """

    keys: Int64s
    starts: Int64s
    ends: Int64s
