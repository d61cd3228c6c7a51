"""The examples in docs/ and the adapter under the frameworks that fetch ahead, for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from loader_runs import write_plan

from corpuskit.loader import StreamingLoader
from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from loader_runs import Shards

ROOT = Path(__file__).resolve().parents[2]
STEPS, SAVED, KILLED, ROWS = 6, 4, 5, 4  # as framework_runs.py has them, and the examples

pytestmark = [
    pytest.mark.slow,  # seconds to import the frameworks
    pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed"),
]

EXAMPLES = sorted(path.stem for path in (ROOT / "docs" / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def run(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "run"
    return write_plan(shards, [(200, {"web": 5, "books": 3})], skip=[[10, 20]], folder=folder)


@pytest.fixture(scope="module")
def expected(run: Path) -> list[list[int]]:
    """The run's counters of the rows of each step."""
    with StreamingLoader(run, ROWS, num_steps=STEPS) as loader:
        return [batch["run_rows"].tolist() for batch in loader]


@pytest.fixture(scope="module")
def results(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What framework_runs.py printed: one process, since importing takes most of the time."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("framework_runs.py"), run,
         tmp_path_factory.mktemp("frameworks")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def result_of(results: dict[str, dict], name: str) -> dict:
    missing = results[name].get("missing")
    if missing:
        pytest.skip(f"{missing} is not installed")
    return results[name]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_takes_the_rows_of_the_plan(example, results, expected) -> None:
    whole = result_of(results, example)["whole"]
    assert [json.loads(line.partition(" rows ")[2]) for line in whole] == expected


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_killed_example_resumes_with_the_same_rows_and_losses(example, results) -> None:
    printed = result_of(results, example)
    assert printed["killed"] == printed["whole"][:KILLED]
    assert printed["resumed"] == printed["whole"][SAVED:]


def test_a_state_asked_by_step_is_exact_where_accelerate_fetches_ahead(results, expected) -> None:
    got = result_of(results, "accelerate_ahead")
    assert got["ahead"] == 1
    assert got["seen"] == expected
    assert got["rests"] == [expected[step + 1 :] for step in range(STEPS)]


def test_batches_that_accelerate_would_cut_are_refused(results) -> None:
    refused = result_of(results, "accelerate_dispatching")["refused"]
    assert len(refused) == 2
    assert all("batch size" in error for error in refused)


def test_a_stateful_data_loader_resumes_behind_the_batch_it_gave(results, expected) -> None:
    got = result_of(results, "stateful_data_loader")
    assert got["seen"] == expected[:3]
    assert got["rests"] == [expected[3:], expected[3:]]


def test_a_state_asked_by_step_is_exact_where_lightning_fetches_ahead(results, expected) -> None:
    got = result_of(results, "lightning_ahead")
    assert got["ahead"] == 1
    assert got["seen"] == expected


def test_lightning_keeps_the_exact_state_of_a_stream(results, expected) -> None:
    got = result_of(results, "lightning_direct")
    assert got["ahead"] == 0
    assert got["seen"] == expected


def test_a_transformers_model_neither_shifts_labels_twice_nor_attends_across(results) -> None:
    got = result_of(results, "model_loss")
    assert got["segments"] > ROWS
    assert got["loss"] == pytest.approx(got["expected"], rel=1e-5)


def test_a_rank_streams_while_another_does_nothing(results, run: Path) -> None:
    got = results["two_ranks"]
    assert got["ranks"] == [0, 2]  # of torch.distributed, whatever RANK and WORLD_SIZE say
    with StreamingLoader(run, ROWS, 0, 2, num_steps=STEPS) as loader:
        assert got["seen"] == [batch["run_rows"].tolist() for batch in loader]
