"""Workers in this process: the launcher that runs them, and those that hang."""

from __future__ import annotations

import collections
import threading
from collections import Counter
from typing import TYPE_CHECKING

from corpuskit.engine.executors import Launcher, TaskFailure
from corpuskit.engine.phase import cut_units
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.task import run_task
from corpuskit.errors import CorpuskitError
from corpuskit.storage.faults import Death

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.executors import OnEvent, Task
    from corpuskit.stage import Unit
    from tests.faults.runner import Player
    from tests.faults.schedule import Zombie


class PowerLoss(Death):
    """All processes of the machine are gone, and what was not durable."""


class DriverDeath(Death):
    """The process is gone that plans and seals; workers may live on."""


class BenchLauncher(Launcher):
    """Workers in this process, with the rules of the local launcher for what fails."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.directory: RunDirectory | None = None

    def __enter__(self) -> BenchLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.player.role = "driver"

    def run(self, tasks: Sequence[Task], on_event: OnEvent) -> list[TaskFailure]:
        player, retries = self.player, 1
        player.event("next phase", tasks[0].phase if tasks else -1)
        waiting = collections.deque(player.rng.sample(tasks, len(tasks)))
        tries: Counter[Task] = Counter()
        failures: list[TaskFailure] = []
        while waiting:
            task = waiting.popleft()
            tries[task] += 1
            player.role = "worker"
            try:
                self._work(task)
            except (PowerLoss, DriverDeath):
                raise
            except (Death, OSError, CorpuskitError) as error:
                if isinstance(error, Death):
                    self.directory = None  # the next one starts afresh
                player.trace(f"{task.phase} {task.name}: {type(error).__name__} {error}")
                if not isinstance(error, CorpuskitError) and tries[task] <= retries:
                    waiting.append(task)
                    continue
                code = error.exit_code if isinstance(error, CorpuskitError) else 1
                failures.append(TaskFailure(task, str(error), "", code))
            finally:
                player.role = "driver"
        player.event("tasks done", tasks[0].phase if tasks else -1)
        return failures

    def _work(self, task: Task) -> None:
        if self.directory is None:
            self.directory = RunDirectory.open(self.player.address)
            self.directory.check_code()
        self.player.work(self.directory, task, units_of(self.directory, task))


class Hanging:
    """A worker that hangs in the middle of a task, in a thread of its own."""

    def __init__(
        self, player: Player, spec: Zombie, directory: RunDirectory, task: Task,
        units: Sequence[Unit],
    ) -> None:  # fmt: skip
        self.player, self.spec = player, spec
        if spec.pause == 0:  # it has read the plan and nothing else
            directory = RunDirectory.open(player.address)
        self._run = lambda: run_task(
            directory, task, units if spec.pause else units_of(directory, task)
        )
        self._left, self._is_ended = spec.pause, False
        self._hung, self._resumed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._is_hanging = False
        self._error: BaseException | None = None
        self._edits, self._runs, self._phases = player.edits, player.outcome.runs, 0
        self.task = task

    def hangs(self) -> bool:
        """Begin; return whether it hangs, False when it finished before."""
        if self._left == 0:
            self._is_hanging = True
            return True
        self._thread.start()
        self._hung.wait()
        if not self._is_hanging and self._error is not None:
            raise self._error
        return self._is_hanging

    def passing(self) -> None:
        """Pass a step, and hang when it is the one."""
        self._left -= 1
        if self._left == 0:
            self._is_hanging = True
            self._hung.set()
            self._resumed.wait()
            if self._is_ended:
                raise Death

    def is_due(self, moment: str, phase: int) -> bool:
        """Return whether it goes on now."""
        self._phases += moment == "next phase"
        until = self.spec.until
        if moment == "end" or until == moment:
            return True
        if until == "again":
            is_later = self.player.outcome.runs > self._runs
            return is_later and moment == "tasks done" and phase == self.task.phase
        if until == "edited":
            return moment == "next phase" and self.player.edits > self._edits
        return until == "later" and self._phases >= 3

    def go_on(self, moment: str) -> None:
        """Run to the end of the task, if it is let."""
        if not self._thread.ident:
            self._thread.start()
        self._resumed.set()
        self._thread.join()
        edited = " after an edit" if self.player.edits > self._edits else ""
        ended = "committed" if self._error is None else "failed"
        self.player.trace(f"zombie {self.task}: {ended} ({moment}{edited}) {self._error!r}")
        self.player.outcome.fired[f"zombie {ended} ({moment}{edited})"] += 1
        if not isinstance(self._error, OSError | CorpuskitError | KeyError | None):
            self.player.note(f"a zombie failed oddly: {self._error!r}")

    def end(self) -> None:
        """Die where it hangs."""
        self._is_ended = True
        self._resumed.set()
        if self._thread.ident:
            self._thread.join()

    def _work(self) -> None:
        self.player.threads[threading.get_ident()] = self
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - judged by whoever let it go on
            self._error = error
        finally:
            del self.player.threads[threading.get_ident()]
            self._hung.set()


def units_of(directory: RunDirectory, task: Task) -> list[Unit]:
    """Return the units of a task, cut anew as workers do."""
    units = {unit.number: unit for unit in cut_units(directory, directory.plan.phases[task.phase])}
    return [units[number] for number in task.units]
