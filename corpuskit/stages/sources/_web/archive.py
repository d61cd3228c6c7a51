"""Decompresses web archives member by member, and continues after a broken one."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, NamedTuple

from corpuskit.errors import DataError, reason_of
from corpuskit.stages.sources._stream import (
    MAX_POSITION,
    OUTPUT_BYTES,
    READ_BYTES,
    compression,
    compression_of,
    expansion_limit,
    zstd_pieces,
)
from corpuskit.storage import open_input

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from io import BufferedIOBase


PROBE_BYTES = 4096
"""Enough of a gzip member to see how its content starts."""

REPAIR_BYTES = 64
"""This many bytes before the damage in a member may be lost with it."""

ZSTD_BYTES = 1 << 14
"""Decoded at a time: about half of what a zstd block of text takes, so that blocks before a broken
one are not lost with it."""

_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")


class ArchivePiece(NamedTuple):
    """Decompressed bytes.

    Attributes:
        content: some of them.
        offset: where their gzip member or zstd frame begins in the file; 0 in plain files.
        is_first: they begin a member or frame; enough of it to see whether a record begins there.
        damage: why no more of the member or frame can be read.
        is_clipped: with damage: nothing that can be read follows.
    """

    content: bytes
    offset: int = 0
    is_first: bool = False
    damage: str = ""
    is_clipped: bool = False


class Archive:
    """The pieces of one file, in bounded memory.

    A file may be plain, gzip (a member per record, or any other way) or zstd. After a broken gzip
    member reading continues at the next that begins with a record; a broken zstd frame
    ends the file.

    Args:
        part: what to read of it; None: all.

    Attributes:
        framing: how its records begin.
        consumed: bytes of the file that were taken so far.
        end: where its content ends; None in compressed files.

    Raises:
        DataError: name and content of the file disagree about its compression, or it holds more
            than `max_expansion` times its size.
    """

    def __init__(self, path: str, max_expansion: int, part: ArchivePart | None = None) -> None:
        self.path = path if part is None else f"{path}: {part.name}"
        self.framing = framing_of(self.path)
        if part is None:
            self._kind = compression(path)
        else:
            with contextlib.closing(_FileWindow(open_input(path), part)) as window:
                self._kind = compression_of(self.path, window.read(6))
        file = open_input(path)
        self._file: BufferedIOBase = file if part is None else _FileWindow(file, part)
        self._size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        limit = expansion_limit(self._size, max_expansion)
        self._max_bytes = limit if self._kind else MAX_POSITION
        self.end = None if self._kind else self._size

    @property
    def consumed(self) -> int:
        """Bytes of the file taken so far."""
        return min(self._file.tell(), self._size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def pieces(self) -> Iterator[ArchivePiece]:
        """Yield the content of the file.

        Raises:
            DataError: the file holds too much.
        """
        readers = {"gzip": _gunzip, "zstd": _frames, "": _plain}
        size = 0
        for piece in readers[self._kind](self._file, self.path, self.framing):
            size += len(piece.content)
            if size > self._max_bytes:
                raise DataError(
                    f"{self.path}: {self._size:,} bytes hold more than {self._max_bytes:,}, which "
                    "text does not compress to: perhaps a decompression bomb. Take the file out, "
                    "or raise max_expansion of the source."
                )
            yield piece


class _FileWindow(io.BufferedIOBase):
    """A part of a file, read as a file."""

    def __init__(self, file: BufferedIOBase, part: ArchivePart) -> None:
        self._file, self._begin, self._end = file, part.begin, part.end
        self.seek(0)

    def tell(self) -> int:
        return self._file.tell() - self._begin

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = self._end if whence == os.SEEK_END else self._begin
        return self._file.seek(start + offset) - self._begin

    def read(self, size: int | None = -1, /) -> bytes:
        bytes_left = max(0, self._end - self._file.tell())
        return self._file.read(bytes_left if size is None or size < 0 else min(size, bytes_left))

    def close(self) -> None:
        self._file.close()
        super().close()


def _plain(file: BufferedIOBase, path: str, framing: Framing) -> Iterator[ArchivePiece]:
    while content := file.read(READ_BYTES):
        yield ArchivePiece(content)


def _frames(file: BufferedIOBase, path: str, framing: Framing) -> Iterator[ArchivePiece]:
    frame = -1
    try:
        for begin, content in zstd_pieces(file, path, ZSTD_BYTES):
            yield ArchivePiece(content, begin, begin != frame)
            frame = begin
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ").removesuffix(" Fetch the file again.")
        yield ArchivePiece(b"", 0, damage=reason, is_clipped=True)


def _gunzip(file: BufferedIOBase, path: str, framing: Framing) -> Iterator[ArchivePiece]:
    """Yield the content of all gzip members; of broken ones as much as can be decompressed."""
    offset: int | None = 0
    while offset is not None:
        file.seek(offset)
        offset = yield from _members(file, offset, framing)


def _members(
    file: BufferedIOBase, offset: int, framing: Framing
) -> Generator[ArchivePiece, None, int | None]:
    """Yield members from `offset` on; return where to continue after damage, None at the end."""
    window = b""
    while True:
        window = window.lstrip(b"\0")  # padding between members
        if not window:
            window = file.read(READ_BYTES)
            if not window:
                return None
            continue
        offset = file.tell() - len(window)
        member = _GzipMember(offset, framing.head_bytes)
        reason = ""
        while not member.is_done:
            try:
                yield from member.decode(window)
            except zlib.error as error:
                yield from member.rescue()
                reason = f"broken gzip member at byte {offset}: {error}"
                break
            window = member.unused
            if not member.is_done:
                window = file.read(READ_BYTES)
                if not window:
                    reason = f"the file ends within the gzip member at byte {offset}"
                    break
        if reason:
            yield from member.flush()
            following = _next_member(file, offset + 1, framing)
            yield ArchivePiece(b"", offset, member.is_new, reason, following is None)
            return following


class _GzipMember:
    """Decodes one gzip member; its first piece holds at least the bytes that a record starts with.

    Attributes:
        is_new: nothing of it was yielded yet.
        is_done: the member is complete and its checksum right.
        unused: bytes after the member, of those last passed to `decode`.
    """

    def __init__(self, offset: int, head_bytes: int) -> None:
        self._offset, self._head_bytes = offset, head_bytes
        self._decoder = zlib.decompressobj(31)
        self._saved_decoder = self._decoder.copy()
        self._compressed = self._pending = b""
        self.unused = b""
        self.is_new, self.is_done = True, False

    def decode(self, compressed: bytes) -> Iterator[ArchivePiece]:
        """Yield the content of the next bytes of the file, at most OUTPUT_BYTES at once."""
        while True:
            # zlib returns nothing of a call that fails: `rescue` repeats it from this state.
            self._saved_decoder, self._compressed = self._decoder.copy(), compressed
            content = self._decoder.decompress(compressed, OUTPUT_BYTES)
            compressed = self._decoder.unconsumed_tail
            self.is_done = self._decoder.eof
            yield from self._out(content)
            if self.is_done or (not compressed and len(content) < OUTPUT_BYTES):
                break
        if self.is_done:
            self.unused = self._decoder.unused_data
            yield from self.flush()

    def rescue(self) -> Iterator[ArchivePiece]:
        """Yield the content before the error, decoded REPAIR_BYTES at a time."""
        decoder, compressed = self._saved_decoder, self._compressed
        for begin in range(0, len(compressed), REPAIR_BYTES):
            try:
                yield from self._out(decoder.decompress(compressed[begin : begin + REPAIR_BYTES]))
            except zlib.error:
                return

    def flush(self) -> Iterator[ArchivePiece]:
        """Yield what was held back of a member that is tiny."""
        if self._pending:
            yield ArchivePiece(self._pending, self._offset, self.is_new)
            self.is_new, self._pending = False, b""

    def _out(self, content: bytes) -> Iterator[ArchivePiece]:
        content = self._pending + content
        if self.is_new and len(content) < self._head_bytes:
            self._pending = content
        elif content:
            self._pending = b""
            yield ArchivePiece(content, self._offset, self.is_new)
            self.is_new = False


def _next_member(file: BufferedIOBase, begin: int, framing: Framing) -> int | None:
    """Return where the next gzip member begins that holds a record; O(bytes up to there)."""
    while True:
        file.seek(begin)
        window = file.read(READ_BYTES + PROBE_BYTES)
        for match in _MEMBER.finditer(window):
            start = match.start()
            head = window[start : start + PROBE_BYTES]
            if start < READ_BYTES and _holds_record(head, framing):
                return begin + start
        if len(window) < READ_BYTES + PROBE_BYTES:
            return None
        begin += READ_BYTES


def _holds_record(compressed: bytes, framing: Framing) -> bool:
    decoder = zlib.decompressobj(31)
    try:
        head = decoder.decompress(compressed, framing.head_bytes)
    except zlib.error:
        return False
    is_whole = len(head) >= framing.head_bytes
    return framing.starts(head) or (is_whole and framing.may_start(head))


# ---------------------------------------------------------------- how records begin


HEADER_BYTES = 1 << 16
"""What is longer counts as no header."""


class Framing(NamedTuple):
    """How the records of an archive begin.

    Attributes:
        starts: bytes -> whether they begin with a record.
        may_start: bytes -> the same; true, too, if they are too few to decide.
        read_header: bytes -> where the header that they begin with ends, None if it does not, and
            its fields: those of WARC, names in lower case.
        next: finds the line feed before a line that begins a record.
        next_or_cut: the same, or before one that the end of the bytes cuts off.
        head_bytes: bytes that suffice to decide.
        line_bytes: the longest such line, its line feeds included.
        is_nested: a header may hold lines that begin other records.
    """

    starts: Callable[[bytes], bool]
    may_start: Callable[[bytes], bool]
    read_header: Callable[[bytes], tuple[int | None, Mapping[str, str]]]
    next: re.Pattern[bytes]
    next_or_cut: re.Pattern[bytes]
    head_bytes: int
    line_bytes: int
    is_nested: bool


# ---------------------------------------------------------------- WARC

START = b"WARC/"
"""How every record starts."""

VERSION = re.compile(rb"WARC/\d{1,2}\.\d{1,2}[ \t]*\r?\n")
_BLANK = re.compile(rb"\r?\n\r?\n")


def _read_warc_header(window: bytes) -> tuple[int | None, Mapping[str, str]]:
    end = _BLANK.search(window)
    return (None, {}) if end is None else (end.end(), parse_fields(window[: end.start()]))


def parse_fields(header: bytes) -> dict[str, str]:
    """Return the fields of a header, names in lower case; the first of equal names counts.

    Source: RFC 9112, section 5; lines that begin with a blank belong to the one before.
    """
    fields: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in header.decode("utf-8", "replace").split("\n"):
        if line[:1] in {" ", "\t"}:
            if lines is not None:
                lines.append(line.strip())
            continue
        name, colon, value = line.partition(":")
        if colon and name and not name[0].isspace():
            lines = [value.strip()]
            fields.setdefault(name.rstrip(" \t").lower(), lines)
    return {name: " ".join(lines) for name, lines in fields.items()}


WARC = Framing(
    starts=lambda head: VERSION.match(head) is not None,
    may_start=lambda head: START.startswith(head[: len(START)]),
    read_header=_read_warc_header,
    next=re.compile(rb"\n" + VERSION.pattern),
    next_or_cut=re.compile(rb"\nWARC/(?:\d{1,2}\.\d{1,2}[ \t]*\r?\n|[^\n]{0,9}\Z)"),
    head_bytes=len(START),
    line_bytes=32,
    is_nested=True,
)


# ---------------------------------------------------------------- ARC

_LINE = re.compile(
    rb"(?P<url>[A-Za-z][A-Za-z0-9+.\-]{0,30}:[^\r\n]{0,4096}?) (?P<ip>[0-9A-Fa-f.:\-]{1,45}) "
    rb"(?P<date>\d{8,17}) (?P<type>[^\r\n ]{0,256}) (?:[^\r\n]{0,2048} )?(?P<length>\d{1,15})"
    rb"[ \t]*\r?\n"
)
"""Fields of version 1; version 2 has five more before the length. URLs may have blanks."""

LINE_BYTES = 1 << 13

_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]{0,30}(?::[^\r\n]*)?\Z")

DESCRIPTION = "filedesc:"
"""How the URL of a file's first record begins, which describes the file."""


def _read_arc_header(window: bytes) -> tuple[int | None, Mapping[str, str]]:
    """Return the fields of a record as WARC calls them.

    A response by HTTP has the type that WARC gives it; one by another protocol keeps its own.
    """
    line = _LINE.match(window)
    if line is None:
        return None, {}
    url, ip, date, kind, length = (field.decode("utf-8", "replace") for field in line.groups())
    is_http = url[:6].lower().startswith(("http:", "https:"))
    return line.end(), {
        "warc-type": "warcinfo" if url.startswith(DESCRIPTION) else "response",
        "warc-target-uri": url,
        "warc-ip-address": ip,
        "warc-date": _iso(date),
        "content-type": "application/http; msgtype=response" if is_http else kind,
        "content-length": length,
    }


def _iso(date: str) -> str:
    """Return a date of 14 digits as WARC writes it."""
    if len(date) != 14:
        return date
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:]}Z"


def _may_start_arc(head: bytes) -> bool:
    is_cut = len(head) < LINE_BYTES and (not head or _SCHEME.match(head) is not None)
    return is_cut or _LINE.match(head) is not None


ARC = Framing(
    starts=lambda head: _LINE.match(head) is not None,
    may_start=_may_start_arc,
    read_header=_read_arc_header,
    next=re.compile(rb"\n" + _LINE.pattern),
    next_or_cut=re.compile(rb"\n" + _LINE.pattern),
    head_bytes=LINE_BYTES,
    line_bytes=LINE_BYTES,
    is_nested=False,
)
"""Source: Burner and Kahle, "Arc File Format", version 1 and 2 (Internet Archive, 1996)."""


def framing_of(name: str) -> Framing:
    """Return how records begin in a file of this name: ARC in .arc and .arc.gz, else WARC."""
    bare = name.lower().removesuffix(".gz").removesuffix(".zst")
    return ARC if bare.endswith(".arc") else WARC


# ---------------------------------------------------------------- WACZ: WARC files in a zip file
#
# Source: Webrecorder, "Web Archive Collection Zipped (WACZ)", version 1.1.1; .ZIP File Format
# Specification (PKWARE), 4.3.7.


FOLDER = "archive/"
ENDINGS = (".warc", ".warc.gz")

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, and sizes of the name and of the extra field after it."""

MAX_RATIO = 1040
"""More than a gzip member can expand to, 1,032."""


class ArchivePart(NamedTuple):
    """A WARC file inside a WACZ file.

    Attributes:
        name: its path in the WACZ file.
        header: offset of its entry.
        begin, end: offsets of its bytes.
        first, last: positions of its records are at least `first` and below `last`.
    """

    name: str
    header: int
    begin: int
    end: int
    first: int = 0
    last: int = MAX_POSITION


def is_wacz(name: str) -> bool:
    """Return whether a file is a WACZ by its name."""
    return name.lower().endswith(".wacz")


def read_parts(path: str) -> list[ArchivePart]:
    """Return the WARC files in a WACZ, in the order of their bytes.

    A record's position is its offset in the decompressed WARC file, plus a number that exceeds all
    positions in earlier parts: the offset of the entry, times a ratio that no part expands by. So a
    part is read without decompressing those before it.

    Raises:
        DataError: it is no zip file, holds no WARC file, or an entry that is not one.
    """
    with open_input(path) as file:
        size = file.seek(0, 2)
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
        except (
            zipfile.BadZipFile,
            struct.error,
            ValueError,
            NotImplementedError,
            OSError,
        ) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise DataError(
                f"{path}: no whole WACZ file: its directory of {size:,} bytes before the end "
                f"cannot be read: {reason_of(error)}. Fetch it again."
            ) from None
        ratio = min(MAX_RATIO, MAX_POSITION // max(size, 1))
        entries.sort(key=lambda entry: entry.header_offset)
        parts = [
            _part(file, path, entry, ratio)
            for entry in entries
            if entry.filename.startswith(FOLDER) and not entry.is_dir()
        ]
    if not parts:
        raise DataError(f"{path}: holds no WARC file in {FOLDER}. Take it out.")
    end = 0
    for part in parts:
        if part.header < end or part.end > size:
            raise DataError(
                f"{path}: byte {part.header}: {part.name!r} overlaps the entry before it, or the "
                "end of the file. Fetch it again."
            )
        end = part.end
    return parts


def _part(file: BufferedIOBase, path: str, entry: zipfile.ZipInfo, ratio: int) -> ArchivePart:
    """Return where the bytes of an entry are; its own header must agree with the directory."""
    begin, name = entry.header_offset, entry.filename
    location = f"{path}: byte {begin}: {name!r}"
    if not name.lower().endswith(ENDINGS):
        raise DataError(f"{location} is no WARC file, and all in {FOLDER} must be. Take it out.")
    if entry.flag_bits & 1 or entry.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"{location} is compressed or encrypted by zip; WACZ stores WARC files as they are. "
            "Pack it again with zip -0."
        )
    header = b""
    if begin >= 0:
        file.seek(begin)
        header = file.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{location} does not begin where the directory says. Fetch the file again."
        )
    _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    begin += LOCAL_HEADER.size + name_bytes + extra_bytes
    first = entry.header_offset * ratio
    end = begin + entry.compress_size
    return ArchivePart(name, entry.header_offset, begin, end, first, end * ratio)
