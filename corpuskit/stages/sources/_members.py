"""JSON lines as columns: takes a block of lines apart and makes Arrow arrays of its members."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.stages.sources._columns import is_utf8
from corpuskit.stages.sources._json import BLANK, ODD, Taken, parse_lines, read_integers, unescape
from corpuskit.stages.sources._scan import BOOL, FLOAT, INTEGER, MISSING, NULL, STRING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.stages.sources._records import Block

INVALID = 3
"""State of a line that is not UTF-8, besides OK, BLANK and ODD (no JSON object)."""


class Members:
    """The wanted members of a block of N lines, K per line.

    Args:
        block: the lines.
        names: of the wanted members, each once.
        with_extra: keep the other members as JSON.

    Attributes:
        states: (N,) uint8: OK, BLANK, ODD or INVALID.
        replaced: (N,) whether a lone surrogate was replaced in a string asked for so far.
    """

    def __init__(self, block: Block, names: Sequence[str], *, with_extra: bool) -> None:
        self._names = _packed([_dumps(name)[1:-1] for name in names])
        self._data, self._starts, self._ends = block.data, block.starts, block.ends.copy()
        self._with_extra = with_extra
        broken = _not_utf8(block)
        self._ends[broken] = self._starts[broken]
        self._parse()
        odd = np.flatnonzero(self.states == ODD)
        if len(odd):
            self._repair(odd, block)
        self.states[broken] = INVALID

    def _parse(self, *, is_plain: bool = False) -> None:
        num, width, size = len(self._starts), len(self._names[1]) - 1, len(self._data)
        self._taken = Taken(
            texts=np.empty(size, np.uint8),
            text_offsets=np.empty(num + 1, np.int64),
            replaced=np.empty(num, np.bool_),
            extra=np.empty(size if self._with_extra else 0, np.uint8),
            extra_offsets=np.empty(num + 1, np.int64),
            kinds=np.empty((num, width), np.uint8),
            spans=np.zeros((num, width, 2), np.int64),
        )
        self.states = parse_lines(
            self._data, self._starts, self._ends, *self._names, is_plain, self._taken
        )
        self.replaced = self._taken.replaced

    def _repair(self, odd: NDArray[np.int64], block: Block) -> None:
        """Let Python read what the kernel did not, write it plainly, and take that apart."""
        self._starts = self._starts.copy()
        pieces, size = [self._data], len(self._data)
        for row in odd.tolist():
            plain = _plain_json(block.row(row)) or b""
            pieces.append(np.frombuffer(plain, np.uint8))
            self._starts[row], self._ends[row] = size, size + len(plain)
            size += len(plain)
        self._data = np.concatenate(pieces)
        self._data.flags.writeable = False
        self._parse(is_plain=True)
        self.states[odd[self.states[odd] == BLANK]] = ODD

    def texts(self) -> pa.LargeStringArray:
        """Return the first member, unescaped; empty where it is no string."""
        return large_strings(self._taken.text_offsets, self._taken.texts)

    def kinds(self, slot: int) -> NDArray[np.uint8]:
        """Return the kinds of one member, (N,)."""
        return self._taken.kinds[:, slot].copy()

    def strings(self, slot: int, kinds: NDArray[np.uint8] | None = None) -> pa.LargeStringArray:
        """Return strings, and numbers as they are written; null for the rest.

        Args:
            slot: which member.
            kinds: (N,) its kinds, where the caller has overruled some.
        """
        kinds = self.kinds(slot) if kinds is None else kinds
        spans = self._spans(slot)
        has_value = (kinds == STRING) | (kinds == INTEGER) | (kinds == FLOAT)
        out = np.empty(int((spans[:, 1] - spans[:, 0])[has_value].sum()), np.uint8)
        offsets = np.empty(len(kinds) + 1, np.int64)
        self.replaced |= unescape(self._data, spans, kinds, out, offsets)
        return large_strings(offsets, out, ~has_value)

    def _spans(self, slot: int) -> NDArray[np.int64]:
        return np.ascontiguousarray(self._taken.spans[:, slot])

    def typed(self, slot: int, kind: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
        """Return a declared column and (N,) which of its values are of another type.

        A missing member and null are null; an integer is a float64, too.
        """
        kinds = self.kinds(slot)
        is_null = (kinds == NULL) | (kinds == MISSING)
        if pa.types.is_integer(kind):
            values = np.empty(len(kinds), np.int64)
            is_bad = read_integers(self._data, self._spans(slot), kinds, values)
            return pa.array(values, kind, mask=is_null), is_bad
        if pa.types.is_boolean(kind):
            firsts = np.where(kinds == BOOL, self._spans(slot)[:, 0], 0)
            is_true = (self._data[firsts] if len(self._data) else firsts) == ord("t")
            return pa.array(is_true, kind, mask=kinds != BOOL), (kinds != BOOL) & ~is_null
        fitting = (STRING,) if pa.types.is_string(kind) else (INTEGER, FLOAT)
        fits = np.isin(kinds, fitting)
        kinds[~fits] = NULL
        return self.strings(slot, kinds).cast(kind), ~fits & ~is_null

    def extra(self) -> pa.Array:
        """Return the members not wanted as JSON objects, null where a line has none."""
        offsets = self._taken.extra_offsets
        return large_strings(offsets, self._taken.extra, np.diff(offsets) == 0).cast(pa.string())


def large_strings(
    offsets: NDArray[np.int64], content: NDArray[np.uint8], is_null: NDArray[np.bool_] | None = None
) -> pa.LargeStringArray:
    """Wrap buffers as strings without copying; the bytes must be valid UTF-8."""
    valid = pa.array(~is_null).buffers()[1] if is_null is not None and is_null.any() else None
    places = pa.py_buffer(offsets), pa.py_buffer(content[: offsets[-1]])
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *places, valid)


def _packed(names: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    sizes = [0, *(len(name) for name in names)]
    return np.frombuffer(b"".join(names), np.uint8), np.cumsum(np.array(sizes, np.int64))


def _not_utf8(block: Block) -> NDArray[np.int64]:
    """Return the rows that are not UTF-8; line feeds end sequences, so one test serves all rows."""
    if is_utf8(block.data):
        return np.empty(0, np.int64)
    rows = [
        row for row in range(len(block)) if not is_utf8(np.frombuffer(block.row(row), np.uint8))
    ]
    return np.array(rows, np.int64)


def _plain_json(line: bytes) -> bytes | None:
    """Return an object as plain JSON, None if the line is no JSON object.

    The last of equal names wins. NaN, infinities and numbers beyond float64 become null.
    """
    try:
        value = json.loads(
            line.decode().removeprefix("\ufeff"),
            parse_constant=lambda name: None,
            parse_float=_finite,
        )
        return _dumps(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _dumps(value: object) -> bytes:
    """Write JSON with no escapes but the necessary ones: lone surrogates can be nothing else."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None
