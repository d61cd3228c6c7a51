"""Which rule each record of a batch breaks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


class Findings:
    """Rules broken by N records; the first one found counts.

    Args:
        rules: their names.
        num: records, N.

    Attributes:
        codes: (N,) uint8: 0 = none, k = `rules[k - 1]`, NOTHING = the record is no document at all.
    """

    NOTHING = 255

    def __init__(self, rules: tuple[str, ...], num: int) -> None:
        self.rules = rules
        self.codes: NDArray[np.uint8] = np.zeros(num, np.uint8)

    def mark(self, rule: str | None, broken: NDArray[np.bool_]) -> None:
        """Note that some records break a rule, or (None) that they are no documents."""
        code = self.NOTHING if rule is None else self.rules.index(rule) + 1
        self.codes[broken & (self.codes == 0)] = code

    def rows(self) -> list[tuple[int, str]]:
        """Return (row, rule) of every record that is to be rejected."""
        rows = np.flatnonzero((self.codes != 0) & (self.codes != self.NOTHING))
        return [(row, self.rules[self.codes[row] - 1]) for row in rows.tolist()]


def pick(array: pa.Array | None, rows: pa.Array, num: int) -> pa.Array | None:
    """Return some rows of an array of `num` rows; the array itself, not copied, if that is all."""
    return array if array is None or len(rows) == num else array.take(rows)
