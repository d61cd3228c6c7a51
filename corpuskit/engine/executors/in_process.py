"""The tasks of a small run, in the process that asks for them: no worker has to start.

A worker costs a CPU second before its first document. All else is as in the pool: what stages print
goes to a log of the run, an unexpected failure is tried again, and what is finished stays finished
whatever ends the process. Only a crash (SIGSEGV, out of memory) ends the run together with its
task, instead of a worker that is replaced; the same command continues.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, TextIO

from corpuskit.engine.executors import Launcher, Reporter, Round, failure_fields
from corpuskit.engine.task import TaskRunner
from corpuskit.errors import TaskError
from corpuskit.kernels.jit import on_compile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.engine.executors import OnEvent, Task, TaskFailure
    from corpuskit.engine.rundir import RunDirectory


class InProcess(Launcher):
    """Runs tasks one after another in this process.

    Args:
        run: the run directory, as it was planned.
        retries: how often a task is tried again after an unexpected failure.
    """

    def __init__(self, run: RunDirectory, retries: int) -> None:
        self.retries = retries
        self._runner = TaskRunner(run)
        # Named as logs of workers are: `status --watch` takes host and process from it.
        self._log = run.store.logs() / f"worker-{socket.gethostname()}-{os.getpid()}-0.log"
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> InProcess:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as workers have it
        self._file = self._resources.enter_context(self._log.open("a", encoding="utf-8"))
        return self

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        self._resources.close()

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        def send(event: str, fields: dict[str, Any]) -> None:
            with _printing_to(*streams):  # what the event prints is not the task's
                on_event(event, fields)

        streams = sys.stdout, sys.stderr
        reporter = Reporter(send)
        round_ = Round(tasks, self.retries, on_event)
        with on_compile(reporter.compiling):
            while round_.waiting:
                task = round_.waiting.popleft()
                round_.tries[task] += 1
                try:
                    with _printing_to(self._file, self._file):
                        timing = self._runner.run_task(task, reporter.progress).timing
                except SystemExit as end:
                    if not end.code:  # else it would look like a finished run
                        raise TaskError(f"task {task.name}: a stage ended the process.") from end
                    raise
                except Exception as error:  # noqa: BLE001 - recorded; the caller reports it
                    reporter.flush()
                    self._failed(round_, task, failure_fields(error))
                else:
                    facts = {"cpu": timing["cpu_seconds"], "rss": timing["peak_rss_bytes"]}
                    reporter.send("done", **facts)
        return round_.failures

    def _failed(self, round_: Round, task: Task, fields: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # on a full disk the line of the event must do
            self._file.write(fields.pop("trace"))
            self._file.flush()
        round_.settle(task, fields, str(self._log))


@contextlib.contextmanager
def _printing_to(out: TextIO, err: TextIO) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
