"""Within which documents duplicates are looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import utf8
from corpuskit.kernels.hashing import hash_texts
from corpuskit.stages._numbers import check_strings, to_strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stage import Known, View

GLOBAL = "global"


def scope_columns(scope: str) -> tuple[str, ...]:
    """Return the columns to read for a scope: `global`, or the name of a column of strings."""
    return () if scope == GLOBAL else (scope,)


def check_scope(known: Known, scope: str) -> None:
    """Check that the column of a scope holds strings.

    Raises:
        UsageError: it does not.
    """
    if scope != GLOBAL:
        check_strings(known, "scope", scope)


def scope_hashes(view: View, scope: str) -> NDArray[np.uint64]:
    """Return a number for the scope of each document, (N,); 0 for all in the global one.

    Documents without a value share a scope. Numbers differ where scopes do (64-bit hashes), so
    what is XORed with them before it is compared is equal only within a scope.

    Raises:
        DataError: the column holds no strings.
    """
    if scope == GLOBAL:
        return np.zeros(view.num_docs, np.uint64)
    names = to_strings(view.column(scope), scope).fill_null("").cast(pa.large_string())
    found, _ = hash_texts(*utf8(names))
    found[found == 0] = 1  # is the number of nobody else
    return found
