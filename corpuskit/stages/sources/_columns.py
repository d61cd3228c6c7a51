"""What sources of rows share: parameters that name columns, types of columns, broken rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field

from corpuskit.formats.batch import REQUIRED
from corpuskit.kernels.arrays import Bools, Bytes, Int64s
from corpuskit.stage import ORIGINS, InputFile, Slice, Source, SourceBatch
from corpuskit.stages.sources._stream import MAX_EXPANSION

TypeName = Literal["string", "int64", "float64", "bool"]

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}

STRINGS = (pa.string(), pa.large_string(), pa.string_view())
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


def _check_names(columns: dict[str, TypeName]) -> dict[str, TypeName]:
    for name in columns:
        if name in REQUIRED or name == "extra":
            raise ValueError(
                f"must not declare {name!r}: every document has a column of that name. "
                "id_column, url_column and date_column say where its values come from"
            )
        if "." in name or not name:
            raise ValueError(
                f"must not declare {name!r}: names with a full stop belong to annotations"
            )
    return columns


DeclaredColumns = Annotated[dict[str, TypeName], AfterValidator(_check_names)]
"""Type of the parameter `columns`."""


class ColumnSource(Source):
    """Base of sources whose input has named columns, or JSON objects with named members.

    Source: none.
    """

    text_column: str = "text"
    """Column that holds the text; of JSON lines, the member."""
    id_column: str | None = None
    """Column that holds the document's id; file and row, or byte offset, when absent."""
    url_column: str | None = None
    """Column that holds the URL."""
    date_column: str | None = None
    """Column that holds the date."""
    columns: DeclaredColumns = Field(default_factory=dict)
    """Columns that are kept: name to string, int64, float64 or bool."""
    extra: bool = True
    """Keep all other columns as one JSON object in the column `extra`."""
    max_expansion: int = Field(MAX_EXPANSION, ge=1)
    """A file is refused that holds more than 256 MiB and this many times its compressed size."""

    @property
    def labels(self) -> dict[str, str | None]:
        """Return parameter -> column of id, URL and date, in this order."""
        return {
            "id_column": self.id_column,
            "url_column": self.url_column,
            "date_column": self.date_column,
        }

    def declared(self) -> Mapping[str, pa.DataType]:
        return {name: TYPES[kind] for name, kind in self.columns.items()}

    def origins(self) -> tuple[str, ...]:
        return tuple(name for name in ORIGINS if self.labels[f"{name}_column"] is not None)

    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        return self.read_keyed([(dataclasses.replace(file, ordinal=0), piece)], max_document_bytes)


def is_utf8(data: Bytes) -> bool:
    """Return whether bytes are valid UTF-8; about 1 ns per 4 bytes of ASCII."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    strings = pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(np.ascontiguousarray(data)))
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def not_utf8(data: Bytes, starts: Int64s, ends: Int64s) -> Bools:
    """Return (N,) which records `data[starts[i]:ends[i]]`, with line ends between, are not UTF-8.

    A line feed ends every sequence of bytes, so one test of all data mostly serves all records.
    """
    if is_utf8(data):
        return np.zeros(len(starts), np.bool_)
    return np.array([not is_utf8(data[a:b]) for a, b in zip(starts, ends, strict=True)], np.bool_)


def is_textual(kind: pa.DataType) -> bool:
    """Return whether a column of this Arrow type can hold text: strings, bytes, dictionaries."""
    return (kind.value_type if pa.types.is_dictionary(kind) else kind) in STRINGS + BYTES


def as_strings(column: pa.Array) -> tuple[pa.LargeStringArray, Bools]:
    """Return a textual column as large_string, and (N,) which rows are not UTF-8.

    Broken rows are still in the column, and reading them raises: drop them first.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    large = pa.large_string() if column.type in STRINGS else pa.large_binary()
    strings = column.cast(large).view(pa.large_string())
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        rows = strings.view(pa.large_binary()).to_pylist()
        broken = [row is not None and not is_utf8(np.frombuffer(row, np.uint8)) for row in rows]
        return strings, np.array(broken)
    return strings, np.zeros(len(strings), np.bool_)


# ---------------------------------------------------------------- broken rules


class BrokenRules:
    """The first rule that each of N records breaks.

    Args:
        rules: their names.
        num: records, N.

    Attributes:
        codes: (N,) uint8: 0 = none, k = `rules[k - 1]`, NOTHING = not a document at all.
    """

    NOTHING = 255

    def __init__(self, rules: tuple[str, ...], num: int) -> None:
        self.rules = rules
        self.codes: Bytes = np.zeros(num, np.uint8)

    def mark(self, rule: str | None, broken: Bools) -> None:
        """Note that some records break a rule, or (None) that they are no documents."""
        code = self.NOTHING if rule is None else self.rules.index(rule) + 1
        self.codes[broken & (self.codes == 0)] = code

    def rows(self) -> list[tuple[int, str]]:
        """Return (row, rule) of every record that is to be rejected."""
        rows = np.flatnonzero((self.codes != 0) & (self.codes != self.NOTHING))
        return [(row, self.rules[self.codes[row] - 1]) for row in rows.tolist()]


def pick(array: pa.Array | None, rows: pa.Array, num: int) -> pa.Array | None:
    """Return some rows of an array of `num` rows; the array itself, not copied, if that is all."""
    return array if array is None or len(rows) == num else array.take(rows)
