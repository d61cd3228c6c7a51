"""The streaming loader: the batch of a step is a pure function of plan and step, on any ranks."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.loader.assemble import Assembled, BufferPool, PlainRows, choose_fields
from corpuskit.loader.index import open_files, read_mix, without_rows
from corpuskit.loader.parts import OpenParts
from corpuskit.loader.provenance import Occurrence, Provenance
from corpuskit.loader.reader import Planner, ReadCounts, WindowReader
from corpuskit.loader.state import LoaderState, check_state, shares_before, state_at
from corpuskit.loader.steps import (
    BatchRows,
    BatchSchedule,
    MicroBatches,
    as_whole,
    check_topology,
    cut_rows,
    optional_numbers,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from corpuskit.loader.assemble import Batch
    from corpuskit.loader.index import Remix
    from corpuskit.loader.provenance import StepRow
    from corpuskit.loader.reader import Window
    from corpuskit.loader.state import SourceShare

# Tokens, labels and positions to assemble at once, or those of one step if they are more: about
# what fits the caches of a core. The fixed cost of a round equals that of 100,000 tokens.
ASSEMBLED_BYTES = 3 << 20
MAX_SECONDS = 10**8  # three years: longer waits overflow the clocks of some systems


class StreamingLoader:
    """Streams one rank's slice of every step of a run.

    Iterating yields dicts of NumPy arrays, b rows of L = seq_len input positions:

    - `tokens`, `labels`, `position_ids` (b, L) int32. A label is the next token, -100 where that
      belongs to another segment or is padding; positions restart at each segment.
    - `cu_seqlens` (n + 1,) int32 segment boundaries over the b * L positions; `max_seqlen` int.
    - `source_ids` (b,) int32 into `source_names`; `row_ids` (b,) int64 row within the source;
      `run_rows` (b,) int64 the run's row index; `text_bytes` (b,) int64 bytes of text in the row.
    - `step` int: the step that the batch belongs to. With `seq_len`, `row_parts` (b,) int32: which
      chunk of its stored row a row is.

    With `fields`, a batch holds these and `step`; what only other fields need is neither read nor
    computed nor allocated.

    A loader is one pass over the run, whose epochs are in the plan: at its end, iterating yields
    nothing, with a warning. An iterator continues at the position of the loader, which advances
    with the last batch of a step: `state_dict()` in the body of the loop is the state after that
    step. With `micro_batches` = m, a step yields m batches, and a state between them is that of the
    beginning of the step. Rows at the end of the plan that are fewer than a global batch are not
    yielded.

    Args:
        run_dir: the directory of a finished run, or its address in object storage.
        global_batch_rows: rows of one step over all ranks; or a ramp, (first step, rows) pairs from
            step 0 on. The order of rows does not depend on it.
        rank: which slice of each step to yield.
        world_size: number of slices; divides every batch size.
        micro_batches: batches that this rank's slice is cut into; divides its rows.
        micro_batch_rows: instead of `micro_batches`, the rows of each: a ramp grows in batches.
        seq_len: yield every packed row as rows of this length, which divides it; they count as
            rows of the global batch, and the chunks of a packed row stay together.
        start_step: where to begin, in steps from the start of the run.
        num_steps: steps of the whole run; None for as many as the plan has rows for.
        fields: names of the fields of a batch, such as ("tokens", "labels"); None for all.
        skip: spans of rows of the run, [first, end), that only this training skips, as after a
            rollback; store them beside the state. With a third item, the hash of the plan that they
            were chosen under, they end where a later edit has replaced the rows.
        order_seed: take the rows of each source in another random order than the plan's; for
            repetitions of an experiment. Slower: no source is read from front to back.
        remix: take the rows in other shares than the plan's; for searches of a mixture.
        reader_threads: threads that read ahead; None for 2, for 8 from object storage.
        read_ahead_bytes: bound on the stored rows held in memory.
        read_deadline_seconds: a step that waits longer for the read of a row group raises.
        max_open_parts: bound on open files.
        cache_dir: folder on this machine for what comes from object storage, shared by the ranks
            of the machine and by later runs; None to write nothing.
        cache_bytes: bound on the files in it.
    """

    _reader: WindowReader | None
    _single_steps: WindowReader | None

    def __init__(
        self,
        run_dir: str | Path,
        global_batch_rows: int | Sequence[tuple[int, int]] = 8,
        rank: int = 0,
        world_size: int = 1,
        *,
        micro_batches: int = 1,
        micro_batch_rows: int | None = None,
        seq_len: int | None = None,
        start_step: int = 0,
        num_steps: int | None = None,
        fields: Sequence[str] | None = None,
        skip: Sequence[tuple[int, int] | tuple[int, int, str]] = (),
        order_seed: int | None = None,
        remix: Remix | None = None,
        reader_threads: int | None = None,
        read_ahead_bytes: int = 128 << 20,
        read_deadline_seconds: float = 120.0,
        max_open_parts: int = 64,
        cache_dir: str | Path | None = None,
        cache_bytes: int = 8 << 30,
    ) -> None:
        rank, world_size, micro_batches, start_step, max_open_parts = whole_numbers(
            rank=rank, world_size=world_size, micro_batches=micro_batches, start_step=start_step,
            max_open_parts=max_open_parts,
        )  # fmt: skip
        read_ahead_bytes, cache_bytes = whole_numbers(
            read_ahead_bytes=read_ahead_bytes, cache_bytes=cache_bytes
        )
        micro_batch_rows, seq_len, num_steps, order_seed, reader_threads = optional_numbers(
            micro_batch_rows=micro_batch_rows, seq_len=seq_len, num_steps=num_steps,
            order_seed=order_seed, reader_threads=reader_threads,
        )  # fmt: skip
        _require_seconds(read_deadline_seconds)
        batch = BatchRows(global_batch_rows)
        files = open_files(
            run_dir, deadline_seconds=read_deadline_seconds, cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )  # fmt: skip
        self.plan = without_rows(read_mix(files, order_seed, remix), skip)
        self.seq_len, self._row_chunks = cut_rows(self.plan.seq_len, seq_len)
        self._fields = choose_fields(fields, self._row_chunks)
        self.rank, self.world_size = rank, world_size
        self._micro = MicroBatches(micro_batches, micro_batch_rows)
        check_topology(batch, rank, world_size, self._micro, self._row_chunks)
        self._batch = batch
        self._stored = BatchRows([(step, rows // self._row_chunks) for step, rows in batch.ramp])
        self._threads, self._read_ahead = reader_threads or files.reader_threads, read_ahead_bytes
        self._deadline, self._max_open = read_deadline_seconds, max_open_parts
        self._num_steps = num_steps
        self._reader = self._single_steps = None
        self._counts = ReadCounts()
        self._provenance = Provenance(self.plan, read_deadline_seconds)
        self._seek(start_step, self._stored.before(max(0, start_step)))
        if files.cache is not None:
            columns, max_bytes = self._fields.columns, read_ahead_bytes // 2
            planner = Planner(self.plan, self._schedule, self._end_step, columns, max_bytes)
            planner.reserve(files.cache, self._step)

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of sources; `source_ids` are their indices."""
        return tuple(source.name for source in self.plan.sources)

    @property
    def global_batch_rows(self) -> int:
        """Rows of the next step over all ranks."""
        return self._batch.at(self._step)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, those done included."""
        return self._end_step

    @property
    def micro_batches(self) -> int:
        """Batches of the next step."""
        return self._micro.count(self.global_batch_rows // self.world_size)

    @property
    def num_batches(self) -> int:
        """Batches of the whole run, those done included."""
        sizes, last = self._batch.ramp, self._end_step
        ends = [*(min(step, last) for step, _ in sizes[1:]), last]
        return sum(
            max(0, end - first) * self._micro.count(rows // self.world_size)
            for (first, rows), end in zip(sizes, ends, strict=True)
        )

    @property
    def read_counts(self) -> ReadCounts:
        """Counts of what the current or last iterator has read."""
        return self._reader.counts if self._reader else self._counts

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        return self._stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and close the parts; the loader keeps its position, and can be used."""
        if self._reader:
            self._counts = self._reader.counts
            self._reader.close()
            self._reader = None
        if self._single_steps:
            self._single_steps.close()
            self._single_steps = None

    def batches_at(self, step: int) -> list[Batch]:
        """Return the batches of this rank's slice of any step, past or future.

        The loader keeps its position, and iterators continue. Only row groups with rows of the step
        are read, whole, since their pages are verified. A thread and the open parts stay until
        `close`. Call it from one thread at a time.

        Raises:
            UsageError: the run has no such step, or this point was reached with another batch size.
            DataError: a row can't be read, or its read is past the deadline.
        """
        step = self._check_step(step, "batches_at")
        reader = self._single_steps
        if reader is None or not reader.is_open:
            reader = self._single_steps = self._open_reader(0, 0, num_threads=1)
            weakref.finalize(self, reader.close).atexit = False  # its thread would keep it alive
        try:
            reader.turn_to(step)
            rows, steps = self._take(BufferPool(), reader, step)
        except BaseException:
            reader.close()
            raise
        return list(rows.batches(steps))

    def state_dict(self) -> dict[str, object]:
        """Return the position between two steps, JSON-ready; see `LoaderState`."""
        return self.state_at(self._step)

    def state_at(self, step: int) -> dict[str, object]:
        """Return the position after `step` steps, past or future, independent of iterators.

        For training code that prefetches: the state of a batch is that after its step,
        `state_at(batch["step"] + 1)`, not the position of the loader.

        Raises:
            UsageError: the run has no such step, or this point was reached with another batch size.
        """
        step = self._check_step(step, "state_at", extra=1)
        rows = self._row_index_after(self._schedule.before(step))
        return state_at(self.plan, step, rows).to_dict()

    def load_state_dict(self, fields: Mapping[str, object]) -> None:
        """Move to a saved position; ranks, micro-batches and batch size may have changed since.

        A state of another plan is accepted if both have the same history up to it: sources and
        stages may be added after it, the run be longer, spans to skip begin later. The proof is a
        hash over all that decides those rows, which is recomputed under this plan.

        Raises:
            UsageError: the state is of a plan with another history.
            DataError: it is not a state, or contradicts itself or its plan; names the field.
        """
        state = LoaderState.from_dict(fields)
        check_state(state, self.plan)
        self._seek(state.step, self.plan.skips.consumed_before(state.rows))
        self.close()

    def which(self, step: int, rank: int | None = None, row: int | None = None) -> list[StepRow]:
        """Return the rows of a step with their documents.

        Args:
            step: a step of the run, past or future.
            rank: only the slice of this rank.
            row: only this row of the slice, or of the global batch without `rank`.

        Raises:
            UsageError: the run has no such step, rank or row.
        """
        step = self._check_step(step, "which")
        num_rows = self._batch.at(step) // (1 if rank is None else self.world_size)
        rank = None if rank is None else _within(self.world_size, rank, "which: rank")
        row = None if row is None else _within(num_rows, row, "which: row")
        first = (rank or 0) * num_rows
        rows = first + (np.arange(num_rows) if row is None else np.array([row]))
        stored_rows, chunks = np.divmod(rows, self._row_chunks)
        row_indices = self.plan.skips.row_indices(self._schedule.before(step) + stored_rows)
        cuts = chunks * self.seq_len if self._row_chunks > 1 else None
        return self._provenance.rows_of(step, rows, row_indices, cuts, self.seq_len)

    def occurrences(self, document: str | int) -> list[Occurrence]:
        """Return every occurrence of a document, given by id or key, in the order of steps.

        Raises:
            UsageError: no packed row holds such a document.
        """
        occurrences = []
        for match in self._provenance.rows_with(document):
            step, row = self._schedule.step_of(self.plan.skips.consumed_before(match.row_index))
            if step >= self._last_step():
                continue
            first = match.first_token // self.seq_len
            # The last token of a stored row is only ever a label.
            last = min(match.last_token, self.plan.seq_len - 1) // self.seq_len
            occurrences += [
                Occurrence(
                    step, row * self._row_chunks + chunk, match.row, match.epoch, match.masked
                )
                for chunk in range(min(first, last), last + 1)
            ]
        return occurrences

    def row_at(self, step: int) -> int:
        """Return the row index of the first row of a step; after the last step, the run's end.

        Raises:
            UsageError: the run has no such step, or this point was reached with another batch size.
        """
        step = self._check_step(step, "row_at", extra=1)
        consumed = self._schedule.before(step)
        if consumed >= self.plan.skips.num_consumed:
            return self.plan.order.num_rows
        return int(self.plan.skips.row_indices(np.array([consumed]))[0])

    def mixture(self, step: int | None = None) -> list[SourceShare]:
        """Return what each source has given after `step` steps; by default, those done.

        Raises:
            UsageError: the run has no such step.
        """
        step = self._check_step(self._step if step is None else step, "mixture", extra=1)
        return shares_before(self.plan, self._row_index_after(self._schedule.before(step)))

    def _check_step(self, step: int, method: str, extra: int = 0) -> int:
        return _within(self._last_step() + extra, step, f"{method}: step")

    def _seek(self, step: int, consumed: int) -> None:
        """Move to a step; `consumed` stored rows come before it."""
        schedule = BatchSchedule(self._stored, step, consumed, self.rank, self.world_size)
        num_consumed, num_steps = self.plan.skips.num_consumed, self._num_steps
        if step < 0 or consumed > num_consumed:
            last = BatchSchedule(self._stored, 0, 0, 0, 1).last_step(num_consumed)
            raise UsageError(f"loader: start_step must be in [0, {last}], got {step}.")
        last = schedule.last_step(num_consumed)
        if num_steps is not None and not max(step, 1) <= num_steps <= last:
            progress = f", {step} done" if step else ""
            raise UsageError(
                f"loader: num_steps must be at least {max(step, 1)} and at most {last}, the steps"
                f" of {self._batch.at(last)} rows in plan {self.plan.name!r}{progress},"
                f" got {num_steps}."
            )
        self._step, self._schedule = step, schedule
        self._end_step = last if num_steps is None else num_steps

    def _last_step(self) -> int:
        return self._schedule.last_step(self.plan.skips.num_consumed)

    def _row_index_after(self, consumed: int) -> int:
        if not consumed:
            return 0
        return int(self.plan.skips.row_indices(np.array([consumed - 1]))[0]) + 1

    def _stream(self) -> Iterator[Batch]:
        if self._step >= self._end_step:
            # Not an error: a finished run that is started again comes here. Python warns once.
            warnings.warn(
                f"loader: {self._step} of {self._end_step} steps are done, so there is nothing to"
                " iterate over. The epochs are in the plan, and a loader is one pass over it; to"
                " take its steps again, load_state_dict(state_at(0)).",
                stacklevel=2,
            )
            return
        pool, step = BufferPool(), self._step
        reader = self._reader = self._open_reader(step, self._end_step, num_threads=self._threads)
        try:
            while step < self._end_step:
                rows, steps = self._take(pool, reader, step)
                for batch, next_step in zip(
                    rows.batches(steps), [*steps[1:], steps[-1] + 1], strict=True
                ):
                    if not reader.is_open:
                        reader.require_open()
                    step = self._step = next_step  # advances with the last batch of a step
                    yield batch
        finally:
            reader.close()
            if self._reader is reader:
                self.close()

    def _open_reader(self, first_step: int, end_step: int, *, num_threads: int) -> WindowReader:
        return WindowReader(
            self.plan,
            OpenParts(self.plan, self._max_open),
            self._schedule,
            first_step,
            end_step,
            columns=self._fields.columns,
            num_threads=num_threads,
            read_ahead_bytes=self._read_ahead,
            deadline_seconds=self._deadline,
        )

    def _take(
        self, pool: BufferPool, reader: WindowReader, step: int
    ) -> tuple[Assembled, list[int]]:
        """Return the rows of the next steps that are ready, and the step of each batch."""
        window = reader.window_of(step)
        rank_rows = window.rank_rows * self._row_chunks
        micro_batches = self._micro.count(rank_rows)
        row_bytes = 4 * self.plan.seq_len * max(1, len(self._fields.large))
        num_steps = ASSEMBLED_BYTES // (window.rank_rows * row_bytes)
        end = step + window.num_ready(step, max(1, num_steps))
        rows = self._assemble(pool, window, step, end, rank_rows // micro_batches)
        return rows, [number for number in range(step, end) for _ in range(micro_batches)]

    def _assemble(
        self, pool: BufferPool, window: Window, begin: int, end: int, batch_rows: int
    ) -> Assembled:
        """Return the arrays of steps [begin, end) of a window; the large ones are copies."""
        first = (begin - window.first_step) * window.rank_rows
        rows = slice(first, (end - window.first_step) * window.rank_rows)
        tokens, text_bytes, masked = window.tokens[rows], window.text_bytes[rows], None
        if window.masks is not None:
            pad = self.plan.tokenizer.get("pad", 0)
            into = window.masks.into
            spans = slice(*np.searchsorted(into, [rows.start, rows.stop]).tolist())
            masked = (into[spans] - first, window.masks.firsts[spans], window.masks.ends[spans])
            for row, start, stop in zip(*(column.tolist() for column in masked), strict=True):
                tokens[row, start:stop] = pad if isinstance(pad, int) else 0
            np.subtract.at(text_bytes, masked[0], window.masks.text_bytes[spans])
        return Assembled(
            pool,
            self._fields,
            PlainRows(
                tokens,
                window.segments.starts_of(rows),
                window.segments.counts[rows],
                window.pads[rows],
                text_bytes,
            ),
            self.plan.seq_len,
            {
                "source_ids": window.rows.sources[rows],
                "row_ids": window.rows.rows[rows],
                "run_rows": window.row_indices[rows],
            },
            batch_rows=batch_rows,
            row_chunks=self._row_chunks,
            masked=masked,
        )


def _within(end: int, number: int, name: str) -> int:
    """Return a number in [0, end), such as NumPy's, as an int."""
    index = as_whole(number)
    if index is None:
        raise UsageError(f"{name} must be a whole number, got {number!r}.")
    if not 0 <= index < end:
        raise UsageError(f"{name} must be in [0, {end}), got {index}.")
    return index


def _require_seconds(deadline: Any) -> None:
    is_number = isinstance(deadline, float | np.floating) or as_whole(deadline) is not None
    if not is_number or not 0 < deadline <= MAX_SECONDS:
        raise UsageError(
            f"loader: read_deadline_seconds must be above 0 and at most {MAX_SECONDS:,}, got"
            f" {deadline!r}."
        )
