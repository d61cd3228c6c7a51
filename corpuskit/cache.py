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


def cache_dir() -> Path:
    """Return the folder of compiled kernels."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("CORPUSKIT_CACHE_DIR") or Path(home) / "corpuskit")
    _check_owner(root)
    return root


@functools.cache
def _check_owner(root: Path) -> None:
    """Refuse a folder that others can write to: what lies there is unpickled, that is, run.

    Raises:
        UsageError: its owner or its mode lets somebody else put code there.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.stat()
    if found.st_uid not in {0, os.getuid()} or found.st_mode & 0o002:
        raise UsageError(
            f"{root}: others can put code into the cache of kernels. Run: chmod o-w, or set "
            "CORPUSKIT_CACHE_DIR to a folder of your own."
        )


@functools.cache
def compiler_version() -> str:
    """Return the version of Numba without loading it, which takes half a CPU second."""
    return importlib.metadata.version("numba")
