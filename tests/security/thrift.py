"""Writes Parquet files that no library would write: footers and page headers that lie.

Thrift compact protocol; a structure is a list of (field number, kind, value).
"""

from __future__ import annotations

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
BYTE_ARRAY, PLAIN, UNCOMPRESSED = 6, 0, 0


def struct(*fields: tuple[int, int, object]) -> bytes:
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - last) << 4 | kind]) + _value(kind, value)
        last = number
    return out + b"\0"


def leaf(name: bytes) -> bytes:
    """A required string column."""
    return struct((1, I32, BYTE_ARRAY), (3, I32, 0), (4, BINARY, name), (6, I32, 0))


def folder(name: bytes, children: int) -> bytes:
    return struct((3, I32, 0), (4, BINARY, name), (5, I32, children))


def root(children: int) -> bytes:
    return struct((4, BINARY, b"schema"), (5, I32, children))


def page(content: bytes, values: int, claimed: int | None = None) -> bytes:
    """A plain data page; `claimed`: what its header says it has, decompressed."""
    described = struct((1, I32, values), (2, I32, PLAIN), (3, I32, 3), (4, I32, 3))
    size = len(content) if claimed is None else claimed
    return struct((1, I32, 0), (2, I32, size), (3, I32, len(content)), (5, STRUCT, described)) + (
        content
    )


def row_group(rows: int, begin: int, size: int, values: int | None = None) -> bytes:
    """A row group of one column, `text`, whose pages lie at `begin`."""
    meta = struct(
        (1, I32, BYTE_ARRAY), (2, LIST, (I32, [PLAIN])), (3, LIST, (BINARY, [b"text"])),
        (4, I32, UNCOMPRESSED), (5, I64, rows if values is None else values), (6, I64, size),
        (7, I64, size), (9, I64, begin),
    )  # fmt: skip
    chunk = struct((2, I64, begin), (3, STRUCT, meta))
    return struct((1, LIST, (STRUCT, [chunk])), (2, I64, size), (3, I64, rows))


def parquet(schema: list[bytes], rows: int, groups: list[bytes], body: bytes = b"") -> bytes:
    meta = struct(
        (1, I32, 2), (2, LIST, (STRUCT, schema)), (3, I64, rows), (4, LIST, (STRUCT, groups))
    )
    return b"PAR1" + body + meta + len(meta).to_bytes(4, "little") + b"PAR1"


def strings(*values: bytes) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _value(kind: int, value: object) -> bytes:
    if kind in {I32, I64}:
        assert isinstance(value, int)
        return _varint(2 * value if value >= 0 else -2 * value - 1)
    if kind == LIST:
        inner, items = value
        size = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xF0 | inner])
        size += _varint(len(items)) if len(items) >= 15 else b""
        return size + b"".join(_value(inner, item) for item in items)
    assert isinstance(value, bytes)
    return _varint(len(value)) + value if kind == BINARY else value
