"""Watches the steps of a run: signals, time limits, slow ranks, traces, files, the observer.

See also heartbeat.py (heartbeats, watchdog, exit codes) and status.py, which reads them.
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from corpuskit.train.continuation import changed_settings
from corpuskit.train.evaluation import evaluate
from corpuskit.train.likelihood import score_items
from corpuskit.train.metrics import DataWaits, EvaluationMetrics, MetricsWriter
from corpuskit.train.optim import averaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from corpuskit.train.checkpoint import VerifiedCheckpoint
    from corpuskit.train.heartbeat import HeartbeatWriter
    from corpuskit.train.likelihood import Evaluated
    from corpuskit.train.metrics import Observer, StepMetrics, TrainResult, Update
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.setup import Run

MAX_SNAPSHOT_EVENTS = 200_000  # allocations in a snapshot of the device's memory
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # a scheduler's end, and Slurm's warning before it


class StopSignals:
    """Records the first SIGTERM or SIGUSR1 while entered; the loop checks after each step.

    Only the main thread may set handlers; in any other thread no signal is recorded.

    Args:
        stop_after_seconds: the time, from now, after which the run stops as well. Ranks start at
            different times; the first one whose time is over stops all of them.
    """

    def __init__(self, stop_after_seconds: float | None = None) -> None:
        self._signal: str | None = None
        seconds = math.inf if stop_after_seconds is None else stop_after_seconds
        self._deadline = time.monotonic() + seconds
        self._old_handlers: dict[signal.Signals, Callable[..., object] | int | None] = {}

    @property
    def received(self) -> str | None:
        """The signal's name, or "stop_after_seconds"; None so far."""
        if self._signal is None and time.monotonic() >= self._deadline:
            return "stop_after_seconds"
        return self._signal

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old_handlers = {n: signal.signal(n, self._note) for n in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number).name


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """The time that each rank needs for a step by itself; sequences are by rank."""

    step_seconds: float  # mean of a step as measured
    own_seconds: tuple[float, ...]  # of a step: its work and its wait for rows
    data_wait_seconds: tuple[float, ...]  # of a step
    slowness: tuple[float, ...]  # of its work, as a multiple of the median rank's
    slowest: int  # rank with the most seconds of its own
    host: str  # of the slowest
    ratio: float  # its own seconds as a multiple of the median rank's

    def __str__(self) -> str:
        rank = self.slowest
        return (
            f"ranks: slowest is {rank} on {self.host}, {self.ratio:.2f} times the median: "
            f"{self.own_seconds[rank]:.3f} s a step of its own, "
            f"{self.data_wait_seconds[rank]:.3f} s of it waiting for rows, "
            f"work {self.slowness[rank]:.2f} times the median; a step takes "
            f"{self.step_seconds:.3f} s"
        )


class Speeds:
    """Finds the rank that the others wait for.

    Steps of synchronous training take equally long on every rank, so their time does not tell which
    rank is slow. Instead each rank measures itself: how long it waits for rows, how long a matrix
    product of its own takes, and on CPU how much processor time it uses. That finds a slow clock, a
    device that is throttled or shared, slow storage and, on CPU, more work than others have. It
    does not find a slow network, which delays all ranks alike, nor delays between two comparisons
    that use no processor time, nor uneven work on CUDA.

    All ranks construct it together, while no save is in flight; they may call `compare` during one.
    """

    def __init__(self, parallel: Parallel) -> None:
        self._parallel = parallel
        self._hosts: list[str] = parallel.gather(socket.gethostname())
        self._probe = _Probe(parallel.device)
        self._since = time.perf_counter(), time.process_time()

    def compare(self, step_seconds: float, data_wait_seconds: float) -> SpeedReport:
        """Return the comparison, the same on every rank; collective.

        Takes the time of three matrix products, or 0.5 % of the time since the last comparison,
        whichever is more.

        Args:
            step_seconds: of a step, the mean since the last comparison.
            data_wait_seconds: of it, this rank's wait for rows.
        """
        wall, cpu = self._since
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        # On CUDA processor time is Python's, which the device does not wait for.
        share = cpu / wall if self._parallel.device.type == "cpu" else 0.0
        probe = self._probe.seconds(0.005 * wall)
        figures = [step_seconds, data_wait_seconds, share * step_seconds, probe]
        # Only the main thread uses the default group, so a save in flight does no harm.
        values = torch.tensor(figures, dtype=torch.float64, device=self._parallel.device)
        ranks = self._parallel.world_size
        gathered = [torch.empty_like(values) for _ in range(ranks)]
        dist.all_gather(gathered, values)
        self._since = time.perf_counter(), time.process_time()
        return report_of([tuple(row.tolist()) for row in gathered], self._hosts)


def report_of(ranks: Sequence[tuple[float, ...]], hosts: Sequence[str]) -> SpeedReport:
    """Turn measurements into a report.

    Args:
        ranks: (step, wait for rows, processor time of a step or 0, probe) in seconds, by rank.
        hosts: by rank.
    """
    steps, waits, cpus, probes = (list(column) for column in zip(*ranks, strict=True))
    slowness = [
        max(cpu, probe) for cpu, probe in zip(_by_median(cpus), _by_median(probes), strict=True)
    ]
    # A step without the wait for rows is work, and the wait for the slowest rank. Where that is
    # shortest, a rank hardly waits: it is the time for which the slowest rank works.
    least_work = min(step - wait for step, wait in zip(steps, waits, strict=True))
    unit = max(least_work, 0.0) / max(slowness)
    work = [wait + unit * slow for wait, slow in zip(waits, slowness, strict=True)]
    slowest = max(range(len(work)), key=work.__getitem__)
    return SpeedReport(
        step_seconds=statistics.fmean(steps),
        own_seconds=_rounded(work),
        data_wait_seconds=_rounded(waits),
        slowness=_rounded(slowness),
        slowest=slowest,
        host=hosts[slowest],
        ratio=_by_median(work)[slowest],
    )


def _by_median(values: Sequence[float]) -> list[float]:
    # The lower median: of two ranks the faster one. Their mean would hide half of the difference.
    middle = statistics.median_low(values)
    return [value / middle if middle > 0 else 1.0 for value in values]


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


class _Probe:
    """A matrix product that each rank computes alone."""

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        size, dtype = (4096, torch.bfloat16) if is_cuda else (256, torch.float32)
        self._matrix = torch.ones(size, size, dtype=dtype, device=device)
        self._device = device
        self.seconds(0.0)  # the first product chooses algorithms and wakes threads

    def seconds(self, at_least: float) -> float:
        """Return the mean time of a product, over three of them and `at_least` seconds."""
        start, number = time.perf_counter(), 0
        self._wait()
        while number < 3 or time.perf_counter() - start < at_least:
            self._matrix @ self._matrix
            self._wait()
            number += 1
        return (time.perf_counter() - start) / number

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Watch:
    """Writes what happens in a run to its files, and notifies the observer.

    Only rank 0 does so; on others the same methods do nothing, so that the loop needs no cases.
    """

    def __init__(
        self, run: Run, observer: Observer | None, heartbeat: HeartbeatWriter, stop: StopSignals,
        evaluated: Evaluated,
    ) -> None:  # fmt: skip
        self.evaluated = evaluated
        is_first = run.parallel.rank == 0
        self._run, self.heartbeat, self.stop = run, heartbeat, stop
        self._observer = observer if is_first else None
        self._writer = MetricsWriter(Path(run.settings.output), run.num_done) if is_first else None
        self.waits, self._speeds = DataWaits(), Speeds(run.parallel)
        self._since: list[tuple[float, float]] = []
        self._experts: torch.Tensor | None = None

    def __enter__(self) -> Self:
        if self._writer:
            self._writer.__enter__()
            record = asdict(self._run.record(self._run.num_done)) | {"guard": None}
            del record["files"]
            self._writer.event("start", steps=self._run.steps, **record)
        self.report_damage(self._run.newest)
        if newest := self._run.newest:
            size, seconds = newest.size_bytes, newest.seconds
            is_own = newest.folder.is_relative_to(self._run.settings.output)
            self.event(
                "resume" if is_own else "branch",
                f"{newest.folder.name if is_own else newest.folder}: {size / 1e6:,.1f} MB checked "
                f"in {seconds:.2f} s",
                checked_bytes=size,
                checked_seconds=seconds,
            )
            if is_own and (changed := changed_settings(newest.record, self._run.settings)):
                self.event("settings_changed", f"since {newest.folder.name}: {'; '.join(changed)}")
        return self

    def __exit__(self, *error: Any) -> None:
        self._run.loader.close()
        if self._writer:
            self._writer.__exit__(*error)

    def step(self, progress: StepMetrics, *, is_last: bool) -> None:
        """Write a step; every `log_every_steps` notify the observer of it and of the mixture."""
        self._since.append((progress.step_seconds, progress.data_wait_seconds))
        if not self._writer:
            return
        self._writer.step(progress)
        num_done = progress.step + 1
        if is_last or num_done % self._run.settings.log_every_steps == 0:
            self._notify(progress)
            self._notify(self._writer.mixture(num_done, self._run.loader.mixture(num_done)))

    def count_experts(self, loads: torch.Tensor) -> None:
        """Add the tokens that each expert got in a step, (sources, layers, E)."""
        self._experts = loads if self._experts is None else self._experts + loads

    def write_experts(self, num_done: int) -> None:
        """Write the tokens that each expert got since the last checkpoint, source by source."""
        if self._writer and self._experts is not None:
            names, counts = self._run.loader.source_names, self._experts.long().tolist()
            self._writer.experts(num_done, dict(zip(names, counts, strict=True)))
        self._experts = None

    def compare_speeds(self, num_done: int) -> None:
        """Report which rank the others wait for; collective."""
        steps, waits = zip(*self._since, strict=True)
        report = self._speeds.compare(sum(steps) / len(steps), sum(waits) / len(waits))
        self._since.clear()
        self.event("speeds", str(report), step=num_done, **asdict(report))

    def evaluate(self, num_done: int) -> None:
        """Evaluate held-out documents and tasks, and report the outcome; collective.

        The weights are the average of the last steps where the run keeps one.
        """
        with averaged(self._run.optimizer):
            self._evaluate(num_done)

    def _evaluate(self, num_done: int) -> None:
        run, seq_len = self._run, self._run.loader.plan.seq_len
        shared = (run.model, run.settings, run.parallel)

        def beat() -> None:
            self.heartbeat.beat(num_done, "evaluate")

        held_out = self.evaluated.held_out
        losses = {} if held_out is None else evaluate(*shared, held_out, seq_len, beat)
        tasks = {}
        for name, items in self.evaluated.tasks.items():
            tasks[name], scores = score_items(*shared, items, seq_len, beat)
            if self._writer:
                self._writer.items(num_done, name, [asdict(item) for item in scores])
        if self._writer:
            is_average = run.settings.optimizer.averages
            evaluation = EvaluationMetrics(num_done, losses, tasks, is_average)
            self._writer.evaluation(evaluation)
            self._notify(evaluation)

    def has_evaluation(self, num_done: int) -> bool:
        """Return whether the files have an evaluation after `num_done` steps; collective."""
        is_written = self._writer is not None and self._writer.has_evaluation(num_done)
        return bool(self._run.parallel.gather(is_written)[0])

    def saved(self, checkpoint: Path | None) -> None:
        """Report a checkpoint that was completed, if any, and what was uploaded."""
        if checkpoint:
            self.event("checkpoint", f"{checkpoint.name} saved", checkpoint=str(checkpoint))
        for kind, text in self._run.checkpoints.upload_reports():
            self.event(kind, text)

    def report_damage(self, newest: VerifiedCheckpoint | None) -> None:
        """Report which checkpoints are damaged, then set them aside."""
        damaged = list(self._run.checkpoints.damaged)
        for folder, problem in damaged:
            self.event(
                "damaged_checkpoint",
                f"{folder.name} is damaged: {problem}. Continuing from "
                f"{newest.folder.name if newest else 'step 0'}; the damaged one is kept as "
                f"{folder.name}.damaged-N until you delete it",
                checkpoint=str(folder),
                problem=problem,
            )
        if damaged:
            self._run.checkpoints.set_aside()

    def event(self, kind: str, text: str, /, **fields: Any) -> None:
        """Report anything else."""
        if self._writer:
            self._notify(self._writer.event(kind, text, **fields))

    def end(self, result: TrainResult) -> None:
        """Report the end."""
        if self._writer:
            self._writer.event("end", **asdict(result))
            self._notify(result)

    def _notify(self, update: Update) -> None:
        if self._observer:
            self._observer(update)


@contextlib.contextmanager
def profiled(settings: TrainSettings, parallel: Parallel, step: int) -> Iterator[None]:
    """Trace a step while entered, if `settings.profile` names this step and this rank."""
    options = settings.profile
    if options is None or step not in options.steps or parallel.rank not in options.ranks:
        yield
        return
    folder = Path(settings.output, "profile")
    folder.mkdir(exist_ok=True)
    name = f"step-{step:08d}-rank-{parallel.rank:05d}"
    is_cuda = parallel.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    if options.memory and is_cuda:
        torch.cuda.memory._record_memory_history(max_entries=MAX_SNAPSHOT_EVENTS)
    try:
        with profile(
            activities=activities, record_shapes=True, profile_memory=options.memory
        ) as trace:
            yield
            if is_cuda:
                torch.cuda.synchronize()
        trace.export_chrome_trace(str(folder / f"{name}.json.gz"))
        if options.memory and is_cuda:
            torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))  # type: ignore[no-untyped-call]
    finally:
        if options.memory and is_cuda:
            torch.cuda.memory._record_memory_history(enabled=None)
