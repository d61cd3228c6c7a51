"""Runs a plan, phase by phase: one library call for `corpuskit run` and `corpuskit plan`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.cache import cache_dir
from corpuskit.engine.callbacks import LogCallbacks, RunCallbacks
from corpuskit.engine.expect import absent_origins, english_defaults, plan_warnings
from corpuskit.engine.fingerprint import code_digest
from corpuskit.engine.inputs import INPUTS, find_inputs, save_inputs
from corpuskit.engine.mixture import lost_edits, mixture_problem
from corpuskit.engine.phase import (
    PhaseStatus,
    PhaseWork,
    failure_error,
    forget_failures,
    note_failures,
    phase_statuses,
    sweep,
)
from corpuskit.engine.plan import DOCUMENTS_BELOW_BYTES, IN_PROCESS_BELOW_BYTES, PLAN, Plan
from corpuskit.engine.resources import available_resources, estimate_resources, find_problems
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import ConfigError, TaskError, UsageError
from corpuskit.kernels.target import warning
from corpuskit.storage import SCRATCH, Store, is_remote, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.executors import Launcher
    from corpuskit.engine.executors.slurm import Job
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.resources import AvailableResources
    from corpuskit.formats.manifest import Seal


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run left: the seals of its phases, and which of them were reused."""

    run: RunDirectory
    seals: tuple[Seal, ...]
    reused: tuple[bool, ...]


def open_run(
    plan: Plan, callbacks: RunCallbacks | None = None, store: Store | None = None
) -> RunDirectory:
    """Find the inputs of a plan; nothing is written.

    Args:
        store: the run directory, where its lock is held.

    Raises:
        UsageError: a pattern matches nothing.
        DataError: a footer cannot be read.
    """
    callbacks = callbacks or LogCallbacks()
    settings = plan.settings
    store = store or open_store(settings.output)
    inputs = find_inputs(
        store, plan.file.sources, settings.cell_bytes, on_file=callbacks.reading_inputs
    )
    if settings.documents is None:
        plan = plan.with_documents(inputs.size_bytes() < DOCUMENTS_BELOW_BYTES)
    executor, size = settings.executor, inputs.size_bytes()
    if executor.workers is None and executor.kind == "local" and size < IN_PROCESS_BELOW_BYTES:
        plan = plan.with_workers(0)
    return RunDirectory(plan, inputs, store)


def preview(plan: Plan, *, accept_code: bool = False) -> tuple[RunDirectory, list[PhaseStatus]]:
    """Return what a run would do now, phase by phase; nothing is run or written.

    A phase that waits for one that must run is `later`: whether it can be reused depends on what
    comes out.
    """
    _refuse_foreign(open_store(plan.settings.output))
    refuse_no_runs(plan)
    run = open_run(plan)
    _refuse_inputs_inside(run)
    return run, phase_statuses(run, accept_code=accept_code)


def run(
    plan: Plan,
    callbacks: RunCallbacks | None = None,
    *,
    accept: bool = False,
    accept_code: bool = False,
    force: bool = False,
    launcher: Launcher | None = None,
) -> RunResult:
    """Run a plan, or continue where an earlier run stopped.

    Phases whose inputs, parameters, files and code are those of their seal are reused.

    Args:
        callbacks: report what happens; by default, to the logger `corpuskit`.
        accept: go on where `expect` of the file does not hold.
        accept_code: reuse results that differ in nothing but corpuskit's code.
        force: run although memory or disk seem too small.
        launcher: runs the tasks; that of the plan's executor when absent.

    Raises:
        UsageError: nothing was run: a request is wrong, or memory or disk are too small.
        TaskError: tasks failed for good; the others finished.
        DataError: all failed tasks failed for broken data.
        ContractError: a stage did what `expect` does not allow; the phases after it did not run.
    """
    callbacks = callbacks or LogCallbacks()
    if launcher is None and plan.settings.executor.kind == "slurm":
        allowed = {"accept": accept, "accept_code": accept_code, "force": force}
        return submit(plan, callbacks, **allowed).follow(callbacks)
    with prepared(plan, callbacks, accept=accept) as directory:
        launcher = launcher or open_launcher(directory)
        result = _run_phases(directory, launcher, callbacks, accept_code=accept_code, force=force)
        if plan.until is None:
            sweep(directory)
        directory.store.clear_scratch()
    return result


@dataclasses.dataclass(frozen=True)
class Submission:
    """A run that was handed to Slurm.

    Attributes:
        reused: seals of the phases that need not run.
        phases: those that were submitted, in order.
        jobs: one for each of them, and the closing one; none when there was nothing to do.
    """

    run: RunDirectory
    reused: tuple[Seal, ...]
    phases: tuple[Phase, ...]
    jobs: tuple[Job, ...]

    def follow(self, callbacks: RunCallbacks) -> RunResult:
        """Wait until the run is finished.

        Raises:
            TaskError: tasks failed, or the jobs are gone.
            DataError: all failed tasks failed for broken data.
            ContractError: `expect` does not hold; the jobs stop by themselves.
        """
        from corpuskit.engine.monitor import SlurmFollower

        seals = SlurmFollower(self.run, self.jobs, self.phases, callbacks).follow()
        is_reused = [True] * len(self.reused) + [False] * len(seals)
        return RunResult(self.run, (*self.reused, *seals), tuple(is_reused))


def submit(
    plan: Plan,
    callbacks: RunCallbacks | None = None,
    *,
    accept: bool = False,
    accept_code: bool = False,
    force: bool = False,
) -> Submission:
    """Submit a plan to Slurm and return; the jobs run on their own.

    Args:
        accept, accept_code, force: as for `run`.

    Raises:
        UsageError: nothing was submitted.
        ContractError: nothing was submitted: what was run before breaks `expect`.
        TaskError: Slurm refused a job; nothing is left in the queue.
    """
    from corpuskit.engine.contracts import check_barrier

    callbacks = callbacks or LogCallbacks()
    reused: list[Seal] = []
    with prepared(plan, callbacks, accept=accept) as directory:
        for phase in directory.plan.phases:
            work = PhaseWork(directory, phase, accept_code=accept_code)
            if work.reused is None and work.all_tasks:
                if note := check_phase(work, force=force):
                    callbacks.notes(note)
                work.discard_broken()
                break
            callbacks.phase_starts(work.status())
            reused.append(work.finish())
            callbacks.phase_ends(phase, reused[-1])
            check_barrier(directory, phase.index, callbacks)
        phases = directory.plan.phases[len(reused) :]
        for phase in phases:
            forget_failures(directory, phase)
        jobs: list[Job] = []
        if phases:
            from corpuskit.engine.executors import slurm

            jobs = slurm.submit(directory, phases, accept_code=accept_code, force=force)
        if not phases and plan.until is None:
            sweep(directory)
    return Submission(directory, tuple(reused), tuple(phases), tuple(jobs))


@contextlib.contextmanager
def prepared(
    plan: Plan, callbacks: RunCallbacks, *, accept: bool = False
) -> Iterator[RunDirectory]:
    """Yield the run directory of a plan, locked and ready for its tasks.

    Args:
        accept: go on where `expect` does not hold; `plan.json` records it.

    Raises:
        UsageError: nothing may be run there.
    """
    if plan.settings.executor.kind == "local":
        cache_dir()  # without it every task would fail
    _pin_code(plan)
    refuse_no_runs(plan)
    from corpuskit.engine.executors import slurm

    store = open_store(plan.settings.output)
    _refuse_foreign(store)
    with store.lock():
        slurm.refuse_live_jobs(store)
        directory = open_run(plan, callbacks, store)
        _refuse_inputs_inside(directory)
        directory.store.clear_scratch()
        directory.accepts = accept
        directory.save()
        settings, sources = directory.plan.settings, directory.plan.file.sources
        save_inputs(directory.store, directory.inputs, sources, settings.cell_bytes)
        callbacks.opened(directory)
        file = directory.plan.file
        texts = (*english_defaults(file.steps), *absent_origins(file), *plan_warnings(file.steps))
        for problem in (warning(), *(f"warning: {text}" for text in texts)):
            if problem:
                callbacks.notes(problem)
        yield directory


def _run_phases(
    directory: RunDirectory,
    launcher: Launcher,
    callbacks: RunCallbacks,
    accept_code: bool,
    force: bool,
) -> RunResult:
    from corpuskit.engine.contracts import check_barrier  # with the monitor, which plans do without

    seals: list[Seal] = []
    reused: list[bool] = []
    with launcher:
        for phase in directory.plan.phases:
            work = PhaseWork(directory, phase, accept_code=accept_code)
            if work.reused is None:
                note = check_phase(work, force=force, is_started=not all(reused))
                if note:
                    callbacks.notes(note)
            work.discard_broken()
            callbacks.phase_starts(work.status())
            failures = [] if work.reused else launcher.run(work.tasks(), _forward(callbacks))
            if failures:
                note_failures(directory, phase, failures)
                raise failure_error(phase, failures)
            seals.append(work.finish())
            reused.append(work.reused is not None)
            callbacks.phase_ends(phase, seals[-1])
            check_barrier(directory, phase.index, callbacks)
    return RunResult(directory, tuple(seals), tuple(reused))


def check_phase(
    work: PhaseWork,
    *,
    force: bool = False,
    is_started: bool = False,
    in_slot: bool = False,
    available: AvailableResources | None = None,
) -> str:
    """Refuse to begin a phase if it, or a later one, will not fit; return what was forced.

    Args:
        force: run all the same, and return what does not fit. Else "" is returned.
        is_started: phases of this run were run already.
        in_slot: this process works for Slurm.
        available: memory and disk; measured if absent.

    Raises:
        UsageError: it does not fit, and nothing was run.
        TaskError: it does not fit after all.
        DataError: a source that has a weight in the mixture has no rows.
    """
    run = work.run
    if problem := mixture_problem(run, work.phase.index):  # no force makes rows that are not there
        if is_started:
            raise TaskError(f"{problem} Finished phases are kept: correct it and run again.")
        raise UsageError(f"{problem} Nothing was run.")
    if (lost := lost_edits(run, work.phase.name)) and not force:
        raise (TaskError if is_started else UsageError)(f"{lost}")
    num_done = len(run.manifest_names(work.phase, work.fingerprint))
    share_left = max(1 - num_done / len(work.all_tasks), 0.0) if work.all_tasks else 0.0
    estimates = estimate_resources(run, work.phase.index, share_left)
    available = available or available_resources(run, in_slot=in_slot)
    problems = find_problems(run, estimates, available)
    if not problems:
        return ""
    message = " ".join(problems)
    if force:
        return f"forced, although: {message}"
    if is_started:
        message += " Finished phases are kept: correct it and run again."
        raise TaskError(f"{message} --force goes on all the same.")
    raise UsageError(f"{message} Nothing was run; --force runs it all the same.")


def _pin_code(plan: Plan) -> None:
    """Hash the code before workers import it: an edit during the run must not sign old results."""
    for step in (*plan.file.sources, *plan.file.steps):
        code_digest(step.name)


def open_launcher(directory: RunDirectory) -> Launcher:
    """Return the launcher that the plan asks for."""
    executor = directory.plan.settings.executor
    if executor.kind == "ray":
        from corpuskit.engine.executors.ray import RayLauncher

        return RayLauncher(
            directory.store,
            address=executor.ray.address,
            workers=executor.processes,
            cpus_per_task=executor.ray.cpus_per_task,
            memory=executor.ray.memory,
            retries=executor.retries,
        )
    if executor.workers == 0:
        from corpuskit.engine.executors.in_process import InProcess

        return InProcess(directory, executor.retries)
    from corpuskit.engine.executors.local import Pool

    return Pool(directory.store, executor.processes, executor.retries)


def _refuse_foreign(store: Store) -> None:
    """Refuse a folder that holds something, but no run: a run deletes what is not its own."""
    names = store.top()
    if PLAN not in names and (foreign := sorted(names - {"lock", "logs", SCRATCH, INPUTS})):
        raise UsageError(
            f"{store.address}: not a run directory (no {PLAN}), but it holds {foreign[0]!r}. A run "
            "deletes what is not its own: set another output, or empty it."
        )


def refuse_no_runs(plan: Plan) -> None:
    """Refuse to reuse what is no run directory: a misspelt path would compute everything."""
    for address in plan.settings.reuse:
        if not open_store(address).exists(PLAN):
            location = plan.file.locations.get("reuse", plan.file.path)
            raise ConfigError(
                location,
                f"reuse: {address} is not a run directory, it has no {PLAN}.",
                "Correct the path.",
            )


def _refuse_inputs_inside(directory: RunDirectory) -> None:
    """Refuse inputs inside the run directory: what no seal names is deleted there."""
    root = directory.store.address
    folders: dict[str, bool] = {}
    for file in directory.inputs.files:
        folder = file.path if os.path.islink(file.path) else file.path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = _is_inside(folder or ".", root)
        if folders[folder]:
            raise UsageError(
                f"{file.path}: source {file.source!r} reads a file inside the output {root}, where "
                "a run deletes what is not its own. Set another output."
            )


def _is_inside(folder: str, root: str) -> bool:
    if is_remote(folder) or is_remote(root):
        return f"{folder}/".startswith(root.rstrip("/") + "/")
    return Path(folder).resolve().is_relative_to(Path(root).resolve())


def _forward(callbacks: RunCallbacks) -> Any:
    def on_event(kind: str, fields: dict[str, Any]) -> None:
        if kind == "progress":
            callbacks.progress(fields["documents"], fields["bytes"])
        elif kind == "compiling":
            callbacks.compiling()
        elif kind == "waits":
            callbacks.notes(fields["reason"])
        else:
            callbacks.task_ends(kind, fields)

    return on_event
