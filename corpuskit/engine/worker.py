"""The one entry point of workers: `python -m corpuskit.engine.worker RUN_DIRECTORY PARENT_PID`.

Reads requests from standard input, one JSON object per line: `{"phase": i, "mark": fingerprint,
"units": [numbers]}`; answers on standard output with events: `progress`, `compiling`, `done`,
`failed`. Whatever stages print goes to standard error. The end of standard input ends the worker.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.stage import Unit

PROGRESS_SECONDS = 0.25


class Reporter:
    """Sends events to the parent; progress at most every PROGRESS_SECONDS."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._documents = self._size = 0
        self._last, self._said = time.monotonic(), 0.0

    def send(self, event: str, **fields: Any) -> None:
        """Send one event."""
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    def progress(self, documents: int, size: int) -> None:
        """Note that documents were read."""
        self._documents += documents
        self._size += size
        if time.monotonic() - self._last >= PROGRESS_SECONDS:
            self.flush()

    def compiling(self) -> None:
        """Say, at most every PROGRESS_SECONDS, that a kernel is about to be compiled."""
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            self.send("compiling")

    def flush(self) -> None:
        """Send what was noted."""
        if self._documents:
            self.send("progress", documents=self._documents, bytes=self._size)
        self._documents = self._size = 0
        self._last = time.monotonic()


def serve(address: str) -> None:
    """Run tasks of the run directory at `address` until standard input ends."""
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.errors import CorpuskitError, describe
    from corpuskit.kernels.jit import on_compile

    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a stage that prints must not break the protocol
    reporter = Reporter(out)
    on_compile(reporter.compiling)
    run = RunDirectory.open(address)
    run.check_code()
    cache: dict[tuple[int, str], dict[int, Unit]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _run(run, request, cache, reporter)
        except Exception as error:  # noqa: BLE001 - recorded here, re-raised by the parent
            reporter.flush()
            kind = "expected" if isinstance(error, CorpuskitError) else "unexpected"
            message = str(error) if kind == "expected" else describe(error)
            code = error.exit_code if isinstance(error, CorpuskitError) else 1
            trace = traceback.format_exc()
            reporter.send("failed", kind=kind, error=message, code=code, trace=trace)


def _run(
    run: RunDirectory,
    request: Mapping[str, Any],
    cache: dict[tuple[int, str], dict[int, Unit]],
    reporter: Reporter,
) -> None:
    from corpuskit.engine.cutting import cut_units
    from corpuskit.engine.executors.contract import Task
    from corpuskit.engine.task import run_task

    task = Task(request["phase"], request["mark"], tuple(request["units"]))
    key = (task.phase, task.mark)
    if key not in cache:
        cache.clear()  # phases come one after another
        run.check_mark(run.plan.phases[task.phase], task.mark)
        cache[key] = {unit.number: unit for unit in cut_units(run, run.plan.phases[task.phase])}
    units = [cache[key][number] for number in task.units]
    manifest = run_task(run, task, units, reporter.progress)
    reporter.flush()
    reporter.send("done", cpu=manifest.timing["cpu_seconds"], rss=manifest.timing["peak_rss_bytes"])


def exit_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, where it can (Linux).

    Elsewhere the end of standard input ends the worker after the task in hand.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # it died before the kernel was asked


if __name__ == "__main__":
    exit_with_parent(int(sys.argv[2]))  # before the heavy imports
    serve(sys.argv[1])
