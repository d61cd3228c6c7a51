"""Columns as numbers or names: what annotators add, and whatever inputs declare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def to_numbers(column: pa.Array, name: str) -> NDArray[np.float64]:
    """Return a column as float64, (N,); NaN where there is no value, or a string is no number.

    Raises:
        DataError: the column holds neither numbers nor strings.
    """
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        stripped = pc.utf8_trim_whitespace(column)
        is_number = pc.match_substring_regex(stripped, _NUMBER)
        column = pc.if_else(is_number, stripped, pa.scalar(None, column.type))
    elif not (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_boolean(column.type)
        or pa.types.is_null(column.type)
    ):
        raise DataError(
            f"column {name!r} has type {column.type}, which is no number. Name one of numbers."
        )
    numbers = column.cast(pa.float64(), safe=False).fill_null(float("nan"))
    values: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
    return values


def to_strings(column: pa.Array, name: str) -> pa.Array:
    """Return a column of names as strings; nulls stay.

    Raises:
        DataError: the column holds no strings.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"column {name!r} has type {column.type}, which holds no strings. Name one that does."
        )
    return column.cast(pa.string())
