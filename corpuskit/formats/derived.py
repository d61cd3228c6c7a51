"""What takes long to derive and never changes: kept beside the compiled kernels as an .npz."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.cache import cache_dir, keep, read_kept
from corpuskit.closure import closure

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Derived(NamedTuple):
    """What was derived: JSON values and arrays, by their names; the arrays are read-only."""

    values: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def derived(name: str, stamp: str, source: str, make: Callable[[], Derived]) -> Derived:
    """Return what was kept under a name, or make and keep it.

    Args:
        name: of the file.
        stamp: hash of what it was derived from.
        source: `__file__` of the module that derives it: an edit of it, or of what it imports of
            ours, derives again.
        make: derives it.
    """
    digest = hashlib.blake2b(f"{stamp} {_source_digest(source)}".encode(), digest_size=8)
    path = cache_dir() / f"{name}-{digest.hexdigest()}.bin"
    content = read_kept(path)
    if content is None:
        content = _pack(make())
        keep(path, content)
    return _unpack(content)


@functools.cache
def _source_digest(source: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in [Path(__file__), *sorted(closure(Path(source)))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _pack(derived: Derived) -> bytes:
    file = io.BytesIO()
    values = np.frombuffer(json.dumps(derived.values).encode(), np.uint8)
    np.savez(file, allow_pickle=False, values=values, **derived.arrays)
    return file.getvalue()


def _unpack(content: bytes) -> Derived:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    for array in arrays.values():
        array.flags.writeable = False  # as kernels are compiled for
    return Derived(json.loads(arrays.pop("values").tobytes()), arrays)
