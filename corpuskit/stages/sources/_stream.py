"""Opens plain, gzip and zstd files as one stream of bytes, in bounded memory."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from corpuskit.errors import DataError
from corpuskit.formats.batch import POSITION_BITS
from corpuskit.storage import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase

    from corpuskit.stage import InputFile, Slice


READ_BYTES = 1 << 18
OUTPUT_BYTES = 1 << 20
"""A decoder returns at most this many bytes at a time, whatever the ratio."""

MAX_WINDOW_LOG = 31
"""`zstd --long=31`, as public forum dumps use it; zstd alone refuses more than 27, 128 MB."""

FREE_BYTES = 1 << 28
MAX_EXPANSION = 1000
"""A file may hold FREE_BYTES, or this many times its own size. JSON lines of text compress 4 to 20
times, logs that repeat themselves 100 times and more; gzip cannot reach 1,033, zstd 32,768."""

MAX_POSITION = 1 << POSITION_BITS
"""Where a document starts must fit into its key."""

MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
ENDINGS = {".gz": "gzip", ".zst": "zstd"}
UNSUPPORTED = {
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "lz4": b"\x04\x22\x4d\x18",
    "zip": b"PK\x03\x04",
}
SKIPPABLE = 0x184D2A50
HEAD_BYTES = 6


def compression(path: str) -> str:
    """Return `gzip`, `zstd` or, for a plain file, the empty string: by name, checked by content.

    Raises:
        DataError: name and content disagree, or the compression is not supported.
    """
    with open_input(path) as file:
        return compression_of(path, file.read(HEAD_BYTES))


def compression_of(path: str, head: bytes) -> str:
    """Do the same for a file that begins with `head`."""
    claim = ENDINGS.get(os.path.splitext(path)[1].lower(), "")
    if not head:
        return claim
    if claim and not (head.startswith(MAGIC[claim]) or (claim == "zstd" and _is_skippable(head))):
        raise DataError(
            f"{path}: the name says {claim}, but the file starts with {head!r}. Rename it."
        )
    if claim:
        return claim
    for kind, magic in MAGIC.items():
        if head.startswith(magic):
            ending = next(key for key, value in ENDINGS.items() if value == kind)
            raise DataError(
                f"{path}: {kind} data under another name. Rename it to end in {ending}."
            )
    for kind, magic in UNSUPPORTED.items():
        if head.startswith(magic):
            raise DataError(f"{path}: {kind} data is not supported. Compress it with zstd or gzip.")
    return ""


def refuse_no_bytes(path: str) -> None:
    """Refuse an empty file that is compressed by name; an empty plain file has no documents.

    Raises:
        DataError: gzip and zstd write a header even for no documents.
    """
    if kind := compression_of(path, b""):
        raise DataError(f"{path}: no whole {kind} file: it has 0 bytes. Fetch it again.")


class InputStream:
    """The decompressed bytes of one file.

    Args:
        path: the file.
        begin: where to start; plain files only.
        max_expansion: how many times its size a compressed file may hold.

    Attributes:
        kind: its compression, empty for a plain file.
        consumed: bytes of the file that were read so far.
    """

    def __init__(self, path: str, begin: int = 0, max_expansion: int = MAX_EXPANSION) -> None:
        self.path, self.consumed = path, 0
        self._file = open_input(path)
        try:
            self.kind = kind = compression_of(path, self._file.read(HEAD_BYTES))
        except DataError:
            self._file.close()
            raise
        assert not (kind and begin), "compressed files are one slice"
        self._size = self._file.seek(0, os.SEEK_END)
        self._file.seek(begin)
        self._begin = self._position = begin
        self._max_bytes = expansion_limit(self._size, max_expansion) if kind else MAX_POSITION
        self._unread = b""
        self._pieces = {"gzip": _gunzip, "zstd": _unzstd, "": _plain}[kind](self._file, path)

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes, fewer only at the end.

        Raises:
            DataError: the compressed data is broken or ends early, or the file holds too much;
                names file and offset.
        """
        pieces = [self._unread]
        lacking = size - len(self._unread)
        while lacking > 0 and (piece := next(self._pieces, b"")):
            pieces.append(piece)
            lacking -= len(piece)
            self._position += len(piece)
            if self._position > self._max_bytes:
                raise self._too_much()
        end = self._file.tell()
        if lacking > 0 and end < self._size:
            raise DataError(
                f"{self.path}: ends at byte {end:,}; it had {self._size:,} when it was opened. Run "
                "again once it is stable."
            )
        self.consumed = end - self._begin
        content = b"".join(pieces)
        self._unread = content[size:]
        return content[:size] if self._unread else content

    def _too_much(self) -> DataError:
        if self._position > MAX_POSITION:
            return DataError(f"{self.path}: holds more than {MAX_POSITION:,} bytes. Split it.")
        return DataError(
            f"{self.path}: {self._size:,} bytes hold more than {self._max_bytes:,}, which text "
            "does not compress to: perhaps a decompression bomb. Take the file out, or raise "
            "max_expansion of the source."
        )

    def __enter__(self) -> InputStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def expansion_limit(size: int, max_expansion: int) -> int:
    """Return how many bytes a compressed file of this size may hold."""
    return min(max(FREE_BYTES, max_expansion * size), MAX_POSITION)


def _plain(file: BufferedIOBase, path: str) -> Iterator[bytes]:
    while piece := file.read(READ_BYTES):
        yield piece


def _gunzip(file: BufferedIOBase, path: str) -> Iterator[bytes]:
    """Yield the content of all gzip members; zeros between and after them are padding."""
    decoder, is_new = zlib.decompressobj(31), True
    while compressed := file.read(READ_BYTES):
        while True:
            if is_new:
                compressed = compressed.lstrip(b"\0")
                if not compressed:
                    break
            try:
                piece = decoder.decompress(compressed, OUTPUT_BYTES)
            except zlib.error as error:
                raise _broken(file, path, "gzip", str(error)) from None
            is_new = False
            if piece:
                yield piece
            if decoder.eof:
                compressed = decoder.unused_data
                decoder, is_new = zlib.decompressobj(31), True
                continue
            compressed = decoder.unconsumed_tail
            if not compressed and len(piece) < OUTPUT_BYTES:
                break
    if not is_new:
        raise _broken(file, path, "gzip", "the file ends within a member")


def _unzstd(file: BufferedIOBase, path: str) -> Iterator[bytes]:
    return (content for _, content in zstd_pieces(file, path))


def zstd_pieces(
    file: BufferedIOBase, path: str, size: int = READ_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Yield the content of all zstd frames in pieces, each after the offset of its frame.

    Args:
        file: at the beginning of a frame.
        path: what errors call it.
        size: bytes to decode at a time; if they are damaged, all of their content is lost.
    """
    from corpuskit.formats.zstd import zstd

    options = {int(zstd.DecompressionParameter.window_log_max): MAX_WINDOW_LOG}
    compressed = file.read(size)
    while compressed:
        begin = file.tell() - len(compressed)
        decoder = zstd.ZstdDecompressor(options=options)
        while not decoder.eof:
            try:
                piece = decoder.decompress(compressed, OUTPUT_BYTES)
            except zstd.ZstdError as error:
                raise _broken(file, path, "zstd", str(error)) from None
            if piece:
                yield begin, piece
            compressed = b""
            if decoder.needs_input:
                compressed = file.read(size)
                if not compressed:
                    raise _broken(file, path, "zstd", "the file ends within a frame")
        compressed = decoder.unused_data or file.read(size)


def _is_skippable(head: bytes) -> bool:
    return len(head) >= 4 and int.from_bytes(head[:4], "little") & ~0xF == SKIPPABLE


def _broken(file: BufferedIOBase, path: str, kind: str, reason: str) -> DataError:
    return DataError(
        f"{path}: broken {kind} data before byte {file.tell()}: {reason.rstrip('.')}. "
        "Fetch the file again."
    )


# ---------------------------------------------------------------- estimates


EXPANSION = 4
"""Bytes of text per byte of a compressed file: 3.2 (gzip -6) and 3.3 (zstd -3) for 222 MB of web
text, code and many languages as JSON lines; 4.3 to 9.4 for text that repeats itself."""


def estimate_text(file: InputFile, piece: Slice, max_expansion: int) -> tuple[int, bool]:
    """Return about how many bytes of text a slice holds, and whether that is known.

    A plain file is nearly all text: 96 % in JSON lines with an id.
    """
    kind = ENDINGS.get(os.path.splitext(file.name)[1].lower(), "")
    return piece.size_bytes * (min(EXPANSION, max_expansion) if kind else 1), False
