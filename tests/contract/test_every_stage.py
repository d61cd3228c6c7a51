"""Every stage keeps the promises that `corpuskit stages NAME --check` checks for one."""

from __future__ import annotations

import pytest

from corpuskit.engine import registry
from corpuskit.inspect.stage_checks import NotApplicableError, promises_of
from tests.contract.strategies import subject

LOADED = {name: registry.load(name) for name in registry.names()}
SLOW = ("it equals its reference on all", "it equals its reference on random")


@pytest.mark.parametrize(
    ("cls", "promise"),
    [
        pytest.param(
            cls, promise, id=f"{name}-{promise.text}",
            marks=[pytest.mark.slow] if promise.text.startswith(SLOW) else [],
        )
        for name, cls in LOADED.items()
        for promise in promises_of(cls)
    ],
)  # fmt: skip
def test_a_stage_keeps_its_promises(cls, promise):
    try:
        promise.check(subject(cls))
    except NotApplicableError as reason:
        pytest.skip(f"{cls.stage_name()}: {reason}")
