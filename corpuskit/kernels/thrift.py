"""Reads page headers of Parquet files: structures of Thrift's compact protocol.

A file of a million row groups has four million of them. Source: Thrift compact protocol
specification; Apache Parquet format 2, parquet.thrift.
"""

from __future__ import annotations

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int64s
from corpuskit.kernels.jit import kernel

FIELDS = 9
"""One more than the largest number of a field of a page header that is read."""

MAX_DEPTH = 8
SHORT, STRANGE = 0, -1


@kernel
def read_header(data: Bytes, fields: Int64s) -> int:
    """Read a page header, a structure of Thrift's compact protocol: O(its bytes).

    Args:
        data: (B,) the header and what follows.
        fields: (FIELDS, FIELDS), filled with the integers of the header, -1 for missing ones:
            [0, f] is field f of the header, [f, g] field g of the structure in field f, and [f, 0]
            is 1 if that structure exists, else 0.

    Returns:
        Bytes of the header, SHORT if the data ends within it, STRANGE if it is no header.
    """
    fields[:] = -1
    fields[:, 0] = 0
    path = np.zeros(MAX_DEPTH + 1, np.int64)  # the current field of each open structure
    depth = pos = 0
    while pos < len(data):
        head = int(data[pos])
        pos += 1
        if head == 0:
            if depth == 0:
                return pos
            depth -= 1
            continue
        path[depth] += head >> 4
        if head >> 4 == 0:
            value, pos = _number(data, pos)
            path[depth] = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
        kind = head & 15
        if kind == 4 or kind == 5 or kind == 6:
            value, pos = _number(data, pos)
            if depth < 2 and 0 < path[0] < FIELDS and 0 < path[depth] < FIELDS:
                number = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
                fields[path[0] if depth else 0, path[depth]] = number
        elif kind == 8:
            value, pos = _number(data, pos)
            if pos >= 0:
                pos = len(data) + 1 if value > np.uint64(len(data)) else pos + np.int64(value)
        elif kind == 3 or kind == 7:
            pos += 1 if kind == 3 else 8
        elif kind == 12:
            if depth == MAX_DEPTH:
                return STRANGE
            if depth == 0 and 0 < path[0] < FIELDS:
                fields[path[0], 0] = 1
            depth += 1
            path[depth] = 0
        elif kind > 2:  # true and false are kinds of their own
            return STRANGE
        if pos < 0:
            return STRANGE
    return SHORT


@kernel
def _number(data: Bytes, pos: int) -> tuple[np.uint64, int]:
    """Return an integer of 7 bits a byte, and the position after it.

    The position is `len(data)` if the data ends within it, -1 if it has more than ten bytes.
    """
    value = np.uint64(0)
    for shift in range(0, 64, 7):
        if pos >= len(data):
            return value, len(data)
        byte = int(data[pos])
        pos += 1
        value |= np.uint64(byte & 127) << np.uint64(shift)
        if byte < 128:
            return value, pos
    return value, -1
