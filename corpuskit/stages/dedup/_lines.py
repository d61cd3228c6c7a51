"""Units of text for line_dedup: as they are compared, counted within a cell, found again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from corpuskit.kernels.lines import case_digits_table, ccnet_table, find_units, fold_units
from corpuskit.kernels.tally import count_units, find_repeated, hash_units, index_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stage import View

Unit = Literal["line", "paragraph"]
Normalize = Literal["none", "case_digits", "ccnet"]

WAITING_UNITS = 1 << 20
"""Units of a cell that wait to be counted: with 16 bytes each, and 40 while they are."""


class Units(NamedTuple):
    """The U lines or paragraphs of N documents; arrays are (U,).

    Attributes:
        docs: document in the batch, ascending.
        starts, ends: where it is in the buffer of the texts.
        compared: what it is compared by: a buffer of bytes, starts and ends.
        scopes: (N,) numbers of the documents' scopes.
    """

    docs: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    compared: tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]
    scopes: NDArray[np.uint64]


def find(view: View, unit: Unit, normalize: Normalize, scopes: NDArray[np.uint64]) -> Units:
    """Return the units of the documents in a view."""
    offsets, data = view.text
    docs, starts, ends = find_units(offsets, data, unit == "paragraph")
    compared = (data, starts, ends)
    if normalize != "none":
        table = ccnet_table() if normalize == "ccnet" else case_digits_table()
        compared = fold_units(data, starts, ends, table)
    return Units(docs, starts, ends, compared, scopes)


class Limits(NamedTuple):
    """Which units are looked at: those with at least so many bytes and words, as compared."""

    min_bytes: int
    min_words: int


class Tally:
    """Counts the units of a cell in memory that depends on how many different ones there are.

    Args:
        by_document: a unit counts once in a document.
    """

    def __init__(self, limits: Limits, *, by_document: bool) -> None:
        self._limits, self._by_document = limits, by_document
        self._high = [np.empty(0, np.uint64)]
        self._low = [np.empty(0, np.uint32)]
        self._docs = [np.empty(0, np.int32)]
        self._counts = np.empty(0, np.uint32)
        self._waiting = self._num_docs = 0

    def add(self, units: Units) -> None:
        """Count the units of a batch."""
        found = hash_units(*units.compared, units.docs, units.scopes, *self._limits)
        self._high.append(found[0])
        self._low.append(found[1])
        self._docs.append(found[2] + np.int32(self._num_docs))
        self._num_docs += len(units.scopes)
        self._waiting += len(found[0])
        if self._waiting > WAITING_UNITS:
            self.totals()

    def totals(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the hashes of all different units, sorted, and how often each was met."""
        counts = np.ones(sum(map(len, self._high)), np.uint32)
        counts[: len(self._counts)] = self._counts
        high, low, self._counts = count_units(
            np.concatenate(self._high),
            np.concatenate(self._low),
            np.concatenate(self._docs),
            counts,
            self._by_document,
        )
        # What was counted is met again as units of a document that no other is.
        self._high, self._low = [high], [low]
        self._docs = [np.full(len(high), -1, np.int32)]
        self._waiting = 0
        return high, low, self._counts


class Repeated:
    """The repeated units of a cell; remembers which place of each has come first.

    Args:
        high, low: (K,) their hashes.
        is_home: (K,) whether the first place of the unit is to stay, and is in this cell.
        is_clear: the first hash alone tells the units of the cell apart.
    """

    def __init__(
        self,
        high: NDArray[np.uint64],
        low: NDArray[np.uint32],
        is_home: NDArray[np.bool_],
        limits: Limits,
        *,
        by_document: bool,
        is_clear: bool,
    ) -> None:
        self._high, self._low, self._limits = high, low, limits
        self._by_document, self._is_clear = by_document, is_clear
        self._table = index_hashes(high)
        self._holders = np.where(is_home, np.int64(-1), np.int64(-2))
        self._num_docs = 0

    def find(self, units: Units) -> NDArray[np.bool_]:
        """Return which units of the next batch are repeated and not those that stay."""
        found = find_repeated(
            *units.compared, units.docs, units.scopes, *self._limits,
            self._high, self._low, self._table, self._holders, self._num_docs, self._by_document,
            not self._is_clear,
        )  # fmt: skip
        self._num_docs += len(units.scopes)
        return found
