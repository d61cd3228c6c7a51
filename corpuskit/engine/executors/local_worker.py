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
from typing import Any

from corpuskit.cpu import start_quickly


def serve(address: str) -> None:
    """Run tasks of the run directory at `address` until standard input ends."""
    from corpuskit.engine.executors import Reporter, Task, failure_fields
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.kernels.jit import on_compile

    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a stage that prints must not break the protocol

    def send(event: str, fields: dict[str, Any]) -> None:
        out.write(json.dumps({"event": event, **fields}) + "\n")
        out.flush()

    reporter = Reporter(send)
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
            reporter.send("failed", **failure_fields(error))
        else:
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
    start_quickly()
    serve(sys.argv[1])
