"""The local executor: a pool of worker processes that survives the death of its workers.

Each worker is fed over pipes, one task at a time. A worker that dies (out of memory, SIGKILL) costs
one attempt of one task; a task that fails is retried, then reported, and the others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from corpuskit.engine.executors import ENVIRONMENT, Launcher, Round, Task, TaskFailure, python_path
from corpuskit.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from corpuskit.engine.executors import OnEvent
    from corpuskit.storage import Store


WORKER = "corpuskit.engine.executors.local_worker"


@dataclasses.dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path
    task: Task | None = None
    pending: bytes = b""


class Pool(Launcher):
    """Worker processes that stay for all phases of a run.

    Args:
        store: the run directory, which holds `plan.json`.
        workers: how many processes.
        retries: how often a task is tried again after an unexpected failure.
    """

    def __init__(self, store: Store, workers: int, retries: int) -> None:
        self.store, self.size, self.retries = store, workers, retries
        self.workers: list[_Worker] = []
        self._started = 0
        self.has_worked = False
        self.deadline: float | None = None
        """Set (time.monotonic) to have `run` begin nothing more and return by then."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.kill()
        for worker in self.workers:
            _close(worker.process.stdin)
        for worker in self.workers:
            try:
                worker.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            _close(worker.process.stdout)

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        with selectors.DefaultSelector() as selector:
            return _PoolRound(self, selector, tasks, on_event).run()

    def kill(self) -> None:
        for worker in self.workers:
            worker.process.kill()

    def start(self) -> _Worker:
        self._started += 1
        log = self.store.logs() / f"worker-{socket.gethostname()}-{os.getpid()}-{self._started}.log"
        environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": python_path()}
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, self.store.address, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        worker = _Worker(process, log)
        self.workers.append(worker)
        return worker


class _PoolRound(Round):
    """The tasks of one phase on their way through the pool."""

    def __init__(
        self, pool: Pool, selector: selectors.BaseSelector, tasks: Iterable[Task], on_event: OnEvent
    ) -> None:
        super().__init__(tasks, pool.retries, on_event)
        self.pool, self.selector = pool, selector
        self.deaths, self.last_death, self.last_log = 0, "", ""

    def run(self) -> list[TaskFailure]:
        """Feed the workers until every task is done or has failed for good."""
        for worker in self.pool.workers:
            self.selector.register(_out(worker), selectors.EVENT_READ, worker)
        while True:
            if self.pool.deadline is not None:
                self.waiting.clear()
                if time.monotonic() >= self.pool.deadline:
                    self.pool.kill()
                    return self.failures
            self._feed()
            if not (self.waiting or any(worker.task for worker in self.pool.workers)):
                return self.failures
            for key, _ in self.selector.select(timeout=1):
                self._read(key.data)
            self._check_start()

    def _check_start(self) -> None:
        """Stop when workers die before one of them has sent anything: tasks are not the cause."""
        if not self.pool.has_worked and self.deaths > 2 * self.pool.size + self.pool.retries:
            raise TaskError(
                f"{self.deaths} workers died before any of them did something; the last one: "
                f"{self.last_death} Log: {self.last_log}"
            )

    def _feed(self) -> None:
        """Give a task to every idle worker; start workers while there is work for them."""
        for worker in self.pool.workers:
            if worker.task is None:
                self._give(worker)
        while self.waiting and len(self.pool.workers) < self.pool.size:
            worker = self.pool.start()
            self.selector.register(_out(worker), selectors.EVENT_READ, worker)
            self._give(worker)

    def _give(self, worker: _Worker) -> None:
        if self.waiting and _send(worker, self.waiting[0]):
            worker.task = self.waiting.popleft()
            self.tries[worker.task] += 1

    def _read(self, worker: _Worker) -> None:
        """Take what a worker has sent; the end of its output is the end of the worker."""
        events, is_gone = _events(worker)
        for event in events:
            self.pool.has_worked = True
            kind = event.pop("event")
            if kind in ("progress", "compiling"):
                self.on_event(kind, event)
                continue
            task, worker.task = worker.task, None
            assert task is not None, "only a worker with a task answers"
            if kind == "failed":
                _log(worker, event.pop("trace", ""))
                self.settle(task, event, str(worker.log))
            else:
                self.on_event(kind, event)
        if is_gone:
            self.selector.unregister(_out(worker))
            self.pool.workers.remove(worker)
            death = _death(worker)
            self.deaths, self.last_death, self.last_log = self.deaths + 1, death, str(worker.log)
            if worker.task is not None:
                self.settle(worker.task, {"error": death}, self.last_log)


def _send(worker: _Worker, task: Task) -> bool:
    """Send a task; False when the worker died between tasks (its end will be read)."""
    assert worker.process.stdin is not None, "opened with a pipe"
    request = {**dataclasses.asdict(task), "units": list(task.units)}
    try:
        worker.process.stdin.write(json.dumps(request).encode() + b"\n")
        worker.process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _events(worker: _Worker) -> tuple[list[dict[str, Any]], bool]:
    """Return the events that have arrived, and whether the worker is gone."""
    chunk = os.read(_out(worker).fileno(), 1 << 16)
    *lines, worker.pending = (worker.pending + chunk).split(b"\n")
    return [json.loads(line) for line in lines], not chunk


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
    """Keep a traceback; on a full disk the one line that the event carries must do."""
    with contextlib.suppress(OSError), worker.log.open("a", encoding="utf-8") as file:
        file.write(trace)


def _out(worker: _Worker) -> IO[bytes]:
    assert worker.process.stdout is not None, "opened with a pipe"
    return worker.process.stdout


def _close(stream: IO[bytes] | None) -> None:
    with contextlib.suppress(BrokenPipeError):
        if stream is not None:
            stream.close()
