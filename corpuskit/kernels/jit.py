"""The one place that sets compiler flags and where compiled kernels are kept.

Set `CORPUSKIT_CACHE_DIR` to move the cache (default: `$XDG_CACHE_HOME/corpuskit` or `~/.cache/corpuskit`).
`NUMBA_DISABLE_JIT=1` runs every kernel as plain Python.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def kernel(func: Callable[P, R]) -> Callable[P, R]:
    """Compile `func` on first call: no GIL, IEEE arithmetic, no bounds checks, cached on disk.

    Division by zero gives inf or nan as in NumPy. Numba notices edits only in the file that holds the
    caller (numba issue 1833), so the cache folder is named after a digest of all our kernel sources.
    """
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(cache_dir())  # type: ignore[attr-defined]
    try:
        return cast(
            "Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(func)
        )
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def inline(func: Callable[P, R]) -> Callable[P, R]:
    """Compile a small helper into each kernel that calls it; costs compile time per caller."""
    return cast("Callable[P, R]", numba.njit(inline="always", error_model="numpy")(func))


@functools.cache
def cache_dir() -> Path:
    """Return the folder of compiled kernels, named by a digest of every module that may hold one."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    package = Path(__file__).parents[1]
    for folder in ("kernels", "stages"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = os.environ.get("CORPUSKIT_CACHE_DIR") or Path(home) / "corpuskit"
    return Path(root) / digest.hexdigest()
