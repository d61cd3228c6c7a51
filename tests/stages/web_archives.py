"""Makes web archives for tests, and takes real ones apart by gzip members alone."""

from __future__ import annotations

import gzip
import re
import zlib

PAGE = (
    "<html><head><title>T</title></head><body><nav><a href=/>Home</a></nav>"
    "<article><p>{} The river bends twice before it reaches the old stone bridge.</p>"
    "<p>Nobody in the village remembers who built it, or when.</p></article></body></html>"
)


def record(kind: str, block: bytes, uri: str = "http://a.example/", **fields: str) -> bytes:
    """Return one WARC record; keyword arguments are fields, `_` standing for `-`."""
    head = {
        "WARC-Type": kind,
        "WARC-Target-URI": uri,
        "WARC-Date": "2024-05-18T01:58:10Z",
        "WARC-Record-ID": f"<urn:uuid:{zlib.crc32(block + uri.encode()):08x}>",
        "Content-Length": str(len(block)),
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + block + b"\r\n\r\n"


def http(
    body: bytes | str, status: str = "200 OK", kind: str = "text/html", **fields: str
) -> bytes:
    """Return an HTTP response."""
    content = body.encode() if isinstance(body, str) else body
    head = {"Content-Type": kind, **{n.replace("_", "-"): v for n, v in fields.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + content


def response(body: bytes | str, uri: str = "http://a.example/", **fields: str) -> bytes:
    """Return a response record of a page."""
    kind = "application/http; msgtype=response"
    return record("response", http(body, **fields), uri, Content_Type=kind)


def pages(num: int) -> list[bytes]:
    """Return response records of different pages."""
    return [response(PAGE.format(f"Page {i}."), f"http://a.example/{i}") for i in range(num)]


def members(records: list[bytes]) -> bytes:
    """Return records as gzip members, one each."""
    return b"".join(gzip.compress(one, mtime=0) for one in records)


def taken_apart(archive: bytes) -> list[tuple[str, int]]:
    """Return (type, HTTP status or 0) of each gzip member, by zlib and regular expressions."""
    found, at = [], 0
    while at < len(archive):
        decoder = zlib.decompressobj(31)
        content = decoder.decompress(archive[at:])
        at = len(archive) - len(decoder.unused_data)
        kind = re.search(rb"(?m)^WARC-Type: *(\S+)", content)
        status = re.search(rb"\r\n\r\nHTTP/\d\.\d (\d+)", content)
        found.append((kind[1].decode() if kind else "", int(status[1]) if status else 0))
    return found
