"""What training shows: one region of a terminal, redrawn; plain lines in a pipe or a log."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from corpuskit.cli._live import flow
from corpuskit.cli._streams import echo, end_unread, one_line
from corpuskit.train.metrics import (
    EvaluationMetrics,
    Event,
    MixtureMetrics,
    StepMetrics,
    TrainResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from types import FrameType

    from rich.console import RenderableType

    from corpuskit.train.metrics import Observer, SourceLoss, Update
    from corpuskit.train.settings import TrainSettings

REDRAW_SECONDS = 0.5  # drawing takes 1.6 ms: 0.3 % of a core
KEPT_LOSSES = 512  # of the curve; neighbours are averaged beyond
RECENT_LINES = 50  # lines of progress that the time left is computed from
KEPT_EVENTS = 5
NEWEST_LINES = 4  # of the region, for the newest event
UNEVEN = 1.2  # times the median: from here on the slowest rank is worth a line
HELD_OUT_WIDTH = 56  # of a terminal whose table of sources has a column for it
BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII_BLOCKS = "_.-=*#"
INTERRUPTED = 130  # exit code of shells for Ctrl-C
SECOND_SECONDS = 1.0  # torchrun passes the terminal's Ctrl-C on: the same one arrives twice


@contextlib.contextmanager
def observer(settings: TrainSettings) -> Iterator[Observer]:
    """Yield the observer that suits where standard output goes; among several ranks, the first's.

    Ctrl-C does what SIGTERM does: training saves a checkpoint after this step, and ends. A second
    one ends the process at once.
    """
    is_first, console = int(os.environ.get("RANK", "0")) == 0, Console()
    # FORCE_COLOR makes rich take a pipe for a terminal.
    is_live = is_first and sys.stdout.isatty() and not console.is_dumb_terminal
    with _interruptible(settings, is_first):
        if is_live:
            with LiveView(settings.name, console) as view:
                yield view
        else:
            yield LineView() if is_first else lambda _: None


@contextlib.contextmanager
def _interruptible(settings: TrainSettings, is_first: bool) -> Iterator[None]:
    """Turn Ctrl-C into SIGTERM once that has a handler; end without a traceback."""
    interrupts: list[float] = []

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if interrupts and now - interrupts[0] < SECOND_SECONDS:
            return
        if interrupts or not callable(signal.getsignal(signal.SIGTERM)):
            raise KeyboardInterrupt
        interrupts.append(now)
        if is_first:
            # Not print(): this may have interrupted one. It overwrites the last line.
            words = "stopping after this step; Ctrl-C again: at once"
            os.write(2, f"\r {words}"[: shutil.get_terminal_size().columns].encode())
        signal.raise_signal(signal.SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if is_main else None
    try:
        yield
    except BrokenPipeError:
        end_unread("Run the same command again to go on from the newest checkpoint.")
    except KeyboardInterrupt:
        if is_first:
            echo(
                "\ninterrupted: run the same command again to go on from the newest checkpoint in "
                f"{settings.output}",
                err=True,
            )
        sys.stdout.flush()
        sys.stderr.flush()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            os._exit(INTERRUPTED)  # the others wait for this rank, and it must not wait for them
        sys.exit(INTERRUPTED)
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)


class LineView:
    """Prints a line per reported step, per evaluation and per event; the mixture at the end."""

    def __init__(self) -> None:
        self._mixture: MixtureMetrics | None = None

    def __call__(self, update: Update) -> None:
        if isinstance(update, MixtureMetrics):
            self._mixture = update
            return
        if isinstance(update, TrainResult) and self._mixture:
            click.echo(one_line(str(self._mixture)))
        if not isinstance(update, Event) or is_news(update):
            click.echo(one_line(str(update)))
            sys.stdout.flush()


def is_news(event: Event) -> bool:
    """Return whether an event is worth a line: ranks that are equally fast are none."""
    ratio = event.fields.get("ratio")
    return event.kind != "speeds" or (isinstance(ratio, int | float) and ratio >= UNEVEN)


class LiveView:
    """Redraws one region of the terminal, at most twice a second.

    No thread draws: the processor is the training's. The cursor stays visible, so that a process
    that is killed leaves an ordinary terminal.
    """

    def __init__(self, name: str, console: Console) -> None:
        self.screen = TrainingScreen(name)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._drawn = 0.0

    def __enter__(self) -> LiveView:
        self._live.start()
        self._live.console.show_cursor(True)
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self.screen.is_ended = True
            self._draw()
        self._live.stop()

    def __call__(self, update: Update) -> None:
        self.screen.add(update, time.monotonic(), datetime.now())
        is_end = isinstance(update, TrainResult)
        is_rare = not isinstance(update, StepMetrics | MixtureMetrics)
        if is_rare or time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()
        if is_end:
            # Under torchrun the process ends before this view is left.
            self._live.stop()
            echo(one_line(str(update)))

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(self.screen.region(self._live.console), refresh=True)


class TrainingScreen:
    """The updates so far, and the region that shows it."""

    def __init__(self, name: str) -> None:
        self._name = one_line(name)
        self._last: StepMetrics | None = None
        self._mixture: MixtureMetrics | None = None
        self._evaluation: EvaluationMetrics | None = None
        self._speeds: Event | None = None
        self._sources: dict[str, SourceLoss] = {}  # a step need not have rows of every one
        self.is_ended = False
        self._events = deque[tuple[str, Event]](maxlen=KEPT_EVENTS)
        self._losses, self._group = list[tuple[float, int]](), 1
        self._recent = deque[tuple[float, int]](maxlen=RECENT_LINES)

    def add(self, update: Update, now: float, clock: datetime) -> None:
        """Take an update.

        Args:
            now: seconds of a clock that never goes back.
            clock: the time of day.
        """
        if isinstance(update, StepMetrics):
            if self._last and update.step <= self._last.step:
                self._recent.clear()  # the run went back
            self._recent.append((now, update.step))
            self._last = update
            self._sources |= update.sources
            self._add_loss(update.loss)
        elif isinstance(update, MixtureMetrics):
            self._mixture = update
        elif isinstance(update, EvaluationMetrics):
            self._evaluation = update
        elif isinstance(update, TrainResult):
            self.is_ended = True
        elif update.kind == "speeds":
            self._speeds = update
        else:
            self._events.append((f"{clock:%H:%M:%S}", update))

    def _add_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            return
        if self._losses and self._losses[-1][1] < self._group:
            total, count = self._losses.pop()
            self._losses.append((total + loss, count + 1))
        else:
            self._losses.append((loss, 1))
        if len(self._losses) > KEPT_LOSSES:
            pairs = zip(self._losses[::2], [*self._losses[1::2], (0.0, 0)], strict=False)
            self._losses = [(a + b, m + n) for (a, m), (b, n) in pairs]
            self._group *= 2

    def region(self, console: Console) -> RenderableType:
        """Return the lines, none wider and all together not higher than the console."""
        width, height = console.width, console.height
        lines = self._head(width, console.options.ascii_only)
        foot = [Text(" Ctrl-C: save after this step and end", style="dim")]
        events = [] if self.is_ended else foot
        for number, (clock, event) in enumerate(reversed(self._events)):
            text = Text(f" {clock} {one_line(str(event))}", style=_style(event.kind))
            # The newest in full, if there is room: what comes last names the documents.
            wrapped = text.wrap(console, width)[:NEWEST_LINES] if number == 0 else [text]
            newest = [*wrapped] if len(lines) + len(events) + len(wrapped) + 7 < height else [text]
            if len(lines) + len(events) + len(newest) + 3 < height:
                events = [*newest, *events]
        room = height - 1 - len(lines) - len(events)
        body: list[RenderableType] = [*lines]
        if self._last and room >= 3:
            body.append(self._source_table(width, room))
        for line in (*lines, *events):
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*body, *events)

    def _head(self, width: int, is_ascii: bool) -> list[Text]:
        """Return how far the run is, the curve, and the figures of the last step."""
        last = self._last
        if last is None:
            return [Text.assemble((f" {self._name}", "bold"), "  setting up")]
        num_done = last.step + 1
        progress = [
            self._name,
            f"step {num_done:,} of {last.steps:,}",
            f"{100 * num_done / last.steps:.0f} %",
            *([self._time_left()] if self._time_left() else []),
        ]
        loss = f" loss {last.loss:.4f} "
        means = [total / count for total, count in self._losses]
        curve = sparkline(means, width - len(loss) - 1, ASCII_BLOCKS if is_ascii else BLOCKS)
        if len(loss) + len(curve) > width:
            curve = ""
        figures = [
            f"lr {last.lr:.2e}",
            f"grad {last.grad_norm:.2f}",
            f"{last.tokens_per_second:,.0f} tok/s",
            *([] if last.mfu is None else [f"MFU {100 * last.mfu:.1f} %"]),
            f"wait p50 {last.data_wait_p50_ms:.1f} p99 {last.data_wait_p99_ms:.1f} ms",
            f"{last.tokens:,} tokens",
        ]
        if self._speeds and len(self._speeds.fields.get("own_seconds", ())) > 1:
            slow = self._speeds.fields
            figures.append(f"slowest rank {slow['slowest']} ({slow['host']}) x{slow['ratio']:.2f}")
        if self._evaluation and width < HELD_OUT_WIDTH:
            pairs = (f"{name} {_bits(source)}" for name, source in self._evaluation.sources.items())
            figures.append(one_line(f"held out @{self._evaluation.step} {' '.join(pairs)}"))
        return [
            *flow(progress, width, sys.maxsize, "   ", "bold", indent=" "),
            Text.assemble((loss, "bold"), (curve, "cyan")),
            *flow(figures, width, sys.maxsize, "   ", "", indent=" "),
        ]

    def _time_left(self) -> str:
        """Return the time left at the pace of the last lines, pauses included."""
        last = self._last
        if self.is_ended or last is None:
            return ""
        (first_time, first), (last_time, step) = self._recent[0], self._recent[-1]
        pace = (last_time - first_time) / (step - first) if step > first else last.step_seconds
        seconds = round(pace * (last.steps - last.step - 1))
        days, rest = divmod(seconds, 86400)
        clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
        return f"{days} d {clock} left" if days else f"{clock} left"

    def _source_table(self, width: int, room: int) -> Table:
        """Return a row per source, as many as there is room for, the largest first."""
        now, shares = self._sources, self._mixture.sources if self._mixture else {}
        held_out = self._evaluation.sources if self._evaluation else {}
        names = sorted({*now, *shares, *held_out}, key=lambda n: (-_tokens(n, shares, now), n))
        listed = names if len(names) < room else names[: room - 2]
        after = f"held out @{self._evaluation.step}" if self._evaluation else ""
        columns: list[tuple[str, Callable[[str], str], int]] = [
            ("loss", lambda n: f"{now[n].loss:.3f}" if n in now else "-", 0),
            ("bits/byte", lambda n: _bits(now.get(n)), 70),
            ("trained", lambda n: f"{100 * shares[n].realised_ratio:.1f} %", 0),
            ("planned", lambda n: f"{100 * shares[n].planned_ratio:.1f} %", 40),
            ("epochs", lambda n: f"{shares[n].epochs:.2f}", 80),
            (after, lambda n: _bits(held_out.get(n)), HELD_OUT_WIDTH),
        ]
        table = Table(box=None, pad_edge=True, header_style="dim", expand=False)
        table.add_column("source", no_wrap=True, overflow="ellipsis", min_width=6, max_width=32)
        is_there: dict[str, Collection[str]] = {
            "trained": shares,
            "planned": shares,
            "epochs": shares,
            after: held_out,
        }
        fitting = [c for c in columns if width >= c[2] and is_there.get(c[0], now)]
        for title, _, _ in fitting:
            table.add_column(title, justify="right", no_wrap=True, overflow="ellipsis")
        for name in listed:
            cells = [cell(name) if name in is_there.get(title, names) else "-"
                     for title, cell, _ in fitting]  # fmt: skip
            table.add_row(Text(one_line(name)), *cells)
        if len(listed) < len(names):
            table.add_row(Text(f"and {len(names) - len(listed)} more", style="dim"))
        return table


def _tokens(name: str, shares: dict[str, Any], now: dict[str, SourceLoss]) -> int:
    source = shares.get(name) or now.get(name)
    return source.tokens if source else 0


def _bits(row: SourceLoss | None) -> str:
    if row is None:
        return "-"
    return f"{row.loss:.3f} nats" if row.bits_per_byte is None else f"{row.bits_per_byte:.4f}"


def _style(kind: str) -> str:
    if kind in {"failed", "interrupted"}:
        return "red"
    return "yellow" if kind in {"bad_step", "rollback"} else "dim"


def sparkline(values: Sequence[float], width: int, blocks: str) -> str:
    """Return the values as blocks, at most `width` of them, neighbours averaged.

    The highest twentieth is cut off, or the fall of the first steps would be all there is to see.
    """
    if not values or width < 4:
        return ""
    count = min(width, len(values))
    bounds = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    low, high = min(means), sorted(means)[round(0.95 * (count - 1))]
    span = max(high - low, 1e-9)
    return "".join(
        blocks[min(int((min(mean, high) - low) / span * len(blocks)), len(blocks) - 1)]
        for mean in means
    )
