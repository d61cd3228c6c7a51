"""What stops a run: a rank that hangs, the clock, an error; and how others learn of it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from corpuskit.errors import CorpuskitError, DataError, UsageError
from corpuskit.train.exits import read_endings
from corpuskit.train.health import (
    Ending,
    Pulse,
    Speeds,
    StopSignals,
    ending_of,
    note_ending,
)
from corpuskit.train.health import report_of as report
from corpuskit.train.pulse import Beat, read_beats


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- Pulse


def test_a_heartbeat_says_where_the_rank_is(tmp_path: Path) -> None:
    with Pulse(tmp_path, 3, 60) as pulse:
        assert read_beats(tmp_path)[0].phase == "start"
        pulse.beat(7, "data")
        wait_until(lambda: read_beats(tmp_path)[0].step == 7)
        (beat,) = read_beats(tmp_path)
        assert (beat.rank, beat.pid, beat.phase) == (3, os.getpid(), "data")
        assert time.time() - 60 < beat.started <= beat.time <= time.time() + 1
    assert read_beats(tmp_path)[0].phase == "end"
    assert [path.name for path in (tmp_path / "heartbeats").iterdir()] == ["rank-00003.json"]


def test_a_pulse_leaves_no_thread_behind_and_can_be_used_again(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(KeyError), Pulse(tmp_path / "a", 0, 60):
        raise KeyError
    with Pulse(tmp_path / "a", 0, 60), Pulse(tmp_path / "b", 0, 60):
        assert len(set(threading.enumerate()) - before) == 2
    assert set(threading.enumerate()) == before
    assert [read_beats(tmp_path / name)[0].phase for name in "ab"] == ["end", "end"]


def test_the_phase_of_a_rank_that_failed_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Pulse(tmp_path, 0, 60):
        raise KeyError
    assert read_beats(tmp_path)[0].phase == "failed"


def test_a_torn_heartbeat_is_left_out(tmp_path: Path) -> None:
    with Pulse(tmp_path, 0, 60):
        pass
    for number, text in enumerate(['{"rank": 1', "[]", '{"rank": 1}', "\xff"]):
        (tmp_path / "heartbeats" / f"rank-0000{number + 1}.json").write_text(text)
    assert [beat.rank for beat in read_beats(tmp_path)] == [0]


@pytest.mark.slow
def test_a_rank_without_a_sign_of_life_tells_all_stacks_and_ends(
    start_ranks: Any, tmp_path: Path
) -> None:
    (process,) = start_ranks(1, _hang, tmp_path, time.sleep, group=False).processes
    process.join(60)
    assert process.exitcode == 78
    told = (tmp_path / "stderr").read_text()
    line = told.splitlines()[-1]
    assert line.startswith("rank 2 on ")
    assert ": step 5, phase data: no sign of life for " in line
    stacks = (tmp_path / "heartbeats" / "rank-00002.stacks").read_text()
    for text in (told, stacks):
        assert "in _hang_here" in text
        assert "in _wait_beside" in text, "the stack of another thread"
        assert line in text
    assert read_endings(tmp_path) == {2: Ending(78, line)}


@pytest.mark.slow
def test_a_call_that_keeps_the_interpreters_lock_is_ended_too(
    start_ranks: Any, tmp_path: Path
) -> None:
    sleep = ctypes.PyDLL(None).sleep  # PyDLL keeps the lock
    (process,) = start_ranks(1, _hang, tmp_path, sleep, group=False).processes
    process.join(60)
    assert process.exitcode == 1
    assert "in _hang_here" in (tmp_path / "heartbeats" / "rank-00002.stacks").read_text()
    assert read_endings(tmp_path) == {}


def _hang(output: Path, sleep: Any) -> None:
    os.dup2(os.open(output / "stderr", os.O_WRONLY | os.O_CREAT), 2)
    threading.Thread(target=_wait_beside, daemon=True).start()
    with Pulse(output, 2, 1.0) as pulse:
        pulse.beat(5, "data")
        _hang_here(sleep)


def _hang_here(sleep: Any) -> None:
    sleep(60)


def _wait_beside() -> None:
    threading.Event().wait()


@pytest.mark.slow
def test_beats_keep_a_rank_alive(run_ranks: Any, tmp_path: Path) -> None:
    assert run_ranks(1, _live, tmp_path, group=False) == ["alive"]


def _live(output: Path) -> str:
    # 0.8 s beside one of silence that would end it: a busy machine must not.
    with Pulse(output, 0, 4.0) as pulse:
        for step in range(60):
            pulse.beat(step, "step")
            time.sleep(0.1)
    return "alive"


# --- StopSignals


def test_the_clock_stops_a_run_once_its_time_has_come() -> None:
    with StopSignals(0.05) as soon, StopSignals(3600) as late, StopSignals() as never:
        wait_until(lambda: soon.received)
        assert (soon.received, late.received, never.received) == ("stop_after_seconds", None, None)


# --- how a rank ends


class _GuardError(CorpuskitError):
    exit_code = 77


LOST = "another rank ended: "


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (DataError("p.parquet: damaged."), (76, "error: p.parquet: damaged.")),
        (UsageError("steps: 9."), (2, "error: steps: 9.")),
        (_GuardError("step 3: nan."), (77, "error: step 3: nan.")),
        (CorpuskitError("x: not written."), (1, "error: x: not written.")),
        (dist.DistBackendError("NCCL error: gone\nmore"), (75, LOST + "NCCL error: gone")),
        (CheckpointException("", {1: (dist.DistNetworkError("gone"), None)}), (75, LOST + "gone")),
        (RuntimeError("[gloo/pair.cc:5] gone"), None),
        (RuntimeError("[/x/gloo/pair.cc:5] gone [::1]:9. Look"), (75, LOST + "gone [::1]:9")),
        (RuntimeError("shapes [2] and [3] do not fit, see a/gloo/b"), None),
        (KeyError("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_tells_how_a_rank_ends(
    error: BaseException, ending: tuple[int, str] | None
) -> None:
    assert ending_of(error) == (ending and Ending(*ending))


@pytest.mark.slow
def test_whoever_waits_for_a_dead_rank_ends_with_75(start_ranks: Any, tmp_path: Path) -> None:
    for number, wait in enumerate((_wait_in_a_sum, _wait_in_a_save)):
        output = tmp_path / str(number)
        ranks = start_ranks(2, _lose_rank_1, output, wait)
        for process in ranks.processes:
            process.join(60)
        assert read_endings(output).keys() == {0}
        assert read_endings(output)[0].code == 75
        assert re.fullmatch(LOST + "[A-Z].* by peer.*", read_endings(output)[0].line)


def _lose_rank_1(output: Path, wait: Any) -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(0)
    try:
        wait(output)
    except BaseException as error:  # noqa: BLE001  a CheckpointException is no Exception
        ending = ending_of(error)
        assert ending
        note_ending(output, ending, 0)


def _wait_in_a_sum(_output: Path) -> None:
    dist.all_reduce(torch.ones(3))


def _wait_in_a_save(output: Path) -> None:
    output.mkdir(parents=True)
    try:
        dcp.async_save({"x": torch.ones(3)}, checkpoint_id=output / "saved").result()
    except CheckpointException as error:
        raise CorpuskitError("the checkpoint could not be written") from error


def test_an_ending_is_one_plain_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "12")
    note_ending(tmp_path, Ending(76, "error: \x1b[31m\u202ea\n77 b: \u00e9"))
    place = tmp_path / "heartbeats" / "rank-00012.exit"
    assert place.read_text("utf-8") == "76 error: ?[31m?a 77 b: \u00e9\n"
    assert read_endings(tmp_path) == {12: Ending(76, "error: ?[31m?a 77 b: \u00e9")}


def test_a_full_disk_keeps_nobody_from_ending(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").write_text("a file where the folder should be")
    note_ending(tmp_path, Ending(75, "another rank ended"))
    assert read_endings(tmp_path) == {}


# --- Speeds: (step, wait for rows, processor time, probe) of each rank


def test_the_rank_whose_rows_come_late_is_the_slowest() -> None:
    found = report([(1.0, 0.0, 0.2, 0.01), (1.0, 0.8, 0.2, 0.01), (1.0, 0.0, 0.2, 0.01)], "abc")
    assert (found.slowest, found.host) == (1, "b")
    assert found.own_seconds == (0.2, 1.0, 0.2)
    assert found.ratio == pytest.approx(5)


def test_the_rank_with_the_slow_processor_is_the_slowest() -> None:
    found = report([(1.0, 0.0, 0.0, 0.01), (1.0, 0.0, 0.0, 0.01), (1.0, 0.0, 0.0, 0.02)], "abc")
    assert (found.slowest, found.host) == (2, "c")
    assert found.own_seconds == (0.5, 0.5, 1.0)
    assert found.slowness == (1.0, 1.0, 2.0)


def test_of_two_ranks_the_slower_one_is_compared_with_the_faster() -> None:
    found = report([(1.0, 0.0, 0.9, 0.01), (1.0, 0.0, 0.3, 0.01)], "ab")
    assert (found.slowest, found.ratio) == (0, pytest.approx(3))


def test_a_long_wait_for_rows_that_is_short_beside_the_step_is_none() -> None:
    found = report([(1.0, 0.0001, 0.5, 0.01), (1.0, 0.005, 0.5, 0.01)], "ab")
    assert found.ratio == pytest.approx(1, abs=0.01)


def test_one_rank_is_as_fast_as_the_median() -> None:
    found = report([(0.5, 0.1, 0.3, 0.01)], ["here"])
    assert (found.ratio, found.own_seconds) == (1.0, (0.5,))
    assert str(found).count("\n") == 0
    assert json.dumps(asdict(found))


@pytest.mark.slow
def test_all_ranks_hear_the_same_of_their_speeds(settings: Any, run_ranks: Any) -> None:
    first, second = run_ranks(2, _compare, settings())
    assert first == second
    assert first.slowest == 1
    assert first.data_wait_seconds == (0.0, 4.0)
    assert first.ratio > 1.5


def _compare(settings: Any) -> Any:
    from corpuskit.train.parallel import join

    parallel = join(settings)
    speeds = Speeds(parallel)
    speeds.compare(1.0, 0.0)
    return speeds.compare(5.0, 4.0 * parallel.rank)


# --- corpuskit train --status


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
    with Pulse(".", 0, 60) as first, Pulse(".", 1, 60) as second:
        first.beat(12, "data")
        second.beat(12, "step")
        wait_until(lambda: [beat.step for beat in read_beats(".")] == [12, 12])
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
    with Pulse(".", 0, 60):
        pass
    assert status().startswith(f"mine: {verdict}")


def test_a_run_whose_process_is_gone_is_dead(status: Any) -> None:
    write_lines("events", {"event": "start", "world_size": 1})
    with Pulse(".", 0, 60):
        pass
    (beat,) = read_beats(".")
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
    with Pulse(".", 0, 60):
        pass
    host, now = read_beats(".")[0].host, time.time()
    write_beats([
        Beat(0, host, ended.pid, 12, "failed", now, now - 9),
        Beat(1, host, ended.pid, 12, "step", now, now - 9),
    ])  # fmt: skip
    note_ending(".", Ending(75, LOST + "closed"), 0)
    assert status().startswith(f"mine: dead: rank 1 on {host} (step 12, phase step): process ")


def test_a_rank_that_is_late_is_named(status: Any) -> None:
    write_lines("events", {"event": "start", "world_size": 2})
    write_lines("metrics", {**LINE, "step_seconds": 5.0})
    # Ranks of other machines: nobody here knows their processes.
    beats = [
        Beat(0, "node-1", 1, 12, "step", time.time(), time.time() - 100),
        Beat(1, "node-2", 1, 12, "data", time.time() - 12, time.time() - 100),
    ]
    write_beats(beats)
    assert status().startswith("mine: alive\n"), "12 s are less than three steps"
    write_lines("metrics", *[{**LINE, "step_seconds": 1.0}] * 9)
    assert status().startswith(
        "mine: alive, but rank 1 on node-2 (step 12, phase data) has given no sign of life for 12 s"
    )
    write_beats([Beat(**{**asdict(beat), "time": time.time() - 9999}) for beat in beats])
    assert "its machine may be down" in status().splitlines()[0]


def test_ranks_of_an_earlier_larger_start_are_left_out(status: Any) -> None:
    start = {"event": "start", "time": "2026-01-01T00:00:00+00:00", "world_size": 1}
    write_lines("events", start)
    long_ago = 1.7e9
    write_beats([
        Beat(0, "node-1", 1, 12, "step", time.time(), time.time() - 100),
        Beat(1, "node-2", 1, 12, "data", long_ago, long_ago),
    ])  # fmt: skip
    assert status().startswith("mine: alive\n")
    assert "node-2" not in status()


def write_beats(beats: list[Beat]) -> None:
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
