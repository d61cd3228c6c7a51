"""Texts for people: spans marked, personal data masked, what is too long left out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Kind = Literal["", "cut", "replace", "drop", "gap"]

MARGIN_BYTES = 300  # text around a marked span where the whole does not fit


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """A text in pieces.

    Attributes:
        pieces: (kind, text): "" is plain, `cut`, `replace` and `drop` mark a span; or ("gap",
            bytes): the number of bytes left out.
        size_bytes: of the whole text.
    """

    pieces: tuple[tuple[Kind, str | int], ...]
    size_bytes: int

    @property
    def shown_bytes(self) -> int:
        """Bytes of text in it."""
        return sum(len(text.encode()) for _, text in self.pieces if isinstance(text, str))


Segments = list[tuple[Kind, str]]


def segments(text: str, spans: Sequence[tuple[int, int]], kind: Kind) -> Segments:
    """Return a text split at spans of bytes, whose ends move outwards to whole characters.

    Spans outside of the text are left out; those that meet become one.
    """
    content = text.encode()
    pieces: Segments = []
    offset = 0
    for start, end in _united(content, spans):
        if start > offset:
            pieces.append(("", content[offset:start].decode()))
        pieces.append((kind, content[start:end].decode()))
        offset = end
    if offset < len(content):
        pieces.append(("", content[offset:].decode()))
    return pieces


def masked(texts: Iterable[Segments]) -> list[Segments]:
    """Return segments with personal data in them masked, as the ledger does in its samples.

    Marked spans stay marked: texts are looked through piece by piece.
    """
    from corpuskit.stages.rewriters.pii import mask_texts

    all_segments = list(texts)
    pieces = pa.array([piece for text in all_segments for _, piece in text], pa.large_string())
    safe = iter(mask_texts(pieces).to_pylist() if len(pieces) else [])
    return [[(kind, next(safe)) for kind, _ in segments] for segments in all_segments]


def shortened(parts: Segments, max_bytes: int) -> Excerpt:
    """Return segments in at most about `max_bytes`: the beginning, or what is around the spans."""
    size = sum(len(text.encode()) for _, text in parts)
    if size <= max_bytes:
        return Excerpt(tuple(parts), size)
    if all(kind == "" for kind, _ in parts):
        pieces: list[tuple[Kind, str | int]] = []
        _take(pieces, "", "".join(text for _, text in parts), max_bytes, 0)
        return Excerpt(tuple(pieces), size)
    return Excerpt(_around(parts, max_bytes), size)


def _around(parts: Segments, max_bytes: int) -> tuple[tuple[Kind, str | int], ...]:
    """Return marked spans with some text around each, as many as there is room for."""
    max_span = max(max_bytes * 2 // 3, 1)
    margin = min(MARGIN_BYTES, max_bytes // 6)
    included: set[int] = set()
    bytes_left = max_bytes
    for index, (kind, text) in enumerate(parts):
        if kind:
            bytes_left -= min(len(text.encode()), max_span) + 2 * margin
            if bytes_left < 0 and included:
                break
            included.add(index)
    pieces: list[tuple[Kind, str | int]] = []
    for index, (kind, text) in enumerate(parts):
        if not kind:
            head, tail = (margin if i in included else 0 for i in (index - 1, index + 1))
            _take(pieces, kind, text, head, tail)
        elif index in included:
            _take(pieces, kind, text, max_span - max_span // 3, max_span // 3)
        else:
            _skip(pieces, len(text.encode()))
    return tuple(pieces)


def _take(
    pieces: list[tuple[Kind, str | int]], kind: Kind, text: str, head: int, tail: int
) -> None:
    """Append beginning and end of a text, with a gap if that is not all."""
    content = text.encode()
    if len(content) <= head + tail:
        pieces.append((kind, text))
        return
    first = content[: max(head, 0)].decode(errors="ignore")
    last = content[len(content) - tail :].decode(errors="ignore") if tail > 0 else ""
    if first:
        pieces.append((kind, first))
    num_bytes = len(first.encode()) + len(last.encode())
    _skip(pieces, len(content) - num_bytes)
    if last:
        pieces.append((kind, last))


def _skip(pieces: list[tuple[Kind, str | int]], size: int) -> None:
    if size <= 0:
        return
    if pieces and pieces[-1][0] == "gap":
        size += int(pieces.pop()[1])
    pieces.append(("gap", size))


def _united(content: bytes, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, on whole characters, disjoint, not empty."""
    united: list[tuple[int, int]] = []
    for begin, finish in sorted(spans):
        start, end = max(begin, 0), min(finish, len(content))
        if end <= start:
            continue
        while start > 0 and content[start] & 0xC0 == 0x80:
            start -= 1
        while end < len(content) and content[end] & 0xC0 == 0x80:
            end += 1
        if united and start <= united[-1][1]:
            before = united.pop()
            start, end = before[0], max(before[1], end)
        united.append((start, end))
    return united
