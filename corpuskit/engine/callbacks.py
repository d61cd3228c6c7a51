"""Callbacks of a run, and those that a run has by default: they write to the logger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from corpuskit.logs import LOG

if TYPE_CHECKING:
    from corpuskit.engine.phase import PhaseStatus
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal


class RunCallbacks:
    """What a run reports while it runs; a subclass overrides what it needs."""

    def reading_inputs(self, done: int, total: int) -> None:
        """Files whose footers are read."""

    def opened(self, run: RunDirectory) -> None:
        """The run directory is locked, and its first phase comes next."""

    def phase_starts(self, status: PhaseStatus) -> None:
        """A phase is about to run, or to be reused."""

    def progress(self, documents: int, size_bytes: int) -> None:
        """Documents were read in the current phase."""

    def compiling(self) -> None:
        """A worker compiles a kernel that is not in the cache of this machine."""

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        """A task ended: `done`, `retry` or `failed`."""

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        """A phase is sealed."""

    def notes(self, text: str) -> None:
        """A note for the person who started the run."""


class LogCallbacks(RunCallbacks):
    """Writes to the logger `corpuskit`: used where a program starts a run without callbacks."""

    def opened(self, run: RunDirectory) -> None:
        LOG.info("run %s: phases: %d", run.store.address, len(run.plan.phases))

    def phase_starts(self, status: PhaseStatus) -> None:
        self._began = time.monotonic()
        if status.state == "reuse":
            LOG.info("phase %s: reused", status.phase.name)
        else:
            LOG.info("phase %s: started, tasks: %d", status.phase.name, status.tasks or 0)

    def compiling(self) -> None:
        LOG.debug("a worker compiles kernels")

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        if event == "done":
            LOG.debug("task done: %.1f CPU s", fields.get("cpu", 0.0))
        elif event == "retry":
            LOG.warning("task failed and is tried again: %s", fields.get("error", ""))
        else:
            LOG.error("task failed: %s", fields.get("error", ""))

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        LOG.info("phase %s: finished in %.1f s", phase.name, time.monotonic() - self._began)

    def notes(self, text: str) -> None:
        LOG.warning("%s", text)
