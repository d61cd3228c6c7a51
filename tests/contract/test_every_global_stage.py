"""What global stages promise before they have seen a document; results are tested one by one."""

from __future__ import annotations

import functools
import pickle

import pytest

from corpuskit.stage import GlobalStage
from tests.contract.strategies import make, of_kind

STAGES = of_kind(GlobalStage)


@pytest.mark.parametrize("cls", STAGES)
def test_passes_have_names_of_their_own(cls):
    names = [step.name for step in make(cls).passes()]
    assert names
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


@pytest.mark.parametrize("cls", STAGES)
def test_passes_are_a_function_of_the_parameters(cls):
    stage, again = make(cls), make(cls)
    assert [step.name for step in stage.passes()] == [step.name for step in again.passes()]


def owner(run):
    """Return the stage that a method is bound to, or a partial of a function was given."""
    return run.args[0] if isinstance(run, functools.partial) else run.__self__


@pytest.mark.parametrize("cls", STAGES)
def test_passes_are_methods_that_another_process_can_run(cls):
    stage = make(cls)
    for step in stage.passes():
        assert owner(step.run) == stage
        assert owner(pickle.loads(pickle.dumps(step.run))) == stage
        assert step.units is None or callable(step.units)


@pytest.mark.parametrize("cls", STAGES)
def test_owned_folders_are_below_the_run_directory(cls):
    for step in make(cls).passes():
        assert all(not name.startswith(("/", ".")) for name in step.owns)


@pytest.mark.parametrize("cls", STAGES)
def test_what_it_reads_is_known(cls):
    assert cls.reads in {"documents", "packed", "tokens"}
