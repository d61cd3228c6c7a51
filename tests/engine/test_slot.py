"""Slots of a Slurm array: between them they do every task, and what they can't do is remembered."""

from __future__ import annotations

import pytest

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.executors.slurm_slot import Slot
from corpuskit.engine.phase import PhaseWork, cut_units, forget_failures, note_slot, read_failures
from corpuskit.engine.pipeline import prepared
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.task import run_task
from tests.engine.conftest import corpus


def opened(lab, *overrides: str) -> RunDirectory:
    """Plan the run as `corpuskit run` would, and open it as a slot does."""
    with prepared(read_plan(lab.path, overrides), RunCallbacks()):
        pass
    return RunDirectory.open(str(lab.out))


@pytest.fixture
def many_cells(lab):
    lab.pipeline |= {"stages": ["exact_dedup"], "cell_bytes": 2000}
    for name in lab.inputs.iterdir():
        name.unlink()
    for number in range(8):
        lab.write(f"web{number}.jsonl", corpus(3, number))
    lab.pipeline["sources"].pop("books")
    lab.save()
    return lab


def do(run: RunDirectory, tasks) -> None:
    by_number = {unit.number: unit for unit in cut_units(run, run.plan.phases[0])}
    for task in tasks:
        run_task(run, task, [by_number[number] for number in task.units])


@pytest.mark.parametrize("num", [1, 2, 3])
def test_slots_do_every_task_of_a_phase_that_was_begun_with_another_cut(many_cells, num):
    run = opened(many_cells, "executor.tasks=2")
    do(run, PhaseWork(run, run.plan.phases[0]).all_tasks[:1])
    for number in range(num):  # one after another: each sees what those before it did
        run = opened(many_cells, "executor.tasks=8")
        slot = Slot(run, number, num, 0, accept_code=False, force=False)
        do(run, slot._share(PhaseWork(run, run.plan.phases[0])))
    work = PhaseWork(run, run.plan.phases[0])
    assert work.is_done()
    assert len(work.finish().units) == len(work.units)


def test_a_phase_is_not_done_because_manifests_of_another_cut_are_many(many_cells):
    run = opened(many_cells, "executor.tasks=8")
    do(run, PhaseWork(run, run.plan.phases[0]).all_tasks[:4])
    run = opened(many_cells, "executor.tasks=2")
    assert not PhaseWork(run, run.plan.phases[0]).is_done()


def test_why_a_slot_could_not_work_is_remembered_until_the_next_try(many_cells):
    run = opened(many_cells)
    phase = run.plan.phases[0]
    note_slot(run, phase, 3, "the disk is full", 1)
    assert [(note.units, note.error) for note in read_failures(run, phase)] == [
        ((), "the disk is full")
    ]
    assert "a slot: the disk is full" in many_cells.cli("status", str(many_cells.out)).stdout
    forget_failures(run, phase)
    assert read_failures(run, phase) == []
