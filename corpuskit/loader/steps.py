"""Steps and rows: how many rows each step takes, also where the batch size grows during a run."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class BatchRows:
    """Rows of the global batch by step: a number, or (first step, rows) pairs of a ramp.

    Raises:
        UsageError: a ramp does not begin at step 0, does not ascend, or has a size below 1.
    """

    def __init__(self, rows: int | Sequence[tuple[int, int]]) -> None:
        pieces = _pieces(rows)
        steps = [step for step, _ in pieces]
        if not steps or steps[0] or any(b <= a for a, b in itertools.pairwise(steps)):
            raise UsageError(
                "loader: a ramp of global_batch_rows must be (first step, rows) pairs with steps"
                f" ascending from 0, got {list(pieces)}."
            )
        if min(rows for _, rows in pieces) < 1:
            raise UsageError(f"loader: global_batch_rows must be at least 1, got {rows}.")
        self.pieces = pieces
        self._steps = np.array(steps, np.int64)
        self._rows = np.array([rows for _, rows in pieces], np.int64)
        self._before = np.concatenate([[0], np.cumsum(np.diff(self._steps) * self._rows[:-1])])

    def at(self, step: int) -> int:
        """Return the rows of a step."""
        return int(self._rows[self._piece(step)])

    def before(self, step: int) -> int:
        """Return the rows of all steps before one."""
        piece = self._piece(step)
        return int(self._before[piece] + (step - self._steps[piece]) * self._rows[piece])

    def step_of(self, row: int) -> int:
        """Return the step that takes a row, rows counted from step 0."""
        piece = int(np.searchsorted(self._before, row, side="right")) - 1
        return int(self._steps[piece] + (row - self._before[piece]) // self._rows[piece])

    def piece_end(self, step: int) -> int | None:
        """Return the first later step with another size, None if there is none."""
        piece = self._piece(step) + 1
        return int(self._steps[piece]) if piece < len(self.pieces) else None

    def _piece(self, step: int) -> int:
        return max(0, int(np.searchsorted(self._steps, step, side="right")) - 1)


def _pieces(rows: int | Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (first step, rows) pairs; whole numbers of any type will do."""
    try:
        return ((0, operator.index(rows)),)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        pairs = [(operator.index(step), operator.index(size)) for step, size in rows]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        raise UsageError(
            "loader: global_batch_rows must be a whole number, or (first step, rows) pairs of them,"
            f" got {rows!r}."
        ) from None
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Slicing:
    """Which rows of the run one rank takes in which step; rows are stored rows.

    Attributes:
        batch: stored rows of the global batch by step.
        first_step: a step whose place is known, where the loader was told to stand.
        first_row: rows delivered before it.
        rank: of `world_size` slices, which.
    """

    batch: BatchRows
    first_step: int
    first_row: int
    rank: int
    world_size: int

    @property
    def knows_past(self) -> bool:
        """Whether steps before `first_step` had the sizes of `batch`."""
        return self.first_row == self.batch.before(self.first_step)

    def before(self, step: int) -> int:
        """Return how many rows were delivered before a step.

        Raises:
            UsageError: the step is before `first_step`, which another batch size has led to.
        """
        if step < self.first_step:
            self.require_past()
        return self.first_row + self.batch.before(step) - self.batch.before(self.first_step)

    def require_past(self) -> None:
        """Refuse to count steps before a state that another batch size has led to.

        Raises:
            UsageError: one has.
        """
        if not self.knows_past:
            raise UsageError(
                f"loader: the first {self.first_step} steps took {self.first_row} rows, so not"
                f" {_said(self.batch)}. Ask a loader with the batch size of that time."
            )

    def step_of(self, row: int) -> tuple[int, int]:
        """Return the step that takes a delivered row, and which of its rows that is."""
        if row < self.first_row:
            self.require_past()
        shift = self.batch.before(self.first_step) - self.first_row
        step = self.batch.step_of(row + shift)
        return step, row + shift - self.batch.before(step)

    def last_step(self, num_rows: int) -> int:
        """Return how many whole steps `num_rows` delivered rows make."""
        return self.step_of(max(num_rows, self.first_row))[0]

    def rank_rows(self, step: int) -> int:
        """Return how many rows of a step this rank takes."""
        return self.batch.at(step) // self.world_size

    def rows(self, step: int, num_steps: int) -> NDArray[np.int64]:
        """Return the numbers of the delivered rows of steps of one size, (num_steps * b,)."""
        size, mine = self.batch.at(step), self.rank_rows(step)
        begins = self.before(step) + self.rank * mine + np.arange(num_steps, dtype=np.int64) * size
        return (begins[:, None] + np.arange(mine)).reshape(-1)


def _said(batch: BatchRows) -> str:
    if len(batch.pieces) == 1:
        return f"{batch.pieces[0][1]} each"
    return "those of the ramp " + ", ".join(f"{step}:{rows}" for step, rows in batch.pieces)


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """How a rank's rows of a step are cut: into so many batches, or into batches of so many rows.

    With a ramp of the batch size the second keeps the memory of a batch as it is.
    """

    batches: int = 1
    rows: int | None = None

    def count(self, rank_rows: int) -> int:
        """Return the number of batches of a step."""
        return self.batches if self.rows is None else rank_rows // self.rows

    def fits(self, rank_rows: int) -> bool:
        """Say whether all batches of a step get the same number of rows."""
        size = self.batches if self.rows is None else self.rows
        return size >= 1 and rank_rows % size == 0 and self.count(rank_rows) >= 1


def check_topology(
    batch: BatchRows, rank: int, world_size: int, micro: MicroBatches, pieces: int
) -> None:
    """Refuse sizes that don't divide, with the ones that do.

    Args:
        batch: rows of the global batch by step.
        rank, world_size: the slice, and how many there are.
        micro: how a slice is cut.
        pieces: rows that one stored row is handed out as; a slice has whole stored rows.

    Raises:
        UsageError: something does not divide.
    """
    if micro.rows is not None and micro.batches != 1:
        raise UsageError("loader: give micro_batches or micro_batch_rows, and not both.")
    for _, rows in batch.pieces:
        if world_size < 1 or rows % (world_size * pieces):
            legal = [n for n in range(1, rows // pieces + 1) if rows % (n * pieces) == 0]
            halves = f" and rows come in {pieces}s from a stored row" if pieces > 1 else ""
            raise UsageError(
                f"loader: world_size must divide global_batch_rows, got {world_size} and"
                f" {rows}{halves}. Legal for {rows} rows: {legal or 'none'}."
            )
        rank_rows = rows // world_size
        if not micro.fits(rank_rows):
            legal = [n for n in range(1, rank_rows + 1) if rank_rows % n == 0]
            name, got = (
                ("micro_batches", micro.batches)
                if micro.rows is None
                else ("micro_batch_rows", micro.rows)
            )
            raise UsageError(
                f"loader: {name} must divide the {rank_rows} rows of a rank, got {got}."
                f" Legal: {legal}."
            )
    if not 0 <= rank < world_size:
        raise UsageError(f"loader: rank must be in [0, {world_size}), got {rank}.")


def cut_rows(stored: int, wanted: int | None) -> tuple[int, int]:
    """Return the length of the rows that are handed out, and how many a stored row gives.

    Raises:
        UsageError: the stored rows can't be cut into rows of this length.
    """
    if wanted is None:
        return stored, 1
    if wanted < 1 or stored % wanted:
        legal = [stored // n for n in range(1, 65) if stored % n == 0]
        raise UsageError(
            f"loader: seq_len must divide the {stored} tokens of a packed row, got {wanted}."
            f" Legal: {', '.join(map(str, legal))}."
        )
    return wanted, stored // wanted
