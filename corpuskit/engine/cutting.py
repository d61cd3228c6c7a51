"""How a phase is cut: units decide the names of its parts, tasks decide nothing.

Both are functions of the plan and of what the phase waits for, so everybody who asks gets the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.engine.executors.contract import Task
from corpuskit.stage import PassPlan, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import RoleParts

TASK_BYTES = 256 << 20
"""A task holds at most about this much text: minutes of work, not hours."""

MIN_TASKS = 1024
"""At least this many tasks when there are units enough: room for workers, whatever their number."""


class UnitCutter(PassPlan):
    """What a pass may ask when its units are cut."""

    def __init__(self, run: RunDirectory, phase: Phase) -> None:
        self._run, self._phase = run, phase
        self.seed = run.plan.settings.seed
        self.given = run.given(phase)
        self.memory_bytes = run.plan.settings.task_memory_bytes

    def cells(self) -> list[Unit]:
        return self._run.cells(self._phase)

    def parts(self, name: str) -> RoleParts:
        return self._run.find_parts(self._phase, name)

    def counters(self, name: str) -> Mapping[str, int]:
        return self._run.find_counters(self._phase, name)


def cut_units(run: RunDirectory, phase: Phase) -> list[Unit]:
    """Return the units of a phase: a function of what it waits for, nothing else."""
    if phase.base is None:
        return [
            Unit(number, pieces[0][0].source, text_bytes=sum(s.size_bytes for _, s in pieces))
            for number, pieces in enumerate(run.inputs.units)
        ]
    cut = run.plan.current_pass(phase).units if phase.pass_name else None
    return run.cells(phase) if cut is None else cut(UnitCutter(run, phase))


def cut_tasks(phase: Phase, mark: str, units: Sequence[Unit], num: int | None) -> list[Task]:
    """Cut units into tasks of neighbours, about equal in text; the cut changes no output byte.

    It depends on neither workers nor on what is done, so two runs that meet have the same tasks.

    Args:
        num: how many; None lets the sizes decide.
    """
    if num is None:
        size = sum(unit.text_bytes for unit in units)
        num = max(-(-size // TASK_BYTES), MIN_TASKS)
    groups = _groups([max(unit.text_bytes, 1) for unit in units], min(num, len(units)))
    return [
        Task(phase.index, mark, tuple(unit.number for unit in units[begin:end]))
        for begin, end in groups
    ]


def _groups(sizes: Sequence[int], num: int) -> list[tuple[int, int]]:
    """Cut a list into `num` ranges, about equal in size and none of them empty."""
    groups: list[tuple[int, int]] = []
    left = sum(sizes)
    begin = size = 0
    for index, one in enumerate(sizes):
        size += one
        to_come = num - len(groups) - 1
        if to_come and (size * (to_come + 1) >= left or len(sizes) - index - 1 <= to_come):
            groups.append((begin, index + 1))
            left -= size
            begin, size = index + 1, 0
    return [*groups, (begin, len(sizes))] if begin < len(sizes) else groups
