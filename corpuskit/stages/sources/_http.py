"""HTTP responses as archives keep them: as they came, or decoded by the crawler."""

from __future__ import annotations

import importlib
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from corpuskit.stages.sources._warc import parse_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})")
_BLANK = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:+-]{1,40})", re.IGNORECASE)

MAX_CODINGS = 4


class Response(NamedTuple):
    """Status code, header fields (lower-case names) and body of a response."""

    status: int
    fields: Mapping[str, str]
    body: bytes


class TooMuchError(Exception):
    """A body holds more than it may."""


class BrokenBodyError(Exception):
    """A body cannot be decoded; the message says why."""


def parse_response(block: bytes) -> Response | None:
    """Take a response apart; None if it is none. The body stays encoded."""
    found = _STATUS.match(block)
    if found is None:
        return None
    end = _BLANK.search(block)
    header, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    return Response(int(found[1]), parse_fields(header), body)


def decode_body(response: Response, most: int) -> bytes:
    """Return the body without transfer and content encodings.

    Many crawlers decode bodies and keep the header that says otherwise, so a body that does not
    look encoded is taken as it stands.

    Raises:
        TooMuchError: it has more than `most` bytes.
        BrokenBodyError: it begins as the encoding does, but cannot be decoded.
    """
    body = response.body
    if "chunked" in response.fields.get("transfer-encoding", "").lower():
        body = _unchunk(body)
    codings = re.findall(r"[\w-]+", response.fields.get("content-encoding", "").lower())
    for coding in reversed(codings[:MAX_CODINGS]):
        body = _decode(body, coding, most)
    if len(body) > most:
        raise TooMuchError
    return body


def media_type(value: str) -> str:
    """Return the type of a Content-Type field, without parameters, in lower case."""
    return value.partition(";")[0].strip().lower()


def charset(value: str) -> str:
    """Return the charset of a Content-Type field, or the empty string."""
    found = _CHARSET.search(value)
    return found[1] if found else ""


def _unchunk(body: bytes) -> bytes:
    """Join chunks; a body that is not in chunks, or in a broken one from there on, stays."""
    pieces, at = [], 0
    while found := _CHUNK.match(body, at):
        size = int(found[1], 16)
        at = found.end() + size
        pieces.append(body[found.end() : at])
        if size == 0:
            return b"".join(pieces)
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0
    return b"".join([*pieces, body[at:]])


def _decode(body: bytes, coding: str, most: int) -> bytes:
    if coding in {"gzip", "x-gzip"} and body.startswith(b"\x1f\x8b"):
        return _inflate(body, 31, most)
    if coding == "deflate" and body[:1] == b"\x78" and int.from_bytes(body[:2], "big") % 31 == 0:
        return _inflate(body, 15, most)
    if coding == "deflate" and _is_binary(body):
        return _inflate(body, -15, most)
    if coding == "zstd" and body.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(body, most)
    if coding == "br" and _is_binary(body):
        return _unbrotli(body, most)
    return body


def _is_binary(body: bytes) -> bool:
    """Return whether a body cannot be markup: it has control characters at its beginning."""
    return re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", body[:256]) is not None


def _inflate(body: bytes, window: int, most: int) -> bytes:
    """Decompress; what is cut short gives what is there, as browsers show it."""
    decoder = zlib.decompressobj(window)
    try:
        content = decoder.decompress(body, most + 1)
    except zlib.error as error:
        raise BrokenBodyError(str(error)) from None
    if len(content) > most:
        raise TooMuchError
    return content


def _unzstd(body: bytes, most: int) -> bytes:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body)
    try:
        content = reader.read(most + 1)
    except zstandard.ZstdError as error:
        raise BrokenBodyError(str(error)) from None
    if len(content) > most:
        raise TooMuchError
    return content


def _unbrotli(body: bytes, most: int) -> bytes:
    try:
        brotli: Any = importlib.import_module("brotli")
    except ImportError:
        raise BrokenBodyError("brotli is not installed") from None
    decoder, pieces, size = brotli.Decompressor(), [], 0
    try:
        while size <= most:
            pieces.append(decoder.process(body, output_buffer_limit=1 << 20))
            size += len(pieces[-1])
            body = b""
            if decoder.is_finished() or not pieces[-1]:
                return b"".join(pieces)
    except (brotli.error, TypeError) as error:  # a release before 1.2 knows no limit
        raise BrokenBodyError(str(error)) from None
    raise TooMuchError
