"""Arrow columns as one column of JSON objects; a Python object per value only for nested types."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.formats.batch import large_strings, utf8
from corpuskit.kernels.arrays import Bytes, Int64s
from corpuskit.kernels.jit import kernel
from corpuskit.stages.sources._json import PLAIN

HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def json_objects(columns: Mapping[str, pa.Array], num_docs: int) -> pa.Array:
    """Return one JSON object per row of the columns that are not null, null where all are.

    Numbers are written as Arrow writes them; NaN and infinities count as null. Bytes that are not
    UTF-8 become base64. Every type of Arrow is written in some form: no parameter names these
    columns, so nothing in them may end a run.
    """
    members = [
        _join(_large("," + json.dumps(name, ensure_ascii=False) + ":"), _json_values(column))
        for name, column in columns.items()
    ]
    if not members:
        return pa.nulls(num_docs, pa.string())
    # null_handling="skip" would lose the rows that are null in all columns (Arrow 26.0.1).
    inside = pc.binary_join_element_wise(
        *members, _large(""), null_handling="replace", null_replacement=""
    )
    braced = pc.binary_replace_slice(inside, start=0, stop=1, replacement="{")
    is_empty = pc.equal(inside, _large(""))
    return pc.if_else(is_empty, _large(None), _join(braced, _large("}"))).cast(pa.string())


def decoded_bytes(column: pa.Array) -> int:
    """Return the bytes of a column once dictionary indices are replaced by their values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        sizes = pc.binary_length(column.dictionary) if _is_binary(kind.value_type) else None
        if sizes is None:
            return len(column) * 16
        return int(pc.sum(sizes.take(column.indices).cast(pa.int64())).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(map(decoded_bytes, column.flatten()))
    if pa.types.is_map(kind):
        first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        pairs = (column.keys, column.items)
        return sum(decoded_bytes(array.slice(first, end - first)) for array in pairs)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return decoded_bytes(column.flatten())
    return int(column.nbytes)


def _is_binary(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _join(*columns: pa.Array | pa.Scalar) -> pa.Array:
    """Join element by element; null where a part is."""
    return pc.binary_join_element_wise(*columns, _large(""))


def _large(text: str | None) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _json_values(column: pa.Array) -> pa.Array:
    """Return JSON text (large_string) of each value, null for null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false").cast(pa.large_string())
    if pa.types.is_integer(kind):
        return column.cast(pa.large_string())
    if pa.types.is_floating(kind):
        values = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        return pc.if_else(pc.is_finite(values), values.cast(pa.large_string()), None)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return _quoted(in_known_zone(column).cast(pa.large_string()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        strings = column.cast(pa.large_string())
        try:
            strings.validate(full=True)
        except pa.ArrowInvalid:
            return _json_objects_of(strings.cast(pa.large_binary()))
        return _quoted(strings)
    return _json_objects_of(column)


def _quoted(strings: pa.Array) -> pa.Array:
    non_null = strings.fill_null("") if strings.null_count else strings
    quoted = large_strings(*quote(*utf8(non_null)))
    return pc.if_else(strings.is_valid(), quoted, None) if strings.null_count else quoted


def in_known_zone(column: pa.Array) -> pa.Array:
    """Return times in UTC if this machine does not know their zone; all else unchanged."""
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return column
    try:
        pa.scalar(0, kind).cast(pa.string())
    except (pa.ArrowException, ValueError):
        return column.view(pa.int64()).view(pa.timestamp(kind.unit, "UTC"))
    return column


def _json_objects_of(column: pa.Array) -> pa.Array:
    if not _lacks_python_type(column.type):
        try:
            return _dumped(column.to_pylist())
        except (pa.ArrowException, ValueError, OverflowError, LookupError):
            pass  # a value that Python cannot hold: a date after the year 9999
    return _dumped([_value(scalar) for scalar in column])


def _dumped(values: list[Any]) -> pa.Array:
    texts = [None if value is None else _dumps(value) for value in values]
    return pa.array(texts, pa.large_string())


def _lacks_python_type(kind: pa.DataType) -> bool:
    """Return whether Python lacks the type: what `as_py` returns then depends on pandas."""
    if pa.types.is_dictionary(kind):
        return _lacks_python_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _lacks_python_type(kind.storage_type)
    if pa.types.is_nested(kind):
        return any(_lacks_python_type(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns"


def _value(scalar: pa.Scalar) -> Any:
    """Return a value of any type as JSON has it; as `as_py` does where Python has the type."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return _value(scalar.value)
    if pa.types.is_dictionary(kind):
        return _value(scalar.value)
    if pa.types.is_map(kind):
        return [[_value(pair[0]), _value(pair[1])] for pair in scalar.values]
    if pa.types.is_struct(kind):
        names = distinct([field.name for field in kind])
        return {name: _value(scalar[index]) for index, name in enumerate(names)}
    if pa.types.is_nested(kind):
        return [_value(inner) for inner in scalar.values]
    return _leaf(scalar)


def _leaf(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return scalar.as_buffer().to_pybytes()
    if getattr(kind, "unit", "") != "ns":
        try:
            return _plain(scalar.as_py())
        except (pa.ArrowException, ValueError, OverflowError, LookupError):
            pass
    if pa.types.is_duration(kind):
        return f"{scalar.value} {kind.unit}"
    return in_known_zone(pa.array([scalar])).cast(pa.string())[0].as_py()


def distinct(names: list[str]) -> list[str]:
    """Return names without duplicates: the second `a` is `a_2`."""
    unique: dict[str, None] = {}
    for name in names:
        number = 2
        candidate = name
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique[candidate] = None
    return list(unique)


def _dumps(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | dt.timedelta | uuid.UUID):
        return str(value)
    return value


@kernel
def quote(offsets: Int64s, data: Bytes) -> tuple[Int64s, Bytes]:
    """Write texts as JSON strings: O(B), allocates what it returns, offsets (N + 1,) and bytes."""
    num = len(offsets) - 1
    out_offsets = np.zeros(num + 1, np.int64)
    for row in range(num):
        size = 2
        for pos in range(offsets[row], offsets[row + 1]):
            size += 1 if PLAIN[data[pos]] else (6 if data[pos] < 32 else 2)
        out_offsets[row + 1] = out_offsets[row] + size
    out = np.empty(out_offsets[num], np.uint8)
    for row in range(num):
        used = out_offsets[row]
        out[used] = 34
        used += 1
        for pos in range(offsets[row], offsets[row + 1]):
            byte = data[pos]
            if not PLAIN[byte]:
                out[used] = 92
                used += 1
            if byte < 32:
                out[used], out[used + 1], out[used + 2] = 117, 48, 48
                out[used + 3], out[used + 4] = HEX[byte >> 4], HEX[byte & 15]
                used += 5
            else:
                out[used] = byte
                used += 1
        out[used] = 34
    return out_offsets, out
