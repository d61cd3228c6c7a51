"""A damaged file of a run is healed, refused by name, or makes no difference."""

from __future__ import annotations

import pytest

from tests.faults.corruption import CHUNK, play

NUM = 150


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM, CHUNK))
def test_no_damage_is_silent(first: int) -> None:
    silent = [str(verdict) for verdict in play(first, CHUNK) if verdict.outcome == "SILENT"]
    assert not silent, "\n".join([*silent, "python -m tests.faults.corruption --seed N says more"])
