"""Plays schedules: the pipeline in this process, its workers, what befalls them, and the check."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import random
import shutil
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.pipeline import run
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import verify
from corpuskit.engine.task import run_task
from corpuskit.errors import CorpuskitError
from corpuskit.storage import faults, open_store
from corpuskit.storage.faults import Death
from tests.faults import objects
from tests.faults.bench import VARIANTS, contents
from tests.faults.disk import Disk
from tests.faults.schedule import Passings, Profile, Schedule, draw
from tests.faults.workers import BenchLauncher, DriverDeath, Hanging, PowerLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from corpuskit.engine.executors import Task
    from corpuskit.engine.plan import Phase, Plan
    from corpuskit.formats.manifest import Seal
    from corpuskit.stage import Unit
    from tests.faults.bench import Bench
    from tests.faults.schedule import Fault

MOST_ATTEMPTS = 12
CODES = {"ENOSPC": errno.ENOSPC, "short write": errno.ENOSPC}


@dataclasses.dataclass
class Outcome:
    """What came of schedules.

    Attributes:
        fired: faults by kind, zombies by what they did.
        problems: differences from the clean run, partial files accepted, errors without a cause.
        orphans: files that late zombies left and the next run deleted.
    """

    fired: Counter[str] = dataclasses.field(default_factory=Counter)
    problems: list[str] = dataclasses.field(default_factory=list)
    partial: int = 0
    runs: int = 0
    orphans: int = 0

    def add(self, other: Outcome) -> None:
        """Add what came of more schedules."""
        self.fired += other.fired
        self.problems += other.problems
        self.partial += other.partial
        self.runs += other.runs
        self.orphans += other.orphans


class Range:
    """Clean runs of all variants, and schedules to compare with them.

    Args:
        trace: is told what happens.
    """

    def __init__(self, bench: Bench, trace: Callable[[str], None] = lambda line: None) -> None:
        self.bench, self.trace = bench, trace
        self.clean: dict[str, dict[str, str]] = {}
        self.profile: Profile = {}
        self.phases = [phase.name for phase in bench.plan("plain", 3, "unused").phases]
        for variant in VARIANTS:
            self.clean[variant] = self._clean(variant, "local")
        if self.clean["delete"] != self.clean["plain"]:
            raise AssertionError("a run that deletes shuffle files ends with other bytes")
        if self._clean("plain", "objects") != self.clean["plain"]:
            raise AssertionError("a clean run on objects differs from one on a file system")

    def _clean(self, variant: str, store: str) -> dict[str, str]:
        quiet = Schedule(0, store, ((variant, 3),))
        player = Player(self, quiet)
        with player.prepared():
            player.play()
            assert not player.outcome.problems, player.outcome.problems
            self.profile.setdefault(store, Passings(dict(player.passed), len(self.phases)))
            return contents(open_store(player.address))

    def draw(self, seed: int, *, is_history: bool = False) -> Schedule:
        """Return the schedule of a seed."""
        return draw(seed, self.profile, is_history=is_history)

    def play(self, schedule: Schedule) -> Outcome:
        """Let happen what a schedule says, and compare what comes of it with the clean run."""
        self.trace(str(schedule))
        last = schedule.runs[-1][0]
        if last not in VARIANTS:  # a history: its end is not run by others
            self.clean = {name: self.clean[name] for name in VARIANTS}
            self.clean[last] = self._clean(last, "local")
        player = Player(self, schedule)
        with player.prepared():
            player.play()
            player.check()
        return player.outcome


class Player(RunCallbacks):
    """One schedule: the hook that makes things go wrong, and the driver's fate."""

    def __init__(self, home: Range, schedule: Schedule) -> None:
        self.home, self.schedule, self.trace = home, schedule, home.trace
        self.rng = random.Random(f"play {schedule.seed}")
        self.outcome = Outcome()
        self.passed: Counter[tuple[str, str]] = Counter()
        self.waiting = {(f.role, f.step, f.nth): f for f in schedule.faults}
        self.hanging = {(zombie.phase, zombie.attempt): zombie for zombie in schedule.zombies}
        self.attempts: Counter[int] = Counter()
        self.zombies: list[Hanging] = []
        self.threads: dict[int, Hanging] = {}
        self.role, self.is_quiet, self.edits = "driver", False, 0
        self.root = home.bench.folder / "out"
        is_local = schedule.store == "local"
        self.address = str(self.root) if is_local else "s3://bench/out"
        self.disk: Disk | None = None
        self.hours = 0.0

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Arm all that goes wrong; leave nothing behind."""
        kept = self.home.bench.folder / "kept"
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, kept, ignore_errors=True)
            stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            stack.callback(self._end_zombies)
            stack.callback(faults.install_hook, None)
            faults.install_hook(self.passing)
            if self.schedule.needs_disk:
                self.disk = Disk(self.root, kept)
                stack.enter_context(swapped(os, "fsync", self.disk.fsync))
            if not self.schedule.links:
                stack.enter_context(swapped(os, "link", _no_links))
            if self.schedule.skew:
                real = time.time
                stack.enter_context(swapped(time, "time", lambda: real() + self.hours * 3600))
            if self.schedule.store == "objects":
                stack.enter_context(objects.bucket(self.request))
            yield

    def play(self) -> None:
        """Run what the schedule says, the last run until it has finished."""
        *edited, last = self.schedule.runs
        for variant, tasks in edited:
            self.home.bench.arrange(variant)
            self._attempt(self.home.bench.plan(variant, tasks, self.address))
            self.edits += 1
        self.home.bench.arrange(last[0])
        plan = self.home.bench.plan(*last, self.address)
        while not self._attempt(plan):
            if self.outcome.runs >= MOST_ATTEMPTS:
                self.note(f"not finished after {MOST_ATTEMPTS} runs")
                return
        self.event("end")

    def _attempt(self, plan: Plan) -> bool:
        """Run a plan once; return whether it finished."""
        self.outcome.runs += 1
        self.role = "driver"
        self._skew()
        before = self._num_fired()
        try:
            run(plan, self, launcher=BenchLauncher(self))
        except PowerLoss:
            assert self.disk is not None, "drawn for local stores only"
            self._end_zombies()
            self.disk.lose_power(self.rng)
            self.trace("power loss")
            return False
        except Death:
            self.trace("the driver died")
            return False
        except (OSError, CorpuskitError) as error:
            self.trace(f"run failed: {error}")
            if self._num_fired() == before or getattr(error, "exit_code", 1) != 1:
                self.note(f"a run failed without a cause: {type(error).__name__}: {error}")
            return False
        self.event("swept")
        return True

    def _num_fired(self) -> int:
        """Return how much of that has happened which makes a run fail."""
        others = ("zombie", "clock skew", "slow")
        return sum(n for kind, n in self.outcome.fired.items() if not kind.startswith(others))

    def _skew(self) -> None:
        if self.schedule.skew:
            self.outcome.fired["clock skew"] += 1
            self.hours = self.rng.uniform(-100, 100)
            for path in self.root.rglob("*"):
                moment = time.time() + self.rng.uniform(-100, 100) * 3600
                os.utime(path, (moment, moment))

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        """Check that whatever a seal names is whole."""
        with self.quiet():
            store = open_store(self.address)
            for part in itertools.chain.from_iterable(seal.kept()):
                if store.size(part.path) is None or store.digest(part.path) != part.digest:
                    self.outcome.partial += 1
                    self.note(f"{phase.name}: the seal names {part.path}, which is not whole")

    def passing(self, step: str, name: str) -> None:
        """Pass a step: what `faults.fault_point` calls."""
        zombie = self.threads.get(threading.get_ident())
        if zombie is not None:
            zombie.passing()
        elif not self.is_quiet and not name.endswith("/lock"):
            fault = self._due(step)
            if fault is not None:
                self._strike(fault, name)

    def request(self, operation: str, key: str, send: Callable[[], Any]) -> Any:
        """Pass a request to the object store: the faults of networks and servers."""
        is_mine = threading.get_ident() not in self.threads
        fault = None
        if is_mine and not self.is_quiet and not key.endswith("/lock"):
            fault = self._due(f"request:{operation}")
        if fault is None:
            return send()
        if fault.kind not in {"lost answer", "sent twice"}:
            self._strike(fault, key)
            return send()
        answer = send()
        if fault.kind == "sent twice":
            return send()
        del answer
        raise OSError(errno.EIO, "the answer was lost", key)

    def _due(self, step: str) -> Fault | None:
        place = (self.role, step)
        self.passed[place] += 1
        fault = self.waiting.pop((*place, self.passed[place]), None)
        if fault is not None:
            self.trace(f"{fault}")
            self.outcome.fired[fault.kind] += 1
        return fault

    def _strike(self, fault: Fault, name: str) -> None:
        if fault.kind == "death":
            raise Death
        if fault.kind == "power loss":
            raise PowerLoss
        if fault.kind == "slow":
            time.sleep(0.002)
            return
        if fault.kind == "short write":
            with contextlib.suppress(FileNotFoundError):
                os.truncate(name, os.stat(name).st_size // 2)
        raise OSError(CODES.get(fault.kind, errno.EIO), fault.kind, name)

    def work(self, directory: RunDirectory, task: Task, units: Sequence[Unit]) -> None:
        """Be a worker that runs a task; raises Death when it hangs or dies."""
        self.attempts[task.phase] += 1
        spec = self.hanging.pop((task.phase, self.attempts[task.phase]), None)
        if spec is None:
            run_task(directory, task, units)
            return
        zombie = Hanging(self, spec, directory, task, units)
        if zombie.hangs():
            self.trace(f"{task} hangs")
            self.outcome.fired["hanging worker"] += 1
            self.zombies.append(zombie)
            raise DriverDeath if spec.is_alone else Death

    def event(self, moment: str, phase: int = -1) -> None:
        """Let zombies go on that wait for this."""
        due = [one for one in self.zombies if one.is_due(moment, phase)]
        self.zombies = [one for one in self.zombies if one not in due]
        for zombie in due:
            zombie.go_on(moment)

    def _end_zombies(self) -> None:
        for zombie in self.zombies:
            zombie.end()
        self.zombies = []

    def check(self) -> None:
        """Compare the run directory with the clean run."""
        self.is_quiet = True
        clean = self.home.clean[self.schedule.runs[-1][0]]
        store = open_store(self.address)
        found = contents(store)
        for name in sorted(clean):
            if clean[name] != found.get(name):
                self.note(f"{name}: {'differs' if name in found else 'is missing'}")
        if extra := sorted(found.keys() - clean.keys()):
            self._check_extra(extra)
        if self.schedule.power_at_end and self.disk is not None:
            self.outcome.fired["power loss after the run"] += 1
            self.disk.lose_power(self.rng)
            if contents(store) != clean:
                self.note("a finished run was not durable")
        try:
            problems = verify(RunDirectory.open(self.address)).problems
        except CorpuskitError as error:
            problems = [str(error)]
        for problem in problems:
            self.note(f"verify: {problem}")

    def _check_extra(self, extra: list[str]) -> None:
        """Accept files that no seal names from zombies only, and only until the next run."""
        late = ("zombie committed (end", "zombie committed (swept")
        if not any(kind.startswith(("zombie failed", *late)) for kind in self.outcome.fired):
            self.note(f"{extra[0]}: is left over")
            return
        self.outcome.orphans += len(extra)
        plan = self.home.bench.plan(*self.schedule.runs[-1], self.address)
        reused = run(plan, launcher=BenchLauncher(self)).reused
        left = contents(open_store(self.address)).keys() & set(extra)
        if left or not all(reused):
            self.note("another run does not just delete what zombies left")

    def note(self, text: str) -> None:
        """Note a problem."""
        self.trace(f"PROBLEM {text}")
        self.outcome.problems.append(f"seed {self.schedule.seed}: {text}")

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Let nothing go wrong for a while."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have `owner.name` be another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "this file system has no hard links")
