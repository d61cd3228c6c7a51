"""HTTP responses in archives: as they were sent, or decoded by the crawler."""

from __future__ import annotations

import importlib
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from corpuskit.stages.sources._web.archive import HEADER_BYTES, parse_fields

if TYPE_CHECKING:
    from collections.abc import Mapping


_STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})")
_BLANK = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:+-]{1,40})", re.IGNORECASE)

MAX_CODINGS = 4

GZIP = b"\x1f\x8b"

_GZIP_DEFLATE = GZIP + b"\x08"

MAGIC: Mapping[str, bytes | tuple[bytes, ...]] = {
    "PDF": b"%PDF-",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "JPEG": b"\xff\xd8\xff",
    "GIF": (b"GIF87a", b"GIF89a"),
    "zip": b"PK\x03\x04",
    "gzip": _GZIP_DEFLATE,
}
"""Kind of file -> its first bytes; servers send such files as pages."""


class Response(NamedTuple):
    """Status code, header fields (lower-case names) and body of a response."""

    status: int
    fields: Mapping[str, str]
    body: bytes


class TooMuchError(Exception):
    """A decoded body is larger than allowed."""


class BrokenBodyError(Exception):
    """A body cannot be decoded; the message says why."""


def parse_response(block: bytes) -> Response | None:
    """Parse a response; None if it is none, or has too long a header.

    The body stays encoded.
    """
    status_line = _STATUS.match(block)
    if status_line is None:
        return None
    end = _BLANK.search(block, 0, HEADER_BYTES)
    if end is None and len(block) > HEADER_BYTES:
        return None
    header, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    return Response(int(status_line[1]), parse_fields(header), body)


def decode_body(response: Response, max_bytes: int) -> bytes:
    """Return the body without transfer and content encodings.

    Many crawlers decode bodies and keep the header that says otherwise, so a body that does not
    look encoded is taken unchanged. Others leave the header out: gzip is decoded once without.

    Raises:
        TooMuchError: it has more than `max_bytes` bytes.
        BrokenBodyError: it begins as the encoding does, but cannot be decoded.
    """
    body = response.body
    if "chunked" in response.fields.get("transfer-encoding", "").lower():
        body = _unchunk(body)
    codings = re.findall(r"[\w-]+", response.fields.get("content-encoding", "").lower())
    for coding in reversed(codings[:MAX_CODINGS]):
        body = _decode(body, coding, max_bytes)
    if not codings and body.startswith(_GZIP_DEFLATE):
        body = _inflate_members(body, max_bytes)
    if len(body) > max_bytes:
        raise TooMuchError
    return body


def media_type(value: str) -> str:
    """Return the type of a Content-Type field, without parameters, in lower case."""
    return value.partition(";")[0].strip().lower()


def binary_kind(body: bytes) -> str:
    """Return the kind of a binary file by its first bytes; empty if it may be text."""
    return next((kind for kind, start in MAGIC.items() if body.startswith(start)), "")


def charset(value: str) -> str:
    """Return the charset of a Content-Type field, or an empty string."""
    match = _CHARSET.search(value)
    return match[1] if match else ""


def _unchunk(body: bytes) -> bytes:
    """Join chunks; what is not in chunks, or follows a broken one, is kept unchanged."""
    pieces, pos = [], 0
    while match := _CHUNK.match(body, pos):
        size = int(match[1], 16)
        pos = match.end() + size
        pieces.append(body[match.end() : pos])
        if size == 0:
            return b"".join(pieces)
        pos += 2 if body[pos : pos + 2] == b"\r\n" else 1 if body[pos : pos + 1] == b"\n" else 0
    return b"".join([*pieces, body[pos:]])


def _decode(body: bytes, coding: str, max_bytes: int) -> bytes:
    if coding in {"gzip", "x-gzip"} and body.startswith(GZIP):
        return _inflate_members(body, max_bytes)
    if coding == "deflate" and body[:1] == b"\x78" and int.from_bytes(body[:2], "big") % 31 == 0:
        return _inflate(body, 15, max_bytes)
    if coding == "deflate" and _is_binary(body):
        return _inflate(body, -15, max_bytes)
    if coding == "zstd" and body.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(body, max_bytes)
    if coding == "br" and _is_binary(body):
        return _unbrotli(body, max_bytes)
    return body


def _is_binary(body: bytes) -> bool:
    """Return whether a body has control characters at its beginning, as markup never has."""
    return re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", body[:256]) is not None


def _inflate(body: bytes, window: int, max_bytes: int) -> bytes:
    """Decompress; of a body that is cut short, what there is of it, as browsers do."""
    decoder = zlib.decompressobj(window)
    try:
        content = decoder.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BrokenBodyError(str(error)) from None
    if len(content) > max_bytes:
        raise TooMuchError
    return content


def _inflate_members(body: bytes, max_bytes: int) -> bytes:
    """Decompress all gzip members; other bytes after them are left out."""
    pieces: list[bytes] = []
    size = pos = 0
    while body.startswith(GZIP, pos):
        # zlib copies what it is given beyond the end of a member; doubling steps keep that small.
        decoder, step = zlib.decompressobj(31), 1 << 10
        while not decoder.eof and pos < len(body):
            chunk = body[pos : pos + step]
            try:
                pieces.append(decoder.decompress(chunk, max_bytes + 1 - size))
            except zlib.error as error:
                raise BrokenBodyError(str(error)) from None
            size += len(pieces[-1])
            if size > max_bytes:
                raise TooMuchError
            pos += len(chunk) - len(decoder.unused_data)
            step = min(2 * step, 1 << 20)
    return b"".join(pieces)


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    from corpuskit.formats.zstd import zstd

    content = b""
    try:
        while body:
            decoder = zstd.ZstdDecompressor()
            content += decoder.decompress(body, max_bytes + 1 - len(content))
            if len(content) > max_bytes:
                raise TooMuchError
            body = decoder.unused_data
    except zstd.ZstdError as error:
        raise BrokenBodyError(str(error)) from None
    return content


def _unbrotli(body: bytes, max_bytes: int) -> bytes:
    try:
        brotli: Any = importlib.import_module("brotli")
    except ImportError:
        raise BrokenBodyError("brotli is not installed") from None
    decoder, pieces, size = brotli.Decompressor(), [], 0
    try:
        while size <= max_bytes:
            pieces.append(decoder.process(body, output_buffer_limit=1 << 20))
            size += len(pieces[-1])
            body = b""
            if decoder.is_finished() or not pieces[-1]:
                return b"".join(pieces)
    except (brotli.error, TypeError) as error:  # a release before 1.2 knows no limit
        raise BrokenBodyError(str(error)) from None
    raise TooMuchError
