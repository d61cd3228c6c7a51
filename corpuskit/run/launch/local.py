"""The local launcher: a pool of worker processes that survives the death of its workers.

Each worker is fed over pipes, one task at a time. A worker that dies (out of memory, SIGKILL) costs
one attempt of one task; a task that fails is retried, then reported, and the others go on.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any

from corpuskit.closure import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType


@dataclasses.dataclass(frozen=True)
class Task:
    """A restartable piece of a phase."""

    phase: int
    mark: str
    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a task failed for good; `code` is the exit code that it asks for."""

    task: Task
    error: str
    log: str
    code: int = 1


@dataclasses.dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path
    task: Task | None = None
    pending: bytes = b""


class Pool:
    """Worker processes that stay for all phases of a run.

    Args:
        root: the run directory, which holds `plan.json`.
        workers: how many processes.
        retries: how often a task is tried again after an unexpected failure.
    """

    def __init__(self, root: Path, workers: int, retries: int) -> None:
        self.root, self.size, self.retries = root, workers, retries
        self._workers: list[_Worker] = []
        self._started = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            if kind is not None:
                worker.process.kill()
            _close(worker.process.stdin)
        for worker in self._workers:
            try:
                worker.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            _close(worker.process.stdout)

    def run(
        self, tasks: Iterable[Task], on_event: Callable[[str, dict[str, Any]], None]
    ) -> list[Failure]:
        """Run tasks; return those that failed for good.

        Args:
            on_event: called with `progress`, `done`, `retry` or `failed` and the event's fields.
        """
        waiting = collections.deque(tasks)
        tries: collections.Counter[Task] = collections.Counter()
        failures: list[Failure] = []
        selector = selectors.DefaultSelector()

        def lost(task: Task, worker: _Worker, fields: dict[str, Any]) -> None:
            if fields.get("kind") != "expected" and tries[task] <= self.retries:
                waiting.append(task)
                on_event("retry", fields)
                return
            failures.append(Failure(task, fields["error"], str(worker.log), fields.get("code", 1)))
            on_event("failed", fields)

        def give(worker: _Worker) -> None:
            worker.task = None
            while waiting:
                worker.task = waiting.popleft()
                tries[worker.task] += 1
                if _send(worker):
                    return
                waiting.appendleft(worker.task)  # it died between tasks: its end will be read
                tries[worker.task] -= 1
                worker.task = None
                return

        def start() -> None:
            worker = self._start()
            selector.register(_out(worker), selectors.EVENT_READ, worker)
            give(worker)

        for worker in self._workers:
            selector.register(_out(worker), selectors.EVENT_READ, worker)
            give(worker)
        while waiting and len(self._workers) < self.size:
            start()
        while any(worker.task for worker in self._workers) or waiting:
            for key, _ in selector.select(timeout=1):
                worker = key.data
                for event in _events(worker):
                    if event is None:
                        selector.unregister(_out(worker))
                        self._workers.remove(worker)
                        death = _death(worker)
                        if worker.task is not None:
                            lost(worker.task, worker, {"error": death})
                        if waiting:
                            start()
                        break
                    kind = event.pop("event")
                    if kind == "progress":
                        on_event(kind, event)
                        continue
                    task, worker.task = worker.task, None
                    assert task is not None, "only a worker with a task answers"
                    if kind == "failed":
                        _log(worker, event.pop("trace", ""))
                        lost(task, worker, event)
                    else:
                        on_event(kind, event)
                    give(worker)
            while waiting and len(self._workers) < self.size:
                start()
            for worker in self._workers:
                if worker.task is None and waiting:
                    give(worker)
        selector.close()
        return failures

    def _start(self) -> _Worker:
        self._started += 1
        log = self.root / "logs" / f"worker-{os.getpid()}-{self._started}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
        # The same corpuskit as here, however it came to be importable.
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "corpuskit.run.worker", str(self.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        worker = _Worker(process, log)
        self._workers.append(worker)
        return worker


def _send(worker: _Worker) -> bool:
    assert worker.task is not None, "only sent with a task"
    assert worker.process.stdin is not None, "opened with a pipe"
    request = {**dataclasses.asdict(worker.task), "units": list(worker.task.units)}
    try:
        worker.process.stdin.write(json.dumps(request).encode() + b"\n")
        worker.process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _events(worker: _Worker) -> list[dict[str, Any] | None]:
    """Return the events that have arrived; None at the end means that the worker is gone."""
    chunk = os.read(_out(worker).fileno(), 1 << 16)
    worker.pending += chunk
    *lines, worker.pending = worker.pending.split(b"\n")
    events: list[dict[str, Any] | None] = [json.loads(line) for line in lines]
    return events if chunk else [*events, None]


def _death(worker: _Worker) -> str:
    """Return how a worker ended; its pipes are closed."""
    code = worker.process.wait()
    _close(worker.process.stdin)
    _close(worker.process.stdout)
    if code < 0:
        name = signal.Signals(-code).name
        hint = " Perhaps it ran out of memory: use fewer workers." if name == "SIGKILL" else ""
        return f"the worker was killed by {name}.{hint}"
    return f"the worker ended with exit code {code}."


def _log(worker: _Worker, trace: str) -> None:
    with worker.log.open("a", encoding="utf-8") as file:
        file.write(trace)


def _out(worker: _Worker) -> IO[bytes]:
    assert worker.process.stdout is not None, "opened with a pipe"
    return worker.process.stdout


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        try:
            stream.close()
        except BrokenPipeError:
            return
