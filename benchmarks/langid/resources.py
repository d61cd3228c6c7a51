"""Read the messages of Chromium's `.pak` files and of an Android package's `resources.arsc`.

Formats: chromium/src/ui/base/resource/data_pack.cc (version 5), and ResourceTypes.h of Android's
libandroidfw. Of the latter only what strings need.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRINGS, _PACKAGE, _TYPE = 0x0001, 0x0200, 0x0201  # kinds of chunks
_MESSAGES = frozenset(("string", "plurals", "array"))  # types of resources
_TEXT = 3  # type of a value that is a string
_NONE = 0xFFFFFFFF  # offset of an entry that a locale lacks


def pak(data: bytes) -> Iterator[str]:
    """Yield the texts of a `.pak` file.

    Raises:
        ValueError: it has another version of the format.
    """
    version, _, num, _ = struct.unpack_from("<IB3xHH", data)
    if version != 5:
        raise ValueError(f"a .pak file of version {version}. Only 5 can be read.")
    places = [struct.unpack_from("<HI", data, 12 + 6 * entry)[1] for entry in range(num + 1)]
    for start, end in itertools.pairwise(places):
        yield data[start:end].decode("utf-8", "ignore")


def arsc(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the locale and text of each message of a `resources.arsc`; the main locale is "en"."""
    texts: list[str] = []
    for kind, start, body, end in _chunks(data, 12, len(data)):
        if kind == _STRINGS:
            texts = _strings(data, start)
        elif kind == _PACKAGE:
            kinds: list[str] = []
            for inner, place, _, _ in _chunks(data, body, end):
                if inner == _STRINGS and not kinds:
                    kinds = _strings(data, place)
                elif inner == _TYPE and kinds[data[place + 8] - 1] in _MESSAGES:
                    locale = _locale(data[place + 20 :])
                    yield from ((locale, texts[number]) for number in _values(data, place))


def _chunks(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the kind of each chunk, where it begins, where its body begins, and its end."""
    while at < end:
        kind, head, size = struct.unpack_from("<HHI", data, at)
        yield kind, at, at + head, at + size
        at += size


def _strings(data: bytes, at: int) -> list[str]:
    head, _, num, _, flags, start = struct.unpack_from("<2x H I I I I I", data, at)
    is_utf8, out = flags & 0x100, []
    for offset in struct.unpack_from(f"<{num}I", data, at + head):
        place = at + start + offset
        if is_utf8:
            place += 2 if data[place] & 0x80 else 1  # its length in characters, then in bytes
            size, place = data[place], place + 1
            if size & 0x80:
                size, place = (size & 0x7F) << 8 | data[place], place + 1
            out.append(data[place : place + size].decode("utf-8", "ignore"))
        else:
            size, place = struct.unpack_from("<H", data, place)[0], place + 2
            out.append(data[place : place + 2 * size].decode("utf-16le", "ignore"))
    return out


def _locale(config: bytes) -> str:
    """Return `sr-Latn` or `pt-BR`; languages of three letters, which are packed, are none here."""
    fields = config[8:10], config[36:40], config[10:12]
    names = [field.strip(b"\0").decode("ascii", "ignore") for field in fields]
    return "-".join(filter(None, names)) if names[0] else "en"


def _values(data: bytes, at: int) -> Iterator[int]:
    """Yield the numbers of the strings that a locale's entries of one type have."""
    head, num, start = struct.unpack_from("<2xH8xII", data, at)
    for offset in struct.unpack_from(f"<{num}I", data, at + head):
        if offset == _NONE:
            continue
        place = at + start + offset
        is_map = struct.unpack_from("<2xH", data, place)[0] & 1
        many = struct.unpack_from("<I", data, place + 12)[0] if is_map else 1
        place += 20 if is_map else 8
        for value in range(many):
            kind, number = struct.unpack_from("<3xBI", data, place + 12 * value)
            if kind == _TEXT:
                yield number
