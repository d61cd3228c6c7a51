"""The contract of a store: names under a root, files that appear whole or not at all.

A file is made in a scratch folder on this machine and published in one step under its final name.
A process that dies before that step leaves only scratch, one that dies after it a whole file. Small
files are `put`. Two writers can race for `put_new` only, and one of them wins.

A listing is a hint: it may lack what was just written. Files that decide are opened by name.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING

from corpuskit.errors import DataError
from corpuskit.storage.faults import fault_point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

SCRATCH = "scratch"


@dataclasses.dataclass(frozen=True)
class FoundFile:
    """An input file as a listing shows it.

    Attributes:
        stamp: changes when its content does: time in ns, an ETag, a hash; it is fingerprinted.
        state: time in ns or ETag, compared with `stat_input` while the file is read; empty: not
            compared.
    """

    address: str
    size_bytes: int
    stamp: str
    state: str = ""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A published file: something to open and read ranges of.

    Attributes:
        digest: of the whole file, from its seal (`digest_part`); empty = not known.
        footer: of the end of the file, which tells where ranges are (`digest_footer`).
    """

    store: Store
    name: str
    digest: str = ""
    footer: str = ""

    def __str__(self) -> str:
        return self.store.where(self.name)

    def open(self) -> pa.NativeFile:
        return self.store.open(self.name)

    @property
    def is_remote(self) -> bool:
        """Whether a read is a request over a network: few large ones are better."""
        return self.store.is_remote


Readable = Path | Stored
"""What readers of parts take: a published file, or a file on this machine."""


class DamagedError(DataError):
    """A published file is not what its writer wrote.

    Attributes:
        file: that is damaged.
    """

    def __init__(
        self,
        file: Readable,
        problem: str = "its content is not what was written. Delete it and run again",
    ) -> None:
        self.file = file
        super().__init__(f"{file}: {problem}.")

    def __reduce__(self) -> tuple[type[DamagedError], tuple[Readable]]:
        return type(self), (self.file,)


class MissingError(DamagedError, FileNotFoundError):
    """A published file is not there."""

    def __init__(self, file: Readable) -> None:
        super().__init__(file, "the file is missing. Run again")
        self.errno = errno.ENOENT


def open_ranged(path: Readable) -> pa.NativeFile:
    """Open a file to read ranges of it; the footer with their offsets is checked.

    The ranges carry checksums of their own: page CRCs in Parquet, hashes of batches in
    shuffle files.

    Raises:
        MissingError: it is not there.
        DamagedError: the footer is not what was written.
    """
    import pyarrow as pa

    if not isinstance(path, Stored):
        return pa.OSFile(str(path), "rb")
    try:
        file = path.open()
    except FileNotFoundError:
        raise MissingError(path) from None
    if path.footer and digest_footer(file) != path.footer:
        file.close()
        raise DamagedError(path)
    return file


def open_whole(path: Readable) -> pa.NativeFile:
    """Open a file to read all of it; every byte is checked before the first is used.

    A local file is read twice, the second time from the page cache: 17 GB/s for the hash, 5 GB/s
    for the copy. An object is fetched whole into memory.

    Raises:
        MissingError: the file is not there.
        DamagedError: it is not what was written.
    """
    import pyarrow as pa

    if not isinstance(path, Stored) or not path.digest:
        return open_ranged(path)
    if path.is_remote:
        [content] = path.store.read_each([path.name])
        if content is None:
            raise MissingError(path)
        if digest_content(content) != path.digest:
            raise DamagedError(path)
        return pa.BufferReader(content)
    try:
        if path.store.digest(path.name) == path.digest:
            return path.open()
    except FileNotFoundError:
        raise MissingError(path) from None
    raise DamagedError(path)


FOOTERS = {b"ARROW1": 10, b"PAR1": 8}
"""How a file ends, and how many bytes of its end hold the size of the footer and this magic."""


def read_footer(file: pa.NativeFile) -> bytes:
    """Return the footer of an open Parquet or Arrow file to its last byte; empty for other files.

    If the file claims a footer larger than itself, that is the whole file.
    """
    size = file.size()
    ending = file.read_at(min(10, size), max(size - 10, 0))
    for magic, num in FOOTERS.items():
        if ending.endswith(magic) and size >= num:
            length = int.from_bytes(ending[-num : len(ending) - num + 4], "little")
            begin = max(size - num - length, 0)
            return bytes(file.read_at(size - begin, begin))
    return b""


def digest_footer(file: pa.NativeFile) -> str:
    """Return the hash of a file's footer as hex; empty for files that have none."""
    footer = read_footer(file)
    return _digest([footer]) if footer else ""


class Store(ABC):
    """A run directory on any kind of storage; names are relative to it and use `/`.

    Errors of the system (no space, no permission, no answer after retries) pass through as OSError.

    Attributes:
        address: of the root, as the user wrote it.
        is_remote: whether reads are requests over a network.
    """

    address: str
    is_remote: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    @abstractmethod
    def where(self, name: str) -> str:
        """Return the path or address of `name`, for messages.

        Raises:
            DataError: the name would leave the run directory.
        """

    def at(self, name: str, *, digest: str = "", footer: str = "") -> Stored:
        """Return `name` to read; what is read is compared with the digests of a seal.

        Raises:
            DataError: the name would leave the run directory.
        """
        self.check(name)
        return Stored(self, name, digest, footer)

    def check(self, name: str) -> None:
        """Refuse names that leave the run directory.

        Raises:
            DataError: it does.
        """
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise DataError(f"{self.address}: the path {name!r} leaves the run directory.")

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the size of `name` in bytes, None if it is not there."""

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the whole content of `name`.

        Raises:
            DataError: it does not exist.
        """

    def read_each(self, names: Iterable[str]) -> Iterator[bytes | None]:
        """Yield the contents of many small files in order, None for what is not there."""
        for name in names:
            try:
                yield self.read(name)
            except DataError:
                yield None

    @abstractmethod
    def open(self, name: str) -> pa.NativeFile:
        """Open `name` for reading from any position.

        Raises:
            OSError: it does not exist.
        """

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a small file atomically and durably, over an older one if there is one."""

    @abstractmethod
    def put_new(self, name: str, content: bytes) -> bool:
        """Write a small file unless it is there; return whether this call wrote it.

        Of many writers at the same time, on any machines, one gets True.
        """

    def confirm(self, name: str) -> None:  # noqa: B027 - nothing to do where puts are durable
        """Make sure that a file which is there is durable: its writer may have died before."""

    @abstractmethod
    def publish(self, scratch: Path, name: str) -> None:
        """Give a complete scratch file its final name, durably; the scratch file may be gone."""

    def adopt(self, stored: Stored, name: str) -> None:
        """Give a published file of this or another run a name here, durably; it keeps the old one.

        Raises:
            DamagedError: its digest is not that of its seal; nothing was published.
        """
        fault_point("adopt:before", name)
        with self.scratch() as folder:
            path = folder / "adopted"
            with stored.store.open(stored.name) as source, path.open("wb") as file:
                for piece in _pieces(source):
                    file.write(piece)
            if digest_part(path) != stored.digest:
                raise DamagedError(stored)
            self.publish(path, name)

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Return name -> size of all files below `folder`, sorted; empty if there is no folder."""

    def list(self, folder: str) -> list[str]:
        """Return the names of all files below `folder`, sorted; none if there is no folder."""
        return list(self.sizes(folder))

    @abstractmethod
    def top(self) -> set[str]:
        """Return the names of files and folders right below the root.

        Raises:
            UsageError: the root is a file.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files that may exist, and the folders that this leaves empty."""

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """Yield a private folder on this machine, from which `publish` is cheap; gone afterwards.

        On object stores it is below the system's folder for temporary files (TMPDIR).
        """

    @abstractmethod
    def clear_scratch(self) -> None:
        """Delete what killed writers left; only the holder of the lock may call it."""

    @abstractmethod
    def logs(self) -> Path:
        """Return a folder on this machine for the logs of worker processes; created."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Hold the run directory alone; a holder that dies loses it.

        Raises:
            UsageError: another run holds it.
        """

    def digest(self, name: str) -> str:
        """Return the hash of a published file, as `digest_part` makes it."""
        with self.open(name) as file:
            return _digest(_pieces(file))


def digest_content(content: bytes) -> str:
    """Return the hash of a file with this content, as `digest_part` makes it."""
    return _digest([content])


def digest_part(path: Path) -> str:
    """Return the xxh3-128 of a file as hex (17 GB/s): tells damage, not malice."""
    with path.open("rb") as file:
        return _digest(_pieces(file))


def _pieces(file: IO[bytes] | pa.NativeFile) -> Iterator[bytes]:
    while piece := file.read(1 << 20):  # fits the cache of a core
        yield piece


def _digest(pieces: Iterable[bytes]) -> str:
    import xxhash  # the loader does without

    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def digest_file(path: Path) -> str:
    """Return the blake2b-128 of a file as hex (0.6 to 1.3 GB/s)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
