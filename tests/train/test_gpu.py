"""`make gpu`: every part works on CPU, and none that breaks stops the others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import gpu
from benchmarks.gpu_parts import PARTS, Place, Skipped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


def test_the_dry_run_takes_every_part(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry", "--out", str(tmp_path)]) == 0, capfd.readouterr()
    parts = {
        part["part"]: part for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]
    }
    assert list(parts) == list(PARTS)
    skipped = {name for name, part in parts.items() if part["state"] == "skipped"}
    compiled = {"speed 530m compile", "speed 150m compile", "speed 1b compile whole"}
    assert skipped == compiled | {name for name in PARTS if "float8" in name}
    assert parts["resume"]["rows"] == [{
        "attention": "sdpa", "deterministic_algorithms": False, "equal_without_kill": True,
        "equal_after_kill": True, "largest_difference": 0.0,
    }]  # fmt: skip
    assert [row["ranks"] for row in parts["ranks"]["rows"]] == [1, 2]
    eager, compiled_row = (parts[name]["rows"][0] for name in ("speed 1b", "speed 1b compile"))
    assert compiled_row["graphs"] >= 1 > eager["graphs"]
    assert compiled_row["first_loss"] == eager["first_loss"]
    page = (tmp_path / "gpu.html").read_text()
    assert "torchtitan 8B" in page
    assert "varlen, flex" in page
    assert "<script" not in page


def breaks(_place: Place) -> Iterator[dict[str, Any]]:
    yield {"figure": 1}
    raise RuntimeError("no such kernel")


def hangs(_place: Place) -> Iterator[dict[str, Any]]:
    yield {"figure": 2}
    time.sleep(60)


def differs(_place: Place) -> Iterator[dict[str, Any]]:
    yield {"wrong": "flex: dq differs by 0.5"}


def is_absent(_place: Place) -> Iterator[dict[str, Any]]:
    raise Skipped("one GPU")
    yield {}


def test_a_part_that_fails_is_recorded_with_what_it_found(tmp_path: Path) -> None:
    place = Place(tmp_path, dry=True)
    outcomes = {
        work: gpu.run_part(work.__name__, 20, work, place, tmp_path)
        for work in (breaks, differs, is_absent)
    }
    late = gpu.run_part("hangs again", 0, hangs, place, tmp_path)
    assert (late["state"], late["rows"]) == ("left out", [])
    states = {work.__name__: (one["state"], one["error"]) for work, one in outcomes.items()}
    assert states["breaks"] == ("failed", "RuntimeError: no such kernel")
    assert states["differs"] == ("wrong", "flex: dq differs by 0.5")
    assert states["is_absent"] == ("skipped", "one GPU")
    assert outcomes[breaks]["rows"] == [{"figure": 1}]


def test_a_part_that_hangs_is_ended(tmp_path: Path) -> None:
    record = gpu.run_part("hangs", 1.2, hangs, Place(tmp_path, dry=True), tmp_path)
    assert (record["state"], record["error"]) == ("timed out", "after 1 s")
    assert record["rows"] == [{"figure": 2}]
    assert record["seconds"] < 30


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    # -S: without site-packages.
    command = [sys.executable, "-S", "-E", gpu.__file__, "--out", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "has no torch, numpy, pyarrow, numba, pydantic, xxhash" in answer.stderr
    assert "make gpu WHEELS=wheels" in answer.stderr
