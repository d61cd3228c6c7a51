"""Which columns of the input become columns of documents, and of which type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator

from corpuskit.formats.batch import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

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


def arrow_types(columns: Mapping[str, TypeName]) -> dict[str, pa.DataType]:
    """Return the Arrow types of declared columns."""
    return {name: TYPES[kind] for name, kind in columns.items()}


def is_utf8(data: NDArray[np.uint8]) -> bool:
    """Return whether bytes are valid UTF-8; about 1 ns per 4 bytes of ASCII."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(np.ascontiguousarray(data)))
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_textual(kind: pa.DataType) -> bool:
    """Return whether a column of this Arrow type can hold text: strings, bytes, dictionaries."""
    return (kind.value_type if pa.types.is_dictionary(kind) else kind) in STRINGS + BYTES


def as_strings(column: pa.Array) -> tuple[pa.LargeStringArray, NDArray[np.bool_]]:
    """Return a textual column as large_string, and (N,) which rows are not UTF-8.

    Those rows are still in it: take them out before anything reads them.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    large = pa.large_string() if column.type in STRINGS else pa.large_binary()
    strings = column.cast(large).view(pa.large_string())
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        rows = strings.view(pa.large_binary()).to_pylist()
        return strings, np.array([row is not None and not _decodes(row) for row in rows])
    return strings, np.zeros(len(strings), np.bool_)


def _decodes(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
