"""The one place that sets compiler flags and where compiled kernels are kept.

Set `CORPUSKIT_CACHE_DIR` to move the cache (default: `$XDG_CACHE_HOME/corpuskit` or
`~/.cache/corpuskit`).
`NUMBA_DISABLE_JIT=1` runs every kernel as plain Python.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import numba

from corpuskit.closure import closure
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def kernel(func: Callable[P, R]) -> Callable[P, R]:
    """Compile `func` on first call: no GIL, IEEE arithmetic, no bounds checks, cached on disk.

    Division by zero gives inf or nan as in NumPy. Numba notices edits only in the file that holds
    the caller (numba issue 1833), so the cache folder is named after a digest of the caller's file
    and of all kernels it imports.
    """
    place = cache_dir() / _digest(Path(func.__code__.co_filename))
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(place)  # type: ignore[attr-defined]
    try:
        return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(func))
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def inline(func: Callable[P, R]) -> Callable[P, R]:
    """Compile a small helper into each kernel that calls it; costs compile time per caller."""
    return cast("Callable[P, R]", numba.njit(inline="always", error_model="numpy")(func))


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
def _digest(path: Path) -> str:
    """Return the hash of a file and of all kernels it imports, and of the compiler's version."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for source in closure(path):
        digest.update(source.read_bytes())
    return f"{path.stem}-{digest.hexdigest()}"
