"""Where compiled kernels, and what else is derived once per machine, are kept.

Set `CORPUSKIT_CACHE_DIR` to move the folder (default: `$XDG_CACHE_HOME/corpuskit` or
`~/.cache/corpuskit`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from pathlib import Path

from corpuskit.errors import UsageError

ADVICE = "Set XDG_CACHE_HOME, or CORPUSKIT_CACHE_DIR alone, to a folder that you can write to."


def cache_dir() -> Path:
    """Return the folder of compiled kernels.

    Raises:
        UsageError: it cannot be written, or others can write to it.
    """
    root = Path(os.environ.get("CORPUSKIT_CACHE_DIR") or _home() / "corpuskit")
    _check_owner(root)
    return root


def _home() -> Path:
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no HOME, and a user without a name
        raise UsageError(
            f"user {os.getuid()} has no home directory to keep compiled kernels in. {ADVICE}"
        ) from None


@functools.cache
def _check_owner(root: Path) -> None:
    """Refuse a folder that others can write to: what lies there is unpickled, that is, run."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{root}: compiled kernels cannot be kept here: {reason}. {ADVICE}"
        ) from None
    if found.st_uid not in {0, os.getuid()} or found.st_mode & 0o002:
        raise UsageError(
            f"{root}: others can put code into the cache of kernels. Run: chmod o-w, or set "
            "CORPUSKIT_CACHE_DIR to a folder of your own."
        )
    if not os.access(root, os.W_OK | os.X_OK):
        raise UsageError(f"{root}: compiled kernels cannot be kept here: not writable. {ADVICE}")


@functools.cache
def compiler_version() -> str:
    """Return the version of Numba without loading it, which takes half a CPU second."""
    return importlib.metadata.version("numba")
