"""The streaming loader: the batch of a step as a pure function of plan and step, on any ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.loader.assemble import Assembled, Memory
from corpuskit.loader.index import read_mix
from corpuskit.loader.parts import Parts
from corpuskit.loader.provenance import Provenance, Sighting
from corpuskit.loader.reader import ReadCounts, Reader
from corpuskit.loader.state import LoaderState, check_state, state_at
from corpuskit.loader.window import Slicing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from corpuskit.loader.assemble import Batch
    from corpuskit.loader.provenance import StepRow
    from corpuskit.loader.window import Window

ASSEMBLED_TOKENS = 1 << 18


class StreamingLoader:
    """Streams one rank's slice of every step of a run.

    Iterating yields dicts of NumPy arrays, b rows of L = seq_len input positions:

    - `tokens`, `labels`, `position_ids` (b, L) int32. A label is the next token, -100 where that
      belongs to another segment or is padding; positions restart at each segment.
    - `cu_seqlens` (n + 1,) int32 segment boundaries over the b * L positions; `max_seqlen` int.
    - `source_ids` (b,) int32 into `source_names`; `row_ids` (b,) int64 row within the source;
      `run_rows` (b,) int64 the run's row counter; `text_bytes` (b,) int64 bytes of text in the row.

    An iterator goes on where the loader stands, and the loader moves on with the last batch of a
    step: `state_dict()` in the body of the loop is the state behind that step. With `micro_batches`
    = m, a step yields m batches, and a state in between is that of the beginning of the step. Rows
    left over at the end of the plan, fewer than a global batch, are not delivered.

    Args:
        run_dir: the directory of a finished run.
        global_batch_rows: rows of one step over all ranks.
        rank: which slice of each step to yield.
        world_size: number of slices; divides `global_batch_rows`.
        micro_batches: batches that this rank's slice is cut into; divides its rows.
        start_step: where to begin, in steps of `global_batch_rows` from the start of the run.
        num_steps: steps of the whole run; None for as many as the plan has rows for.
        reader_threads: threads that read ahead.
        read_ahead_bytes: bound on the stored rows held in memory.
        read_deadline_seconds: how long the read of a row group may take before the step that waits
            for it raises.
        max_open_parts: bound on open files.
    """

    def __init__(
        self,
        run_dir: str | Path,
        global_batch_rows: int = 8,
        rank: int = 0,
        world_size: int = 1,
        *,
        micro_batches: int = 1,
        start_step: int = 0,
        num_steps: int | None = None,
        reader_threads: int = 2,
        read_ahead_bytes: int = 128 << 20,
        read_deadline_seconds: float = 120.0,
        max_open_parts: int = 64,
    ) -> None:
        _check_topology(global_batch_rows, rank, world_size, micro_batches)
        for name, number in (
            ("reader_threads", reader_threads),
            ("max_open_parts", max_open_parts),
        ):
            if number < 1:
                raise UsageError(f"loader: {name} must be at least 1, got {number}.")
        if read_deadline_seconds <= 0:
            raise UsageError(
                f"loader: read_deadline_seconds must be above 0, got {read_deadline_seconds}."
            )
        self.plan = read_mix(run_dir)
        self.global_batch_rows = global_batch_rows
        self.rank, self.world_size = rank, world_size
        self.micro_batches = micro_batches
        self._threads, self._read_ahead = reader_threads, read_ahead_bytes
        self._deadline, self._max_open = read_deadline_seconds, max_open_parts
        self._wanted_steps = num_steps
        self._reader: Reader | None = None
        self._counts = ReadCounts()
        self._provenance = Provenance(self.plan, read_deadline_seconds)
        self._stand_at(start_step, start_step * global_batch_rows)

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources that `source_ids` number."""
        return tuple(source.name for source in self.plan.sources)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, those done included."""
        return self._end_step

    @property
    def read_counts(self) -> ReadCounts:
        """What the current or last iterator has read."""
        return self._reader.counts if self._reader else self._counts

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        return self._stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the reader threads; the loader keeps its position and can be iterated again."""
        if self._reader:
            self._counts = self._reader.counts
            self._reader.close()
            self._reader = None

    def state_dict(self) -> dict[str, object]:
        """Return the position between two steps, JSON-ready; see `LoaderState`."""
        rows = self._counter_behind(self._delivered(self._step))
        return state_at(self.plan, self._step, rows).to_dict()

    def load_state_dict(self, fields: Mapping[str, object]) -> None:
        """Move to a saved position; ranks, micro-batches and batch size may have changed since.

        A state of another plan is accepted when both have the same history up to it: sources and
        stages may be added behind it, the run be longer, spans to skip begin later. The proof is a
        hash over all that decides those rows, computed again under this plan.

        Raises:
            UsageError: the state is of a plan with another history.
            DataError: the state contradicts itself or its plan.
        """
        state = LoaderState.from_dict(fields)
        check_state(state, self.plan)
        self.close()
        self._stand_at(state.step, self.plan.skips.delivered_before(state.rows))

    def which(self, step: int, rank: int | None = None, row: int | None = None) -> list[StepRow]:
        """Return the rows of a step with their documents.

        Args:
            step: a step of the run, past or future.
            rank: only the slice of this rank.
            row: only this row of the slice, or of the global batch without `rank`.

        Raises:
            UsageError: the run has no such step, rank or row.
        """
        if not 0 <= step < self._last_step():
            raise UsageError(f"which: step must be in [0, {self._last_step()}), got {step}.")
        num_rows = self.global_batch_rows // (1 if rank is None else self.world_size)
        if rank is not None and not 0 <= rank < self.world_size:
            raise UsageError(f"which: rank must be in [0, {self.world_size}), got {rank}.")
        if row is not None and not 0 <= row < num_rows:
            raise UsageError(f"which: row must be in [0, {num_rows}), got {row}.")
        first = (rank or 0) * num_rows
        chosen = np.arange(num_rows) if row is None else np.array([row])
        counters = self.plan.skips.counters(self._delivered(step) + first + chosen)
        return self._provenance.rows_of(step, first + chosen, counters)

    def when(self, document: str | int) -> list[Sighting]:
        """Return every time the run sees a document, given by id or key, in the order of steps.

        Raises:
            UsageError: no packed row holds such a document.
        """
        begin, step_rows = self._delivered(self._first_step), self.global_batch_rows
        sightings = []
        for counter, row, epoch in self._provenance.counters_of(document):
            delivered = self.plan.skips.delivered_before(counter)
            if delivered < begin:
                self._check_past()
            step, place = divmod(delivered - begin, step_rows)
            if self._first_step + step < self._last_step():
                sightings.append(Sighting(self._first_step + step, place, row, epoch))
        return sightings

    def _stand_at(self, step: int, delivered: int) -> None:
        """Make (step, delivered rows) the point that steps are counted from."""
        self._first_step = self._step = step
        self._first_row = delivered
        last = self._last_step()
        if step < 0 or delivered > self.plan.skips.num_delivered:
            raise UsageError(f"loader: start_step must be in [0, {last}], got {step}.")
        if self._wanted_steps is not None and self._wanted_steps > last:
            raise UsageError(
                f"loader: num_steps must be at most {last}, the steps of"
                f" {self.global_batch_rows} rows in plan {self.plan.name!r},"
                f" got {self._wanted_steps}."
            )
        self._end_step = last if self._wanted_steps is None else self._wanted_steps

    def _last_step(self) -> int:
        """Return how many steps the plan has rows for."""
        left = self.plan.skips.num_delivered - self._first_row
        return self._first_step + left // self.global_batch_rows

    def _delivered(self, step: int) -> int:
        """Return how many rows were delivered before a step."""
        if step < self._first_step:
            self._check_past()
        return self._first_row + (step - self._first_step) * self.global_batch_rows

    def _check_past(self) -> None:
        """Refuse to count steps before a state that another batch size has led to."""
        if self._first_row != self._first_step * self.global_batch_rows:
            raise UsageError(
                f"loader: the first {self._first_step} steps took {self._first_row} rows, so not"
                f" {self.global_batch_rows} each. Ask a loader with the batch size of that time."
            )

    def _counter_behind(self, delivered: int) -> int:
        if not delivered:
            return 0
        return int(self.plan.skips.counters(np.array([delivered - 1]))[0]) + 1

    def _stream(self) -> Iterator[Batch]:
        rank_rows = self.global_batch_rows // self.world_size
        delivered = self._delivered(self._step)
        offset = self.rank * rank_rows
        slicing = Slicing(self._step, delivered, self.global_batch_rows, offset, rank_rows)
        parts = Parts(self.plan, self._max_open)
        reader = self._reader = Reader(
            self.plan,
            parts,
            slicing,
            self._end_step,
            num_threads=self._threads,
            read_ahead_bytes=self._read_ahead,
            deadline_seconds=self._deadline,
        )
        size, memory = rank_rows // self.micro_batches, Memory()
        most = max(1, ASSEMBLED_TOKENS // (rank_rows * self.plan.seq_len))
        end = self._step
        try:
            for step in range(self._step, self._end_step):
                if step == end:
                    window = reader.window_of(step)
                    begin, end = step, step + window.num_ready(step, most)
                    rows = _assemble(memory, window, begin, end, rank_rows)
                for micro in range(self.micro_batches):
                    reader.require_open()
                    first = (step - begin) * rank_rows + micro * size
                    if micro == self.micro_batches - 1:
                        self._step = step + 1
                    yield rows.batch(first, first + size)
        finally:
            reader.close()
            if self._reader is reader:
                self.close()


def _assemble(memory: Memory, window: Window, begin: int, end: int, rank_rows: int) -> Assembled:
    """Make arrays of the steps [begin, end) of a window; nothing of it refers to the window."""
    rows = slice((begin - window.first_step) * rank_rows, (end - window.first_step) * rank_rows)
    return Assembled(
        memory,
        window.stored[rows],
        window.starts[rows],
        window.pads[rows],
        source_ids=window.rows.sources[rows],
        row_ids=window.rows.rows[rows],
        run_rows=window.counters[rows],
        text_bytes=window.text_bytes[rows],
    )


def _check_topology(global_batch_rows: int, rank: int, world_size: int, micro_batches: int) -> None:
    """Refuse sizes that don't divide, with the ones that do."""
    if global_batch_rows < 1 or world_size < 1 or global_batch_rows % world_size:
        legal = [n for n in range(1, global_batch_rows + 1) if global_batch_rows % n == 0]
        raise UsageError(
            f"loader: world_size must divide global_batch_rows, got {world_size} and"
            f" {global_batch_rows}. Legal for {global_batch_rows} rows: {legal or 'none'}."
        )
    if not 0 <= rank < world_size:
        raise UsageError(f"loader: rank must be in [0, {world_size}), got {rank}.")
    rank_rows = global_batch_rows // world_size
    if micro_batches < 1 or rank_rows % micro_batches:
        legal = [n for n in range(1, rank_rows + 1) if rank_rows % n == 0]
        raise UsageError(
            f"loader: micro_batches must divide the {rank_rows} rows of a rank, got"
            f" {micro_batches}. Legal: {legal}."
        )
