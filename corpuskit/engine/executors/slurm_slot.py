"""What an element of a Slurm array runs: `python -m MODULE RUN_DIR PHASE_INDEX`.

Slot k of S runs the tasks k, k + S, ... of the phase that have no manifest yet, in as many worker
processes as the plan says. The tasks are cut again here, from the seals of the phases before, so a
phase can be submitted before it is known what it will have to do. An index after the last
phase closes the run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from corpuskit.cpu import start_quickly
from corpuskit.engine.contracts import check_barrier
from corpuskit.engine.executors.local import Pool
from corpuskit.engine.executors.slurm import JOBS, leave_out, seconds_left
from corpuskit.engine.phase import PhaseWork, note_failures, note_slot, sweep
from corpuskit.engine.pipeline import check_phase
from corpuskit.engine.rundir import RunDirectory, manifest_name
from corpuskit.errors import CorpuskitError, DataError, TaskError, UsageError, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors import Task, TaskFailure

LINE_SECONDS = 60.0
LEAVE_SECONDS = 10.0
"""What is left of the grace after the tasks in hand were killed."""

VISIBLE_SECONDS = 60.0
"""How long a network file system may take to show on one node what another has written."""

EARLY_SECONDS = 90.0
"""How much earlier than configured Slurm may warn: up to a minute, by its documentation."""

REQUEUE_SECONDS = 180.0
"""How long Slurm may take to end a slot that it has requeued."""


class Slot:
    """One element of a job array at work.

    Args:
        number, num: which slot, of how many.
        restarts: how often Slurm has started this slot before.
    """

    def __init__(
        self, run: RunDirectory, number: int, num: int, restarts: int, *, accept_code: bool,
        force: bool,
    ) -> None:  # fmt: skip
        self.run, self.number, self.num, self.restarts = run, number, num, restarts
        self.accept_code, self.force = accept_code, force
        self.documents = self.size = self.done = 0
        self._last = time.monotonic()
        executor = run.plan.settings.executor
        self.grace = executor.slurm.grace_seconds
        self.pool = Pool(run.store, executor.processes, executor.retries)

    def work(self, index: int) -> int:
        """Run this slot's share of a phase; return the exit code."""
        self.ensure_sealed(index - 1)
        check_barrier(self.run, index - 1)
        work = PhaseWork(self.run, self.run.plan.phases[index], accept_code=self.accept_code)
        if work.reused is not None:
            work.finish()
            return 0
        if note := check_phase(work, force=self.force, is_started=True, in_slot=True):
            _log(note)
        tasks = self._share(work)
        _log(f"{work.phase.name}: slot {self.number} of {self.num}, {len(tasks)} tasks to do")
        with self.pool:
            failures = self.pool.run(tasks, self._on_event)
        note_failures(self.run, work.phase, failures)
        if self.pool.deadline is not None and self._share(work):
            return self._hand_over(len(tasks))
        if failures:
            return _report(failures)
        if work.is_done():
            with contextlib.suppress(DataError):  # a manifest is to be made again, by its own slot
                work.finish()
                _log(f"{work.phase.name}: sealed")
                self._seal_idle(index + 1)
        return 0

    def _seal_idle(self, index: int) -> None:
        """Seal the phases after a sealed one that turn out to have nothing to do.

        A job for each would wait in the queue and start every slot only to end: minhash_dedup has
        seven phases for corpora whose clusters or bands do not fit into one task.
        """
        idle: list[str] = []
        for phase in self.run.plan.phases[index:]:
            work = PhaseWork(self.run, phase, accept_code=self.accept_code)
            if work.reused is None and work.all_tasks:
                break
            work.finish()
            idle.append(phase.name)
        if idle and leave_out(self.run.store, idle):
            _log(f"nothing to do, their jobs are cancelled: {', '.join(idle)}")

    def close(self) -> int:
        """Seal what is left to seal, delete what no seal names, and forget the jobs."""
        last = len(self.run.plan.phases) - 1
        self.ensure_sealed(last)
        check_barrier(self.run, last)
        if self.run.plan.until is None:
            sweep(self.run)
        self.run.store.clear_scratch()
        self.run.store.delete([JOBS])
        _log("the run is finished")
        return 0

    def ensure_sealed(self, index: int) -> None:
        """Seal a phase unless it is sealed: its last two slots may each have missed the other.

        Raises:
            TaskError: tasks of it are missing although its jobs have ended.
        """
        if index < 0:
            return
        phase = self.run.plan.phases[index]
        seal = self.run.usable_seal(phase)
        if seal is not None and seal.fingerprint == self.run.fingerprint(phase):
            self.run.set_seal(phase, seal)
            return
        work = PhaseWork(self.run, phase, accept_code=self.accept_code)
        end = time.monotonic() + VISIBLE_SECONDS
        while not self._seals(work):
            if time.monotonic() > end:
                raise TaskError(
                    f"phase {work.phase.name}: not all of its tasks are done, although its jobs "
                    "have ended. Run the same command again."
                )
            time.sleep(1)

    def _seals(self, work: PhaseWork) -> bool:
        if work.reused is None and not work.is_done():
            return False
        try:
            work.finish()
        except DataError:
            return False
        return True

    def _share(self, work: PhaseWork) -> list[Task]:
        """Return this slot's tasks that have no usable manifest."""
        share = work.all_tasks[self.number :: self.num]
        listed = work.run.store.list(f"manifests/{work.phase.name}/{work.fingerprint}")
        names = {manifest_name(work.phase, task) for task in work.all_tasks}
        if any("/task-" in name and name not in names for name in listed):
            return PhaseWork(work.run, work.phase).tasks(share)  # an earlier run cut otherwise
        return [t for t in share if self.run.read_manifest(manifest_name(work.phase, t)) is None]

    def _on_event(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "progress":
            self.documents += fields["documents"]
            self.size += fields["bytes"]
        elif kind != "compiling":
            self.done += kind == "done"
            if kind != "done":
                _log(f"task {kind}: {fields.get('error', '')}")
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            _log(f"{self.done} tasks, {self.documents:,} documents, {self.size / 1e6:,.1f} MB")

    def on_warning(self, *_: object) -> None:
        """Take the warning that the time limit is near: finish what is in hand, begin nothing."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a second one must not disturb the first
        _log("the time limit is near: finishing the tasks in hand")
        self.pool.deadline = time.monotonic() + self.grace - LEAVE_SECONDS

    def _hand_over(self, num_tasks: int) -> int:
        """Have Slurm start this slot again, and wait until Slurm ends this process."""
        # One element of an array has the array's own number as SLURM_JOB_ID, and `scontrol requeue`
        # with that number takes all elements out of work.
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        if num_tasks and self.done == 0 and self.restarts and self._is_limit_near(job):
            _log(
                "no task was finished within a whole time limit. Raise executor.slurm.time, or "
                "lower cell_bytes."
            )
            return 1
        _log(f"requeue {job} after {self.done} tasks")
        requeue = subprocess.run(
            ["scontrol", "requeue", job], text=True, capture_output=True, check=False
        )
        if requeue.returncode == 0:
            time.sleep(REQUEUE_SECONDS)  # TERM ends this process meanwhile
        _log(f"requeue failed: {requeue.stderr.strip()}. Run the same command again.")
        return 1

    def _is_limit_near(self, job: str) -> bool:
        """Return whether the time limit caused the warning; preemption may send one, too."""
        with contextlib.suppress(UsageError):
            return seconds_left(job) <= self.grace + EARLY_SECONDS
        return True


def _report(failures: Sequence[TaskFailure]) -> int:
    for failure in failures:
        _log(f"failed: units {failure.task.units[0]}...: {failure.error} log: {failure.log}")
    return 3 if all(failure.code == 3 for failure in failures) else 1


def main(arguments: Sequence[str]) -> int:
    """Run one slot; return the exit code."""
    parser = argparse.ArgumentParser(prog="corpuskit.engine.executors.slurm_slot")
    parser.add_argument("directory")
    parser.add_argument("phase", type=int)
    parser.add_argument("--accept-code-change", action="store_true")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args(arguments)
    facts = os.environ
    first = int(facts.get("SLURM_ARRAY_TASK_MIN", "0"))
    number = int(facts.get("SLURM_ARRAY_TASK_ID", "0")) - first
    num = int(facts.get("SLURM_ARRAY_TASK_COUNT", "1"))
    run = None
    try:
        run = RunDirectory.open(options.directory)
        os.chdir(run.folder)
        run.check_code()
        if run.store.is_remote:
            run.store.clear_scratch()  # of workers that were killed on this node
        slot = Slot(
            run, number, num, int(facts.get("SLURM_RESTART_COUNT", "0")),
            accept_code=options.accept_code_change, force=options.force,
        )  # fmt: skip
        signal.signal(signal.SIGUSR1, slot.on_warning)
        is_last = options.phase >= len(run.plan.phases)
        return slot.close() if is_last else slot.work(options.phase)
    except (CorpuskitError, OSError) as error:
        if isinstance(error, CorpuskitError):
            message, code = str(error), error.exit_code
        else:
            message, code = describe(error), 1
        _log(f"error: {message}")
        if run is not None:
            phase = run.plan.phases[min(options.phase, len(run.plan.phases) - 1)]
            note_slot(run, phase, number, message, code)
        return code


def _log(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    start_quickly()
    sys.exit(main(sys.argv[1:]))
