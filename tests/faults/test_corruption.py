"""A damaged file of a run is healed, refused by name, or makes no difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.corruption import CHUNK, Case, Laboratory, open_laboratory

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM = 100


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with open_laboratory() as made:
        yield made


@pytest.mark.parametrize("first", range(0, NUM, CHUNK))
def test_no_damage_is_silent(laboratory: Laboratory, first: int) -> None:
    verdicts = [Case(laboratory, seed).judge() for seed in range(first, first + CHUNK)]
    silent = [str(verdict) for verdict in verdicts if verdict.outcome == "SILENT"]
    assert not silent, "\n".join([*silent, "python -m tests.faults.corruption --seed N says more"])
