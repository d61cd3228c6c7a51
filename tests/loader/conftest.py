"""Shards that several tests read and none changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loader_runs import Shards, write_shards

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Three sources, two of them shuffled when written, in parts of 150 rows."""
    rows = {"web": 400, "books": 130, "math": 9}
    return write_shards(tmp_path_factory.mktemp("shards"), rows, unshuffled=("books",))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A name for a new run directory."""
    return tmp_path / "run"
