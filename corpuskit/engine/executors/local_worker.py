"""A worker process of the local executor: `python -m MODULE RUN_DIRECTORY PARENT_PID`.

Reads tasks from standard input, one JSON object per line: `{"phase": index, "fingerprint": text,
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TextIO

PROGRESS_SECONDS = 0.25


class Reporter:
    """Sends events to the parent; progress at most every PROGRESS_SECONDS."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._documents = self._size = 0
        self._last, self._compiled = time.monotonic(), 0.0

    def send(self, event: str, **fields: Any) -> None:
        """Send one event."""
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    def progress(self, documents: int, size: int) -> None:
        self._documents += documents
        self._size += size
        if time.monotonic() - self._last >= PROGRESS_SECONDS:
            self.flush()

    def compiling(self) -> None:
        """Say, at most every PROGRESS_SECONDS, that a kernel is about to be compiled."""
        if time.monotonic() - self._compiled >= PROGRESS_SECONDS:
            self._compiled = time.monotonic()
            self.send("compiling")

    def flush(self) -> None:
        """Send what was noted."""
        if self._documents:
            self.send("progress", documents=self._documents, bytes=self._size)
        self._documents = self._size = 0
        self._last = time.monotonic()


def serve(address: str) -> None:
    """Run tasks of the run directory at `address` until standard input ends."""
    from corpuskit.engine.executors import Task, failure_fields
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.kernels.jit import on_compile

    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a stage that prints must not break the protocol
    reporter = Reporter(out)
    on_compile(reporter.compiling)
    run = RunDirectory.open(address)
    run.check_code()
    runner = None
    for line in sys.stdin:
        request = json.loads(line)
        task = Task(request["phase"], request["fingerprint"], tuple(request["units"]))
        try:
            if runner is None:
                from corpuskit.engine.task import TaskRunner  # what it cannot import fails the task

                runner = TaskRunner(run)
            timing = runner.run_task(task, reporter.progress).timing
        except Exception as error:  # noqa: BLE001 - recorded here, re-raised by the parent
            reporter.flush()
            reporter.send("failed", **failure_fields(error))
        else:
            reporter.flush()
            reporter.send("done", cpu=timing["cpu_seconds"], rss=timing["peak_rss_bytes"])


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
