"""Token ids in Megatron's `.bin` and `.idx` files."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.stage import Cost, Reject, Slice, Source, SourceBatch
from corpuskit.stages.sources._indexed import CHUNK, index_path, open_index, read_ids
from corpuskit.stages.sources._records import BLOCK_BYTES, BLOCK_ROWS
from corpuskit.storage import is_remote, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.stage import InputFile, Volume
    from corpuskit.stages.sources._indexed import IndexFile

BYTES_PER_TOKEN = 3.2
"""Bytes of text that an id stands for: English, 60 languages and code, a vocabulary of 50,000."""

DOCUMENT_BYTES = 64
"""What a document counts besides its ids, so that empty ones don't pile up in a cell."""

ID_BYTES = 4


class Megatron(Source):
    """Read token ids that were made for Megatron: a `.bin`, with its `.idx` beside it.

    Documents have no text; their ids are the column `tokens`, for `tokenize` with `ids: tokens`.
    Leave out stages that look at text: to `exact_dedup` all of them are equal. A piece of work is
    as many documents as stand for the usual amount of text, 3.2 bytes an id.

    All types of ids that Megatron knows can be read. A document becomes a row of the ledger
    (`too_long`) when its ids, of 4 bytes each, take more than `max_document_bytes`. An index that
    contradicts itself or its `.bin`, a file that ends early, and an id below 0 or beyond 32 bits
    are errors of the file. That an `.idx` changed is noticed when its `.bin` changed, too.

    Source: megatron-core 0.16.1, `IndexedDataset`; differs in that everything is checked.
    """

    rules: ClassVar[tuple[str, ...]] = ("too_long",)

    unit: Literal["document", "sequence"] = "document"
    """What becomes a document: a document of the index, its sequences joined, or each sequence."""

    def declared(self) -> Mapping[str, pa.DataType]:
        return {"tokens": pa.large_list(pa.uint32())}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 2e9)

    def check_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            index = index_path(path)
            if not is_remote(index) and not os.path.isfile(index):
                raise UsageError(f"{path}: its index {index} is missing. Put it beside the file.")

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        pieces: list[Slice] = []
        begin = waiting = 0
        with open_index(index_path(file.path)) as index:
            index.check(file.size_bytes)
            num_docs = self._num_docs(index)
            for first in range(0, num_docs, CHUNK):
                last = min(first + CHUNK, num_docs)
                tokens = np.diff(index.token_ends(self._bounds(index, first, last)))
                ends = np.cumsum(
                    np.round(tokens * BYTES_PER_TOKEN).astype(np.int64) + DOCUMENT_BYTES
                )
                done = base = 0  # documents of this chunk in slices that are full, and their bytes
                while True:
                    full = int(np.searchsorted(ends, base + target_bytes - waiting, "right"))
                    if not waiting:
                        full = max(full, done + 1)
                    if full >= len(ends):
                        break
                    end = int(ends[full - 1]) if full else 0
                    pieces.append(Slice(begin, first + full, waiting + end - base, num_docs))
                    begin, done, base, waiting = first + full, full, end, 0
                waiting += int(ends[-1]) - base
        is_done = pieces and begin == num_docs
        return pieces if is_done else [*pieces, Slice(begin, num_docs, waiting, num_docs)]

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        with (
            open_index(index_path(file.path)) as index,
            contextlib.closing(open_input(file.path)) as content,
        ):
            num_docs = self._num_docs(index)
            if piece.whole not in {None, num_docs}:
                raise DataError(f"{index.path}: {num_docs} documents, {piece.whole} were planned.")
            size = content.seek(0, os.SEEK_END)
            for first in range(piece.begin, piece.end, BLOCK_ROWS):
                bounds = self._bounds(index, first, min(first + BLOCK_ROWS, piece.end))
                tokens = np.diff(index.token_ends(bounds))
                held = ID_BYTES * np.maximum(tokens, np.diff(bounds))
                is_long = held > max_document_bytes
                for begin, end in _groups(np.where(is_long, 0, held)):
                    some = slice(begin, end)
                    lengths, pointers = _places(
                        index, bounds[begin : end + 1], ~is_long[some], size
                    )
                    ids = read_ids(file.path, content, index.dtype, pointers, lengths)
                    kept, long = np.flatnonzero(~is_long[some]), np.flatnonzero(is_long[some])
                    offsets = np.append(0, np.cumsum(tokens[some][kept]))
                    yield SourceBatch(
                        positions=first + begin + kept,
                        texts=pa.repeat(pa.scalar("", pa.large_string()), len(kept)),
                        columns={"tokens": pa.LargeListArray.from_arrays(offsets, ids)},
                        rejects=tuple(
                            Reject(first + row, "too_long", float(held[row]), max_document_bytes)
                            for row in (begin + long).tolist()
                        ),
                        size_bytes=len(ids) * index.dtype.itemsize,
                    )

    def _num_docs(self, index: IndexFile) -> int:
        num: int = index.num_docs if self.unit == "document" else index.num_sequences
        return num

    def _bounds(self, index: IndexFile, begin: int, end: int) -> NDArray[np.int64]:
        """Return the bounds of documents [begin, end): (end - begin + 1,) numbers of sequences."""
        if self.unit == "document":
            return index.bounds(begin, end)
        return np.arange(begin, end + 1)


def _groups(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut documents into ranges of about BLOCK_BYTES; one alone may have more."""
    ends = np.cumsum(sizes)
    begin = base = 0
    while begin < len(ends):
        end = max(int(np.searchsorted(ends, base + BLOCK_BYTES, "right")), begin + 1)
        yield begin, end
        begin, base = end, int(ends[end - 1])


def _places(
    index: IndexFile, bounds: NDArray[np.int64], kept: NDArray[np.bool_], size_bytes: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return lengths and offsets of the sequences of the documents that are kept."""
    lengths, pointers = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False))
    for first, end in bounds[edges].reshape(-1, 2).tolist():
        lengths.append(index.lengths(first, end))
        pointers.append(index.pointers(first, lengths[-1], size_bytes))
    return np.concatenate(lengths), np.concatenate(pointers)
