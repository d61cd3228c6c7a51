"""Where a run lives: paths relative to a root, files that appear whole or not at all.

A file is written in a scratch folder and published in one step under its final name. An interrupted
writer leaves only scratch, which the next run clears. Errors of the operating system (no space, no
permission) pass through as OSError.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRATCH = "scratch"


class LocalStore:
    """A run directory on a file system.

    Args:
        root: the run directory; created on first write.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def path(self, name: str) -> Path:
        """Return the absolute place of `name`.

        Raises:
            DataError: the name would leave the run directory.
        """
        parts = Path(name).parts
        if not name or Path(name).is_absolute() or ".." in parts:
            raise DataError(f"{self.root}: the path {name!r} leaves the run directory.")
        return self.root / name

    def exists(self, name: str) -> bool:
        """Return whether `name` was published."""
        return self.path(name).exists()

    def size(self, name: str) -> int:
        """Return the size of `name` in bytes."""
        return self.path(name).stat().st_size

    def read(self, name: str) -> bytes:
        """Return the whole content of `name`.

        Raises:
            DataError: it does not exist.
        """
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            raise DataError(f"{self.path(name)}: the file is missing.") from None

    def put(self, name: str, content: bytes) -> None:
        """Write a small file atomically and durably."""
        final = self.path(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=".put-", dir=final.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, final)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(scratch)
            raise
        _sync_folder(final.parent)

    def publish(self, scratch: Path, name: str) -> None:
        """Move a complete scratch file to its final name, durably."""
        final = self.path(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, final)
        _sync_folder(final.parent)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a private scratch folder on the same file system; it is gone afterwards."""
        parent = self.root / SCRATCH
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def clear_scratch(self) -> None:
        """Delete what killed writers left behind; only the holder of the run lock may call it."""
        shutil.rmtree(self.root / SCRATCH, ignore_errors=True)
        for leftover in self.root.rglob(".put-*"):
            leftover.unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        """Return the names of all files below `folder`, sorted; none if there is no folder."""
        top = self.path(folder)
        found = (path for path in top.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def delete(self, name: str) -> None:
        """Delete `name` if it exists, and the folders that this leaves empty."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.root:
                break
            try:
                parent.rmdir()
            except OSError:
                break


def open_store(address: str) -> LocalStore:
    """Return the store at a path or address.

    Raises:
        UsageError: the scheme of the address is not supported.
    """
    scheme, separator, _ = address.partition("://")
    if separator and scheme != "file":
        raise UsageError(f"output {address!r}: {scheme}:// is not supported. Use a local path.")
    return LocalStore(address.removeprefix("file://"))


def digest_file(path: Path) -> str:
    """Return the blake2b-128 of a file as hex (about 1.3 GB/s)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename durable: the entry lives in the folder, not in the file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
