"""What both engines of substring_dedup find: the repeated spans of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DocumentSpans(NamedTuple):
    """Repeated spans, before any trimming: by key, then start; disjoint, none touch.

    The union of `[p, p + L)` over the flagged windows `p` of each document.

    Attributes:
        keys: (S,) of their documents.
        starts, ends: (S,) in symbols of the document (bytes of its text, or tokens).
    """

    keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
