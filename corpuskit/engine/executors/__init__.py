"""Executors: they run the tasks of a phase somewhere, and report the outcome of each.

`local` starts processes that run `local_worker`; `ray` sends tasks to `ray_worker`; `slurm` submits
job arrays whose elements run `slurm_slot`, each with a local pool of its own.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Task:
    """A restartable piece of a phase: its manifest, on disk, is its completion.

    Attributes:
        phase: index of the phase in the plan.
        fingerprint: of the phase.
        units: numbers of neighbouring units, ascending.
    """

    phase: int
    fingerprint: str
    units: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the task is called in the names of its files."""
        return f"{self.units[0]:08d}-{len(self.units)}"


@dataclasses.dataclass(frozen=True)
class TaskFailure:
    """Why a task failed for good; `code` is the exit code that it asks for."""

    task: Task
    error: str
    log: str
    code: int = 1


ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Of workers: tasks run side by side, one thread each."""


def python_path() -> str:
    """Return the PYTHONPATH under which a child finds the corpuskit that is running here."""
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def failure_fields(error: Exception) -> dict[str, Any]:
    """Return what a worker reports of a task that raised an error.

    Returns:
        kind (`expected` is not tried again, `unexpected` is), error (a line), code, trace.
    """
    is_expected = isinstance(error, CorpuskitError)
    return {
        "kind": "expected" if is_expected else "unexpected",
        "error": str(error) if is_expected else describe(error),
        "code": error.exit_code if isinstance(error, CorpuskitError) else 1,
        "trace": "".join(traceback.format_exception(error)),
    }


OnEvent = Callable[[str, dict[str, Any]], None]
"""Called with `progress` (documents, bytes), `done` (cpu, rss), `retry` (error), `failed` (error)
or `waits` (reason: why no task can run now, and what would help)."""

PROGRESS_SECONDS = 0.25


class Reporter:
    """Sends events to the process that runs the phase; progress every PROGRESS_SECONDS at most."""

    def __init__(self, send: OnEvent) -> None:
        self._send = send
        self._documents = self._size = 0
        self._last, self._compiled = time.monotonic(), 0.0

    def send(self, event: str, **fields: Any) -> None:
        """Send one event, after the progress that was noted."""
        if event != "compiling":
            self.flush()
        self._send(event, fields)

    def progress(self, documents: int, size: int) -> None:
        self._documents += documents
        self._size += size
        if time.monotonic() - self._last >= PROGRESS_SECONDS:
            self.flush()

    def compiling(self) -> None:
        """Send, at most every PROGRESS_SECONDS, that a kernel is about to be compiled."""
        if time.monotonic() - self._compiled >= PROGRESS_SECONDS:
            self._compiled = time.monotonic()
            self.send("compiling")

    def flush(self) -> None:
        if self._documents:
            self._send("progress", {"documents": self._documents, "bytes": self._size})
        self._documents = self._size = 0
        self._last = time.monotonic()


class Round:
    """The tasks of one phase on their way through an executor.

    A failure that is not `expected`, and a lost worker, are tried again, at most `retries` times.
    """

    def __init__(self, tasks: Iterable[Task], retries: int, on_event: OnEvent) -> None:
        self.waiting = collections.deque(tasks)
        self.retries, self.on_event = retries, on_event
        self.tries: collections.Counter[Task] = collections.Counter()
        self.failures: list[TaskFailure] = []

    def may_retry(self, task: Task, fields: Mapping[str, Any]) -> bool:
        """Return whether a task that failed with `fields` is to be tried again."""
        return fields.get("kind") != "expected" and self.tries[task] <= self.retries

    def retry(self, task: Task, fields: dict[str, Any]) -> None:
        """Try a task again, after the others."""
        self.waiting.append(task)
        self.on_event("retry", fields)

    def settle(self, task: Task, fields: dict[str, Any], log: str) -> None:
        """Try a task that failed again, or give it up."""
        if self.may_retry(task, fields):
            self.retry(task, fields)
        else:
            self.give_up(task, fields, log)

    def give_up(self, task: Task, fields: dict[str, Any], log: str) -> None:
        self.failures.append(TaskFailure(task, fields["error"], log, fields.get("code", 1)))
        self.on_event("failed", fields)


class Launcher(ABC):
    """Runs tasks of one phase after another; entered once for a run.

    A worker that dies costs one attempt of the tasks it held. A task that fails is tried again when
    the failure was unexpected, then reported; the others go on.
    """

    @abstractmethod
    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        """Run tasks to their end; return those that failed for good.

        Raises:
            TaskError: workers cannot start here.
        """

    @abstractmethod
    def __enter__(self) -> Launcher: ...

    @abstractmethod
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...
