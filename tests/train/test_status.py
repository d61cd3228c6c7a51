"""`corpuskit train --status`: what it says of runs that train, end, hang and die."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from corpuskit.train.heartbeat import (
    Ending,
    HeartbeatWriter,
    RankHeartbeat,
    note_ending,
    read_heartbeats,
)
from tests.train.test_health import LOST, wait_until

LINE = {"step": 11, "steps": 60, "loss": 2.5, "tokens_per_second": 5e4, "step_seconds": 0.25}


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Print the status of a run whose output folder is here."""
    from click.testing import CliRunner

    from corpuskit.cli.train import command

    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text("{data: tokens, output: ., name: mine, batch: {global_rows: 8}}")

    def run() -> str:
        done = CliRunner().invoke(command, ["t.yaml", "--status"])
        assert done.exit_code == 0, done.output
        return done.output

    return run


def write_lines(name: str, *lines: dict[str, Any]) -> None:
    with Path(f"{name}.jsonl").open("a") as file:
        for line in lines:
            print(json.dumps(line), file=file)


def test_of_a_run_that_never_started_the_status_says_so(status: Any) -> None:
    assert status() == "mine: never started: . has neither heartbeats nor events.\n"


def test_the_status_of_a_run_shows_ranks_last_step_checkpoint_and_events(status: Any) -> None:
    write_lines("events", {"event": "start", "time": "2026-01-01T00:00:00+00:00", "world_size": 2})
    write_lines("events", {"event": "speeds", "text": "slowest is 1"}, {"event": "checkpoint"})
    write_lines("metrics", LINE)
    for name in ("step-00000010", "step-00000005", "step-00000015.tmp"):
        Path("checkpoints", name).mkdir(parents=True)
        Path("checkpoints", name, "train.json").touch()
    with HeartbeatWriter(".", 0, 60) as first, HeartbeatWriter(".", 1, 60) as second:
        first.beat(12, "data")
        second.beat(12, "step")
        wait_until(lambda: [beat.step for beat in read_heartbeats(".")] == [12, 12])
        lines = status().splitlines()
        assert lines[0] == "mine: alive"
        assert re.fullmatch(rf" +0 +12  data +\d+ s ago +{os.getpid()}  \S+", lines[2])
        assert lines[3].split()[:3] == ["1", "12", "step"]
        assert lines[4] == "last step   12 of 60: loss 2.5000, 50,000 tok/s, 0.250 s"
        assert re.fullmatch(r"checkpoint  step-00000010, saved \d+ s ago", lines[5])
        assert lines[6] == "speeds      slowest is 1"
        assert lines[7:] == ["events      2026-01-01T00:00:00+00:00 start: world_size 2"]
    note_ending(".", Ending(75, "another rank ended"), 0)
    note_ending(".", Ending(76, "error: broken"), 1)
    assert status().startswith("mine: ended with code 76: rank 1: error: broken\n")


@pytest.mark.parametrize(
    ("stopped_by", "verdict"),
    [
        (None, "finished after 60 of 60 steps."),
        ("SIGUSR1", "stopped by SIGUSR1 after 60 of 60 steps. Run the same command again"),
    ],
)
def test_the_status_of_a_run_that_ended_says_how(
    status: Any, stopped_by: str | None, verdict: str
) -> None:
    end = {"event": "end", "steps_done": 60, "steps": 60, "stopped_by": stopped_by}
    write_lines("events", {"event": "start", "world_size": 1}, end)
    with HeartbeatWriter(".", 0, 60):
        pass
    assert status().startswith(f"mine: {verdict}")


def test_a_run_whose_process_is_gone_is_dead(status: Any) -> None:
    write_lines("events", {"event": "start", "world_size": 1})
    with HeartbeatWriter(".", 0, 60):
        pass
    (beat,) = read_heartbeats(".")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = {**asdict(beat), "phase": "step", "step": 9, "pid": ended.pid}
    Path("heartbeats", "rank-00000.json").write_text(json.dumps(gone))
    assert status().startswith(
        f"mine: dead: rank 0 on {beat.host} (step 9, phase step): process {ended.pid} is gone. Run"
    )


def test_the_rank_that_was_killed_is_named_not_those_that_ended_for_want_of_it(
    status: Any,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with HeartbeatWriter(".", 0, 60):
        pass
    host, now = read_heartbeats(".")[0].host, time.time()
    write_beats([
        RankHeartbeat(0, host, ended.pid, 12, "failed", now, now - 9),
        RankHeartbeat(1, host, ended.pid, 12, "step", now, now - 9),
    ])  # fmt: skip
    note_ending(".", Ending(75, LOST + "closed"), 0)
    assert status().startswith(f"mine: dead: rank 1 on {host} (step 12, phase step): process ")


def test_a_rank_that_is_late_is_named(status: Any) -> None:
    write_lines("events", {"event": "start", "world_size": 2})
    write_lines("metrics", {**LINE, "step_seconds": 5.0})
    # Ranks of other machines: nobody here knows their processes.
    beats = [
        RankHeartbeat(0, "node-1", 1, 12, "step", time.time(), time.time() - 100),
        RankHeartbeat(1, "node-2", 1, 12, "data", time.time() - 12, time.time() - 100),
    ]
    write_beats(beats)
    assert status().startswith("mine: alive\n"), "12 s are less than three steps"
    write_lines("metrics", *[{**LINE, "step_seconds": 1.0}] * 9)
    assert status().startswith(
        "mine: alive, but rank 1 on node-2 (step 12, phase data) has given no sign of life for 12 s"
    )
    write_beats([RankHeartbeat(**{**asdict(beat), "time": time.time() - 9999}) for beat in beats])
    assert "its machine may be down" in status().splitlines()[0]


def test_ranks_of_an_earlier_larger_start_are_left_out(status: Any) -> None:
    start = {"event": "start", "time": "2026-01-01T00:00:00+00:00", "world_size": 1}
    write_lines("events", start)
    long_ago = 1.7e9
    write_beats([
        RankHeartbeat(0, "node-1", 1, 12, "step", time.time(), time.time() - 100),
        RankHeartbeat(1, "node-2", 1, 12, "data", long_ago, long_ago),
    ])  # fmt: skip
    assert status().startswith("mine: alive\n")
    assert "node-2" not in status()


def write_beats(beats: list[RankHeartbeat]) -> None:
    with contextlib.suppress(FileExistsError):
        Path("heartbeats").mkdir()
    for beat in beats:
        Path("heartbeats", f"rank-0000{beat.rank}.json").write_text(json.dumps(asdict(beat)))


def test_the_status_obeys_no_control_characters(status: Any) -> None:
    write_lines("events", {"event": "failed", "message": "\x1b[31mred\nmine: alive"})
    assert "\\u001b[31mred\\nmine: alive" in status()


def test_the_status_needs_no_torch(status: Any) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from corpuskit.cli.train import command; "
        "command(['t.yaml', '--status'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == status(), done.stderr
