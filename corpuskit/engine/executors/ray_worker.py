"""What a Ray worker does for a task: it opens the run once per process, and returns values.

Nothing here imports ray, and nothing that a task raises leaves it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from corpuskit.engine.executors import failure_fields
from corpuskit.engine.plan import PLAN
from corpuskit.errors import DataError
from corpuskit.formats.manifest import digest_bytes
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from corpuskit.engine.executors import Task
    from corpuskit.engine.task import TaskRunner

PLAN_SECONDS = 30
"""A node may see an older plan for this long: NFS clients remember what a folder held."""


@dataclasses.dataclass(frozen=True)
class WorkerContext:
    """What every worker of a run gets besides its task.

    Attributes:
        address: the run directory.
        digest: of `plan.json`, as the driver sees it.
        folder: where the driver runs; relative paths start there.
        token: differs between runs: Ray reuses processes, which must not keep the last run's state.
        plan_seconds: how long the worker waits for the plan to appear.
    """

    address: str
    digest: str
    folder: str
    token: str
    plan_seconds: float


_runners: dict[WorkerContext, TaskRunner] = {}
"""Of the run that this process works for; at most one."""


def run_ray_task(context: WorkerContext, task: Task) -> dict[str, Any]:
    """Run a task in a Ray worker; return its outcome.

    Returns:
        An event: `done`; `failed` with kind (expected, unexpected), error, code and trace; or
        `unfit` with the error, when this node cannot work on the run.
    """
    is_open = False
    totals = collections.Counter[str]()

    def progress(documents: int, size: int) -> None:
        totals.update(documents=documents, bytes=size)

    # Pipelines hold relative paths: work where the driver does, if this node has that folder.
    folder = context.folder if os.path.isdir(context.folder) else "."
    try:
        with contextlib.chdir(folder):
            runner = _open(context)
            is_open = True
            timing = runner.run_task(task, progress).timing
    except Exception as error:  # noqa: BLE001 - recorded here, raised by the driver
        host, fields = socket.gethostname(), failure_fields(error)
        fields["trace"] = f"on {host}\n{fields['trace']}"
        if is_open:
            return {"event": "failed", **fields}
        # Whatever it is, it would be so for every task.
        message = f"Ray node {host}: {fields['error']}"
        return {"event": "unfit", "error": message, "trace": fields["trace"]}
    return {
        "event": "done", "documents": totals["documents"], "bytes": totals["bytes"],
        "cpu": timing["cpu_seconds"], "rss": timing["peak_rss_bytes"],
    }  # fmt: skip


def _open(context: WorkerContext) -> TaskRunner:
    """Open the run directory once per process and run."""
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.task import TaskRunner

    if context not in _runners:
        _await_plan(context)
        run = RunDirectory.open(context.address)
        run.check_code()
        if run.store.is_remote:
            run.store.clear_scratch()  # of workers that were killed on this node
        _runners.clear()  # runs come one after another
        _runners[context] = TaskRunner(run)
    return _runners[context]


def _await_plan(context: WorkerContext) -> None:
    """Wait until this node sees the plan that the driver wrote."""
    store = open_store(context.address)
    deadline = time.monotonic() + context.plan_seconds
    while True:
        digest = None
        with contextlib.suppress(DataError):
            digest = digest_bytes(store.read(PLAN))
        if digest == context.digest:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    seen = "no run" if digest is None else "another plan"
    raise DataError(
        f"{context.address}: this node sees {seen} there. The run directory must be on a file "
        "system that all nodes share, under the same path; or use an s3:// address."
    )
