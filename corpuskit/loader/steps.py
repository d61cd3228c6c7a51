"""Which rows each step takes, including batch sizes that grow during a run."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.loader.files import MAX_NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


BatchSize = int | list[tuple[int, int]]
"""Rows of the global batch, or (first step, rows) pairs of a ramp."""


def parse_batch_size(text: str) -> BatchSize:
    """Return the batch size in `256`, or `0:256,1000:512`: 512 rows from step 1000 on.

    Raises:
        ValueError: it is something else.
    """
    try:
        if ":" not in text:
            return int(text)
        return [(int(step), int(rows)) for step, rows in (p.split(":") for p in text.split(","))]
    except ValueError:
        problem = "neither a number of rows nor a ramp like 0:256,1000:512"
        raise ValueError(f"{text!r} is {problem}") from None


# Lower and upper bound of arguments that are not compared with the plan.
LIMITS = {
    "reader_threads": (1, 1024), "max_open_parts": (1, MAX_NUMBER), "order_seed": (0, MAX_NUMBER),
    "read_ahead_bytes": (1, MAX_NUMBER), "cache_bytes": (1, MAX_NUMBER),
}  # fmt: skip


def whole_numbers(**arguments: object) -> Iterator[int]:
    """Yield arguments of a loader, which may be NumPy's integers, as ints.

    Raises:
        UsageError: an argument is not a whole number, or out of its limits.
    """
    for name, argument in arguments.items():
        number = as_whole(argument)
        if number is None:
            raise UsageError(f"loader: {name} must be a whole number, got {argument!r}.")
        low, high = LIMITS.get(name, (number, number))
        if not low <= number <= high:
            bounds = f"at least {low}" if number < low else f"at most {high:,}"
            raise UsageError(f"loader: {name} must be {bounds}, got {number}.")
        yield number


def optional_numbers(**arguments: object) -> Iterator[int | None]:
    """Yield arguments like `whole_numbers`, and None unchanged."""
    for name, argument in arguments.items():
        yield None if argument is None else next(whole_numbers(**{name: argument}))


def as_whole(number: object) -> int | None:
    """Return a whole number of any integer type, such as NumPy's, as an int; None for others."""
    try:
        return None if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


class BatchRows:
    """Rows of the global batch by step: a number, or (first step, rows) pairs of a ramp.

    Raises:
        UsageError: a ramp does not begin at step 0, does not ascend, or has a size below 1.
    """

    def __init__(self, rows: int | Sequence[tuple[int, int]]) -> None:
        ramp = _ramp(rows)
        steps = [step for step, _ in ramp]
        if not steps or steps[0] or any(b <= a for a, b in itertools.pairwise(steps)):
            raise UsageError(
                "loader: a ramp of global_batch_rows must be (first step, rows) pairs with steps"
                f" ascending from 0, got {list(ramp)}."
            )
        if min(rows for _, rows in ramp) < 1:
            raise UsageError(f"loader: global_batch_rows must be at least 1, got {rows}.")
        self.ramp = ramp
        # Lists and bisect: with few numbers, a NumPy call takes ten times as long.
        self._steps = steps
        self._rows: list[int] = [rows for _, rows in ramp]
        self._before = [0]
        for (first, size), end in zip(ramp, steps[1:], strict=False):
            self._before.append(self._before[-1] + (end - first) * size)

    def at(self, step: int) -> int:
        """Return the rows of a step."""
        return self._rows[self._section(step)]

    def before(self, step: int) -> int:
        """Return the rows of all steps before one."""
        section = self._section(step)
        return self._before[section] + (step - self._steps[section]) * self._rows[section]

    def step_of(self, row: int) -> int:
        """Return the step that takes a row, rows counted from step 0."""
        section = bisect.bisect_right(self._before, row) - 1
        return self._steps[section] + (row - self._before[section]) // self._rows[section]

    def section_end(self, step: int) -> int | None:
        """Return the next step with another batch size, None if there is none."""
        section = self._section(step) + 1
        return self._steps[section] if section < len(self.ramp) else None

    def _section(self, step: int) -> int:
        return max(0, bisect.bisect_right(self._steps, step) - 1)


def _ramp(rows: int | Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (first step, rows) pairs; accepts any integer type."""
    pairs: list[tuple[int | None, int | None]] = [(0, as_whole(rows))]
    if pairs == [(0, None)]:
        with contextlib.suppress(TypeError, ValueError):
            pairs = [(as_whole(step), as_whole(size)) for step, size in rows]  # type: ignore[union-attr]
    ramp = tuple((step, size) for step, size in pairs if step is not None and size is not None)
    if len(ramp) < len(pairs):
        raise UsageError(
            "loader: global_batch_rows must be a whole number, or (first step, rows) pairs of them,"
            f" got {rows!r}."
        )
    return ramp


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Which stored rows of the run a rank takes in each step.

    Attributes:
        batch: stored rows of the global batch by step.
        first_step: where the loader started or was moved to.
        first_row: rows consumed before it.
        rank: which of the `world_size` slices.
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
        """Return how many rows were consumed before a step.

        Raises:
            UsageError: the step is before `first_step`, which was reached with another batch size.
        """
        if step < self.first_step:
            self.require_past()
        return self.first_row + self.batch.before(step) - self.batch.before(self.first_step)

    def require_past(self) -> None:
        """Refuse to count steps before a state that was reached with another batch size.

        Raises:
            UsageError: it was.
        """
        if not self.knows_past:
            raise UsageError(
                f"loader: the first {self.first_step} steps took {self.first_row} rows, so not"
                f" {_describe(self.batch)}. Ask a loader that has the batch size of those steps."
            )

    def step_of(self, row: int) -> tuple[int, int]:
        """Return the step that takes a consumed row, and the number of the row in the step."""
        if row < self.first_row:
            self.require_past()
        shift = self.batch.before(self.first_step) - self.first_row
        step = self.batch.step_of(row + shift)
        return step, row + shift - self.batch.before(step)

    def last_step(self, num_rows: int) -> int:
        """Return how many whole steps `num_rows` consumed rows make."""
        return self.step_of(max(num_rows, self.first_row))[0]

    def rank_rows(self, step: int) -> int:
        """Return how many rows of a step this rank takes."""
        return self.batch.at(step) // self.world_size

    def rows(self, step: int, num_steps: int) -> NDArray[np.int64]:
        """Return the numbers of the consumed rows of steps of one size, (num_steps * b,)."""
        num = self.rank_rows(step)
        steps = np.arange(num_steps, dtype=np.int64) * self.batch.at(step)
        firsts = self.before(step) + self.rank * num + steps
        return (firsts[:, None] + np.arange(num)).reshape(-1)


def _describe(batch: BatchRows) -> str:
    if len(batch.ramp) == 1:
        return f"{batch.ramp[0][1]} each"
    return "those of the ramp " + ", ".join(f"{step}:{rows}" for step, rows in batch.ramp)


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """How a rank's rows of a step are cut: into `batches`, or into batches of `rows` each.

    With a ramp of the batch size the second keeps the memory of a batch constant.
    """

    batches: int = 1
    rows: int | None = None

    def count(self, rank_rows: int) -> int:
        """Return the number of batches of a step."""
        return self.batches if self.rows is None else rank_rows // self.rows

    def fits(self, rank_rows: int) -> bool:
        """Return whether all batches of a step get the same number of rows."""
        size = self.batches if self.rows is None else self.rows
        return size >= 1 and rank_rows % size == 0 and self.count(rank_rows) >= 1


def check_topology(
    batch: BatchRows, rank: int, world_size: int, micro: MicroBatches, row_chunks: int
) -> None:
    """Refuse sizes that don't divide each other, and name those that do.

    Args:
        batch: rows of the global batch by step.
        rank, world_size: the slice, and how many there are.
        micro: how a slice is cut.
        row_chunks: rows that each stored row is cut into; a slice has whole stored rows.

    Raises:
        UsageError: a size does not divide another.
    """
    if micro.rows is not None and micro.batches != 1:
        raise UsageError("loader: give micro_batches or micro_batch_rows, and not both.")
    for _, rows in batch.ramp:
        if world_size < 1 or rows % (world_size * row_chunks):
            legal = [n for n in range(1, rows // row_chunks + 1) if rows % (n * row_chunks) == 0]
            halves = f" and rows come in {row_chunks}s from a stored row" if row_chunks > 1 else ""
            raise UsageError(
                f"loader: world_size must divide global_batch_rows, got {world_size} and"
                f" {rows}{halves}. Legal for {rows} rows: {legal or 'none'}."
            )
        rank_rows = rows // world_size
        if not micro.fits(rank_rows):
            legal = [n for n in range(1, rank_rows + 1) if rank_rows % n == 0]
            name, value = (
                ("micro_batches", micro.batches)
                if micro.rows is None
                else ("micro_batch_rows", micro.rows)
            )
            raise UsageError(
                f"loader: {name} must divide the {rank_rows} rows of a rank, got {value}."
                f" Legal: {legal}."
            )
    if not 0 <= rank < world_size:
        raise UsageError(f"loader: rank must be in [0, {world_size}), got {rank}.")


def cut_rows(width: int, seq_len: int | None) -> tuple[int, int]:
    """Return the length of the rows to yield, and how many of them each stored row is cut into.

    Raises:
        UsageError: the stored rows can't be cut into rows of this length.
    """
    if seq_len is None:
        return width, 1
    if seq_len < 1 or width % seq_len:
        legal = [width // n for n in range(1, 65) if width % n == 0]
        raise UsageError(
            f"loader: seq_len must divide the {width} tokens of a packed row, got {seq_len}."
            f" Legal: {', '.join(map(str, legal))}."
        )
    return seq_len, width // seq_len
