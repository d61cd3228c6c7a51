"""Runs a plan, phase by phase: one library call for `corpuskit run` and `corpuskit plan`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit import registry
from corpuskit.errors import CorpuskitError, DataError, TaskError, UsageError
from corpuskit.plan.compile import DOCUMENTS_BELOW_BYTES, Plan
from corpuskit.plan.fingerprint import code_digest
from corpuskit.plan.inputs import find_inputs, save_inputs
from corpuskit.run.launch.local import Failure, Pool
from corpuskit.run.phase import PhaseWork, Prospect, sweep
from corpuskit.run.rundir import RunDirectory, lock
from corpuskit.run.status import prospects_of
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.manifest import Seal
    from corpuskit.plan.compile import Phase

SHOWN_FAILURES = 5


class Observer:
    """What a run tells whoever watches; every method does nothing."""

    def reading_inputs(self, done: int, total: int) -> None:
        """Files whose footers are read."""

    def phase_starts(self, prospect: Prospect) -> None:
        """A phase is about to run, or to be reused."""

    def progress(self, documents: int, size_bytes: int) -> None:
        """Documents were read in the current phase."""

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        """A task ended: `done`, `retry` or `failed`."""

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        """A phase is sealed."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run left: the seals of its phases, and which of them were reused."""

    run: RunDirectory
    seals: tuple[Seal, ...]
    reused: tuple[bool, ...]


def open_run(plan: Plan, observer: Observer | None = None) -> RunDirectory:
    """Find the inputs of a plan; nothing is written.

    Raises:
        UsageError: a pattern matches nothing.
        DataError: a footer cannot be read.
    """
    observer = observer or Observer()
    settings = plan.settings
    store = open_store(settings.output)
    inputs = find_inputs(
        store, plan.file.sources, settings.cell_bytes, on_file=observer.reading_inputs
    )
    if settings.documents is None:
        is_small = inputs.size_bytes() < DOCUMENTS_BELOW_BYTES
        plan = plan.with_documents(is_small)
    return RunDirectory(plan, inputs)


def prospects(plan: Plan, *, accept_code: bool = False) -> tuple[RunDirectory, list[Prospect]]:
    """Return what a run would do now, phase by phase; nothing is run or written.

    A phase that waits for one that must run is `later`: whether it can be reused depends on what
    comes out.
    """
    run = open_run(plan)
    return run, prospects_of(run, accept_code=accept_code)


def run(plan: Plan, observer: Observer | None = None, *, accept_code: bool = False) -> RunResult:
    """Run a plan, or continue where an earlier run stopped.

    Phases whose inputs, parameters, files and code are those of their seal are reused.

    Args:
        observer: is told what happens.
        accept_code: reuse results that differ in nothing but corpuskit's code.

    Raises:
        UsageError: nothing was run.
        TaskError: tasks failed for good; the others finished.
        DataError: all failed tasks failed for broken data.
    """
    observer = observer or Observer()
    _pin_code(plan)
    with lock(open_store(plan.settings.output).root):
        directory = open_run(plan, observer)
        _refuse_inputs_inside(directory)
        directory.store.clear_scratch()
        directory.save()
        settings, sources = directory.plan.settings, directory.plan.file.sources
        save_inputs(directory.store, directory.inputs, sources, settings.cell_bytes)
        result = _run_phases(directory, observer, accept_code=accept_code)
        if plan.until is None:
            sweep(directory)
        directory.store.clear_scratch()
    return result


def _run_phases(directory: RunDirectory, observer: Observer, *, accept_code: bool) -> RunResult:
    executor = directory.plan.settings.executor
    seals: list[Seal] = []
    reused: list[bool] = []
    with Pool(directory.store.root, executor.workers, executor.retries) as pool:
        for phase in directory.plan.phases:
            work = PhaseWork(directory, phase, accept_code=accept_code)
            work.discard_broken()
            observer.phase_starts(work.prospect())
            failures = [] if work.reused else pool.run(work.tasks(), _forward(observer))
            if failures:
                raise _failed(work, failures)
            seals.append(work.finish())
            reused.append(work.reused is not None)
            observer.phase_ends(phase, seals[-1])
    return RunResult(directory, tuple(seals), tuple(reused))


def _pin_code(plan: Plan) -> None:
    """Hash the code before workers import it: an edit during the run must not sign old results."""
    for step in (*plan.file.sources, *plan.file.steps):
        code_digest(registry.path(step.name))


def _refuse_inputs_inside(directory: RunDirectory) -> None:
    """Refuse inputs inside the run directory: what no seal names is deleted there."""
    root = directory.store.root.resolve()
    for file in directory.inputs.files:
        if Path(file.path).resolve().is_relative_to(root):
            raise UsageError(
                f"{file.path}: source {file.source!r} reads a file inside the output {root}, where "
                "a run deletes what is not its own. Set another output."
            )


def _forward(observer: Observer) -> Any:
    def on_event(kind: str, fields: dict[str, Any]) -> None:
        if kind == "progress":
            observer.progress(fields["documents"], fields["bytes"])
        else:
            observer.task_ends(kind, fields)

    return on_event


def _failed(work: PhaseWork, failures: Sequence[Failure]) -> CorpuskitError:
    """Return the error that names the failed tasks, their logs, and how to go on."""
    lines = [
        f"phase {work.phase.name}: {len(failures)} of its tasks failed; "
        "the others finished and are kept."
    ]
    for failure in failures[:SHOWN_FAILURES]:
        lines.append(f"  units {_span(failure.task.units)}: {failure.error}")
        if failure.code == 1:
            lines.append(f"    log: {failure.log}")
    if len(failures) > SHOWN_FAILURES:
        lines.append(f"  and {len(failures) - SHOWN_FAILURES} more.")
    lines.append("Run the same command again to continue.")
    kind = DataError if all(failure.code == 3 for failure in failures) else TaskError
    return kind("\n".join(lines))


def _span(units: Sequence[int]) -> str:
    return str(units[0]) if len(units) == 1 else f"{units[0]}-{units[-1]}"
