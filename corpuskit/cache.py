"""Where compiled kernels, and what else is derived once per machine, are kept.

Set `CORPUSKIT_CACHE_DIR` to move the folder (default: `$XDG_CACHE_HOME/corpuskit` or
`~/.cache/corpuskit`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import stat
import tempfile
from pathlib import Path

from corpuskit.errors import UsageError, system_reason

ADVICE = "Set XDG_CACHE_HOME, or CORPUSKIT_CACHE_DIR alone, to a folder that you can write to."


_DIGEST_BYTES = 16


def cache_dir() -> Path:
    """Return the folder of compiled kernels.

    Raises:
        UsageError: it cannot be written, or others can write to it.
    """
    root = Path(os.environ.get("CORPUSKIT_CACHE_DIR") or _home() / "corpuskit")
    _check_root(root)
    return root


def _home() -> Path:
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no HOME, and a user without a name
        raise UsageError(
            f"user {os.getuid()} has no home directory to keep compiled kernels in. {ADVICE}"
        ) from None


def check_owner(folder: Path) -> None:
    """Refuse a folder that others can write to: its files are unpickled, so they are executed.

    Raises:
        UsageError: it belongs to another user, or its group or everybody can write to it.
        OSError: it is not there.
    """
    status = folder.stat()
    if status.st_uid not in {0, os.getuid()} or status.st_mode & 0o022:
        raise UsageError(
            f"{folder}: others can put code into the cache of kernels. Run: chmod go-w, or set "
            "CORPUSKIT_CACHE_DIR to a folder of your own."
        )


@functools.cache
def _check_root(root: Path) -> None:
    """Make the folder if it does not exist; refuse it if it cannot be used."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(root)
        for parent in root.resolve().parents:  # a user who can rename it can replace it
            mode = parent.stat().st_mode
            if mode & 0o002 and not mode & stat.S_ISVTX:
                raise UsageError(
                    f"{root}: others can put code into the cache of kernels, because {parent} is "
                    f"writable by everybody. Run: chmod o-w {parent}, or set CORPUSKIT_CACHE_DIR."
                )
    except OSError as error:
        reason = system_reason(error)
        raise UsageError(
            f"{root}: compiled kernels cannot be kept here: {reason}. {ADVICE}"
        ) from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise UsageError(f"{root}: compiled kernels cannot be kept here: not writable. {ADVICE}")


def read_kept(path: Path) -> bytes | None:
    """Return what `keep` wrote to a file; None if there is nothing, or it is damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return content if digest == _digest(content) else None


def keep(path: Path, content: bytes) -> None:
    """Keep content for later processes, whole or not at all; a full disk is not an error."""
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(_digest(content) + content)
        os.replace(file.name, path)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


@functools.cache
def compiler_version() -> str:
    """Return the version of Numba without loading it, which takes half a CPU second."""
    return importlib.metadata.version("numba")
