"""What stops a run before its end, signals and the clock, and what slows it: one rank.

Beside it: exits.py (exit codes), pulse.py (heartbeats, watchdog), standing.py (reads them).
"""

from __future__ import annotations

import math
import signal
import socket
import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    import torch

    from corpuskit.train.parallel import Parallel

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # a scheduler's end, and Slurm's warning before it


class StopSignals:
    """Notes the first SIGTERM or SIGUSR1 while entered; the loop looks at the end of each step.

    Only a main thread may set handlers; in any other one no signal is noted.

    Args:
        stop_after_seconds: since this was made, the time after which the run is to stop, too. Ranks
            start at different times; the first one whose time has come stops all of them.
    """

    def __init__(self, stop_after_seconds: float | None = None) -> None:
        self._signal: str | None = None
        seconds = math.inf if stop_after_seconds is None else stop_after_seconds
        self._deadline = time.monotonic() + seconds
        self._before: dict[signal.Signals, Callable[..., object] | int | None] = {}

    @property
    def received(self) -> str | None:
        """The signal, "stop_after_seconds", or nothing yet."""
        if self._signal is None and time.monotonic() >= self._deadline:
            return "stop_after_seconds"
        return self._signal

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number).name


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """What each rank would need for a step if it waited for no other; sequences are by rank."""

    step_seconds: float  # of a step in truth, on average
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

    Steps of synchronous training take equally long on every rank, so their time says nothing. Here
    each rank measures itself: how long it waits for rows, how long a matrix product of its own
    takes, and on CPU how much processor time it uses. That finds a slow clock, a device that is
    throttled or shared, slow storage and, on CPU, more work than others have. It does not find a
    slow network, which all ranks wait for alike, nor what passed between two comparisons without
    using processor time, nor on CUDA uneven work.

    Made by all ranks at once, while no save is in flight; `compare` may be called during one.
    """

    def __init__(self, parallel: Parallel) -> None:
        self._parallel = parallel
        self._hosts: list[str] = parallel.gather(socket.gethostname())
        self._probe = _Probe(parallel.device)
        self._since = time.perf_counter(), time.process_time()

    def compare(self, step_seconds: float, data_wait_seconds: float) -> SpeedReport:
        """Compare the ranks; on every rank, with the same answer.

        Costs every rank the time of three matrix products or 0.5 % of that since the last
        comparison, whichever is more.

        Args:
            step_seconds: of a step, the mean since the last comparison.
            data_wait_seconds: of it, this rank's wait for rows.
        """
        import torch
        import torch.distributed as dist

        wall, cpu = self._since
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        # Of a process on CUDA it says how long Python took, which the device does not wait for.
        share = cpu / wall if self._parallel.device.type == "cpu" else 0.0
        probe = self._probe.seconds(0.005 * wall)
        mine = [step_seconds, data_wait_seconds, share * step_seconds, probe]
        # The main thread alone uses the default group, so a save in flight does no harm.
        values = torch.tensor(mine, dtype=torch.float64, device=self._parallel.device)
        ranks = self._parallel.world_size
        found = [torch.empty_like(values) for _ in range(ranks)]
        dist.all_gather(found, values)
        self._since = time.perf_counter(), time.process_time()
        return report_of([tuple(one.tolist()) for one in found], self._hosts)


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
    # What is left of a step without waiting for rows is work, and waiting for the slowest. The
    # rank with the least of it waits least: it is what the slowest takes to work.
    left = min(step - wait for step, wait in zip(steps, waits, strict=True))
    unit = max(left, 0.0) / max(slowness)
    own = [wait + unit * slow for wait, slow in zip(waits, slowness, strict=True)]
    slowest = max(range(len(own)), key=own.__getitem__)
    return SpeedReport(
        step_seconds=statistics.fmean(steps),
        own_seconds=_rounded(own),
        data_wait_seconds=_rounded(waits),
        slowness=_rounded(slowness),
        slowest=slowest,
        host=hosts[slowest],
        ratio=_by_median(own)[slowest],
    )


def _by_median(values: Sequence[float]) -> list[float]:
    # Of two ranks the faster one: a mean of both would hide half of the difference.
    middle = statistics.median_low(values)
    return [value / middle if middle > 0 else 1.0 for value in values]


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


class _Probe:
    """A matrix product that a rank computes alone."""

    def __init__(self, device: torch.device) -> None:
        import torch

        is_cuda = device.type == "cuda"
        size, dtype = (4096, torch.bfloat16) if is_cuda else (256, torch.float32)
        self._matrix = torch.ones(size, size, dtype=dtype, device=device)
        self._device = device
        self.seconds(0.0)  # the first product chooses algorithms and wakes threads

    def seconds(self, at_least: float) -> float:
        """Return the mean time of a product, over three of them and `at_least` seconds."""
        begun, number = time.perf_counter(), 0
        self._wait()
        while number < 3 or time.perf_counter() - begun < at_least:
            self._matrix @ self._matrix
            self._wait()
            number += 1
        return (time.perf_counter() - begun) / number

    def _wait(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
