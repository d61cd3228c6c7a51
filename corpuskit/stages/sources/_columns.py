"""Which columns of the input become columns of documents, and of which type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator

from corpuskit.batch import REQUIRED

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
