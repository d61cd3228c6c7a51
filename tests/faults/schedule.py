"""What goes wrong in one schedule: a function of its seed and of what a clean run passes."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from tests.faults.bench import VARIANTS
from tests.faults.history import history

if TYPE_CHECKING:
    from collections.abc import Mapping

Place = tuple[str, str]
"""Who passes (`worker` or `driver`), and which step."""

Profile = dict[str, "Passings"]
"""By kind of store."""

WRITES = ("write:", "publish:", "put:")
KINDS: dict[str, dict[str, tuple[int, tuple[str, ...]]]] = {
    "local": {
        "death": (6, ("",)),
        "power loss": (4, ("",)),
        "short write": (2, ("write:after", "publish:before", "put:written")),
        "ENOSPC": (2, WRITES),
        "EIO": (5, ("",)),
        "slow": (1, ("",)),
    },
    "objects": {
        "death": (5, ("",)),
        "short write": (1, ("write:after", "publish:before")),
        "refused": (4, ("request:",)),
        "lost answer": (5, ("request:",)),
        "sent twice": (3, ("request:put", "request:replace", "request:delete")),
        "slow": (1, ("",)),
    },
}
"""Kind of fault -> how often it is drawn, and at which steps."""

ONLY_AFTER_EDITS = {
    **{("driver", step): 4 for step in ("delete:before", "delete:after")},
    **{("worker", step): 4 for step in ("adopt:before", "adopt:moved", "adopt:after")},
}
"""A clean run deletes nothing and takes over nothing."""

RESUMES = ("tasks done", "next phase", "later", "again", "edited", "swept", "end")
"""When a hanging worker goes on: before its phase is sealed, in the next one, some phases later,
when another run has done the tasks of its phase, when an edited plan begins, after a run or all."""


@dataclasses.dataclass(frozen=True)
class Passings:
    """How often a clean run passes each step, and how many phases it has."""

    steps: Mapping[Place, int]
    phases: int


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens when `role` passes `step` for the n-th time."""

    kind: str
    role: str
    step: str
    nth: int


@dataclasses.dataclass(frozen=True)
class Zombie:
    """A worker that hangs, is given up, and goes on when others have done its task.

    Attributes:
        phase, attempt: which attempt at a task of which phase, counted over all runs.
        pause: how many steps it passes before; 0 hangs before it begins.
        until: one of RESUMES.
        is_alone: the driver dies when it hangs.
    """

    phase: int
    attempt: int
    pause: int
    until: str
    is_alone: bool = False


@dataclasses.dataclass(frozen=True)
class Schedule:
    """One way for things to go wrong.

    Attributes:
        runs: variant and number of tasks of each run; only the last one is run to its end.
        skew: the clock jumps by hours between runs, and so do the times of all files.
        links: whether the file system has hard links.
        power_at_end: the power fails right after the run has finished.
    """

    seed: int
    store: str
    runs: tuple[tuple[str, int], ...]
    faults: tuple[Fault, ...] = ()
    zombies: tuple[Zombie, ...] = ()
    skew: bool = False
    links: bool = True
    power_at_end: bool = False

    @property
    def needs_disk(self) -> bool:
        """Whether it matters what was made durable."""
        return self.power_at_end or any(fault.kind == "power loss" for fault in self.faults)


def draw(seed: int, profile: Profile, *, is_history: bool = False) -> Schedule:
    """Return the schedule of a seed; with `is_history`, its sources are edited between runs."""
    rng = random.Random(f"schedule {seed}")
    store = rng.choices(("local", "objects"), (3, 1))[0]
    passings = profile[store]
    runs = _history(rng, seed) if is_history else _runs(rng)
    steps = {**passings.steps, **(ONLY_AFTER_EDITS if len(runs) > 1 else {})}
    faults = tuple(_fault(rng, store, steps) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))))
    zombies = tuple(
        _zombie(rng, passings.phases, len(runs) > 1)
        for _ in range(rng.choice((0, 0, 1, 2) if faults else (1, 2)))
    )
    is_local = store == "local"
    return Schedule(
        seed, store, runs, faults, zombies,
        skew=rng.random() < 0.3,
        links=not (is_local and rng.random() < 0.15),
        power_at_end=is_local and rng.random() < 0.2,
    )  # fmt: skip


def _runs(rng: random.Random) -> tuple[tuple[str, int], ...]:
    """Draw one run, or some with edits of the plan (and back) or of the number of tasks between."""
    names = list(VARIANTS)
    runs = [(rng.choice(names), rng.choice((1, 2, 3, 4)))]
    for _ in range(rng.choices((0, 1, 2), (5, 3, 2))[0]):
        variant, tasks = runs[-1]
        if variant != runs[0][0]:
            runs.append((runs[0][0], tasks))
        elif rng.random() < 0.4:
            runs.append((variant, rng.choice([num for num in (1, 2, 3, 4) if num != tasks])))
        else:
            runs.append((rng.choice(names), tasks))
    return tuple(runs)


def _history(rng: random.Random, seed: int) -> tuple[tuple[str, int], ...]:
    """Return the arrangements of a history, sometimes back to the first one at the end."""
    names = [f"history-{seed}.{index}" for index in range(len(history(seed)))]
    if rng.random() < 0.25:
        names.append(names[0])
    return tuple((name, rng.choice((1, 2, 3))) for name in names)


def _fault(rng: random.Random, store: str, steps: Mapping[Place, int]) -> Fault:
    kinds = KINDS[store]
    kind = rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
    places = sorted(place for place in steps if place[1].startswith(kinds[kind][1]))
    role, step = rng.choice(places)
    return Fault(kind, role, step, rng.randint(1, steps[role, step]))


def _zombie(rng: random.Random, phases: int, has_edits: bool) -> Zombie:
    """Draw a worker that hangs, more often than not in the first or the last phases."""
    until = rng.choice([one for one in RESUMES if has_edits or one != "edited"])
    phase = rng.choice((rng.randrange(phases), rng.randrange(2), phases - rng.randint(1, 3)))
    pause = rng.choice((0, rng.randint(1, 12), rng.randint(1, 40)))
    is_alone = until in {"again", "edited"} or rng.random() < (0.5 if has_edits else 0.2)
    return Zombie(phase, rng.choice((1, 1, 2)), pause, until, is_alone)
