"""What stops a run: a rank that hangs, the clock, an error; and how others learn of it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from corpuskit.errors import CorpuskitError, DataError, UsageError
from corpuskit.train.heartbeat import (
    Ending,
    HeartbeatWriter,
    ending_of,
    note_ending,
    read_endings,
    read_heartbeats,
)
from corpuskit.train.watch import Speeds, StopSignals
from corpuskit.train.watch import report_of as report
from tests.patience import HANG_SECONDS, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_a_heartbeat_says_where_the_rank_is(tmp_path: Path) -> None:
    with HeartbeatWriter(tmp_path, 3, 60) as heartbeat:
        assert read_heartbeats(tmp_path)[0].phase == "start"
        heartbeat.beat(7, "data")
        wait_until(lambda: read_heartbeats(tmp_path)[0].step == 7)
        (beat,) = read_heartbeats(tmp_path)
        assert (beat.rank, beat.pid, beat.phase) == (3, os.getpid(), "data")
        assert time.time() - 60 < beat.started <= beat.time <= time.time() + 1
    assert read_heartbeats(tmp_path)[0].phase == "end"
    assert [path.name for path in (tmp_path / "heartbeats").iterdir()] == ["rank-00003.json"]


def test_a_pulse_leaves_no_thread_behind_and_can_be_used_again(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(KeyError), HeartbeatWriter(tmp_path / "a", 0, 60):
        raise KeyError
    with HeartbeatWriter(tmp_path / "a", 0, 60), HeartbeatWriter(tmp_path / "b", 0, 60):
        assert len(set(threading.enumerate()) - before) == 2
    assert set(threading.enumerate()) == before
    assert [read_heartbeats(tmp_path / name)[0].phase for name in "ab"] == ["end", "end"]


def test_the_phase_of_a_rank_that_failed_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyError), HeartbeatWriter(tmp_path, 0, 60):
        raise KeyError
    assert read_heartbeats(tmp_path)[0].phase == "failed"


def test_a_torn_heartbeat_is_left_out(tmp_path: Path) -> None:
    with HeartbeatWriter(tmp_path, 0, 60):
        pass
    for number, text in enumerate(['{"rank": 1', "[]", '{"rank": 1}', "\xff"]):
        (tmp_path / "heartbeats" / f"rank-0000{number + 1}.json").write_text(text)
    assert [beat.rank for beat in read_heartbeats(tmp_path)] == [0]


@pytest.mark.slow
def test_a_rank_without_a_sign_of_life_tells_all_stacks_and_ends(
    start_ranks: Any, tmp_path: Path
) -> None:
    ranks = start_ranks(1, _hang, tmp_path, time.sleep, group=False)
    (process,) = ranks.processes
    process.join(HANG_SECONDS)
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
    ranks = start_ranks(1, _hang, tmp_path, _keep_the_lock, group=False)
    (process,) = ranks.processes
    process.join(HANG_SECONDS)
    assert process.exitcode == 1
    assert "in _hang_here" in (tmp_path / "heartbeats" / "rank-00002.stacks").read_text()
    assert read_endings(tmp_path) == {}


def _keep_the_lock(seconds: int) -> None:
    ctypes.PyDLL(None).sleep(seconds)  # PyDLL keeps the interpreter's lock


def _hang(output: Path, sleep: Any) -> None:
    os.dup2(os.open(output / "stderr", os.O_WRONLY | os.O_CREAT), 2)
    threading.Thread(target=_wait_beside, daemon=True).start()
    with HeartbeatWriter(output, 2, 1.0) as heartbeat:
        heartbeat.beat(5, "data")
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
    with HeartbeatWriter(output, 0, 4.0) as heartbeat:
        for step in range(60):
            heartbeat.beat(step, "step")
            time.sleep(0.1)
    return "alive"


def test_the_clock_stops_a_run_once_its_time_has_come() -> None:
    with StopSignals(0.05) as soon, StopSignals(3600) as late, StopSignals() as never:
        wait_until(lambda: soon.received)
        assert (soon.received, late.received, never.received) == ("stop_after_seconds", None, None)


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
            process.join(HANG_SECONDS)
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


# Of each rank: (step, wait for rows, processor time, probe).


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
