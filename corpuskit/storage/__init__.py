"""Files of run directories and inputs: a file system or an object store behind one interface.

store.py    the contract: names, whole files, commits that appear at once or not at all
local.py    a run directory on a file system
hub.py      files of datasets on the Hugging Face Hub (`hf://`): to read, not to write
remote.py   a run directory in an object store (`s3://`, `gs://`, `az://`), needs the extra `s3`
faults.py   where a test may make a step of a commit fail or die
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from corpuskit.errors import UsageError
from corpuskit.storage import hub
from corpuskit.storage.local import LocalStore, write_whole
from corpuskit.storage.search import find_files, find_objects, local_file, walk_files
from corpuskit.storage.store import (
    SCRATCH,
    DamagedError,
    FoundFile,
    Readable,
    Store,
    Stored,
    digest_content,
    digest_file,
    digest_footer,
    digest_part,
    open_ranged,
    open_whole,
    read_footer,
)

if TYPE_CHECKING:
    from io import BufferedIOBase

__all__ = [
    "SCRATCH", "DamagedError", "FoundFile", "LocalStore", "Readable", "Store", "Stored",
    "bare_address", "digest_content", "digest_file", "digest_footer", "digest_part",
    "find_files", "find_named", "find_objects", "hub", "is_remote", "local_file", "open_input",
    "open_ranged", "open_store", "open_whole", "read_footer", "stat_input", "walk_files",
    "write_whole",
]  # fmt: skip

SCHEMES = ("s3", "gs", "az")


def is_remote(address: str) -> bool:
    """Return whether an address names an object store; `hf://` files are fetched, and read here.

    Raises:
        UsageError: its scheme is not supported.
    """
    scheme, separator, _ = address.partition("://")
    if typo := re.match(r"(s3|gs|az):/[^/]", address):
        raise UsageError(f"{address}: one slash is missing. Write {typo[1]}://bucket/prefix.")
    if not separator or scheme in ("file", "hf"):
        return False
    if scheme not in SCHEMES:
        raise UsageError(
            f"{address}: {scheme}:// is not supported. Use a local path, s3://bucket/prefix, "
            "gs://bucket/prefix or az://container/prefix."
        )
    return True


def open_store(address: str) -> Store:
    """Return the store at a path or address; nothing is read or written.

    Raises:
        UsageError: the scheme is not supported, or the extra that reads it is not installed.
    """
    if address.startswith(hub.SCHEME):
        raise UsageError(f"{address}: {hub.NO_RUNS}.")
    if not is_remote(address):
        return LocalStore(address.removeprefix("file://"))
    from corpuskit.storage.remote import RemoteStore

    return RemoteStore(address)


def open_input(address: str) -> BufferedIOBase:
    """Open an input file for reading from any position, by path or address.

    Raises:
        OSError: it cannot be opened.
    """
    if not is_remote(address):
        return open(address.removeprefix("file://"), "rb")
    from corpuskit.storage.remote import open_object

    return open_object(address)


def stat_input(address: str) -> FoundFile:
    """Return the size and stamp of an input file as they are now.

    Raises:
        OSError: it is gone, or cannot be read.
    """
    if not is_remote(address):
        status = os.stat(address.removeprefix("file://"))
        return FoundFile(address, status.st_size, *[str(status.st_mtime_ns)] * 2)
    from corpuskit.storage.remote import stat_object

    return stat_object(address)


def find_named(pattern: str) -> list[tuple[FoundFile, str]]:
    """Return what an address with a scheme matches, with paths that leave scheme and revision out.

    Raises:
        UsageError: the pattern names or matches a folder; a dataset cannot be fetched.
        OSError: the bucket cannot be listed.
    """
    if pattern.startswith(hub.SCHEME):
        return hub.find(pattern)
    return [(file, bare_address(file.address)) for file in find_objects(pattern)]


def bare_address(address: str) -> str:
    """Return an address without its scheme, and without the revision of a dataset."""
    if address.startswith(hub.SCHEME):
        parts = hub.split(address)
        return f"{parts.dataset}/{parts.path}"
    return address.partition("://")[2]
