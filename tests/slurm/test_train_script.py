"""Training under Slurm: the printed script trains, and goes on after whatever ended it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.engine.conftest import ROOT
from tests.slurm.cluster import wait_until

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[train]'")

from tests.patience import HANG_SECONDS
from tests.train import conftest as ranks
from tests.train.test_training import losses_of, work

run_dir, settings_for = ranks.run_dir, ranks.settings_for
start_ranks, run_ranks = ranks.start_ranks, ranks.run_ranks

pytestmark = pytest.mark.slow

LONG = {
    "steps": 80,
    "batch": {"global_rows": 8, "micro_rows": 1},
    "checkpoint": {"every_steps": 7, "keep": 2},
}


class Training:
    """A training file, and a way to submit it."""

    def __init__(self, cluster, folder: Path, settings) -> None:
        self.cluster, self.folder, self.settings = cluster, folder, settings
        self.output = Path(settings.output)
        self.path = folder / "t.yaml"
        self.path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True)))

    def submit(self, *options: str) -> str:
        """Print the script and submit it; return the job's id."""
        script = self.folder / "train.sh"
        printed = command(self.cluster, self.folder, str(self.path), "--sbatch", *options)
        script.write_text(printed.stdout)
        return self.cluster.ask("sbatch", "--parsable", str(script), cwd=self.folder)

    def steps(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self.output / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def starts(self) -> list[int]:
        """Return the step at which each start of the ranks began."""
        lines = (self.output / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event["step"] for event in events if event["event"] == "start"]

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("train-*.log")))

    def wait(self) -> None:
        wait_until(lambda: not self.cluster.jobs(), "the job has ended")
        assert self.steps() == 80, self.log()


def command(cluster, folder: Path, *arguments: str, code: int = 0):
    done = subprocess.run(
        [sys.executable, "-m", "corpuskit", "train", *arguments], cwd=folder, text=True,
        capture_output=True, check=False, timeout=HANG_SECONDS,
        env={**cluster.environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def training(cluster, tmp_path, tmp_path_factory, settings_for):
    folder = tmp_path / "a folder"
    folder.mkdir()
    # Ranks meet at a port that follows from the job's number. Each test process has a cluster of
    # its own, and the first jobs of two of them would meet each other.
    with (tmp_path_factory.getbasetemp().parent / "training.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Training(cluster, folder, settings_for(folder / "there", **LONG))
        cluster.ask("scancel", "--user=root")
        wait_until(lambda: not cluster.jobs(), "all jobs have ended")


@pytest.fixture(scope="module")
def straight(tmp_path_factory, settings_for, run_ranks):
    """The losses of two ranks that nobody disturbs."""
    calm = settings_for(tmp_path_factory.mktemp("calm"), **LONG)
    run_ranks(2, work, calm)
    return losses_of(calm)


def test_two_nodes_go_on_after_a_dead_rank_and_after_a_warning(training, straight):
    job = training.submit("--nodes", "2", "--time", "10", "--grace-seconds", "60")
    wait_until(lambda: training.steps() >= 20, "training has begun")
    os.kill(a_rank(training.path), signal.SIGKILL)
    wait_until(lambda: len(training.starts()) == 2 and training.steps() >= 40, "it has restarted")
    training.cluster.ask("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: "requeue, to go on from" in training.log(), "the job hands over")
    training.wait()
    first, second, third = training.starts()
    assert first == 0
    assert 7 <= second < 40, "from the newest checkpoint"
    assert second % 7 == 0
    assert 40 <= third < 80, "from one that was saved on request"
    assert losses_of(training.settings) == straight


def test_a_cancelled_training_goes_on_when_it_is_submitted_again(training, straight):
    job = training.submit("--nodes", "2", "--time", "10")
    wait_until(lambda: training.steps() >= 20, "training has begun")
    training.cluster.ask("scancel", job)
    wait_until(lambda: not training.cluster.jobs(), "the job has ended")
    assert training.steps() < 80
    training.submit("--nodes", "2", "--time", "10")
    training.wait()
    assert 20 <= training.starts()[1] < 80, "the ranks saved when they were cancelled"
    assert losses_of(training.settings) == straight


def test_a_training_that_cannot_start_is_not_tried_for_ever(training):
    training.submit("--nodes", "2", "--time", "10", "--set", "steps=99999")
    wait_until(lambda: not training.cluster.jobs(), "the job has ended")
    assert (
        "not started again: it would end so again: 2 error: --set steps=99999: steps: 99999"
        in training.log()
    )
    assert " start 1," in training.log()
    assert " start 2," not in training.log()


def a_rank(path: Path) -> int:
    """Return the process id of a rank that trains as a file says."""
    words = ["corpuskit", "train", str(path)]
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            argv = (folder / "cmdline").read_bytes().decode().split("\0")
            is_rank = argv[-len(words) - 1 : -1] == words and "torch.distributed.run" not in argv
            if folder.name.isdigit() and is_rank and "-u" in argv:
                return int(folder.name)
    raise AssertionError("no rank is alive")
