"""What a Ray worker does for a task: it opens the run once per process, and answers with values.

Nothing here imports ray, and nothing that a task raises leaves it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import os
import socket
import time
import traceback
from typing import TYPE_CHECKING, Any

from corpuskit.engine.plan.compile import PLAN
from corpuskit.errors import CorpuskitError, DataError, describe
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from corpuskit.engine.executors.contract import Task
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.stage import Unit

PATIENCE_SECONDS = 30
"""A node may see an older plan for this long: NFS clients remember what a folder held."""


@dataclasses.dataclass(frozen=True)
class Errand:
    """What a worker is told besides its task.

    Attributes:
        address: the run directory.
        digest: of `plan.json`, as the driver sees it.
        folder: where the driver runs; relative paths start there.
        token: differs between runs: Ray uses processes again, what they remember must not be.
        patience_seconds: how long the worker waits for the plan to appear.
    """

    address: str
    digest: str
    folder: str
    token: str
    patience_seconds: float


class _Desk:
    """What a worker process remembers of the run it works for."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._cut: tuple[tuple[int, str], dict[int, Unit]] | None = None

    def units(self, task: Task) -> list[Unit]:
        """Return the units of a task; those of its phase are cut once."""
        from corpuskit.engine.cutting import cut_units

        key = (task.phase, task.mark)
        if self._cut is None or self._cut[0] != key:
            phase = self.run.plan.phases[task.phase]
            self.run.check_mark(phase, task.mark)
            self._cut = key, {unit.number: unit for unit in cut_units(self.run, phase)}
        return [self._cut[1][number] for number in task.units]


_desks: dict[Errand, _Desk] = {}


def perform(errand: Errand, task: Task) -> dict[str, Any]:
    """Run a task in a Ray worker; return what became of it.

    Returns:
        An event: `done`; `failed` with kind (expected, unexpected), error, code and trace; or
        `unfit` with the error, when this node cannot work on the run.
    """
    from corpuskit.engine.task import run_task

    is_open = False
    counted = collections.Counter[str]()

    def progress(documents: int, size: int) -> None:
        counted.update(documents=documents, bytes=size)

    try:
        with _inside(errand.folder):
            desk = _open(errand)
            is_open = True
            manifest = run_task(desk.run, task, desk.units(task), progress)
    except Exception as error:  # noqa: BLE001 - recorded here, raised by the driver
        is_expected = isinstance(error, CorpuskitError)
        message = str(error) if is_expected else describe(error)
        trace = f"on {socket.gethostname()}\n{traceback.format_exc()}"
        if not is_open:  # whatever it is, it would be so for every task
            place = f"Ray node {socket.gethostname()}"
            return {"event": "unfit", "error": f"{place}: {message}", "trace": trace}
        return {
            "event": "failed", "kind": "expected" if is_expected else "unexpected",
            "error": message, "code": error.exit_code if isinstance(error, CorpuskitError) else 1,
            "trace": trace,
        }  # fmt: skip
    return {
        "event": "done", "documents": counted["documents"], "bytes": counted["bytes"],
        "cpu": manifest.timing["cpu_seconds"], "rss": manifest.timing["peak_rss_bytes"],
    }  # fmt: skip


def _inside(folder: str) -> contextlib.AbstractContextManager[None]:
    """Work where the driver does, if this node has that folder: pipelines hold relative paths."""
    return contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext()


def _open(errand: Errand) -> _Desk:
    """Open the run directory once per process and run.

    Raises:
        CorpuskitError: this node cannot work on the run.
    """
    from corpuskit.engine.rundir import RunDirectory

    if errand not in _desks:
        _await_plan(errand)
        run = RunDirectory.open(errand.address)
        run.check_code()
        if run.store.is_remote:
            run.store.clear_scratch()  # of workers that were killed on this node
        _desks.clear()  # runs come one after another
        _desks[errand] = _Desk(run)
    return _desks[errand]


def _await_plan(errand: Errand) -> None:
    """Wait until this node sees the plan that the driver wrote.

    Raises:
        DataError: it does not.
    """
    store = open_store(errand.address)
    deadline = time.monotonic() + errand.patience_seconds
    while True:
        found = None
        with contextlib.suppress(DataError):
            found = digest_of(store.read(PLAN))
        if found == errand.digest:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    what = "this node sees no run there" if found is None else "this node sees another plan there"
    raise DataError(
        f"{errand.address}: {what}. The run directory must be on a file system that all nodes "
        "share, under the same path; or use an s3:// address."
    )


def digest_of(content: bytes) -> str:
    """Return the hash by which a plan is known."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
