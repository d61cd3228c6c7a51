"""Columns as numbers or strings: what annotators add, and what inputs declare; sets of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.errors import DataError, UsageError
from corpuskit.kernels.arrays import AnyArray, Bools, Float64s, Int64s
from corpuskit.stage import Known

_NAMES = frozenset({"text", "extra"})
"""Columns that never hold numbers, though strings may."""

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def check_numbers(known: Known, parameter: str, column: str) -> None:
    """Check that a column can be read as numbers.

    Raises:
        UsageError: it cannot, or none of its values is one.
    """
    kind = known.columns.get(column)
    if kind is not None and not _is_number(kind) and not _is_string(kind):
        raise UsageError(f"{parameter}: {_no_numbers(column, kind)}")
    values = known.values.get(column)
    if column in _NAMES or (values and not any(re.match(_NUMBER, value) for value in values)):
        raise UsageError(f"{parameter}: column {column!r} holds no numbers. Name one of numbers.")


def check_strings(known: Known, parameter: str, column: str) -> None:
    """Check that a column holds strings.

    Raises:
        UsageError: it does not.
    """
    kind = known.columns.get(column)
    if kind is not None and not _is_string(kind):
        raise UsageError(f"{parameter}: {_no_strings(column, kind)}")


def to_numbers(column: pa.Array, name: str) -> Float64s:
    """Return a column as float64, (N,); NaN if there is no value, or a string is no number.

    Raises:
        DataError: the column holds neither numbers nor strings.
    """
    if _is_string(column.type) and not pa.types.is_null(column.type):
        stripped = pc.utf8_trim_whitespace(column)
        is_number = pc.match_substring_regex(stripped, _NUMBER)
        column = pc.if_else(is_number, stripped, pa.scalar(None, column.type))
    elif not _is_number(column.type):
        raise DataError(_no_numbers(name, column.type))
    numbers = column.cast(pa.float64(), safe=False).fill_null(float("nan"))
    values: Float64s = numbers.to_numpy(zero_copy_only=False)
    return values


def to_strings(column: pa.Array, name: str) -> pa.Array:
    """Return a column of names as strings; nulls stay.

    Raises:
        DataError: the column holds no strings.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _is_string(kind):
        raise DataError(_no_strings(name, column.type))
    return column.cast(pa.string())


def rows_by_value(column: pa.Array) -> Iterator[tuple[str | None, Int64s]]:
    """Yield each value of a column of strings, null too, with its rows; ascending."""
    coded = column.dictionary_encode()
    numbers = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for number in np.unique(numbers).tolist():
        value = coded.dictionary[number].as_py() if number >= 0 else None
        yield value, np.flatnonzero(numbers == number)


def among(values: AnyArray, members: AnyArray) -> Bools:
    """Return which values occur in `members`, which is sorted; O(V log C)."""
    if len(members) == 0:
        return np.zeros(len(values), np.bool_)
    nearest = np.minimum(np.searchsorted(members, values), len(members) - 1)
    return members[nearest] == values  # type: ignore[no-any-return]


def _is_string(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def _no_numbers(name: str, kind: pa.DataType) -> str:
    return f"column {name!r} has type {kind} and holds no numbers. Name one of numbers."


def _no_strings(name: str, kind: pa.DataType) -> str:
    return f"column {name!r} has type {kind} and holds no strings. Name one of strings."
