"""Changes bytes at random, as damage and malice do: the same for the same seed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

LIES = (0, 1, -1, 127, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 32, 10**12, (1 << 63) - 1)
"""Numbers where sizes stand."""

_DIGITS = re.compile(rb"\d+")


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return content that differs in one to four places."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(changed, rng)
    return bytes(changed)


ODD = (None, True, -1, 0.5, 1 << 40, "", "\ud800", "\u0000", [], {}, [[]], "x" * 10_000)
"""Values where others are expected."""


DEEP = "nested as deep as is chosen later"


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Return JSON that differs in one to four values, names or lists."""
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        node = tree
        while True:
            if not isinstance(node, dict | list) or not node:
                break
            places = list(node) if isinstance(node, dict) else range(len(node))
            place = rng.choice(places)
            if not isinstance(node[place], dict | list) or not node[place] or rng.random() < 0.3:
                _change_value(node, place, rng)
                break
            node = node[place]
    depth = rng.choice((10, 1000, 200_000))
    return json.dumps(tree).replace(f'"{DEEP}"', "[" * depth + "]" * depth).encode()


def _change_value(node: Any, place: Any, rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        del node[place]
    elif kind == 1:
        node[place] = rng.choice(LIES)
    elif kind == 2 and isinstance(node[place], list):
        node[place] = node[place] * rng.choice((2, 100))
    elif kind == 3:
        node[place] = DEEP
    else:
        node[place] = rng.choice(ODD)


def _change(content: bytearray, rng: random.Random) -> None:
    """Make one change."""
    size = len(content)
    begin = rng.randrange(max(size, 1))
    if rng.random() < 0.3:  # headers and footers
        begin = min(size, rng.randrange(64)) if rng.random() < 0.5 else max(0, size - begin % 64)
    length = rng.choice((1, 2, 7, 64, 1000, size // 4))
    piece = bytes(content[begin : begin + length])
    kind = rng.randrange(9)
    if kind == 0 and begin < size:
        content[begin] ^= 1 << rng.randrange(8)
    elif kind == 1:
        content[begin : begin + 1] = bytes([rng.randrange(256)])
    elif kind == 2:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice(LIES) & ((1 << (8 * width)) - 1)
        content[begin : begin + width] = number.to_bytes(width, rng.choice(("little", "big")))
    elif kind == 3:
        del content[begin : begin + length]
    elif kind == 4:
        content[begin:begin] = piece * rng.choice((1, 2, 50))
    elif kind == 5:
        content[begin : begin + length] = rng.randbytes(min(length, 64))
    elif kind == 6:
        del content[begin:]
    elif kind == 7:
        other = rng.randrange(max(size, 1))
        content[other : other + len(piece)] = piece
    else:
        _lie(content, begin, rng)


def _lie(content: bytearray, begin: int, rng: random.Random) -> None:
    """Change a number that stands in digits."""
    numbers = list(_DIGITS.finditer(content, begin, begin + 5000))
    if numbers:
        match = rng.choice(numbers)
        content[match.start() : match.end()] = str(rng.choice(LIES)).encode()
