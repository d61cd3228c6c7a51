"""Arrow columns as NumPy views without copying, and the schema of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from corpuskit.kernels.arrays import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)

POSITION_BITS = 40
"""A key is `file_ordinal << POSITION_BITS | position`."""

MAX_POSITION = (1 << POSITION_BITS) - 1

MAX_ORDINAL = (1 << (63 - POSITION_BITS)) - 1

ORIGIN = pa.struct(
    [("file", pa.string()), ("position", pa.int64()), ("url", pa.string()), ("date", pa.string())]
)

SPAN = pa.struct([("start", pa.int64()), ("end", pa.int64())])
"""Bytes `[start, end)` of a text."""

REQUIRED = {
    "key": pa.int64(),
    "id": pa.string(),
    "text": pa.large_string(),
    "source": pa.string(),
    "origin": ORIGIN,
}


class Utf8(NamedTuple):
    """Texts as buffers: text i is `data[offsets[i]:offsets[i + 1]]`.

    Attributes:
        offsets: (N + 1,) int64 into data; does not start at zero for a slice. Read-only.
        data: (B,) uint8. Read-only.
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> bytes:
        """Return one text as bytes (a copy)."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of each text, (N,)."""
        return np.diff(self.offsets)


def utf8(array: pa.Array) -> Utf8:
    """View a large_string or large_binary array without nulls; slices are fine."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return Utf8(frozen(np.zeros(1, np.int64)), frozen(np.empty(0, np.uint8)))
    bounds = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return Utf8(frozen(bounds), frozen(content))


def large_strings(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], is_null: NDArray[np.bool_] | None = None
) -> pa.LargeStringArray:
    """Wrap buffers as a large_string array without copying; the bytes must be valid UTF-8."""
    valid = pa.array(~is_null).buffers()[1] if is_null is not None and is_null.any() else None
    buffers = pa.py_buffer(offsets), pa.py_buffer(data[: offsets[-1]])
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers, valid)


def span_lists(
    rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64], num_rows: int
) -> pa.ListArray:
    """Return the spans of each of `num_rows` texts as lists; spans are sorted by row."""
    bounds = np.searchsorted(rows, np.arange(num_rows + 1)).astype(np.int32)
    pairs = pa.StructArray.from_arrays([pa.array(starts), pa.array(ends)], fields=list(SPAN))
    return pa.ListArray.from_arrays(pa.array(bounds), pairs)


class ByteSpans(NamedTuple):
    """Byte spans of texts, sorted and disjoint: text, and bytes from its beginning; all (S,)."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def empty(cls) -> ByteSpans:
        return cls(*(np.empty(0, np.int64) for _ in range(3)))

    def take(self, mask: NDArray[np.bool_]) -> ByteSpans:
        """Return the spans of `mask`, (S,)."""
        return ByteSpans(*(column[mask] for column in self))


def list_spans(lists: pa.ListArray) -> ByteSpans:
    """Return the spans of lists without nulls, as `span_lists` takes them."""
    pairs = lists.flatten()
    bounds = lists.offsets.to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lists)), np.diff(bounds))
    return ByteSpans(rows, numbers(pairs.field("start")), numbers(pairs.field("end")))


def numbers(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """View a fixed-width numeric or boolean column without nulls as a NumPy array."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    view: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return view


def document_schema(
    declared: Mapping[str, pa.DataType], annotations: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Return the schema of a document shard: required, declared, `extra`, then annotations."""
    columns = {**REQUIRED, **declared, "extra": pa.string(), **annotations}
    return pa.schema(list(columns.items()))


def make_keys(ordinal: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys of documents at `positions` of the file with this ordinal."""
    return np.int64(ordinal << POSITION_BITS) | positions.astype(np.int64)


def split_key(key: int) -> tuple[int, int]:
    """Return (file ordinal, position) of a key."""
    return key >> POSITION_BITS, key & MAX_POSITION


def without_surrogates(text: str) -> str:
    """Return text with U+FFFD for lone surrogates, which no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
