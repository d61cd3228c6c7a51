"""WACZ: zip files that hold WARC files, as they are, in the folder archive/.

Source: Webrecorder, "Web Archive Collection Zipped (WACZ)", version 1.1.1; .ZIP File Format
Specification (PKWARE), 4.3.7.
"""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from corpuskit.errors import DataError, reason_of
from corpuskit.stages.sources._stream import MAX_POSITION
from corpuskit.storage import open_input

if TYPE_CHECKING:
    from io import BufferedIOBase

FOLDER = "archive/"
ENDINGS = (".warc", ".warc.gz")

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, and sizes of the name and of the extra field behind it."""

MAX_RATIO = 1040
"""More than a gzip member can expand to, 1,032."""


class Part(NamedTuple):
    """A WARC file as it lies in another one.

    Attributes:
        name: of it, inside; empty for a file that is all one archive.
        header: where its entry begins in the file, in bytes.
        begin, end: where its bytes lie in the file.
        first, last: the positions of its records begin at `first` and stay below `last`.
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


def read_parts(path: str) -> list[Part]:
    """Return the WARC files in a WACZ, in the order they lie there.

    A record's position is its place in the decompressed WARC file, behind a number that is larger
    than every position before it: the place of its entry, times what no part expands to. So parts
    are read alone, without decompressing those before them.

    Raises:
        DataError: it is none, holds no WARC file, or something that cannot be one.
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


def _part(file: BufferedIOBase, path: str, entry: zipfile.ZipInfo, ratio: int) -> Part:
    """Return where the bytes of an entry lie; what its own header says must agree."""
    begin, name = entry.header_offset, entry.filename
    place = f"{path}: byte {begin}: {name!r}"
    if not name.lower().endswith(ENDINGS):
        raise DataError(f"{place} is no WARC file, and all in {FOLDER} must be. Take it out.")
    if entry.flag_bits & 1 or entry.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"{place} is compressed or encrypted by zip; WACZ stores WARC files as they are. "
            "Pack it again with zip -0."
        )
    header = b""
    if begin >= 0:
        file.seek(begin)
        header = file.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise DataError(f"{place} does not begin where the directory says. Fetch the file again.")
    _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    begin += LOCAL_HEADER.size + name_bytes + extra_bytes
    first = entry.header_offset * ratio
    end = begin + entry.compress_size
    return Part(name, entry.header_offset, begin, end, first, end * ratio)
