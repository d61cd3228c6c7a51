"""What training shows on terminals of any size, in pipes, and after Ctrl-C."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import signal
import time
from datetime import datetime
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from corpuskit.cli._train_view import (
    BLOCKS,
    KEPT_LOSSES,
    LineView,
    TrainingScreen,
    observer,
    sparkline,
)
from corpuskit.train.metrics import (
    EvaluationMetrics,
    Event,
    MixtureMetrics,
    SourceLoss,
    SourceMixture,
    StepMetrics,
    TrainResult,
)
from corpuskit.train.settings import TrainSettings
from corpuskit.train.watch import StopSignals
from tests.patience import HANG_SECONDS
from tests.train.conftest import server

if TYPE_CHECKING:
    from pathlib import Path

    from corpuskit.train.metrics import Update

NOON = datetime(2026, 1, 1, 12)


def progress(step: int, names: tuple[str, ...] = ("web", "books"), **changes: Any) -> StepMetrics:
    fields: dict[str, Any] = {
        "step": step,
        "steps": 2000,
        "tokens": 8192 * (step + 1),
        "loss": 3.0 + 6 * math.exp(-step / 200),
        "lr": 3e-4,
        "grad_norm": 0.81,
        "tokens_per_second": 123456.0,
        "step_seconds": 0.5,
        "data_wait_seconds": 0.001,
        "sources": {name: SourceLoss(3.25, 1.25, 1000) for name in names},
        "mfu": 0.412,
        "data_wait_p50_ms": 0.12,
        "data_wait_p99_ms": 2.34,
        "is_applied": True,
    }
    return StepMetrics(**fields | changes)


def whole_run(names: tuple[str, ...] = ("web", "books")) -> list[Update]:
    share = SourceMixture(0.6, 0.589, 1000, 2.4)
    return [
        *(progress(step, names) for step in range(9, 1000, 10)),
        MixtureMetrics(1000, dict.fromkeys(names, share)),
        EvaluationMetrics(1000, {name: SourceLoss(3.1, 1.1832, 500) for name in names}),
        Event("speeds", "", {"ratio": 1.5, "slowest": 3, "host": "node7", "own_seconds": [1, 2]}),
        Event("bad_step", "step 612 not applied: loss 9.31 is 14 deviations above 3.12"),
        Event("rollback", "back to step 500; rows 1 to 9 are skipped for good"),
    ]


def shown(told: list[Update], width: int, height: int = 40, name: str = "demo") -> list[str]:
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    screen = TrainingScreen(name)
    for number, one in enumerate(told):
        screen.add(one, now=5.0 * number, clock=NOON)
    console.print(screen.region(console))
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), [(40, 40), (20, 40), (100, 12), (40, 16), (200, 60)])
def test_the_region_fits_into_the_terminal(width: int, height: int) -> None:
    sources = tuple(f"source-with-a-long-name-{number}" for number in range(30))
    lines = shown(whole_run(sources), width, height)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) < height


def test_a_narrow_terminal_still_says_what_matters() -> None:
    text = "\n".join(shown(whole_run(), 40))
    parts = [
        *("step 1,000 of 2,000", "0:08:20 left", "loss 3.0", "lr 3.00e-04", "grad 0.81"),
        *("123,456 tok/s", "MFU 41.2 %", "wait p50 0.1 p99 2.3 ms", "58.9 %", "60.0 %"),
        *("held out @1000 web 1.1832", "slowest rank 3", "bad_step", "rollback"),
    ]
    assert [part for part in parts if part not in text] == []


def test_sources_that_find_no_room_are_counted() -> None:
    text = "\n".join(shown(whole_run(tuple(f"source-{number}" for number in range(30))), 100, 16))
    found = re.search(r"and (\d+) more", text)
    assert found
    assert text.count("source-") + int(found[1]) == 30


def test_nothing_that_a_terminal_obeys_gets_through() -> None:
    told = [*whole_run(("\x1b[2Jweb\n", "[bold]books")), Event("failed", "id \x1b]0;title\x07")]
    text = "\n".join(shown(told, 120, name="\x1b[31m"))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]books" in text
    assert "\\u001b[2Jweb\\n" in text


def test_going_back_does_not_confuse_the_time_left() -> None:
    again = [progress(step) for step in range(500, 600, 10)]
    text = "\n".join(shown([*whole_run(), *again], 100))
    assert "0:11:44 left" in text


def test_a_long_run_keeps_a_short_curve() -> None:
    screen = TrainingScreen("demo")
    for step in range(10 * KEPT_LOSSES + 3):
        screen.add(progress(step, loss=math.nan if step == 7 else float(step)), step, NOON)
    assert len(screen._losses) <= KEPT_LOSSES
    assert sum(count for _, count in screen._losses) == 10 * KEPT_LOSSES + 2
    means = [total / count for total, count in screen._losses]
    assert means == sorted(means)


def test_a_sparkline_goes_from_its_highest_to_its_lowest_block() -> None:
    line = sparkline([10 - step / 100 for step in range(1000)], 30, BLOCKS)
    assert len(line) == 30
    assert (line[0], line[-1]) == (BLOCKS[-1], BLOCKS[0])
    assert list(line) == sorted(line, reverse=True)
    assert sparkline([1.0, 1.0], 30, BLOCKS) == BLOCKS[0] * 2
    assert sparkline([], 30, BLOCKS) == ""


def test_a_pipe_gets_a_line_per_step_and_the_mixture_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    view, share = LineView(), SourceMixture(0.6, 0.5, 10, 0.1)
    for step in range(3):
        view(progress(step))
        view(MixtureMetrics(step + 1, {"web": share}))
    view(Event("speeds", "all alike", {"ratio": 1.01}))
    view(Event("speeds", "rank 3 is slow", {"ratio": 1.31}))
    view(Event("failed", "\x1b[2J\nloss 1.0"))
    view(TrainResult(3, 3, 100, 3.2, 1.5, tmp_path, None))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("1/2000", "2/2000", "3/2000", "speeds:", "failed:", "mixture", "finished"),
    ]
    assert "rank 3 is slow" in lines[3]
    assert not any("\x1b" in line for line in lines)


def training(terminal: Connection, environment: dict[str, str], when: str, times: str) -> None:
    """Train for no steps on a terminal."""
    for handle in range(3):
        os.dup2(terminal.fileno(), handle)
    os.environ.update(environment)
    settings = TrainSettings(name="demo", data="d", output="o", batch={"global_rows": 1})  # type: ignore[arg-type]
    with observer(settings):
        if when == "early":
            os.write(1, b"ready\n")
            time.sleep(HANG_SECONDS)
        with StopSignals() as stop:
            os.write(1, b"ready\n")
            while not stop.received:
                time.sleep(0.01)
            os.write(1, f"got {stop.received}\n".encode())
            if times == "twice":
                time.sleep(1.1)
                os.write(1, b"still here\n")
                time.sleep(HANG_SECONDS)


def interrupt(when: str, times: str = "once", **environment: str) -> tuple[int | None, str]:
    """Run a training of no steps on a terminal and press Ctrl-C; return exit code and screen."""
    leader, follower = pty.openpty()
    with Connection(follower) as terminal:  # multiprocessing hands on what it knows
        given = (terminal, {"TERM": "xterm"} | environment, when, times)
        run = server().Process(target=training, args=given)
        run.start()
    screen = b""
    for word in (b"ready", b"still here"):
        while word not in screen and (read := _read(leader)):
            screen += read
        if word in screen:
            os.kill(run.pid or 0, signal.SIGINT)
    while read := _read(leader):
        screen += read
    run.join(HANG_SECONDS)
    os.close(leader)
    return run.exitcode, screen.decode()


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # the last process that had the terminal is gone
        return b""


@pytest.mark.slow
def test_ctrl_c_asks_for_a_checkpoint_and_a_second_one_ends_at_once() -> None:
    code, screen = interrupt("late", "once")
    assert code == 0
    assert "stopping after this step" in screen
    assert "got SIGTERM" in screen
    code, screen = interrupt("late", "twice")
    assert code == 130
    assert "run the same command again" in screen
    assert "Traceback" not in screen


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_ends_at_once_and_quietly_on_other_ranks() -> None:
    code, screen = interrupt("early")
    assert (code, "interrupted: run the same command again" in screen) == (130, True)
    code, screen = interrupt("early", RANK="1", WORLD_SIZE="2")
    assert (code, screen.replace("\r\n", "")) == (130, "ready")
