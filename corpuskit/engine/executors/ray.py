"""The Ray executor: every task is one plain Ray task, on a cluster or on this machine.

A Ray task returns its outcome as a value, so a failing one never hurts the others. Ray itself
retries nothing: a worker that is lost, and an unexpected failure, cost one attempt each out of the
same few. (Ray alone would retry a task that outgrows its node for ever, without a message.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import urllib.parse
import uuid
from typing import TYPE_CHECKING, Any

from corpuskit.distribution import install_command
from corpuskit.engine.executors import ENVIRONMENT, Launcher, Round, TaskFailure, python_path
from corpuskit.engine.executors.ray_worker import PLAN_SECONDS, WorkerContext, run_ray_task
from corpuskit.engine.plan import PLAN
from corpuskit.errors import TaskError, UsageError
from corpuskit.formats.manifest import digest_bytes
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors import OnEvent, Task
    from corpuskit.storage import Store

TASKS_PER_CPU = 4
"""In flight per CPU of the cluster: a worker that ends a task finds the next one waiting for it."""

CONNECT_SECONDS = 5
COUNT_SECONDS = 5
"""The CPUs of the cluster are counted this often: an autoscaler adds some."""

NODE_SECONDS = 300
"""A cluster in which no node is large enough for a task has this long to start one."""

LACK_SECONDS = 10
"""The lack of such a node is reported after this long without a result."""

OBJECT_STORE_BYTES = 80 << 20  # near Ray's minimum: tasks exchange files, not objects


class RayLauncher(Launcher):
    """Plain Ray tasks; connects when there is something to run.

    Args:
        store: the run directory, which holds `plan.json`.
        address: of a cluster; None takes RAY_ADDRESS, or else starts a Ray on this machine. A Ray
            that this process is connected to already is used in any case, and left running.
        workers: CPUs of the Ray that is started on this machine.
        cpus_per_task: CPUs that a task reserves.
        memory: bytes of memory that a task reserves; None reserves none.
        retries: how often a task is tried again after an unexpected failure or a lost worker.
        max_in_flight: how many tasks Ray is given at a time; None takes four per CPU.
    """

    def __init__(
        self, store: Store, *, address: str | None = None, workers: int = 2,
        cpus_per_task: float = 1.0, memory: int | None = None, retries: int = 1,
        max_in_flight: int | None = None,
    ) -> None:  # fmt: skip
        self.store, self.workers, self.retries = store, workers, retries
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        self.cpus_per_task, self.memory = cpus_per_task, memory
        self.max_in_flight, self.plan_seconds = max_in_flight, PLAN_SECONDS
        self.log = store.logs() / f"ray-{socket.gethostname()}-{os.getpid()}.log"
        self._token = uuid.uuid4().hex
        self._is_connected = self._is_ours = False

    def __enter__(self) -> RayLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            _ray().shutdown()
        self._is_connected = self._is_ours = False

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        """Run tasks to their end; return those that failed for good.

        Raises:
            UsageError: there is no Ray, or no node is large enough for a task; nothing was run.
            TaskError: a node cannot work on this run; what was done is kept.
        """
        if not tasks:
            return []
        if not self._is_connected:
            self._connect()
        return _RayRound(self, tasks, on_event).run()

    def context(self) -> WorkerContext:
        address = self.store.address
        if not is_remote(address):
            address = os.path.abspath(address)
        digest = digest_bytes(self.store.read(PLAN))
        return WorkerContext(address, digest, os.getcwd(), self._token, self.plan_seconds)

    def remote(self) -> Any:
        environment = dict(ENVIRONMENT)
        hosts = {node["NodeManagerHostname"] for node in _nodes()}
        if hosts == {socket.gethostname()}:
            environment["PYTHONPATH"] = python_path()
        options = {"num_cpus": self.cpus_per_task, "runtime_env": {"env_vars": environment}}
        if self.memory is not None:
            options["memory"] = self.memory
        return _ray().remote(run_ray_task).options(max_retries=0, **options)

    def lacking_resources(self) -> str:
        """Return what no node of the cluster has enough of, and what to do; empty if some node has.

        CPUs that are busy count.
        """
        sizes = [(node["Resources"].get("CPU", 0), node["Resources"].get("memory", 0))
                 for node in _nodes()]  # fmt: skip
        memory = self.memory or 0
        if any(cpus >= self.cpus_per_task and size >= memory for cpus, size in sizes):
            return ""
        reserved = f"{self.cpus_per_task:g} CPUs"
        reserved += f" and {memory} bytes of memory" * bool(memory)
        cpus, size = max(sizes, default=(0, 0))
        if self._is_ours and self.address in (None, "local"):
            advice = "raise executor.workers"
        else:
            advice = "start larger nodes, or those that were lost"
        return (
            f"no node of the Ray cluster has the {reserved} that a task reserves; the largest of "
            f"{len(sizes)} has {cpus:g} CPUs and {size:.0f} bytes. Lower "
            f"executor.ray.cpus_per_task or executor.ray.memory, or {advice}."
        )

    def _connect(self) -> None:
        """Use the Ray of this process, connect to a cluster, or start one here."""
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                f"executor: ray cannot be imported: {error}. Run: {install_command('ray')}"
            ) from None
        if not ray.is_initialized():
            self._init()
            self._is_ours = True
            # A cluster may grow when tasks wait; this one will not.
            if self.address in (None, "local") and (lack := self.lacking_resources()):
                raise UsageError(f"executor: {lack}")
        self._is_connected = True

    def _init(self) -> None:
        import ray
        from ray.exceptions import RayError

        address = self.address or "local"
        options: dict[str, Any] = {}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # report nothing about the run
            options = {"num_cpus": self.workers, "include_dashboard": False,
                       "object_store_memory": OBJECT_STORE_BYTES}  # fmt: skip
        else:
            _check_reachable(address)
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ImportError, OSError, RayError, RuntimeError, ValueError) as error:
            reason = str(error).strip().split("\n", 1)[0].rstrip(".")
            raise UsageError(
                f"executor: cannot connect to Ray at {address}: {reason}. {_ADVICE}"
            ) from None


_ADVICE = (
    "Set executor.ray.address or RAY_ADDRESS to a running cluster of the same Ray and Python "
    "version (and RAY_AUTH_MODE=token if it asks for a token), or leave both unset to start Ray on "
    "this machine."
)


def _check_reachable(address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself would try for minutes."""
    scheme, _, host_and_port = address.rpartition("://")
    if scheme not in ("", "ray") or address == "auto":
        return
    try:
        parts = urllib.parse.urlsplit(f"//{host_and_port}")
        port = parts.port or (10001 if scheme else 6379)
        socket.create_connection((parts.hostname or "", port), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise UsageError(
            f"executor: cannot connect to Ray at {address}: {reason.lower()}. {_ADVICE}"
        ) from None


class _RayRound(Round):
    """The tasks of one phase on their way through the cluster."""

    def __init__(self, launcher: RayLauncher, tasks: Sequence[Task], on_event: OnEvent) -> None:
        super().__init__(tasks, launcher.retries, on_event)
        self.launcher = launcher
        self.remote, self.context = launcher.remote(), launcher.context()
        self.in_flight: dict[Any, Task] = {}
        self.unfit = ""
        self._limit, self._counted, self._last_result = 0, 0.0, time.monotonic()
        self._checked, self._lacking = self._last_result, 0.0

    def run(self) -> list[TaskFailure]:
        """Keep the cluster fed until every task is done or has failed for good."""
        try:
            while self.waiting or self.in_flight:
                self._submit()
                self._collect()
                self._check_resources()
        finally:
            self._cancel()
        if self.unfit:
            raise TaskError(self.unfit)
        return self.failures

    def _submit(self) -> None:
        while self.waiting and len(self.in_flight) < self._max_in_flight():
            task = self.waiting.popleft()
            self.tries[task] += 1
            self.in_flight[self.remote.remote(self.context, task)] = task

    def _max_in_flight(self) -> int:
        if self.launcher.max_in_flight is not None:
            return self.launcher.max_in_flight
        if not self._limit or time.monotonic() - self._counted > COUNT_SECONDS:
            cpus = _ray().cluster_resources().get("CPU", 0)
            self._limit, self._counted = max(1, int(cpus)) * TASKS_PER_CPU, time.monotonic()
        return self._limit

    def _collect(self) -> None:
        """Take the outcomes of tasks that have ended; wait a second if there are none."""
        if not self.in_flight:
            return
        ray, refs = _ray(), list(self.in_flight)
        if not ray.wait(refs, num_returns=1, timeout=1)[0]:
            return
        for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[0]:
            self._take(self.in_flight.pop(ref), _outcome(ref))
            self._last_result = time.monotonic()

    def _take(self, task: Task, fields: dict[str, Any]) -> None:
        kind = fields.pop("event")
        if trace := fields.pop("trace", ""):
            # On a full disk the one line that the event carries must do.
            with contextlib.suppress(OSError), self.launcher.log.open("a", encoding="utf-8") as log:
                log.write(f"task {task.name} of phase {task.phase}: {trace}\n")
        if kind == "done":
            self.on_event("progress", {name: fields.pop(name) for name in ("documents", "bytes")})
            self.on_event(kind, fields)
        elif kind == "unfit":
            # This node would fail all other tasks too, faster than the other nodes run them.
            self.unfit = self.unfit or fields["error"]
            self.waiting.clear()
        elif self.may_retry(task, fields):
            if not self.unfit:
                self.retry(task, fields)
        else:
            if kind == "lost":
                fields["error"] += f" So it went in all {self.tries[task]} attempts."
            self.give_up(task, fields, str(self.launcher.log))

    def _check_resources(self) -> None:
        """Say that no node is large enough; stop when none has been started for long.

        Ray itself would wait for ever.
        """
        now = time.monotonic()
        if now - max(self._last_result, self._checked) < LACK_SECONDS:
            return
        self._checked = now
        lack = self.launcher.lacking_resources()
        if not lack:
            self._lacking = 0.0
        elif not self._lacking:
            self._lacking = now
            self.on_event(
                "waits", {"reason": f"executor: {lack} Waiting {NODE_SECONDS} s for such a node."}
            )
        elif now - self._lacking > NODE_SECONDS:
            raise TaskError(
                f"executor: {lack} What is done is kept: then run the same command again."
            )

    def _cancel(self) -> None:
        """Stop what is in flight, and wait until it has stopped."""
        if self.in_flight:
            ray, refs = _ray(), list(self.in_flight)
            with contextlib.suppress(ConnectionError, RuntimeError, ray.exceptions.RayError):
                for ref in refs:
                    ray.cancel(ref, force=True)
                ray.wait(refs, num_returns=len(refs), timeout=10)
            self.in_flight.clear()


def _outcome(ref: Any) -> dict[str, Any]:
    """Return what a task returned, or that its worker is `lost` or `unfit`."""
    from ray import exceptions

    try:
        outcome: dict[str, Any] = _ray().get(ref)
    except exceptions.RayTaskError as error:
        # Exceptions of the task are values, so this one came before it: the import.
        return {
            "event": "unfit",
            "trace": str(error),
            "error": f"a Ray worker cannot start: {_last_line(error)}. Install the same corpuskit "
            "and Ray on every node.",
        }
    except exceptions.RuntimeEnvSetupError as error:
        message = f"a Ray worker cannot start: {_last_line(error)}"
        return {"event": "unfit", "error": message, "trace": str(error)}
    except exceptions.OutOfMemoryError as error:
        message = (
            "the worker was killed because its node ran out of memory. Set executor.ray.memory to "
            "what a task needs, or use smaller cells (cell_bytes)."
        )
        return {"event": "lost", "error": message, "trace": str(error)}
    except exceptions.RayError as error:
        message = (
            f"the worker was lost ({type(error).__name__}): it was killed or crashed, or its node "
            "is gone. Perhaps it ran out of memory: set executor.ray.memory."
        )
        return {"event": "lost", "error": message, "trace": str(error)}
    return outcome


def _last_line(error: BaseException) -> str:
    return str(error).strip().rpartition("\n")[2].rstrip(".")


def _nodes() -> list[dict[str, Any]]:
    return [node for node in _ray().nodes() if node["Alive"]]


def _ray() -> Any:
    import ray

    return ray
