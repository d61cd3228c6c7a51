"""Shows a run while it runs: a picture on a terminal, one line a minute in a log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._live import Screen, draw, duration, kept, numbers, size, styled
from corpuskit.cli._streams import echo, one_line
from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.eta import format_duration
from corpuskit.engine.monitor import RunMonitor
from corpuskit.engine.progress import Tracker
from corpuskit.errors import CorpuskitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from corpuskit.engine.phase import PhaseStatus
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.progress import RunProgress
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal


COMPILING = "compiling kernels (first run on this machine)"

LINE_SECONDS = 60.0
DRAW_SECONDS = 0.5
LOOK_SECONDS = 2.0  # how often manifests are looked for that are new
SPARE = 20.0  # pause between two looks, as a multiple of what a look takes


class QuietObserver(RunCallbacks):
    """Says what went wrong, nothing else."""

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        if event != "done":
            echo(f"task {event}: {one_line(fields.get('error', ''))}", err=True)

    def notes(self, text: str) -> None:
        echo(text, err=True)


class TrackingObserver(QuietObserver):
    """Keeps a tracker, and ignores its errors: no run may fail because of its display."""

    tracker: Tracker | None = None

    def opened(self, run: RunDirectory) -> None:
        self.tracker = Tracker(run)
        self._looked, self._took = time.monotonic(), 0.0

    def phase_starts(self, prospect: PhaseStatus) -> None:
        self._is_reused, self._is_empty = prospect.state == "reuse", prospect.units == 0
        if self.tracker is not None and not self._is_reused:
            with contextlib.suppress(CorpuskitError, OSError):
                self.tracker.begin(prospect.phase, prospect.fingerprint)

    def progress(self, documents: int, size_bytes: int) -> None:
        if self.tracker is not None:
            self.tracker.read(documents, size_bytes)

    def compiling(self) -> None:
        if self.tracker is not None:
            self.tracker.compiles(COMPILING)

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        if self.tracker is not None:
            self.tracker.failed += event == "failed"
            self.tracker.retried += event == "retry"

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        if self.tracker is not None:
            self.tracker.end(phase, seal, "reused" if self._is_reused else "done")

    def ended(self, phase: Phase) -> str:
        """Return a line about a phase that has ended; "" if it had nothing to do."""
        if self.tracker is None or self._is_reused or self._is_empty:
            return ""
        return end_line(self.tracker.progress(), phase.name)

    def look(self, seconds: float = 0.0) -> None:
        """Count new manifests, unless they were counted so few seconds ago.

        A folder of 100,000 manifests takes a second to list: most of the time goes to the run.
        """
        now = time.monotonic()
        if self.tracker is not None and now - self._looked >= max(seconds, SPARE * self._took):
            with contextlib.suppress(CorpuskitError, OSError):
                self.tracker.look()
            self._looked = time.monotonic()
            self._took = self._looked - now


class LineObserver(TrackingObserver):
    """Prints a line when a phase has ended; of a long one, one a minute."""

    _compiles = False

    def phase_starts(self, prospect: PhaseStatus) -> None:
        super().phase_starts(prospect)
        self._last = time.monotonic()
        self._why = f" (again: {prospect.reason})" if prospect.reason else ""
        if self._is_reused and not self._is_empty:
            click.echo(f"{prospect.phase.name}: reused")

    def compiling(self) -> None:
        super().compiling()
        if not self._compiles:
            self._compiles = True
            click.echo(f"  {COMPILING}")

    def progress(self, documents: int, size_bytes: int) -> None:
        super().progress(documents, size_bytes)
        self._minute()

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        super().task_ends(event, fields)
        if event != "done":
            echo(f"  task {event}: {one_line(fields.get('error', ''))}", err=True)
        self._minute()

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        super().phase_ends(phase, seal)
        if line := self.ended(phase):
            click.echo(f"{line}{self._why}")

    def _minute(self) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS and self.tracker is not None:
            self._last = time.monotonic()
            self.look()
            click.echo(f"{minute_line(self.tracker.progress())}{self._why}")


class LiveObserver(TrackingObserver):
    """Draws how far the run is on a terminal, twice a second; phases that ended scroll away above.

    Args:
        console: of the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._screen = Screen(console)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="progress", daemon=True)
        self._inputs = ""

    def __enter__(self) -> LiveObserver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._draw()
            self._screen.close()

    def reading_inputs(self, done: int, total: int) -> None:
        self._inputs = f"reading the inputs: {done:,} of {total:,} files"

    def opened(self, run: RunDirectory) -> None:
        with self._lock:
            super().opened(run)

    def phase_starts(self, prospect: PhaseStatus) -> None:
        with self._lock:
            super().phase_starts(prospect)

    def progress(self, documents: int, size_bytes: int) -> None:
        with self._lock:
            super().progress(documents, size_bytes)
            self.look(LOOK_SECONDS)

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        with self._lock:
            super().task_ends(event, fields)
            self.look(LOOK_SECONDS)
            if event != "done":
                self._say(f"task {event}: {one_line(fields.get('error', ''))}")

    def compiling(self) -> None:
        with self._lock:
            super().compiling()

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        with self._lock:
            super().phase_ends(phase, seal)
            if line := self.ended(phase):
                self._say(line)

    def notes(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def _say(self, line: str) -> None:
        self._screen.above(one_line(line))
        self._draw()

    def _keep_drawing(self) -> None:
        while not self._ended.wait(DRAW_SECONDS):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self.tracker is not None:
            draw_on(self._screen, self.tracker.progress())
        elif self._inputs:
            self._screen.draw([styled(self._inputs)])


def draw_on(screen: Screen, progress: RunProgress) -> None:
    """Draw the picture of a run in place."""
    console = screen.console
    is_unicode = (console.encoding or "").lower().startswith("utf")
    screen.draw(draw(progress, *console.size, is_unicode=is_unicode))


def end_line(progress: RunProgress, name: str) -> str:
    """Return what a log says of a phase that has ended."""
    row = next(phase for phase in progress.phases if phase.name == name)
    pieces = [f"{row.tasks:,} task{'s' * (row.tasks != 1)}"] if row.tasks else []
    pieces += [f"{row.documents:,} documents"] if row.documents else []
    pieces += [size(row.text_bytes)] if row.text_bytes else []
    if row.seconds >= 0.5 and row.text_bytes:
        pieces.append(f"{row.text_bytes / 1e6 / row.seconds:,.1f} MB/s")
    pieces += [duration(row.seconds)] if row.seconds else []
    pieces += kept(progress.funnel)[:1]
    return f"{name}: {', '.join(pieces)}"


def minute_line(progress: RunProgress) -> str:
    """Return what a log says of a run once a minute."""
    name = "" if progress.current is None else f"{progress.current.name}: "
    pieces = [] if progress.current is None else numbers(progress, progress.current)
    if progress.current is not None:
        pieces.append(duration(progress.current.seconds))
    pieces += kept(progress.funnel)[:1]
    if progress.seconds_left is not None:
        pieces.append(f"whole run: {format_duration(progress.seconds_left)} left")
    pieces += [progress.note] if progress.note else []
    return f"  {one_line(name + ', '.join(pieces))}".replace("\t", " ")


def terminal() -> Console | None:
    """Return the console of standard error if that is a terminal which can draw in place."""
    if not (sys.stderr.isatty() and os.environ.get("TERM")):
        return None
    from rich.console import Console  # 0.02 CPU s that a log does without

    console = Console(file=sys.stderr, highlight=False)  # that of now: tasks here redirect it
    return None if console.is_dumb_terminal else console


@contextlib.contextmanager
def observer(*, quiet: bool = False) -> Iterator[RunCallbacks]:
    """Yield the observer that suits where standard error goes."""
    console = None if quiet else terminal()
    if quiet:
        yield QuietObserver()
    elif console is not None:
        with ended_by_term(), LiveObserver(console) as live:
            yield live
    else:
        yield LineObserver()


@contextlib.contextmanager
def ended_by_term() -> Iterator[None]:
    """Have SIGTERM end this process as Ctrl-C does, so that a picture is closed."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---------------------------------------------------------------- watching a run of another process

MOVING = ("seconds", "quiet_seconds", "phase_seconds_left", "seconds_left", "bytes_per_second")
"""What changes by itself."""


def watch(address: str, seconds: float, *, as_json: bool) -> tuple[RunProgress, int]:
    """Show a run until it is finished, has failed, or was stopped.

    Args:
        seconds: between two looks.

    Returns:
        How far it is then, and the exit code that it has.
    """
    console = None if as_json else terminal()
    watcher = RunMonitor(address)
    if console is None:
        return _follow(watcher, seconds, _Objects() if as_json else _PhaseLines())
    screen = Screen(console)
    try:
        with ended_by_term():
            return _follow(watcher, seconds, _PhaseLines(screen))
    finally:
        screen.close()


def _follow(
    watcher: RunMonitor, seconds: float, view: _Objects | _PhaseLines
) -> tuple[RunProgress, int]:
    while True:
        began = time.monotonic()
        progress = watcher.look()
        for line in watcher.news:
            view.news(line)
        watcher.news.clear()
        view.show(progress)
        if progress.state != "running":
            return progress, watcher.exit_code(progress)
        time.sleep(max(seconds, 2 * (time.monotonic() - began)))  # a large run takes long to list


class _Objects:
    """Prints a JSON object, on one line, whenever something has changed."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, progress: RunProgress) -> None:
        facts = progress.facts()
        still = json.dumps(_still(facts))
        if still != self._last:
            self._last = still
            click.echo(json.dumps(facts))

    def news(self, line: str) -> None:
        """Nothing: the number of failed tasks says it."""


def _still(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _still(item) for name, item in value.items() if name not in MOVING}
    return [_still(item) for item in value] if isinstance(value, (list, tuple)) else value


class _PhaseLines:
    """Prints a line for each phase that ends; below, on a terminal, how far the run is.

    Args:
        screen: of a terminal; without one, a line a minute says how far the run is.
    """

    def __init__(self, screen: Screen | None = None) -> None:
        self._screen = screen
        self._states: dict[str, str] = {}
        self._last = time.monotonic()
        self._note = ""

    def show(self, progress: RunProgress) -> None:
        is_first = not self._states
        for phase in progress.phases:
            before, self._states[phase.name] = self._states.get(phase.name), phase.state
            has_ended = phase.state == "done" and before != "done"
            if has_ended and not is_first and not phase.is_empty:
                self._say(end_line(progress, phase.name))
        if self._screen is not None:
            draw_on(self._screen, progress)
            return
        note = progress.note.partition(" for ")[0]
        if (
            is_first
            or time.monotonic() - self._last >= LINE_SECONDS
            or note not in ("", self._note)
        ):
            self._last = time.monotonic()
            click.echo(minute_line(progress))
        self._note = note

    def news(self, line: str) -> None:
        if self._screen is None:
            echo(f"  {one_line(line)}", err=True)
        else:
            self._screen.above(one_line(line))

    def _say(self, line: str) -> None:
        if self._screen is None:
            click.echo(line)
        else:
            self._screen.above(one_line(line))
