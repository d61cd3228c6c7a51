"""Names of array types, by type of element; arrays as all kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
"""UTF-8, or small numbers such as codes of rules."""
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Uint32s: TypeAlias = NDArray[np.uint32]
Uint64s: TypeAlias = NDArray[np.uint64]
Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]
AnyArray: TypeAlias = NDArray[Any]

Element = TypeVar("Element", bound=np.generic)


def frozen(array: NDArray[Element]) -> NDArray[Element]:
    """Return a read-only view, as Arrow's buffers are: kernels are compiled once for each kind."""
    view = array.view()
    view.flags.writeable = False
    return view


def join_bytes(strings: Sequence[bytes], end: bytes = b"") -> tuple[Int64s, Bytes]:
    """Return strings one after another: offsets (N + 1,) and bytes, both read-only.

    Args:
        end: bytes after the last string, for kernels that look ahead.
    """
    offsets = np.cumsum([0, *map(len, strings)], dtype=np.int64)
    return frozen(offsets), np.frombuffer(b"".join(strings) + end, np.uint8)
