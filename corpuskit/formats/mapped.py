"""Arrays in one file that is mapped into memory: made once, shared by all processes of a machine.

The file: 8 bytes `corpkmap`; the arrays, each from a multiple of 64 bytes on; a JSON object
`{"format": 1, "arrays": {name: [dtype, first byte, length]}}`; its size, and the CRC-32 of all up
to here, in 8 bytes each, little endian; `corpkmap` again. A file that is cut off or damaged is
recognised by its end or its checksum, which is computed on opening (about 1 GB/s), and counts as
absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]
    Pieces = Iterable[tuple[str, Iterable[NDArray[np.generic]]]]

_MAGIC = b"corpkmap"
_ALIGNED = 64
_CHUNK = 1 << 20
_MALFORMED = (LookupError, TypeError, ValueError, OverflowError, struct.error)
"""What the end of a damaged file may raise."""


def open_or_build(path: Path, build: Callable[[Path], Pieces]) -> Arrays:
    """Return the arrays of a file; build it if it is absent or damaged.

    Of several processes that want the same file one makes it and the others wait; where the file
    system knows no locks each makes its own, and the last one stays. Read-only arrays.

    Args:
        path: the file.
        build: yields (name, pieces of the array one after the other), given a scratch folder.
    """
    arrays = open_arrays(path)
    if arrays is not None:
        return arrays
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")) as is_alone:
        arrays = open_arrays(path)
        if arrays is None:
            prefix = f"making-{path.stem}-"
            for leftover in path.parent.glob(f"{prefix}*") if is_alone else ():
                shutil.rmtree(leftover)  # by a process that was killed
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as scratch:
                new_file = Path(scratch) / path.name
                write_arrays(new_file, build(Path(scratch)))
                new_file.replace(path)
            arrays = open_arrays(path)
    assert arrays is not None, "it was written a moment ago"
    return arrays


def write_arrays(path: Path, arrays: Pieces) -> None:
    """Write arrays piece by piece; the pieces of an array have one type, and none is empty.

    The file is complete when this returns, and safe on disk.
    """
    layout: dict[str, tuple[str, int, int]] = {}
    with path.open("wb") as file:
        checksum = _put(file.write, _MAGIC, 0)
        for name, pieces in arrays:
            checksum = _put(file.write, bytes(-file.tell() % _ALIGNED), checksum)
            start, length, kind = file.tell(), 0, ""
            for piece in pieces:
                checksum = _put(file.write, np.ascontiguousarray(piece).data, checksum)
                length, kind = length + len(piece), piece.dtype.str
            layout[name] = (kind, start, length)
        footer = json.dumps({"format": 1, "arrays": layout}).encode()
        checksum = _put(file.write, footer, checksum)
        checksum = _put(file.write, struct.pack("<Q", len(footer)), checksum)
        file.write(struct.pack("<Q", checksum) + _MAGIC)
        file.flush()
        os.fsync(file.fileno())


def _put(write: Callable[[bytes | memoryview], int], content: bytes | memoryview, crc: int) -> int:
    write(content)
    return zlib.crc32(content, crc)


def open_arrays(path: Path) -> Arrays | None:
    """Map a file and return its arrays, None if it is absent or damaged."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - 24, 0))
            length, checksum, magic = struct.unpack("<QQ8s", file.read(24))
            file.seek(size - 24 - length)
            footer = json.loads(file.read(length))
            if (magic, footer["format"], checksum) != (_MAGIC, 1, _checksum(file, size - 16)):
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in {None, 22}:  # 22 (EINVAL): an offset before the beginning
            raise
        return None
    except _MALFORMED:
        return None
    return {
        name: np.frombuffer(mapped, np.dtype(kind), count, start)
        for name, (kind, start, count) in footer["arrays"].items()
    }


def _checksum(file: BinaryIO, size: int) -> int:
    """Return the checksum of the first `size` bytes; read, not mapped: that would count as ours."""
    file.seek(0)
    checksum = 0
    while size > 0:
        chunk = file.read(min(_CHUNK, size))
        if not chunk:
            return -1
        checksum = zlib.crc32(chunk, checksum)
        size -= len(chunk)
    return checksum


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock while the block runs; it goes when the process does, however that ends.

    Yields:
        Whether there is a lock: some network file systems have none.
    """
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True
