"""Reads the files of a run directory, on a file system or (remote.py) in object storage.

Small files are read whole, up to a limit; parts are read by ranges (parts.py). Names are relative
to the run directory and use `/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from corpuskit.loader.cache import RangeCache

T = TypeVar("T")

FORMAT = 1
MAX_JSON_BYTES = 1 << 30
MAX_NUMBER = 1 << 62
MAX_TEXT_BYTES = 4096
# A small table may have TABLE_BYTES in memory, or TABLE_EXPANSION times the size of its file.
TABLE_BYTES, TABLE_EXPANSION = 1 << 28, 1000


class Transfers:
    """Counts what was fetched from object storage to read parts; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fetched_bytes = self.requests = self.cache_hits = 0

    def add(self, *, fetched_bytes: int = 0, requests: int = 0, cache_hits: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self.fetched_bytes += fetched_bytes
            self.requests += requests
            self.cache_hits += cache_hits


class PartSource(Protocol):
    """An open part, used by one thread at a time."""

    file: pa.NativeFile

    def ready(
        self, footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]
    ) -> AbstractContextManager[None]:
        """Load what a read of these row groups needs; do the read inside the context.

        If the context ends without an error, the loaded bytes may be cached.

        Raises:
            OSError: it can't be loaded.
        """


class RunFiles(Protocol):
    """Reads the files of one run directory; may be used by several threads.

    Attributes:
        address: of the run directory, as the user wrote it.
        reader_threads: number of threads that hides the latency of reads.
        cache: of ranges; None without one.
    """

    address: str
    reader_threads: int
    cache: RangeCache | None

    def where(self, name: str) -> str:
        """Return path or address of a file."""

    def read(self, name: str, limit: int | None = None) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            DataError: it is not a regular file, or larger than `limit` bytes.
        """

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading from any position.

        Raises:
            OSError: it can't be opened.
        """

    def open_part(self, name: str, transfers: Transfers, *, is_reread: bool) -> PartSource:
        """Open a part.

        Args:
            name: the part.
            transfers: where to count what is fetched.
            is_reread: the run reads it more than once.

        Raises:
            OSError: it can't be opened.
            DataError: it was replaced since this object read it.
        """

    def list(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; empty without the folder."""


class LocalPart:
    """A part on a file system."""

    def __init__(self, file: pa.NativeFile) -> None:
        self.file = file

    def ready(
        self, footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]
    ) -> AbstractContextManager[None]:
        """Do nothing: the file system loads what is read."""
        return contextlib.nullcontext()


class LocalFiles:
    """A run directory on a file system."""

    reader_threads = 2
    cache: RangeCache | None = None

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.address = run_dir, str(run_dir)

    def where(self, name: str) -> str:
        return str(self.run_dir / name)

    def read(self, name: str, limit: int | None = None) -> bytes:
        """Return the content of a regular file: a device or a pipe would never end."""
        path = self.run_dir / name
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: is not a regular file. Run the mix again.")
        if limit is not None and status.st_size > limit:
            raise DataError(f"{path}: {status.st_size:,} bytes, at most {limit:,} are possible.")
        return path.read_bytes()

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(str(self.run_dir / name))

    def open_part(self, name: str, transfers: Transfers, *, is_reread: bool) -> PartSource:
        return LocalPart(self.open(name))

    def list(self, folder: str) -> list[str]:
        try:
            names = os.listdir(self.run_dir / folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(f"{folder}/{name}" for name in names)


def inside(name: object, path: str) -> str:
    """Return the name of a file that the plan or index at `path` names.

    Raises:
        DataError: the name would leave the run directory.
    """
    if not isinstance(name, str) or not name or "\0" in name or name.startswith("/"):
        raise DataError(f"{path}: {name!r} is not a path within the run directory.")
    if ".." in name.split("/"):
        raise DataError(f"{path}: the path {name!r} leaves the run directory.")
    return name


def digest_bytes(content: bytes) -> str:
    """Return the blake2b-128 of some bytes, in hex."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def digest_json(fields: object) -> str:
    """Return the blake2b-128 of some values as canonical JSON, in hex."""
    return digest_bytes(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def read_json(
    files: RunFiles,
    name: str,
    version: int = FORMAT,
    advice: str = "Run the mix again",
    digest: str | None = None,
) -> dict[str, Any]:
    """Return the object in a JSON file of the format `version`.

    Raises:
        UsageError: there is no such file.
        DataError: the file is not such an object, or its digest differs.
    """
    path = files.where(name)
    try:
        content = files.read(name, MAX_JSON_BYTES)
        if digest is not None:
            require_digest(path, content, digest)
        fields = json.loads(content)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{path}: no such file. Give the directory of a run that has finished `mix`."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {one_line(error)}. {advice}.") from None
    if not isinstance(fields, dict) or fields.get("format") != version:
        actual = fields.get("format") if isinstance(fields, dict) else fields
        if isinstance(actual, int) and actual > version:
            advice = "Update corpuskit"
        raise DataError(f"{path}: format must be {version}, got {actual!r}. {advice}.")
    return fields


def get(path: str, fields: object, key: str, kind: type[T], advice: str = "Run the mix again") -> T:
    """Return `fields[key]`, which must be of `kind`.

    Raises:
        DataError: it is of another type, or a number beyond MAX_NUMBER.
    """
    value = fields.get(key) if isinstance(fields, dict) else None
    # A JSON true is an int to Python.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        must = f"{key} must be {kind.__name__}, got {value!r}"
        raise DataError(f"{path}: {must}. {advice}.")
    if isinstance(value, int) and abs(value) >= MAX_NUMBER:
        raise DataError(f"{path}: {key} is beyond {MAX_NUMBER}. {advice}.")
    return value


def require_digest(path: str, content: bytes, digest: str) -> None:
    """Refuse a file that differs from the one that the plan was written with.

    Raises:
        DataError: names it.
    """
    if digest_bytes(content) != digest:
        raise DataError(
            f"{path}: is not the file that the plan was written with: its digest is"
            f" {digest_bytes(content)}, the plan says {digest}. Restore it, or run the mix again."
        )


def one_line(error: Exception) -> str:
    """Return the message of an error as one line; those of Arrow may have several."""
    return " ".join(str(error).split()).rstrip(" .")


def read_table(files: RunFiles, name: str, columns: Sequence[str], digest: str) -> pa.Table:
    """Return columns of a small Parquet file: an index, or the lookups.

    Raises:
        DataError: it can't be read, its digest differs, or its footer claims far more bytes than
            such a file has.
    """
    try:
        content = files.read(name)
    except FileNotFoundError:
        raise DataError(
            f"{files.where(name)}: no such file, and mix/plan.json names it. Run the mix again."
        ) from None
    except OSError as error:
        raise _unreadable(files.where(name), error) from error
    require_digest(files.where(name), content, digest)
    return parse_table(content, files.where(name), columns)


def parse_table(content: bytes, path: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a small Parquet file, from its content.

    Texts are read as dictionaries: a repeated text takes 4 bytes a row.

    Raises:
        DataError: it can't be read, or its footer claims far more bytes than such a file has.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=list(columns))
        footer = file.metadata
        groups = map(footer.row_group, range(footer.num_row_groups))
        size = 64 * footer.num_rows + sum(group.total_byte_size for group in groups)
        if size > max(TABLE_BYTES, TABLE_EXPANSION * len(content)):
            raise DataError(
                f"{path}: {len(content):,} bytes can't hold {size:,}. Run the mix again."
            )
        if missing := [name for name in columns if name not in file.schema_arrow.names]:
            raise DataError(f"{path}: has no column {missing[0]!r}. Run the mix again.")
        table = file.read(columns=list(columns), use_threads=False)
        longest = _longest_texts(table)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    if longest > MAX_TEXT_BYTES:
        raise DataError(f"{path}: has a text of {longest:,} bytes. Run the mix again.")
    return table


def _unreadable(path: str, error: Exception) -> DataError:
    return DataError(f"{path}: can't be read: {one_line(error)}. Run the mix again.")


def _longest_texts(table: pa.Table) -> int:
    longest = 0
    for chunk in (chunk for column in table.columns for chunk in column.chunks):
        if pa.types.is_dictionary(chunk.type):
            texts = chunk.dictionary
            if texts.type != pa.string():
                raise pa.ArrowInvalid(f"{texts.type} instead of texts")
            if len(texts):
                offsets = np.frombuffer(texts.buffers()[1], np.int32)
                sizes = np.diff(offsets[texts.offset : texts.offset + len(texts) + 1])
                longest = max(longest, int(sizes.max()))
    return longest
