"""Compares what a run needs with what there is, before it runs and again at every barrier."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from corpuskit.engine.compiling import seconds_to_compile
from corpuskit.engine.mixture import edits_in_the_way, mixture_problem
from corpuskit.engine.needs import WORKER_BYTES, first_to_run, needs_of
from corpuskit.engine.room import Room, find_room
from corpuskit.errors import TaskError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.engine.needs import Need, PastPhases
    from corpuskit.engine.phase import PhaseWork, Prospect
    from corpuskit.engine.rundir import RunDirectory

SHARED_BYTES = 90_000_000
"""Of a worker's memory, the pages of libraries: they are there once, however many workers."""


@dataclasses.dataclass(frozen=True)
class Preflight:
    """What a run would need, what there is, and why it cannot run.

    Attributes:
        needs: of the phases that would run, in order.
        compile_seconds: of CPU, all workers, for kernels that are not in the cache of this machine.
        problems: each a sentence with the number needed, and what to change.
    """

    needs: tuple[Need, ...]
    room: Room
    compile_seconds: float
    problems: tuple[str, ...]

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return the needs as JSON values, by phase; the first one has kernels to compile."""
        found = {need.phase: dataclasses.asdict(need) for need in self.needs}
        for place, need in enumerate(found.values()):
            need["compile_seconds"] = 0.0 if place else self.compile_seconds
        return found


def preflight(run: RunDirectory, prospects: Iterable[Prospect]) -> Preflight:
    """Return what a run would need from here on; nothing is written."""
    first = first_to_run(prospects)
    room = find_room(run)
    if first is None:
        return Preflight((), room, 0.0, ())
    needs = needs_of(run, *first)
    # Each worker that finds a unit compiles for itself: they begin at the same time.
    busy = min(room.workers, max(need.units for need in needs))
    seconds = busy * seconds_to_compile(run.plan, run.plan.phases[first[0] :])
    return Preflight(tuple(needs), room, seconds, tuple(find_problems(run, needs, room)))


def check(
    work: PhaseWork,
    *,
    force: bool = False,
    is_started: bool = False,
    in_slot: bool = False,
    past: PastPhases | None = None,
    room: Room | None = None,
) -> str:
    """Refuse to begin a phase if it, or one behind it, will not fit; return what was forced.

    Args:
        force: run all the same, and return why it was not a good idea; otherwise it returns "".
        is_started: phases of this run were run already.
        in_slot: this process works for Slurm.
        past: a dict that is kept between the barriers of a run.
        room: what there is, if that is known.

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
    if (lost := edits_in_the_way(run, work.phase.name)) and not force:
        raise (TaskError if is_started else UsageError)(f"{lost}")
    done = len(run.manifest_names(work.phase, work.mark))
    left = max(1 - done / len(work.all_tasks), 0.0) if work.all_tasks else 0.0
    needs = needs_of(run, work.phase.index, left, past)
    problems = find_problems(run, needs, room or find_room(run, in_slot=in_slot))
    if not problems:
        return ""
    message = " ".join(problems)
    if force:
        return f"forced, although: {message}"
    if is_started:
        message += " Finished phases are kept: correct it and run again."
        raise TaskError(f"{message} --force goes on all the same.")
    raise UsageError(f"{message} Nothing was run; --force runs it all the same.")


def find_problems(run: RunDirectory, needs: Sequence[Need], room: Room) -> list[str]:
    """Return why phases cannot run; of each kind the worst is enough."""
    checks = (_task_problem(run, needs), _memory_problem(needs, room), _disk_problem(needs, room),
              _scratch_problem(needs, room))  # fmt: skip
    return [problem for problem in checks if problem]


def all_memory(need: Need, workers: int) -> int:
    """Return the memory of so many workers: those that find a unit work, the others wait."""
    busy = min(workers, max(need.units, 1))
    waiting = (workers - busy) * (WORKER_BYTES - SHARED_BYTES)
    return busy * (need.memory_bytes - SHARED_BYTES) + waiting + SHARED_BYTES


def peak_disk(needs: Sequence[Need]) -> tuple[int, str]:
    """Return the most that a run will have written at a time, and in which phase that is.

    What an earlier run left of a phase is deleted when the phase is sealed again, not before.
    """
    total = peak = 0
    where = ""
    for need in needs:
        total += need.disk_bytes
        if total > peak:
            peak, where = total, need.phase
        total -= need.freed_bytes
    return peak, where


def _task_problem(run: RunDirectory, needs: Sequence[Need]) -> str:
    most = run.plan.settings.task_memory_bytes
    worst = max(needs, key=lambda need: need.task_bytes, default=None)
    if worst is None or worst.task_bytes <= most:
        return ""
    return (
        f"phase {worst.phase}: ~{worst.documents:,} documents need ~{size_words(worst.task_bytes)} "
        f"in one task, which may use {size_words(most)}. Set task_memory_bytes to "
        f"{worst.task_bytes} or more."
    )


def _memory_problem(needs: Sequence[Need], room: Room) -> str:
    if room.memory_bytes is None or not needs:
        return ""
    worst = max(needs, key=lambda need: all_memory(need, room.workers))
    wanted = all_memory(worst, room.workers)
    if wanted <= room.memory_bytes:
        return ""
    fitting = max(
        (
            number
            for number in range(1, room.workers)
            if all(all_memory(need, number) <= room.memory_bytes for need in needs)
        ),
        default=0,
    )
    each = size_words(worst.memory_bytes)
    what = f"{room.workers} workers need" if room.workers > 1 else "a worker needs"
    if fitting:
        advice = f"Set executor.workers to {fitting}"
    elif room.memory_place.startswith("executor."):
        advice = f"Raise {room.memory_place}"
    else:
        advice = "Not even one worker fits: use a larger machine"
    # What one task must hold does not depend on how the rest is cut.
    levers = "" if worst.task_bytes else ", or lower cell_bytes or task_memory_bytes"
    return (
        f"phase {worst.phase}: {what} ~{size_words(wanted)} of memory (~{each} each), but "
        f"{room.memory_place} has {size_words(room.memory_bytes)}. {advice}{levers}."
    )


def _disk_problem(needs: Sequence[Need], room: Room) -> str:
    wanted, phase = peak_disk(needs)
    if room.disk_bytes is None or wanted <= room.disk_bytes:
        return ""
    return (
        f"phase {phase}: until its end the run will write up to ~{size_words(wanted)}, but "
        f"{room.disk_place} has {size_words(room.disk_bytes)} free. Free space, or set another "
        "output."
    )


def _scratch_problem(needs: Sequence[Need], room: Room) -> str:
    worst = max(needs, key=lambda need: need.scratch_bytes, default=None)
    if worst is None or room.scratch_bytes is None or worst.scratch_bytes <= room.scratch_bytes:
        return ""
    return (
        f"phase {worst.phase}: {room.workers} workers write ~{size_words(worst.scratch_bytes)} of "
        f"scratch at a time, but {room.scratch_place} has {size_words(room.scratch_bytes)} free. "
        "Set TMPDIR to a larger folder, or lower executor.workers or cell_bytes."
    )


def size_words(size: float) -> str:
    """Return a size for people: three digits and a unit."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.3g} {unit}"
